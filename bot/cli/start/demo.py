"""`bot demo`: the embedded service, a sandbox account and the daemon with two example strategies, in one command,
offline.

A run that ended by itself is finished: its service ended with it, and the next start makes a new run. A run that was
killed is not finished: its service is alive or its database is on disk, and the next start continues with the same
account.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from bot.cli.common.param_types import CandleFile, CandlesFile, ClockParam, Duration, recordings, speed_of
from bot.cli.common.shared_options import json_option

if TYPE_CHECKING:
    from bot.cli.common.event_lines import Counts
    from bot.cli.run.embedded_service import Embedded, RunningService
    from bot.cli.start.demo_summary import Tally
    from bot.client import Client
    from bot.config import Settings
    from bot.runtime.shutdown import DaemonEnd

EPILOG = """\b
Examples:
  bot demo                                      Ctrl-C stops it
  bot demo --for 60s
  bot demo --data candles.csv.gz --clock 600x   ts,open,high,low,close,volume; ts = open time in ms UTC

\b
Kill it (kill -9) and start it again: it continues with the same account. No order is lost or sent twice.
"""

# in a run's folder
CONFIG: Final = "demo.yaml"
# real time between two heartbeats before the dead-man fires; at least 20 are needed
BEAT_WINDOW_S: Final = 30
HEARTBEAT_S_MIN: Final = 300
# the interface's bound
HEARTBEAT_S_MAX: Final = 86_400
# time between two checks whether the recorded data have ended
DATA_LOOK_S: Final = 0.5
# real time that the daemon has to decide the last recorded bar
LAST_BAR_S: Final = 5.0


@click.command(epilog=EPILOG)
@click.option("--for", "span", type=Duration(), default=None, metavar="60s", help="Stop after this time (real time).")
@click.option(
    "--data", type=CandleFile(), multiple=True, metavar="[COIN=]FILE", help="Play recorded candles; repeatable."
)
@click.option(
    "--clock", type=ClockParam(), default=None, metavar="60x", help="Speed of the service's clock.  [default: 60x]"
)
@click.option("--fresh", is_flag=True, help="Start a new run, even if the last one was killed.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="Folder for all files of the demo.",
)
@click.option("--no-dashboard", is_flag=True, help="Start no dashboard.")
@json_option("Events and the summary as JSON lines on standard output.")
def demo(
    span: float | None,
    data: tuple[CandlesFile, ...],
    clock: str | None,
    fresh: bool,
    state_dir: Path | None,
    no_dashboard: bool,
    as_json: bool,
) -> int:
    """Trade play money now: starts the service, an account and the daemon on this machine."""
    if clock == "manual":
        raise click.UsageError("the demo needs a running clock; for a manual clock use `bot sandbox --clock manual`")
    from bot.cli.common import crash_report
    from bot.config.state_folder import default_state_dir
    from bot.operating_system import harden
    from bot.runtime.liveness.instance_lock import hold_state, private_dir
    from bot.runtime.liveness.memory import keep_heap_whole

    harden()
    keep_heap_whole()
    folder = private_dir((state_dir or default_state_dir("demo")).absolute())
    crash_report.write_to(folder / "crash.log")
    with hold_state(folder):
        show = Demo(folder, recordings(data, otherwise="BTC"), clock, has_dashboard=not no_dashboard, as_json=as_json)
        return asyncio.run(show.go(span, fresh=fresh))


@dataclass(slots=True)
class DemoRun:
    """One run: its folder, data and clock. `continued`: it began before a kill, and this start continues it."""

    folder: Path
    data: tuple[tuple[str, Path], ...]
    clock: str
    continued: bool


class Demo:
    def __init__(
        self, folder: Path, data: tuple[tuple[str, Path], ...], clock: str | None, *, has_dashboard: bool, as_json: bool
    ) -> None:
        from bot.cli.common.demo_folders import DemoFolder
        from bot.cli.start.run_output import RunOutput

        self.runs = DemoFolder(folder)
        self.data = data
        self.clock = clock
        self.has_dashboard = has_dashboard
        self._stop = asyncio.Event()
        self._output = RunOutput(self._stop, as_json=as_json)

    async def go(self, span: float | None, *, fresh: bool) -> int:
        from bot.cli.common.config_text import as_yaml
        from bot.cli.common.files import write_atomic
        from bot.cli.run.run_daemon import stopped_by_signals
        from bot.cli.start.run_output import note

        stop = self._stop
        with stopped_by_signals(stop, note):
            run = self._begin(fresh=fresh)
            settings = demo_settings(run.folder, run.data, run.clock, has_dashboard=self.has_dashboard)
            service = self._service(run, settings)
            try:
                text = f"# The config of this run of the demo.\n{as_yaml(settings)}"
                write_atomic(run.folder / CONFIG, text, mode=0o600)
                running = await asyncio.to_thread(service.ensure)
            except BaseException:
                if not run.continued:
                    # The service did not start, so there is nothing to continue.
                    self.runs.ended()
                raise
            return await self._play(run, settings, service, running, stop, span)

    # -- start

    def _begin(self, *, fresh: bool) -> DemoRun:
        kept = self.runs.unfinished()
        if kept is not None and fresh:
            from bot.cli.run.embedded_service import Embedded

            Embedded(self.runs.again(kept)).stop()
            self.runs.ended()
            kept = None
        if kept is None:
            clock = self.clock or "60x"
            judge_data(self.data)
            folder = self.runs.begin(clock=clock, data=[[coin, str(path.resolve())] for coin, path in self.data])
            self.runs.tidy(folder)
            return DemoRun(folder, self.data, clock, continued=False)
        data = tuple((str(coin), Path(path)) for coin, path in kept["data"])
        if self.data and [(coin, path.resolve()) for coin, path in self.data] != list(data):
            from bot.errors import ConfigError

            raise ConfigError(
                f"the last demo was killed and can be continued; its data are {_plays(data)}. Add --fresh to start a"
                f" new run with {_plays(self.data)}"
            )
        return DemoRun(self.runs.again(kept), data, self.clock or str(kept["clock"]), continued=True)

    def _service(self, run: DemoRun, settings: Settings) -> Embedded:
        from bot.cli.run.embedded_service import Embedded

        section = settings.embedded
        return Embedded(
            run.folder,
            clock=section.clock,
            speed=section.speed,
            seed=section.seed,
            markets=section.markets,
            data=tuple((data_file.market, data_file.file) for data_file in section.data),
        )

    # -- running

    async def _play(
        self,
        run: DemoRun,
        settings: Settings,
        service: Embedded,
        running: RunningService,
        stop: asyncio.Event,
        span: float | None,
    ) -> int:
        from bot import logs
        from bot.cli.common.event_lines import FIGURES
        from bot.cli.run.run_daemon import play, stop_after
        from bot.cli.start.demo_summary import start_value, tally
        from bot.client import Client
        from bot.clock import monotonic_ns
        from bot.errors import Exit
        from bot.runtime.control_plane.log_tail import FILE, Tail
        from bot.runtime.run_request import RunRequest

        minted = await service.mint()
        output, tail = self._output, Tail(run.folder / FILE)

        def listen(event: Any) -> None:
            is_debug = event["level"] == "debug"
            if not is_debug:
                tail(event)
            if not is_debug or event["event"] in FIGURES:
                output.event(event)

        with contextlib.closing(tail), _nowhere() as nowhere:
            # With the debug level the demo also shows the heartbeat and the account's value, every few seconds.
            logs.configure(pretty=False, level="debug", stream=nowhere, listen=listen)
            async with Client(running.base_url, minted.api_key) as client:
                start_usd = await start_value(client)
                self._greet(run, running, settings, minted.account_id)
                started_ns = monotonic_ns()
                watchers = (
                    [asyncio.create_task(_ended(client, run.data, settings, output.counts, stop))] if run.data else []
                )
                request = RunRequest(
                    settings=settings,
                    base_url=running.base_url,
                    api_key=minted.api_key,
                    stop=stop,
                    on_ready=lambda: stop_after(span, stop),
                    tail=tail,
                    config=run.folder / CONFIG,
                )
                end = await play(request, embedded=service, on_dashboard=output.dashboard)
                for watcher in watchers:
                    watcher.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await watcher
                real_s = (monotonic_ns() - started_ns) / 1e9
                totals = await tally(client) if service.is_alive() else None
            await asyncio.to_thread(service.stop)
            self.runs.ended()
            logs.configure(level="error")
        self._close(run, settings, end, totals, start_usd, real_s)
        return int(end.exit_code or (Exit.ERROR if output.is_lost else Exit.DONE))

    # -- output

    def _greet(self, run: DemoRun, running: RunningService, settings: Settings, account_id: str) -> None:
        from bot.cli.common.event_lines import strategy_lines

        note = "" if running.is_new else ", was already running"
        if self._output.as_json:
            begun = {"folder": str(run.folder), "baseUrl": running.base_url, "continued": run.continued}
            self._output.data({"event": "demo.begun", **begun})
            return
        if run.continued:
            self._output.line(
                "The last run was killed. This one continues it: same account, same orders, same database (--fresh"
                " starts a new run)."
            )
        plays = _plays(run.data) if run.data else "simulated markets"
        assert settings.dead_man is not None
        seconds = settings.dead_man.heartbeat_seconds
        self._output.line(
            f"service     {running.base_url} (pid {running.pid}{note}), {plays}, clock {run.clock}, account"
            f" {account_id}, play money"
        )
        for line in strategy_lines(settings):
            self._output.line(line)
        self._output.line(
            f"dead-man    {seconds} s of the service's time ({seconds / speed_of(run.clock):g} s of real time) without"
            f" a heartbeat, then {settings.dead_man.on_miss}"
        )
        self._output.line(f"files       {run.folder}")
        self._output.line(f"log         {run.folder / 'daemon.log'}")
        self._output.line("Ctrl-C stops it.\n")

    def _close(
        self, run: DemoRun, settings: Settings, end: DaemonEnd, totals: Tally | None, start_usd: Decimal, real_s: float
    ) -> None:
        from bot.cli.run.run_daemon import judge_end, left_data, left_lines
        from bot.cli.start.demo_summary import summary_data, summary_lines

        speed = settings.embedded.speed
        figures: dict[str, Any] = {
            "counts": self._output.counts,
            "start_usd": start_usd,
            "end": totals,
            "real_s": real_s,
            "speed": speed,
            "continued": run.continued,
        }
        if self._output.as_json:
            data = summary_data(**figures) | {
                "left": left_data(end),
                "exitCode": int(end.exit_code),
                "folder": str(run.folder),
            }
            self._output.data({"event": "demo.summary", **data})
        else:
            lines = ["", *summary_lines(**figures), *left_lines(end)]
            lines.append("The demo's service has ended too, so its prices no longer move.")
            lines.append(f"Files and log: {run.folder}")
            self._output.line("\n".join(lines))
        judge_end(end)


# -- the parts of the demo


def demo_settings(
    folder: Path, data: tuple[tuple[str, Path], ...], clock: str, *, has_dashboard: bool = False
) -> Settings:
    """configs/demo.yaml, with this run's clock, data, folder and dashboard.

    Each recorded market gets one strategy; with one market only the first strategy runs.
    """
    from bot.checks.config_check import check_strategies
    from bot.cli.common.files import example
    from bot.cli.run.dashboard_process import port_or_free
    from bot.config import Recording, load

    settings = load(example("demo.yaml"))
    speed = speed_of(clock)
    assert settings.dead_man is not None, "the demo's config has a dead-man"
    seconds = min(max(round(BEAT_WINDOW_S * speed), HEARTBEAT_S_MIN), HEARTBEAT_S_MAX)
    strategies = settings.strategies
    embedded = settings.embedded.model_copy(update={"clock": clock})
    if data:
        intervals = {coin: _interval(file) for coin, file in data}
        strategies = tuple(
            strategy.model_copy(update={"markets": (coin,), "interval": intervals[coin]})
            for strategy, (coin, _) in zip(settings.strategies, data, strict=False)
        )
        recorded = tuple(Recording(file=file.resolve(), market=coin) for coin, file in data)
        embedded = embedded.model_copy(update={"data": recorded, "markets": (), "seed": 1})
    dashboard = settings.dashboard if has_dashboard else None
    # A second demo takes a free port.
    if dashboard is not None:
        dashboard = dashboard.model_copy(update={"port": port_or_free(dashboard.port)})
    changed = settings.model_copy(
        update={
            "dashboard": dashboard,
            "name": "demo",
            "state_dir": folder,
            "strategies": strategies,
            "embedded": embedded,
            "dead_man": settings.dead_man.model_copy(update={"heartbeat_seconds": seconds}),
        }
    )
    check_strategies(changed)
    return changed


def judge_data(data: tuple[tuple[str, Path], ...]) -> None:
    """Read the files before anything is started, so that a bad row is reported and nothing has to be stopped."""
    for _, file in data:
        _interval(file)


def _interval(file: Path) -> str:
    from bot.service.market_data.recorded import interval_of, read_candles
    from bot.wire import INTERVAL_MS

    step = interval_of(file, read_candles(file, sz_decimals=5))
    return next(name for name, ms in INTERVAL_MS.items() if ms == step)


def _plays(data: tuple[tuple[str, Path], ...]) -> str:
    return ", ".join(f"{coin} from {path.name}" for coin, path in data) or "simulated markets"


def _nowhere() -> TextIO:
    """The stream for log lines that a listener has shown already."""
    return Path(os.devnull).open("w", encoding="utf-8")


async def _ended(
    client: Client, data: tuple[tuple[str, Path], ...], settings: Settings, counts: Counts, stop: asyncio.Event
) -> None:
    """Stop when the data of every market have ended and the daemon has seen the last bars."""
    from bot.clock import monotonic_ns
    from bot.errors import ApiError

    coins = {coin for coin, _ in data}
    since_ns: int | None = None
    while not stop.is_set():
        await asyncio.sleep(DATA_LOOK_S)
        try:
            listed = await client.markets()
            closed = {market.coin for market in listed.markets if market.status != "open"}
            if not coins <= closed:
                continue
            since_ns = since_ns or monotonic_ns()
            last = {
                strategy.markets[0]: await _last_close_ms(client, strategy.markets[0], strategy.interval)
                for strategy in settings.strategies
            }
        except ApiError:
            continue
        seen = counts.last_bar_ms
        if all(seen.get(coin, 0) >= at for coin, at in last.items()) or monotonic_ns() - since_ns > LAST_BAR_S * 1e9:
            stop.set()


async def _last_close_ms(client: Client, coin: str, interval: str) -> int:
    from bot.wire import INTERVAL_MS

    candles = (await client.candles(coin, interval, 2)).candles
    return max((candle.ts + INTERVAL_MS[interval] for candle in candles if candle.closed), default=0)

"""`bot paper`: a config for paper trading at the prices of an exchange, and a run of it.

The run is that of `bot run`, with the output of the demo.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.param_types import Duration
from bot.cli.common.shared_options import json_option

if TYPE_CHECKING:
    from bot.cli.run.dashboard_process import Served
    from bot.cli.run.embedded_service import Embedded, EmbeddedKey, RunningService
    from bot.cli.start.demo_summary import Tally
    from bot.config import Settings
    from bot.runtime.shutdown import DaemonEnd

EPILOG = """\b
Examples:
  bot paper --exchange kraken
  bot paper --exchange hyperliquid --strategy trend:Trend --market BTC --market ETH --for 1h

\b
Needs a network and the extra `markets`, but no account and no key. The same command continues
after a stop or a kill. Change the config as you like and run it with `bot run`. `bot markets ccxt:EXCHANGE` lists what
an exchange has.
"""

CONFIG: Final = """\
# Play money at the prices of {exchange}. `bot paper` made this file. Change it as you like; then `bot run` runs it.
account:
  base_url: embedded
  prices: {{exchange: {exchange}}}

embedded:
  markets: [{markets}]

# If the service gets no heartbeat for this long, it closes every position.
dead_man: {{heartbeat_seconds: 300, on_miss: flatten}}

# Each day is compared with the test, and each difference gets one cause: bot proof show.
proof: {{at: "00:20"}}

strategies:
  - {{name: {name}, use: "{use}", markets: [{markets}], interval: 1m, budget_usd: 1000, max_leverage: 1}}
"""
DASHBOARD: Final = "\n# Pages in a browser, on this machine only.\ndashboard: {port: 8710}\n"


@click.command(epilog=EPILOG)
@click.option("--exchange", required=True, metavar="NAME", help="The exchange's name in ccxt, such as kraken.")
@click.option(
    "--strategy",
    "use",
    default="trend:Trend",
    show_default=True,
    metavar="FILE:CLASS",
    help="The strategy. A file that does not exist is made in the folder `strategies`.",
)
@click.option(
    "--market",
    "markets",
    multiple=True,
    default=("BTC",),
    show_default=True,
    metavar="COIN",
    help="A market to trade; repeatable.",
)
@click.option("--for", "span", type=Duration(), default=None, metavar="60s", help="Stop after this time.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="The config to make or continue. Its name is the daemon's.  [default: paper-EXCHANGE.yaml]",
)
@json_option("Events and the summary as JSON lines on standard output.")
@click.pass_context
def paper(
    ctx: click.Context,
    exchange: str,
    use: str,
    markets: tuple[str, ...],
    span: float | None,
    config: Path | None,
    *,
    as_json: bool,
) -> int:
    """Trade play money at the prices of an exchange: makes a config, starts the service and the daemon."""
    from bot.cli.run.embedded_service import ServiceFailed
    from bot.cli.run.run import run_config
    from bot.errors import Exit

    if not re.fullmatch(r"[a-z0-9_]{1,40}", exchange):
        raise click.UsageError(f"--exchange {exchange!r}: write its name in ccxt, in lower case, such as kraken")
    file = Path(f"paper-{exchange}.yaml") if config is None else config
    show = Paper(file, span, as_json=as_json)
    created = CreatedFiles()
    try:
        with created:
            _make_strategy(ctx, use, file.absolute().parent, created, as_json=as_json)
            is_new = not file.exists()
            created.will_be(file)
            _make_config(file, _config_text(exchange, use, markets))
            if not as_json:
                click.echo(f"config      {file}{', made now' if is_new else ''}")
                click.echo(f"service     starting; it asks {exchange} for markets and prices, which may take a minute")
            show.on_begun = created.keep
            end, note = run_config(file, observer=show)
    except ServiceFailed as error:
        if error.exit_code is not Exit.TIMEOUT:
            raise
        hint = "`bot demo` trades play money at simulated prices and needs no network."
        raise ServiceFailed(f"{error}\n{hint}", int(error.exit_code)) from None
    return show.close(end, note)


class CreatedFiles:
    """The files and folders that this command makes.

    Within a `with` that fails they are removed, unless something ran by them.
    """

    def __init__(self) -> None:
        self._paths: list[Path] = []

    def will_be(self, path: Path) -> None:
        """Remember a path, and its folder, if they do not exist yet."""
        self._paths += [
            place for place in (path.parent, path) if not os.path.lexists(place) and place not in self._paths
        ]

    def keep(self) -> None:
        self._paths.clear()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_: object) -> None:
        for path in reversed(self._paths) if kind is not None else ():
            # A folder stays if somebody has put something into it.
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


class Paper:
    """The output of a run, and its summary."""

    def __init__(self, config: Path, span: float | None, *, as_json: bool) -> None:
        from bot.cli.start.run_output import RunOutput

        self.stop = asyncio.Event()
        self.on_begun: Callable[[], None] = lambda: None
        self._output = RunOutput(self.stop, as_json=as_json)
        self._config = config
        self._span = span
        self._is_continued = False
        # None: the service has not answered
        self._start_usd: Decimal | None = None
        self._totals: Tally | None = None
        self._real_s = 0.0

    def event(self, event: Mapping[str, Any]) -> None:
        self._output.event(event)

    def ready(self) -> None:
        from bot.cli.run.run_daemon import stop_after

        stop_after(self._span, self.stop)

    def dashboard(self, served: Served | str) -> None:
        self._output.dashboard(served)

    @asynccontextmanager
    async def running(
        self, settings: Settings, service: Embedded, running: RunningService, minted: EmbeddedKey
    ) -> AsyncIterator[None]:
        from bot.cli.start.demo_summary import start_value, tally
        from bot.client import Client
        from bot.clock import monotonic_ns
        from bot.runtime.journal import queries

        self.on_begun()
        self._is_continued = (settings.state_dir / queries.FILE).exists()
        async with Client(running.base_url, minted.api_key) as client:
            self._start_usd = await start_value(client)
            self._greet(settings, running, minted)
            began_ns = monotonic_ns()
            yield
            self._real_s = (monotonic_ns() - began_ns) / 1e9
            self._totals = await tally(client) if service.is_alive() else None

    def _greet(self, settings: Settings, running: RunningService, minted: EmbeddedKey) -> None:
        from bot.cli.common.event_lines import strategy_lines
        from bot.cli.run.embedded_service import service_prices

        begun = {"config": str(self._config), "baseUrl": running.base_url, "continued": self._is_continued}
        if self._output.as_json:
            self._output.data({"event": "paper.begun", **begun})
            return
        note = "" if running.is_new else ", was already running"
        dead_man = settings.dead_man
        for line in (
            *(
                ("This run continues the account, orders and positions of the one before.",)
                if self._is_continued
                else ()
            ),
            (
                f"service     {running.base_url} (pid {running.pid}{note}), prices of {service_prices(settings)},"
                f" account {minted.account_id}, play money"
            ),
            *strategy_lines(settings),
            (
                "dead-man    off"
                if dead_man is None
                else f"dead-man    {dead_man.heartbeat_seconds} s without a heartbeat, then {dead_man.on_miss}"
            ),
            f"files       {settings.state_dir}",
            f"log         {settings.state_dir / 'daemon.log'}",
            "Ctrl-C stops it.\n",
        ):
            self._output.line(line)

    def close(self, end: DaemonEnd, note: str) -> int:
        """Print the summary. Returns the exit code."""
        from bot.cli.run.run_daemon import judge_end, left_data, left_lines
        from bot.cli.start.demo_summary import summary_data, summary_lines
        from bot.errors import Exit

        figures: dict[str, Any] = {
            "counts": self._output.counts,
            "start_usd": self._start_usd or Decimal(0),
            "end": self._totals,
            "real_s": self._real_s,
            "speed": 1.0,
            "continued": self._is_continued,
        }
        if self._output.as_json:
            data = summary_data(**figures) | {"left": left_data(end), "exitCode": int(end.exit_code)}
            self._output.data({"event": "paper.summary", **data, "config": str(self._config)})
        else:
            again = f"The same command continues, and so does bot run {quote(str(self._config))}."
            self._output.line("\n".join(["", *summary_lines(**figures), *left_lines(end), note, again]))
        judge_end(end)
        return int(end.exit_code or (Exit.ERROR if self._output.is_lost else Exit.DONE))


def _config_text(exchange: str, use: str, markets: tuple[str, ...]) -> str:
    module = use.partition(":")[0].rpartition(".")[2]
    name = re.sub(r"[^a-z0-9]+", "-", module.lower()).strip("-") or "strategy"
    return CONFIG.format(exchange=exchange, use=use, name=name, markets=", ".join(dict.fromkeys(markets)))


def _make_config(file: Path, text: str) -> None:
    """Check the config and write it, with a dashboard if its packages are installed, unless it is there.

    UsageError if another text is there.
    """
    from importlib.util import find_spec

    from bot.checks.config_check import checked_text
    from bot.cli.common.files import write_atomic
    from bot.errors import BotError

    try:
        held = file.read_bytes() if file.exists() else None
    except OSError as error:
        raise BotError(f"{file} cannot be read: {error.strerror or error}") from None
    if held in (text.encode(), (text + DASHBOARD).encode()):
        return
    if held is not None:
        raise click.UsageError(
            f"{file} differs from what these options would write, and is not overwritten. `bot run {quote(str(file))}`"
            " runs it as it is; --config NAME.yaml makes another one"
        )
    if find_spec("jinja2") is not None:
        text += DASHBOARD
    checked_text(text, file)
    write_atomic(file, text)


def _make_strategy(ctx: click.Context, use: str, folder: Path, files: CreatedFiles, *, as_json: bool) -> None:
    """Make the file of a strategy if neither the strategies folder nor an installed package has it."""
    from bot.cli.common.files import example, write_atomic
    from bot.cli.start.init import new_strategy
    from bot.plugins import names_of
    from bot.runtime.strategy_host.loader import GROUP, USE

    match = USE.fullmatch(use)
    if match is None or "." in match["module"] or use in names_of(GROUP):
        # The check of the config says what is wrong with it.
        return
    beside = folder / "strategies"
    used = beside if beside.is_dir() else folder.parent / "strategies"
    file = f"{match['module']}.py"
    if (used / file).exists():
        return
    packaged = example(f"strategies/{file}")
    files.will_be(beside / file)
    if not packaged.is_file():
        files.will_be(folder / "tests" / f"test_{file}")
        ctx.invoke(new_strategy, name=match["module"], folder=beside, as_json=as_json)
        return
    beside.mkdir(parents=True, exist_ok=True)
    write_atomic(beside / file, packaged.read_text(encoding="utf-8"))
    if not as_json:
        click.echo(f"strategy    {beside / file}, made now")

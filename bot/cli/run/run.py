"""`bot run CONFIG`: run the daemon in the foreground. A service manager starts this command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol

import click

from bot.cli.common.shared_options import json_option, yes_option

if TYPE_CHECKING:
    from bot.cli.run.dashboard_process import Served
    from bot.cli.run.embedded_service import Embedded, EmbeddedKey, RunningService
    from bot.config import Settings
    from bot.logs import Listener
    from bot.runtime.control_plane.log_tail import Tail
    from bot.runtime.liveness.instance_lock import HeldDirectory
    from bot.runtime.shutdown import DaemonEnd

EPILOG = """\b
Examples:
  bot run configs/paper.yaml
  bot check configs/paper.yaml && bot run configs/paper.yaml

\b
SIGTERM, Ctrl-C and `bot stop` end the daemon within five seconds, and then its embedded service. SIGHUP reloads the
config.
After a kill or an error of the daemon the embedded service keeps running, with all stops in place. The next `bot run`
finds it and continues. No order is lost or sent twice, because the daemon writes each order to its journal before it
sends it.
"""


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--keep-service",
    is_flag=True,
    help="Leave the embedded service running after the daemon stops; `bot services --stop` ends it.",
)
@yes_option("Trade real money also below the readiness grade C (bot ready), without a question.")
@json_option("At the end, print what stays at the service as one JSON object.")
def run(config: Path, *, keep_service: bool, yes: bool, as_json: bool) -> int:
    """Run the daemon of CONFIG in the foreground. It trades at the service of account.base_url."""
    import json

    from bot.cli.run.readiness_check import ask_before_run
    from bot.cli.run.run_daemon import judge_end, left_data, left_lines

    may_start = partial(ask_before_run, config=config, yes=yes)
    end, note = run_config(config, keep_service=keep_service, may_start=may_start)
    if as_json:
        click.echo(json.dumps({"exitCode": int(end.exit_code), "message": end.message or None, "left": left_data(end)}))
    else:
        for line in left_lines(end):
            click.echo(line)
        if note:
            click.echo(note)
    judge_end(end)
    return int(end.exit_code)


class Observer(Protocol):
    """What a command shows of a run of an embedded service beyond its log, and when it ends the run."""

    stop: asyncio.Event

    def event(self, event: Mapping[str, Any]) -> None:
        """Called with each log event."""

    def running(
        self, settings: Settings, service: Embedded, running: RunningService, minted: EmbeddedKey
    ) -> AbstractAsyncContextManager[None]:
        """Entered when the service answers, and left before the service is stopped."""

    def ready(self) -> None:
        """Called when the daemon knows the account."""

    def dashboard(self, served: Served | str) -> None:
        """Called with the dashboard of the config when it runs, or with why there is none."""


def run_config(
    config: Path,
    *,
    keep_service: bool = False,
    observer: Observer | None = None,
    may_start: Callable[[Settings], None] = lambda _settings: None,
) -> tuple[DaemonEnd, str]:
    """Run the daemon of a config until it is stopped. `may_start` raises if it must not start.

    Returns its end, and what became of an embedded service, for a person.
    """
    from bot import logs
    from bot.checks.config_check import checked_config
    from bot.cli.common import crash_report
    from bot.client.names import run_unheld
    from bot.operating_system import harden
    from bot.runtime.control_plane.log_tail import FILE, Tail
    from bot.runtime.liveness.instance_lock import hold_state, private_dir
    from bot.runtime.liveness.memory import keep_heap_whole

    harden()
    keep_heap_whole()
    crash_report.print_stacks_on_fatal_signals()
    settings = checked_config(config).settings
    may_start(settings)
    folder = private_dir(settings.state_dir)
    crash_report.write_to(folder / "crash.log")
    with hold_state(folder) as held, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        tail = Tail(folder / FILE)
        level = settings.log.level
        if observer is not None:
            logs.configure(pretty=False, level=level, stream=nowhere, listen=_both(tail, observer.event))
        elif settings.log.format == "auto" and sys.stderr.isatty():
            logs.configure(pretty=False, level=level, stream=nowhere, listen=_narrating(settings, tail))
        else:
            logs.configure(pretty=settings.log.pretty, level=level, listen=tail)
        run = _Run(settings, config.absolute(), held, tail, observer)
        try:
            return run_unheld(_run(run, keep_service=keep_service))
        finally:
            logs.configure(pretty=settings.log.pretty, level=level)
            tail.close()


@dataclass(frozen=True, slots=True)
class _Run:
    settings: Settings
    config: Path
    held: HeldDirectory
    tail: Tail
    observer: Observer | None


def _both(first: Listener, second: Listener) -> Listener:
    def listen(event: Mapping[str, Any]) -> None:
        first(event)
        second(event)

    return listen


def _narrating(settings: Settings, tail: Tail) -> Listener:
    """A listener that passes each log event to `tail` and prints it as a line on the terminal.

    First prints service, strategies and files.
    """
    from bot.cli.common.event_lines import Narrator, line_writer, strategy_lines

    write = line_writer(sys.stderr)

    def show(line: str, style: str) -> None:
        # The daemon goes on if its terminal is closed.
        with contextlib.suppress(OSError):
            write(line, style)

    account, dead_man = settings.account, settings.dead_man
    service = f"embedded, play money, clock {settings.embedded.clock}" if account.embedded else account.base_url
    if account.followed is not None:
        service = f"embedded, {account.effect}"
    for line in (
        f"service     {service}",
        *strategy_lines(settings),
        (
            "dead-man    off"
            if dead_man is None
            else f"dead-man    {dead_man.heartbeat_seconds} s without a heartbeat, then {dead_man.on_miss}"
        ),
        f"files       {settings.state_dir}",
        "Ctrl-C stops it.\n",
    ):
        show(line, "")
    return _both(tail, Narrator(show))


async def _run(run: _Run, *, keep_service: bool) -> tuple[DaemonEnd, str]:
    from bot.checks.config_check import checked_config
    from bot.cli.run.dashboard_process import served_line
    from bot.cli.run.run_daemon import play, stopped_by_signals
    from bot.errors import BotError, Exit
    from bot.runtime.liveness.systemd import is_managed
    from bot.runtime.run_request import RunRequest
    from bot.runtime.shutdown import DaemonEnd, LeftBehind

    settings, config, held, tail, observer = run.settings, run.config, run.held, run.tail, run.observer

    def reread() -> Settings:
        return checked_config(config).settings

    def say(served: Served | str) -> None:
        # Without a terminal the log names the address.
        if sys.stderr.isatty():
            click.echo(served_line(served, is_terminal=True), err=True)

    stop, hangup = asyncio.Event() if observer is None else observer.stop, asyncio.Event()
    with stopped_by_signals(stop, lambda text: click.echo(text, err=True), hangup):
        account = settings.account
        request = partial(
            RunRequest, settings=settings, stop=stop, tail=tail, config=config, reread=reread, hangup=hangup
        )
        if not account.embedded:
            assert account.api_key is not None, "the config demands a key for every other service"
            asked = request(base_url=account.base_url, api_key=account.api_key)
            return await play(asked, held=held, on_dashboard=say), ""
        service = _service_of(settings)
        running, minted = await _started(settings, service, stop)
        if minted is None:
            end = DaemonEnd(Exit.DONE, LeftBehind(known=False), "stopped before the service answered")
        else:
            try:
                async with nullcontext() if observer is None else observer.running(settings, service, running, minted):
                    asked = request(base_url=running.base_url, api_key=minted.api_key)
                    if observer is not None:
                        asked = replace(asked, on_ready=observer.ready)
                    on_dashboard = say if observer is None else observer.dashboard
                    end = await play(asked, embedded=service, held=held, on_dashboard=on_dashboard)
            except BotError:
                if service.is_alive():
                    click.echo(_goes_on(service), err=True)
                raise
        # After an error a position may have no stop. The service must keep running so that its guardians can act.
        if end.exit_code is Exit.DONE and (not keep_service or is_managed()):
            await asyncio.to_thread(service.stop)
        if service.is_alive():
            return end, _goes_on(service)
        kept = f"Its database {service.db} holds the account; the next `bot run` continues with it."
        return end, f"The embedded service ended with the daemon. {kept}"


def _service_of(settings: Settings) -> Embedded:
    """The embedded service that the config describes; it does not run yet."""
    from bot.cli.run.embedded_service import Embedded, service_markets, service_prices
    from bot.money import format_decimal

    section, cap = settings.embedded, settings.account.exposure_cap_usd
    return Embedded(
        settings.state_dir,
        clock=section.clock,
        speed=section.speed,
        seed=section.seed,
        markets=service_markets(settings),
        data=tuple((data_file.market, data_file.file) for data_file in section.data),
        prices=service_prices(settings),
        followed=settings.account.followed,
        agent_key_file=settings.account.agent_key,
        exposure_cap=None if cap is None else format_decimal(cap),
        real_money=settings.account.real_money,
        port=section.port,
    )


async def _started(
    settings: Settings, service: Embedded, stop: asyncio.Event
) -> tuple[RunningService, EmbeddedKey | None]:
    """Start the embedded service and get its key; no key if the stop came first. A start that fails is a notice."""
    from bot.cli.run.embedded_service import ServiceFailed
    from bot.clock import SystemClock
    from bot.errors import ApiError, Exit
    from bot.runtime.control_plane.reporting import telling_failure
    from bot.runtime.liveness.systemd import asking_for_time
    from bot.runtime.startup import until_up

    async def mint() -> EmbeddedKey:
        try:
            return await service.mint()
        except ApiError:
            # The service simulates the time while it was stopped, which may take minutes.
            if service.is_alive():
                raise
            raise ServiceFailed(f"the service has died; its log is {service.log}", int(Exit.ERROR)) from None

    async with (
        telling_failure(settings, SystemClock().now_ms),
        asking_for_time(lambda: "STARTING: the embedded service does not answer yet"),
    ):
        running = await asyncio.to_thread(service.ensure)
        return running, await until_up(mint, stop)


def _goes_on(service: Embedded) -> str:
    return (
        f"The embedded service keeps running at {service.base_url} (pid {service.pid}) with its database {service.db}."
        f" The next `bot run` finds it; `bot services --stop --state-dir {quote(str(service.folder))}` ends it."
    )

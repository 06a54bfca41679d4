"""`bot run CONFIG`: the daemon in the foreground; what a service manager starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from bot.config import Settings
    from bot.runtime.control_plane.log_tail import Tail
    from bot.runtime.liveness.instance_lock import Held
    from bot.runtime.supervisor import DaemonEnd

EPILOG = """\b
Examples:
  bot run configs/paper.yaml
  bot check configs/paper.yaml && bot run configs/paper.yaml

\b
SIGTERM and Ctrl-C stop it cleanly within five seconds; SIGHUP reads the config again. Killed at any moment and started again, it continues:
what it wants is written down before it is sent.
"""


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="What was left, as one JSON object on standard output.")
def run(config: Path, *, as_json: bool) -> int:
    """Run the daemon of CONFIG in the foreground, against the service that it names."""
    import json

    from bot import logs
    from bot.cli.common import crash_report
    from bot.cli.common.config_check import judged
    from bot.cli.run.run_daemon import judge_end, left_data, left_lines
    from bot.client.names import run_unheld
    from bot.runtime.control_plane.log_tail import FILE, Tail
    from bot.runtime.liveness.instance_lock import harden, hold_state, keep_heap_whole, private_dir

    harden()
    keep_heap_whole()
    crash_report.shows_where_it_hangs()
    settings = judged(config).settings
    folder = private_dir(settings.state_dir)
    crash_report.goes_to(folder / "crash.log")
    with hold_state(folder) as held:
        tail = Tail(folder / FILE)
        logs.configure(pretty=settings.log.pretty, level=settings.log.level, listen=tail)
        try:
            end, note = run_unheld(_run(settings, config.absolute(), held, tail))
        finally:
            logs.configure(pretty=settings.log.pretty, level=settings.log.level)
            tail.close()
    if as_json:
        click.echo(json.dumps({"exitCode": int(end.exit_code), "message": end.message or None, "left": left_data(end)}))
    else:
        for line in left_lines(end):
            click.echo(line)
        if note:
            click.echo(note)
    judge_end(end)
    return int(end.exit_code)


async def _run(settings: Settings, config: Path, held: Held, tail: Tail) -> tuple[DaemonEnd, str]:
    from bot.cli.common.config_check import judged
    from bot.cli.run.embedded_service import Embedded, Minted, ServiceFailed
    from bot.cli.run.run_daemon import play, stopped_by_signals
    from bot.errors import ApiError, BotError, Exit
    from bot.runtime.liveness.systemd import asking_for_time, is_managed
    from bot.runtime.shutdown import LeftBehind
    from bot.runtime.supervisor import DaemonEnd, until_up

    def reread() -> Settings:
        return judged(config).settings

    stop, hangup = asyncio.Event(), asyncio.Event()
    with stopped_by_signals(stop, lambda text: click.echo(text, err=True), hangup):
        account = settings.account
        if not account.embedded:
            assert account.api_key is not None, "the config demands a key for every other service"
            end = await play(
                settings, base_url=account.base_url, api_key=account.api_key, stop=stop, held=held, tail=tail, config=config,
                reread=reread, hangup=hangup,
            )  # fmt: skip
            return end, ""
        section = settings.embedded
        service = Embedded(
            settings.state_dir, clock=section.clock, speed=section.speed, seed=section.seed, markets=section.markets,
            data=tuple((one.market, one.file) for one in section.data), port=section.port,
        )  # fmt: skip

        async def mint() -> Minted:
            try:
                return await service.mint()
            except ApiError:
                if service.is_alive():  # It lives through the time that it was away for, which may take minutes.
                    raise
                raise ServiceFailed(f"the service has died; its log is {service.log}", int(Exit.ERROR)) from None

        async with asking_for_time(lambda: "STARTING: the embedded service is not there yet"):
            running = await asyncio.to_thread(service.ensure)
            minted = await until_up(mint, stop)
        if minted is None:
            return DaemonEnd(Exit.DONE, LeftBehind(known=False), "stopped before the service answered"), ""

        def note() -> str:
            if not service.is_alive():
                return ""
            if is_managed():  # A unit's end is that of all its processes.
                return f"The service ends with this unit; the next start goes on with its database {service.db}."
            return f"The service goes on at {running.base_url} with its database {service.db}; the next run finds it (kill {service.pid} stops it)."

        try:
            end = await play(
                settings, base_url=running.base_url, api_key=minted.api_key, stop=stop, embedded=service, held=held, tail=tail, config=config,
                reread=reread, hangup=hangup,
            )  # fmt: skip
        except BotError:
            if left := note():
                click.echo(left, err=True)
            raise
        return end, note()

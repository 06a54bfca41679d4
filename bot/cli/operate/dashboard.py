"""`bot dashboard`: pages in a browser that show a running daemon. A process of its own; the extra `ui`."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bot.cli.common.shared_options import STATE_DIR, json_option

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place
    from bot.dashboard.server import RunningDashboard

PORT: Final = 8710

EPILOG = """\b
Examples:
  bot dashboard
  bot dashboard configs/paper.yaml --control
  bot dashboard --link

\b
The dashboard listens on this machine only and prints a link that opens it once. If a dashboard of the daemon runs
already, the command prints a new link for it and ends. Without --control it only reads. It needs the extra `ui`.
"""


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False), required=False)
@STATE_DIR
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="On 127.0.0.1; 0 takes a free one."
)
@click.option(
    "--control", is_flag=True, help="Allow pause, resume, close, cancel and kill, each with a typed confirmation."
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    metavar="DIR",
    help="The folder of backtests.",
)
@click.option("--link", "only_link", is_flag=True, help="Print a new link for the dashboard that runs, and end.")
@json_option("The address and the link as one JSON object.")
@click.option("--of-run", is_flag=True, hidden=True, help="`bot run` starts it so: the next run may take its place.")
def dashboard(
    config: Path | None,
    state_dir: Path | None,
    *,
    port: int,
    control: bool,
    runs: Path,
    only_link: bool,
    as_json: bool,
    of_run: bool,
) -> int:
    """Show a daemon in the browser: account, positions, charts, strategies, orders, guardians, backtests."""
    from bot.cli.common.daemon_client import find
    from bot.errors import BotError, Exit
    from bot.operating_system import harden
    from bot.runtime.liveness.instance_lock import private_dir

    harden()
    place = find(config, state_dir, dead_too=True)
    private_dir(place.folder)
    running, key = _running(place)
    if running is not None:
        _print(running, key, place, as_json=as_json)
        return int(Exit.DONE)
    if only_link:
        raise BotError(f"no dashboard runs on {place.folder}: start one with bot dashboard {place.flag}")
    from bot import logs
    from bot.cli.operate.fleet import Member, members
    from bot.dashboard.server import serve

    logs.configure(level="warning")

    def on_ready(running: RunningDashboard, key: bytes) -> None:
        with contextlib.suppress(
            BrokenPipeError
            # The daemon that started the dashboard may have died; the dashboard goes on.
        ):
            _print(running, key, place, as_json=as_json)
            sys.stdout.flush()

    def daemons() -> list[Member]:
        return members((place.folder,))

    serve(place, port=port, control=control, runs=runs.absolute(), on_ready=on_ready, of_run=of_run, fleet=daemons)
    return int(Exit.DONE)


def _running(place: Place) -> tuple[RunningDashboard | None, bytes]:
    from bot.dashboard.server import key_of, running_in

    return running_in(place.folder), key_of(place.folder)


def _print(running: RunningDashboard, key: bytes, place: Place, *, as_json: bool) -> None:
    from bot.dashboard.server import link

    address = link(running, key)
    if as_json:
        click.echo(json.dumps({"address": running.address, "link": address}))
        return
    click.echo(f"dashboard   {running.address}, of the daemon in {place.folder}")
    click.echo(f"open once   {address}")

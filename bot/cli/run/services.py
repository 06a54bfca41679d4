"""`bot services`: list the running embedded services, and stop those that no daemon uses."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bot.cli.common.daemon_client import where
from bot.cli.common.shared_options import json_option

if TYPE_CHECKING:
    from bot.cli.run.embedded_service import Embedded

EPILOG = """\b
Examples:
  bot services
  bot services --stop
  bot services --stop --config configs/paper.yaml

\b
--stop stops the services that no daemon uses. `bot stop` stops a daemon together with its service.
A stopped service keeps its database: the next `bot run` continues with the same account.
"""


@click.command(epilog=EPILOG)
@where
@click.option("--stop", "stops", is_flag=True, help="Stop each service that no daemon uses.")
@json_option("Data instead of lines.")
def services(config: Path | None, state_dir: Path | None, *, stops: bool, as_json: bool) -> int:
    """List the embedded services that run on this machine. With --stop, stop those without a daemon."""
    from bot.cli.common.daemon_client import find
    from bot.errors import Exit
    from bot.runtime.liveness.instance_lock import is_held

    if config is None and state_dir is None:
        folders = _folders()
    else:
        folders = [find(config, state_dir, dead_too=True).folder]
    rows: list[dict[str, Any]] = []
    for service in _alive(folders):
        row: dict[str, Any] = {
            "folder": str(service.folder),
            "base_url": service.base_url,
            "pid": service.pid,
            "has_daemon": is_held(service.folder),
        }
        if stops and not row["has_daemon"]:
            service.stop()
        rows.append(row | {"running": service.is_alive()})
    if as_json:
        click.echo(json.dumps({"services": rows}))
    else:
        for row in rows:
            click.echo(
                f"{row['base_url'] or 'starting'}  pid {row['pid']}  {row['folder']}  {_state(row, stops=stops)}"
            )
        if not rows:
            click.echo("no embedded service runs")
    return int(Exit.ERROR if any(stops and row["running"] and not row["has_daemon"] for row in rows) else Exit.DONE)


def _state(row: dict[str, Any], *, stops: bool) -> str:
    if row["has_daemon"]:
        return "its daemon runs; `bot stop` ends both" if stops else "its daemon runs"
    if not row["running"]:
        return "stopped"
    return "DID NOT STOP" if stops else "no daemon; `bot services --stop` ends it"


def _alive(folders: list[Path]) -> list[Embedded]:
    from bot.cli.run.embedded_service import Embedded

    alive = []
    for folder in folders:
        # Another user's folder.
        with contextlib.suppress(OSError):
            if (folder / "sandbox.lock").is_file() and (service := Embedded(folder)).is_alive():
                alive.append(service)
    return alive


def _folders() -> list[Path]:
    """The folders that may have a service: those of known daemons, and those in which this user has started a
    service.
    """
    from bot.cli.common.daemon_client import known_folders
    from bot.cli.run.embedded_service import noted_folders

    return list(dict.fromkeys([*known_folders(), *noted_folders()]))

"""`bot approvals`: entries of a running daemon that wait for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bot.cli.common.daemon_client import where
from bot.cli.common.shared_options import json_option, yes_option
from bot.plain_text import one_line

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place

EPILOG = """\b
Examples:
  bot approvals
  bot approvals approve MZXW6YTB
  bot approvals refuse MZXW6YTB --reason "too late in the day"

\b
An entry waits if the strategy's `approve` in the config says so. Exits, stops and guardians never wait. A proposal ends
with the freshness of its decision, two intervals after its bar. Exit 1: the proposal has ended, or its price has moved
more than 0.5 %.
"""


@click.group(invoke_without_command=True, epilog=EPILOG)
@where
@json_option("Data instead of a table.")
@click.pass_context
def approvals(ctx: click.Context, config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """List the entries that wait for a person; approve or refuse one."""
    from bot.cli.common.daemon_client import find
    from bot.errors import Exit

    if ctx.invoked_subcommand is not None:
        if config is not None or state_dir is not None or as_json:
            raise click.UsageError(f"write the options after {ctx.invoked_subcommand}")
        return int(Exit.DONE)
    answer = find(config, state_dir).ask("GET", "/approvals")
    if as_json:
        click.echo(json.dumps(answer))
    else:
        for approval in answer["approvals"]:
            click.echo(line_of(approval))
        if not answer["approvals"]:
            click.echo("nothing waits for approval")
    return int(Exit.DONE)


@approvals.command(epilog="\b\nExample:\n  bot approvals approve MZXW6YTB --yes\n")
@click.argument("name", metavar="ID")
@where
@yes_option()
@json_option("The result as JSON. Never asks; needs --yes.")
def approve(name: str, config: Path | None, state_dir: Path | None, *, yes: bool, as_json: bool) -> int:
    """Agree to the entry ID (or its first letters); the daemon sends it."""
    from bot.cli.common.daemon_client import find

    return _decide(find(config, state_dir), "/approve", name, {}, is_agreed=yes, as_json=as_json)


@approvals.command(epilog='\b\nExample:\n  bot approvals refuse MZXW6YTB --reason "not before the announcement"\n')
@click.argument("name", metavar="ID")
@where
@click.option("--reason", default=None, help="Kept in the journal, for bot explain.")
@yes_option()
@json_option("The result as JSON. Never asks; needs --yes.")
def refuse(
    name: str, config: Path | None, state_dir: Path | None, reason: str | None, *, yes: bool, as_json: bool
) -> int:
    """Refuse the entry ID (or its first letters); nothing is sent."""
    from bot.cli.common.daemon_client import find

    return _decide(
        find(config, state_dir), "/refuse", name, {"reason": reason} if reason else {}, is_agreed=yes, as_json=as_json
    )


def _decide(place: Place, path: str, name: str, more: dict[str, str], *, is_agreed: bool, as_json: bool) -> int:
    from bot.errors import Exit

    if as_json and not is_agreed:
        raise click.UsageError("--json never asks: add --yes")
    if not is_agreed:
        waiting = place.ask("GET", "/approvals")
        for approval in waiting["approvals"]:
            if approval["id"].startswith(name.upper()):
                click.echo(line_of(approval))
        try:
            click.confirm(f"{path[1:].capitalize()} {name}?", abort=True)
        except click.Abort:
            click.echo()
            raise click.ClickException("no answer, so nothing was changed; --yes does not ask") from None
    done = place.ask("POST", path, {"id": name, **more})
    if as_json:
        click.echo(json.dumps(done))
    else:
        click.echo(answer_line(done))
    return int(Exit.DONE)


def line_of(entry: Mapping[str, Any]) -> str:
    """A waiting entry in one line."""
    by = f"; proposed by {entry['proposed_by']}: {entry['why']}" if entry.get("proposed_by") else ""
    stop = f", stop {entry['stop_px']}" if entry["stop_px"] else ", WITHOUT A STOP"
    return one_line(
        f"{entry['id'][:12]}  {entry['strategy']}: {entry['market']} {entry['side']} {entry['size']} at about"
        f" {entry['est_px']} ({entry['notional_usd']} USD{stop}), waits at most {entry['left_s']} s more{by}"
    )


def answer_line(done: Mapping[str, Any]) -> str:
    """The daemon's answer to a decision in one line."""
    entry = f"{done['id'][:12]} is {done['answer']}: the entry in {done['market']} of {done['strategy']}"
    # In its first minute the daemon may still look for requests of an earlier run.
    if done["answer"] == "refused":
        return f"{entry} is not sent"
    return f"{entry} is {done['state']}{f' ({why})' if (why := done.get('message')) else ''}"

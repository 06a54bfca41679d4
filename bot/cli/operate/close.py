"""`bot close`: the running daemon closes a position of its account, or a fraction of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from bot.cli.common.daemon_client import NotRunning, find, where
from bot.cli.common.param_types import Fraction
from bot.cli.common.shared_options import json_option, yes_option
from bot.errors import BotError, Exit
from bot.words import meant_market

EPILOG = """\b
Examples:
  bot close BTC
  bot close BTC --fraction 0.5 --yes

\b
The daemon sends one order that can only reduce. It sends it as its own, so that it is not taken for a stranger's. A
fraction leaves the stop in place for the rest. The strategy may open a position again; bot pause prevents that. If no
daemon runs, bot kill --flatten closes every position at the service.

\b
Exit 0: closed. 5: sent, and not confirmed yet. 7: the service refuses it.
"""


@click.command(epilog=EPILOG)
@click.argument("market")
@where
@click.option("--fraction", type=Fraction(), default="1", metavar="0.5", help="Part of the position.  [default: all]")
@yes_option("Do not ask, also on a terminal.")
@json_option("The daemon's answer as JSON.")
def close(
    market: str, config: Path | None, state_dir: Path | None, fraction: Decimal, *, yes: bool, as_json: bool
) -> int:
    """Close the position in MARKET at the market price, reduce-only."""
    place = find(config, state_dir)
    try:
        position = _position(place.ask("GET", "/positions")["positions"], market)
    except NotRunning as error:
        raise NotRunning(f"{error}; bot kill --flatten {place.flag} closes every position at the service") from None
    meant = f"{position['market']} {position['side']} {position['size']}"
    part = "" if fraction == 1 else f"{fraction:f} of "
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        _ask_first(f"This closes {part}{meant} at the market. Close it?")
    asked = {name: position[name] for name in ("market", "side", "size", "opened_ms")}
    answer = place.ask("POST", "/close", asked | {"fraction": str(fraction)})
    if as_json:
        click.echo(json.dumps(answer))
    elif answer["closed"]:
        click.echo(f"Closed {part}{meant}; {answer['left']} is left." if part else f"Closed {meant}.")
    else:
        click.echo(f"The close of {part}{meant} is on its way, and not confirmed yet: bot positions shows it.")
    return int(Exit.DONE if answer["closed"] else Exit.TIMEOUT)


def _position(positions: Sequence[Mapping[str, Any]], market: str) -> Mapping[str, Any]:
    by_name = {position["market"].upper(): position for position in positions}
    name = market.upper().removeprefix("PERP:")
    if name in by_name:
        return by_name[name]
    near = meant_market(name, by_name)
    there_are = f"there are {', '.join(position['market'] for position in positions) or 'none'}"
    raise BotError(f"there is no position in {market}; " + (f"did you mean {near}?" if near is not None else there_are))


def _ask_first(question: str) -> None:
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise click.ClickException("nothing was closed; bot close --yes does not ask")

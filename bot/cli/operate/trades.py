"""`bot trades`: the newest trades of a daemon, from its journal. Works also if the daemon does not run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.daemon_client import NotRunning, Silent, find, where
from bot.cli.common.formatting import print_table
from bot.cli.common.shared_options import json_option
from bot.errors import Exit
from bot.figures import NOT_KNOWN
from bot.number_text import MISSING, multiple, signed_usd
from bot.words import did_you_mean, many, meant_market

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place

COLUMNS: Final = (
    "opened_at",
    "closed_at",
    "market",
    "side",
    "size",
    "entry_px",
    "exit_px",
    "first_stop",
    "mae",
    "mfe",
    "net_usd",
    "exit",
    "strategy",
)
EPILOG = """\b
Examples:
  bot trades
  bot trades --limit 5 --market BTC --strategy trend
  bot trades --json

\b
A trade lasts from no position to no position in one market; open trades come last. net_usd is after fees and funding.
mae and mfe: how far the price went against the trade and for it, in R of the first stop.
All of them, exact, for other programs: bot export trades. The story of one trade: bot explain TRADE.
"""


@click.command(epilog=EPILOG)
@where
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many at most.")
@click.option("--market", default=None, metavar="MARKET", help="Of this market only.")
@click.option("--strategy", default=None, metavar="NAME", help="Of this strategy only.")
@json_option("Data instead of a table.")
def trades(
    config: Path | None, state_dir: Path | None, limit: int, market: str | None, strategy: str | None, *, as_json: bool
) -> int:
    """List the newest trades: when, what, prices, profit after costs, and why each ended."""
    place = find(config, state_dir, dead_too=True)
    rows = trade_rows(place)
    if market is not None:
        rows = _only(rows, "market", market.upper().removeprefix("PERP:"), market)
    if strategy is not None:
        rows = _only(rows, "strategy", strategy, strategy)
    shown = rows[-limit:]
    if as_json:
        click.echo(json.dumps({"trades": shown, "of": len(rows)}))
        return int(Exit.DONE)
    print_table([row | _texts(row) for row in shown], COLUMNS, empty="no trade yet")
    if rows:
        click.echo(_summary(rows, len(shown)))
    return int(Exit.DONE)


def _summary(rows: Sequence[Mapping[str, Any]], shown: int) -> str:
    """How many trades there are, how many ended with a profit, and their sums."""
    closed = [row for row in rows if row["status"] != "open"]
    net, fees = (sum((Decimal(row[name]) for row in closed), Decimal(0)) for name in ("net_usd", "fees_usd"))
    won = sum(Decimal(row["net_usd"]) > 0 for row in closed)
    count = many(len(rows), "trade")
    return (
        f"{count if shown == len(rows) else f'{shown:,} of {count}'}; {len(closed):,} closed, {won:,} with a profit,"
        f" net {signed_usd(net)} USD after {signed_usd(-fees)} USD of fees"
    )


def trade_rows(place: Place) -> list[dict[str, Any]]:
    """Every trade of the journal as a row of `round_trips.COLUMNS`, in the order of their ends; open ones last.

    If the journal may lack trades, a line on standard error says why.
    """
    from bot.runtime.journal import queries
    from bot.runtime.journal.round_trip_log import every_trip

    try:
        fault = place.ask("GET", "/status").get("degraded", {}).get("journal")
        if fault is not None:
            click.echo(f"the daemon cannot write its journal ({fault}): trades since then are missing here", err=True)
    except (NotRunning, Silent) as error:
        click.echo(f"{error}; what follows is from its journal", err=True)
    with queries.opened(place.folder) as db:
        return [trip.row(lambda keys: queries.strategies_of(db, keys)) for trip in every_trip(db)]


def _only(rows: Sequence[dict[str, Any]], column: str, wanted: str, given: str) -> list[dict[str, Any]]:
    """The rows of one market or strategy. UsageError if the journal has none of it."""
    known = {name for row in rows for name in (row[column] or "").split("+") if name}
    if wanted not in known:
        near = meant_market(wanted, known) if column == "market" else None
        there_are = f"; there are {', '.join(sorted(known)) or 'none'}"
        hint = f"; did you mean {near}?" if near is not None else did_you_mean(given, known) or there_are
        raise click.UsageError(f"--{column} {given}: no trade of it{hint}")
    return [row for row in rows if wanted in (row[column] or "").split("+")]


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    """What the table says in words: the first stop, the excursions in R, and the exit."""
    stop, extreme = row["first_stop_px"], row["low_px"]
    unknown = MISSING if row["status"] == "open" else NOT_KNOWN

    def excursion(ratio: str | None) -> str:
        return unknown if extreme is None else multiple(None if ratio is None else Decimal(ratio))

    return {
        "exit": _ending(row),
        "first_stop": MISSING if stop is None else stop,
        "mae": excursion(row["mae_r"]),
        "mfe": excursion(row["mfe_r"]),
    }


def _ending(row: Mapping[str, str]) -> str:
    """Why the trade ended, or that it has not."""
    return "open" if row["status"] == "open" else row["exit_reason"] or row["status"]

"""`bot explain` traces one order and `bot export` lists all trades, both from the journal.

They work without a running daemon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from bot.cli.common.daemon_client import where
from bot.cli.common.param_types import Group
from bot.cli.common.shared_options import json_option
from bot.plain_text import csv_text, one_line
from bot.words import many

FORMATS: Final = ("csv", "json")

EXPLAIN = """\b
Examples:
  bot explain trd_00001000000001
  bot explain 1000000013 --json
  bot explain my-agent

\b
ORDER is an order's number (oid), a trade's id, an intent's id or its first letters, or an event's id.
The name of an agent shows its newest questions and answers; --json has the whole prompts. The name of another strategy
shows its newest refusals, and how many entries the protections have refused.
"""
EXPORT = "\b\nExample:\n  bot export trades --format csv --out trades.csv"
TRADES = """\b
Examples:
  bot export trades
  bot export trades --json --out trades.json

\b
A trade lasts from no position to no position in one market. Amounts are exact; entry_px and exit_px are averages to
eight decimals.
"""


@click.command(epilog=EXPLAIN)
@click.argument("order", metavar="ORDER|TRADE")
@where
@json_option("The steps as JSON.")
def explain(order: str, config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Trace one order from its bar to its exit: bar, decision, intent, plan, request, events, fill."""
    from bot.cli.common.daemon_client import find, of_journal
    from bot.clock import iso
    from bot.errors import Exit
    from bot.runtime.journal import order_trace, queries

    place, name = find(config, state_dir, dead_too=True), order.strip()

    def of_file() -> dict[str, Any]:
        with queries.opened(place.folder) as db:
            return {"steps": [step.plain() for step in order_trace.explain(db, name)]}

    steps = of_journal(place, "/explain", {"id": name}, of_file)["steps"]
    if as_json:
        click.echo(json.dumps({"id": order, "steps": steps}, default=str))
        return int(Exit.DONE)
    for step in steps:
        click.echo(
            f"{'' if step['at_ms'] is None else iso(step['at_ms']):<24}  {step['what']:<11} {one_line(step['text'])}"
        )
    return int(Exit.DONE)


@click.group(cls=Group, epilog=EXPORT)
def export() -> None:
    """Export data of the journal for other programs."""


@export.command(epilog=TRADES)
@where
@click.option("--format", "kind", type=click.Choice(FORMATS), default=None, help="Output format.  [default: csv]")
@json_option("The same as --format json.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Write to FILE instead of standard output.",
)
def trades(config: Path | None, state_dir: Path | None, kind: str | None, out: Path | None, *, as_json: bool) -> int:
    """List every trade with entry, exit, size, prices, fees, funding, profit, strategy and the reason of its exit."""
    from bot.cli.common.daemon_client import find
    from bot.cli.common.files import PRIVATE, write_atomic
    from bot.cli.operate.trades import trade_rows
    from bot.errors import Exit
    from bot.runtime.journal.round_trips import COLUMNS

    if as_json and kind == "csv":
        raise click.UsageError("--json is --format json; give one of them")
    rows = trade_rows(find(config, state_dir, dead_too=True))
    text = json.dumps({"trades": rows}, indent=1) + "\n" if as_json or kind == "json" else csv_text(rows, COLUMNS)
    if out is None:
        click.echo(text, nl=False)
        return int(Exit.DONE)
    write_atomic(out, text, mode=PRIVATE)
    click.echo(f"{many(len(rows), 'trade')} written to {out}")
    return int(Exit.DONE)

"""The proofs of days: how much of each was as the test does, what it cost, and the differences of one day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bot.backtest.proof.trend import GroupRow, ProofTrend
from bot.dashboard.values import formatting
from bot.figures import Column, Figure

Data = Mapping[str, Any]

DAYS: Final = (
    Column("Day", phone="first"),
    Column("Decisions", "count"),
    Column("Equal", "share"),
    Column("Differences", "count"),
    Column("Unknown", "count"),
    Column("Causes", "words"),
    Column("Slippage", "usd", unit="USD"),
    Column("Fees", "usd", unit="USD"),
    Column("Outages", "gain", "higher", unit="USD"),
)
_GROUP: Final = (
    Column("Fills", "count"),
    Column("Slippage", "ratio", unit="bps"),
    Column("Slippage", "usd", unit="USD"),
    Column("Fees", "usd", unit="USD"),
    Column("Fees of the test", "usd", unit="USD"),
)
MARKETS: Final = (Column("Market", phone="first"), *_GROUP)
HOURS: Final = (Column("Hour, UTC", phone="first"), *_GROUP)
DIFFERENCES: Final = (
    Column("At", "instant"),
    Column("Cause", phone="first"),
    Column("What"),
    Column("Market", "words"),
    Column("Strategy", "words"),
    Column("Live", "words"),
    Column("Test", "words"),
    Column("Why", "words"),
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """The texts of the cells, the tone of the last one, and the name in the first."""

    name: str
    cells: tuple[str, ...]
    tone: str = "flat"


def figures(trend: ProofTrend) -> list[Figure]:
    share = None if trend.equal_share is None else trend.equal_share * 100
    return [
        Figure("Equal decisions", share, "share", note=f"{len(trend.days):,} proved days"),
        Figure("Unknown causes", trend.unknown, "count", note="each is an alarm"),
        Figure("Outages", trend.outage_usd, "gain", "higher", "USD", "against the test"),
    ]


def day_rows(trend: ProofTrend) -> list[TableRow]:
    """Newest first."""
    rows = []
    for day in reversed(trend.days):
        share = None if day.equal_share is None else day.equal_share * 100
        causes = ", ".join(f"{cause} {count:,}" for cause, count in day.causes.items()) or "none"
        values = (day.decisions, share, day.differences, day.unknown, causes, day.slippage_usd, day.fee_usd)
        rows.append(_row(day.day, DAYS, (*values, day.outage_usd)))
    return rows


def group_rows(groups: Sequence[GroupRow], columns: Sequence[Column]) -> list[TableRow]:
    return [
        _row(
            group.name,
            columns,
            (group.fills, group.slippage_bps, group.slippage_usd, group.fee_usd, group.tested_fee_usd),
        )
        for group in groups
    ]


def difference_rows(document: Data) -> list[TableRow]:
    return [
        TableRow(
            formatting.instant(row["atMs"]),
            (
                row["cause"],
                row["what"],
                row["market"],
                row["strategy"],
                row["recorded"] or "nothing",
                row["replayed"] or "nothing",
                row["why"],
            ),
        )
        for row in document["differences"]
    ]


def _row(name: str, columns: Sequence[Column], values: Sequence[Any]) -> TableRow:
    cells = tuple(column.shown(value) for column, value in zip(columns[1:], values, strict=True))
    return TableRow(name, cells, columns[-1].tone(values[-1]))

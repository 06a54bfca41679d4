"""The backtests: their figures in a list, and two of them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bot.backtest.report.summary import COSTS, HOURS_UNIT, PAID, better_or_worse, labelled
from bot.dashboard.values import formatting
from bot.dashboard.values.formatting import number

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunRow:
    name: str
    written: str
    span: str
    result: str
    direction: str
    hold: str
    drawdown: str
    sharpe: str
    trades: str
    won: str
    is_partial: bool


@dataclass(frozen=True, slots=True)
class ComparedRow:
    name: str
    one: str
    two: str
    change: str
    direction: str


def rows(found: Sequence[tuple[str, int, Data]]) -> list[RunRow]:
    return [_row(name, at_ms, summary) for name, at_ms, summary in found if "figures" in summary]


def _row(name: str, at_ms: int, summary: Data) -> RunRow:
    figures, course = summary["figures"], summary.get("course") or {}
    result = figures.get("Return [%]")
    return RunRow(
        name=name,
        written=formatting.instant(at_ms),
        span=f"{formatting.instant(course.get('fromMs'))[:11]} to {formatting.instant(course.get('toMs'))[:11]}",
        result=formatting.pct(result),
        direction=formatting.direction(result),
        hold=formatting.pct(figures.get("Buy & Hold Return [%]")),
        drawdown=formatting.pct(figures.get("Max. Drawdown [%]")),
        sharpe=_plain(figures.get("Sharpe Ratio")),
        trades=_plain(figures.get("# Trades")),
        won=formatting.pct(figures.get("Win Rate [%]")).removeprefix("+"),
        is_partial=bool(course.get("isPartial")),
    )


def compared(answer: Data) -> list[ComparedRow]:
    """Each figure and each cost of two runs, and how it changed from the first to the second.

    Better and worse decide the colour.
    """
    found = []
    for name, (one, two) in answer["figures"].items():
        first, second = number(one), number(two)
        change = None if first is None or second is None else second - first
        label = labelled(name, None)[0]
        mine, theirs, difference = (_figure(name, value) for value in (first, second, change))
        found.append(ComparedRow(label, mine, theirs, difference, better_or_worse(name, change)))
    for name, (one, two) in answer["costs"].items():
        first, second = number(one), number(two)
        change = None if first is None or second is None else second - first
        form = formatting.cost_usd if name in PAID else formatting.signed_usd
        mine, theirs, difference = (form(value) for value in (first, second, change))
        found.append(
            ComparedRow(f"{COSTS.get(name, name)} [$]", mine, theirs, difference, better_or_worse(name, change))
        )
    return found


def _figure(name: str, value: Decimal | None) -> str:
    """A figure; a length of time as such, and a count without decimals."""
    if value is None:
        return formatting.NONE
    if name.endswith(HOURS_UNIT):
        return formatting.duration(float(value) * 3_600)
    return _plain(value) if name.startswith("#") else formatting.usd(value)


def _plain(value: Any) -> str:
    found = number(value)
    if found is None:
        return formatting.NONE if value is None else str(value)
    return (
        formatting.usd(found) if found != found.to_integral_value() else f"{found:,.0f}".replace("-", formatting.MINUS)
    )

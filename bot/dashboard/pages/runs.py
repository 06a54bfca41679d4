"""The backtests: their figures in a list, and two of them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bot.backtest.report.run_diff import ComparedFigure, compared_figures
from bot.backtest.report.summary import figure_of
from bot.dashboard.values import formatting
from bot.number_text import on_page

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


def rows(runs: Sequence[tuple[str, int, Data]]) -> list[RunRow]:
    return [_row(name, at_ms, summary) for name, at_ms, summary in runs if "figures" in summary]


def _row(name: str, at_ms: int, summary: Data) -> RunRow:
    figures, course = summary["figures"], summary.get("course") or {}
    result, hold, drawdown, sharpe, trades, won = (
        figure_of(key, figures.get(key))
        for key in (
            "Return [%]",
            "Buy & Hold Return [%]",
            "Max. Drawdown [%]",
            "Sharpe Ratio",
            "# Trades",
            "Win Rate [%]",
        )
    )
    return RunRow(
        name=name,
        written=formatting.instant(at_ms),
        span=f"{formatting.instant(course.get('fromMs'))[:11]} to {formatting.instant(course.get('toMs'))[:11]}",
        result=result.shown,
        direction=result.tone,
        hold=hold.shown,
        drawdown=drawdown.shown,
        sharpe=sharpe.shown,
        trades=trades.shown,
        won=won.shown,
        is_partial=bool(course.get("isPartial")),
    )


def compared(answer: Data) -> list[ComparedFigure]:
    """Each figure and each cost of two runs, and how it changed from the first to the second, as a page shows them."""
    return [
        row._replace(first=on_page(row.first), second=on_page(row.second), change=on_page(row.change))
        for row in compared_figures(answer["figures"], answer["costs"])
    ]

"""The candles of a run, thinned for drawing on a page. No figure is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bot.backtest.engine.market_cursor import MarketCursor

CANDLES_MAX: Final = 1_500  # for each market on a page; more could not be distinguished


def chart_of(cursors: Sequence[MarketCursor]) -> dict[str, Any]:
    """{market: {"stepMs", "ts", "open", "high", "low", "close", "volume"}}: buckets of whole candles, oldest first."""
    return {cursor.coin: _thinned(cursor) for cursor in cursors}


def _thinned(cursor: MarketCursor) -> dict[str, Any]:
    first, end = cursor.first, cursor.at
    per = max(1, -(-(end - first) // CANDLES_MAX))
    starts = range(first, end, per)
    return {
        "stepMs": per * cursor.step_ms,
        "ts": [cursor.ts[at] for at in starts],
        "open": [cursor.open[at] for at in starts],
        "high": [max(cursor.high[at : min(at + per, end)]) for at in starts],
        "low": [min(cursor.low[at : min(at + per, end)]) for at in starts],
        "close": [cursor.close[min(at + per, end) - 1] for at in starts],
    }

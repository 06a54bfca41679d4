"""Chart: a run's candles, thinned so that a page can draw them. Written beside the result; nothing is reckoned from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bot.backtest.engine.market_cursor import MarketCursor

CANDLES_MAX: Final = 1_500  # of a market on a page; more could not be told apart


def chart_of(lanes: Sequence[MarketCursor]) -> dict[str, Any]:
    """{market: {"stepMs", "ts", "open", "high", "low", "close", "volume"}}: buckets of whole candles, oldest first."""
    return {lane.coin: _thinned(lane) for lane in lanes}


def _thinned(lane: MarketCursor) -> dict[str, Any]:
    first, end = lane.first, lane.at
    per = max(1, -(-(end - first) // CANDLES_MAX))
    starts = range(first, end, per)
    return {
        "stepMs": per * lane.step_ms,
        "ts": [lane.ts[at] for at in starts],
        "open": [lane.open[at] for at in starts],
        "high": [max(lane.high[at : min(at + per, end)]) for at in starts],
        "low": [min(lane.low[at : min(at + per, end)]) for at in starts],
        "close": [lane.close[min(at + per, end) - 1] for at in starts],
    }

"""Candles as the strategies' indicators read them, and the past of longer intervals as a daemon gets it at a start."""

from __future__ import annotations

from bisect import bisect_right

from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import resample
from bot.strategy import Bar
from bot.strategy.indicators import Columns, Indicators
from bot.strategy.longer_bars import pieces_of
from bot.wire import CANDLES_MAX


def columns_of(candles: Candles, first: int, last: int) -> Columns:
    """Rows `first` to `last`, stamped with the instant of their close."""
    at_ms = [ts + candles.step_ms for ts in candles.at_ms[first:last]]
    return Columns._make([*(column[first:last].tolist() for column in candles.columns[1:]), at_ms])


def past_bars(candles: Candles, interval: str, now_ms: int) -> list[Bar]:
    """The newest bars of an interval that had closed at an instant, as many as the interface gives.

    A bar counts as closed in its last millisecond.
    """
    longer = resample(candles, interval)
    last = bisect_right(longer.at_ms, now_ms + 1 - longer.step_ms)
    columns = columns_of(longer, max(0, last - CANDLES_MAX), last)
    return [Bar(candles.market, at_ms, *row) for at_ms, *row in zip(columns.at_ms, *columns[:-1], strict=True)]


def begin_longer(indicators: Indicators, own: str, candles: Candles, start_ms: int) -> None:
    """Give indicators the past of their longer intervals, as a daemon gets it that starts at this instant."""
    for interval in indicators.longer:
        pieces = pieces_of(interval, own)
        for maker in indicators.makers(candles.market, interval):
            maker.begin(past_bars(candles, pieces, start_ms), pieces)

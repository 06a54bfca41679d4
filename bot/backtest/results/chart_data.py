"""What a page draws of a run besides its trades: candles, thinned, and the declared indicators of the strategies.

No figure is computed from them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

from bot.backtest.engine.candle_readers import CandleReader, SeriesReader
from bot.backtest.engine.timeline import Timeline
from bot.backtest.engine.warm_up_bars import begin_longer, columns_of
from bot.runtime.decisions.bar_queue import wanted_series
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy.base import declared
from bot.strategy.indicators import Indicators
from bot.wire import CANDLES_MAX as WARM_UP_MAX

# The candles of one market: more than a year of hours, and more than a screen has pixels.
CANDLES_MAX: Final = 10_000
# The candles of all markets, so that a page stays below 3 MB.
CANDLES_IN_ALL: Final = 30_000
# The candles of one market, however many markets there are.
CANDLES_MIN: Final = 1_000
# candles whose indicators are computed at once: years of minutes as Python lists take a gigabyte
CHUNK_ROWS: Final = 8_192
# The digits of an indicator's value: more could not be distinguished.
DIGITS: Final = 8


def chart_of(timeline: Timeline, specs: Sequence[StrategySpec]) -> dict[str, Any]:
    """{market: {"stepMs", "ts", "open", "high", "low", "close", "volume", "indicators"}}: buckets of whole candles,
    oldest first.

    "indicators": [{"strategy", "name", "label", "onPrice", "values"}], one value at the end of each bucket, None before
    there are enough bars.
    """
    limit = max(CANDLES_MIN, min(CANDLES_MAX, CANDLES_IN_ALL // max(1, len(timeline.readers))))
    chart = {reader.coin: _thinned(reader, limit) for reader in timeline.readers}
    wanted = wanted_series(specs)
    readers = {BarSeries(reader.reader.coin, reader.interval): reader for reader in timeline.series_readers}
    for spec in specs:
        for market in spec.strategy.markets:
            series = BarSeries(market, spec.interval)
            market_chart = chart[market]
            ends = [ts + market_chart["stepMs"] for ts in market_chart["ts"]]
            market_chart["indicators"] += _indicators(
                spec, market, readers[series], timeline.start_ms, wanted[series], ends
            )
    return chart


def _thinned(reader: CandleReader, limit: int) -> dict[str, Any]:
    first, end = reader.first, reader.at
    per = max(1, -(-(end - first) // limit))
    starts = range(first, end, per)
    return {
        "stepMs": per * reader.step_ms,
        "ts": [reader.ts[at] for at in starts],
        "open": [reader.open[at] for at in starts],
        "high": [max(reader.high[at : min(at + per, end)]) for at in starts],
        "low": [min(reader.low[at : min(at + per, end)]) for at in starts],
        "close": [reader.close[min(at + per, end) - 1] for at in starts],
        "volume": [_rounded(sum(reader.volume[at : min(at + per, end)])) for at in starts],
        "indicators": [],
    }


def _indicators(
    spec: StrategySpec, market: str, reader: SeriesReader, start_ms: int, wanted: int, ends: Sequence[int]
) -> list[dict[str, Any]]:
    """The indicators of one strategy in one market, as a daemon that ran without a break computed them: from the
    first bar of its warm-up on.
    """
    strategy, candles = spec.strategy, reader.candles
    named = declared(type(strategy))
    if not named or not ends:
        return []
    at_ms, step_ms = candles.at_ms, reader.step_ms
    first = max(0, bisect_right(at_ms, start_ms - step_ms) - min(wanted, WARM_UP_MAX))
    last = bisect_right(at_ms, ends[-1] - step_ms)
    rows = [bisect_right(at_ms, end - step_ms, first, last) - 1 for end in ends]
    indicators = Indicators(named, [market], strategy.params)
    indicators.begin(spec.interval)
    begin_longer(indicators, spec.interval, candles, start_ms)
    drawn: list[list[float | None]] = [[None] * len(ends) for _ in named]
    # Points before `first` have no bar.
    at = bisect_left(rows, first)
    # Each series of values goes on from chunk to chunk.
    for begin in range(first, last, CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, last)
        computed = indicators.columns(market, columns_of(candles, begin, end))
        upto = bisect_left(rows, end, at)
        for values, (_, column) in zip(drawn, computed, strict=True):
            values[at:upto] = [_rounded(column[row - begin]) for row in rows[at:upto]]
        at = upto
    lines = []
    for indicator, values in zip(named.values(), drawn, strict=True):
        described = indicator.described(strategy.params)
        lines.append(
            {
                "strategy": strategy.name,
                "name": described.name,
                "label": described.label,
                "onPrice": described.on_price,
                "values": values,
            }
        )
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")

"""The fast path of a backtest with one market: many bars in one loop. The venue sees only the bars that can touch an
order, a stop or a deadline.

All other backtests take `SlotPath`. A strategy that seldom trades runs about three times as fast here as there. A test
runs the same backtests on both paths and compares the events.
"""

from __future__ import annotations

from typing import Final

from bot.backtest.engine.candle_readers import BarBatch, CandleReader
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.progress import RunMonitor
from bot.backtest.engine.stepper import ExchangeControl, Stepper
from bot.backtest.engine.timeline import Timeline
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.passes.ports import Calm
from bot.runtime.strategy_host.host import Decision
from bot.strategy import Bar

# every bar leaves this range: the venue must see it
_EVERY_BAR: Final = Calm(float("inf"), float("-inf"), 0)


def _batch(stepper: Stepper, reader: CandleReader, series: BarSeries, last: int) -> BarBatch:
    """The bars up to row `last`, with the strategies' indicators computed for all of them."""
    columns = reader.columns(reader.at, last)
    stepper.precompute(series, columns)
    return BarBatch(columns)


class SingleMarketPath:
    """One market and one series of its own candles, chunk after chunk."""

    def __init__(
        self,
        timeline: Timeline,
        options: SessionOptions,
        exchange: ExchangeControl,
        stepper: Stepper,
        monitor: RunMonitor,
    ) -> None:
        self._timeline = timeline
        self._may_skip = options.skip
        self._exchange = exchange
        self._stepper = stepper
        self._monitor = monitor

    def run(self, until_ms: int) -> bool:
        """True when `until_ms` is reached; False when the run was stopped before."""
        reader, series_reader, monitor = self._timeline.readers[0], self._timeline.series_readers[0], self._monitor
        end = min(reader.end, reader.index_of(until_ms + 1))
        series = BarSeries(reader.coin, reader.interval)
        chunk_end = min(end, reader.at + monitor.chunk)
        while reader.at < end:
            last = min(chunk_end, reader.at + monitor.polling.bars)
            batch = _batch(self._stepper, reader, series, last)
            # The indicators are those of the whole batch: an interrupted batch goes on.
            while batch.left:
                self._run_batch(reader, series, batch, last)
                monitor.stats.bars = reader.at - reader.first
                if reader.at >= chunk_end:
                    self._stepper.end_of_chunk()
                    chunk_end = min(end, reader.at + monitor.chunk)
                if not monitor.goes_on():
                    return reader.at >= reader.end
        series_reader.seek(max(series_reader.at, reader.at))
        return True

    def _run_batch(self, reader: CandleReader, series: BarSeries, batch: BarBatch, last: int) -> None:
        """The bars of the batch up to row `last`, or fewer when the progress is due to be reported."""
        kernel, exchange, stepper, stats = self._stepper.kernel, self._exchange, self._stepper, self._monitor.stats
        decide, band_of, coin = stepper.runs.decide, exchange.band, reader.coin
        bars = batch.take(self._monitor.polling.grant(coin, batch.left))
        # The venue has seen this bar, but no strategy has decided on it: the next run starts with it.
        seen: Bar | None = None
        while True:
            band = band_of(coin) if self._may_skip and not kernel.intents.live else _EVERY_BAR
            decision: Decision | None = None
            # An order waits for the next bar: nothing is decided before it.
            if seen is None and band.lo > band.hi:
                bar = next(bars, None)
            # Events of the order that was just sent. Those of one that waits are read with the events of its bar.
            elif exchange.count != stepper.drained:
                stepper.catch_up()
                continue
            else:
                bar, decision = decide(series, bars, band, seen)
            if bar is None:
                break
            if decision is not None:
                if bar is not seen:
                    exchange.skip(reader, last - 1 - batch.left)
                seen = None
                stepper.act(decision, series, bar, before_next_bar=True)
                continue
            stats.touched += 1
            # Inside this bar an order has arrived or a daemon has started: the rest of the bar goes point by point.
            if reader.step:
                exchange.advance(bar.at_ms - 1)
            else:
                exchange.pass_bar(reader, last - 1 - batch.left)
            stepper.catch_up()
            seen = None if stepper.runs.has_bounds(series) else bar
            if seen is None:
                stepper.decide_at(bar.at_ms, [(series, bar)])
        reached = last - batch.left
        if reader.at < reached:
            exchange.skip(reader, reached - 1)

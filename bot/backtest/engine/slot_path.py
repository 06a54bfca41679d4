"""The general path: from one close to the next, for any number of markets and intervals, with missing candles,
timers and latency.
"""

from __future__ import annotations

from functools import partial

from bot.backtest.engine.candle_readers import SeriesReader
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.progress import RunMonitor
from bot.backtest.engine.stepper import ExchangeControl, Stepper
from bot.backtest.engine.timeline import Timeline
from bot.runtime.passes.bar_feed import BarSeries


class SlotPath:
    """Moves all markets up to the next close, then gives the bars that close there to their strategies. If candles are
    missing, the next instant may also be the close of a longer bar or a timer. `may_leap` allows `_leap`.
    """

    def __init__(
        self,
        timeline: Timeline,
        options: SessionOptions,
        exchange: ExchangeControl,
        stepper: Stepper,
        monitor: RunMonitor,
        *,
        may_leap: bool,
    ) -> None:
        self._timeline = timeline
        self._may_skip = options.skip
        self._exchange = exchange
        self._stepper = stepper
        self._monitor = monitor
        self._may_leap = may_leap and options.skip
        self._coarse = [series_reader for series_reader in timeline.series_readers if not series_reader.is_base]
        rank_of = stepper.kernel.bars.feed.rank_of
        self._heard = [
            (series_reader, series, partial(stepper.precompute, series))
            for series_reader in sorted(timeline.series_readers, key=lambda reader: rank_of(_series_of(reader)))
            for series in [_series_of(series_reader)]
        ]

    def run(self, until_ms: int) -> bool:
        """True when `until_ms` is reached; False when the run was stopped before."""
        monitor = self._monitor
        since_chunk = since_report = 0
        while True:
            slot = self._next_slot()
            if slot is None or slot[0] > until_ms:
                return True
            slot_ms, is_close = slot
            if not self._leap(slot_ms, until_ms):
                self._slot(slot_ms, is_close=is_close)
            since_chunk += 1
            since_report += 1
            if since_chunk >= monitor.chunk:
                since_chunk = 0
                self._stepper.end_of_chunk()
            if since_report >= monitor.polling.bars:
                since_report = 0
                if not monitor.goes_on():
                    return self._timeline.is_over

    def _next_slot(self) -> tuple[int, bool] | None:
        """The next instant at which a bar closes or a timer is due, and whether a candle closes there.

        None when all candles are past.
        """
        closes = [close for reader in self._timeline.readers if (close := reader.next_close_ms()) is not None]
        if not closes:
            return None
        close_ms = min(closes)
        closes += [close for series_reader in self._coarse if (close := series_reader.next_close_ms) is not None]
        if (timer_ms := self._timer_in_hole_ms(close_ms)) is not None:
            closes.append(timer_ms)
        slot_ms = min(closes)
        return slot_ms, slot_ms == close_ms

    def _leap(self, close_ms: int, until_ms: int) -> bool:
        """Skip the closes that no strategy listens to, up to the next one that matters: a heard bar, a timer, or a
        price that the venue must see. False:
        the next close matters."""
        exchange, kernel = self._exchange, self._stepper.kernel
        if not self._may_leap or kernel.intents.live:
            return False
        step_ms = self._timeline.readers[0].step_ms
        closes = (series_reader.next_close_ms for series_reader in self._timeline.series_readers)
        ends = [until_ms, *(close for close in closes if close is not None)]
        if kernel.timers.next_ms is not None:
            ends.append(-(-kernel.timers.next_ms // step_ms) * step_ms)
        if min(ends) <= close_ms:
            return False
        calm_ms = exchange.calm_until(min(ends) - 1, exchange.bands()) + 1
        if calm_ms <= close_ms:
            return False
        exchange.skip_to(calm_ms - 1)
        self._decide_slot(calm_ms)
        return True

    def _timer_in_hole_ms(self, close_ms: int) -> int | None:
        """When the next timer is due, if no market has a bar before that; the next bar closes at `close_ms`. It fires
        as if the missing bars were there and their price stood still.
        """
        due_ms = self._stepper.kernel.timers.next_ms
        if due_ms is None or due_ms >= close_ms:
            return None
        readers = [reader for reader in self._timeline.readers if not reader.is_over]
        step_ms = min(reader.step_ms for reader in readers)
        at_ms = -(-due_ms // step_ms) * step_ms
        is_ahead = at_ms - 1 > self._stepper.now_ms()
        return at_ms if is_ahead and all(reader.ts[reader.at] >= at_ms for reader in readers) else None

    def _slot(self, slot_ms: int, *, is_close: bool) -> None:
        """Move all markets up to `slot_ms`.

        Where no candle closes the venue is always asked, because only bars can say that it need not be.
        """
        exchange, kernel, stats, timeline = self._exchange, self._stepper.kernel, self._monitor.stats, self._timeline
        bands = exchange.bands() if is_close and self._may_skip and not kernel.intents.live else None
        if bands is not None and exchange.is_calm(slot_ms - 1, bands):
            # The venue may have seen the beginning of a longer bar that closes here.
            begun = [reader for reader in timeline.readers if reader.step and reader.next_close_ms() == slot_ms]
            stats.touched += len(begun)
            exchange.skip_to(slot_ms - 1)
        else:
            before = timeline.passed_bars()
            exchange.advance(max(slot_ms - 1, self._stepper.now_ms()))
            stats.touched += timeline.passed_bars() - before
            self._stepper.catch_up()
        self._decide_slot(slot_ms)

    def _decide_slot(self, slot_ms: int) -> None:
        """Give the bars that close there to their strategies, then fire the timers."""
        self._monitor.stats.bars = self._timeline.passed_bars()
        due = []
        for series_reader, series, precompute in self._heard:
            while series_reader.next_close_ms is not None and series_reader.next_close_ms <= slot_ms:
                due.append((series, series_reader.take(precompute)))
        self._stepper.decide_at(slot_ms, due)


def _series_of(reader: SeriesReader) -> BarSeries:
    return BarSeries(reader.reader.coin, reader.interval)

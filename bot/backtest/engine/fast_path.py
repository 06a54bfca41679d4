"""Fast paths: a block of bars in one loop, where the venue is only shown the bars that can touch an order, a stop or a deadline.

`SingleMarketPath` takes one market. `AlignedMarketsPath` takes several markets whose bars close at the same instants. All else goes slot by slot
(slot_path.py). A test runs the same sessions on every path and compares the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

from bot.backtest.engine.market_cursor import BATCH_ROWS, BarBatch, MarketCursor
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.progress import RunMonitor
from bot.backtest.engine.stepper import ExchangeControl, Stepper
from bot.backtest.engine.timeline import Timeline
from bot.runtime.bar_feed import Closed, Series
from bot.runtime.journal.journal import Journal
from bot.runtime.ports import Calm
from bot.runtime.strategy_host.host import Decision, LogLine
from bot.strategy import Bar
from bot.strategy.indicators import Columns

_EVERY_BAR: Final = Calm(float("inf"), float("-inf"), 0)  # every bar leaves this range: the venue must see it


def _batch(stepper: Stepper, cursor: MarketCursor, series: Series, last: int) -> BarBatch:
    """The bars up to row `last`, with the strategies' indicators computed for all of them."""
    columns = Columns(
        *(column[cursor.at : last].tolist() for column in (cursor.open, cursor.high, cursor.low, cursor.close, cursor.volume))
    )  # fmt: skip
    stepper.precompute(series, columns)
    return cursor.batch(cursor.at, last, columns)


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
        cursor, series_cursor, monitor = self._timeline.cursors[0], self._timeline.series_cursors[0], self._monitor
        end = min(cursor.end, cursor.index_of(until_ms + 1))
        series = Series(cursor.coin, cursor.interval)
        chunk_end = min(end, cursor.at + monitor.chunk)
        while cursor.at < end:
            last = min(chunk_end, cursor.at + monitor.polling.bars)
            batch = _batch(self._stepper, cursor, series, last)
            while batch.left:  # The indicators are those of the whole batch: an interrupted batch goes on.
                self._run_batch(cursor, series, batch, last)
                monitor.stats.bars = cursor.at - cursor.first
                if cursor.at >= chunk_end:
                    self._stepper.end_of_chunk()
                    chunk_end = min(end, cursor.at + monitor.chunk)
                if not monitor.goes_on():
                    return cursor.at >= cursor.end
        series_cursor.seek(max(series_cursor.at, cursor.at))
        return True

    def _run_batch(self, cursor: MarketCursor, series: Series, batch: BarBatch, last: int) -> None:
        """The bars of the batch up to row `last`, or fewer when the progress is due to be reported."""
        kernel, exchange, stepper, stats = self._stepper.running(), self._exchange, self._stepper, self._monitor.stats
        decide_run, band_of, coin = kernel.decide_run, exchange.band, cursor.coin
        bars = batch.take(self._monitor.polling.grant(coin, batch.left))
        seen: Bar | None = (
            None  # The venue has seen this bar and nobody has decided on it: the next run starts with it.
        )
        while True:
            band = band_of(coin) if self._may_skip and not kernel.live else _EVERY_BAR
            decision: Decision | None = None
            if seen is None and band.lo > band.hi:  # An order waits for the next bar: nothing is decided before it.
                bar = next(bars, None)
            else:
                bar, decision = decide_run(series, bars, band, seen)
            if bar is None:
                break
            if decision is not None:
                if bar is not seen:
                    exchange.skip(cursor, cursor.index_of(bar.at_ms))
                seen, stepper.cause_ms = None, bar.at_ms - 1
                stepper.act(decision, Closed(bar.at_ms, coin, series.interval, bar))
                continue
            stats.touched += 1
            # Inside this bar an order has arrived or a daemon has started: the rest of the bar goes point by point.
            if cursor.step:
                exchange.advance(bar.at_ms - 1)
            else:
                exchange.pass_bar(cursor, cursor.index_of(bar.at_ms))
            stepper.catch_up()
            seen = None if kernel.has_bounds(series) else bar
            if seen is None:
                stepper.decide_at(bar.at_ms, [(series, bar)])
        reached = last - batch.left
        if cursor.at < reached:
            exchange.skip(cursor, reached - 1)


class AlignedMarketsPath:
    """Several markets, each with one series of its own candles, as far as all of them have bars of the same instants."""

    def __init__(
        self, timeline: Timeline, options: SessionOptions, exchange: ExchangeControl, stepper: Stepper, monitor: RunMonitor, *,
        journal: Journal,
    ) -> None:  # fmt: skip
        self._timeline = timeline
        self._may_skip = options.skip
        self._has_latency = bool(options.latency_ms)
        self._exchange = exchange
        self._stepper = stepper
        self._monitor = monitor
        self._journal = journal
        self._apart_until_ms = 0  # up to here the markets are known to have different bars

    def aligned_rows(self, until_ms: int) -> int:
        """How many of the next bars every market has, all at the same instants and up to the end of a block; 0 where a market has others."""
        cursors = [cursor for cursor in self._timeline.cursors if not cursor.is_over]
        if not cursors or (at_ms := cursors[0].ts[cursors[0].at]) < self._apart_until_ms:
            return 0
        if any(cursor.step for cursor in cursors):
            return 0
        if not all(series_cursor.is_between for series_cursor in self._timeline.series_cursors):
            return 0
        step_ms = cursors[0].step_ms
        last_ms = at_ms - at_ms % (BATCH_ROWS * step_ms) + (BATCH_ROWS - 1) * step_ms
        rows = (min(last_ms, until_ms - step_ms) - at_ms) // step_ms + 1
        rows = min(rows, *(cursor.end - cursor.at for cursor in cursors))
        if rows > 0 and all(
            cursor.ts[cursor.at] == at_ms and cursor.ts[cursor.at + rows - 1] == at_ms + (rows - 1) * step_ms
            for cursor in cursors
        ):
            return rows
        self._apart_until_ms = last_ms + 1
        return 0

    def run(self, rows: int) -> bool:
        """The next `rows` bars of every market. False when the run was stopped."""
        timeline, stepper, monitor = self._timeline, self._stepper, self._monitor
        cursors = [cursor for cursor in timeline.cursors if not cursor.is_over]
        series = [Series(cursor.coin, cursor.interval) for cursor in cursors]
        firsts = [cursor.at for cursor in cursors]
        batches = [_batch(stepper, cursor, one, cursor.at + rows) for cursor, one in zip(cursors, series, strict=True)]
        lines = stepper.running().strategy_host.lines_of(series)
        goes_on = True
        while goes_on and (left := batches[0].left):
            names = monitor.polling.grant(cursors[0].coin, min(left, monitor.polling.bars))
            bars = [batches[0].take(names)]
            bars += [batch.take(repeat(cursor.coin)) for batch, cursor in zip(batches[1:], cursors[1:], strict=True)]
            self._run_slots(cursors, firsts, series, lines, zip(*bars, strict=False))
            done = rows - batches[0].left
            for cursor, first in zip(cursors, firsts, strict=True):
                if cursor.at < first + done:
                    self._exchange.skip(cursor, first + done - 1)
            monitor.stats.bars = timeline.passed_bars()
            goes_on = monitor.goes_on()
        for cursor, one in zip(cursors, series, strict=True):
            if cursor.at > cursor.first:
                self._journal.bar_done(one.market, one.interval, cursor.ts[cursor.at - 1] + cursor.step_ms)
        for series_cursor in timeline.series_cursors:
            if series_cursor.next_close_ms is not None:
                series_cursor.seek(series_cursor.cursor.at)
        stepper.running().feed.trim()
        return goes_on

    def _run_slots(
        self, cursors: Sequence[MarketCursor], firsts: Sequence[int], series: Sequence[Series], lines: Sequence[LogLine],
        slots: Iterator[tuple[Bar, ...]],
    ) -> None:  # fmt: skip
        """As `SingleMarketPath._run_batch`, for all markets at once. `firsts` are the rows at which the block begins."""
        kernel, exchange, stepper = self._stepper.running(), self._exchange, self._stepper
        first_ms = cursors[0].ts[firsts[0]] + cursors[0].step_ms
        losses = kernel.losses
        are_limited = losses.are_limited
        seen: tuple[Bar, ...] | None = None
        first = 0
        while True:
            if self._may_skip and not kernel.live:
                by_coin = exchange.bands()
                bands = [by_coin[cursor.coin] for cursor in cursors]
                if are_limited:
                    bands = [losses.narrowed(one, band) for one, band in zip(series, bands, strict=True)]
            else:
                bands = [_EVERY_BAR] * len(cursors)
            slot, decision, number = kernel.decide_abreast(lines, slots, bands, seen, first)
            if slot is None:
                return
            at_ms = slot[0].at_ms
            past = (at_ms - first_ms) // cursors[0].step_ms
            if decision is not None:
                if slot is not seen:
                    for cursor, row in zip(cursors, firsts, strict=True):
                        exchange.skip(cursor, row + past)
                decided = [(number, decision)]
                while self._has_latency and decision is not None:  # As in `Stepper._decide_all`.
                    _, decision, number = kernel.decide_abreast(lines, iter(()), bands, slot, number + 1)
                    if decision is not None:
                        decided.append((number, decision))
                seen, first = slot, len(lines) if self._has_latency else number + 1
                for number, decision in decided:
                    stepper.cause_ms = at_ms - 1
                    stepper.act(decision, Closed(at_ms, cursors[number].coin, series[number].interval, slot[number]))
                continue
            for cursor, row in zip(cursors, firsts, strict=True):
                if row + past > cursor.at:
                    exchange.skip(cursor, row + past - 1)
            exchange.advance(at_ms - 1)
            self._monitor.stats.touched += len(cursors)
            stepper.catch_up()
            seen, first = slot, 0
            if kernel.timers.next_ms is not None or are_limited:
                seen = None
                stepper.decide_at(at_ms, list(zip(series, slot, strict=True)))

"""Readers: how far each market's candles (`CandleReader`) and each series that strategies listen to (`SeriesReader`)
have come in a session.

A reader hands out what has passed and nothing later. It makes no decision.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Final

from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import resample
from bot.backtest.engine.warm_up_bars import columns_of
from bot.strategy import Bar
from bot.strategy.indicators import Columns
from bot.venue.model.numbers import E8

# most rows that are lists at a time
BATCH_ROWS: Final = 1_024
_MAKE_BAR: Final = partial(tuple.__new__, Bar)

Point = tuple[int, str, int, int, int, int, tuple[int, int] | None, int]


class CandleReader:
    """The candles of one market.

    `at` is the first bar that is not over; `step` says how many of its four points are past.
    """

    __slots__ = (
        "at",
        "close",
        "coin",
        "end",
        "first",
        "high",
        "interval",
        "low",
        "open",
        "step",
        "step_ms",
        "third_ms",
        "ts",
        "volume",
    )

    def __init__(self, candles: Candles, *, start_ms: int, end_ms: int) -> None:
        self.coin = candles.market
        self.interval = candles.interval
        self.step_ms = candles.step_ms
        self.third_ms = candles.step_ms // 3
        self.ts: array[int] = candles.at_ms
        self.open, self.high, self.low, self.close, self.volume = (
            candles.open,
            candles.high,
            candles.low,
            candles.close,
            candles.volume,
        )
        self.first = self.at = bisect_left(self.ts, start_ms)
        self.step = 0
        # The backtest starts inside a bar, so the remaining points of that bar follow.
        if self.at and self.ts[self.at - 1] + self.step_ms - 1 > start_ms:
            self.first = self.at = self.at - 1
            self.step = sum(at <= start_ms for at in self._times())
        # the bars that close in the range end here
        self.end = max(self.first, bisect_left(self.ts, end_ms - self.step_ms + 1))

    @property
    def is_over(self) -> bool:
        return self.at >= self.end

    @property
    def has_holes(self) -> bool:
        """True if a bar is missing between the first and the last."""
        return self.ts[self.end - 1] - self.ts[self.first] != (self.end - 1 - self.first) * self.step_ms

    def next_close_ms(self) -> int | None:
        """When the current bar closes; None after the last."""
        return self.ts[self.at] + self.step_ms if self.at < self.end else None

    def next_point_ms(self) -> int:
        """When the next point of the current bar is due."""
        return self._times()[self.step]

    def last_px(self, path: str) -> int | None:
        """Price of the newest past point, scaled 1e8."""
        if self.step:
            return _way(path, *self.ints(self.at)[:4])[self.step - 1]
        return round(self.close[self.at - 1] * E8) if self.at else None

    def points_of(self, row: int, path: str) -> list[tuple[int, int]]:
        """A bar's four points in order: instant and price, scaled 1e8."""
        ts = self.ts[row]
        times = (ts, ts + self.third_ms, ts + 2 * self.third_ms, ts + self.step_ms - 1)
        return list(zip(times, _way(path, *self.ints(row)[:4]), strict=True))

    def _times(self) -> tuple[int, int, int, int]:
        """The instants of the current bar's four points."""
        ts = self.ts[self.at]
        return ts, ts + self.third_ms, ts + 2 * self.third_ms, ts + self.step_ms - 1

    def ints(self, index: int) -> tuple[int, int, int, int, int]:
        """A bar's open, high, low, close and volume, scaled 1e8."""
        return (
            round(self.open[index] * E8),
            round(self.high[index] * E8),
            round(self.low[index] * E8),
            round(self.close[index] * E8),
            round(self.volume[index] * E8),
        )

    def columns(self, first: int, last: int) -> Columns:
        """Rows `first` to `last`, stamped with the instant of their close."""
        ts, step_ms = self.ts[first:last], self.step_ms
        values = (self.open, self.high, self.low, self.close, self.volume)
        at: Sequence[int]
        # No bar is missing in between.
        if ts and ts[-1] - ts[0] == (len(ts) - 1) * step_ms:
            at = range(ts[0] + step_ms, ts[-1] + 2 * step_ms, step_ms)
        else:
            at = [t + step_ms for t in ts]
        return Columns._make([*(column[first:last].tolist() for column in values), at])

    def index_of(self, close_ms: int) -> int:
        """The row of the bar that closes at `close_ms`."""
        ts, open_ms = self.ts, close_ms - self.step_ms
        # The usual case while an order waits for the next bar.
        if self.at < self.end and ts[self.at] == open_ms:
            return self.at
        guess = self.at + (open_ms - ts[self.at]) // self.step_ms if self.at < self.end else -1
        # No bar is missing in between.
        if 0 <= guess < self.end and ts[guess] == open_ms:
            return guess
        return bisect_left(ts, open_ms, self.first)

    def seek(self, index: int) -> None:
        """Declare every row before `index` past."""
        self.at, self.step = index, 0

    def until(self, to_ms: int, path: str) -> list[tuple[int, int, Point]]:
        """Take the points up to `to_ms`, in order, each with its instant and step."""
        due: list[tuple[int, int, Point]] = []
        while self.at < self.end and self.ts[self.at] <= to_ms:
            ts = self.ts[self.at]
            o, high, low, close, volume = self.ints(self.at)
            prices, times = _way(path, o, high, low, close), self._times()
            for step in range(self.step, 4):
                if times[step] > to_ms:
                    self.step = step
                    return due
                rest = prices[step + 1 :]
                ahead = (min(rest), max(rest)) if path == "sl_first" and rest else None
                due.append((times[step], step, (times[step], self.coin, prices[step], step, ts, volume, ahead, close)))
            self.at, self.step = self.at + 1, 0
        return due


def _way(path: str, o: int, high: int, low: int, close: int) -> tuple[int, int, int, int]:
    """The four prices of a bar in the order of the path policy."""
    up = path == "ohlc" or (path != "olhc" and abs(high - o) < abs(o - low))
    return (o, high, low, close) if up else (o, low, high, close)


class BarBatch:
    """Bars for a strategy, taken a few at a time."""

    __slots__ = ("_at", "_columns")

    def __init__(self, columns: Columns) -> None:
        self._at = iter(columns.at_ms)
        self._columns = [iter(column) for column in columns[:-1]]

    @property
    def left(self) -> int:
        """How many bars have not been taken."""
        return length_hint(self._at)

    def take(self, coins: Iterable[str]) -> Iterator[Bar]:
        """One bar for each name in `coins`.

        Emptying that list, also from another thread, ends the iteration after the last bar taken.
        """
        return map(_MAKE_BAR, zip(coins, self._at, *self._columns, strict=False))


class SeriesReader:
    """The closed bars of one series, as far as strategies have got them: the market's own candles, or coarser ones
    made of them.
    """

    __slots__ = ("_ahead", "at", "candles", "end", "interval", "next_close_ms", "reader", "step_ms")

    def __init__(self, reader: CandleReader, candles: Candles, interval: str, *, start_ms: int, end_ms: int) -> None:
        self.reader = reader
        self.interval = interval
        # A market that ends early has no candles until the session ends.
        self.candles = resample(candles, interval, known_ms=end_ms)
        self.step_ms = self.candles.step_ms
        ts = self.candles.at_ms
        # the first bar that closes after the start
        self.at = bisect_left(ts, start_ms - self.step_ms + 1)
        self.end = bisect_left(ts, end_ms - self.step_ms + 1)
        self._ahead: Iterator[Bar] = iter(())
        self.next_close_ms: int | None = None
        self.seek(self.at)

    @property
    def is_base(self) -> bool:
        return self.step_ms == self.reader.step_ms

    def seek(self, row: int) -> None:
        """Make this row the next bar."""
        self.at = row
        self._ahead = iter(())
        self.next_close_ms = self.candles.at_ms[row] + self.step_ms if row < self.end else None

    def pass_over(self, until_ms: int) -> None:
        """Skip the bars that close by `until_ms`."""
        self.seek(max(self.at, bisect_left(self.candles.at_ms, until_ms - self.step_ms + 1)))

    def take(self, begin: Callable[[Columns], None] | None = None) -> Bar:
        """The next bar, which must exist (`next_close_ms` is not None).

        `begin` gets the columns of each block at its first bar.
        """
        bar = next(self._ahead, None)
        if bar is None:
            columns = columns_of(self.candles, self.at, min(self.end, self.at + BATCH_ROWS))
            if begin is not None:
                begin(columns)
            self._ahead = map(_MAKE_BAR, zip(repeat(self.reader.coin), columns.at_ms, *columns[:-1]))
            bar = next(self._ahead)
        row = self.at = self.at + 1
        self.next_close_ms = self.candles.at_ms[row] + self.step_ms if row < self.end else None
        return bar

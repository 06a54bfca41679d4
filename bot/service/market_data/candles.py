"""Candles of one market in six intervals, the running bar included, built from the price points that fill orders.

Keeps the last 5,000 per interval.
"""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final

from bot.service.market_data.simulator import GridCandle
from bot.service.market_data.trading_hours import DAY_MS, daily_start
from bot.wire.vocabulary import CANDLES_MAX, INTERVAL_MS

STEPS: Final = tuple(INTERVAL_MS.items())


# The last closed candles of an interval, oldest first, as of the creation of the store; at most `limit`.
History = Callable[[str, int], list[GridCandle]]
# candles of history that a small first request makes; a larger request makes all of them
HELPING: Final = 32
# candles packed together: 13 to 20 bytes each instead of 300; the newest candles stay unpacked
PAGE: Final = 64
# zlib's fastest level, because callers wait while a page is packed
PACKING: Final = 1


class _Running:
    """The bar of one interval that is still open."""

    __slots__ = ("close", "high", "low", "open", "ts", "volume")

    def __init__(self, ts: int, px: int) -> None:
        self.ts = ts
        self.open = self.high = self.low = self.close = px
        self.volume = 0

    def candle(self) -> GridCandle:
        return GridCandle(self.ts, self.open, self.high, self.low, self.close, self.volume)


class _Closed:
    """The last 5,000 closed candles of an interval, oldest first. All but the newest 64 to 127 are packed in pages."""

    __slots__ = ("_newest", "_pages")

    def __init__(self, candles: Iterable[GridCandle] = ()) -> None:
        # whole pages; only the oldest may be short
        self._pages: deque[bytes] = deque()
        self._newest = list(candles)
        self._pack()

    def append(self, candle: GridCandle) -> None:
        self._newest.append(candle)
        if len(self._newest) >= 2 * PAGE:
            self._pack()

    def prepend(self, older: list[GridCandle]) -> None:
        """Insert history before the first candle."""
        if not self._pages:
            self._newest[:0] = older
            self._pack()
            return
        for end in range(len(older), 0, -PAGE):
            self._pages.appendleft(_packed(older[max(0, end - PAGE) : end]))
        self._drop()

    def last(self, most: int) -> list[GridCandle]:
        """The newest `limit` candles."""
        newest = self._newest
        for page in reversed(self._pages):
            if len(newest) >= most:
                break
            newest = [*_unpacked(page), *newest]
        return newest[max(0, len(newest) - most) :]

    def _pack(self) -> None:
        while len(self._newest) >= 2 * PAGE:
            self._pages.append(_packed(self._newest[:PAGE]))
            del self._newest[:PAGE]
        self._drop()

    def _drop(self) -> None:
        while (len(self._pages) - 1) * PAGE + len(self._newest) >= CANDLES_MAX:
            self._pages.popleft()


def _packed(candles: Sequence[GridCandle]) -> bytes:
    """Pack field by field, each value as its difference from the previous candle's: a quarter smaller than the plain
    values.
    """
    columns = zip(*candles, strict=True)
    return zlib.compress(array("q", [b - a for column in columns for a, b in pairwise((0, *column))]), PACKING)


def _unpacked(page: bytes) -> list[GridCandle]:
    steps = array("q", zlib.decompress(page))
    count = len(steps) // len(GridCandle._fields)
    return list(map(GridCandle, *(accumulate(steps[at : at + count]) for at in range(0, len(steps), count))))


def start_of(at_ms: int, step: int, base_ms: int, sessions: str | None) -> int:
    """The start of the candle of an instant: on the grid of UTC, or by trading day for days of a market with
    `sessions`.
    """
    if sessions is None or step != DAY_MS or base_ms == DAY_MS:
        return at_ms - at_ms % step
    return daily_start(sessions, at_ms - at_ms % base_ms, base_ms)


class CandleStore:
    """Closed candles and the running one of each interval. A candle is visible once the clock has passed its end.

    `sessions`: the trading hours of a market whose prices rest at weekends; its days are trading days.
    """

    def __init__(self, base_ms: int = STEPS[0][1], history: History | None = None, sessions: str | None = None) -> None:
        self._history = history
        self._base_ms, self._sessions = base_ms, sessions
        # interval -> (limit of the last request to the history, candles that it returned)
        self._helped: dict[str, tuple[int, int]] = {}
        self._steps = tuple((name, step) for name, step in STEPS if step >= base_ms)
        self._closed: dict[str, _Closed] = {name: _Closed() for name in INTERVAL_MS}
        self._running: dict[str, _Running | None] = dict.fromkeys(INTERVAL_MS)

    @property
    def last_px(self) -> int | None:
        """The latest price seen."""
        running = self._running[self._steps[0][0]]
        if running is not None:
            return running.close
        self._help(self._steps[0][0], 1)
        closed = self._closed[self._steps[0][0]].last(1)
        return closed[0].close if closed else None

    def load(self, interval: str, candles: Iterable[GridCandle], running: GridCandle | None = None) -> None:
        """Load the history of one interval, oldest first, and its open bar."""
        self._closed[interval] = _Closed(candles)
        if running is not None:
            bar = _Running(running.ts, running.open)
            bar.high, bar.low, bar.close, bar.volume = running.high, running.low, running.close, running.volume
            self._running[interval] = bar

    def point(self, at_ms: int, px: int, volume: int = 0) -> None:
        """Add a price at `at_ms`, with the volume since the previous price."""
        for name, step in self._steps:
            running = self._running[name]
            is_plain = self._sessions is None or step != DAY_MS
            start = at_ms - at_ms % step if is_plain else start_of(at_ms, step, self._base_ms, self._sessions)
            if running is None or running.ts != start:
                if running is not None:
                    self._closed[name].append(running.candle())
                running = self._running[name] = _Running(start, px)
            elif px > running.high:
                running.high = px
            elif px < running.low:
                running.low = px
            running.close = px
            running.volume += volume

    def page(self, interval: str, limit: int, now_ms: int) -> list[tuple[GridCandle, bool]]:
        """The last `limit` candles, oldest first, each with whether it is closed."""
        self._help(interval, limit)
        step = INTERVAL_MS[interval]
        running = self._running[interval]
        latest: list[tuple[GridCandle, bool]] = []
        if running is not None:
            latest.append((running.candle(), running.ts + step <= now_ms))
        rest = self._closed[interval].last(limit - len(latest))
        return [*((candle, True) for candle in rest), *latest]

    def _help(self, interval: str, limit: int) -> None:
        """Make the history that `limit` candles may need."""
        asked, had = self._helped.get(interval, (0, 0))
        if self._history is None or asked >= limit:
            return
        helping = HELPING if limit <= HELPING else CANDLES_MAX
        candles = self._history(interval, helping)
        self._closed[interval].prepend(candles[: len(candles) - had])
        self._helped[interval] = (helping, len(candles))

    def day(self, now_ms: int) -> tuple[int, int, int, int] | None:
        """(first open, high, low, quote volume in USD scaled 1e8) of the last 24 hours by hourly candles;

        None without any.
        """
        since = now_ms - INTERVAL_MS["1d"]
        bars = [
            c
            for c, _ in self.page("1h", 25, now_ms)
            if c.ts > since - INTERVAL_MS["1h"] and c.ts + INTERVAL_MS["1h"] > since
        ]
        if not bars:
            return None
        usd = sum((c.high + c.low + c.close) // 3 * c.volume // 100_000_000 for c in bars)
        return bars[0].open, max(c.high for c in bars), min(c.low for c in bars), usd


def merge(parts: Iterable[GridCandle], ts: int) -> GridCandle | None:
    """Merge finer candles in order into one that opens at `ts`; None without candles."""
    whole: GridCandle | None = None
    for part in parts:
        if whole is None:
            whole = part._replace(ts=ts)
        else:
            whole = GridCandle(
                ts,
                whole.open,
                max(whole.high, part.high),
                min(whole.low, part.low),
                part.close,
                whole.volume + part.volume,
            )
    return whole

"""Closed bars of one market and interval, as bounded columns of floats. Fed by the runtime, read through a View."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice

from bot.strategy.bar import Bar
from bot.strategy.longer_bars import LongerBars

# The number of bars that the service keeps before a simulated market's start.
HISTORY_BARS = 1_000
# Searched one by one, before all bars are moved into the columns.
NEAR_BARS = 100


class History:
    """The newest `limit` bars. Appending is O(1) amortised: the columns are cut only when they have doubled.

    Every reader returns a new list, newest last, of at most `n` values. So a strategy cannot change the history, and a
    list that it keeps does not grow.
    """

    __slots__ = ("_at_ms", "_close", "_fresh", "_high", "_low", "_open", "_volume", "limit", "longer", "market", "take")

    def __init__(self, market: str, limit: int = HISTORY_BARS) -> None:
        assert limit >= 1
        self.market = market
        self.limit = limit
        self._at_ms: list[int] = []
        self._open: list[float] = []
        self._high: list[float] = []
        self._low: list[float] = []
        self._close: list[float] = []
        self._volume: list[float] = []
        # appended since the columns were last read
        self._fresh: list[Bar] = []
        # appends bars that are known to be in order; call `trim` from time to time
        self.take = self._fresh.append
        # interval -> its bars, kept from the first own bar on
        self.longer: dict[str, LongerHistory] = {}

    def append(self, bar: Bar) -> None:
        """Append the next bar; bars come in order of time, once each."""
        last_ms = self.last_at_ms
        assert last_ms is None or bar.at_ms > last_ms, "bars are appended in order of time"
        self._fresh.append(bar)
        # Now, so that a reader in a strategy's thread changes nothing.
        self._settle()

    def trim(self) -> None:
        """Drop bars that no reader can ask for."""
        if self.longer:
            self._settle()
        elif len(self._fresh) > self.limit:
            del self._fresh[: -self.limit]

    def _settle(self) -> None:
        """Move the appended bars into the columns."""
        fresh = self._fresh
        if not fresh:
            return
        for longer in self.longer.values():
            longer.add(fresh)
        if len(fresh) > self.limit:
            del fresh[: -self.limit]
        columns = (self._at_ms, self._open, self._high, self._low, self._close, self._volume)
        for column, values in zip(columns, list(zip(*fresh, strict=True))[1:], strict=True):
            column.extend(values)  # type: ignore[attr-defined]  # zip loses the type of each column
        fresh.clear()
        if len(self._at_ms) >= 2 * self.limit:
            for column in columns:
                del column[: -self.limit]

    def __len__(self) -> int:
        return min(len(self._at_ms) + len(self._fresh), self.limit)

    @property
    def last_at_ms(self) -> int | None:
        """Close instant of the newest bar; None when there is none."""
        if self._fresh:
            return self._fresh[-1].at_ms
        return self._at_ms[-1] if self._at_ms else None

    def close_at(self, at_ms: int) -> tuple[int, float] | None:
        """Close time and price of the newest bar that had closed by that instant, usually one of the last."""
        for bar in islice(reversed(self._fresh), NEAR_BARS):
            if bar.at_ms <= at_ms:
                return bar.at_ms, bar.close
        self._settle()
        index = bisect_right(self._at_ms, at_ms) - 1
        return None if index < 0 else (self._at_ms[index], self._close[index])

    def bars(self, n: int) -> list[Bar]:
        """The last `n` bars as rows."""
        n = self._cut(n)
        columns = (self._at_ms, self._open, self._high, self._low, self._close, self._volume)
        return [Bar(self.market, *row) for row in zip(*(column[-n:] for column in columns), strict=True)] if n else []

    def of(self, interval: str, own: str) -> History:
        """Closed bars of a longer interval. Of an interval that is not in `longer`: made of the own bars in here."""
        self._settle()
        kept = self.longer.get(interval)
        if kept is None:
            kept = LongerHistory(self.market, interval, own)
            kept.add(self.bars(self.limit))
        return kept.history

    def keep(self, interval: str, own: str) -> LongerHistory:
        """Keep the bars of a longer interval from now on."""
        if interval not in self.longer:
            kept = LongerHistory(self.market, interval, own)
            kept.add(self.bars(self.limit))
            self.longer[interval] = kept
        return self.longer[interval]

    def adopt_longer(self, other: History) -> None:
        """Keep the longer intervals of another history too, which has the same newest bar."""
        self._settle()
        other._settle()
        self.longer = {**other.longer, **self.longer}

    def opens(self, n: int) -> list[float]:
        return self._last(self._open, n)

    def highs(self, n: int) -> list[float]:
        return self._last(self._high, n)

    def lows(self, n: int) -> list[float]:
        return self._last(self._low, n)

    def closes(self, n: int) -> list[float]:
        return self._last(self._close, n)

    def volumes(self, n: int) -> list[float]:
        return self._last(self._volume, n)

    def _cut(self, n: int) -> int:
        if n < 0:
            raise ValueError(f"the number of bars is 0 or more, not {n}")
        self._settle()
        return min(n, self.limit)

    def _last(self, column: list[float], n: int) -> list[float]:
        n = self._cut(n)
        return column[-n:] if n else []


class LongerHistory:
    """The newest bars of a longer interval of one market."""

    __slots__ = ("_makers", "_past", "history")

    def __init__(self, market: str, interval: str, own: str) -> None:
        self.history = History(market)
        # The first one makes the bars of the history, the others make the same bars for indicators.
        self._makers = [LongerBars(interval, own)]
        # the past that every maker gets, until the first own bar
        self._past: tuple[Sequence[Bar], str] | None = None

    def begin(self, pieces: Sequence[Bar], interval: str) -> None:
        """Take past bars, before the first own bar (`LongerBars.begin`)."""
        self._past = pieces, interval
        for maker in self._makers:
            maker.begin(pieces, interval)

    def supply(self, makers: Iterable[LongerBars]) -> None:
        """Give the past to makers of these bars for indicators too."""
        for maker in makers:
            if maker not in self._makers:
                self._makers.append(maker)
                if self._past is not None:
                    maker.begin(*self._past)

    def add(self, bars: Iterable[Bar]) -> None:
        """Take own bars in order of time."""
        self._past = None
        for bar in bars:
            for closed in self._makers[0].add(bar):
                self.history.append(closed)

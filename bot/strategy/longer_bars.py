"""Bars of a longer interval, made of a strategy's own bars: 4h bars for a strategy that decides on 15m bars.

A longer bar exists from its close on and never before. It is made of the own bars that the strategy has got, so live,
in the sandbox and in a backtest it is the same. A longer bar whose last own bar is missing (a gap, a closed session)
exists from the next own bar on. Days and weeks are those of UTC; a week begins on Monday.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from bot.clock import DAY_MS, INTERVALS, MONDAY_MS, WEEK_MS
from bot.errors import StrategyError
from bot.strategy.bar import Bar
from bot.wire.vocabulary import INTERVAL_MS


def checked_interval(interval: Any) -> str:
    """StrategyError if there is no such interval."""
    if not isinstance(interval, str) or interval not in INTERVALS:
        raise StrategyError(f"interval is one of {', '.join(INTERVALS)}, not {interval!r:.100}")
    return interval


def check_longer(interval: Any, own: str) -> None:
    """StrategyError if bars of `interval` cannot be made of bars of the strategy's own interval."""
    step_ms, own_ms = INTERVALS[checked_interval(interval)], INTERVALS[own]
    if step_ms % own_ms == 0:
        return
    why = "is shorter than" if step_ms < own_ms else "is not a multiple of"
    usable = [name for name, ms in INTERVALS.items() if ms % own_ms == 0]
    finer = [name for name, ms in INTERVAL_MS.items() if step_ms % ms == 0][-1]
    raise StrategyError(
        f'interval="{interval}" {why} the strategy\'s own interval {own}: read {", ".join(usable)},'
        f" or write `interval: {finer}` for the strategy in the config"
    )


def pieces_of(interval: str, own: str) -> str:
    """The interval of the candles that a start asks for, to make past bars of a longer interval.

    It is the longest that the interface has. Its days may be trading days, so bars of a day or longer are made of
    shorter candles.
    """
    fitting = [
        name
        for name, ms in INTERVAL_MS.items()
        if INTERVALS[interval] % ms == 0 and ms % INTERVALS[own] == 0 and (ms < DAY_MS or name == own)
    ]
    return fitting[-1]


class LongerBars:
    """Makes the bars of one longer interval of one market from bars in order of time."""

    __slots__ = ("_end_ms", "_has_begin", "_own_ms", "_piece_ms", "_pieces", "_pieces_end_ms", "_running", "_step_ms")

    def __init__(self, interval: str, own: str) -> None:
        check_longer(interval, own)
        self._step_ms = INTERVALS[interval]
        self._own_ms = INTERVALS[own]
        # the bars of the running longer bar, and its end
        self._running: list[Bar] = []
        self._end_ms = 0
        # False: the bars began inside the running longer bar, which is then left out
        self._has_begin = False
        self._pieces: deque[Bar] = deque()
        self._piece_ms = self._pieces_end_ms = 0

    def begin(self, pieces: Sequence[Bar], interval: str) -> None:
        """Take past bars of a coarser interval, before the first own bar. Each counts from its close on.

        Own bars before the close of the last piece count no second time. Bars that run already are not begun again.
        """
        if self._end_ms:
            return
        self._pieces = deque(pieces)
        self._piece_ms = INTERVALS[interval]
        self._pieces_end_ms = pieces[-1].at_ms if pieces else 0

    def add(self, bar: Bar) -> list[Bar]:
        """Take the next own bar. Returns the longer bars that are known to have closed since the last one."""
        closed: list[Bar] = []
        pieces = self._pieces
        while pieces and pieces[0].at_ms <= bar.at_ms:
            self._take(pieces.popleft(), self._piece_ms, closed)
        if bar.at_ms - self._own_ms >= self._pieces_end_ms:
            self._take(bar, self._own_ms, closed)
        return closed

    def _take(self, bar: Bar, step_ms: int, closed: list[Bar]) -> None:
        # A trading day may begin on the evening before: Monday's begins on Sunday, and belongs to Monday's week.
        middle_ms = bar.at_ms - step_ms // 2
        if middle_ms >= self._end_ms:
            self._close(closed)
            start_ms = middle_ms - (middle_ms - (MONDAY_MS if self._step_ms == WEEK_MS else 0)) % self._step_ms
            self._has_begin = self._end_ms > 0 or bar.at_ms - step_ms == start_ms
            self._end_ms = start_ms + self._step_ms
        self._running.append(bar)
        if bar.at_ms == self._end_ms:
            self._close(closed)

    def _close(self, closed: list[Bar]) -> None:
        bars = self._running
        if bars and self._has_begin:
            high, low = max(bar.high for bar in bars), min(bar.low for bar in bars)
            # Exactly rounded, so the same on every Python.
            volume = math.fsum(bar.volume for bar in bars)
            closed.append(Bar(bars[0].market, self._end_ms, bars[0].open, high, low, bars[-1].close, volume))
        self._running = []

"""Refines simulated days into minutes: makes a block of finer candles from each coarser candle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Final, Generic, Protocol, TypeVar

from bot.wire.vocabulary import INTERVAL_MS

DAY_MS: Final = INTERVAL_MS["1d"]
INTERVALS: Final = ("1d", "4h", "1h", "15m", "5m", "1m")
# Refined blocks kept per market: enough for the present and for one walk through the past. Past prices are kept as
# packed candles (candles.py); 600 blocks would take 45 MB for 50 markets.
KEPT_BLOCKS: Final = 60


class Rung(Protocol):
    """A candle in log prices, with its open time."""

    @property
    def ts(self) -> int: ...


C = TypeVar("C", bound=Rung)


class Refinement(ABC, Generic[C]):
    """Candles of every interval.

    Each depends only on its day and on randomness seeded by its position, so the order of requests does not matter.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int], list[C]] = OrderedDict()

    def forget(self) -> None:
        """Drop all blocks. A later request makes them again."""
        self._blocks.clear()

    @abstractmethod
    def _day(self, ts: int) -> C:
        """The day that opens at `ts`."""

    @abstractmethod
    def _refine(self, parent: C, interval: str, length: int) -> list[C]:
        """Split a candle that lasts `length` into its parts."""

    def _block(self, interval: str, ts: int) -> list[C]:
        """All candles of `interval` inside the next coarser candle that contains `ts`."""
        level = INTERVALS.index(interval)
        if level == 0:
            return [self._day(ts // DAY_MS * DAY_MS)]
        parent_interval = INTERVALS[level - 1]
        span = INTERVAL_MS[parent_interval]
        start = ts // span * span
        key = (interval, start)
        block = self._blocks.get(key)
        if block is None:
            parents = self._block(parent_interval, start)
            block = self._refine(parents[(start - parents[0].ts) // span], interval, span)
            self._blocks[key] = block
            if len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return block

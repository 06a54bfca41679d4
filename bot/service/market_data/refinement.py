"""The walk down from days to minutes that all simulated prices share: a block of fine candles is made from the one coarser candle that holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Final, Generic, Protocol, TypeVar

from bot.wire.vocabulary import INTERVAL_MS

DAY_MS: Final = INTERVAL_MS["1d"]
LADDER: Final = ("1d", "4h", "1h", "15m", "5m", "1m")
# Refined blocks kept a market: those that hold the present and those that a walk through the past is in. What has been played is kept as
# candles, packed (candles.py); 600 blocks would be 45 MB for 50 markets.
KEPT_BLOCKS: Final = 60


class Rung(Protocol):
    """What opens at an instant."""

    @property
    def ts(self) -> int: ...


C = TypeVar("C", bound=Rung)


class Refinement(ABC, Generic[C]):
    """Candles of every interval, each a function of the day's and of chance that is seeded by its place: the order of asking changes nothing."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int], list[C]] = OrderedDict()

    def forget(self) -> None:
        """Let all blocks go; they are made again when asked for."""
        self._blocks.clear()

    @abstractmethod
    def _day(self, ts: int) -> C:
        """The day that opens at `ts`."""

    @abstractmethod
    def _refine(self, parent: C, interval: str, length: int) -> list[C]:
        """A candle that lasts `length` split into its parts."""

    def _block(self, interval: str, ts: int) -> list[C]:
        """All candles of `interval` inside the next coarser candle that holds `ts`."""
        level = LADDER.index(interval)
        if level == 0:
            return [self._day(ts // DAY_MS * DAY_MS)]
        parent_interval = LADDER[level - 1]
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

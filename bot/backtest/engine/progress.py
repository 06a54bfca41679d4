"""How a long run is watched while it goes: what the progress bar is told, and when the garbage collector may run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bot.clock import monotonic_ns

CHUNK: Final = 4_096  # bars whose columns are lists at a time, at the most, and after which the loop reconciles


FIRST_LOOK: Final = 1  # bars until the keyboard is looked at for the first time


SOON_NS, LATE_NS = 50_000_000, 200_000_000  # between two looks: twice as many bars are taken, or half as many


WATCH_S: Final = 0.1  # so often a thread sees whether the look is late


# What a session keeps for long (events, trades) forms no cycles; a collector that walks it again and again costs a third of a run.
GC_THRESHOLDS: Final = (20_000, 20, 1_000)


LONG: Final = 100_000  # bars of a session that leaves much behind


Told = Callable[[int, int], bool]  # bars done, bars in all; False: stop here


class Looks:
    """How many bars pass between two looks at the keyboard: few of a strategy that takes its time, a whole chunk of one that does not.

    Of one that grows slow of a sudden a thread takes away the bars that are at hand. Nothing is asked for each bar, so that none costs more.
    """

    def __init__(self) -> None:
        self.bars = FIRST_LOOK
        self._last_ns = monotonic_ns()
        self._at_hand: list[str] = []

    def hand_out(self, coin: str, count: int) -> list[str]:
        """A name for each bar that may be taken before the next look; the list is emptied when the look is late."""
        self._at_hand = [coin] * count
        return self._at_hand

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, no look is later than the bar at which it was due."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_S):
                if self.is_late:
                    self.bars = 1
                    self._at_hand.clear()

        thread = threading.Thread(target=watch, name="session-looks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def is_late(self) -> bool:
        return monotonic_ns() - self._last_ns > LATE_NS

    def looked(self) -> None:
        now_ns = monotonic_ns()
        took_ns, self._last_ns = now_ns - self._last_ns, now_ns
        if took_ns < SOON_NS:
            self.bars = min(2 * self.bars, CHUNK)
        elif took_ns > LATE_NS:
            self.bars = max(self.bars // 2, 1)


@contextmanager
def kept_from_collecting(bars: int) -> Iterator[None]:
    """The collector's own settings are back when this ends. What a long session before this one has left is looked for by a long one alone: in a
    process that holds much, a look through all of it takes a second."""
    before = gc.get_threshold()
    gc.collect(2 if bars > LONG else 1)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

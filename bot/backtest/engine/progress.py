"""The progress of a run: what it has done so far, when it is reported, and when the garbage collector may run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bot.backtest.engine.options import Outage
from bot.clock import monotonic_ns

# bars that are held as lists at a time; the kernel reconciles after each chunk
CHUNK: Final = 4_096
# bars until the progress is reported for the first time
FIRST_REPORT: Final = 1
# time between two reports; if it is shorter their distance in bars doubles, if longer it halves
SOON_NS, LATE_NS = (50_000_000, 200_000_000)
# how often a thread checks whether the report is late
WATCH_S: Final = 0.1
# What a session keeps (events, trades) forms no cycles. A collector that walks it again and again costs a third of the
# time.
GC_THRESHOLDS: Final = (20_000, 20, 1_000)
# Bars of sessions that leave much to collect together. A session counts as LEAST bars or more: each leaves a kernel.
LONG, LEAST = (100_000, 5_000)

# bars of the sessions of this process since the last full collection
_uncollected = 0

# is given bars done and bars in all; returns False to stop the run
Progress = Callable[[int, int], bool]


@dataclass(slots=True)
class OutageRecord:
    """One outage of the daemon: positions and equity before and after it, and the numbers of the events that came
    meanwhile.
    """

    outage: Outage
    first_event: int = 0
    last_event: int = 0
    equity_before_usd: float = 0.0
    equity_after_usd: float = 0.0
    open_before: tuple[str, ...] = ()
    open_after: tuple[str, ...] = ()


@dataclass(slots=True)
class RunStats:
    """What a session has done so far."""

    # The bars of all markets.
    bars: int = 0
    bars_in_all: int = 0
    # bars that the venue was shown
    touched: int = 0
    decisions: int = 0
    # orders that strategies asked for, refused ones included
    orders: int = 0
    is_partial: bool = False
    outage_records: list[OutageRecord] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)


class ProgressPolling:
    """How many bars pass between two progress reports: few with a slow strategy, a whole chunk with a fast one.

    When a strategy becomes slow within a chunk, a thread takes the granted bars away. So nothing is checked at each
    bar.
    """

    def __init__(self) -> None:
        self.bars = FIRST_REPORT
        self._last_ns = monotonic_ns()
        self._granted: list[str] = []

    def grant(self, coin: str, count: int) -> list[str]:
        """A name for each bar that may be taken before the next report. The list is emptied when the report is late."""
        self._granted = [coin] * count
        return self._granted

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, no report comes later than the bar at which it was due."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_S):
                if self.is_late:
                    self.bars = 1
                    self._granted.clear()

        thread = threading.Thread(target=watch, name="session-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def is_late(self) -> bool:
        return monotonic_ns() - self._last_ns > LATE_NS

    def polled(self) -> None:
        now_ns = monotonic_ns()
        took_ns, self._last_ns = now_ns - self._last_ns, now_ns
        if took_ns < SOON_NS:
            self.bars = min(2 * self.bars, CHUNK)
        elif took_ns > LATE_NS:
            self.bars = max(self.bars // 2, 1)


class RunMonitor:
    """Reports the progress of a run to `progress`, which may stop it."""

    def __init__(self, stats: RunStats, progress: Progress | None = None) -> None:
        self.stats = stats
        self.polling = ProgressPolling()
        self.chunk = CHUNK
        self._progress = progress

    def goes_on(self) -> bool:
        """Report, and answer whether the run goes on."""
        self.polling.polled()
        return self._progress is None or self._progress(self.stats.bars, self.stats.bars_in_all)


@contextmanager
def rare_garbage_collection(bars: int) -> Iterator[None]:
    """Collect garbage rarely while this lasts; the collector's own settings return afterwards. Only a session of many
    bars, or the last of many sessions, first collects all that earlier ones have left, because that takes about a
    second in a large process. The collector would not do it by itself: what was frozen counts as old.
    """
    global _uncollected  # noqa: PLW0603  the collector belongs to the process too
    before = gc.get_threshold()
    _uncollected += max(bars, LEAST)
    is_full = _uncollected > LONG
    if is_full:
        _uncollected = 0
    gc.collect(2 if is_full else 1)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

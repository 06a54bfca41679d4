"""When outside prices open and close, and when a series lists its next event market."""

from __future__ import annotations

from heapq import heappop, heappush

from bot.service.market_data.event_series import EventSeries


class MarketSchedule:
    """A heap of (instant, coin). `series`: the event markets that follow settled ones."""

    def __init__(self) -> None:
        self.series: EventSeries | None = None
        self._heap: list[tuple[int, str]] = []

    def next_ms(self) -> int | None:
        """The next instant; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, at_ms: int, coin: str) -> None:
        heappush(self._heap, (at_ms, coin))

    def pop(self) -> tuple[int, str]:
        """Remove and return the next instant and its market."""
        return heappop(self._heap)

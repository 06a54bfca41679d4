"""Limits how often one caller may try within a span of real time, so that short codes cannot be guessed. In memory."""

from __future__ import annotations

from collections import OrderedDict, deque

from bot.clock import monotonic_ns

# callers remembered; the least recently used is dropped first
CALLERS_MAX = 10_000


class AttemptLimits:
    """Allows a caller at most `most` tries in `seconds`."""

    def __init__(self, most: int, seconds: int) -> None:
        self.most = most
        self._span_ns = seconds * 1_000_000_000
        self._tries: OrderedDict[str, deque[int]] = OrderedDict()

    def wait_seconds(self, caller: str) -> int:
        """Whole seconds until the next try is allowed; 0 if it is allowed now."""
        tries = self._recent(caller)
        if len(tries) < self.most:
            return 0
        return max(1, -(-(tries[0] + self._span_ns - monotonic_ns()) // 1_000_000_000))

    def note(self, caller: str) -> None:
        """Count a try."""
        tries = self._tries.get(caller)
        if tries is None:
            tries = self._tries[caller] = deque(maxlen=self.most)
            if len(self._tries) > CALLERS_MAX:
                self._tries.popitem(last=False)
        self._tries.move_to_end(caller)
        tries.append(monotonic_ns())

    def _recent(self, caller: str) -> deque[int]:
        tries = self._tries.get(caller)
        if tries is None:
            return deque()
        oldest = monotonic_ns() - self._span_ns
        while tries and tries[0] <= oldest:
            tries.popleft()
        if not tries:
            del self._tries[caller]
        return tries

"""Guesses: how often one caller may try in a while of real time, in memory. What keeps short codes from being tried through."""

from __future__ import annotations

from collections import OrderedDict, deque

from bot.clock import monotonic_ns

CALLERS_MAX = 10_000  # remembered at one time; the one unused longest goes first


class AttemptLimits:
    """At most `most` tries a caller in `seconds`."""

    def __init__(self, most: int, seconds: int) -> None:
        self.most = most
        self._span_ns = seconds * 1_000_000_000
        self._tries: OrderedDict[str, deque[int]] = OrderedDict()

    def wait_seconds(self, caller: str) -> int:
        """0 when another try is free, else whole seconds until one is."""
        tries = self._recent(caller)
        if len(tries) < self.most:
            return 0
        return max(1, -(-(tries[0] + self._span_ns - monotonic_ns()) // 1_000_000_000))

    def note(self, caller: str) -> None:
        """One more try."""
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

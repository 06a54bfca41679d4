"""When the account is compared with the service: regularly, soon after a comparison that failed, and at once when
somebody else trades.
"""

from __future__ import annotations

from typing import Final

from bot.clock import MINUTE_MS
from bot.runtime.passes.ports import Pacer

# Real time between two comparisons when nothing asks for one.
RECONCILE_MS: Final = 3 * MINUTE_MS
# Real time before a comparison without an answer, or one that was refused, is asked for again.
REFUSED_MS: Final = 10_000


class ComparisonSchedule:
    """Real time comes from `pacer`; `every_ms` is the time between two comparisons."""

    def __init__(self, pacer: Pacer, every_ms: int = RECONCILE_MS) -> None:
        self._pacer = pacer
        self.every_ms = every_ms
        # real time
        self.next_ms = 0

    @property
    def is_due(self) -> bool:
        return self._pacer.mono_ms() >= self.next_ms

    def compare_every(self, every_ms: int) -> None:
        """Use another time between two comparisons from the next one on."""
        self.every_ms = every_ms

    def began(self) -> None:
        """A comparison begins."""
        self.next_ms = self._pacer.mono_ms() + self.every_ms

    def soon(self) -> None:
        """Compare within REFUSED_MS, after a comparison that failed or whose repairs had no time."""
        self.next_ms = min(self.next_ms, self._pacer.mono_ms() + REFUSED_MS)

    def in_next_pass(self) -> None:
        """Compare in the next pass."""
        self.next_ms = 0

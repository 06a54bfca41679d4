"""How much real time the current pass still has.

Heartbeats stop when no pass ends for long. So after PASS_MS a pass begins nothing new, and the next pass goes on.
"""

from __future__ import annotations

from typing import Final

from bot.runtime.passes.ports import Pacer, PortClock

# Real time in which a pass may begin work.
PASS_MS: Final = 4_000
# Real time after which long work, such as a warm-up, yields to a pass.
YIELD_MS: Final = 1_000
# Real time that an intent has at least before it expires unsent.
REAL_HOLD_MS: Final = 20_000


class PassBudget:
    """The time of the current pass, in real milliseconds, and whether work was left for the next pass."""

    def __init__(self, pacer: Pacer, clock: PortClock) -> None:
        self.pacer = pacer
        self.clock = clock
        self._ends_ms = 0
        # False: this pass opens nothing
        self.takes_entries = True
        # True if this pass had no time for some orders or repairs
        self.is_cut_short = False

    def begin(self) -> None:
        """Begin a pass of PASS_MS."""
        self._ends_ms = self.pacer.mono_ms() + PASS_MS
        self.takes_entries, self.is_cut_short = True, False

    def refuse_entries(self) -> None:
        """This pass opens nothing."""
        self.takes_entries = False

    def cut_short(self) -> None:
        """This pass leaves work for the next, which begins at once."""
        self.is_cut_short = True

    def end(self) -> None:
        """Leave no time, so that the pass under way begins nothing new."""
        self._ends_ms = 0

    def has_time(self) -> bool:
        """True while this pass may begin another piece of work."""
        return self.pacer.mono_ms() < self._ends_ms

    def may_go_on(self) -> bool:
        """Like `has_time`, for a series of similar tasks.

        If no time is left, the next pass begins at once and continues the series.
        """
        has_time = self.has_time()
        self.is_cut_short = self.is_cut_short or not has_time
        return has_time

    def entries_left_ms(self) -> int:
        """The time that this pass has left for entries. The next pass carries on with the rest."""
        left_ms = self._ends_ms - self.pacer.mono_ms() if self.takes_entries else 0
        self.is_cut_short = self.is_cut_short or left_ms <= 0
        return left_ms

    def is_used_up_since(self, began_ms: int) -> bool:
        """True if the pass has no time left and the work that began at `began_ms` took at least YIELD_MS of it."""
        return not self.has_time() and self.pacer.mono_ms() - began_ms >= YIELD_MS

    def hold_ms(self, wanted_ms: int) -> int:
        """`wanted_ms` of service time, but at least REAL_HOLD_MS of real time at the speed of the service's clock."""
        return max(wanted_ms, int(REAL_HOLD_MS * max(1.0, self.clock.speed)))

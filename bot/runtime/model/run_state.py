"""What the parts of one run share: whether it has recovered, whether it ends, and how far it has read the events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Real time without events after which bars are decided for their exits alone.
EXITS_WAIT_MS: Final = 6_000


@dataclass(slots=True)
class RunState:
    """The kernel and the event consumer write it; the risk rules, the loss limits and the reports read it."""

    # recovered: positions, guardians and open intents are known
    ready: bool = False
    # why nothing may be opened while the run ends
    paused: str | None = None
    # progress of the warm-up at a start
    warming: str | None = None
    # the last read did not reach the end of the feed
    behind: bool = False
    # real time
    behind_since_ms: int | None = None
    # A strategy took the time of the pass, so only a part of a page was applied. Nothing is repaired on such a state.
    is_page_cut: bool = False
    # service time when this run began
    began_ms: int = 0
    # Service time from which an order that is not in the journal is foreign, even with a key like ours.
    alone_since_ms: int = 0
    # The last pass had no time left after it had asked for events and bars, because such questions hang. The next pass
    # sends exits and stops before it asks, so that they do not wait for the answers.
    is_starved: bool = False
    # real time at the end of the newest pass
    pass_ended_ms: int = 0
    # close of the newest decided bar
    last_bar_ms: int | None = None

    @property
    def is_uncertain(self) -> bool:
        """True if events may exist that have not been read."""
        return self.behind or not self.ready

    def caught_up(self, *, is_page_cut: bool) -> None:
        """The service answered. `is_page_cut`: a part of its events is still to be read."""
        self.is_page_cut = self.behind = is_page_cut
        self.behind_since_ms = None

    def fell_behind(self, mono_ms: int) -> None:
        """The service did not answer when it was asked for events."""
        self.behind = True
        if self.behind_since_ms is None:
            self.behind_since_ms = mono_ms

    def is_behind_for_long(self, mono_ms: int) -> bool:
        """True if no events could be read for EXITS_WAIT_MS."""
        since_ms = self.behind_since_ms
        return self.ready and since_ms is not None and mono_ms - since_ms >= EXITS_WAIT_MS

    def lag_s(self, mono_ms: int) -> float:
        """Real seconds since the events could last be read to their end."""
        return 0.0 if self.behind_since_ms is None else (mono_ms - self.behind_since_ms) / 1000

"""Pauses and quarantines: the strategies that open nothing, because the operator paused them or because they failed.

A paused strategy is still called, and its entries are refused; exits and protection go on. A quarantined strategy is
not called. It stays quarantined over a restart until its code or params change, or the operator resumes it. Both are
kept in the journal's notes and in a file beside it (halt_flags.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from bot.errors import Refusal
from bot.logs import log
from bot.runtime.alerts.messages import notice
from bot.runtime.journal.halt_flags import ALL, PAUSES, QUARANTINE
from bot.runtime.journal.journal import Journal

# resting entries that a notice names; bot orders lists all of them
OIDS_MAX: Final = 10


class Quarantine(NamedTuple):
    """Why a strategy is quarantined, which version of it, and since when."""

    why: str
    version: str
    at_ms: int


class Pauses:
    """`names` are the paused strategies; ALL stands for every strategy, also those that are added later."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.names = frozenset(json.loads(journal.state.note(PAUSES) or "[]"))

    @property
    def all_paused(self) -> bool:
        return ALL in self.names

    def pause(self, strategy: str | None) -> bool:
        """Pause a strategy, or all. False if it was paused already."""
        return self._set(self.names | {strategy or ALL})

    def resume(self, strategy: str | None) -> bool:
        """Resume a strategy that was paused by name; None resumes all, also those that were paused by name."""
        return self._set(frozenset() if strategy is None else self.names - {strategy})

    def refusal(self, strategy: str) -> Refusal | None:
        if ALL in self.names:
            return Refusal("paused", "every strategy is paused; bot resume lets them go on")
        if strategy in self.names:
            return Refusal("paused", f"{strategy} is paused; bot resume {strategy} lets it go on")
        return None

    def _set(self, names: frozenset[str]) -> bool:
        if names == self.names:
            return False
        self._journal.state.write_note(PAUSES, json.dumps(sorted(names)))
        self.names = names
        return True


def quarantine_of(journal: Journal, strategy: str) -> Quarantine | None:
    """The quarantine of a strategy, if it has one."""
    text = journal.state.note(_note(strategy))
    return Quarantine(*json.loads(text)) if text else None


def keep_quarantine(journal: Journal, strategy: str, quarantine: Quarantine | None) -> None:
    """Write the quarantine of a strategy; None ends it."""
    if quarantine is not None or journal.state.note(_note(strategy)):
        journal.state.write_note(_note(strategy), "" if quarantine is None else json.dumps(quarantine))


def quarantine(
    journal: Journal, strategy: str, version: str, why: str, *, at_ms: int, resting: Sequence[str] | None = None
) -> None:
    """Quarantine a strategy and write a notice.

    `resting`: ids of its entries that may still fill; None if they are not known yet.
    """
    left = _of_resting(resting)
    log.error("strategy.quarantined", strategy=strategy, message=why, resting=left)
    alert = notice(
        "strategy.quarantined",
        f"quarantine:{strategy}:{at_ms}",
        at_ms=at_ms,
        strategy=strategy,
        message=why,
        resting=left,
    )
    journal.notify([alert], now_ms=at_ms)
    keep_quarantine(journal, strategy, Quarantine(why, version, at_ms))


def _of_resting(oids: Sequence[str] | None) -> str:
    if oids is None:
        return "entries of it that rest may still fill (bot orders)"
    if not oids:
        return "no entry of it rests"
    more = f" and {len(oids) - OIDS_MAX} more" if len(oids) > OIDS_MAX else ""
    return f"entries that rest may still fill: {', '.join(oids[:OIDS_MAX])}{more} (bot orders)"


def _note(strategy: str) -> str:
    return f"{QUARANTINE}{strategy}"

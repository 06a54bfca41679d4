"""Pauses and quarantines: which strategies open nothing, by a person's word or by their own fault. Kept in the journal's notes and beside it (safety.py).

A paused strategy is asked as before, and its entries are refused; exits and protection go on. A quarantined one is asked
nothing. It stays so over a restart as long as its code and params are those that failed; a person's `resume`, or other
code or params, brings it back.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import structlog

from bot.errors import Refusal
from bot.runtime.journal import Journal
from bot.runtime.notices import notice
from bot.runtime.safety import ALL, PAUSES, QUARANTINE

log = structlog.get_logger()


class Quarantine(NamedTuple):
    """Why, of which version of the strategy, and when."""

    why: str
    version: str
    at_ms: int


class Pauses:
    """`names` are the paused strategies; ALL is everyone, also those that come later."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.names = frozenset(json.loads(journal.note(PAUSES) or "[]"))

    @property
    def all_paused(self) -> bool:
        return ALL in self.names

    def pause(self, strategy: str | None) -> bool:
        """False when it was so already."""
        return self._set(self.names | {strategy or ALL})

    def resume(self, strategy: str | None) -> bool:
        """One goes on only when it was paused by itself; None lets everyone go on, also those that were paused one by one."""
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
        self._journal.write_note(PAUSES, json.dumps(sorted(names)))
        self.names = names
        return True


def quarantine_of(journal: Journal, strategy: str) -> Quarantine | None:
    """What is kept of a strategy that failed."""
    text = journal.note(_note(strategy))
    return Quarantine(*json.loads(text)) if text else None


def keep_quarantine(journal: Journal, strategy: str, quarantine: Quarantine | None) -> None:
    """None: it may be asked again."""
    if quarantine is not None or journal.note(_note(strategy)):
        journal.write_note(_note(strategy), "" if quarantine is None else json.dumps(quarantine))


def quarantine(journal: Journal, strategy: str, version: str, why: str, *, at_ms: int) -> None:
    """Keep it, and tell it."""
    log.error("strategy.quarantined", strategy=strategy, message=why)
    said = notice("strategy.quarantined", f"quarantine:{strategy}:{at_ms}", at_ms=at_ms, strategy=strategy, message=why)
    journal.notify([said], now_ms=at_ms)
    keep_quarantine(journal, strategy, Quarantine(why, version, at_ms))


def _note(strategy: str) -> str:
    return f"{QUARANTINE}{strategy}"

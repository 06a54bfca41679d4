"""Pauses and quarantines: which strategies open nothing, by a person's word or by their own fault. Kept in the journal's notes and beside it (halt_flags.py).

A paused strategy is asked as before, and its entries are refused; exits and protection go on. A quarantined one is asked
nothing. It stays so over a restart as long as its code and params are those that failed; a person's `resume`, or other
code or params, brings it back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from bot.errors import Refusal
from bot.runtime.alerts.messages import notice
from bot.runtime.journal.halt_flags import ALL, PAUSES, QUARANTINE
from bot.runtime.journal.journal import Journal

log = structlog.get_logger()

OIDS_TOLD: Final = 10  # of the entries that rest; a field of a notice is short, and bot orders has all of them


class Quarantine(NamedTuple):
    """Why, of which version of the strategy, and when."""

    why: str
    version: str
    at_ms: int


class Pauses:
    """`names` are the paused strategies; ALL is everyone, also those that come later."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.names = frozenset(json.loads(journal.state.note(PAUSES) or "[]"))

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
        self._journal.state.write_note(PAUSES, json.dumps(sorted(names)))
        self.names = names
        return True


def quarantine_of(journal: Journal, strategy: str) -> Quarantine | None:
    """What is kept of a strategy that failed."""
    text = journal.state.note(_note(strategy))
    return Quarantine(*json.loads(text)) if text else None


def keep_quarantine(journal: Journal, strategy: str, quarantine: Quarantine | None) -> None:
    """None: it may be asked again."""
    if quarantine is not None or journal.state.note(_note(strategy)):
        journal.state.write_note(_note(strategy), "" if quarantine is None else json.dumps(quarantine))


def quarantine(
    journal: Journal, strategy: str, version: str, why: str, *, at_ms: int, resting: Sequence[str] | None = None
) -> None:
    """Keep it, and tell it. `resting`: its entries that may still fill; None when nobody knows yet."""
    left = _of_resting(resting)
    log.error("strategy.quarantined", strategy=strategy, message=why, resting=left)
    said = notice(
        "strategy.quarantined",
        f"quarantine:{strategy}:{at_ms}",
        at_ms=at_ms,
        strategy=strategy,
        message=why,
        resting=left,
    )
    journal.notify([said], now_ms=at_ms)
    keep_quarantine(journal, strategy, Quarantine(why, version, at_ms))


def _of_resting(oids: Sequence[str] | None) -> str:
    if oids is None:
        return "entries of it that rest may still fill (bot orders)"
    if not oids:
        return "no entry of it rests"
    more = f" and {len(oids) - OIDS_TOLD} more" if len(oids) > OIDS_TOLD else ""
    return f"entries that rest may still fill: {', '.join(oids[:OIDS_TOLD])}{more} (bot orders)"


def _note(strategy: str) -> str:
    return f"{QUARANTINE}{strategy}"

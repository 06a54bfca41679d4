"""Health: why a run may only close, and what a person should hear of. Counts and notices; it repairs nothing and sends nothing.

`degraded` maps a reason to a sentence. A reason of one market ("market:BTC", "drift:BTC") keeps entries out of that market,
any other keeps them out of all; exits and protection go on under every one of them. "orders:BTC" and "clock" are shown here and judged
elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from bot.errors import Refusal
from bot.runtime.alerts.messages import notice
from bot.runtime.journal.halt_flags import FOREIGN
from bot.runtime.journal.journal import Journal

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot

log = structlog.get_logger()

ORDERS: Final = "orders:"  # the service does not say what became of an order in that market, whose name follows
PARTIAL: Final = ("clock", ORDERS)  # reasons that are shown here and judged elsewhere
LOCAL: Final = ("market:", "drift:")  # reasons of one market; its name follows
KEPT: Final = (FOREIGN,)  # reasons that only a person takes away, or a reset of the account: they outlive a restart
CODES: Final = {"journal": "journal_fault", FOREIGN: "foreign_writer", "scope": "forbidden"}


class Health:
    """`counts` are for metrics: how often each kind was told of in this run."""

    def __init__(self, *, journal: Journal, now_ms: Callable[[], int]) -> None:
        self.journal = journal
        self.now_ms = now_ms
        self.degraded: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.bare: dict[str, int] = {}  # market without a stop -> real time since when
        self._told = 0
        for reason in KEPT:
            if text := journal.note(reason):
                self.degraded[reason] = json.loads(text)
                log.warning("daemon.still_degraded", code=reason, message=self.degraded[reason], way_out="bot resume")

    def degrade(self, reason: str, message: str) -> None:
        """From now on nothing is opened because of it. Told once, until it is restored."""
        before = self.degraded.get(reason)
        self.degraded[reason] = message
        if before is None:
            with self.journal.together():
                self._keep_note(reason, message)
                self.incident("daemon.degraded", reason, code=reason, message=message)

    def restore(self, reason: str) -> None:
        if self.degraded.pop(reason, None) is not None:
            with self.journal.together():
                self._keep_note(reason, None)
                self.incident("daemon.recovered", reason, code=reason, message=f"{reason} is as it should be again")

    def _keep_note(self, reason: str, message: str | None) -> None:
        if reason in KEPT:
            self.journal.write_note(reason, "" if message is None else json.dumps(message))

    def keep(self, prefix: str, reasons: dict[str, str]) -> None:
        """Make the reasons under a prefix exactly these."""
        for reason in [one for one in self.degraded if one.startswith(prefix)]:
            if reason.removeprefix(prefix) not in reasons:
                self.restore(reason)
        for name, message in reasons.items():
            self.degrade(prefix + name, message)

    def markets_of(self, prefix: str) -> list[str]:
        """The markets of the reasons under a prefix."""
        return sorted(one.removeprefix(prefix) for one in self.degraded if one.startswith(prefix))

    def no_entry(self, market: str | None = None) -> Refusal | None:
        """Why nothing may be opened, anywhere or in that market."""
        if not self.degraded:
            return None
        for reason, message in self.degraded.items():
            if reason.startswith(PARTIAL):
                continue
            is_local = reason.startswith(LOCAL)
            if not is_local or (market is not None and reason in (f"{one}{market}" for one in LOCAL)):
                return Refusal(CODES.get(reason, "degraded"), f"closes only ({reason}): {message}", {"action": "wait"})
        return None

    def incident(self, kind: str, ref: str, *, market: str | None = None, **fields: Any) -> None:
        """Log it, count it, and leave it in the outbox."""
        self.counts[kind] += 1
        log.warning(kind, ref=ref, market=market, **fields)
        self._told += 1
        now_ms = self.now_ms()
        self.journal.notify(
            (notice(kind, f"{ref}:{now_ms}:{self._told}", at_ms=now_ms, market=market, **fields),), now_ms=now_ms
        )

    # -- positions without a stop

    def bared(self, market: str, message: str, *, mono_ms: int) -> int:
        """A position of ours has no stop; since when, in real time."""
        since = self.bare.get(market)
        if since is None:
            since = self.bare[market] = mono_ms
            self.incident("protection.lost", market, market=market, message=message)
        return since

    def covered(self, still_bare: frozenset[str]) -> None:
        """Every other market's position has its stop again, or is gone."""
        for market in [one for one in self.bare if one not in still_bare]:
            del self.bare[market]
            self.restore(f"drift:{market}")
            self.incident("protection.restored", market, market=market, message="it has a stop again, or is closed")


def key_problem(snapshot: AccountSnapshot) -> str | None:
    """What the key may not do that an entry needs; None when it may, or when the service does not say."""
    key = snapshot.limits.key
    scopes = None if key is None else key.scopes
    if not scopes or "trade" in scopes:
        return None
    if "trade:close_only" in scopes:
        return "the key has the scope trade:close_only and not trade: it closes and protects, and opens nothing"
    return f"the key has no scope trade ({', '.join(scopes)}): it can neither open nor close"

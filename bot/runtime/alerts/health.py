"""Health: why the daemon may only close positions, and the incidents that people get notices of. It repairs nothing and
sends nothing.

`degraded` maps a reason to a sentence. A reason of one market ("market:BTC", "drift:BTC") blocks entries in that
market; any other blocks all entries. Exits and protection always go on. "orders:BTC" and "clock" are only shown here;
other modules enforce them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bot.clock import DAY_MS, iso
from bot.errors import Refusal
from bot.logs import log
from bot.runtime.alerts.messages import notice
from bot.runtime.journal.halt_flags import FOREIGN
from bot.runtime.journal.journal import Journal
from bot.words import many

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot

# time before the end of a key from which on a warning is shown
EXPIRES_SOON_MS: Final = 14 * DAY_MS
# why the daemon opens nothing more
ENDING: Final = "the run is ending"
# + market: the outcome of an order there is not known yet
ORDERS: Final = "orders:"
# shown here, enforced by other modules
PARTIAL: Final = ("clock", ORDERS)
# + market: it has no live prices
PRICES: Final = "prices:"
# + market: reasons of one market
LOCAL: Final = ("market:", "drift:", PRICES)
# only a person or an account reset removes these, so they outlive a restart
KEPT: Final = (FOREIGN,)
CODES: Final = {"journal": "journal_fault", FOREIGN: "foreign_writer", "scope": "forbidden"}


class DaemonHealth:
    """`counts` are for metrics: incidents of this run by kind."""

    def __init__(self, *, journal: Journal, now_ms: Callable[[], int]) -> None:
        self.journal = journal
        self.now_ms = now_ms
        self.degraded: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        # market without a stop -> since when, in monotonic ms
        self.bare: dict[str, int] = {}
        self.key_expiry = KeyExpiry(journal)
        self._incidents = 0
        for reason in KEPT:
            if text := journal.state.note(reason):
                self.degraded[reason] = json.loads(text)
                log.warning("daemon.still_degraded", code=reason, message=self.degraded[reason], way_out="bot resume")

    def degrade(self, reason: str, message: str, *, kind: str = "daemon.degraded", market: str | None = None) -> None:
        """Block entries for this reason. It causes one notice of this kind until it is restored."""
        before = self.degraded.get(reason)
        self.degraded[reason] = message
        if before is None:
            with self.journal.together():
                self._keep_note(reason, message)
                self.incident(kind, reason, market=market, code=reason, message=message)

    def restore(self, reason: str) -> None:
        if self.degraded.pop(reason, None) is not None:
            with self.journal.together():
                self._keep_note(reason, None)
                self.incident("daemon.recovered", reason, code=reason, message=f"{reason} is in order again")

    def _keep_note(self, reason: str, message: str | None) -> None:
        if reason in KEPT:
            self.journal.state.write_note(reason, "" if message is None else json.dumps(message))

    def keep(self, prefix: str, reasons: dict[str, str]) -> None:
        """Make the reasons under a prefix exactly these."""
        for reason in [known for known in self.degraded if known.startswith(prefix)]:
            if reason.removeprefix(prefix) not in reasons:
                self.restore(reason)
        for name, message in reasons.items():
            self.degrade(prefix + name, message)

    def markets_of(self, prefix: str) -> list[str]:
        """Markets that have a reason with this prefix."""
        return sorted(reason.removeprefix(prefix) for reason in self.degraded if reason.startswith(prefix))

    def no_entry(self, market: str | None = None) -> Refusal | None:
        """Why nothing may be opened, in any market or in this one; None if it may."""
        if not self.degraded:
            return None
        for reason, message in self.degraded.items():
            if reason.startswith(PARTIAL):
                continue
            is_local = reason.startswith(LOCAL)
            if not is_local or (market is not None and reason in (f"{prefix}{market}" for prefix in LOCAL)):
                return Refusal(CODES.get(reason, "degraded"), f"closes only ({reason}): {message}", {"action": "wait"})
        return None

    def incident(self, kind: str, ref: str, *, market: str | None = None, **fields: Any) -> None:
        """Log and count an incident, and write its notice."""
        self.counts[kind] += 1
        log.warning(kind, ref=ref, market=market, **fields)
        self._incidents += 1
        now_ms = self.now_ms()
        self.journal.notify(
            (notice(kind, f"{ref}:{now_ms}:{self._incidents}", at_ms=now_ms, market=market, **fields),), now_ms=now_ms
        )

    # -- positions without a stop

    def bared(self, market: str, message: str, *, mono_ms: int) -> int:
        """Note that a position of ours has no stop; returns since when."""
        since = self.bare.get(market)
        if since is None:
            since = self.bare[market] = mono_ms
            self.incident("protection.lost", market, market=market, message=message)
        return since

    def forget_bare(self, market: str) -> None:
        """Stop watching a market whose position is not ours any more."""
        self.bare.pop(market, None)
        self.restore(f"drift:{market}")

    def covered(self, still_bare: frozenset[str]) -> None:
        """Note that positions in all other markets have their stops again, or are closed."""
        for market in [uncovered for uncovered in self.bare if uncovered not in still_bare]:
            del self.bare[market]
            self.restore(f"drift:{market}")
            self.incident("protection.restored", market, market=market, message="it has a stop again, or is closed")


class KeyExpiry:
    """Tells once a day that the API key expires, from EXPIRES_SOON_MS before it on.

    Without a key the daemon can neither open nor close.
    """

    def __init__(self, journal: Journal) -> None:
        # None: it does not expire, or the service does not say
        self.at_ms: int | None = None
        self._journal = journal
        # days
        self._told: int | None = None

    def see(self, snapshot: AccountSnapshot) -> None:
        self.at_ms = None if snapshot.limits.key is None else snapshot.limits.key.expires_at

    def look(self, now_ms: int) -> None:
        if self.at_ms is None or self.at_ms - now_ms > EXPIRES_SOON_MS:
            return
        days = max(0, self.at_ms - now_ms) // DAY_MS
        if days == self._told:
            return
        self._told = days
        message = (
            f"the API key expires at {iso(self.at_ms)}, in {many(days, 'day')}: make a new one and start the daemon"
            " with it before that"
        )
        log.warning("key.expires", message=message)
        self._journal.notify(
            [notice("key.expires", f"key:{self.at_ms}:{days}", at_ms=now_ms, message=message)], now_ms=now_ms
        )


def key_problem(snapshot: AccountSnapshot) -> str | None:
    """Why the API key may not open positions; None if it may, or if the service does not say."""
    key = snapshot.limits.key
    scopes = None if key is None else key.scopes
    if not scopes or "trade" in scopes:
        return None
    if "trade:close_only" in scopes:
        return "the key has the scope trade:close_only and not trade: it closes and protects, and opens nothing"
    return f"the key has no scope trade ({', '.join(scopes)}): it can neither open nor close"

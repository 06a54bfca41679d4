"""Why nothing may be opened now: conditions of the run, not of an order. The risk engine judges the order itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bot.errors import Refusal
from bot.runtime.account.account_state import AccountState
from bot.runtime.alerts.health import DaemonHealth
from bot.runtime.journal.journal import Journal
from bot.runtime.model.run_state import RunState
from bot.runtime.reconciliation.guardians import DEAD_MAN, Guardians
from bot.runtime.risk.loss_limits import LossLimits
from bot.runtime.risk.pauses import Pauses
from bot.strategy import Close, Open
from bot.strategy import Intent as Signal

# triggers that are only as right as the clock
SCHEDULED: Final = ("bar:", "timer:", "timer.")

Why = Callable[[], Refusal | None]


class EntryConditions:
    """`lease` says why the dead-man's deadline is uncertain, `schedule` why bars and timers cannot be trusted."""

    def __init__(
        self,
        state: RunState,
        journal: Journal,
        account_state: AccountState,
        health: DaemonHealth,
        guardians: Guardians,
        losses: LossLimits,
        lease: Why,
        schedule: Why,
    ) -> None:
        self.pauses = Pauses(journal)
        self.losses = losses
        self.lease = lease
        self.schedule = schedule
        self._state = state
        self._journal = journal
        self._account_state = account_state
        self._health = health
        self._guardians = guardians

    def entries_stopped(self, now_ms: int) -> Refusal | None:
        """Why nothing may be opened now, in any market."""
        state = self._state
        if not state.ready:
            return Refusal("not_ready", "the run has not recovered yet", {"action": "wait"})
        if state.paused is not None:
            return Refusal("paused", state.paused)
        if state.behind:
            return Refusal("behind", "the service's events could not be read to their end", {"action": "wait"})
        if self._journal.fault is not None:
            return Refusal("journal_fault", f"closes only: {self._journal.fault}", {"action": "wait"})
        if self._health.degraded and (no := self._health.no_entry()) is not None:
            return no
        fallen = self._guardians.fallen()
        if fallen:
            code = "dead_man_gone" if fallen[0].name == DEAD_MAN else "guardian_gone"
            message = f"guardian {fallen[0].name} of the config is not armed; the daemon arms it again first"
            return Refusal(code, message, {"action": "wait"})
        return self.lease()

    def strategy_stopped(self, strategy: str, now_ms: int) -> Refusal | None:
        """Why this strategy may open nothing now: it is paused, or it has reached its daily loss."""
        return self.pauses.refusal(strategy) or (self.losses.refusal(strategy, now_ms) if self.losses.is_used else None)

    def no_entry(self, market: str, trigger: str) -> Refusal | None:
        """Why nothing may be opened in this market, or on this trigger."""
        no = self._health.no_entry(market) if self._health.degraded else None
        return no if no is not None or not trigger.startswith(SCHEDULED) else self.schedule()

    def no_signal(self, signal: Signal, trigger: str) -> Refusal | None:
        """Why the daemon refuses a signal before the risk rules are checked."""
        if isinstance(signal, Open):
            return self.no_entry(signal.market, trigger)
        if isinstance(signal, Close) and not is_whole(signal):
            if self._state.behind:
                message = "a part of a position is not closed while the events cannot be read; all of it is"
                return Refusal("behind", message)
            if self._journal.fault is not None and not self._account_state.keys_proven:
                message = "a part cannot be closed exactly once without the journal; all of it can"
                return Refusal("journal_fault", message)
        return None


def is_whole(signal: Close) -> bool:
    """True if the signal closes the whole position."""
    return signal.usd is None and signal.size is None and signal.fraction in (None, 1)

"""Work at the end of a pass: notice a lost journal file, and remove what nobody needs any more from the journal and
from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bot.clock import MINUTE_MS
from bot.runtime.journal.retention import HeldKeys

if TYPE_CHECKING:
    from bot.runtime.account.account import DaemonAccount
    from bot.runtime.reconciliation.daemon_run import DaemonRun
    from bot.runtime.reconciliation.repair_actions import RepairActions

# Real time between two trims. One that finds nothing costs a few queries of an index.
TRIM_MS: Final = MINUTE_MS
# newest entry keys of an open position; one is enough to say whose it is
ENTRIES_HELD: Final = 200
# Service time between two flat points, so that a daemon at rest seldom writes.
FLAT_MS: Final = 15 * MINUTE_MS
# Real time between two tries to write the journal's file again.
RETRY_MS: Final = 5_000


class Upkeep:
    """Keeps the journal's file whole, and journal and memory small."""

    def __init__(self, run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> None:
        self._run = run
        self._account = account
        self._actions = actions
        # real time
        self.rewrite_at_ms = 0
        # real time
        self._trim_at_ms = 0
        # service time of the newest flat point
        self._flat_ms = 0
        # a backtest proves nothing
        self._notes_flat = account.journal.path is not None and account.journal.keeps_traces

    def run(self) -> None:
        """Call it at the end of each pass."""
        self._check_journal()
        now_ms = self._run.budget.pacer.mono_ms()
        # what the account holds
        is_known = not self._run.state.behind and self._account.journal.fault is None
        if not is_known or now_ms < self._trim_at_ms:
            return
        self._trim_at_ms = now_ms + TRIM_MS
        self._account.journal.trim(self.held, now_ms=self._run.now_ms())
        self._account.order_owners.forget_oldest()
        self._actions.intents.forget_states()
        self._actions.guardians.forget(self._account.account_state.positions)
        self._note_flat()

    def held(self) -> HeldKeys:
        """The positions and orders of the account, which the journal must keep."""
        account_state = self._account.account_state
        positions = {position.market: position.opened_ms for position in account_state.positions.values()}
        keys = {order.key for order in account_state.orders.values() if order.key is not None}
        keys |= self._actions.intents.live.keys()
        for market, opened_ms in positions.items():
            entries = self._account.journal.events.entry_keys(market, epoch=account_state.epoch, since_ms=opened_ms)
            keys.update(entries[-ENTRIES_HELD:])
        return HeldKeys(frozenset(keys), positions)

    def _note_flat(self) -> None:
        """Note an instant without positions and orders, at which the replay of a day can begin."""
        account_state, journal, now_ms = self._account.account_state, self._account.journal, self._run.now_ms()
        if not self._notes_flat or account_state.positions or account_state.orders or self._actions.intents.live:
            return
        if 0 <= now_ms - self._flat_ms < FLAT_MS:
            return
        self._flat_ms = now_ms
        journal.flush()
        journal.state.put_flat_point(now_ms, epoch=account_state.epoch, balance_usd=account_state.balance_usd)

    def _check_journal(self) -> None:
        self._account.journal.check_file(now_ms=self._run.now_ms())
        fault, now_ms = self._account.journal.fault, self._run.budget.pacer.mono_ms()
        if fault is None:
            return
        self._run.health.degrade("journal", fault)
        if now_ms >= self.rewrite_at_ms:
            self.rewrite_at_ms = now_ms + RETRY_MS
            if self._account.journal.mend():
                self._run.health.restore("journal")

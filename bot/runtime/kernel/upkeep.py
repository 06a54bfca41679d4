"""Work at the end of a pass: notice a lost journal file, and remove what nobody needs any more from the journal and
from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bot.clock import MINUTE_MS
from bot.runtime.journal.retention import HeldKeys

if TYPE_CHECKING:
    from bot.runtime.reconciliation.context import RepairContext

# Real time between two trims. One that finds nothing costs a few queries of an index.
TRIM_MS: Final = MINUTE_MS
# newest entry keys of an open position; one is enough to say whose it is
ENTRIES_HELD: Final = 200
# Real time between two tries to write the journal's file again.
RETRY_MS: Final = 5_000


class Upkeep:
    """Keeps the journal's file whole, and journal and memory small."""

    def __init__(self, context: RepairContext) -> None:
        self._context = context
        # real time
        self.rewrite_at_ms = 0
        # real time
        self._trim_at_ms = 0

    def run(self) -> None:
        """Call it at the end of each pass."""
        self._check_journal()
        context, now_ms = self._context, self._context.pacer.mono_ms()
        # what the account holds
        is_known = not context.state.behind and context.journal.fault is None
        if not is_known or now_ms < self._trim_at_ms:
            return
        self._trim_at_ms = now_ms + TRIM_MS
        context.journal.trim(self.held, now_ms=context.now_ms())
        context.order_owners.forget_oldest()
        context.intents.forget_states()
        context.guardians.forget(context.account_state.positions)

    def held(self) -> HeldKeys:
        """The positions and orders of the account, which the journal must keep."""
        context = self._context
        account_state = context.account_state
        positions = {position.market: position.opened_ms for position in account_state.positions.values()}
        keys = {order.key for order in account_state.orders.values() if order.key is not None} | {*context.intents.live}
        for market, opened_ms in positions.items():
            entries = context.journal.events.entry_keys(market, epoch=account_state.epoch, since_ms=opened_ms)
            keys.update(entries[-ENTRIES_HELD:])
        return HeldKeys(frozenset(keys), positions)

    def _check_journal(self) -> None:
        context = self._context
        context.journal.check_file(now_ms=context.now_ms())
        fault, now_ms = context.journal.fault, context.pacer.mono_ms()
        if fault is None:
            return
        context.health.degrade("journal", fault)
        if now_ms >= self.rewrite_at_ms:
            self.rewrite_at_ms = now_ms + RETRY_MS
            if context.journal.mend():
                context.health.restore("journal")

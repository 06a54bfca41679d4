"""Find out who made the orders and dead-man switches that are not in our journal, and stop entries if it was another
writer.

Another daemon may have our config, and then its keys are those of our decisions. A lost journal explains such an order
only if it was made before `RunState.alone_since_ms`. The same holds for a dead-man switch: each daemon arms its own, so
a daemon that starts beside us is noticed before it trades.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bot.runtime.journal.halt_flags import FOREIGN
from bot.runtime.reconciliation.guardians import stands_for
from bot.runtime.reconciliation.key_recovery import FORM, claimed
from bot.wire import TRADES_PAGE_MAX

if TYPE_CHECKING:
    from bot.runtime.account.account import DaemonAccount
    from bot.runtime.reconciliation.daemon_run import DaemonRun
    from bot.runtime.reconciliation.repair_actions import RepairActions

# a person at the dashboard and the service itself do not count as another writer
SOURCES: Final = frozenset({"agent", "api"})


async def look_closer(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> None:
    """Ask the service who made the orders and switches that are not ours. Reads one page of trades for each market."""
    if account.foreign_activity.switches:
        await _look_at_switches(run, account, actions)
    if not account.foreign_activity.waiting:
        return
    for market in sorted({market for market, _, _ in account.foreign_activity.waiting.values()}):
        if not run.budget.has_time():
            # The next pass goes on.
            return
        page = await actions.port.trades(limit=TRADES_PAGE_MAX, coin=market)
        trades = {trade.id: trade for trade in page.trades}
        for trade_id, (of_market, key, at_ms) in list(account.foreign_activity.waiting.items()):
            if of_market != market:
                continue
            del account.foreign_activity.waiting[trade_id]
            trade = trades.get(trade_id)
            if trade is None or trade.source not in SOURCES:
                continue
            made_ms = at_ms if trade.ts is None else min(at_ms, trade.ts)
            # Events may show none where trades do.
            shown, key = key, key or trade.idempotency_key
            if (key is None and not account.account_state.keys_proven) or (
                key is not None and _is_ours(run, account, key, market, made_ms, was_unknown=shown is not None)
            ):
                continue
            who = f"another {trade.source}" if key is None or FORM.fullmatch(key) is None else "another daemon"
            _flag(run, trade_id, f"trade {trade_id} was made by {who} on this account", market=market)


def _is_ours(run: DaemonRun, account: DaemonAccount, key: str, market: str, made_ms: int, *, was_unknown: bool) -> bool:
    """True if the key is in the journal, or is a decision that a lost journal had.

    `was_unknown`: the event came before the journal had the key, so another daemon made our own decision before us.
    """
    if account.order_owners.owner_of(key) is not None:
        return not was_unknown or made_ms < run.state.alone_since_ms
    return claimed(run, account, key, market, made_ms) is not None


async def _look_at_switches(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> None:
    """Find out who armed these switches. It cannot be known while a request of ours has no reply."""
    guardians = actions.guardians
    for guardian_id, at_ms in list(account.foreign_activity.switches.items()):
        if at_ms < run.state.began_ms or guardians.is_ours(
            guardian_id
            # Guardians.retire handles those from before.
        ):
            del account.foreign_activity.switches[guardian_id]
    if not account.foreign_activity.switches or guardians.awaits_dead_man():
        return
    there = {armed.id: armed for armed in await guardians.listed()}
    for guardian_id, at_ms in list(account.foreign_activity.switches.items()):
        del account.foreign_activity.switches[guardian_id]
        guardian = there.get(guardian_id)
        if at_ms < run.state.alone_since_ms and not account.foreign_activity.has_late_switch:
            if guardian is None:
                continue
            if any(stands_for(wanted.request, guardian) for wanted in guardians.wanted):
                account.foreign_activity.saw_late_switch()
                guardians.take_over(guardian_id)
                continue
        message = f"the dead-man switch {guardian_id} was armed by another daemon or agent on this account"
        _flag(run, guardian_id, message)


def _flag(run: DaemonRun, ref: str, message: str, *, market: str | None = None) -> None:
    run.health.incident("account.foreign", ref, market=market, message=message)
    run.health.degrade(FOREIGN, f"{message}; no entries until bot resume")

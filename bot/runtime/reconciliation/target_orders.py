"""Place the target orders of entries, and cancel reduce-only orders whose position is gone. Runs in every pass.

The last target of a bracket is the service's own. Each target before it becomes a reduce-only limit order once its
entry is filled. The interface has no field for reduce-only: an order against a position that is not larger than the
position only reduces it. `requireProtection` makes the service refuse the order if it would open a position, because
the order brings no stop.

Nothing is kept in memory alone: the plan is a column of the entry's intent, and the key of a target order is a function
of the entry, the number of the target and the try. A run that starts again finds in the journal which orders were made.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import count
from typing import Final

from bot.runtime.account.account import DaemonAccount
from bot.runtime.model.intents import FINAL, FIRST_LEG, RUNTIME, TARGET_LEG, CancelOrders, Intent, intent_key
from bot.runtime.model.order_rules import whole_steps
from bot.runtime.model.positions import AccountOrder, AccountPosition
from bot.runtime.reconciliation.daemon_run import DaemonRun
from bot.runtime.reconciliation.repair_actions import RepairActions
from bot.runtime.risk.order_builder import target_px, target_request, targets_in
from bot.wire import OrderRequest

# Service time in which a target order may be sent. Then the next try begins.
TRY_MS: Final = 60_000


def is_due(account: DaemonAccount, actions: RepairActions) -> bool:
    """True if `place` has something to look at. Every pass asks this, so it must be cheap."""
    return bool(actions.intents.with_targets) or bool(_orphans(account))


def find_entries(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> None:
    """After a start: find the entries whose target orders may not all be made, resting ones and those of open
    positions.
    """
    account_state, journal, entries = account.account_state, account.journal, actions.intents.with_targets
    entries.clear()
    keys = [order.key for order in account_state.orders.values() if order.could_open]
    for position in account_state.positions.values():
        keys += journal.events.entry_keys(position.market, epoch=account_state.epoch, since_ms=position.opened_ms)
    for market in sorted({market for instance in run.strategy_host.instances for market in instance.markets}):
        # The events of the newest entry may be late.
        newest = journal.intents.last_open(market, account_state.epoch)
        keys.append(None if newest is None else newest.id)
    for key in dict.fromkeys(keys):
        intent = None if key is None else journal.intents.find(key)
        if intent is not None and intent.targets is not None and intent.state == "accepted":
            entries[intent.id] = intent


async def place(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> None:
    """Make the intents that are due, and send them."""
    state, entries = run.state, actions.intents.with_targets
    if state.behind or state.is_page_cut:
        return
    due: list[Intent] = []
    for entry in list(entries.values()):
        requests = _due_of(run, account, actions, entry)
        if requests is None:
            del entries[entry.id]
        else:
            due += requests
    cancels = (_cancel_of(run, account, order) for order in _orphans(account))
    due += [cancel for cancel in cancels if account.journal.intents.find(cancel.id) is None]
    if due:
        await actions.execution.open_and_send(due)


def _due_of(run: DaemonRun, account: DaemonAccount, actions: RepairActions, entry: Intent) -> list[Intent] | None:
    """The target orders of an entry that are to be sent now. None: nothing is left to do for this entry."""
    account_state, market, side = account.account_state, entry.market, entry.order().side
    if entry.epoch != account_state.epoch:
        return None
    if any(order.key == entry.id for order in account_state.entries(market)):
        # A part of the entry still rests.
        return []
    fills = account.journal.events.entry_fills(entry.id, epoch=entry.epoch)
    if not fills:
        return None if run.now_ms() > entry.not_after_ms else []
    position = account_state.positions.get(market)
    if position is None or position.side != side or fills[-1][2] < position.opened_ms:
        return None
    if actions.intents.is_closing(market):
        return []
    tries = [_newest_try(run, account, entry, n, request) for n, request in _requests_of(run, entry, position, fills)]
    due = [intent for intent, is_new in tries if is_new]
    return due if due or any(intent.state not in FINAL for intent, _ in tries) else None


def _requests_of(
    run: DaemonRun, entry: Intent, position: AccountPosition, fills: list[tuple[Decimal, Decimal, int]]
) -> list[tuple[int, OrderRequest]]:
    """Number and request of each target order.

    A part is a fraction of what the entry has filled, rounded down to the market's lot.
    """
    assert entry.targets is not None
    market, side, risk = entry.market, position.side, run.risk
    filled = sum((size for size, _, _ in fills), Decimal(0))
    entry_px = sum((size * px for size, px, _ in fills), Decimal(0)) / filled
    requests = []
    for n, target in enumerate(targets_in(entry.targets), 1):
        size = min(whole_steps(target.fraction * filled, risk.step(market)), position.size)
        px = target_px(target.level, entry_px, position.first_stop_px, side, risk.grid(market))
        if size and px is not None and px > 0:
            requests.append((n, target_request(market, side, size, px)))
    return requests


def _newest_try(
    run: DaemonRun, account: DaemonAccount, entry: Intent, n: int, request: OrderRequest
) -> tuple[Intent, bool]:
    """The newest try of a target order, and whether it is still to be written.

    A try that expired before it was sent is followed by another.
    """
    for ordinal in count():
        intent = _intent(run, account, entry.strategy, entry.market, f"target:{n}:{entry.id}", request, ordinal=ordinal)
        known = account.journal.intents.find(intent.id)
        if known is None or known.state != "expired":
            return known or intent, known is None
    raise AssertionError("count() does not end")


def _orphans(account: DaemonAccount) -> list[AccountOrder]:
    """Our resting closes whose position is gone or has changed its side.

    At a service that does not cancel them they could open a position.
    """
    account_state, orphans = account.account_state, []
    for order in account_state.orders.values():
        if order.kind == "limit" and order.action == "close" and order.key is not None:
            position = account_state.positions.get(order.market)
            is_orphan = position is None or position.side != order.side
            if is_orphan and account_state.owner_of(order.key) is not None:
                orphans.append(order)
    return orphans


def _cancel_of(run: DaemonRun, account: DaemonAccount, order: AccountOrder) -> Intent:
    return _intent(run, account, RUNTIME, order.market, f"left_over:{order.oid}", CancelOrders((order.oid,)))


def _intent(
    run: DaemonRun,
    account: DaemonAccount,
    strategy: str,
    market: str,
    trigger: str,
    request: OrderRequest | CancelOrders,
    *,
    ordinal: int = 0,
) -> Intent:
    is_cancel, now_ms, epoch = isinstance(request, CancelOrders), run.now_ms(), account.account_state.epoch
    leg = FIRST_LEG["cancel"] if is_cancel else TARGET_LEG
    key = intent_key(
        address=account.journal.address,
        epoch=epoch,
        strategy=strategy,
        market=market,
        trigger=trigger,
        ordinal=ordinal,
        leg=leg,
    )
    return Intent(
        id=key,
        strategy=strategy,
        market=market,
        action="cancel" if is_cancel else "close",
        path="direct",
        trigger=trigger,
        ordinal=ordinal,
        leg=leg,
        epoch=epoch,
        body=request.body(),
        request=request,
        not_after_ms=now_ms + run.budget.hold_ms(TRY_MS),
        opened_ms=now_ms,
    )

"""Recognize orders of ours that the journal does not know because its file was lost.

A key is a hash of its decision (model/intents.py). For the bars and timers around an order, every strategy, ordinal and
leg is tried; if one of them makes the key, the order is ours. Orders of others stay foreign, because no decision of
ours makes their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, product
from typing import TYPE_CHECKING, Final

from bot.clock import MINUTE_MS
from bot.logs import log
from bot.runtime.execution.replan import APPROVAL_LEGS, LEGS
from bot.runtime.model.intents import FIRST_LEG, intent_key
from bot.runtime.model.limits import FRESH_INTERVALS
from bot.runtime.strategy_host.timers import backs_of, instants, trigger_of
from bot.wire import INTERVAL_MS, TRADES_PAGE_MAX

if TYPE_CHECKING:
    from bot.runtime.account.account import DaemonAccount
    from bot.runtime.model.positions import AccountPosition
    from bot.runtime.reconciliation.daemon_run import DaemonRun
    from bot.runtime.reconciliation.repair_actions import RepairActions
    from bot.runtime.strategy_host.instance import StrategyInstance
    from bot.wire import AccountSnapshot

# signals of one decision; with more the position stays foreign
ORDINALS: Final = 10
# newest bars of one strategy that are tried for one order; an accelerated clock makes thousands
BARS: Final = 500
# newest instants of one timer that are tried for one order
INSTANTS: Final = 500
# bars or instants that are tried when the pass has no time left; nearly every key of ours is among them
LATE: Final = 20
# a cancel has no key
SENT: Final = (*LEGS, FIRST_LEG["close"])
SENT_WITH_APPROVAL: Final = (*APPROVAL_LEGS, FIRST_LEG["close"])
# a key that intent_key can have made
FORM: Final = re.compile(r"[A-Z2-7]{32}")


def claim_orders(run: DaemonRun, account: DaemonAccount, snapshot: AccountSnapshot) -> None:
    """Recognize the resting entries whose keys are ours."""
    for order in snapshot.orders:
        if order.idempotency_key is not None and account.order_owners.owner_of(order.idempotency_key) is None:
            claimed(run, account, order.idempotency_key, order.coin, order.created_at or run.now_ms())


async def claim_positions(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> None:
    """Give every position without an owner to the strategy that made the key of its entry."""
    for position in list(account.account_state.positions.values()):
        if account.foreign_activity.must_judge(position, account.account_state):
            owner = await _owner_of(run, account, actions, position)
            if owner is not None:
                account.account_state.adopt(position.market, owner)
                log.warning("position.claimed", market=position.market, strategy=owner)


async def _owner_of(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, position: AccountPosition
) -> str | None:
    """The owner by one page of trades since the position was opened. With more trades than that a person must look."""
    page = await actions.port.trades(limit=TRADES_PAGE_MAX, coin=position.market)
    keys = account.order_owners.keys_of(
        (trade.id for trade in page.trades if trade.idempotency_key is None), account.account_state.epoch
    )
    for trade in page.trades:
        at_ms = trade.ts or position.opened_ms
        # A resting entry was decided before the position was opened, but its last fill came later.
        filled_ms = max(at_ms, trade.updated_at or 0)
        if trade.intent != "open" or filled_ms < position.opened_ms:
            continue
        key = trade.idempotency_key or keys.get((position.market, trade.id, "open"))
        if key is None:
            continue
        owner = account.order_owners.owner_of(key) or claimed(run, account, key, position.market, at_ms)
        if owner is not None:
            return owner
    return None


def claimed(run: DaemonRun, account: DaemonAccount, key: str, market: str, at_ms: int) -> str | None:
    """The strategy whose decision around that instant made this key. The search is bounded, because a foreign key takes
    longest.

    None for an order that was made after `alone_since_ms`: such an order of ours is in the journal.
    """
    if FORM.fullmatch(key) is None or at_ms >= run.state.alone_since_ms:
        return None
    for instance in run.strategy_host.instances:
        # A strategy trades in its own markets only.
        if market not in instance.markets:
            continue
        limits = run.risk.strategy_limits.get(instance.name)
        sent = SENT if limits is None or limits.approval is None else SENT_WITH_APPROVAL
        for trigger in _triggers(run, account, instance, at_ms):
            for ordinal, leg in product(range(ORDINALS), sent):
                candidate = intent_key(
                    address=account.journal.address,
                    epoch=account.account_state.epoch,
                    strategy=instance.name,
                    market=market,
                    trigger=trigger,
                    ordinal=ordinal,
                    leg=leg,
                )
                if candidate == key:
                    account.order_owners.by_key[key] = instance.name
                    return instance.name
    return None


def _triggers(run: DaemonRun, account: DaemonAccount, instance: StrategyInstance, at_ms: int) -> Iterator[str]:
    """Triggers on which an order of that instant can have been decided: bars and timers, newest first."""
    most = BARS if run.budget.has_time() else LATE
    step = INTERVAL_MS[instance.interval]
    last = at_ms // step * step
    first = at_ms - FRESH_INTERVALS * step - run.budget.hold_ms(FRESH_INTERVALS * step)
    bars = ((market, close_ms) for close_ms in range(last, first, -step) for market, _ in instance.series)
    for market, close_ms in islice(bars, most):
        yield f"bar:{market}:{close_ms}"
    for name, spec in instance.timers.items():
        backs = backs_of(account.journal, instance.name, name)
        # the shortest period
        every_ms = spec * 1_000 if isinstance(spec, int) else MINUTE_MS
        newest = list(instants(spec, max(first, at_ms - INSTANTS * every_ms), at_ms))
        for due_ms in newest[: -most - 1 : -1]:
            yield trigger_of(name, due_ms, backs)

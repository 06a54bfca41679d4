"""Folds the service's events into the account state.

Each fold sets what the event says, so taking an event twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bot.model.events import (
    AccountChanged,
    FillEvent,
    FundingPaid,
    GuardianMoved,
    Liquidated,
    OrderChanged,
    Settled,
    Triggered,
)
from bot.model.events import Event as ModelEvent
from bot.money import E8
from bot.runtime.account.account_state import AccountState
from bot.runtime.model.named_event import Named
from bot.runtime.model.positions import PROTECTIVE, AccountGuardian, account_order, account_position
from bot.wire.events import model_event

if TYPE_CHECKING:
    from bot.wire import Event


def fold_event(state: AccountState, event: ModelEvent) -> None:
    """Fold one event."""
    FOLD[type(event)](state, event)


def fold_wire_event(state: AccountState, event: Event) -> None:
    """`fold_event` for an event as it was read. A type that this version does not know changes nothing."""
    happened = model_event(event)
    if happened is not None:
        fold_event(state, happened)


def with_our_keys(state: AccountState, events: Sequence[Event]) -> Sequence[Event]:
    """The events, each with the key of our order if the event has no key and its trade belongs to an order of ours.

    Call it only until the service has shown a key on an event (`events_named`).
    """
    bare = {
        event.id: (event.coin or "", event.data.trade_id, event.data.intent)
        for event in events
        if event.idempotency_key is None and event.type in ("fill", "order") and event.data.trade_id is not None
    }
    if not bare:
        return events
    keys = state.keys_of({trade_id for _, trade_id, _ in bare.values()})
    by_event = {event_id: keys[trade] for event_id, trade in bare.items() if trade in keys}
    return [_named(event, by_event[event.id]) if event.id in by_event else event for event in events]


def _named(event: Event, key: str) -> Event:
    return Named.model_construct(
        id=event.id,
        type=event.type,
        subtype=event.subtype,
        ts=event.ts,
        coin=event.coin,
        request_id=event.request_id,
        idempotency_key=key,
        data=event.data,
    )


def _see_key(state: AccountState, key: str, trade_id: str) -> None:
    if not state.events_named and not state.is_named_by_us and state.owner_of(key) is not None:
        state.prove_keys()
    state.keep_key(key, trade_id)


# -- one function per class of event: it sets the state after the event


def filled(state: AccountState, event: FillEvent, owner: str | None = None) -> None:
    """Fold a fill. `owner`: the strategy of its key, if the caller has looked it up."""
    key, coin, trade, size, remaining = (
        event.idempotency_key,
        event.coin,
        event.trade,
        event.position_size,
        event.remaining,
    )
    if key is not None and not (state.events_named and state.trades_by_key.get(key) == trade):
        _see_key(state, key, trade)
    _gain(state, (event.realized or 0) + event.absorbed - event.fee, event.balance)
    order = state.orders.get(event.oid)
    if order is not None and remaining:
        state.orders[order.oid] = order._replace(filled_e8=order.size_e8 - remaining)
    elif order is not None:
        del state.orders[order.oid]
    if event.intent == "close" and not remaining and key is not None:
        state.closed.add(key)
    known = state.positions.get(coin)
    if not size:
        if known is not None and remaining:
            state.turning[coin] = (trade, known.leverage)
        state.positions.pop(coin, None)
        return
    if key is None or event.intent != "open":
        owner = None
    elif owner is None:
        owner = state.owner_of(key)
    if known is None or known.side != event.side:
        requested = None if owner is None or key is None else state.leverage_of(key)
        trade_id, old_leverage = state.turning.pop(coin, ("", 1))
        leverage = requested or (old_leverage if trade_id == trade else 1)
        state.positions[coin] = account_position(
            (coin, event.side, size, event.entry_px, leverage, None, event.ts, owner, False)
        )
        return
    state.positions[coin] = known._replace(
        size_e8=size,
        entry_e8=event.entry_px,
        owner=known.owner if known.owner is not None else owner,
        is_adopted=known.is_adopted and owner is None,
    )


def order_changed(state: AccountState, event: OrderChanged) -> None:
    _, _, ts, subtype, coin, oid, trade, kind, side, action, size, filled_size, limit_px, trigger_px, _, _, key = event
    if key is not None and trade is not None and not (state.events_named and state.trades_by_key.get(key) == trade):
        _see_key(state, key, trade)
    if subtype == "canceled":
        state.orders.pop(oid, None)
        return
    if subtype == "open":
        state.see_resting(event)
    known = state.orders.get(oid)
    leverage: float = 1
    if key is not None and action == "open" and kind not in PROTECTIVE:
        leverage = state.leverage_of(key) or 1
    created_ms = ts if known is None else known.created_ms
    order = (oid, coin, kind, side, action, size, filled_size, limit_px, trigger_px, trade, key, created_ms, leverage)
    state.orders[oid] = account_order(order)
    if kind != "stop_loss":
        return
    position = state.positions.get(coin)
    if position is not None and (subtype == "armed" or position.first_stop_e8 is None):
        state.positions[coin] = position._replace(first_stop_e8=trigger_px)


def triggered(state: AccountState, event: Triggered) -> None:
    state.orders.pop(event.oid, None)


def _guardian_moved(state: AccountState, event: GuardianMoved) -> None:
    """A drawdown guardian is armed again after its block; any other guardian that is released is gone."""
    _, _, _, subtype, coin, guardian, type_, _, blocks_opens, *_ = event
    known = state.guardians.get(guardian)
    if subtype in ("armed", "activated"):
        is_known = subtype == "activated" or type_ != "trailing_stop"
        active = True if is_known else None if known is None else known.active
        state.guardians[guardian] = AccountGuardian(guardian, type_, coin, blocks_opens=blocks_opens, active=active)
    elif subtype == "fired" and blocks_opens:
        state.guardians[guardian] = AccountGuardian(guardian, type_, coin, latched=True, blocks_opens=True)
    elif subtype == "released" and type_ == "account_drawdown":
        state.guardians[guardian] = AccountGuardian(guardian, type_, coin)
    elif subtype == "disarmed" or subtype == "released" or type_ != "schedule":
        state.guardians.pop(guardian, None)


def _gain(state: AccountState, usd: int, balance: int) -> None:
    """Add `usd` to the account's value.

    The part that the balance does not show went to an isolated margin, or came from one.
    """
    state.value_offset_usd += (state.balance_e8 + usd - balance) / E8
    state.balance_e8 = balance


def _funded(state: AccountState, event: FundingPaid) -> None:
    _gain(state, event.amount, event.balance)


def _liquidated(state: AccountState, event: Liquidated) -> None:
    """The fills of a liquidation are events of their own and change the account's value. A takeover by the backstop has
    no fills.

    If the event of a takeover has no amounts, the next snapshot corrects the value.
    """
    if event.subtype == "backstop" and (event.margin_lost or event.absorbed):
        _gain(state, event.realized - event.margin_lost + event.absorbed, event.balance)
    state.balance_e8 = event.balance
    if event.subtype != "partial":
        state.positions.pop(event.coin, None)


def _settled(state: AccountState, event: Settled) -> None:
    """A settlement: the cost of the position is cash again, or lost."""
    _gain(state, event.realized + event.absorbed - event.fee, event.balance)
    state.positions.pop(event.coin, None)


def _account_changed(state: AccountState, event: AccountChanged) -> None:
    """A new or reset account has no positions, orders and guardians. A transfer changes the account's value and belongs
    to no strategy; a change of an isolated margin changes only where the value is.
    """
    if event.subtype == "leverage":
        position = state.positions.get(event.coin or "")
        if position is not None and event.leverage_to is not None:
            state.positions[position.market] = position._replace(leverage=event.leverage_to)
    elif event.subtype in ("transfer", "margin") and event.balance is not None:
        _gain(state, event.amount or 0, event.balance)
    elif event.subtype == "link":
        state.place = state.place._replace(link=event.state, reason=event.reason)
    elif event.subtype in ("created", "reset"):
        state.positions.clear()
        state.orders.clear()
        state.guardians.clear()
        state.balance_e8 = event.balance or 0
        state.value_offset_usd = 0.0


FOLD: Final[Mapping[type, Callable[[AccountState, Any], None]]] = {
    FillEvent: filled,
    OrderChanged: order_changed,
    Triggered: triggered,
    GuardianMoved: _guardian_moved,
    FundingPaid: _funded,
    Liquidated: _liquidated,
    Settled: _settled,
    AccountChanged: _account_changed,
}

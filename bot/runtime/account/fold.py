"""Folds the service's events into the account state. Each fold sets what the event says, so taking an event twice changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from bot.runtime.account.account_state import AccountState
from bot.runtime.model.positions import PROTECTIVE, MirrorGuardian, MirrorOrder, MirrorPosition, Named

if TYPE_CHECKING:
    from bot.wire import Event


def fold_event(state: AccountState, event: Event) -> None:
    """Fold one event. A type that this version does not know changes nothing."""
    key, data = event.idempotency_key, event.data
    if key is not None:
        trade_id = getattr(data, "trade_id", None)
        if trade_id is not None and not (state.events_named and state.trades_by_key.get(key) == trade_id):
            _see_key(state, event, key, trade_id)
    fold = FOLD.get((event.type, event.subtype))
    if fold is not None:
        fold(state, event, data)


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
        id=event.id, type=event.type, subtype=event.subtype, ts=event.ts, coin=event.coin, request_id=event.request_id,
        idempotency_key=key, data=event.data,
    )  # fmt: skip


def _see_key(state: AccountState, event: Event, key: str, trade_id: str) -> None:
    if not state.events_named and not isinstance(event, Named) and state.owner_of(key) is not None:
        state.keys_proven = state.events_named = True
    state.keep_key(key, trade_id)


# -- one function per kind of event: it sets the state after the event

Fold = Callable[[AccountState, Any, Any], None]


def _filled(state: AccountState, event: Any, data: Any) -> None:
    gained = (data.realized_pnl_usd or Decimal(0)) + data.absorbed_usd - data.fee_usd
    _gain(state, gained, balance_usd=data.balance_usd)
    remaining, order = data.remaining_size, state.orders.get(data.oid)
    if order is not None and remaining:
        state.orders[data.oid] = order._replace(filled=order.size - remaining)
    elif order is not None:
        del state.orders[data.oid]
    if data.intent == "close" and not remaining and event.idempotency_key is not None:
        state.closed.add(event.idempotency_key)
    size = data.position_size
    known = state.positions.get(event.coin)
    if not size:
        if known is not None and remaining:
            state.turning[event.coin] = (data.trade_id, known.leverage)
        state.positions.pop(event.coin, None)
        return
    owner = (
        state.owner_of(event.idempotency_key) if event.idempotency_key is not None and data.intent == "open" else None
    )
    if known is None or known.side != data.side:
        requested = None if owner is None else state.leverage_of(event.idempotency_key)
        trade_id, old_leverage = state.turning.pop(event.coin, ("", 1))
        state.positions[event.coin] = MirrorPosition(
            event.coin, data.side, abs(size), data.entry_px, opened_ms=event.ts, owner=owner,
            leverage=requested or (old_leverage if trade_id == data.trade_id else 1),
        )  # fmt: skip
        return
    state.positions[event.coin] = known._replace(
        size=abs(size),
        entry_px=data.entry_px,
        owner=known.owner if known.owner is not None else owner,
        is_adopted=known.is_adopted and owner is None,
    )


def _order_set(state: AccountState, event: Any, data: Any) -> None:
    oid, kind, action, trigger_px, key = data.oid, data.kind, data.intent, data.trigger_px, event.idempotency_key
    known = state.orders.get(oid)
    leverage = 1 if action != "open" or kind in PROTECTIVE else _leverage_asked(state, key)
    state.orders[oid] = MirrorOrder(
        oid, event.coin, kind, data.side, action, data.size, data.filled_size, data.limit_px, trigger_px, data.trade_id, key,
        event.ts if known is None else known.created_ms, leverage,
    )  # fmt: skip
    if kind != "stop_loss":
        return
    position = state.positions.get(event.coin)
    if position is not None and (event.subtype == "armed" or position.first_stop_px is None):
        state.positions[event.coin] = position._replace(first_stop_px=trigger_px)


def _leverage_asked(state: AccountState, key: str | None) -> float:
    return (None if key is None else state.leverage_of(key)) or 1


def _order_gone(state: AccountState, event: Any, data: Any) -> None:
    state.orders.pop(data.oid, None)


def _guardian_set(state: AccountState, event: Any, data: Any) -> None:
    known = state.guardians.get(data.guardian_id)
    is_known = event.subtype == "activated" or data.guardian_type != "trailing_stop"
    state.guardians[data.guardian_id] = MirrorGuardian(
        data.guardian_id, data.guardian_type, event.coin, blocks_opens=data.blocks_opens,
        active=True if is_known else None if known is None else known.active,
    )  # fmt: skip


def _guardian_fired(state: AccountState, event: Any, data: Any) -> None:
    if data.blocks_opens:
        state.guardians[data.guardian_id] = MirrorGuardian(
            data.guardian_id, data.guardian_type, event.coin, latched=True, blocks_opens=True
        )
    elif data.guardian_type != "schedule":
        state.guardians.pop(data.guardian_id, None)


def _guardian_released(state: AccountState, event: Any, data: Any) -> None:
    """A drawdown guardian is armed again after its block; any other guardian is gone."""
    if data.guardian_type == "account_drawdown":
        state.guardians[data.guardian_id] = MirrorGuardian(data.guardian_id, data.guardian_type, event.coin)
    else:
        state.guardians.pop(data.guardian_id, None)


def _guardian_gone(state: AccountState, event: Any, data: Any) -> None:
    state.guardians.pop(data.guardian_id, None)


def _gain(state: AccountState, usd: Decimal, *, balance_usd: Decimal) -> None:
    """Add `usd` to the account's value. The part that the balance does not show went to an isolated margin, or came from one."""
    state.value_offset_usd += float(state.balance_usd + usd - balance_usd)
    state.balance_usd = balance_usd


def _funded(state: AccountState, event: Any, data: Any) -> None:
    _gain(state, data.amount_usd, balance_usd=data.balance_usd)


def _partly_liquidated(state: AccountState, event: Any, data: Any) -> None:
    state.balance_usd = data.balance_usd


def _liquidated(state: AccountState, event: Any, data: Any) -> None:
    """A full liquidation. Its fills, which are events of their own, have changed the account's value."""
    state.balance_usd = data.balance_usd
    state.positions.pop(event.coin, None)


def _taken_over(state: AccountState, event: Any, data: Any) -> None:
    """A takeover by the backstop, which has no fill. If the event has no amounts, the next snapshot corrects the value."""
    if data.margin_lost_usd or data.absorbed_usd:
        gained = data.realized_pnl_usd - data.margin_lost_usd + data.absorbed_usd
        _gain(state, gained, balance_usd=data.balance_usd)
    _liquidated(state, event, data)


def _settled(state: AccountState, event: Any, data: Any) -> None:
    """A settlement: the cost of the position is cash again, or lost."""
    _gain(state, data.realized_pnl_usd + data.absorbed_usd - data.fee_usd, balance_usd=data.balance_usd)
    state.positions.pop(event.coin, None)


def _leverage_changed(state: AccountState, event: Any, data: Any) -> None:
    position = state.positions.get(data.coin)
    if position is not None:
        state.positions[data.coin] = position._replace(leverage=data.new)


def _account_began(state: AccountState, event: Any, data: Any) -> None:
    """The account is new or was reset: forget its positions, orders and guardians."""
    state.positions.clear()
    state.orders.clear()
    state.guardians.clear()
    state.balance_usd = data.balance_usd
    state.value_offset_usd = 0.0


FOLD: Final[Mapping[tuple[str, str], Fold]] = {
    ("fill", "entry"): _filled,
    ("fill", "exit"): _filled,
    ("order", "open"): _order_set,
    ("order", "armed"): _order_set,
    ("order", "changed"): _order_set,
    ("order", "canceled"): _order_gone,
    ("trigger", "stop_loss"): _order_gone,
    ("trigger", "take_profit"): _order_gone,
    ("guardian", "armed"): _guardian_set,
    ("guardian", "activated"): _guardian_set,
    ("guardian", "fired"): _guardian_fired,
    ("guardian", "released"): _guardian_released,
    ("guardian", "disarmed"): _guardian_gone,
    ("funding", "payment"): _funded,
    ("liquidation", "partial"): _partly_liquidated,
    ("liquidation", "full"): _liquidated,
    ("liquidation", "backstop"): _taken_over,
    ("settlement", "settled"): _settled,
    ("account", "created"): _account_began,
    ("account", "reset"): _account_began,
    ("account", "leverage"): _leverage_changed,
}

"""Numbers and stores events and trades, and notes changed actions. No other module does."""

from __future__ import annotations

from bot.model.events import Event, OrderChanged, order_changed
from bot.venue.model.state import (
    EVENTS_KEPT,
    State,
    VenueAccount,
    VenueAction,
    VenueOrder,
    VenueTrade,
    oid_text,
    trade_id,
)


def next_seq(account: VenueAccount) -> int:
    account.event_seq += 1
    return account.event_seq


def emit(state: State, account: VenueAccount, event: Event) -> None:
    """Append an event to its account's log, without a gap in the numbers."""
    seq = event.seq
    assert seq == account.event_seq, event
    account.events.append(event)
    state.fresh.append(event)
    if seq - account.events_first >= EVENTS_KEPT:
        forget_oldest(account)


def forget_oldest(account: VenueAccount) -> None:
    """Remove the oldest event from the log. A page goes when all its events are removed."""
    account.events_first += 1
    if not account.pages:
        account.events.popleft()
    elif account.pages[0].first + account.pages[0].count <= account.events_first:
        del account.pages[0]


def emit_order(
    state: State, account: VenueAccount, order: VenueOrder, subtype: str, *, reason: str | None = None
) -> None:
    """`emit` for the state of an order, with the next number: most events of a session come through here."""
    account.event_seq += 1
    event = order_as_event(state, account, order, subtype, reason)
    account.events.append(event)
    state.fresh.append(event)
    if event.seq - account.events_first >= EVENTS_KEPT:
        forget_oldest(account)


def order_as_event(
    state: State, account: VenueAccount, order: VenueOrder, subtype: str, reason: str | None = None
) -> OrderChanged:
    """The event that shows an order's present state, with the number of the account's newest event."""
    is_long = order.side > 0
    return order_changed(
        (
            account.id,
            account.event_seq,
            state.now_ms,
            subtype,
            order.coin,
            oid_text(account, order.number),
            order.trade,
            order.kind,
            "long" if is_long else "short",
            "close" if order.reduce_only or is_long != (order.buy > 0) else "open",
            order.size,
            order.filled,
            order.limit_px,
            order.trigger_px,
            reason,
            order.request_id,
            order.idempotency_key,
        )
    )


def next_oid(account: VenueAccount) -> int:
    account.order_seq += 1
    return account.order_seq


def open_trade(
    state: State,
    account: VenueAccount,
    order: VenueOrder,
    *,
    kind: str,
    intent: str,
    guardian: str | None = None,
    reason: str | None = None,
) -> VenueTrade:
    """Store the Trade of an accepted order."""
    account.trade_seq += 1
    trade = VenueTrade(
        seq=account.trade_seq,
        id=trade_id(account, account.trade_seq),
        request_id=order.request_id,
        source=order.source,
        kind=kind,
        coin=order.coin,
        side=order.side,
        intent=intent,
        reduce_only=order.reduce_only,
        size=order.size,
        ts=state.now_ms,
        updated_ms=state.now_ms,
        leverage=order.leverage,
        oid=order.number,
        idempotency_key=order.idempotency_key,
        guardian=guardian,
        reason=reason,
    )
    account.trades.append(trade)
    if order.idempotency_key is not None:
        account.trade_by_key[order.idempotency_key] = trade.id
    order.trade = trade.id
    return trade


def note_action(state: State, action: VenueAction) -> None:
    """An action was made or has changed: it becomes part of the hash of its command, and who sends it is woken."""
    state.changed_actions[action.nonce] = action


def changed_actions(state: State) -> list[VenueAction]:
    """Take the actions that were made or have changed since the last call."""
    if not state.changed_actions:
        return []
    changed = list(state.changed_actions.values())
    state.changed_actions.clear()
    return changed

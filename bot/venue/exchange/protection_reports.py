"""What an exchange says of the stops and targets that we have there: their statuses, and their fills."""

from __future__ import annotations

from typing import Final

from bot.model.events import triggered
from bot.venue.accounting.ledger import Execution
from bot.venue.model.record import emit, next_oid, next_seq, open_trade
from bot.venue.model.state import (
    ExchangeAccount,
    ProtectionOrder,
    ReportedExecution,
    ReportedOrder,
    State,
    VenueAccount,
    VenueAction,
    VenueOrder,
    VenueTrade,
    oid_text,
    side_name,
)
from bot.venue.orders import exchange_actions, exchange_levels, exits, order_fills, protection_orders
from bot.venue.prices import index
from bot.venue.protection import protection
from bot.venue.storage import pages

SIBLING: Final = "sibling_filled"
# status of a level that has closed its position
FIRED: Final = "fired"
# code of a cancel of an order that is not there any more
GONE: Final = "not_found"


def named(exchange: ExchangeAccount, order_id: str, client_order_id: str | None) -> ProtectionOrder | None:
    """The stop or target of ours with these ids."""
    known = exchange.protection_orders
    if client_order_id is not None and client_order_id in known:
        return known[client_order_id]
    return next((order for order in known.values() if order_id and order.order_id == order_id), None)


def is_news(protecting: ProtectionOrder, told: ReportedOrder) -> bool:
    return protecting.order_id != told.order_id or protecting.status == "asked"


def see(protecting: ProtectionOrder, told: ReportedOrder, *, has_ended: bool) -> None:
    """It stands at the exchange. One that was thought to have failed is believed; one that has ended is not."""
    if has_ended:
        return
    protecting.order_id = told.order_id
    if protecting.status in ("asked", "ended"):
        protecting.status = "there"


def end(state: State, protecting: ProtectionOrder, *, is_filled: bool) -> None:
    """It has ended at the exchange. Its fills may be on their way."""
    if is_filled and protecting.status != "ended":
        protecting.status, protecting.fired_ms = "fired", protecting.fired_ms or state.now_ms
    elif not is_filled:
        protecting.status = "ended"


def take_statuses(
    state: State, exchange: ExchangeAccount, action: VenueAction, told: tuple[tuple[str, str], ...]
) -> None:
    """What the answer to an action, or a lookup, says of the stops and targets that it places or cancels."""
    for name, status in told:
        protecting = exchange.protection_orders.get(name)
        if protecting is None:
            continue
        if status == "ended":
            if protecting.status != "fired":
                protecting.status = "ended"
        elif protecting.status == "asked":
            protecting.status = status
    if action.status != "placed" or action.kind == "place":
        return
    for name in action.protections:
        protecting = exchange.protection_orders.get(name)
        if protecting is not None and action.kind == "cancel":
            protecting.status = "ended"
        elif protecting is not None and protecting.status == "asked":
            protecting.status = "there"


def see_without_order(state: State, account: VenueAccount, action: VenueAction) -> None:
    """An action is over, and nothing came of it."""
    exchange = exchange_actions.known(account)
    if action.kind == "cancel" and action.code != GONE:
        return
    for name in action.protections:
        protecting = exchange.protection_orders.get(name)
        if protecting is None or protecting.status in exchange_actions.ENDED:
            continue
        protecting.status = "ended"
        if action.kind == "protect":
            protection_orders.refused(state, account, protecting, action.code)


# ── Fills ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def book_fill(
    state: State, account: VenueAccount, protecting: ProtectionOrder, fill: ReportedExecution, execution: Execution
) -> None:
    """A stop or target has filled. The first fill tells that it was triggered; the whole exit ends the level."""
    market, position = state.markets[fill.coin], account.positions.get(fill.coin)
    protection_orders.begin(account, fill.coin)
    level = exchange_levels.own(account, fill.coin, protecting.kind)
    if guardian := _fired_trail(state, account, protecting, level):
        level = None
    order = level if level is not None else _stray(state, account, protecting, fill)
    protecting.status, protecting.fired_ms = "fired", state.now_ms
    size = fill.size if position is None else position.size
    order.size, order.filled = max(size, fill.size), 0
    trade = _trade(state, account, protecting, order, fill, guardian)
    is_whole = position is not None and fill.size >= position.size
    if level is not None and position is not None and is_whole:
        _end_levels(state, account, level)
    trade.size = max(trade.size, trade.filled + fill.size)
    order_fills.take_reported(state, account, market, order, trade, execution)
    trade.status = "done"
    order.filled = 0


def _fired_trail(
    state: State, account: VenueAccount, protecting: ProtectionOrder, level: VenueOrder | None
) -> str | None:
    """The trailing stop whose level has filled, which fires with the first fill; None if it is the bracket's stop."""
    if protecting.kind != "stop_loss" or (level is not None and level.trigger_px == protecting.px):
        return None
    nearest = exchange_levels.levels(account, protecting.coin, protecting.kind)
    trail = next((near.trail for near in nearest if near.trail is not None), None)
    market, watched = state.markets[protecting.coin], exchange_actions.known(account).protections[protecting.coin]
    if trail is not None and watched.fired is None:
        protection_orders.fire_trail(state, account, market, trail)
        exits.end_fired(state, account, market, trail, "trail", canceled=[], trades=1)
    return None if watched.fired is None else watched.fired[0]


def _stray(state: State, account: VenueAccount, protecting: ProtectionOrder, fill: ReportedExecution) -> VenueOrder:
    """An order for a fill whose level has ended here before."""
    return VenueOrder(
        number=next_oid(account),
        account=account.id,
        coin=fill.coin,
        kind=protecting.kind,
        side=-fill.buy,
        buy=fill.buy,
        size=fill.size,
        created_ms=state.now_ms,
        trigger_px=protecting.px,
        reduce_only=True,
    )


def _trade(
    state: State,
    account: VenueAccount,
    protecting: ProtectionOrder,
    order: VenueOrder,
    fill: ReportedExecution,
    guardian: str | None,
) -> VenueTrade:
    if protecting.trade is not None:
        return pages.trade_of(account, protecting.trade)
    if guardian is not None:
        reason = "guardian"
        trade = open_trade(state, account, order, kind=reason, intent="close", guardian=guardian, reason=reason)
        protecting.trade = trade.id
        return trade
    trade = open_trade(state, account, order, kind=protecting.kind, intent="close")
    protecting.trade = trade.id
    told = (
        account.id,
        next_seq(account),
        state.now_ms,
        protecting.kind,
        fill.coin,
        oid_text(account, order.number),
        trade.id,
        side_name(order.side),
        order.size,
        protecting.px,
        state.markets[fill.coin].mark,
    )
    emit(state, account, triggered(told))
    return trade


def _end_levels(state: State, account: VenueAccount, level: VenueOrder) -> None:
    """Before the fill that closes a position: its level has done its work, and the other one ends."""
    market, position = state.markets[level.coin], account.positions[level.coin]
    index.unwatch_order(market, level)
    del account.orders[level.number]
    level.status = FIRED
    if position.stop_oid == level.number:
        position.stop_oid = None
    elif position.target_oid == level.number:
        position.target_oid = None
    for kind in exchange_levels.KINDS:
        other = exchange_levels.own(account, level.coin, kind)
        if other is not None:
            protection.drop_child(state, account, market, position, other, SIBLING)

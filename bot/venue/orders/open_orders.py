"""Orders that wait at the venue: the margin reserved for them, and every way to remove them."""

from __future__ import annotations

from dataclasses import dataclass

from bot.errors import Refusal
from bot.venue.accounting import ledger
from bot.venue.model import outcome
from bot.venue.model.numbers import div_up
from bot.venue.model.record import emit_order
from bot.venue.model.refusals import no_market
from bot.venue.model.state import State, VenueAccount, VenueMarket, VenueOrder, oid_text
from bot.venue.orders import exchange_actions
from bot.venue.orders.exchange_actions import CANCEL_RANK, STOP_RANK, ActionsSent
from bot.venue.prices import index
from bot.venue.protection import protection
from bot.venue.storage import pages


@dataclass(slots=True)
class OrderCanceled:
    coin: str
    oids: tuple[str, ...]
    filled: int
    unprotected: bool


def _keep_open(account: VenueAccount, order: VenueOrder, held: int) -> None:
    order.reserved = held
    account.reserved += held
    account.orders[order.number] = order
    account.resting[order.number] = None


def keep_until_next_point(
    state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder, held: int
) -> None:
    _keep_open(account, order, held)
    market.pending.append((account.id, order.number))
    emit_order(state, account, order, "open")


def rest_at_limit(account: VenueAccount, market: VenueMarket, order: VenueOrder) -> None:
    """Rest the unfilled part of a limit from the next point on, with margin and fee reserved."""
    order.born = market.point
    _keep_open(account, order, held_at_limit(market, order))
    index.watch_order(market, order)


def held_at_limit(market: VenueMarket, order: VenueOrder) -> int:
    """Margin and fee of what a limit may still open, at its price."""
    opening = order.left_to_open()
    held = div_up(outcome.worth(market.spec, order.buy, order.bound_px, opening), order.leverage)
    return held + ledger.fee_on(market.spec, order.bound_px, opening, maker=False)


def unreserve(account: VenueAccount, order: VenueOrder, *, keep: int = 0) -> None:
    account.reserved -= order.reserved - keep
    order.reserved = keep


def drop_entry(state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder, reason: str) -> None:
    """Cancel a resting entry, or an entry that waits for the next point."""
    unreserve(account, order)
    waiting = account.id, order.number
    if waiting in market.pending:
        market.pending.remove(waiting)
    else:
        index.unwatch_order(market, order)
    del account.resting[order.number]
    del account.orders[order.number]
    trade = pages.trade_of(account, order.trade or "")
    trade.status, trade.reason, trade.updated_ms = "canceled", reason, state.now_ms
    emit_order(state, account, order, "canceled", reason=reason)


def drop(state: State, account: VenueAccount, order: VenueOrder, reason: str) -> None:
    market = state.markets[order.coin]
    if order.number in account.resting:
        drop_entry(state, account, market, order, reason)
        return
    position = account.positions.get(order.coin)
    if order.kind == "close":
        market.working.remove((account.id, order.number))
        del account.orders[order.number]
        trade = pages.trade_of(account, order.trade or "")
        trade.status, trade.reason, trade.updated_ms = "canceled", reason, state.now_ms
        emit_order(state, account, order, "canceled", reason=reason)
        return
    assert position is not None
    protection.drop_child(state, account, market, position, order, reason)


def drop_closings(state: State, account: VenueAccount, market: VenueMarket) -> None:
    """Cancel reduce-only limits of a position that was closed or has changed its side."""
    for order in [account.orders[n] for n in account.resting]:
        if order.coin == market.spec.coin and order.kind == "limit" and order.reduce_only and order.filled < order.size:
            drop_entry(state, account, market, order, "reduce_only")


def unprotected(state: State, account: VenueAccount, coin: str) -> bool:
    """True for a position without a stop that could fire at the venue."""
    position = account.positions.get(coin)
    return position is not None and not protection.is_protected(state, account, position)


def cancel(state: State, account: VenueAccount, oid: str) -> OrderCanceled | ActionsSent | Refusal:
    number = int(oid) - account.number * 1_000_000_000 if oid.isascii() and oid.isdigit() else -1
    order = account.orders.get(number)
    # "0123" is not an id: only the exact text is accepted.
    if order is None or oid != oid_text(account, number) or _is_exit_at_work(order):
        return Refusal("not_found", f"no open order {oid}")
    if account.exchange is not None:
        return _ask(state, account, order.coin, [order])
    drop(state, account, order, "user")
    return OrderCanceled(order.coin, (oid,), order.filled, unprotected(state, account, order.coin))


def _ask(state: State, account: VenueAccount, coin: str, orders: list[VenueOrder]) -> ActionsSent | OrderCanceled:
    """Ask the exchange to cancel orders. Without orders, nothing needs to be awaited.

    A stop or target of ours ends when none of its orders there stands any more.
    """
    if not orders:
        return OrderCanceled(coin, (), 0, unprotected(state, account, coin))
    there = [order for order in orders if order.leg is None]
    for order in orders:
        if order.leg is not None:
            order.reason = "user"
    exchange_actions.cancel(state, account, there, CANCEL_RANK)
    return ActionsSent(exchange_actions.nonces_of(account, there), tuple(orders))


def _is_exit_at_work(order: VenueOrder) -> bool:
    """True for a guardian's working exit, which is not listed as an open order and cannot be canceled.

    At an exchange also for an order that was sent there and is not decided.
    """
    return order.status == exchange_actions.SENT or (order.kind == "close" and order.status == "working")


def cancel_coin(state: State, account: VenueAccount, coin: str) -> OrderCanceled | ActionsSent | Refusal:
    if coin not in state.markets:
        return no_market(coin, state.markets)
    orders = [o for o in account.orders.values() if o.coin == coin and not _is_exit_at_work(o)]
    if account.exchange is not None:
        return _ask(state, account, coin, orders)
    for order in orders:
        drop(state, account, order, "user")
    return OrderCanceled(
        coin,
        tuple(oid_text(account, o.number) for o in orders),
        sum(o.filled for o in orders),
        unprotected(state, account, coin),
    )


def entries(account: VenueAccount) -> list[VenueOrder]:
    """Resting orders that could open a position; reduce-only orders are left out."""
    return [order for order in resting_limits(account) if not order.reduce_only] + _undecided_entries(account)


def resting_limits(account: VenueAccount) -> list[VenueOrder]:
    """Orders that wait for a price and protect nothing, here or at the exchange."""
    if account.exchange is None:
        return [account.orders[number] for number in account.resting]
    waiting = [account.orders[number] for number in account.exchange.orders.values()]
    return [order for order in waiting if order.kind == "limit"]


def _undecided_entries(account: VenueAccount) -> list[VenueOrder]:
    """Entries that were sent to an exchange and are not decided yet."""
    sent = [] if account.exchange is None else account.orders.values()
    return [order for order in sent if order.status == exchange_actions.SENT and not order.reduce_only]


def cancel_resting(
    state: State, account: VenueAccount, reason: str, coin: str, *, entries_elsewhere: bool = False
) -> tuple[str, ...]:
    """Cancel all resting orders of a market, and with `entries_elsewhere` the entries of other markets.

    Stops and targets stay.
    """
    canceled = [
        order
        for n in account.resting
        if (order := account.orders[n]).coin == coin or (entries_elsewhere and not order.reduce_only)
    ]
    return cancel_each(state, account, canceled, reason)


def cancel_each(state: State, account: VenueAccount, canceled: list[VenueOrder], reason: str) -> tuple[str, ...]:
    """Cancel resting orders. At an exchange they end when it says so."""
    if account.exchange is not None:
        undecided = [order for order in canceled if order.status == exchange_actions.SENT]
        for order in undecided:
            if not exchange_actions.give_up(state, account, order):
                order.reason = reason
        exchange_actions.cancel(state, account, [order for order in canceled if order not in undecided], STOP_RANK)
    else:
        for order in canceled:
            drop_entry(state, account, state.markets[order.coin], order, reason)
    return tuple(oid_text(account, o.number) for o in canceled)

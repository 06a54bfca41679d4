"""How orders begin to live and how they end, and what that means for their children and siblings."""

from __future__ import annotations

from bot.local_exchange.engine.records import ExchangeOrder
from bot.local_exchange.engine.state import Exchange, User, position_size, set_status


def arm(exchange: Exchange, order: ExchangeOrder) -> None:
    """Make a trigger order live."""
    order.is_live = True
    exchange.users[order.user].orders[order.oid] = order
    exchange.coins[order.coin].triggers[order.oid] = order
    set_status(exchange, order, "open")


def rest(exchange: Exchange, order: ExchangeOrder) -> None:
    """Put a limit order into the book."""
    exchange.users[order.user].orders[order.oid] = order
    exchange.coins[order.coin].book.add(order)
    set_status(exchange, order, "open")


def end(exchange: Exchange, order: ExchangeOrder, status: str) -> None:
    """End an order. A full fill makes its children live and cancels its siblings; any other end cancels them."""
    coin = exchange.coins[order.coin]
    if order.in_book:
        coin.book.drop(order)
    coin.triggers.pop(order.oid, None)
    children = _children_of(exchange, order)
    set_status(exchange, order, status)
    for child in children:
        if order.sz == 0 or _places_children(exchange, order, status):
            arm(exchange, child)
        else:
            end(exchange, child, "canceled")
    if status == "filled" and order.group:
        for sibling in _siblings_of(exchange, order):
            end(exchange, sibling, "siblingFilledCanceled")


def _children_of(exchange: Exchange, order: ExchangeOrder) -> list[ExchangeOrder]:
    orders = exchange.users[order.user].orders
    return [orders[oid] for oid in order.children if oid in orders and not orders[oid].is_live]


def _places_children(exchange: Exchange, order: ExchangeOrder, status: str) -> bool:
    """True if a parent that filled in part leaves its children live, with their full size."""
    if not order.filled:
        return False
    if status == "marginCanceled":
        return True
    return order.tif in ("Ioc", "FrontendMarket") and exchange.switch("partial_ioc_children") == "placed"


def _siblings_of(exchange: Exchange, order: ExchangeOrder) -> list[ExchangeOrder]:
    orders = exchange.users[order.user].orders.values()
    return [other for other in orders if other.group == order.group and other is not order]


def keep_reducing(exchange: Exchange, user: User, coin: str) -> None:
    """After a change of the position: cancel reduce-only orders that do not reduce it any more."""
    held = position_size(exchange, user.address, coin)
    for order in [o for o in user.orders.values() if o.coin == coin and o.reduce_only and o.is_live]:
        if order.oid in user.orders and (held == 0 or (held > 0) == order.buy):
            end(exchange, order, "reduceOnlyCanceled")
    if exchange.switch("reduce_sum") == "older_canceled":
        drop_older(exchange, user, coin, held)


def drop_older(exchange: Exchange, user: User, coin: str, held: int) -> None:
    """Cancel the oldest resting reduce-only orders until the sum of the others fits the position."""
    resting = [o for o in user.orders.values() if o.coin == coin and o.reduce_only and o.in_book]
    left = sum(order.sz for order in resting)
    for order in resting:
        if left <= abs(held):
            return
        left -= order.sz
        end(exchange, order, "reduceOnlyCanceled")


def cancel_all(exchange: Exchange, user: User, status: str, *, coins: set[str] | None = None) -> None:
    """Cancel every open order of the address, waiting children too."""
    for order in list(user.orders.values()):
        if order.oid in user.orders and (coins is None or order.coin in coins):
            end(exchange, order, status)

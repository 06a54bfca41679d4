"""Trigger orders: they fire when the mark price reaches them, and then become a market or a limit order."""

from __future__ import annotations

from copy import copy

from bot.local_exchange.engine import lifecycle, matching, order_checks
from bot.local_exchange.engine.records import ExchangeOrder
from bot.local_exchange.engine.state import Coin, Exchange, position_size, set_status, take_oid


def fire_due(exchange: Exchange, coin: Coin) -> None:
    """Fire the orders whose trigger the mark price has reached, in the chosen order."""
    if not coin.triggers:
        return
    if exchange.now_ms < exchange.post_only_until_ms and exchange.switch("upgrade_triggers") == "wait":
        return
    due = [order for order in coin.triggers.values() if order_checks.is_passed(order, coin.market.mark)]
    targets_last = exchange.switch("trigger_order") == "stop_first"
    for order in sorted(due, key=lambda child: (_is_target(child) == targets_last, child.oid)):
        if order.oid in coin.triggers:
            fire(exchange, coin, order)


def _is_target(order: ExchangeOrder) -> bool:
    return order.trigger is not None and order.trigger.is_target


def fire(exchange: Exchange, coin: Coin, order: ExchangeOrder) -> None:
    """Fire one trigger order. A reduce-only order is cut to the position."""
    trigger = order.trigger
    assert trigger is not None
    if order.reduce_only:
        held = position_size(exchange, order.user, order.coin)
        reducible = max(0, -held if order.buy else held)
        if not reducible:
            lifecycle.end(exchange, order, "reduceOnlyCanceled")
            return
        order.sz = reducible if order.whole else min(order.sz, reducible)
        order.orig_sz = order.sz
    coin.triggers.pop(order.oid, None)
    set_status(exchange, order, "triggered")
    order = _with_its_oid(exchange, order)
    user = exchange.users[order.user]
    refused = order_checks.margin_fault(exchange, user, coin, order)
    if refused is not None:
        lifecycle.end(exchange, order, refused.status)
        return
    order.tif = "FrontendMarket" if trigger.is_market else "Gtc"
    matching.match(exchange, coin, order, _bound(exchange, coin, order) if trigger.is_market else order.px)
    if order.sz and order.oid in user.orders:
        if not trigger.is_market:
            lifecycle.rest(exchange, order)
        else:
            status = exchange.switch("partial_ioc") if order.filled else "marketOrderNoLiquidityRejected"
            lifecycle.end(exchange, order, status)


def _bound(exchange: Exchange, coin: Coin, order: ExchangeOrder) -> int:
    """The worst price of a market trigger: 10 % beyond the mark, or the order's price if that is nearer."""
    away = coin.market.mark * order_checks.SLIPPAGE_PCT // 100
    bound = coin.market.mark + away if order.buy else coin.market.mark - away
    if exchange.switch("trigger_bound") == "ten_percent":
        return bound
    return min(bound, order.px) if order.buy else max(bound, order.px)


def _with_its_oid(exchange: Exchange, order: ExchangeOrder) -> ExchangeOrder:
    """The order that executes: the same, or one with a new oid beside the triggered one."""
    if exchange.switch("trigger_oid") == "same":
        return order
    user = exchange.users[order.user]
    fired = copy(order)
    fired.oid = take_oid(exchange)
    user.orders.pop(order.oid, None)
    exchange.ended[order.oid] = order
    user.orders[fired.oid] = fired
    if fired.cloid is not None and user.cloids.get(fired.cloid) == order.oid:
        user.cloids[fired.cloid] = fired.oid
    set_status(exchange, fired, "open")
    return fired

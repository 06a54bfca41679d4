"""The exchange's checks of one order, in its order, each with its text and the status that a refused order gets."""

from __future__ import annotations

from typing import Final

from bot.local_exchange.engine import margins
from bot.local_exchange.engine.records import ExchangeOrder, ExchangeOrderRequest, ExchangeRefusal
from bot.local_exchange.engine.state import Coin, Exchange, User, position_size
from bot.local_exchange.engine.venue_rules import E8, notional_of
from bot.money import format_e8

LEAST_NTL: Final = 10 * E8
# open orders from which on reduce-only and trigger orders are refused
OPEN_ORDERS: Final = 1_000
OPEN_ORDERS_MOST: Final = 5_000
USD_PER_ORDER: Final = 5_000_000
# The slippage of a market order that a trigger or a liquidation sends.
SLIPPAGE_PCT: Final = 10

FAR = ExchangeRefusal("Order price cannot be more than 80% away from the reference price")
EMPTY = ExchangeRefusal("Orders are empty.")
NO_BUILDER = ExchangeRefusal("Builder fee has not been approved")
NOT_REDUCE_ONLY = ExchangeRefusal("TP/SL orders must be reduce-only.")
PRIORITY = ExchangeRefusal("Priority orders must all be Ioc, or all Alo and not reduce-only.")
MAIN_TRIGGER = ExchangeRefusal("Main order cannot be trigger order.")
UPGRADE = ExchangeRefusal("Only post-only orders allowed immediately after network upgrade", "rejected")


def form_fault(request: ExchangeOrderRequest, grouping: str) -> ExchangeRefusal | None:
    """What an order's own numbers get wrong, before it becomes an order."""
    if request.px <= 0 or (request.trigger is not None and request.trigger.px <= 0):
        return ExchangeRefusal("Order has invalid price.")
    if request.sz == 0:
        follows = grouping == "positionTpsl" and request.trigger is not None
        return None if follows else ExchangeRefusal("Order has zero size.")
    return None if request.sz > 0 else ExchangeRefusal("Order has invalid size.")


def size_fault(coin: Coin, request: ExchangeOrderRequest) -> ExchangeRefusal | None:
    return ExchangeRefusal("Order has invalid size.") if request.sz % coin.market.lot else None


def is_far(coin: Coin, request: ExchangeOrderRequest) -> bool:
    """True if the limit lies outside of 0.2 to 5 times the mark price."""
    mark = coin.market.mark
    return not (mark < 5 * request.px and request.px <= 5 * mark)


def refusal(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    """The first check that an order fails."""
    for check in (_status, _grid, _reducing, _cloid, _trigger, _count, _post_only, _crossing, _minimum, _margin):
        refused = check(exchange, user, coin, order)
        if refused is not None:
            return refused
    return None


def _asset(text: str, order: ExchangeOrder, status: str) -> ExchangeRefusal:
    return ExchangeRefusal(f"{text} asset={order.asset}", status)


def _status(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    if coin.is_delisted:
        return _asset("Trading is halted.", order, "rejected")
    if exchange.now_ms < exchange.post_only_until_ms and order.tif != "Alo":
        return UPGRADE
    return None


def _grid(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    prices = [order.px] if order.trigger is None else [order.px, order.trigger.px]
    if any(px % coin.market.tick(px) for px in prices):
        return _asset("Price must be divisible by tick size.", order, "tickRejected")
    return None


def _reducing(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    """Reduce-only: the size is cut or refused when it is larger than the position. Children wait for a position."""
    if not order.reduce_only or order.grouping == "normalTpsl":
        return None
    held = position_size(exchange, user.address, coin.name)
    reducible = max(0, -held if order.buy else held)
    if not reducible and order.grouping == "positionTpsl" and exchange.switch("position_stop_alone") == "kept":
        return None
    too_large = order.sz > reducible
    if order.trigger is None and reducible and too_large and exchange.switch("reduce_larger") == "cap":
        order.sz = order.orig_sz = reducible
    elif not reducible or (too_large and order.trigger is None):
        return _asset("Reduce only order would increase position.", order, "reduceOnlyRejected")
    return None


def _cloid(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    known = user.orders.get(user.cloids.get(order.cloid or "", 0))
    if known is not None and exchange.switch("cloid_open") == "refused":
        return _asset("An open order has the same cloid.", order, "rejected")
    return None


def _trigger(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    trigger = order.trigger
    if trigger is None:
        return None
    refused = _asset("Invalid TP/SL price.", order, "badTriggerPxRejected")
    if trigger.is_market and (order.px < trigger.px if order.buy else order.px > trigger.px):
        return refused
    if order.grouping != "normalTpsl" and is_passed(order, coin.market.mark):
        return refused if exchange.switch("trigger_passed") == "refused" else None
    return None


def is_passed(order: ExchangeOrder, mark: int) -> bool:
    """True if the mark price has reached the order's trigger."""
    assert order.trigger is not None
    # A stop buy and a take-profit sell wait for a higher price.
    rises = order.buy != order.trigger.is_target
    return mark >= order.trigger.px if rises else mark <= order.trigger.px


def _count(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    most = min(OPEN_ORDERS_MOST, OPEN_ORDERS + user.volume // (USD_PER_ORDER * E8))
    limited = order.reduce_only or order.trigger is not None
    if len(user.orders) >= (OPEN_ORDERS if limited else most):
        return _asset("Too many open orders.", order, "tooManyOpenOrdersRejected")
    return None


def _post_only(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    if order.tif != "Alo" or not coin.book.crosses(order.px, buy=order.buy):
        return None
    bid, ask = (format_e8(coin.book.best(buy=buy) or 0) for buy in (True, False))
    text = f"Post only order would have immediately matched, bbo was {bid}@{ask}."
    return _asset(text, order, "badAloPxRejected")


def _crossing(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    if order.tif not in ("Ioc", "FrontendMarket") or coin.book.crosses(order.px, buy=order.buy):
        return None
    if order.tif == "FrontendMarket" and coin.book.best(buy=not order.buy) is None:
        return _asset("No liquidity available for market order.", order, "marketOrderNoLiquidityRejected")
    return _asset("Order could not immediately match against any resting orders.", order, "iocCancelRejected")


def _minimum(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    """The smallest value, at the first price that the order would get."""
    if order.whole:
        return None
    px = order.px if order.trigger is None else order.trigger.px
    if order.trigger is None and coin.book.crosses(order.px, buy=order.buy):
        px = coin.book.best(buy=not order.buy) or px
    if notional_of(px, order.sz) >= coin.market.spec.min_notional:
        return None
    held = position_size(exchange, user.address, coin.name)
    is_whole = order.reduce_only and order.sz == abs(held)
    if is_whole and exchange.switch("close_minimum") == "exempt_whole":
        return None
    least = format_e8(coin.market.spec.min_notional)
    return _asset(f"Order must have minimum value of ${least}.", order, "minTradeNtlRejected")


def _margin(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    """A trigger order needs no margin before it fires."""
    return None if order.trigger is not None else margin_fault(exchange, user, coin, order)


def margin_fault(exchange: Exchange, user: User, coin: Coin, order: ExchangeOrder) -> ExchangeRefusal | None:
    if order.reduce_only:
        return None
    if not margins.fits_tier(exchange, user, coin, buy=order.buy, sz=order.sz):
        text = "Order would cause position to exceed margin tier limit at current leverage"
        return _asset(text, order, "perpMaxPositionRejected")
    if not margins.covers(exchange, user, coin, buy=order.buy, px=order.px, sz=order.sz):
        return _asset("Insufficient margin to place order.", order, "perpMarginRejected")
    return None

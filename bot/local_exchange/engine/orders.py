"""Orders of an address: placing with groupings, cancel, modify."""

from __future__ import annotations

from collections.abc import Sequence

from bot.local_exchange.engine import lifecycle, matching, order_checks, triggers
from bot.local_exchange.engine.records import (
    WAITING_FOR_FILL,
    WAITING_FOR_TRIGGER,
    ExchangeOrder,
    ExchangeOrderRequest,
    ExchangeRefusal,
    Filled,
    Outcome,
    Resting,
)
from bot.local_exchange.engine.state import Exchange, User, find_order, set_status, take_oid

Builder = tuple[str, int]

MISSING = ExchangeRefusal("Order was never placed, already canceled, or filled.")
ENDED = ExchangeRefusal("Cannot modify canceled or filled order")
NOT_PASSIVE = ExchangeRefusal(
    "Modify without always_place needs a post-only order, or a Gtc order that does not execute."
)


def place(
    exchange: Exchange,
    user: User,
    requests: Sequence[ExchangeOrderRequest],
    grouping: str,
    builder: Builder | None = None,
) -> list[Outcome]:
    """Place the orders of one action. A fault of the payload refuses the whole batch with one outcome."""
    refused = batch_fault(exchange, user, requests, grouping, builder)
    if refused is not None:
        return [refused]
    if grouping == "normalTpsl":
        return _place_bracket(exchange, user, requests, builder)
    group = exchange.next_oid + 1 if grouping == "positionTpsl" else 0
    return [_place_one(exchange, user, request, grouping, builder, group) for request in requests]


def batch_fault(
    exchange: Exchange, user: User, requests: Sequence[ExchangeOrderRequest], grouping: str, builder: Builder | None
) -> ExchangeRefusal | None:
    """Checks that depend on the payload, for the whole batch."""
    if not requests:
        return order_checks.EMPTY
    if builder is not None and builder[1] > user.builders.get(builder[0], 0):
        return order_checks.NO_BUILDER
    children = {"normalTpsl": requests[1:], "positionTpsl": requests}.get(grouping, ())
    if grouping == "normalTpsl" and requests[0].trigger is not None:
        return order_checks.MAIN_TRIGGER
    if grouping == "priority" and not _may_have_priority(requests):
        return order_checks.PRIORITY
    if any(child.trigger is None or not child.reduce_only for child in children):
        return order_checks.NOT_REDUCE_ONLY
    limits = [request for request in requests if request.trigger is None and request.px > 0]
    if any(order_checks.is_far(exchange.coins[request.coin], request) for request in limits):
        return order_checks.FAR
    return None


def _may_have_priority(requests: Sequence[ExchangeOrderRequest]) -> bool:
    """A fee for priority is paid for Ioc orders alone, or for Alo orders that are not reduce-only."""
    tifs = {request.tif for request in requests}
    return tifs == {"Ioc"} or (tifs == {"Alo"} and not any(request.reduce_only for request in requests))


def _new_order(
    exchange: Exchange, user: User, request: ExchangeOrderRequest, grouping: str, builder: Builder | None
) -> ExchangeOrder:
    order = ExchangeOrder(
        take_oid(exchange),
        user.address,
        request.coin,
        request.asset,
        request.buy,
        request.px,
        request.sz,
        request.sz,
        request.reduce_only,
        request.tif,
        request.cloid,
        exchange.now_ms,
        request.trigger,
        grouping,
        whole=grouping == "positionTpsl" and request.sz == 0,
        builder=builder,
    )
    order.told_sz = order.sz
    return order


def _remember_cloid(exchange: Exchange, user: User, order: ExchangeOrder) -> None:
    hidden = exchange.coins[order.coin].dex and exchange.switch("hip3_cloid") == "unknown"
    if order.cloid is not None and not hidden:
        user.cloids[order.cloid] = order.oid


def _place_one(
    exchange: Exchange,
    user: User,
    request: ExchangeOrderRequest,
    grouping: str,
    builder: Builder | None,
    group: int = 0,
) -> Outcome:
    order = _checked(exchange, user, request, grouping, builder)
    if isinstance(order, ExchangeRefusal):
        return order
    order.group = group
    return _start(exchange, user, order)


def _checked(
    exchange: Exchange, user: User, request: ExchangeOrderRequest, grouping: str, builder: Builder | None
) -> ExchangeOrder | ExchangeRefusal:
    """The new order, or the refusal. A refusal by the engine leaves an order with a `...Rejected` status."""
    coin = exchange.coins[request.coin]
    refused = order_checks.form_fault(request, grouping) or order_checks.size_fault(coin, request)
    if refused is not None:
        return refused
    order = _new_order(exchange, user, request, grouping, builder)
    refused = order_checks.refusal(exchange, user, coin, order)
    if refused is not None:
        _remember_cloid(exchange, user, order)
        set_status(exchange, order, refused.status)
        return refused
    _remember_cloid(exchange, user, order)
    return order


def _start(exchange: Exchange, user: User, order: ExchangeOrder) -> Outcome:
    """Make a checked order live: a trigger order waits, a limit order meets the book."""
    if order.trigger is None:
        return execute(exchange, user, order)
    if order.grouping == "positionTpsl" and exchange.switch("two_position_stops") == "replaces":
        for other in list(user.orders.values()):
            trigger = other.trigger
            same_kind = trigger is not None and trigger.is_target == order.trigger.is_target
            if other.grouping == "positionTpsl" and other.coin == order.coin and same_kind:
                lifecycle.end(exchange, other, "canceled")
    lifecycle.arm(exchange, order)
    coin = exchange.coins[order.coin]
    if order_checks.is_passed(order, coin.market.mark):
        triggers.fire(exchange, coin, order)
    if order.grouping == "na":
        return Resting(order.oid, order.cloid)
    return WAITING_FOR_TRIGGER


def execute(exchange: Exchange, user: User, order: ExchangeOrder) -> Outcome:
    """Match a limit order; what is left rests (Gtc, Alo) or is canceled (Ioc)."""
    coin = exchange.coins[order.coin]
    if order.tif != "Alo":
        matching.match(exchange, coin, order, order.px)
    if order.sz and order.status == "open":
        if order.tif in ("Gtc", "Alo"):
            lifecycle.rest(exchange, order)
            if exchange.switch("reduce_sum") == "older_canceled":
                lifecycle.keep_reducing(exchange, user, order.coin)
        elif order.filled:
            lifecycle.end(exchange, order, exchange.switch("partial_ioc"))
        else:
            lifecycle.end(exchange, order, "iocCancelRejected")
            text = "Order could not immediately match against any resting orders."
            return ExchangeRefusal(f"{text} asset={order.asset}", "iocCancelRejected")
    rests_told = order.sz and order.tif in ("Gtc", "Alo") and exchange.switch("partial_gtc") == "resting"
    if not order.filled or rests_told:
        return Resting(order.oid, order.cloid)
    return Filled(order.filled, matching.avg_px(coin, order), order.oid, order.cloid)


def _place_bracket(
    exchange: Exchange, user: User, requests: Sequence[ExchangeOrderRequest], builder: Builder | None
) -> list[Outcome]:
    """A parent and its stop and target. The children exist from the start and live when the parent has filled."""
    parent = _checked(exchange, user, requests[0], "na", builder)
    if isinstance(parent, ExchangeRefusal):
        return [parent] * len(requests)
    outcomes: list[Outcome] = []
    children: list[ExchangeOrder] = []
    for request in requests[1:]:
        child = _checked(exchange, user, request, "normalTpsl", builder)
        if not isinstance(child, ExchangeRefusal):
            child.parent, child.group, child.is_live = parent.oid, parent.oid, False
            user.orders[child.oid] = child
            children.append(child)
        outcomes.append(child if isinstance(child, ExchangeRefusal) else WAITING_FOR_FILL)
    parent.children = tuple(child.oid for child in children)
    started = execute(exchange, user, parent)
    waits = [
        WAITING_FOR_TRIGGER if parent.sz == 0 else outcome
        for outcome in outcomes
        if not isinstance(outcome, ExchangeRefusal)
    ]
    told = iter(waits)
    return [started, *(outcome if isinstance(outcome, ExchangeRefusal) else next(told) for outcome in outcomes)]


def cancel(exchange: Exchange, user: User, coin: str, key: int | str, *, fast: bool = False) -> ExchangeRefusal | None:
    """Cancel an open order by oid or cloid."""
    order = find_order(exchange, user, key)
    if order is None or order.oid not in user.orders or order.coin != coin:
        return ExchangeRefusal(f"{MISSING.text} asset={exchange.coins[coin].asset}")
    if fast and order.trigger is not None:
        return ExchangeRefusal("Fast cancel is not allowed for trigger orders.")
    lifecycle.end(exchange, order, "canceled")
    return None


def modify(
    exchange: Exchange, user: User, key: int | str, request: ExchangeOrderRequest, *, always_place: bool
) -> Outcome:
    """Cancel an order and place another with a new oid."""
    old = find_order(exchange, user, key)
    is_open = old is not None and old.oid in user.orders
    if not always_place:
        if not is_open:
            return ENDED
        crosses = exchange.coins[request.coin].book.crosses(request.px, buy=request.buy)
        if request.tif not in ("Alo", "Gtc") or (request.tif == "Gtc" and crosses):
            return NOT_PASSIVE
        request.tif = "Alo"
    refused = batch_fault(exchange, user, [request], "na", None)
    if refused is not None:
        return refused
    grouping, group, parent, is_live = "na", 0, None, True
    if old is not None and is_open:
        is_same_kind = request.trigger is not None and request.reduce_only and request.coin == old.coin
        if exchange.switch("modified_group") == "kept" and is_same_kind:
            grouping, group, parent, is_live = old.grouping, old.group, old.parent, old.is_live
        lifecycle.end(exchange, old, "canceled")
    if is_live:
        return _place_one(exchange, user, request, grouping, None, group)
    child = _checked(exchange, user, request, grouping, None)
    if isinstance(child, ExchangeRefusal):
        return child
    child.parent, child.group, child.is_live = parent, group, False
    user.orders[child.oid] = child
    if parent in user.orders:
        user.orders[parent].children += (child.oid,)
    return WAITING_FOR_FILL

"""Orders that wait at an exchange, as it reports them. The venue shows them and never acts on them."""

from __future__ import annotations

from bot.venue.exchange import protection_reports
from bot.venue.exchange.reports import CLIENT, ORDER, followed, is_new
from bot.venue.model.commands import EndReportedOrder, SeeReportedOrder
from bot.venue.model.record import emit_order, next_oid, open_trade
from bot.venue.model.state import ExchangeAccount, ReportedOrder, State, VenueAccount, VenueOrder
from bot.venue.orders import exchange_actions
from bot.venue.storage import pages

# reason of an order that was filled and whose last fills are not booked yet
FILLED = "filled"
# reason of an order whose fills do not make up its size, although everything is known
VENUE = "venue"


def source_of(client_order_id: str | None) -> str:
    """Who placed an order that is not ours: a person on the exchange's page, or a program with a name for it."""
    return "dashboard" if client_order_id is None else "api"


def see(state: State, command: SeeReportedOrder) -> None:
    """Take an open order. An order that has ended before its report is not opened again."""
    account, exchange = followed(state, command.account)
    told = command.order
    has_ended = f"{ORDER} {told.order_id}" in exchange.seen
    if (protecting := protection_reports.named(exchange, told.order_id, told.client_order_id)) is not None:
        protection_reports.see(protecting, told, has_ended=has_ended)
        return
    number = exchange.orders.get(told.order_id)
    if number is not None:
        _change(state, account, account.orders[number], told)
    elif not has_ended and (ours := exchange_actions.order_of(account, told.client_order_id)) is not None:
        exchange.orders[told.order_id] = ours.number
    elif not has_ended:
        _open(state, account, exchange, told)
    attach(account, told.coin)


def is_news(account: VenueAccount, told: ReportedOrder) -> bool:
    """True if this report would change something."""
    exchange = account.exchange
    assert exchange is not None
    if (protecting := protection_reports.named(exchange, told.order_id, told.client_order_id)) is not None:
        return protection_reports.is_news(protecting, told)
    number = exchange.orders.get(told.order_id)
    if number is None:
        return f"{ORDER} {told.order_id}" not in exchange.seen
    order = account.orders[number]
    return (order.limit_px, order.trigger_px, order.size) != _present(account, order, told)


def _open(state: State, account: VenueAccount, exchange: ExchangeAccount, told: ReportedOrder) -> None:
    if told.client_order_id is not None:
        is_new(exchange, CLIENT, told.client_order_id, told.placed_ms)
    is_limit = told.kind == "limit"
    closes = told.reduce_only or not is_limit
    position = account.positions.get(told.coin)
    margin = exchange.margins.get(told.coin)
    order = VenueOrder(
        number=next_oid(account),
        account=account.id,
        coin=told.coin,
        kind=told.kind,
        side=-told.buy if closes else told.buy,
        buy=told.buy,
        size=told.size or (0 if position is None else position.size),
        created_ms=state.now_ms,
        status="open" if is_limit else "armed",
        limit_px=told.px if is_limit else None,
        trigger_px=told.trigger_px,
        reduce_only=closes,
        leverage=1 if margin is None else margin.leverage,
        source=source_of(told.client_order_id),
    )
    account.orders[order.number] = order
    exchange.orders[told.order_id] = order.number
    if is_limit:
        intent = "close" if closes else "open"
        open_trade(state, account, order, kind="limit", intent=intent)
    emit_order(state, account, order, "open" if is_limit else "armed")


def _change(state: State, account: VenueAccount, order: VenueOrder, told: ReportedOrder) -> None:
    """A new price. The size of an order changes by its fills alone; that of a position's stop follows the position."""
    present = _present(account, order, told)
    if (order.limit_px, order.trigger_px, order.size) != present:
        order.limit_px, order.trigger_px, order.size = present
        emit_order(state, account, order, "changed")


def _present(account: VenueAccount, order: VenueOrder, told: ReportedOrder) -> tuple[int | None, int | None, int]:
    """Limit, trigger and size of a reported order."""
    size = order.size
    if not told.size and (position := account.positions.get(order.coin)) is not None:
        size = position.size
    return told.px if order.kind == "limit" else None, told.trigger_px, size


def end(state: State, command: EndReportedOrder) -> None:
    """An order has ended. One that was filled leaves when its fills are booked."""
    account, exchange = followed(state, command.account)
    if command.order_id:
        is_new(exchange, ORDER, command.order_id, command.at_ms)
    protecting = protection_reports.named(exchange, command.order_id, command.client_order_id)
    if protecting is not None:
        protection_reports.end(state, protecting, is_filled=command.reason is None)
        return
    number = exchange.orders.get(command.order_id)
    order = exchange_actions.order_of(account, command.client_order_id) if number is None else account.orders[number]
    if order is None or order.status == "working":
        return
    if order.status == exchange_actions.SENT:
        # Its action says what became of it.
        order.reason = order.reason or command.reason or FILLED
        return
    if number is None:
        exchange.orders[command.order_id] = order.number
    if command.reason is None:
        order.reason = FILLED
    else:
        drop(state, account, command.order_id, command.reason, command.at_ms)


def drop(state: State, account: VenueAccount, order_id: str, reason: str | None, at_ms: int) -> None:
    """Remove an order. `reason` None: its last fill has said so."""
    exchange = account.exchange
    assert exchange is not None
    order = account.orders.pop(exchange.orders.pop(order_id))
    is_new(exchange, ORDER, order_id, at_ms)
    if order.trade is not None:
        trade = pages.trade_of(account, order.trade)
        trade.status, trade.updated_ms = "done" if reason is None else "canceled", state.now_ms
        trade.reason = reason
    if reason is not None:
        emit_order(state, account, order, "canceled", reason=reason)
    attach(account, order.coin)


def drop_filled(state: State, account: VenueAccount) -> None:
    """Everything is known now: an order that was filled and whose fills do not make up its size has ended too."""
    exchange = account.exchange
    assert exchange is not None
    waiting = {order_id: account.orders[number] for order_id, number in exchange.orders.items()}
    ended = [key for key, o in waiting.items() if o.reason == FILLED and o.status != exchange_actions.SENT]
    for order_id in ended:
        drop(state, account, order_id, VENUE, state.now_ms)


def attach(account: VenueAccount, coin: str) -> None:
    """Show the nearest stop and target of a position as its own."""
    position = account.positions.get(coin)
    if position is None:
        return
    waiting = [
        order
        for order in account.orders.values()
        if order.coin == coin and order.status == "armed" and order.buy == -position.side
    ]
    nearest: dict[str, VenueOrder] = {}
    for order in waiting:
        known = nearest.setdefault(order.kind, order)
        direction = position.side if order.kind == "stop_loss" else -position.side
        is_nearer = ((order.trigger_px or 0) - (known.trigger_px or 0)) * direction > 0
        # A level of the venue itself comes before those that others have placed.
        if (order.leg is not None, is_nearer) > (known.leg is not None, False):
            nearest[order.kind] = order
    stop, target = nearest.get("stop_loss"), nearest.get("take_profit")
    position.stop_oid = None if stop is None else stop.number
    position.target_oid = None if target is None else target.number

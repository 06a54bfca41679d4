"""Books the fills that an exchange reports: each once, in the order of their positions, with the fee that it took."""

from __future__ import annotations

from bot.model.events import Liquidated, Triggered
from bot.venue.accounting.ledger import ReportedFill
from bot.venue.exchange import action_reports, order_reports, protection_reports
from bot.venue.exchange.reports import CLIENT, FILL, followed, is_new
from bot.venue.model.commands import BookExecution
from bot.venue.model.record import emit, next_oid, next_seq, open_trade
from bot.venue.model.state import (
    ExchangeAccount,
    ReportedExecution,
    State,
    VenueAccount,
    VenueOrder,
    VenueTrade,
    oid_text,
    side_name,
)
from bot.venue.orders import order_fills
from bot.venue.storage import pages


def book(state: State, command: BookExecution) -> int:
    """Take a fill. Returns how many fills are booked now: none, this one, or also some that waited for it."""
    account, exchange = followed(state, command.account)
    fill = command.fill
    assert fill.size > 0 and fill.px > 0 and fill.coin in state.markets, fill
    if not is_new(exchange, FILL, fill.key, fill.at_ms, fill.buy * fill.size):
        return 0
    exchange.waiting.append(fill)
    booked = 0
    while fitting := _fitting(account, exchange, fill.coin) or _late(exchange, fill.coin):
        for fits in fitting:
            exchange.waiting.remove(fits)
            take(state, account, fits)
        booked += len(fitting)
    return booked


def _fitting(account: VenueAccount, exchange: ExchangeAccount, coin: str) -> list[ReportedExecution]:
    """The first waiting fill of the market that starts at its booked position, if there is one."""
    position = account.positions.get(coin)
    size = 0 if position is None else position.side * position.size
    fitting = [fill for fill in exchange.waiting if fill.coin == coin and fill.before == size]
    return sorted(fitting, key=lambda fill: (fill.at_ms, fill.trade_id))[:1]


def _late(exchange: ExchangeAccount, coin: str) -> list[ReportedExecution]:
    """Waiting fills of the market that happened before booked ones, once they leave the position as it was.

    The messages of such fills were lost, and no later fill showed that, because each began at the same position without
    them. Where their own positions are gone for ever, only their sum can fit.
    """
    waiting = {f"{FILL} {fill.key}": fill for fill in exchange.waiting if fill.coin == coin}
    if not waiting:
        return []
    begins = f"{FILL} {coin} "
    booked = (at_ms for name, (at_ms, _) in exchange.seen.items() if name.startswith(begins) and name not in waiting)
    newest_ms = max(booked, default=0)
    late = sorted((fill for fill in waiting.values() if fill.at_ms <= newest_ms), key=lambda f: (f.at_ms, f.trade_id))
    return [] if sum(fill.buy * fill.size for fill in late) else late


def take(state: State, account: VenueAccount, fill: ReportedExecution) -> None:
    """Book a fill that starts at the booked position."""
    exchange = account.exchange
    assert exchange is not None
    market = state.markets[fill.coin]
    execution = (fill.px, fill.size, fill.maker, ReportedFill(fill.fee, fill.at_ms))
    if (protecting := exchange.protection_orders.get(fill.client_order_id or "")) is not None:
        protection_reports.book_fill(state, account, protecting, fill, execution)
        order_reports.attach(account, fill.coin)
        return
    if (action := action_reports.of_fill(account, fill)) is not None:
        order = account.orders[action.oid or 0]
        trade = pages.trade_of(account, order.trade or "")
        order_fills.take_reported(state, account, market, order, trade, execution)
        action_reports.see_fill(state, account, action, fill)
        order_reports.attach(account, fill.coin)
        return
    is_watched = fill.order_id in exchange.orders
    order, trade = _watched(state, account, fill) if is_watched else _foreign(state, account, exchange, fill)
    order.size = trade.size = max(order.size, order.filled + fill.size)
    realized_before = trade.realized or 0
    order_fills.take_reported(state, account, market, order, trade, execution)
    if not is_watched:
        trade.status = "done"
    elif order.filled >= order.size:
        order_reports.drop(state, account, fill.order_id, None, fill.at_ms)
        action_reports.see_ended(state, account)
    if fill.kind == "liquidation":
        _liquidated(state, account, trade, fill, (trade.realized or 0) - realized_before)
    order_reports.attach(account, fill.coin)


def _watched(state: State, account: VenueAccount, fill: ReportedExecution) -> tuple[VenueOrder, VenueTrade]:
    """The order that was reported before its fill, and its trade. The first fill of a stop tells that it has fired."""
    assert account.exchange is not None
    order = account.orders[account.exchange.orders[fill.order_id]]
    if order.trade is not None:
        return order, pages.trade_of(account, order.trade)
    position = account.positions.get(fill.coin)
    size = max(fill.size, order.size if position is None else min(order.size or position.size, position.size))
    order.size = size
    trade = open_trade(state, account, order, kind=order.kind, intent="close")
    market = state.markets[fill.coin]
    fired = Triggered(
        account.id,
        next_seq(account),
        state.now_ms,
        order.kind,
        fill.coin,
        oid_text(account, order.number),
        trade.id,
        side_name(order.side),
        size,
        order.trigger_px or fill.px,
        market.mark,
    )
    emit(state, account, fired)
    return order, trade


def _foreign(
    state: State, account: VenueAccount, exchange: ExchangeAccount, fill: ReportedExecution
) -> tuple[VenueOrder, VenueTrade]:
    """An order and a trade for a fill whose order was not reported before it."""
    if fill.client_order_id is not None:
        is_new(exchange, CLIENT, fill.client_order_id, fill.at_ms)
    position = account.positions.get(fill.coin)
    closes = position is not None and position.side != fill.buy
    margin = exchange.margins.get(fill.coin)
    order = VenueOrder(
        number=next_oid(account),
        account=account.id,
        coin=fill.coin,
        kind="market",
        side=-fill.buy if closes else fill.buy,
        buy=fill.buy,
        size=fill.size,
        created_ms=state.now_ms,
        leverage=1 if margin is None else margin.leverage,
        source=None if fill.kind != "fill" else order_reports.source_of(fill.client_order_id),
    )
    trade = open_trade(
        state,
        account,
        order,
        kind="market" if fill.kind == "fill" else fill.kind,
        intent="close" if closes else "open",
        reason="liquidated" if fill.kind == "liquidation" else None,
    )
    return order, trade


def _liquidated(state: State, account: VenueAccount, trade: VenueTrade, fill: ReportedExecution, realized: int) -> None:
    """The amounts are those of the fill before it."""
    is_whole = fill.coin not in account.positions
    event = Liquidated(
        account.id,
        next_seq(account),
        state.now_ms,
        "full" if is_whole else "partial",
        fill.coin,
        trade.id,
        side_name(-fill.buy),
        fill.size,
        fill.px,
        state.markets[fill.coin].mark,
        realized,
        fill.fee,
        0,
        account.balance,
    )
    emit(state, account, event)

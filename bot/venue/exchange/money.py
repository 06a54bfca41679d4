"""Funding, transfers, margin and takeovers that an exchange reports."""

from __future__ import annotations

from typing import Final

from bot.model.events import AccountChanged, FundingPaid, Liquidated
from bot.venue.accounting import ledger, nav
from bot.venue.exchange.reports import FUNDING, TRANSFER, followed, is_new
from bot.venue.model.commands import BookFunding, BookTakeover, BookTransfer, SeeMargins
from bot.venue.model.numbers import E8
from bot.venue.model.record import emit, next_oid, next_seq, open_trade
from bot.venue.model.state import (
    HOUR_MS,
    ExchangeMargin,
    ExchangePosition,
    State,
    VenueAccount,
    VenueOrder,
    VenuePosition,
    VenueTrade,
    side_name,
)

# An exchange rounds margin and profit to 1e-6 each, so a margin at cost may differ by so much without a change.
ROUNDING: Final = 200


def fund(state: State, command: BookFunding) -> None:
    """Book a payment: one an hour and market, whose copies may differ by milliseconds.

    It goes through the balance; a report of margins says what an isolated position paid of it."""
    account, exchange = followed(state, command.account)
    hour = (command.at_ms + HOUR_MS // 2) // HOUR_MS
    if not is_new(exchange, FUNDING, f"{command.coin} {hour}", command.at_ms):
        return
    account.balance += command.amount
    account.funding += command.amount
    position = account.positions.get(command.coin)
    if position is not None:
        position.funding += command.amount
    paid = FundingPaid(
        account.id,
        next_seq(account),
        state.now_ms,
        command.coin,
        side_name(command.size),
        abs(command.size),
        state.markets[command.coin].oracle,
        command.rate,
        command.amount,
        account.balance,
        command.at_ms,
    )
    emit(state, account, paid)
    ledger.rewatch_floor(state, account)


def transfer(state: State, command: BookTransfer) -> None:
    """Book money that came or left. It is no gain of the day, so the value that the day began with moves too."""
    account, exchange = followed(state, command.account)
    if not is_new(exchange, TRANSFER, command.transfer, command.at_ms):
        return
    move(state, account, command.kind, command.amount, command.at_ms)


def move(state: State, account: VenueAccount, kind: str, amount: int, at_ms: int) -> None:
    """Book money that came or left without a trade."""
    assert account.exchange is not None
    account.balance += amount
    account.day_value += amount
    account.exchange.transferred += amount
    moved = AccountChanged(
        account.id,
        next_seq(account),
        state.now_ms,
        "transfer",
        balance=account.balance,
        amount=amount,
        state=kind,
        venue_ts=at_ms,
    )
    emit(state, account, moved)
    nav.write(account, state)
    ledger.rewatch_floor(state, account)


def fresh_margins(account: VenueAccount, told: tuple[ExchangePosition, ...]) -> tuple[ExchangePosition, ...]:
    """Those of these reports that would change something."""
    assert account.exchange is not None
    margins = account.exchange.margins
    return tuple(
        position for position in told if margins.get(position.coin) != _margin_of(position) or _moves(account, position)
    )


def _margin_of(told: ExchangePosition) -> ExchangeMargin:
    return ExchangeMargin(told.leverage, told.isolated, told.liquidation_px)


def _moves(account: VenueAccount, told: ExchangePosition) -> bool:
    """True if the booked position, of the same size, has another margin."""
    position = account.positions.get(told.coin)
    if position is None or position.side * position.size != told.size:
        return False
    margin = told.margin if told.isolated else 0
    has_mode = (position.isolated, position.leverage) == (told.isolated, told.leverage)
    return not has_mode or abs(position.margin - margin) > ROUNDING


def see_margins(state: State, command: SeeMargins) -> None:
    """Take leverage, mode, margin and liquidation price. Money moves between balance and position, and none is made."""
    account, exchange = followed(state, command.account)
    for told in command.positions:
        exchange.margins[told.coin] = _margin_of(told)
        if not _moves(account, told):
            continue
        position = account.positions[told.coin]
        if position.leverage != told.leverage:
            _change_leverage(state, account, position, told.leverage)
        margin = told.margin if told.isolated else 0
        position.isolated = told.isolated
        if position.margin != margin:
            account.balance += position.margin - margin
            position.margin = margin
            moved = AccountChanged(
                account.id,
                next_seq(account),
                state.now_ms,
                "margin",
                coin=told.coin,
                margin=margin,
                balance=account.balance,
            )
            emit(state, account, moved)


def _change_leverage(state: State, account: VenueAccount, position: VenuePosition, leverage: int) -> None:
    changed = AccountChanged(
        account.id,
        next_seq(account),
        state.now_ms,
        "leverage",
        coin=position.coin,
        leverage_from=position.leverage,
        leverage_to=leverage,
    )
    position.leverage = leverage
    emit(state, account, changed)


def take_over(state: State, command: BookTakeover) -> None:
    """End at the mark the positions that the exchange took without fills. What the exchange's cash then lacks against
    the books is margin lost, also if every position was taken with fills.
    """
    account, exchange = followed(state, command.account)
    if not is_new(exchange, TRANSFER, command.takeover, command.at_ms):
        return
    taken = [account.positions[coin] for coin in command.coins if coin in account.positions]
    if not taken:
        _lose_margin(state, account, command)
    for position in taken:
        market = state.markets[position.coin]
        trade = _takeover_trade(state, account, position)
        size, realized = position.size, position.pnl(market.mark)
        trade.filled, trade.filled_notional, trade.realized = size, market.mark * size // E8, realized
        account.balance += position.margin + realized
        account.realized += realized
        position.size = position.entry_notional = position.margin = 0
        ledger.leave(state, account, market, position)
        lost = 0
        if position is taken[-1]:
            lost = nav.stand_of(account, state).cash - command.cash
            account.balance -= lost
            account.margin_lost += lost
        trade.margin_lost, trade.status = lost, "done"
        ledger.realize_today(account, state.now_ms, realized - lost)
        event = Liquidated(
            account.id,
            next_seq(account),
            state.now_ms,
            "backstop",
            position.coin,
            trade.id,
            side_name(position.side),
            size,
            market.mark,
            market.mark,
            realized,
            0,
            lost,
            account.balance,
        )
        emit(state, account, event)


def _lose_margin(state: State, account: VenueAccount, command: BookTakeover) -> None:
    """The fills of a liquidation are booked, and the exchange has kept the margin that was left."""
    lost = nav.stand_of(account, state).cash - command.cash
    trades = (
        liquidated
        for liquidated in reversed(account.trades)
        if liquidated.coin in command.coins and liquidated.kind == "liquidation"
    )
    trade = next(trades, None)
    if trade is None or not lost:
        return
    account.balance -= lost
    account.margin_lost += lost
    trade.margin_lost += lost
    ledger.realize_today(account, state.now_ms, -lost)
    px = trade.avg_px() or state.markets[trade.coin].mark
    event = Liquidated(
        account.id,
        next_seq(account),
        state.now_ms,
        "backstop",
        trade.coin,
        trade.id,
        side_name(trade.side),
        0,
        px,
        state.markets[trade.coin].mark,
        0,
        0,
        lost,
        account.balance,
    )
    emit(state, account, event)


def _takeover_trade(state: State, account: VenueAccount, position: VenuePosition) -> VenueTrade:
    order = VenueOrder(
        number=next_oid(account),
        account=account.id,
        coin=position.coin,
        kind="market",
        side=position.side,
        buy=-position.side,
        size=position.size,
        created_ms=state.now_ms,
        leverage=position.leverage,
    )
    return open_trade(state, account, order, kind="liquidation", intent="close", reason="liquidated")

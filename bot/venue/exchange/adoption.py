"""Opens an account that follows an exchange, with the cash and the positions that the exchange has."""

from __future__ import annotations

from bot.model.events import AccountChanged
from bot.venue.accounting import drawdown_floors, ledger, nav
from bot.venue.exchange.reports import followed
from bot.venue.model.commands import AdoptExchangeAccount, SetExposureCap
from bot.venue.model.numbers import E8
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import ExchangeAccount, ExchangeMargin, ExchangePosition, State, VenueAccount, VenuePosition
from bot.venue.prices import index


def adopt(state: State, command: AdoptExchangeAccount) -> VenueAccount:
    """Open the account. Its start balance is its equity without unrealized profit."""
    assert command.account not in state.accounts
    state.account_seq += 1
    account = VenueAccount(
        id=command.account,
        number=state.account_seq,
        address=command.address,
        name=command.name,
        start_balance=0,
        created_ms=state.now_ms,
        begun_ms=state.now_ms,
        exchange=ExchangeAccount(command.exchange, command.network, command.at_ms, link_since_ms=state.now_ms),
    )
    account.balance = command.cash
    for told in command.positions:
        _hold(state, account, told)
    account.start_balance = account.opened_with = account.balance + sum(p.margin for p in account.positions.values())
    drawdown_floors.begin_day(account, state.now_ms, ledger.account_value(state, account))
    state.accounts[account.id] = account
    created = AccountChanged(account.id, next_seq(account), state.now_ms, "created", balance=account.balance)
    emit(state, account, created)
    nav.write(account, state)
    assert nav.stand_of(account, state).cash == command.cash
    return account


def set_cap(state: State, command: SetExposureCap) -> None:
    _, exchange = followed(state, command.account)
    exchange.exposure_cap = command.cap


def _hold(state: State, account: VenueAccount, told: ExchangePosition) -> None:
    assert told.size and told.coin in state.markets, told
    assert account.exchange is not None
    side, size = (1, told.size) if told.size > 0 else (-1, -told.size)
    position = VenuePosition(
        account=account.id,
        coin=told.coin,
        side=side,
        size=size,
        entry_notional=told.entry_px * size // E8,
        leverage=told.leverage,
        isolated=told.isolated,
        opened_ms=state.now_ms,
        margin=told.margin if told.isolated else 0,
    )
    account.positions[told.coin] = position
    account.exchange.margins[told.coin] = ExchangeMargin(told.leverage, told.isolated, told.liquidation_px)
    account.balance -= position.margin - side * position.entry_notional
    index.schedule_day(state)

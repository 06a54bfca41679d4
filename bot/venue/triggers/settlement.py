"""The end of an event market: every position is paid its outcome, resting orders are canceled, and trading ends."""

from __future__ import annotations

from bot.model.events import Settled
from bot.venue.accounting import ledger
from bot.venue.model import outcome
from bot.venue.model.numbers import E8
from bot.venue.model.record import emit, next_seq, open_trade
from bot.venue.model.state import State, VenueAccount, VenueMarket, VenuePosition, side_name
from bot.venue.orders import exits, open_orders, order_fills
from bot.venue.protection import protection


def settle(state: State, market: VenueMarket) -> None:
    """Settle at the outcome that a command has set, or that the last mark implies."""
    assert market.status != "settled", market.spec.coin
    market.outcome_px = outcome.outcome_of(market.mark) if market.resolution is None else market.resolution
    coin = market.spec.coin
    for account in state.accounts.values():
        if account.resting:
            open_orders.cancel_resting(state, account, "settled", coin)
    for account_id in list(market.holders):
        account = state.accounts[account_id]
        _pay(state, account, market, account.positions[coin])
    # Only now, because an account's floors and margins use this market's last mark until its position is paid.
    market.status = "settled"
    market.volume_left = 0
    assert not market.holders
    assert not market.falling, market.falling
    assert not market.rising, market.rising


def _pay(state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition) -> None:
    """End one position: pay its outcome into the balance, and end its stops and guardians."""
    coin, side, size = position.coin, position.side, position.size
    assert market.outcome_px is not None
    for order in [o for o in account.orders.values() if o.coin == coin]:
        open_orders.drop(state, account, order, "settled")
    payout = outcome.worth(market.spec, side, market.outcome_px, size)
    realized = side * (market.outcome_px * size // E8 - position.entry_notional)
    order = exits.exit_order(state, account, market, position, size=size, bound_px=0, reason="settled")
    trade = open_trade(state, account, order, kind="settlement", intent="close", reason="settled")
    trade.filled, trade.filled_notional, trade.realized = size, market.outcome_px * size // E8, realized
    absorbed_before = account.absorbed
    ledger.take(account, position, size=size, entry_part=position.entry_notional, realized=realized, fee=0, full=True)
    ledger.leave(state, account, market, position)
    trade.absorbed = account.absorbed - absorbed_before
    ledger.realize_today(account, state.now_ms, realized + trade.absorbed)
    order_fills.finish(state, trade)
    emit(
        state,
        account,
        Settled(
            account.id,
            next_seq(account),
            state.now_ms,
            "settled",
            coin,
            trade.id,
            side_name(side),
            size,
            market.outcome_px,
            payout,
            0,
            realized,
            account.balance,
            trade.absorbed,
        ),
    )
    protection.follow(state, account, market, position, reason="settled")

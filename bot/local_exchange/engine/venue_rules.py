"""What the local exchange takes from the venue: exact numbers, margin tiers, the model of the book, money.

No other module imports bot.venue.
"""

from __future__ import annotations

from bot.venue.accounting import funding, ledger
from bot.venue.model.numbers import E8, E12, MICRO, div_up, fee_of, notional_of, round_figures, toward_zero
from bot.venue.model.state import MarketSpec, State, VenueAccount, VenueMarket, VenuePosition
from bot.venue.prices import book

__all__ = [
    "E8",
    "E12",
    "MICRO",
    "VenueAccount",
    "VenueMarket",
    "MarketSpec",
    "VenuePosition",
    "State",
    "cash_of",
    "close_part",
    "div_up",
    "fee_of",
    "free_margin",
    "ladder",
    "liquidation_px",
    "maintenance_of",
    "notional_of",
    "open_part",
    "pay_funding",
    "rate_of",
    "round_figures",
    "standing_of",
    "toward_zero",
    "value_of",
]

MAJORS = funding.MAJORS
rate_of = funding.rate_of
liquidation_px = ledger.liquidation_px
value_of = ledger.account_value


def premium_of(market: VenueMarket) -> int:
    """The premium of the book over the oracle, scaled 1e12."""
    return 0 if market.mid == market.oracle else funding.premium_of(market, market.oracle, market.mid)


def open_account(state: State, name: str, now_ms: int) -> VenueAccount:
    """The account of one address in one dex."""
    account = VenueAccount(name, len(state.accounts) + 1, name, None, 0, now_ms)
    state.accounts[name] = account
    return account


def ladder(market: VenueMarket) -> tuple[list[list[int]], list[list[int]]]:
    """Bids and asks of the other participants as [px, size], best first."""
    bids, asks = book.book(market)
    return [[px, size] for px, size in bids if px > 0], [[px, size] for px, size in asks]


def open_part(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    *,
    buy: int,
    size: int,
    px: int,
    fee: int,
    mode: tuple[bool, int],
) -> None:
    """Open or grow a position. `mode`: (is cross, leverage) of a new one.

    Isolated margin is the notional over the leverage, rounded up to 1e-6 USD; the fee is taken out of it.
    """
    coin = market.spec.coin
    position = account.positions.get(coin)
    if position is None:
        cross, leverage = mode
        position = VenuePosition(account.id, coin, buy, 0, 0, leverage, not cross, state.now_ms)
        account.positions[coin] = position
        market.holders[account.id] = None
    assert position.side == buy, position
    notional = notional_of(px, size)
    position.size += size
    position.entry_notional += notional
    if position.isolated:
        moved = div_up(notional, position.leverage * MICRO) * MICRO
        account.balance -= moved
        position.margin += moved - fee
    else:
        account.balance -= fee
    account.fees += fee


def close_part(
    account: VenueAccount, market: VenueMarket, position: VenuePosition, *, size: int, px: int, fee: int
) -> int:
    """Close a part of a position and return the realised profit before the fee."""
    part = position.entry_notional if size == position.size else position.entry_notional * size // position.size
    realized = position.side * (notional_of(px, size) - part)
    ledger.take(account, position, size=size, entry_part=part, realized=realized, fee=fee)
    if position.size == 0:
        leave(account, market, position)
    return realized


def leave(account: VenueAccount, market: VenueMarket, position: VenuePosition) -> None:
    """Remove a closed position.

    The exchange pays the debt of a cross account without positions, and counts it as absorbed.
    """
    account.balance += position.margin
    position.margin = 0
    del account.positions[market.spec.coin]
    market.holders.pop(account.id, None)
    if account.balance < 0 and not any(not other.isolated for other in account.positions.values()):
        account.absorbed -= account.balance
        account.balance = 0


def pay_funding(account: VenueAccount, position: VenuePosition, amount: int, *, from_margin: bool) -> int:
    """Add one payment (negative: paid) to the position's margin or to the account; an isolated margin pays no more than
    it has.
    """
    if position.isolated and from_margin:
        amount = max(amount, -position.margin)
        position.margin += amount
    else:
        account.balance += amount
    position.funding += amount
    account.funding += amount
    return amount


def maintenance_of(market: VenueMarket, position: VenuePosition) -> int:
    return ledger.maintenance(market, notional_of(market.mark, position.size))


def standing_of(state: State, account: VenueAccount, position: VenuePosition) -> tuple[int, int]:
    """(equity, maintenance margin) at mark: of an isolated position alone, otherwise of all cross positions."""
    if position.isolated:
        market = state.markets[position.coin]
        return position.margin + position.pnl(market.mark), maintenance_of(market, position)
    need = sum(maintenance_of(state.markets[c], p) for c, p in account.positions.items() if not p.isolated)
    return ledger.cross_value(state, account), need


def free_margin(state: State, account: VenueAccount, reserved: int) -> int:
    """Equity of the cross account beyond initial margins and what resting orders reserve.

    Negative if there is too little.
    """
    free = account.balance - reserved
    for coin, position in account.positions.items():
        if not position.isolated:
            market = state.markets[coin]
            free += position.pnl(market.mark) - ledger.initial_margin(market, position)
    return free


def cash_of(account: VenueAccount) -> int:
    """Money without the value of positions: the exchange's totalRawUsd."""
    return account.balance + sum(p.margin - p.side * p.entry_notional for p in account.positions.values())

"""Funding: the hourly rate from the premium, or a recorded rate with its own hours, and its payment on the oracle
price. Only positions held at that instant pay or receive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bot.model.events import FundingPaid
from bot.venue.accounting import ledger
from bot.venue.model.numbers import E8, E12, toward_zero
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import HOUR_MS, State, VenueMarket, side_name
from bot.venue.prices.book import walk
from bot.venue.prices.index import schedule_funding

# 0.01 % per eight hours
INTEREST: Final = E12 // 10_000
CLAMP: Final = 5 * E12 // 10_000
MAJORS: Final = frozenset({"BTC", "ETH"})
IMPACT_USD_MAJOR: Final = 20_000 * E8
IMPACT_USD: Final = 6_000 * E8
# 4 % an hour
CAP: Final = 4 * E12 // 100


def rate_of(premium: int) -> int:
    """Hourly rate of a mean premium, both fractions scaled 1e12: (P + clamp(0.0001 - P, ±0.0005)) / 8, capped at 4 %.

    Source: the formula of Hyperliquid's funding, checked there on 167,257 asset-hours.
    """
    lean = max(-CLAMP, min(CLAMP, INTEREST - premium))
    return max(-CAP, min(CAP, toward_zero(premium + lean, 8)))


def rate_now(market: VenueMarket) -> int:
    """The rate of the next payment: a recorded rate if a command has set it; otherwise from the book's premium over
    the oracle, or the baseline without one.

    The real venue averages samples of the hour; here the hour's last book is the only sample.
    """
    spec = market.spec
    mid = market.mid if market.premium_px is None else market.premium_px
    if market.is_rate_recorded or mid == market.oracle:
        return market.funding_rate
    premium = premium_of(market, market.oracle, mid)
    return toward_zero(rate_of(premium) * spec.funding_factor, E8) if premium else market.funding_rate


def pays_at(market: VenueMarket, hour_ms: int) -> bool:
    """Whether funding is paid at this full hour."""
    return market.funding_hours == 1 or (hour_ms - market.funding_ms) % (market.funding_hours * HOUR_MS) == 0


def hourly_rate_now(market: VenueMarket) -> int:
    """The rate of this hour, of a rate for several hours the hour's part, as a measure beside other markets."""
    return toward_zero(rate_now(market), market.funding_hours)


def next_payment_ms(market: VenueMarket, now_ms: int) -> int:
    """The next full hour at which funding is paid."""
    hour_ms = now_ms // HOUR_MS * HOUR_MS + HOUR_MS
    return next(at for hour in range(market.funding_hours) if pays_at(market, at := hour_ms + hour * HOUR_MS))


def premium_of(market: VenueMarket, oracle: int, mid: int) -> int:
    """(max(impact bid - oracle, 0) - max(oracle - impact ask, 0)) / oracle as a fraction scaled 1e12 (venue.md 2.6)."""
    usd = IMPACT_USD_MAJOR if market.spec.coin in MAJORS else IMPACT_USD
    size = max(market.lot, usd * E8 // oracle)
    bid, ask = (_impact_px(market, mid, buy, size) for buy in (-1, 1))
    return toward_zero((max(0, bid - oracle) - max(0, oracle - ask)) * E12, oracle)


def _impact_px(market: VenueMarket, mid: int, buy: int, size: int) -> int:
    """Average price of this amount; if the book has less, of all that it has."""
    fills = walk(market, mid, buy, size)
    got = sum(part for _, part in fills)
    return sum(px * part for px, part in fills) // got if got else mid


def pay_due(state: State, opens: Mapping[str, int]) -> None:
    """Pay all due funding in all markets, before any price of this instant: on the open of a market that has one
    now, otherwise on the present oracle.
    """
    for coin, market in state.markets.items():
        if 0 < market.next_funding_ms <= state.now_ms and market.status != "settled":
            pay(state, market, market.oracle if market.external == "closed" else opens.get(coin, market.oracle))


def pay(state: State, market: VenueMarket, oracle: int) -> None:
    """Pay the funding of the hour that is due to every holder: signed size * oracle * rate. Longs pay shorts if the
    rate is positive.
    """
    rate = rate_now(market)
    for account_id in list(market.holders) if pays_at(market, market.next_funding_ms) else ():
        account = state.accounts[account_id]
        position = account.positions[market.spec.coin]
        amount = -position.side * toward_zero(position.size * oracle * rate, E8 * E12)
        if position.isolated:
            # An isolated position pays no more than its margin.
            amount = max(amount, -position.margin)
            position.margin += amount
        else:
            account.balance += amount
        position.funding += amount
        account.funding += amount
        ledger.rewatch(state, account, position)
        emit(
            state,
            account,
            FundingPaid(
                account_id,
                next_seq(account),
                state.now_ms,
                market.spec.coin,
                side_name(position.side),
                position.size,
                oracle,
                rate,
                amount,
                account.balance,
            ),
        )
    market.next_funding_ms = 0
    if market.holders:
        schedule_funding(state, market)

"""What happens by itself: prices with all that follows from them, hourly funding, scheduled cancels.

`advance` may be cut into any steps.
"""

from __future__ import annotations

from typing import Final

from bot.clock import DAY_MS, HOUR_MS, SECOND_MS
from bot.local_exchange.engine import candles, lifecycle, liquidation, matching, triggers
from bot.local_exchange.engine.prices import Prices
from bot.local_exchange.engine.records import Report
from bot.local_exchange.engine.state import MAKER, Coin, Exchange, account_id
from bot.local_exchange.engine.venue_rules import E8, E12, MICRO, ladder, pay_funding, premium_of, rate_of

# mark and oracle move about this often
PRICE_MS: Final = 3 * SECOND_MS
# an hour's funding without a premium
INTEREST_RATE: Final = E12 // 10_000 // 8


def advance(exchange: Exchange, prices: Prices | None, now_ms: int) -> None:
    """Do everything that is due up to `now_ms`, in the order of time.

    The others fill their ladder up every three seconds.
    """
    while (due_ms := _next_due(exchange)) <= now_ms:
        _move_clock(exchange, due_ms)
        if exchange.next_hour_ms == due_ms:
            _pay_funding(exchange)
            _note_values(exchange)
            exchange.next_hour_ms += HOUR_MS
        for address in sorted(exchange.users):
            user = exchange.users[address]
            if user.cancel_all_ms is not None and user.cancel_all_ms <= due_ms:
                user.cancel_all_ms = None
                day, count = user.cancel_firings
                user.cancel_firings = (due_ms // DAY_MS, count + 1 if day == due_ms // DAY_MS else 1)
                lifecycle.cancel_all(exchange, user, "scheduledCancel")
        if exchange.next_price_ms == due_ms:
            exchange.next_price_ms += PRICE_MS
            for name, px in prices.take(due_ms) if prices is not None else ():
                set_price(exchange, exchange.coins[name], px)
            for coin in exchange.coins.values():
                if coin.book.is_taken and not coin.is_delisted:
                    coin.book.lay(ladder(coin.market))
    _move_clock(exchange, now_ms)


def hold_prices(exchange: Exchange, until_ms: int) -> None:
    """Let prices stand still until an instant: the exchange was stopped."""
    exchange.next_price_ms = max(exchange.next_price_ms, until_ms - until_ms % PRICE_MS + PRICE_MS)


def _next_due(exchange: Exchange) -> int:
    cancels = [user.cancel_all_ms for user in exchange.users.values() if user.cancel_all_ms is not None]
    return min(exchange.next_hour_ms, exchange.next_price_ms, *cancels)


def _move_clock(exchange: Exchange, now_ms: int) -> None:
    assert now_ms >= exchange.now_ms, (now_ms, exchange.now_ms)
    exchange.now_ms = exchange.venue.now_ms = now_ms


def set_price(
    exchange: Exchange,
    coin: Coin,
    px: int,
    *,
    mark: int | None = None,
    oracle: int | None = None,
    volume: int | None = None,
) -> None:
    """A new price: the others re-lay their ladder around it and sweep resting orders that it has passed, at most
    `volume` of them.

    Then the mark price moves (to `mark`, or the price): triggers fire and accounts are liquidated.
    """
    exchange.block += 1
    exchange.block_is_action = False
    market = coin.market
    coin.previous_mark = market.mark
    market.mark, market.mid, market.oracle = mark or px, px, oracle or px
    _count_premium(exchange, coin)
    if not coin.is_delisted:
        _sweep(exchange, coin, px, volume)
        coin.book.lay(ladder(market))
    coin.book.last_px = px
    candles.count(exchange, coin, px, 0)
    triggers.fire_due(exchange, coin)
    liquidation.check(exchange, coin)


def _sweep(exchange: Exchange, coin: Coin, px: int, volume: int | None) -> None:
    """A taker fills resting orders better than the new price."""
    coin.book.ladder = ([], [])
    for buy in (False, True):
        orders = coin.book.side(buy=not buy)
        while orders and (volume is None or volume > 0):
            resting = orders[0][1]
            if resting.px >= px if buy else resting.px <= px:
                break
            bound = px - 1 if buy else px + 1
            size = resting.sz if volume is None else min(volume, resting.sz)
            done = take(exchange, coin, buy=buy, size=size, bound=bound)
            if volume is not None:
                volume -= done


def take(exchange: Exchange, coin: Coin, *, buy: bool, size: int, bound: int | None) -> int:
    """Another participant takes from the book. Returns what was filled."""
    taker = matching.forced_order(exchange, MAKER, coin, buy=buy, px=bound or 0, size=size)
    matching.match(exchange, coin, taker, bound)
    return taker.filled


def _count_premium(exchange: Exchange, coin: Coin) -> None:
    """The premium of the hour is the mean over time."""
    since = max(coin.premium_from_ms, exchange.now_ms - exchange.now_ms % HOUR_MS)
    coin.premium_sum += coin.premium * (exchange.now_ms - since)
    coin.premium_from_ms = exchange.now_ms
    coin.premium = premium_of(coin.market)


def funding_rate(coin: Coin, mean: int) -> int:
    """The hourly rate, scaled 1e12."""
    return rate_of(mean) if mean else INTEREST_RATE


def _pay_funding(exchange: Exchange) -> None:
    """Pay an hour of every market: size times oracle price times rate, cut at six decimals."""
    exchange.block += 1
    exchange.block_is_action = False
    from_margin = exchange.switch("isolated_funding") == "margin"
    for coin in exchange.coins.values():
        mean = (
            coin.premium_sum + coin.premium * (exchange.now_ms - max(coin.premium_from_ms, exchange.now_ms - HOUR_MS))
        ) // HOUR_MS
        coin.premium_sum, coin.premium_from_ms = 0, exchange.now_ms
        rate = funding_rate(coin, mean)
        coin.funding_history.append((exchange.now_ms, rate, mean))
        for name in list(coin.market.holders):
            account = exchange.venue.accounts[name]
            position = account.positions[coin.name]
            due = position.size * coin.market.oracle * abs(rate) // (E8 * E12)
            due -= due % MICRO
            amount = -due if (position.side > 0) == (rate > 0) else due
            amount = pay_funding(account, position, amount, from_margin=from_margin)
            address = name.partition("/")[0]
            raw = exchange.raw[account_id(address, coin.dex)]
            raw.add("funding", amount)
            raw.check(account)
            row = (exchange.now_ms, coin.name, amount, position.side * position.size, rate)
            exchange.users[address].fundings.append(row)
            exchange.reports.append(Report("funding", address, row))
        liquidation.check(exchange, coin)


def _note_values(exchange: Exchange) -> None:
    """Keep each address's value and its profit since the first deposit, once an hour."""
    for user in exchange.users.values():
        value, paid_in = user.spot_usd, 0
        for dex in exchange.dexes:
            raw = exchange.raw.get(account_id(user.address, dex.name))
            if raw is not None:
                value += raw.value({coin: exchange.coins[coin].market.mark for coin in raw.sizes})
                paid_in += raw.sums.get("deposit", 0) + raw.sums.get("transfer", 0)
        user.values.append((exchange.now_ms, value, value - paid_in))

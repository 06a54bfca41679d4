"""Margin: what resting orders reserve, whether a new order is covered, leverage, and margin of isolated positions."""

from __future__ import annotations

from bot.local_exchange.engine.records import ExchangeOrder, ExchangeRefusal
from bot.local_exchange.engine.state import Coin, Exchange, User, account_of, leverage_of, position_size
from bot.local_exchange.engine.venue_rules import E8, MICRO, div_up, free_margin, notional_of

LEVERAGE = ExchangeRefusal("Invalid leverage value")
MODE_FIXED = ExchangeRefusal("Cannot switch leverage type with open position.")
ISOLATED_SHORT = ExchangeRefusal(
    "Isolated position does not have sufficient margin available to decrease leverage. "
    "To decrease leverage, add margin to the position."
)
CROSS_SHORT = ExchangeRefusal("Cross position does not have sufficient margin available to decrease leverage.")
NO_POSITION = ExchangeRefusal("Position not found.")
MARGIN_SHORT = ExchangeRefusal("Insufficient margin to update isolated margin.")


def checked_px(coin: Coin, *, buy: bool, px: int) -> int:
    """The price at which the margin of an order is computed: its limit, but a crossing order is not charged for its
    bound.
    """
    ask = coin.book.best(buy=False)
    return min(px, max(coin.market.mark, ask or 0)) if buy else max(px, coin.market.mark)


def reserve_of(exchange: Exchange, user: User, coin: Coin, new: tuple[bool, int, int] | None = None) -> int:
    """Initial margin that the open orders of a coin reserve: of the larger side, beyond the position that they close.

    `new`: (buy, price, size).
    """
    sides = {True: [0, 0], False: [0, 0]}
    if exchange.switch("open_margin") == "larger_side":
        for order in user.orders.values():
            if order.coin == coin.name and order.in_book and not order.reduce_only:
                sides[order.buy][0] += order.sz
                sides[order.buy][1] += notional_of(order.px, order.sz)
    if new is not None:
        sides[new[0]][0] += new[2]
        sides[new[0]][1] += notional_of(new[1], new[2])
    held = position_size(exchange, user.address, coin.name)
    worst = 0
    for buy, (size, notional) in sides.items():
        closing = min(size, max(0, -held if buy else held))
        if size:
            worst = max(worst, div_up(notional * (size - closing), size))
    return div_up(worst, leverage_of(exchange, user, coin.name)[1])


def free_of(exchange: Exchange, user: User, dex: str) -> int:
    """Free margin of an address in a dex after what its orders reserve."""
    coins = {order.coin for order in user.orders.values() if order.in_book and exchange.coins[order.coin].dex == dex}
    reserved = sum(reserve_of(exchange, user, exchange.coins[coin]) for coin in sorted(coins))
    return free_margin(exchange.venue, account_of(exchange, user.address, dex), reserved)


def covers(exchange: Exchange, user: User, coin: Coin, *, buy: bool, px: int, sz: int) -> bool:
    """True if the account has the margin for a new order."""
    before = reserve_of(exchange, user, coin)
    after = reserve_of(exchange, user, coin, (buy, checked_px(coin, buy=buy, px=px), sz))
    return after <= before or free_of(exchange, user, coin.dex) >= after - before


def covers_fill(exchange: Exchange, order: ExchangeOrder, size: int) -> bool:
    """True if the owner of a resting order has the margin for this fill, other orders aside."""
    coin, user = exchange.coins[order.coin], exchange.users[order.user]
    held = position_size(exchange, order.user, order.coin)
    opening = size - min(size, max(0, -held if order.buy else held))
    need = div_up(notional_of(order.px, opening), leverage_of(exchange, user, order.coin)[1])
    return need == 0 or free_margin(exchange.venue, account_of(exchange, user.address, coin.dex), 0) >= need


def fits_tier(exchange: Exchange, user: User, coin: Coin, *, buy: bool, sz: int) -> bool:
    """True if the position after this order is allowed at the user's leverage."""
    held = position_size(exchange, user.address, coin.name)
    after = abs(held + (sz if buy else -sz))
    tier = coin.market.tier(notional_of(coin.market.mark, after))
    return after <= abs(held) or leverage_of(exchange, user, coin.name)[1] <= tier.max_leverage


def change_leverage(
    exchange: Exchange, user: User, coin: Coin, *, cross: bool, leverage: int
) -> ExchangeRefusal | None:
    """Set leverage and margin mode of a coin. A position fixes the mode, and a lower leverage needs the margin."""
    if not 1 <= leverage <= coin.market.spec.max_leverage or (cross and coin.mode != "normal"):
        return LEVERAGE
    account = account_of(exchange, user.address, coin.dex)
    position = account.positions.get(coin.name)
    if position is not None:
        if position.isolated == cross:
            return MODE_FIXED
        notional = notional_of(coin.market.mark, position.size)
        if coin.market.tier(notional).max_leverage < leverage:
            return LEVERAGE
        if position.isolated and leverage < position.leverage and position.margin * leverage < notional:
            return ISOLATED_SHORT
        more = div_up(notional, leverage) - div_up(notional, position.leverage)
        if not position.isolated and free_of(exchange, user, coin.dex) < more:
            return CROSS_SHORT
        position.leverage = leverage
    user.leverage[coin.name] = (cross, leverage)
    return None


def move_margin(exchange: Exchange, user: User, coin: Coin, amount: int) -> ExchangeRefusal | None:
    """Add margin to an isolated position or, with a negative amount, remove it."""
    account = account_of(exchange, user.address, coin.dex)
    position = account.positions.get(coin.name)
    if position is None or not position.isolated:
        return NO_POSITION
    if amount > 0 and free_of(exchange, user, coin.dex) < amount:
        return MARGIN_SHORT
    if amount < 0:
        notional = notional_of(coin.market.mark, position.size)
        left = position.margin + position.pnl(coin.market.mark) + amount
        least = max(div_up(notional, position.leverage), notional // 10)
        if coin.mode == "strictIsolated" or left < least or position.margin + amount < 0:
            return MARGIN_SHORT
    position.margin += amount
    account.balance -= amount
    return None


def top_up(exchange: Exchange, user: User, coin: Coin, leverage: int) -> ExchangeRefusal | None:
    """Move the margin that gives an isolated position this leverage (scaled 1e8)."""
    position = account_of(exchange, user.address, coin.dex).positions.get(coin.name)
    if position is None or not position.isolated or leverage <= 0:
        return NO_POSITION
    wanted = div_up(notional_of(coin.market.mark, position.size) * E8, leverage * MICRO) * MICRO
    return move_margin(exchange, user, coin, wanted - position.margin - position.pnl(coin.market.mark))

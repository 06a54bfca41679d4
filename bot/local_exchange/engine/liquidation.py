"""Liquidation at the mark price: through the book, below two thirds of maintenance by the backstop; auto-deleveraging
when nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bot.clock import SECOND_MS
from bot.local_exchange.engine import lifecycle, matching, order_checks
from bot.local_exchange.engine.admission import tell_ledger
from bot.local_exchange.engine.records import Report
from bot.local_exchange.engine.state import LIQUIDATOR, MAKER, Coin, Exchange, User, account_id, position_size
from bot.local_exchange.engine.venue_rules import (
    E8,
    MICRO,
    VenueAccount,
    VenuePosition,
    maintenance_of,
    notional_of,
    standing_of,
    value_of,
)

PARTIAL_FROM: Final = {"mainnet": 100_000 * E8, "testnet": 10_000 * E8}
COOLDOWN_MS: Final = 30 * SECOND_MS
DELEVERAGED: Final = "Auto-Deleveraging"


def check(exchange: Exchange, coin: Coin) -> None:
    """Liquidate every account whose equity does not cover its maintenance margin, after a change of this mark price."""
    for name in list(coin.market.holders):
        account = exchange.venue.accounts[name]
        position = account.positions.get(coin.name)
        address = name.partition("/")[0]
        if position is not None and address not in (MAKER, LIQUIDATOR):
            _check_account(exchange, exchange.users[address], account, position)


def _check_account(exchange: Exchange, user: User, account: VenueAccount, position: VenuePosition | None) -> None:
    while position is not None:
        equity, need = standing_of(exchange.venue, account, position)
        if equity >= need:
            return
        lifecycle.cancel_all(exchange, user, "liquidatedCanceled", coins=_coins_of(exchange, account, position))
        if equity < 0:
            _deleverage(exchange, user, account, position)
        elif 3 * equity < 2 * need:
            _backstop(exchange, user, account, position)
        elif not _to_the_book(exchange, user, account, position):
            return
        others = [other for other in account.positions.values() if not other.isolated]
        if position.isolated:
            position = account.positions.get(position.coin)
        else:
            position = max(others, key=lambda p: maintenance_of(exchange.venue.markets[p.coin], p), default=None)


def _coins_of(exchange: Exchange, account: VenueAccount, position: VenuePosition) -> set[str]:
    """Where orders are canceled: an isolated position's coin, or all of the dex but those of isolated positions."""
    if position.isolated:
        return {position.coin}
    dex = exchange.coins[position.coin].dex
    apart = {coin for coin, other in account.positions.items() if other.isolated}
    return {coin.name for coin in exchange.coins.values() if coin.dex == dex} - apart


def _scope(account: VenueAccount, position: VenuePosition) -> list[VenuePosition]:
    """The position alone if isolated, otherwise all cross positions."""
    return [position] if position.isolated else [p for p in account.positions.values() if not p.isolated]


def _to_the_book(exchange: Exchange, user: User, account: VenueAccount, position: VenuePosition) -> bool:
    """Send a market order for the position, or for a fifth of a large one. False if the next price update goes on."""
    coin = exchange.coins[position.coin]
    size, held, isolated = position.size, position.size, position.isolated
    limit = PARTIAL_FROM[exchange.network]
    partial = notional_of(coin.market.mark, size) > limit and exchange.now_ms >= user.liquidation_until.get(
        coin.name, 0
    )
    if partial:
        size = max(coin.market.lot, size // 5 // coin.market.lot * coin.market.lot)
        user.liquidation_until[coin.name] = exchange.now_ms + COOLDOWN_MS
    buy = position.side < 0
    away = coin.market.mark * order_checks.SLIPPAGE_PCT // 100
    bound = coin.market.mark + away if buy else coin.market.mark - away
    px = bound - bound % coin.market.tick(bound)
    order = matching.forced_order(exchange, user.address, coin, buy=buy, px=px, size=size)
    matching.match(exchange, coin, order, bound, (user.address, coin.market.mark, "market"))
    if order.sz:
        lifecycle.end(exchange, order, "filled" if order.filled else "marketOrderNoLiquidityRejected")
    taken = {coin.name: -order.filled if buy else order.filled}
    _tell(exchange, user, account, notional_of(coin.market.mark, order.filled), taken, isolated=isolated)
    if not order.filled:
        _backstop(exchange, user, account, position)
        return True
    return not partial and abs(position_size(exchange, user.address, coin.name)) < held


def _backstop(exchange: Exchange, user: User, account: VenueAccount, position: VenuePosition) -> None:
    """The liquidator takes over positions and margin at mark."""
    raw = exchange.raw[account_id(user.address, exchange.coins[position.coin].dex)]
    scope = _scope(account, position)
    sizes = {closed.coin: closed.side * closed.size for closed in scope}
    kept = account.balance
    for closed in scope:
        coin = exchange.coins[closed.coin]
        label = f"Liquidated {'Isolated' if closed.isolated else 'Cross'} {'Long' if closed.side > 0 else 'Short'}"
        matching.close_apart(exchange, user, coin, coin.market.mark, label, "backstop")
    left = account.balance - kept if position.isolated else account.balance
    lost = max(0, left)
    account.balance -= lost
    account.margin_lost += lost
    raw.add("forfeited", -lost)
    exchange.users[LIQUIDATOR].spot_usd += lost
    _tell(exchange, user, account, lost, sizes, isolated=position.isolated)
    raw.check(account)


def _deleverage(exchange: Exchange, user: User, account: VenueAccount, position: VenuePosition) -> None:
    """Close positions without value at the previous mark price against the best-ranked positions of the other side."""
    scope = _scope(account, position)
    sizes = {closed.coin: closed.side * closed.size for closed in scope}
    for closed in scope:
        coin = exchange.coins[closed.coin]
        px = coin.previous_mark or coin.market.mark
        for address in [*_ranked(exchange, coin, -closed.side), MAKER]:
            left = abs(position_size(exchange, user.address, coin.name))
            other = left if address == MAKER else abs(position_size(exchange, address, coin.name))
            if left:
                _cross(exchange, user.address, address, coin, px, min(left, other))
    _tell(exchange, user, account, 0, sizes, isolated=position.isolated)


def _ranked(exchange: Exchange, coin: Coin, side: int) -> list[str]:
    """Addresses with a position on this side, by profit times leverage: (mark / entry) x (notional / account value)."""
    ranks = []
    for name in coin.market.holders:
        account = exchange.venue.accounts[name]
        position = account.positions[coin.name]
        if position.side == side:
            notional = notional_of(coin.market.mark, position.size)
            gain = E8 * notional // position.entry_notional
            profit = gain if side > 0 else E8 * E8 // max(1, gain)
            rank = profit * notional // max(1, value_of(exchange.venue, account))
            ranks.append((-rank, name.partition("/")[0]))
    return [address for _, address in sorted(ranks)]


def _cross(exchange: Exchange, loser: str, winner: str, coin: Coin, px: int, size: int) -> None:
    """Book one auto-deleveraging trade between two accounts."""
    held = position_size(exchange, loser, coin.name)
    orders = [
        matching.forced_order(exchange, address, coin, buy=(held < 0) == (address == loser), px=px, size=size)
        for address in (loser, winner)
    ]
    for order, other in zip(orders, reversed(orders), strict=True):
        if order.user == MAKER:
            continue
        user = exchange.users[order.user]
        matching.execute_apart(exchange, user, coin, order, other.oid, DELEVERAGED, None)


def _tell(
    exchange: Exchange, user: User, account: VenueAccount, notional: int, taken: Mapping[str, int], *, isolated: bool
) -> None:
    """Report a liquidation to the address, with the signed sizes that it took."""
    value = value_of(exchange.venue, account)
    row = {
        "lid": exchange.next_oid,
        "liquidated_user": user.address,
        "liquidated_ntl_pos": notional - notional % MICRO,
        "liquidated_account_value": value,
    }
    exchange.reports.append(Report("liquidation", user.address, row))
    positions = [{"coin": name, "szi": size} for name, size in taken.items() if size]
    if positions:
        kind = "Isolated" if isolated else "Cross"
        delta = {"type": "liquidation", "accountValue": value, "leverageType": kind, "liquidatedPositions": positions}
        tell_ledger(exchange, user.address, delta)

"""Rows of answers and channels: orders, fills, positions, accounts, as the exchange writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bot.local_exchange.engine import margins
from bot.local_exchange.engine.records import ExchangeFill, ExchangeOrder, ExchangeTrade
from bot.local_exchange.engine.state import Coin, Exchange, User, account_id, account_of
from bot.local_exchange.engine.venue_rules import (
    E8,
    MICRO,
    VenueAccount,
    VenuePosition,
    div_up,
    liquidation_px,
    maintenance_of,
    notional_of,
)
from bot.money import format_e8, format_e12

Json = dict[str, Any]

COLLATERAL: Final = "USDC"


def amount(value: int) -> str:
    """A price, size or sum as the exchange writes it: plain, and whole numbers with `.0`."""
    text = format_e8(value)
    return text if "." in text else f"{text}.0"


def usd(value: int) -> str:
    """A sum of money, cut to six decimals."""
    return amount(value - value % MICRO if value >= 0 else -(-value - -value % MICRO))


def rate(value: int) -> str:
    """A rate scaled 1e12."""
    text = format_e12(value)
    return text if "." in text else f"{text}.0"


def side(*, buy: bool) -> str:
    return "B" if buy else "A"


ORDER_TYPES: Final[Mapping[tuple[bool, bool], str]] = {
    (True, True): "Take Profit Market",
    (False, True): "Take Profit Limit",
    (True, False): "Stop Market",
    (False, False): "Stop Limit",
}


def basic_order(order: ExchangeOrder, sz: int) -> Json:
    """The row of orderUpdates and openOrders."""
    row = {
        "coin": order.coin,
        "side": side(buy=order.buy),
        "limitPx": amount(order.px),
        "sz": amount(sz),
        "oid": order.oid,
        "timestamp": order.at_ms,
        "origSz": amount(order.orig_sz),
    }
    if order.cloid is not None:
        row["cloid"] = order.cloid
    return row


def full_order(exchange: Exchange, order: ExchangeOrder, sz: int) -> Json:
    """The row of frontendOpenOrders, orderStatus and historicalOrders."""
    trigger = order.trigger
    kind, condition = "Limit", "N/A"
    if trigger is not None:
        rises = order.buy != trigger.is_target
        kind = ORDER_TYPES[trigger.is_market, trigger.is_target]
        condition = f"Price {'above' if rises else 'below'} {format_e8(trigger.px)}"
    elif order.tif in ("FrontendMarket", "LiquidationMarket"):
        kind = "Market"
    orders = exchange.users[order.user].orders
    children = [orders[oid] for oid in order.children if oid in orders and not orders[oid].is_live]
    return {
        "coin": order.coin,
        "side": side(buy=order.buy),
        "limitPx": amount(order.px),
        "sz": amount(sz),
        "oid": order.oid,
        "timestamp": order.at_ms,
        "triggerCondition": condition,
        "isTrigger": trigger is not None,
        "triggerPx": amount(0 if trigger is None else trigger.px),
        "children": [full_order(exchange, child, child.sz) for child in children],
        "isPositionTpsl": order.grouping == "positionTpsl",
        "reduceOnly": order.reduce_only,
        "orderType": kind,
        "origSz": amount(order.orig_sz),
        "tif": order.tif,
        "cloid": order.cloid,
    }


def fill(row: ExchangeFill) -> Json:
    body: Json = {
        "coin": row.coin,
        "px": amount(row.px),
        "sz": amount(row.sz),
        "side": side(buy=row.buy),
        "time": row.time,
        "startPosition": amount(row.start_position),
        "dir": row.dir,
        "closedPnl": usd(row.closed_pnl),
        "hash": row.hash,
        "oid": row.oid,
        "crossed": row.crossed,
        "fee": amount(row.fee),
        "tid": row.tid,
        "feeToken": COLLATERAL,
        "twapId": None,
    }
    if row.builder_fee:
        body["builderFee"] = amount(row.builder_fee)
    if row.cloid is not None:
        body["cloid"] = row.cloid
    if row.liquidation is not None:
        address, mark, method = row.liquidation
        body["liquidation"] = {"liquidatedUser": address, "markPx": amount(mark), "method": method}
    return body


def trade(row: ExchangeTrade) -> Json:
    return {
        "coin": row.coin,
        "side": side(buy=row.buy),
        "px": amount(row.px),
        "sz": amount(row.sz),
        "time": row.time,
        "hash": row.hash,
        "tid": row.tid,
        "users": [row.buyer, row.seller],
    }


def leverage(exchange: Exchange, user: User, coin: Coin, position: VenuePosition | None = None) -> Json:
    """The leverage of a position, or the one that the address has chosen."""
    if position is not None:
        if not position.isolated:
            return {"type": "cross", "value": position.leverage}
        raw = position.margin - position.side * position.entry_notional
        return {"type": "isolated", "value": position.leverage, "rawUsd": usd(raw)}
    cross, value = user.leverage.get(coin.name, (coin.mode == "normal", min(20, coin.market.spec.max_leverage)))
    return {"type": "cross" if cross else "isolated", "value": value}


def position_row(exchange: Exchange, user: User, account: VenueAccount, position: VenuePosition) -> Json:
    """One entry of assetPositions.

    marginUsed of an isolated position is its value in the account, of a cross one the initial margin.
    """
    coin = exchange.coins[position.coin]
    mark, size = coin.market.mark, position.size
    notional, pnl = notional_of(mark, size), position.pnl(mark)
    used = position.margin + pnl if position.isolated else div_up(notional, position.leverage)
    level = liquidation_px(exchange.venue, position)
    basis = position.entry_notional // position.leverage
    return {
        "type": "oneWay",
        "position": {
            "coin": position.coin,
            "szi": amount(position.side * size),
            "leverage": leverage(exchange, user, coin, position),
            "entryPx": amount(position.entry_px()),
            "positionValue": usd(notional),
            "unrealizedPnl": usd(pnl),
            "returnOnEquity": amount(pnl * E8 // basis if pnl >= 0 else -(-pnl * E8 // basis)),
            "liquidationPx": None if level is None else amount(level),
            "marginUsed": usd(used),
            "maxLeverage": coin.market.spec.max_leverage,
            "cumFunding": {
                "allTime": usd(-position.funding),
                "sinceOpen": usd(-position.funding),
                "sinceChange": usd(-position.funding),
            },
        },
    }


def clearinghouse(exchange: Exchange, user: User, dex: str) -> Json:
    """The margin account of an address in one dex. Money comes from the raw ledger."""
    account = account_of(exchange, user.address, dex)
    raw = exchange.raw[account_id(user.address, dex)]
    positions = list(account.positions.values())
    marks = {position.coin: exchange.coins[position.coin].market.mark for position in positions}
    own = [position for position in positions if position.isolated]
    cross = [position for position in positions if not position.isolated]
    own_raw = sum(position.margin - position.side * position.entry_notional for position in own)
    own_value = sum(position.margin + position.pnl(marks[position.coin]) for position in own)
    value, cross_value = raw.value(marks), raw.value(marks) - own_value
    cross_margin = sum(div_up(notional_of(marks[p.coin], p.size), p.leverage) for p in cross)
    cross_total = sum(notional_of(marks[p.coin], p.size) for p in cross)
    total = cross_total + sum(notional_of(marks[p.coin], p.size) for p in own)
    free = margins.free_of(exchange, user, dex)

    def summary(value: int, notional: int, raw_usd: int, used: int) -> Json:
        return {
            "accountValue": usd(value),
            "totalNtlPos": usd(notional),
            "totalRawUsd": usd(raw_usd),
            "totalMarginUsed": usd(used),
        }

    return {
        "marginSummary": summary(value, total, raw.usd, cross_margin + own_value),
        "crossMarginSummary": summary(cross_value, cross_total, raw.usd - own_raw, cross_margin),
        "crossMaintenanceMarginUsed": usd(sum(maintenance_of(exchange.coins[p.coin].market, p) for p in cross)),
        "withdrawable": usd(max(0, min(free, cross_value - max(cross_margin, cross_total // 10)))),
        "assetPositions": [position_row(exchange, user, account, position) for position in positions],
        "time": exchange.now_ms,
    }


def asset_context(exchange: Exchange, coin: Coin, funding: int) -> Json:
    """Prices, funding and volume of a market.

    Open interest is that of the accounts; the other participants have no positions.
    """
    held = (exchange.venue.accounts[name].positions[coin.name] for name in coin.market.holders)
    open_interest = sum(position.size for position in held if position.side > 0)
    market = coin.market
    bid, ask = coin.book.best(buy=True), coin.book.best(buy=False)
    mid = None if bid is None or ask is None else (bid + ask) // 2
    return {
        "funding": rate(funding),
        "openInterest": amount(open_interest),
        "prevDayPx": amount(coin.day_open[1] or market.mark),
        "dayNtlVlm": usd(coin.day_volume[1]),
        "dayBaseVlm": amount(coin.day_volume[2]),
        "premium": rate(coin.premium),
        "oraclePx": amount(market.oracle),
        "markPx": amount(market.mark),
        "midPx": None if mid is None else amount(mid),
        "impactPxs": None if bid is None or ask is None else [amount(bid), amount(ask)],
    }


def funding_row(row: tuple[int, str, int, int, int]) -> Json:
    """One payment, as userFunding has it. `usdc` is negative when the user paid."""
    at_ms, coin, paid, size, funding = row
    delta = {
        "type": "funding",
        "coin": coin,
        "usdc": usd(paid),
        "szi": amount(size),
        "fundingRate": rate(funding),
        "nSamples": None,
    }
    return {"time": at_ms, "hash": "0x" + "0" * 64, "delta": delta}


def book_levels(coin: Coin, fewest: int, step: tuple[int, int] | None = None) -> list[list[Json]]:
    """Bids and asks, best first. `step`: (significant figures, mantissa) for coarser prices."""
    sides = []
    for buy in (True, False):
        sums: dict[int, list[int]] = {}
        for level in coin.book.levels(buy=buy, fewest=fewest if step is None else 100_000):
            px = level.px
            if step is not None:
                unit = step[1] * int(10 ** max(0, len(str(px)) - step[0]))
                px = px // unit * unit if buy else -(-px // unit) * unit
            total = sums.setdefault(px, [0, 0])
            total[0] += level.size
            total[1] += level.orders
        sides.append([{"px": amount(px), "sz": amount(size), "n": n} for px, (size, n) in list(sums.items())[:fewest]])
    return sides


def mid_of(coin: Coin) -> int:
    """The middle of the book; without a book the last trade."""
    bid, ask = coin.book.best(buy=True), coin.book.best(buy=False)
    return coin.book.last_px if bid is None or ask is None else (bid + ask) // 2

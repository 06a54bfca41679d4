"""Answers about an address: margin, orders, fills, funding, fees, agents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bot.clock import DAY_MS, datetime_of
from bot.local_exchange.engine import admission, fees, margins
from bot.local_exchange.engine.records import ExchangeOrder
from bot.local_exchange.engine.state import Exchange, User, account_of, find_order, leverage_of
from bot.local_exchange.engine.venue_rules import E8, div_up, notional_of
from bot.local_exchange.wire import rows
from bot.local_exchange.wire.actions import CLOID, Malformed, number
from bot.local_exchange.wire.queries import (
    ANYONE,
    FILL_ROWS,
    RANGE_ROWS,
    Json,
    Query,
    dex_in,
    range_in,
    text_in,
    user_in,
)
from bot.money import parse_e8


def clearinghouse_state(exchange: Exchange, query: Query) -> Json:
    user, dex = user_in(exchange, query), dex_in(exchange, query)
    if user is ANYONE:
        zero = {"accountValue": "0.0", "totalNtlPos": "0.0", "totalRawUsd": "0.0", "totalMarginUsed": "0.0"}
        money = {"crossMaintenanceMarginUsed": "0.0", "withdrawable": "0.0", "assetPositions": []}
        return {"marginSummary": zero, "crossMarginSummary": zero, **money, "time": exchange.now_ms}
    return rows.clearinghouse(exchange, user, dex.name)


def live_orders(exchange: Exchange, user: User, dex: str) -> list[ExchangeOrder]:
    """Open orders of a dex, newest first. Waiting children are rows of their own if the switch says so."""
    twice = exchange.switch("children_rows") == "twice"
    orders = (o for o in user.orders.values() if exchange.coins[o.coin].dex == dex and (o.is_live or twice))
    return sorted(orders, key=lambda order: -order.oid)


def open_orders(exchange: Exchange, query: Query) -> list[Json]:
    orders = []
    for order in live_orders(exchange, user_in(exchange, query), dex_in(exchange, query).name):
        row = rows.basic_order(order, order.sz)
        orders.append(row | {"reduceOnly": True} if order.reduce_only else row)
    return orders


def frontend_open_orders(exchange: Exchange, query: Query) -> list[Json]:
    orders = live_orders(exchange, user_in(exchange, query), dex_in(exchange, query).name)
    return [rows.full_order(exchange, order, order.sz) for order in orders]


def order_status(exchange: Exchange, query: Query) -> Json:
    """An order as its last status left it: `sz` of a partly filled open order is the size at opening."""
    key, user = query.get("oid"), user_in(exchange, query)
    if isinstance(key, str):
        if not CLOID.fullmatch(key):
            raise Malformed("oid: expected a number, or a cloid of 0x and 32 hexadecimal digits")
        order = find_order(exchange, user, key.lower())
    else:
        order = find_order(exchange, user, number(key, "oid"))
    if order is None or user is ANYONE:
        return {"status": "unknownOid"}
    return {"status": "order", "order": history_row(exchange, order)}


def history_row(exchange: Exchange, order: ExchangeOrder) -> Json:
    row = rows.full_order(exchange, order, order.told_sz)
    return {"order": row, "status": order.status, "statusTimestamp": order.status_ms or order.at_ms}


def historical_orders(exchange: Exchange, query: Query) -> list[Json]:
    return [history_row(exchange, order) for order in reversed(user_in(exchange, query).history)]


def user_fills(exchange: Exchange, query: Query) -> list[Json]:
    fills = user_in(exchange, query).fills
    newest = [fills[-1 - index] for index in range(min(FILL_ROWS, len(fills)))]
    return aggregated([rows.fill(row) for row in newest], query)


def user_fills_by_time(exchange: Exchange, query: Query) -> list[Json]:
    start, end = range_in(exchange, query)
    fills = [rows.fill(row) for row in user_in(exchange, query).fills if start <= row.time <= end]
    fills = fills[::-1] if query.get("reversed") else fills
    return aggregated(fills[:FILL_ROWS], query)


def aggregated(fills: list[Json], query: Query) -> list[Json]:
    """With aggregateByTime the partial fills of one crossing order at one instant are one row."""
    if query.get("aggregateByTime") is not True:
        return fills
    by_key: dict[Any, Json] = {}
    for row in fills:
        key = (row["time"], row["oid"], row["px"]) if row["crossed"] else (row["tid"], row["oid"])
        same = by_key.setdefault(key, row)
        if same is not row:
            for name in ("sz", "fee", "closedPnl"):
                total = parse_e8(same[name]) + parse_e8(row[name])
                by_key[key] = same = same | {name: rows.amount(total)}
    return list(by_key.values())


def _timed(exchange: Exchange, query: Query, rows: Iterable[Any]) -> list[Any]:
    start, end = range_in(exchange, query)
    return [row for row in rows if start <= row[0] <= end][:RANGE_ROWS]


def user_funding(exchange: Exchange, query: Query) -> list[Json]:
    return [rows.funding_row(row) for row in _timed(exchange, query, user_in(exchange, query).fundings)]


def ledger_row(row: tuple[int, Json, str]) -> Json:
    delta = row[1]
    if delta["type"] == "liquidation":
        positions = [{**taken, "szi": rows.amount(taken["szi"])} for taken in delta["liquidatedPositions"]]
        value = rows.usd(delta["accountValue"])
        delta = {**delta, "accountValue": value, "liquidatedPositions": positions}
    return {"time": row[0], "hash": row[2], "delta": delta}


def ledger_updates(exchange: Exchange, query: Query) -> list[Json]:
    return [ledger_row(row) for row in _timed(exchange, query, user_in(exchange, query).ledger_rows)]


def user_rate_limit(exchange: Exchange, query: Query) -> Json:
    user = user_in(exchange, query)
    cap = admission.budget_of(user)
    used = {"nRequestsUsed": user.requests, "nRequestsCap": cap, "nRequestsSurplus": user.reserved_requests}
    return {"cumVlm": rows.amount(user.volume), **used}


def _fraction(rate: int) -> str:
    return rows.amount(rate)


def user_fees(exchange: Exchange, query: Query) -> Json:
    user = user_in(exchange, query)
    taker, maker = fees.rates_of(exchange, user)
    spot = {"spotCross": "0.0007", "spotAdd": "0.0004"}
    vip = [
        {"ntlCutoff": rows.amount(least * E8), "cross": _fraction(cross), "add": _fraction(add), **spot}
        for least, cross, add in fees.TIERS[1:]
    ]
    days = [
        {
            "date": datetime_of(day * DAY_MS).date().isoformat(),
            "userCross": rows.usd(cross),
            "userAdd": rows.usd(add),
            "exchange": rows.usd(cross + add),
        }
        for day, (cross, add) in user.day_volume.items()
    ]
    return {
        "dailyUserVlm": days,
        "feeSchedule": {
            "cross": _fraction(fees.TIERS[0][1]),
            "add": _fraction(fees.TIERS[0][2]),
            **spot,
            "tiers": {"vip": vip, "mm": []},
            "referralDiscount": "0.04",
            "stakingDiscountTiers": [{"bpsOfMaxSupply": "0.0", "discount": "0.0"}],
        },
        "userCrossRate": _fraction(taker),
        "userAddRate": _fraction(maker),
        "userSpotCrossRate": "0.0007",
        "userSpotAddRate": "0.0004",
        "activeReferralDiscount": "0.0",
        "trial": None,
        "feeTrialReward": "0.0",
        "nextTrialAvailableTimestamp": None,
        "stakingLink": None,
        "activeStakingDiscount": {"bpsOfMaxSupply": "0.0", "discount": "0.0"},
    }


PERIODS: Final = (("day", DAY_MS), ("week", 7 * DAY_MS), ("month", 30 * DAY_MS), ("allTime", None))


def portfolio(exchange: Exchange, query: Query) -> list[Any]:
    """Account values of each hour. The periods of perps alone are the same, because there is no spot trading."""
    user = user_in(exchange, query)
    periods = []
    for prefix in ("", "perp"):
        for name, length in PERIODS:
            since = 0 if length is None else exchange.now_ms - length
            values = [[at, rows.usd(value)] for at, value, _ in user.values if at >= since]
            profit = [[at, rows.usd(pnl)] for at, _, pnl in user.values if at >= since]
            title = prefix + (name[0].upper() + name[1:] if prefix else name)
            periods.append([title, {"accountValueHistory": values, "pnlHistory": profit, "vlm": rows.usd(user.volume)}])
    return periods


def active_asset_data(exchange: Exchange, query: Query) -> Json | None:
    user, coin = user_in(exchange, query), exchange.coins.get(text_in(query, "coin"))
    if coin is None:
        return None
    mark = coin.market.mark
    free = 0 if user is ANYONE else max(0, margins.free_of(exchange, user, coin.dex))
    power = free * leverage_of(exchange, user, coin.name)[1]
    size = power * E8 // mark // coin.market.lot * coin.market.lot
    position = None if user is ANYONE else account_of(exchange, user.address, coin.dex).positions.get(coin.name)
    held = {True: 0, False: 0}
    if position is not None:
        held[position.side < 0] = 2 * position.size
    sizes = [size + held[buy] for buy in (True, False)]
    margin = [div_up(notional_of(mark, max_size), leverage_of(exchange, user, coin.name)[1]) for max_size in sizes]
    return {
        "user": user.address,
        "coin": coin.name,
        "leverage": rows.leverage(exchange, user, coin, position),
        "maxTradeSzs": [rows.amount(max_size) for max_size in sizes],
        "availableToTrade": [rows.usd(usd) for usd in margin],
        "markPx": rows.amount(mark),
    }


def extra_agents(exchange: Exchange, query: Query) -> list[Json]:
    agents = [agent for agent in user_in(exchange, query).agents.values() if agent.name]
    return [{"name": agent.name, "address": agent.address, "validUntil": agent.valid_until} for agent in agents]


def user_role(exchange: Exchange, query: Query) -> Json:
    address = text_in(query, "user").lower()
    agent = exchange.agents.get(address)
    if agent is not None:
        return {"role": "agent", "data": {"user": agent.master}}
    user = exchange.users.get(address)
    if user is None:
        return {"role": "missing"}
    return {"role": "user"} if user.master is None else {"role": "subAccount", "data": {"master": user.master}}


def sub_accounts(exchange: Exchange, query: Query) -> list[Json] | None:
    user = user_in(exchange, query)
    subs = [sub for sub in exchange.users.values() if sub.master == user.address]
    return [
        {
            "name": sub.name,
            "subAccountUser": sub.address,
            "master": user.address,
            "clearinghouseState": rows.clearinghouse(exchange, sub, ""),
            "spotState": _balances(sub),
        }
        for sub in subs
    ] or None


def _balances(user: User) -> Json:
    if not user.spot_usd:
        return {"balances": []}
    row = {"coin": rows.COLLATERAL, "token": 0, "hold": "0.0", "total": rows.usd(user.spot_usd), "entryNtl": "0.0"}
    return {"balances": [row]}


def spot_state(exchange: Exchange, query: Query) -> Json:
    return _balances(user_in(exchange, query))


def max_builder_fee(exchange: Exchange, query: Query) -> int:
    return user_in(exchange, query).builders.get(text_in(query, "builder").lower(), 0)


def referral(exchange: Exchange, query: Query) -> Json:
    user = user_in(exchange, query)
    return {
        "referredBy": None,
        "cumVlm": rows.amount(user.volume),
        "unclaimedRewards": "0.0",
        "claimedRewards": "0.0",
        "builderRewards": "0.0",
        "referrerState": None,
        "rewardHistory": [],
    }

"""Requests of `/info`: one table with the function and the weight of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, datetime_of, ms_of
from bot.local_exchange.engine import admission, candles, fees, margins, timeline
from bot.local_exchange.engine.records import Order
from bot.local_exchange.engine.state import Coin, Dex, Exchange, User, account_of, find_order, leverage_of
from bot.local_exchange.engine.venue_rules import E8, div_up, notional_of
from bot.local_exchange.wire import rows
from bot.local_exchange.wire.actions import CLOID, Malformed, number
from bot.local_exchange.wire.signatures import ADDRESS
from bot.money import parse_e8

Json = dict[str, Any]
Query = Mapping[str, Any]

RANGE_ROWS: Final = 500  # of an answer over a range of time
FILL_ROWS: Final = 2_000
NO_HASH: Final = "0x" + "0" * 64
NO_USER: Final = "0x" + "0" * 40
ANYONE: Final = User(NO_USER)  # an address that the exchange does not know: every list is empty

INTERVALS: Final = {
    **{f"{n}m": n * MINUTE_MS for n in (1, 3, 5, 15, 30)},
    **{f"{n}h": n * HOUR_MS for n in (1, 2, 4, 8, 12)},
    "1d": DAY_MS,
    "3d": 3 * DAY_MS,
    "1w": 7 * DAY_MS,
    "1M": 0,
}


class ServerFault(Exception):
    """The exchange answers this request with HTTP 500 and the body `null`."""


class Request(NamedTuple):
    """`per`: one more unit of weight for so many rows; 0 for none."""

    answer: Callable[[Exchange, Query], Any]
    weight: int = 20
    per: int = 0


# ── Fields of a query ───────────────────────────────────────────────────────────────────────────────────────────────


def _text(query: Query, name: str, default: str | None = None) -> str:
    value = query.get(name, default)
    if value is None and default is not None:
        value = default
    if not isinstance(value, str):
        raise Malformed(f"{name}: expected text, found {value!r}")
    return value


def user_in(exchange: Exchange, query: Query) -> User:
    """The user of a query. An agent or an unknown address has empty lists."""
    address = _text(query, "user").lower()
    if not ADDRESS.fullmatch(address):
        raise Malformed(f"user: expected an address of 40 hexadecimal digits, found {address[:60]!r}")
    return exchange.users.get(address) or ANYONE


def dex_in(exchange: Exchange, query: Query) -> Dex:
    name = _text(query, "dex", "")
    for dex in exchange.dexes:
        if dex.name == name:
            return dex
    raise ServerFault(name)


def _range(exchange: Exchange, query: Query) -> tuple[int, int]:
    """Start and end in milliseconds, both inclusive."""
    start = number(query.get("startTime"), "startTime")
    end = query.get("endTime")
    return start, exchange.now_ms if end is None else number(end, "endTime")


# ── Markets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def meta(exchange: Exchange, query: Query) -> Json:
    return _meta_of(exchange, dex_in(exchange, query))


def _meta_of(exchange: Exchange, dex: Dex) -> Json:
    universe, tables = [], {}
    for name in dex.coins:
        coin = exchange.coins[name]
        spec = coin.market.spec
        row: Json = {"name": name, "szDecimals": spec.sz_decimals, "maxLeverage": spec.max_leverage}
        row["marginTableId"] = coin.margin_table
        if coin.mode != "normal":
            row |= {"onlyIsolated": True, "marginMode": coin.mode}
        if coin.is_delisted:
            row["isDelisted"] = True
        if dex.growth:
            row["growthMode"] = "enabled"
        universe.append(row)
        tables[coin.margin_table] = _margin_table(coin)
    return {"universe": universe, "marginTables": sorted(map(list, tables.items())), "collateralToken": 0}


def _margin_table(coin: Coin) -> Json:
    tiers = [{"lowerBound": rows.usd(tier.lower), "maxLeverage": tier.max_leverage} for tier in coin.market.tiers]
    return {"description": "" if len(tiers) == 1 else f"tiers of {coin.name}", "marginTiers": tiers}


def context_of(exchange: Exchange, coin: Coin) -> Json:
    return rows.asset_context(exchange, coin, timeline.funding_rate(coin, coin.premium))


def meta_and_contexts(exchange: Exchange, query: Query) -> list[Any]:
    dex = dex_in(exchange, query)
    return [_meta_of(exchange, dex), [context_of(exchange, exchange.coins[name]) for name in dex.coins]]


def all_perp_metas(exchange: Exchange, query: Query) -> list[Json]:
    return [_meta_of(exchange, dex) for dex in exchange.dexes]


def perp_dexs(exchange: Exchange, query: Query) -> list[Any]:
    found: list[Any] = [None]
    for dex in exchange.dexes[1:]:
        found.append(
            {
                "name": dex.name,
                "fullName": dex.full_name,
                "deployer": "0x" + "d0" * 20,
                "oracleUpdater": None,
                "feeRecipient": None,
                "assetToStreamingOiCap": [[coin, "100000000.0"] for coin in dex.coins],
                "assetToFundingMultiplier": [[coin, "1.0"] for coin in dex.coins],
                "subDeployers": [],
                "deployerFeeScale": rows.amount(dex.fee_scale),
                "lastDeployerFeeScaleChangeTime": "1970-01-01T00:00:00",
                "assetToFundingInterestRate": [],
            }
        )
    return found


def all_mids(exchange: Exchange, query: Query) -> Json:
    dex = dex_in(exchange, query)
    listed = (exchange.coins[name] for name in dex.coins)
    return {coin.name: rows.amount(rows.mid_of(coin)) for coin in listed if not coin.is_delisted}


def l2_book(exchange: Exchange, query: Query) -> Json | None:
    """The book, best first, at most 20 levels. An unknown coin has null; a bad aggregation is a fault of the server."""
    coin = exchange.coins.get(_text(query, "coin"))
    figures, mantissa = query.get("nSigFigs"), query.get("mantissa")
    if figures not in (None, 2, 3, 4, 5) or mantissa not in (None, 1, 2, 5) or (mantissa is not None and figures != 5):
        raise ServerFault("aggregation")
    if coin is None:
        return None
    step = None if figures is None else (figures, mantissa or 1)
    levels = rows.book_levels(coin, 20, step)
    answer: Json = {"coin": coin.name, "time": exchange.now_ms, "levels": levels}
    if figures is not None and all(levels):
        answer["spread"] = rows.amount(
            (coin.book.best(buy=False) or 0) - (coin.book.best(buy=True) or 0),
        )
    return answer


def recent_trades(exchange: Exchange, query: Query) -> list[Json]:
    coin = exchange.coins.get(_text(query, "coin"))
    return [] if coin is None else [rows.trade(row) for row in reversed(coin.trades)]


def candles_of(coin: Coin, interval: str, start: int, end: int) -> list[Json]:
    """Candles that open in this range, made from those of a minute or an hour."""
    length = INTERVALS[interval]
    base = MINUTE_MS if 0 < length < HOUR_MS else HOUR_MS
    sums: dict[int, list[int]] = {}
    for opened, o, h, low, c, v, n in coin.candles.get(base, ()):
        if not opened <= end or (opened < start and length == base):
            continue
        at = _month_of(opened) if length == 0 else opened - opened % length
        row = sums.setdefault(at, [o, h, low, c, 0, 0])
        row[1], row[2], row[3] = max(row[1], h), min(row[2], low), c
        row[4] += v
        row[5] += n
    found = []
    for at, (o, h, low, c, v, n) in sums.items():
        if start <= at <= end:
            closed = (_month_of(at + 31 * DAY_MS) if length == 0 else at + length) - 1
            prices = {"o": rows.amount(o), "c": rows.amount(c), "h": rows.amount(h), "l": rows.amount(low)}
            found.append({"t": at, "T": closed, "s": coin.name, "i": interval, **prices, "v": rows.amount(v), "n": n})
    return found[-candles.CANDLES_KEPT :]


def _month_of(at_ms: int) -> int:
    return ms_of(datetime_of(at_ms).replace(day=1, hour=0, minute=0, second=0, microsecond=0))


def candle_snapshot(exchange: Exchange, query: Query) -> list[Json]:
    asked = query.get("req")
    if not isinstance(asked, dict):
        raise Malformed("req: expected an object")
    coin, interval = exchange.coins.get(_text(asked, "coin")), _text(asked, "interval")
    if interval not in INTERVALS:
        raise Malformed(f"interval: expected one of {', '.join(INTERVALS)}, found {interval[:20]!r}")
    start, end = _range(exchange, asked)
    return [] if coin is None else candles_of(coin, interval, start, end)


def funding_history(exchange: Exchange, query: Query) -> list[Json]:
    coin = exchange.coins.get(_text(query, "coin"))
    start, end = _range(exchange, query)
    found = [] if coin is None else [row for row in coin.funding_history if start <= row[0] <= end]
    return [
        {"coin": coin.name, "fundingRate": rows.rate(rate), "premium": rows.rate(premium), "time": at}
        for at, rate, premium in found[:RANGE_ROWS]
        if coin is not None
    ]


def predicted_fundings(exchange: Exchange, query: Query) -> list[Any]:
    found = []
    for name in exchange.dexes[0].coins:
        coin = exchange.coins[name]
        rate = rows.rate(timeline.funding_rate(coin, coin.premium))
        found.append([name, [["HlPerp", {"fundingRate": rate, "nextFundingTime": exchange.next_hour_ms}]]])
    return found


def margin_table(exchange: Exchange, query: Query) -> Json | None:
    wanted = number(query.get("id"), "id")
    found = (coin for coin in exchange.coins.values() if coin.margin_table == wanted)
    coin = next(found, None)
    return None if coin is None else _margin_table(coin)


def spot_meta(exchange: Exchange, query: Query) -> Json:
    """One token and no pair: perps only."""
    token = {
        "name": rows.COLLATERAL,
        "szDecimals": 8,
        "weiDecimals": 8,
        "index": 0,
        "tokenId": "0x" + "6d" * 16,
        "isCanonical": True,
        "evmContract": None,
        "fullName": None,
    }
    return {"tokens": [token], "universe": []}


# ── Accounts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def clearinghouse_state(exchange: Exchange, query: Query) -> Json:
    user, dex = user_in(exchange, query), dex_in(exchange, query)
    if user is ANYONE:
        zero = {"accountValue": "0.0", "totalNtlPos": "0.0", "totalRawUsd": "0.0", "totalMarginUsed": "0.0"}
        money = {"crossMaintenanceMarginUsed": "0.0", "withdrawable": "0.0", "assetPositions": []}
        return {"marginSummary": zero, "crossMarginSummary": zero, **money, "time": exchange.now_ms}
    return rows.clearinghouse(exchange, user, dex.name)


def live_orders(exchange: Exchange, user: User, dex: str) -> list[Order]:
    """Open orders of a dex, newest first. Waiting children are rows of their own if the switch says so."""
    twice = exchange.switch("children_rows") == "twice"
    orders = (o for o in user.orders.values() if exchange.coins[o.coin].dex == dex and (o.is_live or twice))
    return sorted(orders, key=lambda order: -order.oid)


def open_orders(exchange: Exchange, query: Query) -> list[Json]:
    found = []
    for order in live_orders(exchange, user_in(exchange, query), dex_in(exchange, query).name):
        row = rows.basic_order(order, order.sz)
        found.append(row | {"reduceOnly": True} if order.reduce_only else row)
    return found


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


def history_row(exchange: Exchange, order: Order) -> Json:
    row = rows.full_order(exchange, order, order.told_sz)
    return {"order": row, "status": order.status, "statusTimestamp": order.status_ms or order.at_ms}


def historical_orders(exchange: Exchange, query: Query) -> list[Json]:
    return [history_row(exchange, order) for order in reversed(user_in(exchange, query).history)]


def user_fills(exchange: Exchange, query: Query) -> list[Json]:
    fills = user_in(exchange, query).fills
    newest = [fills[-1 - index] for index in range(min(FILL_ROWS, len(fills)))]
    return aggregated([rows.fill(row) for row in newest], query)


def user_fills_by_time(exchange: Exchange, query: Query) -> list[Json]:
    start, end = _range(exchange, query)
    found = [rows.fill(row) for row in user_in(exchange, query).fills if start <= row.time <= end]
    found = found[::-1] if query.get("reversed") else found
    return aggregated(found[:FILL_ROWS], query)


def aggregated(fills: list[Json], query: Query) -> list[Json]:
    """With aggregateByTime the partial fills of one crossing order at one instant are one row."""
    if query.get("aggregateByTime") is not True:
        return fills
    found: dict[Any, Json] = {}
    for row in fills:
        key = (row["time"], row["oid"], row["px"]) if row["crossed"] else (row["tid"], row["oid"])
        same = found.setdefault(key, row)
        if same is not row:
            for name in ("sz", "fee", "closedPnl"):
                total = parse_e8(same[name]) + parse_e8(row[name])
                found[key] = same = same | {name: rows.amount(total)}
    return list(found.values())


def _timed(exchange: Exchange, query: Query, found: Iterable[Any]) -> list[Any]:
    start, end = _range(exchange, query)
    return [row for row in found if start <= row[0] <= end][:RANGE_ROWS]


def user_funding(exchange: Exchange, query: Query) -> list[Json]:
    return [rows.funding_row(row) for row in _timed(exchange, query, user_in(exchange, query).fundings)]


def ledger_row(row: tuple[int, Json]) -> Json:
    return {"time": row[0], "hash": NO_HASH, "delta": row[1]}


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
    found = []
    for prefix in ("", "perp"):
        for name, length in PERIODS:
            since = 0 if length is None else exchange.now_ms - length
            values = [[at, rows.usd(value)] for at, value, _ in user.values if at >= since]
            profit = [[at, rows.usd(pnl)] for at, _, pnl in user.values if at >= since]
            title = prefix + (name[0].upper() + name[1:] if prefix else name)
            found.append([title, {"accountValueHistory": values, "pnlHistory": profit, "vlm": rows.usd(user.volume)}])
    return found


def active_asset_data(exchange: Exchange, query: Query) -> Json | None:
    user, coin = user_in(exchange, query), exchange.coins.get(_text(query, "coin"))
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
    margin = [div_up(notional_of(mark, one), leverage_of(exchange, user, coin.name)[1]) for one in sizes]
    return {
        "user": user.address,
        "coin": coin.name,
        "leverage": rows.leverage(exchange, user, coin, position),
        "maxTradeSzs": [rows.amount(one) for one in sizes],
        "availableToTrade": [rows.usd(one) for one in margin],
        "markPx": rows.amount(mark),
    }


def extra_agents(exchange: Exchange, query: Query) -> list[Json]:
    agents = [agent for agent in user_in(exchange, query).agents.values() if agent.name]
    return [{"name": one.name, "address": one.address, "validUntil": one.valid_until} for one in agents]


def user_role(exchange: Exchange, query: Query) -> Json:
    address = _text(query, "user").lower()
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
    return user_in(exchange, query).builders.get(_text(query, "builder").lower(), 0)


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


def nothing(value: Any) -> Callable[[Exchange, Query], Any]:
    """An answer that does not depend on the query: what it asks for does not exist here."""
    return lambda exchange, query: value


def for_user(value: Any) -> Callable[[Exchange, Query], Any]:
    def answer(exchange: Exchange, query: Query) -> Any:
        user_in(exchange, query)
        return value

    return answer


ORDER_LIMITS: Final = [[50, "30000000.0"], [24, "5000000.0"], [19, "2000000.0"], [9, "500000.0"]]
STAKING: Final = {"delegated": "0.0", "undelegated": "0.0", "totalPendingWithdrawal": "0.0", "nPendingWithdrawals": 0}

REQUESTS: Final[Mapping[str, Request]] = {
    "meta": Request(meta),
    "metaAndAssetCtxs": Request(meta_and_contexts),
    "allPerpMetas": Request(all_perp_metas),
    "perpDexs": Request(perp_dexs),
    "allMids": Request(all_mids, 2),
    "l2Book": Request(l2_book, 2),
    "recentTrades": Request(recent_trades, per=20),
    "candleSnapshot": Request(candle_snapshot, per=60),
    "fundingHistory": Request(funding_history, per=20),
    "predictedFundings": Request(predicted_fundings),
    "perpsAtOpenInterestCap": Request(nothing([])),
    "perpDexStatus": Request(nothing({"totalNetDeposit": "0.0"})),
    "marginTable": Request(margin_table),
    "maxMarketOrderNtls": Request(nothing(ORDER_LIMITS)),
    "exchangeStatus": Request(lambda exchange, query: {"time": exchange.now_ms, "specialStatuses": None}, 2),
    "spotMeta": Request(spot_meta),
    "spotMetaAndAssetCtxs": Request(lambda exchange, query: [spot_meta(exchange, query), []]),
    "outcomeMeta": Request(nothing({"outcomes": [], "questions": []})),
    "clearinghouseState": Request(clearinghouse_state, 2),
    "openOrders": Request(open_orders),
    "frontendOpenOrders": Request(frontend_open_orders),
    "orderStatus": Request(order_status, 2),
    "historicalOrders": Request(historical_orders, per=20),
    "userFills": Request(user_fills, per=20),
    "userFillsByTime": Request(user_fills_by_time, per=20),
    "userFunding": Request(user_funding, per=20),
    "userNonFundingLedgerUpdates": Request(ledger_updates, per=20),
    "userRateLimit": Request(user_rate_limit),
    "userFees": Request(user_fees),
    "portfolio": Request(portfolio),
    "activeAssetData": Request(active_asset_data),
    "extraAgents": Request(extra_agents),
    "userRole": Request(user_role, 60),
    "subAccounts": Request(sub_accounts),
    "spotClearinghouseState": Request(spot_state, 2),
    "userAbstraction": Request(for_user("disabled")),
    "userDexAbstraction": Request(for_user(value=False)),
    "maxBuilderFee": Request(max_builder_fee),
    "approvedBuilders": Request(lambda exchange, query: list(user_in(exchange, query).builders)),
    "twapHistory": Request(for_user([]), per=20),
    "userTwapSliceFills": Request(for_user([]), per=20),
    "userTwapSliceFillsByTime": Request(for_user([]), per=20),
    "referral": Request(referral),
    "userVaultEquities": Request(for_user([])),
    "delegations": Request(for_user([])),
    "delegatorSummary": Request(for_user(STAKING)),
    "delegatorHistory": Request(for_user([]), per=20),
    "delegatorRewards": Request(for_user([]), per=20),
}


def answer(exchange: Exchange, query: Any) -> tuple[Any, int]:
    """The answer to a query and its weight. Malformed or ServerFault otherwise."""
    if not isinstance(query, dict) or not isinstance(query.get("type"), str):
        raise Malformed("missing field `type`")
    request = REQUESTS.get(query["type"])
    if request is None:
        raise Malformed(f"unknown variant `{query['type']}`, expected one of {', '.join(REQUESTS)}")
    found = request.answer(exchange, query)
    more = len(found) // request.per if request.per and isinstance(found, list) else 0
    return found, request.weight + more

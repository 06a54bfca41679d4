"""Answers about markets: listings, prices, books, candles, funding."""

from __future__ import annotations

from typing import Any

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, datetime_of, ms_of
from bot.local_exchange.engine import candles, timeline
from bot.local_exchange.engine.state import Coin, Dex, Exchange
from bot.local_exchange.wire import rows
from bot.local_exchange.wire.actions import Malformed, number
from bot.local_exchange.wire.queries import INTERVALS, RANGE_ROWS, Json, Query, ServerFault, dex_in, range_in, text_in


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
        tables[coin.margin_table] = margin_table_of(coin)
    return {"universe": universe, "marginTables": sorted(map(list, tables.items())), "collateralToken": 0}


def margin_table_of(coin: Coin) -> Json:
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
    dexs: list[Any] = [None]
    for dex in exchange.dexes[1:]:
        dexs.append(
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
    return dexs


def all_mids(exchange: Exchange, query: Query) -> Json:
    dex = dex_in(exchange, query)
    listed = (exchange.coins[name] for name in dex.coins)
    return {coin.name: rows.amount(rows.mid_of(coin)) for coin in listed if not coin.is_delisted}


def l2_book(exchange: Exchange, query: Query) -> Json | None:
    """The book, best first, at most 20 levels. An unknown coin has null; a bad aggregation is a fault of the server."""
    coin = exchange.coins.get(text_in(query, "coin"))
    figures, mantissa = query.get("nSigFigs"), query.get("mantissa")
    if figures not in (None, 2, 3, 4, 5) or mantissa not in (None, 1, 2, 5) or (mantissa is not None and figures != 5):
        raise ServerFault("aggregation")
    if coin is None:
        return None
    step = None if figures is None else (figures, mantissa or 1)
    levels = rows.book_levels(coin, 20, step)
    answer: Json = {"coin": coin.name, "time": exchange.now_ms, "levels": levels}
    if figures is not None and all(levels):
        answer["spread"] = rows.amount((coin.book.best(buy=False) or 0) - (coin.book.best(buy=True) or 0))
    return answer


def recent_trades(exchange: Exchange, query: Query) -> list[Json]:
    coin = exchange.coins.get(text_in(query, "coin"))
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
    candle_rows = []
    for at, (o, h, low, c, v, n) in sums.items():
        if start <= at <= end:
            closed = (_month_of(at + 31 * DAY_MS) if length == 0 else at + length) - 1
            prices = {"o": rows.amount(o), "c": rows.amount(c), "h": rows.amount(h), "l": rows.amount(low)}
            candle_rows.append(
                {"t": at, "T": closed, "s": coin.name, "i": interval, **prices, "v": rows.amount(v), "n": n}
            )
    return candle_rows[-candles.CANDLES_KEPT :]


def _month_of(at_ms: int) -> int:
    return ms_of(datetime_of(at_ms).replace(day=1, hour=0, minute=0, second=0, microsecond=0))


def candle_snapshot(exchange: Exchange, query: Query) -> list[Json]:
    asked = query.get("req")
    if not isinstance(asked, dict):
        raise Malformed("req: expected an object")
    coin, interval = exchange.coins.get(text_in(asked, "coin")), text_in(asked, "interval")
    if interval not in INTERVALS:
        raise Malformed(f"interval: expected one of {', '.join(INTERVALS)}, found {interval[:20]!r}")
    start, end = range_in(exchange, asked)
    return [] if coin is None else candles_of(coin, interval, start, end)


def funding_history(exchange: Exchange, query: Query) -> list[Json]:
    coin = exchange.coins.get(text_in(query, "coin"))
    start, end = range_in(exchange, query)
    history = [] if coin is None else [row for row in coin.funding_history if start <= row[0] <= end]
    return [
        {"coin": coin.name, "fundingRate": rows.rate(rate), "premium": rows.rate(premium), "time": at}
        for at, rate, premium in history[:RANGE_ROWS]
        if coin is not None
    ]


def predicted_fundings(exchange: Exchange, query: Query) -> list[Any]:
    predicted = []
    for name in exchange.dexes[0].coins:
        coin = exchange.coins[name]
        rate = rows.rate(timeline.funding_rate(coin, coin.premium))
        predicted.append([name, [["HlPerp", {"fundingRate": rate, "nextFundingTime": exchange.next_hour_ms}]]])
    return predicted


def margin_table(exchange: Exchange, query: Query) -> Json | None:
    wanted = number(query.get("id"), "id")
    matching = (coin for coin in exchange.coins.values() if coin.margin_table == wanted)
    coin = next(matching, None)
    return None if coin is None else margin_table_of(coin)


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

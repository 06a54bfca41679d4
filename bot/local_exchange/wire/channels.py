"""Channels of the WebSocket: one table with what a subscription needs, its first message, and what it tells later.

A channel tells reports of the engine as they come (`of_reports`), or its whole state when that has changed (`state`, at
most once in `every_ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bot.local_exchange.engine.records import Report
from bot.local_exchange.engine.state import Exchange
from bot.local_exchange.wire import account_answers as accounts
from bot.local_exchange.wire import market_answers as markets
from bot.local_exchange.wire import queries, rows
from bot.local_exchange.wire.actions import Malformed

Json = dict[str, Any]
Subscription = Mapping[str, Any]

# rhythm of account states
SLOW_MS: Final = 5_000
BOOK_MS: Final = 500


class InvalidSubscription(ValueError):
    """The subscription names an unknown type, or lacks a field."""


class Channel(NamedTuple):
    """`needs`: fields that must be there; `may`: optional ones with their defaults, which the echo shows.

    `name`: of the messages.
    """

    name: str
    needs: tuple[str, ...]
    may: Mapping[str, Any]
    state: Callable[[Exchange, Subscription], Any] | None = None
    every_ms: int = 0
    snapshot: Callable[[Exchange, Subscription], list[Any]] | None = None
    of_reports: Callable[[Exchange, Subscription, Sequence[Report]], list[Any]] | None = None
    # told every 5 s also without a change
    is_slow: bool = False


def _mine(reports: Sequence[Report], kind: str, subscription: Subscription) -> list[Any]:
    return [report.row for report in reports if report.kind == kind and report.user == subscription["user"]]


# ── States ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _all_mids(exchange: Exchange, sub: Subscription) -> Json:
    mids: Json = {"mids": markets.all_mids(exchange, sub)}
    return {"dex": sub["dex"], **mids} if sub.get("dex") else mids


def _l2_book(exchange: Exchange, sub: Subscription) -> Any:
    answer = markets.l2_book(exchange, sub)
    if answer is not None and sub.get("fast"):
        answer["levels"] = [levels[:5] for levels in answer["levels"]]
    return answer


def _bbo(exchange: Exchange, sub: Subscription) -> Json:
    levels = rows.book_levels(exchange.coins[sub["coin"]], 1)
    return {"coin": sub["coin"], "time": exchange.now_ms, "bbo": [side[0] if side else None for side in levels]}


def _candle(exchange: Exchange, sub: Subscription) -> Any:
    candle_rows = markets.candles_of(
        exchange.coins[sub["coin"]], sub["interval"], exchange.now_ms - 40 * 86_400_000, exchange.now_ms
    )
    return candle_rows[-1] if candle_rows else None


def _asset_context(exchange: Exchange, sub: Subscription) -> Json:
    return {"coin": sub["coin"], "ctx": markets.context_of(exchange, exchange.coins[sub["coin"]])}


def _clearinghouse(exchange: Exchange, sub: Subscription) -> Json:
    state = accounts.clearinghouse_state(exchange, sub)
    return {"dex": sub["dex"], "user": sub["user"], "clearinghouseState": state}


def _open_orders(exchange: Exchange, sub: Subscription) -> Json:
    return {"dex": sub["dex"], "user": sub["user"], "orders": accounts.frontend_open_orders(exchange, sub)}


def _all_states(exchange: Exchange, sub: Subscription) -> Json:
    states = [[dex.name, accounts.clearinghouse_state(exchange, {**sub, "dex": dex.name})] for dex in exchange.dexes]
    return {"user": sub["user"], "clearinghouseStates": states}


def _all_contexts(exchange: Exchange, sub: Subscription) -> Json:
    contexts = []
    for dex in exchange.dexes:
        contexts.append([dex.name, [markets.context_of(exchange, exchange.coins[coin]) for coin in dex.coins]])
    return {"ctxs": contexts}


def _web_data3(exchange: Exchange, sub: Subscription) -> Json:
    user = queries.user_in(exchange, sub)
    unnamed = user.agents.get("")
    state = {
        "agentAddress": None if unnamed is None else unnamed.address,
        "agentValidUntil": None if unnamed is None else unnamed.valid_until,
        "cumLedger": "0.0",
        "serverTime": exchange.now_ms,
        "isVault": False,
        "user": sub["user"],
    }
    return {"userState": state, "perpDexStates": [{"totalVaultEquity": "0.0"} for _ in exchange.dexes]}


def _web_data2(exchange: Exchange, sub: Subscription) -> Json:
    query = {**sub, "dex": ""}
    metas, contexts = markets.meta_and_contexts(exchange, query)
    return {
        "clearinghouseState": accounts.clearinghouse_state(exchange, query),
        "openOrders": accounts.frontend_open_orders(exchange, query),
        "meta": metas,
        "assetCtxs": contexts,
        "serverTime": exchange.now_ms,
        "user": sub["user"],
        "isVault": False,
    }


# ── Reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _trades(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    trades = [rows.trade(report.row) for report in reports if report.kind == "trade" and report.row.coin == sub["coin"]]
    return [trades] if trades else []


def _order_updates(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    updates = [
        {"order": rows.basic_order(row, row.told_sz), "status": row.status, "statusTimestamp": row.status_ms}
        for row in _mine(reports, "order", sub)
    ]
    return [updates] if updates else []


def _user_events(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    events: list[Any] = []
    fills = [rows.fill(row) for row in _mine(reports, "fill", sub)]
    if fills:
        events.append({"fills": fills})
    for row in _mine(reports, "funding", sub):
        events.append({"funding": _flat_funding(row)})
    for row in _mine(reports, "liquidation", sub):
        money = {name: rows.usd(row[name]) for name in ("liquidated_ntl_pos", "liquidated_account_value")}
        events.append({"liquidation": {**row, **money, "liquidator": queries.NO_USER}})
    canceled = [{"coin": row.coin, "oid": row.oid} for row in _mine(reports, "cancel", sub)]
    if canceled:
        events.append({"nonUserCancel": canceled})
    return events


def _flat_funding(row: tuple[int, str, int, int, int]) -> Json:
    told = rows.funding_row(row)
    delta = told["delta"]
    return {"time": told["time"], **{name: delta[name] for name in delta if name != "type"}}


def _with_user(name: str, sub: Subscription, rows: list[Any], *, is_snapshot: bool = False) -> list[Any]:
    if is_snapshot:
        return [{"isSnapshot": True, "user": sub["user"], name: rows}]
    return [{"user": sub["user"], name: rows}] if rows else []


def _fills_first(exchange: Exchange, sub: Subscription) -> list[Any]:
    return _with_user("fills", sub, accounts.user_fills(exchange, sub), is_snapshot=True)


def _fills(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    fills = accounts.aggregated([rows.fill(row) for row in _mine(reports, "fill", sub)], sub)
    return _with_user("fills", sub, fills)


def _fundings_first(exchange: Exchange, sub: Subscription) -> list[Any]:
    fundings = [_flat_funding(row) for row in queries.user_in(exchange, sub).fundings]
    return _with_user("fundings", sub, fundings, is_snapshot=True)


def _fundings(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    return _with_user("fundings", sub, [_flat_funding(row) for row in _mine(reports, "funding", sub)])


LEDGER: Final = "nonFundingLedgerUpdates"


def _ledger_first(exchange: Exchange, sub: Subscription) -> list[Any]:
    ledger = [accounts.ledger_row(row) for row in queries.user_in(exchange, sub).ledger_rows]
    return _with_user(LEDGER, sub, ledger, is_snapshot=True)


def _ledger(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    return _with_user(LEDGER, sub, [accounts.ledger_row(row) for row in _mine(reports, "ledger", sub)])


def _history_first(exchange: Exchange, sub: Subscription) -> list[Any]:
    return _with_user("orderHistory", sub, accounts.historical_orders(exchange, sub), is_snapshot=True)


def _history(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    history = [accounts.history_row(exchange, row) for row in _mine(reports, "order", sub)]
    return _with_user("orderHistory", sub, history)


def _silent(exchange: Exchange, sub: Subscription, reports: Sequence[Report]) -> list[Any]:
    return []


_AGGREGATE: Final = {"aggregateByTime": False}
_BOOK: Final = {"nSigFigs": None, "mantissa": None, "fast": False}
_DEX: Final = {"dex": ""}

CHANNELS: Final[Mapping[str, Channel]] = {
    "allMids": Channel("allMids", (), _DEX, _all_mids),
    "l2Book": Channel("l2Book", ("coin",), _BOOK, _l2_book, BOOK_MS),
    "bbo": Channel("bbo", ("coin",), {}, _bbo),
    "trades": Channel("trades", ("coin",), {}, of_reports=_trades),
    "candle": Channel("candle", ("coin", "interval"), {}, _candle),
    "activeAssetCtx": Channel("activeAssetCtx", ("coin",), {}, _asset_context),
    "activeAssetData": Channel("activeAssetData", ("user", "coin"), {}, accounts.active_asset_data),
    "orderUpdates": Channel("orderUpdates", ("user",), {}, of_reports=_order_updates),
    "userEvents": Channel("user", ("user",), {}, of_reports=_user_events),
    "userFills": Channel("userFills", ("user",), _AGGREGATE, snapshot=_fills_first, of_reports=_fills),
    "userFundings": Channel("userFundings", ("user",), {}, snapshot=_fundings_first, of_reports=_fundings),
    "userNonFundingLedgerUpdates": Channel(
        "userNonFundingLedgerUpdates", ("user",), {}, snapshot=_ledger_first, of_reports=_ledger
    ),
    "userHistoricalOrders": Channel(
        "userHistoricalOrders", ("user",), {}, snapshot=_history_first, of_reports=_history
    ),
    "notification": Channel("notification", ("user",), {}, of_reports=_silent),
    "clearinghouseState": Channel("clearinghouseState", ("user",), _DEX, _clearinghouse, SLOW_MS, is_slow=True),
    "openOrders": Channel("openOrders", ("user",), _DEX, _open_orders, SLOW_MS, is_slow=True),
    "allDexsClearinghouseState": Channel(
        "allDexsClearinghouseState", ("user",), {}, _all_states, SLOW_MS, is_slow=True
    ),
    "allDexsAssetCtxs": Channel("allDexsAssetCtxs", (), {}, _all_contexts, SLOW_MS),
    "webData2": Channel("webData2", ("user",), {}, _web_data2, SLOW_MS, is_slow=True),
    "webData3": Channel("webData3", ("user",), {}, _web_data3, SLOW_MS, is_slow=True),
}


def normalised(exchange: Exchange, subscription: Any) -> dict[str, Any]:
    """The subscription as the answer echoes it: defaults added, address in lower case.

    InvalidSubscription if it is none.
    """
    if not isinstance(subscription, dict) or str(subscription.get("type")) not in CHANNELS:
        raise InvalidSubscription(str(subscription))
    channel = CHANNELS[subscription["type"]]
    normal: dict[str, Any] = {"type": subscription["type"]}
    for name in channel.needs:
        if not isinstance(subscription.get(name), str):
            raise InvalidSubscription(f"{name} is missing")
        normal[name] = subscription[name].lower() if name == "user" else subscription[name]
    for name, default in channel.may.items():
        given = subscription.get(name)
        normal[name] = default if given is None else given
    if not isinstance(normal.get("dex", ""), str):
        raise InvalidSubscription("dex is text")
    is_known = normal.get("coin", "BTC") in exchange.coins and normal.get("interval", "1m") in queries.INTERVALS
    if not is_known or normal.get("dex", "") not in {dex.name for dex in exchange.dexes}:
        raise InvalidSubscription(str(subscription))
    try:
        if "user" in normal:
            queries.user_in(exchange, normal)
        if channel.state is not None:
            channel.state(exchange, normal)
    except (Malformed, queries.ServerFault) as error:
        raise InvalidSubscription(str(error)) from None
    return normal

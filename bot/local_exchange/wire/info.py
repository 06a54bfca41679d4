"""Requests of `/info`: one table with the function and the weight of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bot.local_exchange.engine.state import Exchange
from bot.local_exchange.wire import account_answers as accounts
from bot.local_exchange.wire import market_answers as markets
from bot.local_exchange.wire.actions import Malformed
from bot.local_exchange.wire.queries import Query, user_in


class Request(NamedTuple):
    """`per`: one more unit of weight for so many rows; 0 for none."""

    answer: Callable[[Exchange, Query], Any]
    weight: int = 20
    per: int = 0


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
    "meta": Request(markets.meta),
    "metaAndAssetCtxs": Request(markets.meta_and_contexts),
    "allPerpMetas": Request(markets.all_perp_metas),
    "perpDexs": Request(markets.perp_dexs),
    "allMids": Request(markets.all_mids, 2),
    "l2Book": Request(markets.l2_book, 2),
    "recentTrades": Request(markets.recent_trades, per=20),
    "candleSnapshot": Request(markets.candle_snapshot, per=60),
    "fundingHistory": Request(markets.funding_history, per=20),
    "predictedFundings": Request(markets.predicted_fundings),
    "perpsAtOpenInterestCap": Request(nothing([])),
    "perpDexStatus": Request(nothing({"totalNetDeposit": "0.0"})),
    "marginTable": Request(markets.margin_table),
    "maxMarketOrderNtls": Request(nothing(ORDER_LIMITS)),
    "exchangeStatus": Request(lambda exchange, query: {"time": exchange.now_ms, "specialStatuses": None}, 2),
    "spotMeta": Request(markets.spot_meta),
    "spotMetaAndAssetCtxs": Request(lambda exchange, query: [markets.spot_meta(exchange, query), []]),
    "outcomeMeta": Request(nothing({"outcomes": [], "questions": []})),
    "clearinghouseState": Request(accounts.clearinghouse_state, 2),
    "openOrders": Request(accounts.open_orders),
    "frontendOpenOrders": Request(accounts.frontend_open_orders),
    "orderStatus": Request(accounts.order_status, 2),
    "historicalOrders": Request(accounts.historical_orders, per=20),
    "userFills": Request(accounts.user_fills, per=20),
    "userFillsByTime": Request(accounts.user_fills_by_time, per=20),
    "userFunding": Request(accounts.user_funding, per=20),
    "userNonFundingLedgerUpdates": Request(accounts.ledger_updates, per=20),
    "userRateLimit": Request(accounts.user_rate_limit),
    "userFees": Request(accounts.user_fees),
    "portfolio": Request(accounts.portfolio),
    "activeAssetData": Request(accounts.active_asset_data),
    "extraAgents": Request(accounts.extra_agents),
    "userRole": Request(accounts.user_role, 60),
    "subAccounts": Request(accounts.sub_accounts),
    "spotClearinghouseState": Request(accounts.spot_state, 2),
    "userAbstraction": Request(for_user("disabled")),
    "userDexAbstraction": Request(for_user(value=False)),
    "maxBuilderFee": Request(accounts.max_builder_fee),
    "approvedBuilders": Request(lambda exchange, query: list(user_in(exchange, query).builders)),
    "twapHistory": Request(for_user([]), per=20),
    "userTwapSliceFills": Request(for_user([]), per=20),
    "userTwapSliceFillsByTime": Request(for_user([]), per=20),
    "referral": Request(accounts.referral),
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

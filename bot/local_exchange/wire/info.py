"""Requests of `/info`: one table with the function and the weight of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bot.local_exchange.engine.state import Exchange
from bot.local_exchange.wire import account_answers as accounts
from bot.local_exchange.wire import market_answers as markets
from bot.local_exchange.wire.actions import Malformed
from bot.local_exchange.wire.queries import Query, user_in


class InfoRequest(NamedTuple):
    """`per`: one more unit of weight for so many rows; 0 for none."""

    answer: Callable[[Exchange, Query], Any]
    weight: int = 20
    per: int = 0


def nothing(value: Any) -> Callable[[Exchange, Query], Any]:
    """Answer every query with this value: what the query asks for does not exist at this exchange."""
    return lambda exchange, query: value


def for_user(value: Any) -> Callable[[Exchange, Query], Any]:
    def answer(exchange: Exchange, query: Query) -> Any:
        user_in(exchange, query)
        return value

    return answer


ORDER_LIMITS: Final = [[50, "30000000.0"], [24, "5000000.0"], [19, "2000000.0"], [9, "500000.0"]]
STAKING: Final = {"delegated": "0.0", "undelegated": "0.0", "totalPendingWithdrawal": "0.0", "nPendingWithdrawals": 0}

REQUESTS: Final[Mapping[str, InfoRequest]] = {
    "meta": InfoRequest(markets.meta),
    "metaAndAssetCtxs": InfoRequest(markets.meta_and_contexts),
    "allPerpMetas": InfoRequest(markets.all_perp_metas),
    "perpDexs": InfoRequest(markets.perp_dexs),
    "allMids": InfoRequest(markets.all_mids, 2),
    "l2Book": InfoRequest(markets.l2_book, 2),
    "recentTrades": InfoRequest(markets.recent_trades, per=20),
    "candleSnapshot": InfoRequest(markets.candle_snapshot, per=60),
    "fundingHistory": InfoRequest(markets.funding_history, per=20),
    "predictedFundings": InfoRequest(markets.predicted_fundings),
    "perpsAtOpenInterestCap": InfoRequest(nothing([])),
    "perpDexStatus": InfoRequest(nothing({"totalNetDeposit": "0.0"})),
    "marginTable": InfoRequest(markets.margin_table),
    "maxMarketOrderNtls": InfoRequest(nothing(ORDER_LIMITS)),
    "exchangeStatus": InfoRequest(lambda exchange, query: {"time": exchange.now_ms, "specialStatuses": None}, 2),
    "spotMeta": InfoRequest(markets.spot_meta),
    "spotMetaAndAssetCtxs": InfoRequest(lambda exchange, query: [markets.spot_meta(exchange, query), []]),
    "outcomeMeta": InfoRequest(nothing({"outcomes": [], "questions": []})),
    "clearinghouseState": InfoRequest(accounts.clearinghouse_state, 2),
    "openOrders": InfoRequest(accounts.open_orders),
    "frontendOpenOrders": InfoRequest(accounts.frontend_open_orders),
    "orderStatus": InfoRequest(accounts.order_status, 2),
    "historicalOrders": InfoRequest(accounts.historical_orders, per=20),
    "userFills": InfoRequest(accounts.user_fills, per=20),
    "userFillsByTime": InfoRequest(accounts.user_fills_by_time, per=20),
    "userFunding": InfoRequest(accounts.user_funding, per=20),
    "userNonFundingLedgerUpdates": InfoRequest(accounts.ledger_updates, per=20),
    "userRateLimit": InfoRequest(accounts.user_rate_limit),
    "userFees": InfoRequest(accounts.user_fees),
    "portfolio": InfoRequest(accounts.portfolio),
    "activeAssetData": InfoRequest(accounts.active_asset_data),
    "extraAgents": InfoRequest(accounts.extra_agents),
    "userRole": InfoRequest(accounts.user_role, 60),
    "subAccounts": InfoRequest(accounts.sub_accounts),
    "spotClearinghouseState": InfoRequest(accounts.spot_state, 2),
    "userAbstraction": InfoRequest(for_user("disabled")),
    "userDexAbstraction": InfoRequest(for_user(value=False)),
    "maxBuilderFee": InfoRequest(accounts.max_builder_fee),
    "approvedBuilders": InfoRequest(lambda exchange, query: list(user_in(exchange, query).builders)),
    "twapHistory": InfoRequest(for_user([]), per=20),
    "userTwapSliceFills": InfoRequest(for_user([]), per=20),
    "userTwapSliceFillsByTime": InfoRequest(for_user([]), per=20),
    "referral": InfoRequest(accounts.referral),
    "userVaultEquities": InfoRequest(for_user([])),
    "delegations": InfoRequest(for_user([])),
    "delegatorSummary": InfoRequest(for_user(STAKING)),
    "delegatorHistory": InfoRequest(for_user([]), per=20),
    "delegatorRewards": InfoRequest(for_user([]), per=20),
}


def answer(exchange: Exchange, query: Any) -> tuple[Any, int]:
    """The answer to a query and its weight. Malformed or ServerFault otherwise."""
    if not isinstance(query, dict) or not isinstance(query.get("type"), str):
        raise Malformed("missing field `type`")
    request = REQUESTS.get(query["type"])
    if request is None:
        raise Malformed(f"unknown variant `{query['type']}`, expected one of {', '.join(REQUESTS)}")
    content = request.answer(exchange, query)
    more = len(content) // request.per if request.per and isinstance(content, list) else 0
    return content, request.weight + more

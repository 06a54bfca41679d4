"""The exposure cap of an account at an exchange, to the unit, by each way in which an order comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.service.exchange_accounts.account_options import FollowedAccount
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model.numbers import E8
from tests.exchanges.agents import key_file
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED
from tests.service.exchange_accounts.traders import Trader, trading

# 99 USD
ORDER = {"market": "BTC", "side": "long", "type": "limit", "size": "0.001", "limitPx": "99000"}
BRACKET = {"bracket": {"stopLoss": {"pct": 2}}}


async def by_rest(trader: Trader, order: dict[str, Any], key: str) -> Any:
    return (await trader.http.post("/v1/orders", json=order, headers={"Idempotency-Key": key})).json()


async def by_plan(trader: Trader, order: dict[str, Any], key: str) -> Any:
    plan = (await trader.http.post("/v1/orders", json=order | {"dryRun": True})).json()
    if "error" in plan:
        return plan
    body = {"confirmToken": plan["confirmToken"]}
    return (await trader.http.post("/v1/orders/confirm", json=body, headers={"Idempotency-Key": key})).json()


async def tool(http: httpx.AsyncClient, name: str, arguments: dict[str, Any]) -> Any:
    """A call of MCP without a session, and its structured answer."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    answer = await http.post("/mcp", json=body, headers={"Accept": "application/json, text/event-stream"})
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]["structuredContent"]


async def by_mcp(trader: Trader, order: dict[str, Any], key: str) -> Any:
    plan = await tool(trader.http, "plan_order", order)
    if "error" in plan:
        return plan
    confirmed = {"confirmToken": plan["confirmToken"], "idempotencyKey": key}
    return await tool(trader.http, "confirm_order", confirmed)


WAYS = {"rest": by_rest, "plan": by_plan, "mcp": by_mcp}


@FUNDED
@pytest.mark.parametrize("way", WAYS)
async def test_an_order_at_the_cap_is_sent_and_the_next_unit_is_not(
    hyperliquid: LocalExchange, tmp_path: Path, way: str
) -> None:
    place = hyperliquid.base_url.rpartition(":")[2]
    for cap, is_sent in ((99 * E8 - 1, False), (99 * E8, True)):
        followed = FollowedAccount("hyperliquid", place, ADDRESS, key_file(tmp_path), cap)
        async with trading(hyperliquid, tmp_path, followed=followed) as trader:
            count = hyperliquid.info("userRateLimit", user=ADDRESS)["nRequestsUsed"]
            answer = await WAYS[way](trader, ORDER | BRACKET, f"k{cap}")
            resting = hyperliquid.info("openOrders", user=ADDRESS)
            assert bool(resting) == is_sent, answer
            if not is_sent:
                assert (answer["error"]["code"], answer["error"]["details"]) == (
                    "limit_exceeded",
                    {"cap": "exchangeCapUsd"},
                )
                assert hyperliquid.info("userRateLimit", user=ADDRESS)["nRequestsUsed"] == count
                continue
            beyond = ORDER | BRACKET | {"market": "ETH", "size": "0.01", "limitPx": "2900"}
            assert (await WAYS[way](trader, beyond, "beyond"))["error"]["details"] == {"cap": "exchangeCapUsd"}

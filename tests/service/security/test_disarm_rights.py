"""Who may disarm which guardian: arm x disarm x type x key in one table, over REST and over MCP.

The rule of docs/decisions.md: a key disarms only what it could have armed with the same reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.service.builders import make, order, owner, scoped
from tests.service.conftest import Box, Caller, OpenBox
from tests.service.mcp.builders import ACCEPT

EVENT = "event:RATE-CUT"
MARKETS = ("BTC", "ETH", EVENT)
CRON = "0 0 1 1 *"
ORDER = {"side": "long", "usdAmount": 50}


@dataclass(frozen=True)
class Who:
    """A caller: its scopes and caps, and the markets where it may close.

    `may` is False where the route itself refuses.
    """

    body: dict[str, Any]
    reach: frozenset[str]
    may: bool = True
    is_owner: bool = False
    exposure: float = float("inf")


def key(*scopes: str, reach: tuple[str, ...], may: bool = True, **caps: Any) -> Who:
    exposure = float(caps.get("maxExposureUsd", "inf"))
    return Who({"scopes": ["read", *scopes], **caps}, frozenset(reach), may=may, exposure=exposure)


ALL = frozenset(MARKETS)
OWNERS = {"session": Who({}, ALL, is_owner=True), "owner's key": Who({}, ALL, is_owner=True)}
KEYS = {
    "everywhere": key("trade", "outcomes", reach=MARKETS),
    "device": key("trade", "outcomes", reach=MARKETS),
    "no event markets": key("trade", reach=("BTC", "ETH")),
    "capped": key("trade", "outcomes", reach=MARKETS, maxExposureUsd=100),
    "capped higher": key("trade", "outcomes", reach=MARKETS, maxExposureUsd=1_000),
    "ETH": key("trade", reach=("ETH",), allowedCoins=["ETH"]),
    "BTC and ETH": key("trade", reach=("BTC", "ETH"), allowedCoins=["BTC", "ETH"]),
    "close only": key("trade:close_only", reach=("BTC", "ETH"), may=False),
    "outcomes": key("outcomes", reach=(EVENT,), may=False),
    "read": key(reach=(), may=False),
    "expired": key("trade", "outcomes", reach=MARKETS, may=False),
    "revoked": key("trade", "outcomes", reach=MARKETS, may=False),
}
CALLERS = OWNERS | KEYS
ARMERS = ("session", "everywhere", "capped", "capped higher", "ETH", "BTC and ETH", "no event markets")

# Type, request, and the market in which it acts; None: where its key may trade.
GUARDIANS: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"type": "trailing_stop", "market": "BTC", "trailPct": 5}, "BTC"),
    ({"type": "trailing_stop", "market": "ETH", "trailPct": 5}, "ETH"),
    ({"type": "trailing_stop", "market": EVENT, "trailPct": 5}, EVENT),
    ({"type": "max_hold", "market": "BTC", "seconds": 86_400}, "BTC"),
    ({"type": "max_hold", "market": "ETH", "seconds": 86_400}, "ETH"),
    ({"type": "dead_man_switch", "heartbeatSeconds": 86_400, "onMiss": "cancel_orders"}, None),
    ({"type": "dead_man_switch", "heartbeatSeconds": 86_400, "onMiss": "block_opens"}, None),
    ({"type": "dead_man_switch", "heartbeatSeconds": 86_400, "onMiss": "flatten"}, None),
    ({"type": "account_drawdown", "maxLossPctFromDayStart": 90, "action": "flatten"}, None),
    ({"type": "account_drawdown", "maxLossPctFromDayStart": 90, "action": "cancel_orders"}, None),
    ({"type": "schedule", "cron": CRON, "action": "cancel_orders"}, None),
    ({"type": "schedule", "cron": CRON, "action": "block_opens"}, None),
    ({"type": "schedule", "cron": CRON, "action": "flatten"}, None),
    ({"type": "schedule", "cron": CRON, "orderTemplate": ORDER | {"market": "BTC"}}, "BTC"),
    ({"type": "schedule", "cron": CRON, "orderTemplate": ORDER | {"market": "ETH"}}, "ETH"),
    ({"type": "kill_switch", "action": "cancel_orders"}, None),
)


def may_disarm(who: Who, armer: Who, guardian: dict[str, Any], market: str | None) -> bool:
    """The rule again, in the words of the table."""
    if who.is_owner:
        return True
    if not who.may or guardian["type"] == "kill_switch":
        return False
    if "orderTemplate" in guardian:
        return market in who.reach and who.exposure >= armer.exposure
    return armer.reach <= who.reach if market is None else market in who.reach


async def callers_of(box: Box) -> dict[str, Caller]:
    session = await owner(box)
    minted = await box.http.post(
        "/sandbox/v1/keys", json={"accountId": session.opened["accountId"]}, headers=box.control
    )
    made = {"session": session, "owner's key": Caller(box.http, minted.json())}
    now = (await session.get("/v1/account"))["serverTime"]
    for name, who in KEYS.items():
        if name == "device":
            made[name] = scoped(box, session, *who.body["scopes"])
            continue
        made[name] = await make(session, **who.body | ({"expiresAt": now + 1_000} if name == "expired" else {}))
    await session.delete(f"/v1/keys/{made['revoked'].opened['id']}")
    for market in MARKETS:
        await session.post("/v1/orders", order(1_000, market))
    await box.advance(2_000)
    return made


async def over_rest(caller: Caller, guardian: str) -> bool:
    answer = await caller.send("DELETE", f"/v1/guardians/{guardian}")
    assert answer.status_code in (200, 401, 403), answer.text
    return answer.status_code == 200


async def over_mcp(caller: Caller, guardian: str) -> bool:
    params = {"name": "delete_guardian", "arguments": {"id": guardian}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = await caller.http.post("/mcp", json=call, headers=caller.headers | ACCEPT)
    said = answer.json()
    return "error" not in said and not said["result"].get("isError", False)


async def armed_ids(session: Caller) -> set[str]:
    return {one["id"] for one in (await session.get("/v1/guardians"))["guardians"]}


@pytest.mark.parametrize("armer", ARMERS)
async def test_a_key_disarms_only_what_it_could_have_armed_with_the_same_reach(armer: str, open_box: OpenBox) -> None:
    box: Box = await open_box(markets=MARKETS, rate_limits=False)
    for market, px in (("BTC", "100000"), ("ETH", "2500"), (EVENT, "0.5")):
        await box.price(market, px)
    callers = await callers_of(box)
    session = callers["session"]
    wrong = []
    for guardian, market in GUARDIANS:
        if market is not None and market not in CALLERS[armer].reach:
            continue
        for name, who in CALLERS.items():
            for way in (over_rest, over_mcp):
                made = (await callers[armer].post("/v1/guardians", guardian))["id"]
                done = await way(callers[name], made)
                assert (made not in await armed_ids(session)) is done, "the answer says what happened"
                if done is not may_disarm(who, CALLERS[armer], guardian, market):
                    wrong.append((guardian["type"], market, name, way.__name__, done))
                if not done:
                    assert await over_rest(session, made), "the owner may remove everything"
    assert wrong == []


async def test_the_refusal_names_the_market_or_the_cap(open_box: OpenBox) -> None:
    box: Box = await open_box(markets=MARKETS)
    callers = await callers_of(box)
    session = callers["session"]
    switch = await session.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 3_600})
    bought = {"type": "schedule", "cron": CRON, "orderTemplate": ORDER | {"market": "ETH"}}
    schedule = await session.post("/v1/guardians", bought)
    for name, guardian, code, details in (
        ("ETH", switch["id"], "key_limit_exceeded", {"cap": "allowedCoins", "allowed": ["ETH"]}),
        ("no event markets", switch["id"], "forbidden", {"requiredScope": "outcomes"}),
        ("capped", schedule["id"], "key_limit_exceeded", {"cap": "maxExposureUsd"}),
    ):
        error = (await callers[name].send("DELETE", f"/v1/guardians/{guardian}")).json()["error"]
        assert (error["code"], error["details"]) == (code, details)
        assert error["message"].endswith("a key disarms only what it could have armed with the same reach")


async def test_no_second_way_ends_the_owners_guardians(open_box: OpenBox) -> None:
    """A new guardian of the same type, a kill, an order with guardians, a close, a reset, a revocation: by a key of
    ETH.
    """
    box: Box = await open_box(markets=MARKETS)
    callers = await callers_of(box)
    session, eth = callers["session"], callers["ETH"]
    for guardian, market in GUARDIANS:
        if guardian["type"] != "kill_switch" and market != "ETH":
            await session.post("/v1/guardians", guardian)
    theirs = await armed_ids(session)
    for guardian, market in GUARDIANS:
        if guardian["type"] != "kill_switch" and market in (None, "ETH"):
            await eth.post("/v1/guardians", guardian)
    inline = {"type": "dead_man_switch", "heartbeatSeconds": 86_400}
    await eth.post("/v1/orders", order(50, "ETH", guardians=[inline]))
    await eth.post("/v1/positions/ETH/close", {})
    await eth.send("DELETE", "/v1/orders", {"coin": "BTC"})
    await eth.send("POST", "/v1/positions/BTC/close", {})
    await eth.send("POST", "/v1/sandbox/accounts/reset", {})
    await eth.send("DELETE", f"/v1/keys/{callers['everywhere'].opened['id']}")
    await eth.send("PATCH", "/v1/settings", {})
    await eth.post("/v1/account/kill", {"flatten": True})
    assert theirs <= await armed_ids(session)


async def test_any_key_that_may_close_keeps_every_dead_man_switch_quiet(open_box: OpenBox) -> None:
    """A heartbeat removes nothing. A daemon may send it with a narrower key than the one that armed the switch."""
    box: Box = await open_box(markets=MARKETS)
    callers = await callers_of(box)
    switch = await callers["session"].post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 3_600})
    for name in ("ETH", "close only", "capped"):
        await box.advance(1_000)
        (beaten,) = (await callers[name].post("/v1/heartbeat", {}))["guardians"]
        assert beaten["id"] == switch["id"]
        assert beaten["nextDeadline"] > switch["nextDeadline"]
    assert (await callers["read"].send("POST", "/v1/heartbeat", {})).status_code == 403

"""Every operation with a credential, by every kind of caller, on their own and on another account's things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.service.conftest import START_MS, Box, Caller
from tests.service.test_edge import assert_refused
from tests.service.test_keys import make, order
from tests.service.test_sign_in import owner

READ, TRADE, CLOSE, OUTCOMES = "read", "trade", "trade:close_only", "outcomes"


@dataclass(frozen=True)
class Operation:
    """`allowed`: the scopes that open it; "owner" stands for the owner's credentials. `foreign`: the path names a thing of an account."""

    method: str
    path: str
    allowed: frozenset[str]
    body: Any = None
    foreign: bool = False


def op(method: str, path: str, *allowed: str, body: Any = None, foreign: bool = False) -> Operation:
    return Operation(method, path, frozenset(allowed), body, foreign)


BTC = {"market": "BTC", "side": "long", "usdAmount": 100}
OPERATIONS = [
    op("GET", "/v1/account", READ),
    op("GET", "/v1/limits", READ),
    op("GET", "/v1/settings", READ),
    op("PATCH", "/v1/settings", "owner", body={"maxTradeUsd": 5000}),
    op("GET", "/v1/events", READ),
    op("GET", "/v1/trades", READ),
    op("GET", "/v1/orders", READ),
    op("GET", "/v1/guardians", READ),
    op("POST", "/v1/orders/suggest", READ, body={"coin": "BTC", "notionalUsd": 100}),
    op("POST", "/v1/orders", TRADE, body=BTC),
    op("POST", "/v1/orders", TRADE, body=BTC | {"dryRun": True}),
    op("POST", "/v1/orders", TRADE, CLOSE, body=BTC | {"side": "short"}),  # shrinks
    op("POST", "/v1/orders/confirm", TRADE, CLOSE, body={"confirmToken": "{token}"}, foreign=True),
    op("POST", "/v1/positions/BTC/close", TRADE, CLOSE, body={"usdAmount": 50}),
    op("DELETE", "/v1/orders", TRADE, CLOSE, body={"coin": "BTC"}),
    op("DELETE", "/v1/orders/{entry}", TRADE, CLOSE, foreign=True),
    op("DELETE", "/v1/orders/{stop}", TRADE, foreign=True),
    op("POST", "/v1/guardians", TRADE, CLOSE, body={"type": "dead_man_switch", "heartbeatSeconds": 60}),
    op("POST", "/v1/guardians", TRADE, CLOSE, body={"type": "trailing_stop", "market": "BTC", "trailPct": 5}),
    op("POST", "/v1/guardians", TRADE, body={"type": "account_drawdown", "maxLossPctFromDayStart": 50}),
    op("POST", "/v1/guardians", TRADE, body={"type": "schedule", "cron": "0 0 1 1 *", "action": "cancel_orders"}),
    op("DELETE", "/v1/guardians/{guardian}", TRADE, foreign=True),
    op("POST", "/v1/heartbeat", TRADE, CLOSE, body={}),
    op("POST", "/v1/keys", "owner", body={}),
    op("GET", "/v1/keys", "owner"),
    op("DELETE", "/v1/keys/{key}", "owner", foreign=True),
    op("POST", "/v1/sandbox/accounts/reset", "owner", body={}),
]  # fmt: skip
IDS = [f"{o.method} {o.path} {o.body or ''}" for o in OPERATIONS]
PRINCIPALS: dict[str, tuple[str, ...]] = {
    "owner": (READ, TRADE, OUTCOMES, "owner"),
    "session": (READ, TRADE, OUTCOMES, "owner"),
    "read": (READ,),
    "trade": (TRADE,),
    "close_only": (CLOSE,),
    "outcomes": (OUTCOMES,),
}


async def room(box: Box) -> tuple[Caller, dict[str, Caller]]:
    """An account signed in by phone, and every kind of caller of it."""
    session = await owner(box)
    account = session.opened["accountId"]
    callers = {"session": session}
    for name in ("read", "trade", "close_only", "outcomes"):
        callers[name] = await make(session, scopes=list(PRINCIPALS[name]))
    minted = await box.http.post("/sandbox/v1/keys", json={"accountId": account}, headers=box.control)
    callers["owner"] = Caller(box.http, minted.json())
    return session, callers


async def things(caller: Caller) -> dict[str, str]:
    """A position with a stop, an entry, a guardian, a key, a plan."""
    made = await caller.post("/v1/orders", BTC | {"usdAmount": 500, "bracket": {"stopLoss": {"pct": 5}}, "leverage": 2})
    resting = await caller.post("/v1/orders", BTC | {"type": "limit", "limitPx": "90000", "leverage": 2})
    plan = await caller.post("/v1/orders", BTC | {"side": "short", "dryRun": True})
    return {
        "stop": made["orders"][0]["oid"],
        "entry": next(o["oid"] for o in resting["orders"] if o["kind"] == "limit"),
        "guardian": (await caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 3600}))["id"],
        "key": (await caller.post("/v1/keys", {}))["id"],
        "token": plan["confirmToken"],
    }


def filled(value: Any, things: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(inner, things) for name, inner in value.items()}
    return value.format(**things) if isinstance(value, str) and value.startswith(("/", "{")) else value


@pytest.mark.parametrize("operation", OPERATIONS, ids=IDS)
async def test_an_operation_opens_to_its_scopes_and_to_nobody_else(box: Box, operation: Operation) -> None:
    session, callers = await room(box)
    stranger = await box.caller()
    strange = await things(stranger)
    ended = await make(session, scopes=[READ, TRADE], expiresAt=START_MS + 1)
    gone = await make(session, scopes=[READ, TRADE])
    await session.delete(f"/v1/keys/{gone.opened['id']}")
    await box.advance(1)
    digest = (await box.digest())["digest"]
    own = await things(session)
    path, body = filled(operation.path, own), filled(operation.body, own)

    async def send(headers: dict[str, str]) -> Any:
        return await box.http.request(operation.method, path, json=body, headers=headers)

    assert_refused(await send({}), 401, "unauthorized")
    for wrong in ("Bearer wrong", "Basic abc", "Bearer bbk_test_10000000_" + "0" * 43 + "_000000"):
        assert_refused(await send({"Authorization": wrong}), 401, "unauthorized")
    assert_refused(await send(gone.headers), 401, "unauthorized")
    assert_refused(await send(ended.headers), 401, "session_expired")
    before = (await box.digest())["digest"]
    assert before != digest
    for name, scopes in PRINCIPALS.items():
        if operation.allowed & set(scopes):
            continue
        answer = await callers[name].send(operation.method, path, body)
        assert_refused(answer, 403, "forbidden")
    assert (await box.digest())["digest"] == before, "a refused call moved something"
    if operation.foreign:
        for name, scopes in PRINCIPALS.items():
            if operation.allowed & set(scopes):
                there = await callers[name].send(
                    operation.method, filled(operation.path, strange), filled(operation.body, strange)
                )
                assert_refused(there, 404, "not_found")
        assert (await box.digest())["digest"] == before, "another account's thing moved"
    for name, scopes in PRINCIPALS.items():
        if not operation.allowed & set(scopes):
            continue
        if operation.foreign or operation.path == "/v1/positions/BTC/close":
            if operation.path.startswith("/v1/positions"):
                await session.post("/v1/orders", BTC | {"usdAmount": 500})
            else:
                own = await things(session)
            if name == "close_only" and operation.path.endswith("confirm"):
                plan = await callers[name].post("/v1/orders", BTC | {"side": "short", "dryRun": True})
                own["token"] = plan["confirmToken"]
        await session.post("/v1/orders", BTC | {"usdAmount": 200, "leverage": 2, "acknowledgeLeverageChange": True})
        answer = await callers[name].send(operation.method, filled(operation.path, own), filled(operation.body, own))
        assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("who", list(PRINCIPALS))
async def test_event_markets_want_outcomes_besides(box: Box, who: str) -> None:
    session, callers = await room(box)
    caller = callers[who]
    event = BTC | {"market": "event:NO-SUCH-THING"}
    plain = await make(session, scopes=[READ, TRADE])
    for body in (event, event | {"dryRun": True}, event | {"market": "EVENT:x"}):
        error = assert_refused(await plain.send("POST", "/v1/orders", body), 403, "forbidden")
        assert error["details"]["requiredScope"] == "outcomes"
    close = await plain.send("POST", "/v1/positions/event:X/close", {})
    assert assert_refused(close, 403, "forbidden")["details"]["requiredScope"] == "outcomes"
    template = {"type": "schedule", "cron": "* * * * *", "orderTemplate": event}
    assert_refused(await plain.send("POST", "/v1/guardians", template), 403, "forbidden")
    status = 404 if {TRADE, OUTCOMES} <= set(PRINCIPALS[who]) else 403
    assert (await caller.send("POST", "/v1/orders", event)).status_code == status


async def test_the_session_route_is_for_sessions(box: Box) -> None:
    session, callers = await room(box)
    for name, caller in callers.items():
        if name != "session":
            assert_refused(await caller.send("DELETE", "/v1/auth/session"), 403, "forbidden")
    assert await session.delete("/v1/auth/session") == {"revoked": True}
    assert_refused(await session.send("GET", "/v1/account"), 401, "unauthorized")
    assert (await callers["owner"].send("GET", "/v1/keys")).status_code == 200  # Keys outlive the session.


async def test_a_key_that_only_closes_never_grows_or_flips_a_position_through_races(box: Box, caller: Caller) -> None:
    closer = await make(caller, scopes=[READ, CLOSE])
    await caller.post("/v1/orders", order(500, leverage=5))
    plan = await closer.post("/v1/orders", order(500, side="short", dryRun=True))
    resting = await closer.post("/v1/orders", order(500, side="short", type="limit", limitPx="101000"))
    assert resting["trade"]["reduceOnly"] is True
    await caller.post("/v1/positions/BTC/close")  # What both were made against is gone.
    late = await closer.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert_refused(late, 403, "forbidden")
    await box.price("BTC", "102000")
    assert (await caller.get("/v1/account"))["positions"] == []
    await caller.post("/v1/orders", order(500, leverage=5))
    plan = await closer.post("/v1/orders", order(500, side="short", dryRun=True))
    resting = await closer.send("POST", "/v1/orders", order(400, side="short", type="limit", limitPx="103000"))
    assert resting.status_code == 200
    await caller.post("/v1/orders", order(1000, side="short", leverage=5))  # The owner flips: now short.
    short = (await caller.get("/v1/account"))["positions"][0]
    assert short["side"] == "short"
    late = await closer.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert_refused(late, 403, "forbidden")
    await box.price("BTC", "104000")
    after = (await caller.get("/v1/account"))["positions"][0]
    assert (after["side"], after["size"]) == ("short", short["size"])

"""Every route of the service, by every kind of caller, on their own and on another account's things.

A route without a row fails here.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from bot.wire.interface import Access
from bot.wire.interface import Operation as Route
from tests.service.builders import assert_refused, make, order, owner
from tests.service.conftest import START_MS, Box, Caller, OpenBox

READ, TRADE, CLOSE, OUTCOMES = "read", "trade", "trade:close_only", "outcomes"
# never ends by itself, so the caller disconnects after its start
STREAM = "/v1/events/stream"


@dataclass(frozen=True)
class Operation:
    """`allowed`: the scopes that open it;

    "owner" stands for the owner's credentials. `foreign`: the path names a thing of an account.
    """

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
    op("GET", "/v1/portfolio", READ),
    op("GET", "/v1/home", READ),
    op("GET", "/v1/funding", READ),
    op("GET", "/v1/settings", READ),
    op("PATCH", "/v1/settings", "owner", body={"maxTradeUsd": 5000}),
    op("GET", "/v1/events", READ),
    op("GET", STREAM, READ),
    op("GET", "/v1/trades", READ),
    op("GET", "/v1/orders", READ),
    op("GET", "/v1/guardians", READ),
    op("POST", "/v1/orders/suggest", READ, body={"coin": "BTC", "notionalUsd": 100}),
    op("POST", "/v1/orders", TRADE, body=BTC),
    op("POST", "/v1/orders", TRADE, body=BTC | {"dryRun": True}),
    # shrinks
    op("POST", "/v1/orders", TRADE, CLOSE, body=BTC | {"side": "short"}),
    op("POST", "/v1/orders/confirm", TRADE, CLOSE, body={"confirmToken": "{token}"}, foreign=True),
    op("POST", "/v1/positions/BTC/close", TRADE, CLOSE, body={"usdAmount": 50}),
    op("DELETE", "/v1/orders", TRADE, CLOSE, body={"coin": "BTC"}),
    op("DELETE", "/v1/orders/{entry}", TRADE, CLOSE, foreign=True),
    op("DELETE", "/v1/orders/{stop}", TRADE, foreign=True),
    op("POST", "/v1/guardians", TRADE, CLOSE, OUTCOMES, body={"type": "dead_man_switch", "heartbeatSeconds": 60}),
    op(
        "POST",
        "/v1/guardians",
        TRADE,
        OUTCOMES,
        body={"type": "dead_man_switch", "heartbeatSeconds": 60, "onMiss": "flatten"},
    ),
    op("POST", "/v1/guardians", TRADE, CLOSE, body={"type": "trailing_stop", "market": "BTC", "trailPct": 5}),
    op("POST", "/v1/guardians", TRADE, body={"type": "account_drawdown", "maxLossPctFromDayStart": 50}),
    op(
        "POST",
        "/v1/guardians",
        TRADE,
        OUTCOMES,
        body={"type": "schedule", "cron": "0 0 1 1 *", "action": "cancel_orders"},
    ),
    op("POST", "/v1/guardians", TRADE, body={"type": "kill_switch"}),
    op("DELETE", "/v1/guardians/{guardian}", TRADE, foreign=True),
    op("POST", "/v1/heartbeat", TRADE, CLOSE, OUTCOMES, body={}),
    op("POST", "/v1/account/kill", TRADE, body={}),
    op("POST", "/v1/account/kill", TRADE, body={"flatten": True}),
    op("DELETE", "/v1/auth/session", "session"),
    op("POST", "/v1/webhooks", "owner", body={"url": "http://127.0.0.1:9/hook"}),
    op("GET", "/v1/webhooks", "owner"),
    op("DELETE", "/v1/webhooks/{hook}", "owner", foreign=True),
    op("POST", "/v1/keys", "owner", body={}),
    op("GET", "/v1/keys", "owner"),
    op("DELETE", "/v1/keys/{key}", "owner", foreign=True),
    op("POST", "/v1/sandbox/accounts/reset", "owner", body={}),
]
IDS = [f"{o.method} {o.path} {o.body or ''}" for o in OPERATIONS]
# These need no credential: a good one, a bad one and none get the same answer.
PUBLIC: list[tuple[str, str, Any]] = [
    ("GET", "/v1/start", None),
    ("GET", "/v1/system/status", None),
    ("GET", "/v1/changelog", None),
    ("GET", "/v1/markets", None),
    ("GET", "/v1/markets/BTC/candles", None),
    ("GET", "/v1/markets/BTC/book", None),
    ("GET", "/v1/auth/countries", None),
    ("POST", "/v1/auth/otp", {"phoneNumber": "+442079460001"}),
    ("POST", "/v1/auth/verify", {"phoneNumber": "+442079460002", "code": "123456"}),
    ("POST", "/v1/sandbox/accounts", {}),
    ("POST", "/v1/oauth/device", {}),
    ("POST", "/v1/oauth/device/token", {"deviceCode": "no-such-device"}),
    ("GET", "/v1/wallets/{address}", None),
    ("GET", "/v1/wallets/{address}/positions", None),
    ("GET", "/v1/wallets/{address}/pnl", None),
    ("GET", "/v1/wallets/{address}/nav", None),
    ("GET", "/v1/wallets/{address}/trades", None),
    ("GET", "/", None),
    ("GET", "/openapi.json", None),
    ("GET", "/agent.json", None),
    ("GET", "/llms.txt", None),
    ("GET", "/docs", None),
    ("GET", "/docs/errors", None),
    ("GET", "/docs/sections/Orders", None),
    ("GET", "/docs/models", None),
    ("GET", "/device", None),
    ("GET", "/watch/{address}", None),
    ("GET", "/.well-known/oauth-protected-resource/mcp", None),
    ("GET", "/.well-known/oauth-authorization-server", None),
]
NEVER_ALIKE = {
    ("POST", "/v1/auth/otp"),
    ("POST", "/v1/sandbox/accounts"),
    ("POST", "/v1/oauth/device"),
    ("GET", "/device"),
}
ELSEWHERE = {
    ("POST", "/mcp"): "each tool by each scope in test_mcp.py",
    ("POST", "/device"): "a form with a cookie and a token of its own, in test_device.py",
}
PRINCIPALS: dict[str, tuple[str, ...]] = {
    "owner": (READ, TRADE, OUTCOMES, "owner"),
    "session": (READ, TRADE, OUTCOMES, "owner", "session"),
    "read": (READ,),
    "trade": (TRADE,),
    "close_only": (CLOSE,),
    "outcomes": (OUTCOMES,),
}


async def session_and_keys(box: Box) -> tuple[Caller, dict[str, Caller]]:
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
        "hook": (await caller.post("/v1/webhooks", {"url": "http://127.0.0.1:9/hook", "types": ["settlement"]}))["id"],
        "token": plan["confirmToken"],
    }


def filled(value: Any, things: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(inner, things) for name, inner in value.items()}
    return value.format(**things) if isinstance(value, str) and value.startswith(("/", "{")) else value


async def begun(box: Box, headers: dict[str, str]) -> httpx.Response:
    """The first part of the stream's answer; the caller disconnects after it."""
    started = asyncio.Event()
    status, kept, said = 0, b"", []

    async def receive() -> dict[str, Any]:
        await started.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, kept
        if message["type"] == "http.response.start":
            status, said[:] = message["status"], message["headers"]
        else:
            kept += message.get("body", b"")
            started.set()

    names = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": STREAM,
        "raw_path": STREAM.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), *names],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    await box.service.app(scope, receive, send)
    return httpx.Response(status, headers=said, content=kept, request=httpx.Request("GET", f"http://127.0.0.1{STREAM}"))


async def lift(session: Caller) -> None:
    """Removes the kill switches, so that the next caller finds the account unchanged."""
    for one in (await session.get("/v1/guardians"))["guardians"]:
        if one["type"] == "kill_switch":
            await session.delete(f"/v1/guardians/{one['id']}")


def rules_of(box: Box) -> dict[tuple[str, str], Route[Any]]:
    """Every route that the service has."""
    return {(rule.method, rule.path): rule for rule in box.service.app.rules}


def rule_of(box: Box, method: str, path: str) -> Route[Any]:
    """The route that a row's path leads to; a name in braces stands for some id."""
    rules = rules_of(box)
    exact = rules.get((method, path))
    if exact is not None:
        return exact
    sample = re.sub(r"[{}]", "", path)
    found = [
        r for (m, p), r in rules.items() if m == method and re.fullmatch(re.sub(r"\{[a-z_]+\}", "[^/]+", p), sample)
    ]
    literal = [r for r in found if r.path == sample]
    assert found, f"no route {method} {path}"
    return (literal or found)[0]


async def test_every_route_has_a_row(box: Box) -> None:
    """A new route needs a row here with its callers; control routes are found automatically."""
    rows = {(r.method, r.path) for o in OPERATIONS if (r := rule_of(box, o.method, o.path))}
    public = {(r.method, r.path) for method, path, _ in PUBLIC if (r := rule_of(box, method, path))}
    rules = rules_of(box)
    control = {name for name, rule in rules.items() if rule.access is Access.CONTROL}
    assert rows | public | control | set(ELSEWHERE) == set(rules)
    assert {name for name, rule in rules.items() if rule.access is Access.NONE} == public | {("POST", "/device")}
    assert len(rows) + len(public) + len(control) + len(ELSEWHERE) == len(rules), "a route has two kinds of row"
    # A path with an object of an account is also tried with an object of another account.
    owned = {"{oid}", "{id}"}
    for name, rule in rules.items():
        if any(part in rule.path for part in owned):
            assert all(o.foreign for o in OPERATIONS if rule_of(box, o.method, o.path) is rule), name


@pytest.mark.parametrize(("method", "path", "body"), PUBLIC, ids=[f"{m} {p}" for m, p, _ in PUBLIC])
async def test_a_public_route_ignores_credentials(box: Box, method: str, path: str, body: Any) -> None:
    caller = await box.caller()
    gone = await make(caller, scopes=[READ])
    await caller.delete(f"/v1/keys/{gone.opened['id']}")
    path = path.format(address=caller.opened["address"])
    answers = [
        await box.http.request(method, path, json=body, headers=headers)
        for headers in ({}, {"Authorization": "Bearer wrong"}, gone.headers, caller.headers)
    ]
    assert len({answer.status_code for answer in answers}) == 1
    assert "insufficient_scope" not in answers[0].headers.get("www-authenticate", "")
    if answers[0].status_code == 200 and (method, path) not in NEVER_ALIKE:
        # Its owner sees no more of a wallet either.
        assert len({answer.content for answer in answers}) == 1


async def test_the_control_accepts_its_token_and_no_account_key(box: Box) -> None:
    _, callers = await session_and_keys(box)
    before = (await box.digest())["digest"]
    rules = [rule for rule in rules_of(box).values() if rule.access is Access.CONTROL]
    assert len(rules) >= 14
    for rule in rules:
        path = rule.path.replace("{coin}", "BTC")
        for headers in ({}, {"Authorization": "Bearer bbc_wrong"}, *(one.headers for one in callers.values())):
            assert_refused(await box.http.request(rule.method, path, json={}, headers=headers), 401, "unauthorized")
    assert (await box.digest())["digest"] == before


@pytest.mark.parametrize("operation", OPERATIONS, ids=IDS)
async def test_an_operation_accepts_its_scopes_and_no_other_caller(box: Box, operation: Operation) -> None:
    session, callers = await session_and_keys(box)
    other = await box.caller()
    foreign = await things(other)
    ended = await make(session, scopes=[READ, TRADE], expiresAt=START_MS + 1)
    gone = await make(session, scopes=[READ, TRADE])
    await session.delete(f"/v1/keys/{gone.opened['id']}")
    await box.advance(1)
    digest = (await box.digest())["digest"]
    own = await things(session)
    path, body = filled(operation.path, own), filled(operation.body, own)

    async def send(headers: dict[str, str]) -> Any:
        if path == STREAM:
            return await begun(box, headers)
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
        assert_refused(await send(callers[name].headers), 403, "forbidden")
    assert (await box.digest())["digest"] == before, "a refused call changed the account"
    if operation.foreign:
        for name, scopes in PRINCIPALS.items():
            if operation.allowed & set(scopes):
                there = await callers[name].send(
                    operation.method, filled(operation.path, foreign), filled(operation.body, foreign)
                )
                assert_refused(there, 404, "not_found")
        assert (await box.digest())["digest"] == before, "an object of another account changed"
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
        path, body = filled(operation.path, own), filled(operation.body, own)
        answer = await send(callers[name].headers)
        assert answer.status_code == 200, (name, answer.text)
        if path.endswith("/kill") or "kill_switch" in str(body):
            await lift(session)


@pytest.mark.parametrize("who", list(PRINCIPALS))
async def test_event_markets_also_need_the_scope_outcomes(box: Box, who: str) -> None:
    session, callers = await session_and_keys(box)
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
    status = 404 if OUTCOMES in PRINCIPALS[who] else 403
    assert (await caller.send("POST", "/v1/orders", event)).status_code == status


async def test_a_guardian_of_an_event_market_is_disarmed_only_with_outcomes(open_box: OpenBox) -> None:
    box: Box = await open_box(markets=("event:RATE-CUT",))
    first = await box.caller()
    bought = {
        "market": "event:RATE-CUT",
        "side": "long",
        "usdAmount": 50,
        "guardians": [{"type": "trailing_stop", "trailPct": 20}],
    }
    [guard] = (await first.post("/v1/orders", bought))["guardians"]
    plain, whole = await make(first, scopes=[READ, TRADE]), await make(first, scopes=[READ, TRADE, OUTCOMES])
    refused = await plain.send("DELETE", f"/v1/guardians/{guard['id']}")
    assert assert_refused(refused, 403, "forbidden")["details"]["requiredScope"] == "outcomes"
    assert (await whole.delete(f"/v1/guardians/{guard['id']}"))["disarmed"] is True


async def test_the_session_route_is_for_sessions(box: Box) -> None:
    session, callers = await session_and_keys(box)
    for name, caller in callers.items():
        if name != "session":
            assert_refused(await caller.send("DELETE", "/v1/auth/session"), 403, "forbidden")
    assert await session.delete("/v1/auth/session") == {"revoked": True}
    assert_refused(await session.send("GET", "/v1/account"), 401, "unauthorized")
    # Keys outlive the session.
    assert (await callers["owner"].send("GET", "/v1/keys")).status_code == 200


async def test_a_key_that_only_closes_never_grows_or_flips_a_position_through_races(box: Box, caller: Caller) -> None:
    closer = await make(caller, scopes=[READ, CLOSE])
    await caller.post("/v1/orders", order(500, leverage=5))
    plan = await closer.post("/v1/orders", order(500, side="short", dryRun=True))
    resting = await closer.post("/v1/orders", order(500, side="short", type="limit", limitPx="101000"))
    assert resting["trade"]["reduceOnly"] is True
    # The position of both orders is gone.
    await caller.post("/v1/positions/BTC/close")
    late = await closer.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert_refused(late, 403, "forbidden")
    await box.price("BTC", "102000")
    assert (await caller.get("/v1/account"))["positions"] == []
    await caller.post("/v1/orders", order(500, leverage=5))
    plan = await closer.post("/v1/orders", order(500, side="short", dryRun=True))
    resting = await closer.send("POST", "/v1/orders", order(400, side="short", type="limit", limitPx="103000"))
    assert resting.status_code == 200
    # The owner flips: now short.
    await caller.post("/v1/orders", order(1000, side="short", leverage=5))
    short = (await caller.get("/v1/account"))["positions"][0]
    assert short["side"] == "short"
    late = await closer.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert_refused(late, 403, "forbidden")
    await box.price("BTC", "104000")
    after = (await caller.get("/v1/account"))["positions"][0]
    assert (after["side"], after["size"]) == ("short", short["size"])

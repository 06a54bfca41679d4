"""Agents' tools, driven by the official SDK's own client: over the service in both versions of the protocol, and
over `bot mcp`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from bot.service.mcp import route
from bot.service.mcp.route import McpRoute
from bot.service.mcp.tools import TOOLS, harmless
from bot.service.security import rate_limits
from tests.service import serving
from tests.service.builders import assert_refused, make, owner
from tests.service.conftest import Box, Caller, OpenBox
from tests.service.mcp.builders import ACCEPT, DISCOVER, assert_told

MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}
READ, TRADE, CLOSE, OUTCOMES = "read", "trade", "trade:close_only", "outcomes"
LONG = {"market": "BTC", "side": "long", "usdAmount": 100}

# The table of the interface: name -> (scopes that open it, readOnly, destructive, idempotent). None: any credential.
ANY = None
TABLE: dict[str, tuple[set[str] | None, bool, bool, bool]] = {
    **dict.fromkeys(
        ("get_start", "search_markets", "get_candles", "get_book", "get_system_status"), (ANY, True, False, True)
    ),
    **dict.fromkeys(
        (
            "get_account",
            "get_portfolio",
            "get_limits",
            "get_settings",
            "get_funding",
            "list_orders",
            "list_trades",
            "list_events",
            "list_guardians",
            "suggest_order",
        ),
        ({READ}, True, False, True),
    ),
    "plan_order": ({TRADE, CLOSE, OUTCOMES}, True, False, False),
    "confirm_order": ({TRADE, CLOSE, OUTCOMES}, False, True, True),
    "close_position": ({TRADE, CLOSE, OUTCOMES}, False, True, True),
    "cancel_order": ({TRADE, CLOSE, OUTCOMES}, False, True, True),
    "cancel_orders": ({TRADE, CLOSE, OUTCOMES}, False, True, True),
    "create_guardian": ({TRADE, CLOSE, OUTCOMES}, False, True, False),
    "delete_guardian": ({TRADE}, False, True, True),
    "heartbeat": ({TRADE, CLOSE, OUTCOMES}, False, False, True),
    "kill_switch": ({TRADE}, False, True, True),
}


@asynccontextmanager
async def agent(box: Box, caller: Caller, mode: Any = "auto") -> AsyncIterator[Client]:
    transport = httpx2.ASGITransport(box.service.app)
    async with (
        httpx2.AsyncClient(transport=transport, headers=caller.headers) as http,
        Client(streamable_http_client("http://127.0.0.1/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def yes(client: Client, name: str, **arguments: Any) -> Any:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.structured_content
    [content] = result.content
    assert content.type == "text"
    assert json.loads(content.text) == result.structured_content
    return result.structured_content


async def no(client: Client, name: str, **arguments: Any) -> Any:
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.structured_content
    error = result.structured_content["error"]
    assert error["requestId"].startswith("req_")
    assert error["docsUrl"].endswith(f"/docs/errors#{error['code']}")
    return error


async def test_mcp_starts_for_the_next_agent_after_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Manager:
        runs = 0

        @asynccontextmanager
        async def run(self) -> AsyncIterator[None]:
            Manager.runs += 1
            if Manager.runs == 1:
                raise OSError("no room")
            yield

    door = McpRoute("docs")
    monkeypatch.setattr(route, "_imported", lambda: lambda *_: Manager())
    with pytest.raises(OSError, match="no room"):
        await door._open()
    assert await door._open() is await door._open()
    assert Manager.runs == 2
    await door.close()


@pytest.mark.parametrize("mode", MODES)
async def test_both_protocol_versions_list_exactly_the_tools_of_the_table(box: Box, caller: Caller, mode: str) -> None:
    async with agent(box, caller, mode) as client:
        assert client.protocol_version == MODES[mode]
        listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(TOOLS)
    assert set(TOOLS) == set(TABLE)
    for tool in listed:
        scopes, read_only, destructive, idempotent = TABLE[tool.name]
        hints = tool.annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint) == (
            read_only,
            destructive,
            idempotent,
        ), tool.name
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert not {"anyOf", "oneOf", "allOf"} & set(tool.input_schema)
        assert ("idempotencyKey" in tool.input_schema.get("required", [])) == (
            tool.name in ("confirm_order", "close_position")
        )
        assert not {"dryRun", "source"} & set(tool.input_schema["properties"])
        assert tool.description is not None
        assert ("Needs no scope" in tool.description) == (scopes is ANY)


def test_only_a_tool_of_a_keyed_operation_takes_an_idempotency_key() -> None:
    assert [tool.name for tool in TOOLS.values() if tool.key != "none" and not tool.operation.keyed] == []


@pytest.mark.parametrize("mode", MODES)
async def test_an_order_is_planned_confirmed_and_confirmed_only_once(box: Box, caller: Caller, mode: str) -> None:
    async with agent(box, caller, mode) as client:
        bracket = {"stopLoss": {"pct": 2}, "takeProfit": {"r": 2}}
        plan = await yes(client, "plan_order", **LONG, bracket=bracket, dryRun=False)
        assert (plan["dryRun"], plan["orderSubmitted"]) == (True, False)
        judged = await no(client, "plan_order", **LONG, bracket={"stopLoss": {"r": 1}})
        assert (judged["code"], judged["fix"]["action"]) == ("invalid_input", "arm_stop")
        assert judged["details"]["fields"][0]["field"] == "bracket.stopLoss.r"
        # fields that do not apply are present
        assert plan["plan"]["liquidationPx"] is None
        assert (await yes(client, "get_account"))["positions"] == []
        missing = await no(client, "confirm_order", confirmToken=plan["confirmToken"])
        assert (missing["code"], missing["orderSubmitted"]) == ("invalid_input", False)
        assert missing["details"]["fields"][0]["field"] == "idempotencyKey"
        confirm = {"confirmToken": plan["confirmToken"], "idempotencyKey": "one"}
        first = await client.call_tool("confirm_order", confirm)
        again = await client.call_tool("confirm_order", confirm)
        assert first.structured_content["orderSubmitted"] is True
        assert first.structured_content["protected"] is True
        assert first.structured_content["trade"]["source"] == "agent"
        assert again.structured_content == first.structured_content
        assert (again.meta or {})["idempotencyReplayed"] is True
        assert len((await yes(client, "list_trades"))["trades"]) == 1
        # The same intent over REST is the same request.
        rest = await caller.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]}, key="one")
        assert rest.json() == first.structured_content
        assert rest.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row[1] and name != "plan_order"))
async def test_a_reading_tool_gives_the_answer_of_rest(box: Box, caller: Caller, name: str) -> None:
    await caller.post("/v1/orders", LONG | {"bracket": {"stopLoss": {"pct": 2}}})
    tool = TOOLS[name]
    arguments: dict[str, Any] = dict.fromkeys(tool.operation.places, "BTC")
    if name == "get_candles":
        arguments |= {"interval": "1m", "limit": 3}
    if name == "suggest_order":
        arguments = {"coin": "BTC", "notionalUsd": 50.5}
    async with agent(box, caller) as client:
        said = await yes(client, name, **arguments)
    path = tool.operation.path.format(coin="BTC")
    if tool.operation.method == "POST":
        assert said == await caller.post(path, arguments)
    else:
        query = "?interval=1m&limit=3" if name == "get_candles" else ""
        assert said == harmless(await caller.get(path + query))


async def test_an_acting_tool_has_the_effect_of_its_rest_route(box: Box, caller: Caller) -> None:
    resting = {"type": "limit", "limitPx": "90000", "leverage": 1}
    async with agent(box, caller) as client:
        await caller.post("/v1/orders", LONG | {"usdAmount": 500})
        placed = await caller.post("/v1/orders", LONG | resting)
        await caller.post("/v1/orders", LONG | resting)
        oid = placed["orders"][0]["oid"]
        assert (await yes(client, "cancel_order", oid=oid))["canceled"] is True
        assert len((await yes(client, "cancel_orders", coin="BTC"))["canceledOids"]) == 1
        switch = {"type": "dead_man_switch", "heartbeatSeconds": 60, "idempotencyKey": "guard"}
        armed = await yes(client, "create_guardian", **switch)
        assert await yes(client, "create_guardian", **switch) == armed
        assert [g["id"] for g in (await yes(client, "heartbeat"))["guardians"]] == [armed["id"]]
        assert (await yes(client, "delete_guardian", id=armed["id"]))["disarmed"] is True
        closed = await yes(client, "close_position", market="perp:BTC", fraction=0.5, idempotencyKey="close")
        assert closed["trade"]["source"] == "agent"
        assert closed["trade"]["idempotencyKey"] == "close"
        assert (await yes(client, "kill_switch", flatten=True))["orderSubmitted"] is True
        assert (await yes(client, "get_account"))["positions"] == []


async def test_every_tool_accepts_its_scopes_and_no_other(box: Box) -> None:
    session = await owner(box)
    callers = {scope: await make(session, scopes=[scope]) for scope in (READ, TRADE, CLOSE, OUTCOMES)}
    enough: dict[str, dict[str, Any]] = {
        "confirm_order": {"confirmToken": "cft_nothing_such", "idempotencyKey": "k"},
        "close_position": {"market": "BTC", "idempotencyKey": "k"},
        "plan_order": LONG,
        "suggest_order": {"coin": "BTC", "notionalUsd": 50},
        "cancel_order": {"oid": "1"},
        "cancel_orders": {"coin": "BTC"},
        "create_guardian": {"type": "dead_man_switch", "heartbeatSeconds": 60},
        "delete_guardian": {"id": "grd_1"},
        "get_candles": {"coin": "BTC"},
        "get_book": {"coin": "BTC"},
    }
    # so that buying only shrinks
    await session.post("/v1/orders", LONG | {"side": "short", "usdAmount": 1000})
    for scope, caller in callers.items():
        async with agent(box, caller) as client:
            for name, (scopes, *_) in TABLE.items():
                given = enough.get(name, {})
                # It trades only event markets; without one the market is not found.
                if scope == OUTCOMES:
                    given = {key: "event:X" if value == "BTC" else value for key, value in given.items()}
                result = await client.call_tool(name, given)
                code = result.structured_content["error"]["code"] if result.is_error else None
                allowed = scopes is ANY or scope in scopes
                assert (code == "forbidden") == (not allowed), (scope, name, result.structured_content)


async def test_a_key_is_listed_only_what_it_may_call(box: Box, caller: Caller) -> None:
    for scopes in ([READ], [TRADE], [CLOSE], [OUTCOMES], [READ, CLOSE], [READ, TRADE]):
        key = await make(caller, scopes=scopes)
        async with agent(box, key) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
        assert listed == [name for name in TOOLS if (opened := TABLE[name][0]) is ANY or opened & set(scopes)]


async def test_a_schedule_of_an_order_takes_a_plan_and_its_token_once(box: Box, caller: Caller) -> None:
    schedule = {"type": "schedule", "cron": "* * * * *", "orderTemplate": LONG}
    async with agent(box, caller) as client:
        missing = await no(client, "create_guardian", **schedule)
        assert (missing["code"], missing["fix"]) == ("invalid_input", {"action": "plan", "tool": "plan_order"})
        assert missing["details"]["fields"][0]["field"] == "confirmToken"
        unknown = await no(client, "create_guardian", **schedule, confirmToken="cft_nothing_such")
        assert unknown["code"] == "not_found"
        token = (await yes(client, "plan_order", **LONG))["confirmToken"]
        other = schedule | {"orderTemplate": LONG | {"usdAmount": 9000}}
        assert (await no(client, "create_guardian", **other, confirmToken=token))["code"] == "plan_stale"
        armed = await yes(client, "create_guardian", **schedule, confirmToken=token)
        assert armed["orderTemplate"] == LONG | {"source": "agent"}
        assert (await no(client, "create_guardian", **schedule, confirmToken=token))["code"] == "plan_stale"
        spent = await no(client, "confirm_order", confirmToken=token, idempotencyKey="k")
        assert (spent["code"], spent["orderSubmitted"]) == ("plan_stale", False)
        traded = (await yes(client, "plan_order", **LONG))["confirmToken"]
        await yes(client, "confirm_order", confirmToken=traded, idempotencyKey="k2")
        assert (await no(client, "create_guardian", **schedule, confirmToken=traded))["code"] == "idempotency_conflict"
        late = (await yes(client, "plan_order", **LONG))["confirmToken"]
        await box.advance(60_000)
        assert (await no(client, "create_guardian", **schedule, confirmToken=late))["code"] == "plan_stale"
        trades = (await yes(client, "list_trades"))["trades"]
        assert [(one["source"], one["guardianId"]) for one in trades] == [("agent", armed["id"]), ("agent", None)]
        flat = await yes(client, "create_guardian", type="schedule", cron="0 0 * * *", action="flatten")
        assert flat["type"] == "schedule"
    assert [g["id"] for g in (await caller.get("/v1/guardians"))["guardians"]] == [armed["id"], flat["id"]]


@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_with_a_revoked_key_gets_the_reason(box: Box, caller: Caller, mode: str) -> None:
    gone = await make(caller, scopes=[READ])
    await caller.delete(f"/v1/keys/{gone.opened['id']}")
    with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match="the API key has been revoked"), flatten_subgroups=True):
        async with agent(box, gone, mode):
            pass


@pytest.mark.parametrize("given", [None, True, 1.5, 1.0, [1], {}])
async def test_a_request_with_an_invalid_id_is_refused_with_the_reason(box: Box, caller: Caller, given: Any) -> None:
    answer = await box.http.post("/mcp", json=DISCOVER | {"id": given}, headers=caller.headers | ACCEPT)
    said = answer.json()
    assert (answer.status_code, said["jsonrpc"], said["id"], said["error"]["code"]) == (400, "2.0", None, -32600)
    assert said["error"]["message"] == "id must be a string or an integer"
    assert said["error"]["data"]["code"] == "invalid_input"


async def test_a_close_only_key_arms_only_protecting_guardians_and_opens_nothing(box: Box, caller: Caller) -> None:
    closer = await make(caller, scopes=[CLOSE])
    async with agent(box, closer) as client:
        drawdown = await no(client, "create_guardian", type="account_drawdown", maxLossPctFromDayStart=5)
        assert drawdown["code"] == "forbidden"
        assert (await no(client, "plan_order", **LONG))["orderSubmitted"] is False


async def test_the_caps_of_a_key_apply_to_tools(box: Box, caller: Caller) -> None:
    bound = await make(caller, scopes=[READ, TRADE], allowedCoins=["ETH"])
    async with agent(box, bound) as client:
        refused = await no(client, "plan_order", **LONG)
    assert (refused["code"], refused["orderSubmitted"]) == ("key_limit_exceeded", False)


@pytest.mark.parametrize(
    ("name", "arguments", "code", "field"),
    [
        ("plan_order", {"market": "BTC", "sid": "long"}, "invalid_input", "sid"),
        ("plan_order", LONG | {"usdAmount": None}, "invalid_input", "usdAmount"),
        ("get_account", {"verbose": True}, "invalid_input", "verbose"),
        ("get_book", {}, "invalid_input", "coin"),
        ("get_book", {"coin": 7}, "invalid_input", "coin"),
        ("close_position", {"market": "BTC", "idempotencyKey": "a b"}, "invalid_input", "idempotencyKey"),
        ("list_trades", {"limit": 1000}, "invalid_input", "limit"),
        ("search_markets", {"query": None}, "invalid_input", "query"),
        ("search_markets", {"query": ["BTC"]}, "invalid_input", "query"),
        ("list_orders", {"coin": None}, "invalid_input", "coin"),
        ("get_book", {"coin": "NOPE"}, "not_found", None),
        ("get_book", {"coin": "../../v1/account?"}, "not_found", None),
        ("cancel_order", {"oid": "../keys/key_00000001"}, "not_found", None),
        ("cancel_order", {"oid": "\ud800"}, "not_found", None),
        ("create_key", {}, "not_found", None),
    ],
)
async def test_a_refusal_is_the_error_object(
    box: Box, caller: Caller, name: str, arguments: dict[str, Any], code: str, field: str | None
) -> None:
    if any("\ud800" in str(value) for value in arguments.values()):
        raw = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        headers = caller.headers | {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        answer = await box.http.post("/mcp", content=json.dumps(raw).encode(), headers=headers)
        assert answer.status_code < 500, answer.text
        return
    async with agent(box, caller) as client:
        error = await no(client, name, **arguments)
    assert error["code"] == code
    if field is not None:
        assert field in [one["field"] for one in error["details"]["fields"]]


# ── The route ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_without_a_credential_mcp_says_where_to_get_one(box: Box, caller: Caller) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = await box.http.post("/mcp", json=DISCOVER, headers=ACCEPT | headers)
        assert_told(answer, 401, "unauthorized")
        challenge = answer.headers["WWW-Authenticate"]
        assert challenge.startswith("Bearer")
        metadata = challenge.partition('resource_metadata="')[2].rstrip('"')
        assert metadata.endswith("/.well-known/oauth-protected-resource/mcp")
    said = (await box.http.get("/.well-known/oauth-protected-resource/mcp")).json()
    assert said["resource"] == (await box.http.get("/v1/start")).json()["apis"]["mcp"]["url"]
    assert said["bearer_methods_supported"] == ["header"]
    gone = await make(caller, scopes=[READ])
    await caller.delete(f"/v1/keys/{gone.opened['id']}")
    assert_told(await box.http.post("/mcp", json=DISCOVER, headers=ACCEPT | gone.headers), 401, "unauthorized")


async def test_mcp_has_one_path_and_one_method(box: Box, caller: Caller) -> None:
    headers = caller.headers | ACCEPT
    good = await box.http.post("/mcp", json=DISCOVER, headers=headers)
    assert good.status_code == 200
    assert good.headers["Content-Type"] == "application/json"
    assert good.headers["X-API-Version"] == "2026-10-19"
    assert "Mcp-Session-Id" not in good.headers
    for method in ("GET", "DELETE"):
        answer = await box.http.request(method, "/mcp", headers=headers)
        assert_refused(answer, 405, "invalid_input")
        assert answer.headers["Allow"] == "POST"
    assert_refused(await box.http.post("/mcp/", json=DISCOVER, headers=headers), 404, "not_found")
    key = caller.opened["apiKey"]
    assert_told(await box.http.post(f"/mcp?key={key}", json=DISCOVER, headers=headers), 400, "invalid_input")
    huge = await box.http.post("/mcp", content=b" " * 70_000, headers=headers | {"Content-Type": "application/json"})
    assert huge.status_code == 413


async def test_mcp_accepts_the_same_bodies_as_rest(box: Box, caller: Caller) -> None:
    headers = caller.headers | ACCEPT
    body = json.dumps(DISCOVER).encode()
    good = await box.http.post("/mcp", content=body, headers=headers | {"Content-Type": "application/json"})
    unsaid = await box.http.post("/mcp", content=body, headers=headers)
    assert (unsaid.status_code, unsaid.json()) == (200, good.json())
    for name, value in (("Content-Type", "text/plain"), ("Content-Type", ""), ("Content-Encoding", "gzip")):
        answer = await box.http.post("/mcp", content=body, headers=headers | {name: value})
        error = assert_told(answer, 415, "invalid_input")
        assert error["details"]["fields"][0]["field"] == name
    for content, says in (
        (body[:-1] + b',"method":"tools/list"}', "twice"),
        (body[:-1] + b',"more":NaN}', "NaN"),
        (body[:-1], "malformed JSON"),
        (b"", "malformed JSON"),
    ):
        error = assert_told(await box.http.post("/mcp", content=content, headers=headers), 400, "invalid_input")
        assert says in error["message"]


async def test_a_page_of_another_site_is_refused(box: Box, caller: Caller) -> None:
    headers = caller.headers | ACCEPT
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        answer = await box.http.post("/mcp", json=DISCOVER, headers=headers | {"Origin": origin})
        assert_told(answer, 403, "forbidden")
        assert_told(await box.http.post("/mcp", json=DISCOVER, headers={"Origin": origin}), 403, "forbidden")
    own = box.service.operations.base_url
    assert (await box.http.post("/mcp", json=DISCOVER, headers=headers | {"Origin": own})).status_code == 200
    foreign = await box.http.post("/mcp", json=DISCOVER, headers=headers | {"Host": "evil.example"})
    assert_told(foreign, 400, "invalid_input")


async def test_the_answer_of_a_call_has_the_id_of_its_request(box: Box, caller: Caller) -> None:
    params = {"name": "get_book", "arguments": {"coin": "NOPE"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = await box.http.post("/mcp", json=call, headers=caller.headers | ACCEPT)
    assert answer.json()["result"]["structuredContent"]["error"]["requestId"] == answer.headers["X-Request-Id"]


async def test_a_call_uses_the_rate_limit_of_its_request(open_box: OpenBox, monkeypatch: pytest.MonkeyPatch) -> None:
    # The bucket does not refill meanwhile, however long the calls take.
    monkeypatch.setattr(rate_limits, "monotonic_ns", lambda: 1)
    box: Box = await open_box(clock="1x", start_ms=None, hold_prices=False)
    caller = await box.caller()
    async with agent(box, caller, "legacy") as client:
        await client.list_tools()
        rates = {r["policy"]: r for r in (await yes(client, "get_limits"))["rate"]}
        assert rates["default"]["remaining"] >= rates["default"]["burst"] - 6
        beats = 0
        while not (result := await client.call_tool("heartbeat", {})).is_error:
            beats += 1
            assert beats <= rate_limits.POLICIES["heartbeat"].burst
    assert result.structured_content["error"]["code"] == "rate_limited"


async def test_a_lost_answer_of_the_service_leaves_the_outcome_open(box: Box, caller: Caller) -> None:
    fault = {"op": "post_orders", "kind": "lose_reply", "count": 1}
    assert (await box.http.post("/sandbox/v1/faults", json=fault, headers=box.control)).status_code == 200
    async with agent(box, caller) as client:
        error = await no(client, "plan_order", **LONG)
    assert (error["code"], error["orderSubmitted"]) == ("internal_error", "unknown")


def test_foreign_text_is_short_and_has_no_control_characters() -> None:
    said = harmless(
        {"name": "a\u202eb\x1b[2J\x00c\nd" + "x" * 500, "list": ["\u200bz"], "n": 1, "none": None, "note": "y" * 9_999}
    )
    assert said["name"].startswith("ab[2Jc d")
    assert len(said["name"]) == 120
    assert said["list"] == ["z"]
    assert (said["n"], said["none"], len(said["note"])) == (1, None, 2_000)
    assert harmless({"name": "Zürich 東京"}) == {"name": "Zürich 東京"}


def test_the_service_starts_without_the_protocol(repository: Path) -> None:
    code = (
        "import sys, bot.service.host; print(sorted({m.partition('.')[0] for m in sys.modules} & {'mcp', 'mcp_types',"
        " 'httpx2'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# ── bot mcp ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def served() -> Iterator[serving.Served]:
    made = serving.start(port=0, markets=["BTC"], seed=1)
    try:
        yield made
    finally:
        serving.end(made)


def _stdio(served: serving.Served, key: str | None) -> StdioServerParameters:
    env = {name: value for name, value in os.environ.items() if name != "BOT_API_KEY"}
    if key is not None:
        env["BOT_API_KEY"] = key
    command = ["-m", "bot", "mcp", "--base-url", served.base_url]
    return StdioServerParameters(command=sys.executable, args=command, env=env, cwd=serving.REPOSITORY)


async def test_bot_mcp_offers_the_same_tools_over_stdio(served: serving.Served) -> None:
    async with httpx.AsyncClient() as http:
        key = (await http.post(f"{served.base_url}/v1/sandbox/accounts", json={})).json()["apiKey"]
    async with Client(_stdio(served, key)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)
        plan = await yes(client, "plan_order", **LONG)
        arguments = {"confirmToken": plan["confirmToken"], "idempotencyKey": "one"}
        first = await yes(client, "confirm_order", **arguments)
        assert await yes(client, "confirm_order", **arguments) == first
        assert (await no(client, "get_book", coin="../account"))["code"] == "not_found"
        assert (await no(client, "get_book"))["code"] == "invalid_input"
        served.kill()
        error = await no(client, "close_position", market="BTC", idempotencyKey="two")
        assert (error["code"], error["orderSubmitted"]) in (
            ("service_unavailable", False),
            ("service_unavailable", "unknown"),
        )


def test_bot_mcp_reports_at_its_start_a_refused_key_or_an_absent_service(
    served: serving.Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from bot import operating_system
    from bot.cli.app import call
    from bot.cli.assistants.service_tools import _check_key

    with httpx.Client(base_url=served.base_url) as http:
        owner = http.post("/v1/sandbox/accounts", json={}).json()["apiKey"]
        http.headers["Authorization"] = f"Bearer {owner}"
        trades = http.post("/v1/keys", json={"scopes": ["trade"]}).json()
        asyncio.run(_check_key(served.base_url, trades["apiKey"]))
        assert capfd.readouterr() == ("", ""), "a key without the right to read is a key"
        assert http.delete(f"/v1/keys/{trades['id']}").is_success
    monkeypatch.setattr(operating_system, "harden", lambda: None)
    monkeypatch.setenv("BOT_API_KEY", trades["apiKey"])
    assert call(["mcp", "--base-url", served.base_url]) == 7
    out, err = capfd.readouterr()
    assert (out, trades["apiKey"] in err) == ("", False)
    assert "refuses the key: the API key has been revoked; put a valid key where --key points" in err
    served.kill()
    asyncio.run(_check_key(served.base_url, owner))
    out, err = capfd.readouterr()
    assert (out, err.count("\n"), "does not answer" in err, "--base-url" in err) == ("", 1, True, True)


def test_bot_mcp_takes_no_key_from_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    from bot.cli.app import call

    assert call(["mcp", "--key", "bbk_test_secret"]) == 4
    said = capfd.readouterr().err
    assert "reference" in said
    assert "bbk_test_secret" not in said
    assert call(["mcp", "--base-url", "http://trading.example.com"]) == 4


def test_bot_mcp_makes_its_process_private_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    from bot import operating_system
    from bot.cli.app import call
    from bot.cli.assistants import service_tools

    done: list[str] = []

    async def serve(*_given: str) -> None:
        done.append("serve")

    monkeypatch.setattr(operating_system, "harden", lambda: done.append("harden"))
    monkeypatch.setattr(service_tools, "serve", serve)
    monkeypatch.setenv("BOT_API_KEY", "bbk_test_secret")
    assert call(["mcp"]) == 0
    assert done == ["harden", "serve"]

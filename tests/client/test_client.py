"""Each method: the route it calls, the query and body it sends, the model it answers with.

And the control client over a Unix socket.
"""

from __future__ import annotations

import asyncio
import json
import time
from decimal import Decimal
from email.utils import formatdate

import httpx
import pytest

from bot.client import Client, ControlClient
from bot.client.calls import retry_after_ms
from bot.errors import AccessLost, Refused, TryLater
from bot.wire import CloseRequest, GuardianRequest, OrderRequest, SuggestRequest

TRADE = {
    "id": "trd_1",
    "kind": "market",
    "symbol": "BTC",
    "side": "long",
    "intent": "open",
    "reduceOnly": False,
    "size": "1",
    "status": "done",
}
PLATFORM = {
    "minNotionalUsd": "10",
    "usdAmountMax": "1000000",
    "leverageMax": 50,
    "slippageBpsMax": 1000,
    "heartbeatSecondsMin": 60,
    "heartbeatSecondsMax": 86400,
}
GUARDIAN = {"id": "grd_1", "type": "dead_man_switch", "scope": "account", "status": "armed", "heartbeatSeconds": 300}
ACCOUNT = {
    "accountId": "a",
    "address": "0x",
    "accountValueUsd": "1",
    "balanceUsd": "1",
    "freeMarginUsd": "1",
    "marginUsedUsd": "0",
    "unrealizedPnlUsd": "0",
    "positions": [],
    "orders": [],
    "guardians": [],
    "limits": {"limitsVersion": 2, "platform": PLATFORM, "account": {}},
    "lastEventId": "evt_1",
    "health": {"status": "ok"},
}
PLAN = {
    "coin": "BTC",
    "market": "perp:BTC",
    "side": "long",
    "intent": "open",
    "type": "market",
    "size": "1",
    "notionalUsd": "50",
}
SANDBOX = {
    "apiKey": "bbk_test_x",
    "keyId": "key_1",
    "accountId": "a",
    "address": "0x",
    "balanceUsd": "10000",
    "environment": "sandbox",
    "lastEventId": "evt_1",
}
RESET = {
    "accountId": "a",
    "address": "0x",
    "balanceUsd": "5",
    "environment": "sandbox",
    "epoch": 1,
    "lastEventId": "evt_9",
}
SUGGEST = {"coin": "BTC", "market": "perp:BTC", "intent": "open", "side": "long", "feasible": True}
START = {
    "name": "x",
    "environment": "sandbox",
    "apis": {"rest": {"baseUrl": "http://x"}},
    "creditPolicy": {"grantedUsd": "1", "policy": "p"},
}
CANDLES = {
    "coin": "BTC",
    "interval": "1m",
    "candles": [{"ts": 0, "open": "1", "high": "2", "low": "1", "close": "2", "volume": "3", "closed": True}],
}
ORDER = OrderRequest(market="BTC", side="long", usd_amount=Decimal("50.1"))
BEAT = GuardianRequest(type="dead_man_switch", heartbeat_seconds=300)

# call, method and path, query, body, answer
CALLS = [
    (lambda c: c.start(), "GET /v1/start", {}, None, START),
    (lambda c: c.status(), "GET /v1/system/status", {}, None, {"status": "ok"}),
    (
        lambda c: c.create_sandbox_account(name="n"),
        "POST /v1/sandbox/accounts",
        {},
        {"name": "n", "startingBalanceUsd": 10000},
        SANDBOX,
    ),
    (lambda c: c.reset(balance_usd=5), "POST /v1/sandbox/accounts/reset", {}, {"balanceUsd": 5}, RESET),
    (lambda c: c.reset(), "POST /v1/sandbox/accounts/reset", {}, {}, RESET),
    (lambda c: c.account(), "GET /v1/account", {}, None, ACCOUNT),
    (
        lambda c: c.confirm("tok_12345678", key="k"),
        "POST /v1/orders/confirm",
        {},
        {"confirmToken": "tok_12345678"},
        {"trade": TRADE},
    ),
    (
        lambda c: c.close("perp:BTC", CloseRequest(fraction=Decimal(1)), key="k"),
        "POST /v1/positions/perp:BTC/close",
        {},
        {"fraction": 1},
        {"trade": TRADE},
    ),
    (lambda c: c.orders(), "GET /v1/orders", {}, None, {"orders": []}),
    (lambda c: c.orders("BTC"), "GET /v1/orders", {"coin": "BTC"}, None, {"orders": []}),
    (lambda c: c.cancel("17"), "DELETE /v1/orders/17", {}, None, {"oid": "17", "coin": "BTC"}),
    (lambda c: c.cancel_coin("BTC"), "DELETE /v1/orders", {}, {"coin": "BTC"}, {"coin": "BTC", "canceledOids": ["1"]}),
    (lambda c: c.guardians(), "GET /v1/guardians", {}, None, {"guardians": [GUARDIAN]}),
    (
        lambda c: c.arm(BEAT, key="k"),
        "POST /v1/guardians",
        {},
        {"type": "dead_man_switch", "heartbeatSeconds": 300},
        GUARDIAN,
    ),
    (lambda c: c.disarm("grd_1"), "DELETE /v1/guardians/grd_1", {}, None, {"id": "grd_1"}),
    (
        lambda c: c.heartbeat(),
        "POST /v1/heartbeat",
        {},
        {},
        {"guardians": [{"id": "grd_1", "nextDeadline": 5}], "serverTime": 1},
    ),
    (
        lambda c: c.events("evt_1", types=("fill", "trigger")),
        "GET /v1/events",
        {"since": "evt_1", "limit": "200", "types": "fill,trigger"},
        None,
        {"events": []},
    ),
    (lambda c: c.events(None, limit=5), "GET /v1/events", {"limit": "5"}, None, {"events": []}),
    (
        lambda c: c.trades(before=7, coin="BTC"),
        "GET /v1/trades",
        {"limit": "50", "before": "7", "coin": "BTC"},
        None,
        {"trades": [TRADE]},
    ),
    (
        lambda c: c.markets(),
        "GET /v1/markets",
        {"asset_class": "all", "view": "trending", "limit": "150"},
        None,
        {"markets": []},
    ),
    (
        lambda c: c.candles("event:A/B", "1m", 3),
        "GET /v1/markets/event:A%2FB/candles",
        {"interval": "1m", "limit": "3"},
        None,
        CANDLES,
    ),
    (lambda c: c.book("BTC"), "GET /v1/markets/BTC/book", {}, None, {"coin": "BTC", "bids": [{"px": "1", "sz": "2"}]}),
    (
        lambda c: c.suggest(SuggestRequest(coin="BTC")),
        "POST /v1/orders/suggest",
        {},
        {"coin": "BTC", "intent": "open", "side": "long"},
        SUGGEST,
    ),
]


@pytest.mark.parametrize("row", CALLS, ids=[row[1] for row in CALLS])
async def test_a_method_calls_its_route_and_reads_its_body(row):
    call, route, query, body, reply = row
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=reply)

    async with Client("http://localhost", "k", transport=httpx.MockTransport(handle)) as client:
        result = await call(client)
    (request,) = seen
    assert f"{request.method} {request.url.raw_path.decode().split('?')[0]}" == route
    assert dict(request.url.params) == query
    assert (json.loads(request.content) if request.content else None) == body
    if not route.startswith("DELETE /v1/guardians"):
        assert result is not None


async def test_a_plan_is_a_dry_run_without_a_key_and_a_placed_order_is_not():
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        dry = json.loads(request.content)["dryRun"]
        return httpx.Response(200, json={"confirmToken": "tok_1234", "plan": PLAN} if dry else {"trade": TRADE})

    async with Client("http://localhost", "k", transport=httpx.MockTransport(handle)) as client:
        plan = await client.plan(ORDER, key="k1")
        done = await client.place(ORDER, key="k1")
        with pytest.raises(AssertionError):
            await client.place(ORDER.model_copy(update={"dry_run": True}), key="k1")
    assert plan.confirm_token == "tok_1234"
    assert plan.confirm_token not in repr(plan)
    assert done.trade.size == 1
    assert "idempotency-key" not in seen[0].headers
    assert seen[1].headers["idempotency-key"] == "k1"
    assert b'"usdAmount":50.1' in seen[0].content


async def test_a_refusal_has_the_fields_of_the_services_error():
    error = {
        "code": "below_min_notional",
        "message": "too small",
        "requestId": "req_9",
        "retryable": False,
        "orderSubmitted": False,
        "details": {"minNotionalUsd": "10"},
        "fix": {"field": "usdAmount", "value": 10},
        "docsUrl": "http://x",
    }
    transport = httpx.MockTransport(lambda request: httpx.Response(422, json={"error": error}))
    async with Client("http://localhost", "k", transport=transport) as client:
        with pytest.raises(Refused) as caught:
            await client.place(ORDER, key="k")
    raised = caught.value
    assert (raised.code, raised.message, raised.request_id, raised.status) == (
        "below_min_notional",
        "too small",
        "req_9",
        422,
    )
    assert (raised.fix, raised.details) == ({"field": "usdAmount", "value": 10}, {"minNotionalUsd": "10"})


@pytest.mark.parametrize(
    ("headers", "after_ms"), [({"Retry-After": "7"}, 7000), ({}, 1000), ({"Retry-After": "soon"}, 1000)]
)
async def test_try_later_says_how_long(headers, after_ms):
    error = {"code": "rate_limited", "message": "m", "requestId": "r", "retryable": True, "orderSubmitted": False}
    transport = httpx.MockTransport(lambda request: httpx.Response(429, json={"error": error}, headers=headers))
    async with Client("http://localhost", "k", transport=transport) as client:
        for call in (client.place(ORDER, key="k"), client.account()):
            with pytest.raises(TryLater) as caught:
                await call
            assert caught.value.after_ms == after_ms


def test_retry_after_reads_seconds_and_dates_and_nothing_else():
    date = "Fri, 20 Nov 2026 10:00:00 GMT"
    assert retry_after_ms("0", None) == 0
    assert retry_after_ms("Fri, 20 Nov 2026 10:00:30 GMT", date) == 30_000
    assert retry_after_ms("Fri, 20 Nov 2026 09:00:00 GMT", date) == 0
    assert retry_after_ms("99999999999999", None) == 3_600_000
    assert retry_after_ms(None, date) is None
    assert retry_after_ms("١٢", date) is None
    assert retry_after_ms("-1", date) is None
    for no_instant in ("Fri, 20 Nov 99999999999 10:00:30 GMT", "Fri, 20 Nov 2026 10:00:30 +99999999999999"):
        assert retry_after_ms(no_instant, date) is None
        assert retry_after_ms("Fri, 20 Nov 2020 10:00:30 GMT", no_instant) == 0


@pytest.mark.parametrize("code", ["unauthorized", "session_expired"])
async def test_every_call_raises_access_lost_for_a_lost_credential(code):
    error = {"code": code, "message": "m", "requestId": "r", "retryable": False, "orderSubmitted": False}
    transport = httpx.MockTransport(lambda request: httpx.Response(401, json={"error": error}))
    async with Client("http://localhost", "k", transport=transport) as client:
        for call in (
            client.account(),
            client.place(ORDER, key="k"),
            client.plan(ORDER),
            client.heartbeat(),
            client.cancel("1"),
        ):
            with pytest.raises(AccessLost):
                await call


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_name_that_would_be_another_path_is_refused_before_anything_is_sent(name):
    def handle(request: httpx.Request) -> httpx.Response:
        raise AssertionError("sent")

    async with Client("http://localhost", "k", transport=httpx.MockTransport(handle)) as client:
        with pytest.raises(Refused):
            await client.cancel(name)
        with pytest.raises(Refused):
            await client.book(name)


async def test_a_key_that_no_header_can_hold_raises_a_value_error():
    async with Client("http://localhost", "k") as client:
        for key in ("", "a b", "a\r\nb", "é", "x" * 256):
            with pytest.raises(ValueError, match="Idempotency-Key"):
                await client.place(ORDER, key=key)


async def test_the_clock_follows_the_header_of_each_answer():
    times = iter([(1_000_000, 0), (1_060_000, 0)])

    def handle(request: httpx.Request) -> httpx.Response:
        now, speed = next(times)
        return httpx.Response(
            200,
            json={"status": "ok"},
            headers={"X-Sandbox-Clock": f"{now}; speed={speed}", "X-API-Version": "2026-10-19"},
        )

    async with Client("http://localhost", transport=httpx.MockTransport(handle)) as client:
        await client.status()
        assert (client.clock.now_ms(), client.clock.speed) == (1_000_000, 0)
        await client.status()
        assert client.clock.now_ms() == 1_060_000


async def test_the_date_of_a_cached_answer_is_ignored_and_that_of_an_uncacheable_one_counts():
    signed = {"X-API-Version": "2026-10-19"}
    now_s = time.time()
    answers = iter(
        [
            {"Date": formatdate(now_s, usegmt=True)},
            {"Date": formatdate(now_s - 600, usegmt=True), "Age": "600"},
            {"Date": formatdate(now_s - 600, usegmt=True)},
            {"X-Sandbox-Clock": "1000000; speed=0", "Age": "600"},
            {"Date": formatdate(now_s - 600, usegmt=True)},
        ]
    )

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"status": "ok", "guardians": []}, headers=signed | next(answers))

    async with Client("http://localhost", "k", transport=httpx.MockTransport(handle)) as client:
        for stale in (0, 1, 2, 3):
            await client.status()
            assert client.clock.stale == stale
            assert abs(client.clock.skew_ms) < 3_000
            assert not client.clock.is_sandbox
        await client.heartbeat()
        assert client.clock.skew_ms < -590_000


async def test_the_control_client_speaks_over_a_unix_socket(tmp_path):
    path = tmp_path / "control.sock"
    seen: list[bytes] = []
    replies = {
        b"POST /sandbox/v1/keys": {"apiKey": "bbk_test_new", "keyId": "key_2", "accountId": "a", "address": "0x"},
        b"GET /sandbox/v1/clock": {"mode": "manual", "speed": 0, "now": 5},
        b"PATCH /sandbox/v1/clock": {"mode": "accelerated", "speed": 60, "now": 5},
        b"POST /sandbox/v1/clock/advance": {"mode": "manual", "speed": 0, "now": 65, "processed": 3, "lastPriceMs": 60},
        b"GET /sandbox/v1/digest": {"digest": "ab", "events": 3, "now": 65},
        b"POST /sandbox/v1/markets/BTC/price": {
            "coin": "BTC",
            "market": "perp:BTC",
            "name": "b",
            "assetClass": "crypto",
            "book": "main",
            "status": "open",
            "szDecimals": 5,
            "maxLeverage": 50,
        },
    }

    async def serve(reader, writer):
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ),
                0,
            )
            body = await reader.readexactly(length)
            seen.append(body)
            reply = json.dumps(replies[b" ".join(head.split(b" ")[:2])]).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with ControlClient(path) as control:
        minted = await control.mint_key()
        assert minted.api_key == "bbk_test_new"
        assert "bbk_test_new" not in repr(minted)
        assert (await control.clock()).speed == 0
        assert (await control.set_speed(60)).mode == "accelerated"
        assert (await control.advance(ms=60)).processed == 3
        await control.advance(to_ms=65)
        await control.advance(to_next=True)
        assert (await control.digest()).events == 3
        assert (await control.price("BTC", "100", oracle_px="101")).coin == "BTC"
    server.close()
    await server.wait_closed()
    assert [json.loads(body) for body in seen if body] == [
        {"accountId": None},
        {"speed": 60},
        {"ms": 60},
        {"toMs": 65},
        {"toNext": True},
        {"px": "100", "oraclePx": "101"},
    ]

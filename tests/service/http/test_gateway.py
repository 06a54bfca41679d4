"""Every failure is the error object, every answer has the headers: unknown routes, methods, bodies, names, callers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bot.service.http.routes_v1 import Router, add_routes
from bot.service.security import rate_limits
from bot.wire.interface import Operation
from tests.service.builders import ENTRY, assert_refused
from tests.service.conftest import Box, Caller, OpenBox

ORDER_ROUTES = {"/v1/orders", "/v1/orders/confirm", "/v1/positions/{market}/close"}


def rules_of(box: Box) -> list[Operation[Any]]:
    router = Router()
    add_routes(router, box.service.operations)
    return router.rules


def filled(rule: Operation[Any]) -> str:
    return rule.path.replace("{coin}", "BTC").replace("{market}", "BTC").replace("{oid}", "1").replace("{id}", "grd_1")


async def test_every_route_refuses_missing_and_unknown_credentials_before_it_reads_the_body(box: Box) -> None:
    for rule in rules_of(box):
        if rule.access == "none":
            continue
        for headers in (
            {},
            {"Authorization": "Bearer nonsense"},
            {"Authorization": "Basic eA=="},
            {"Authorization": "Bearer bbk_test_10000000_" + "A" * 43 + "_AAAAAA"},
        ):
            answer = await box.http.request(rule.method, filled(rule), content=b"{not json", headers=headers)
            error = assert_refused(answer, 401, "unauthorized")
            assert ("orderSubmitted" in error) == (rule.is_order), rule.path


async def test_every_path_answers_405_with_its_complete_allow(box: Box) -> None:
    by_path: dict[str, set[str]] = {}
    for rule in rules_of(box):
        by_path.setdefault(filled(rule), set()).add(rule.method)
    orders = {filled(rule) for rule in rules_of(box) if rule.is_order}
    assert {"/v1/orders", "/v1/orders/confirm", "/v1/account/kill"} < orders
    for path, methods in by_path.items():
        for method in ("PUT", "OPTIONS", "TRACE"):
            answer = await box.http.request(method, path)
            error = assert_refused(answer, 405, "invalid_input")
            assert error.get("orderSubmitted") is (False if path in orders else None), path
            assert set(answer.headers["allow"].split(", ")) == methods, path
        assert (await box.http.head(path)).status_code == 405


async def test_unknown_routes_are_404(box: Box) -> None:
    for path in (
        "/v1",
        "/v1/order",
        "/v1/orders/",
        "/v1/orders/1/2",
        "/v1/orders/a%2Fb",
        "/v1/markets/BTC",
        "/v1/markets/BTC%2Fbook",
        "/v1%2fmarkets",
        "/docs/nope",
        "/openapi.yaml",
        "/sandbox/v1/nope",
        "/" + "x" * 3000,
    ):
        assert_refused(await box.http.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "malformed JSON"),
        (b'{"a":1,}', "malformed JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"market":"BTC","market":"ETH"}', "twice"),
        (b'{"usdAmount":NaN}', "NaN"),
        (b'{"usdAmount":Infinity}', "Infinity"),
        (b'{"usdAmount":-Infinity}', "Infinity"),
        (b'{"usdAmount":1e999}', "out of range"),
        (b'{"usdAmount":1' + b"0" * 500 + b"}", "400 digits"),
        (b"[" * 40 + b"]" * 40, "deeper than 32"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "deeper than 32"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"null", "object"),
    ],
)
async def test_a_body_that_is_not_plain_json_is_refused_and_orders_nothing(
    caller: Caller, content: bytes, says: str
) -> None:
    answer = await caller.http.post("/v1/orders", content=content, headers=caller.headers)
    error = assert_refused(answer, 400, "invalid_input")
    assert says in error["message"]
    assert error["orderSubmitted"] is False
    assert error["retryable"] is False


async def test_brackets_inside_text_are_not_depth(caller: Caller) -> None:
    answer = await caller.send("POST", "/v1/orders", {"market": "[" * 60, "side": "long", "usdAmount": 10})
    assert_refused(answer, 404, "not_found")


async def test_a_large_body_is_413_and_another_type_415(caller: Caller) -> None:
    large = json.dumps(ENTRY | {"source": "x" * 70_000}).encode()
    error = assert_refused(
        await caller.http.post("/v1/orders", content=large, headers=caller.headers), 413, "invalid_input"
    )
    assert error["orderSubmitted"] is False

    async def parts() -> Any:
        for _ in range(70):
            yield b" " * 1024

    assert_refused(await caller.http.post("/v1/orders", content=parts(), headers=caller.headers), 413, "invalid_input")
    typed = caller.headers | {"Content-Type": "text/plain"}
    assert_refused(await caller.http.post("/v1/orders", content=b"{}", headers=typed), 415, "invalid_input")
    untyped = await caller.http.post("/v1/orders", content=json.dumps(ENTRY).encode(), headers=caller.headers)
    assert untyped.status_code == 200, untyped.text


@pytest.mark.parametrize(
    ("change", "field", "status", "code"),
    [
        ({"sized": 1}, "sized", 400, "invalid_input"),
        ({"side": "up"}, "side", 400, "invalid_input"),
        ({"side": None}, "side", 400, "invalid_input"),
        ({"usdAmount": 0}, "usdAmount", 400, "invalid_input"),
        ({"usdAmount": 1_000_001}, "usdAmount", 400, "invalid_input"),
        ({"usdAmount": "100"}, "usdAmount", 400, "invalid_input"),
        ({"usdAmount": True}, "usdAmount", 400, "invalid_input"),
        ({"size": "1"}, "size", 400, "invalid_input"),
        ({"leverage": 51}, "leverage", 400, "invalid_input"),
        ({"leverage": 1.5}, "leverage", 400, "invalid_input"),
        ({"limitPx": "100"}, "limitPx", 400, "invalid_input"),
        ({"maxSlippageBps": 1001}, "maxSlippageBps", 400, "invalid_input"),
        ({"maxDriftBps": 0}, "maxDriftBps", 400, "invalid_input"),
        ({"bracket": {"stopLoss": {"pct": 1, "px": "1"}}}, "bracket.stopLoss", 400, "invalid_input"),
        ({"bracket": {}}, "bracket", 400, "invalid_input"),
        ({"market": ""}, "market", 400, "invalid_input"),
        ({"market": "NOPE"}, None, 404, "not_found"),
        ({"leverage": 45}, None, 422, "leverage_too_high"),
        ({"usdAmount": 1}, None, 422, "below_min_notional"),
        ({"usdAmount": 1e-9}, None, 422, "below_min_notional"),
        ({"usdAmount": 900_000, "leverage": 1}, None, 422, "insufficient_funds"),
        ({"bracket": {"stopLoss": {"px": "101000"}}}, "bracket.stopLoss", 400, "invalid_input"),
    ],
)
async def test_a_bad_order_names_its_field_and_orders_nothing(
    caller: Caller, change: dict[str, Any], field: str | None, status: int, code: str
) -> None:
    answer = await caller.send("POST", "/v1/orders", ENTRY | change)
    error = assert_refused(answer, status, code)
    assert error["orderSubmitted"] is False
    if field is not None:
        named = [problem["field"] for problem in error["details"]["fields"]]
        assert any(name.startswith(field) for name in named), error
        assert all(set(problem) == {"field", "problem", "allowed"} for problem in error["details"]["fields"])
    assert (await caller.get("/v1/trades"))["trades"] == []


@pytest.mark.parametrize("name", ["BTCUSDT", "btc-usd", "perp:BTC-PERP", "BTCX"])
async def test_the_refusal_of_an_unlisted_market_suggests_the_likely_one(caller: Caller, name: str) -> None:
    requests = [
        ("POST", "/v1/orders", ENTRY | {"market": name}),
        ("POST", "/v1/orders/suggest", {"coin": name, "notionalUsd": 100}),
        ("GET", f"/v1/markets/{name}/book", None),
        ("DELETE", "/v1/orders", {"coin": name}),
        ("POST", f"/v1/positions/{name}/close", {}),
        ("POST", "/v1/guardians", {"type": "max_hold", "market": name, "seconds": 60}),
    ]
    for request in requests:
        error = assert_refused(await caller.send(*request), 404, "not_found")
        assert error["message"].endswith("; did you mean BTC?"), request
        assert error["fix"] == {"action": "search_markets", "path": "/v1/markets"}


async def test_the_refusal_of_an_unknown_name_suggests_the_nearest_one(caller: Caller) -> None:
    error = assert_refused(await caller.send("POST", "/v1/orders", ENTRY | {"leverge": 3}), 400, "invalid_input")
    assert "leverge is unknown; did you mean leverage?" in error["message"]
    error = assert_refused(await caller.send("GET", "/v1/events?limits=3"), 400, "invalid_input")
    assert "did you mean limit?" in error["message"]
    error = assert_refused(await caller.send("POST", "/v1/orders", {"qty": 5}), 400, "invalid_input")
    assert "qty is unknown; did you mean size?" in error["message"]
    assert_refused(await caller.send("GET", "/v1/account?x=1"), 400, "invalid_input")
    assert_refused(await caller.send("POST", "/v1/heartbeat", {"x": 1}), 400, "invalid_input")
    assert_refused(await caller.send("GET", "/v1/events?limit=1&limit=2"), 400, "invalid_input")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/events?limit=0",
        "/v1/events?limit=201",
        "/v1/events?limit=1.5",
        "/v1/events?limit=%D9%A1",
        "/v1/events?since=5",
        "/v1/trades?limit=201",
        "/v1/trades?before=-1",
        "/v1/markets?limit=251",
        "/v1/markets?view=best",
        "/v1/markets?asset_class=metal",
        "/v1/markets/BTC/candles?interval=2m",
        "/v1/markets/BTC/candles?limit=5001",
        "/v1/events?limit=%ff",
    ],
)
async def test_a_bad_query_is_refused(caller: Caller, path: str) -> None:
    assert_refused(await caller.send("GET", path), 400, "invalid_input")


async def test_unknown_markets_are_404_everywhere(caller: Caller) -> None:
    for path in ("/v1/markets/NOPE/candles", "/v1/markets/NOPE/book", "/v1/orders?coin=NOPE", "/v1/trades?coin=NOPE"):
        assert_refused(await caller.send("GET", path), 404, "not_found")
    assert_refused(await caller.send("POST", "/v1/orders/suggest", {"coin": "NOPE"}), 404, "not_found")
    assert_refused(await caller.send("DELETE", "/v1/orders", {"coin": "NOPE"}), 404, "not_found")
    assert_refused(await caller.send("POST", "/v1/positions/NOPE/close", {}), 404, "not_found")


async def test_invalid_headers_are_refused(caller: Caller) -> None:
    assert_refused(await caller.send("GET", "/v1/account", X_API_Version="2020-01-01"), 400, "invalid_input")
    assert (await caller.send("GET", "/v1/account", X_API_Version="2026-10-19")).status_code == 200
    assert_refused(await caller.send("POST", "/v1/orders", ENTRY, key="x" * 256), 400, "invalid_input")
    assert_refused(await caller.send("POST", "/v1/orders", ENTRY, key="a b"), 400, "invalid_input")
    assert_refused(await caller.send("POST", "/v1/orders", ENTRY, X_Expires_After="soon"), 400, "invalid_input")
    answer = await caller.http.get("/v1/account", headers=caller.headers | {"Host": "evil.example"})
    assert_refused(answer, 400, "invalid_input")


async def test_good_answers_have_the_headers_too(caller: Caller) -> None:
    answer = await caller.send("GET", "/v1/account")
    assert answer.headers["x-api-version"] == "2026-10-19"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-sandbox-clock"] == "1750000020000; speed=0"
    assert answer.headers["cache-control"] == "no-store"
    assert len(answer.headers.get_list("x-request-id")) == 1


async def test_rate_limits_are_enforced_and_reported(open_box: OpenBox, monkeypatch: pytest.MonkeyPatch) -> None:
    # The bucket does not refill meanwhile, however long the requests take.
    monkeypatch.setattr(rate_limits, "monotonic_ns", lambda: 1)
    box = await open_box(clock="3600x", start_ms=None)
    caller = await box.caller()
    first = await caller.send("GET", "/v1/account")
    assert first.headers["ratelimit-policy"] == '"default";q=400;w=4'
    for _ in range(700):
        answer = await caller.send("GET", "/v1/guardians")
        if answer.status_code == 429:
            break
    error = assert_refused(answer, 429, "rate_limited")
    assert error["retryable"] is True
    # It has a bucket of its own.
    assert (await caller.post("/v1/heartbeat"))["guardians"] == []


async def test_a_real_clock_is_not_announced(open_box: OpenBox) -> None:
    box = await open_box(clock="real", start_ms=None, hold_prices=False)
    assert "x-sandbox-clock" not in (await box.http.get("/v1/system/status")).headers


@pytest.mark.parametrize("part", [0.0, 0.02, 0.98, 1.0])
async def test_a_body_that_was_cut_has_no_effect(box: Box, caller: Caller, part: float) -> None:
    whole = json.dumps(ENTRY).encode()
    sent: list[Any] = []
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": whole[: round(len(whole) * part)], "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/orders",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"authorization", caller.headers["Authorization"].encode())],
        "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2),
    }
    await box.service.app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert (await caller.get("/v1/trades"))["trades"] == []


async def test_an_internal_error_is_a_500_that_does_not_say_whether_the_order_was_sent(
    box: Box, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(box.service.operations, "decide", broken)
    answer = await caller.send("POST", "/v1/orders", ENTRY)
    error = assert_refused(answer, 500, "internal_error")
    assert error["orderSubmitted"] == "unknown"
    assert error["retryable"] is True
    assert "secret detail" not in answer.text

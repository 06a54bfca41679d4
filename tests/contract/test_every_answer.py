"""What every answer owes, and what every request is held to before a rule of trading is asked."""

from __future__ import annotations

import gzip
import json
import re
import socket
from typing import Any

import pytest

from tests.contract.target import Caller, Target, owed

# method, path, whether it needs a credential
ROUTES = [
    ("GET", "/v1/start", False),
    ("GET", "/v1/markets", False),
    ("GET", "/v1/markets/BTC/candles", False),
    ("GET", "/v1/markets/BTC/book", False),
    ("GET", "/v1/system/status", False),
    ("POST", "/v1/sandbox/accounts", False),
    ("POST", "/v1/sandbox/accounts/reset", True),
    ("GET", "/v1/account", True),
    ("GET", "/v1/limits", True),
    ("POST", "/v1/orders", True),
    ("GET", "/v1/orders", True),
    ("DELETE", "/v1/orders", True),
    ("DELETE", "/v1/orders/1", True),
    ("POST", "/v1/orders/confirm", True),
    ("POST", "/v1/orders/suggest", True),
    ("POST", "/v1/positions/BTC/close", True),
    ("GET", "/v1/guardians", True),
    ("POST", "/v1/guardians", True),
    ("DELETE", "/v1/guardians/grd_1", True),
    ("POST", "/v1/heartbeat", True),
    ("GET", "/v1/events", True),
    ("GET", "/v1/trades", True),
]
SECURED = [(method, path) for method, path, secured in ROUTES if secured]
ORDER = {"market": "BTC", "side": "long", "usdAmount": 50}


def test_the_interface_document_has_these_routes(shared: Any) -> None:
    document = (shared / "spec" / "trading-service.md").read_text(encoding="utf-8")
    rows = {
        (cells[0], re.sub(r"\{\w+\}", "x", cells[1])): cells[2]
        for line in document.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
    }
    for method, path, secured in ROUTES:
        generic = re.sub(r"/(BTC|1|grd_1)(?=/|$)", "/x", path)
        # these stand in prose only
        if path not in ("/v1/system/status", "/v1/trades"):
            assert rows[method, generic] == ("bearer" if secured else "none"), path


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Basic dTpw",
        "Bearer bbk_test_00000000_x_y",
        "Bearer bbs_x",
        "Token abc",
        "Bearer a b",
        "Bearer \xe9",
    ],
)
def test_a_secured_route_answers_401_without_a_good_key(site: Target, authorization: str | None) -> None:
    headers = [] if authorization is None else [(b"Authorization", authorization.encode("latin-1"))]
    for method, path in SECURED:
        answer = site.send(method, path, raw=b"{bad", headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401, (method, path)
        error = answer.json()["error"]
        assert error["code"] == "unauthorized"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        if path.endswith(("/orders", "/confirm", "/close")) and method == "POST":
            assert error["orderSubmitted"] is False
            assert error["retryable"] is False


def test_the_scheme_of_authorization_has_any_case_and_a_changed_key_is_unknown(caller: Caller) -> None:
    key = caller.opened["apiKey"]
    assert re.fullmatch(r"bbk_test_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}_[0-9A-Za-z]+", key)
    for scheme in ("bearer", "BEARER"):
        assert caller.target.send("GET", "/v1/account", headers={"Authorization": f"{scheme} {key}"}).status_code == 200
    for wrong in (key[:-1], key + "0", key[:-1] + ("0" if key[-1] != "0" else "1"), key.upper()):
        assert caller.target.send("GET", "/v1/account", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v2/start",
        "/v1/nothing",
        "/v1/account/",
        "/v1/orders/1/2",
        "/v1//account",
        "/v1/positions/BTC",
        "/v1/markets/BTC",
        "/V1/account",
        "/v1/%00",
        "/v1/%ff",
        "/v1/orders/confirm/x",
        "/%2e%2e/etc/passwd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH"])
def test_an_unknown_route_is_404_and_never_a_redirect(site: Target, path: str, method: str) -> None:
    answer = site.send(method, path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


ALLOWED = {
    "/v1/start": {"GET"},
    "/v1/markets": {"GET"},
    "/v1/markets/BTC/candles": {"GET"},
    "/v1/markets/BTC/book": {"GET"},
    "/v1/system/status": {"GET"},
    "/v1/sandbox/accounts": {"POST"},
    "/v1/sandbox/accounts/reset": {"POST"},
    "/v1/account": {"GET"},
    "/v1/limits": {"GET"},
    "/v1/orders": {"GET", "POST", "DELETE"},
    "/v1/orders/123": {"DELETE"},
    "/v1/orders/confirm": {"POST", "DELETE"},
    "/v1/orders/suggest": {"POST", "DELETE"},
    "/v1/positions/BTC/close": {"POST"},
    "/v1/guardians": {"GET", "POST"},
    "/v1/guardians/grd_1": {"DELETE"},
    "/v1/heartbeat": {"POST"},
    "/v1/events": {"GET"},
    "/v1/trades": {"GET"},
}


@pytest.mark.parametrize("path", ALLOWED)
def test_405_names_every_method_of_the_path(site: Target, path: str) -> None:
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE", "PURGE", "GET", "POST", "DELETE"):
        if method in ALLOWED[path]:
            continue
        answer = site.send(method, path)
        assert answer.status_code == 405, (method, path)
        assert answer.json()["error"]["code"] == "invalid_input"
        said = {name.strip() for name in answer.headers["allow"].split(",")} - {"HEAD"}
        assert said >= ALLOWED[path] - {"DELETE"}, (path, said)
        # also /v1/orders/{oid}, whose oid is digits
        if path not in ("/v1/orders/confirm", "/v1/orders/suggest"):
            assert said == ALLOWED[path], (path, said)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b"{} {}",
        b"{'a':1}",
        b"\xff\xfe",
        b'{"market":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"{}x",
        b'{"a"}',
    ],
)
@pytest.mark.parametrize(
    "path",
    [
        "/v1/orders",
        "/v1/orders/confirm",
        "/v1/positions/BTC/close",
        "/v1/guardians",
        "/v1/sandbox/accounts/reset",
        "/v1/heartbeat",
    ],
)
def test_a_malformed_body_is_400(caller: Caller, path: str, raw: bytes) -> None:
    answer = caller.send("POST", path, raw=raw)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_input"
    if path != "/v1/guardians":
        assert answer.json()["error"].get("orderSubmitted", False) is False


@pytest.mark.parametrize(
    "number",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1e309",
        "1e999999999999",
        "01",
        "+1",
        ".5",
        "1.",
        "0x10",
        "1_0",
    ],
)
def test_what_is_no_json_number_is_refused(caller: Caller, number: str) -> None:
    answer = caller.send("POST", "/v1/orders", raw=b'{"market":"BTC","side":"long","usdAmount":%s}' % number.encode())
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_input"
    assert caller.get("/v1/trades")["trades"] == []


@pytest.mark.parametrize(
    "number",
    ["1e-999", "0.000000001", "1e-400", "1e-99999999999", "50.123456789012345678901234567890", "9" * 5000, "1E1000000"],
)
def test_a_number_of_any_length_gets_an_answer(caller: Caller, number: str) -> None:
    answer = caller.send("POST", "/v1/orders", raw=b'{"market":"BTC","side":"long","usdAmount":%s}' % number.encode())
    assert answer.status_code in (200, 400, 422), answer.text


@pytest.mark.parametrize(
    "raw",
    [
        b'{"market":"BTC","side":"long","usdAmount":50,"usdAmount":60}',
        b'{"market":"BTC","market":"BTC","side":"long","usdAmount":50}',
        b'{"market":"BTC","side":"long","usdAmount":50,"bracket":{"stopLoss":{"pct":1,"pct":2}}}',
        b'{"market":"BTC","side":"long","usdAmount":50,"\\u0075sdAmount":60}',
    ],
)
def test_a_name_twice_in_one_object_is_refused(caller: Caller, raw: bytes) -> None:
    answer = caller.send("POST", "/v1/orders", raw=raw)
    assert answer.status_code == 400
    assert caller.get("/v1/trades")["trades"] == []


def nested(depth: int) -> bytes:
    """A guardian request whose deepest array is at `depth`, the body itself being 1."""
    return (
        b'{"type":"dead_man_switch","heartbeatSeconds":60,"orderTemplate":'
        + b"[" * (depth - 1)
        + b"]" * (depth - 1)
        + b"}"
    )


def test_a_body_is_at_most_32_deep(caller: Caller) -> None:
    for depth, too_deep in ((31, False), (32, False), (33, True), (5000, True)):
        status, error = (
            (answer := caller.send("POST", "/v1/guardians", raw=nested(depth))).status_code,
            answer.json()["error"],
        )
        assert status == 400
        assert ("deep" in error["message"] or "depth" in error["message"]) is too_deep, (depth, error)


def padded(size: int) -> bytes:
    body = json.dumps(ORDER).encode()
    return body[:-1] + b" " * (size - len(body)) + b"}"


def test_a_body_is_at_most_64_kilobytes_however_it_comes(caller: Caller) -> None:
    assert caller.send("POST", "/v1/orders", raw=padded(65_536)).status_code == 200
    refused = caller.send("POST", "/v1/orders", raw=padded(65_537))
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "invalid_input"
    assert refused.json()["error"]["orderSubmitted"] is False
    for size, status in ((65_536, 200), (65_537, 413)):
        whole = padded(size)
        chunks = (whole[n : n + 1000] for n in range(0, size, 1000))
        answer = caller.target.http.post("/v1/orders", content=chunks, headers=caller.headers)
        assert answer.status_code == status
        assert owed(answer, caller.target.base_url) == []


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON;charset=UTF-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/xml", 415),
        ("json", 415),
        ("application/jsonp", 415),
        ("application/merge-patch+json", 415),
    ],
)
def test_no_content_type_is_json_and_another_one_415(caller: Caller, content_type: str | None, status: int) -> None:
    headers = {} if content_type is None else {"Content_Type": content_type}
    for method, path, body in (
        ("POST", "/v1/orders", ORDER),
        ("DELETE", "/v1/orders", {"coin": "BTC"}),
        ("POST", "/v1/heartbeat", {}),
    ):
        answer = caller.send(method, path, body, **headers)
        assert answer.status_code == status, (method, path, answer.text)
        if status == 415:
            assert answer.json()["error"]["code"] == "invalid_input"


@pytest.mark.parametrize(("coding", "status"), [("identity", 200), ("Identity", 200), ("gzip", 415), ("br, gzip", 415)])
def test_a_body_is_read_as_it_is_sent(caller: Caller, coding: str, status: int) -> None:
    for raw in (json.dumps(ORDER).encode(), gzip.compress(json.dumps(ORDER).encode())):
        answer = caller.send("POST", "/v1/orders", raw=raw, Content_Encoding=coding)
        if status == 200 and not raw.startswith(b"{"):
            assert answer.status_code == 400
            continue
        assert answer.status_code == status, answer.text
        if status == 415:
            assert answer.json()["error"]["fix"] == {"field": "Content-Encoding", "value": "identity"}
            assert answer.headers["Accept-Encoding"] == "identity"
    assert len(caller.get("/v1/trades")["trades"]) == (status == 200)


@pytest.mark.parametrize("path", ["/v1/orders/confirm", "/v1/orders/suggest", "/v1/guardians", "/v1/orders"])
def test_an_empty_body_where_fields_are_required_is_400(caller: Caller, path: str) -> None:
    for raw in (b"", b"{}"):
        answer = caller.send("POST", path, raw=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"]["fields"]


def test_an_empty_body_is_fine_where_nothing_is_required(caller: Caller) -> None:
    caller.order(usdAmount=50)
    for path in ("/v1/positions/BTC/close", "/v1/heartbeat", "/v1/sandbox/accounts/reset"):
        assert caller.send("POST", path).status_code == 200
    assert caller.target.send("POST", "/v1/sandbox/accounts").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "unknown", "nearest"),
    [
        ("POST", "/v1/orders", ORDER | {"usdAmonut": 1}, "usdAmonut", "usdAmount"),
        ("POST", "/v1/orders", ORDER | {"usd_amount": 1}, "usd_amount", "usdAmount"),
        ("POST", "/v1/orders", ORDER | {"dryrun": True}, "dryrun", "dryRun"),
        ("POST", "/v1/orders", ORDER | {"bracket": {"stoploss": {"pct": 1}}}, "stoploss", "stopLoss"),
        ("POST", "/v1/orders", ORDER | {"bracket": {"stopLoss": {"pc": 1}}}, "pc", "pct"),
        ("POST", "/v1/orders/confirm", {"confirmtoken": "12345678"}, "confirmtoken", "confirmToken"),
        ("POST", "/v1/orders/suggest", {"coin": "BTC", "notionalUSD": 1}, "notionalUSD", "notionalUsd"),
        ("POST", "/v1/positions/BTC/close", {"fractoin": 1}, "fractoin", "fraction"),
        (
            "POST",
            "/v1/guardians",
            {"type": "dead_man_switch", "heartbeatSecs": 60},
            "heartbeatSecs",
            "heartbeatSeconds",
        ),
        ("POST", "/v1/heartbeat", {"x": 1}, "x", ""),
        ("POST", "/v1/sandbox/accounts", {"nam": "x"}, "nam", "name"),
        ("POST", "/v1/sandbox/accounts/reset", {"balance": 1}, "balance", "balanceUsd"),
        ("DELETE", "/v1/orders", {"coin": "BTC", "coim": "x"}, "coim", "coin"),
        ("GET", "/v1/orders?cion=BTC", None, "cion", "coin"),
        ("GET", "/v1/events?sinse=evt_1", None, "sinse", "since"),
        ("GET", "/v1/trades?befor=1", None, "befor", "before"),
        ("GET", "/v1/markets?assetclass=all", None, "assetclass", "asset_class"),
        ("GET", "/v1/markets/BTC/candles?intervall=1m", None, "intervall", "interval"),
        ("GET", "/v1/markets/BTC/book?depth=5", None, "depth", ""),
        ("GET", "/v1/account?x=1", None, "x", ""),
        ("GET", "/v1/start?x=1", None, "x", ""),
        ("GET", "/v1/system/status?x=1", None, "x", ""),
        ("GET", "/v1/guardians?x=1", None, "x", ""),
        ("POST", "/v1/orders?dryRun=true", ORDER, "dryRun", ""),
        ("DELETE", "/v1/orders?coin=BTC", {"coin": "BTC"}, "coin", ""),
        ("DELETE", "/v1/orders/1?force=1", None, "force", ""),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(
    caller: Caller, method: str, path: str, body: Any, unknown: str, nearest: str
) -> None:
    status, error = caller.refused(method, path, body)
    assert (status, error["code"]) == (400, "invalid_input")
    assert unknown in error["message"]
    assert nearest in error["message"]
    assert unknown in [one["field"].split(".")[-1] for one in error["details"]["fields"]]
    if "?" in path or method == "DELETE":
        assert caller.get("/v1/trades")["trades"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/trades?limit=1&limit=2",
        "/v1/events?since=evt_000000000001&since=evt_000000000001",
        "/v1/markets?view=all&view=all",
    ],
)
def test_a_query_name_twice_is_refused(caller: Caller, path: str) -> None:
    assert caller.refused("GET", path)[1]["code"] == "invalid_input"


AMOUNTS = [
    "",
    "0",
    "-1",
    "+1",
    "1e2",
    ".5",
    "1.",
    "0x1",
    "1_0",
    " 1",
    "1 ",
    "１",
    "٣",
    "²",
    "1,0",
    "NaN",
    "Infinity",
    "1.0.0",
    "1\n",
    "0.0",
    "--1",
]


@pytest.mark.parametrize("text", [*AMOUNTS, 1, 1.5, True, None, [], {}])
def test_an_amount_is_ascii_digits(caller: Caller, text: object) -> None:
    bodies = [
        ("/v1/orders", {"market": "BTC", "side": "long", "size": text}, "size"),
        ("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50, "type": "limit", "limitPx": text}, "limitPx"),
        ("/v1/orders", ORDER | {"bracket": {"stopLoss": {"px": text}}}, "bracket.stopLoss.px"),
        ("/v1/positions/BTC/close", {"size": text}, "size"),
        ("/v1/orders/suggest", {"coin": "BTC", "size": text}, "size"),
    ]
    for path, body, name in bodies:
        # an optional field that is null: either refused or taken as absent, never a fault
        if text is None:
            assert caller.send("POST", path, body).status_code < 500
            continue
        status, error = caller.refused("POST", path, body)
        if (path, text) == ("/v1/positions/BTC/close", "1"):
            continue
        assert (status, error["code"]) == (400, "invalid_input"), (path, text, error)
        assert [one["field"] for one in error["details"]["fields"]] == [name], error
    assert caller.get("/v1/orders")["orders"] == []


@pytest.mark.parametrize(
    "text",
    [
        *("9" * digits for digits in (20, 24, 40, 64)),
        "1" * 400,
        "0." + "0" * 300 + "1",
        "000000000000000000000.0005",
        "0.00050000000000000000000000",
        "9" * 60_000,
    ],
)
def test_an_amount_of_any_length_gets_an_answer(caller: Caller, text: str) -> None:
    limit = {"market": "BTC", "side": "long", "size": "0.001", "type": "limit", "limitPx": text}
    for path, body in (
        ("/v1/orders", {"market": "BTC", "side": "long", "size": text}),
        ("/v1/orders", limit),
        ("/v1/orders", limit | {"side": "short", "bracket": {"stopLoss": {"pct": 1e12}, "takeProfit": {"pct": 1}}}),
        ("/v1/orders", limit | {"bracket": {"stopLoss": {"pct": 99}, "takeProfit": {"r": 1e12}}}),
        ("/v1/orders", ORDER | {"bracket": {"takeProfit": {"px": text}}}),
        ("/v1/orders", ORDER | {"bracket": {"stopLoss": {"px": "90000"}, "takeProfit": {"r": 1e12}}}),
        ("/v1/orders/suggest", {"coin": "BTC", "size": text}),
        ("/v1/positions/BTC/close", {"size": text}),
    ):
        assert caller.send("POST", path, body).status_code < 500


@pytest.mark.parametrize(
    "text",
    [
        "\\ud800",
        "\\u0000",
        "\\udfff\\ud800",
        "BTC\\u0000",
        "\\u202eBTC",
        "\\u017fol",
        "BTC\\u00a0",
        "perp:",
        ":BTC",
        "perp:perp:BTC",
        "event:",
        "%42TC",
        "BTC/x",
    ],
)
def test_odd_text_is_a_market_that_is_not_there(caller: Caller, text: str) -> None:
    for path, name in (("/v1/orders", "market"), ("/v1/orders/suggest", "coin")):
        more = b',"side":"long","usdAmount":50' if name == "market" else b""
        answer = caller.send("POST", path, raw=b'{"%s":"%s"%s}' % (name.encode(), text.encode(), more))
        assert answer.status_code in (400, 404), answer.text
    answer = caller.target.send("POST", "/v1/sandbox/accounts", raw=b'{"name":"%s"}' % text.encode())
    assert answer.status_code in (200, 400)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/positions/NOPE/close",
        "/v1/positions/%00/close",
        "/v1/positions/%ff/close",
        "/v1/positions/%F0%9F%98%80/close",
        "/v1/positions/a%2Fb/close",
        f"/v1/positions/{'x' * 500}/close",
    ],
)
def test_a_close_of_a_market_that_is_not_there(caller: Caller, path: str) -> None:
    status, error = caller.refused("POST", path)
    assert (status, error["code"]) in ((404, "not_found"), (400, "invalid_input"))


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("Idempotency-Key", "a", True),
        ("Idempotency-Key", "x" * 255, True),
        ("Idempotency-Key", '"quoted"', True),
        ("Idempotency-Key", "!~", True),
        ("Idempotency-Key", "", False),
        ("Idempotency-Key", '""', False),
        ("Idempotency-Key", "x" * 256, False),
        ("Idempotency-Key", "a b", False),
        ("Idempotency-Key", "\xe9", False),
        ("X-Expires-After", "9999999999999", True),
        ("X-Expires-After", "x", False),
        ("X-Expires-After", "-1", False),
        ("X-Expires-After", "1.5", False),
        ("X-Expires-After", "", False),
        ("X-Expires-After", "1e15", False),
        ("X-API-Version", "2026-10-19", True),
        ("X-API-Version", "2026-10-18", False),
        ("X-API-Version", "x", False),
    ],
)
def test_the_headers_that_a_request_may_carry(caller: Caller, name: str, value: str, good: bool) -> None:
    headers = [("Authorization", caller.headers["Authorization"]), (name, value)]
    encoded = [(n.encode(), v.encode("latin-1")) for n, v in headers]
    answer = caller.target.send("POST", "/v1/orders", ORDER, headers=encoded)  # type: ignore[arg-type]
    assert answer.status_code == (200 if good else 400), answer.text
    if not good:
        assert answer.json()["error"]["code"] == "invalid_input"
        assert name.lower() in answer.json()["error"]["message"].lower()
        assert caller.get("/v1/trades")["trades"] == []


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("Idempotency-Key", "a", "b"),
        ("X-Expires-After", "9999999999999", "1"),
        ("Authorization", "Bearer a", "Bearer b"),
    ],
)
def test_a_header_that_decides_is_said_once(caller: Caller, name: str, one: str, two: str) -> None:
    twice = [("Authorization", caller.headers["Authorization"]), (name, one), (name, two)]
    answer = caller.target.send("POST", "/v1/orders", ORDER, headers=twice)
    assert answer.status_code in (400, 401)
    assert caller.get("/v1/trades")["trades"] == []


def test_another_version_is_refused_on_public_routes_too(site: Target) -> None:
    for path in ("/v1/start", "/v1/markets", "/v1/system/status"):
        answer = site.send("GET", path, headers={"X-API-Version": "2020-01-01"})
        assert answer.status_code == 400
        assert "2026-10-19" in answer.text


def test_the_service_survives_bytes_that_are_no_http(site: Target) -> None:
    host, port = site.base_url.removeprefix("http://").split(":")
    for raw in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /v1/start HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=60) as raw_socket:
            raw_socket.sendall(raw)
            raw_socket.settimeout(60)
            raw_socket.recv(100)
    assert site.send("GET", "/v1/system/status").status_code == 200


def test_request_ids_never_repeat(site: Target) -> None:
    seen = [site.send("GET", "/v1/system/status").headers["x-request-id"] for _ in range(50)]
    assert len(set(seen)) == 50

"""The documents: every route described, the description compared with the interface, the pages offline and under a
strict policy.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from bot.errors import CODES
from bot.service.docs.html_docs import MEANINGS, docs_page, section_pages
from bot.service.docs.openapi import description
from bot.service.docs.operation_texts import EXAMPLES
from bot.service.host import HostOptions, build
from bot.wire import base as wire
from bot.wire.interface import OPERATIONS, Operation
from tests.service import serving
from tests.service.conftest import Box

CHROMIUM = "/usr/bin/chromium"

# The interface's operations in its own words: `METHOD path | auth`.
INTERFACE = """
GET /v1/start | none
GET /v1/changelog | none
GET /v1/auth/countries | none
GET /v1/markets | none
GET /v1/markets/{coin}/candles | none
GET /v1/markets/{coin}/book | none
POST /v1/sandbox/accounts | none
POST /v1/sandbox/accounts/reset | bearer
POST /v1/auth/otp | none
POST /v1/auth/verify | none
DELETE /v1/auth/session | bearer
POST /v1/keys | bearer
GET /v1/keys | bearer
DELETE /v1/keys/{id} | bearer
POST /v1/oauth/device | none
POST /v1/oauth/device/token | none
GET /v1/account | bearer
GET /v1/limits | bearer
GET /v1/portfolio | bearer
GET /v1/home | bearer
GET /v1/funding | bearer
GET /v1/settings | bearer
PATCH /v1/settings | bearer
POST /v1/account/kill | bearer
POST /v1/orders | bearer
GET /v1/orders | bearer
DELETE /v1/orders | bearer
DELETE /v1/orders/{oid} | bearer
POST /v1/orders/confirm | bearer
POST /v1/orders/suggest | bearer
POST /v1/positions/{market}/close | bearer
GET /v1/guardians | bearer
POST /v1/guardians | bearer
DELETE /v1/guardians/{id} | bearer
POST /v1/heartbeat | bearer
GET /v1/events | bearer
GET /v1/events/stream | bearer
POST /v1/webhooks | bearer
GET /v1/webhooks | bearer
DELETE /v1/webhooks/{id} | bearer
GET /v1/wallets/{address} | none
GET /v1/wallets/{address}/positions | none
GET /v1/wallets/{address}/pnl | none
GET /v1/wallets/{address}/nav | none
GET /v1/wallets/{address}/trades | none
"""
# in the interface's prose
REFERENCED = {"GET /v1/trades": "bearer", "GET /v1/system/status": "none"}

# operation -> field -> the interface's words; queries and bodies alike.
FIELDS: dict[str, dict[str, str]] = {
    "GET /v1/markets": {
        "query": "string, max 64, default empty",
        "asset_class": "stocks, bonds, crypto, prediction, all; default all",
        "view": "trending, opportunities, all; default trending",
        "limit": "integer 1..250, default 150",
    },
    "GET /v1/markets/{coin}/candles": {"interval": "1m, 5m, 15m, 1h, 4h, 1d", "limit": "integer"},
    "POST /v1/sandbox/accounts": {"name": "string 1..64", "startingBalanceUsd": "number >0, max 100000"},
    "POST /v1/sandbox/accounts/reset": {"balanceUsd": "number 0..100000"},
    "POST /v1/auth/otp": {
        "phoneNumber": "string 3..80, required",
        "country": "string 1..64",
        "countryCode": "string 1..64, alias of country",
    },
    "POST /v1/auth/verify": {
        "code": "string, pattern six digits, required",
        "nickname": "string 2..32",
        "inviteCode": "string 6..64",
    },
    "POST /v1/keys": {
        "name": "string 1..64",
        "scopes": "array of 1..4 of read, trade, trade:close_only, outcomes",
        "maxExposureUsd": "number >0, max 1e9, or null",
        "maxLeverage": "integer 1..50",
        "maxOpenPositions": "integer 1..100",
        "expiresAt": "integer >0, max 9007199254740991",
    },
    "POST /v1/oauth/device/token": {"deviceCode": "string, min length 8, required"},
    "GET /v1/orders": {"coin": "string 1..64, optional"},
    "DELETE /v1/orders": {"coin": "string 1..64, required"},
    "POST /v1/orders/confirm": {"confirmToken": "string 8..128, required"},
    "POST /v1/orders/suggest": {
        "coin": "string 1..64, required",
        "intent": "open or close, default open",
        "side": "long or short, default long",
        "notionalUsd": "number >0, max 1000000",
        "leverage": "integer 1..50",
        "slippageBps": "integer 0..1000",
    },
    "POST /v1/positions/{market}/close": {
        "fraction": "number >0, max 1",
        "usdAmount": "number >0, max 1000000",
        "slippageBps": "integer 0..1000",
        "source": "dashboard, agent, api",
    },
    "GET /v1/events": {"limit": "integer 1..200, default 50"},
    "POST /v1/webhooks": {"types": "array max 20 of strings 1..64", "secret": "string 8..128"},
    "GET /v1/wallets/{address}/nav": {"range": "1d, 7d, 30d, all; default 7d"},
    "GET /v1/wallets/{address}/trades": {"limit": "integer 1..200, default 50"},
}
ORDER = {
    "market": "string required, 1..80 chars",
    "side": "string required, long or short",
    "usdAmount": "number >0, max 1000000",
    "leverage": "integer 1..50",
    "leverageMode": "string error or clamp, default error",
    "type": "string market or limit, default market",
    "maxSlippageBps": "integer 0..1000",
    "maxDriftBps": "integer 1..5000",
    "source": "string dashboard, agent or api",
}
GUARDIAN = {
    "market": "string 1..80",
    "heartbeatSeconds": "integer 60..86400",
    "onMiss": "flatten, block_opens, cancel_orders",
    "seconds": "integer >= 60, max 9007199254740991",
    "trailPct": "number >0, max 50",
    "trailR": "number >0, max 20",
    "activateAtR": "number >0, max 20",
    "maxLossPctFromDayStart": "number >0, max 100",
    "cron": "string 1..64",
}
TABLE = FIELDS | {"POST /v1/orders": ORDER, "POST /v1/guardians": GUARDIAN}


@pytest.fixture(scope="module")
def rules() -> list[Operation[Any]]:
    service = build(HostOptions(clock="manual", hold_prices=True, markets=("BTC",)), control_token="bbc_test")
    return list(service.app.rules)


@pytest.fixture(scope="module")
def document(rules: list[Operation[Any]]) -> dict[str, Any]:
    return description(rules, "http://127.0.0.1:8700")


def operation(document: dict[str, Any], name: str) -> dict[str, Any]:
    method, path = name.split(" ")
    found: dict[str, Any] = document["paths"][path][method.lower()]
    return found


def fields(document: dict[str, Any], name: str) -> tuple[dict[str, Any], set[str]]:
    """The fields that a caller may write in body or query, and the required ones."""
    made = operation(document, name)
    if "requestBody" in made:
        reference = made["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
        return schema["properties"], set(schema.get("required", ()))
    query = {one["name"]: one for one in made["parameters"] if one["in"] == "query"}
    return {key: one["schema"] for key, one in query.items()}, {key for key, one in query.items() if one["required"]}


# ── Complete ────────────────────────────────────────────────────────────────────────────────────────────────────────


OUTSIDE = {
    "/": "redirects a browser to /docs",
    "/docs/sections/{name}": "is a part of /docs",
    "/mcp": "uses the MCP protocol, which describes itself",
    "/device": "is an HTML form for the person who approves a device",
    "/.well-known/oauth-protected-resource/mcp": "belongs to OAuth, which describes it",
    "/.well-known/oauth-authorization-server": "belongs to OAuth, which describes it",
}


def test_the_service_has_the_routes_of_the_table_and_those_that_need_no_description(
    rules: list[Operation[Any]],
) -> None:
    """A route is a row of the table of operations, or has a reason in OUTSIDE."""
    assert {rule for rule in rules if rule.group} == set(OPERATIONS)
    assert {rule.path for rule in rules if not rule.group} == set(OUTSIDE)
    assert len({rule.name for rule in OPERATIONS}) == len(OPERATIONS)


def test_every_route_with_a_body_shows_a_valid_example(rules: list[Operation[Any]], document: dict[str, Any]) -> None:
    for rule in rules:
        if rule.body is None or not rule.body.model_fields or not rule.group or rule.body.__name__ == "MintKeyRequest":
            continue
        example = EXAMPLES[rule.body.__name__]
        rule.body.from_wire(json.loads(json.dumps(example)))
        schema = {"$ref": f"#/components/schemas/{rule.body.__name__}", "components": document["components"]}
        Draft202012Validator(schema).validate(example)


def test_the_description_is_of_this_version_and_well_formed(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == "0.6.0"
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    ids = [made["operationId"] for methods in document["paths"].values() for made in methods.values()]
    assert len(ids) == len(set(ids))
    text = json.dumps(document)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        Draft202012Validator.check_schema(document["components"]["schemas"][name])
    assert "HTTPValidationError" not in text


def test_every_operation_describes_its_failures_and_headers(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, made in methods.items():
            answers = made["responses"]
            assert {"200", "400", "500", "503"} <= set(answers), path
            assert ("401" in answers) == bool(made["security"]) or path.startswith(("/v1/auth/verify", "/v1/oauth")), (
                path
            )
            assert all("X-Request-Id" in one["headers"] for one in answers.values())
            if "requestBody" in made:
                assert {"413", "415"} <= set(answers), path
            if "422" in answers:
                assert answers["422"]["description"] != "Validation Error", f"{method} {path}"
            error = answers["400"]["content"]["application/json"]["schema"]
            assert error == {"$ref": "#/components/schemas/ErrorEnvelope"}


@pytest.mark.parametrize(
    "name",
    [
        "POST /v1/orders",
        "POST /v1/orders/confirm",
        "POST /v1/positions/{market}/close",
        "POST /v1/guardians",
        "POST /v1/webhooks",
        "POST /v1/keys",
        "POST /v1/account/kill",
    ],
)
def test_the_routes_with_idempotency_describe_it(name: str, document: dict[str, Any]) -> None:
    headers = {one["name"]: one["schema"] for one in operation(document, name)["parameters"] if one["in"] == "header"}
    more = {"X-Confirm-Token"} if name == "POST /v1/guardians" else set()
    assert set(headers) == {"Idempotency-Key", "X-Expires-After", "X-API-Version"} | more
    assert headers["Idempotency-Key"]["maxLength"] == 255
    assert "409" in operation(document, name)["responses"]


def test_a_null_is_described_only_where_it_means_something(document: dict[str, Any]) -> None:
    order, _ = fields(document, "POST /v1/orders")
    assert "null" not in json.dumps(order)
    key, _ = fields(document, "POST /v1/keys")
    assert {name for name, schema in key.items() if "null" in json.dumps(schema)} == {
        "maxExposureUsd",
        "maxDailyNotionalUsd",
    }
    cap = fields(document, "PATCH /v1/settings")[0]["maxTradeUsd"]
    for value in (None, "", "none", "null", 1, 1e9, "12.5"):
        Draft202012Validator(cap).validate(value)


def test_the_stream_is_described_with_its_end(document: dict[str, Any]) -> None:
    made = operation(document, "GET /v1/events/stream")
    content = made["responses"]["200"]["content"]
    assert list(content) == ["text/event-stream"]
    assert "event: error" in made["description"] and "event: error" in content["text/event-stream"]["example"]
    assert content["text/event-stream"]["x-event-data"]["error"] == {"$ref": "#/components/schemas/ErrorEnvelope"}
    assert "Last-Event-ID" in [one["name"] for one in made["parameters"] if one["in"] == "header"]
    assert "410" in made["responses"]
    streamed, paged = (fields(document, f"GET /v1/events{tail}")[0] for tail in ("/stream", ""))
    assert streamed == {name: paged[name] for name in ("since", "types")}
    assert "pattern" in streamed["since"] and "order.canceled" in streamed["types"]["description"]


# ── Against the interface ───────────────────────────────────────────────────────────────────────────────────────────


def listed() -> dict[str, str]:
    rows = [line.split(" | ") for line in INTERFACE.strip().splitlines()]
    return {row[0]: row[1] for row in rows}


def test_the_routes_are_those_of_the_interface(document: dict[str, Any]) -> None:
    made = {
        f"{method.upper()} {path}": "bearer" if operation["security"] else "none"
        for path, methods in document["paths"].items()
        if path.startswith("/v1/")
        for method, operation in methods.items()
    }
    assert made == listed() | REFERENCED


@pytest.mark.parametrize("name", TABLE)
def test_the_fields_have_the_bounds_and_defaults_of_the_interface(name: str, document: dict[str, Any]) -> None:
    known, required = fields(document, name)
    for field, words in TABLE[name].items():
        schema = known[field]
        flat = schema | next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), {})
        assert ("required" in words) == (field in required), field
        kind = next((one for one in ("string", "number", "integer", "array") if words.startswith(one)), None)
        if kind is not None:
            assert flat.get("type") == kind, field
        part = flat.get("items", {}) if "of strings" in words else flat
        if (span := re.search(r"(\d+)\.\.(\d+)", words)) is not None:
            low, high = int(span[1]), int(span[2])
            if kind == "array" and "of strings" not in words:
                assert (flat["minItems"], flat["maxItems"]) == (low, high), field
            elif part["type"] == "string":
                assert (part.get("minLength", 0), part["maxLength"]) == (low, high), field
            else:
                assert (flat["minimum"], flat["maximum"]) == (low, high), field
        if ">0" in words:
            assert flat.get("exclusiveMinimum") == 0 or flat.get("minimum") == 1, field
        if (most := re.search(r"max (\d[\de]*)", words)) is not None:
            bound = int(float(most[1])) if "e" in most[1] else int(most[1])
            assert bound in (flat.get("maximum"), flat.get("maxLength"), flat.get("maxItems")), field
        if (default := re.search(r"default (\w+)", words)) is not None:
            meant = {"empty": "", "150": 150, "50": 50}.get(default[1], default[1])
            assert schema["default"] == meant, field
        words_of = re.sub(r"^(string|array of [\d.]+ of)\s*|[,;] default.*|required, ", "", words)
        choices = re.split(r", | or ", words_of)
        if all(re.fullmatch(r"[a-z0-9_:]+", one) for one in choices) and len(choices) > 1:
            assert set((flat.get("items") or flat)["enum"]) == set(choices), field


def test_the_table_of_these_tests_says_what_the_interface_document_says(shared: Path) -> None:
    path = shared / "spec" / "trading-service.md"
    if not path.is_file():
        pytest.skip("the interface document is not here")
    text = path.read_text(encoding="utf-8")
    routes: dict[str, str] = {}
    payloads: dict[str, str] = {}
    for line in text.split("## Endpoints")[1].split("\n## Authentication\n")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) >= 3 and cells[0] in ("GET", "POST", "PATCH", "DELETE"):
            routes[f"{cells[0]} {cells[1]}"] = cells[2] if len(cells) == 4 else "none"
            payloads[f"{cells[0]} {cells[1]}"] = cells[-1]
    assert routes == listed()
    for name, told in FIELDS.items():
        for field, words in told.items():
            assert f"{field} ({words}" in payloads[name], f"{name}: {field}"
    for field, words in ORDER.items():
        kind, _, rest = words.partition(" ")
        assert f"| {field} | {kind} | {rest} |" in text, field
    guardian = re.search(r"POST /v1/guardians body: (.*)", text)
    assert guardian is not None
    for field, words in GUARDIAN.items():
        assert f"{field} ({words})" in guardian[1], field


# ── Pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Seen(HTMLParser):
    """Ids, links, and all addresses that the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "a":
            self.links.add(str(given.get("href")))
        self.loaded += [
            f"{tag} {given[name]}" for name in ("src", "srcset", "action", "style", "onclick") if name in given
        ]
        if tag in ("script", "iframe", "img", "object", "form", "base"):
            self.loaded.append(tag)
        if tag == "link" and given.get("href") != "data:,":
            self.loaded.append(str(given))


async def test_the_docs_work_offline_and_every_link_leads_somewhere(box: Box) -> None:
    pages: dict[str, _Seen] = {}
    whole = (await box.http.get("/docs")).text
    sections = sorted(set(re.findall(r'href="(/docs/sections/[^"#]+)"', whole)))
    for path in ("/docs", "/docs/errors", "/docs/models", *sections):
        answer = await box.http.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        pages[path] = _Seen()
        pages[path].feed(answer.text)
        # inline, and allowed by its hash
        script = ["script"] if path == "/docs" or path in sections else []
        assert pages[path].loaded == script
        assert ("script-src 'sha256-" in answer.headers["content-security-policy"]) == bool(script)
    for path, seen in pages.items():
        for link in seen.links:
            target, _, anchor = link.partition("#")
            if anchor:
                assert anchor in pages[target or path].ids, f"{path}: {link}"
            elif target not in pages:
                assert (await box.http.get(target)).status_code == 200, link


async def test_each_group_has_a_page_with_its_operations(box: Box, document: dict[str, Any]) -> None:
    by_group: dict[str, set[str]] = {}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            by_group.setdefault(operation["tags"][0], set()).add(path)
    assert set(by_group) == {tag["name"] for tag in document["tags"]}
    for group, paths in by_group.items():
        answer = await box.http.get(f"/docs/sections/{group.lower().replace(' ', '-')}")
        assert answer.status_code == 200, group
        assert set(re.findall(r'<span class="path">([^<]+)</span>', answer.text)) == paths
    nothing = await box.http.get("/docs/sections/nothing")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")


def test_every_example_has_the_address_of_the_running_service(rules: list[Operation[Any]]) -> None:
    base = "http://127.0.0.1:35883"
    made = description(rules, base)
    for page in (docs_page(made), *section_pages(made).values()):
        assert set(re.findall(r"http://127\.0\.0\.1:\d+", page)) == {base}


async def test_the_root_leads_to_the_docs(box: Box) -> None:
    answer = await box.http.get("/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/docs")


async def test_every_error_links_to_its_own_row(box: Box) -> None:
    assert set(MEANINGS) == set(CODES)
    seen = _Seen()
    seen.feed((await box.http.get("/docs/errors")).text)
    assert set(CODES) <= seen.ids
    refused = (await box.http.get("/v1/nothing")).json()["error"]
    assert refused["docsUrl"].endswith("/docs/errors#not_found")


async def test_every_operation_is_in_the_docs_and_in_llms_txt(box: Box, rules: list[Operation[Any]]) -> None:
    docs = (await box.http.get("/docs")).text
    llms = await box.http.get("/llms.txt")
    assert llms.headers["content-type"] == "text/plain; charset=utf-8"
    for rule in rules:
        if not rule.group:
            continue
        assert f'<span class="path">{rule.path}</span>' in docs
        if not rule.path.startswith("/sandbox/"):
            assert f"`{rule.method} {rule.path}`" in llms.text


async def test_the_document_for_agents_is_what_its_model_writes(box: Box) -> None:
    from bot.wire import AgentDocument

    body = (await box.http.get("/agent.json")).json()
    assert issubclass(AgentDocument, wire.Resource)
    assert AgentDocument.model_validate(body).model_dump(mode="json") == body
    assert body["openapi"].endswith("/openapi.json")


@pytest.fixture
def served() -> Iterator[serving.Served]:
    made = serving.start(clock="manual", port=0, markets=["BTC"], rate_limits=False)
    yield made
    serving.end(made)


# Tries what a hole in the escaping would allow; answers the policy's reaction to each attempt.
INJECTED = """() => new Promise((done) => {
    const refused = new Set();
    document.addEventListener("securitypolicyviolation", (e) => {
        refused.add(e.effectiveDirective.replace("-elem", "").replace("-attr", ""));
        if (refused.size === 3) done([...refused].sort());
    });
    const script = document.createElement("script");
    script.textContent = "window.hit = 1";
    const image = document.createElement("img");
    image.src = "http://evil.example/x.png";
    const frame = document.createElement("iframe");
    frame.src = "http://evil.example/";
    document.body.append(script, image, frame);
})"""


def test_a_browser_shows_the_pages_without_errors_and_runs_no_injected_code(served: serving.Served) -> None:
    if shutil.which(CHROMIUM) is None:
        pytest.skip("chromium is not installed at /usr/bin/chromium")
    from playwright.sync_api import sync_playwright

    opened = httpx.post(f"{served.base_url}/v1/sandbox/accounts", json={"name": "<img src=x onerror=alert(1)>"}).json()
    headers = {"Authorization": f"Bearer {opened['apiKey']}"}
    order = {"market": "BTC", "side": "long", "usdAmount": 500}
    assert httpx.post(f"{served.base_url}/v1/orders", json=order, headers=headers).status_code == 200
    said: list[str] = []
    asked: set[str] = set()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.add(request.url.split("#")[0]))
        urls = [f"{served.base_url}{path}" for path in ("/docs", "/docs/errors", "/docs/models")]
        urls.append(f"{served.base_url}/watch/{opened['address']}")
        for url in urls:
            page.goto(url)
            # The style sheet is applied, because the policy has its hash.
            assert page.evaluate("getComputedStyle(document.body).margin") == "0px"
            wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert page.evaluate(wide), f"{url} scrolls sideways"
        page.set_viewport_size({"width": 390, "height": 800})
        for url in urls:
            page.goto(url)
            assert page.evaluate(wide), f"{url} scrolls sideways on a telephone"
        page.goto(urls[0])
        page.get_by_label("Search operations").fill("kill order")
        assert page.locator("#contents li:not([hidden]) a[title]").count() == 0
        page.get_by_label("Search operations").fill("POST orders")
        shown = page.locator("#contents li:not([hidden]) a[title]").all_inner_texts()
        assert shown
        assert all(text.startswith("POST") and "orders" in text for text in shown)
        assert page.locator("section.op:visible").count() == len(shown)
        page.goto(urls[1])
        row = page.locator("#rate_limited")
        assert row.evaluate("(one) => getComputedStyle(one).display") == "block"
        assert row.bounding_box()["width"] <= 390
        heard, fetched = list(said), set(asked)
        for url in (*urls, f"{served.base_url}/device"):
            page.goto(url)
            assert page.evaluate(INJECTED) == ["frame-src", "img-src", "script-src"], url
            assert page.evaluate("window.hit") is None, f"{url} runs a script that somebody put into it"
        browser.close()
    assert heard == []
    assert fetched == set(urls)

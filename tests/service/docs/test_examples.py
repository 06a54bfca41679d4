"""The examples of the documentation are answers of the present service, and their code sends what they say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from bot.service.docs.example_requests import HttpRequest, curl, javascript, python
from bot.service.docs.examples import FILE, examples
from bot.service.docs.html_docs import credential_of, example_request
from bot.service.docs.openapi import description
from bot.service.host import HostOptions, build
from tests.service import serving
from tests.service.docs import example_run

BASE = "http://127.0.0.1:8700"
WITHOUT = {
    "post_oauth_device_token": "a person must approve the device first",
    "post_sandbox_v1_fork": "it opens a port",
    "post_sandbox_v1_keys": "only `bot run` uses it",
    "get_openapi_json": "the description itself",
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    service = build(HostOptions(clock="manual", hold_prices=True, markets=("BTC",)), control_token="bbc_test")
    return description(service.app.rules, BASE)


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Operation id -> (method, operation)."""
    return {
        one["operationId"]: (method.upper(), one)
        for methods in document["paths"].values()
        for method, one in methods.items()
    }


@pytest.fixture(scope="module")
def requests(operations: dict[str, tuple[str, dict[str, Any]]]) -> list[HttpRequest]:
    return [
        example_request(operations[name][0], example, credential_of(operations[name][1]), BASE)
        for name, example in examples().items()
    ]


def test_the_examples_are_the_answers_of_this_service() -> None:
    written = "write it anew: python -m tests.service.docs.example_run"
    assert json.loads(example_run.text()) == json.loads(FILE.read_text()), written


def test_every_json_operation_has_an_example_that_fits_its_schema(
    document: dict[str, Any], operations: dict[str, tuple[str, dict[str, Any]]]
) -> None:
    for name, (_, operation) in operations.items():
        content = operation["responses"]["200"]["content"].get("application/json")
        if content is None or name in WITHOUT:
            continue
        assert name in examples(), name
        assert content["example"] == examples()[name].answer
        schema = content["schema"] | {"components": document["components"]}
        Draft202012Validator(schema).validate(content["example"])
    assert examples().keys() | WITHOUT.keys() <= operations.keys()


def test_no_example_has_a_secret() -> None:
    text = FILE.read_text()
    assert "<apiKey>" in text
    assert re.findall(r"(?:bbk|bbs|bbc|whsec)_\w{16,}", text) == []


def test_the_curl_commands_send_the_examples(requests: list[HttpRequest]) -> None:
    for request in requests:
        words = shlex.split(curl(request).replace("\\\n", " "))
        given = [(words[n], words[n + 1]) for n in range(len(words) - 1)]
        assert words[0] == "curl"
        assert request.url in words
        assert dict(given).get("-X", "GET") == request.method
        headers = dict(value.split(": ", 1) for word, value in given if word == "-H")
        body = dict(given).get("-d")
        assert (None if body is None else json.loads(body)) == request.body
        assert headers == dict(request.headers) | ({} if body is None else {"Content-Type": "application/json"})


def test_the_python_code_sends_the_examples(requests: list[HttpRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={})

    monkeypatch.setattr(httpx, "request", httpx.Client(transport=httpx.MockTransport(handle)).request)
    for request in requests:
        exec(compile(python(request), request.url, "exec"), {})
        made = sent.pop()
        assert (made.method, made.url) == (request.method, httpx.URL(request.url))
        assert (json.loads(made.content) if made.content else None) == request.body
        assert {name: made.headers.get(name) for name in request.headers} == request.headers


def test_the_javascript_code_sends_the_examples(requests: list[HttpRequest], browser: Any) -> None:
    page = browser.new_page()
    run = """async (code) => {
        let sent;
        const fetch = async (url, options = {}) => { sent = { url, ...options }; return { ok: true, json: async () => \
({}) }; };
        await (async () => {}).constructor("fetch", "console", code)(fetch, { log() {} });
        return sent;
    }"""
    for request in requests:
        sent = page.evaluate(run, javascript(request))
        assert (sent.get("method", "GET"), sent["url"]) == (request.method, request.url)
        body = sent.get("body")
        assert (None if body is None else json.loads(body)) == request.body
        headers = {} if body is None else {"Content-Type": "application/json"}
        assert sent.get("headers", {}) == dict(request.headers) | headers


@pytest.fixture
def served() -> Iterator[serving.Served]:
    made = serving.start(clock="manual", port=0, markets=["BTC"], rate_limits=False)
    yield made
    serving.end(made)


def send(page: Any, operation: str, status: str) -> Any:
    """Open the panel of an operation if it is closed, press its button, wait for the status; the panel."""
    panel = page.locator(f"#{operation} .try details")
    if panel.get_attribute("open") is None:
        panel.locator("summary").click()
    panel.locator("button").click()
    panel.locator("[role=status]", has_text=status).wait_for(timeout=10_000)
    return panel


def test_a_reader_tries_a_first_order_on_the_page(served: serving.Served, browser: Any) -> None:
    for width in (1440, 390):
        try_first_order(served.base_url, browser, width)


def try_first_order(base: str, browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{base}/docs")
    assert page.locator("h1").bounding_box()["y"] < 120, "the page begins with its content"
    send(page, "post_orders", "fill in <apiKey> first")
    send(page, "post_sandbox_accounts", "200 OK")
    assert "confirmToken" in send(page, "post_orders", "200 OK").inner_text()
    assert "protected" in send(page, "post_orders_confirm", "200 OK").inner_text()
    panel = page.locator("#get_account .try details")
    panel.locator("summary").click()
    panel.locator("input").first.fill("//evil.example/v1/account")
    send(page, "get_account", "the path begins with one /")
    sample = page.locator("#post_orders .sample.python")
    assert not sample.is_visible()
    page.locator("#post_orders label", has_text="Python").click()
    assert sample.is_visible()
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(wide)
    assert said == []
    assert {url.split("/")[2] for url in asked} == {base.split("/")[2]}

"""The client against a server that breaks: resets, cuts, garbage, drips, slowness. Real sockets, and always an end."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from bot.client import Client, Timeouts, Verdict, verdict_of
from bot.client.http import HttpExchange, TransportFault, checked_base_url
from bot.errors import ConfigError, OutcomeUnknown, Refused, TryLater
from bot.wire import OrderRequest

ORDER = OrderRequest(market="BTC", side="long", size="1")
BODY = b'{"guardians":[],"serverTime":1}'


def client_of(base_url: str, total: float = 5.0) -> Client:
    return Client(base_url, "bbk_test_secret", timeouts=Timeouts(total=total))


async def in_doubt(base_url: str, *, total: float = 5.0) -> OutcomeUnknown:
    async with client_of(base_url, total) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await client.place(ORDER, key="k1")
    assert verdict_of(caught.value) is Verdict.UNKNOWN
    return caught.value


async def test_a_reset_before_the_body_is_read_is_unknown(server, rst):
    async def script(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        rst(writer)

    await in_doubt(await server.serve(script))


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 O",
        b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"a":',
        b"\x00\x01garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>",
        b"HTTP/1.1 302 Found\r\nlocation: https://elsewhere.example/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=[
        "nothing",
        "cut head",
        "cut body",
        "garbage",
        "bad length",
        "bad chunk",
        "other body",
        "html",
        "redirect",
        "gzip",
        "empty 500",
    ],
)
async def test_a_broken_answer_to_an_order_that_arrived_is_unknown(server, reply):
    base_url = await server.answers(reply)
    await in_doubt(base_url)
    assert len(server.requests) == 1, "one attempt is one request"


async def test_a_reset_after_the_order_arrived_is_unknown(server, rst):
    async def script(reader, writer):
        await server.read(reader)
        rst(writer)

    await in_doubt(await server.serve(script))
    assert len(server.requests) == 1


async def test_a_server_that_sends_a_few_bytes_at_a_time_meets_the_total_timeout(server):
    async def script(reader, writer):
        await server.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    base_url = await server.serve(script)
    began = asyncio.get_running_loop().time()
    error = await in_doubt(base_url, total=0.4)
    # The whole of the answer takes fifty.
    assert asyncio.get_running_loop().time() - began < 20
    assert error.code == "total_timeout"


async def test_a_server_that_never_answers_meets_the_deadline(server):
    async def script(reader, writer):
        await server.read(reader)
        await asyncio.sleep(30)

    error = await in_doubt(await server.serve(script), total=0.3)
    assert error.code in ("total_timeout", "read_timeout")


async def test_an_answer_larger_than_the_cap_is_cut_off(server):
    async def script(reader, writer):
        await server.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()

    exchange = HttpExchange(await server.serve(script), reply_bytes_max=100_000)
    with pytest.raises(TransportFault, match="reply_too_large"):
        await exchange.send("GET", "/v1/events")
    await exchange.aclose()


async def test_a_port_without_a_listener_is_not_sent():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with client_of(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(TryLater) as caught:
            await client.place(ORDER, key="k1")
    assert verdict_of(caught.value) is Verdict.NOT_SENT
    assert caught.value.order_submitted is False
    assert caught.value.after_ms > 0


async def test_a_connection_closed_while_idle_costs_nothing_but_a_new_one(server, answer):
    async def script(reader, writer):
        await server.read(reader)
        writer.write(answer("200 OK", BODY))
        await writer.drain()
        await asyncio.sleep(0.02)

    async with client_of(await server.serve(script)) as client:
        await client.heartbeat()
        await asyncio.sleep(0.15)
        await client.heartbeat()
    assert len(server.requests) == 2


async def test_a_cancelled_call_stays_cancelled(server):
    arrived = asyncio.Event()

    async def script(reader, writer):
        await server.read(reader)
        arrived.set()
        await asyncio.sleep(30)

    async with client_of(await server.serve(script)) as client:
        call = asyncio.create_task(client.place(ORDER, key="k1"))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_timeout_of_the_caller_is_not_taken_for_the_clients_own(server):
    async def script(reader, writer):
        await server.read(reader)
        await asyncio.sleep(30)

    async with client_of(await server.serve(script)) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.place(ORDER, key="k1")


@pytest.mark.parametrize(
    ("body", "kind"), [(b'{"events":[{"id":', TryLater), (b'{"events":[{"id":1}]}', Refused), (b"", TryLater)]
)
async def test_a_truncated_answer_to_a_read_may_be_retried_and_one_in_another_form_may_not(server, answer, body, kind):
    async with client_of(await server.answers(answer("200 OK", body))) as client:
        with pytest.raises(kind, match="cannot be read as EventsPage"):
            await client.events("evt_1")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"coin":"BTC","canceledOids":null}', "CancelCoinResult: canceledOids must be an array"),
        (b'{"coin":"BTC","canceledOids":[null]}', "CancelCoinResult: canceledOids.0 "),
        (b'{"market":"BTC"}', "CancelCoinResult: coin is required"),
    ],
)
async def test_an_answer_that_cannot_be_read_names_the_field(server, answer, body, problem):
    async with client_of(await server.answers(answer("200 OK", body))) as client:
        with pytest.raises(OutcomeUnknown, match=problem):
            await client.cancel_coin("BTC")


async def test_unknown_fields_of_an_answer_are_ignored(server, answer):
    body = b'{"coin":"BTC","canceledOids":["1"],"unprotected":false,"later":{"a":[]}}'
    async with client_of(await server.answers(answer("200 OK", body))) as client:
        assert (await client.cancel_coin("BTC")).canceled_oids == ("1",)


@pytest.mark.parametrize(
    ("status", "kind"), [("502 Bad Gateway", TryLater), ("429 Too Many", TryLater), ("404 Not Found", Refused)]
)
async def test_a_read_that_a_proxy_answers_is_not_in_doubt(server, answer, status, kind):
    async with client_of(await server.answers(answer(status, b"<html></html>"))) as client:
        with pytest.raises(kind):
            await client.account()


async def test_the_client_sends_the_whole_request_with_its_headers(server, answer):
    base_url = await server.answers(answer("200 OK", BODY))
    async with client_of(base_url + "/under/") as client:
        with pytest.raises(OutcomeUnknown):
            await client.place(ORDER, key="key-1", expires_at_ms=1_748_736_000_123)
    head, body = server.requests[0].split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    assert lines[0] == "POST /under/v1/orders HTTP/1.1"
    assert headers["authorization"] == "Bearer bbk_test_secret"
    assert headers["idempotency-key"] == "key-1"
    assert headers["x-expires-after"] == "1748736000123"
    assert headers["x-api-version"] == "2026-10-19"
    assert headers["user-agent"].startswith("bracketbot")
    assert headers["content-type"] == "application/json"
    assert headers["accept-encoding"] == "identity"
    assert json.loads(body) == {
        "market": "BTC",
        "side": "long",
        "size": "1",
        "leverageMode": "error",
        "type": "market",
        "allowPartial": False,
        "requireProtection": False,
        "guardians": [],
        "dryRun": False,
        "maxDriftBps": 50,
        "acknowledgeLeverageChange": False,
    }


def test_no_text_of_the_client_contains_the_key():
    client = Client("http://127.0.0.1:1", "bbk_test_secret")
    assert "bbk_test_secret" not in repr(client) + str(vars(client))


async def test_a_proxy_of_the_environment_is_not_used(server, answer, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with client_of(await server.answers(answer("200 OK", BODY))) as client:
        await client.heartbeat()


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com",
        "https://api.example.com:8443/x/",
        "http://127.0.0.1:8700",
        "http://localhost",
        "http://[::1]:1",
    ],
)
def test_https_and_loopback_are_base_addresses(url):
    assert checked_base_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com",
        "ftp://localhost",
        "localhost:8700",
        "",
        "https://",
        "https://user@host",
        "https://h?x=1",
        "https://h#f",
        "http://10.0.0.1",
        "http://127.0.0.1.example.com",
        "https://h:99999",
    ],
)
def test_any_other_base_address_is_an_error_of_the_configuration(url):
    with pytest.raises(ConfigError, match="base_url"):
        checked_base_url(url)

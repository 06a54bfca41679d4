"""Connections that send slowly, send no request, have endless headers, or do not use HTTP: each ends with the error
object and disturbs no other.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bot.service.http import connections
from bot.service.http.connections import Protocol
from bot.service.http.server import Listener, free_port
from tests.service.builders import ENTRY
from tests.service.conftest import Box


@pytest.fixture
async def port(box: Box, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The service on a port, with short timeouts."""
    monkeypatch.setattr(Protocol, "request_seconds", 0.4)
    monkeypatch.setattr(Protocol, "look_seconds", 0.1)
    sock = free_port()
    listener = Listener(box.service.app, sock, box.service.headers)
    await listener.start()
    yield sock.getsockname()[1]
    await listener.stop()


async def until_closed(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Sends piece after piece; answers the bytes received until the other side closes."""
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", port)) as ours:
        ours.setblocking(False)

        async def drip() -> None:
            for piece in pieces:
                await loop.sock_sendall(ours, piece)
                await asyncio.sleep(pause)

        dripping = asyncio.create_task(drip())
        found = b""
        try:
            async with asyncio.timeout(20):
                while part := await loop.sock_recv(ours, 65_536):
                    found += part
        except ConnectionResetError:
            # Bytes sent after the end cause this error; earlier bytes have been received.
            pass
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
        return found


def refused(answer: bytes, status: int) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    assert {
        b"x-api-version",
        b"x-request-id",
        b"ratelimit",
        b"ratelimit-policy",
        b"content-type",
        b"x-sandbox-clock",
    } <= names
    error: dict[str, Any] = json.loads(body)["error"]
    assert error["code"] == "invalid_input"
    assert f"x-request-id: {error['requestId']}".encode() in head.lower()
    return error


async def test_no_answer_waits_for_an_acknowledgement(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's delay is off on asyncio's own loop, too, which the sandbox of a test runs on; each answer would take
    40 ms.
    """
    taken: list[int] = []
    made = Protocol.connection_made

    def noted(self: Protocol, transport: asyncio.Transport) -> None:
        sock = transport.get_extra_info("socket")
        made(self, transport)
        taken.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Protocol, "connection_made", noted)
    with socket.create_connection(("127.0.0.1", port)):
        async with asyncio.timeout(20):
            while not taken:
                await asyncio.sleep(0.01)
    assert taken == [1]


async def test_one_connection_too_many_that_waits_for_its_request_ends_the_first_one(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Protocol, "request_seconds", 60.0)
    monkeypatch.setattr(Protocol, "waiting_max", 3)
    request = b"GET /v1/system/status HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    served, served_writer = await asyncio.open_connection("127.0.0.1", port)
    served_writer.write(request + b"\r\n")
    assert (await served.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    silent, silent_writer = await asyncio.open_connection("127.0.0.1", port)
    half, half_writer = await asyncio.open_connection("127.0.0.1", port)
    half_writer.write(request)
    others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    async with asyncio.timeout(20):
        assert await silent.read() == b"", "it was the first that waits: the served one does not"
        last, last_writer = await asyncio.open_connection("127.0.0.1", port)
        error = refused(await half.read(), 408)
        assert "more than 3 connections wait" in error["details"]["fields"][0]["problem"]
        last_writer.write(request + b"\r\n")
        assert (await last.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    for writer in (served_writer, silent_writer, half_writer, last_writer, *(one for _, one in others)):
        writer.close()


async def test_a_slowly_sent_head_ends_with_408(port: int) -> None:
    pieces = [b"GET /v1/system/status HTTP/1.1\r\n", *[b"X-A: b\r\n"] * 1_000]
    refused(await until_closed(port, *pieces, pause=0.02), 408)


async def test_a_slowly_sent_body_is_cut_off_and_orders_nothing(port: int, box: Box) -> None:
    caller = await box.caller()
    body = json.dumps(ENTRY).encode()
    head = (
        f"POST /v1/orders HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {caller.headers['Authorization']}\r\n"
        f"Content-Length: {len(body) + 1_000}\r\n\r\n"
    ).encode()
    answer = await until_closed(port, head, body, *[b" "] * 999, pause=0.02)
    assert b"200 OK" not in answer
    assert (await caller.get("/v1/trades"))["trades"] == []


async def test_a_connection_without_a_request_is_closed(port: int) -> None:
    assert await until_closed(port) == b""


async def test_an_endless_head_gets_a_431(port: int) -> None:
    line = b"X-Long: " + b"a" * 1_000 + b"\r\n"
    answer = await until_closed(port, b"GET / HTTP/1.1\r\n", *[line] * 33)
    assert str(connections.HEAD_BYTES_MAX) in refused(answer, 431)["message"]


@pytest.mark.parametrize("more", [1, 100, 40_000, 200_000])
@pytest.mark.parametrize("field", [b"X-Long: ", b""])
async def test_a_head_above_the_limit_gets_a_431_also_in_one_write(port: int, field: bytes, more: int) -> None:
    """The limit that the answer names holds to the byte, in the request line and in the headers."""

    def request(size: int) -> bytes:
        start, end = (b"GET /v1/markets HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + field, b"\r\n\r\n")
        if not field:
            start, end = b"GET /v1/markets?x=", b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        return start + b"a" * (size - len(start) - len(end)) + end

    assert not (await until_closed(port, request(connections.HEAD_BYTES_MAX))).startswith(b"HTTP/1.1 431")
    refused(await until_closed(port, request(connections.HEAD_BYTES_MAX + more)), 431)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET http://[::bad/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_input_that_is_not_http_gets_the_error_object(port: int, raw: bytes) -> None:
    refused(await until_closed(port, raw), 400)


async def test_a_slow_caller_that_keeps_sending_is_served(port: int) -> None:
    """The timeout is per request: many requests on one connection pass, although together they take longer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(6):
        writer.write(b"GET /v1/system/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        await asyncio.sleep(0.15)
    writer.close()

"""Connections of our own: an answer belongs to the request that asked for it, and what may have left is never sent
again. Real sockets.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bot import http_limits
from bot.client import connections as module
from bot.client.connections import Address, Connections, Fields
from bot.client.faults import NOT_SENT_FAULTS, FailureKind, TransportFault
from bot.client.http import HttpExchange

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
DAY = timedelta(days=1)
Made = Callable[..., Connections]


@pytest.fixture
async def made(server: Any) -> AsyncIterator[Callable[..., Awaitable[Connections]]]:
    opened: list[Connections] = []

    async def make(script: Any, *, most: int = 4, pool_s: float = 5.0, bytes_max: int = 1_000) -> Connections:
        port = int((await server.serve(script)).rsplit(":", 1)[1])
        address = Address("127.0.0.1", port, None)
        opened.append(Connections(address, most=most, idle_s=3.0, connect_s=5.0, pool_s=pool_s, bytes_max=bytes_max))
        return opened[-1]

    yield make
    for one in opened:
        await one.close()


def said(text: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


async def fault_of(asked: Awaitable[Any]) -> FailureKind:
    with pytest.raises(TransportFault) as caught:
        async with asyncio.timeout(10):
            await asked
    return caught.value.fault


async def test_a_connection_is_used_again_and_the_newest_first(server: Any, made: Any) -> None:
    seen: list[int] = []

    async def script(reader: Any, writer: Any) -> None:
        number = len(seen)
        seen.append(0)
        while True:
            await server.read(reader)
            seen[number] += 1
            writer.write(said(str(number)))

    connections = await made(script)
    await asyncio.gather(*(connections.exchange(GET) for _ in range(3)))
    answers = [(await connections.exchange(GET)).body for _ in range(4)]
    assert len(set(answers)) == 1
    assert sorted(seen) == [1, 1, 5]


@pytest.mark.parametrize("when", ["in one piece", "while idle", "while idle, and read", "an end while idle", "last"])
async def test_bytes_without_a_request_close_the_connection_and_answer_no_request(
    server: Any, made: Any, when: str
) -> None:
    idle, done = asyncio.Event(), asyncio.Event()
    used = 0

    async def script(reader: Any, writer: Any) -> None:
        nonlocal used
        n, used = used, used + 1
        await server.read(reader)
        answer = said(f"own {n}")
        if n == 0 and when == "last":
            answer = answer.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        writer.write(answer + (said("another's") if when == "in one piece" and not n else b""))
        if n == 0 and "idle" in when:
            await idle.wait()
            writer.write_eof() if when == "an end while idle" else writer.write(said("another's"))
            done.set()
        await reader.read()

    connections = await made(script)
    assert (await connections.exchange(GET)).body == b"own 0"
    if "idle" in when:
        idle.set()
        await done.wait()
    for _ in range(20 if when == "while idle, and read" else 0):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert (await connections.exchange(GET)).body == b"own 1"
    assert used == len(server.requests) == 2


@pytest.mark.parametrize("first", [said("first"), b"HTTP/1.1 204 No Content\r\n\r\n"], ids=["body", "no content"])
async def test_a_request_on_an_idle_connection_is_not_sent_again_when_the_connection_breaks(
    server: Any, made: Any, first: bytes
) -> None:
    async def script(reader: Any, writer: Any) -> None:
        await server.read(reader)
        writer.write(first)
        await server.read(reader)

    connections = await made(script)
    await connections.exchange(GET)
    assert await fault_of(connections.exchange(GET)) not in NOT_SENT_FAULTS, "nor has it the answer of before"
    assert len(server.requests) == 2


async def test_a_connection_that_answered_before_the_whole_request_was_sent_is_closed(server: Any, made: Any) -> None:
    used = 0

    async def script(reader: Any, writer: Any) -> None:
        nonlocal used
        used += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said(str(used)))
        await asyncio.Event().wait()

    connections = await made(script)
    large = GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 20000000\r\n\r\n") + b"x" * 20_000_000
    async with asyncio.timeout(10):
        assert [(await connections.exchange(one)).body for one in (large, GET)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + said("final"), b"final"),
        (b"HTTP/1.1 200 OK\r\n\r\nto its end", b"to its end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", FailureKind.PROTOCOL_REMOTE),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nStatus: 500\r\n\r\n",
            b"abcde",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", FailureKind.PROTOCOL_REMOTE),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", FailureKind.PROTOCOL_REMOTE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", FailureKind.PROTOCOL_REMOTE),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", FailureKind.PROTOCOL_REMOTE),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n", FailureKind.TOO_LARGE),
        (said("x" * 1_001), FailureKind.TOO_LARGE),
    ],
    ids=[
        "continue",
        "to its end",
        "old",
        "hints",
        "no content",
        "chunks",
        "cut chunks",
        "coding",
        "two lengths",
        "upgrade",
        "head",
        "body",
    ],
)
async def test_an_answer_is_whole_or_a_fault(server: Any, made: Any, reply: bytes, body: bytes | FailureKind) -> None:
    async def script(reader: Any, writer: Any) -> None:
        await server.read(reader)
        writer.write(reply)
        await writer.drain()

    connections = await made(script)
    if isinstance(body, FailureKind):
        assert await fault_of(connections.exchange(GET)) is body
    else:
        answer = await connections.exchange(GET)
        assert (answer.body, answer.headers.get("Status")) == (body, None)


async def test_headers_without_an_end_are_refused(server: Any, made: Any) -> None:
    sent = 0

    async def script(reader: Any, writer: Any) -> None:
        nonlocal sent
        await server.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        with suppress(ConnectionError):
            while sent < 10_000_000:
                writer.write(b"x" * 10_000)
                await writer.drain()
                sent += 10_000

    connections = await made(script)
    assert await fault_of(connections.exchange(GET)) is FailureKind.TOO_LARGE
    assert sent < 10_000_000


async def test_a_request_without_a_connection_was_not_sent_and_a_cancelled_one_frees_its_connection(
    server: Any, made: Any
) -> None:
    ended = asyncio.Event()

    async def script(reader: Any, writer: Any) -> None:
        n = len(server.requests)
        await server.read(reader)
        if n:
            writer.write(said("mine"))
        elif not await reader.read():
            ended.set()

    connections = await made(script, most=1, pool_s=0.05)
    first = asyncio.create_task(connections.exchange(GET))
    while not server.requests:
        await asyncio.sleep(0)
    assert await fault_of(connections.exchange(GET)) is FailureKind.POOL_TIMEOUT
    waiting = asyncio.create_task(connections.exchange(GET))
    await asyncio.sleep(0)
    first.cancel()
    assert (await waiting).body == b"mine", "on a connection of its own"
    async with asyncio.timeout(10):
        await ended.wait()
    assert first.cancelled()
    assert len(server.requests) == 2


async def test_on_close_requests_in_flight_are_in_doubt_and_waiting_requests_are_not_sent(
    server: Any, made: Any
) -> None:
    async def script(reader: Any, writer: Any) -> None:
        await server.read(reader)
        await reader.read()

    connections = await made(script)
    asked = asyncio.create_task(connections.exchange(GET))
    while not server.requests:
        await asyncio.sleep(0)
    connecting = asyncio.create_task(connections.exchange(GET))
    await asyncio.sleep(0)
    await connections.close()
    assert await fault_of(asked) not in NOT_SENT_FAULTS
    assert await fault_of(connecting) in NOT_SENT_FAULTS
    assert len(server.requests) == 1


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connect_that_is_cancelled_at_any_moment_leaves_no_socket(new_loop: Any) -> None:
    gc.collect()
    # A socket that is left to it stays open here.
    gc.disable()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening, asyncio.Runner(loop_factory=new_loop) as runner:
            address = Address("127.0.0.1", listening.getsockname()[1], None)

            async def give_up_after(turns: int) -> bool:
                connections = Connections(address, most=1, idle_s=3, connect_s=5, pool_s=1, bytes_max=1_000)
                asking = asyncio.create_task(connections.exchange(GET))
                for _ in range(turns):
                    await asyncio.sleep(0)
                was_asked = bool(connections._busy)
                asking.cancel()
                await asyncio.wait([asking])
                # What is closed is closed by the loop, in its next turns.
                for _ in range(5):
                    await asyncio.sleep(0)
                return was_asked

            runner.run(give_up_after(1))
            before, turns, was_asked = open_sockets(), 0, False
            # As many turns as it takes to connect, and one more each time.
            while not was_asked:
                was_asked = runner.run(give_up_after(turns))
                assert open_sockets() == before, f"given up after {turns} turns of the loop"
                turns += 1
            assert turns > 3, "some were given up on their way"
    finally:
        gc.enable()


def open_sockets() -> int:
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        # Of this very look.
        with suppress(OSError):
            found += str(one.readlink()).startswith("socket:")
    return found


@pytest.mark.parametrize("first", ["refuses", "swallows"])
async def test_an_unreachable_address_does_not_delay_the_others(
    server: Any, made: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async def script(reader: Any, writer: Any) -> None:
        await server.read(reader)
        writer.write(said("hello"))

    connections = await made(script)
    with socket.socket() as bad, socket.socket() as fills:
        bad.bind(("127.0.0.1", 0))
        if first == "swallows":
            bad.listen(0)
            # The backlog is full.
            fills.connect(bad.getsockname())
        tried = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", one) for one in (bad.getsockname(), connections._address[:2])
        ]

        async def addresses(_host: str, _port: int) -> Any:
            return tried

        monkeypatch.setattr(module, "_addresses", addresses)
        monkeypatch.setattr(module, "STAGGER_S", 0.01 if first == "swallows" else 30)
        before = open_sockets()
        assert (await connections.exchange(GET)).body == b"hello"
        await connections.close()
        assert open_sockets() <= before + 1, "the server's end may take a moment"


async def test_https_works_and_certificates_are_checked(server: Any) -> None:
    async def script(reader: Any, writer: Any) -> None:
        writer.write(said("in plain text"))
        await reader.read()

    exchange = HttpExchange((await server.serve(script)).replace("http://127.0.0.1", "https://localhost"))
    assert exchange._connections is not None
    context = exchange._connections._address.context
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert await fault_of(exchange.send("POST", "/v1/orders", body=b"{}")) in NOT_SENT_FAULTS
    await exchange.aclose()


async def test_a_client_of_plain_http_reads_no_certificates(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> ssl.SSLContext:
        raise AssertionError("certificates were read")

    monkeypatch.setattr(http_limits, "tls_context", unreadable)
    exchange = HttpExchange(await server.answers(said("{}")))
    assert (await exchange.send("GET", "/v1/x")).body == b"{}"
    await exchange.aclose()
    with pytest.raises(AssertionError, match="certificates were read"):
        HttpExchange("https://localhost:1")


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/v1/x y", {}), ("/v1/x\r\nA: b", {}), ("/v1/é", {}), ("/v1/x", {"A": "b\r\nC: d"}), ("/v1/x", {"A": "é\x00"})],
)
async def test_a_header_cannot_be_injected_into_a_request(server: Any, path: str, headers: dict[str, str]) -> None:
    exchange = HttpExchange(await server.answers(said("{}")))
    assert await fault_of(exchange.send("GET", path, headers=headers)) is FailureKind.PROTOCOL_LOCAL
    assert server.requests == []
    await exchange.aclose()


async def test_a_query_is_encoded_and_an_empty_body_has_a_length(server: Any) -> None:
    exchange = HttpExchange(await server.answers(said("{}"), said("{}")) + "/under")
    await exchange.send("GET", "/v1/x", query={"a": "b c&d=é"})
    await exchange.send("DELETE", "/v1/x")
    assert [one.split(b"\r\n")[0] for one in server.requests] == [
        b"GET /under/v1/x?a=b+c%26d%3D%C3%A9 HTTP/1.1",
        b"DELETE /under/v1/x HTTP/1.1",
    ]
    assert [b"Content-Length: 0\r\n" in one for one in server.requests] == [False, True]
    await exchange.aclose()


def test_another_event_loop_does_as_well() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # That is its end.
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(said("{}"))
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def ask() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as served:
            exchange = HttpExchange(f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}")
            assert [(await exchange.send("GET", "/")).body for _ in range(2)] == [b"{}"] * 2
            await exchange.aclose()
            await ended.wait()

    ended = asyncio.Event()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


def certificate(folder: Path) -> Path:
    """Of 127.0.0.1, signed by itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    kept = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(kept + made.public_bytes(Encoding.PEM))
    return path


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("length", ["Content-Length: 100000\r\n", ""])
def test_a_long_answer_after_which_tls_is_closed_at_once_is_whole(length: str, new_loop: Any, tmp_path: Path) -> None:
    """What has come with the end is read before the end counts.

    Without a length nothing else would tell that a part is missing.
    """
    path = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)

    def answer(listening: socket.socket) -> None:
        while True:
            try:
                connection = context.wrap_socket(listening.accept()[0], server_side=True)
            except OSError:
                # It was closed: the test is over.
                return
            with connection, suppress(OSError):
                connection.recv(1_000)
                connection.sendall(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{length}\r\n".encode() + b"x" * 100_000)
                connection.settimeout(0)
                with suppress(ssl.SSLWantReadError):
                    # It says that this was all, and waits for nobody.
                    connection.unwrap()
                socket.socket.shutdown(connection, socket.SHUT_WR)
                connection.settimeout(5)
                socket.socket.recv(connection, 1)

    async def asked(port: int) -> int:
        address = Address("127.0.0.1", port, ssl.create_default_context(cafile=path))
        connections = Connections(address, most=1, idle_s=3, connect_s=5, pool_s=1, bytes_max=200_000)
        try:
            return len((await connections.exchange(GET)).body)
        finally:
            await connections.close()

    with socket.create_server(("127.0.0.1", 0)) as listening, asyncio.Runner(loop_factory=new_loop) as runner:
        server = threading.Thread(target=answer, args=(listening,))
        server.start()
        try:
            assert [runner.run(asked(listening.getsockname()[1])) for _ in range(5)] == [100_000] * 5
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            server.join(10)


@pytest.mark.parametrize(
    ("base_url", "host"),
    [
        ("https://fa\xdf.example", "xn--fa-hia.example"),
        ("http://[::1]:8700", "::1"),
        ("https://API.Example.com", "api.example.com"),
    ],
)
async def test_the_host_that_is_looked_up_is_the_host_in_the_request(base_url: str, host: str) -> None:
    exchange = HttpExchange(base_url)
    assert exchange._connections is not None
    assert exchange._connections._address.host == host
    assert host in exchange._lines.split("\r\n")[0]
    await exchange.aclose()


def test_header_names_are_case_insensitive() -> None:
    fields = Fields()
    fields.add("date", "today")
    assert "Date" in fields
    assert (fields["DATE"], fields.get("daTe"), fields.get("no"), 1 in fields) == ("today", "today", None, False)

"""A small HTTP/1.1 client for one address: a pool of connections with one exchange at a time on each. It never sends a
request twice.

A connection gets the whole request at once, and only while it is open. A failure before that means that no byte was
sent (CONNECT, CONNECT_TIMEOUT, POOL_TIMEOUT); a failure after it leaves the outcome in doubt. A connection is closed
after any error or unexpected byte, so that an answer never belongs to another request.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, cast

import httptools

from bot.client.faults import FailureKind, TransportFault
from bot.descriptors import reserved

# The bytes of all header lines of an answer.
HEAD_BYTES_MAX: Final = 64 * 1024
# per read; most answers fit
READ_BYTES: Final = 16 * 1024
# between attempts at a name's addresses (RFC 8305), so that an address that drops packets delays no other
STAGGER_S: Final = 0.25
SWITCHING: Final = 101

# an entry of getaddrinfo; the form of the address depends on the family
_Resolved = tuple[int, int, int, str, Any]


class Fields(Mapping[str, str]):
    """Header fields. Names are case-insensitive."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def add(self, name: str, value: str) -> None:
        """Add one line. Values of a repeated field are joined with commas."""
        known = self._of.get(name)
        self._of[name] = value if known is None else f"{known}, {value}"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._of

    def __getitem__(self, name: str) -> str:
        return self._of[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


class HttpAnswer(NamedTuple):
    status: int
    headers: Fields
    body: bytes


class Address(NamedTuple):
    """Where to connect. `context`: for TLS; None for plain text."""

    host: str
    port: int
    context: ssl.SSLContext | None


class HttpConnection(asyncio.Protocol):
    """One connection. `is_open` becomes False at the first sign that it cannot be used again."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parser = httptools.HttpResponseParser(self)
        self._asked: asyncio.Future[HttpAnswer] | None = None
        self._headers = Fields()
        self._parts: list[bytes] = []
        self._size = 0
        # bytes since the request was sent
        self._received = 0
        self._in_body = False
        self._ends_with_connection = False
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self.is_open = False
        # instant on the event loop's clock
        self.idle_since_s = 0.0
        self.lost = asyncio.get_running_loop().create_future()

    def ask(self, request: bytes) -> asyncio.Future[HttpAnswer]:
        """Send a request. The future gets its answer or a TransportFault."""
        assert self._asked is None, "one exchange at a time"
        if self._transport is None or not self.is_open or self._transport.is_closing():
            raise TransportFault(FailureKind.CONNECT, "the connection was closed before it could be used")
        self._asked = asyncio.get_running_loop().create_future()
        self._received, self._in_body = 0, False
        self._transport.write(request)
        return self._asked

    def is_calm(self) -> bool:
        """True if an idle connection can still be used: it is open, and the socket has nothing to read, not even an
        end of file.
        """
        return self.is_open and not self._poll.poll(0)

    def drop(self) -> None:
        """Close at once; a request in flight stays without an answer."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # -- Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the same methods and another base class.
        self._transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.is_open = True

    def data_received(self, data: bytes | memoryview) -> None:
        # Data without a request: the next request must not read it as its answer.
        if self._asked is None:
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(FailureKind.PROTOCOL_REMOTE, f"the answer is not HTTP: {error}")
            return
        self._received += len(data)
        if not self._in_body and self._received > HEAD_BYTES_MAX:
            self._fail_for_its_head()

    def eof_received(self) -> None:
        if self._ends_with_connection and self._asked is not None:
            self._deliver()
        self._fail(FailureKind.PROTOCOL_REMOTE, "the connection was closed before there was an answer")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self._fail(
            FailureKind.READ if exc is not None else FailureKind.PROTOCOL_REMOTE,
            str(exc or "the connection was closed"),
        )

    # -- Callbacks of the parser

    def on_message_begin(self) -> None:
        self._headers, self._parts, self._size = Fields(), [], 0
        self._in_body = self._ends_with_connection = False
        # A second answer to one request.
        if self._asked is None:
            self.drop()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer after a chunked body; it cannot change the answer any more.
        if self._in_body:
            return
        self._size += len(name) + len(value)
        if self._size > HEAD_BYTES_MAX:
            self._fail_for_its_head()
            return
        self._headers.add(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        self._size, self._in_body = 0, True
        coding = self._headers.get("transfer-encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            self._fail(FailureKind.PROTOCOL_REMOTE, "the answer has a transfer coding that was not asked for")
        self._ends_with_connection = coding is None and "content-length" not in self._headers

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._bytes_max:
            self._fail(FailureKind.TOO_LARGE, f"the answer is larger than {self._bytes_max} bytes")
        elif self._asked is not None:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        # The body is complete, so the end of the connection does not end it.
        self._ends_with_connection = False
        status = self._parser.get_status_code()
        if status == SWITCHING:
            self._fail(FailureKind.PROTOCOL_REMOTE, "the answer changes the protocol")
        # 1xx is not the final answer.
        elif status >= 200:
            assert self._transport is not None
            # If the service answered before it read the whole request, it would read the rest as the next request.
            is_request_sent = not self._transport.get_write_buffer_size()
            self.is_open = self.is_open and is_request_sent and self._parser.should_keep_alive()
            self._deliver()

    def _deliver(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(HttpAnswer(self._parser.get_status_code(), self._headers, b"".join(self._parts)))

    def _fail_for_its_head(self) -> None:
        self._fail(FailureKind.TOO_LARGE, f"the answer's headers are larger than {HEAD_BYTES_MAX} bytes")

    def _fail(self, fault: FailureKind, message: str) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(TransportFault(fault, message))
        self.drop()


class PlainConnection(HttpConnection, asyncio.BufferedProtocol):
    """A connection without TLS. It reads into its own buffer, because asyncio allocates 256 kB per read for other
    protocols.

    With TLS, asyncio fills such a buffer only once per loop iteration and loses data when the connection ends, so TLS
    uses `HttpConnection`.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self._buffer = memoryview(bytearray(READ_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._buffer[:nbytes])


class Connections:
    """A pool of at most `most` connections to one address.

    Uses the newest idle connection first, and none that was idle for `idle_s` seconds.
    """

    def __init__(
        self, address: Address, *, most: int, idle_s: float, connect_s: float, pool_s: float, bytes_max: int
    ) -> None:
        self._address = address
        self._idle_s = idle_s
        self._connect_s = connect_s
        self._pool_s = pool_s
        self._bytes_max = bytes_max
        self._free = asyncio.Semaphore(most)
        # oldest first
        self._idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self._is_closed = False

    async def exchange(self, request: bytes) -> HttpAnswer:
        """Send one request and return its answer, or raise TransportFault.

        If cancelled, it closes the connection, because an answer may still come.
        """
        if self._free.locked():
            try:
                async with asyncio.timeout(self._pool_s):
                    await self._free.acquire()
            except TimeoutError:
                raise TransportFault(FailureKind.POOL_TIMEOUT, "every connection was in use") from None
        else:
            await self._free.acquire()
        try:
            connection = self._take_idle() or await self._connect()
            if self._is_closed:
                connection.drop()
                raise TransportFault(FailureKind.CONNECT, "the client was closed")
            self._busy.add(connection)
            try:
                answer = await connection.ask(request)
            except BaseException:
                connection.drop()
                raise
            finally:
                self._busy.discard(connection)
            if connection.is_open:
                connection.idle_since_s = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.drop()
            return answer
        finally:
            self._free.release()

    async def close(self) -> None:
        """Close all connections and wait for their end.

        Outcomes of requests in flight are in doubt; waiting requests are not sent.
        """
        self._is_closed = True
        closing = (*self._idle, *self._busy)
        self._idle.clear()
        for connection in closing:
            connection.drop()
        await asyncio.gather(*(connection.lost for connection in closing))

    def _take_idle(self) -> HttpConnection | None:
        oldest_s = asyncio.get_running_loop().time() - self._idle_s
        usable = [idle for idle in self._idle if idle.is_open and idle.idle_since_s > oldest_s]
        if len(usable) < len(self._idle):
            for stale in set(self._idle) - set(usable):
                stale.drop()
            self._idle = usable
        while self._idle:
            connection = self._idle.pop()
            if connection.is_calm():
                return connection
            connection.drop()
        return None

    async def _connect(self) -> HttpConnection:
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._race(await _addresses(self._address.host, self._address.port))
        except TimeoutError as error:
            raise TransportFault(FailureKind.CONNECT_TIMEOUT, str(error)) from None
        # OSError includes TLS errors; UnicodeError: a name that cannot exist.
        except (OSError, UnicodeError) as error:
            raise TransportFault(FailureKind.CONNECT, str(error)) from error

    async def _race(self, addresses: Sequence[_Resolved]) -> HttpConnection:
        """Connect to the first address that accepts. The next attempt starts when the previous one fails, or after
        STAGGER_S. All other connections are closed, also on cancellation: asyncio's own race leaks a socket that had
        just connected.
        """
        waiting, tries, connections = list(addresses), list[asyncio.Task[HttpConnection]](), list[HttpConnection]()
        winner: HttpConnection | None = None
        try:
            while winner is None:
                if waiting:
                    tries.append(asyncio.create_task(self._try(waiting.pop(0), connections)))
                    tries[-1].add_done_callback(_discard_exception)
                under_way = [attempt for attempt in tries if not attempt.done()]
                if not under_way:
                    break
                done, _ = await asyncio.wait(
                    under_way, timeout=STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                winner = next((attempt.result() for attempt in done if attempt.exception() is None), None)
            return tries[0].result() if winner is None else winner
        finally:
            for attempt in tries:
                attempt.cancel()
            for connection in connections:
                if connection is not winner:
                    connection.drop()

    async def _try(self, resolved: _Resolved, opened: list[HttpConnection]) -> HttpConnection:
        """Connect to one address. `opened` gets the connection as soon as there is something to close."""
        family, kind, protocol, _, address = resolved

        loop, (host, _, context) = asyncio.get_running_loop(), self._address

        def connection() -> HttpConnection:
            opened.append((PlainConnection if context is None else HttpConnection)(self._bytes_max))
            return opened[-1]

        with (
            reserved()
            # Use a reserved file descriptor if necessary, so that an exit reaches the service when none is free.
        ):
            connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(0)
            await loop.sock_connect(connected, address)
        except BaseException:
            connected.close()
            raise
        # The transport owns the socket from here on and closes it on cancellation.
        name = None if context is None else host
        return (await loop.create_connection(connection, sock=connected, ssl=context, server_hostname=name))[1]


def _discard_exception(attempt: asyncio.Task[HttpConnection]) -> None:
    """Read the exception of an attempt that nobody awaits, so that asyncio does not log it."""
    if not attempt.cancelled():
        attempt.exception()


async def _addresses(host: str, port: int) -> Sequence[_Resolved]:
    """The addresses of a host name, alternating between IPv4 and IPv6 (RFC 8305)."""
    # An IP address needs no lookup.
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = [address for address in resolved if address[0] == resolved[0][0]]
    others = [address for address in resolved if address[0] != resolved[0][0]]
    return [address for pair in zip_longest(first, others) for address in pair if address is not None]

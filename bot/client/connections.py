"""HTTP/1.1 on connections of our own: the way that orders take, so it does little. One exchange at a time on each; nothing is sent again here.

A request is given to its connection in one piece, and only to one that is open. Before that nothing of it has left (CONNECT,
CONNECT_TIMEOUT, POOL_TIMEOUT); from then on any other end is in doubt. A connection on which anything went wrong, or on which more
came than was asked for, is closed and never used again: an answer can belong to no other request than its own.
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

from bot.client.faults import Fault, TransportFault
from bot.descriptors import reserved

HEAD_BYTES_MAX: Final = 64 * 1024  # of all header lines of an answer
READ_BYTES: Final = 16 * 1024  # at a time: a whole answer of most kinds
STAGGER_S: Final = 0.25  # between tries of a name's addresses (RFC 8305): one that swallows packets holds up no other
SWITCHING: Final = 101

_Found = tuple[int, int, int, str, Any]  # as getaddrinfo has it; an address differs with its family


class Fields(Mapping[str, str]):
    """Header fields by their name in small letters; asked for in any letters."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def add(self, name: str, value: str) -> None:
        """Take one line; what comes more than once is one list."""
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


class Answer(NamedTuple):
    status: int
    headers: Fields
    body: bytes


class Address(NamedTuple):
    """`context`: None for plain text."""

    host: str
    port: int
    context: ssl.SSLContext | None


class Connection(asyncio.Protocol):
    """One connection. `is_open` until something was seen that ends it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parser = httptools.HttpResponseParser(self)
        self._asked: asyncio.Future[Answer] | None = None
        self._headers = Fields()
        self._parts: list[bytes] = []
        self._size = 0
        self._received = 0  # of the head, as far as it has come
        self._in_body = False
        self._ends_with_connection = False
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self.is_open = False
        self.idle_since_s = 0.0  # of the loop's time
        self.lost = asyncio.get_running_loop().create_future()

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Give the request to the socket; what comes of it."""
        assert self._asked is None, "one exchange at a time"
        if self._transport is None or not self.is_open or self._transport.is_closing():
            raise TransportFault(Fault.CONNECT, "the connection was closed before it could be used")
        self._asked = asyncio.get_running_loop().create_future()
        self._received, self._in_body = 0, False
        self._transport.write(request)
        return self._asked

    def is_calm(self) -> bool:
        """Whether an idle connection is still good: open, and nothing has come on it, not even its end."""
        return self.is_open and not self._poll.poll(0)

    def drop(self) -> None:
        """Close at once, whatever is under way."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # -- what the socket says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # Another event loop's is one in all but its base class.
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.is_open = True

    def data_received(self, data: bytes | memoryview) -> None:
        if self._asked is None:  # Nothing was asked: whoever asks next must not get this.
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Fault.PROTOCOL_REMOTE, f"the answer is not HTTP: {error}")
            return
        self._received += len(data)
        if not self._in_body and self._received > HEAD_BYTES_MAX:
            self._fail_for_its_head()

    def eof_received(self) -> None:
        if self._ends_with_connection and self._asked is not None:
            self._deliver()
        self._fail(Fault.PROTOCOL_REMOTE, "the connection was closed before there was an answer")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self._fail(Fault.READ if exc is not None else Fault.PROTOCOL_REMOTE, str(exc or "the connection was closed"))

    # -- what the parser says

    def on_message_begin(self) -> None:
        self._headers, self._parts, self._size = Fields(), [], 0
        self._in_body = self._ends_with_connection = False
        if self._asked is None:  # A second answer behind the one that was asked for.
            self.drop()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # Behind a body in chunks; what is said there comes too late.
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
            self._fail(Fault.PROTOCOL_REMOTE, "the answer has a transfer coding that was not asked for")
        self._ends_with_connection = coding is None and "content-length" not in self._headers

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._bytes_max:
            self._fail(Fault.TOO_LARGE, f"the answer is larger than {self._bytes_max} bytes")
        elif self._asked is not None:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        self._ends_with_connection = False  # It has ended before: what the connection's end would end is not this one.
        status = self._parser.get_status_code()
        if status == SWITCHING:
            self._fail(Fault.PROTOCOL_REMOTE, "the answer changes the protocol")
        elif status >= 200:  # What comes before is no answer yet.
            assert self._transport is not None
            # Answered before all of the request had left: the next one would be read as the rest of it.
            is_rid_of_it = not self._transport.get_write_buffer_size()
            self.is_open = self.is_open and is_rid_of_it and self._parser.should_keep_alive()
            self._deliver()

    def _deliver(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(Answer(self._parser.get_status_code(), self._headers, b"".join(self._parts)))

    def _fail_for_its_head(self) -> None:
        self._fail(Fault.TOO_LARGE, f"the answer's headers are larger than {HEAD_BYTES_MAX} bytes")

    def _fail(self, fault: Fault, message: str) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(TransportFault(fault, message))
        self.drop()


class PlainConnection(Connection, asyncio.BufferedProtocol):
    """One without TLS. It reads into a buffer of its own: for any other protocol asyncio takes a quarter of a megabyte anew for each read.

    Under TLS asyncio fills such a buffer once a turn, and drops what it has read besides when the connection ends: the end of a long answer.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self._buffer = memoryview(bytearray(READ_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._buffer[:nbytes])


class Connections:
    """At most `most` at a time to one address; an idle one is used for `idle_s` at the longest. The newest is used first."""

    def __init__(
        self, address: Address, *, most: int, idle_s: float, connect_s: float, pool_s: float, bytes_max: int
    ) -> None:
        self._address = address
        self._idle_s = idle_s
        self._connect_s = connect_s
        self._pool_s = pool_s
        self._bytes_max = bytes_max
        self._free = asyncio.Semaphore(most)
        self._idle: list[Connection] = []  # the oldest first
        self._busy: set[Connection] = set()
        self._is_closed = False

    async def exchange(self, request: bytes) -> Answer:
        """One request, one answer; TransportFault without one. Cancelled, it closes the connection: an answer to it may still come."""
        if self._free.locked():
            try:
                async with asyncio.timeout(self._pool_s):
                    await self._free.acquire()
            except TimeoutError:
                raise TransportFault(Fault.POOL_TIMEOUT, "every connection was in use") from None
        else:
            await self._free.acquire()
        try:
            connection = self._idle_one() or await self._connect()
            if self._is_closed:
                connection.drop()
                raise TransportFault(Fault.CONNECT, "the client was closed")
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
        """Returns when all are closed. What is on its way is in doubt; what has not left does not leave."""
        self._is_closed = True
        closing = (*self._idle, *self._busy)
        self._idle.clear()
        for connection in closing:
            connection.drop()
        await asyncio.gather(*(connection.lost for connection in closing))

    def _idle_one(self) -> Connection | None:
        oldest_s = asyncio.get_running_loop().time() - self._idle_s
        kept = [one for one in self._idle if one.is_open and one.idle_since_s > oldest_s]
        if len(kept) < len(self._idle):
            for one in set(self._idle) - set(kept):
                one.drop()
            self._idle = kept
        while self._idle:
            connection = self._idle.pop()
            if connection.is_calm():
                return connection
            connection.drop()
        return None

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._race(await _addresses(self._address.host, self._address.port))
        except TimeoutError as error:
            raise TransportFault(Fault.CONNECT_TIMEOUT, str(error)) from None
        except (OSError, UnicodeError) as error:  # Also of TLS; and of a name that none can be.
            raise TransportFault(Fault.CONNECT, str(error)) from error

    async def _race(self, addresses: Sequence[_Found]) -> Connection:
        """The first that connects; the next begins when the one before has failed, or STAGGER_S after it. Whatever else was begun is closed,
        also when nobody waits any more: the race of asyncio's own loses a socket that had connected by then."""
        waiting, tries, made = list(addresses), list[asyncio.Task[Connection]](), list[Connection]()
        winner: Connection | None = None
        try:
            while winner is None:
                if waiting:
                    tries.append(asyncio.create_task(self._try(waiting.pop(0), made)))
                    tries[-1].add_done_callback(_heard)
                under_way = [one for one in tries if not one.done()]
                if not under_way:
                    break
                done, _ = await asyncio.wait(
                    under_way, timeout=STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                winner = next((one.result() for one in done if one.exception() is None), None)
            return tries[0].result() if winner is None else winner
        finally:
            for one in tries:
                one.cancel()
            for connection in made:
                if connection is not winner:
                    connection.drop()

    async def _try(self, found: _Found, made: list[Connection]) -> Connection:
        """One address. What it has made is in `made` as soon as there is something to close."""
        family, kind, protocol, _, address = found

        loop, (host, _, context) = asyncio.get_running_loop(), self._address

        def connection() -> Connection:
            made.append((PlainConnection if context is None else Connection)(self._bytes_max))
            return made[-1]

        with reserved():  # An exit must reach the service, whatever else has used the descriptors up.
            connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(0)
            await loop.sock_connect(connected, address)
        except BaseException:
            connected.close()
            raise
        # From here on the socket is the transport's, which closes it when this is cancelled.
        name = None if context is None else host
        return (await loop.create_connection(connection, sock=connected, ssl=context, server_hostname=name))[1]


def _heard(one: asyncio.Task[Connection]) -> None:
    """What a try that nobody waits for any more has come to is nobody's business."""
    if not one.cancelled():
        one.exception()


async def _addresses(host: str, port: int) -> Sequence[_Found]:
    """Of a name, in the order in which they are tried: families in turn (RFC 8305)."""
    try:  # No name at all: then nobody has to be asked.
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = [one for one in found if one[0] == found[0][0]]
    others = [one for one in found if one[0] != found[0][0]]
    return [one for pair in zip_longest(first, others) for one in pair if one is not None]

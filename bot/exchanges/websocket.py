"""A WebSocket as a client: text messages over TCP or TLS. Opens sockets; knows nothing of what the messages say."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bot.errors import ConfigError
from bot.exchanges.protocol import NoExchangeAnswer
from bot.extras import install
from bot.http_limits import tls_context

if TYPE_CHECKING:
    from wsproto import WSConnection

CHUNK: Final = 64 * 1024
# The longest message: 2,000 fills take about 1 MB.
BYTES_MAX: Final = 16 * 1024 * 1024
OPEN_SECONDS: Final = 10.0


class WebSocket:
    """One open connection. Messages are not compressed: a small one could unpack to any size."""

    def __init__(
        self, url: str, connection: WSConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.url = url
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._texts: deque[str] = deque()
        self._parts: list[str] = []
        self._length = 0
        self._closed: str | None = None

    @classmethod
    async def open(cls, url: str) -> WebSocket:
        """Connect to the WebSocket at this http or https address. NoAnswer if that fails or takes longer than 10 s."""
        if find_spec("wsproto") is None:
            raise ConfigError(f"streams of an exchange need wsproto: {install('exchange')}")
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await cls._open(url)
        except TimeoutError:
            raise NoExchangeAnswer(f"{url}: no connection within {OPEN_SECONDS:.0f} s; check the network") from None
        except OSError as error:
            raise NoExchangeAnswer(f"{url}: {error.strerror or error}; check the network") from None

    @classmethod
    async def _open(cls, url: str) -> WebSocket:
        from wsproto import ConnectionType, WSConnection
        from wsproto.events import Request

        parts = urlsplit(url)
        assert parts.hostname is not None
        is_secure = parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        tls = tls_context() if is_secure else None
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
        socket = cls(url, WSConnection(ConnectionType.CLIENT), reader, writer)
        try:
            socket._write(socket._connection.send(Request(host=parts.netloc, target=parts.path or "/")))
            while socket._connection.state.name == "CONNECTING":
                await socket._read()
            if socket._closed is not None:
                raise NoExchangeAnswer(f"{url}: {socket._closed}")
        except BaseException:
            writer.close()
            raise
        return socket

    async def send(self, text: str) -> None:
        """Send one message. NoAnswer if the connection has ended."""
        from wsproto.events import TextMessage
        from wsproto.utilities import LocalProtocolError

        try:
            self._write(self._connection.send(TextMessage(data=text)))
            await self._writer.drain()
        except (OSError, LocalProtocolError) as error:
            raise NoExchangeAnswer(f"{self.url}: {error}") from None

    async def receive(self) -> str:
        """The next message. NoAnswer when the connection has ended."""
        while not self._texts:
            if self._closed is not None:
                raise NoExchangeAnswer(f"{self.url}: {self._closed}")
            await self._read()
        return self._texts.popleft()

    async def close(self) -> None:
        """End the connection, without waiting for the other side."""
        from wsproto.events import CloseConnection
        from wsproto.utilities import LocalProtocolError

        with suppress(OSError, LocalProtocolError):
            self._write(self._connection.send(CloseConnection(code=1000)))
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def _write(self, data: bytes) -> None:
        self._writer.write(data)

    async def _read(self) -> None:
        """Read some bytes and take the events in them."""
        from wsproto import events
        from wsproto.utilities import RemoteProtocolError

        try:
            data = await self._reader.read(CHUNK)
            self._connection.receive_data(data or None)
            for event in self._connection.events():
                if isinstance(event, events.TextMessage):
                    self._take(event.data, is_whole=event.message_finished)
                elif isinstance(event, events.Ping):
                    self._write(self._connection.send(event.response()))
                elif isinstance(event, events.CloseConnection):
                    self._closed = f"the exchange has closed the connection (code {int(event.code)})"
                elif isinstance(event, events.RejectConnection):
                    self._closed = f"the exchange refuses the connection (HTTP {event.status_code})"
                elif not isinstance(event, events.AcceptConnection | events.Pong | events.RejectData):
                    self._closed = f"the exchange sent a {type(event).__name__}, which is no text"
        except RemoteProtocolError as error:
            self._closed = f"the exchange broke the protocol of WebSockets: {error}"
        except OSError as error:
            self._closed = f"the connection broke: {error.strerror or error}"

    def _take(self, text: str, *, is_whole: bool) -> None:
        self._parts.append(text)
        self._length += len(text)
        if self._length > BYTES_MAX:
            self._closed = f"the exchange sent a message of more than {BYTES_MAX:,} characters"
        elif is_whole:
            self._texts.append("".join(self._parts))
            self._parts, self._length = [], 0

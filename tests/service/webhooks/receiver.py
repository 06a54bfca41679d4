"""A webhook receiver on a real socket, with faults; the test's script answers each delivery."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
HANG = b"hang"
RESET = b"reset"


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Got:
    """One delivery as it came."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    answer: Callable[[int, Got], bytes] = lambda number, got: OK
    got: list[Got] = field(default_factory=list)
    open_now: int = 0
    open_most: int = 0
    port: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=1"

    async def until(self, count: int, seconds: float = 60) -> list[Got]:
        """Waits until this many deliveries have arrived in all."""
        async with asyncio.timeout(seconds):
            while len(self.got) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.got

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._serve(reader, writer)
        finally:
            self.open_now -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        got = Got(head[0], headers, body)
        self.got.append(got)
        answer = self.answer(len(self.got), got)
        self._changed.set()
        if answer == HANG:
            await reader.read()
            return
        if answer == RESET:
            writer.transport.abort()
            return
        writer.write(answer)
        await writer.drain()


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None, **script: Any) -> AsyncIterator[Receiver]:
    receiver = Receiver(**script)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await asyncio.sleep(0)

"""A raw TCP server for the client's tests: it says what bytes, or what breakage, answers a request.

Nothing is patched.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Serves one script for every connection; `requests` holds head and body of each request that came whole."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, script: Script) -> str:
        """Start on loopback and answer the base address."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await script(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                self._tasks.discard(task)
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """One whole request, counted only when its body is complete."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        body = await reader.readexactly(length)
        self.requests.append(head + body)
        return head + body

    async def answers(self, *replies: bytes) -> str:
        """A server that answers each request of a connection with these bytes, one after another, and closes."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for reply in replies:
                await self.read(reader)
                writer.write(reply)
                await writer.drain()

        return await self.serve(script)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with an RST instead of a FIN."""
    found = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def http(status: str, body: bytes, *headers: str) -> bytes:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    raw = RawServer()
    yield raw
    await raw.close()


@pytest.fixture
def rst() -> Callable[[asyncio.StreamWriter], None]:
    return reset


@pytest.fixture
def answer() -> Callable[..., bytes]:
    return http

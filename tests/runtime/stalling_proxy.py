"""Halfway between a daemon and its service: an HTTP proxy on a socket of its own that can hang, by path or request,
and says when it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Halfway:
    """`hangs(path)` and `swallows(request)` say whether a request is kept without an answer;

    `hung` is set when one is.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.hangs: Callable[[str], bool] = lambda _path: False
        self.swallows: Callable[[bytes], bool] = lambda _request: False
        self.hung = asyncio.Event()
        # requests that were kept
        self.swallowed = 0
        self._released = asyncio.Event()
        self.paths: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Halfway:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release(self) -> None:
        """End the connections of the requests that hang."""
        self._released.set()
        self._released = asyncio.Event()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await _message(reader)
                path = request.split(b" ", 2)[1].decode().partition("?")[0]
                self.paths.append(path)
                if self.hangs(path) or self.swallows(request):
                    self.hung.set()
                    self.swallowed += 1
                    await self._released.wait()
                    return
                back, on = await asyncio.open_connection("127.0.0.1", self.upstream)
                on.write(request)
                writer.write(await _message(back))
                on.close()
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One request or answer, whole: both sides name their length."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    return head + await reader.readexactly(size)

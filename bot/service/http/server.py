"""The HTTP server: uvicorn with the settings of the service, and a listener for an embedded service.

Knows no operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Final

import uvicorn
from starlette.types import ASGIApp

from bot.service.http.connections import Protocol

Headers = Callable[[], Mapping[str, str]]

# time for running requests when the service stops
STOP_SECONDS: Final = 1


class Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process before the service saves its snapshot."""

    on_started: Callable[[], None] | None = None
    # ends open event streams, which would not end by themselves
    on_stop: Callable[[], None] = staticmethod(lambda: None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True
        self.on_stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None and self.started:
            self.on_started()


def make_server(app: ASGIApp, headers: Headers = dict, *, loop: str = "uvloop") -> Server:
    """A server for this application on given sockets.

    `headers`: added to responses that the server sends without the application.
    """

    class Stamping(Protocol):
        more_headers = staticmethod(headers)
        waiting: ClassVar[dict[Protocol, None]] = {}

    return Server(
        uvicorn.Config(
            app,
            loop=loop,
            http=Stamping,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )


def free_port(host: str = "127.0.0.1") -> socket.socket:
    """A socket bound to a free port. It names IPPROTO_TCP, because asyncio disables Nagle's algorithm only then; with
    Nagle a response in two writes waits 40 ms for the caller's delayed acknowledgement.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind((host, 0))
    return sock


class Listener:
    """Serves an application on a socket, in the running event loop."""

    def __init__(self, app: ASGIApp, sock: socket.socket, headers: Headers = dict) -> None:
        self.server = make_server(app, headers)
        self._sock = sock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the application can be reached."""
        started = asyncio.Event()
        self.server.on_started = started.set
        self._task = asyncio.create_task(self.server.serve(sockets=[self._sock]), name="service-listener")
        waiting = asyncio.create_task(started.wait())
        try:
            await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not started.is_set():
            await self._task
            raise RuntimeError("the server ended before it could be reached")

    async def stop(self) -> None:
        """Return when the last request is answered and the port is free."""
        self.server.stop()
        if self._task is not None:
            await self._task
        self._sock.close()

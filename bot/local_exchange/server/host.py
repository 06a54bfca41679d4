"""Runs the local exchange on a socket: uvicorn, and a task that lets time pass."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bot.errors import ConfigError
from bot.local_exchange.server.http import ABORT, Application
from bot.local_exchange.server.service import ExchangeService, ExchangeServiceOptions

TICK_SECONDS: Final = 0.05
# An idle connection stays this long, as at servers behind a load balancer. Clients reuse theirs without a second try.
KEEP_ALIVE_S: Final = 75


class _Server(uvicorn.Server):
    """uvicorn without its signal handling."""

    on_started: Callable[[], None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None and self.started:
            self.on_started()


class _Protocol(HttpToolsProtocol):
    """HTTP whose application may close the connection without an answer, for faults."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}


async def run(
    options: ExchangeServiceOptions, sock: socket.socket, ready: Callable[[ExchangeService], None], end: asyncio.Event
) -> None:
    """Serve on this socket until `end` is set."""
    try:
        service = ExchangeService(options)
    except BaseException:
        sock.close()
        raise
    application = Application(service)
    config = uvicorn.Config(
        application,
        http=_Protocol,
        ws="wsproto",
        ws_ping_interval=None,
        ws_ping_timeout=None,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _Server(config)
    server.on_started = lambda: ready(service)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    ticking = asyncio.create_task(_tick(service))
    ending = asyncio.create_task(end.wait())
    try:
        await asyncio.wait({serving, ticking, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ticking.done():
            ticking.result()
    finally:
        for task in (ticking, ending):
            task.cancel()
        server.should_exit = True
        await serving
        sock.close()
        service.close()


async def _tick(service: ExchangeService) -> None:
    """Let the time of a running clock pass also without requests."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        if not service.clock.is_manual:
            service.pass_time()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. ConfigError says what to do when the address cannot be used."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, 0 takes a free one"
        ) from error
    return sock


def serve(options: ExchangeServiceOptions, host: str, port: int, on_ready: Callable[[str], None]) -> int:
    """Serve in the foreground until Ctrl-C or SIGTERM."""
    sock = listen(host, port)
    shown = f"[{host}]" if ":" in host else host

    async def main() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end.set)
        address = f"http://{shown}:{sock.getsockname()[1]}"
        await run(options, sock, lambda _: on_ready(address), end)

    uvloop.run(main())
    return 0

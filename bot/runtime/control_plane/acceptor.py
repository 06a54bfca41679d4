"""Accepts connections on a listening socket, also when the process has no file descriptor left.

When descriptors run out, asyncio's own server gives no answers and logs a hundred tracebacks per second. This one takes
a descriptor from the process's reserve; if the reserve is empty, it logs that once and tries again later.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from bot.descriptors import reserved
from bot.errors import ConfigError
from bot.logs import log
from bot.runtime.liveness.instance_lock import close_in_children

# after a failed `accept`; the event loop reports the same waiting connection at every turn
AGAIN_S: Final = 1.0

HOST: Final = "127.0.0.1"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def loopback_listener(port: int, named: str) -> socket.socket:
    """A socket that is bound to a port of this machine only; 0 takes a free one.

    ConfigError if the port cannot be used; `named` is the port's option or key.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{named} {port} on {HOST} cannot be used: {error.strerror}. Give another, or 0 for a free one"
        ) from error
    return listener


class Acceptor:
    """Calls `serve` for each connection in a task of its own.

    `bytes_max`: how much a reader buffers while it looks for a separator.
    """

    def __init__(self, listener: socket.socket, serve: Serve, *, bytes_max: int) -> None:
        listener.settimeout(0)
        # A child that outlives this process would keep the socket open without answering.
        close_in_children(listener)
        self._listener = listener
        self._serve = serve
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._is_failing = False
        self._listen()

    def close(self) -> None:
        """Accept no more connections. Accepted ones go on."""
        if self._listener.fileno() < 0:
            return
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            with reserved():
                connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # The caller has gone.
            return
        except OSError as error:
            self._loop.remove_reader(self._listener)
            self._again = self._loop.call_later(AGAIN_S, self._listen)
            if not self._is_failing:
                log.error("connection.not_accepted", message=error.strerror or str(error), again_s=AGAIN_S)
            self._is_failing = True
            return
        self._is_failing = False
        task = self._loop.create_task(self._serve_one(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_one(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(0)
            reader, writer = await asyncio.open_connection(sock=connection, limit=self._bytes_max)
        # The caller has gone.
        except OSError:
            connection.close()
            return
        await self._serve(reader, writer)

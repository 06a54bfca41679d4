"""Accepting connections on a listening socket, also when the process has no file descriptor left.

asyncio's own server logs an error with its traceback for each failed `accept`, a hundred in a row and again a second later, and answers
nobody. This one takes the descriptor of a connection from the process's reserve, says once when there is none, and tries again later.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from bot.descriptors import reserved
from bot.runtime.liveness.instance_lock import close_in_children

log = structlog.get_logger()

AGAIN_S: Final = (
    1.0  # after a failed `accept`: the kernel reports the same waiting connection at every turn of the loop
)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Acceptor:
    """Calls `serve` for each connection, as a task of its own. `bytes_max`: that a reader buffers before its separator is found."""

    def __init__(self, listener: socket.socket, serve: Serve, *, bytes_max: int) -> None:
        listener.settimeout(0)
        close_in_children(listener)  # Nobody would answer there once this process has ended.
        self._listener = listener
        self._serve = serve
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._is_failing = False
        self._listen()

    def close(self) -> None:
        """Accept nothing more. Connections that were accepted go on."""
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
            return  # Whoever wanted to connect has gone.
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
        except OSError:  # It has gone already.
            connection.close()
            return
        await self._serve(reader, writer)

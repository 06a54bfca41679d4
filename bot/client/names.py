"""An event loop that looks up host names in daemon threads, so that a lookup that hangs does not delay the end of the
process.

asyncio uses its thread pool, and `asyncio.run` waits for that pool at the end: a minute or more if the resolver does
not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_Key = tuple[Any, ...]


def run_unheld(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but does not wait for name lookups at the end."""
    with asyncio.Runner(loop_factory=NamesLoop) as runner:
        return runner.run(main)


class NamesLoop(asyncio.SelectorEventLoop):
    """Looks up each name once at a time.

    Later callers wait for the same lookup, also after the first caller has given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[_Key, asyncio.Future[Any]] = {}

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        key = (host, port, family, type, proto, flags)
        asked = self._asked.get(key)
        if asked is None:
            asked = self.create_future()
            try:
                threading.Thread(target=self._look_up, args=(key, asked), name="names", daemon=True).start()
            # No thread can be started now; the next caller tries again.
            except RuntimeError as error:
                raise OSError(str(error)) from None
            self._asked[key] = asked
            asked.add_done_callback(lambda task: self._forget(key, task))
        return await asyncio.shield(asked)

    def _look_up(self, key: _Key, asked: asyncio.Future[Any]) -> None:
        try:
            addresses, error = socket.getaddrinfo(*key), None
        except Exception as problem:  # noqa: BLE001 - the callers get it
            addresses, error = [], problem

        def answer() -> None:
            if error is None:
                asked.set_result(addresses)
            else:
                asked.set_exception(error)

        # The loop is closed, so nobody waits.
        with contextlib.suppress(RuntimeError):
            self.call_soon_threadsafe(answer)

    def _forget(self, key: _Key, asked: asyncio.Future[Any]) -> None:
        del self._asked[key]
        if not asked.cancelled():
            # Read the exception, so that asyncio does not log it.
            asked.exception()

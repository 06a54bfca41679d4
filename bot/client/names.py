"""An event loop that nobody has to wait for: names are looked up on threads of their own, and a lookup that hangs does not keep a process from ending.

asyncio looks them up in its pool, and `asyncio.run` waits for that pool at the end: for as long as the resolver's own tries take, a minute and more.
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
    """As asyncio.run, and no lookup holds up its end."""
    with asyncio.Runner(loop_factory=NamesLoop) as runner:
        return runner.run(main)


class NamesLoop(asyncio.SelectorEventLoop):
    """Asks once for a name at a time: whoever wants it meanwhile, or again after having given up, waits for the same answer."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[_Key, asyncio.Future[Any]] = {}

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:  # fmt: skip
        key = (host, port, family, type, proto, flags)
        asked = self._asked.get(key)
        if asked is None:
            asked = self.create_future()
            try:
                threading.Thread(target=self._look_up, args=(key, asked), name="names", daemon=True).start()
            except RuntimeError as error:  # No more threads just now: whoever asks next tries again.
                raise OSError(str(error)) from None
            self._asked[key] = asked
            asked.add_done_callback(lambda one: self._forget(key, one))
        return await asyncio.shield(asked)

    def _look_up(self, key: _Key, asked: asyncio.Future[Any]) -> None:
        try:
            found, error = socket.getaddrinfo(*key), None
        except Exception as said:  # noqa: BLE001 - it is theirs who wait, whatever it is
            found, error = [], said

        def answer() -> None:
            if error is None:
                asked.set_result(found)
            else:
                asked.set_exception(error)

        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self.call_soon_threadsafe(answer)

    def _forget(self, key: _Key, asked: asyncio.Future[Any]) -> None:
        del self._asked[key]
        if not asked.cancelled():
            asked.exception()  # Where nobody waits any more, it is nobody's.

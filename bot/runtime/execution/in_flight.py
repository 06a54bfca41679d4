"""In-flight pool: intents whose requests are on their way. The work on each intent is a task; only its requests run
beside a pass.

Between two requests the work reads and writes what the pass reads and writes, so it runs while the pass waits: `start`
and `settle` return when the work has sent a request or has ended. A reply waits for the next `settle`, and `wake` asks
for a pass that calls it. dispatch.py decides which intents may be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from bot.runtime.model.intents import Intent

T = TypeVar("T")


class Work:
    """The work on one intent. `intent` is the version whose request is on its way."""

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self.task: asyncio.Task[None] | None = None
        # set when a pass continues the work
        self.turn: asyncio.Future[None] | None = None
        # set when the work has sent a request
        self.stopped: asyncio.Future[None] | None = None
        # True: the request of the work has had no reply for `slow_s`
        self.is_slow = False


class InFlight:
    """`live` holds the open intents.

    `wake` is called at each reply, and when a request has had no reply for `slow_s`.
    """

    def __init__(
        self, live: MutableMapping[str, Intent], wake: Callable[[], None], slow_s: float, abreast: int = 1
    ) -> None:
        # requests that may be on their way at once; with 1 no event loop is needed
        self.abreast = abreast
        self._live = live
        self._wake = wake
        self._slow_s = slow_s
        self._all: list[Work] = []
        # work that has a reply
        self._back: list[Work] = []
        # the work whose code runs now
        self._runs: Work | None = None
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def intents(self) -> list[Intent]:
        return [work.intent for work in self._all]

    @property
    def slow(self) -> set[str]:
        """Ids of the intents whose request has had no reply for `slow_s`."""
        return {work.intent.id for work in self._all if work.is_slow}

    async def start(self, intent: Intent, way: Coroutine[Any, Any, None]) -> None:
        """Begin the work on an intent. Raises an error that ends the work before its first request."""
        work = Work(intent)
        self._all.append(work)
        work.turn = asyncio.get_running_loop().create_future()
        work.task = asyncio.get_running_loop().create_task(self._do(work, way))
        work.task.add_done_callback(lambda _: self._forget(work))
        await self._take_on(work)

    async def ask(self, intent: Intent, request: Coroutine[Any, Any, T]) -> T:
        """The reply to a request of the work that runs now. If no work runs, as in a backtest, the caller waits here.

        `intent` is as the journal has it now, and `live` gets this version.
        """
        if intent.id in self._live:
            self._live[intent.id] = intent
        work, self._runs = self._runs, None
        if work is None:
            return await request
        loop = asyncio.get_running_loop()
        work.intent, work.turn = intent, loop.create_future()
        assert work.stopped is not None
        work.stopped.set_result(None)
        slow = loop.call_later(self._slow_s, self._become_slow, work)
        try:
            reply, error = await request, None
        except asyncio.CancelledError:
            raise
        except BaseException as no:  # noqa: BLE001 - raised below, so that a pass gets it
            reply, error = None, no
        finally:
            slow.cancel()
            work.is_slow = False
        self._back.append(work)
        self._changed.set()
        self._wake()
        await work.turn
        if error is not None:
            raise error
        return reply  # type: ignore[return-value]  # The reply of the request that has not failed.

    async def settle(self, is_wanted: Callable[[Intent], bool], may_go_on: Callable[[], bool]) -> None:
        """Continue the work whose replies have come.

        Raises an error that ends work. Work whose intent is not wanted any more ends here.
        """
        for _ in range(len(self._back)):
            if not may_go_on():
                return
            work = self._back.pop(0)
            if is_wanted(work.intent):
                await self._take_on(work)
            else:
                self._end(work)

    async def wait(self) -> None:
        """Wait until there is a reply."""
        while not self._back:
            self._changed.clear()
            await self._changed.wait()

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all work. The intents whose requests are on their way are in doubt."""
        tasks = [work.task for work in self._all if work.task is not None]
        for task in tasks:
            task.cancel()
        self._all.clear()
        self._back.clear()
        return tasks

    def _become_slow(self, work: Work) -> None:
        work.is_slow = True
        self._wake()

    async def _do(self, work: Work, way: Coroutine[Any, Any, None]) -> None:
        try:
            assert work.turn is not None
            await work.turn
        except BaseException:
            way.close()
            raise
        await way

    async def _take_on(self, work: Work) -> None:
        assert self._runs is None, "one at a time"
        assert work.task is not None and work.turn is not None
        self._runs = work
        work.stopped = asyncio.get_running_loop().create_future()
        work.turn.set_result(None)
        try:
            await asyncio.wait({work.task, work.stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The work has ended, or the pass was cut while the work ran.
            if self._runs is work:
                self._runs = None
                self._end(work)
        if work.task.done() and not work.task.cancelled():
            work.task.result()

    def _end(self, work: Work) -> None:
        self._forget(work)
        if work.task is not None:
            work.task.cancel()

    def _forget(self, work: Work) -> None:
        """Remove the work. If its request was cancelled, the intent is in doubt, and a later pass goes on with it."""
        if work in self._all:
            self._all.remove(work)
        if work in self._back:
            self._back.remove(work)

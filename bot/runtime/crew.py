"""A crew: orders that are under way side by side, each in a task of its own. Who leaves next is decided elsewhere (waves.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bot.runtime.intents import Intent


class Crew:
    """`room` opens when half of the places are free, so that those who leave are written down several at a time.

    More may be signed on than there are places: each waits for its `turn`, and looks then whether the wave `is_broken`.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._turns = asyncio.Semaphore(places)
        self._tasks: dict[asyncio.Task[None], Intent] = {}
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def under_way(self) -> list[Intent]:
        return list(self._tasks.values())

    @property
    def room(self) -> int:
        """How many more may leave now."""
        free = self._places - len(self._tasks)
        return free if free >= len(self._tasks) else 0

    @property
    def is_broken(self) -> bool:
        """Whether what ended one of them ends the wave."""
        return self._error is not None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One of the places; who waits for it knows of an error before it is free again."""
        async with self._turns:
            try:
                yield
            except BaseException as error:
                self._error = self._error or error
                raise

    def send(self, intent: Intent, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = intent
        task.add_done_callback(self._ended)

    async def wait(self) -> None:
        """Until there is room, and another one is back. Raises what ended one of them."""
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def all_back(self) -> None:
        """Whatever comes of them."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._error = self._error or error
        if self.room or self._error is not None:
            self._changed.set()

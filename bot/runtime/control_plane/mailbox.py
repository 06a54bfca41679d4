"""Changes that an operator asks for, run one at a time between two passes of the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from bot.errors import AccessLost, BotError, JournalError
from bot.runtime.control_plane.server import Problem

T = TypeVar("T")

ERRANDS_MAX: Final = 16  # waiting for the next pass; one operator never has so many


class _Errand(NamedTuple):
    work: Callable[[], Awaitable[Any]]
    answer: asyncio.Future[Any]
    is_urgent: bool


class Mailbox:
    """Work that is done between two passes of the loop, in the order that it was asked for. `ring` wakes the loop for it."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = lambda: None
        self._waiting: list[_Errand] = []

    async def ask(self, work: Callable[[], Awaitable[T]], *, is_urgent: bool = False) -> T:
        """The result of the work, once a pass has ended; its exception otherwise. `is_urgent`: done while strategies live through their past, too."""
        if len(self._waiting) >= ERRANDS_MAX:
            raise Problem(503, "busy", "the loop has enough to do; ask again")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Errand(work, answer, is_urgent))
        self.ring()
        return await answer

    async def do_next(self) -> None:
        """Called by the run between two passes, and does one: each may wait for the service, and passes go on between. Rings for the others.

        What ends a run (lost access, a bad journal) ends it from here too.
        """
        while self._waiting:
            if await self._do(self._waiting.pop(0)):
                break
        if self._waiting:
            self.ring()

    async def do_urgent(self) -> None:
        """Called in the midst of a start or of another errand, before a pass that it makes room for. Nothing overtakes what was asked for earlier."""
        while self._waiting and self._waiting[0].is_urgent:
            await self._do(self._waiting.pop(0))

    async def _do(self, one: _Errand) -> bool:
        """False: whoever asked has gone, and nothing is done."""
        if one.answer.done():
            return False
        try:
            result = await one.work()
        except (BotError, Problem) as error:
            if not one.answer.done():
                one.answer.set_exception(error)
            if isinstance(error, JournalError | AccessLost):
                raise
        else:
            if not one.answer.done():
                one.answer.set_result(result)
        return True

    def give_up(self) -> None:
        """The run ends: nothing of it is done any more."""
        for one in self._waiting:
            if not one.answer.done():
                one.answer.set_exception(Problem(409, "stopping", "the daemon is stopping"))
        self._waiting.clear()

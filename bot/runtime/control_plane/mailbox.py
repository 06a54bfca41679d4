"""Changes that an operator asks for, run one at a time between two passes of the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from bot.errors import AccessLost, BotError, JournalError
from bot.runtime.control_plane.server import RequestProblem

T = TypeVar("T")

# requests that wait for the next pass; one operator never has so many
WAITING_MAX: Final = 16


class _Request(NamedTuple):
    work: Callable[[], Awaitable[Any]]
    answer: asyncio.Future[Any]
    is_urgent: bool


class Mailbox:
    """Work to be done between two passes, in the order of its requests. `wake` makes the next pass come at once."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._waiting: list[_Request] = []

    def attach(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on when work has come."""
        self.wake = wake

    async def ask(self, work: Callable[[], Awaitable[T]], *, is_urgent: bool = False) -> T:
        """The result of the work once it was done between two passes, or its exception.

        Urgent work is also done while strategies warm up.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise RequestProblem(503, "busy", f"{WAITING_MAX} requests wait for the next pass already; ask again")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(work, answer, is_urgent))
        self.wake()
        return await answer

    async def do_next(self) -> None:
        """Do one request between two passes, because each may wait for the service. If more wait, the next pass comes
        at once.

        Lost access and a journal that cannot be used are raised here too, because they end the run.
        """
        while self._waiting:
            if await self._do(self._waiting.pop(0)):
                break
        if self._waiting:
            self.wake()

    async def do_urgent(self) -> None:
        """Do the urgent requests at the head of the queue, before a pass within a start or a reload.

        They overtake no earlier request.
        """
        while self._waiting and self._waiting[0].is_urgent:
            await self._do(self._waiting.pop(0))

    async def _do(self, request: _Request) -> bool:
        """False if its caller has gone; then nothing is done."""
        if request.answer.done():
            return False
        try:
            result = await request.work()
        except (BotError, RequestProblem) as error:
            if not request.answer.done():
                request.answer.set_exception(error)
            if isinstance(error, JournalError | AccessLost):
                raise
        else:
            if not request.answer.done():
                request.answer.set_result(result)
        return True

    def refuse_all(self) -> None:
        """Refuse the waiting requests, because the daemon stops."""
        for request in self._waiting:
            if not request.answer.done():
                request.answer.set_exception(RequestProblem(409, "stopping", "the daemon is stopping"))
        self._waiting.clear()

"""A start waits for its service: `until_up` asks until the service answers, with growing pauses between the tries."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bot.client.retry import Backoff
from bot.clock import monotonic_ns
from bot.errors import NO_ERROR_OBJECT, ApiError, Refused, is_access_lost
from bot.logs import log

T = TypeVar("T")

# Longest pause between two tries, in real time, even if Retry-After is longer. Until the service answers, the daemon
# cannot protect positions.
AWAY_MS: Final = 60_000
# Refusals of a start's first question: one may be chance, three are a wrong address or key.
REFUSALS_MAX: Final = 3


class RealPacer:
    """Real time for retries.

    The delays are random within bounds, so that many daemons do not ask at the same instant.
    """

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._chance = random.Random(secrets.randbits(64))

    def mono_ms(self) -> int:
        return monotonic_ns() // 1_000_000

    def delay_ms(self, attempt: int) -> int:
        return self._backoff.wait_ms(attempt, self._chance.random())

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


async def until_up(
    ask: Callable[[], Awaitable[T]],
    stop: asyncio.Event,
    set_away: Callable[[str], None] = lambda _why: None,
    *,
    is_known: bool = False,
) -> T | None:
    """The answer of `ask`, tried until the service gives one; None if `stop` is set first.

    Raises at once if access is lost, and after REFUSALS_MAX refusals. `set_away` gets the reason for the wait, and ""
    at its end. `is_known`: the service has answered an earlier run of this state directory. Then an error page of a
    proxy is no sign of a wrong address.
    """
    pacer = RealPacer()
    tries = refusals = 0
    while not stop.is_set():
        try:
            answer = await _unless_stopped(stop, ask)
            set_away("")
            return answer
        except ApiError as error:
            refusals += isinstance(error, Refused) and not (is_known and error.code == NO_ERROR_OBJECT)
            if is_access_lost(error) or refusals >= REFUSALS_MAX:
                raise
            tries += 1
            log.warning("service.away", code=error.code, message=error.message, tries=tries)
            set_away(f"the service does not answer, try {tries} ({error.code}: {error.message})")
            wait_s = max(min(getattr(error, "after_ms", 0) or 0, AWAY_MS), pacer.delay_ms(tries)) / 1000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)
    return None


async def _unless_stopped(stop: asyncio.Event, ask: Callable[[], Awaitable[T]]) -> T | None:
    """The answer, or None as soon as `stop` is set. The stop does not wait for a service that hangs."""
    asking = asyncio.ensure_future(ask())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        for task in (asking, stopping):
            task.cancel()
        await asyncio.gather(asking, stopping, return_exceptions=True)

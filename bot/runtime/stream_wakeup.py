"""The doorbell: the event stream wakes the loop between its passes. It carries no news, and a dead one only makes the loop slower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from bot.errors import AccessLost, ApiError

if TYPE_CHECKING:
    from bot.wire import Event

log = structlog.get_logger()

RING_S: Final = 0.2  # between two rings at least: what comes meanwhile is met by the same pass
AGAIN_S: Final = (
    1.0,
    5.0,
    30.0,
    60.0,
)  # after a stream that the service refuses; broken connections the stream takes up by itself


class StreamWakeup(Protocol):
    """Whatever has a stream; the client."""

    def stream(self, since: str | None = None) -> AsyncGenerator[Event, None]: ...


async def listen(
    port: StreamWakeup,
    cursor: Callable[[], str | None],
    ring: Callable[[], None],
    *,
    knows: Callable[[Event], bool],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Ring whenever events come that nobody knows yet, from the cursor on; ends only by being cancelled or with the credential."""
    refusals = 0
    while True:
        try:
            async with aclosing(port.stream(cursor())) as events:
                async for event in events:
                    refusals = 0
                    if not knows(event):  # Of a burst most were taken by the pass that the first of them rang for.
                        ring()
                        await sleep(RING_S)
        except AccessLost:
            return  # The next pass meets the same, and says so.
        except ApiError as error:  # The place is lost, or there is no stream: passes go on by themselves.
            log.info("event_stream.unavailable", code=error.code, message=error.message)
        ring()
        await sleep(AGAIN_S[min(refusals, len(AGAIN_S) - 1)])
        refusals += 1

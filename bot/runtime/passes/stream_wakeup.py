"""The event stream wakes the kernel between its passes.

Passes read the events themselves, so a broken stream only makes the kernel slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

from bot.errors import AccessLost, ApiError
from bot.logs import log

if TYPE_CHECKING:
    from bot.wire import Event

# shortest time between two wake-ups; the next pass reads what comes meanwhile
WAKE_S: Final = 0.2
# wait after a refused stream; the stream restores a broken connection by itself
AGAIN_S: Final = (1.0, 5.0, 30.0, 60.0)


class StreamWakeup(Protocol):
    """The client, as far as its event stream is needed."""

    def stream(self, since: str | None = None) -> AsyncGenerator[Event, None]: ...


async def listen(
    port: StreamWakeup,
    cursor: Callable[[], str | None],
    wake: Callable[[], None],
    *,
    knows: Callable[[Event], bool],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call `wake` for events after the cursor that are not known yet.

    Ends when it is cancelled, or when access is lost.
    """
    refusals = 0
    while True:
        try:
            async with aclosing(port.stream(cursor())) as events:
                async for event in events:
                    refusals = 0
                    # The pass that the first event of a burst woke reads most of the others.
                    if not knows(event):
                        wake()
                        await sleep(WAKE_S)
        except AccessLost:
            # The next pass meets the same error and raises it.
            return
        # The cursor is lost, or there is no stream. Passes go on without it.
        except ApiError as error:
            log.info("event_stream.unavailable", code=error.code, message=error.message)
        wake()
        await sleep(AGAIN_S[min(refusals, len(AGAIN_S) - 1)])
        refusals += 1

"""The wake-up by the event stream: on unknown events, and in spite of any fault of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from bot.errors import AccessLost, ApiError, OutcomeUnknown, Refused
from bot.runtime.passes.stream_wakeup import AGAIN_S, WAKE_S, listen
from bot.wire import Event


def event(n: int) -> Event:
    data = {"side": "long", "size": "1", "oraclePx": "1", "rate": "0", "amountUsd": "0", "balanceUsd": "1"}
    return Event(id=f"evt_{n:012d}", type="funding", subtype="payment", ts=n, coin="BTC", data=data)


class Streams:
    """One connection after the other: so many events, then an error; after the last one it waits for ever."""

    def __init__(self, *turns: tuple[int, ApiError | None]) -> None:
        self.turns = list(turns)
        self.since: list[str | None] = []

    async def stream(self, since: str | None = None) -> AsyncGenerator[Event, None]:
        self.since.append(since)
        if not self.turns:
            await asyncio.Event().wait()
        events, error = self.turns.pop(0)
        for n in range(events):
            yield event(n)
        if error is not None:
            raise error


async def heard(
    streams: Streams, turns: int, *, known: frozenset[str] = frozenset()
) -> tuple[int, list[float], asyncio.Task[None]]:
    """Listen until so many streams were opened; wake-ups and waits so far.

    `known`: ids of events that a pass has taken.
    """
    wakeups = 0
    waits: list[float] = []

    def wake() -> None:
        nonlocal wakeups
        wakeups += 1

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    task = asyncio.create_task(
        listen(streams, lambda: f"evt_{len(streams.since)}", wake, knows=lambda one: one.id in known, sleep=sleep)
    )
    while len(streams.since) < turns and not task.done():
        await asyncio.sleep(0)
    return wakeups, waits, task


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_wakes_the_kernel_for_each_event_and_waits_between_two_wakeups() -> None:
    wakeups, waits, task = await heard(Streams((3, None)), 2)
    assert wakeups == 4, "three, and one for what the end of the stream may hide"
    assert waits[:3] == [WAKE_S] * 3
    await end(task)


async def test_it_does_not_wake_the_kernel_for_an_event_that_a_pass_has_read() -> None:
    known = frozenset(event(n).id for n in range(1, 500))
    wakeups, waits, task = await heard(Streams((501, None)), 2, known=known)
    assert wakeups == 3, "the first, the last, and the end of the stream"
    assert waits[:2] == [WAKE_S] * 2
    await end(task)


async def test_a_stream_that_is_refused_is_asked_for_again_more_and_more_slowly_from_the_cursor() -> None:
    gone = Refused("not_found", "gone", status=410)
    streams = Streams(*[(0, gone)] * 5)
    _, waits, task = await heard(streams, 6)
    assert waits == [*AGAIN_S, AGAIN_S[-1]]
    assert streams.since == [f"evt_{n}" for n in range(6)], "each time from where the feed stands"
    await end(task)


async def test_an_event_makes_it_patient_anew() -> None:
    odd = OutcomeUnknown("no_error_object", "html")
    _, waits, task = await heard(Streams((0, odd), (0, odd), (1, odd), (0, odd)), 5)
    assert [wait for wait in waits if wait != WAKE_S] == [AGAIN_S[0], AGAIN_S[1], AGAIN_S[0], AGAIN_S[1]]
    await end(task)


async def test_a_lost_credential_ends_it_quietly() -> None:
    _, _, task = await heard(Streams((1, AccessLost("unauthorized", "revoked"))), 9)
    await task

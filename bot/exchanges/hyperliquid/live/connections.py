"""Keeps one set of subscriptions alive: connects again after a break, and replaces a socket before it is a day old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from bot.clock import MINUTE_MS, SECOND_MS, Clock
from bot.exchanges.hyperliquid.live.subscriptions import (
    AGE_MS,
    AGE_SPREAD_MS,
    ChannelMessage,
    SocketProtocol,
    Subscription,
    pause_ms,
)
from bot.exchanges.protocol import NoExchangeAnswer, UnknownForm
from bot.exchanges.websocket import WebSocket

# Messages that nobody has taken. Beyond it the socket is given up, because its messages would be old.
QUEUE_MAX: Final = 10_000
TICK_SECONDS: Final = 0.25
# A socket that lived so long was a good one: the next failure is the first again.
GOOD_MS: Final = MINUTE_MS


@dataclass(frozen=True, slots=True)
class Up:
    """The exchange has acknowledged all subscriptions of a new socket. Messages before it may be lost."""


@dataclass(frozen=True, slots=True)
class Down:
    """The socket is closed, or could not be opened."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A quarter of a second without a message, so that the caller can look at the time."""


Event = Up | Down | ChannelMessage | Tick


@dataclass(slots=True)
class Counters:
    """Figures of all sockets of a link."""

    open: int = 0
    opened: int = 0
    messages: int = 0
    heard_ms: int | None = None


class _Session:
    """One socket. `task` ends with NoAnswer or UnknownForm when the socket must be given up."""

    def __init__(self, owner: LiveSocket) -> None:
        self._owner = owner
        self.acknowledged = asyncio.Event()
        self.aged = asyncio.Event()
        self.begun_ms = owner.clock.now_ms()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        owner = self._owner
        socket = await WebSocket.open(f"{owner.url}/ws")
        owner.counters.open += 1
        owner.counters.opened += 1
        try:
            protocol = SocketProtocol(
                owner.wanted, owner.clock.now_ms(), owner.next_age_ms(), needs_all=owner.needs_all
            )
            for text in protocol.first_texts():
                await socket.send(text)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(socket, protocol))
                tasks.create_task(self._watch(socket, protocol))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            owner.counters.open -= 1
            await socket.close()

    async def _read(self, socket: WebSocket, protocol: SocketProtocol) -> None:
        while True:
            text = await socket.receive()
            now_ms = self._owner.clock.now_ms()
            message = protocol.take(text, now_ms)
            self._owner.counters.messages += 1
            self._owner.counters.heard_ms = now_ms
            if message is not None:
                self._owner.offer(message)
            if protocol.is_acknowledged:
                self.acknowledged.set()

    async def _watch(self, socket: WebSocket, protocol: SocketProtocol) -> None:
        """Send pings, and end a socket that is dead or refused."""
        while True:
            now_ms = self._owner.clock.now_ms()
            trouble, self._owner.end_reason = self._owner.end_reason or protocol.trouble(now_ms), None
            if trouble is not None:
                raise NoExchangeAnswer(f"{self._owner.url}: {trouble}")
            if protocol.is_old(now_ms):
                self.aged.set()
            if (text := protocol.due_text(now_ms)) is not None:
                await socket.send(text)
            await asyncio.sleep(TICK_SECONDS)

    async def end(self) -> str:
        """End the session, and say why it had ended."""
        self.task.cancel()
        try:
            await self.task
        except (NoExchangeAnswer, UnknownForm) as error:
            return str(error)
        except asyncio.CancelledError:
            return "given up"
        raise AssertionError("a session does not return")


class LiveSocket:
    """One set of subscriptions at one address."""

    def __init__(
        self,
        url: str,
        wanted: Sequence[Subscription],
        clock: Clock,
        random: Random,
        counters: Counters,
        age_ms: int = AGE_MS,
        *,
        needs_all: bool = True,
    ) -> None:
        self.url = url
        self.wanted = wanted
        self.clock = clock
        self.counters = counters
        self.needs_all = needs_all
        # Set by the reader, to have the socket opened anew.
        self.end_reason: str | None = None
        self._random = random
        self._age_ms = age_ms
        self._queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE_MAX)

    def next_age_ms(self) -> int:
        """When the next socket is replaced, drawn so that not all sockets of the world are renewed at once."""
        return self._age_ms + self._random.randrange(self._age_ms * AGE_SPREAD_MS // AGE_MS + 1)

    def offer(self, event: Event) -> None:
        """Keep an event for the reader. NoAnswer if it takes none."""
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            raise NoExchangeAnswer(
                f"{self.url}: {QUEUE_MAX:,} messages wait to be read; the socket is opened anew"
            ) from None

    async def events(self) -> AsyncIterator[Event]:
        """Messages, and what happens to the socket, for ever."""
        keeping = asyncio.create_task(self._keep())
        try:
            while True:
                if keeping.done():
                    keeping.result()
                try:
                    async with asyncio.timeout(TICK_SECONDS):
                        event = await self._queue.get()
                except TimeoutError:
                    event = Tick()
                yield event
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping

    async def _keep(self) -> None:
        """Hold a socket at all times, two while one takes the place of the other."""
        failures = 0
        current: _Session | None = None
        session: _Session | None = None
        try:
            while True:
                session = _Session(self)
                if not await _comes(session.acknowledged, session.task):
                    reason = await session.end()
                    if current is None or current.task.done():
                        current = None
                        self._tell(Down(reason))
                    failures += 1
                    await asyncio.sleep(pause_ms(failures) / SECOND_MS)
                    continue
                if current is not None:
                    await current.end()
                current = session
                self._tell(Up())
                if await _comes(session.aged, session.task):
                    continue
                self._tell(Down(await session.end()))
                current = None
                failures = 0 if self.clock.now_ms() - session.begun_ms > GOOD_MS else failures + 1
                await asyncio.sleep(pause_ms(failures) / SECOND_MS)
        finally:
            for held in (session, current):
                if held is not None:
                    await held.end()

    def _tell(self, event: Event) -> None:
        """Keep an event that must not be lost; messages of a socket that is gone are old."""
        if self._queue.full():
            while not self._queue.empty():
                self._queue.get_nowait()
        self._queue.put_nowait(event)


async def _comes(event: asyncio.Event, task: asyncio.Task[None]) -> bool:
    """True when the event is set, False if the task ends before."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return event.is_set() and not task.done()

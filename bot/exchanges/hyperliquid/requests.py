"""Info requests by rank and within the weight of a minute. Requests for the same facts share one answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from bot.clock import MINUTE_MS, SECOND_MS, Clock
from bot.exchanges.actions import Rank
from bot.exchanges.hyperliquid.account import InfoSource
from bot.exchanges.hyperliquid.transport import PAUSES_S
from bot.exchanges.hyperliquid.weights import WeightWindow, weight_after, weight_before
from bot.exchanges.protocol import BudgetUsedUp, NoExchangeAnswer

# Facts that change rarely, and how long an answer about them is shared.
SHARED_MS: Final[Mapping[str, int]] = {
    "extraAgents": MINUTE_MS,
    "meta": MINUTE_MS,
    "perpDexs": MINUTE_MS,
    "userAbstraction": MINUTE_MS,
    "userRole": MINUTE_MS,
}


class Requests:
    """Info requests of one link. The transport sends each once."""

    def __init__(self, transport: InfoSource, clock: Clock, window: WeightWindow | None = None) -> None:
        self.window = window or WeightWindow()
        self.sent = 0
        self._transport = transport
        self._clock = clock
        self._queue: list[tuple[Rank, int]] = []
        # Since when each place of the queue waits.
        self._since_ms: dict[tuple[Rank, int], int] = {}
        self._numbers = count()
        self._changed = asyncio.Event()
        self._shared: dict[str, tuple[int, asyncio.Task[Any]]] = {}

    async def info(self, query: Mapping[str, Any], rank: Rank) -> Any:
        """The answer to an info request, which waits its turn.

        NoAnswer and UnknownForm as the transport raises them.
        """
        age_ms = SHARED_MS.get(query["type"])
        if age_ms is None:
            return await self._send(query, rank)
        key, now_ms = json.dumps(query, sort_keys=True), self._clock.now_ms()
        sent_ms, task = self._shared.get(key, (0, None))
        has_failed = task is not None and task.done() and (task.cancelled() or task.exception() is not None)
        if task is None or has_failed or now_ms - sent_ms > age_ms:
            task = asyncio.create_task(self._send(query, rank))
            self._shared[key] = (now_ms, task)
        # One caller that gives up must not end the request of the others.
        return await asyncio.shield(task)

    async def _send(self, query: Mapping[str, Any], rank: Rank) -> Any:
        """Send a request; reads change nothing, so it is sent again after a fault that may pass."""
        for pause_s in PAUSES_S:
            try:
                return await self._once(query, rank)
            except NoExchangeAnswer:
                await asyncio.sleep(pause_s)
        return await self._once(query, rank)

    async def turn(self, rank: Rank, weight: int, wait_max_ms: int | None = None) -> bool:
        """Wait until an action of this rank and weight may be sent, and count it.

        False, and nothing is counted, if it would wait longer than `wait_max_ms`, or if others already have.
        """
        if wait_max_ms is None:
            await self._turn(rank, weight)
        elif self._wait_ahead_ms(rank, weight) > wait_max_ms:
            return False
        else:
            try:
                async with asyncio.timeout(wait_max_ms / SECOND_MS):
                    await self._turn(rank, weight)
            except TimeoutError:
                return False
        self.window.charge(weight, self._clock.now_ms())
        return True

    def _wait_ahead_ms(self, rank: Rank, weight: int) -> int:
        """How long the oldest request that goes before one of this rank has waited, or how long the limits take."""
        now_ms = self._clock.now_ms()
        ages_ms = (now_ms - since_ms for place, since_ms in self._since_ms.items() if place[0] <= rank)
        return max(self.window.wait_ms(rank, weight, now_ms), *ages_ms, 0)

    def refused(self) -> None:
        """The exchange has answered an action with "too many requests": reads and entries wait too."""
        self.window.refuse(self._clock.now_ms())

    async def _once(self, query: Mapping[str, Any], rank: Rank) -> Any:
        await self._turn(rank, weight_before(query))
        charge = self.window.charge(weight_before(query), self._clock.now_ms())
        self.sent += 1
        try:
            answer = await self._transport.info(query)
        except BudgetUsedUp:
            charge.weight = 0
            self.window.refuse(self._clock.now_ms())
            raise
        charge.weight = weight_after(query, answer)
        self._wake()
        return answer

    async def _turn(self, rank: Rank, weight: int) -> None:
        """Wait until no request of a lower rank waits and the window has room."""
        place = (rank, next(self._numbers))
        heappush(self._queue, place)
        self._since_ms[place] = self._clock.now_ms()
        try:
            while True:
                changed = self._changed
                wait_ms = self.window.wait_ms(rank, weight, self._clock.now_ms())
                if self._queue[0] == place and not wait_ms:
                    return
                try:
                    async with asyncio.timeout(max(wait_ms, 1) / SECOND_MS if self._queue[0] == place else None):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._leave(place)

    def _leave(self, place: tuple[Rank, int]) -> None:
        del self._since_ms[place]
        if self._queue[0] == place:
            heappop(self._queue)
        else:
            self._queue.remove(place)
            self._queue.sort()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RankedSource:
    """The info requests of one rank, as an `InfoSource`."""

    def __init__(self, requests: Requests, rank: Rank) -> None:
        self._requests = requests
        self._rank = rank

    async def info(self, query: Mapping[str, Any]) -> Any:
        return await self._requests.info(query, self._rank)

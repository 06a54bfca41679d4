"""The way of a certification to a real exchange: HTTP, within the weight of a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from bot.clock import SECOND_MS, Clock
from bot.exchanges.actions import Rank
from bot.exchanges.hyperliquid.requests import Requests
from bot.exchanges.hyperliquid.transport import Transport
from bot.exchanges.protocol import BudgetUsedUp


class HttpAccess:
    """Reads are sent again after a fault that may pass; actions are sent once."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._requests = Requests(transport, clock)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def wait(self, ms: int) -> None:
        await asyncio.sleep(ms / SECOND_MS)

    async def info(self, query: Mapping[str, Any]) -> Any:
        return await self._requests.info(query, Rank.REPAIR)

    async def exchange(self, body: Mapping[str, Any]) -> Any:
        await self._requests.turn(Rank.EXIT, 1)
        try:
            return await self._transport.exchange(body)
        except BudgetUsedUp:
            self._requests.refused()
            raise

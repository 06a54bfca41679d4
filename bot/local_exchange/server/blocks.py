"""Blocks: actions that arrive within one block are performed together, in the exchange's order."""

from __future__ import annotations

import asyncio
from typing import Any

from bot.local_exchange.server.service import ExchangeService
from bot.local_exchange.wire.actions import block_rank
from bot.local_exchange.wire.requests import Signed

Json = dict[str, Any]


class Blocks:
    """`length_ms` 0: every action is performed when it arrives."""

    def __init__(self, service: ExchangeService, length_ms: int) -> None:
        self._service = service
        self._length_ms = length_ms
        self._waiting: list[tuple[int, int, Signed, asyncio.Future[Json]]] = []

    async def perform(self, signed: Signed) -> Json:
        """The answer of a signed request, after its block."""
        if not self._length_ms:
            return self._service.perform(signed)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(self._length_ms / 1000, self._execute)
        future: asyncio.Future[Json] = loop.create_future()
        self._waiting.append((block_rank(signed.action), len(self._waiting), signed, future))
        return await future

    def _execute(self) -> None:
        waiting, self._waiting = sorted(self._waiting, key=lambda entry: entry[:2]), []
        for _, _, signed, future in waiting:
            answer = self._service.perform(signed)
            if not future.done():
                future.set_result(answer)

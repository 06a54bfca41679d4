"""Forks: second services on ports of their own that begin with a snapshot of this one. In memory; they end with it, or when it is reset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from bot.errors import Refusal
from bot.service.state_machine.named_snapshots import Kept, Replies
from bot.service.views.responses import Refused

log = structlog.get_logger()

FORKS_MAX: Final = 16


class Fork(Protocol):
    """A running one."""

    base_url: str

    async def stop(self) -> None: ...


Open = Callable[[Kept, Replies, float], Awaitable[Fork]]


class Forks:
    """`open` makes one of a snapshot, at a clock's speed."""

    def __init__(self, open: Open) -> None:
        self._open = open
        self._running: list[Fork] = []
        self._coming = 0

    async def add(self, kept: Kept, replies: Replies, speed: float) -> str:
        """Answers where it listens."""
        if len(self._running) + self._coming >= FORKS_MAX:
            text = f"at most {FORKS_MAX} forks run at a time; a reset ends them"
            raise Refused(Refusal("invalid_input", text, fix={"action": "reset", "path": "/sandbox/v1/reset"}))
        self._coming += 1
        try:
            fork = await self._open(kept, replies, speed)
        finally:
            self._coming -= 1
        self._running.append(fork)
        log.info("fork.ready", base_url=fork.base_url, name=kept.name)
        return fork.base_url

    async def stop(self) -> None:
        """End all of them."""
        running, self._running = self._running, []
        for fork in running:
            await fork.stop()

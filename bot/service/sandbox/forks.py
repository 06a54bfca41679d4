"""Forks: services in memory, each on its own port, that begin with a snapshot of this one.

They end with it, or at its reset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from bot.errors import Refusal
from bot.logs import log
from bot.service.bodies.responses import OperationRefused
from bot.service.state_machine.named_snapshots import NamedSnapshot, Replies

FORKS_MAX: Final = 16


class Fork(Protocol):
    """A running fork."""

    base_url: str

    async def stop(self) -> None: ...


Open = Callable[[NamedSnapshot, Replies, float], Awaitable[Fork]]


class Forks:
    """The running forks. `open` makes a fork from a snapshot at a clock speed."""

    def __init__(self, open: Open) -> None:
        self._open = open
        self._running: list[Fork] = []
        self._coming = 0

    async def add(self, snapshot: NamedSnapshot, replies: Replies, speed: float) -> str:
        """Start a fork and return its base URL."""
        if len(self._running) + self._coming >= FORKS_MAX:
            text = f"at most {FORKS_MAX} forks run at a time; reset this service to end them"
            raise OperationRefused(Refusal("invalid_input", text, fix={"action": "reset", "path": "/sandbox/v1/reset"}))
        self._coming += 1
        try:
            fork = await self._open(snapshot, replies, speed)
        finally:
            self._coming -= 1
        self._running.append(fork)
        log.info("fork.ready", base_url=fork.base_url, name=snapshot.name)
        return fork.base_url

    async def stop(self) -> None:
        """Stop all forks."""
        running, self._running = self._running, []
        for fork in running:
            await fork.stop()

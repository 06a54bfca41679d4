"""Limits of each IP: request weight in a minute, connections, subscriptions and messages of WebSockets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from bot.clock import MINUTE_MS

WEIGHT_A_MINUTE: Final = 1_200
CONNECTIONS: Final = 10
CONNECTIONS_A_MINUTE: Final = 30
SUBSCRIPTIONS: Final = 1_000
USERS: Final = 10
MESSAGES_A_MINUTE: Final = 2_000
BATCH_PER_WEIGHT: Final = 40


@dataclass(slots=True)
class Window:
    """A sum over the last minute that must not exceed a limit."""

    most: int
    entries: deque[tuple[int, int]] = field(default_factory=deque)
    total: int = 0

    def take(self, now_ms: int, weight: int = 1) -> bool:
        """Count this weight, unless the limit has been reached."""
        while self.entries and self.entries[0][0] <= now_ms - MINUTE_MS:
            self.total -= self.entries.popleft()[1]
        if self.total >= self.most:
            return False
        self.entries.append((now_ms, weight))
        self.total += weight
        return True

    def add(self, now_ms: int, weight: int) -> None:
        """Count a weight that is known only after the answer."""
        self.entries.append((now_ms, weight))
        self.total += weight


@dataclass(slots=True)
class CallerUsage:
    """What one IP uses."""

    weight: Window = field(default_factory=lambda: Window(WEIGHT_A_MINUTE))
    opened: Window = field(default_factory=lambda: Window(CONNECTIONS_A_MINUTE))
    messages: Window = field(default_factory=lambda: Window(MESSAGES_A_MINUTE))
    connections: int = 0
    subscriptions: int = 0
    users: dict[str, int] = field(default_factory=dict)

"""Small implementations for tests: a pacer that does not wait, and a crash at any point of a port or a journal."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bot.runtime.journal.event_log import EventLog
from bot.runtime.journal.intent_log import IntentLog


class FakePacer:
    """Real time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.slept: list[int] = []

    def mono_ms(self) -> int:
        return self.now_ms

    def delay_ms(self, attempt: int) -> int:
        return min(500 * 2 ** (attempt - 1), 10_000)

    async def sleep(self, ms: int) -> None:
        self.slept.append(ms)
        self.now_ms += ms


class Crash(BaseException):
    """The process is gone: no `except` of ours may take it."""


@dataclass
class Tap:
    """Counts points and crashes at one of them; 0 never does."""

    at: int = 0
    seen: int = 0
    names: list[str] = field(default_factory=list)

    def point(self, name: str) -> None:
        self.seen += 1
        self.names.append(name)
        if self.seen == self.at:
            raise Crash(name)


class Tapped:
    """Any port or journal, with a point before and after each call; a journal's `intents` and `events` too."""

    def __init__(self, inner: Any, tap: Tap, *, only: Sequence[str] | None = None) -> None:
        self._inner = inner
        self._tap = tap
        self._only = only

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if isinstance(value, IntentLog | EventLog):
            return Tapped(value, self._tap, only=self._only)
        if not callable(value) or name == "entry_wait_ms" or (self._only is not None and name not in self._only):
            return value
        tap = self._tap
        if inspect.iscoroutinefunction(value):

            async def call_async(*args: Any, **named: Any) -> Any:
                tap.point(f"before {name}")
                answer = await value(*args, **named)
                tap.point(f"after {name}")
                return answer

            return call_async

        def call(*args: Any, **named: Any) -> Any:
            tap.point(f"before {name}")
            answer = value(*args, **named)
            tap.point(f"after {name}")
            return answer

        return call

"""Waits and repeats calls: exponential backoff with jitter, Retry-After, and a limit for every retry.

Chance and sleep are arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from bot.clock import monotonic_ns
from bot.errors import OutcomeUnknown, TryLater

T = TypeVar("T")

FIRST_MS: Final = 500
MAX_MS: Final = 10_000
# jitter, so that many clients do not return at the same instant
SPREAD: Final = 0.2
# if the service says longer, ask again after an hour
RETRY_AFTER_MAX_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Backoff:
    """0.5 s, doubling up to 10 s, each with a jitter of 20 %."""

    first_ms: int = FIRST_MS
    max_ms: int = MAX_MS
    spread: float = SPREAD

    def wait_ms(self, attempt: int, chance: float, after_ms: int = 0) -> int:
        """Milliseconds to wait after failed attempt number `attempt` (from 1).

        `chance` is in [0, 1). The wait is never shorter than `after_ms`, the service's Retry-After.
        """
        assert attempt >= 1
        assert 0 <= chance < 1
        base = self.max_ms if attempt > 30 else min(self.max_ms, self.first_ms * 2 ** (attempt - 1))
        jittered = round(base * (1 + self.spread * (2 * chance - 1)))
        return max(jittered, min(after_ms, RETRY_AFTER_MAX_MS))


async def persist(
    call: Callable[[], Awaitable[T]],
    *,
    sleep: Callable[[float], Awaitable[None]],
    chance: Callable[[], float],
    budget_ms: int,
    attempts_max: int = 20,
    backoff: Backoff = Backoff(),
    elapsed_ns: Callable[[], int] = monotonic_ns,
) -> T:
    """Repeat a call after TryLater and OutcomeUnknown. Raises the last error after `attempts_max` calls, or when
    `budget_ms` would be exceeded.

    Use it only for calls that may be repeated: reads, and requests that send the same key or token each time.
    """
    assert attempts_max >= 1
    end_ns = elapsed_ns() + budget_ms * 1_000_000
    attempt = 1
    while True:
        try:
            return await call()
        except (TryLater, OutcomeUnknown) as error:
            after_ms = error.after_ms if isinstance(error, TryLater) else 0
            wait_ms = backoff.wait_ms(attempt, chance(), after_ms)
            if attempt >= attempts_max or elapsed_ns() + wait_ms * 1_000_000 > end_ns:
                raise
        attempt += 1
        await sleep(wait_ms / 1000)

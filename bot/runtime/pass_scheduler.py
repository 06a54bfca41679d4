"""When the loop makes its next pass. APScheduler wakes it, at a bar's close or after PASS_S at the latest; it runs no work itself.

In real seconds: the service's clock only says when the next bar closes and how fast it gets there. The scheduler goes by the wall clock,
and would wait for as long as that was set back: so `wait` has an end of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from bot.clock import SystemClock, datetime_of, monotonic_ns

PASS_S: Final = 2.0  # A pass at least so often, also when nothing is due.
MANUAL_S: Final = 0.05  # Under a clock that is moved by hand nobody knows when the next bar closes.
LATE_S: Final = 0.5  # The scheduler is given so much longer than was wanted; then its clock is no clock.
REST_S: Final = 0.5  # Where no bar closes for so long there is time for what holds up the loop.
SETTLE_S: Final = 0.005  # Asked right at the close, the service might not have closed the bar yet.


class PassScheduler:
    """`wait` returns when the next pass is due. Jobs live in memory; a late one runs once, at once.

    `at_rest` is called before a wait for which nothing is due for REST_S.
    """

    def __init__(self, at_rest: Callable[[], None] = lambda: None) -> None:
        self._at_rest = at_rest
        self._wake = asyncio.Event()
        self._real = SystemClock()
        self.lag_s = 0.0  # how late the newest `wait` ended
        self._periods: dict[str, float] = {}
        # Its jobs set an event and no more, right where the scheduler runs: none is under way when it is shut down.
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, executors={"default": DebugExecutor()},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )  # fmt: skip

    def start(self) -> None:
        self._repeat(self.ring, PASS_S, "pass")
        self._scheduler.start()

    def every(self, seconds: float, name: str) -> asyncio.Event:
        """An event that is set so often; who waits for it clears it."""
        due = asyncio.Event()
        self._repeat(due.set, seconds, name)
        return due

    def _repeat(self, do: Callable[[], None], seconds: float, name: str) -> None:
        self._periods[name] = seconds
        self._scheduler.add_job(do, IntervalTrigger(seconds=seconds, timezone=UTC), id=name)

    def _count_anew(self) -> None:
        """From the wall clock as it is now."""
        for name, seconds in self._periods.items():
            self._scheduler.reschedule_job(name, trigger=IntervalTrigger(seconds=seconds, timezone=UTC))

    async def wait(self, *, next_look_ms: int | None, now_ms: int, speed: float) -> None:
        """Until the next bar is to be looked for (service clock), the regular pass, or `ring`."""
        if speed <= 0:
            delay_s = MANUAL_S
        elif next_look_ms is None:
            delay_s = PASS_S
        else:
            delay_s = max(0.0, (next_look_ms - now_ms) / 1000 / speed) + SETTLE_S
        if delay_s < PASS_S:
            at: datetime = datetime_of(self._real.now_ms()) + timedelta(seconds=delay_s)
            self._scheduler.add_job(self.ring, DateTrigger(at, timezone=UTC), id="bar", replace_existing=True)
        began_ns = monotonic_ns()
        if delay_s >= REST_S and not self._wake.is_set():
            self._at_rest()
        try:
            async with asyncio.timeout(min(delay_s, PASS_S) + LATE_S):
                await self._wake.wait()
        except TimeoutError:
            self._count_anew()
        self._wake.clear()
        self.lag_s = max(0.0, (monotonic_ns() - began_ns) / 1e9 - min(delay_s, PASS_S))

    def ring(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

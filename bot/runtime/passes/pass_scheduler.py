"""The pass scheduler says when the next pass is due: at a bar's close, or after PASS_S at the latest. It runs no work
itself.

It counts in real seconds; the service's clock says when the next bar closes and how fast its time runs. APScheduler
goes by the wall clock and would wait too long after that was set back, so `wait` has a limit of its own.
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

# longest time between two passes, also if nothing is due
PASS_S: Final = 2.0
# wait with a clock that is advanced by hand, because the time of the next close is unknown
MANUAL_S: Final = 0.05
# if the scheduler is later than this, the wall clock was set back
LATE_S: Final = 0.5
# if no bar closes within this time, there is time for work that blocks the event loop
REST_S: Final = 0.5
# wait after a close, because the service may not have closed the bar at that very instant
SETTLE_S: Final = 0.005


class PassScheduler:
    """`wait` returns when the next pass is due. Jobs live in memory; a late one runs once, at once.

    `at_rest` is called before a wait of at least REST_S.
    """

    def __init__(self, at_rest: Callable[[], None] = lambda: None) -> None:
        self._at_rest = at_rest
        self._event = asyncio.Event()
        self._real = SystemClock()
        # how late the newest `wait` ended
        self.lag_s = 0.0
        self._periods: dict[str, float] = {}
        # Its jobs only set an event, in the scheduler's own thread, so none is under way when it is shut down.
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            executors={"default": DebugExecutor()},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )

    def start(self) -> None:
        self._repeat(self.wake, PASS_S, "pass")
        self._scheduler.start()

    def every(self, seconds: float, name: str) -> asyncio.Event:
        """An event that is set every `seconds`; its reader clears it."""
        due = asyncio.Event()
        self._repeat(due.set, seconds, name)
        return due

    def _repeat(self, do: Callable[[], None], seconds: float, name: str) -> None:
        self._periods[name] = seconds
        self._scheduler.add_job(do, IntervalTrigger(seconds=seconds, timezone=UTC), id=name)

    def _reschedule(self) -> None:
        """Schedule all periods from the wall clock as it is now."""
        for name, seconds in self._periods.items():
            self._scheduler.reschedule_job(name, trigger=IntervalTrigger(seconds=seconds, timezone=UTC))

    async def wait(self, *, next_look_ms: int | None, now_ms: int, speed: float) -> None:
        """Wait until `next_look_ms` (on the service's clock), the regular pass, or `wake`."""
        if speed <= 0:
            delay_s = MANUAL_S
        elif next_look_ms is None:
            delay_s = PASS_S
        else:
            delay_s = max(0.0, (next_look_ms - now_ms) / 1000 / speed) + SETTLE_S
        if delay_s < PASS_S:
            at: datetime = datetime_of(self._real.now_ms()) + timedelta(seconds=delay_s)
            self._scheduler.add_job(self.wake, DateTrigger(at, timezone=UTC), id="bar", replace_existing=True)
        began_ns = monotonic_ns()
        if delay_s >= REST_S and not self._event.is_set():
            self._at_rest()
        try:
            async with asyncio.timeout(min(delay_s, PASS_S) + LATE_S):
                await self._event.wait()
        except TimeoutError:
            self._reschedule()
        self._event.clear()
        self.lag_s = max(0.0, (monotonic_ns() - began_ns) / 1e9 - min(delay_s, PASS_S))

    def wake(self) -> None:
        """Make the next pass due now."""
        self._event.set()

    def stop(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

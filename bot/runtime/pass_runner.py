"""The pass runner: what is done before every pass, the pass itself, and when the next one is due."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from bot.clock import boot_ns, monotonic_ns
from bot.descriptors import free, keep_reserve
from bot.errors import ApiError, is_access_lost
from bot.logs import log
from bot.operating_system import listing_of_files
from bot.runtime.control_plane.metrics import Meter
from bot.runtime.passes.pass_budget import YIELD_MS
from bot.wire import INTERVAL_MS

if TYPE_CHECKING:
    from bot.runtime.alerts.health import DaemonHealth
    from bot.runtime.kernel.kernel import Kernel
    from bot.runtime.liveness.heartbeat_supervision import HeartbeatSupervision
    from bot.runtime.passes.pass_scheduler import PassScheduler
    from bot.runtime.resync import Resync
    from bot.runtime.run_request import RunRequest

Work = Callable[[], Awaitable[None]]

# Real time after a close at which the daemon asks again for a missing bar, before the regular pass.
LATE_BAR_MS: Final = (100, 500)
# free file descriptors; with fewer the run is degraded, until twice as many are free
FREE_MIN: Final = 8


class PassRunner:
    """Runs the kernel's passes.

    `report` writes the periodic log lines; it runs after a pass when `report_due` is set.
    """

    def __init__(
        self,
        request: RunRequest,
        kernel: Kernel,
        scheduler: PassScheduler,
        heartbeats: HeartbeatSupervision,
        resync: Resync,
        report: Callable[[], None],
    ) -> None:
        self._request = request
        self._kernel = kernel
        self._scheduler = scheduler
        self._heartbeats = heartbeats
        self._resync = resync
        self._report = report
        self.report_due = asyncio.Event()
        self.meter = Meter()
        # True: the work before the newest pass has left the pass no time
        self._owes_whole_pass = False
        # the end of the newest pass, also of a failed one
        self._ended_ns = 0

    def report_when(self, due: asyncio.Event) -> None:
        """Write the periodic log lines after a pass in which this event is set."""
        self.report_due = due

    async def run(self, *work: Work) -> None:
        """Pass after pass until the stop. `work` is done between two passes."""
        kernel, clock = self._kernel, self._kernel.port.clock
        while not self._request.stop.is_set():
            began_ms = clock.now_ms()
            await self.one_pass(*work)
            if kernel.is_late:
                continue
            now_ms = clock.now_ms()
            await self._scheduler.wait(
                next_look_ms=self._next_look_ms(began_ms, now_ms, clock.speed), now_ms=now_ms, speed=clock.speed
            )

    async def yield_to_pass(self, *work: Work) -> None:
        """Run a pass within longer work if the last one ended at least YIELD_MS ago.

        Without passes the heartbeats stop.
        """
        if monotonic_ns() - self._ended_ns >= YIELD_MS * 1_000_000 and not self._request.stop.is_set():
            await self.one_pass(*work)

    async def one_pass(self, *work: Work) -> None:
        """Do the work between two passes, then one pass. If the work left the last pass no time, this pass comes
        without work.

        The work counts as time of the pass, because no progress is proven until the pass ends.
        """
        kernel = self._kernel
        began_ns = monotonic_ns()
        kernel.budget.begin()
        must_be_whole, self._owes_whole_pass = self._owes_whole_pass, False
        try:
            await self.before_pass(*(() if must_be_whole else work))
            await self._resync.if_lapsed(may_begin=not must_be_whole)
            self._owes_whole_pass = not must_be_whole and not kernel.budget.has_time()
            await kernel.cycle(is_begun=not must_be_whole)
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("pass.failed", code=error.code, message=error.message)
            self.meter.failed += 1
        self._ended_ns = monotonic_ns()
        seconds = (self._ended_ns - began_ns) / 1e9
        self.meter.passed(seconds=seconds, lag_s=self._scheduler.lag_s, now_ns=boot_ns())
        if self.report_due.is_set():
            self.report_due.clear()
            self._report()

    async def before_pass(self, *work: Work) -> None:
        """What comes before every pass, also before the passes that a start runs while strategies warm up."""
        kernel = self._kernel
        check_descriptors(kernel.health)
        _degrade_for(kernel.health, "embedded", self._request.trouble())
        await self._heartbeats.beat_by_hand()
        for n, step in enumerate(work):
            if n and not kernel.budget.has_time():
                # The next pass does the rest.
                break
            await step()
        _degrade_for(kernel.health, "heartbeat_timing", self._heartbeats.follow_clock())

    def _next_look_ms(self, began_ms: int, now_ms: int, speed: float) -> int | None:
        """When bars are asked for next, on the service's clock: at the next close after the pass began, because a bar
        that closed within the pass may have come after the question. Or soon, for a bar that was not there yet.
        """
        feed = self._kernel.bars.feed
        looks = [began_ms // (step := INTERVAL_MS[series.interval]) * step + step for series in feed.wanted]
        awaited_ms = feed.awaited_ms(now_ms)
        if awaited_ms is not None:
            looks += [at_ms for late in LATE_BAR_MS if (at_ms := awaited_ms + round(late * speed)) > now_ms][:1]
        return min(looks, default=None)


def check_descriptors(health: DaemonHealth) -> None:
    """Degrade the run while file descriptors are used up. The daemon's reserve is for exits and for `bot status`."""
    keep_reserve()
    count = free(FREE_MIN * 2)
    if count < FREE_MIN:
        health.degrade(
            "descriptors",
            "the process has used up its file descriptors (ulimit -n), but for a reserve of the daemon: most likely a"
            f" strategy leaves files or connections open. Find out which ({listing_of_files(os.getpid())}), mend it and"
            " start again",
        )
    elif count == FREE_MIN * 2:
        health.restore("descriptors")


def _degrade_for(health: DaemonHealth, reason: str, problem: str | None) -> None:
    if problem is None:
        health.restore(reason)
    else:
        health.degrade(reason, problem)

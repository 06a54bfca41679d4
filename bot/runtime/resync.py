"""Resync: read account, guardians and events again after a lapse, before anything is opened.

After a suspend, a long outage or a jump of the clock the dead-man switch may have fired unnoticed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bot.errors import ApiError, is_access_lost
from bot.logs import log
from bot.runtime.control_plane import reporting
from bot.runtime.passes.pass_budget import YIELD_MS

if TYPE_CHECKING:
    from bot.runtime.kernel.kernel import Kernel
    from bot.runtime.liveness.clock_watch import ClockWatch
    from bot.runtime.liveness.heartbeat_supervision import HeartbeatSupervision


class Resync:
    """Notices a lapse of the machine's clocks or of the dead-man deadline, and has the kernel recover once the
    service answers.
    """

    def __init__(self, kernel: Kernel, clocks: ClockWatch, heartbeats: HeartbeatSupervision) -> None:
        self._kernel = kernel
        self._clocks = clocks
        self._heartbeats = heartbeats
        # lapses of the clocks and of the deadline that have a notice
        self._reported = 0, 0
        # asks whether the service answers
        self.question: asyncio.Task[ApiError | None] | None = None

    async def if_lapsed(self, *, may_begin: bool = True) -> None:
        """Resync if there was a lapse. `may_begin`: whether this pass may ask the service for it."""
        kernel, process = self._kernel, self._heartbeats.process
        if kernel.port.clock.speed <= 0 and process is None:
            # Under a clock that is advanced by hand, real seconds mean nothing.
            return
        clock_lapses = self._clocks.look()
        problem = self._clocks.skew_problem
        if problem is None:
            kernel.health.restore("clock")
        else:
            kernel.health.degrade("clock", problem)
        lease = None if process is None else process.lease()
        if not self._clocks.lapsed and (lease is None or not lease.lapsed):
            return
        log.warning("heartbeat.lapsed", lapses=None if lease is None else lease.lapses, clock=self._clocks.lapsed)
        self._report(clock_lapses, 0 if lease is None else lease.lapses)
        if not may_begin or not kernel.budget.has_time() or not await self._recovered():
            # The next pass tries again. Until then nothing is opened; stops, exits and heartbeats go on.
            return
        self._clocks.acknowledge(clock_lapses)
        # Read again: `recover` may run passes, which may replace the process.
        if lease is not None and self._heartbeats.process is not None:
            self._heartbeats.process.acknowledge(lease.lapses)

    def close(self) -> None:
        if self.question is not None:
            self.question.cancel()

    def _report(self, *lapses: int) -> None:
        """One notice for a lapse, however often the service has to be asked."""
        if lapses != self._reported:
            self._reported = lapses[0], lapses[1]
            reporting.write_notice(
                self._kernel,
                "heartbeat.lapsed",
                "account, guardians and events are read again before anything is opened",
            )

    async def _recovered(self) -> bool:
        """True once account, guardians and events have been read again."""
        kernel = self._kernel
        was_ready = kernel.state.ready
        try:
            if not await self._service_answers():
                log.warning("resync.postponed", code="no_answer", message="the service has not sent the account yet")
                return False
            await kernel.recover()
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("resync.postponed", code=error.code, message=error.message)
            return False
        # A cancelled resync counts too: an account that was recovered before is wound down as the config says.
        finally:
            kernel.state.ready = kernel.state.ready or was_ready
        return True

    async def _service_answers(self) -> bool:
        """Whether the service answers a question that changes nothing.

        The question goes on beside the passes until it is answered, so that a slow or hanging service costs no pass its
        time.
        """
        if self.question is None:
            self.question = asyncio.create_task(self._error_of_question(), name="resync")
            await asyncio.wait({self.question}, timeout=YIELD_MS / 1000)
        if not self.question.done():
            return False
        error, self.question = self.question.result(), None
        if error is not None:
            raise error
        return True

    async def _error_of_question(self) -> ApiError | None:
        try:
            await self._kernel.port.account()
        except ApiError as error:
            return error
        return None

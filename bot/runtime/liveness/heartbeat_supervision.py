"""The daemon's care for its heartbeat: start, replace and stop the process, and answer whether the dead-man deadline
is certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from bot.errors import AccessLost, ApiError, ConfigError, Exit, Refusal, is_access_lost
from bot.logs import log
from bot.runtime.liveness import heartbeat_rule
from bot.runtime.liveness.heartbeat import HeartbeatProcess
from bot.runtime.liveness.heartbeat_rule import BeatTiming

if TYPE_CHECKING:
    from bot.config import Settings
    from bot.runtime.passes.ports import PortClock

# an attempt takes no longer; without an answer by then entries wait, exits do not
FIRST_ANSWER_S: Final = 2.0
# the lease is a file, which cannot wake its reader
FIRST_ANSWER_POLL_S: Final = 0.01


class HeartbeatPort(Protocol):
    """The client, as far as heartbeats need it."""

    @property
    def clock(self) -> PortClock: ...
    async def heartbeat(self) -> object: ...


def beat_timing_of(settings: Settings, speed: float) -> BeatTiming | None:
    """The timing that keeps the config's dead-man switch from firing. `speed` is that of the service's clock.

    None without a switch, or under a clock that is advanced by hand. ConfigError if no heartbeat could be fast enough.
    """
    if settings.dead_man is None or speed <= 0:
        return None
    try:
        return heartbeat_rule.beat_timing(settings.dead_man.heartbeat_seconds / speed)
    except ValueError as error:
        raise ConfigError(f"dead_man.heartbeat_seconds: {error}") from error


class HeartbeatSupervision:
    """`process` is None without a dead-man switch, and under a clock that is advanced by hand: then the passes send
    the heartbeats.
    """

    def __init__(
        self, settings: Settings, port: HeartbeatPort, new_process: Callable[[BeatTiming], HeartbeatProcess]
    ) -> None:
        self.settings = settings
        self._port = port
        self._new_process = new_process
        self.process = self._started()
        # True after the first start; a resync is no start
        self.is_start_complete = False
        # the service's time of the newest heartbeat that a pass has sent
        self._beaten_ms = 0

    def take_settings(self, settings: Settings) -> None:
        """Beat by these settings from the next start of the process on."""
        self.settings = settings

    def start(self, *, may_beat: bool) -> None:
        """`may_beat`: an earlier run has armed the switch.

        Otherwise the process only watches the daemon until the first pass.
        """
        if self.process is not None:
            self.process.start(may_beat=may_beat)

    def complete_start(self) -> None:
        self.is_start_complete = True
        self.let_beat()

    def let_beat(self) -> None:
        """Let a process that only watches send heartbeats: guardians are armed and the account is known."""
        if self.process is not None and not (self.process.alive and self.process.may_beat):
            self.process.stop()
            self.process.start()

    async def first_answer(self, stop: asyncio.Event) -> None:
        """Wait for the first heartbeat's answer, so that the first bar is not decided while the deadline is
        uncertain.
        """
        waited_s = 0.0
        while (
            self.process is not None
            and not self.process.lease().may_open
            and waited_s < FIRST_ANSWER_S
            and not stop.is_set()
        ):
            await asyncio.sleep(FIRST_ANSWER_POLL_S)
            waited_s += FIRST_ANSWER_POLL_S

    def replace(self) -> None:
        """Start a process with new timing: the config's switch or the clock's speed has changed.

        It sends heartbeats if the old one did.
        """
        old, self.process = self.process, self._started()
        if old is not None:
            old.close()
        if self.process is not None:
            # The new process continues with the old one's lapses.
            if old is not None:
                self.process.acknowledge(old.acknowledged)
            self.process.start(may_beat=self.is_start_complete or (old is not None and old.may_beat))

    def follow_clock(self) -> str | None:
        """Replace the process if the service's clock now runs faster. Returns why no heartbeat could be fast enough;
        None if one can.

        After a slowdown the process stays: heartbeats that come too often do no harm.
        """
        dead_man, speed = self.settings.dead_man, self._port.clock.speed
        if dead_man is None or speed <= 0:
            return None
        if (
            self.process is not None
            and dead_man.heartbeat_seconds / speed * 1e9 >= self.process.lengths.deadline_ns - 1
        ):
            return None
        try:
            beat_timing_of(self.settings, speed)
        except ConfigError as error:
            return f"the service's clock runs at {speed:g}x: {error}"
        log.warning("heartbeat.faster", speed=speed)
        self.replace()
        return None

    async def beat_by_hand(self) -> None:
        """Send a heartbeat from the pass if the service's clock is advanced by hand and has moved.

        The process knows real seconds only.
        """
        is_moved_by_hand = self.process is None or self._port.clock.speed <= 0
        if self.settings.dead_man is None or not is_moved_by_hand or self._port.clock.now_ms() == self._beaten_ms:
            return
        moved_ms = self._port.clock.now_ms()
        try:
            await self._port.heartbeat()
        # The next pass tries again.
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("heartbeat.missed", code=error.code, message=error.message)
        else:
            self._beaten_ms = moved_ms

    def check(self) -> bool:
        """Replace a process that hangs or has ended; True if it was started again. Call it after every pass.

        AccessLost if the service has refused the key to the process.
        """
        process = self.process
        if process is not None and process.is_stuck():
            log.error("heartbeat.stuck", pid=process.pid, message="the heartbeat process does not work; it is replaced")
            process.kill()
        if process is None or process.alive:
            self.let_beat()
            return False
        if process.exit_code == int(Exit.REFUSED):
            raise AccessLost("unauthorized", "the heartbeat was refused: the key is no longer valid")
        log.warning("heartbeat.restarted", exit_code=process.exit_code)
        process.start()
        return True

    def refusal(self) -> Refusal | None:
        """Why nothing may be opened: it is not certain that the dead-man switch has not fired."""
        if self.process is None:
            return None
        lease = self.process.lease()
        if lease.may_open:
            return None
        why = lease.error or ("a heartbeat is overdue" if lease.overdue else "no heartbeat yet")
        return Refusal("heartbeat_unsure", f"the dead-man's deadline is not certain ({why})", {"action": "wait"})

    def close(self) -> None:
        if self.process is not None:
            self.process.close()

    def _started(self) -> HeartbeatProcess | None:
        timing = beat_timing_of(self.settings, self._port.clock.speed)
        return None if timing is None else self._new_process(timing)

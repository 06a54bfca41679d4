"""The heartbeats of a simulated daemon: the rule of the heartbeat process (heartbeat_rule.py) on simulated time,
without a process.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from bot.drill.simulated_clock import SimulatedTime
from bot.errors import Refusal
from bot.runtime.liveness import heartbeat_rule
from bot.runtime.liveness.heartbeat_rule import BeatTiming, Heart, HeartbeatAnswer
from bot.runtime.liveness.progress_stamp import STARTING, Stamp
from bot.wire import HeartbeatResult

# time between two looks at a daemon that makes no progress
TICK_MS: Final = 1_000
# nanoseconds
MS: Final = 1_000_000


class SimulatedHeartbeats:
    """Those of one life of the daemon, numbered `fence`.

    `send` returns None if no answer comes. `boot_beats` are those of the lives before.
    """

    def __init__(
        self,
        timing: BeatTiming,
        time: SimulatedTime,
        send: Callable[[], HeartbeatResult | None],
        chance: Random,
        *,
        fence: int,
        boot_beats: int,
    ) -> None:
        self.heart = Heart(boot_beats=boot_beats)
        # True: a switch may be armed, so heartbeats are sent
        self.may_beat = False
        self.is_ended = False
        self._timing = timing
        self._time = time
        self._send = send
        self._chance = chance
        self._fence = fence
        self._stamp: Stamp | None = None
        self._cycles = 0
        self._acknowledged = 0
        self._tick()

    def prove(self, *, is_of_start: bool) -> None:
        """A pass of the daemon has ended, or the daemon rests."""
        self._cycles += 1
        self._stamp = Stamp(self._fence, self._cycles, self._time.now_ms() * MS, STARTING if is_of_start else -1)

    @property
    def lapses(self) -> int:
        """How often the switch may have fired unnoticed."""
        return self.heart.lapses

    @property
    def has_lapsed(self) -> bool:
        """True if the account must be read again before anything is opened."""
        return self.heart.lapses > self._acknowledged

    def acknowledge(self, lapses: int) -> None:
        self._acknowledged = max(self._acknowledged, lapses)

    def refusal(self) -> Refusal | None:
        """Why nothing may be opened now, as HeartbeatSupervision says it."""
        now_ns = self._time.now_ms() * MS
        if heartbeat_rule.may_open(self._timing, self.heart, now_ns=now_ns, acknowledged=self._acknowledged):
            return None
        return Refusal("heartbeat_unsure", "the dead-man's deadline is not certain", {"action": "wait"})

    def _tick(self) -> None:
        """Send a heartbeat if the rule says so, and come again when it may say so next."""
        if self.is_ended:
            return
        now_ns, heart = self._time.now_ms() * MS, self.heart
        verdict = "wait"
        if self.may_beat:
            verdict = heartbeat_rule.judge(self._timing, heart, now_ns=now_ns, stamp=self._stamp, fence=self._fence)
        if verdict == "beat":
            heart = heartbeat_rule.sending(heart, stamp=self._stamp, fence=self._fence)
            self.heart = heartbeat_rule.answered(
                self._timing, heart, self._answer(), sent_ns=now_ns, now_ns=now_ns, chance=self._chance.random()
            )
        next_ms = self.heart.next_ns // MS if verdict in ("beat", "wait") else 0
        self._time.at(max(next_ms, self._time.now_ms() + (TICK_MS if verdict != "beat" else 1)), self._tick)

    def _answer(self) -> HeartbeatAnswer:
        reply = self._send()
        if reply is None:
            return HeartbeatAnswer("retry", "timeout")
        deadline_ms = min((guardian.next_deadline or 0 for guardian in reply.guardians), default=0)
        return HeartbeatAnswer(
            "ok", guardians=len(reply.guardians), deadline_ms=deadline_ms, server_ms=reply.server_time or 0
        )

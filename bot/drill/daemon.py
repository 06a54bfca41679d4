"""One life of the daemon in a drill: its kernel on its journal, passes when the live daemon makes them, and heartbeats.

It ends by Killed or by `stop`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from bot.backtest.engine.local_port import drive
from bot.config import Settings
from bot.drill.drill_port import DrillPort, Killed
from bot.drill.heartbeats import SimulatedHeartbeats
from bot.drill.simulated_clock import SimulatedPacer, SimulatedTime
from bot.errors import ApiError, Refusal
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_or_rebuild
from bot.runtime.kernel.assembly import kernel_settings
from bot.runtime.kernel.kernel import Hooks, Kernel
from bot.runtime.liveness.heartbeat_supervision import beat_timing_of
from bot.runtime.model.intents import FINAL
from bot.runtime.passes.pass_scheduler import PASS_S
from bot.runtime.risk.order_builder import Grid
from bot.runtime.startup import AWAY_MS
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Question, Reply
from bot.wire import INTERVAL_MS, AccountSnapshot, HeartbeatResult

PASS_MS: Final = int(PASS_S * 1000)
# wait after the close of a bar, as in the pass scheduler
SETTLE_MS: Final = 5
# time after which the stream has woken the daemon for an event
WAKE_MS: Final = 20
# a start waits so long for the answer to its first heartbeat
FIRST_ANSWER_MS: Final = 2_000

Execute = Callable[..., sqlite3.Cursor]


class Setup(NamedTuple):
    """What every life of the daemon in one world begins with."""

    settings: Settings
    place: Callable[[Settings], list[StrategySpec]]
    journal: Path
    grids: Mapping[str, Grid]


class NoModel:
    """Answers no question: in a drill every language model is down."""

    def start(self, strategy: str, question: Question) -> str | None:
        return "a drill asks no model"

    def answered(self) -> list[str]:
        return []

    def take(self, strategy: str) -> Reply:
        raise KeyError(strategy)


class DrillDaemon:
    """Life number `fence`, from 1. `boot_beats`: heartbeats of the lives before that had made no pass."""

    def __init__(self, setup: Setup, port: DrillPort, chance: Random, *, fence: int, boot_beats: int) -> None:
        self.port = port
        self.time: SimulatedTime = port.time
        self.journal: Journal | None = None
        self.kernel: Kernel | None = None
        self.heartbeats: SimulatedHeartbeats | None = None
        self._setup = setup
        self._pacer = SimulatedPacer(self.time, chance)
        self._is_started = False
        self.is_stopped = False
        # requests that had failed when the newest pass began
        self._failed_before = 0
        timing = beat_timing_of(setup.settings, self.port.clock.speed)
        if timing is not None:
            self.heartbeats = SimulatedHeartbeats(
                timing, self.time, self._beat, chance, fence=fence, boot_beats=boot_beats
            )

    def live(self, until_ms: int) -> None:
        """Start if that is not done, then make passes until that instant."""
        if not self._is_started:
            self._start()
        while self.time.now_ms() < until_ms:
            self._pass()
            self._rest(until_ms)

    def stop(self) -> None:
        """The process ends. Nothing is written that was not."""
        self.is_stopped = True
        if self.heartbeats is not None:
            self.heartbeats.is_ended = True
        if self.journal is not None:
            with suppress(sqlite3.Error):
                self.journal.db.close()

    # -- the start

    def _start(self) -> None:
        setup = self._setup
        snapshot: AccountSnapshot = self._until_up(lambda: drive(self.port.account()))
        journal, damage = open_or_rebuild(
            setup.journal, address=snapshot.address, now_ms=self.time.now_ms(), was_used=setup.journal.exists()
        )
        assert damage is None, damage
        self.journal = journal
        self._watch_commits(journal)
        if self.heartbeats is not None:
            self.heartbeats.may_beat = any(
                guardian.type == "dead_man_switch" and guardian.status == "armed" for guardian in snapshot.guardians
            )
        self.kernel = kernel = Kernel(
            port=self.port,
            journal=journal,
            specs=setup.place(setup.settings),
            pacer=self._pacer,
            settings=kernel_settings(setup.settings),
            hooks=Hooks(lease=self._lease, passed=self._passed, asker=NoModel(), grids=setup.grids),
        )
        # Nobody can be asked.
        kernel.approvals.leave_to("all")
        self._until_up(lambda: drive(kernel.recover()))
        self._is_started = True
        if self.heartbeats is not None:
            self.heartbeats.may_beat = True
            limit_ms = self.time.now_ms() + FIRST_ANSWER_MS
            while self.heartbeats.refusal() is not None and self.time.now_ms() < min(limit_ms, self.time.end_ms - 1):
                self.time.step(limit_ms)
        self.time.say("daemon: ready")

    def _until_up(self, ask: Callable[[], Any]) -> Any:
        """As startup.until_up: ask until the service answers. A world that ends meanwhile ends this life."""
        tries = 0
        while self.time.now_ms() < self.time.end_ms - 1:
            try:
                return ask()
            except ApiError as error:
                tries += 1
                self.time.pass_ms(max(min(getattr(error, "after_ms", 0) or 0, AWAY_MS), self._pacer.delay_ms(tries)))
        raise Killed

    def _watch_commits(self, journal: Journal) -> None:
        """Tell the port's `at_point` about each commit, where a death may come."""

        def around(execute: Execute) -> Execute:
            def run(sql: str, *values: Any) -> sqlite3.Cursor:
                if sql != "COMMIT":
                    return execute(sql, *values)
                self.port.at_point("before_commit")
                done = execute(sql)
                self.port.at_point("after_commit")
                return done

            return run

        journal.database.intercept(around)

    # -- passes

    def _pass(self) -> None:
        """As PassRunner.one_pass: read the account again after a lapse, then one pass."""
        kernel = self._running()
        self._failed_before = self.port.failed
        kernel.budget.begin()
        # The next pass tries again.
        with suppress(ApiError):
            self._resync_if_lapsed(kernel)
            drive(kernel.cycle(is_begun=True))

    def _resync_if_lapsed(self, kernel: Kernel) -> None:
        """As Resync.if_lapsed."""
        beats = self.heartbeats
        if beats is None or not beats.has_lapsed:
            return
        self.time.say("daemon: heartbeats have lapsed; it reads the account again")
        lapses, was_ready = beats.lapses, kernel.state.ready
        try:
            drive(kernel.recover())
        except ApiError:
            return
        finally:
            kernel.state.ready = kernel.state.ready or was_ready
        beats.acknowledge(lapses)

    def _rest(self, until_ms: int) -> None:
        """Wait for the next pass: at a close, at a timer, at an event of the account, or soon if something is left
        to do.
        """
        kernel, time = self._running(), self.time
        if kernel.is_late:
            time.pass_ms(1)
            return
        now_ms = time.now_ms()
        next_ms = min(until_ms, self._next_ms(kernel, now_ms))
        count = time.exchange.count
        while time.now_ms() < next_ms:
            if self.heartbeats is not None:
                self.heartbeats.prove(is_of_start=False)
            time.step(next_ms)
            self.port.at_point("idle")
            if time.exchange.count != count:
                time.pass_ms(WAKE_MS)
                return

    def _next_ms(self, kernel: Kernel, now_ms: int) -> int:
        if self._has_work(kernel):
            return now_ms + PASS_MS
        steps = [INTERVAL_MS[series.interval] for series in kernel.bars.feed.wanted]
        closes = [now_ms // step * step + step + SETTLE_MS for step in steps]
        timer_ms = kernel.timers.next_ms
        compare_ms = now_ms + max(0, kernel.run.comparison.next_ms - self._pacer.mono_ms())
        return max(now_ms + 1, min([*closes, compare_ms, *([] if timer_ms is None else [timer_ms])]))

    def _has_work(self, kernel: Kernel) -> bool:
        """True if a pass may find something to do although nothing has happened at the venue."""
        return (
            self.port.failed != self._failed_before
            or kernel.state.behind
            or bool(kernel.intents.live)
            or bool(kernel.health.degraded)
            or not kernel.reconciliation.has_nothing_to_do()
            or (self.heartbeats is not None and self.heartbeats.refusal() is not None)
        )

    # -- what the kernel and the heartbeats call

    def _lease(self) -> Refusal | None:
        return None if self.heartbeats is None else self.heartbeats.refusal()

    def _passed(self, _last_bar_ms: int | None) -> None:
        if self.heartbeats is not None:
            self.heartbeats.prove(is_of_start=not self._is_started)

    def _beat(self) -> HeartbeatResult | None:
        if not self.port.can_beat():
            return None
        return HeartbeatResult.model_validate_json(self.port.operations.heartbeat(self.port.principal).body)

    # -- what is known of this life

    def _running(self) -> Kernel:
        assert self.kernel is not None
        return self.kernel

    @property
    def quarantined(self) -> dict[str, str]:
        """Strategies that have raised, and why they were stopped."""
        instances = [] if self.kernel is None else self.kernel.strategy_host.instances
        return {instance.name: str(instance.quarantined) for instance in instances if instance.quarantined}

    def open_intents(self) -> list[str]:
        """Intents without an outcome."""
        live = () if self.kernel is None else self.kernel.intents.live.values()
        return [f"{intent.action} {intent.market} {intent.state}" for intent in live if intent.state not in FINAL]


def rows_of(path: Path) -> Sequence[Mapping[str, Any]]:
    """Every intent of a journal that nobody uses."""
    with sqlite3.connect(path) as db:
        db.row_factory = sqlite3.Row
        rows = [dict(row) for row in db.execute("SELECT * FROM intents")]
    db.close()
    return rows

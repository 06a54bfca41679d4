"""The supervisor runs pass after pass, watches the heartbeat, and ends the run in an orderly way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
from pydantic import SecretStr

from bot.client import Client
from bot.client.retry import Backoff
from bot.clock import SystemClock, boot_ns, monotonic_ns
from bot.config import Settings
from bot.descriptors import free, keep_reserve
from bot.errors import (
    NO_ERROR_OBJECT,
    AccessLost,
    ApiError,
    ConfigError,
    Exit,
    JournalError,
    Refusal,
    Refused,
    TryLater,
    is_access_lost,
)
from bot.runtime.alerts import messages
from bot.runtime.assembly import beats_of, loop_settings
from bot.runtime.control_plane import reporting
from bot.runtime.control_plane.commands import Commands
from bot.runtime.control_plane.metrics import Meter
from bot.runtime.control_plane.routes import ControlRoutes
from bot.runtime.execution.dispatch import ABREAST
from bot.runtime.journal.failover import room
from bot.runtime.journal.journal import Journal, Notice
from bot.runtime.kernel import Hooks, Kernel
from bot.runtime.liveness import heartbeat_process, systemd
from bot.runtime.liveness.clock_watch import ClockWatch, note_wall
from bot.runtime.liveness.heartbeat import HeartbeatProcess
from bot.runtime.liveness.progress_stamp import STARTING, ProgressWriter
from bot.runtime.model.shares import Part
from bot.runtime.pass_budget import BREATH_MS
from bot.runtime.pass_scheduler import PassScheduler
from bot.runtime.shutdown import LeftBehind, wind_down
from bot.runtime.strategy_host import call_record
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.runtime.strategy_host.worker import Worker
from bot.runtime.stream_wakeup import listen
from bot.wire import INTERVAL_MS, Event

log = structlog.get_logger()

T = TypeVar("T")

# Of real time after a close: a bar that was not there yet is asked for again, before the regular pass.
LATE_LOOKS_MS: Final = (100, 500)


SERIAL_BITS: Final = 62  # of a guardian's key: no two meet, and SQLite holds it as an integer


REPORT_S: Final = 5.0  # of real time between two lines on heartbeat and account value


FIRST_BEAT_S: Final = 2.0  # an attempt takes no longer; without an answer by then entries wait, exits do not


FIRST_BEAT_LOOK_S: Final = 0.01  # the belief is a mapped file, which rings no bell


AWAY_MS: Final = 60_000  # of real time: a start asks again after so long, whatever Retry-After says; until it does, nobody looks after the account


REFUSALS_MAX: Final = 3  # of a start's first question; one may be chance, a wrong address is none


FREE_MIN: Final = 8  # free file descriptors; with fewer the run is degraded, until there are twice as many


GRACE_S: Final = (
    0.75  # what a pass may still take when the run is told to stop; then it is cut like by a crash, only cleaner
)


HOOKS_S: Final = 0.5  # for all on_stop together


STOP_S: Final = 2.0  # for on_exit; with the two above and the rest it is under the five seconds that are promised


STANDS: Final = "what stands at the service stands there as it was, with its stops and guardians"


@dataclass(frozen=True, slots=True)
class DaemonEnd:
    """How a run ended: the exit code, what stays at the service, and why it ended when it was not asked to."""

    exit_code: Exit
    left: LeftBehind
    message: str = ""


class RealPacer:
    """Real time for retries, with a little chance in it so that many daemons do not ask in step."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._chance = random.Random(secrets.randbits(64))

    def mono_ms(self) -> int:
        return monotonic_ns() // 1_000_000

    def delay_ms(self, attempt: int) -> int:
        return self._backoff.wait_ms(attempt, self._chance.random())

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


class Supervisor:
    """One run, from its first question to its last."""

    def __init__(
        self, settings: Settings, client: Client, journal: Journal, specs: list[StrategySpec], base_url: str, api_key: SecretStr,
        stop: asyncio.Event, on_ready: Callable[[], None], operations: ControlRoutes,
        reread: Callable[[], Settings] | None = None, hangup: asyncio.Event | None = None, trouble: Callable[[], str | None] = lambda: None,
        at_rest: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.client = client
        self.journal = journal
        self.stop = stop
        self.on_ready = on_ready
        self.scheduler = PassScheduler(at_rest)
        self.hangup = hangup
        self.trouble = trouble
        fence = secrets.randbits(63)
        self.progress = _progress(settings.state_dir / "progress", fence)
        self.calls = _calls(settings.state_dir / call_record.FILE, fence)
        self.workers: dict[str, Worker] = {}
        for one in specs:
            self.renew(one.strategy.name)
        self._new_heartbeat = partial(self._heartbeat, base_url, api_key, fence)
        self.heartbeat = self._new_heartbeat()
        self.beaten_ms = 0
        self.meter = Meter()
        self.notifier = reporting.notifier_of(settings, journal)
        self.times = ClockWatch(
            skew_ms=lambda: None if client.clock.is_sandbox else client.clock.skew_ms, stale=lambda: client.clock.stale
        )
        self.watchdog = systemd.Watchdog()
        self.has_started = False  # once; a resync that reads everything again is no start
        self.lapse_told = 0, 0  # of the machine's clocks and of the dead-man's deadline, how many there were
        self.passed_ns: int | None = None
        self.is_owed = False  # what was done before the newest pass has left it no time
        self.asking: asyncio.Task[ApiError | None] | None = None  # whether the service answers, before a resync
        self.pass_ended_ns = 0  # the end of the newest pass, whatever came of it
        self.report = asyncio.Event()
        self.operations = operations
        self.kernel = Kernel(
            port=client,
            journal=journal,
            specs=specs,
            pacer=RealPacer(),
            settings=loop_settings(settings),
            hooks=Hooks(
                run=self._in_thread,
                lease=self._belief,
                schedule=self.times.schedule,
                passed=self._passed,
                notices_of=self._notices_of,
                between=partial(self._look_around, operations.mailbox.do_urgent),
                wake=self.scheduler.ring,
                new_serial=lambda _before: secrets.randbits(SERIAL_BITS),
            ),
            abreast=ABREAST if client.clock.speed > 0 else 1,  # A clock moved by hand stands still: one after another, as in a session.
        )  # fmt: skip
        self.controls = Commands(self, reread)
        operations.mailbox.ring = self.scheduler.ring
        operations.run = self

    @property
    def is_recovered(self) -> bool:
        """Whether the account has been read whole. A start that is tried again begins anew; a resync goes on from what was known."""
        return self.has_started or self.kernel.state.ready

    @property
    def away(self) -> str:
        """Why the start waits for the service; empty when it does not."""
        return self.operations.away

    def take_settings(self, settings: Settings) -> None:
        """Run by these settings from now on, after a reload."""
        self.settings = settings
        self.operations.settings = settings

    async def go(self, *, beat_at_once: bool) -> DaemonEnd:
        self.scheduler.start()
        self.report = self.scheduler.every(REPORT_S, "report")
        code, message = Exit.DONE, ""
        left = LeftBehind(known=False, complete=False)
        try:
            was_cut = await self._until_stopped(beat_at_once=beat_at_once)
            on_exit = self.settings.safety.on_exit
            systemd.notify("STOPPING=1")
            systemd.status(self.operations.told())
            log.info("daemon.stopping", on_exit=on_exit)
            if self.kernel.state.ready:
                if was_cut:
                    self.kernel.strategy_host.tell_no_more()
                else:
                    await self._within(HOOKS_S, self.kernel.stop())
                left = await self._within(STOP_S, wind_down(self.kernel, on_exit)) or left
            if on_exit != "leave" and not left.complete:
                code, message = Exit.TIMEOUT, f"safety.on_exit: {on_exit} could not be finished; {STANDS}"
            elif not left.known:
                message = f"the service did not answer at the end; {STANDS}"
        except AccessLost as error:
            code, message = Exit.REFUSED, f"the service refuses this key ({error.code}): {error.message}"
        except Refused as error:
            code, message = Exit.REFUSED, f"the service refuses ({error.code}): {error.message}"
        except JournalError as error:
            code, message = Exit.UNSAFE, str(error)
        finally:
            self.operations.mailbox.give_up()
            await self.kernel.cancel_in_flight()
            self.scheduler.stop()
            if self.asking is not None:
                self.asking.cancel()
            if self.heartbeat is not None:
                self.heartbeat.close()
            self.progress.close()
            for worker in self.workers.values():
                worker.close()
            if self.calls is not None:
                self.calls.close()
        if code is Exit.DONE and left.unprotected and self.settings.safety.require_protection:
            code, message = Exit.UNSAFE, f"without a stop: {', '.join(left.unprotected)}"
        if code is Exit.DONE:
            self.journal.check_file(now_ms=self.kernel.now_ms())
        if code is Exit.DONE and not self.journal.mend():
            code, message = Exit.UNSAFE, f"{self.journal.fault}; what was done since is at the service only"
        tell = log.info if code is Exit.DONE else log.error
        tell("daemon.stopped", exit_code=int(code), message=message or None)
        return DaemonEnd(code, left, message)

    # -- passes

    async def _until_stopped(self, *, beat_at_once: bool) -> bool:
        """Recover, then pass after pass. True when what was under way at the stop was cut: a start at once, a pass that did not end in time.

        A cut leaves nothing half: the journal moves in transactions, and a request that was on its way is in doubt as after a crash. Only what a
        hook has left in the memory is half: nobody is told anything more by this run.
        """
        limit = asyncio.timeout(None)

        async def bounded() -> None:
            await self.stop.wait()
            self.scheduler.ring()
            self.kernel.budget.end()
            limit.reschedule(asyncio.get_running_loop().time() + GRACE_S)

        watcher: asyncio.Task[None] | None = None
        bell: asyncio.Task[None] | None = None
        try:
            async with limit:
                watcher = asyncio.create_task(bounded(), name="stop-watcher")
                if not await self._recover(beat_at_once=beat_at_once):
                    return True
                await self.operations.started()
                systemd.notify("READY=1")
                systemd.status(self.operations.told())
                log.info(
                    "daemon.ready",
                    positions=len(self.kernel.account.mirror.positions),
                    orders=len(self.kernel.account.mirror.orders),
                )
                reporting.tell(self.kernel, "daemon.ready", self.operations.told())
                self.on_ready()
                self.report.set()  # The first pass already says how the heartbeat and the account are.
                if self.client.clock.speed > 0:
                    bell = asyncio.create_task(
                        listen(self.client, self._cursor, self.scheduler.ring, knows=self._knows), name="stream-wakeup"
                    )
                await self._passes()
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("pass.cut", seconds=GRACE_S)
            return True
        finally:
            for task in (watcher, bell):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        return False

    async def _within(self, seconds: float, work: Awaitable[T]) -> T | None:
        """None when it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            log.warning("exit.late", seconds=seconds)
            return None

    async def _recover(self, *, beat_at_once: bool) -> bool:
        """Recover, however long the service is away; False when told to stop before that. A switch that an earlier run armed is beaten
        from the start; one that is armed now has its whole time, and the few beats without proof of progress are kept for that: until the
        first pass, which may come while strategies live through their past, the heartbeat's process is a witness only."""
        if self.heartbeat is not None:
            self.heartbeat.start(may_beat=beat_at_once)

        async def recovered() -> bool:
            try:
                await self.kernel.recover()
            except Refused as error:
                if is_access_lost(error):
                    raise
                self.kernel.health.degrade("service", f"the service refuses ({error.code}): {error.message}")
                raise TryLater(error.code, error.message) from error
            self.kernel.health.restore("service")
            return True

        if await until_up(recovered, self.stop, self.operations.tell_away) is None:
            return False
        self.has_started = True
        self._let_beat()
        await self._first_beat()
        return True

    def _let_beat(self) -> None:
        """Guardians stand and the account is known: the heartbeat's process is a witness no longer."""
        if self.heartbeat is not None and not (self.heartbeat.alive and self.heartbeat.may_beat):
            self.heartbeat.stop()
            self.heartbeat.start()

    async def _first_beat(self) -> None:
        """Give the heartbeat's first answer a moment, so that the first bar is not decided on an uncertain deadline."""
        waited_s = 0.0
        while (
            self.heartbeat is not None
            and not self.heartbeat.lease().may_open
            and waited_s < FIRST_BEAT_S
            and not self.stop.is_set()
        ):
            await asyncio.sleep(FIRST_BEAT_LOOK_S)
            waited_s += FIRST_BEAT_LOOK_S

    async def _passes(self) -> None:
        while not self.stop.is_set():
            began_ms = self.client.clock.now_ms()
            await self._pass(self._reload_if_hung_up, self.operations.mailbox.do_next)
            if self.kernel.is_late:
                continue
            clock = self.client.clock
            now_ms = clock.now_ms()
            await self.scheduler.wait(
                next_look_ms=self._next_look_ms(began_ms, now_ms, clock.speed), now_ms=now_ms, speed=clock.speed
            )

    async def yield_to_pass(self) -> None:
        """A pass in the midst of what is done between two of them, when the last one is BREATH_MS ago: without passes the beats stop."""
        if monotonic_ns() - self.pass_ended_ns >= BREATH_MS * 1_000_000 and not self.stop.is_set():
            await self._pass(self.operations.mailbox.do_urgent)

    async def _pass(self, *between: Callable[[], Awaitable[None]]) -> None:
        """One pass, and before it what may be done between two of them; nothing of that right after a pass to which it has left no time."""
        began_ns = monotonic_ns()
        self.kernel.budget.begin()  # What comes before the cycle counts: together they prove no progress for longer than a pass may take.
        is_owed, self.is_owed = self.is_owed, False
        try:
            await self._look_around(*(() if is_owed else between))
            await self._resync_if_lapsed(may_ask=not is_owed)
            self.is_owed = not is_owed and not self.kernel.budget.has_time()
            await self.kernel.cycle(is_begun=not is_owed)
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("pass.failed", code=error.code, message=error.message)
            self.meter.failed += 1
        self.pass_ended_ns = monotonic_ns()
        self.meter.passed(
            seconds=(self.pass_ended_ns - began_ns) / 1e9, lag_s=self.scheduler.lag_s, now_ns=boot_ns()
        )  # fmt: skip
        if self.report.is_set():
            self.report.clear()
            self._report()

    async def _look_around(self, *between: Callable[[], Awaitable[None]]) -> None:
        """What comes before every pass, also before those of a start whose strategies live through their past."""
        self._look_at_descriptors()
        self._look_at_service()
        await self._beat_by_hand()
        for n, work in enumerate(between):
            if n and not self.kernel.budget.has_time():
                break  # The next pass does it.
            await work()
        self._keep_rhythm()

    def _notices_of(self, event: Event, parts: Mapping[str, Part]) -> Iterable[Notice]:
        """Where a service shows no keys, what is nobody's as yet may be ours."""
        instance = self.kernel.strategy_host.seat_of(event.coin or "")
        is_told = self.kernel.account.mirror.events_named or any(not name.startswith("@") for name in parts)
        owner = messages.owners_in_words(parts) if is_told else None
        return messages.of_event(
            event, self.kernel.account.order_owners.owner_of, owner or (None if instance is None else instance.name)
        )

    def _knows(self, event: Event) -> bool:
        return not self.journal.events.unseen([event])

    def _cursor(self) -> str | None:
        cursor = self.journal.events.cursor
        return None if cursor is None else cursor.last_id

    def _next_look_ms(self, began_ms: int, now_ms: int, speed: float) -> int | None:
        """When bars are to be asked for, on the service's clock: at the next close after the pass began, since one that fell into the pass
        may have come after the question; or once more for a bar that was not there yet."""
        looks = [began_ms // (step := INTERVAL_MS[s.interval]) * step + step for s in self.kernel.feed.wanted]
        awaited_ms = self.kernel.feed.awaited_ms(now_ms)
        if awaited_ms is not None:
            looks += [at_ms for late in LATE_LOOKS_MS if (at_ms := awaited_ms + round(late * speed)) > now_ms][:1]
        return min(looks, default=None)

    async def _in_thread(self, instance: StrategyInstance, call: Callable[[], T]) -> T:
        return await self.workers[instance.name].call(call, instance.version)

    def renew(self, name: str) -> None:
        """A thread of its own for the strategy's next call; an old one that hangs is left behind."""
        old = self.workers.pop(name, None)
        if old is not None:
            old.close()
        self.workers[name] = Worker(name, None if self.calls is None else self.calls.row())

    def _look_at_descriptors(self) -> None:
        """Once file descriptors are used up, the daemon has its reserve alone, and that is for exits and for `bot status`."""
        keep_reserve()
        found = free(FREE_MIN * 2)
        if found < FREE_MIN:
            self.kernel.health.degrade(
                "descriptors",
                "the process has used up its file descriptors (ulimit -n), but for a reserve of the daemon: most likely a strategy leaves files or"
                f" connections open. Find out which (ls -l /proc/{os.getpid()}/fd), mend it and start again",
            )
        elif found == FREE_MIN * 2:
            self.kernel.health.restore("descriptors")

    def _look_at_service(self) -> None:
        problem = self.trouble()
        if problem is None:
            self.kernel.health.restore("embedded")
        else:
            self.kernel.health.degrade("embedded", problem)

    async def _reload_if_hung_up(self) -> None:
        """SIGHUP asks for a reload: what comes of it is in the log."""
        if self.hangup is not None and self.hangup.is_set():
            self.hangup.clear()
            await self.controls.reload()

    # -- heartbeat

    def change_heartbeat(self) -> None:
        """The dead-man of the config has changed, and the new one stands: beats in its rhythm from now on, where beats are due by now."""
        old, self.heartbeat = self.heartbeat, self._new_heartbeat()
        if old is not None:
            old.close()
        if self.heartbeat is not None:
            if old is not None:  # It goes on with the old one's lapses.
                self.heartbeat.acknowledge(old.acknowledged)
            self.heartbeat.start(may_beat=self.has_started or (old is not None and old.may_beat))

    def _keep_rhythm(self) -> None:
        """A sandbox's clock may be set to run, or to run faster: the dead-man has less of our time then. Beats that come too often do no harm."""
        dead_man, speed, heartbeat = self.settings.dead_man, self.client.clock.speed, self.heartbeat
        if dead_man is None or speed <= 0:
            self.kernel.health.restore("heartbeat_timing")
            return
        if heartbeat is not None and dead_man.heartbeat_seconds / speed * 1e9 >= heartbeat.lengths.deadline_ns - 1:
            self.kernel.health.restore("heartbeat_timing")
            return
        try:
            beats_of(self.settings, speed)
        except ConfigError as error:
            self.kernel.health.degrade("heartbeat_timing", f"the service's clock runs at {speed:g}x: {error}")
            return
        log.warning("heartbeat.faster", speed=speed)
        self.change_heartbeat()
        self.kernel.health.restore("heartbeat_timing")

    def _heartbeat(self, base_url: str, api_key: SecretStr, fence: int) -> HeartbeatProcess | None:
        lengths = beats_of(self.settings, self.client.clock.speed)
        if lengths is None:
            return None
        folder = self.settings.state_dir
        return HeartbeatProcess(
            base_url=base_url, api_key=api_key.get_secret_value(), stamp_path=str(folder / "progress"), lease_path=str(folder / heartbeat_process.LEASE),
            lengths=lengths, fence=fence,
        )  # fmt: skip

    async def _beat_by_hand(self) -> None:
        """Under a clock that is moved by hand real seconds mean nothing: the pass itself beats when that clock has moved."""
        is_moved_by_hand = self.heartbeat is None or self.client.clock.speed <= 0
        if self.settings.dead_man is None or not is_moved_by_hand or self.client.clock.now_ms() == self.beaten_ms:
            return
        moved_ms = self.client.clock.now_ms()
        try:
            await self.client.heartbeat()
        except ApiError as error:  # The next pass beats then.
            if is_access_lost(error):
                raise
            log.warning("heartbeat.missed", code=error.code, message=error.message)
        else:
            self.beaten_ms = moved_ms

    def _passed(self, last_bar_ms: int | None) -> None:
        self.progress.cycle_done(boot_ns=boot_ns(), last_bar_at_ms=last_bar_ms if self.has_started else STARTING)
        self.watchdog.pass_done()
        self.passed_ns = monotonic_ns()
        if self.notifier is not None:
            self.notifier.wake()
        if self.stop.is_set():
            return
        if self.heartbeat is not None and self.heartbeat.is_stuck():
            log.error(
                "heartbeat.stuck", pid=self.heartbeat.pid, message="the heartbeat process does not work; it is replaced"
            )
            self.heartbeat.kill()
        if self.heartbeat is not None and not self.heartbeat.alive:
            if self.heartbeat.exit_code == int(Exit.REFUSED):
                raise AccessLost("unauthorized", "the heartbeat was refused: the key is no longer valid")
            log.warning("heartbeat.restarted", exit_code=self.heartbeat.exit_code)
            self.meter.restarts += 1
            self.heartbeat.start()
        else:
            self._let_beat()

    def _belief(self) -> Refusal | None:
        if self.client.clock.speed <= 0 and self.heartbeat is None:
            return None
        lapsed = self.times.lease()
        if lapsed is not None or self.heartbeat is None:
            return lapsed
        lease = self.heartbeat.lease()
        if lease.may_open:
            return None
        why = lease.error or ("a beat is overdue" if lease.overdue else "no beat yet")
        return Refusal("heartbeat_unsure", f"the dead-man's deadline is not certain ({why})", {"action": "wait"})

    async def _resync_if_lapsed(self, *, may_ask: bool = True) -> None:
        """The switch may have fired unseen (a suspend, a long outage, a clock that jumped): everything is read again before anything is opened.

        `may_ask`: whether that may be begun now.
        """
        if self.client.clock.speed <= 0 and self.heartbeat is None:
            return  # Real seconds mean nothing under a clock that is moved by hand.
        lapses = self.times.look()
        problem = self.times.skew_problem
        if problem is None:
            self.kernel.health.restore("clock")
        else:
            self.kernel.health.degrade("clock", problem)
        lease = None if self.heartbeat is None else self.heartbeat.lease()
        if self.times.lapsed or (lease is not None and lease.lapsed):
            log.warning("heartbeat.lapsed", lapses=None if lease is None else lease.lapses, clock=self.times.lapsed)
            lapse = lapses, 0 if lease is None else lease.lapses
            if lapse != self.lapse_told:  # Once, however often the service has to be asked.
                self.lapse_told = lapse
                reporting.tell(
                    self.kernel,
                    "heartbeat.lapsed",
                    "account, guardians and events are read again before anything is opened",
                )
            if not may_ask or not self.kernel.budget.has_time():
                return  # The next pass asks.
            was_ready = self.kernel.state.ready
            try:
                if not await self._answers():
                    log.warning("resync.postponed", code="no_answer", message="the account is still asked for")
                    return
                await self.kernel.recover()
            except ApiError as error:
                if is_access_lost(error):
                    raise
                # The next pass tries again. Until then nothing is opened; stops, exits and beats do not wait.
                log.warning("resync.postponed", code=error.code, message=error.message)
                return
            finally:  # Also where a stop cuts it: what was recovered once is wound down as the config says.
                self.kernel.state.ready = self.kernel.state.ready or was_ready
            self.times.acknowledge(lapses)
            if lease is not None and self.heartbeat is not None:
                self.heartbeat.acknowledge(lease.lapses)

    async def _answers(self) -> bool:
        """Whether the service answers a question that changes nothing. For as long as it does not, passes go on beside it: a service that hangs
        would take the time of each, and one that is slow is waited for."""
        if self.asking is None:
            self.asking = asyncio.create_task(self._asked(), name="resync")
            await asyncio.wait({self.asking}, timeout=BREATH_MS / 1000)
        if not self.asking.done():
            return False
        error, self.asking = self.asking.result(), None
        if error is not None:
            raise error
        return True

    async def _asked(self) -> ApiError | None:
        try:
            await self.client.account()
        except ApiError as error:
            return error
        return None

    def _report(self) -> None:
        if not self.client.clock.is_sandbox:
            note_wall(self.journal, SystemClock().now_ms())
        systemd.status(self.operations.told())
        if self.heartbeat is not None:
            lease = self.heartbeat.lease()
            left_ns = None if lease.deadline_boot_ns is None else lease.deadline_boot_ns - boot_ns()
            log.debug(
                "heartbeat.status", armed=lease.armed, deadline_s=None if left_ns is None else round(left_ns / 1e9, 1), beats=lease.beats,
                next_deadline_ms=lease.next_deadline_ms, error=lease.error or None,
            )  # fmt: skip
        mirror = self.kernel.account.mirror
        log.debug(
            "account.value",
            usd=round(mirror.equity_usd, 2),
            free_usd=round(mirror.free_margin_usd, 2),
            positions=len(mirror.positions),
        )


def _progress(path: Path, fence: int) -> ProgressWriter:
    try:
        return ProgressWriter(str(path), fence=fence)
    except OSError as error:
        raise JournalError(
            f"{path} cannot be written: {error.strerror or error}{room(path)}; without it nothing may beat. {STANDS}"
        ) from error


def _calls(path: Path, fence: int) -> call_record.CallRecord | None:
    try:
        return call_record.CallRecord(path, fence=fence)
    except OSError as error:
        log.warning("calls.not_noted", path=str(path), message=f"{error.strerror or error}{room(path)}")
        return None


async def until_up(
    ask: Callable[[], Awaitable[T]], stop: asyncio.Event, tell_away: Callable[[str], None] = lambda _: None, *,
    is_known: bool = False,
) -> T | None:  # fmt: skip
    """Ask until the service answers, more and more slowly; None when told to stop first. Lost access is raised, and a no that is said again and again.

    `tell_away` is told why it waits, and "" when it need not any more. `is_known`: the service has answered a run of this folder, so that a page of something in between is no
    wrong address, however often it comes.
    """
    pacer = RealPacer()
    tries = refusals = 0
    while not stop.is_set():
        try:
            answer = await _unless(stop, ask)
            tell_away("")
            return answer
        except ApiError as error:
            refusals += isinstance(error, Refused) and not (is_known and error.code == NO_ERROR_OBJECT)
            if is_access_lost(error) or refusals >= REFUSALS_MAX:
                raise
            tries += 1
            log.warning("service.away", code=error.code, message=error.message, tries=tries)
            tell_away(f"the service does not answer, try {tries} ({error.code}: {error.message})")
            wait_s = max(min(getattr(error, "after_ms", 0) or 0, AWAY_MS), pacer.delay_ms(tries)) / 1000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)
    return None


async def _unless(stop: asyncio.Event, ask: Callable[[], Awaitable[T]]) -> T | None:
    """The answer, or None as soon as `stop` is set: a question to a service that hangs is given up."""
    asking = asyncio.ensure_future(ask())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        for task in (asking, stopping):
            task.cancel()
        await asyncio.gather(asking, stopping, return_exceptions=True)

"""The supervisor of one run: it starts the kernel, has passes run until the stop, and winds the run down."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bot.client import Client
from bot.clock import SystemClock, boot_ns, monotonic_ns
from bot.config import Settings
from bot.errors import AccessLost, Exit, JournalError, Refusal, Refused, TryLater, is_access_lost
from bot.logs import log
from bot.runtime.control_plane import proof_schedule, reporting
from bot.runtime.control_plane.alarm_watch import AlarmWatch
from bot.runtime.control_plane.commands import Commands
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.excursion_watch import ExcursionWatch
from bot.runtime.control_plane.price_watch import PriceWatch
from bot.runtime.control_plane.proof_schedule import DailyProof, command_of
from bot.runtime.execution.dispatch import ABREAST
from bot.runtime.journal.failover import disk_hint
from bot.runtime.journal.journal import Journal
from bot.runtime.kernel.assembly import kernel_settings
from bot.runtime.kernel.kernel import Hooks, Kernel
from bot.runtime.liveness import heartbeat_process, systemd
from bot.runtime.liveness.clock_watch import ClockWatch, note_wall
from bot.runtime.liveness.heartbeat import HeartbeatProcess
from bot.runtime.liveness.heartbeat_rule import BeatTiming
from bot.runtime.liveness.heartbeat_supervision import HeartbeatSupervision
from bot.runtime.liveness.progress_stamp import STARTING, ProgressWriter
from bot.runtime.pass_runner import PassRunner
from bot.runtime.passes.pass_scheduler import PassScheduler
from bot.runtime.passes.stream_wakeup import listen
from bot.runtime.resync import Resync
from bot.runtime.run_request import RunRequest
from bot.runtime.shutdown import DaemonEnd, LeftBehind, wind_down
from bot.runtime.startup import RealPacer, until_up
from bot.runtime.strategy_host import call_record
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.worker_pool import WorkerPool
from bot.wire import Event

T = TypeVar("T")

# The bits of the serial in a guardian's key: no two are equal, and SQLite holds it as an integer.
SERIAL_BITS: Final = 62
# Real time between two log lines on heartbeat and account value.
REPORT_S: Final = 5.0

# A stop takes at most five seconds. Of these:
# time for the pass under way; then it is cancelled, which is as safe as a crash
GRACE_S: Final = 0.75
# time for all on_stop together
HOOKS_S: Final = 0.5
# for safety.on_exit
STOP_S: Final = 2.0

AS_IT_WAS: Final = "positions and orders at the service are unchanged, with their stops and guardians"


class Supervisor:
    """One run, from its first question to the service to its last."""

    def __init__(
        self, request: RunRequest, client: Client, journal: Journal, specs: Sequence[StrategySpec], access: DaemonAccess
    ) -> None:
        settings = self.settings = request.settings
        self.request = request
        self.client = client
        self.journal = journal
        self.access = access
        self.scheduler = PassScheduler(request.at_rest)
        fence = secrets.randbits(63)
        self.progress = _progress(settings.state_dir / "progress", fence)
        self.workers = WorkerPool(
            _calls(settings.state_dir / call_record.FILE, fence), [spec.strategy.name for spec in specs]
        )
        self.heartbeats = HeartbeatSupervision(settings, client, partial(_heartbeat_process, request, fence))
        self.notifier = reporting.notifier_of(settings, journal)
        self.clocks = ClockWatch(
            skew_ms=lambda: None if client.clock.is_sandbox else client.clock.skew_ms, stale=lambda: client.clock.stale
        )
        self.watchdog = systemd.Watchdog()
        self.prices = PriceWatch(client)
        self.passed_ns: int | None = None
        self.kernel = self._kernel(specs)
        self.proof = DailyProof(
            lambda: self.settings,
            journal,
            now_ms=client.clock.now_ms,
            mono_ms=lambda: monotonic_ns() // 1_000_000,
            command=command_of(request.config, settings.state_dir),
        )
        self.alarms = AlarmWatch(self.kernel, self.prices, lambda: self.settings, lambda: self.proof.failure)
        self.resync = Resync(self.kernel, self.clocks, self.heartbeats)
        self.passes = PassRunner(request, self.kernel, self.scheduler, self.heartbeats, self.resync, self._report)
        self.commands = Commands(self, request.reread)
        access.attach(self, self.scheduler.wake)

    def _kernel(self, specs: Sequence[StrategySpec]) -> Kernel:
        return Kernel(
            port=self.client,
            journal=self.journal,
            specs=specs,
            pacer=RealPacer(),
            settings=kernel_settings(self.settings),
            hooks=Hooks(
                run=self.workers.call,
                run_policy=self.workers.call_policy,
                lease=self._lease,
                schedule=self.clocks.schedule,
                passed=self._passed,
                notices_of=lambda event, parts: reporting.notices_of(self.kernel, event, parts),
                between=self._before_pass_of_start,
                wake=self.scheduler.wake,
                new_serial=lambda _before: secrets.randbits(SERIAL_BITS),
            ),
            # A clock that is advanced by hand stands still meanwhile, so requests go one after another, as in a
            # backtest.
            abreast=ABREAST if self.client.clock.speed > 0 else 1,
        )

    # -- what the control plane uses

    @property
    def stop(self) -> asyncio.Event:
        return self.request.stop

    @property
    def loop_lag_s(self) -> float:
        return self.passes.meter.lag_s

    @property
    def is_recovered(self) -> bool:
        """True once the whole account has been read.

        A start that is tried again begins anew; a resync keeps what was known.
        """
        return self.heartbeats.is_start_complete or self.kernel.state.ready

    @property
    def away(self) -> str:
        """Why the start waits for the service; empty when it does not."""
        return self.access.away

    def take_settings(self, settings: Settings) -> None:
        """Run by these settings from now on, after a reload."""
        self.settings = settings
        self.access.take_settings(settings)
        self.heartbeats.take_settings(settings)

    async def yield_to_pass(self) -> None:
        """Run a pass within a reload if the last one is too long ago."""
        await self.passes.yield_to_pass(self.access.mailbox.do_urgent)

    # -- start, passes, end

    async def go(self, *, beat_at_once: bool) -> DaemonEnd:
        """The whole run. `beat_at_once`: a dead-man switch of an earlier run is armed."""
        self.scheduler.start()
        self.passes.report_when(self.scheduler.every(REPORT_S, "report"))
        self.proof.look_when(self.scheduler.every(proof_schedule.LOOK_S, "proof"))
        nothing = LeftBehind(known=False, complete=False)
        faults: list[BaseException] = []
        try:
            was_cut = await self._until_stopped(faults, beat_at_once=beat_at_once)
            end = self._end_of(await self._wind_down(was_cut=was_cut) or nothing)
            # The fault of a task beside the passes must not keep the end from what safety.on_exit says.
            for fault in faults:
                raise fault
        except AccessLost as error:
            end = DaemonEnd(Exit.REFUSED, nothing, f"the service refuses this key ({error.code}): {error.message}")
        except Refused as error:
            end = DaemonEnd(Exit.REFUSED, nothing, f"the service refuses ({error.code}): {error.message}")
        except JournalError as error:
            end = DaemonEnd(Exit.UNSAFE, nothing, str(error))
        finally:
            await self._close()
        end = self._checked(end)
        write = log.info if end.exit_code is Exit.DONE else log.error
        write("daemon.stopped", exit_code=int(end.exit_code), message=end.message or None)
        return end

    async def _until_stopped(self, faults: list[BaseException], *, beat_at_once: bool) -> bool:
        """Recover, then run passes until the stop. True if work under way was cancelled: the start, or a pass that took
        longer than GRACE_S. `faults` gets what tasks beside the passes have raised.

        A cancelled pass leaves nothing half done in the journal, which moves in transactions, and its request is in
        doubt as after a crash. Only a strategy's state in memory may be half changed, so its hooks are not called again
        in this run.
        """
        limit = asyncio.timeout(None)
        tasks: list[asyncio.Task[None]] = []
        try:
            async with limit:
                tasks.append(asyncio.create_task(self._bound_by_stop(limit), name="stop-watcher"))
                if not await self._recover(beat_at_once=beat_at_once):
                    return True
                await self.access.started()
                self._announce_ready()
                if self.client.clock.speed > 0:
                    wakeup = listen(self.client, self._cursor, self.scheduler.wake, knows=self._is_known)
                    tasks.append(asyncio.create_task(wakeup, name="stream-wakeup"))
                    tasks.append(asyncio.create_task(self.prices.run(), name="price-watch"))
                    excursions = ExcursionWatch(self.client, self.journal)
                    tasks.append(asyncio.create_task(excursions.run(), name="excursion-watch"))
                for task in tasks:
                    task.add_done_callback(_tell_fault)
                await self.passes.run(self._reload_after_hangup, self.access.mailbox.do_next)
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("pass.cut", seconds=GRACE_S)
            return True
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            faults += [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]
        return False

    async def _bound_by_stop(self, limit: asyncio.Timeout) -> None:
        """After the stop, give the pass under way GRACE_S."""
        await self.stop.wait()
        self.scheduler.wake()
        self.kernel.budget.end()
        limit.reschedule(asyncio.get_running_loop().time() + GRACE_S)

    async def _recover(self, *, beat_at_once: bool) -> bool:
        """Recover, however long the service is away; False if the stop came first.

        A switch that an earlier run armed gets heartbeats from the start. A switch that this start arms has its whole
        time, so heartbeats begin with the first pass: the few without proof of progress stay for starts that need them.
        """
        self.heartbeats.start(may_beat=beat_at_once)

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

        if await until_up(recovered, self.stop, self.access.set_away) is None:
            return False
        self.heartbeats.complete_start()
        await self.heartbeats.first_answer(self.stop)
        return True

    def _announce_ready(self) -> None:
        systemd.notify("READY=1")
        systemd.status(self.access.summary())
        log.info(
            "daemon.ready",
            positions=len(self.kernel.account.account_state.positions),
            orders=len(self.kernel.account.account_state.orders),
        )
        reporting.write_notice(self.kernel, "daemon.ready", self.access.summary())
        self.request.on_ready()
        # The first pass already reports heartbeat and account.
        self.passes.report_due.set()

    async def _wind_down(self, *, was_cut: bool) -> LeftBehind | None:
        """Do what safety.on_exit says. None if the account was never read, or if it takes longer than STOP_S."""
        on_exit = self.settings.safety.on_exit
        systemd.notify("STOPPING=1")
        systemd.status(self.access.summary())
        log.info("daemon.stopping", on_exit=on_exit)
        if not self.kernel.state.ready:
            return None
        if was_cut:
            self.kernel.strategy_host.stop_delivery()
        else:
            await _within(HOOKS_S, self.kernel.stop())
        return await _within(STOP_S, wind_down(self.kernel, on_exit))

    def _end_of(self, left: LeftBehind) -> DaemonEnd:
        on_exit = self.settings.safety.on_exit
        if on_exit != "leave" and not left.complete:
            return DaemonEnd(Exit.TIMEOUT, left, f"safety.on_exit: {on_exit} could not be finished; {AS_IT_WAS}")
        message = "" if left.known else f"{left.unknown_because} at the end; {AS_IT_WAS}"
        return DaemonEnd(Exit.DONE, left, message)

    def _checked(self, end: DaemonEnd) -> DaemonEnd:
        """UNSAFE instead of DONE if a position has no stop, or if the journal misses what was done."""
        if end.exit_code is not Exit.DONE:
            return end
        if end.left.unprotected and self.settings.safety.require_protection:
            return DaemonEnd(Exit.UNSAFE, end.left, f"without a stop: {', '.join(end.left.unprotected)}")
        self.journal.check_file(now_ms=self.kernel.now_ms())
        if not self.journal.mend():
            message = f"{self.journal.fault}; only the service knows what was done since"
            return DaemonEnd(Exit.UNSAFE, end.left, message)
        return end

    async def _close(self) -> None:
        self.access.mailbox.refuse_all()
        await self.proof.close()
        await self.kernel.cancel_in_flight()
        self.scheduler.stop()
        self.resync.close()
        self.heartbeats.close()
        self.progress.close()
        self.workers.close()

    # -- what the kernel calls

    def _lease(self) -> Refusal | None:
        """Why nothing may be opened: a lapse, or an uncertain dead-man deadline."""
        if self.client.clock.speed <= 0 and self.heartbeats.process is None:
            return None
        return self.clocks.lease() or self.heartbeats.refusal()

    async def _before_pass_of_start(self) -> None:
        await self.passes.before_pass(self.access.mailbox.do_urgent)

    def _passed(self, last_bar_ms: int | None) -> None:
        """The end of a pass: prove the progress, and check the heartbeat process."""
        is_of_start = not self.heartbeats.is_start_complete
        self.progress.cycle_done(boot_ns=boot_ns(), last_bar_at_ms=STARTING if is_of_start else last_bar_ms)
        self.watchdog.pass_done()
        self.passed_ns = monotonic_ns()
        if self.access.tail is not None:
            self.access.tail.follow()
        if self.kernel.state.ready:
            self.alarms.look()
            self.proof.look(is_stopping=self.stop.is_set())
        if self.notifier is not None:
            self.notifier.wake()
        if not self.stop.is_set() and self.heartbeats.check():
            self.passes.meter.restarts += 1

    # -- between passes

    def _is_known(self, event: Event) -> bool:
        return not self.journal.events.unseen([event])

    def _cursor(self) -> str | None:
        cursor = self.journal.events.cursor
        return None if cursor is None else cursor.last_id

    async def _reload_after_hangup(self) -> None:
        """SIGHUP asks for a reload; its result is in the log and in `bot status`."""
        hangup = self.request.hangup
        if hangup is not None and hangup.is_set():
            hangup.clear()
            await self.commands.reload()

    def _report(self) -> None:
        if not self.client.clock.is_sandbox:
            note_wall(self.journal, SystemClock().now_ms())
        systemd.status(self.access.summary())
        reporting.log_heartbeat(self.heartbeats.process)
        reporting.log_account_value(self.kernel.account.account_state)


async def _within(seconds: float, work: Awaitable[T]) -> T | None:
    """The result of the work; None if it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        log.warning("exit.late", seconds=seconds)
        return None


def _heartbeat_process(request: RunRequest, fence: int, timing: BeatTiming) -> HeartbeatProcess:
    folder = request.settings.state_dir
    return HeartbeatProcess(
        base_url=request.base_url,
        api_key=request.api_key.get_secret_value(),
        stamp_path=str(folder / "progress"),
        lease_path=str(folder / heartbeat_process.LEASE),
        lengths=timing,
        fence=fence,
    )


def _progress(path: Path, fence: int) -> ProgressWriter:
    try:
        return ProgressWriter(str(path), fence=fence)
    except OSError as error:
        raise JournalError(
            f"{path} cannot be written: {error.strerror or error}{disk_hint(path)}; without it no heartbeat may be"
            f" sent. {AS_IT_WAS}"
        ) from error


def _calls(path: Path, fence: int) -> call_record.CallRecord | None:
    try:
        return call_record.CallRecord(path, fence=fence)
    except OSError as error:
        log.warning("calls.not_noted", path=str(path), message=f"{error.strerror or error}{disk_hint(path)}")
        return None


def _tell_fault(task: asyncio.Task[None]) -> None:
    """Log at once that a task beside the passes has failed. The run trades on without it, and ends with its fault."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("daemon.task_failed", task=task.get_name(), error=f"{type(error).__name__}: {error}")

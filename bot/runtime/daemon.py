"""The daemon: composition root. Builds journal, client, heartbeat, strategies and loop from a config, runs passes until it is told to stop.

What the loop does is in `loop`; here is what it is made of, when it makes its next pass, and how a run begins and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import structlog
from pydantic import SecretStr

from bot.client import Client
from bot.client.retry import Backoff
from bot.clock import boot_ns, monotonic_ns
from bot.config import Settings
from bot.errors import AccessLost, BotError, ConfigError, Exit, JournalError, OutcomeUnknown, Refusal, Refused, TryLater
from bot.runtime import beat, systemd
from bot.runtime.arming import DEAD_MAN, Wanted
from bot.runtime.desk import Placed
from bot.runtime.exiting import LeftBehind, wind_down
from bot.runtime.gate import Allowance
from bot.runtime.heartbeat import HeartbeatProcess
from bot.runtime.journal import Journal, open_journal
from bot.runtime.loader import build, load
from bot.runtime.loop import Loop
from bot.runtime.loop import Settings as LoopSettings
from bot.runtime.progress import ProgressWriter
from bot.runtime.rhythm import Rhythm
from bot.runtime.worker import Worker
from bot.wire import INTERVAL_MS, GuardianRequest

log = structlog.get_logger()
T = TypeVar("T")

REPORT_S: Final = 5.0  # of real time between two lines on heartbeat and account value
FIRST_BEAT_S: Final = 2.0  # an attempt takes no longer; without an answer by then entries wait, exits do not
FIRST_BEAT_LOOK_S: Final = 0.01  # the belief is a mapped file, which rings no bell
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


async def run(
    settings: Settings,
    *,
    base_url: str,
    api_key: SecretStr,
    stop: asyncio.Event,
    on_ready: Callable[[], None] = lambda: None,
) -> DaemonEnd:
    """Run until `stop` is set or the run cannot go on. One run a state directory; the service may be away at the start."""
    state_dir = private_dir(settings.state_dir)
    with one_instance(state_dir):
        placed = place_strategies(settings)
        async with Client(base_url, api_key) as client:
            log.info(
                "daemon.started",
                name=settings.name,
                base_url=base_url,
                state_dir=str(state_dir),
                strategies=[p.strategy.name for p in placed],
            )
            snapshot = await until_up(client.account, stop)
            if snapshot is None:
                return DaemonEnd(Exit.DONE, LeftBehind(known=False), "stopped before the service answered")
            journal = open_journal(state_dir / "journal.db", address=snapshot.address)
            try:
                armed = any(g.type == "dead_man_switch" and g.status == "armed" for g in snapshot.guardians)
                return await Run(settings, client, journal, placed, base_url, api_key, stop, on_ready).go(
                    beat_at_once=armed
                )
            finally:
                journal.close()


class Run:
    """One run, from its first question to its last."""

    def __init__(
        self, settings: Settings, client: Client, journal: Journal, placed: list[Placed], base_url: str, api_key: SecretStr,
        stop: asyncio.Event, on_ready: Callable[[], None],
    ) -> None:  # fmt: skip
        self.settings = settings
        self.client = client
        self.journal = journal
        self.stop = stop
        self.on_ready = on_ready
        self.rhythm = Rhythm()
        self.workers = {one.strategy.name: Worker(one.strategy.name) for one in placed}
        fence = secrets.randbits(63)
        self.progress = ProgressWriter(str(settings.state_dir / "progress"), fence=fence)
        self.heartbeat = self._heartbeat(base_url, api_key, fence)
        self.beaten_ms = 0
        self.loop = Loop(
            port=client,
            journal=journal,
            placed=placed,
            pacer=RealPacer(),
            settings=LoopSettings(
                guardians=wanted_guardians(settings), foreign_positions=settings.safety.foreign_positions,
                reconcile_ms=settings.reconcile_seconds * 1000,
            ),
            run=self._in_thread,
            belief=self._belief,
            passed=self._passed,
        )  # fmt: skip

    async def go(self, *, beat_at_once: bool) -> DaemonEnd:
        self.rhythm.start()
        report = self.rhythm.every(REPORT_S, "report")
        code, message = Exit.DONE, ""
        left = LeftBehind(known=False, complete=False)
        on_exit = self.settings.safety.on_exit
        try:
            was_cut = await self._until_stopped(report, beat_at_once=beat_at_once)
            systemd.notify("STOPPING=1")
            log.info("daemon.stopping", on_exit=on_exit)
            if self.loop.ready:
                if not was_cut:
                    await self._within(HOOKS_S, self.loop.stop())
                left = await self._within(STOP_S, wind_down(self.loop, on_exit)) or left
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
            self.rhythm.stop()
            if self.heartbeat is not None:
                self.heartbeat.close()
            self.progress.close()
            for worker in self.workers.values():
                worker.close()
        if code is Exit.DONE and left.unprotected and self.settings.safety.require_protection:
            code, message = Exit.UNSAFE, f"without a stop: {', '.join(left.unprotected)}"
        log.info("daemon.stopped", exit_code=int(code), message=message or None)
        return DaemonEnd(code, left, message)

    # -- passes

    async def _until_stopped(self, report: asyncio.Event, *, beat_at_once: bool) -> bool:
        """Recover, then pass after pass. True when what was under way at the stop did not end in time and was cut.

        A cut leaves nothing half: the journal moves in transactions, and a request that was on its way is in doubt as after a crash.
        """
        limit = asyncio.timeout(None)

        async def bounded() -> None:
            await self.stop.wait()
            self.rhythm.ring()
            self.loop.end_pass()
            limit.reschedule(asyncio.get_running_loop().time() + GRACE_S)

        watcher: asyncio.Task[None] | None = None
        try:
            async with limit:
                watcher = asyncio.create_task(bounded(), name="stop-watcher")
                if await self._recover(beat_at_once=beat_at_once):
                    systemd.notify("READY=1")
                    log.info(
                        "daemon.ready", positions=len(self.loop.mirror.positions), orders=len(self.loop.mirror.orders)
                    )
                    self.on_ready()
                    report.set()  # The first pass already says how the heartbeat and the account are.
                    await self._passes(report)
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("pass.cut", seconds=GRACE_S)
            return True
        finally:
            if watcher is not None:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher
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
        from the start; one that is armed now has its whole time, and the few beats without proof of progress are kept for that."""
        if self.heartbeat is not None and beat_at_once:
            self.heartbeat.start()

        async def recovered() -> bool:
            await self.loop.recover()
            return True

        if await until_up(recovered, self.stop) is None:
            return False
        if self.heartbeat is not None and not self.heartbeat.alive:
            self.heartbeat.start()
        await self._first_beat()
        return True

    async def _first_beat(self) -> None:
        """Give the heartbeat's first answer a moment, so that the first bar is not decided on an uncertain deadline."""
        waited_s = 0.0
        while (
            self.heartbeat is not None
            and not self.heartbeat.belief().may_open
            and waited_s < FIRST_BEAT_S
            and not self.stop.is_set()
        ):
            await asyncio.sleep(FIRST_BEAT_LOOK_S)
            waited_s += FIRST_BEAT_LOOK_S

    async def _passes(self, report: asyncio.Event) -> None:
        while not self.stop.is_set():
            await self._beat_by_hand()
            try:
                await self._resync_if_lapsed()
                await self.loop.cycle()
            except (TryLater, OutcomeUnknown) as error:
                log.warning("pass.failed", code=error.code, message=error.message)
            if report.is_set():
                report.clear()
                self._report()
            if self.loop.is_late:
                continue
            clock = self.client.clock
            await self.rhythm.wait(
                next_close_ms=self._next_close_ms(clock.now_ms()), now_ms=clock.now_ms(), speed=clock.speed
            )

    def _next_close_ms(self, now_ms: int) -> int | None:
        closes = [now_ms // (step := INTERVAL_MS[s.interval]) * step + step for s in self.loop.feed.wanted]
        return min(closes, default=None)

    async def _in_thread(self, name: str, call: Callable[[], T]) -> T:
        return await self.workers[name].call(call)

    # -- heartbeat

    def _heartbeat(self, base_url: str, api_key: SecretStr, fence: int) -> HeartbeatProcess | None:
        dead_man, speed = self.settings.dead_man, self.client.clock.speed
        if dead_man is None or speed <= 0:
            return None
        try:
            lengths = beat.rhythm(dead_man.heartbeat_seconds / speed)
        except ValueError as error:
            raise ConfigError(f"dead_man.heartbeat_seconds: {error}") from error
        folder = self.settings.state_dir
        return HeartbeatProcess(
            base_url=base_url, api_key=api_key.get_secret_value(), stamp_path=str(folder / "progress"), belief_path=str(folder / "belief"),
            lengths=lengths, fence=fence,
        )  # fmt: skip

    async def _beat_by_hand(self) -> None:
        """Under a clock that is moved by hand real seconds mean nothing: the pass itself beats when that clock has moved."""
        dead_man = self.settings.dead_man
        if dead_man is None or self.heartbeat is not None or self.client.clock.now_ms() == self.beaten_ms:
            return
        moved_ms = self.client.clock.now_ms()
        with contextlib.suppress(TryLater, OutcomeUnknown):  # The next pass beats then.
            await self.client.heartbeat()
            self.beaten_ms = moved_ms

    def _passed(self, last_bar_ms: int | None) -> None:
        self.progress.cycle_done(boot_ns=boot_ns(), last_bar_at_ms=last_bar_ms)
        if self.heartbeat is not None and not self.heartbeat.alive and not self.stop.is_set():
            if self.heartbeat.exit_code == int(Exit.REFUSED):
                raise AccessLost("unauthorized", "the heartbeat was refused: the key is no longer valid")
            log.warning("heartbeat.restarted", exit_code=self.heartbeat.exit_code)
            self.heartbeat.start()

    def _belief(self) -> Refusal | None:
        if self.heartbeat is None:
            return None
        belief = self.heartbeat.belief()
        if belief.may_open:
            return None
        return Refusal(
            "heartbeat_unsure",
            f"the dead-man's deadline is not certain ({belief.error or 'no beat yet'})",
            {"action": "wait"},
        )

    async def _resync_if_lapsed(self) -> None:
        """The switch may have fired unseen (a suspend, a long outage): everything is read again before anything is opened."""
        if self.heartbeat is None:
            return
        belief = self.heartbeat.belief()
        if belief.lapsed:
            log.warning("heartbeat.lapsed", lapses=belief.lapses)
            await self.loop.recover()
            self.heartbeat.acknowledge(belief.lapses)

    def _report(self) -> None:
        if self.heartbeat is not None:
            belief = self.heartbeat.belief()
            left_ns = None if belief.deadline_boot_ns is None else belief.deadline_boot_ns - boot_ns()
            log.info(
                "heartbeat.belief", armed=belief.armed, deadline_s=None if left_ns is None else round(left_ns / 1e9, 1), beats=belief.beats,
                next_deadline_ms=belief.next_deadline_ms, error=belief.error or None,
            )  # fmt: skip
        mirror = self.loop.mirror
        log.info(
            "account.value",
            usd=round(mirror.equity_usd, 2),
            free_usd=round(mirror.free_margin_usd, 2),
            positions=len(mirror.positions),
        )


# -- what a run is made of


def place_strategies(settings: Settings) -> list[Placed]:
    """Every configured strategy, loaded and judged. ConfigError or StrategyError names the one that cannot be used."""
    placed = []
    for one in settings.strategies:
        loaded = load(one.use, settings.strategies_dir)
        for warning in loaded.warnings:
            log.warning("strategy.exposed", strategy=one.name, message=warning)
        strategy = build(loaded, name=one.name, markets=one.markets, params=one.params)
        log.info("strategy.loaded", strategy=one.name, use=one.use, sha256=(loaded.sha256 or "")[:12] or None)
        allowance = Allowance(
            strategy=one.name, markets=frozenset(one.markets), interval_ms=INTERVAL_MS[one.interval], budget_usd=one.budget_usd,
            max_leverage=one.max_leverage, require_protection=settings.safety.require_protection, path=settings.orders.path,
        )  # fmt: skip
        placed.append(Placed(strategy, one.interval, allowance))
    return placed


def wanted_guardians(settings: Settings) -> tuple[Wanted, ...]:
    """The dead-man first, then the config's own."""
    wanted = []
    if settings.dead_man is not None:
        request = GuardianRequest(
            type="dead_man_switch",
            scope="account",
            heartbeat_seconds=settings.dead_man.heartbeat_seconds,
            on_miss=settings.dead_man.on_miss,
        )
        wanted.append(Wanted(DEAD_MAN, request))
    wanted += [Wanted(f"config-{index}-{one.type}", one.request()) for index, one in enumerate(settings.guardians)]
    return tuple(wanted)


def private_dir(path: Path) -> Path:
    """The state directory, for the owner alone."""
    os.umask(0o077)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"state_dir {path} cannot be used: {error.strerror or error}. Set state_dir to a folder that you may write."
        ) from error
    return path


@contextlib.contextmanager
def one_instance(state_dir: Path) -> Iterator[None]:
    """Hold the state directory for this process; a second daemon on it ends at once. The kernel lets go when the process dies."""
    with (state_dir / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BotError(
                f"another daemon runs on {state_dir}: stop it, or give this one a state_dir of its own"
            ) from None
        yield


async def until_up(ask: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T | None:
    """Ask until the service answers, more and more slowly; None when told to stop first. Refusals and lost access are raised."""
    pacer = RealPacer()
    tries = 0
    while not stop.is_set():
        try:
            return await _unless(stop, ask)
        except (TryLater, OutcomeUnknown) as error:
            tries += 1
            log.warning("service.away", code=error.code, message=error.message, tries=tries)
            wait_s = max(getattr(error, "after_ms", 0) or 0, pacer.delay_ms(tries)) / 1000
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

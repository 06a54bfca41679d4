"""Worlds in virtual time: the production run (loop, client, limiter, journal, reconcile, beat rule) against the real
service, one seed a world.

A world is a service begun anew, an account, a daemon that is killed and started again, a wire that fails, a host that
sleeps, another hand, a disk that fails; then calm, in which everything must come right within SETTLED_S. Nothing in
here sleeps: the loop's clock jumps.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from pydantic import SecretStr

from bot.client import Client
from bot.client.retry import MAX_MS, SPREAD
from bot.clock import boot_ns, monotonic_ns
from bot.config import Settings
from bot.drill.judgment import cause_of
from bot.errors import Exit, JournalError, Refused
from bot.model.events import GuardianMoved
from bot.runtime import startup, supervisor
from bot.runtime.control_plane.command_routes import CommandRoutes
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.server import ControlRequest
from bot.runtime.execution.outcome import SETTLE_MS
from bot.runtime.journal.halt_flags import HaltFlagsFile
from bot.runtime.journal.opening import open_journal, open_or_rebuild
from bot.runtime.liveness import heartbeat_rule as beat
from bot.runtime.liveness.heartbeat import HeartbeatProcess
from bot.runtime.liveness.heartbeat_process import LeaseRecord, classify, first_heart
from bot.runtime.liveness.progress_stamp import Stamp
from bot.runtime.model.intents import FINAL, IN_DOUBT
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.reconciliation.schedule import REFUSED_MS
from bot.runtime.run_request import RunRequest
from bot.runtime.strategy_host import worker_pool
from bot.runtime.strategy_host.host import StrategySpec
from bot.service.host import HostOptions, Service, build
from bot.service.market_data import price_feed
from bot.service.operations import accounts, orders
from bot.service.security import auth
from bot.service.state_machine.command_log import SavedClock
from bot.service.state_machine.machine import LEASE_REAL_MS
from bot.strategy import Bar, Bracket, Fill, Intent, Open, Strategy, View
from bot.venue.model.numbers import E8
from bot.venue.model.state import guardian_id
from tests.fakes import Crash
from tests.integration import account_checks
from tests.integration.builders import MARKETS, START_MS, START_PX, Hand, busy
from tests.integration.virtual import Answer, Clocks, served, virtual_time
from tests.integration.wire import is_order, spoiled

BASE: Final = "http://127.0.0.1"
# real time, whatever the service's speed
D_S: Final = 60.0
LENGTHS: Final = beat.beat_timing(D_S)
# what the rule promises to survive
OUTAGE_MAX_S: Final = 41.0
# from a brain's last proof of life to the switch
LATE_MAX_S: Final = 90.0
# within which everything has come right, once nothing fails: a plan's life of 60 s, and two waits of backoff
SETTLED_S: Final = 80.0
# between two tries of an order
RETRY_MAX_S: Final = MAX_MS * (1 + SPREAD) / 1000
# that a pass which has begun may take to its last order
PASS_MAX_S: Final = 5.0
# rounds of calm until the daemon has been told of everything
ROUNDS_MAX: Final = 40
# between a look at the events and an order: a reset that falls there cannot be known
RACE_S: Final = 1.0
# from being asked to the end
STOP_S: Final = 5.0
# speed of the service's clock -> (bars before calm, seconds between two passes)
PACES: Final = {60.0: (8, 2.0), 20.0: (5, 2.0), 4.0: (3, 4.0), 1.0: (2, 10.0)}
# worlds of one run; then something is broken, and the rest tells nothing new
FAILED_MAX: Final = 5
# a long history is another test's; it costs
CANDLES_MAX: Final = 4

FAULTS: Final = (
    "refuse",
    "unsent",
    "lose",
    "late",
    "double",
    "html_before",
    "html_after",
    "truncate",
    "busy",
    "busy_silent",
    "down",
    "down_html",
    "denied",
    "declined",
    "stale",
    "slow",
    "hang_before",
    "hang_after",
)
# What is dangerous together: a copy that comes late, and something that speaks meanwhile.
TREACHEROUS: Final = (
    ("late", "denied"),
    ("late", "busy", "down"),
    ("lose", "stale", "double"),
    ("hang_before", "hang_after"),
    ("late", "lose"),
)
CRASHES: Final = ("crash_before", "crash_after", "crash_under_way")
DISK_CODES: Final = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
)
HAND_ACTS: Final = ("order", "naked_order", "limit", "cancel_stops", "disarm", "close", "cancel_entries")
TROUBLES: Final = (
    "none",
    "none",
    "none",
    "outage",
    "outage",
    "long_outage",
    "death",
    "wedge",
    "crash_loop",
    "suspend",
    "service_down",
    "reset",
    "jump",
    "stops",
    "bare",
)


# ── The service ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Chance:
    """Stands in for the module `secrets` where the service makes names: a world is a function of its seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def token_bytes(self, size: int = 32) -> bytes:
        return self.chance.randbytes(size)

    def token_hex(self, size: int = 32) -> str:
        return self.chance.randbytes(size).hex()

    def token_urlsafe(self, size: int = 32) -> str:
        return self.token_hex(size)

    def choice(self, of: Any) -> Any:
        return self.chance.choice(of)

    def randbits(self, bits: int) -> int:
        return self.chance.getrandbits(bits)


@cache
def service() -> Service:
    """One app for all worlds of a process."""
    with virtual_time():
        return build(HostOptions(clock="60x", start_ms=START_MS, hold_prices=True, markets=MARKETS))


@cache
def template(folder: Path) -> Path:
    """A journal as it is before its first use: made once, copied for each world."""
    path = folder / "template.db"
    open_journal(path, address="").close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM meta")
        db.commit()
    return path


# ── The strategy ────────────────────────────────────────────────────────────────────────────────────────────────────


class Busy(Strategy):
    """Wants what the script says, and keeps in its durable state which fills it has heard of, and how often."""

    def __init__(
        self,
        script: Callable[[View, Bar], Iterable[Intent]],
        is_quiet: Callable[[], bool],
        *,
        name: str,
        markets: tuple[str, ...],
    ) -> None:
        super().__init__(name=name, markets=markets)
        self.script = script
        self.is_quiet = is_quiet

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        return () if self.is_quiet() else self.script(view, bar)

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        heard = view.state.setdefault("fills", {})
        name = f"{fill.oid} {fill.at_ms} {fill.size:g} {fill.position_size:g}"
        heard[name] = heard.get(name, 0) + 1
        return ()


def eager(view: View, bar: Bar) -> Iterable[Intent]:
    """An entry on every bar that has no position: whatever is forgotten or doubled shows at once."""
    if view.position(bar.market) is None:
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=0.3, target_pct=0.3))


SCRIPTS: Final = (busy, busy, eager)


# ── The wire ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Wire:
    """Between the daemon's client, the heartbeat and the service."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen = 0
        # orders that have no answer yet: now, and at most
        self.asked = self.abreast = 0
        self.met: Counter[str] = Counter()
        # the keys of orders that were sent
        self.keys: set[str] = set()
        # (key, path) -> what was sent there under it
        self.bodies: dict[tuple[str, str], set[bytes]] = {}
        # keys of orders that the service has refused
        self.refused: set[str] = set()
        # X-Request-Id of those that arrived when nobody waited any more
        self.late_ids: set[str] = set()
        # when the service last told the daemon that it knows of all events
        self.looked_at = 0.0
        # the same, or an old page that pretended to
        self.told_at = 0.0
        # X-Request-Id of orders that a reset came before by less than a look, or while they were on their way
        self.raced_ids: set[str] = set()
        self.under_way: list[asyncio.Task[None]] = []
        self.hurry = asyncio.Event()
        # that was placed; to be delivered once more
        self.newest_order: Callable[[], Any] | None = None
        # a page of events, as a cache in between would keep it
        self.old_page: Answer | None = None

    async def request(self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        """What the daemon's client asks."""
        self.seen += 1
        key = _key(headers)
        if not key or not is_order(method, target):
            return await self._answer(method, target, headers, body, key)
        self.keys.add(key)
        self.bodies.setdefault((key, target), set()).add(body)
        self.asked += 1
        self.abreast = max(self.abreast, self.asked)
        try:
            return await self._answer(method, target, headers, body, key)
        finally:
            self.asked -= 1

    async def _answer(
        self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, key: str
    ) -> Answer:
        world, chance = self.world, self.world.chance
        target = _shortened(target)
        await asyncio.sleep(chance.uniform(0.002, 0.06))
        fate = world.fate(target)
        world.note("asked", method, target, key, hashlib.sha256(body).hexdigest()[:8], fate)
        if fate is not None:
            self.met[fate] += 1
        deliver = partial(self.deliver, method, target, headers, body, world.now())
        match fate:
            case None:
                answer = await deliver()
                if self.old_page is None and target.startswith("/v1/events?") and answer.status_code == 200:
                    self.old_page = answer
                return answer
            case "blackhole":
                await asyncio.sleep(3)
                raise httpx.ConnectTimeout("no answer")
            case "hang_before":
                await asyncio.sleep(1_000)
            case "hang_after":
                await deliver()
                await asyncio.sleep(1_000)
            case "late":
                self.send_late(deliver, chance.uniform(0.2, 4) if chance.random() < 0.6 else chance.uniform(4, 45))
                await asyncio.sleep(chance.uniform(0.1, 3))
                raise httpx.ReadTimeout("no answer")
            case "slow":
                answer = await deliver()
                await asyncio.sleep(chance.uniform(0.5, 10))
                return answer
            case "declined" if method != "GET":
                return await deliver()
            case "stale":
                if self.old_page is None or not target.startswith("/v1/events"):
                    return await deliver()
                self.told_at = self.world.now()
                return self.old_page
            case "crash_before":
                raise Crash(target)
            case "crash_after":
                await deliver()
                raise Crash(target)
            case "crash_under_way":
                self.send_late(deliver, chance.uniform(0.1, 20))
                raise Crash(target)
        return await spoiled(fate, deliver, is_order=is_order(method, target))

    async def deliver(
        self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, left_at: float = math.inf
    ) -> Answer:
        """The request reaches the service, whoever hears the answer.

        `left_at`: of one that reaches it for the first time.
        """
        while self.world.is_service_down:
            await asyncio.sleep(0.2)
        answer = await served(service().app, method, target, headers, body)
        self.world.note("did", method, target, answer.status_code, len(answer.content))
        if answer.status_code == 200 and is_order(method, target):
            self.newest_order = partial(self.deliver, method, target, headers, body)
            is_fresh = self.world.now() <= self.told_at + PASS_MAX_S
            raced = is_fresh and self.looked_at <= self.world.reset_at <= self.told_at + RACE_S
            if raced or left_at <= self.world.reset_at:
                self.raced_ids.add(answer.headers["X-Request-Id"])
        elif answer.status_code == 200 and target.startswith("/v1/events?"):
            self.looked_at = self.told_at = self.world.now()
        elif 400 <= answer.status_code < 500 and is_order(method, target):
            self.refused.add(_key(headers))
        return answer

    def send_late(self, deliver: Callable[[], Any], seconds: float) -> None:
        async def arrive() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.hurry.wait(), seconds)
            answer = await deliver()
            self.late_ids.add(answer.headers["X-Request-Id"])

        self.under_way.append(asyncio.get_running_loop().create_task(arrive()))

    async def arrivals(self) -> None:
        """What is under way arrives now."""
        self.hurry.set()
        await asyncio.gather(*self.under_way)

    async def beat(self, api_key: str) -> beat.Answer:
        """One connection of the heartbeat: as beater.post, over this wire."""
        world, chance = self.world, self.world.beat_chance
        headers = [(b"authorization", f"Bearer {api_key}".encode()), (b"content-type", b"application/json")]
        sent_at = world.now()
        try:
            async with asyncio.timeout(beat.ATTEMPT_NS / 1e9):
                await asyncio.sleep(chance.uniform(0.01, 0.2) if chance.random() < 0.8 else chance.uniform(0.2, 0.45))
                if world.is_cut():
                    if world.refuses:
                        return beat.HeartbeatAnswer("retry", "ConnectionRefusedError")
                    await asyncio.sleep(1_000)
                if chance.random() < world.beat_loss:
                    await asyncio.sleep(1_000)
                answer = await self.deliver("POST", "/v1/heartbeat", headers, b"{}")
                world.carried.append((sent_at, world.now()))
                await asyncio.sleep(chance.uniform(0.01, 0.45))
                world.nap(chance)
                if world.is_cut() or chance.random() < world.beat_loss:
                    await asyncio.sleep(1_000)
        except TimeoutError:
            return beat.HeartbeatAnswer("retry", "timeout")
        return classify(answer.status_code, answer.headers.get("Retry-After"), answer.content)


class _Exchange:
    """In place of httpx.AsyncClient under the production exchange: one request that streams its answer."""

    def __init__(self, wire: Wire, kept: Iterable[tuple[str, str]]) -> None:
        self._wire = wire
        self._kept = [(name.lower().encode(), value.encode()) for name, value in kept]

    def stream(
        self, method: str, url: str, *, params: Any, content: bytes | None, headers: dict[str, str]
    ) -> _Streamed:
        target = url.removeprefix(BASE) + (f"?{urlencode(params)}" if params else "")
        mine = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        return _Streamed(self._wire.request(method, target, self._kept + mine, content or b""))

    async def aclose(self) -> None:
        """There are no connections."""


class _Streamed:
    def __init__(self, asking: Any) -> None:
        self._asking = asking

    async def __aenter__(self) -> Answer:
        return await self._asking  # type: ignore[no-any-return]

    async def __aexit__(self, *_: object) -> None:
        return None


def _key(headers: list[tuple[bytes, bytes]]) -> str:
    return next((value.decode() for name, value in headers if name == b"idempotency-key"), "")


def _shortened(target: str) -> str:
    path, _, query = target.partition("?")
    if not path.endswith("/candles"):
        return target
    asked = dict(parse_qsl(query))
    return f"{path}?{urlencode(asked | {'limit': min(int(asked['limit']), CANDLES_MAX)})}"


# ── The daemon's parts that are processes, threads or files ─────────────────────────────────────────────────────────


class StoredLease:
    """The lease file, which survives a process."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None

    def read(self) -> LeaseRecord | None:
        return self.record

    def write(self, fence: int, written_ns: int, heart: beat.Heart) -> None:
        self.record = LeaseRecord(fence, written_ns, heart)

    def renew(self) -> None:
        """Nobody removes it."""

    def close(self) -> None:
        """It stays."""


class Progress:
    """The progress stamp; each is a proof of life that the judge remembers."""

    def __init__(self, world: World, _path: str, *, fence: int) -> None:
        self.world = world
        self.fence = fence
        self.cycles = 0
        world.stamp = Stamp(fence, 0, 0, -1)

    def cycle_done(self, *, boot_ns: int, last_bar_at_ms: int | None) -> None:
        self.cycles += 1
        self.world.stamp = Stamp(self.fence, self.cycles, boot_ns, -1 if last_bar_at_ms is None else last_bar_at_ms)
        self.world.proofs.append(self.world.now())
        if not self.world.stamp.is_of_start:
            self.world.passes.append(self.world.now())
        self.world.passed()

    def close(self) -> None:
        """The file stays."""


class Heartbeat(HeartbeatProcess):
    """The heartbeat process as a task: like HeartbeatProcess, on the virtual loop, over the world's wire.

    Its lease is read by production code.
    """

    def __init__(
        self,
        world: World,
        *,
        base_url: str,
        api_key: str,
        stamp_path: str,
        lease_path: str,
        lengths: beat.BeatTiming,
        fence: int,
    ) -> None:
        self.world = world
        self.lengths = lengths
        self._orders = SimpleNamespace(fence=fence)  # type: ignore[assignment]
        self._file = world.lease
        self.acknowledged = 0
        self.may_beat = True
        self._noted = 0, 0
        self._api_key = api_key
        self._task: asyncio.Task[int] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.heart = beat.Heart()

    @property
    def pid(self) -> int | None:
        return None

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def exit_code(self) -> int | None:
        return None if self._task is None or not self._task.done() else self._task.result()

    def start(self, *, may_beat: bool = True) -> None:
        assert not self.alive
        self.may_beat = may_beat
        self._noted = 0, monotonic_ns()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self, timeout_s: float = 0) -> None:
        for task in (self._task, *self._connections):
            if task is not None:
                task.cancel()
        self._task = None

    def kill(self) -> None:
        self.stop()

    def close(self) -> None:
        self.stop()

    async def _run(self) -> int:
        fence, rules = self._orders.fence, self.world.rules
        self.heart = first_heart(self._file.read(), self._orders)
        boot, mono = rules.boot_ns(), monotonic_ns()
        while True:
            boot_now, mono_now = rules.boot_ns(), monotonic_ns()
            self.heart = rules.suspended(self.heart, boot_ns=boot_now - boot, monotonic_ns=mono_now - mono)
            boot, mono = boot_now, mono_now
            self._write()
            verdict: beat.Verdict = "wait"
            if self.may_beat:
                verdict = rules.judge(self.lengths, self.heart, now_ns=boot_now, stamp=self.world.stamp, fence=fence)
            if verdict == "stopped":
                return int(Exit.REFUSED)
            if verdict == "beat":
                self.heart = beat.sending(self.heart, stamp=self.world.stamp, fence=fence)
                self._write()
                self.world.beats.append(self.world.now())
                sent, answer = await self._attempt()
                self.heart = rules.answered(
                    self.lengths,
                    self.heart,
                    answer,
                    sent_ns=sent,
                    now_ns=rules.boot_ns(),
                    chance=self.world.beat_chance.random(),
                )
                self.world.note("beat", answer.kind, answer.guardians)
                self._write()
            wait_s = (self.heart.next_ns - rules.boot_ns()) / 1e9
            tick_s = self.world.tick_s
            await asyncio.sleep(min(tick_s, wait_s) if wait_s > 0 else (tick_s if verdict != "beat" else 0))

    def _write(self) -> None:
        self._file.write(self._orders.fence, self.world.rules.boot_ns(), self.heart)

    async def _attempt(self) -> tuple[int, beat.HeartbeatAnswer]:
        """As beater.Beater.attempt: a second connection joins after a second, the first good answer counts, with its
        own sending.
        """
        loop, rules = asyncio.get_running_loop(), self.world.rules
        answers: asyncio.Queue[tuple[int, beat.HeartbeatAnswer]] = asyncio.Queue()

        async def connect() -> None:
            sent = rules.boot_ns()
            answers.put_nowait((sent, await self.world.wire.beat(self._api_key)))

        def begin() -> None:
            task = loop.create_task(connect())
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        start = rules.boot_ns()
        end = start + beat.ATTEMPT_NS
        begin()
        tried, failed, worst = 1, 0, (start, beat.HeartbeatAnswer("retry", "timeout"))
        while (now := rules.boot_ns()) < end:
            until = min(start + beat.HEDGE_NS, end) if tried == 1 else end
            try:
                got = await asyncio.wait_for(answers.get(), max(0.0, (until - now) / 1e9))
            except TimeoutError:
                if tried == 1 and rules.boot_ns() < end:
                    tried = 2
                    begin()
                continue
            if got[1].kind != "retry":
                return got
            worst, failed = got, failed + 1
            if failed == tried:
                return worst
        return worst


class BeatTiming:
    """When the next pass is: as rhythm.BeatTiming, by the loop's own timers.

    A brain that is wedged never comes back from here.
    """

    def __init__(self, world: World, _at_rest: Callable[[], None]) -> None:
        self.world = world
        self.lag_s = 0.0
        self._wake = asyncio.Event()

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def every(self, seconds: float, name: str) -> asyncio.Event:
        return asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def wait(self, *, next_look_ms: int | None, now_ms: int, speed: float) -> None:
        if self.world.is_wedged:
            await asyncio.sleep(10_000)
        delay_s = self.world.pass_s
        if next_look_ms is not None:
            delay_s = min(delay_s, max(0.0, (next_look_ms - now_ms) / 1000 / speed) + 0.005)
        timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
        await self._wake.wait()
        timer.cancel()
        self._wake.clear()


class Inline:
    """A strategy's worker without its thread."""

    def __init__(self, name: str, row: object = None) -> None:
        self.name = name

    async def call(self, fn: Callable[[], Any], version: str = "") -> Any:
        return fn()

    def close(self) -> None: ...


async def _no_bell(*_: object, **_named: object) -> None:
    """No stream: a pass comes soon enough."""


class Rules:
    """The beat rule as the heartbeat task calls it: production's, looked up at each call.

    A seeded bug replaces a part of it.
    """

    service_counts_downtime = False

    def boot_ns(self) -> int:
        return boot_ns()

    def judge(self, *args: Any, **named: Any) -> Any:
        return beat.judge(*args, **named)

    def suspended(self, *args: Any, **named: Any) -> Any:
        return beat.suspended(*args, **named)

    def answered(self, *args: Any, **named: Any) -> Any:
        return beat.answered(*args, **named)


# ── The world ───────────────────────────────────────────────────────────────────────────────────────────────────────


class World:
    """One seed, one world. `live` ends with an AssertionError when a promise was broken."""

    # by a person, when all is calm
    is_attended = False
    # the service's clock goes on while it is down, as the real one does
    is_hosted = False
    # strategies trade in one market, so that a stop closes what each of them has of it; and may be paused or halted
    is_shared = False

    def __init__(self, seed: int, folder: Path, clocks: Clocks, rules: Rules | None = None) -> None:
        chance = self.chance = random.Random(f"world {seed}")
        self.beat_chance = random.Random(f"beat {seed}")
        self.disk = random.Random(f"disk {seed}")
        self.seed, self.clocks, self.rules = seed, clocks, rules or Rules()
        self.path = folder / f"{seed}.db"
        self.speed = chance.choice(list(PACES))
        self.bars, self.pass_s = PACES[self.speed]
        self.bar_s = 60 / self.speed
        self.markets = MARKETS[: chance.choice([1, 1, 2])]
        self.script = chance.choice(SCRIPTS)
        self.orders_path: Literal["plan", "direct"] = chance.choice(["plan", "direct"])
        self.trouble = chance.choice(TROUBLES)
        self.rate = chance.choice([0.0, 0.05, 0.15, 0.35])
        self.kinds = (
            list(chance.choice(TREACHEROUS)) if chance.random() < 0.4 else chance.sample(FAULTS, chance.randint(1, 6))
        )
        self.crash_rate = chance.choice([0.0, 0.0, 0.01, 0.03])
        self.write_crash_rate = chance.choice([0.0, self.crash_rate / 2, 0.05 if self.crash_rate else 0.0])
        self.beat_loss = chance.choice([0.0, 0.0, 0.1])
        self.hand_rate = chance.choice([0.0, 0.0, 0.0, 0.3])
        self.disk_rate = self.disk.choice([0.0, 0.0, 0.0, 0.01])
        self.damage_rate = self.disk.choice([0.0, 0.0, 0.5]) if self.hand_rate == 0 else 0.0
        self.naps = 0.05 if self.trouble == "suspend" else 0.0
        self.tick_s = 0.25 if self.trouble == "suspend" else 1.0
        self.start_ms = START_MS + 60_000 * chance.randrange(12)
        self.is_calm = self.is_over = self.is_wedged = self.is_service_down = False
        self.refuses = chance.random() < 0.5
        self.outages: list[tuple[float, float]] = []
        # when the host slept
        self.sleeps: list[tuple[float, float]] = []
        # when the service was down
        self.downs: list[tuple[float, float]] = []
        # other spans in which nobody could beat
        self.blocked: list[tuple[float, float]] = []
        self.wire = Wire(self)
        self.lease = StoredLease()
        self.stamp: Stamp | None = None
        self.proofs: list[float] = []
        # those of them that are of no start
        self.passes: list[float] = []
        # when a life had come to the end of its start
        self.readies: list[float] = []
        self.beats: list[float] = []
        # beats: when each left, and when it arrived
        self.carried: list[tuple[float, float]] = []
        # when each life of the daemon began
        self.births: list[float] = []
        # what became of which dead-man, and when
        self.switch: list[tuple[float, str, str]] = []
        # real time, and the service's then
        self.service_began = (0.0, self.start_ms)
        self.one: supervisor.Supervisor | None = None
        self.journal: Any = None
        self.life: asyncio.Task[None] | None = None
        self.stop = asyncio.Event()
        self.up_again = asyncio.Event()
        self.lives = self.fired = self.damaged = 0
        self.asked_to_stop = 0.0
        # no life has been ready since
        self.down_since: float | None = 0.0
        self.trace: list[Any] = []
        self.trades: list[Any] = []
        # guardians that are no stop before they are activated
        self.sleepers: set[str] = set()
        self.buried: set[str] = set()
        # key -> what the order was for
        self.causes: dict[str, tuple[Any, ...]] = {}
        self.excused: dict[str, list[tuple[int, int]]] = {}
        self.px = dict(START_PX)
        self.disk_faults: Counter[int] = Counter()
        self.resets = 0
        # the newest of them
        self.reset_at = -1.0
        # spans in which a hand has just taken the dead-man away
        self.unguarded: list[tuple[int, int]] = []

    # -- clocks and trace

    def now(self) -> float:
        """Real seconds since the world's beginning, the host's sleep included."""
        return (self.clocks.clock_gettime_ns(0) - 10**12) / 1e9

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.now(), 6), *what))

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    # -- what fails

    def is_cut(self) -> bool:
        """Whether daemon and service cannot reach each other just now."""
        now = self.now()
        return self.is_service_down or any(a <= now < b for a, b in self.outages)

    def fate(self, target: str) -> str | None:
        if self.is_calm:
            return None
        if self.is_cut():
            return "refuse" if self.refuses else "blackhole"
        dice = self.chance.random()
        if dice < self.crash_rate:
            return self.chance.choice(CRASHES)
        if dice < self.crash_rate + self.rate:
            return self.chance.choice(self.kinds)
        return None

    def nap(self, chance: random.Random) -> None:
        """The host falls asleep while an answer is on its way."""
        if self.naps and not self.is_calm and chance.random() < self.naps:
            self.sleep_host(chance.uniform(20, 200))

    def sleep_host(self, seconds: float) -> None:
        self.sleeps.append((self.now(), self.now() + seconds))
        self.note("slept", round(seconds, 3))
        self.clocks.suspend(seconds)

    def spoil(self) -> None:
        """From here on each statement of the journal may fail or be the last; a file that was mended is spoilt anew
        in the next pass.
        """
        journal = self.journal
        if journal is None or journal.fault is not None or hasattr(journal.database._raw, "is_spoilt"):
            return
        if not self.disk_rate and not self.write_crash_rate:
            return
        inner = journal.database._raw

        def raw(sql: str, *values: Any) -> Any:
            if self.is_calm:
                return inner(sql, *values)
            if self.disk_rate and self.disk.random() < self.disk_rate:
                code = self.disk.choice(DISK_CODES)
                self.disk_faults[code] += 1
                error = sqlite3.OperationalError("the disk fails")
                error.sqlite_errorcode = code
                raise error
            if sql != "COMMIT" or self.disk.random() >= self.write_crash_rate:
                return inner(sql, *values)
            if self.disk.random() < 0.5:
                inner(sql)
            raise Crash(sql)

        raw.is_spoilt = True  # type: ignore[attr-defined]
        journal.database._raw = raw

    def passed(self) -> None:
        """A pass is complete."""
        self.spoil()

    # -- the daemon

    def _settings(self) -> Settings:
        return _settings(self.speed, self.orders_path)

    def _placed(self) -> list[StrategySpec]:
        """A strategy for each market."""
        return [
            StrategySpec(
                Busy(self.script, lambda: self.is_calm, name=f"s-{coin.lower()}", markets=(coin,)),
                "1m",
                StrategyLimits(
                    f"s-{coin.lower()}",
                    frozenset({coin}),
                    interval_ms=60_000,
                    budget_usd=Decimal(5_000),
                    max_leverage=3,
                    path=self.orders_path,
                ),
            )
            for coin in self.markets
        ]

    async def _lives(self) -> None:
        """One life after the other, as a service manager would have it."""
        while not self.is_over:
            await self.up_again.wait()
            self.life = asyncio.get_running_loop().create_task(self._life())
            await asyncio.wait([self.life])
            if self.life.cancelled():
                self.note("killed")
            elif (error := self.life.exception()) is not None:
                if not isinstance(error, Crash | JournalError):
                    raise error
                self.note("died", str(error))
            self.life = None
            self._bury()
            if self.down_since is None:
                self.down_since = self.now()
            if not self.is_calm:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wire.hurry.wait(), self._rest_s())
        await asyncio.sleep(1e9)

    def _rest_s(self) -> float:
        return self.chance.uniform(0.2, 8)

    async def _life(self) -> None:
        self.lives += 1
        self.births.append(self.now())
        stop = self.stop = asyncio.Event()
        key = SecretStr(self.hand.key)
        client = Client(BASE, key, transport=_NOWHERE)
        headers = client._exchange._http.headers.items()
        client._exchange._http = _Exchange(self.wire, headers)  # type: ignore[assignment]
        try:
            snapshot = await startup.until_up(client.account, stop)
        except Refused:
            # Said more than once before anything was known: the run ends, and a person begins it anew.
            return
        if snapshot is None:
            return
        journal, damage = open_or_rebuild(
            self.path, address=snapshot.address, now_ms=client.clock.now_ms(), was_used=self.lives > 1
        )
        self.journal = journal
        self.spoil()
        armed = any(one.type == "dead_man_switch" and one.status == "armed" for one in snapshot.guardians)
        settings = self._settings()
        access = DaemonAccess(settings, base_url=BASE, stop=stop, tail=None, config=None)
        request = RunRequest(
            settings=settings, base_url=BASE, api_key=key, stop=stop, on_ready=self._is_ready, reread=self._settings
        )
        one = self.one = supervisor.Supervisor(request, client, journal, self._placed(), access)
        if damage is not None:
            one.kernel.health.incident("journal.rebuilt", "journal", message=damage)
        end = await one.go(beat_at_once=armed)
        self.note("ended", int(end.exit_code), end.message)
        if stop.is_set():
            slept_s = sum(b - a for a, b in self.sleeps if a >= self.asked_to_stop)
            assert self.now() - self.asked_to_stop <= STOP_S + slept_s, (
                f"asked to stop at {self.asked_to_stop:.1f}, ended at {self.now():.1f}"
            )
        if end.exit_code in (Exit.REFUSED, Exit.ERROR):
            raise AssertionError(f"the run ended: {end.message}")

    def _is_ready(self) -> None:
        assert self.down_since is not None
        self.blocked.append((self.down_since, self.now() + 1))
        self.readies.append(self.now())
        self.down_since = None

    def _bury(self) -> None:
        """The process is gone: nothing is flushed. Sometimes the file is too, or what is in it."""
        journal, self.journal, self.one = self.journal, None, None
        if journal is None:
            return
        will_damage = not self.is_calm and self.disk.random() < self.damage_rate
        self.causes |= _causes(_rows(journal))
        if journal.fault is not None or will_damage:
            self.buried.update(self.causes)
        journal.db.close()
        if will_damage:
            self.damaged += 1
            self.path.write_bytes(b"" if self.disk.random() < 0.3 else self.disk.randbytes(20_000))

    def kill(self) -> None:
        if self.life is not None:
            self.life.cancel()

    # -- the story

    async def live(self) -> None:
        with _in_place(self):
            await self._begin()
            try:
                await self._tell()
            finally:
                self.note("end", self.lives)

    async def _begin(self) -> None:
        one = service()
        machine = one.machine
        machine.signals.moved = asyncio.Event()
        one.dispatcher._wakeup = asyncio.Event()

        def empty() -> None:
            one.restorer.named_snapshots.forget()
            one.restorer.named_snapshots.empty_log()

        one.restorer._begin(empty, None, speed=self.speed, real=False, start_ms=self.start_ms)
        one.operations.rate_limits._buckets.clear()
        machine.log.start()
        publish, machine.publish = machine.publish, None
        self._publish = publish

        def told(events: list[Any]) -> Any:
            for event in events:
                if not isinstance(event, GuardianMoved):
                    continue
                if event.guardian_type == "dead_man_switch":
                    self.switch.append((self._real(event.ts), event.subtype, event.guardian))
                    self.note("switch", event.subtype)
                elif event.guardian_type == "trailing_stop":
                    self._note_sleeper(event)
            return ()

        machine.publish = told
        self.ticker = asyncio.get_running_loop().create_task(one._tick())
        self.box = SimpleNamespace(service=one, http=_Direct())
        made = await served(
            one.app, "POST", "/v1/sandbox/accounts", [(b"content-type", b"application/json")], b'{"name":"world"}'
        )
        assert made.status_code == 200, made.content
        self.hand = Hand(self.box, json.loads(made.content))  # type: ignore[arg-type]
        shutil.copyfile(template(self.path.parent), self.path)
        HaltFlagsFile(self.path, address="").path.unlink(missing_ok=True)

    def _note_sleeper(self, event: GuardianMoved) -> None:
        account = service().machine.state.accounts[event.account]
        for one in account.guardians.values():
            if one.spec.activate_at_r is not None and guardian_id(account, one.number) == event.guardian:
                self.sleepers.add(event.guardian)

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._market()), loop.create_task(self._lives())]
        self.up_again.set()
        fault_s = self.bars * self.bar_s + 4
        troubled = loop.create_task(self._trouble(fault_s))
        others = loop.create_task(self._others())
        await self._unless_failed(asyncio.sleep(fault_s), tasks)
        await self._unless_failed(troubled, tasks)
        others.cancel()
        await self._calm(tasks)
        self._judge_switch()
        self.is_over = True
        self.kill()
        for task in (*tasks, self.ticker):
            task.cancel()
        await asyncio.gather(*tasks, *([self.life] if self.life else []), return_exceptions=True)
        self._bury()

    async def _unless_failed(self, waiting: Any, tasks: list[asyncio.Task[None]]) -> None:
        """Wait, unless one of the world's own tasks ends: none may."""
        main = asyncio.ensure_future(waiting)
        done, _ = await asyncio.wait([main, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if main not in done:
            raise AssertionError("a part of the world has ended")

    async def _market(self) -> None:
        """Prices move twice a bar, until calm."""
        machine = service().machine
        while True:
            for coin in self.markets:
                if not self.is_calm:
                    self.px[coin] *= 1 + self.chance.gauss(0, 0.003)
                if not self.is_service_down:
                    machine.push_price(coin, round(round(self.px[coin], 1) * E8))
            await asyncio.sleep(self.bar_s / 2)

    async def _others(self) -> None:
        """The other hand, and an end in order now and then."""
        for _ in range(self.bars):
            await asyncio.sleep(self.bar_s)
            if self.chance.random() < self.hand_rate and not self.is_service_down:
                await self._act()
            if self.crash_rate and self.chance.random() < 0.05:
                self.kill()
            if self.trouble == "stops" and self.chance.random() < 0.3:
                self.stop.set()
                self.asked_to_stop = self.now()

    async def _trouble(self, fault_s: float) -> None:
        chance = self.chance
        await asyncio.sleep(chance.uniform(2, fault_s - 1))
        now = self.now()
        match self.trouble:
            case "outage":
                self.outages.append((now, now + chance.choice([chance.uniform(3, 35), OUTAGE_MAX_S - 0.5])))
                await asyncio.sleep(self.outages[-1][1] - now)
            case "long_outage":
                self.outages.append((now, now + chance.uniform(45, 120)))
                await asyncio.sleep(self.outages[-1][1] - now + 3)
            case "death":
                self.up_again.clear()
                self.kill()
                await asyncio.sleep(chance.uniform(100, 130))
                self.up_again.set()
            case "wedge":
                self.is_wedged = True
                await asyncio.sleep(chance.uniform(100, 130))
                self.is_wedged = False
                self.kill()
            case "crash_loop":
                end = now + 160
                while self.now() < end:
                    await asyncio.sleep(0.02)
                    if self.one is not None:
                        await asyncio.sleep(chance.uniform(0, 0.3))
                        self.kill()
                        await asyncio.sleep(chance.uniform(5, 15))
            case "suspend":
                for _ in range(chance.randint(1, 3)):
                    self.sleep_host(chance.choice([chance.uniform(2, 40), chance.uniform(45, 300)]))
                    await asyncio.sleep(chance.uniform(0.5, 5))
            case "jump":
                self.clocks.jumped_ns += round(chance.choice([3600, -3600, 365 * 86_400, -365 * 86_400]) * 1e9)
            case "service_down":
                await self._service_down(chance.uniform(1, 70))
            case "reset":
                await self._reset()
            case "bare":
                await self._bare()

    async def _service_down(self, seconds: float) -> None:
        """The service ends and starts again later: its clock goes on where it was (a sandbox's), and its switches
        have what was left of them.
        """
        machine = service().machine
        machine.catch_up()
        now_ms = machine.clock.now_ms()
        saved = SavedClock(now_ms, now_ms + int(LEASE_REAL_MS * self.speed), 0)
        self.ticker.cancel()
        self.is_service_down = True
        self.downs.append((self.now(), self.now() + seconds))
        await asyncio.sleep(seconds)
        down_ms = int(seconds * 1000 * self.speed)
        began_ms = now_ms + down_ms if self.is_hosted else saved.ceiling_ms
        if self.rules.service_counts_downtime:
            began_ms = saved.ceiling_ms + down_ms
        machine.clock = type(machine.clock).start(self.speed, began_ms)
        self.service_began = (self.now(), began_ms)
        if not self.rules.service_counts_downtime:
            machine.down_since_ms = saved.alive_ms
        self.is_service_down = False
        self.ticker = asyncio.get_running_loop().create_task(service()._tick())

    async def _reset(self) -> None:
        await self._judge_epoch()
        self.trades += await self.hand.trades()
        self.excused.clear()
        self.sleepers.clear()
        self.resets += 1
        await self.hand.ask("POST", "/v1/sandbox/accounts/reset", {})
        self.reset_at = self.now()
        self.switch.append((self.now(), "reset", ""))
        # A copy of it was still on its way.
        if self.wire.newest_order is not None:
            self.wire.send_late(self.wire.newest_order, self.chance.uniform(0.1, 3))

    async def _bare(self) -> None:
        """Every stop is cancelled by hand, and every guardian of a position disarmed."""
        now_ms = service().machine.clock.now_ms()
        for coin in self.markets:
            await self.hand.cancel_stops(coin)
            self._excuse(coin, now_ms)
        await self.hand.disarm("trailing_stop")

    async def _act(self) -> None:
        """Something that a person does beside the bot. What it takes from a position of ours is excused until calm."""
        coin = self.chance.choice(self.markets)
        act = self.chance.choice(HAND_ACTS)
        self.note("hand", act, coin)
        now = service().machine.clock.now_ms()
        match act:
            case "order":
                await self.hand.order(coin, self.chance.choice(["long", "short"]), 150, stop_pct=2)
            case "naked_order":
                await self.hand.order(coin, self.chance.choice(["long", "short"]), 400)
                self._excuse(coin, now)
            case "limit":
                await self.hand.order(coin, "long", 100, limit_px=self.px[coin] * 0.998)
                self._excuse(coin, now)
            case "cancel_stops":
                await self.hand.cancel_stops(coin)
                await self.hand.disarm("trailing_stop")
                for one in self.markets:
                    self._excuse(one, now)
            case "disarm":
                # Of an order that is on its way by then nobody could know better.
                self.unguarded.append((now, now + round(PASS_MAX_S * 1000 * self.speed)))
                await self.hand.disarm("dead_man_switch")
            case "close":
                await self.hand.try_to("POST", f"/v1/positions/{coin}/close", {"fraction": 1})
            case "cancel_entries":
                for order in (await self.hand.ask("GET", f"/v1/orders?coin={coin}"))["orders"]:
                    if order["kind"] == "limit":
                        await self.hand.try_to("DELETE", f"/v1/orders/{order['oid']}")

    def _excuse(self, coin: str, now_ms: int) -> None:
        """Until the next two passes are over, when nothing fails meanwhile."""
        fails = self.rate + self.crash_rate + self.disk_rate > 0
        self.excused.setdefault(coin, []).append(
            (now_ms, now_ms + (86_400_000 if fails else round((2 * self.pass_s + 2) * 1000 * self.speed)))
        )

    def _mended_ms(self, until_ms: int) -> int:
        """When an excuse ends.

        One that ends in an outage, in the host's sleep or while no daemon is ready goes on for as long after it.
        """
        began, began_ms = self.service_began
        for a, b in sorted([*self.outages, *self.sleeps, *self.blocked]):
            if a <= self._real(until_ms) <= b:
                until_ms = began_ms + round((b - began + 2 * self.pass_s + 2) * 1000 * self.speed)
        return until_ms

    # -- calm, and judging

    async def _look_after(self) -> None:
        """A person says `bot resume` for what waits for one: a journal that was lost had sent something else under
        the same key.
        """
        while self.is_attended and self.damaged:
            await asyncio.sleep(5)
            one = self.one
            if one is not None and any(
                intent.code == "idempotency_conflict" for intent in one.kernel.intents.live.values()
            ):
                await CommandRoutes(one.access).resume(ControlRequest({}))

    async def _calm(self, tasks: list[asyncio.Task[None]]) -> None:
        looking = asyncio.get_running_loop().create_task(self._look_after())
        try:
            await self._settle(tasks)
        finally:
            looking.cancel()

    async def _settle(self, tasks: list[asyncio.Task[None]]) -> None:
        self.is_calm = True
        self.outages = [(a, min(b, self.now())) for a, b in self.outages]
        await self.wire.arrivals()
        began = self.now()
        while not await self._passes_twice(one := await self._quiet(tasks, began), tasks):
            pass
        await self._judge(one)

    async def _quiet(self, tasks: list[asyncio.Task[None]], began: float) -> supervisor.Supervisor:
        """The run of which nothing is open any more."""
        why: str | None = "no life"
        while self.now() < began + SETTLED_S or self._is_held():
            await self._unless_failed(asyncio.sleep(0.5), tasks)
            why = self._unsettled()
            if why is None:
                break
        assert why is None, f"not settled after {self.now() - began:g} s of calm: {why}"
        assert self.one is not None
        return self.one

    async def _passes_twice(self, one: supervisor.Supervisor, tasks: list[asyncio.Task[None]]) -> bool:
        """False: it met the end that one of its requests had been dealt before all was calm, or such a request kept
        it from comparing.
        """
        one.kernel.run.comparison.next_ms = 0
        cycles, began = one.progress.cycles, self.now()
        one.scheduler.wake()
        while self.one is one and one.progress.cycles < cycles + 2:
            assert self.now() < began + SETTLED_S, "no pass ends any more"
            await self._unless_failed(asyncio.sleep(0.25), tasks)
        has_compared = one.kernel.run.comparison.next_ms > one.kernel.budget.pacer.mono_ms() + REFUSED_MS
        return self.one is one and has_compared

    def _is_held(self) -> bool:
        """Whether all that is not settled ends with its time: a close in doubt (of a position that has gone, say), an
        entry in doubt that the service refuses, one that is held because another hand was there (or its strategy was
        paused, or has lost enough for the day), what a lost journal may have sent too, or an entry that waits behind
        one in doubt.
        """
        one = self.one
        held = [] if one is None else [i for i in one.kernel.intents.live.values() if i.state not in FINAL]
        in_doubt = {i.market for i in held if i.state in IN_DOUBT}
        # Of what is in doubt the fence tells, at the first try after it.
        told_s = RETRY_MAX_S + 2 * self.pass_s
        return bool(held) and all(
            self.now() < self._real(i.not_after_ms + SETTLE_MS) + told_s
            and (
                (i.state == "sending" and (i.action == "close" or i.id in self.wire.refused))
                or ((self.hand_rate > 0 or self.is_shared) and one.kernel.journal.intents.is_unsent(i))
                or one.kernel.execution.sender.search.may_arrive_late(i)
                or (i.market in in_doubt and i.action == "open" and one.kernel.journal.intents.is_unsent(i))
            )
            for i in held
        )

    def _unsettled(self) -> str | None:
        """What is not as it should be yet."""
        one = self.one
        if one is None or self.down_since is not None or not one.kernel.state.ready:
            return "not ready"
        kernel = one.kernel
        open_now = [i.id for i in kernel.intents.live.values() if i.state not in FINAL]
        if open_now:
            return f"intents {[(i.id[:6], i.action, i.state, i.code) for i in kernel.intents.live.values()]}"
        if kernel.state.behind or kernel.journal.fault is not None:
            return f"behind {kernel.state.behind}, fault {kernel.journal.fault}"
        if kernel.guardians.fallen():
            return f"guardians {[g.name for g in kernel.guardians.fallen()]}"
        bare = [p.market for p in kernel.account.account_state.unprotected() if p.owner is not None]
        if bare:
            return f"without a stop: {bare}"
        process = one.heartbeats.process
        if process is None or not process.lease().may_open:
            return f"the heartbeat {process and process.lease()}"
        return None

    async def _judge_epoch(self) -> None:
        """Of the epoch that is: the events tell all."""
        events = await self.hand.events()
        self.last_events = events
        excused = {coin: [(a, self._mended_ms(b)) for a, b in spans] for coin, spans in self.excused.items()}
        account_checks.never_naked(events, self.wire.keys, excused=excused, sleepers=self.sleepers)
        under_way = {
            event.get("requestId") for event in events if any(a <= event["ts"] <= b for a, b in self.unguarded)
        }
        account_checks.guarded_entries(events, self.wire.keys, but=self.wire.late_ids | self.wire.raced_ids | under_way)
        account_checks.books_are_exact(events, await self.hand.ask("GET", "/v1/account"))

    async def _judge(self, one: supervisor.Supervisor) -> None:
        await self._judge_epoch()
        here = await self.hand.trades()
        self.trades += here
        rows = _rows(one.kernel.journal)
        account_checks.intents_and_trades(rows, self.trades, buried=self.buried)
        causes = Counter(
            (self.causes | _causes(rows))[trade["idempotencyKey"]]
            for trade in self.trades
            if trade["source"] == "agent"
        )
        assert [cause for cause, n in causes.items() if n > 1] == [], "two orders for one decision"
        if not self.damaged and not self.disk_rate:
            assert [key for key, sent in self.wire.bodies.items() if len(sent) > 1] == [], (
                "a key was sent with two bodies"
            )
        epoch_of = {row["id"]: row["epoch"] for row in rows}
        for trade in here:
            is_of_now = (
                epoch_of.get(trade["idempotencyKey"], one.kernel.account.account_state.epoch)
                == one.kernel.account.account_state.epoch
            )
            assert is_of_now or trade["requestId"] in self.wire.raced_ids, f"an order of before the reset: {trade}"
        db = one.kernel.journal.db
        assert list(db.query("SELECT id FROM events GROUP BY id HAVING count(*) > 1")) == []
        account = await self._account_as_told(one)
        account_checks.account_state_is_right(one.kernel.account.account_state, account)
        assert [g["type"] for g in account["guardians"]].count("dead_man_switch") == 1, account["guardians"]
        self._judge_fills(one)

    async def _account_as_told(self, one: supervisor.Supervisor) -> dict[str, Any]:
        """The account once the daemon has been told of all that happened: a stop may fire at the very instant of the
        judgment.
        """
        for _ in range(ROUNDS_MAX):
            account: dict[str, Any] = await self.hand.ask("GET", "/v1/account")
            cursor = one.kernel.journal.events.cursor
            if cursor is not None and cursor.last_id == account["lastEventId"]:
                break
            one.scheduler.wake()
            await asyncio.sleep(0.25)
        return account

    def _has_skipped(self) -> bool:
        """Whether the feed may have been begun anew: what it skipped was read from the account."""
        return bool(self.damaged or self.resets or self.disk_rate or self.wire.met["stale"])

    def _judge_fills(self, one: supervisor.Supervisor) -> None:
        """Each fill of ours was told to its strategy once."""
        heard: Counter[str] = Counter()
        for instance in one.kernel.strategy_host.instances:
            fills = one.kernel.journal.state.of_strategy(instance.name).get("fills", {})
            assert max(fills.values(), default=0) <= 1, f"{instance.name} has heard twice: {fills}"
            heard.update(fills.keys())
        assert self.is_shared or max(heard.values(), default=0) <= 1, f"told to two strategies: {heard}"
        if self._has_skipped():
            return
        named = {name.split()[0] for name in heard}
        for event in self.last_events:
            if (
                event["type"] == "fill"
                and event["subtype"] == "entry"
                and event.get("idempotencyKey") in self.wire.keys
            ):
                assert event["data"]["oid"] in named, f"never heard of: {event}"

    def _real(self, service_ms: int) -> float:
        """The real instant of one of the service's."""
        began, began_ms = self.service_began
        return began + (service_ms - began_ms) / 1000 / self.speed

    def _judge_switch(self) -> None:
        """No dead-man too early, none too late."""
        end = self.now()
        gaps = list(zip([0.0, *self.proofs], [*self.proofs, end], strict=True))
        for a, b in gaps:
            born = self._born(a)
            boot_beats = [at for at in self.beats if born <= at < b]
            assert len(boot_beats) <= beat.BOOT_BEATS_MAX, (
                f"no proof of life from {a:.1f} to {b:.1f}, and lives that began meanwhile beat at {boot_beats}"
            )
        stale_s = LENGTHS.stale_ns / 1e9
        waking = [] if self.down_since is None else [(self.down_since, end)]
        blocked = [
            *self.outages,
            *self.sleeps,
            *self.blocked,
            *waking,
            *self._unbeaten(end),
            *((a + stale_s, b) for a, b in gaps if b - a > stale_s),
        ]
        stood: dict[str, float] = {}
        for at, what, which in [*self.switch, (end, "end", "")]:
            if what == "fired":
                self.fired += 1
                assert self.is_excused(at, blocked), (
                    f"the dead-man fired at {at:.1f} without a silence of {OUTAGE_MAX_S:g} s: {sorted(blocked)},"
                    f" {self.downs}"
                )
            if what in ("armed", "activated"):
                stood.setdefault(which, at)
                continue
            for one, since in list(stood.items()):
                if which in (one, ""):
                    del stood[one]
                    self._judge_span(since, at, gaps)

    def _unbeaten(self, end: float) -> Iterator[tuple[float, float]]:
        """From the end of a start to its first pass, where what starts may beat is spent by those before it: of that
        life only a pass is a proof.
        """
        for ready in self.readies:
            before = max((at for at in self.passes if at <= ready), default=0.0)
            if sum(before < at <= ready for at in self.beats) >= beat.BOOT_BEATS_MAX:
                yield ready, min((at for at in self.passes if at > ready), default=end) + 1

    def _judge_span(self, since: float, until: float, gaps: list[tuple[float, float]]) -> None:
        """A switch that stood so long: there was no gap in the proofs of life that it should have fired in."""
        for a, b in gaps:
            born = self._born(a)
            a = max(a, since)
            limit = a + LATE_MAX_S + 1 + self._down_s(a, b)
            # A beat that left in time counts from when it arrives: a host may fall asleep meanwhile.
            limit = max([limit, *(at + D_S + 1 for left, at in self.carried if left < a + LATE_MAX_S - D_S)])
            # So does a boot beat, of which there are few, when it found the switch still standing as it should.
            for left, at in self.carried:
                if born <= left < b and at < limit:
                    limit = max(limit, at + D_S + 1 + self._down_s(at, b))
            assert limit >= min(b, until), (
                f"no proof of life from {a:.1f} to {b:.1f}, and the dead-man stood until {until:.1f}: its bound was"
                f" {limit:.1f}"
            )

    def _born(self, since: float) -> float:
        """When the first life began that has shown nothing since an earlier one's last proof of life, or since the
        beginning.
        """
        return min((at for at in self.births if at >= since), default=math.inf)

    def _down_s(self, a: float, b: float) -> float:
        """What the service's own downtime between the two adds: a switch has at least half a minute left after it."""
        return sum(d - c + 35 for c, d in self.downs if d > a and c < b)

    def is_excused(self, fired: float, blocked: list[tuple[float, float]]) -> bool:
        """Was there before it a silence that nobody could have broken, as long as the bound?

        Downtime of the service lengthens the span and counts for nothing.
        """
        down = sum(b - a + 4 for a, b in self.downs if a < fired)
        begin = fired - D_S - down - 2
        merged: list[list[float]] = []
        for a, b in sorted((a, b) for a, b in blocked if b > begin and a < fired):
            if merged and a <= merged[-1][1] + 6:
                merged[-1][1] = max(merged[-1][1], b)
            else:
                merged.append([a, b])
        return any(min(b, fired) - max(a, begin) >= OUTAGE_MAX_S for a, b in merged)


class _Direct:
    """The hand's way to the service: no fault, no waiting."""

    async def request(self, method: str, path: str, *, json: Any, headers: dict[str, str]) -> Any:
        from json import dumps, loads

        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        body = b"" if json is None else dumps(json).encode()
        answer = await served(service().app, method, path, [*raw, (b"content-type", b"application/json")], body)
        return SimpleNamespace(
            status_code=answer.status_code, text=answer.content.decode(), json=lambda: loads(answer.content)
        )


class _Nowhere(httpx.AsyncBaseTransport):
    """The client makes its own HTTP client, which is replaced before it is used."""


_NOWHERE: Final = _Nowhere()


@cache
def _settings(speed: float, path: str) -> Settings:
    return Settings.model_validate(
        {
            "name": "world",
            "account": {"base_url": "embedded"},
            "embedded": {"clock": "real" if speed == 1 else f"{speed:g}x"},
            "dead_man": {"heartbeat_seconds": round(D_S * speed), "on_miss": "flatten"},
            "strategies": [{"name": "s-btc", "use": "tests:Busy", "markets": ["BTC"], "budget_usd": 5_000}],
            "orders": {"path": path},
            "reconcile_seconds": 30,
            "state_dir": "/nonexistent",
        }
    )


def _causes(rows: list[Any]) -> dict[str, tuple[Any, ...]]:
    return {row["id"]: cause_of(row) for row in rows}


def _rows(journal: Any) -> list[Any]:
    return list(journal.db["intents"].rows)


@contextlib.contextmanager
def _in_place(world: World) -> Iterator[None]:
    """The daemon's processes, threads, files and chance are the world's while the block runs; and the service's."""
    chance = _Chance(random.Random(f"names {world.seed}"))
    swapped = [
        (supervisor, "HeartbeatProcess", partial(Heartbeat, world)),
        (supervisor, "ProgressWriter", partial(Progress, world)),
        (supervisor, "PassScheduler", partial(BeatTiming, world)),
        (worker_pool, "Worker", Inline),
        (supervisor, "listen", _no_bell),
        (supervisor, "secrets", chance),
        (startup, "secrets", chance),
        (accounts, "secrets", chance),
        (auth, "secrets", chance),
        (orders, "secrets", chance),
        (price_feed, "HISTORY_BARS", 2 * CANDLES_MAX),
    ]
    kept = [(where, name, getattr(where, name)) for where, name, _ in swapped]
    for where, name, value in swapped:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in kept:
            setattr(where, name, value)


def lived(seeds: Iterable[int], folder: Path, kind: type[World] = World) -> Iterator[World]:
    """World after world.

    The failure of one leaves the others their lives; it is raised after the last of them, with its seed.
    """
    failed: list[AssertionError] = []
    for seed in seeds:
        try:
            world = run_named(seed, folder, kind)
        except AssertionError as error:
            failed.append(error)
            if len(failed) == FAILED_MAX:
                break
        else:
            yield world
    if failed:
        for other in failed[1:]:
            failed[0].add_note(str(other))
        raise failed[0]


def run_named(seed: int, folder: Path, kind: type[World] = World) -> World:
    """As `run_world`; the error says of which world it is."""
    try:
        return run_world(seed, folder, kind=kind)
    except Exception as error:
        raise AssertionError(f"world {seed} (it comes first with --seed {seed} --worlds 1): {error}") from error


def is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], seed: int, folder: Path, kind: type[World], *, match: str | None = None
) -> None:
    """A world of this seed breaks a promise with the bug, and none without it."""
    template(folder)
    with pytest.MonkeyPatch.context() as to:
        bug(to)
        with pytest.raises(AssertionError, match=match):
            run_world(seed, folder, kind=kind)
    run_world(seed, folder, kind=kind)


def run_world(seed: int, folder: Path, rules: Rules | None = None, kind: type[World] = World) -> World:
    """A world from its first to its last instant. AssertionError names what was broken."""
    service()
    with virtual_time() as (loop, clocks):
        world = kind(seed, folder, clocks, rules)
        publish = service().machine.publish
        try:
            loop.run_until_complete(world.live())
        finally:
            service().machine.publish = publish
            for leftover in folder.glob(f"{seed}.db*"):
                leftover.unlink()
    return world

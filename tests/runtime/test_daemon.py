"""The whole daemon, with a real service process, heartbeat process and journal: how it stops, what it leaves, and
what ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from pydantic import SecretStr
from ruamel.yaml import YAML

from bot.client import Client
from bot.clock import iso
from bot.config import Settings, load
from bot.config.settings import Metrics, Notify
from bot.errors import AccessLost, BotError, ConfigError, Exit, JournalError, TryLater
from bot.operating_system import socket_name
from bot.runtime import daemon, pass_runner, resync, startup, supervisor
from bot.runtime.alerts import notifier
from bot.runtime.control_plane import commands, control_address, reporting, status_documents
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.excursion_watch import ExcursionWatch
from bot.runtime.control_plane.metrics import Figures, MetricSources
from bot.runtime.control_plane.price_watch import PriceWatch
from bot.runtime.journal import database, halt_flags
from bot.runtime.journal import journal as journal_module
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel import kernel as loop_module
from bot.runtime.kernel import upkeep
from bot.runtime.liveness import heartbeat, heartbeat_rule, systemd
from bot.runtime.liveness.heartbeat import Lease
from bot.runtime.liveness.instance_lock import HeldDirectory, folders_held, is_held, runtime_dir
from bot.runtime.liveness.progress_stamp import ProgressReader
from bot.runtime.passes import pass_budget
from bot.runtime.passes.stream_wakeup import listen
from bot.runtime.reconciliation.guardians import ARM_TRIES, DEAD_MAN
from bot.runtime.run_request import RunRequest
from bot.runtime.shutdown import DaemonEnd
from bot.runtime.strategy_host import worker
from bot.service.security.auth import SECRET_LETTERS
from tests.conftest import REPOSITORY
from tests.fakes import FakePacer
from tests.runtime.alerts.notification_receiver import postbox
from tests.runtime.stalling_proxy import Halfway
from tests.service import serving

START_MS = 1_795_132_800_000
CONTROL = {"Authorization": "Bearer bbc_test"}
# what is promised
STOP_S = 5.0
# far more than a tenth of it, and less than the client's fifteen
IN_TIME_S = 12.0
PATIENCE_S = 60.0
# Shown when there is a reason, and with live prices.
IN_TROUBLE_ONLY = {
    "bracketbot_degraded": {"reason": set[str]()},
    "bracketbot_price_age_seconds": {"market": set[str]()},
    "bracketbot_price_closed": {"market": set[str]()},
}
# how long each part of a stop may take
ENDINGS = ("GRACE_S", "HOOKS_S", "STOP_S")
LIMITS: dict[str, float] = {name: getattr(supervisor, name) for name in ENDINGS}
UNSETTLED = "SELECT id FROM intents WHERE state NOT IN ('accepted', 'rejected', 'expired', 'void')"
CARRIED = (
    "SELECT 1 FROM outbox, meta WHERE kind = 'daemon.failed' AND name LIKE 'notify:%' AND CAST(value AS INTEGER) >= seq"
)

STRATEGIES = '''\
"""Strategies that each fail in one way, and some that work."""

import sys
import threading
from pathlib import Path

from bot import Bracket, Close, Open, Strategy


class Holds(Strategy):
    """Goes long with a stop, once."""

    def on_bar(self, view, bar):
        view.state["bars"] = view.state.get("bars", 0) + 1
        if not view.position(bar.market):
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=20))

    def on_stop(self, view):
        view.state["stopped"] = True


class HangsAtItsFirstFill(Holds):
    def on_fill(self, view, fill):
        view.state["fills"] = view.state.get("fills", 0) + 1
        hung = Path(__file__).with_name("hung")
        if not hung.exists():
            hung.touch()
            threading.Event().wait()
        return ()


class Rests(Strategy):
    """Places an entry far below the price, once."""

    def on_bar(self, view, bar):
        if not view.orders(bar.market):
            yield Open(bar.market, "long", usd=100, limit_px=round(bar.close * 0.5), bracket=Bracket(stop_pct=2))


class Idle(Strategy):
    def on_bar(self, view, bar):
        return ()


class Raises(Idle):
    def on_bar(self, view, bar):
        raise RuntimeError("a mistake")


class Exits(Idle):
    def on_bar(self, view, bar):
        sys.exit(3)


class Nonsense(Idle):
    def on_bar(self, view, bar):
        return ["buy!", 7]


class Number(Idle):
    def on_bar(self, view, bar):
        return 42


class Flood(Idle):
    def on_bar(self, view, bar):
        while True:
            yield Close(bar.market)


class Tiny(Idle):
    """Signals with numbers that no order can carry."""

    def on_bar(self, view, bar):
        yield Open(bar.market, "long", size=1e-300, bracket=Bracket(stop_pct=1))
        yield Open(bar.market, "long", usd=10, bracket=Bracket(stop_px=1e-300))
        yield Open(bar.market, "long", usd=1e300, bracket=Bracket(stop_pct=1))


class State(Idle):
    def on_bar(self, view, bar):
        view.state["self"] = self
        return ()


class Hangs(Idle):
    def on_bar(self, view, bar):
        threading.Event().wait()


class Slow(Idle):
    """Needs a moment for each warm-up bar."""

    def on_bar(self, view, bar):
        threading.Event().wait(0.002)
        return ()


class SlowAndHangsAtItsFirstFill(HangsAtItsFirstFill):
    on_bar = Slow.on_bar


class HangsAtStart(Idle):
    def on_start(self, view):
        threading.Event().wait()


class HangsAtStop(Idle):
    def on_stop(self, view):
        threading.Event().wait()


class HangsAtPlan(Holds):
    def confirm(self, plan):
        threading.Event().wait()
'''

CONFIG = """\
account: {{base_url: "{base_url}", api_key: "${{env:KEY}}"}}
{dead_man}
safety: {{on_exit: {on_exit}}}
state_dir: {state}
strategies_dir: {strategies}
strategies:
{lines}
orders: {{path: {path}}}
"""


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop must not depend on how busy this machine is, nor on the time of day. A test of the limits sets its own."""
    for name in ENDINGS:
        monkeypatch.setattr(supervisor, name, PATIENCE_S)
    monkeypatch.setattr(notifier, "FLUSH_S", PATIENCE_S)
    monkeypatch.setattr(reporting, "FAILED_AGAIN_MS", 10**15)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of a stop a tenth as long: what waits by them is over long before IN_TIME_S, on any machine; what
    waits without one waits for the client's fifteen seconds.
    """
    for name in ENDINGS:
        monkeypatch.setattr(supervisor, name, LIMITS[name] / 10)


@pytest.fixture
def cut_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging pass is cancelled at once; the rest of the stop has the time it needs."""
    monkeypatch.setattr(supervisor, "GRACE_S", 0.1)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the umask, which the daemon sets for the process."""
    before = os.umask(0o022)
    os.umask(before)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()
    os.umask(before)


def _served(clock: str) -> Iterator[serving.Served]:
    served = serving.start(
        {"BOT_CONTROL_TOKEN": "bbc_test"},
        port=0,
        clock=clock,
        start_ms=START_MS,
        markets=("BTC", "ETH"),
        rate_limits=False,
    )
    yield served
    serving.end(served)


@pytest.fixture(scope="module")
def still() -> Iterator[serving.Served]:
    """A service whose clock the test advances."""
    yield from _served("manual")


@pytest.fixture(scope="module")
def fast() -> Iterator[serving.Served]:
    """A service whose minutes take a second, with a real heartbeat process."""
    yield from _served("60x")


@dataclass
class Place:
    """An account on a service, a folder, and the daemon that runs there."""

    served: serving.Served
    http: httpx.AsyncClient
    account: dict[str, Any]
    folder: Path
    halfway: Halfway
    key: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[DaemonEnd] | None = None

    def settings(
        self, *strategies: str, on_exit: str = "leave", dead_man: int | None = 1200, path: str = "plan"
    ) -> Settings:
        folder = self.folder / "strategies"
        folder.mkdir(exist_ok=True)
        (folder / "many.py").write_text(STRATEGIES)
        lines = "\n".join(
            f'  - {{name: {name.lower()}, use: "many:{name}", markets: [{"ETH" if n else "BTC"}], interval: 1m,'
            " budget_usd: 1000}"
            for n, name in enumerate(strategies)
        )
        text = CONFIG.format(
            base_url=self.halfway.base_url,
            on_exit=on_exit,
            state=self.folder / "state",
            strategies=folder,
            lines=lines,
            path=path,
            dead_man="" if dead_man is None else f"dead_man: {{heartbeat_seconds: {dead_man}, on_miss: flatten}}",
        )
        config = self.folder / "bot.yaml"
        config.write_text(text)
        return load(config, {"KEY": self.key})

    def request(self, settings: Settings, **more: Any) -> RunRequest:
        given = {"base_url": self.halfway.base_url, "api_key": SecretStr(self.key), "stop": self.stop}
        return RunRequest(settings=settings, **(given | more))

    def begin(self, settings: Settings, *, held: HeldDirectory | None = None, **more: Any) -> asyncio.Task[DaemonEnd]:
        request = self.request(settings, on_ready=self.ready.set, **more)
        run = daemon.run(request, held=held)
        self.task = asyncio.create_task(run)
        return self.task

    async def ran(self, settings: Settings, **more: Any) -> asyncio.Task[DaemonEnd]:
        """Start the daemon and wait until it is ready."""
        task = self.begin(settings, **more)
        waiting = asyncio.create_task(self.ready.wait())
        await asyncio.wait({task, waiting}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert self.ready.is_set(), task.result() if task.done() else "not ready"
        return task

    async def end(self) -> DaemonEnd:
        """Stop the daemon and return its end."""
        assert self.task is not None
        self.stop.set()
        return await asyncio.wait_for(self.task, PATIENCE_S)

    async def end_in_time(self) -> DaemonEnd:
        """Stop the daemon; it must not take longer than is promised."""
        began = time.monotonic()
        end = await self.end()
        assert time.monotonic() - began < IN_TIME_S
        return end

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.account['apiKey']}"}
        answer = await self.http.request(method, path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def control(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.http.post(f"/sandbox/v1/{path}", json=body, headers=CONTROL)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def minute(self) -> None:
        await self.control("clock/advance", {"ms": 60_000})

    async def state_of(self, *strategies: str) -> list[str]:
        """The account: coins of its positions, kinds of its orders, types of its guardians."""
        account = await self.ask("GET", "/v1/account")
        return sorted(
            [one["coin"] for one in account["positions"]]
            + [one["kind"] for one in account["orders"]]
            + [one["type"] for one in account["guardians"]]
        )

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.folder / "state" / "journal.db")) as db:
            return db.execute(sql).fetchall()


MakePlace = Callable[[serving.Served], Awaitable[Place]]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[MakePlace]:
    async with contextlib.AsyncExitStack() as stack:

        async def make(served: serving.Served) -> Place:
            http = await stack.enter_async_context(
                httpx.AsyncClient(base_url=served.base_url, trust_env=False, timeout=30)
            )
            account = (await http.post("/v1/sandbox/accounts", json={"name": "daemon"})).json()
            minted = (
                await http.post("/sandbox/v1/keys", json={"accountId": account["accountId"]}, headers=CONTROL)
            ).json()
            halfway = await stack.enter_async_context(Halfway(served.port))
            one = Place(served, http, account, tmp_path, halfway, minted["apiKey"])
            stack.push_async_callback(_ended, one)
            return one

        yield make


async def _ended(one: Place) -> None:
    one.stop.set()
    if one.task is not None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(one.task, PATIENCE_S)


async def until(what: str, holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = holds()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


def beating() -> list[int]:
    """The pids of the heartbeat processes of this process."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = f"PPid:\t{os.getpid()}\n" in (one / "status").read_text()
            if is_child and b"bot.runtime.liveness.heartbeat" in (one / "cmdline").read_bytes():
                found.append(int(one.name))
    return found


# -- stopping


@pytest.mark.parametrize(
    ("on_exit", "left"), [("leave", ["BTC", "limit", "stop_loss"]), ("cancel", ["BTC", "stop_loss"]), ("flatten", [])]
)
async def test_a_stop_leaves_what_on_exit_says(
    place: MakePlace, still: serving.Served, on_exit: str, left: list[str]
) -> None:
    one = await place(still)
    await one.ran(one.settings("Holds", "Rests", on_exit=on_exit))
    await one.minute()

    async def traded() -> bool:
        return await one.state_of() == ["BTC", "dead_man_switch", "limit", "stop_loss"]

    await until("position and resting entry", traded)
    end = await one.end()
    assert (end.exit_code, end.message) == (Exit.DONE, "")
    assert await one.state_of() == left, "and the dead-man is disarmed"
    assert end.left.known
    assert end.left.complete
    assert len(end.left.positions) == left.count("BTC")
    assert one.query("SELECT state FROM strategy_state WHERE strategy='holds'")[0][0].endswith('"stopped": true}')


async def test_a_stop_leaves_foreign_orders_and_positions_alone(place: MakePlace, still: serving.Served) -> None:
    one = await place(still)
    await one.ran(one.settings("Idle", on_exit="flatten"))
    await one.ask("POST", "/v1/orders", {"market": "ETH", "side": "short", "usdAmount": 100})
    await one.ask(
        "POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 100, "type": "limit", "limitPx": "1000"}
    )
    end = await one.end()
    assert end.exit_code is Exit.DONE
    assert await one.state_of() == ["ETH", "limit"]


async def test_a_start_writes_the_fingerprints_that_a_replay_compares(place: MakePlace, still: serving.Served) -> None:
    one = await place(still)
    await one.ran(one.settings("Idle"))
    await one.end()
    (mark,) = json.loads(one.query("SELECT value FROM meta WHERE name='runs'")[0][0])
    assert len(mark["strategies"]["idle"]["source"]) == 16
    assert (mark["balanceUsd"], mark["epoch"]) == ("10000", 0)


def test_the_limits_of_a_stop_add_up_to_less_than_the_promised_five_seconds() -> None:
    assert sum(LIMITS.values()) + heartbeat.END_S <= STOP_S - 1


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(("on_exit", "code"), [("leave", Exit.DONE), ("flatten", Exit.TIMEOUT)])
async def test_a_stop_ends_in_time_when_the_service_hangs(
    place: MakePlace, fast: serving.Served, on_exit: str, code: Exit
) -> None:
    one = await place(fast)
    await one.ran(one.settings("Holds", on_exit=on_exit))
    one.halfway.hangs = lambda _path: True
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    end = await one.end_in_time()
    assert end.exit_code is code
    assert not end.left.known
    assert end.message
    assert beating() == []


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    "path", ["/v1/account", "/v1/events", "/v1/guardians", "/v1/markets", "/v1/markets/BTC/candles"]
)
async def test_a_stop_during_recovery_ends_in_time_when_the_service_hangs(
    place: MakePlace, still: serving.Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(systemd, "notify", told.append)
    one = await place(still)
    one.halfway.hangs = lambda asked: asked == path
    one.begin(one.settings("Holds"))
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    end = await one.end_in_time()
    assert end.exit_code is Exit.DONE
    assert not one.ready.is_set()
    assert ("READY=1" in told, "STOPPING=1" in told) == (False, path != "/v1/account")


async def test_a_daemon_waits_for_a_service_that_does_not_answer_yet(place: MakePlace, still: serving.Served) -> None:
    one = await place(still)
    port, one.halfway.upstream = one.halfway.upstream, 1
    one.begin(one.settings("Holds"))
    await until("it has asked", lambda: one.halfway.paths)
    one.halfway.upstream = port
    await asyncio.wait_for(one.ready.wait(), PATIENCE_S)
    assert (await one.end()).exit_code is Exit.DONE


async def test_sigterm_ends_the_process_while_it_recovers(place: MakePlace, still: serving.Served) -> None:
    one = await place(still)
    one.halfway.hangs = lambda path: path == "/v1/guardians"
    one.settings("Holds")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bot",
        "run",
        str(one.folder / "bot.yaml"),
        env=os.environ | {"KEY": one.key},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == Exit.DONE
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_second_daemon_on_one_state_directory_ends_at_once(place: MakePlace, still: serving.Served) -> None:
    one = await place(still)
    settings = one.settings("Idle")
    await one.ran(settings)
    # Whoever asked before it looked would wait for this one.
    nobody = "http://127.0.0.1:1"
    with pytest.raises(BotError, match="another daemon runs on"):
        async with asyncio.timeout(PATIENCE_S):
            await daemon.run(one.request(settings, base_url=nobody, stop=asyncio.Event()))
    assert (await one.end()).exit_code is Exit.DONE


async def test_lock_files_that_are_removed_while_a_daemon_runs_are_restored(
    place: MakePlace, still: serving.Served
) -> None:
    one = await place(still)
    settings = one.settings("Idle")
    await one.ran(settings)
    (account,) = [path for path in runtime_locks() if str(settings.state_dir) in path.read_text()]
    for lock in (settings.state_dir / "lock", account):
        lock.unlink()
    await until("both are put back", lambda: account.exists() and is_held(settings.state_dir))
    with pytest.raises(BotError, match="another daemon runs on"):
        await daemon.run(one.request(settings, stop=asyncio.Event()))
    assert (await one.end()).exit_code is Exit.DONE
    assert not is_held(settings.state_dir)


def runtime_locks() -> list[Path]:
    place = runtime_dir()
    assert place is not None
    return list(place.glob("account-*.lock"))


async def test_a_second_daemon_on_one_account_is_refused_although_its_folder_differs(
    place: MakePlace, still: serving.Served
) -> None:
    one = await place(still)
    settings = one.settings("Idle")
    await one.ran(settings)
    other = settings.model_copy(update={"state_dir": one.folder / "other"})
    with pytest.raises(BotError, match=rf"trades account 0x\w+ \(pid {os.getpid()} on {one.folder / 'state'}\)"):
        await daemon.run(one.request(other, stop=asyncio.Event()))
    assert (await one.end()).exit_code is Exit.DONE
    assert not (one.folder / "other" / "journal.db").exists()


# -- the control socket


async def asked(one: Place, method: str, path: str) -> tuple[int, Any]:
    with socket_name(one.folder / "state" / control_address.SOCKET) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    writer.write(f"{method} {path} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE_S)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1]), json.loads(body)


async def test_the_wait_for_a_service_at_the_start_is_reported_with_its_reason() -> None:
    stop, told = asyncio.Event(), list[str]()

    async def ask() -> int:
        stop.set()
        raise TryLater("connect_error", "refused")

    assert await startup.until_up(ask, stop, told.append) is None
    assert told == ["the service does not answer, try 1 (connect_error: refused)"]
    stop.clear()

    async def answers() -> int:
        return 1

    assert await startup.until_up(answers, stop, told.append) == 1
    assert told[1:] == [""], "it is there"


async def test_status_and_metrics_show_no_account_before_the_start_has_recovered_it(
    place: MakePlace, still: serving.Served
) -> None:
    """The account is read once, then the service is away, so what the account holds now is unknown."""
    pytest.importorskip("prometheus_client")
    one = await place(still)

    async def told() -> tuple[Any, bool]:
        everything = status_documents.status(run.access) | run.access.base()
        told_of = {family.name for family in Figures(sources).collect()}
        known = {"bracketbot_positions", "bracketbot_strategy_net_usd", "bracketbot_strategy_paused"} & told_of
        assert len(known) in (0, 3), known
        return everything, bool(known)

    async with built(one, one.settings("Idle")) as (run, _):
        sources = MetricSources(
            run.passes.meter, run.kernel, lambda: None, None, lambda: run.access.state()[0], lambda: run.is_recovered
        )
        one.halfway.hangs = lambda path: path == "/v1/guardians"
        recovering = asyncio.create_task(run.kernel.recover())
        await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
        recovering.cancel()
        run.access.set_away("the service does not answer")
        status, has_figures = await told()
        assert (status["state"], status["why"], has_figures) == ("STARTING", "the service does not answer", False)
        assert (status["epoch"], status["old_s"]) == (None, None)
        assert not {"account", "positions", "unprotected", "is_safe"} & set(status)
        strategies = status_documents.strategies(run, run.settings)
        assert [each["state"] for each in strategies] == ["STARTING"]
        one.halfway.hangs = lambda _path: False
        await run.kernel.recover()
        status, has_figures = await told()
        assert (status["positions"], status["is_safe"], has_figures) == (0, True, True)


@pytest.mark.usefixtures("hurry")
async def test_the_control_socket_answers_before_the_service_does_and_while_it_hangs(
    place: MakePlace, fast: serving.Served
) -> None:
    one = await place(fast)
    one.halfway.hangs = lambda path: path == "/v1/account"
    one.begin(one.settings("Idle"))
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    status, told = await asked(one, "GET", "/status")
    assert (status, told["state"], told["epoch"], told["why"]) == (200, "STARTING", None, None)
    assert one.folder / "state" in folders_held(), "it is found before it has an account"
    assert (await asked(one, "GET", "/positions"))[0] == 503, "what is not known yet is not told"
    one.halfway.hangs = lambda _path: False
    one.halfway.hung.clear()
    one.stop.set()
    assert one.task is not None
    await asyncio.wait_for(one.task, PATIENCE_S)
    one.stop.clear()
    await one.ran(one.settings("Idle"))

    async def passed() -> bool:
        return bool((await asked(one, "GET", "/status"))[1]["passes"])

    await until("a pass", passed)
    one.halfway.hangs = lambda _path: True
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    status, told = await asked(one, "GET", "/status")
    assert (status, told["address"]) == (200, one.account["address"])
    assert told["state"] in ("RUNNING", "DEGRADED")
    assert (await asked(one, "POST", "/stop"))[1]["state"] == "STOPPING"
    assert (await asyncio.wait_for(one.task, PATIENCE_S)).exit_code is Exit.DONE
    assert not (one.folder / "state" / control_address.SOCKET).exists()


async def test_a_reload_that_fails_for_the_service_has_not_the_exit_code_of_a_config_error(
    place: MakePlace, fast: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "WARM_S", 0.05)
    one = await place(fast)
    one.halfway.hangs = lambda path: path == "/v1/guardians"
    task = one.begin(one.settings("Idle"), reread=lambda: load(one.folder / "bot.yaml", {"KEY": one.key}))
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    for method in ("GET", "POST"):
        status, told = await asked(one, method, "/reload")
        assert (status, told["error"]["code"]) == (503, "starting"), "it has not recovered"
    one.halfway.hangs = lambda _path: False
    one.stop.set()
    await asyncio.wait_for(task, PATIENCE_S)
    one.stop.clear()
    await one.ran(one.settings("Idle"), reread=lambda: load(one.folder / "bot.yaml", {"KEY": one.key}))
    one.settings("Idle", "Holds")
    one.halfway.hangs = lambda path: path == "/v1/markets/ETH/candles"
    status, told = await asked(one, "POST", "/reload")
    assert (status, told["applied"], told["exit_code"]) == (200, [], Exit.TIMEOUT)
    (one.folder / "bot.yaml").write_text("strategies: [")
    assert (await asked(one, "POST", "/reload"))[1]["exit_code"] == Exit.CONFIG


# -- what ends a run


async def test_a_run_in_which_no_strategy_asked_for_an_order_says_so(place: MakePlace, fast: serving.Served) -> None:
    one = await place(fast)
    task = await one.ran(one.settings("Idle"))
    await one.end()
    await task
    ((payload,),) = one.query("SELECT payload FROM outbox WHERE kind = 'daemon.stopped'")
    assert "as asked; no strategy asked for an order in this run" in payload


async def test_a_key_that_is_revoked_ends_the_run_and_silences_the_heartbeat(
    place: MakePlace, fast: serving.Served
) -> None:
    one = await place(fast)
    task = await one.ran(one.settings("Idle"))
    await until("the heartbeat beats", lambda: "/v1/heartbeat" in one.halfway.paths)
    await one.control("keys", {"accountId": one.account["accountId"]})
    end = await asyncio.wait_for(task, PATIENCE_S)
    assert end.exit_code is Exit.REFUSED
    assert "unauthorized" in end.message
    assert one.query("SELECT kind FROM outbox ORDER BY seq DESC LIMIT 1") == [("daemon.failed",)]
    assert beating() == []
    assert "dead_man_switch" in await one.state_of(), "the switch stands, and will do its work"


async def test_while_the_journal_cannot_be_written_nothing_is_opened_and_heartbeats_go_on(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 50)
    monkeypatch.setattr(upkeep, "RETRY_MS", 50)
    one = await place(still)
    await one.ran(one.settings("Holds"))
    with contextlib.closing(sqlite3.connect(one.folder / "state" / "journal.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            one.halfway.paths.clear()
            await one.minute()
            await until("the loop beats on", lambda: "/v1/heartbeat" in one.halfway.paths)
        assert await one.ask("GET", "/v1/trades") == {"trades": [], "nextBefore": None}, (
            "what cannot be written is not sent"
        )
        guard = {"type": "account_drawdown", "maxLossPctFromDayStart": 50, "action": "flatten"}
        made = (await one.ask("POST", "/v1/guardians", guard))["id"]

        async def is_told() -> bool:
            _, told = await asked(one, "GET", "/events?type=guardian")
            return bool(told["events"][-1]["data"]["guardianId"] == made)

        await one.minute()
        await until("the memory is asked", is_told)
        assert one.query(f"SELECT 1 FROM events WHERE payload LIKE '%{made}%'") == [], "its file does not know yet"
        status, told = await asked(one, "GET", f"/explain?id={made}")
        assert (status, told["steps"][0]["what"]) == (200, "guardian")
        assert (await asked(one, "GET", "/explain?id=grd_none"))[0] == 404
        other.rollback()

    async def is_open_again() -> bool:
        await one.minute()
        return bool((await one.ask("GET", "/v1/trades"))["trades"])

    await until("it opens again", is_open_again)
    assert (await one.end()).exit_code is Exit.DONE
    kinds = [kind for (kind,) in one.query("SELECT kind FROM outbox ORDER BY seq")]
    assert ("daemon.degraded" in kinds, "daemon.recovered" in kinds) == (True, True)
    assert one.query(UNSETTLED) == []


async def test_a_pause_that_a_restart_would_forget_says_so(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_given: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 50)
    one = await place(still)
    await one.ran(one.settings("Idle"))
    assert (await asked(one, "POST", "/pause"))[1]["forgotten"] is None
    with contextlib.closing(sqlite3.connect(one.folder / "state" / "journal.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        assert (await asked(one, "POST", "/resume"))[1]["forgotten"] is None, "its copy beside the file is written"
        with monkeypatch.context() as disk:
            disk.setattr(halt_flags, "_write", refuses)
            told = (await asked(one, "POST", "/pause"))[1]
        other.rollback()
    assert "in memory only, and a restart forgets it: journal" in told["forgotten"]


async def test_a_damaged_journal_is_set_aside_and_rebuilt_from_the_service(
    place: MakePlace, still: serving.Served
) -> None:
    one = await place(still)
    await one.ran(one.settings("Holds"))
    await one.minute()
    await until("it holds a position", lambda: "/v1/orders/confirm" in one.halfway.paths)
    await one.end()
    held = await one.ask("GET", "/v1/trades")
    path = one.folder / "state" / "journal.db"
    path.write_bytes(b"not a database, a note of mine\n" * 200)
    one.stop.clear()
    one.ready.clear()
    await one.ran(one.settings("Holds"))
    await one.minute()
    assert (await one.end()).exit_code is Exit.DONE
    assert await one.ask("GET", "/v1/trades") == held, "nothing was ordered a second time"
    assert [found.name for found in path.parent.glob("journal.db.damaged-*")] != []
    assert "journal.rebuilt" in [kind for (kind,) in one.query("SELECT kind FROM outbox")]


async def test_the_next_run_reports_a_killed_run_and_not_one_that_ended_in_order(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await place(still)

    async def told() -> int:
        one.stop.clear()
        one.ready.clear()
        await one.ran(one.settings("Idle"))
        ((count,),) = one.query("SELECT count(*) FROM outbox WHERE kind='daemon.killed'")
        assert isinstance(count, int)
        return count

    async def fails(_run: supervisor.Supervisor, **_how: Any) -> DaemonEnd:
        raise AccessLost("unauthorized", "no")

    assert await told() == 0
    assert (await one.end()).exit_code is Exit.DONE
    one.stop.clear()
    with monkeypatch.context() as patched:
        patched.setattr(supervisor.Supervisor, "go", fails)
        with pytest.raises(AccessLost):
            await one.begin(one.settings("Idle"))
    assert await told() == 0, "each of the ends before was told by its own run"
    assert one.task is not None
    one.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one.task
    assert await told() == 1
    assert (await one.end()).exit_code is Exit.DONE
    assert await told() == 1, "it is told once"
    await one.end()


async def test_a_run_that_ends_without_its_journal_reports_it(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 50)
    one = await place(still)
    await one.ran(one.settings("Holds"))
    with contextlib.closing(sqlite3.connect(one.folder / "state" / "journal.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        await one.minute()
        await until("the loop beats on", lambda: "/v1/heartbeat" in one.halfway.paths)
        end = await one.end()
        other.rollback()
    assert end.exit_code is Exit.UNSAFE
    assert "cannot be written" in end.message


async def test_the_event_stream_wakes_the_daemon(place: MakePlace, fast: serving.Served) -> None:
    one = await place(fast)
    await one.ran(one.settings("Idle"))
    await until("it listens", lambda: "/v1/events/stream" in one.halfway.paths)
    await one.end()
    rung = asyncio.Event()
    async with Client(fast.base_url, one.key) as client:
        since = (await client.account()).last_event_id
        bell = asyncio.create_task(listen(client, lambda: since, rung.set, knows=lambda _event: False))
        await one.ask("POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50})
        await asyncio.wait_for(rung.wait(), PATIENCE_S)
        bell.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await bell


async def test_a_journal_of_another_account_is_not_used(place: MakePlace, still: serving.Served) -> None:
    one = await place(still)
    settings = one.settings("Idle")
    daemon.private_dir(settings.state_dir)
    open_journal(settings.state_dir / "journal.db", address="0x" + "cd" * 20).close()
    with pytest.raises(JournalError, match="belongs to account"):
        await one.begin(settings)


# -- strategies that go wrong


@pytest.mark.parametrize(
    "bad",
    [
        "Raises",
        "Exits",
        "Nonsense",
        "Number",
        "Flood",
        "State",
        "Hangs",
        "HangsAtStart",
        "HangsAtStop",
        "HangsAtPlan",
        "Tiny",
    ],
)
async def test_a_failing_strategy_stops_no_other(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setattr(worker, "LIMIT_S", 2.0 if bad.startswith("Hangs") else PATIENCE_S)
    one = await place(still)
    await one.ran(one.settings("Holds", bad))
    for n in range(1, 4):
        await one.minute()

        def decided(n: int = n) -> bool:
            rows = one.query("SELECT json_extract(state, '$.bars') FROM strategy_state WHERE strategy='holds'")
            return bool(rows) and rows[0][0] > n - 1 and one.query(UNSETTLED) == []

        await until(f"bar {n} is decided", decided)
    end = await one.end()
    assert end.exit_code is Exit.DONE
    intents = one.query("SELECT strategy, state, code FROM intents")
    assert {row[:2] for row in intents} >= {("holds", "accepted")}, (intents, one.query("SELECT * FROM refusals"))
    assert {row[0] for row in intents if row[1] == "accepted"} == {"holds"}, intents
    for name, text, what in (
        ("Raises", '        raise RuntimeError("a mistake")', "RuntimeError: a mistake"),
        ("Exits", "        sys.exit(3)", "SystemExit: 3"),
    ):
        if bad == name:
            line = STRATEGIES.splitlines().index(text) + 1
            told = one.query("SELECT json_extract(payload, '$.message') FROM outbox WHERE kind='strategy.quarantined'")
            assert told == [(f"{name.lower()}: {what} (many.py:{line})",)]


# -- another daemon


async def test_two_daemons_of_two_machines_on_one_account_both_stop_their_entries(
    place: MakePlace, fast: serving.Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One config and one key, but a state directory and a folder of locks for each daemon, as on two machines."""
    one = await place(fast)
    await one.ran(one.settings("Idle"))
    (tmp_path / "other").mkdir()
    other = replace(one, folder=tmp_path / "other", stop=asyncio.Event(), ready=asyncio.Event(), task=None)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
        (tmp_path / "other").chmod(0o700)
        await other.ran(other.settings("Idle"))
    try:
        for each in (one, other):
            await until("it knows of the other", lambda each=each: foreign(each))
            assert "was armed by another daemon or agent on this account; no entries until bot resume" in foreign(each)
            status, told = await asked(each, "GET", "/status")
            assert (status, told["state"]) == (200, "DEGRADED")
        assert len(await one.state_of()) == 2, "each has its dead-man"
    finally:
        await _ended(other)
    assert (await one.end()).exit_code is Exit.DONE


def foreign(one: Place) -> str:
    found = one.query("SELECT value FROM meta WHERE name = 'foreign_writer'")
    return found[0][0] if found else ""


# -- the heartbeat


async def test_a_heartbeat_that_dies_is_started_again(place: MakePlace, fast: serving.Served) -> None:
    one = await place(fast)
    await one.ran(one.settings("Idle"))
    (first,) = await until("a heartbeat process", beating)
    os.kill(first, signal.SIGKILL)
    await until("another one", lambda: [pid for pid in beating() if pid != first])
    assert (await one.end()).exit_code is Exit.DONE
    assert beating() == []


async def test_a_heartbeat_that_is_stopped_is_replaced_before_the_dead_man_fires(
    place: MakePlace, fast: serving.Served
) -> None:
    """The stopped process does nothing; the dead-man switch fires after 20 s of real time."""
    one = await place(fast)
    await one.ran(one.settings("Idle"))
    (first,) = await until("a heartbeat process", beating)
    await until("it beats", lambda: "/v1/heartbeat" in one.halfway.paths)
    os.kill(first, signal.SIGSTOP)
    one.halfway.paths.clear()
    await until("another one", lambda: [pid for pid in beating() if pid != first])
    await until("it beats", lambda: "/v1/heartbeat" in one.halfway.paths)
    assert first not in beating()
    assert "dead_man_switch" in await one.state_of()
    events = (await one.ask("GET", "/v1/events?types=guardian"))["events"]
    assert [event["subtype"] for event in events] == ["armed"], "it has not fired"
    assert (await one.end()).exit_code is Exit.DONE
    assert beating() == []


async def test_heartbeats_go_on_after_the_progress_file_was_removed_and_the_process_killed(
    place: MakePlace, fast: serving.Served
) -> None:
    one = await place(fast)
    await one.ran(one.settings("Idle"))
    (first,) = await until("a heartbeat process", beating)
    (one.folder / "state" / "progress").unlink()
    os.kill(first, signal.SIGKILL)
    await until("another one", lambda: [pid for pid in beating() if pid != first])
    one.halfway.paths.clear()
    boot_beats = heartbeat_rule.BOOT_BEATS_MAX
    await until("it beats on", lambda: one.halfway.paths.count("/v1/heartbeat") > boot_beats)
    assert (await one.end()).exit_code is Exit.DONE


async def test_no_entry_is_sent_while_a_heartbeat_is_overdue(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await place(still)
    async with built(one, one.settings("Idle")) as (run, _):
        lapsed = Lapsed()
        lapsed.acknowledge(lapsed.lapses)
        monkeypatch.setattr(run.heartbeats, "process", lapsed)
        assert run._lease() is None
        overdue = lapsed.lease()._replace(may_open=False, overdue=True)
        monkeypatch.setattr(lapsed, "lease", lambda: overdue)
        no = run._lease()
        assert no is not None
        assert (no.code, no.message) == (
            "heartbeat_unsure",
            "the dead-man's deadline is not certain (a heartbeat is overdue)",
        )


class Lapsed:
    """A heartbeat process with a lapse: the switch may have fired unnoticed."""

    alive = may_beat = True

    def __init__(self) -> None:
        self.lapses = 3
        self.acknowledged = 0

    def is_stuck(self) -> bool:
        return False

    def lease(self) -> Lease:
        lapsed = self.lapses > self.acknowledged
        return Lease(None, True, lapsed, False, not lapsed, self.lapses, 1, 0, 9, 0, "", None, True)

    def acknowledge(self, lapses: int) -> None:
        self.acknowledged = lapses


class Timed(Lapsed):
    """A heartbeat process with the timing of a switch of so many real seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.lengths = heartbeat_rule.beat_timing(seconds)


@contextlib.asynccontextmanager
async def built(one: Place, settings: Settings) -> AsyncIterator[tuple[supervisor.Supervisor, Client]]:
    """A supervisor that has been built and not started, and its client."""
    daemon.private_dir(settings.state_dir)
    async with Client(one.halfway.base_url, one.key) as client:
        snapshot = await client.account()
        journal = open_journal(settings.state_dir / "journal.db", address=snapshot.address)
        access = DaemonAccess(settings, base_url=one.halfway.base_url, stop=one.stop, tail=None, config=None)
        run = supervisor.Supervisor(one.request(settings), client, journal, daemon.place_strategies(settings), access)
        try:
            yield run, client
        finally:
            journal.close()
            run.progress.close()
            run.workers.close()


@contextlib.asynccontextmanager
async def lapsed_run(
    one: Place, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[supervisor.Supervisor, Client, Lapsed]]:
    """A supervisor whose start is complete, its client, and its heartbeat process, which has a lapse."""
    async with built(one, one.settings("Holds")) as (run, client):
        await run.kernel.recover()
        run.heartbeats.is_start_complete = True
        lapsed = Lapsed()
        monkeypatch.setattr(run.heartbeats, "process", lapsed)
        yield run, client, lapsed


def runs_at(run: supervisor.Supervisor, client: Client, speed: float) -> None:
    """The service says how fast its clock runs, and the next pass follows it."""
    now_ms = client.clock.now_ms() + 1_000
    client.clock.observe(sandbox=f"{now_ms};speed={speed:g}", date=None, is_service=True, sent_ns=0, received_ns=0)
    assert client.clock.speed == speed
    pass_runner._degrade_for(run.kernel.health, "heartbeat_timing", run.heartbeats.follow_clock())


async def test_heartbeats_follow_a_clock_that_is_set_to_run_faster(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await place(still)
    settings = one.settings("Holds")
    assert settings.dead_man is not None
    seconds = settings.dead_man.heartbeat_seconds
    async with built(one, settings) as (run, client):
        changed: list[float] = []

        def change() -> None:
            changed.append(client.clock.speed)
            monkeypatch.setattr(run.heartbeats, "process", Timed(seconds / client.clock.speed))

        monkeypatch.setattr(run.heartbeats, "replace", change)
        monkeypatch.setattr(run.heartbeats, "process", Timed(seconds))
        runs_at(run, client, 1)
        assert changed == []
        runs_at(run, client, 2)
        assert changed == [2], "half of the time is left"
        runs_at(run, client, seconds)
        assert "heartbeat_timing" in run.kernel.health.degraded, "a second: nobody could keep the switch from firing"
        runs_at(run, client, 1)
        assert run.kernel.health.degraded == {}
        assert changed == [2], "beats that come too often do no harm"
        runs_at(run, client, seconds)
        runs_at(run, client, 0)
        assert run.kernel.health.degraded == {}, "under a clock that is moved by hand real seconds mean nothing"


async def test_heartbeats_follow_a_clock_that_is_stopped_and_started_again(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await place(still)
    settings = one.settings("Holds")
    assert settings.dead_man is not None
    async with built(one, settings) as (run, client):
        beats: list[float] = []
        changed: list[float] = []

        async def beat_once() -> None:
            beats.append(client.clock.speed)

        monkeypatch.setattr(client, "heartbeat", beat_once)
        monkeypatch.setattr(run.heartbeats, "replace", lambda: changed.append(client.clock.speed))
        monkeypatch.setattr(run.heartbeats, "process", Timed(settings.dead_man.heartbeat_seconds))
        runs_at(run, client, 1)
        await run.heartbeats.beat_by_hand()
        assert beats == [], "its process beats"
        runs_at(run, client, 0)
        await run.heartbeats.beat_by_hand()
        await run.heartbeats.beat_by_hand()
        assert beats == [0], "once each time that the clock has moved: the process cannot know"
        run.heartbeats.process = None
        runs_at(run, client, 0)
        assert changed == []
        runs_at(run, client, 1)
        assert changed == [1], "from here on a process beats"


class Watching(Timed):
    """A heartbeat process that was started only to watch."""

    may_beat = False

    def start(self, *, may_beat: bool = True) -> None:
        self.may_beat = may_beat

    def close(self) -> None:
        pass


async def test_a_heartbeat_process_replaced_before_the_first_pass_sends_no_heartbeats_yet(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats before the first pass count against the limit of failed starts."""
    one = await place(still)
    async with built(one, one.settings("Holds")) as (run, _):
        monkeypatch.setattr(run.heartbeats, "_started", lambda: Watching(60))
        for has_started in (False, True):
            monkeypatch.setattr(run.heartbeats, "process", Watching(120))
            run.heartbeats.is_start_complete = has_started
            run.heartbeats.replace()
            assert run.heartbeats.process is not None
            assert run.heartbeats.process.may_beat is has_started


async def test_a_lapse_is_followed_by_a_resync_before_anything_is_opened(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch has fired unnoticed; a lapse during the resync causes another one."""
    one = await place(still)
    settings = one.settings("Holds")
    async with built(one, settings) as (run, client):
        await run.kernel.recover()
        lapsed = Lapsed()
        monkeypatch.setattr(run.heartbeats, "process", lapsed)
        for guardian in (await one.ask("GET", "/v1/guardians"))["guardians"]:
            await one.ask("DELETE", f"/v1/guardians/{guardian['id']}")
        await one.minute()
        await client.status()
        await run.kernel.cycle()
        assert "BTC" not in await one.state_of(), "opened on a lapsed lease"
        await run.resync.if_lapsed()
        assert lapsed.acknowledged == 3
        assert await one.state_of() == ["dead_man_switch"]
        one.halfway.hangs = lambda path: path == "/v1/account"
        lapsed.lapses = 4
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await run.resync.if_lapsed()
        assert lapsed.acknowledged == 3, "a resync that did not end counts for nothing"
        assert run.kernel.state.ready, (
            "a stop that cuts it winds down what was recovered before, as safety.on_exit says"
        )


async def test_a_resync_that_waits_for_the_service_opens_nothing_and_stops_no_pass(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without passes there are no exits, stops and heartbeats, and the dead-man switch would close the positions of
    a healthy daemon.
    """
    one = await place(still)
    async with lapsed_run(one, monkeypatch) as (run, client, lapsed):

        async def away() -> list[Any]:
            raise TryLater("service_unavailable", "not now")

        with monkeypatch.context() as patched:
            patched.setattr(client, "guardians", away)
            await one.minute()
            await client.status()
            made = run.progress.cycles
            await run.passes.one_pass()
            assert (run.progress.cycles, lapsed.acknowledged) == (made + 1, 0)
            assert run.kernel.journal.state.of_strategy("holds")["bars"] == 1
            await one.minute()
            await client.status()
            await run.passes.one_pass()
            told = [row["kind"] for row in run.journal.db["outbox"].rows]
            assert told.count("heartbeat.lapsed") == 1, "once, and not in every pass: the outbox has an end"
            assert "BTC" not in await one.state_of(), "opened on a lapsed lease"
        await one.minute()
        await client.status()
        await run.passes.one_pass()
        assert lapsed.acknowledged == 3
        assert "BTC" in await one.state_of()


async def test_a_resync_whose_first_question_hangs_delays_no_pass_and_takes_a_slow_answer(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting in each pass would stop the heartbeats, and the dead-man switch would close the positions of a healthy
    daemon.
    """
    one = await place(still)
    async with lapsed_run(one, monkeypatch) as (run, client, lapsed):
        monkeypatch.setattr(resync, "YIELD_MS", 1)
        account, asked, may_answer = client.account, list[str](), asyncio.Event()

        async def slow() -> Any:
            asked.append("account")
            await may_answer.wait()
            return await account()

        monkeypatch.setattr(client, "account", slow)
        made = run.progress.cycles
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await run.passes.one_pass()
        assert (run.progress.cycles, asked, lapsed.acknowledged) == (made + 3, ["account"], 0)
        may_answer.set()
        assert run.resync.question is not None
        await run.resync.question
        await run.passes.one_pass()
        assert lapsed.acknowledged == 3


async def test_work_before_a_pass_uses_the_time_of_the_pass_and_a_pass_without_work_follows(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work whose request hangs and a pass whose requests hang would together stop the heartbeats."""
    one = await place(still)
    async with lapsed_run(one, monkeypatch) as (run, client, lapsed):
        pacer, done = FakePacer(), list[str]()
        run.kernel.budget.pacer = run.kernel.budget.pacer = pacer
        events, account = client.events, client.account

        async def told(*args: Any, **named: Any) -> Any:
            done.append("events")
            return await events(*args, **named)

        async def snapshot() -> Any:
            done.append("account")
            return await account()

        async def work() -> None:
            done.append("work")
            pacer.now_ms += 15_000

        async def another() -> None:
            done.append("another")

        monkeypatch.setattr(client, "events", told)
        monkeypatch.setattr(client, "account", snapshot)
        made = run.progress.cycles
        await run.passes.one_pass(work, another)
        assert (done, run.progress.cycles, run.kernel.is_late) == (["work"], made + 1, True)
        await run.passes.one_pass(work, another)
        assert set(done[1:]) == {"events"}, "stops and exits of this one wait for nothing"
        assert lapsed.acknowledged == 0
        done.clear()
        await run.passes.one_pass(another)
        assert (done[:2], lapsed.acknowledged) == (["another", "account"], 3)


async def test_a_heartbeat_that_was_refused_ends_the_run(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat process got a 401 before the kernel did."""
    one = await place(still)
    settings = one.settings("Idle")

    class Refused(Lapsed):
        alive = False
        exit_code = int(Exit.REFUSED)

    async with built(one, settings) as (run, _):
        monkeypatch.setattr(run.heartbeats, "process", Refused())
        with pytest.raises(AccessLost):
            run._passed(None)


async def test_a_daemon_that_loses_its_journal_again_and_again_arms_its_dead_man_at_each_start(
    place: MakePlace, still: serving.Served
) -> None:
    """More often than a comparison tries another key; the earlier guardian is gone each time."""
    one = await place(still)
    settings = one.settings("Idle")
    for _life in range(ARM_TRIES + 2):
        async with built(one, settings) as (run, client):
            await run.kernel.recover()
            assert [guardian.id for guardian in await client.guardians()] == [run.kernel.guardians.ids[DEAD_MAN]]
            await client.disarm(run.kernel.guardians.ids[DEAD_MAN])
        for file in settings.state_dir.glob("journal.db*"):
            file.unlink()


async def test_an_open_position_without_the_dead_man_of_the_config_is_not_safe(
    place: MakePlace, still: serving.Served
) -> None:
    one = await place(still)
    async with built(one, one.settings("Holds")) as (run, client):
        run.kernel.conditions.lease = lambda: None
        await run.kernel.recover()
        (guardian,) = await client.guardians()
        await one.ask("DELETE", f"/v1/guardians/{guardian.id}")
        await run.kernel.events.drain()
        assert status_documents.recovered_status(run, run.settings)["is_safe"], "nothing is open"
        await run.kernel.cycle()
        await one.minute()
        await client.status()
        await run.kernel.cycle()
        assert status_documents.recovered_status(run, run.settings)["is_safe"], "it has armed another one, and opened"
        (guardian,) = await client.guardians()
        await one.ask("DELETE", f"/v1/guardians/{guardian.id}")
        await run.kernel.events.drain()
        told = status_documents.recovered_status(run, run.settings)
        assert (told["positions"], told["is_safe"]) == (1, False)
        assert told["unsafe"] == ["the dead-man switch of the config is not armed"]
        await run.kernel.cycle()
        assert status_documents.recovered_status(run, run.settings)["is_safe"]


async def test_an_end_without_a_stop_is_unsafe_and_left_to_the_dead_man_and_says_when(
    place: MakePlace, still: serving.Served
) -> None:
    one = await place(still)
    async with built(one, one.settings("Holds")) as (run, client):
        run.kernel.conditions.lease = lambda: None
        await run.kernel.recover()
        await one.minute()
        await client.status()
        await run.kernel.cycle()
        assert status_documents.recovered_status(run, run.settings)["is_safe"]
        (stop,) = (await one.ask("GET", "/v1/orders"))["orders"]
        await one.ask("DELETE", f"/v1/orders/{stop['oid']}")
        await run.kernel.events.drain()
        told = status_documents.recovered_status(run, run.settings)
        assert (told["is_safe"], told["unprotected"]) == (False, ["BTC"])
        assert told["unsafe"] == ["without a stop: BTC"]
        one.stop.set()
        end = await run.go(beat_at_once=False)
    (switch,) = (await one.ask("GET", "/v1/guardians"))["guardians"]
    assert (end.exit_code, end.message) == (Exit.UNSAFE, "without a stop: BTC")
    assert end.left.positions[0].endswith(" WITHOUT A STOP")
    assert end.left.why == (
        "positions stay open, BTC WITHOUT A STOP (safety.on_exit: leave)",
        f"the dead-man switch stays and fires at {iso(switch['nextDeadline'])}: BTC has no stop at the service",
    )
    await one.control("clock/advance", {"ms": 1_201_000})
    assert "BTC" not in await one.state_of(), "and so it did"


@pytest.mark.usefixtures("cut_soon")
async def test_a_stop_expires_intents_that_were_never_sent(place: MakePlace, still: serving.Served) -> None:
    """The plan hangs at the stop: the next run opens nothing either, and every intent has an end."""
    one = await place(still)
    await one.ran(one.settings("Holds"))
    one.halfway.hangs = lambda path: path == "/v1/orders"
    await one.minute()
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    end = await one.end()
    assert end.exit_code is Exit.DONE
    assert one.query("SELECT state, code FROM intents") == [("expired", "run_ended")]
    assert await one.state_of() == []


@pytest.mark.usefixtures("cut_soon")
async def test_a_stop_settles_an_intent_in_doubt_if_the_service_answers(
    place: MakePlace, still: serving.Served
) -> None:
    one = await place(still)
    await one.ran(one.settings("Holds"))
    first = True

    def hangs(path: str) -> bool:
        nonlocal first
        hung, first = first and path == "/v1/orders/confirm", first and path != "/v1/orders/confirm"
        return hung

    one.halfway.hangs = hangs
    await one.minute()
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    end = await one.end()
    assert end.exit_code is Exit.DONE
    assert one.query("SELECT state, attempts FROM intents") == [("accepted", 2)]
    assert await one.state_of() == ["BTC", "stop_loss"]


@pytest.mark.usefixtures("cut_soon")
async def test_a_fill_whose_hook_is_cut_by_a_stop_counts_once(place: MakePlace, still: serving.Served) -> None:
    """The hook has counted the fill in memory; the page with the fill is read again at the end of the run."""
    one = await place(still)
    settings = one.settings("HangsAtItsFirstFill")
    await one.ran(settings)
    await one.minute()
    await until("the hook hangs", (one.folder / "strategies" / "hung").exists)
    assert (await one.end()).exit_code is Exit.DONE
    assert await one.state_of() == ["BTC", "stop_loss"]
    for event in (one.stop, one.ready):
        event.clear()
    await one.ran(settings)
    await one.end()
    (state,) = one.query("SELECT state FROM strategy_state")[0]
    assert json.loads(state)["fills"] == 1


async def test_a_fill_whose_hook_is_cut_by_a_stop_during_the_start_counts_once(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person buys while the strategy warms up; the fill is delivered after the warm-up, before the start is
    complete.
    """
    one = await place(still)
    name = "SlowAndHangsAtItsFirstFill"
    await warming(one, monkeypatch, name)
    await one.ask("POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 200})
    await until("the hook hangs", (one.folder / "strategies" / "hung").exists)
    assert not one.ready.is_set()
    assert (await one.end()).exit_code is Exit.DONE
    assert one.query("SELECT state FROM strategy_state") == [], "neither the half of a hook nor on_stop is kept"
    one.stop.clear()
    await one.ran(one.settings(name))
    await one.end()
    (state,) = one.query("SELECT state FROM strategy_state")[0]
    assert json.loads(state) == {"fills": 1, "stopped": True}


async def test_a_run_appears_in_prometheus_and_in_notices_to_people(place: MakePlace, fast: serving.Served) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("apprise")
    one = await place(fast)
    with postbox() as box:
        settings = one.settings("Holds", "Raises").model_copy(
            update={"metrics": Metrics(port=0), "notify": Notify.model_construct(urls=(SecretStr(box.url),))}
        )
        await one.ran(settings)
        port = int((settings.state_dir / "metrics.port").read_text())
        with socket.socket() as other:
            # It would be taken by who listens to the network.
            other.bind(("127.0.0.2", port))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/readyz")).status_code == 200
            assert (await http.get("/livez")).status_code == 200
            assert (await http.get("/nothing")).status_code == 404
            assert (await http.post("/metrics")).status_code == 405
            for what in ("raises is quarantined", "BTC: long"):
                await until(what, lambda what=what: any(what in title for title in box.titles))
            ready = await http.get("/readyz")
            text = (await http.get("/metrics")).text
        await one.end()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert (ready.status_code, ready.text) == (200, "ready, DEGRADED\n"), "it closes and protects"
    assert figures["bracketbot_ready"] == "1.0"
    assert figures["bracketbot_unprotected_positions"] == "0.0"
    assert figures['bracketbot_strategy_quarantined{strategy="raises"}'] == "1.0"
    assert figures['bracketbot_guardian_stands{guardian="dead_man"}'] == "1.0"
    assert float(figures['bracketbot_strategy_fills_total{strategy="holds"}']) >= 1
    assert float(figures["bracketbot_heartbeat_deadline_seconds"]) > 0
    assert not (settings.state_dir / "metrics.port").exists()
    ((kind, payload),) = one.query("SELECT kind, payload FROM outbox ORDER BY seq DESC LIMIT 1")
    assert (kind, "no strategy asked" in payload) == ("daemon.stopped", False)
    judge_monitoring({**IN_TROUBLE_ONLY, **labels_of(figures)})
    files = [file for file in settings.state_dir.rglob("*") if file.is_file()]
    assert {"journal.db", "journal.safety.json", "calls"} <= {file.name for file in files}
    told = [text.encode(), *(title.encode() for title in box.titles), *(file.read_bytes() for file in files)]
    secret = one.key.split("_")[3]
    assert len(secret) == SECRET_LETTERS
    assert not [text for text in told if secret.encode() in text]


def labels_of(figures: Iterable[str]) -> dict[str, dict[str, set[str]]]:
    """Metric -> label -> its values."""
    found: dict[str, dict[str, set[str]]] = {}
    for series in figures:
        name, _, rest = series.partition("{")
        labels = found.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="([^"]*)"', rest):
            labels.setdefault(label, set()).add(value)
    return found


def judge_monitoring(shown: Mapping[str, Mapping[str, set[str]]]) -> None:
    """The metrics that alerts and dashboard use exist, with the labels that they use."""
    rules = YAML(typ="safe").load(REPOSITORY / "configs" / "monitoring" / "alerts.yml")["groups"][0]["rules"]
    panels = json.loads((REPOSITORY / "configs" / "monitoring" / "grafana.json").read_text())["panels"]
    asked = [(one["expr"], "".join(one["annotations"].values())) for one in rules]
    asked += [(one["expr"], one["legendFormat"]) for panel in panels for one in panel["targets"]]
    for expr, said in asked:
        of_prometheus = {"instance": set[str](), "job": set[str]()}
        series = re.findall(r"(bracketbot_\w+|process_\w+|up)(?:\{(.*?)\})?", expr)
        assert series, expr
        for name, matchers in series:
            assert name == "up" or name in shown, expr
            labels = of_prometheus | dict(shown.get(name, {}))
            for label, sign, value in re.findall(r'(\w+)(=~?)"([^"]*)"', matchers):
                assert label in labels, expr
                assert sign == "=~" or label == "job" or value in labels[label], expr
            assert set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", said)) <= set(labels), (expr, said)


@pytest.mark.parametrize("seconds", [heartbeat_rule.D_SECONDS_MIN, 60, 3600])
def test_the_alert_of_a_late_heartbeat_comes_after_a_beat_is_missed_and_before_the_dead_man_acts(
    seconds: float,
) -> None:
    (group,) = YAML(typ="safe").load(REPOSITORY / "configs" / "monitoring" / "alerts.yml")["groups"]
    exprs = {one["alert"]: one["expr"] for one in group["rules"]}
    left, age = exprs["BracketbotHeartbeatLate"].split(" < ")
    assert (left, age) == ("bracketbot_heartbeat_deadline_seconds", "bracketbot_heartbeat_age_seconds")
    # What is left is less than the age of the newest beat from half of it on.
    lengths = heartbeat_rule.beat_timing(seconds)
    assert lengths.period_ns * (1 + heartbeat_rule.JITTER) + heartbeat_rule.ATTEMPT_NS < lengths.deadline_ns / 2
    # as the file says of scrapes
    asked_s = 5
    assert asked_s + int(group["interval"].removesuffix("s")) <= seconds / 2


def told_at(url: str, settings: Settings) -> Settings:
    pytest.importorskip("apprise")
    return settings.model_copy(update={"notify": Notify.model_construct(urls=(SecretStr(url),))})


async def cut_by(error: Exception, one: Place, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a daemon whose first pass raises this."""

    async def fails(_loop: loop_module.Kernel, **_how: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(loop_module.Kernel, "cycle", fails)
        await asyncio.wait_for(one.begin(settings), PATIENCE_S)


@pytest.mark.parametrize("is_open", [True, False])
async def test_an_internal_fault_that_ends_a_run_causes_an_error_notice_now_or_in_the_next_run(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    one = await place(still)
    with postbox() as box:
        settings = told_at(box.url, one.settings("Idle"))
        box.is_open = is_open
        for _again in range(2):
            with pytest.raises(ValueError, match="one of two"):
                await cut_by(ValueError(f"one of two {one.key}"), one, settings, monkeypatch)
        assert len(box.failures) == is_open, "told once, however often it is started again"
        box.is_open = True
        await one.ran(settings)
        await until("it is told, and noted as told", lambda: one.query(CARRIED))
        await one.end()
        ((title, text),) = box.failures
    assert title.endswith(" has failed")
    assert text.startswith("a bug in Bracketbot: ValueError: one of two ")
    assert "; exit code 1. The account is unattended" in text
    assert one.key not in text


@pytest.mark.parametrize("watch", [PriceWatch, ExcursionWatch])
async def test_a_watch_beside_the_passes_that_has_failed_keeps_no_end_from_what_on_exit_says(
    place: MakePlace, fast: serving.Served, monkeypatch: pytest.MonkeyPatch, watch: type[Any]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(supervisor.log, "error", lambda event, **fields: told.append(f"{event} {fields['error']}"))

    async def fails(_watch: object) -> None:
        raise ValueError("one of two")

    monkeypatch.setattr(watch, "run", fails)
    one = await place(fast)
    await one.ran(one.settings("Holds", on_exit="flatten"))

    async def is_held() -> bool:
        return "BTC" in await one.state_of()

    await until("a position", is_held)
    assert told == ["daemon.task_failed ValueError: one of two"], "it is said while the run goes on"
    with pytest.raises(ValueError, match="one of two"):
        await one.end()
    assert "BTC" not in await one.state_of()
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith("-watch")] == []


async def test_a_notice_is_sent_although_the_journal_that_ended_the_run_cannot_store_it(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await place(still)
    error = JournalError("it can be neither written nor read")

    def takes_nothing(*_notices: Any, **_when: Any) -> None:
        raise error

    with postbox() as box:
        settings = told_at(box.url, one.settings("Idle"))
        real = journal_module.Journal.notify
        monkeypatch.setattr(
            journal_module.Journal,
            "notify",
            lambda journal, *a, **k: real(journal, *a, **k) if journal.path is None else takes_nothing(),
        )
        await cut_by(error, one, settings, monkeypatch)
        assert one.task is not None
        assert one.task.result().exit_code is Exit.UNSAFE
        ((_, text),) = box.failures
    assert text.startswith("it can be neither written nor read; exit code 6")


async def test_a_key_refused_at_the_start_causes_a_notice_by_the_earlier_runs_journal(
    place: MakePlace, still: serving.Served
) -> None:
    one = await place(still)
    with postbox() as box:
        settings = told_at(box.url, one.settings("Idle"))
        await one.ran(settings)
        await one.end()
        one.stop.clear()
        await one.control("keys", {"accountId": one.account["accountId"]})
        for _again in range(2):
            with pytest.raises(AccessLost):
                await one.begin(settings)
        ((_, text),) = box.failures
    assert "unauthorized" in text
    assert "; exit code 7" in text


async def test_a_metrics_port_in_use_is_a_config_error(place: MakePlace, fast: serving.Served) -> None:
    pytest.importorskip("prometheus_client")
    one = await place(fast)
    settings = one.settings("Idle").model_copy(update={"metrics": Metrics(port=fast.port)})
    with pytest.raises(ConfigError, match=r"metrics.port: \d+ on 127.0.0.1 cannot be used"):
        await one.begin(settings)


async def test_a_hangup_takes_over_the_config_with_its_heartbeat_and_its_strategies(
    place: MakePlace, fast: serving.Served
) -> None:
    """The new dead-man switch gets heartbeats with its own timing, and nothing of the old one is left."""
    one, hangup = await place(fast), asyncio.Event()
    settings = one.settings("Holds")
    await one.ran(settings, reread=lambda: load(one.folder / "bot.yaml", {"KEY": one.key}), hangup=hangup)
    before = beating()

    async def switches() -> list[int]:
        guardians = (await one.ask("GET", "/v1/guardians"))["guardians"]
        return [guardian["heartbeatSeconds"] for guardian in guardians if guardian["type"] == "dead_man_switch"]

    assert await switches() == [1200]
    one.settings("Holds", "Idle", dead_man=2400)
    hangup.set()

    async def is_taken_over() -> bool:
        return await switches() == [2400] and len(beating()) == 1 and beating() != before

    await until("the new dead-man stands alone and is beaten", is_taken_over)
    await until("the new strategy is asked", lambda: one.query("SELECT 1 FROM progress WHERE market='ETH'"))
    assert "idle: started" in (await asked(one, "GET", "/status"))[1]["reload"]["applied"], (
        "nobody waited for an answer"
    )
    end = await one.end()
    assert (end.exit_code, end.left.unprotected) == (Exit.DONE, ())
    assert await switches() == []


async def test_a_reload_runs_passes_while_its_strategies_warm_up(
    place: MakePlace, fast: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat and the watchdog need progress stamps: without them a long warm-up would look like a stuck
    kernel.
    """
    monkeypatch.setattr(pass_runner, "YIELD_MS", 50)
    one = await place(fast)
    await one.ran(one.settings("Holds"), reread=lambda: load(one.folder / "bot.yaml", {"KEY": one.key}))
    progress = ProgressReader(str(one.folder / "state" / "progress"))
    one.settings("Holds", "Slow")
    before = progress.read()
    reloading = asyncio.create_task(asked(one, "POST", "/reload"))
    await until("it warms", lambda: "strategy-slow" in [thread.name for thread in threading.enumerate()])
    status, paused = await asked(one, "POST", "/pause")
    assert (status, [each["state"] for each in paused["strategies"]]) == (200, ["PAUSED", "PAUSED"])
    assert (await asked(one, "GET", "/status"))[1]["reload"]["ended_s"] is None
    status, reloaded = await reloading
    assert (status, reloaded["applied"]) == (200, ["slow: started"])
    told = (await asked(one, "GET", "/status"))[1]["reload"]
    assert (told["applied"], told["refused"], told["ended_s"] <= told["began_s"]) == (["slow: started"], [], True)
    assert reloaded["at_ms"] - paused["at_ms"] > 500, "those that trade on can be stopped at once"
    await until("the new strategy is asked", lambda: one.query("SELECT 1 FROM progress WHERE market='ETH'"))
    after = progress.read()
    progress.close()
    assert before is not None
    assert after is not None
    assert not after.is_of_start
    assert after.cycles - before.cycles >= 10, "a thousand bars of the past took two seconds"
    assert (await one.end()).exit_code is Exit.DONE


async def test_a_pause_does_not_wait_for_the_warm_up_of_a_start(
    place: MakePlace, fast: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await warming(await place(fast), monkeypatch)
    status, paused = await asked(one, "POST", "/pause")
    assert (status, [each["state"] for each in paused["strategies"]]) == (200, ["PAUSED"])
    assert not one.ready.is_set()
    assert (await one.end()).exit_code is Exit.DONE


async def test_a_start_sends_heartbeats_during_warm_up_under_a_clock_that_is_advanced_by_hand(
    place: MakePlace, still: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await warming(await place(still), monkeypatch)

    async def moves_on() -> None:
        before = one.halfway.paths.count("/v1/heartbeat")
        await one.control("clock/advance", {"ms": 600_000})
        await until("it beats", lambda: one.halfway.paths.count("/v1/heartbeat") > before)

    for _ in range(4):
        await moves_on()
    assert not one.ready.is_set()
    assert await one.state_of() == ["dead_man_switch"], "twice its time has passed"
    assert (await one.end()).exit_code is Exit.DONE


async def test_a_start_reports_a_dead_service_during_warm_up(
    place: MakePlace, fast: serving.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = ["its disk is full"]
    one = await warming(await place(fast), monkeypatch, trouble=lambda: troubles[0] if troubles else None)

    async def degraded() -> Any:
        return (await asked(one, "GET", "/status"))[1].get("degraded")

    async def is_said() -> bool:
        return await degraded() == {"embedded": "its disk is full"}

    await until("it is said", is_said)
    troubles.clear()

    async def is_over() -> bool:
        return await degraded() == {}

    await until("it is over", is_over)
    assert not one.ready.is_set()
    assert (await one.end()).exit_code is Exit.DONE


async def warming(one: Place, to: pytest.MonkeyPatch, strategy: str = "Slow", **more: Any) -> Place:
    """A daemon during its start: a strategy warms up, and passes run meanwhile."""
    for where in (loop_module, pass_budget):
        to.setattr(where, "YIELD_MS", 50)
    one.begin(one.settings(strategy), **more)
    await until("it warms", lambda: stamped(one))
    return one


def stamped(one: Place) -> bool:
    """True if this run has completed a pass and its start is not complete."""
    if not (one.folder / "state" / "progress").exists():
        return False
    progress = ProgressReader(str(one.folder / "state" / "progress"))
    try:
        stamp = progress.read()
    finally:
        progress.close()
    return stamp is not None and stamp.cycles > 0 and stamp.is_of_start

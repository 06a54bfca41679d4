"""The real processes of a run:

`bot sandbox` and `bot run`, started, killed and asked from outside. No inside of theirs is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from bot.runtime.liveness.progress_stamp import ProgressReader, Stamp
from tests.prepared_process import cold_starts

Process = subprocess.Popen[bytes]

# far beyond what anything takes; a busy machine must not fail a test
WAIT_S = 120.0
# a minute's beginning, so that lockstep bars close when they are told to
START_MS = 1_795_132_800_000
MINUTE_MS = 60_000
# until one of them leaves nothing in doubt
STOPS_MAX = 20

CHURN = '''\
"""Churn: trades often, in all directions, and counts its bars in view.state: what a crash could spoil."""

from bot import Bracket, Close, Field, Open, Params, Strategy


class Churn(Strategy):
    """Opens with stop and target, closes three bars later, long and short in turn."""

    class Params(Params):
        usd: float = Field(100, gt=0)

    def on_bar(self, view, bar):
        n = view.state.get(bar.market, 0)
        view.state[bar.market] = n + 1
        if view.position(bar.market):
            if n % 3 == 2:
                yield Close(bar.market)
        elif not view.orders(bar.market):
            side = "long" if n % 2 else "short"
            yield Open(bar.market, side, usd=self.params.usd, bracket=Bracket(stop_pct=0.3, target_r=2))
'''

HEAD = """\
account: {base_url: "%(base_url)s", api_key: "${file:api-key}"}
dead_man: {heartbeat_seconds: %(heartbeat)d, on_miss: flatten}
state_dir: state
strategies_dir: %(strategies)s
strategies:
"""
CONFIG = (
    HEAD
    + """\
  - {name: churn, use: "churn:Churn", markets: [ETH], interval: 1m, budget_usd: 2000, max_leverage: 2}
  - {name: trend, use: "%(trend)s:Trend", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 3}
reconcile_seconds: 10
"""
)


def python(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bot", *arguments], stdin=subprocess.DEVNULL, **options)


def started(cold: bool, log: int, passed: list[int], *arguments: str, own_session: bool = False) -> Process:
    """`bot ARGUMENTS` that writes to `log`, if `cold` in an interpreter of its own."""
    with cold_starts() if cold else contextlib.nullcontext():
        return python(*arguments, stdout=log, stderr=log, pass_fds=passed, start_new_session=own_session)


def until(what: str, holds: Callable[[], Any], patience_s: float = WAIT_S) -> Any:
    """Look until it holds; what it then is."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {patience_s:g} s: {what}")


SIMULATED = ("--seed", "7", "--markets", "BTC,ETH", "--start", str(START_MS))


class Sandbox:
    """The service as a process: the same port and database through every start.

    `markets` are the options that say which, and their prices.
    """

    def __init__(self, folder: Path, *, clock: str, markets: Sequence[str] = SIMULATED) -> None:
        self.folder = folder
        self.markets = markets
        self.clock = clock
        self.port = 0
        self.api_key = ""
        self._process: Process | None = None
        self._http: httpx.Client | None = None
        self._control: httpx.Client | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        reader, writer = os.pipe()
        with (self.folder / "sandbox.log").open("ab") as log:
            self._process = started(
                self.port == 0,
                log.fileno(),
                [writer],
                "sandbox",
                "--port",
                str(self.port),
                "--db",
                str(self.folder / "sandbox.db"),
                "--clock",
                self.clock,
                *self.markets,
                "--control-socket",
                str(self.folder / "c.sock"),
                "--no-rate-limits",
                "--ready-fd",
                str(writer),
            )
        os.close(writer)
        assert select.select([reader], [], [], WAIT_S)[0], "the service is not ready"
        line = os.read(reader, 4096)
        os.close(reader)
        assert line, (self.folder / "sandbox.log").read_text()
        self.port = json.loads(line)["port"]
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        self._http = httpx.Client(base_url=self.base_url, headers=headers, timeout=30, trust_env=False)
        transport = httpx.HTTPTransport(uds=str(self.folder / "c.sock"))
        self._control = httpx.Client(base_url="http://localhost", transport=transport, timeout=60)

    def open_account(self) -> None:
        assert self._http is not None
        self.api_key = self._http.post("/v1/sandbox/accounts", json={"name": "e2e"}).raise_for_status().json()["apiKey"]
        self._http.headers["Authorization"] = f"Bearer {self.api_key}"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        for http in (self._http, self._control):
            if http is not None:
                http.close()
        self._http = self._control = None
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(WAIT_S)
            self._process = None

    def get(self, path: str) -> Any:
        assert self._http is not None
        return self._http.get(path).raise_for_status().json()

    def advance(self, ms: int) -> int:
        """Move the manual clock; the service's time after it."""
        assert self._control is not None
        now: int = self._control.post("/sandbox/v1/clock/advance", json={"ms": ms}).raise_for_status().json()["now"]
        return now

    def now(self) -> int:
        assert self._control is not None
        now: int = self._control.get("/sandbox/v1/clock").raise_for_status().json()["now"]
        return now

    def events(self) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        found: list[dict[str, Any]] = []
        since = ""
        while page := self.get(f"/v1/events?limit=200{since}")["events"]:
            found += page
            since = f"&since={page[-1]['id']}"
        return found

    def trades(self) -> list[dict[str, Any]]:
        """All of them, newest first."""
        found: list[dict[str, Any]] = []
        before = ""
        while True:
            page = self.get(f"/v1/trades?limit=200{before}")
            found += page["trades"]
            if page["nextBefore"] is None:
                return found
            before = f"&before={page['nextBefore']}"


class Daemon:
    """`bot run` on a folder of its own."""

    def __init__(
        self, folder: Path, sandbox: Sandbox, *, heartbeat_seconds: int, strategies: Path, config: str = CONFIG
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        (folder / "strategies").mkdir()
        (folder / "strategies" / "churn.py").write_text(CHURN)
        (folder / "strategies" / "trend.py").write_text((strategies / "trend.py").read_text())
        key = folder / "api-key"
        key.touch(0o600)
        key.write_text(sandbox.api_key)
        values = {
            "base_url": sandbox.base_url,
            "heartbeat": heartbeat_seconds,
            "strategies": folder / "strategies",
            "trend": "trend",
        }
        self.config = folder / "e2e.yaml"
        self.config.write_text(config % values)
        self.starts = 0
        self._process: Process | None = None
        self._old_fence: int | None = None
        self._is_fresh = False
        # bytes of the log that runs before this one wrote
        self._told_before = 0
        self._ready_at: int | None = None

    def start(self) -> None:
        before = self.stamp()
        self._old_fence = None if before is None else before.fence
        self.starts += 1
        self._is_fresh = True
        self._ready_at = None
        with (self.folder / "daemon.log").open("ab") as log:
            self._told_before = log.tell()
            # As in a unit: nobody can be asked, also while the service is down.
            words = ["run", str(self.config), "--yes"]
            self._process = started(self.starts == 1, log.fileno(), [], *words, own_session=True)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """A clean end; its exit code."""
        return self._end(signal.SIGTERM)

    def stop_settled(self) -> None:
        """A clean end after which no order is in doubt. The service's clock runs on, and on a busy machine what is
        under way does not end within the time that a stop has: then the next run settles it, as after a crash.
        """
        for _ in range(STOPS_MAX):
            assert self.stop() == 0, self.log()[-3000:]
            if not self.unsettled():
                return
            self.start()
            self.wait_ready()
        raise AssertionError(f"{STOPS_MAX} runs in a row left something in doubt: {self.unsettled()}")

    def has_traded(self) -> bool:
        return bool(self.ask("SELECT 1 FROM intents WHERE state = 'accepted' LIMIT 1"))

    def _end(self, number: int) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(WAIT_S)
        self._process = None
        return code

    def stamp(self) -> Stamp | None:
        reader = ProgressReader(str(self.state / "progress"))
        try:
            return reader.read()
        finally:
            reader.close()

    def cycles(self) -> int:
        """Passes of the run that was started last."""
        assert self._process is not None
        assert self._process.poll() is None, f"the daemon ended with {self._process.returncode}: {self.log()[-3000:]}"
        stamp = self.stamp()
        return 0 if stamp is None or stamp.fence == self._old_fence else stamp.cycles

    def passes(self) -> int:
        """Passes since the run is ready. Those before, while strategies live through the past, look at no bar."""
        if self._ready_at is None:
            with (self.folder / "daemon.log").open("rb") as log:
                log.seek(self._told_before)
                is_ready = b'"event":"daemon.ready"' in log.read()
            cycles = self.cycles()
            if not is_ready:
                return 0
            self._ready_at = cycles
        return self.cycles() - self._ready_at

    def wait_ready(self) -> None:
        until("the daemon makes passes", lambda: self.passes() >= 2)

    def wait_passes(self, more: int) -> None:
        now = self.cycles()
        until(f"{more} more passes", lambda: self.cycles() >= now + more)

    def wait_done(self, at_ms: int) -> None:
        """Until the bar that closed at `at_ms` is decided and every order of it is settled."""
        until(f"bar {at_ms} is done", lambda: self._has_done(at_ms))

    def _has_done(self, at_ms: int) -> bool:
        cycles, passes = self.cycles(), self.passes()
        stamp = self.stamp()
        if stamp is None or cycles == 0:
            return False
        # A bar that the killed run had finished is not decided again: two whole passes find nothing due.
        seen = stamp.last_bar_at_ms >= at_ms or (self._is_fresh and stamp.last_bar_at_ms < 0 and passes >= 2)
        if not seen or self.unsettled():
            return False
        self._is_fresh = False
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def bars(self) -> int:
        """How many bars the strategy `churn` has counted."""
        found = self.ask("SELECT state FROM strategy_state WHERE strategy='churn'")
        return sum(json.loads(found[0][0]).values()) if found else 0

    def unsettled(self) -> list[tuple[Any, ...]]:
        return self.ask("SELECT id, state FROM intents WHERE state IN ('opened', 'planned', 'sending', 'quarantined')")

    def intents(self) -> dict[str, tuple[str, str, str]]:
        """id -> action, state, strategy."""
        rows = self.ask("SELECT id, action, state, strategy FROM intents")
        return {row[0]: row[1:] for row in rows}  # type: ignore[misc]

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.state / 'journal.db'}?mode=ro", uri=True, timeout=10)) as db:
            return db.execute(query).fetchall()

    def log(self) -> str:
        return (self.folder / "daemon.log").read_text()


def own_mb(pid: int) -> float:
    """Memory that the process shares with no other, in MB."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(row[1]) for row in rows if row[0] in ("Anonymous:", "Swap:")) / 1024

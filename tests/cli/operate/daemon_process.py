"""`bot run` as a process with an embedded service, for tests of the commands that need a running daemon."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bot.cli.common.daemon_client import Place
from bot.cli.run.embedded_service import Embedded
from bot.errors import BotError

WAIT_S = 60

STRATEGY = '''\
"""Opens on one bar and closes on the next."""

from bot import Bracket, Close, Open, Strategy


class InAndOut(Strategy):
    """A trade every second bar; what it wants beyond its budget is refused."""

    def on_bar(self, view, bar):
        if view.position(bar.market):
            yield Close(bar.market)
        else:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=20))
            yield Open(bar.market, "long", usd=100_000, bracket=Bracket(stop_pct=20))


class Raises(Strategy):
    def on_bar(self, view, bar):
        raise RuntimeError("a mistake")


class Idle(Strategy):
    def on_bar(self, view, bar):
        return ()


class Holds(Strategy):
    def on_bar(self, view, bar):
        if not view.position(bar.market):
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=40))
'''

CONFIG = """\
account: {base_url: embedded}
embedded: {clock: 60x, markets: [BTC]}
dead_man: {heartbeat_seconds: 3600}
state_dir: state
strategies:
  - {name: mine, use: "mine:%s", markets: [BTC], interval: 1m, budget_usd: 500}
log: {format: json}
"""


@dataclass
class Ran:
    """A daemon as a process, its folder, and what it told its service manager."""

    folder: Path
    manager: socket.socket
    process: subprocess.Popen[bytes] | None = None
    told: list[str] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "mine.yaml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self) -> None:
        environ = os.environ | {"NOTIFY_SOCKET": str(self.folder / "notify"), "WATCHDOG_USEC": "2000000"}
        with (self.folder / "err").open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bot", "run", str(self.config)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
            )

    def heard(self) -> list[str]:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.told.append(self.manager.recv(4096).decode())
        return self.told

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        if not (self.state / "journal.db").exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{self.state / 'journal.db'}?mode=ro", uri=True)) as db:
            return db.execute(sql).fetchall()

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            assert self.process is None or self.process.poll() is None, (self.folder / "err").read_text()[-2000:]
            with contextlib.suppress(sqlite3.Error):
                found = holds()
                if found:
                    return found
            time.sleep(0.05)
        raise AssertionError(f"not within {WAIT_S} s: {what}; {(self.folder / 'err').read_text()[-2000:]}")

    def recovered(self) -> None:
        """Wait until the daemon has read the whole account."""

        def positions() -> Any:
            with contextlib.suppress(BotError):
                return Place(self.state).ask("GET", "/positions")

        self.until("the daemon has recovered", positions)

    def propose(self, key: str) -> str:
        """The id of a proposal of 100 USD that waits for a person."""
        asked = {"strategy": "mine", "market": "BTC", "side": "long", "usd": 100, "stop_pct": 20, "key": key}
        made = Place(self.state).ask("POST", "/propose", asked | {"by": "a model", "reason": "it rises"})
        assert made["state"] == "waiting", made
        return str(made["id"])

    def has_traded(self) -> Any:
        return self.query("SELECT 1 FROM events WHERE type='fill' AND subtype='exit' LIMIT 1")


@contextlib.contextmanager
def made(kind: str, more: str = "") -> Iterator[Ran]:
    folder = Path(tempfile.mkdtemp(prefix="bot-"))
    (folder / "strategies").mkdir()
    (folder / "strategies" / "mine.py").write_text(STRATEGY)
    (folder / "mine.yaml").write_text((CONFIG % kind).replace("budget_usd: 500", f"budget_usd: 500{more}"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.setblocking(False)
        ran = Ran(folder, manager)
        try:
            yield ran
        finally:
            if ran.process is not None and ran.process.poll() is None:
                ran.process.kill()
                ran.process.wait()
            if ran.state.is_dir():
                Embedded(ran.state).stop()
            shutil.rmtree(folder, ignore_errors=True)

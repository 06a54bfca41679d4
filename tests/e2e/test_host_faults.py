"""What the host does to a running daemon: its file descriptors are used up, its disk turns read-only, it is stopped,
a child keeps what is its.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.cli.common import daemon_client as place_module
from bot.cli.common.daemon_client import NotRunning, Place
from tests.e2e.processes import HEAD, Daemon, Sandbox, until

SPEED = 60
# 60 s of real time
HEARTBEAT_S = 3_600
CONFIG = (
    HEAD
    + """\
  - {name: churn, use: "churn:Churn", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2}
  - {name: odd, use: "odd:Odd", markets: [ETH], interval: 1m, budget_usd: 2000, max_leverage: 2}
"""
)
LEAKS = '''\
"""Opens files without end once `now` is there, and keeps them."""

import os
from pathlib import Path

from bot.strategy import Strategy

KEPT = []


class Odd(Strategy):
    def on_bar(self, view, bar):
        if Path("%s").exists():
            try:
                while True:
                    KEPT.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                Path("%s").mkdir(exist_ok=True)  # Which needs no descriptor.
        return ()
'''

NOTHING = """\
from bot.strategy import Strategy


class Odd(Strategy):
    def on_bar(self, view, bar):
        return ()
"""

FORKS = """\
import multiprocessing
import time
from pathlib import Path

from bot.strategy import Strategy

CHILD = Path("%s")


class Odd(Strategy):
    def on_bar(self, view, bar):
        if not CHILD.exists():
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), daemon=True)
            child.start()
            CHILD.with_suffix(".part").write_text(str(child.pid))
            CHILD.with_suffix(".part").rename(CHILD)
        return ()
"""

Make = Callable[[str], Daemon]


@pytest.fixture
def make(place: Path, repository: Path) -> Iterator[Make]:
    """A daemon with the strategy `churn` and one of the code that is given, ready to be started."""
    sandbox = Sandbox(place, clock=f"{SPEED}x", markets=("--markets", "btc,eth"))
    sandbox.start()
    sandbox.open_account()
    made: list[Daemon] = []

    def make(odd: str) -> Daemon:
        daemon = Daemon(
            place, sandbox, heartbeat_seconds=HEARTBEAT_S, strategies=repository / "strategies", config=CONFIG
        )
        (place / "strategies" / "odd.py").write_text(odd)
        made.append(daemon)
        return daemon

    yield make
    for one in made:
        one.kill()
    sandbox.kill()


def lines(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in daemon.log().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


@pytest.fixture
def disk(place: Path) -> Iterator[Callable[[], None]]:
    """The daemon's state directory on a disk of its own; call it, and the disk turns read-only as after an error of
    the hardware.
    """
    state, image = place / "state", place / "disk"
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a disk that turns read-only: needs root and mkfs.ext4")
    state.mkdir(mode=0o700)
    with image.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(state)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a disk that turns read-only: this machine mounts no image")
    device = state.stat().st_dev
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name

    def fails() -> None:
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("1")
        with pytest.raises(OSError, match="Read-only"):
            (state / "probe").touch()

    yield fails
    subprocess.run(["umount", "--lazy", str(state)], check=True)


# -- a process that is stopped


def test_status_of_a_stopped_daemon_comes_within_ten_seconds_and_says_what_it_is(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = make(NOTHING)
    daemon.start()
    daemon.wait_ready()
    os.kill(daemon.pid, signal.SIGSTOP)
    until("it is stopped", lambda: ") T " in Path(f"/proc/{daemon.pid}/stat").read_text())
    assert place_module.MEMORY_S + 1 < 10
    monkeypatch.setattr(place_module, "MEMORY_S", 0.5)
    for command in ("status", "positions", "orders", "stop"):
        assert call([command, "--state-dir", str(daemon.state)]) == 5
        stopped = (
            f"error: the daemon (pid {daemon.pid}) is stopped by a signal (SIGSTOP); kill -CONT {daemon.pid} resumes it"
        )
        assert capsys.readouterr().err == f"{stopped}\n"
    os.kill(daemon.pid, signal.SIGCONT)
    assert daemon.stop() == 0, daemon.log()[-3000:]


# -- a child of a strategy


def test_a_daemon_starts_again_though_a_child_that_a_strategy_forked_lives_on(make: Make, place: Path) -> None:
    daemon = make(FORKS % (place / "child"))
    daemon.start()
    until("the child", (place / "child").exists)
    child = int((place / "child").read_text())
    try:
        daemon.wait_ready()
        daemon.kill()
        with pytest.raises(NotRunning):
            Place(daemon.state).ask("GET", "/status", within_s=60)
        daemon.start()
        daemon.wait_ready()
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
    assert daemon.stop() == 0, daemon.log()[-3000:]


# -- a disk that turns read-only


def test_a_daemon_whose_disk_turns_read_only_ends_with_6_and_says_why(disk: Callable[[], None], make: Make) -> None:
    daemon = make(NOTHING)
    daemon.start()
    daemon.wait_ready()
    disk()
    until("entries stop", lambda: lines(daemon, "daemon.degraded"))
    assert "cannot be written" in Place(daemon.state).ask("GET", "/status", within_s=60)["degraded"]["journal"]
    assert daemon.stop() == 6, daemon.log()[-3000:]
    assert "a bug in Bracketbot" not in daemon.log()
    assert re.search(r"^error: journal .*journal\.db cannot be written", daemon.log(), re.MULTILINE)


# -- file descriptors


def test_a_daemon_whose_descriptors_are_used_up_answers_and_exits_and_says_so_once(make: Make, place: Path) -> None:
    daemon = make(LEAKS % (place / "now", place / "leaked"))
    daemon.start()
    daemon.wait_ready()
    until("a position", lambda: daemon.ask("SELECT 1 FROM shares WHERE strategy='churn'"))
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (64, 64))
    # Which set the reserve aside.
    daemon.wait_passes(2)
    (place / "now").touch()
    until("the leak", (place / "leaked").exists)
    bars = daemon.bars()
    until("entries stop", lambda: lines(daemon, "daemon.degraded"))
    told = Place(daemon.state)
    status = told.ask("GET", "/status", within_s=60)
    assert status["state"] == "DEGRADED"
    assert "file descriptors" in status["degraded"]["descriptors"]
    for _ in range(20):
        assert told.ask("GET", "/status", within_s=60)["state"] == "DEGRADED"
        assert told.ask("GET", "/events", query={"limit": 1}, within_s=60)["events"], (
            "the journal is read from its file"
        )
    until("exits go on", lambda: not daemon.ask("SELECT 1 FROM shares WHERE strategy='churn'"))
    until("bars go on", lambda: daemon.bars() >= bars + 6)
    assert told.ask("POST", "/pause", {}, within_s=60)["strategies"]
    assert "*" in (daemon.state / "journal.safety.json").read_text()
    assert len(lines(daemon, "daemon.degraded")) == 1
    assert "system resource" not in daemon.log(), "the event loop's own complaint, a hundred at a time"
    assert "Traceback" not in daemon.log()
    assert daemon.stop() == 0, daemon.log()[-3000:]

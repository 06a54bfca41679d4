"""`bot demo` as a user meets it: what it prints and when, how it ends, and that it survives a kill.

Real processes, real time.
"""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.config import load
from tests.e2e.processes import WAIT_S, python, until

LIVE_WITHIN_S = 10.0
STOP_WITHIN_S = 5.0
IMPORTS = "import bot.cli.start.demo, bot.runtime.daemon, bot.service.host"
# what these take on a machine for which the seconds above are promised
IMPORTS_S = 1.0
KINDS = ("bar", "decision", "plan", "order", "fill", "stop", "target", "heartbeat", "account")

Start = Callable[..., "Demo"]


class Demo:
    """A demo on a pipe, or on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str, terminal: bool = False) -> None:
        self.folder = folder
        self.text = ""
        self.seen_at: dict[str, float] = {}
        self.began = time.monotonic()
        command = ["demo", "--no-dashboard", "--state-dir", str(folder), *arguments]
        if terminal:
            self.fd, slave = pty.openpty()
            options: dict[str, Any] = {"env": {**os.environ, "TERM": "xterm"}}
            self.process = python(
                *command, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=_take_terminal, **options
            )
            os.close(slave)
        else:
            self.fd, writer = os.pipe()
            self.process = python(*command, stdout=writer, stderr=writer)
            os.close(writer)

    def read(self, patience_s: float) -> bool:
        """Take what it has printed; False at its end."""
        if not select.select([self.fd], [], [], patience_s)[0]:
            return True
        try:
            part = os.read(self.fd, 65_536)
        # what a terminal says when nobody is left on it
        except OSError:
            return False
        self.text += part.decode()
        for kind in re.findall(r"^\S*\d\d:\d\d:\d\d  (\w+)", self.plain(), re.MULTILINE):
            self.seen_at.setdefault(kind, time.monotonic() - self.began)
        return bool(part)

    def read_until(self, holds: Callable[[], Any], patience_s: float = WAIT_S) -> Any:
        def look() -> Any:
            alive = self.read(0.1)
            found = holds()
            assert found or alive, self.text[-3000:]
            return found

        return until("the demo says so", look, patience_s)

    def wait(self) -> int:
        """To its end; the exit code."""
        # It runs longer where everything takes longer.
        end = time.monotonic() + 3 * WAIT_S
        while self.read(0.2):
            assert time.monotonic() < end, self.text[-3000:]
        return self.process.wait(WAIT_S)

    def plain(self) -> str:
        """Without colours and carriage returns."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.text).replace("\r", "")

    def service_pid(self) -> int:
        return int(self.read_until(lambda: re.search(r"\(pid (\d+)", self.plain()))[1])

    def account(self) -> str:
        return str(self.read_until(lambda: re.search(r"account (acc_\d+)", self.plain()))[1])

    def run_folder(self) -> Path:
        return Path(self.read_until(lambda: re.search(r"^files +(\S+)$", self.plain(), re.MULTILINE))[1])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self.fd)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def slowness() -> float:
    """How many times as long as elsewhere everything takes here and now: this machine may be slow, and busy with
    other tests.
    """
    began = 0.0
    # The first one compiles what is new.
    for _ in range(2):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return max(1.0, (time.monotonic() - began) / IMPORTS_S)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
    made: list[Demo] = []

    def make(*arguments: str, terminal: bool = False) -> Demo:
        demo = Demo(place / "d", *arguments, terminal=terminal)
        made.append(demo)
        return demo

    yield make
    for demo in made:
        demo.close()
    for ready in place.rglob("sandbox.ready"):
        pid = json.loads(ready.read_text())["pid"]
        if is_alive(pid) and str(place) in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("cold_starts")
def test_it_trades_within_ten_seconds_and_ends_by_itself_with_a_summary_and_can_be_replayed(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = slowness()
    # One start in a hundred meets a market that lies still for so long.
    for _ in range(3):
        demo = start("--for", f"{round(11 * slow)}s")
        assert demo.wait() == 0, demo.text
        within = LIVE_WITHIN_S * max(slow, slowness())
        late = {kind: demo.seen_at.get(kind) for kind in KINDS if not demo.seen_at.get(kind, 1e9) <= within}
        if not late:
            break
    assert late == {}, demo.text
    folder = demo.run_folder()
    for name in ("daemon.log", "journal.db", "sandbox.db", "sandbox.log"):
        assert (folder / name).is_file()
    assert f"log         {folder / 'daemon.log'}" in demo.text
    summary = demo.text[demo.text.index("Summary of ") :]
    for figure in (
        "at 60x",
        "bars",
        "decisions",
        "trades",
        "fees",
        "realised",
        "unrealised",
        "value from",
        "Left at the service:",
        "why",
    ):
        assert figure in summary
    assert not is_alive(demo.service_pid())
    assert not (folder.parent / "unfinished.json").exists()
    assert "bbk_" not in demo.text + "".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
    database = (folder / "sandbox.db").read_bytes()
    assert call(["replay", str(folder.parent), "--json"]) in (0, 1), capsys.readouterr().err
    again = json.loads(capsys.readouterr().out)
    assert again["changed"] == [], "its config is the one that was run"
    assert again["counts"]["fills"]["recorded"] > 0
    assert (folder / "sandbox.db").read_bytes() == database, "a copy was asked"


def test_ctrl_c_on_a_terminal_ends_it_within_five_seconds_and_says_what_it_left(start: Start) -> None:
    # At 60x the stop may fill before the end.
    for _ in range(3):
        demo = start(terminal=True)
        demo.read_until(lambda demo=demo: "stop" in demo.seen_at)
        assert "Umask:\t0077" in Path(f"/proc/{demo.process.pid}/status").read_text(), "its process is private"
        began = time.monotonic()
        os.write(demo.fd, b"\x03")
        assert demo.wait() == 0, demo.text
        assert time.monotonic() - began < STOP_WITHIN_S * max(3, slowness())
        text = demo.plain()
        assert "Stopping (SIGINT)" in text
        left = text[text.index("Stopping") :]
        for label in ("Left at the service:", "position", "order", "guardian", "why"):
            assert label in left
        assert "Traceback" not in text
        assert "\x1b[" in demo.text, "colours on a terminal"
        assert not is_alive(demo.service_pid())
        if "stop_loss" in left:
            break
        assert "  positions  none" in left, "without a stop there is no position"
    assert "stop_loss" in left


def test_a_killed_demo_is_continued_by_the_next_start_with_its_account_and_its_service(start: Start) -> None:
    first = start()
    first.read_until(lambda: "stop" in first.seen_at)
    service, account, folder = first.service_pid(), first.account(), first.run_folder()
    first.process.kill()
    first.process.wait(WAIT_S)
    time.sleep(0.3)
    assert is_alive(service), "the stops are at a service that goes on"

    second = start("--for", "3s")
    assert second.wait() == 0, second.text
    assert "The last run was killed" in second.text
    assert (second.service_pid(), second.account(), second.run_folder()) == (service, account, folder)
    assert "was already running" in second.text
    assert not is_alive(service)

    third = start("--for", "1s")
    assert third.wait() == 0, third.text
    assert "was killed" not in third.text
    assert third.run_folder() != folder


def test_a_service_that_is_killed_is_started_again_under_the_running_demo(start: Start) -> None:
    demo = start()
    demo.read_until(lambda: "fill" in demo.seen_at)
    os.kill(demo.service_pid(), signal.SIGKILL)
    demo.read_until(lambda: "died and was started again" in demo.text)
    at = len(demo.text)
    demo.read_until(lambda: re.search(r"  bar  ", demo.text[at:]))
    demo.process.send_signal(signal.SIGTERM)
    assert demo.wait() == 0, demo.text


def test_a_second_demo_is_told_of_the_first_which_ends_with_its_service_when_its_reader_goes_away(start: Start) -> None:
    first = start()
    first.read_until(lambda: "bar" in first.seen_at)
    second = start()
    assert second.wait() == 1
    assert second.text.startswith("error: another daemon runs on ")
    assert second.text.count("\n") == 1
    service = first.service_pid()
    assert is_alive(service)
    # As `head` goes away.
    os.dup2(os.open(os.devnull, os.O_RDONLY), first.fd)
    assert first.process.wait(WAIT_S) == 0
    assert not is_alive(service)
    assert not (first.folder / "unfinished.json").exists()


def test_it_plays_recorded_candles(start: Start, shared: Path) -> None:
    file = shared / "data" / "crypto" / "binance_BTCUSDT_1m_202505.csv.gz"
    demo = start("--data", str(file), "--clock", "600x")
    kinds = ("bar", "decision", "plan", "order", "fill", "stop", "target")
    demo.read_until(lambda: demo.seen_at.keys() >= set(kinds))
    time.sleep(1)
    demo.process.send_signal(signal.SIGTERM)
    assert demo.wait() == 0, demo.text
    assert f"BTC from {file.name}" in demo.text
    assert "dead-man    18000 s of the service's time (30 s of real time) without a heartbeat" in demo.text
    bars = int(re.search(r"bars +([\d,]+)", demo.text)[1].replace(",", ""))  # type: ignore[index]
    assert bars > 10


def candles(path: Path, rows: int) -> Path:
    """A market that goes up and down, so that averages cross."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["ts", "open", "high", "low", "close", "volume"])
        px = 100.0
        for n in range(rows):
            opened, px = px, round(px * (1 + (0.002 if n // 9 % 2 else -0.002)), 2)
            out.writerow(
                [1_746_057_600_000 + n * 60_000, opened, max(opened, px) + 0.01, min(opened, px) - 0.01, px, 5]
            )
    return path


def test_the_end_of_the_recorded_candles_is_a_clean_end(start: Start, place: Path) -> None:
    demo = start("--data", f"SOL={candles(place / 'mine.csv', 240)}", "--clock", "2400x")
    assert demo.wait() == 0, demo.text
    assert "Summary of" in demo.text
    assert int(re.search(r"bars +([\d,]+)", demo.text)[1]) >= 1  # type: ignore[index]
    assert "SOL from mine.csv" in demo.text
    kept = load(demo.run_folder() / "demo.yaml")
    assert [(one.market, one.file) for one in kept.embedded.data] == [("SOL", place / "mine.csv")]
    assert kept.strategies[0].markets == ("SOL",)


def test_a_malformed_row_is_named_and_nothing_is_left(start: Start, place: Path) -> None:
    file = candles(place / "bad.csv", 30)
    lines = file.read_text().splitlines()
    lines[7] = lines[7].replace(",", ",x", 1)
    file.write_text("\n".join(lines))
    demo = start("--data", f"BTC={file}")
    assert demo.wait() == 4
    assert re.fullmatch(r"error: .*bad\.csv: row 8: open 'x[\d.]+' is not a number\n", demo.text), demo.text
    assert [path.name for path in (place / "d").iterdir()] == ["lock"]


def test_events_and_summary_come_as_json_lines(start: Start) -> None:
    demo = start("--json", "--for", "4s")
    assert demo.wait() == 0, demo.text
    lines = [json.loads(line) for line in demo.text.splitlines()]
    assert lines[0]["event"] == "demo.begun"
    assert lines[-1]["event"] == "demo.summary"
    assert lines[-1]["exitCode"] == 0
    assert any(line["event"] == "bar.closed" for line in lines)


def test_make_runs_the_same_demo(repository: Path) -> None:
    done = subprocess.run(
        ["make", "-n", "demo", "ARGS=--for 60s"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert "bin/bot demo --for 60s" in done.stdout

"""A strategy that opens a file, a database, a connection or a process, or reads the clock, is not proved causal. What
Python or the daemon does by itself does not count.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import zipfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from bot.backtest.engine.outside_reads import watching
from bot.cli.app import call
from tests.backtest.builders import minutes, write

HEAD = """\
import json, os, sqlite3, subprocess, threading
from pathlib import Path
from bot import Bracket, Close, Open, Strategy

FILE = Path(__file__).parent / "future.json"
"""
# A strategy's reads (at its import, in each on_bar) and the proof's text about them; {folder} is the folder of its
# file.
READS = {
    "open": ("", "with open(FILE) as file: json.load(file)", "reads {folder}/future.json"),
    "a path": ("", "FILE.read_text()", "reads {folder}/future.json"),
    "a descriptor": ("", "os.close(os.open(FILE, os.O_RDONLY))", "reads {folder}/future.json"),
    "numpy": ("", "__import__('numpy').memmap(FILE, mode='r')", "reads {folder}/future.json"),
    "the daemon's own reader": (
        "from bot.service.market_data.recorded import read_candles",
        "view.state or read_candles(FILE.with_name('BTC_1m.csv'), sz_decimals=5); view.state['n'] = 1",
        "reads {folder}/BTC_1m.csv",
    ),
    "a thread": (
        "",
        "one = threading.Thread(target=FILE.read_text); one.start(); one.join()",
        "reads {folder}/future.json",
    ),
    "at its import": ("FUTURE = json.loads(FILE.read_text())", "FUTURE", "reads {folder}/future.json"),
    "a database": ("", "sqlite3.connect(FILE.with_name('future.db')).close()", "reads {folder}/future.db"),
    "a program": (
        "",
        "view.state or os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0); view.state['n'] = 1",
        "starts /bin/true",
    ),
    "a file attached to a database in memory": (
        "",
        "one = sqlite3.connect(':memory:'); one.execute(f\"ATTACH '{FILE.with_name('future.db')}' AS f\"); one.close()",
        "uses a database, which can attach a file",
    ),
    "a zip": (
        "import zipimport",
        "zipimport.zipimporter(str(FILE.with_name('future.zip'))).get_data('future.json')",
        "reads {folder}/future.zip",
    ),
    "a loader": (
        "from importlib.machinery import SourceFileLoader",
        "SourceFileLoader('x', str(FILE)).get_data(str(FILE))",
        "reads {folder}/future.json",
    ),
    "shared memory": (
        "import hashlib; from multiprocessing.shared_memory import SharedMemory",
        "one = SharedMemory(name='bot' + hashlib.sha256(str(FILE.parent).encode()).hexdigest()[:12]); one.close()",
        "reads /dev/shm/{shared}",
    ),
    "mapped memory": (
        "import mmap",
        "file = os.open(FILE, os.O_RDONLY); mmap.mmap(file, 0, access=1).close(); os.close(file)",
        "reads {folder}/future.json",
    ),
    "the environment": ("", "os.environ.get('FUTURE')", "reads the environment"),
    "the environment by getenv": ("", "os.getenv('FUTURE')", "reads the environment"),
    "the whole environment": ("", "dict(os.environ)", "reads the environment"),
    "the environment at its import": ("FUTURE = os.environ.get('FUTURE')", "FUTURE", "reads the environment"),
    "names of files": ("", "os.listdir(FILE.parent)", "lists {folder}"),
    "names of files by a path": ("", "list(FILE.parent.iterdir())", "lists {folder}"),
    "names of files by a pattern": ("", "list(FILE.parent.glob('*.json'))", "lists {folder}"),
    "native code": ("import ctypes", "ctypes.CDLL(None)", "calls native code (None)"),
    "a connection": (
        "import socket",
        "\n        try: socket.create_connection(('127.0.0.1', 9), 0.2)\n        except OSError: pass",
        "connects to 127.0.0.1",
    ),
}
SOUND = {
    "an import": ("", "import wave"),
    "a time zone": ("from zoneinfo import ZoneInfo", "ZoneInfo.no_cache('America/New_York')"),
    "a file that it writes": ("", "open(FILE.with_name('said.txt'), 'a').close()"),
    "what it says": ("", "view.log('bar', close=bar.close)"),
    "the date of a bar, and a clock that Python reads by itself": (
        "import logging; from datetime import UTC, datetime",
        "datetime.fromtimestamp(bar.at_ms / 1000, UTC), logging.makeLogRecord({})",
    ),
    "a caught error": (
        "import traceback",
        "\n        try: 1 / 0\n        except ZeroDivisionError: traceback.format_exc()",
    ),
}


def shared_name(folder: str) -> str:
    return "bot" + hashlib.sha256(folder.encode()).hexdigest()[:12]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(minutes(120), tmp_path / "BTC_1m.csv")
    (tmp_path / "future.json").write_text(json.dumps(list(minutes(120).close)))
    sqlite3.connect(tmp_path / "future.db").close()
    with zipfile.ZipFile(tmp_path / "future.zip", "w") as zipped:
        zipped.write(tmp_path / "future.json", "future.json")
    (tmp_path / "mine.yaml").write_text(
        "account: {base_url: embedded}\nstrategies_dir: .\n"
        "strategies: [{name: one, use: reading, markets: [BTC], interval: 1m, budget_usd: 1000}]\n"
    )
    return tmp_path


def prove(folder: Path, at_import: str, on_bar: str, *more: str) -> int:
    body = f"class Reading(Strategy):\n    def on_bar(self, view, bar):\n        {on_bar.lstrip()}\n        return ()\n"
    (folder / "reading.py").write_text(f"{HEAD}{at_import}\n\n\n{body}")
    asked = ["--data", str(folder / "BTC_1m.csv"), "--out", str(folder / "runs"), "--prove-causal", *more]
    return call(["backtest", str(folder / "mine.yaml"), *asked])


@pytest.mark.parametrize("name", READS)
def test_a_strategy_that_reads_from_outside_is_not_proved(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, request: pytest.FixtureRequest
) -> None:
    at_import, on_bar, told = READS[name]
    shared = SharedMemory(name=shared_name(str(folder)), create=True, size=64)
    request.addfinalizer(shared.unlink)
    request.addfinalizer(shared.close)
    told = told.format(folder=folder, shared=shared.name)
    assert prove(folder, at_import, on_bar) == 1
    said = capsys.readouterr()
    assert f"not proved: {told}; equal decisions on data cut at 5 instants" in said.out
    assert f"error: not proved causal: a strategy {told}, and cutting the candles does not cut that\n" in said.err
    (run,) = (folder / "runs").iterdir()
    proof = json.loads((run / "summary.json").read_text())["proof"]
    assert (proof["differs"], proof["isWhole"], proof["outside"]) == (None, False, [told])


@pytest.mark.parametrize("name", SOUND)
def test_harmless_reads_do_not_spoil_a_proof(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert prove(folder, *SOUND[name], "--journal") == 0, capsys.readouterr().err
    assert "causal: equal decisions on data cut at 5 instants" in capsys.readouterr().out


CHEAT = """\
        closes = json.loads(FILE.read_text())
        row = closes.index(bar.close) + 3
        later = closes[row] if row < len(closes) else 0.0
        held = view.position(bar.market)
        if later > bar.close and not held:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=2, target_pct=3))
        elif later < bar.close and held:
            yield Close(bar.market)
"""


def test_a_strategy_that_trades_on_future_closes_of_a_file_is_not_certified(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(folder, "", CHEAT) == 1
    said = capsys.readouterr().out
    assert f"not proved: reads {folder}/future.json; equal decisions on data cut at 5 instants" in said
    assert " 0 events compared" not in said


def test_a_strategy_that_reads_the_clock_is_not_proved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at_import = "import time\nfrom datetime import date, datetime\nfrom time import time_ns\nBEGUN = time.monotonic()"
    in_a_thread = "one = threading.Thread(target=lambda: time.time()); one.start(); one.join()"
    assert prove(folder, at_import, f"datetime.now(), date.today(), time_ns()\n        {in_a_thread}") == 1
    read = ["time.monotonic", "datetime.now", "date.today", "time.time_ns", "time.time"]
    assert "not proved: reads the clock (time.monotonic) and 4 other sources" in capsys.readouterr().out
    (run,) = (folder / "runs").iterdir()
    proof = json.loads((run / "summary.json").read_text())["proof"]
    assert proof["outside"] == [f"reads the clock ({name})" for name in read]
    assert sys.getprofile() is None


def test_a_read_after_the_watch_has_ended_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "later.txt").write_text("x")
    with watching() as outside:
        pass
    (tmp_path / "later.txt").read_text()
    assert outside == []


def test_two_sources_are_counted_and_each_is_listed_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(folder, "", "FILE.read_text(), FILE.with_name('BTC_1m.csv').read_text()") == 1
    assert f"not proved: reads {folder}/future.json and 1 other source" in capsys.readouterr().out

"""`bot paper` as a user meets it, at the prices of the local exchange. Real processes, real time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.cli.app import call
from tests.e2e.processes import WAIT_S, python, until
from tests.market_data.exchange import Exchange


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, and a state folder of its own with a short path, as sockets need it."""
    folder = tmp_path / "p"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    with tempfile.TemporaryDirectory(prefix="bot-") as state:
        monkeypatch.setenv("XDG_STATE_HOME", state)
        yield folder


@pytest.fixture
def ticking(live_exchange: Exchange, markets_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    """The local exchange with the present time as its clock, and its last close as its quote.

    Feeders are found in /proc.
    """
    monkeypatch.setenv("BOT_MARKETS_PYTHON", markets_python)
    live_exchange.quotes["BTCUSDT"] = live_exchange.futures["BTCUSDT"].minutes[4_319][4]
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.2):
            live_exchange.now_ms = time.time_ns() // 1_000_000

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    yield live_exchange
    ended.set()
    thread.join()


def processes_of(url: str) -> list[int]:
    """The processes that were started for the exchange at this address."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if url in (folder / "environ").read_text() and "Z" not in (folder / "stat").read_text().rpartition(")")[2]:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("cold_starts")
def test_a_killed_run_continues_with_its_account_and_leaves_nothing_running_at_its_end(
    ticking: Exchange, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*command: str) -> str:
        call([*command])
        return capsys.readouterr().out

    command = ("paper", "--exchange", "binance", "--market", "BTC", "--json")
    with python(*command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        seen = []
        while "bar.closed" not in seen:
            line = first.stdout.readline()
            assert line, "it ended by itself"
            seen.append(json.loads(line)["event"])
        connected = re.compile(r"^  prices      ccxt:binance connected .*1 market, oldest price \d s$", re.MULTILINE)
        until("the status has the prices", lambda: connected.search(said("status", "--config", "paper-binance.yaml")))
        assert "ok    prices      ccxt:binance is connected" in said("doctor", "paper-binance.yaml")
        first.send_signal(signal.SIGKILL)
    url = os.environ["BOT_MARKETS_URL"]
    assert processes_of(url), "the service survives the kill"
    text = (place / "paper-binance.yaml").read_text()
    again = python(*command, "--for", "2s", stdout=subprocess.PIPE, text=True)
    out, _ = again.communicate(timeout=3 * WAIT_S)
    begun, *_, summary = map(json.loads, out.splitlines())
    assert (again.returncode, begun["event"], begun["continued"]) == (0, "paper.begun", True)
    assert (summary["event"], summary["startValueUsd"], summary["left"]["known"]) == ("paper.summary", "10000", True)
    assert (place / "paper-binance.yaml").read_text() == text
    until("nothing runs", lambda: not processes_of(url))


@pytest.mark.parametrize("strategy", ["breakout:Breakout", "mine:Mine"])
def test_without_a_network_it_says_so_offers_the_demo_and_leaves_no_file(
    strategy: str, place: Path, quick_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOT_MARKETS_PYTHON", quick_python)
    monkeypatch.setenv("BOT_MARKETS_URL", "http://127.0.0.1:9")
    command = ["paper", "--exchange", "kraken", "--strategy", strategy]
    done = subprocess.run([sys.executable, "-m", "bot", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "check the network of this machine" in done.stderr
    assert "`bot demo` trades play money at simulated prices" in done.stderr
    assert [str(path) for path in place.rglob("*")] == [], "nothing runs by them, so they are not left"


def test_a_config_that_differs_is_not_overwritten_and_a_wrong_one_is_not_written(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["paper", "--exchange", "kraken", "--market", "BTCC"]) == 4
    assert "BTCC" in capsys.readouterr().err
    assert [one.name for one in place.iterdir()] == []
    (place / "paper-kraken.yaml").write_text("mine\n")
    assert call(["paper", "--exchange", "kraken"]) == 2
    assert "`bot run paper-kraken.yaml` runs it as it is" in capsys.readouterr().err
    assert (place / "paper-kraken.yaml").read_text() == "mine\n"
    assert call(["paper", "--exchange", "../kraken"]) == 2

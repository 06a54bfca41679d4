"""kill -9 at each call between decision and acknowledgment: exactly one order, wherever it fell.

By the kernel's calls where strace is, and at our own seams everywhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from bot.strategy import Bar, Bracket, Close, Open, View
from tests.conftest import REPOSITORY
from tests.integration.builders import START_MS, Box, Points, crash_anywhere, story
from tests.service import serving

CALLS = ("pwrite64", "fdatasync", "ftruncate", "unlink", "connect", "sendto", "recvfrom")
ATTACHED_S = 20.0
FINAL = {"accepted"}


def _may_trace() -> str | None:
    """Why processes cannot be traced here; None when they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-qq", "-o", "/dev/null", "-e", "trace=none", "true"], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()[:100]}"


class Deciders:
    """Processes that decide one order each, on accounts of their own at one service process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = serving.start(
            clock="manual", start_ms=START_MS, hold_prices=True, markets=["BTC"], db=":memory:", port=0
        )
        self.http = httpx.Client(base_url=self.service.base_url)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.one_order"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        )
        self.count = 0

    def account(self, orders: str) -> dict[str, Any]:
        self.count += 1
        made = self.http.post("/v1/sandbox/accounts", json={"name": "killed"})
        made.raise_for_status()
        one = made.json()
        path = str(self.folder / f"{self.count}.db")
        return {
            "base_url": self.service.base_url,
            "key": one["apiKey"],
            "address": one["address"],
            "path": path,
            "orders": orders,
        }

    def decide(self, told: dict[str, Any], tracer: list[str] | None = None) -> tuple[int, list[str]]:
        """One process's life under strace, if asked for: how it ended, and how its intents stood."""
        assert self.process.stdin is not None
        self._write(json.dumps(told))
        pid = self._read()["pid"]
        traced = None
        if tracer is not None:
            traced = subprocess.Popen(["strace", "-p", str(pid), *tracer], stderr=subprocess.PIPE, text=True)
            assert traced.stderr is not None
            assert "attached" in traced.stderr.readline()
        self._write("")
        said = self._read()
        states = said.get("states", [])
        ended = said["ended"] if "ended" in said else self._read()["ended"]
        if traced is not None:
            traced.communicate(timeout=ATTACHED_S)
        return ended, states

    def trades(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.http.get("/v1/trades?limit=200", headers={"Authorization": f"Bearer {told['key']}"})
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["trades"]
        return found

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() or b"\n")
        self.process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the deciders have ended"
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        self.http.close()
        serving.end(self.service)


@pytest.fixture
def deciders(tmp_path: Path) -> Iterator[Deciders]:
    why = _may_trace()
    if why is not None:
        pytest.skip(why)
    one = Deciders(tmp_path)
    yield one
    one.close()


@pytest.mark.soak(kills=3, full=400)
@pytest.mark.parametrize("orders", ["plan", "direct"])
def test_a_kill_at_any_system_call_ends_in_exactly_one_order(
    deciders: Deciders, orders: str, kills: int, base_seed: int, tmp_path: Path
) -> None:
    """The points are counted on a life without a kill; `make soak` takes them all."""
    log = tmp_path / "calls"
    told = deciders.account(orders)
    ended, states = deciders.decide(told, ["-s", "64", "-o", str(log), "-e", f"trace={','.join(CALLS)}"])
    assert (ended, states) == (0, ["accepted"])
    lines = log.read_text().splitlines()
    _nothing_leaves_unwritten(lines)
    counts = Counter(line.partition("(")[0].rpartition(" ")[2] for line in lines if "(" in line)
    points = [(call, n) for call in CALLS for n in range(1, counts[call] + 1)]
    assert len(points) > 40, counts
    Random(base_seed).shuffle(points)
    killed = 0
    for call, n in points[:kills]:
        told = deciders.account(orders)
        inject = ["-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}"]
        ended, _ = deciders.decide(told, inject)
        killed += ended == -9
        assert ended in (-9, 0), f"{call} {n}: {ended}"
        ended, states = deciders.decide(told)
        assert ended == 0, f"{call} {n}: the next life ended with {ended}"
        assert states == ["accepted"], f"{call} {n}: {states}"
        ours = deciders.trades(told)
        assert len(ours) == 1, f"{call} {n}: {len(ours)} orders"
    assert killed > 0


def _nothing_leaves_unwritten(lines: list[str]) -> None:
    """In the kernel's own order: what was written is synced before an order goes out."""
    unsynced, orders = False, 0
    for line in lines:
        if re.search(r"\bpwrite64\(", line):
            unsynced = True
        elif re.search(r"\bfdatasync\(", line):
            unsynced = False
        elif re.search(r'\bsendto\(.*"POST /v1/(orders|positions)', line):
            orders += 1
            assert not unsynced, f"an order left before its intent was on disk: {line}"
    assert orders >= 1, "no order was seen to leave"


# ── At our own seams ────────────────────────────────────────────────────────────────────────────────────────────────


def _script(start_ms: int) -> Callable[[View, Bar], Iterator[Any]]:
    """Of the first minute a long, of the second its close and a short."""

    def script(view: View, bar: Bar) -> Iterator[Any]:
        n = (bar.at_ms - start_ms) // 60_000
        if n == 1 and view.position("BTC") is None:
            yield Open("BTC", "long", usd=300, bracket=Bracket(stop_pct=5))
        elif n == 2 and view.position("BTC") is not None:
            yield Close("BTC")
            yield Open("BTC", "short", usd=200, bracket=Bracket(stop_pct=5))

    return script


async def _story(box: Box, orders: str, path: Path, points: Points) -> list[tuple[str, str]]:
    """Two bars; the orders that there were, in their order."""
    await box.price("BTC", 100_000)
    script = _script(box.service.machine.clock.now_ms())
    trades = await story(box, path, points, script, (100_000, 100_000, None), orders)
    return [(trade["intent"], trade["side"]) for trade in reversed(trades)]


@pytest.mark.soak(kills=10, full=400)
@pytest.mark.parametrize("orders", ["plan", "direct"])
async def test_a_crash_at_any_statement_or_request_ends_in_the_same_orders(
    box: Box, folder: Path, orders: str, kills: int, base_seed: int
) -> None:
    """Everywhere, strace or not: before and after each statement that writes and each request."""
    made, points = await crash_anywhere(folder, partial(_story, box, orders), kills, base_seed)
    assert made == [("open", "long"), ("close", "long"), ("open", "short")]
    assert points > 150

"""The daemon proves each UTC day by itself, in a process of its own that gets no secret and ends with the daemon."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from bot.clock import DAY_MS, MINUTE_MS
from bot.config import load
from bot.config.settings import ProofSettings
from bot.errors import Exit
from bot.runtime import daemon
from bot.runtime.control_plane import proof_schedule
from bot.runtime.control_plane.proof_schedule import AGAIN_MS, TRIES_MAX, DailyProof
from bot.runtime.journal import proof_files
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.run_request import RunRequest
from bot.runtime.strategy_host import fingerprints
from tests.service import serving

MIDNIGHT_MS = 1_795_132_800_000
DAY = "2026-11-19"
PATIENCE_S = 120.0
CONTROL = {"Authorization": "Bearer bbc_test"}

DAILY = ProofSettings()
WRITES = """
import json, os, sys
from pathlib import Path
folder, day = Path(sys.argv[1]), sys.argv[2]
(folder / "environment.json").write_text(json.dumps(dict(os.environ)))
with (folder / "started").open("a") as file: file.write(day + "\\n")
what = sys.argv[3]
if what == "fails": sys.exit("error: no candles")
if what == "hangs":
    import time; time.sleep(600)
(folder / "proofs").mkdir(exist_ok=True)
document = {"format": 1, "day": day, "isWhole": True, "equalShare": 0.5, "causes": {"fee": 2}}
(folder / "proofs" / f"{day}.json").write_text(json.dumps(document))
"""


class Job:
    """The daily proof with clocks that the test sets, and a command of a few lines."""

    def __init__(self, folder: Path, what: str = "writes", section: Any = DAILY) -> None:
        self.folder, self.now_ms, self.mono_ms = folder, MIDNIGHT_MS - MINUTE_MS, 0
        self.journal: Journal = open_journal(None, address="0x1")
        mark = {"version": "0", "config": {}, "strategies": {}, "atMs": MIDNIGHT_MS - DAY_MS, "epoch": 0}
        self.journal.state.write_note(fingerprints.NOTE, json.dumps([mark]))
        self.proof = DailyProof(
            lambda: SimpleNamespace(proof=section, state_dir=folder),
            self.journal,
            now_ms=lambda: self.now_ms,
            mono_ms=lambda: self.mono_ms,
            command=lambda day: (sys.executable, "-c", WRITES, str(folder), day, what),
        )

    async def look(self, *, after_midnight_min: int, mono_ms: int = 0) -> list[str]:
        """Look at this minute after midnight, wait for the process, and return the days that were begun."""
        self.now_ms, self.mono_ms = MIDNIGHT_MS + after_midnight_min * MINUTE_MS, mono_ms
        self.proof.due.set()
        self.proof.look()
        if self.proof._task is not None:
            await asyncio.wait_for(self.proof._task, PATIENCE_S)
        started = self.folder / "started"
        return started.read_text().split() if started.exists() else []

    def notices(self) -> list[Any]:
        rows = self.journal.db.execute("SELECT payload FROM outbox WHERE kind='proof.done'")
        return [json.loads(payload)["message"] for (payload,) in rows]


async def test_the_day_before_is_proved_once_when_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_API_KEY", "bb_live_secret")
    job = Job(tmp_path)
    assert await job.look(after_midnight_min=19) == []
    assert await job.look(after_midnight_min=20) == [DAY]
    assert await job.look(after_midnight_min=700) == [DAY]
    assert job.notices() == [f"{DAY}: 50.00% of the decisions equal the test; differences: fee 2"]
    assert job.proof.failure is None
    assert "bb_live_secret" not in (tmp_path / "environment.json").read_text()
    assert await job.look(after_midnight_min=24 * 60 + 20) == [DAY, "2026-11-20"]


async def test_without_a_section_or_a_daemon_of_that_day_nothing_is_started(tmp_path: Path) -> None:
    assert await Job(tmp_path, section=None).look(after_midnight_min=60) == []
    job = Job(tmp_path)
    job.journal.state.write_note(fingerprints.NOTE, "[]")
    assert await job.look(after_midnight_min=60) == []


async def test_a_proof_of_half_a_day_is_made_again_and_a_whole_one_is_not(tmp_path: Path) -> None:
    for is_whole, started in ((True, []), (False, [DAY])):
        proof_files.write_proof(tmp_path, {"format": 1, "day": DAY, "isWhole": is_whole})
        assert await Job(tmp_path).look(after_midnight_min=60) == started


async def test_a_proof_that_fails_says_why_and_is_tried_once_more(tmp_path: Path) -> None:
    job = Job(tmp_path, "fails")
    assert await job.look(after_midnight_min=30) == [DAY]
    assert job.proof.failure == f"the proof of {DAY} failed: no candles"
    assert await job.look(after_midnight_min=31, mono_ms=AGAIN_MS - 1) == [DAY]
    for n in range(1, 4):
        assert await job.look(after_midnight_min=40, mono_ms=n * AGAIN_MS) == [DAY] * TRIES_MAX
    assert job.notices() == []


async def test_a_proof_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_schedule, "WITHIN_S", 3.0)
    job = Job(tmp_path, "hangs")
    assert await job.look(after_midnight_min=30) == [DAY]
    assert "did not end within" in (job.proof.failure or "")


async def test_a_stop_ends_the_process(tmp_path: Path) -> None:
    job = Job(tmp_path, "hangs")
    job.now_ms = MIDNIGHT_MS + 30 * MINUTE_MS
    job.proof.due.set()
    job.proof.look()
    async with asyncio.timeout(PATIENCE_S):
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.05)
        await job.proof.close()
    assert job.proof._task is not None
    assert job.proof._task.cancelled()


STRATEGY = """
from bot import Bracket, Close, Open, Strategy


class Swings(Strategy):
    def on_bar(self, view, bar):
        minute, held = bar.at_ms // 60_000 % 6, view.position(bar.market)
        if minute == 1 and not held:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=20))
        elif minute == 4 and held:
            yield Close(bar.market)
"""


@pytest.fixture
def served() -> Iterator[serving.Served]:
    options = {"clock": "manual", "start_ms": MIDNIGHT_MS - 25 * MINUTE_MS, "markets": ("BTC",), "rate_limits": False}
    service = serving.start({"BOT_CONTROL_TOKEN": "bbc_test"}, port=0, **options)
    yield service
    serving.end(service)


async def test_a_whole_daemon_proves_its_day_on_the_candles_of_its_service(
    served: serving.Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_schedule, "LOOK_S", 0.2)
    async with httpx.AsyncClient(base_url=served.base_url, timeout=30) as http:
        key = (await http.post("/v1/sandbox/accounts", json={"name": "mine"})).json()["apiKey"]
        (tmp_path / "swings.py").write_text(STRATEGY)
        config = tmp_path / "mine.yaml"
        config.write_text(
            f"name: mine\naccount: {{base_url: '{served.base_url}', api_key: '${{env:KEY}}'}}\ndead_man: off\n"
            f"state_dir: {tmp_path / 'state'}\nstrategies_dir: {tmp_path}\nproof: {{at: '00:02'}}\nstrategies:\n"
            "  - {name: one, use: swings, markets: [BTC], budget_usd: 1000}\n"
        )
        settings, stop, ready = load(config, {"KEY": key}), asyncio.Event(), asyncio.Event()
        request = RunRequest(
            settings=settings,
            base_url=served.base_url,
            api_key=SecretStr(key),
            stop=stop,
            on_ready=ready.set,
            config=config,
        )
        task = asyncio.create_task(daemon.run(request))
        async with asyncio.timeout(PATIENCE_S):
            await ready.wait()
            for _ in range(28):
                await http.post("/sandbox/v1/clock/advance", json={"ms": MINUTE_MS}, headers=CONTROL)
                # the pass that decides this bar
                await _decided(tmp_path / "state", http)
            while proof_files.read_proof(tmp_path / "state", DAY) is None:
                assert not task.done(), task.result()
                await asyncio.sleep(0.1)
        stop.set()
        end = await asyncio.wait_for(task, PATIENCE_S)
    document = proof_files.read_proof(tmp_path / "state", DAY)
    assert document is not None
    assert end.exit_code is Exit.DONE
    assert document["isWhole"]
    assert document["counts"]["decisions"] >= 6
    assert document["causes"].get("unknown", 0) == 0, document["differences"]


async def _decided(state: Path, http: httpx.AsyncClient) -> None:
    """Wait until the daemon has decided the newest closed bar."""
    newest = (await http.get("/v1/markets/BTC/candles", params={"interval": "1m", "limit": 2})).json()["candles"]
    closed = [candle["ts"] + MINUTE_MS for candle in newest if candle["closed"]]
    while True:
        with sqlite3.connect(f"file:{state / 'journal.db'}?mode=ro", uri=True) as db:
            rows = db.execute("SELECT at_ms FROM progress WHERE market='BTC'").fetchall()
        db.close()
        if not closed or (rows and rows[0][0] >= closed[-1]):
            return
        await asyncio.sleep(0.02)

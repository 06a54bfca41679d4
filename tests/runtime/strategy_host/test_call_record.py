"""What the next run can learn about a call that never ended, and when it learns nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.clock import boot_ns
from bot.config.settings import STRATEGIES_MAX
from bot.errors import StrategyError
from bot.runtime.journal.opening import open_journal
from bot.runtime.liveness.heartbeat_process import LEASE, LeaseFile
from bot.runtime.liveness.heartbeat_rule import Heart
from bot.runtime.strategy_host import call_record
from bot.runtime.strategy_host import worker as worker_module
from bot.runtime.strategy_host.call_record import CallRecord
from bot.runtime.strategy_host.crash_evidence import ASKED, quarantine_asked
from bot.runtime.strategy_host.worker import Worker
from tests.faulty_port import ADDRESS

FENCE = 7


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[CallRecord]:
    made = CallRecord(tmp_path / call_record.FILE, fence=FENCE)
    yield made
    made.close()


def blocked(folder: Path) -> list[call_record.UnfinishedCall]:
    return [one for one in call_record.asked(folder)[1] if one.blocked_daemon]


def seen_alive(folder: Path, later_s: float, fence: int = FENCE) -> None:
    """The heartbeat process saw the daemon alive this long after now."""
    lease = LeaseFile(str(folder / LEASE), write=True)
    lease.write(fence, boot_ns() + int(later_s * 1e9), Heart())
    lease.close()


def test_a_call_that_did_not_end_is_recorded_with_its_version_and_duration(tmp_path: Path, noted: CallRecord) -> None:
    first, second, third = noted.row(), noted.row(), noted.row()
    assert first is not None
    assert second is not None
    assert third is not None
    first.begin("quick", "v1")
    first.end()
    second.begin("stands", "0123456789abcdef")
    third.begin("slow", "v3")
    seen_alive(tmp_path, 60)
    found = blocked(tmp_path)
    assert [(one.strategy, one.version) for one in found] == [("stands", "0123456789abcdef"), ("slow", "v3")]
    assert 60 <= found[1].seconds <= found[0].seconds < 120
    third.end()
    assert [one.strategy for one in blocked(tmp_path)] == ["stands"]
    second.leave()
    assert blocked(tmp_path) == []


@pytest.mark.parametrize(("later_s", "fence"), [(call_record.STUCK_S - 1, FENCE), (60, FENCE + 1)])
def test_no_strategy_is_blamed_if_the_call_was_short_or_not_observed(
    tmp_path: Path, noted: CallRecord, later_s: float, fence: int
) -> None:
    row = noted.row()
    assert row is not None
    row.begin("innocent", "v1")
    seen_alive(tmp_path, later_s, fence)
    assert blocked(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"BBCALLS\x01", b"\xff" * call_record.SIZE, None])
def test_a_damaged_or_missing_file_names_no_strategy(tmp_path: Path, damage: bytes | None) -> None:
    assert blocked(tmp_path) == []
    seen_alive(tmp_path, 60)
    if damage is not None:
        (tmp_path / call_record.FILE).write_bytes(damage)
    assert blocked(tmp_path) == []


def test_a_run_clears_the_record_of_the_run_before_and_frees_rows(tmp_path: Path, noted: CallRecord) -> None:
    row = noted.row()
    assert row is not None
    row.begin("old", "v1")
    again = CallRecord(tmp_path / call_record.FILE, fence=FENCE)
    seen_alive(tmp_path, 60)
    assert blocked(tmp_path) == []
    rows = list(iter(again.row, None))
    assert len(rows) > STRATEGIES_MAX
    rows[0].leave()
    rows[0].leave()
    assert again.row() is not None
    assert again.row() is None
    again.close()
    # Its thread comes back when all is closed.
    rows[1].begin("late", "v1")


async def test_a_worker_records_its_calls_until_it_is_abandoned(
    tmp_path: Path, noted: CallRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strategy is in quarantine by then; its old thread must not write into the row of the next thread."""
    monkeypatch.setattr(worker_module, "LIMIT_S", 1.0)
    seen_alive(tmp_path, 60)
    worker, ended = Worker("slow", noted.row()), threading.Event()
    stuck: list[tuple[str, str]] = []

    def slow() -> None:
        stuck.extend((one.strategy, one.version) for one in blocked(tmp_path))
        ended.wait(30)

    with pytest.raises(StrategyError, match="took longer"):
        await worker.call(slow, "v2")
    assert stuck == [("slow", "v2")]
    assert blocked(tmp_path) == []
    monkeypatch.setattr(worker_module, "LIMIT_S", 60.0)
    new = Worker("slow", noted.row())
    ended.set()
    assert await new.call(lambda: [one.strategy for one in blocked(tmp_path)], "v2") == ["slow"]
    assert blocked(tmp_path) == []
    worker.close()
    new.close()


def test_a_row_that_is_left_during_a_write_has_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop abandons a thread while the thread begins its next call."""
    one = call_record.CallRecord(tmp_path / call_record.FILE, fence=1)
    row = one.row()
    assert row is not None
    write, leaving = one.write, threading.Thread(target=row.leave)

    def slow(at: int, part: bytes) -> None:
        write(at, part)
        if leaving.ident is None:
            leaving.start()
            leaving.join(0.05)

    monkeypatch.setattr(one, "write", slow)
    row.begin("trend", "1")
    leaving.join()
    rows = (tmp_path / call_record.FILE).read_bytes()[call_record._HEAD.size :]
    assert not any(began_ns for _, _, began_ns in call_record._ROW.iter_unpack(rows))


def test_a_strategy_that_three_runs_in_a_row_were_calling_at_their_end_is_quarantined(tmp_path: Path) -> None:
    """Without any heartbeat: a strategy that crashes at its first bar is faster than the first heartbeat."""
    journal = open_journal(None, address=ADDRESS)
    placed: Any = [SimpleNamespace(strategy=SimpleNamespace(name=name), version="v1") for name in ("crashes", "other")]
    fences = count(1)

    def life(*asked: tuple[str, str]) -> int:
        """A run that ended while these were asked, and how many are in quarantine after two starts, of which one
        came to nothing.
        """
        noted = CallRecord(tmp_path / call_record.FILE, fence=next(fences))
        for name, version in asked:
            row = noted.row()
            assert row is not None
            row.begin(name, version)
        noted.close()
        for _ in range(2):
            quarantine_asked(tmp_path, journal, placed, now_ms=1)
        return len([row for row in journal.db["outbox"].rows if row["kind"] == "strategy.quarantined"])

    assert life(("crashes", "v1"), ("other", "v1")) == 0
    assert life(("crashes", "v1")) == 0
    assert life() == 0, "one that ended otherwise begins the count anew"
    assert life(("crashes", "v1")) == 0
    assert life(("crashes", "v0")) == 0, "so does another version"
    journal.state.write_note(ASKED, "{")
    assert life(("crashes", "v1"), ("other", "v1")) == 0, "a damaged note"
    assert life(("crashes", "v1")) == 0
    (tmp_path / call_record.FILE).write_bytes(b"")
    # Where nothing can be told nothing is forgotten.
    quarantine_asked(tmp_path, journal, placed, now_ms=1)
    assert life(("crashes", "v1"), ("other", "v1")) == 1
    assert life(("crashes", "v1")) == 1, "it begins anew when a person has let it go on"

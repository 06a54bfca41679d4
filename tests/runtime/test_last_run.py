"""A run that was killed could tell nobody: the next one says that it ended, and when it was heard of last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.clock import SystemClock, boot_id, boot_ns, iso
from bot.runtime.control_plane import reporting
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.liveness.progress_stamp import ProgressWriter

HOUR_MS = 3_600_000
HOUR_NS = HOUR_MS * 1_000_000


@pytest.fixture
def journal() -> Iterator[Journal]:
    one = open_journal(None, address="0x" + "0" * 40)
    yield one
    one.close()


def stamped(folder: Path, *, boot_ns: int) -> None:
    writer = ProgressWriter(str(folder / "progress"), fence=7)
    writer.cycle_done(boot_ns=boot_ns, last_bar_at_ms=None)
    writer.close()


def told(journal: Journal) -> list[str]:
    return [json.loads(one.payload)["message"] for one in journal.owed(0, 10) if one.kind == "daemon.killed"]


def test_a_first_run_and_one_after_an_end_that_was_told_have_nothing_to_say(journal: Journal, tmp_path: Path) -> None:
    assert reporting.last_sign(journal, tmp_path) is None
    reporting.note_begin(journal, None, now_ms=1)
    stamped(tmp_path, boot_ns=boot_ns())
    reporting.note_end(journal)
    assert reporting.last_sign(journal, tmp_path) is None
    reporting.note_begin(journal, None, now_ms=2)
    assert told(journal) == []


def test_a_killed_run_was_heard_of_last_at_its_newest_pass(journal: Journal, tmp_path: Path) -> None:
    reporting.note_begin(journal, None, now_ms=1)
    # The machine may have started a moment ago.
    ago_ns = min(HOUR_NS, boot_ns() // 2)
    stamped(tmp_path, boot_ns=boot_ns() - ago_ns)
    sign = reporting.last_sign(journal, tmp_path)
    now_ms = SystemClock().now_ms()
    assert sign is not None
    assert iso(now_ms - ago_ns // 1_000_000 - 60_000) < sign <= iso(now_ms - ago_ns // 1_000_000)
    reporting.note_begin(journal, sign, now_ms=2)
    (message,) = told(journal)
    assert f"its last sign of life was at {sign}" in message
    assert reporting.last_sign(journal, tmp_path) is not None, "this run has not come to its end either"


@pytest.mark.parametrize(("passes", "boot"), [(0, boot_id()), (1, "another boot"), (1, "")])
def test_of_a_run_before_this_boot_or_without_a_pass_the_files_own_time_says_when(
    journal: Journal, tmp_path: Path, passes: int, boot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither run could tell which one it is.
    if not boot:
        monkeypatch.setattr(reporting, "boot_id", str)
    journal.state.write_note(reporting.UNENDED, boot)
    stamped(tmp_path, boot_ns=passes)
    os.utime(tmp_path / "progress", (1_700_000_000, 1_700_000_000))
    assert reporting.last_sign(journal, tmp_path) == iso(1_700_000_000_000)


def test_without_any_stamp_it_is_told_all_the_same(journal: Journal, tmp_path: Path) -> None:
    reporting.note_begin(journal, None, now_ms=1)
    assert reporting.last_sign(journal, tmp_path) == "an unknown instant"


def test_runs_that_are_killed_again_and_again_are_told_of_once_in_a_while(journal: Journal) -> None:
    # Ten minutes may end in the midst of it, once.
    for n in range(2 * 3):
        reporting.note_begin(journal, iso(n), now_ms=n)
    assert len(told(journal)) <= 2

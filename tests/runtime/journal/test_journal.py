"""The journal: rows are on disk before the next step, survive a kill, and damaged files are refused."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bot.errors import ConfigError, Exit, JournalBlocked, JournalError, Refusal
from bot.runtime.journal import opening
from bot.runtime.journal.journal import Journal, Notice
from bot.runtime.journal.opening import _in_memory, open_journal, open_or_rebuild
from bot.runtime.journal.state_store import Arm
from bot.runtime.model.intents import INTENT_MOVES, Intent
from tests.faulty_port import ADDRESS
from tests.runtime.builders import event, in_state, intent


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return open_journal(tmp_path / "journal.db", address=ADDRESS)


def reopened(journal: Journal) -> Journal:
    """The file as the next run opens it."""
    path = Path(journal.db.conn.execute("PRAGMA database_list").fetchone()[2])
    journal.db.close()
    return open_journal(path, address=ADDRESS)


def test_a_decision_is_written_once(journal: Journal) -> None:
    assert journal.open(intent())
    assert not journal.open(intent(body=b"{}"))
    assert [one.body for one in journal.intents.live()] == [b'{"market":"BTC"}']


@pytest.mark.parametrize(("before", "to"), list(product(INTENT_MOVES, INTENT_MOVES)))
def test_an_intent_moves_only_as_the_table_says(tmp_path: Path, before: str, to: str) -> None:
    journal = open_journal(None, address=ADDRESS)
    one = in_state(journal, before)
    assert one.state == before

    def move() -> Intent:
        if to == "planned":
            return journal.intents.planned(one, "token-1", 50, now_ms=4)
        if to == "accepted":
            return journal.intents.accept(one, "trd_1", now_ms=4)
        if to == "sending":
            return journal.intents.sending(one, now_ms=4)
        return journal.intents.end(one, to, "x", "y", now_ms=4)  # type: ignore[arg-type]

    if to in INTENT_MOVES[before] or before == to == "sending":
        assert move().state == to
        found = journal.intents.find(one.id)
        assert found is not None
        assert found.state == to
    elif to != "opened":
        with pytest.raises(AssertionError):
            move()


def test_a_move_from_a_state_that_the_journal_does_not_have_is_an_assertion_error(journal: Journal) -> None:
    one = in_state(journal, "accepted")
    with pytest.raises(AssertionError, match="not sending"):
        journal.intents.accept(replace(one, state="sending"), "trd_2", now_ms=9)


def test_an_attempt_without_an_outcome_counts_as_in_doubt(journal: Journal) -> None:
    one = in_state(journal, "sending")
    assert journal.intents.is_ambiguous(one)
    journal.intents.attempt_ended(one, "no", code="rate_limited", order_submitted=False)
    assert not journal.intents.is_ambiguous(one)
    one = journal.intents.sending(one, now_ms=5)
    journal.intents.attempt_ended(one, "unknown", code="internal_error", order_submitted="unknown")
    assert journal.intents.is_ambiguous(one)


def test_a_confirm_token_is_durable_and_removed_when_the_intent_is_final(journal: Journal) -> None:
    one = in_state(journal, "planned")
    assert "token-1" not in repr(one)
    journal = reopened(journal)
    (found,) = journal.intents.live()
    assert found == one
    journal.intents.accept(found, "trd_1", now_ms=5)
    assert [row["confirm_token"] for row in journal.db["intents"].rows] == [None]


def test_an_event_and_all_its_changes_are_written_once(journal: Journal) -> None:
    journal.restart_cursor("evt_0000000000", epoch=0, now_ms=0)
    events = [event(1), event(2), event(2)]
    fresh = journal.events.unseen(events)
    assert [one.id for one in fresh] == ["evt_0000000001", "evt_0000000002"]
    opened = journal.take(
        fresh,
        "evt_0000000002",
        epoch=0,
        states={"trend": '{"n": 1}'},
        intents=[intent(7)],
        notices=[Notice("evt_0000000001", "fill", "{}")],
    )
    assert [one.id for one in opened] == ["KEY7"]
    journal = reopened(journal)
    assert journal.events.cursor == ("evt_0000000002", "evt_0000000001", 0)
    assert journal.events.unseen(events) == []
    assert journal.state.of_strategy("trend") == {"n": 1}
    assert [(row.seq, row.kind) for row in journal.owed(0, 10)] == [(1, "fill")]
    assert journal.newest_notice() == 1
    with pytest.raises(JournalError):
        journal.take([event(1)], "evt_0000000003", epoch=0)
    assert journal.events.cursor == ("evt_0000000002", "evt_0000000001", 0), "a page that fails leaves nothing"


def test_a_finished_bar_is_durable_with_the_next_write_or_a_flush(journal: Journal) -> None:
    journal.state.bar_done("BTC", "1m", 60_000)
    assert journal.state.done_until("BTC", "1m") == 60_000
    journal = reopened(journal)
    assert journal.state.done_until("BTC", "1m") is None, "a lost one is decided again, with the same ids"
    journal.state.bar_done("BTC", "1m", 60_000)
    journal.open(intent())
    journal.state.bar_done("BTC", "1m", 120_000)
    journal.flush()
    assert reopened(journal).state.done_until("BTC", "1m") == 120_000


def test_a_pending_state_does_not_overwrite_a_newer_one(journal: Journal) -> None:
    journal.decided((), states={"trend": '{"n": 1}'})
    journal.decided([intent()], states={"trend": '{"n": 2}'})
    assert reopened(journal).state.of_strategy("trend") == {"n": 2}


def test_a_reset_makes_earlier_intents_void(journal: Journal) -> None:
    in_state(journal, "sending", 1)
    in_state(journal, "accepted", 2)
    void = journal.restart_cursor("evt_0000000009", epoch=1, now_ms=9)
    assert [one.id for one in void] == ["KEY1"]
    assert journal.intents.live() == []
    assert journal.events.cursor == ("evt_0000000009", None, 1)


def test_refusals_are_kept_for_people(journal: Journal) -> None:
    # A bar that is decided again says no again.
    for _ in range(2):
        journal.refused(
            Refusal("over_budget", "no"), strategy="trend", market="BTC", trigger="bar:1", ordinal=0, at_ms=1
        )
        journal.flush()
    assert [row["code"] for row in journal.db["refusals"].rows] == ["over_budget"]


def test_an_armed_guardian_is_stored_by_its_name(journal: Journal) -> None:
    assert journal.state.arm_of("dead_man") is None
    journal.state.write_arm(Arm("dead_man", 2, "grd_1", "{}"))
    assert reopened(journal).state.arm_of("dead_man") == ("dead_man", 2, "grd_1", "{}")


def test_the_file_refuses_rows_that_break_a_constraint(journal: Journal) -> None:
    def pragma(name: str) -> Any:
        return journal.db.conn.execute(f"PRAGMA {name}").fetchone()[0]

    assert (pragma("journal_mode"), pragma("synchronous"), pragma("foreign_keys")) == ("wal", 2, 1)
    assert all(table.strict for table in journal.db.tables if not table.name.startswith("_"))
    with pytest.raises(sqlite3.IntegrityError):
        journal.db.conn.execute("UPDATE meta SET value=NULL")


def test_the_journal_of_another_account_is_refused(journal: Journal, tmp_path: Path) -> None:
    journal.close()
    with pytest.raises(JournalError, match="belongs to account .* state_dir"):
        open_journal(tmp_path / "journal.db", address="0x" + "cd" * 20)


NEWER = {
    "a migration that this version does not know": (
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('journal', 'm999_tomorrow', '2030')",
        "m999_tomorrow",
    ),
    "a higher format": ("PRAGMA user_version=99", "format 99, this one reads [0-9]+"),
}


@pytest.mark.parametrize("newer", NEWER)
def test_a_newer_journal_is_refused_as_an_error_of_the_config_and_left_alone(
    newer: str, journal: Journal, tmp_path: Path
) -> None:
    """A service manager does not restart the daemon after this error, as it does after an error of the journal."""
    path = tmp_path / "journal.db"
    journal.close()
    sql, words = NEWER[newer]
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()
    held = path.read_bytes()
    for opens in (
        lambda: open_or_rebuild(path, address=ADDRESS, now_ms=0, was_used=True),
        lambda: _in_memory(path, ADDRESS, JournalBlocked("read-only"), None),
    ):
        with pytest.raises(ConfigError, match=f"newer version of Bracketbot .*{words}") as caught:
            opens()
        assert caught.value.exit_code is Exit.CONFIG
        assert path.read_bytes() == held
    assert [one.name for one in tmp_path.iterdir() if "damaged" in one.name] == []


def test_a_newer_journal_whose_schema_this_version_cannot_read_is_not_set_aside_as_damaged(
    journal: Journal, tmp_path: Path
) -> None:
    path = tmp_path / "journal.db"
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET sql='CREATE TABLE meta (a TOMORROW OF SQLITE) BETTER' WHERE name='meta'")
        db.execute("PRAGMA user_version=99")
        db.commit()
    with pytest.raises(ConfigError, match="format 99"):
        open_or_rebuild(path, address=ADDRESS, now_ms=0)
    assert path.exists()


def test_no_statement_of_an_order_makes_a_temporary_table(journal: Journal) -> None:
    """Such a table allocates 20 pages at each of five writes of an order; CHECK (x IN (a, b, c)) makes one."""
    said: list[str] = []
    journal.db.conn.set_trace_callback(said.append)
    for n, state in enumerate(sorted(INTENT_MOVES)):
        journal.trace(f"KEY{n}", "wish", "{}", at_ms=n)
        in_state(journal, state, n)
    journal.intents.live()
    journal.db.conn.set_trace_callback(None)
    asked = {one for one in said if one.startswith(("INSERT", "UPDATE", "SELECT"))}
    assert any("INTO intents" in one for one in asked)
    assert any("INTO traces" in one for one in asked)
    assert any("SELECT id, strategy" in one for one in asked)
    for one in sorted(asked):
        steps = [row[1] for row in journal.db.conn.execute(f"EXPLAIN {one}")]
        assert "OpenEphemeral" not in steps, one
    plan = journal.db.conn.execute("EXPLAIN QUERY PLAN " + next(one for one in asked if one.endswith("ORDER BY seq")))
    assert [row[3] for row in plan] == ["SCAN intents USING INDEX intents_live"]


def test_a_journal_that_is_closed_leaves_no_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *of, **more: made.append(connect(*of, **more)) or made[-1])
    open_journal(tmp_path / "journal.db", address=ADDRESS).close()
    assert made
    for one in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            one.execute("SELECT 1")


@pytest.mark.parametrize("damage", ["head", "page", "text"])
def test_a_damaged_file_is_refused_with_the_way_out(journal: Journal, tmp_path: Path, damage: str) -> None:
    for n in range(200):
        journal.open(intent(n, body=b"x" * 200))
    journal.close()
    path = tmp_path / "journal.db"
    data = bytearray(path.read_bytes())
    if damage == "text":
        data = bytearray(b"not a database, a note of mine\n" * 200)
    elif damage == "head":
        data[0:40] = b"\0" * 40
    else:
        for start in range(4096, len(data), 4096):
            data[start : start + 64] = os.urandom(64)
    path.write_bytes(data)
    with pytest.raises(JournalError, match="Move the file away"):
        open_journal(path, address=ADDRESS)


def test_a_row_that_was_changed_in_the_file_is_refused(journal: Journal) -> None:
    journal.open(intent())
    with journal.db.conn:
        journal.db.conn.execute("UPDATE intents SET body=?", (b'{"market":"ETH"}',))
    with pytest.raises(JournalError, match="checksum"):
        journal.intents.live()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="nowhere.*folder must exist"):
        open_journal(tmp_path / "nowhere" / "journal.db", address=ADDRESS)


def test_a_read_only_file_is_refused(journal: Journal, tmp_path: Path) -> None:
    journal.close()
    path = tmp_path / "journal.db"
    path.chmod(0o400)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everything")
    with pytest.raises(JournalError):
        open_journal(path, address=ADDRESS)


def test_a_failed_write_to_a_journal_in_memory_is_a_journal_error_and_changes_nothing() -> None:
    journal = open_journal(None, address=ADDRESS)
    journal.open(intent(1))
    journal.db.conn.execute("PRAGMA query_only=ON")
    with pytest.raises(JournalError, match="Nothing more is sent"):
        journal.open(intent(2))
    journal.db.conn.execute("PRAGMA query_only=OFF")
    assert [one.id for one in journal.intents.live()] == ["KEY1"]


def test_the_wait_for_another_process_lock_is_short_because_bars_wait_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time, and again after the file was written again.

    A start waits longer: here for minutes, so that the test sees the difference.
    """
    monkeypatch.setattr(opening, "OPEN_BUSY_MS", 120_000)
    journal = open_journal(tmp_path / "journal.db", address=ADDRESS)
    lock = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    for n in range(2):
        lock.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        journal.open(intent(n))
        assert journal.fault is not None
        assert 0.4 < time.monotonic() - began < 60
        lock.rollback()
        assert journal.mend()
    lock.close()
    journal.close()


CHILD = """
import sys
from pathlib import Path
from bot.runtime.model.intents import Intent
from bot.runtime.journal.opening import open_journal
journal = open_journal(Path(sys.argv[1]), address={address!r})
n = 0
while True:
    one = Intent(id=f"KEY{{n}}", strategy="trend", market="BTC", action="open", path="plan", trigger=f"bar:{{n}}", \
ordinal=0,
                 leg="order", epoch=0, body=b"{{}}", not_after_ms=1, opened_ms=1)
    journal.open(one)
    one = journal.intents.planned(one, f"token-{{n}}", 50, now_ms=2)
    one = journal.intents.sending(one, now_ms=3)
    print(n, flush=True)  # stands for the bytes that leave
    journal.intents.accept(one, f"trd_{{n}}", now_ms=4)
    n += 1
"""


def test_no_sent_intent_is_lost_by_kill_9(tmp_path: Path, kills: int) -> None:
    for n in range(kills):
        path = tmp_path / f"{n}.db"
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(address=ADDRESS), str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.01 * (n + 1))
        child.send_signal(signal.SIGKILL)
        left = [0, *(int(line) for line in child.stdout.read().split("\n") if line.strip())]
        child.stdout.close()
        child.wait()
        journal = open_journal(path, address=ADDRESS)
        for sent in left:
            found = journal.intents.find(f"KEY{sent}")
            assert found is not None
            assert found.state in ("sending", "accepted")
        live = journal.intents.live()
        assert len(live) <= 1
        assert all(journal.intents.is_ambiguous(one) for one in live if one.state == "sending")
        journal.close()


def test_an_event_with_a_known_id_and_another_time_is_new_after_a_restore(journal: Journal) -> None:
    journal.restart_cursor("evt_0000000000", epoch=0, now_ms=0)
    told = [event(1), event(2), event(3)]
    notices = [Notice("evt_0000000003", "fill.entry", '"undone"')]
    journal.take(journal.events.unseen(told), "evt_0000000003", epoch=0, notices=notices)
    sent = journal.newest_notice()
    journal.restart_cursor("evt_0000000001", epoch=0, now_ms=0)
    again = [event(2), event(3).model_copy(update={"ts": 77})]
    assert journal.events.unseen(again) == again[1:], "the second is the one that was taken"
    notices = [Notice("evt_0000000003", "fill.entry", '"new"')]
    journal.take(journal.events.unseen(again), "evt_0000000003", epoch=0, notices=notices)
    assert [(row["id"], row["ts"]) for row in journal.db["events"].rows] == [
        ("evt_0000000001", 1),
        ("evt_0000000002", 2),
        ("evt_0000000003", 77),
    ]
    assert [one.payload for one in journal.owed(0, 9)] == ['"undone"', '"new"']
    assert [one.payload for one in journal.owed(sent, 9)] == ['"new"'], (
        "whoever was told of the first is told of the second"
    )
    assert journal.events.unseen(again) == []

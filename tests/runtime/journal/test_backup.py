"""Copies of a database file: one state while others write, private, checked; and the copy that a migration leaves."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from sqlite_utils import Database

from bot.errors import JournalError
from bot.runtime.journal import backup, opening
from bot.runtime.journal.backup import NotCopied, write_copy
from bot.runtime.journal.opening import open_journal, open_or_rebuild
from bot.runtime.journal.schema import migrations

ADDRESS = "0x" + "ab" * 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE pairs (n INTEGER, filler TEXT)")
        db.commit()
    return path


def test_a_copy_is_one_state_while_another_connection_writes(source: Path, tmp_path: Path) -> None:
    """The writer adds two rows in each transaction, so a copy of one state has an even number of rows."""
    ends, added = threading.Event(), threading.Event()

    def add_pairs() -> None:
        with contextlib.closing(sqlite3.connect(source)) as db:
            while not ends.is_set():
                with db:
                    for _ in range(2):
                        db.execute("INSERT INTO pairs VALUES (1, ?)", ("x" * 2_000,))
                added.set()

    writer = threading.Thread(target=add_pairs)
    writer.start()
    try:
        counts = []
        for number in range(10):
            added.clear()
            assert added.wait(10)
            target = tmp_path / f"copy-{number}.db"
            write_copy(source, target)
            assert stat.S_IMODE(target.stat().st_mode) == 0o600
            with contextlib.closing(sqlite3.connect(target)) as db:
                counts.append(db.execute("SELECT count(*) FROM pairs").fetchone()[0])
    finally:
        ends.set()
        writer.join(10)
    assert all(count % 2 == 0 for count in counts)
    assert counts[-1] > counts[0] > 0
    assert sorted(path.name for path in tmp_path.glob("*copy*")) == [f"copy-{number}.db" for number in range(10)]


def test_a_damaged_or_missing_file_leaves_no_copy(source: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(source)) as db, db:
        db.executemany("INSERT INTO pairs VALUES (?, ?)", [(n, "x" * 500) for n in range(200)])
    with source.open("r+b") as file:
        file.seek(3 * 4096 + 100)
        file.write(b"\xff" * 2_000)
    with pytest.raises(NotCopied, match="rows.db is damaged|rows.db cannot be copied"):
        write_copy(source, tmp_path / "copy.db")
    with pytest.raises(NotCopied, match=r"gone.db cannot be copied to .*copy.db: unable to open"):
        write_copy(tmp_path / "gone.db", tmp_path / "copy.db")
    with pytest.raises(NotCopied, match="No such file or directory"):
        write_copy(source, tmp_path / "nowhere" / "copy.db")
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == []


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A journal that has not been through the newest migration."""
    path = tmp_path / "journal.db"
    with Database(path) as db:
        pending = [one.name for one in migrations.pending(db)]
        migrations.apply(db, stop_before=pending[-1])
        db.execute("INSERT INTO meta VALUES ('address', ?)", [ADDRESS])
        db.execute(f"PRAGMA user_version={len(pending) - 1}")
        db.conn.commit()
    return path


def test_a_migration_keeps_a_copy_of_the_journal_first(older: Path, tmp_path: Path) -> None:
    open_journal(older, address=ADDRESS).close()
    (kept,) = tmp_path.glob("journal.db.format-*")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with contextlib.closing(sqlite3.connect(kept)) as old, contextlib.closing(sqlite3.connect(older)) as new:
        number = int(kept.name.rpartition("-")[2])
        assert [db.execute("PRAGMA user_version").fetchone()[0] for db in (old, new)] == [number, number + 1]
        assert not old.execute("PRAGMA table_info(round_trips)").fetchall()
        assert new.execute("PRAGMA table_info(round_trips)").fetchall()
    before = kept.read_bytes()
    open_journal(older, address=ADDRESS).close()
    assert [path.name for path in tmp_path.glob("journal.db.format-*")] == [kept.name]
    assert kept.read_bytes() == before


def test_without_a_copy_nothing_is_migrated(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise NotCopied("no space left on device")

    monkeypatch.setattr(opening, "write_copy", fail)
    with pytest.raises(JournalError, match=r"is of another version and cannot be written|no copy can be kept"):
        open_or_rebuild(older, address=ADDRESS, now_ms=0)
    with contextlib.closing(sqlite3.connect(older)) as db:
        assert not db.execute("PRAGMA table_info(round_trips)").fetchall()


def test_a_new_journal_needs_no_copy(tmp_path: Path) -> None:
    open_journal(tmp_path / "journal.db", address=ADDRESS).close()
    assert list(tmp_path.glob("*.format-*")) == []
    assert backup.faults(sqlite3.connect(tmp_path / "journal.db")) is None

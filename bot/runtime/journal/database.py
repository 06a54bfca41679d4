"""The journal's SQLite database: transactions, reads, and the fallback to memory while the file cannot be written.

`synchronous=FULL`: with NORMAL, replayed power cuts lost intents that had been sent (reliability.md §0). Writes are raw
statements on the prepared-statement cache, because orders wait for them.

A file that cannot be written (full, read-only, locked, I/O error) does not end the run. `fault` says why, writes go to
a copy in memory, and `mend` moves them into the file when it works again. Rows that are only in memory are lost with
the process, so the daemon opens nothing during a fault; exits go on. A write to a removed file does not fail:
`check_file` finds that. A damaged file raises JournalDamaged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from bot.descriptors import reserved
from bot.errors import JournalDamaged, JournalError
from bot.logs import log
from bot.runtime.journal.database_library import Database
from bot.runtime.journal.failover import (
    FileIds,
    copied,
    disk_hint,
    file_ids,
    is_damage,
    may_pass,
    remove_log,
    set_aside,
    write_back,
)
from bot.runtime.journal.retention import PAGES_FREE, PAGES_GIVEN

# wait for another process's lock; bars and exits wait too, and the memory copy is the fallback
BUSY_TIMEOUT_MS: Final = 500
# The size of the write-ahead log after a checkpoint.
LOG_BYTES_MAX: Final = 8 * 1024 * 1024
# pages of the log from which on a commit checkpoints if `checkpoint` did not
LOG_PAGES_MAX: Final = 2_000
# statements after which `checkpoint` is worth its wait for the disk
LOG_WRITES: Final = 500

WAY_OUT: Final = (
    "Move the file away and start again: positions and orders are read from the service, and a decision made twice has"
    " the same key, so nothing is ordered twice."
)
NOTHING_SENT: Final = "Nothing more is sent; guardians and stops stay active at the service."
_MEANWHILE: Final = "nothing is opened; exits, stops and guardians continue; the file is written as soon as that works"

Execute = Callable[..., sqlite3.Cursor]


class Pending(Protocol):
    """Rows that wait for the next transaction."""

    def write(self, execute: Execute) -> None: ...

    def clear(self) -> None: ...


class Rows(list[tuple[Any, ...]]):
    """The rows of a finished query."""

    def fetchone(self) -> Any:
        return self[0] if self else None


class JournalDatabase:
    """One connection, one transaction at a time. `path` is None for a journal that lives in memory only."""

    def __init__(self, db: Database, *, path: Path | None, pending: Pending) -> None:
        self.db = db
        self.path = path
        # why the file cannot be written now
        self.fault: str | None = None
        self._pending = pending
        # None: could not be read
        self._ids: FileIds | None = None if path is None else file_ids(path)
        self._raw: Execute = db.conn.execute
        # The statements of the open transaction, for a repeat.
        self._statements: list[tuple[str, Sequence[object]]] | None = None
        # the open transaction is `together`'s, and inner ones are part of it
        self._is_joined = False
        self._after_commit: list[Callable[[], None]] = []
        # statements since the last checkpoint
        self._in_log = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all writes of the block one transaction. A nested call joins the outer one."""
        if self._is_joined:
            yield
            return
        with self.transaction():
            self._is_joined = True
            try:
                yield
            finally:
                self._is_joined = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE to COMMIT, including pending rows.

        An error rolls back; a file that cannot be written falls back to memory.
        """
        if self._is_joined:
            yield
            return
        self._after_commit.clear()
        try:
            self._begin()
            try:
                yield
                self._pending.write(self.execute)
                self._commit()
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.conn.rollback()
                raise
        except sqlite3.Error as error:
            raise _failed(error, "written") from error
        finally:
            self._in_log += len(self._statements or ())
            self._statements = None
        self._pending.clear()
        for action in self._after_commit:
            action()

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run `action` after the open transaction has committed. The same action runs once."""
        if action not in self._after_commit:
            self._after_commit.append(action)

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement of the open transaction, and note it for a repeat in memory."""
        try:
            done = self._raw(sql, values)
        except sqlite3.Error as error:
            self._fall_back(error)
            done = self._raw(sql, values)
        if self._statements is not None:
            self._statements.append((sql, values))
        return done

    def read(self, sql: str, values: Sequence[object] = ()) -> Rows:
        """All rows of a query.

        They are read here, so that an unreadable file raises here and not at the caller's loop.
        """
        try:
            try:
                return Rows(self._raw(sql, values))
            except sqlite3.Error as error:
                self._fall_back(error)
                return Rows(self._raw(sql, values))
        except sqlite3.Error as error:
            raise _failed(error, "read") from error

    def intercept(self, around: Callable[[Execute], Execute]) -> None:
        """Run every statement through `around`. A drill ends the process there."""
        self._raw = around(self._raw)

    def checkpoint(self) -> None:
        """Write the log back into the file if it is long. Commits do not do this, because orders wait for commits.

        The next write reports a file that fails here.
        """
        if self.path is None or self.fault is not None or self._in_log < LOG_WRITES:
            return
        self._in_log = 0
        with suppress(sqlite3.Error):
            self._raw("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def free_pages(self) -> None:
        """Give free pages back to the disk, some at a time. The next write reports a file that fails here."""
        if self.path is None or self.fault is not None:
            return
        with suppress(sqlite3.Error):
            free = int(self._raw("PRAGMA freelist_count").fetchone()[0])
            if free > PAGES_FREE:
                # A script runs every step: the pragma frees a page with each, and `execute` makes one step.
                self.db.conn.executescript(f"PRAGMA incremental_vacuum({min(free - PAGES_FREE, PAGES_GIVEN)})")

    def check_file(self, *, now_ms: int) -> None:
        """Treat a removed or replaced file as a fault: what is written to it would be lost with the process.

        A file in its place is kept.
        """
        if self.path is None:
            return
        before, now = self._ids, file_ids(self.path)
        if before is None or now is None or (self.fault is None and now.goes_on_from(before)):
            self._ids = now or before
            return
        is_ours = now.file == before.file
        is_new = self.fault is None
        if is_new:
            self._leave_file("its file was removed or replaced while it was in use")
        try:
            # Our log would be read as the log of the file that has, or will have, this name.
            if is_new and not is_ours and now.log == before.log:
                remove_log(self.path)
            if now.file is not None and not is_ours:
                log.warning("journal.set_aside", path=str(self.path), kept_as=str(set_aside(self.path, now_ms)))
        except (OSError, JournalError) as error:
            log.warning("journal.not_set_aside", path=str(self.path), message=str(error))

    @reserved()
    def mend(self) -> bool:
        """Move the memory copy into the file; False while that fails. JournalDamaged if the file is damaged."""
        if self.fault is None:
            return True
        assert self.path is not None
        assert self._statements is None
        try:
            write_back(self.db.conn, self.path)
            self._ids = file_ids(self.path)
            db = connected(self.path, BUSY_TIMEOUT_MS)
            try:
                configure(db, f"journal {self.path}")
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:
            if is_damage(error):
                raise JournalDamaged(f"journal {self.path} is damaged: {error}. {WAY_OUT}") from error
            log.warning("journal.not_mended", path=str(self.path), message=str(error))
            return False
        except (OSError, JournalError) as error:
            log.warning("journal.not_mended", path=str(self.path), message=str(error))
            return False
        self._use(db)
        self.fault, self._ids = None, file_ids(self.path)
        log.warning("journal.mended", path=str(self.path))
        return True

    def begin_fault(self, why: str) -> None:
        """Note that the file cannot be written, from now until `mend` succeeds."""
        assert self.path is not None
        self.fault = f"journal {self.path} cannot be written: {why}{disk_hint(self.path)}"
        log.error("journal.fault", path=str(self.path), message=self.fault, meanwhile=_MEANWHILE)

    def close(self) -> None:
        if self.fault is not None:
            log.error(
                "journal.lost",
                path=str(self.path),
                message="only the service has a record of the daemon's actions since the fault",
            )
        self.db.close()

    def _begin(self) -> None:
        assert self._statements is None, "one transaction at a time"
        try:
            self._raw("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._fall_back(error)
            self._raw("BEGIN IMMEDIATE")
        self._statements = []

    def _commit(self) -> None:
        try:
            self._raw("COMMIT")
        except sqlite3.Error as error:
            self._fall_back(error)
            self._raw("COMMIT")

    def _fall_back(self, error: sqlite3.Error) -> None:
        """Go on in memory, with all committed rows and the open transaction so far.

        Raises `error` if that is not possible.
        """
        if self.path is None or self.fault is not None or not may_pass(error):
            raise error
        with suppress(sqlite3.Error):
            self.db.conn.rollback()
        self._leave_file(str(error))
        if self._statements is not None:
            self._raw("BEGIN IMMEDIATE")
            for sql, values in self._statements:
                self._raw(sql, values)

    def _leave_file(self, why: str) -> None:
        """Go on in memory, with all committed rows."""
        try:
            memory = copied(self.db.conn)
        except sqlite3.Error as error:
            raise JournalError(
                f"journal {self.path} can be neither written ({why}) nor read ({error}). {NOTHING_SENT}"
            ) from error
        self.begin_fault(why)
        self._use(Database(memory))
        self._raw("PRAGMA foreign_keys=ON")

    def _use(self, db: Database) -> None:
        old, self.db, self._raw = self.db, db, db.conn.execute
        with suppress(sqlite3.Error):
            # Closing must not wait for a checkpoint.
            old.conn.execute("PRAGMA busy_timeout=0")
            old.close()


def connected(path: Path | None, busy_ms: int) -> Database:
    return Database(sqlite3.connect(":memory:" if path is None else str(path), timeout=busy_ms / 1000))


def configure(db: Database, shown: str) -> None:
    """Set the pragmas of the file and of the connection."""
    execute = db.conn.execute
    if not execute("PRAGMA page_count").fetchone()[0]:
        # SQLite accepts this pragma for an empty file only.
        execute("PRAGMA auto_vacuum=INCREMENTAL")
    mode = execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode not in ("wal", "memory"):
        raise JournalError(
            f"{shown} cannot be written ahead (mode {mode}): its folder must be writable and on a local disk."
        )
    execute("PRAGMA synchronous=FULL")
    # On macOS only this waits for the disk itself; elsewhere it does nothing.
    execute("PRAGMA fullfsync=ON")
    execute("PRAGMA foreign_keys=ON")
    execute(f"PRAGMA journal_size_limit={LOG_BYTES_MAX}")
    execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES_MAX}")


def limit_waits(db: Database) -> None:
    """Set the lock timeout of a running daemon, which is shorter than that of a start."""
    db.conn.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")


def _failed(error: sqlite3.Error, action: str) -> JournalError:
    if is_damage(error):
        return JournalDamaged(f"the journal is damaged: {error}. {WAY_OUT}")
    return JournalError(f"the journal cannot be {action}: {error}. {NOTHING_SENT}")

"""Failover of the journal's file: temporary faults, the copy in memory, the way back into the file, and damaged files.

SQL and files only; database.py decides when. After a temporary fault (a full or read-only disk, a lock, an I/O error)
the daemon goes on with the copy and opens nothing. A damaged file is never copied.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from bot.clock import iso
from bot.errors import JournalError

# wait of a write-back for another process's lock; the kernel waits with it
MEND_BUSY_MS: Final = 250
# less free space than this is the likely cause of a fault
ROOM_BYTES: Final = 16 * 1024 * 1024
# damaged files of one second
ASIDE_MAX: Final = 100

PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOMEM,
    }
)
DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# The part of an extended result code that is the primary one.
_PRIMARY: Final = 0xFF


class FileIds(NamedTuple):
    """Device and inode of a file and of its log; None for a missing one."""

    file: tuple[int, int] | None
    log: tuple[int, int] | None

    def goes_on_from(self, before: FileIds) -> bool:
        """True if these are the files of `before`; the log may be newer."""
        return self.file is not None and self.file == before.file and before.log in (None, self.log)


def file_ids(path: Path) -> FileIds | None:
    """None if the folder cannot be read: the open file works on, or its next write fails."""
    try:
        return FileIds(_file_id(path), _file_id(path.with_name(f"{path.name}-wal")))
    except OSError:
        return None


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def may_pass(error: sqlite3.Error) -> bool:
    """True if the file may work again later without repair."""
    return _code(error) in PASSING


def is_damage(error: sqlite3.Error) -> bool:
    """True if the file's content cannot be trusted."""
    return _code(error) in DAMAGE


def copied(conn: sqlite3.Connection) -> sqlite3.Connection:
    """A copy of all committed rows in memory. sqlite3.Error if the file cannot be read."""
    memory = sqlite3.connect(":memory:")
    try:
        copy_into(conn, memory)
    except BaseException:
        memory.close()
        raise
    return memory


def copy_into(conn: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Copy all committed rows in one read transaction, so that the copy is one state while others write.
    sqlite3.Error if that fails.
    """

    def check(status: int, _left: int, _pages: int) -> None:
        # The library itself would retry for ever.
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise sqlite3.OperationalError("the file is locked against reading")

    conn.backup(target, progress=check)


def copied_file(path: Path, busy_ms: int) -> sqlite3.Connection:
    """`copied` of a file that is not open.

    On a full disk the shared index cannot be created, so the file is then read exclusively.
    """
    try:
        return _copied_by(path, busy_ms, "NORMAL")
    except sqlite3.Error as error:
        if is_damage(error):
            raise
        return _copied_by(path, busy_ms, "EXCLUSIVE")


def _copied_by(path: Path, busy_ms: int, mode: str) -> sqlite3.Connection:
    source = sqlite3.connect(str(path), timeout=busy_ms / 1000)
    try:
        source.execute(f"PRAGMA locking_mode={mode}")
        return copied(source)
    finally:
        source.close()


def disk_hint(path: Path) -> str:
    """A hint for people if the disk of a file is nearly full; else empty."""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return ""
    return f" ({free:,} bytes are free on its disk: free some space)" if free < ROOM_BYTES else ""


def write_back(memory: sqlite3.Connection, path: Path) -> None:
    """Write the memory into the file, in one transaction of changed rows only. sqlite3.Error leaves the file as it
    was.
    """
    if not path.exists():
        _write_anew(memory, path)
        return
    memory.execute("ATTACH ? AS disk", (str(path),))
    try:
        memory.execute(f"PRAGMA busy_timeout={MEND_BUSY_MS}")
        memory.execute("PRAGMA disk.synchronous=FULL")
        # SQLite accepts this pragma for an empty file only; any other file has it already.
        memory.execute("PRAGMA disk.auto_vacuum=INCREMENTAL")
        known = {row[0] for row in memory.execute("SELECT name FROM disk.sqlite_master WHERE type='table'")}
        memory.execute("BEGIN IMMEDIATE")
        try:
            memory.execute("PRAGMA defer_foreign_keys=ON")
            for name, sql in _tables(memory):
                if name not in known:
                    memory.execute(sql.replace("CREATE TABLE ", "CREATE TABLE disk.", 1))
                _move_rows(memory, name)
            memory.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                memory.rollback()
            raise
    finally:
        memory.execute("DETACH disk")


def _tables(memory: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = memory.execute(
        "SELECT name, sql FROM main.sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    )
    return [(str(name), str(sql)) for name, sql in rows]


def _move_rows(memory: sqlite3.Connection, table: str) -> None:
    """Make a table of the file equal to the copy in memory: delete rows that the copy lacks, replace rows that differ.

    The rowid identifies a row.
    """
    named = memory.execute(f'PRAGMA main.table_info("{table}")').fetchall()
    columns = ", ".join(f'"{row[1]}"' for row in named)
    has_own_rowid = any(row[5] == 1 and str(row[2]).upper() == "INTEGER" for row in named)
    if not has_own_rowid:
        columns = f"rowid, {columns}"
    source, target = f'main."{table}"', f'disk."{table}"'
    # Names of our own tables.
    memory.execute(f"DELETE FROM {target} WHERE rowid NOT IN (SELECT rowid FROM {source})")  # noqa: S608
    memory.execute(
        f"INSERT OR REPLACE INTO {target} ({columns})"  # noqa: S608
        f" SELECT {columns} FROM {source} EXCEPT SELECT {columns} FROM {target}"
    )


def _write_anew(memory: sqlite3.Connection, path: Path) -> None:
    """Write a removed file again, under a temporary name until it is complete."""
    fresh = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    target = sqlite3.connect(fresh)
    try:
        memory.backup(target)
    finally:
        target.close()
    # The removed file's log would be read as the new file's.
    remove_log(path)
    fresh.rename(path)


def remove_log(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def set_aside(path: Path, now_ms: int) -> Path:
    """Rename a damaged file and its log, so that nothing is deleted; returns the new name.

    JournalError if that fails.
    """
    stamp = iso(now_ms)[:19].replace("-", "").replace(":", "")
    names = (path.with_name(f"{path.name}.damaged-{stamp}" + (f"-{n}" if n else "")) for n in range(ASIDE_MAX))
    aside = next((name for name in names if not name.exists()), None)
    if aside is None:
        raise JournalError(f"{ASIDE_MAX} damaged journals of this second are beside {path}: check the disk.")
    try:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise JournalError(
            f"journal {path} is damaged and cannot be moved away: {error.strerror or error}. Move it away and start"
            " again."
        ) from error
    return aside


def seal(*values: object) -> int:
    """A checksum of a row's values, which finds changes that every constraint accepts."""
    return zlib.crc32("\x1f".join(["" if value is None else str(value) for value in values]).encode())


def _code(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", None)
    return code & _PRIMARY if isinstance(code, int) else 0

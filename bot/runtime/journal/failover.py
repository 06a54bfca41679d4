"""When the journal's file fails: which faults may pass, a copy in memory to go on with, the way back, and a damaged file set aside.

SQL and files only; the journal decides when. A fault that may pass (a full or read-only disk, a lock, an I/O error) is
answered with the copy, on which nothing is opened; a damaged file never is.
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

MEND_BUSY_MS: Final = 250  # that one try to write back may wait for another's lock; the loop waits with it
ROOM_BYTES: Final = 16 * 1024 * 1024  # with less than this on its disk, that is most likely why
ASIDE_MAX: Final = 100  # damaged files of one second; more is no accident

PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM,
    }
)  # fmt: skip
DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY: Final = 0xFF  # of an extended result code


class FileIds(NamedTuple):
    """Which files a name and its log stand for: device and number of each, None where none stands."""

    file: tuple[int, int] | None
    log: tuple[int, int] | None

    def goes_on_from(self, before: FileIds) -> bool:
        """Whether these are the files of before; the log may have been begun since."""
        return self.file is not None and self.file == before.file and before.log in (None, self.log)


def file_ids(path: Path) -> FileIds | None:
    """None where the folder does not let itself be looked at: the file that is open works on, or its next write fails."""
    try:
        return FileIds(_file_id(path), _file_id(path.with_name(f"{path.name}-wal")))
    except OSError:
        return None


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def may_pass(error: sqlite3.Error) -> bool:
    """Whether the file may work again later, as it is."""
    return _code(error) in PASSING


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file's content can no longer be trusted."""
    return _code(error) in DAMAGE


def copied(conn: sqlite3.Connection) -> sqlite3.Connection:
    """Everything that is committed, in memory. sqlite3.Error when the file cannot even be read."""

    def look(status: int, _left: int, _pages: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):  # The library itself would ask for ever.
            raise sqlite3.OperationalError("the file is locked against reading")

    memory = sqlite3.connect(":memory:")
    try:
        conn.backup(memory, progress=look)
    except BaseException:
        memory.close()
        raise
    return memory


def copied_file(path: Path, busy_ms: int) -> sqlite3.Connection:
    """The same of a file that is not open. A full disk has no room for the index that readers share: then it is read by us alone."""
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


def room(path: Path) -> str:
    """What to say of the disk of a file that cannot be written; nothing where there is room enough."""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return ""
    return f" ({free:,} bytes are free on its disk: make room there)" if free < ROOM_BYTES else ""


def write_back(memory: sqlite3.Connection, path: Path) -> None:
    """Make the file what the memory is, in one transaction that moves changed rows only. sqlite3.Error leaves the file as it was."""
    if not path.exists():
        _write_anew(memory, path)
        return
    memory.execute("ATTACH ? AS disk", (str(path),))
    try:
        memory.execute(f"PRAGMA busy_timeout={MEND_BUSY_MS}")
        memory.execute("PRAGMA disk.synchronous=FULL")
        memory.execute("PRAGMA disk.auto_vacuum=INCREMENTAL")  # of an empty file; any other has it already
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
    """Rows that the memory has no more go, those that differ are replaced. A row is the same row by its rowid."""
    named = memory.execute(f'PRAGMA main.table_info("{table}")').fetchall()
    columns = ", ".join(f'"{row[1]}"' for row in named)
    has_own_rowid = any(row[5] == 1 and str(row[2]).upper() == "INTEGER" for row in named)
    if not has_own_rowid:
        columns = f"rowid, {columns}"
    source, target = f'main."{table}"', f'disk."{table}"'
    memory.execute(f"DELETE FROM {target} WHERE rowid NOT IN (SELECT rowid FROM {source})")  # noqa: S608 - names of our own tables
    memory.execute(
        f"INSERT OR REPLACE INTO {target} ({columns}) SELECT {columns} FROM {source} EXCEPT SELECT {columns} FROM {target}"  # noqa: S608
    )


def _write_anew(memory: sqlite3.Connection, path: Path) -> None:
    """The file was taken away: all of it again, and under its name only when it is whole."""
    fresh = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    target = sqlite3.connect(fresh)
    try:
        memory.backup(target)
    finally:
        target.close()
    remove_log(path)  # Of the file that is gone: it would be read as this one's.
    fresh.rename(path)


def remove_log(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def set_aside(path: Path, now_ms: int) -> Path:
    """Move a damaged file, with its log, to a name of its own beside it; nothing is deleted. JournalError when that cannot be done."""
    stamp = iso(now_ms)[:19].replace("-", "").replace(":", "")
    names = (path.with_name(f"{path.name}.damaged-{stamp}" + (f"-{n}" if n else "")) for n in range(ASIDE_MAX))
    aside = next((name for name in names if not name.exists()), None)
    if aside is None:
        raise JournalError(
            f"{ASIDE_MAX} damaged journals of this second stand beside {path}: a person must look at the disk."
        )
    try:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise JournalError(
            f"journal {path} is damaged and cannot be moved away: {error.strerror or error}. Move it away by hand and start again."
        ) from error
    return aside


def seal(*values: object) -> int:
    """A checksum of a row's values, for what no constraint of the database would notice."""
    return zlib.crc32("\x1f".join(["" if value is None else str(value) for value in values]).encode())


def _code(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", None)
    return code & _PRIMARY if isinstance(code, int) else 0

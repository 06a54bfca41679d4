"""Copies of database files: for `bot backup`, and of the journal before a migration changes it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from bot.errors import BotError
from bot.files import sync
from bot.runtime.journal.failover import copy_into, disk_hint

# wait for a process that locks the file against reading
BUSY_MS: Final = 5_000


class NotCopied(BotError):
    """A database file cannot be copied, or its copy fails the check."""


def write_copy(source: Path, target: Path) -> None:
    """Copy a database file as one state, while other processes may write to it. The copy is one file, for its owner
    only, checked and on disk.

    NotCopied if that fails; then there is no `target`.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with (
            contextlib.closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_MS / 1000)
            ) as rows,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            copy_into(rows, copy)
            # In this mode the copy needs no file beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
            if (damage := faults(copy)) is not None:
                raise NotCopied(f"{source} is damaged: {damage}")
        sync(part)
        part.replace(target)
        sync(target.parent)
    except sqlite3.Error as error:
        raise NotCopied(f"{source} cannot be copied to {target}: {error}{disk_hint(target)}") from error
    except OSError as error:
        raise NotCopied(f"{target} cannot be written: {error.strerror or error}{disk_hint(target)}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def faults(db: sqlite3.Connection) -> str | None:
    """What `PRAGMA integrity_check` finds; None for a sound database."""
    lines = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
    return None if lines == ["ok"] else "; ".join(lines)

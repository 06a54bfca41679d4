"""Whether this version of the program can continue with a stored database, found without changing it.

The rules that replay a log are the code of the venue and of its events. Their digest is stored with the log, so that an error can name both versions.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import sqlite3
import zlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import bot.model
import bot.venue
from bot.errors import ConfigError

META: Final = "program"  # in the database: the program that has last opened it
WAY_OUT: Final = "Run the version that wrote it, restore a backup (bot restore), or move the file away: the next start begins a new account"


@cache
def program() -> str:
    """This program: its version and a digest of the venue's rules."""
    digest = hashlib.sha256()
    folders = (Path(module.__file__ or "").parent for module in (bot.venue, bot.model))
    for file in (file for folder in folders for file in sorted(folder.glob("*.py"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"Bracketbot {version('bracketbot')} (rules {digest.hexdigest()[:8]})"


def versions_text(written_by: str | None) -> str:
    """Both versions, as a sentence: who wrote a database, and who reads it."""
    if written_by == program():
        return f"{program()} wrote it and reads it, so it is damaged"
    wrote = "an earlier version, which left no name," if written_by is None else written_by
    return f"{wrote} wrote it, and this is {program()}: it belongs to another version of the program or is damaged"


def stored_problem(path: Path) -> str | None:
    """Why this version cannot continue with the database. None: it can, there is none, or a service uses it now."""
    from bot.service.state_machine.command_log import check_file, read_all
    from bot.service.state_machine.replay import replay

    if not path.exists() or path.stat().st_size == 0 or _is_used(path):
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            check_file(db, path)
            replay(read_all(db), str(path))
    except ConfigError as error:
        return str(error)
    except sqlite3.OperationalError:  # It cannot be read here and now; a start says why.
        return None
    except (sqlite3.DatabaseError, zlib.error, UnicodeDecodeError):
        return f"{path}: is damaged. {WAY_OUT}"
    return None


def _is_used(path: Path) -> bool:
    """True if a service holds the lock of the database."""
    try:
        with path.with_name(f"{path.name}.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False

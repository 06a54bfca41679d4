"""Whether this version can read what an earlier run has stored: the journal, and the database of the embedded
service.
"""

from __future__ import annotations

import fcntl
import sqlite3
from pathlib import Path

from bot.errors import ConfigError


def stored_problems(state_dir: Path, *, embedded: bool) -> list[str]:
    """Each stored file that this version cannot continue with: both versions and the way out.

    Files that are in use are not looked at.
    """
    results = [service_problem(state_dir) if embedded else None, journal_problem(state_dir / "journal.db")]
    return [problem for problem in results if problem is not None]


def service_problem(state_dir: Path) -> str | None:
    """Why this version cannot continue with the embedded service's database."""
    path = state_dir / "sandbox.db"
    if not _has_content(path) or _is_used(path):
        return None
    from bot.service.state_machine.database_check import stored_problem

    return stored_problem(path)


def journal_problem(path: Path) -> str | None:
    """Why this version cannot continue with the journal: a newer one has written it."""
    if not _has_content(path):
        return None
    from bot.runtime.journal.opening import refuse_newer

    try:
        refuse_newer(path)
    except ConfigError as error:
        return str(error)
    # Damaged or shut; bot doctor and the next start say so.
    except sqlite3.Error:
        return None
    return None


def _has_content(path: Path) -> bool:
    """False also for a file that this user may not see: it is not known then, and its owner's start says it."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


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

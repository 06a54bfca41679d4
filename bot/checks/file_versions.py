"""Whether this version can read what an earlier run has stored: the journal, and the database of the embedded service."""

from __future__ import annotations

from pathlib import Path

from bot.errors import ConfigError


def stored_problems(state_dir: Path, *, embedded: bool) -> list[str]:
    """Each stored file that this version cannot continue with: both versions and the way out. Files that are in use are not looked at."""
    found = []
    journal = state_dir / "journal.db"
    if embedded and (problem := service_problem(state_dir)) is not None:
        found.append(problem)
    if journal.exists() and journal.stat().st_size and (problem := journal_problem(journal)) is not None:
        found.append(problem)
    return found


def service_problem(state_dir: Path) -> str | None:
    """Why this version cannot continue with the embedded service's database."""
    from bot.service.state_machine.rules_version import stored_problem

    return stored_problem(state_dir / "sandbox.db")


def journal_problem(path: Path) -> str | None:
    """Why this version cannot continue with the journal: a newer one has written it."""
    import sqlite3

    from bot.runtime.journal.opening import refuse_newer

    try:
        refuse_newer(path)
    except ConfigError as error:
        return str(error)
    except sqlite3.Error:  # Damaged or shut; bot doctor and the next start say so.
        return None
    return None

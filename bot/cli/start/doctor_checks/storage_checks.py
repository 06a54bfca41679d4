"""The state directory, its disk, the journal and the embedded service's database."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Final

from bot.cli.start.doctor_checks.findings import ASK, DoctorFinding, Facts, exists
from bot.errors import Exit

if TYPE_CHECKING:
    pass

DISK_WARN_MB: Final = 1_024
DISK_FAIL_MB: Final = 64
# SQLite cannot shrink the write-ahead log while another program reads the journal
WAL_WARN_MB: Final = 64
# in older versions two writing processes can damage a file; the daemon is the only one
SQLITE_SAFE: Final = (3, 51, 3)
_DAMAGED: Final = "restore a backup (bot restore), or move the file away: the next start begins a new account"
_OPEN: Final = (
    "the user who runs the daemon must be able to read and write it: chown or chmod it, or end the program that"
    " locks it"
)
_ANEW: Final = (
    "check the disk, then start the daemon: it keeps the damaged file under another name and rebuilds the journal from"
    " the service; no order is sent twice, because a repeated decision has the same key"
)


def check_state_dir(facts: Facts) -> Iterator[DoctorFinding]:
    from bot.cli.common.daemon_client import is_closed
    from bot.runtime.journal.queries import Closed

    folder = facts.place.folder
    if is_closed(folder):
        yield DoctorFinding("state", "fail", str(Closed(folder)), ASK)
        return
    try:
        status = folder.stat()
    except FileNotFoundError:
        yield DoctorFinding("state", "ok", f"the first run creates {folder}")
        return
    except OSError as error:
        yield DoctorFinding("state", "fail", f"{folder}: {error.strerror}", ASK)
        return
    if not stat.S_ISDIR(status.st_mode):
        yield DoctorFinding(
            "state",
            "fail",
            f"{folder} is not a folder",
            "set state_dir to a folder that you can write to",
            int(Exit.CONFIG),
        )
    elif stat.S_IMODE(status.st_mode) & 0o077:
        yield DoctorFinding(
            "state",
            "fail",
            f"other users can enter {folder} (mode {stat.S_IMODE(status.st_mode):04o})",
            f"chmod 700 {quote(str(folder))}",
        )
    elif not os.access(folder, os.W_OK):
        yield DoctorFinding(
            "state",
            "fail",
            f"you cannot write to {folder}",
            f"uid {status.st_uid} owns it: chown it to the user who runs the daemon, or set another state_dir",
        )
    else:
        yield DoctorFinding("state", "ok", f"{folder}; only its owner can enter it")


def check_disk(facts: Facts) -> Iterator[DoctorFinding]:
    folder = facts.place.folder
    while not exists(folder):
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free // 1_048_576
    text = f"{free_mb:,} MB free on the disk of {facts.place.folder}"
    if free_mb < DISK_FAIL_MB:
        yield DoctorFinding(
            "disk", "fail", text, "free some space: without a journal the daemon sends no entries", int(Exit.UNSAFE)
        )
    elif free_mb < DISK_WARN_MB:
        yield DoctorFinding("disk", "warn", text, "free some space soon")
    else:
        yield DoctorFinding("disk", "ok", text)


def check_journal(facts: Facts) -> Iterator[DoctorFinding]:
    import sqlite3

    from bot.errors import JournalError
    from bot.runtime.journal import queries

    version = ".".join(map(str, sqlite3.sqlite_version_info))
    if sqlite3.sqlite_version_info < SQLITE_SAFE:
        yield DoctorFinding(
            "sqlite",
            "ok",
            f"{version}; versions before {'.'.join(map(str, SQLITE_SAFE))} are safe with one writer, and only the"
            " daemon writes its journal",
        )
    else:
        yield DoctorFinding("sqlite", "ok", version)
    folder = facts.place.folder
    try:
        with queries.opened(folder) as db:
            lines = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
            mode = db.execute("PRAGMA journal_mode").fetchone()[0]
    except queries.NotFound:
        yield DoctorFinding("journal", "ok", "none yet; the first run creates it")
        return
    except queries.Closed as error:
        yield DoctorFinding("journal", "fail", str(error), ASK)
        return
    except JournalError as error:
        is_shut = isinstance(error.__cause__, sqlite3.OperationalError)
        yield DoctorFinding("journal", "fail", str(error), _OPEN if is_shut else _ANEW, int(Exit.UNSAFE))
        return
    if lines != ["ok"]:
        yield DoctorFinding("journal", "fail", f"damaged: {'; '.join(lines)}", _ANEW, int(Exit.UNSAFE))
        return
    wal = folder / f"{queries.FILE}-wal"
    wal_mb = wal.stat().st_size // 1_048_576 if wal.exists() else 0
    size_mb = (folder / queries.FILE).stat().st_size / 1_048_576
    if mode != "wal":
        yield DoctorFinding(
            "journal",
            "warn",
            f"whole, but in mode {mode}",
            "the next run corrects it; the state directory must be on a local disk",
        )
    elif wal_mb > WAL_WARN_MB:
        yield DoctorFinding(
            "journal",
            "warn",
            f"whole, {size_mb:.1f} MB and {wal_mb} MB of write-ahead log",
            "another program keeps it open: end that program, or restart the daemon",
        )
    else:
        yield DoctorFinding("journal", "ok", f"whole, {size_mb:.1f} MB")


def check_databases(facts: Facts) -> Iterator[DoctorFinding]:
    """The journal and the embedded service's database, if a later start of this version would refuse them."""
    from bot.checks.file_versions import journal_problem, service_problem
    from bot.errors import Exit

    settings, folder = facts.settings, facts.place.folder
    problem = journal_problem(folder / "journal.db")
    if problem is not None:
        yield DoctorFinding(
            "journal", "fail", problem, "run the newer version, or restore an older backup", int(Exit.CONFIG)
        )
    if settings is None or not settings.account.embedded or not exists(folder) or not (folder / "sandbox.db").exists():
        return
    problem = service_problem(folder)
    if problem is None:
        yield DoctorFinding("database", "ok", "this version can continue with the embedded service's database")
    else:
        message, _, way_out = problem.partition(". Run the version")
        yield DoctorFinding(
            "database", "fail", message, f"run the version{way_out}" if way_out else _DAMAGED, int(Exit.CONFIG)
        )

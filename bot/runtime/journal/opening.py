"""Opening a journal: checks of the file, migrations, a rebuild after damage, and a start in memory while the file
cannot be written.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Final

from bot.encryption import Cipher
from bot.errors import ConfigError, JournalBlocked, JournalDamaged, JournalError
from bot.logs import log
from bot.runtime.journal import database, halt_flags
from bot.runtime.journal.backup import NotCopied, write_copy
from bot.runtime.journal.database import NOTHING_SENT, WAY_OUT
from bot.runtime.journal.database_library import Database
from bot.runtime.journal.failover import copied_file, disk_hint, is_damage, may_pass, set_aside
from bot.runtime.journal.halt_flags import HaltFlagsFile
from bot.runtime.journal.journal import OF_THIS_PROCESS, TOKENS, Journal
from bot.runtime.journal.schema import migrations

# wait for another process's lock at a start, when nothing else waits
OPEN_BUSY_MS: Final = 5_000


def open_or_rebuild(
    path: Path, *, address: str, now_ms: int, was_used: bool = False, secret: str | None = None
) -> tuple[Journal, str | None]:
    """Open the journal of one account; a damaged file is set aside, and a new journal begun. Then the second value says
    what was wrong.

    A new journal loses no orders: the account is read from the service, and a decision made twice has the same key.
    Strategies that were paused, halted or quarantined stay so; if that is not known, every strategy is paused. If the
    file cannot be written, the journal has a `fault`: the daemon looks after the account and opens nothing. `was_used`:
    the account had a journal here before, so a missing file counts as damaged. `secret`: as in `open_journal`.
    """
    is_lost = was_used and (not path.exists() or path.stat().st_size == 0)
    why: str | None = None
    try:
        if is_lost:
            # A log without its file would be read as the new file's log.
            set_aside(path, now_ms)
        journal = _opened(path, address, secret)
        if is_lost:
            log.error("journal.rebuilt", path=str(path), message="the file was missing")
            why = (
                f"journal {path} is missing, and this account had one: positions and orders are read from the service"
                " again."
            )
    except JournalDamaged as error:
        aside = set_aside(path, now_ms)
        log.error("journal.rebuilt", path=str(path), kept_as=str(aside), message=str(error))
        journal = _opened(path, address, secret)
        why = f"{str(error).removesuffix(WAY_OUT).strip()} The damaged file is now {aside}."
    stays = _keep_stopped(journal, is_new=why is not None)
    return journal, why if why is None else f"{why} {stays}"


def _opened(path: Path, address: str, secret: str | None) -> Journal:
    try:
        return open_journal(path, address=address, secret=secret)
    except JournalBlocked as error:
        return _in_memory(path, address, error, secret)


def _in_memory(path: Path, address: str, why: JournalBlocked, secret: str | None) -> Journal:
    """A copy of the file in memory, used until the file can be written. JournalError if it cannot be read either."""
    shown = f"journal {path}"
    is_there = path.exists() and path.stat().st_size > 0
    try:
        db = Database(copied_file(path, OPEN_BUSY_MS)) if is_there else Database(memory=True)
    except sqlite3.Error as error:
        kind = JournalDamaged if is_damage(error) else JournalError
        raise kind(
            f"{shown} can be neither written ({why.__cause__}) nor read ({error}){disk_hint(path)}. {NOTHING_SENT}"
        ) from error
    try:
        if is_there:
            _refuse_newer(db, shown)
            _check(db, shown)
            if _migrations_applied(db) != _migrations_known():
                raise JournalError(
                    f"{shown} is of another version and cannot be written{disk_hint(path)}. {NOTHING_SENT}"
                )
        else:
            # Written back whole, the file can shrink as any other.
            db.conn.execute("PRAGMA auto_vacuum=INCREMENTAL")
            migrations.apply(db)
        db.conn.commit()
        db.conn.execute("PRAGMA foreign_keys=ON")
        journal = Journal(db, address=address, path=path, tokens=_cipher(secret))
        journal.database.begin_fault(str(why.__cause__ or "the disk accepted no write"))
        _check_owner(journal, shown)
        journal.check()
    except (sqlite3.Error, ValueError, ArithmeticError) as error:
        db.close()
        raise JournalDamaged(f"{shown} cannot be used: {error}. {WAY_OUT}") from error
    except BaseException:
        db.close()
        raise
    return journal


def _keep_stopped(journal: Journal, *, is_new: bool) -> str:
    """Take over the halt flags of the file beside the journal.

    Returns a sentence for people on what is stopped in a new journal.
    """
    assert journal.path is not None
    copy = HaltFlagsFile(journal.path, address=journal.address)
    kept, known = copy.read(), journal.state.halt_flags()
    if kept is None and is_new:
        kept = {halt_flags.PAUSES: json.dumps([halt_flags.ALL])}
        stays = "Which strategies were paused is not known, so every strategy is paused: `bot resume` lifts that."
    else:
        stays = "Strategies that were paused, in quarantine or halted for the day stay so."
    for name, value in halt_flags.merged(known, kept or {}).items():
        if known.get(name) != value:
            log.warning("safety.kept", note=name, value=value)
            journal.state.write_note(name, value)
    journal.state.copy_halt_flags_to(copy)
    if copy.read() != {name: value for name, value in journal.state.halt_flags().items() if value}:
        copy.write(journal.state.halt_flags())
    return stays


def open_journal(path: Path | None, *, address: str, secret: str | None = None) -> Journal:
    """Open or create the journal of one account; None: in memory.

    Confirm tokens are encrypted with a key derived from `secret`, the account's API key, so that the file alone reveals
    none of them. Without a `secret` a later process cannot read the tokens, and makes the plans anew. Raises
    JournalDamaged for a file that cannot be trusted, with what to do; JournalBlocked for one that cannot be used just
    now; ConfigError for one of a newer version.
    """
    shown = "the journal in memory" if path is None else f"journal {path}"
    try:
        db = database.connected(path, OPEN_BUSY_MS)
    except sqlite3.Error as error:
        raise JournalError(f"{shown} cannot be opened: {error}. Its folder must exist and be writable.") from error
    try:
        _refuse_newer(db, shown)
        _check(db, shown)
        _copy_before_migration(db, path, shown)
        database.configure(db, shown)
        migrations.apply(db)
        if _format_of(db) != (ours := len(_migrations_known())):
            db.conn.execute(f"PRAGMA user_version={ours}")
        db.conn.commit()
        journal = Journal(db, address=address, path=path, tokens=_cipher(secret))
        _check_owner(journal, shown)
        journal.check()
        if journal.fault is not None:
            raise JournalBlocked(f"{journal.fault}. {NOTHING_SENT}")
        database.limit_waits(db)
    except (sqlite3.Error, ValueError, ArithmeticError) as error:
        db.close()
        if isinstance(error, sqlite3.Error) and may_pass(error):
            raise JournalBlocked(
                f"{shown} cannot be used: {error}{'' if path is None else disk_hint(path)}. {NOTHING_SENT}"
            ) from error
        raise JournalDamaged(f"{shown} cannot be used: {error}. {WAY_OUT}") from error
    except BaseException:
        db.close()
        raise
    return journal


def _cipher(secret: str | None) -> Cipher:
    return OF_THIS_PROCESS if secret is None else Cipher(secret.encode(), TOKENS)


def _copy_before_migration(db: Database, path: Path | None, shown: str) -> None:
    """Keep a copy of a journal of an older version, because a migration cannot be undone.

    JournalBlocked if the copy cannot be written.
    """
    if path is None or not db.table_names() or _migrations_applied(db) == _migrations_known():
        return
    kept = path.with_name(f"{path.name}.format-{_format_of(db)}")
    try:
        write_copy(path, kept)
    except NotCopied as error:
        raise JournalBlocked(
            f"{shown} is of an older version, and no copy can be kept: {error}. {NOTHING_SENT}"
        ) from error
    log.info(
        "journal.copied", path=str(path), kept_as=str(kept), message="it is of an older version and is migrated now"
    )


def _check(db: Database, shown: str) -> None:
    try:
        lines = [row[0] for row in db.conn.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        if may_pass(error):
            raise JournalBlocked(f"{shown} cannot be used: {error}. {NOTHING_SENT}") from error
        raise JournalDamaged(f"{shown} is damaged: {error}. {WAY_OUT}") from error
    if lines != ["ok"]:
        raise JournalDamaged(f"{shown} is damaged: {'; '.join(lines)}. {WAY_OUT}")


def _refuse_newer(db: Database, shown: str) -> None:
    """Raise ConfigError for a journal of a newer version, before anything in it is changed. A restart would not help.

    The format number is read first: it is in the file's header, even if this SQLite cannot read the schema.
    """
    ours = _migrations_known()
    newer = ""
    try:
        number = _format_of(db)
        if number > len(ours):
            newer = f"format {number}, this one reads {len(ours)}"
        elif unknown := _migrations_applied(db) - ours:
            newer = ", ".join(sorted(unknown))
    except sqlite3.Error as error:
        if may_pass(error):
            raise
        # The file is damaged, and `_check` reports how.
        return
    if newer:
        raise ConfigError(f"{shown} was written by a newer version of Bracketbot ({newer}): run that version")


def refuse_newer(path: Path) -> None:
    """Raise ConfigError if a journal that no daemon uses was written by a newer version."""
    with Database(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        _refuse_newer(db, f"journal {path}")


def _format_of(db: Database) -> int:
    """Number of migrations that the file has been through; 0 for a new file."""
    return int(db.conn.execute("PRAGMA user_version").fetchone()[0])


def _migrations_applied(db: Database) -> set[str]:
    if "_sqlite_migrations" not in db.table_names():
        return set()
    rows = db.conn.execute("SELECT name FROM _sqlite_migrations WHERE migration_set='journal'")
    return {row[0] for row in rows}


def _migrations_known() -> set[str]:
    with Database(memory=True) as empty:
        return {migration.name for migration in migrations.pending(empty)}


def _check_owner(journal: Journal, shown: str) -> None:
    owner = journal.state.note("address")
    if owner is None:
        journal.state.write_note("address", journal.address)
    elif owner != journal.address:
        raise JournalError(
            f"{shown} belongs to account {owner}, and this is account {journal.address}. Give each account its own"
            " state_dir."
        )

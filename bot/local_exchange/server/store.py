"""The durable state: a log of the commands that changed the exchange, in SQLite. A start replays it.

A command is committed before its answer leaves, so `kill -9` loses nothing that a client has been told.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bot.errors import ConfigError

FORMAT: Final = 1
# The mark of a database of the local exchange
APPLICATION_ID: Final = 0x68_6C_65_78


class ExchangeStore:
    """`path` None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._db: sqlite3.Connection | None = None
        if path is None:
            return
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            _claim(self._db)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, at_ms INTEGER, kind TEXT, body TEXT)"
            )
        except sqlite3.Error as error:
            raise ConfigError(
                f"{path} cannot be used as the database of the local exchange: {error}. "
                "Name another file, or end the process that has it open"
            ) from error

    def append(self, at_ms: int, kind: str, body: Any) -> None:
        if self._db is not None:
            text = json.dumps(body, separators=(",", ":"))
            self._db.execute("INSERT INTO log (at_ms, kind, body) VALUES (?, ?, ?)", (at_ms, kind, text))

    def rows(self) -> Iterator[tuple[int, str, Any]]:
        if self._db is not None:
            for at_ms, kind, body in self._db.execute("SELECT at_ms, kind, body FROM log ORDER BY seq"):
                yield at_ms, kind, json.loads(body)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _claim(db: sqlite3.Connection) -> None:
    """Mark an empty database as the local exchange's; sqlite3.DatabaseError if it belongs to another program."""
    (owner,) = db.execute("PRAGMA application_id").fetchone()
    if owner == APPLICATION_ID:
        return
    if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError("it is a database of another program")
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")

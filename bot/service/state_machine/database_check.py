"""Whether this version of the program can continue with a stored database, found without changing it."""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from pathlib import Path

from bot.errors import ConfigError
from bot.service.state_machine.command_log import check_file, read_all
from bot.service.state_machine.replay import replay
from bot.service.state_machine.rules_version import WAY_OUT
from bot.venue.model.state import State


def stored_state(path: Path) -> State:
    """The state of a database as of now, which a service may use meanwhile. ConfigError if it cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            check_file(db, path)
            # All reads see one instant.
            db.execute("BEGIN")
            return replay(read_all(db), str(path)).state
    except sqlite3.OperationalError as error:
        raise ConfigError(f"{path}: cannot be read now: {error}; try again") from None
    except (sqlite3.DatabaseError, zlib.error, UnicodeDecodeError):
        raise ConfigError(f"{path}: is damaged. {WAY_OUT}") from None


def stored_problem(path: Path) -> str | None:
    """Why this version cannot continue with a database that no service uses now. None: it can, or there is none."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            check_file(db, path)
            replay(read_all(db), str(path))
    except ConfigError as error:
        return str(error)
    # The database cannot be read now; a start says why.
    except sqlite3.OperationalError:
        return None
    except (sqlite3.DatabaseError, zlib.error, UnicodeDecodeError):
        return f"{path}: is damaged. {WAY_OUT}"
    return None

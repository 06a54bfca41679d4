"""Halt flags: what a person or a fault has stopped. A copy beside the journal keeps them if the journal must be
replaced.

They are notes of the journal, as JSON; `journal.safety.json` has the copy, which is written atomically. If the two
differ after a fault or crash, what is stopped in either stays stopped: only a person may resume it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bot.descriptors import reserved
from bot.files import sync
from bot.logs import log
from bot.runtime.journal.failover import seal

# a list of strategies
PAUSES: Final = "pauses"
# stands for every strategy; no strategy can have this name
ALL: Final = "*"
# strategy -> [epoch, the day on which its daily loss was reached]
HALTED: Final = "halted"
# a sentence on what another client did on the account, until `bot resume` or an account reset
FOREIGN: Final = "foreign_writer"
# + strategy; an empty note means that the quarantine was lifted
QUARANTINE: Final = "quarantine:"
# a size far above any real copy
BYTES_MAX: Final = 1_000_000

Notes = Mapping[str, str]


def is_halt_flag(name: str) -> bool:
    """True if a note of the journal is copied beside it."""
    return name in (PAUSES, HALTED, FOREIGN) or name.startswith(QUARANTINE)


def check(name: str, value: str) -> None:
    """ValueError for a note that no run can have written."""
    flag = json.loads(value) if value else None
    is_sound = {PAUSES: _is_names, HALTED: _is_days, FOREIGN: _is_sentence}.get(name, _is_quarantine)
    if flag is not None and not is_sound(flag):
        raise ValueError(f"the note {name} has a form that no run writes")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_days(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(day, list) and len(day) == 2 and all(isinstance(number, int) for number in day)
        for day in value.values()
    )


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str)


def _is_quarantine(value: Any) -> bool:
    """The fields of pauses.Quarantine: why, version, when."""
    return isinstance(value, list) and [type(field) for field in value] == [str, str, int]


class HaltFlagsFile:
    """The copy of one account's halt flags.

    A file that cannot be read, or belongs to another account, counts as missing.
    """

    def __init__(self, journal: Path, *, address: str) -> None:
        self.path = journal.with_suffix(".safety.json")
        self.address = address

    def read(self) -> dict[str, str] | None:
        try:
            with self.path.open("rb") as file:
                content = json.loads(file.read(BYTES_MAX))
            notes, address, sealed = content["notes"], content["address"], content["seal"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.error("safety.unreadable", path=str(self.path), message=str(error))
            return None
        if address != self.address or not isinstance(notes, dict) or sealed != _seal(address, notes):
            log.error("safety.unreadable", path=str(self.path), message="it is damaged, or belongs to another account")
            return None
        return notes

    @reserved()
    def write(self, notes: Notes) -> None:
        """Write atomically. On a full disk the old file is overwritten; a checksum finds a torn one.

        If nothing can be written the file is removed, because it would be older than the journal.
        """
        flags = {name: notes[name] for name in sorted(notes) if notes[name]}
        text = (
            json.dumps({"address": self.address, "notes": flags, "seal": _seal(self.address, flags)}, indent=1) + "\n"
        )
        part = self.path.with_suffix(".part")
        try:
            try:
                _write(part, text, "w")
                part.replace(self.path)
            except OSError as error:
                with contextlib.suppress(FileNotFoundError):
                    _write(self.path, text, "r+")
                    return
                raise error from None
            sync(self.path.parent)
        except OSError as error:
            log.error("safety.not_written", path=str(self.path), message=error.strerror or str(error))
            with contextlib.suppress(OSError):
                self.path.unlink()
        finally:
            with contextlib.suppress(OSError):
                part.unlink()


def merged(journal: Notes, beside: Notes) -> dict[str, str]:
    """What is stopped in either. If both have a note, the journal's note counts."""
    notes = {**beside, **{name: value for name, value in journal.items() if value}}
    for name, join in ((PAUSES, _paused_in_either), (HALTED, _newest_halts)):
        if name in journal and name in beside:
            notes[name] = json.dumps(join(json.loads(journal[name] or "[]"), json.loads(beside[name])))
    return notes


def _paused_in_either(journal: Any, beside: Any) -> list[str]:
    return sorted({*journal, *beside})


def _newest_halts(journal: Any, beside: Any) -> dict[str, Any]:
    journal, beside = dict(journal), dict(beside)
    return {name: max(filter(None, (journal.get(name), beside.get(name)))) for name in sorted({*journal, *beside})}


def _seal(address: str, notes: Notes) -> int:
    return seal(address, *(part for name in sorted(notes) for part in (name, notes[name])))


def _write(path: Path, text: str, mode: str) -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())

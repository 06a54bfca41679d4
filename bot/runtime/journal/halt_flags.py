"""Safety notes: what a person or a fault has stopped, kept once more beside the journal, so that a journal that must be begun anew does not let it go on.

They are notes of the journal, as JSON; `journal.safety.json` has a copy of them, written whole or not at all. Where the two differ
(a fault or a crash came between) whatever is stopped in either stays stopped: letting it go on is a person's word.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from bot.descriptors import reserved
from bot.runtime.journal.failover import seal

log = structlog.get_logger()

PAUSES: Final = "pauses"  # a list of strategies
ALL: Final = "*"  # among them: everyone. No strategy can be called that.
HALTED: Final = "halted"  # strategy -> [epoch, the day on which its daily loss was reached]
FOREIGN: Final = "foreign_writer"  # a sentence on what another agent has done on the account, until a person has looked or the account is reset
QUARANTINE: Final = "quarantine:"  # and the strategy's name; an empty one is lifted
BYTES_MAX: Final = 1_000_000  # no copy of ours is near it

Notes = Mapping[str, str]


def is_safety(name: str) -> bool:
    """Whether a note of the journal is kept beside it too."""
    return name in (PAUSES, HALTED, FOREIGN) or name.startswith(QUARANTINE)


def check(name: str, value: str) -> None:
    """ValueError for a note that none of ours can be."""
    found = json.loads(value) if value else None
    is_sound = {PAUSES: _is_names, HALTED: _is_days, FOREIGN: _is_sentence}.get(name, _is_quarantine)
    if found is not None and not is_sound(found):
        raise ValueError(f"the note {name} is none of ours")


def _is_names(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _is_days(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(one, list) and len(one) == 2 and all(isinstance(number, int) for number in one)
        for one in found.values()
    )


def _is_sentence(found: Any) -> bool:
    return isinstance(found, str)


def _is_quarantine(found: Any) -> bool:
    """As pauses.Quarantine: why, of which version, when."""
    return isinstance(found, list) and [type(one) for one in found] == [str, str, int]


class SafetyFile:
    """The copy of one account's journal. A file that cannot be read, or is another account's, is none."""

    def __init__(self, journal: Path, *, address: str) -> None:
        self.path = journal.with_suffix(".safety.json")
        self.address = address

    def read(self) -> dict[str, str] | None:
        try:
            with self.path.open("rb") as file:
                found = json.loads(file.read(BYTES_MAX))
            notes, address, sealed = found["notes"], found["address"], found["seal"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.error("safety.unreadable", path=str(self.path), message=str(error))
            return None
        if address != self.address or not isinstance(notes, dict) or sealed != _seal(address, notes):
            log.error("safety.unreadable", path=str(self.path), message="it is damaged, or of another account")
            return None
        return notes

    @reserved()
    def write(self, notes: Notes) -> None:
        """Whole or not at all; on a full disk over the old one, where a torn one is found by its seal. What cannot be written is taken away:
        it would be older than the journal."""
        kept = {name: notes[name] for name in sorted(notes) if notes[name]}
        text = json.dumps({"address": self.address, "notes": kept, "seal": _seal(self.address, kept)}, indent=1) + "\n"
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
            _sync_folder(self.path.parent)
        except OSError as error:
            log.error("safety.not_written", path=str(self.path), message=error.strerror or str(error))
            with contextlib.suppress(OSError):
                self.path.unlink()
        finally:
            with contextlib.suppress(OSError):
                part.unlink()


def merged(journal: Notes, beside: Notes) -> dict[str, str]:
    """What is stopped in either; of two words on one thing the journal's."""
    found = {**beside, **{name: value for name, value in journal.items() if value}}
    for name, join in ((PAUSES, _paused_in_either), (HALTED, _newest_halts)):
        if name in journal and name in beside:
            found[name] = json.dumps(join(json.loads(journal[name] or "[]"), json.loads(beside[name])))
    return found


def _paused_in_either(one: Any, other: Any) -> list[str]:
    return sorted({*one, *other})


def _newest_halts(one: Any, other: Any) -> dict[str, Any]:
    one, other = dict(one), dict(other)
    return {name: max(filter(None, (one.get(name), other.get(name)))) for name in sorted({*one, *other})}


def _seal(address: str, notes: Notes) -> int:
    return seal(address, *(part for name in sorted(notes) for part in (name, notes[name])))


def _write(path: Path, text: str, mode: str) -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

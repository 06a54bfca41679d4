"""The proofs of days, a JSON file each in the folder `proofs` of the state directory. `bot proof` writes them; the
daemon and the dashboard read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bot.files import write_private

FOLDER: Final = "proofs"
FORMAT: Final = 1
# more than a year, each with some kilobytes
KEPT: Final = 400
# far above any proof; a larger file is not one
BYTES_MAX: Final = 8_000_000
_NAME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\.json")

Document = dict[str, Any]


def name_of(day: str) -> str:
    """The path of a day's proof in its state directory."""
    return f"{FOLDER}/{day}.json"


def is_name(name: str) -> bool:
    """True if a path in a state directory is that of a proof."""
    return name.startswith(f"{FOLDER}/") and _NAME.fullmatch(name.removeprefix(f"{FOLDER}/")) is not None


def path_of(state_dir: Path, day: str) -> Path:
    return state_dir / name_of(day)


def write_proof(state_dir: Path, document: Mapping[str, Any]) -> Path:
    """Write the proof of its day in place of an older one, and remove the oldest of too many."""
    path = path_of(state_dir, document["day"])
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    for old in days(state_dir)[:-KEPT]:
        path_of(state_dir, old).unlink(missing_ok=True)
    return path


def days(state_dir: Path) -> list[str]:
    """The days that have a proof, oldest first."""
    with suppress(OSError):
        return sorted(path.stem for path in (state_dir / FOLDER).iterdir() if _NAME.fullmatch(path.name))
    return []


def read_proof(state_dir: Path, day: str) -> Document | None:
    """The proof of a day; None if there is none, or if it cannot be read."""
    with suppress(OSError, ValueError):
        path = path_of(state_dir, day)
        if path.stat().st_size <= BYTES_MAX:
            document = json.loads(path.read_bytes())
            if isinstance(document, dict) and document.get("format") == FORMAT and document.get("day") == day:
                return document
    return None

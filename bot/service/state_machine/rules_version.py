"""The version of the rules, stored with the log so that an error can name both versions.

The rules that replay a log are the code of the venue and of its events.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import bot.model
import bot.venue

# name in the database of the program that has last opened it
META: Final = "program"
WAY_OUT: Final = (
    "Run the version that wrote it, restore a backup (bot restore), or move the file away: the next start begins a new"
    " account"
)


@cache
def program() -> str:
    """This program: its version and a digest of the venue's rules."""
    digest = hashlib.sha256()
    folders = (Path(module.__file__ or "").parent for module in (bot.venue, bot.model))
    for file in (file for folder in folders for file in sorted(folder.rglob("*.py"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"Bracketbot {version('bracketbot')} (rules {digest.hexdigest()[:8]})"


def versions_text(written_by: str | None) -> str:
    """Both versions, as a sentence: who wrote a database, and who reads it."""
    if written_by == program():
        return f"{program()} wrote it and reads it, so it is damaged"
    wrote = "an earlier version, which left no name," if written_by is None else written_by
    return f"{wrote} wrote it, and this is {program()}: it belongs to another version of the program or is damaged"

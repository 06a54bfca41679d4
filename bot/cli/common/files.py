"""Writes a file completely or not at all, and finds the examples of the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import bot
from bot.errors import BotError
from bot.files import replacing

# The mode of files that show trades, positions or results.
PRIVATE: Final = 0o600
# In the project's tree these are links to configs/ and strategies/; a built wheel holds the files themselves.
EXAMPLES: Final = Path(bot.__file__).parent / "examples"


def example(name: str) -> Path:
    """The path of an example that comes with the package: `demo.yaml`, or `strategies/trend.py`."""
    return (EXAMPLES / name).resolve()


def write_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a temporary file, sync it, rename it, sync the folder: a reader sees the old file or the new one. BotError
    if that fails.

    For a link its target is written. A pipe or a device is written to and never replaced.
    """
    judge_text(path, text)
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as stream:
                stream.write(text)
            return
        with replacing(path.resolve(), mode=mode) as file:
            file.write(text.encode())
    except OSError as error:
        raise BotError(f"{path} cannot be written: {error.strerror or error}") from None


def judge_text(path: Path, text: str) -> None:
    """Raise BotError if the text cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BotError(
            f"{path} cannot be written: its text contains a path that is not UTF-8; rename that path, or choose another"
        ) from None

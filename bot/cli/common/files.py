"""Writes a file completely or not at all, and finds the examples of the package."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

import bot
from bot.errors import BotError

# In the project's tree these are links to configs/ and strategies/; a built wheel holds the files themselves.
EXAMPLES: Final = Path(bot.__file__).parent / "examples"


def example(name: str) -> Path:
    """The path of an example that comes with the package: `demo.yaml`, or `strategies/trend.py`."""
    return (EXAMPLES / name).resolve()


def write_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a temporary file, sync it, rename it, sync the folder: a reader sees the old file or the new one. BotError if that fails.

    For a link its target is written. A pipe or a device is written to and never replaced.
    """
    given = path
    judge_text(path, text)
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as stream:
                stream.write(text)
            return
        path = path.resolve()
        descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            Path(part).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(part).unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise BotError(f"{given} cannot be written: {error.strerror or error}") from None


def judge_text(path: Path, text: str) -> None:
    """Raise BotError if the text cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BotError(
            f"{path} cannot be written: its text contains a path that is not UTF-8; rename that path, or choose another"
        ) from None

"""What is said when a command fails: the sentence of a known error; of a mistake of ours one line, and where the whole story is.

BOT_DEBUG=1 shows that story at once.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import sys
import traceback
from pathlib import Path
from typing import Final, Literal

import click

from bot.errors import BotError, Exit
from bot.logs import redact_text

Stream = Literal["output", "error"]

# What a file system says of a path that somebody named, or of itself: no mistake of ours, outside of a run that has its folder.
_NOT_OURS: Final = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP)
)

_place: list[Path] = []


def goes_to(path: Path) -> None:
    """From now on an unexpected error is told to this file."""
    _place[:] = [path]


def shows_where_it_hangs() -> None:
    """A fatal signal, such as a service manager's SIGABRT at a hung loop, shows on standard error where each thread is: lines, no values."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # Nobody reads what it would say.
        faulthandler.enable()


def tell(error: BaseException) -> int:
    """Say what went wrong; the exit code."""
    if isinstance(error, BotError):
        _say(f"error: {redact_text(str(error))}\n")
        return int(error.exit_code)
    if isinstance(error, OSError) and (stream := _stream_of(error)) is not None:
        _say(f"error: standard {stream} cannot be written: {error.strerror}\n")
        drop(stream)
    elif not _place and os.environ.get("BOT_DEBUG") != "1" and (told := _of_path(error)) is not None:
        _say(f"error: {redact_text(told)}\n")
    else:
        report(error)
    return int(Exit.ERROR)


def _of_path(error: BaseException) -> str | None:
    """Of what a file system says of a path: the path, what is wrong with it, and the way out."""
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return "the folder that this runs in is no longer there: cd to one that is"
    if not isinstance(error, OSError) or error.errno not in _NOT_OURS or not isinstance(error.filename, (str, bytes)):
        return None
    told = f"{os.fsdecode(error.filename)}: {error.strerror}"
    if error.errno not in (errno.EACCES, errno.EPERM):
        return told
    return f"{told} (as user {os.geteuid()}): run this as the user that it belongs to, or with sudo"


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _stream_of(error: OSError) -> Stream | None:
    """The standard stream that fails so: raised where a command prints, and not where it writes a file."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_code.co_filename != click.echo.__code__.co_filename:
        return None
    return "error" if frame.f_locals.get("err") else "output"


def drop(stream: Stream) -> None:
    """What is left to print there goes nowhere, so that Python does not complain of it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stdout if stream == "output" else sys.stderr).fileno())


def reader_has_gone(error: BrokenPipeError) -> None:
    """Whoever read what a command prints needs no more of it."""
    drop(_stream_of(error) or "output")


def _say(text: str) -> None:
    """On standard error, if somebody reads it: the exit code is the same if nobody does."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def report(error: BaseException) -> None:
    """Write the traceback to the log, without secrets, and one line to standard error."""
    story = redact_text("".join(traceback.format_exception(error)))
    if os.environ.get("BOT_DEBUG") == "1":
        _say(story)
        return
    line = redact_text(f"{type(error).__name__}: {error}".splitlines()[0])
    try:
        path = _place[0] if _place else _default()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
            file.write(story)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home.
        _say(f"error: a mistake of Bracketbot's own: {line}. BOT_DEBUG=1 shows where\n")
        return
    _say(f"error: a mistake of Bracketbot's own: {line}. The whole story is in {path}; BOT_DEBUG=1 shows it here\n")


def _default() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "bot" / "crash.log"

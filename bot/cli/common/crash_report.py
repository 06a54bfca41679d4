"""What a command prints when it fails: the message of a known error. A bug in Bracketbot becomes one line, and its
traceback goes to a file.

BOT_DEBUG=1 prints the traceback instead.
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

# Errors of the file system or of a path that the user gave. They are not bugs, unless a running daemon meets them in
# its own folder.
_FILE_SYSTEM_ERRORS: Final = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP)
)

_report_file: list[Path] = []


def write_to(path: Path) -> None:
    """From now on write the traceback of an unexpected error to this file."""
    _report_file[:] = [path]


def print_stacks_on_fatal_signals() -> None:
    """On a fatal signal, such as the watchdog's SIGABRT to a daemon that hangs, print the stack of each thread: file
    and line, no values.
    """
    # Standard error is closed.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.enable()


def print_error(error: BaseException) -> int:
    """Print what went wrong and return the exit code."""
    if isinstance(error, BotError):
        _say(f"error: {redact_text(str(error))}\n")
        return int(error.exit_code)
    if isinstance(error, OSError) and (stream := _stream_of(error)) is not None:
        _say(f"error: standard {stream} cannot be written: {error.strerror}\n")
        drop(stream)
    elif not _report_file and os.environ.get("BOT_DEBUG") != "1" and (message := _file_error(error)) is not None:
        _say(f"error: {redact_text(message)}\n")
    else:
        report(error)
    return int(Exit.ERROR)


def _file_error(error: BaseException) -> str | None:
    """The message for an error of the file system: the path, what is wrong, and what to do. None for another error."""
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return "the current folder no longer exists: cd to another one"
    if not isinstance(error, OSError) or error.errno not in _FILE_SYSTEM_ERRORS:
        return None
    if not isinstance(error.filename, (str, bytes)):
        return None
    message = f"{os.fsdecode(error.filename)}: {error.strerror}"
    if error.errno not in (errno.EACCES, errno.EPERM):
        return message
    return f"{message} (as user {os.geteuid()}): run this as the owner of that file, or with sudo"


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _stream_of(error: OSError) -> Stream | None:
    """The standard stream that cannot be written; None if the error was raised elsewhere, such as in writing a file."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is click.echo.__code__:
            return "error" if frame.f_locals.get("err") else "output"
    return None


def drop(stream: Stream) -> None:
    """Send the rest of the stream's output to /dev/null, so that Python does not fail again when it flushes the
    stream at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stdout if stream == "output" else sys.stderr).fileno())


def reader_has_gone(error: BrokenPipeError) -> None:
    """Drop the output that is left, because its reader has ended."""
    drop(_stream_of(error) or "output")


def _say(text: str) -> None:
    """Print on standard error. A closed standard error does not change the exit code."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def report(error: BaseException) -> None:
    """Write the traceback, without secrets, to the report file, and one line to standard error."""
    report_text = redact_text("".join(traceback.format_exception(error)))
    if os.environ.get("BOT_DEBUG") == "1":
        _say(report_text)
        return
    line = redact_text(f"{type(error).__name__}: {error}".splitlines()[0])
    try:
        path = _report_file[0] if _report_file else _default()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
            file.write(report_text)
    # RuntimeError: this user has no home.
    except (OSError, RuntimeError):
        _say(f"error: a bug in Bracketbot: {line}. Run it with BOT_DEBUG=1 to see the traceback\n")
        return
    _say(f"error: a bug in Bracketbot: {line}. The traceback is in {path}; BOT_DEBUG=1 prints it here\n")


def _default() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "bot" / "crash.log"

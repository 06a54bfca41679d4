"""What is said when a command fails: the sentence of a known error; of a mistake of ours one line, and where the whole story is.

BOT_DEBUG=1 shows that story at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import traceback
from pathlib import Path

from bot.errors import BotError, Exit
from bot.logs import redact_text

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
        sys.stderr.write(f"error: {redact_text(str(error))}\n")
        return int(error.exit_code)
    report(error)
    return int(Exit.ERROR)


def report(error: BaseException) -> None:
    """Write the traceback to the log, without secrets, and one line to standard error."""
    story = redact_text("".join(traceback.format_exception(error)))
    if os.environ.get("BOT_DEBUG") == "1":
        sys.stderr.write(story)
        return
    line = redact_text(f"{type(error).__name__}: {error}".splitlines()[0])
    path = _place[0] if _place else _default()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
            file.write(story)
    except OSError:
        sys.stderr.write(f"error: a mistake of Bracketbot's own: {line}. BOT_DEBUG=1 shows where\n")
        return
    sys.stderr.write(
        f"error: a mistake of Bracketbot's own: {line}. The whole story is in {path}; BOT_DEBUG=1 shows it here\n"
    )


def _default() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "bot" / "crash.log"

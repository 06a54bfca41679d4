"""Where a strategy failed: the lines of its own file, and the whole traceback for a person who debugs."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Final

# The innermost frames of a recursion are enough.
FRAMES_MAX: Final = 5


def own_lines(error: BaseException, file: str | None) -> str:
    """The lines of `file` that led to the error, innermost first:

    `mine.py:25 in size, from mine.py:10 in on_bar`. "" if there is none.
    """
    report = traceback.TracebackException.from_exception(error, lookup_lines=False)
    own = [frame for frame in reversed(report.stack) if frame.filename == file]
    if len(own) == 1:
        return f"{Path(own[0].filename).name}:{own[0].lineno}"
    more = ", ..." if len(own) > FRAMES_MAX else ""
    return (
        ", from ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in own[:FRAMES_MAX])
        + more
    )


def whole_traceback(error: BaseException) -> str | None:
    """The traceback, if the environment has BOT_DEBUG=1."""
    return "".join(traceback.format_exception(error)) if os.environ.get("BOT_DEBUG") == "1" else None

"""Where the control socket is, and how long its routes may take: what a command knows of the server without
importing it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOCKET: Final = "control.sock"
# The bytes of a Unix socket's name.
NAME_BYTES_MAX: Final = 107
# for a route; commands that wait for the end of a pass are the slow ones
ANSWER_S: Final = 60.0
# for a route that warms up strategies, however many there are
WARM_ANSWER_S: Final = 3_600.0
WARMING: Final = frozenset({"/reload", "/resume"})
# Answered at the event loop's next turn.
FROM_MEMORY: Final = frozenset({"/status", "/positions", "/orders", "/strategies", "/guardians", "/logs"})


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for the socket that is short enough for an address, however deep its folder is."""
    if len(os.fsencode(path)) <= NAME_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def answer_s(path: str) -> float:
    """How long a route may take."""
    return WARM_ANSWER_S if path in WARMING else ANSWER_S

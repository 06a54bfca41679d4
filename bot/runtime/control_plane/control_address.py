"""Where the control socket is, and how long its routes may take: what a command knows of the server without
importing it.
"""

from __future__ import annotations

from typing import Final

SOCKET: Final = "control.sock"
# for a route; commands that wait for the end of a pass are the slow ones
ANSWER_S: Final = 60.0
# for a route that warms up strategies, however many there are
WARM_ANSWER_S: Final = 3_600.0
WARMING: Final = frozenset({"/reload", "/resume"})
# Answered at the event loop's next turn.
FROM_MEMORY: Final = frozenset({"/status", "/positions", "/orders", "/strategies", "/guardians", "/logs"})


def answer_s(path: str) -> float:
    """How long a route may take."""
    return WARM_ANSWER_S if path in WARMING else ANSWER_S

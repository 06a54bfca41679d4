"""The bars that the daemon has decided, six bytes each: a later reader finds a bar that was lost or has changed since.

A row holds the bars of one series that closed within one hour. A bar that is decided again after a crash stands twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final
from zlib import crc32

from bot.clock import DAY_MS, HOUR_MS, SECOND_MS
from bot.runtime.journal.database import Execute

# seconds from the hour to the close, and the checksum of the values
_BAR: Final = Struct(">HI")
# A proof of a day begins its replay at most so long before the day, and is asked for at most some days later.
KEPT_MS: Final = 40 * DAY_MS

# open, high, low, close, volume
Values = tuple[float, float, float, float, float]


def checksum(values: Values) -> int:
    """The checksum of a bar's values with nine digits: more come from the conversion of text, or from a sum."""
    return crc32(" ".join(f"{value:.9g}" for value in values).encode())


def write_seen(execute: Execute, market: str, interval: str, close_ms: int, values: Values) -> None:
    hour_ms = close_ms // HOUR_MS * HOUR_MS
    row = _BAR.pack((close_ms - hour_ms) // SECOND_MS, checksum(values))
    execute(
        "INSERT INTO bars_seen (hour_ms, market, interval, seen) VALUES (?,?,?,?) ON CONFLICT"
        " (hour_ms, market, interval) DO UPDATE"
        " SET seen=CAST(seen || excluded.seen AS BLOB)",
        (hour_ms, market, interval, row),
    )


def read_seen(hour_ms: int, seen: bytes) -> Iterator[tuple[int, int]]:
    """The close and the checksum of each bar of a row."""
    for seconds, check in _BAR.iter_unpack(seen):
        yield hour_ms + seconds * SECOND_MS, check


def trim_seen(execute: Execute, now_ms: int) -> None:
    execute("DELETE FROM bars_seen WHERE hour_ms < ?", (now_ms - KEPT_MS,))
    execute("DELETE FROM flat_points WHERE day_ms < ?", (now_ms - KEPT_MS,))

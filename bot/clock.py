"""Clocks, and conversions of instants. No other module may read the machine's time.

Instants are `int` milliseconds since the epoch (`now_ms`, `at_ms`, `deadline_ms`). Pure code gets the time as an
argument. `datetime` is for people and for cron.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from bot.operating_system import kernel_boot_id, sleeping_clock

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
# from the epoch, a Thursday, to the first Monday
MONDAY_MS: Final = 4 * DAY_MS
# Every interval of bars, the shortest first. The interface serves some of them.
INTERVALS: Final = {
    "1m": MINUTE_MS,
    "3m": 3 * MINUTE_MS,
    "5m": 5 * MINUTE_MS,
    "15m": 15 * MINUTE_MS,
    "30m": 30 * MINUTE_MS,
    "1h": HOUR_MS,
    "2h": 2 * HOUR_MS,
    "4h": 4 * HOUR_MS,
    "6h": 6 * HOUR_MS,
    "8h": 8 * HOUR_MS,
    "12h": 12 * HOUR_MS,
    "1d": DAY_MS,
    "1w": WEEK_MS,
}
# environment variable that systemd sets for a unit
BOOT_ID: Final = "BOT_BOOT_ID"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Anything that gives the present instant."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when its owner advances it; it never goes back."""

    __slots__ = ("_now_ms",)

    def __init__(self, now_ms: int) -> None:
        assert now_ms >= 0
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Advance by `ms` and return the new instant."""
        return self.set(self._now_ms + ms)

    def set(self, now_ms: int) -> int:
        """Advance to `now_ms`, which must not be before the present instant."""
        assert now_ms >= self._now_ms, f"time goes back: {self._now_ms} -> {now_ms}"
        self._now_ms = now_ms
        return now_ms


def monotonic_ns() -> int:
    """A clock without adjustments, which stands still while the machine sleeps. For durations inside one process."""
    return time.monotonic_ns()


def boot_ns() -> int:
    """Nanoseconds since boot, including the machine's sleep. For deadlines in real seconds.

    Comparable between processes of one boot. On a system without such a clock it stands still in sleep.
    """
    clock = sleeping_clock()
    return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)


def boot_id() -> str:
    """The id of this boot of the machine;

    "" if unknown (not Linux). A unit cannot read /proc/sys, so systemd passes the id to it.
    """
    # systemd writes the id without hyphens.
    return (os.environ.get(BOOT_ID) or kernel_boot_id() or "").replace("-", "")


def datetime_of(at_ms: int) -> datetime:
    """The instant as an aware UTC datetime, exact to the millisecond: for cron and for people."""
    return _EPOCH + timedelta(milliseconds=at_ms)


def ms_of(moment: datetime) -> int:
    """The instant of an aware datetime, in milliseconds, rounded down."""
    assert moment.tzinfo is not None, "the datetime has no time zone"
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def iso(at_ms: int) -> str:
    """`1748736000123` -> `"2025-06-01T00:00:00.123Z"`."""
    return datetime_of(at_ms).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % SECOND_MS:03d}Z"


def utc_day_start_ms(at_ms: int) -> int:
    """00:00 UTC of the day of the instant."""
    return at_ms - at_ms % DAY_MS


def next_utc_day_ms(at_ms: int) -> int:
    """The first 00:00 UTC after the instant."""
    return utc_day_start_ms(at_ms) + DAY_MS

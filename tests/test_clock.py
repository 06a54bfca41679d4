"""Instants are milliseconds, clocks are values."""

import time
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

from bot.clock import (
    DAY_MS,
    Clock,
    ManualClock,
    SystemClock,
    boot_id,
    boot_ns,
    datetime_of,
    iso,
    monotonic_ns,
    ms_of,
    next_utc_day_ms,
    utc_day_start_ms,
)

# 2025-06-01T00:00:00.123Z
AT_MS = 1_748_736_000_123
# to the year 3000
INSTANTS = st.integers(0, 32_503_680_000_000)


def test_the_system_clock_tells_unix_milliseconds() -> None:
    clock: Clock = SystemClock()
    with freeze_time("2025-06-01T00:00:00Z"):
        assert clock.now_ms() == AT_MS - 123


def test_a_manual_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.advance(500), clock.now_ms(), clock.set(2_000), clock.now_ms()) == (
        1_000,
        1_500,
        1_500,
        2_000,
        2_000,
    )


def test_a_manual_clock_does_not_go_back() -> None:
    clock = ManualClock(1_000)
    with pytest.raises(AssertionError, match="time goes back"):
        clock.set(999)
    assert clock.now_ms() == 1_000


def test_durations_do_not_follow_the_wall_clock() -> None:
    before = (monotonic_ns(), boot_ns())
    time.sleep(0.002)
    assert monotonic_ns() - before[0] >= 2_000_000
    assert boot_ns() - before[1] >= 2_000_000


def test_a_boot_has_one_name_whoever_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd writes it without the kernel's dashes, and its units see no other."""
    name = boot_id()
    monkeypatch.setenv("BOT_BOOT_ID", "0123456789abcdef0123456789abcdef")
    assert boot_id() == "0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("BOT_BOOT_ID", str(UUID(name)))
    assert boot_id() == name


def test_an_instant_is_written_in_utc_with_milliseconds() -> None:
    assert iso(AT_MS) == "2025-06-01T00:00:00.123Z"
    assert iso(0) == "1970-01-01T00:00:00.000Z"


@given(INSTANTS)
def test_an_instant_survives_the_way_through_datetime(at_ms: int) -> None:
    assert ms_of(datetime_of(at_ms)) == at_ms
    assert ms_of(datetime.fromisoformat(iso(at_ms))) == at_ms


def test_a_datetime_of_another_zone_names_the_same_instant() -> None:
    assert ms_of(datetime_of(AT_MS).astimezone(timezone(timedelta(hours=9)))) == AT_MS


@given(INSTANTS)
def test_a_day_begins_at_midnight_utc(at_ms: int) -> None:
    start = utc_day_start_ms(at_ms)
    assert start <= at_ms < next_utc_day_ms(at_ms) == start + DAY_MS
    assert datetime_of(start) == datetime_of(at_ms).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def test_midnight_belongs_to_the_day_that_it_begins() -> None:
    midnight = utc_day_start_ms(AT_MS)
    assert utc_day_start_ms(midnight) == midnight
    assert next_utc_day_ms(midnight) == midnight + DAY_MS

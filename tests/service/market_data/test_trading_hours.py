"""When outside prices are open:

New York's clock through both changes of the hour, weekends, holidays, the daily gap of indices.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bot.service.market_data.trading_hours import Calendar, session_at


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("kind", "at", "is_open", "turns"),
    [
        # Friday 20:00 in summer
        ("equity", "2025-06-13T12:00", True, "2025-06-14T00:00"),
        # Sunday 20:00
        ("equity", "2025-06-14T00:00", False, "2025-06-16T00:00"),
        # Juneteenth is a Thursday
        ("equity", "2025-06-16T00:00", True, "2025-06-19T00:00"),
        ("equity", "2025-06-18T12:00", True, "2025-06-19T00:00"),
        ("equity", "2025-06-19T12:00", False, "2025-06-20T00:00"),
        # Friday 20:00 in winter
        ("equity", "2025-01-18T00:30", True, "2025-01-18T01:00"),
        # Monday is a holiday
        ("equity", "2025-01-19T12:00", False, "2025-01-21T01:00"),
        # The clocks went forward that night.
        ("equity", "2025-03-09T12:00", False, "2025-03-10T00:00"),
        # And back.
        ("equity", "2025-11-02T12:00", False, "2025-11-03T01:00"),
        # The day after Thanksgiving ends at 17:00.
        ("equity", "2026-11-27T17:30", True, "2026-11-27T22:00"),
        ("equity", "2026-11-27T22:00", False, "2026-11-30T01:00"),
        # Christmas Eve, then Christmas on a Friday
        ("equity", "2026-12-24T22:30", False, "2026-12-28T01:00"),
        # The day before Independence Day
        ("equity", "2025-07-03T22:00", False, "2025-07-07T00:00"),
        ("index", "2026-11-27T18:14", True, "2026-11-27T18:15"),
        ("index", "2026-12-24T18:15", False, "2026-12-27T23:00"),
        # 17:00
        ("index", "2025-06-11T20:30", True, "2025-06-11T21:00"),
        ("index", "2025-06-11T21:00", False, "2025-06-11T22:00"),
        # From Friday 17:00 to Sunday 18:00
        ("index", "2025-06-13T21:30", False, "2025-06-15T22:00"),
    ],
)
def test_a_session_begins_and_ends_by_new_yorks_clock(kind: str, at: str, is_open: bool, turns: str) -> None:
    found = session_at(kind, ms(at))
    assert (found.is_open, found.turns_ms) == (is_open, ms(turns))


def test_the_open_part_of_a_week_is_five_days_of_shares() -> None:
    calendar = Calendar("equity")
    assert calendar.open_ms(ms("2025-06-07"), ms("2025-06-14")) == 5 * 86_400_000
    assert calendar.reopens(ms("2025-06-09"))
    assert not calendar.reopens(ms("2025-06-10"))


def test_years_join_in_whatever_order_they_are_asked_for() -> None:
    forward, backward = Calendar("equity"), Calendar("equity")
    years = ("2023-12-29T12:00", "2024-12-31T12:00", "2025-12-31T23:30", "2027-01-01T12:00")
    assert [forward.at(ms(y)) for y in years] == [backward.at(ms(y)) for y in reversed(years)][::-1]


def test_the_half_days_of_years_to_come_are_those_of_the_exchange() -> None:
    """From the exchange's published calendar: check a new release of the holidays that differs."""
    short = {2025: ["07-03", "11-28", "12-24"], 2026: ["11-27", "12-24"], 2027: ["11-26"], 2028: ["07-03", "11-24"]}
    calendar = Calendar("equity")
    for year, days in short.items():
        late = [
            f"{month:02d}-{day:02d}"
            for month, day in DATES
            if calendar.at(ms(f"{year}-{month:02d}-{day:02d}T17:00")).is_open
            and not calendar.at(ms(f"{year}-{month:02d}-{day:02d}T23:30")).is_open
        ]
        assert late == days, year


DATES = [(7, 2), (7, 3), (7, 5), (11, 24), (11, 25), (11, 26), (11, 27), (11, 28), (12, 23), (12, 24), (12, 26)]

"""Cron expressions: five fields in UTC with the rules of classic cron, and the minutes that match. Arithmetic on unix
milliseconds.

The only reader of cron expressions: of the service's schedules, a config's guardians, timers of strategies and agents.
What one of them accepts, all accept, and with the same instants. It is pure, because the venue uses it.

minute hour day-of-month month day-of-week; `*`, numbers, ranges `a-b`, steps `*/n`, `a-b/n`, `a/n`, lists, English
three-letter names of months and weekdays in any case, Sunday as 0 or 7. A step is at most the number of values of its
field: `*/60` in the minutes is once an hour, and `*/61` would be the same under a wrong name. If both day fields are
restricted, a day must match only one of them. A day field that begins with `*` counts as not restricted. Not
understood: `L`, `W`, `#`, `?`, and names such as `@daily`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bot.words import many

MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
# Every possible combination of date and weekday occurs within this many years.
YEARS_MAX: Final = 50

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DIGITS: Final = frozenset("0123456789")
_DIGITS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class _Field:
    """The allowed values of one field, and how many different ones there are."""

    name: str
    low: int
    high: int
    count: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("minute", 0, 59, 60),
    _Field("hour", 0, 23, 24),
    _Field("day-of-month", 1, 31, 31),
    _Field("month", 1, 12, 12, _MONTHS),
    _Field("day-of-week", 0, 7, 7, _WEEKDAYS),
)


class BadCron(ValueError):
    """The text is not a cron expression; the message names the field and the reason."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression: sorted minutes and hours, sets of the other fields.

    `either`: a day must match only one of the two day fields.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def meets(self, month: int, day: int, weekday: int) -> bool:
        if month not in self.months:
            return False
        if self.either:
            return day in self.days or weekday in self.weekdays
        return day in self.days and weekday in self.weekdays


@lru_cache(maxsize=1024)
def parse(text: str) -> Cron:
    """Parse five fields. BadCron if a field is invalid, or if the day never comes."""
    parts = text.upper().split()
    if not text.isascii():
        raise BadCron("has characters other than digits, English letters and * / , -")
    if len(parts) != len(_FIELDS):
        raise BadCron(
            f"has {many(len(parts), 'field')}, not the five of minute, hour, day of month, month, day of week"
        )
    minutes, hours, days, months, weekdays = (_values(field, part) for field, part in zip(_FIELDS, parts, strict=True))
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    cron = Cron(
        tuple(sorted(minutes)), tuple(sorted(hours)), days, months, frozenset(day % 7 for day in weekdays), either
    )
    if _next_day(cron, 0) is None:
        raise BadCron("names a day that never comes")
    return cron


def next_run(cron: Cron, at_ms: int) -> int | None:
    """The first minute at or after `at_ms` that matches; None if none comes within fifty years."""
    minute = -(-at_ms // MINUTE_MS)
    day, within = divmod(minute, 1440)
    if _meets(cron, day):
        hour, after = divmod(within, 60)
        for h in cron.hours:
            if h < hour:
                continue
            for m in cron.minutes:
                if h > hour or m >= after:
                    return (day * 1440 + h * 60 + m) * MINUTE_MS
    next_day = _next_day(cron, day + 1)
    return None if next_day is None else next_day * DAY_MS + (cron.hours[0] * 60 + cron.minutes[0]) * MINUTE_MS


def last_run(cron: Cron, at_ms: int) -> int | None:
    """The last minute at or before `at_ms` that matches; None if there was none within fifty years."""
    day, within = divmod(at_ms // MINUTE_MS, 1440)
    if _meets(cron, day):
        hour, until = divmod(within, 60)
        for h in reversed(cron.hours):
            if h > hour:
                continue
            for m in reversed(cron.minutes):
                if h < hour or m <= until:
                    return (day * 1440 + h * 60 + m) * MINUTE_MS
    for earlier in range(day - 1, day - 1 - YEARS_MAX * 366, -1):
        if _meets(cron, earlier):
            return earlier * DAY_MS + (cron.hours[-1] * 60 + cron.minutes[-1]) * MINUTE_MS
    return None


# ── Fields ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _values(field: _Field, text: str) -> frozenset[int]:
    values: set[int] = set()
    for term in text.split(","):
        values |= _term(field, term)
    return frozenset(values)


def _term(field: _Field, text: str) -> set[int]:
    span, slash, step_text = text.partition("/")
    step = 1
    if slash:
        step = _number(field, step_text)
        if not 1 <= step <= field.count:
            raise BadCron(f"{field.name}: a step is 1 to {field.count}, not {step}")
    if span == "*":
        low, high = field.low, field.high
    elif "-" in span:
        first, _, last = span.partition("-")
        low, high = _value(field, first), _value(field, last)
        if high < low:
            raise BadCron(f"{field.name}: {span.lower()} ends before it begins")
    else:
        low = _value(field, span)
        high = field.high if slash else low
    return set(range(low, high + 1, step))


def _value(field: _Field, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    value = _number(field, text)
    if not field.low <= value <= field.high:
        raise BadCron(f"{field.name}: {value} is not within {field.low} to {field.high}")
    return value


def _number(field: _Field, text: str) -> int:
    if not 1 <= len(text) <= _DIGITS_MAX or not set(text) <= _DIGITS:
        raise BadCron(
            f"{field.name}: {text.lower()[:20]!r} is not understood; use numbers, names, *, a-b, */n and lists"
        )
    return int(text)


# ── Days ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def civil(day: int) -> tuple[int, int, int]:
    """(year, month, day of month) of a day counted from 1970-01-01, in the Gregorian calendar.

    Source: Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
    """
    shifted = day + 719_468
    era, of_era = divmod(shifted, 146_097)
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march = (5 * of_year + 2) // 153
    month = march + 3 if march < 10 else march - 9
    return year_of_era + era * 400 + (month <= 2), month, of_year - (153 * march + 2) // 5 + 1


def _meets(cron: Cron, day: int) -> bool:
    _, month, of_month = civil(day)
    # 1 January 1970 was a Thursday.
    return cron.meets(month, of_month, (day + 4) % 7)


def _next_day(cron: Cron, first: int) -> int | None:
    for day in range(first, first + YEARS_MAX * 366):
        if _meets(cron, day):
            return day
    return None

"""Sessions of an outside price: when it opens and closes, and its trading days.

The hours of a listed market are one text, so that a database, a backtest's manifest and a worker have all of them:
`weekly Mon-Fri 09:00-17:30 Europe/Berlin`, or the stored sessions of an exchange, `XETR|Europe/Berlin|00:00|...`.
"""

from __future__ import annotations

import re
import sys
import zlib
from abc import ABC, abstractmethod
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import accumulate, pairwise
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bot.clock import MINUTE_MS
from bot.errors import ConfigError

SECOND_MS: Final = 1_000
DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * DAY_MINUTES
WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WEEKLY: Final = "weekly "
# spans of a week and breaks of a day; one each is usual
SPANS_MAX: Final = 50
# the bytes of stored sessions when they are unpacked: more than two a day in 200 years
STORED_BYTES_MAX: Final = 2_000_000
_DAY: Final = rf"({'|'.join(WEEKDAYS)})"
_CLOCK: Final = r"([0-9]{2}):([0-9]{2})"
_SPAN: Final = re.compile(rf"{_DAY}(?:-{_DAY})? {_CLOCK}-(?:{_DAY} )?{_CLOCK}")
_BREAK: Final = re.compile(rf"{_CLOCK}-{_CLOCK}")
WEEKLY_FORM: Final = (
    "must be like `weekly Mon-Fri 09:00-17:30 Europe/Berlin` or"
    " `weekly Sun 18:00-Fri 17:00 America/New_York break 17:00-18:00`"
)

Spans = tuple[list[int], list[int]]


class TradingSession(NamedTuple):
    """Whether the outside price is open, and when that changes."""

    is_open: bool
    # None: the time is not known
    turns_ms: int | None


class SessionCalendar(ABC):
    """The sessions of a market.

    A trading day begins at `begins` in `zone`: at midnight, or at this time of the evening before.
    """

    def __init__(self, zone: ZoneInfo, begins: time) -> None:
        self.zone, self.begins = zone, begins
        self._opens: Sequence[int] = []
        self._closes: Sequence[int] = []

    def at(self, at_ms: int) -> TradingSession:
        """The session at an instant. The end of a session is exclusive."""
        self._reach(at_ms)
        index = bisect_right(self._opens, at_ms) - 1
        if index >= 0 and at_ms < self._closes[index]:
            return TradingSession(is_open=True, turns_ms=self._closes[index])
        return TradingSession(is_open=False, turns_ms=self._opens[index + 1] if index + 1 < len(self._opens) else None)

    def open_ms(self, start_ms: int, end_ms: int) -> int:
        """How many milliseconds of a span are open."""
        self._reach(start_ms)
        self._reach(end_ms)
        index = max(0, bisect_right(self._opens, start_ms) - 1)
        total = 0
        while index < len(self._opens) and self._opens[index] < end_ms:
            total += max(0, min(end_ms, self._closes[index]) - max(start_ms, self._opens[index]))
            index += 1
        return total

    def reopens(self, at_ms: int) -> bool:
        """True if a session begins at this instant."""
        self._reach(at_ms)
        index = bisect_right(self._opens, at_ms) - 1
        return index >= 0 and self._opens[index] == at_ms

    def day_end(self, at_ms: int) -> int:
        """When the trading day of an instant ends and the next one begins, on every day of the week."""
        local = datetime.fromtimestamp(at_ms / 1000, self.zone)
        return self.instant(local.date() + timedelta(days=local.time() >= self.begins), self.begins)

    def date_at(self, at_ms: int) -> date:
        """The trading day of an instant."""
        return datetime.fromtimestamp(self.day_end(at_ms) / 1000 - 1, self.zone).date()

    def day_span(self, day: date) -> tuple[int, int]:
        """When a trading day begins and ends."""
        first = day - timedelta(days=self.begins != time())
        return self.instant(first, self.begins), self.instant(first + timedelta(days=1), self.begins)

    def is_trading_day(self, day: date) -> bool:
        """True if the outside price is open at some time of this trading day."""
        return self.open_ms(*self.day_span(day)) > 0

    def instant(self, day: date, clock: time) -> int:
        return int(datetime.combine(day, clock, self.zone).timestamp()) * SECOND_MS

    @abstractmethod
    def _reach(self, at_ms: int) -> None:
        """Make the sessions around an instant known."""


class CalendarByYears(SessionCalendar):
    """Sessions that follow from a rule, made year by year on request."""

    def __init__(self, zone: ZoneInfo, begins: time) -> None:
        super().__init__(zone, begins)
        self._years: tuple[int, int] | None = None

    def _reach(self, at_ms: int) -> None:
        """Add years before or after as needed."""
        while not self._opens or at_ms < self._opens[0]:
            self._add(before=True, at_ms=at_ms)
        while at_ms >= self._opens[-1]:
            self._add(before=False, at_ms=at_ms)

    def _add(self, *, before: bool, at_ms: int) -> None:
        if self._years is None:
            year = datetime.fromtimestamp(at_ms / 1000, self.zone).year
            self._years = (year, year)
            self._opens, self._closes = self._year(year)
            return
        first, last = self._years
        if before:
            opens, closes = self._year(first - 1)
            self._years = (first - 1, last)
            self._opens, self._closes = _joined((opens, closes), (list(self._opens), list(self._closes)))
        else:
            opens, closes = self._year(last + 1)
            self._years = (first, last + 1)
            self._opens, self._closes = _joined((list(self._opens), list(self._closes)), (opens, closes))

    @abstractmethod
    def _year(self, year: int) -> tuple[list[int], list[int]]:
        """The openings and the closings of a year, unix ms."""


def _joined(a: tuple[list[int], list[int]], b: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    """Join the sessions of two years; a session over New Year becomes one."""
    if a[1] and b[0] and a[1][-1] == b[0][0]:
        return a[0] + b[0][1:], a[1][:-1] + b[1]
    return a[0] + b[0], a[1] + b[1]


# ── A week that repeats ─────────────────────────────────────────────────────────────────────────────────────────────


class WeeklyCalendar(CalendarByYears):
    """Spans of a week in local time, without the breaks of each day."""

    def __init__(self, text: str) -> None:
        zone, spans, breaks = _week_of(text)
        overnight = [first for first, last in spans if first // DAY_MINUTES != (last - 1) // DAY_MINUTES]
        begins = min((minute % DAY_MINUTES for minute in overnight), default=0)
        super().__init__(zone, time(begins // 60, begins % 60))
        week = [False] * WEEK_MINUTES
        for first, last in spans:
            for minute in range(first, last):
                week[minute % WEEK_MINUTES] = True
        self._pieces: list[list[tuple[int, int]]] = []
        for day in range(0, WEEK_MINUTES, DAY_MINUTES):
            opened = week[day : day + DAY_MINUTES]
            for first, last in breaks:
                opened[first:last] = [False] * (last - first)
            edges = [n for n, (a, b) in enumerate(pairwise([False, *opened, False])) if a != b]
            self._pieces.append(list(zip(edges[::2], edges[1::2], strict=True)))
        if not any(self._pieces):
            raise ConfigError("is never open: the breaks cover all of it; shorten them")
        if all(pieces == [(0, DAY_MINUTES)] for pieces in self._pieces):
            raise ConfigError("is always open; write 24/7")

    def _year(self, year: int) -> Spans:
        opens: list[int] = []
        closes: list[int] = []
        day, end = date(year, 1, 1), date(year + 1, 1, 1)
        while day < end:
            for first, last in self._pieces[day.weekday()]:
                opening, closing = self._at_minute(day, first), self._at_minute(day, last)
                if closes and closes[-1] == opening:
                    closes[-1] = closing
                elif opening < closing:
                    opens.append(opening)
                    closes.append(closing)
            day += timedelta(days=1)
        return opens, closes

    def _at_minute(self, day: date, minute: int) -> int:
        day += timedelta(days=minute // DAY_MINUTES)
        return self.instant(day, time(minute // 60 % 24, minute % 60))


def _week_of(text: str) -> tuple[ZoneInfo, list[tuple[int, int]], list[tuple[int, int]]]:
    """Zone, spans of a week and breaks of a day. ConfigError says what does not fit."""
    week, _, rest = text.removeprefix(WEEKLY).partition(" break ")
    *parts, zone_name = week.strip().rsplit(" ", 1)
    spans: list[tuple[int, int]] = []
    for part in ("".join(parts)).split(","):
        if (match := _SPAN.fullmatch(part.strip())) is None:
            raise ConfigError(WEEKLY_FORM)
        spans += _spans_of(match)
    breaks = []
    for part in rest.split(",") if rest else ():
        if (match := _BREAK.fullmatch(part.strip())) is None:
            raise ConfigError(WEEKLY_FORM)
        first, last = _minute(match[1], match[2]), _minute(match[3], match[4])
        if first >= last:
            raise ConfigError(f"the break {part.strip()} must end after it begins, on the same day")
        breaks.append((first, last))
    if max(len(spans), len(breaks)) > SPANS_MAX:
        raise ConfigError(f"has more than {SPANS_MAX} spans")
    try:
        return ZoneInfo(zone_name), spans, breaks
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"no time zone {zone_name!r}; {WEEKLY_FORM}") from None


def _spans_of(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    first_day, last_day, hour, minute, end_day, end_hour, end_minute = match.groups()
    opens, closes = _minute(hour, minute), _minute(end_hour, end_minute)
    first = WEEKDAYS.index(first_day)
    if end_day is not None:
        if last_day is not None:
            raise ConfigError(WEEKLY_FORM)
        begin, end = first * DAY_MINUTES + opens, WEEKDAYS.index(end_day) * DAY_MINUTES + closes
        if begin == end:
            raise ConfigError("is always open; write 24/7")
        yield begin, end if begin < end else end + WEEK_MINUTES
        return
    last = first if last_day is None else WEEKDAYS.index(last_day)
    for day in range(first, last + 1 if last >= first else last + 8):
        begin = day % 7 * DAY_MINUTES
        if opens == closes:
            raise ConfigError("a session must have a length; a whole day is 00:00-24:00")
        # A session may last over midnight.
        yield begin + opens, begin + closes + (DAY_MINUTES if closes < opens else 0)


def _minute(hour: str, minute: str) -> int:
    value = int(hour) * 60 + int(minute)
    if int(minute) > 59 or value > DAY_MINUTES:
        raise ConfigError(f"{hour}:{minute} is no time of day; times go from 00:00 to 24:00")
    return value


# ── Stored sessions of an exchange ──────────────────────────────────────────────────────────────────────────────────


class StoredCalendar(SessionCalendar):
    """Sessions that stand in full in the text of the hours, from one day to another."""

    def __init__(self, text: str) -> None:
        self.name, zone, begins, first, last, packed = text.split("|")
        super().__init__(ZoneInfo(zone), time.fromisoformat(begins))
        self.first, self.last = date.fromisoformat(first), date.fromisoformat(last)
        self._opens, self._closes = unpacked(packed)

    @property
    def end_ms(self) -> int:
        """The end of the last day whose sessions are stored. Later sessions are not known."""
        return self.day_span(self.last)[1]

    def beyond(self, first_ms: int, last_ms: int) -> str | None:
        """What is not known of a span, in words; None if all its sessions are stored."""
        if self.day_span(self.first)[0] <= first_ms and last_ms <= self.end_ms:
            return None
        return (
            f"the sessions of {self.name} are stored from {self.first} to {self.last} and not known for"
            f" {datetime.fromtimestamp(first_ms / 1000, UTC):%Y-%m-%d} to"
            f" {datetime.fromtimestamp(last_ms / 1000, UTC):%Y-%m-%d}"
        )

    def _reach(self, at_ms: int) -> None:
        """All sessions are there."""


def stored_hours(name: str, zone: str, begins: str, first: date, last: date, packed: str) -> str:
    """The hours of a market with the sessions of an exchange."""
    return "|".join((name, zone, begins, first.isoformat(), last.isoformat(), packed))


def packed(opens: Sequence[int], closes: Sequence[int]) -> str:
    """Sessions as text: the distances between their instants in minutes. Adjacent sessions become one."""
    turns: list[int] = []
    for opening, closing in zip(opens, closes, strict=True):
        if turns and turns[-1] == opening:
            turns.pop()
        else:
            turns.append(opening)
        turns.append(closing)
    assert all(a < b for a, b in pairwise(turns)) and not any(turn % MINUTE_MS for turn in turns)
    steps = array("i", (turn // MINUTE_MS - before // MINUTE_MS for before, turn in pairwise([0, *turns])))
    if sys.byteorder == "big":
        steps.byteswap()
    return b64encode(zlib.compress(steps.tobytes(), 9)).decode("ascii")


def unpacked(text: str) -> Spans:
    """The opens and closes of sessions in ms. ConfigError if the text holds none."""
    steps = array("i")
    try:
        steps.frombytes(zlib.decompressobj().decompress(b64decode(text, validate=True), STORED_BYTES_MAX))
    except (ValueError, zlib.error):
        raise ConfigError("holds no sessions; write them again with `bot markets sessions FILE`") from None
    if sys.byteorder == "big":
        steps.byteswap()
    if len(steps) == 0 or len(steps) % 2 or any(step <= 0 for step in steps[1:]):
        raise ConfigError("holds no sessions; write them again with `bot markets sessions FILE`")
    turns = [minute * MINUTE_MS for minute in accumulate(steps)]
    return turns[::2], turns[1::2]


def listed_calendar(hours: str) -> SessionCalendar:
    """The calendar of a listed market's hours. ConfigError if it has no known form."""
    if hours.startswith(WEEKLY):
        return WeeklyCalendar(hours)
    return StoredCalendar(hours)


def hours_name(hours: str | None) -> str:
    """The hours of a market in words: 24/7, equity, XETR, or the weekly pattern."""
    return "24/7" if hours is None else hours.partition("|")[0]

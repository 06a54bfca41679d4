"""When the outside price of a stock, bond or index is open: New York time and exchange holidays. Trading itself never
closes.

A trading day of shares lasts from 20:00 of the evening before to 20:00, of indices from 18:00 to 17:00. Adjacent days
are one session. Weekends and exchange holidays have no session. On half days, when the exchange closes at 13:00, shares
end at 17:00 and indices at 13:15.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

# A trading day begins at this hour of the evening before and ends at that hour of the day, in New York time.
CALENDARS: Final = {"equity": (20, 20), "index": (18, 17)}
# when a half day ends
HALF_DAYS: Final = {"equity": time(17), "index": time(13, 15)}
SATURDAY: Final = 5
SECOND_MS: Final = 1_000
DAY_MS: Final = 86_400_000
# The evening of a Friday in New York is Saturday in UTC.
EVENING_MS: Final = 6 * 3_600_000
# The days from 1 January 1970, a Thursday, counted by sevens.
SATURDAY_OF_EPOCH: Final = 2


class TradingSession(NamedTuple):
    """Whether the outside price is open, and when that changes."""

    is_open: bool
    turns_ms: int


class Calendar:
    """The sessions of one kind of market, made year by year on request."""

    def __init__(self, kind: str) -> None:
        begins, ends = CALENDARS[kind]
        self._begins, self._ends, self._half_ends = time(begins), time(ends), HALF_DAYS[kind]
        self._zone = ZoneInfo("America/New_York")
        self._opens: list[int] = []
        self._closes: list[int] = []
        self._years: tuple[int, int] | None = None

    def at(self, at_ms: int) -> TradingSession:
        """The session at an instant. The end of a session is exclusive."""
        self._reach(at_ms)
        index = bisect_right(self._opens, at_ms) - 1
        if index >= 0 and at_ms < self._closes[index]:
            return TradingSession(is_open=True, turns_ms=self._closes[index])
        return TradingSession(is_open=False, turns_ms=self._opens[index + 1])

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

    def _reach(self, at_ms: int) -> None:
        """Make the sessions around an instant, adding years before or after as needed."""
        while not self._opens or at_ms < self._opens[0]:
            self._add(before=True, at_ms=at_ms)
        while at_ms >= self._opens[-1]:
            self._add(before=False, at_ms=at_ms)

    def _add(self, *, before: bool, at_ms: int) -> None:
        if self._years is None:
            year = datetime.fromtimestamp(at_ms / 1000, self._zone).year
            self._years = (year, year)
            self._opens, self._closes = self._year(year)
            return
        first, last = self._years
        if before:
            opens, closes = self._year(first - 1)
            self._years = (first - 1, last)
            self._opens, self._closes = _joined((opens, closes), (self._opens, self._closes))
        else:
            opens, closes = self._year(last + 1)
            self._years = (first, last + 1)
            self._opens, self._closes = _joined((self._opens, self._closes), (opens, closes))

    def _year(self, year: int) -> tuple[list[int], list[int]]:
        closed, short = _holidays(year), _half_days(year)
        day, end = date(year, 1, 1), date(year + 1, 1, 1)
        opens: list[int] = []
        closes: list[int] = []
        while day < end:
            if day.weekday() < SATURDAY and day not in closed:
                opening = self._instant(day - timedelta(days=1), self._begins)
                if closes and closes[-1] == opening:
                    closes.pop()
                else:
                    opens.append(opening)
                closes.append(self._instant(day, self._half_ends if day in short else self._ends))
            day += timedelta(days=1)
        return opens, closes

    def _instant(self, day: date, clock: time) -> int:
        local = datetime.combine(day, clock, self._zone)
        return int(local.astimezone(UTC).timestamp()) * SECOND_MS


def _joined(a: tuple[list[int], list[int]], b: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    """Join the sessions of two years; a session over New Year becomes one."""
    if a[1] and b[0] and a[1][-1] == b[0][0]:
        return a[0] + b[0][1:], a[1][:-1] + b[1]
    return a[0] + b[0], a[1] + b[1]


def has_saturdays(at_ms: Iterable[int]) -> bool:
    """True if a candle opens on a Saturday after the evening that is still Friday in New York."""
    return any((at - EVENING_MS) // DAY_MS % 7 == SATURDAY_OF_EPOCH for at in at_ms)


def trading_day_end(kind: str, at_ms: int) -> int:
    """When the trading day of an instant ends and the next one begins: at 20:00 in New York for shares, at 18:00 "
    "for indices, on every day of the week."""
    zone, begins = ZoneInfo("America/New_York"), time(CALENDARS[kind][0])
    local = datetime.fromtimestamp(at_ms / 1000, zone)
    day = local.date() + timedelta(days=local.time() >= begins)
    return int(datetime.combine(day, begins, zone).timestamp()) * SECOND_MS


def daily_start(kind: str, open_ms: int, base_ms: int) -> int:
    """The start of the daily candle that holds a candle of `base_ms`; the daily candle closes a day later.

    A candle in which a trading day ends belongs to that day, whose daily candle then closes with it; before a Sunday's
    evening it belongs to the day that begins.
    """
    end_ms, last_ms = trading_day_end(kind, open_ms), trading_day_end(kind, open_ms + base_ms - 1)
    if end_ms != last_ms:
        day = datetime.fromtimestamp(end_ms / 1000 - 1, ZoneInfo("America/New_York")).date()
        end_ms = end_ms if is_trading_day(day) else last_ms
    return end_ms + -end_ms % base_ms - DAY_MS


def is_trading_day(day: date) -> bool:
    """True if the exchange opens on this date."""
    return day.weekday() < SATURDAY and day not in _holidays(day.year)


def is_half_day(day: date) -> bool:
    """True if the exchange closes early on this date, usually at 13:00."""
    return day in _half_days(day.year)


@lru_cache(maxsize=64)
def _holidays(year: int) -> frozenset[date]:
    # Slow to import, and not needed for crypto markets.
    import holidays

    return frozenset(holidays.financial_holidays("NYSE", years=year))


@lru_cache(maxsize=64)
def _half_days(year: int) -> frozenset[date]:
    # As above.
    import holidays

    return frozenset(holidays.financial_holidays("NYSE", years=year, categories=("half_day",)))


@lru_cache(maxsize=len(CALENDARS))
def calendar(kind: str) -> Calendar:
    """The calendar of a market's `hours`."""
    return Calendar(kind)


def session_at(kind: str, at_ms: int) -> TradingSession:
    """The session of the outside price at an instant."""
    return calendar(kind).at(at_ms)

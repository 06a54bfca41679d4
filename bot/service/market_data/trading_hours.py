"""When the outside price of a stock, bond or index is open: New York time and exchange holidays. Trading itself never
closes.

A trading day of shares lasts from 20:00 of the evening before to 20:00, of indices from 18:00 to 17:00. Adjacent days
are one session. Weekends and exchange holidays have no session. On half days, when the exchange closes at 13:00, shares
end at 17:00 and indices at 13:15.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from bot.service.market_data.session_calendars import CalendarByYears, SessionCalendar, TradingSession, listed_calendar

# A trading day begins at this hour of the evening before and ends at that hour of the day, in New York time.
CALENDARS: Final = {"equity": (20, 20), "index": (18, 17)}
# when a half day ends
HALF_DAYS: Final = {"equity": time(17), "index": time(13, 15)}
SATURDAY: Final = 5
DAY_MS: Final = 86_400_000
# The evening of a Friday in New York is Saturday in UTC.
EVENING_MS: Final = 6 * 3_600_000
# The days from 1 January 1970, a Thursday, counted by sevens.
SATURDAY_OF_EPOCH: Final = 2


class Calendar(CalendarByYears):
    """The sessions of shares or indices of New York."""

    def __init__(self, kind: str) -> None:
        begins, ends = CALENDARS[kind]
        super().__init__(ZoneInfo("America/New_York"), time(begins))
        self._ends, self._half_ends = time(ends), HALF_DAYS[kind]

    def is_trading_day(self, day: date) -> bool:
        return is_trading_day(day)

    def _year(self, year: int) -> tuple[list[int], list[int]]:
        closed, short = _holidays(year), _half_days(year)
        day, end = date(year, 1, 1), date(year + 1, 1, 1)
        opens: list[int] = []
        closes: list[int] = []
        while day < end:
            if day.weekday() < SATURDAY and day not in closed:
                opening = self.instant(day - timedelta(days=1), self.begins)
                if closes and closes[-1] == opening:
                    closes.pop()
                else:
                    opens.append(opening)
                closes.append(self.instant(day, self._half_ends if day in short else self._ends))
            day += timedelta(days=1)
        return opens, closes


def has_saturdays(at_ms: Iterable[int]) -> bool:
    """True if a candle opens on a Saturday after the evening that is still Friday in New York."""
    return any((at - EVENING_MS) // DAY_MS % 7 == SATURDAY_OF_EPOCH for at in at_ms)


def daily_start(hours: str, open_ms: int, base_ms: int) -> int:
    """The start of the daily candle that holds a candle of `base_ms`; the daily candle closes a day later.

    A candle in which a trading day ends belongs to that day, whose daily candle then closes with it; before a Sunday's
    evening it belongs to the day that begins.
    """
    sessions = calendar(hours)
    end_ms, last_ms = sessions.day_end(open_ms), sessions.day_end(open_ms + base_ms - 1)
    if end_ms != last_ms:
        end_ms = end_ms if sessions.is_trading_day(sessions.date_at(open_ms)) else last_ms
    return end_ms + -end_ms % base_ms - DAY_MS


def resting_hours(hours: str | None, at_ms: Iterable[int]) -> str | None:
    """The trading hours by which candles of these instants have days; None: days of UTC.

    A share of New York may be quoted around the clock, which its Saturdays tell.
    """
    return None if hours in CALENDARS and has_saturdays(at_ms) else hours


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


# Each market of a service may have hours of its own.
@lru_cache(maxsize=1_024)
def calendar(hours: str) -> SessionCalendar:
    """The calendar of a market's `hours`: `equity`, `index`, or a text of `session_calendars`."""
    if hours in CALENDARS:
        return Calendar(hours)
    return listed_calendar(hours)


def session_at(hours: str, at_ms: int) -> TradingSession:
    """The session of the outside price at an instant."""
    return calendar(hours).at(at_ms)

"""Find faults in the instants of candles: off the grid, out of order, duplicates, holidays, a wrong time zone, and
gaps. A share's nights, weekends and quiet minutes are not gaps.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from zoneinfo import ZoneInfo

from bot.backtest.data.candles import MS_MAX, Candles, distances
from bot.backtest.data.findings import EXAMPLES_MAX, DataFinding, Severity, finding, instant, rows_of
from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS
from bot.words import many

if TYPE_CHECKING:
    from bot.service.market_data.session_calendars import SessionCalendar

# consecutive missing bars up to here are a note; more are a fault
GAP_BARS: Final = 5
# share of all bars: above it, small gaps together are a fault
GAP_SHARE: Final = 0.01
# Regular hours without a trade in a share: up to this long a note, longer a fault.
QUIET_MS: Final = 30 * MINUTE_MS
CONTINUOUS: Final = "continuous"
EQUITY: Final = "equity"
# Monday is 0
SATURDAY_OF_WEEK: Final = 5
DAY_MINUTES: Final = DAY_MS // MINUTE_MS
HOURS: Final = (CONTINUOUS, EQUITY, "index")

# Offsets of New York's clock, in minutes.
REGULAR: Final = (9 * 60 + 30, 16 * 60)
EXTENDED: Final = (4 * 60, 20 * 60)
# share of the regular hours that must have rows if the time zone is right
REGULAR_MIN: Final = 0.5
# another time zone must fit better by this share to be reported
BETTER_MIN: Final = 0.2

_NEW_YORK: Final = ZoneInfo("America/New_York")
_OPEN: Final = time_of_day(9, 30)
_CLOSE: Final = time_of_day(16)
_EARLY_CLOSE: Final = time_of_day(13)


def times(candles: Candles, hours: str) -> Iterator[DataFinding]:
    """Findings about the instants of candles, and gaps. The unit must be right."""
    at_ms, step = candles.at_ms, candles.step_ms
    apart = distances(at_ms)
    off = any(gap % step for gap in apart) or at_ms[0] % step != 0
    if off:
        places = [(index, f"is not on the grid of {candles.interval}") for index, at in enumerate(at_ms) if at % step]
        if places:
            text = f"{rows_of(len(places))} off the grid of {candles.interval} (UTC)"
            lost = len(set(at_ms)) - len(set(candles.grid_ms))
            text += f"; on it {rows_of(lost)} would share an instant with another, and the last counts" if lost else ""
            yield finding(candles, "off_grid", "fault", text, places)
    if any(gap < 0 for gap in apart):
        places = [
            (index, f"comes after {instant(at_ms[index - 1])}")
            for index in range(1, len(at_ms))
            if at_ms[index] < at_ms[index - 1]
        ]
        yield finding(candles, "unsorted", "fault", f"{rows_of(len(places))} earlier than the row before", places)
    in_order = all(gap > 0 for gap in apart)
    if not in_order:
        yield from _duplicates(candles)
    if not all(gap == step for gap in apart):
        # Gaps are counted after the rows are moved to the grid.
        grid: Sequence[int] = candles.grid_ms if off else at_ms
        yield from _gaps(candles, grid, hours, in_order=in_order and not off)


def _duplicates(candles: Candles) -> Iterator[DataFinding]:
    seen: dict[int, int] = {}
    same: list[tuple[int, str]] = []
    other: list[tuple[int, str]] = []
    columns = candles.columns[1:]
    for index, at in enumerate(candles.at_ms):
        if (before := seen.get(at)) is not None:
            file, row = candles.where(before)
            place = f"row {row}" + (f" of {file}" if file is not None and file != candles.where(index)[0] else "")
            if all(column[before] == column[index] for column in columns):
                same.append((index, f"is there already, the same, in {place}"))
            else:
                other.append((index, f"is there already, with other values, in {place}"))
        seen[at] = index
    if other:
        yield finding(
            candles,
            "duplicate",
            "fault",
            f"{rows_of(len(other))} of an instant that another row gives otherwise",
            other,
        )
    if same:
        yield finding(
            candles, "duplicate", "note", f"{rows_of(len(same))} twice with the same values; one counts", same
        )


class _Hole(NamedTuple):
    """A gap between two candles: the number of missing bars, and for how long trading was expected."""

    at: int
    bars: int
    text: str
    is_fault: bool


def _gaps(candles: Candles, at_ms: Sequence[int], hours: str, *, in_order: bool) -> Iterator[DataFinding]:
    step = candles.step_ms
    stamps = at_ms if in_order else sorted(set(at_ms))
    holes = [
        hole
        for index, (before, at) in enumerate(zip(stamps, islice(stamps, 1, None), strict=False), start=1)
        if at - before > step and (hole := _hole(index, before, at, step, hours)) is not None
    ]
    if not holes:
        return
    if not in_order:
        rows = {at: index for index, at in enumerate(at_ms)}
        holes = [hole._replace(at=rows[stamps[hole.at]]) for hole in holes]
    missing = sum(hole.bars for hole in holes)
    large = [hole for hole in holes if hole.is_fault]
    share = missing / (missing + len(stamps))
    kept = large or holes
    worst = max(kept, key=lambda hole: hole.bars)
    text = (
        f"{many(len(holes), 'hole')}, {many(missing, 'missing bar')} ({share:.2%}); the longest ends at"
        f" {instant(candles.at_ms[worst.at])}: {worst.text}"
    )
    is_fault = bool(large) or (hours == CONTINUOUS and share > GAP_SHARE and missing > 2 * GAP_BARS)
    yield finding(
        candles, "gap", "fault" if is_fault else "note", text, [(hole.at, hole.text) for hole in kept], len(kept)
    )


def _hole(index: int, before: int, at: int, step: int, hours: str) -> _Hole | None:
    bars = -(-(at - before) // step) - 1
    if bars <= 0:
        return None
    if hours == CONTINUOUS:
        return _Hole(index, bars, _missing(bars), bars > GAP_BARS)
    a, b = trading_date(before, step, hours), trading_date(at, step, hours)
    days = _days_between(a, b, hours)
    if days:
        shown = f"{days[0]}" if len(days) == 1 else f"{days[0]} to {days[-1]}"
        count = sum(1 if step == DAY_MS else max(1, _regular(day, 0, MS_MAX, hours) // step) for day in days)
        return _Hole(
            index,
            count,
            f"{len(days)} trading {'day is' if len(days) == 1 else 'days are'} missing ({shown})",
            is_fault=True,
        )
    if step == DAY_MS:
        return None
    if a == b:
        quiet = _regular(a, before + step, at, hours)
        lost, limit = quiet, max(QUIET_MS, GAP_BARS * step)
    else:
        tail, head = _regular(a, before + step, before + DAY_MS, hours), _regular(b, at - DAY_MS, at, hours)
        lost, limit = tail + head, max(QUIET_MS, GAP_BARS * step)
    bars = lost // step
    return _Hole(index, bars, f"{_missing(bars)} in regular hours", lost > limit) if bars > 0 else None


def holidays(candles: Candles, hours: str) -> Iterator[DataFinding]:
    """Rows of days on which the exchange was closed.

    None if there are rows on Saturdays, because then the venue trades all days.
    """
    holes: list[tuple[int, str]] = []
    hour, text = -1, ""
    for index, at in enumerate(candles.at_ms):
        # A date begins at a full hour in every time zone used here.
        if at // HOUR_MS != hour:
            hour, day = at // HOUR_MS, trading_date(at, candles.step_ms, hours)
            if day.weekday() == SATURDAY_OF_WEEK and hours in HOURS:
                return
            text = "" if _is_trading_day(day, hours) else f"the exchange was closed on {day}"
        if text:
            holes.append((index, text))
    if holes:
        said = (
            f"{rows_of(len(holes))} of days on which the exchange was closed: filled in, or of a place that trades on"
        )
        yield finding(candles, "holiday", "note", said, holes)


class _Fit(NamedTuple):
    """How rows fit the exchange in one time zone: the share of its regular hours with rows, and the share of rows at
    night, 20:00 to 04:00.
    """

    filled: float
    night: float

    @property
    def score(self) -> float:
        return self.filled - self.night


def session_hours(candles: Candles, severity: Severity) -> Iterator[DataFinding]:
    """Report rows of a share whose times fit the exchange as New York time, but not as UTC."""
    if candles.step_ms == DAY_MS:
        return
    step = candles.step_ms // MINUTE_MS
    as_wall = _fit(candles.at_ms, step)
    if as_wall.filled < REGULAR_MIN:
        return
    walls = array("q", _in_new_york(candles.at_ms))
    as_utc = _fit(walls, step)
    if as_wall.score - as_utc.score < BETTER_MIN:
        return
    outside = [index for index, at in enumerate(walls) if not _overlap(at // MINUTE_MS % DAY_MINUTES, step, REGULAR)]
    places = [(index, f"is {instant(walls[index])[11:16]} in New York") for index in outside[:EXAMPLES_MAX]]
    text = (
        f"the rows fill {as_utc.filled:.0%} of the exchange's regular hours, and {as_wall.filled:.0%} if their times"
        " are New York's wall clock and not UTC; `bot data import --tz America/New_York` reads such times in text, and"
        " numbers must be made UTC at their source"
    )
    yield finding(candles, "hours", severity, text, places, len(outside))


def _in_new_york(at_ms: Sequence[int]) -> Iterator[int]:
    """New York's local time at each instant, as a number like UTC."""
    hour, offset = -1, 0
    for at in at_ms:
        # Clocks change at full hours.
        if at // HOUR_MS != hour:
            hour = at // HOUR_MS
            shift = datetime.fromtimestamp(at / 1000, _NEW_YORK).utcoffset()
            offset = 0 if shift is None else int(shift.total_seconds()) * 1000
        yield at + offset


def _fit(walls: Sequence[int], step: int) -> _Fit:
    minutes = Counter(at // MINUTE_MS % DAY_MINUTES for at in walls)
    days = len({at // DAY_MS for at in walls})
    regular = sum(count * _overlap(minute, step, REGULAR) for minute, count in minutes.items())
    night = sum(count for minute, count in minutes.items() if not _overlap(minute, step, EXTENDED))
    return _Fit(regular / (days * (REGULAR[1] - REGULAR[0])), night / len(walls))


def _overlap(minute: int, step: int, span: tuple[int, int]) -> int:
    """How many minutes of a bar lie in a span of the day. The bar begins at `minute` of the day."""
    return max(0, min(minute + step, span[1]) - max(minute, span[0]))


def _missing(bars: int) -> str:
    return f"{many(bars, 'missing bar')} before it"


def trading_date(at_ms: int, step: int, hours: str = EQUITY) -> date:
    """The trading day of a candle: of a daily one its UTC date, of others the exchange's date, in New York that of the
    clock.
    """
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    if step == DAY_MS and at_ms % DAY_MS == 0:
        return moment.date()
    return moment.astimezone(_NEW_YORK).date() if hours in HOURS else _calendar(hours).date_at(at_ms)


def _calendar(hours: str) -> SessionCalendar:
    """The calendar of a listed market. Its sessions are its regular hours."""
    from bot.service.market_data.trading_hours import calendar

    return calendar(hours)


def _is_trading_day(day: date, hours: str) -> bool:
    from bot.service.market_data.trading_hours import is_trading_day

    return is_trading_day(day) if hours in HOURS else _calendar(hours).is_trading_day(day)


def _days_between(a: date, b: date, hours: str) -> list[date]:
    """The trading days after `a` and before `b`."""
    day, days = a + timedelta(days=1), []
    while day < b:
        if _is_trading_day(day, hours):
            days.append(day)
        day += timedelta(days=1)
    return days


def _regular(day: date, start_ms: int, end_ms: int, hours: str) -> int:
    """How much of a span lies in regular hours: of a listed market in its sessions, else 09:30 to 16:00 in New York, to
    13:00 on a half day. A Sunday evening of currencies has none.
    """
    from bot.service.market_data.trading_hours import is_half_day, is_trading_day

    if hours not in HOURS:
        sessions = _calendar(hours)
        first, last = sessions.day_span(day)
        return sessions.open_ms(max(start_ms, first), min(end_ms, last))
    if not is_trading_day(day):
        return 0
    ends = _EARLY_CLOSE if is_half_day(day) else _CLOSE
    opens, closes = (int(datetime.combine(day, moment, _NEW_YORK).timestamp()) * 1000 for moment in (_OPEN, ends))
    return max(0, min(end_ms, closes) - max(start_ms, opens))


def is_listed(market: str) -> bool:
    """True if the service lists this market, and so knows its hours."""
    from bot.service.market_data.instruments import CATALOGUE

    return market in CATALOGUE


def listed_hours(market: str) -> tuple[str, ...]:
    """The hours of a market of a listing file; none of a shipped one."""
    from bot.service.market_data.instruments import added_listings

    listing = added_listings().get(market)
    return () if listing is None or listing.spec.hours is None else (listing.spec.hours,)


def hours_of(candles: Candles) -> str:
    """The trading hours of a market, from the service's list.

    A market that is not listed has exchange hours if no candle is on a Saturday.
    """
    from bot.service.market_data.instruments import CATALOGUE
    from bot.service.market_data.trading_hours import has_saturdays

    listing = CATALOGUE.get(candles.market)
    if listing is not None:
        return CONTINUOUS if listing.spec.hours is None else listing.spec.hours
    at_ms = candles.at_ms
    rests = len(at_ms) > 0 and max(at_ms) - min(at_ms) >= 7 * DAY_MS and not has_saturdays(at_ms)
    return EQUITY if rests else CONTINUOUS

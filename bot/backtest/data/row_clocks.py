"""The times of the rows of a file in milliseconds UTC: numbers, dates in text, days of a spreadsheet, local clocks."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import lt
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from bot.backtest.data import date_texts
from bot.backtest.data.candles import unit_of
from bot.backtest.data.table_layout import ColumnMap, TwoReadings
from bot.clock import DAY_MS
from bot.errors import ConfigError

# 2025-06-01
DATE_CHARS: Final = 10
# directives of strptime that give the hour
HOURS: Final = ("%H", "%I", "%X", "%c")
# offsets of time zones are multiples of a quarter of an hour
QUARTER_MS: Final = 900_000
# Of two orders of day and month, one that makes the rows jump by weeks is wrong if the other makes none jump.
JUMP_MS: Final = 27 * DAY_MS
QUIET_MS: Final = 7 * DAY_MS
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock's reading, of whatever zone
# day 0 of a spreadsheet
_SERIAL_EPOCH_DAYS: Final = 25_569
_PER_MS: Final = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_SERIAL: Final = "days of a spreadsheet"
_UNIT_NAMES: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_EXPONENT: Final = re.compile(r"[+-]?[0-9](?:\.[0-9]{1,30})?[eE]\+?[0-9]{1,2}", re.ASCII)
_ZULU: Final = re.compile(r"(?<=[0-9]) ?(?:UTC|GMT)$")
_STAMP: Final = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{1,12})?", re.ASCII)


class RowTimes:
    """Convert the times of rows to milliseconds UTC. A file has one unit: a row with another unit is an error."""

    def __init__(
        self, path: Path, mapped: ColumnMap, title: str = "", column: Callable[[], Iterable[Sequence[str]]] = lambda: ()
    ) -> None:
        """`title` is the header of the time column, to recognize a repeated header among the rows. `column` reads the
        times of the whole file, in blocks, if the first one can be read in two ways.
        """
        self._path = path
        self._unit = mapped.unit
        self._title = title.lower()
        self._column = column
        self._zone = _LocalClock(path, mapped.tz)
        self._has_dates: bool | None = None
        # None: some time is not a midnight of its own clock
        self.dates_ms: array[int] | None = array("q")
        # True: some midnight was that of a zone behind UTC
        self.is_behind = False

    def begin_portion(self) -> None:
        """Forget the dates of the rows so far, unless some time was no midnight."""
        if self.dates_ms is not None:
            self.dates_ms = array("q")

    def read(self, texts: Sequence[str], rows: Sequence[int], markets: Sequence[str] = ()) -> array[int]:
        """Convert times. `markets` has the market of each row if the file has several."""
        if (self._unit == "auto" or self._unit in _PER_MS) and _EXPONENT.fullmatch(texts[0].strip()):
            texts = [self._in_full(text.strip(), row) for text, row in zip(texts, rows, strict=True)]
        if self._unit == "auto":
            self._unit = self._unit_of(texts[0].strip(), rows[0])
        if self._unit in _PER_MS:
            return self._dated(instants := self._numbers(texts, rows), instants)
        names = markets or [""] * len(texts)
        if self._unit == _SERIAL:
            walls = array("q", map(self._serial_ms, texts, rows))
            self._zone.look(walls, names)
            return self._dated(walls, array("q", map(self._zone.utc, walls, rows, names)))
        return self._texts(texts, rows, names)

    def _texts(self, texts: Sequence[str], rows: Sequence[int], names: Sequence[str]) -> array[int]:
        parse = _parser(self._unit)
        moments: list[datetime] = []
        for text, row in zip(texts, rows, strict=True):
            try:
                moments.append(parse(text.strip()))
            except ValueError:
                self._refuse_title(text, row)
                raise ConfigError(
                    f"{self._path}: row {row}: {text.strip()[:40]!r} is no time {self._wish(text.strip())}"
                ) from None
        walls = [(moment.replace(tzinfo=None) - _EPOCH) // timedelta(milliseconds=1) for moment in moments]
        self._zone.look(walls, names)
        instants = array("q")
        for text, row, moment, wall_ms, name in zip(texts, rows, moments, walls, names, strict=True):
            offset = moment.utcoffset()
            if not self._zone.is_utc and offset is None:
                self._judge_form(text.strip(), row)
            if offset is not None:
                instants.append(wall_ms - offset // timedelta(milliseconds=1))
            elif self.is_date(text.strip()):
                # A date is a UTC day, because the service's daily candles are.
                instants.append(wall_ms)
            else:
                instants.append(self._zone.utc(wall_ms, row, name))
        return self._dated(walls, instants)

    def _unit_of(self, text: str, row: int) -> str:
        """The unit or the form of the file's times, by the first time, or by all if it can be read in two ways."""
        if date_texts.is_serial(text):
            return _SERIAL
        if _STAMP.fullmatch(text) and not re.fullmatch(r"(19|20)[0-9]{6}", text):
            self._refuse_two_readings(text, row)
            return unit_of(int(float(text)))
        if re.fullmatch(r"[0-9]{4}\.[0-9]{2}\.[0-9]{2}.*", text):
            return "dotted"
        if _fits(text, "iso"):
            return "iso"
        clock, literal, zone = date_texts.parted_zone(text)
        forms = [f"{form}{literal}" for form in date_texts.forms_of(clock)]
        if forms and zone is not None:
            if self._zone.tz not in ("UTC", zone):
                raise ConfigError(
                    f"{self._path}: row {row}: time {text[:40]!r} says {zone}, and --tz says {self._zone.tz}; leave"
                    " --tz out"
                )
            self._zone = _LocalClock(self._path, zone)
        if len(forms) > 1 and len(forms := self._narrowed(forms)) > 1:
            raise TwoReadings(
                f"{self._path}: row {row}: {text[:40]!r} is no time like 2025-06-01T00:00:00Z, and no row tells day and"
                f" month apart; say its form with {' or '.join(f'--unit {form!r}' for form in forms)}",
                {f"--unit {form!r}": {"unit": form} for form in forms},
            )
        return forms[0] if forms else "iso"

    def _narrowed(self, forms: Sequence[str]) -> list[str]:
        """The forms in which all times of the file can be read, and are apart by less than weeks if that is possible.

        Forms that read each time as the same instant are one.
        """
        last: dict[str, datetime] = {}
        left, is_same = list(forms), True
        for texts in self._column():
            for text in map(str.strip, texts):
                moments = {form: datetime.strptime(text, form) for form in left if _fits(text, form)}  # noqa: DTZ007
                if not moments:
                    return left
                apart = {form: abs(at - last.get(form, at)) for form, at in moments.items()}
                if min(apart.values()) <= timedelta(milliseconds=QUIET_MS):
                    moments = {f: at for f, at in moments.items() if apart[f] < timedelta(milliseconds=JUMP_MS)}
                last, left = moments, list(moments)
                if len(left) == 1:
                    return left
                is_same = is_same and len(set(moments.values())) == 1
        return left[:1] if last and is_same else left

    def _serial_ms(self, text: str, row: int) -> int:
        """A day of a spreadsheet as the reading of a clock, to the second: its numbers are not more exact."""
        if not date_texts.is_serial(text.strip()):
            self._refuse_title(text, row)
            raise ConfigError(
                f"{self._path}: row {row}: time {text.strip()[:40]!r} is no day of a spreadsheet like 45719.5, as the"
                " rows before it"
            )
        return round((float(text.replace(",", ".")) - _SERIAL_EPOCH_DAYS) * 86_400) * 1_000

    def _judge_form(self, text: str, row: int) -> None:
        """ConfigError if some rows have a date alone, which is a day of UTC, and others an hour of a local clock."""
        is_date = self.is_date(text)
        if self._has_dates not in (None, is_date):
            raise ConfigError(
                f"{self._path}: row {row}: time {text[:40]!r} has {'no' if is_date else 'an'} hour, unlike the rows "
                "before it; write the hour of midnight out, as in 2025-06-01 00:00:00"
            )
        self._has_dates = is_date

    def of_clock(
        self, walls: array[int], instants: array[int] | None, rows: Sequence[int], markets: Sequence[str]
    ) -> array[int]:
        """The instants of times that are read already: `instants`, or those of a local clock in the file's zone."""
        names = markets or [""] * len(walls)
        if instants is None:
            self._zone.look(walls, names)
            instants = array("q", map(self._zone.utc, walls, rows, names))
        return self._dated(walls, instants)

    def _dated(self, walls: Sequence[int], instants: array[int]) -> array[int]:
        """Return `instants`, and remember the local times `walls` that they were read from."""
        self.is_behind = self.is_behind or any(map(lt, walls, instants))
        if self.dates_ms is not None:
            if any(wall_ms % DAY_MS for wall_ms in walls):
                self.dates_ms = None
            else:
                self.dates_ms.extend(walls)
        return instants

    def is_date(self, text: str) -> bool:
        """True for a date without an hour."""
        if self._unit in _PER_MS or self._unit == _SERIAL:
            return False
        return not any(name in self._unit for name in HOURS) if "%" in self._unit else len(text) <= DATE_CHARS

    def _in_full(self, text: str, row: int) -> str:
        """1.750032000000e+12 as 1750032000000.

        ConfigError for a time that a spreadsheet has rounded, like 1.75003E+12.
        """
        if not _EXPONENT.fullmatch(text):
            return text
        stamp = Decimal(text)
        if int(stamp.as_tuple().exponent) > 0:
            raise ConfigError(
                f"{self._path}: row {row}: time {text[:40]} has lost its last digits; write the times out in full"
            )
        return format(stamp, "f")

    def _refuse_two_readings(self, text: str, row: int) -> None:
        """ConfigError for digits that may be a date and an hour written together, like 20250303093000."""
        unit = unit_of(int(float(text)))
        if (form := date_texts.written_together(text)) is not None:
            raise TwoReadings(
                f"{self._path}: row {row}: time {text[:40]} may be a date written without signs, or "
                f"{_UNIT_NAMES[unit]} from 1970; say which with --unit '{form}' or --unit {unit}",
                {f"--unit '{form}'": {"unit": form}, f"--unit {unit}": {"unit": unit}},
            )

    def _refuse_title(self, text: str, row: int) -> None:
        if self._title and text.strip().lower() == self._title:
            raise ConfigError(f"{self._path}: row {row}: is the header again; cut it out") from None

    def _wish(self, text: str) -> str:
        if self._unit in ("iso", "dotted"):
            return f"like 2025-06-01T00:00:00Z; {date_texts.way_of(text)}"
        return f"of the form {self._unit!r}{date_texts.way_of_mixed_zones(self._unit, text, self._path)}"

    def _numbers(self, texts: Sequence[str], rows: Sequence[int]) -> array[int]:
        if not self._zone.is_utc:
            raise ConfigError(f"{self._path}: its times are numbers, which count from 1970 UTC; leave --tz out")
        times, parts = _PER_MS[self._unit]
        instants = array("q")
        for text, row in zip(texts, rows, strict=True):
            stamp = text.strip()
            if not _STAMP.fullmatch(stamp):
                self._refuse_title(text, row)
                raise ConfigError(
                    f"{self._path}: row {row}: time {stamp[:40]!r} is no number of {_UNIT_NAMES[self._unit]}"
                )
            whole, _, fraction = stamp.partition(".")
            unit = unit_of(int(whole))
            if unit != self._unit:
                raise ConfigError(
                    f"{self._path}: row {row}: time {stamp[:40]} looks like {_UNIT_NAMES[unit]}, not"
                    f" {_UNIT_NAMES[self._unit]} as the rows before or --unit say; a file has one unit"
                )
            at = int(whole) * times // parts
            if fraction.strip("0"):
                at += int(float("0." + fraction) * times / parts + 0.5)
            instants.append(at)
        return instants


def _parser(unit: str) -> Callable[[str], datetime]:
    if unit == "iso":
        return lambda text: datetime.fromisoformat(_ZULU.sub("Z", text))
    if unit == "dotted":
        return lambda text: datetime.fromisoformat(text[:10].replace(".", "-") + _ZULU.sub("Z", text[10:]))
    return lambda text: datetime.strptime(text, unit)  # noqa: DTZ007 - its zone is the file's


def _fits(text: str, unit: str) -> bool:
    with suppress(ValueError):
        _parser(unit)(text)
        return True
    return False


class _LocalClock:
    """Converts local times of a time zone to UTC. In the hour that is repeated in autumn, the order of each market's
    rows decides; an hour that is skipped in spring is an error.
    """

    def __init__(self, path: Path, tz: str) -> None:
        self._path = path
        self.tz = tz
        self._zone = ZoneInfo(tz)
        self.is_utc = tz in ("UTC", "Etc/UTC", "Z", "GMT", "Zulu")
        self._known: dict[int, tuple[int, int]] = {}
        # market -> the instant of the row before
        self._last: dict[str, int] = {}
        # True: newest first; None: not known yet
        self._falls: bool | None = None

    def look(self, walls_ms: Sequence[int], markets: Sequence[str]) -> None:
        """Find out if the rows are newest first, from the first two different times of one market."""
        if self.is_utc or self._falls is not None:
            return
        first: dict[str, int] = {}
        for wall_ms, market in zip(walls_ms, markets, strict=True):
            before_ms = first.setdefault(market, wall_ms)
            if wall_ms != before_ms:
                self._falls = wall_ms < before_ms
                return

    def utc(self, wall_ms: int, row: int, market: str) -> int:
        """The UTC instant of a local time. Called once for each row, in order."""
        if self.is_utc:
            return wall_ms
        quarter = wall_ms // QUARTER_MS
        known = self._known.get(quarter)
        if known is None:
            known = self._known[quarter] = self._offsets(wall_ms, row)
        at, later = (wall_ms - offset for offset in known)
        if at != later:
            last = self._last.get(market)
            is_second = (last is None or later < last) if self._falls else (last is not None and at <= last)
            at = later if is_second else at
        self._last[market] = at
        return at

    def _offsets(self, wall_ms: int, row: int) -> tuple[int, int]:
        wall = _EPOCH + timedelta(milliseconds=wall_ms)
        aware = wall.replace(tzinfo=self._zone)
        first, second = (aware.replace(fold=fold).utcoffset() for fold in (0, 1))
        assert first is not None
        assert second is not None
        if aware.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) != wall:
            raise ConfigError(
                f"{self._path}: row {row}: {wall} does not exist in {self.tz}: the clocks go forward there; is it the"
                " right --tz?"
            )
        return first // timedelta(milliseconds=1), second // timedelta(milliseconds=1)

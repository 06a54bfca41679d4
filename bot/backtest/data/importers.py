"""Read candle files of other programs: their column names, delimiters, time zones and units, samples of a price, many
markets in one file. An error names the row; nothing is repaired silently.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby, islice, pairwise
from operator import lt, sub
from pathlib import Path
from statistics import median
from typing import Any, Final
from zoneinfo import ZoneInfo

from bot.backtest.data import column_files, date_texts
from bot.backtest.data.candles import (
    COLUMNS,
    MS_MAX,
    MS_MIN,
    NAMES,
    Candles,
    CandlesPart,
    interval_in,
    interval_of,
    late_ms,
    market_name,
    unit_of,
)
from bot.backtest.data.gaps import CONTINUOUS, hours_of
from bot.backtest.data.table_layout import ALIASES, judge_order, layout_of, market_place, one_of, other_time, places_of
from bot.backtest.data.table_layout import ColumnMap as ColumnMap
from bot.backtest.data.table_layout import columns_of as columns_of
from bot.clock import DAY_MS
from bot.errors import ConfigError
from bot.wire.vocabulary import INTERVAL_MS

# markets in one file; a column with more different values is not a column of markets
MARKETS_MAX: Final = 10_000
# tolerated deviation of samples from their interval, as a share of it
ABOUT: Final = 0.1
# 2025-06-01
DATE_CHARS: Final = 10
# directives of strptime that give the hour
HOURS: Final = ("%H", "%I", "%X", "%c")
# offsets of time zones are multiples of a quarter of an hour
QUARTER_MS: Final = 900_000
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock's reading, of whatever zone
_PER_MS: Final = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
# the name that pandas gives to an index without a name in Parquet
PANDAS_INDEX: Final = "__index_level_"
_THOUSANDS: Final = re.compile(r"[+-]?[0-9]{1,3}(?:[,.'\s][0-9]{3})+(?:[.,][0-9]+)?")
_SHORT: Final = re.compile(r"[+-]?[0-9]+(?:[.,][0-9]+)? ?[KMBkmb]")
_COMMA: Final = re.compile(r"[+-]?[0-9]+,[0-9]+")
_EXPONENT: Final = re.compile(r"[+-]?[0-9](?:\.[0-9]{1,30})?[eE]\+?[0-9]{1,2}", re.ASCII)
_ZULU: Final = re.compile(r"(?<=[0-9]) ?(?:UTC|GMT)$")
_STAMP: Final = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{1,12})?", re.ASCII)


@dataclass(slots=True)
class _Table:
    """What a file says: the columns with the source's own instants, each row's number and its market (empty if the
    file has one market).

    `dates_ms` is 00:00 UTC of each row's local date if every time is a local midnight. `is_behind`: some midnight was
    that of a zone behind UTC.
    """

    columns: tuple[array[Any], ...]
    rows: array[int]
    markets: list[str]
    dates_ms: array[int] | None
    is_behind: bool
    # some row was joined to a longer candle that ends after it
    is_moved: bool = False

    def pick(self, indices: Sequence[int]) -> _Table:
        """The rows at `indices`."""
        dates = None if self.dates_ms is None else array("q", [self.dates_ms[index] for index in indices])
        columns = tuple(array(column.typecode, [column[index] for index in indices]) for column in self.columns)
        return _Table(columns, array("q", [self.rows[index] for index in indices]), [], dates, self.is_behind)


def read_foreign(
    path: Path, market: str, mapped: ColumnMap, report: Callable[[int], None] = lambda _rows: None
) -> Candles:
    """Read the candles of a file, in its order.

    `report` is called with the number of rows read. ConfigError with file and row for wrong data.
    """
    return _candles(path, market, mapped, _read(path, mapped, report))


def read_markets(path: Path, mapped: ColumnMap, report: Callable[[int], None] = lambda _rows: None) -> list[Candles]:
    """Read the candles of every market in a file, by `mapped.market`. Each market keeps the file's order."""
    assert mapped.market is not None
    table = _read(path, mapped, report)
    rows = table.rows
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(table.markets):
        indices.setdefault(name, []).append(index)
        if len(indices) > MARKETS_MAX:
            raise ConfigError(
                f"{path}: column {mapped.market_column!r} has more than {MARKETS_MAX:,} names; those are no markets"
            )
    by_market: dict[str, Candles] = {}
    for name, mine in indices.items():
        said = re.sub(r"\{[^{}]*\}", lambda _: name, mapped.market)  # noqa: B023 - called at once
        try:
            market = market_name(said, listed=False)
        except ConfigError as error:
            raise ConfigError(f"{path}: row {rows[mine[0]]}: {error}") from None
        if market in by_market:
            raise ConfigError(
                f"{path}: row {rows[mine[0]]}: {name!r} is {market}, and so is another name in this column"
            )
        by_market[market] = _candles(path, market, mapped, table.pick(mine))
    if not by_market:
        raise ConfigError(f"{path}: has no candles")
    return list(by_market.values())


def _read(path: Path, mapped: ColumnMap, report: Callable[[int], None]) -> _Table:
    return _parquet(path, mapped) if column_files.is_parquet(path) else _text(path, mapped, report)


def _candles(path: Path, market: str, mapped: ColumnMap, table: _Table) -> Candles:
    table = _joined(path, table, mapped)
    rows, at_ms = table.rows, table.columns[0]
    if not at_ms:
        raise ConfigError(f"{path}: has no candles")
    if not MS_MIN <= min(at_ms) <= max(at_ms) < MS_MAX:
        at, row = next((at, row) for at, row in zip(at_ms, rows, strict=True) if not MS_MIN <= at < MS_MAX)
        raise ConfigError(
            f"{path}: row {row}: its time is {_day(at)}, and candles are taken from 1973-03-04 to the year 5138 alone; "
            + date_texts.way_of_early(at)
        )
    interval = _interval(path, at_ms, mapped)
    _, opens, highs, lows, closes, volumes = table.columns
    parts = (CandlesPart(path, 0, rows[0], rows),)
    read = Candles(
        market, interval, at_ms, opens, highs, lows, closes, volumes, parts, are_samples=mapped.is_of_samples
    )
    return _at_opens(read, table, mapped)


def _joined(path: Path, table: _Table, mapped: ColumnMap) -> _Table:
    """The rows joined to candles of --interval, if they are of an interval that is not known and fits into it. A
    candle without its first or last row
    is left out at the beginning and at the end of the file."""
    at_ms, target = table.columns[0], INTERVAL_MS.get(mapped.interval or "", 0)
    order = sorted(range(len(at_ms)), key=at_ms.__getitem__)
    apart = Counter(at_ms[b] - at_ms[a] for a, b in pairwise(order) if at_ms[b] > at_ms[a])
    step = -max(((count, -gap) for gap, count in apart.items()), default=(0, 0))[1]
    if mapped.is_of_samples or step <= 0 or step in NAMES or target <= step or target % step:
        return table
    opens = [at_ms[index] - (step if mapped.stamp == "close" else 0) for index in order]
    # A row belongs to the candle in which it ends.
    starts = [(at + step - 1) // target * target for at in opens]
    groups = [list(group) for _, group in groupby(range(len(order)), key=starts.__getitem__)]
    if opens[groups[0][0]] > starts[0]:
        groups.pop(0)
    if groups and opens[groups[-1][-1]] + step < starts[groups[-1][0]] + target:
        groups.pop()
    if not groups:
        raise ConfigError(f"{path}: has no whole candle of {mapped.interval}")
    _, opened, highs, lows, closes, volumes = (array(c.typecode, [c[index] for index in order]) for c in table.columns)
    shift = target if mapped.stamp == "close" else 0
    columns = (
        array("q", [starts[group[0]] + shift for group in groups]),
        array("d", [opened[group[0]] for group in groups]),
        array("d", [max(highs[index] for index in group) for group in groups]),
        array("d", [min(lows[index] for index in group) for group in groups]),
        array("d", [closes[group[-1]] for group in groups]),
        array("d", [math.fsum(volumes[index] for index in group) for group in groups]),
    )
    rows = array("q", [table.rows[order[group[0]]] for group in groups])
    is_moved = any(at - at % target != start for at, start in zip(opens, starts, strict=True))
    return _Table(columns, rows, [], None, table.is_behind, is_moved)


def _at_opens(read: Candles, table: _Table, mapped: ColumnMap) -> Candles:
    """The candles at their opens, on the source's own clock; none closes earlier for it than at its source.

    - A close up to `late_ms` before the grid (00:59:59.999) is the close on the grid.
    - A day from midnight to midnight of a local clock keeps its date, because it ends before the UTC day of that date
      does: it `is_moved`, unless its market has trading hours. West of Greenwich the day ends later, so there only
      markets with trading hours keep the date: their session ends earlier.
    """
    step, before = read.step_ms, read.step_ms if mapped.stamp == "close" else 0
    dates = table.dates_ms
    if step == DAY_MS and dates is not None and dates != read.at_ms:
        local = replace(read, at_ms=array("q", (at - before for at in dates)))
        # The rows are compared too, because a share may be imported under the name of another market.
        rests = hours_of(local) != CONTINUOUS or hours_of(replace(local, market="")) != CONTINUOUS
        if not table.is_behind or rests:
            return replace(local, is_moved=not rests)
    if not before:
        return replace(read, is_moved=table.is_moved)
    late = late_ms(step)
    at_ms = array("q", (at + (-at % step if -at % step <= late else 0) - before for at in read.at_ms))
    return replace(read, at_ms=at_ms, is_moved=table.is_moved)


def _day(at_ms: int) -> str:
    """An instant as text; a number outside the calendar stays a number."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%d}"
    except OverflowError:
        return f"{at_ms} ms from 1970"


def _interval(path: Path, at_ms: array[int], mapped: ColumnMap) -> str:
    wanted = mapped.interval
    about = _about(at_ms)
    if wanted is not None and about == wanted:
        return wanted
    try:
        measured = interval_of(path, at_ms, None if len(at_ms) > 2 else wanted)
    except ConfigError:
        if about is None:
            raise
        raise ConfigError(
            f"{path}: its rows are about {about} apart, but not to the second; read them as {about} with --interval"
            f" {about} --accept-off-grid"
        ) from None
    said = interval_in(path.name)
    if wanted is None and said is None and len(set(at_ms)) < 2:
        raise ConfigError(f"{path}: one candle does not say its interval; say it with --interval, like --interval 1d")
    if wanted is not None and wanted != measured:
        coarser = INTERVAL_MS[wanted] > INTERVAL_MS[measured]
        way = (
            f"import them as {measured}: coarser candles are built from finer ones"
            if coarser
            else "finer candles cannot be made of them"
        )
        raise ConfigError(f"{path}: most of its rows are {measured} apart, not {wanted}; {way}")
    if wanted is None and said is not None and said != measured:
        raise ConfigError(
            f"{path}: its name says {said} candles, but most of its rows are {measured} apart; if they are {measured}, "
            f"say --interval {measured}"
        )
    return measured


def _about(at_ms: array[int]) -> str | None:
    """The interval of rows that are only about regular; None if there is none."""
    stamps = sorted(set(at_ms))
    if len(stamps) < 3:
        return None
    middle = median(map(sub, islice(stamps, 1, None), stamps))
    return next((name for name, ms in INTERVAL_MS.items() if abs(middle - ms) <= ABOUT * ms), None)


# ── Text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _text(path: Path, mapped: ColumnMap, report: Callable[[int], None]) -> _Table:
    at_ms, rows = array("q"), array("q")
    markets: list[str] = []
    layout = layout_of(path, mapped)
    header = layout.header
    places = places_of(path, header, layout.width, mapped)
    market_at = market_place(path, mapped, header, layout.width)
    others = other_time(header, mapped)
    read = {name: [array("d") for _ in places[name]] for name in COLUMNS[1:]}
    wanted = sorted({index for indices in places.values() for index in indices} | {*market_at, *others})
    title = "" if header is None else " ".join(header[index] for index in places["ts"])
    stamps = _Stamps(path, mapped, title)

    def take(block: column_files.Block) -> None:
        by_index = dict(zip(wanted, block.columns, strict=True))
        times = [by_index[index] for index in places["ts"]]
        texts = times[0] if len(times) == 1 else list(map(" ".join, zip(*times, strict=True)))
        names = [name.strip() for index in market_at for name in by_index[index]]
        at_ms.extend(stamps.read(texts, block.rows, names))
        if not rows and header is not None and others:
            _judge_times(path, mapped, {header[index]: by_index[index][0] for index in (*places["ts"], *others)})
        for name in COLUMNS[1:]:
            for values, index in zip(read[name], places[name], strict=True):
                values.extend(_floats(by_index[index], block.rows, path, name, mapped, is_plain=block.plain))
        markets.extend(names)
        rows.extend(block.rows)

    with column_files.opened(path) as stream:
        for _ in range(layout.first_row - 1):
            stream.readline(column_files.LINE_CHARS_MAX)
        for block in column_files.blocks(
            stream, path, width=layout.width, wanted=wanted, delimiter=layout.delimiter, row=layout.first_row
        ):
            try:
                take(block)
            # The error is from one column; another column may have an error in an earlier row.
            except ConfigError:
                for at, row in enumerate(block.rows):
                    take(column_files.Block([[column[at]] for column in block.columns], [row], block.plain))
                raise
            report(len(rows))
    columns: list[array[Any]] = [at_ms]
    for name, values in read.items():
        names = ["" if header is None else header[index] for index in places[name]]
        columns.append(one_of(path, name, names, values) if values else array("d", bytes(8 * len(rows))))
    if header is None and not mapped.columns:
        judge_order(path, layout.first_row, layout.width, columns)
    return _Table(tuple(columns), rows, markets, stamps.dates_ms, stamps.is_behind)


def _judge_times(path: Path, mapped: ColumnMap, texts: Mapping[str, str]) -> None:
    """ConfigError if two columns of the first row, `texts` by name, are different times. A date without an hour "
    "is no other time."""
    instants: dict[str, int] = {}
    for name, text in texts.items():
        with suppress(ConfigError):
            stamps = _Stamps(path, mapped)
            at = stamps.read([text], [1])[0]
            if not stamps.is_date(text.strip()):
                instants[name] = at
    for (first, at), (other, then) in pairwise(instants.items()):
        if at != then:
            raise ConfigError(
                f"{path}: row 1: {first!r} and {other!r} may both be the time, and they differ; say which with "
                f"--columns ts={first} "
                f"or --columns ts={other}"
            )


def _floats(
    texts: Sequence[str], rows: Sequence[int], path: Path, name: str, mapped: ColumnMap, *, is_plain: bool = False
) -> array[float]:
    """A column of numbers. The error for another notation says which option to use."""
    cells = list(texts)
    if mapped.decimal == ",":
        cells = [text.replace(".", " ").replace(",", ".") for text in texts]
    try:
        return column_files.floats(column_files.Block([cells], rows, is_plain), 0, path, name)
    except ConfigError:
        for cell, text, row in zip(cells, texts, rows, strict=True):
            if not column_files.is_number(cell):
                what = f"{path}: row {row}: {name} {text.strip()[:40]!r} is not a number{_way(text.strip(), mapped)}"
                raise ConfigError(what) from None
        raise


def _way(text: str, mapped: ColumnMap) -> str:
    if _SHORT.fullmatch(text):
        return "; write it in full, like 45200 for 45.2K, or leave it out if it is the volume: --columns volume=none"
    if not text or text.lower() in ("null", "none", "n/a", "na", "-", "--"):
        return "; cut the rows out that have no price"
    if re.fullmatch(r"[$€£¥] ?[0-9.,]+", text):
        return f"; take the sign {text[0]} out"
    is_comma = mapped.decimal == "." and _COMMA.fullmatch(text) is not None
    if _THOUSANDS.fullmatch(text):
        return "; take the signs between thousands out" + (
            ", or say --decimal , when the comma is its decimal point" if is_comma else ""
        )
    return "; when the comma is its decimal point, say --decimal ," if is_comma else ""


class _Stamps:
    """Convert the times of rows to milliseconds UTC. A file has one unit: a row with another unit is an error."""

    def __init__(self, path: Path, mapped: ColumnMap, title: str = "") -> None:
        """`title` is the header of the time column, to recognize a repeated header among the rows."""
        self._path = path
        self._unit = mapped.unit
        self._title = title.lower()
        self._zone = _Zone(path, mapped.tz)
        self._has_dates: bool | None = None
        # None: some time is not a midnight of its own clock
        self.dates_ms: array[int] | None = array("q")
        # True: some midnight was that of a zone behind UTC
        self.is_behind = False

    def read(self, texts: Sequence[str], rows: Sequence[int], markets: Sequence[str] = ()) -> array[int]:
        """Convert times. `markets` has the market of each row if the file has several."""
        if (self._unit == "auto" or self._unit in _PER_MS) and _EXPONENT.fullmatch(texts[0].strip()):
            texts = [self._in_full(text.strip(), row) for text, row in zip(texts, rows, strict=True)]
        if self._unit == "auto":
            text = texts[0].strip()
            if _STAMP.fullmatch(text) and not re.fullmatch(r"(19|20)[0-9]{6}", text):
                self._refuse_two_readings(text, rows[0])
                self._unit = unit_of(int(float(text)))
            else:
                self._unit = "iso" if not re.fullmatch(r"[0-9]{4}\.[0-9]{2}\.[0-9]{2}.*", text) else "dotted"
        if self._unit in _PER_MS:
            return self._dated(instants := self._numbers(texts, rows), instants)
        parse = self._parser()
        moments: list[datetime] = []
        for text, row in zip(texts, rows, strict=True):
            try:
                moments.append(parse(text.strip()))
            except ValueError:
                self._refuse_title(text, row)
                raise ConfigError(
                    f"{self._path}: row {row}: {text.strip()[:40]!r} is no time {self._wish(text.strip())}"
                ) from None
        names = markets or [""] * len(moments)
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
        if self._unit in _PER_MS:
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
            raise ConfigError(
                f"{self._path}: row {row}: time {text[:40]} may be a date written without signs, or "
                f"{_UNIT_NAMES[unit]} from 1970; "
                f"say which with --unit '{form}' or --unit {unit}"
            )

    def _refuse_title(self, text: str, row: int) -> None:
        if self._title and text.strip().lower() == self._title:
            raise ConfigError(f"{self._path}: row {row}: is the header again; cut it out") from None

    def _parser(self) -> Callable[[str], datetime]:
        if self._unit == "iso":
            return lambda text: datetime.fromisoformat(_ZULU.sub("Z", text))
        if self._unit == "dotted":
            return lambda text: datetime.fromisoformat(text[:10].replace(".", "-") + _ZULU.sub("Z", text[10:]))
        form = self._unit
        return lambda text: datetime.strptime(text, form)  # noqa: DTZ007 - its zone is the file's

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


_UNIT_NAMES: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


class _Zone:
    """Converts local times of a time zone to UTC. In the hour that is repeated in autumn, the order of each market's
    rows decides; an hour that is skipped in spring is an error.
    """

    def __init__(self, path: Path, tz: str) -> None:
        self._path = path
        self._tz = tz
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
                f"{self._path}: row {row}: {wall} does not exist in {self._tz}: the clocks go forward there; is it the"
                " right --tz?"
            )
        return first // timedelta(milliseconds=1), second // timedelta(milliseconds=1)


# ── Parquet ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parquet(path: Path, mapped: ColumnMap) -> _Table:
    frame = column_files.scan_parquet(path)
    schema = frame.collect_schema()
    header = list(schema.names())
    places = places_of(path, _with_index(schema, mapped), len(header), mapped)
    if len(places["ts"]) != 1:
        raise ConfigError(f"{path}: a Parquet file's time is one column")
    table = column_files.collected(frame, path)
    if not len(table):
        raise ConfigError(f"{path}: has no candles")
    rows = array("q", range(1, len(table) + 1))
    at = market_place(path, mapped, header, len(header))
    markets = [str(value).strip() for index in at for value in table.get_column(header[index])]
    times = table.get_column(header[places["ts"][0]])
    stamps = _Stamps(path, mapped)
    columns: list[array[Any]] = [_parquet_times(path, times, stamps, rows, markets)]
    for name in COLUMNS[1:]:
        names = [header[index] for index in places[name]]
        values = [_parquet_numbers(path, name, table.get_column(each), mapped, rows) for each in names]
        columns.append(one_of(path, name, names, values) if values else array("d", bytes(8 * len(table))))
    return _Table(tuple(columns), rows, markets, stamps.dates_ms, stamps.is_behind)


def _with_index(schema: Any, mapped: ColumnMap) -> list[str]:
    """The names of the columns.

    An unnamed index of pandas is the time if it has times and no other column is the time.
    """
    names = list(schema.names())
    if "ts" in mapped.columns or any(name.lower() in ALIASES["ts"] for name in names):
        return names
    return ["ts" if name.startswith(PANDAS_INDEX) and schema[name].is_temporal() else name for name in names]


def _parquet_numbers(path: Path, name: str, series: Any, mapped: ColumnMap, rows: Sequence[int]) -> array[float]:
    pl = column_files.research()
    if series.dtype.is_numeric():
        return column_files.column_of(pl.DataFrame({name: series}), name, "d")
    if _is_text(series):
        return _floats([text or "" for text in series.cast(pl.String)], rows, path, name, mapped)
    none = "; say --columns volume=none when there is none" if name == "volume" else ""
    raise ConfigError(f"{path}: column {series.name!r} holds {series.dtype}, not numbers{none}")


def _is_text(series: Any) -> bool:
    pl = column_files.research()
    return series.dtype in (pl.String, pl.Categorical, pl.Enum)


def _parquet_times(path: Path, series: Any, stamps: _Stamps, rows: Sequence[int], markets: Sequence[str]) -> array[int]:
    pl = column_files.research()
    if series.dtype.is_float():
        series = series.fill_nan(None)
    if series.null_count():
        raise ConfigError(f"{path}: row {int(series.is_null().arg_max()) + 1}: the time is empty")
    is_date = series.dtype == pl.Date
    if is_date or series.dtype == pl.Datetime:
        zone = getattr(series.dtype, "time_zone", None)
        series = series.cast(pl.Datetime("ms", zone))
        clocks = series if zone is None else series.dt.replace_time_zone(None)
        walls, instants = (
            column_files.column_of(pl.DataFrame({"ts": column.dt.epoch("ms")}), "ts", "q")
            for column in (clocks, series)
        )
        # A date is a UTC day, as in text files.
        is_instant = zone is not None or is_date
        return stamps.of_clock(walls, instants if is_instant else None, rows, markets)
    if series.dtype.is_float():
        return stamps.read([f"{value:f}" for value in series], rows, markets)
    if not (series.dtype.is_integer() or _is_text(series)):
        raise ConfigError(f"{path}: column {series.name!r} holds {series.dtype}, which is no time")
    return stamps.read([str(value) for value in series], rows, markets)


def ordered(candles: Candles) -> Candles:
    """Reverse candles that are newest first. All others stay as they are."""
    at_ms = candles.at_ms
    if len(at_ms) < 2 or any(a <= b for a, b in pairwise(at_ms)):
        return candles
    return candles.pick(range(len(at_ms) - 1, -1, -1))


def closed(candles: Candles, now_ms: int) -> Candles:
    """Remove the candles that are not closed at `now_ms`, by the source's own times: their values will change. "
    "Candles of the future stay."""
    step = candles.step_ms
    kept = [index for index, at in enumerate(candles.at_ms) if not at <= now_ms < at + step]
    return candles if len(kept) == len(candles) else candles.pick(kept)

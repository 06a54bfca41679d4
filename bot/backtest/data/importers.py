"""Read candle files of other programs: their column names, delimiters, time zones and units, samples of a price, many
markets in one file. An error names the row; nothing is repaired silently.

forms.py has the forms that are known, table_reader.py opens the files, row_clocks.py and number_forms.py read cells.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, islice, pairwise
from operator import ge, sub
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from bot.backtest.data import column_files, table_reader
from bot.backtest.data.candle_stream import CandleStream, NeedsWholeFileError
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
    market_of,
)
from bot.backtest.data.forms import Form, form_of
from bot.backtest.data.gaps import CONTINUOUS, hours_of
from bot.backtest.data.number_forms import NumberStyle
from bot.backtest.data.row_clocks import RowTimes
from bot.backtest.data.table_layout import (
    ALIASES,
    NO_COLUMN,
    Layout,
    TwoReadings,
    judge_names,
    judge_order,
    layout_of,
    market_place,
    one_of,
    other_time,
    places_of,
)
from bot.backtest.data.table_layout import ColumnMap as ColumnMap
from bot.backtest.data.table_layout import columns_of as columns_of
from bot.clock import DAY_MS
from bot.errors import ConfigError
from bot.service.market_data.file_names import NamesNoMarket
from bot.wire.vocabulary import INTERVAL_MS

# markets in one file; a column with more different values is not a column of markets
MARKETS_MAX: Final = 10_000
# tolerated deviation of samples from their interval, as a share of it
ABOUT: Final = 0.1
# the share of a file's rows in two runs of one interval each, from which on the file is two files in one
RUNS_SHARE: Final = 0.9
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock's reading, of whatever zone
# the name that pandas gives to an index without a name in Parquet
PANDAS_INDEX: Final = "__index_level_"


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
    form: str = ""

    def plus(self, more: _Table) -> _Table:
        """These rows and those of `more`."""
        columns = tuple(a + b for a, b in zip(self.columns, more.columns, strict=True))
        return replace(more, columns=columns, rows=self.rows + more.rows)

    def between(self, first: int, last: int) -> _Table:
        """The rows from `first` to before `last`."""
        return replace(self, columns=tuple(c[first:last] for c in self.columns), rows=self.rows[first:last])

    def pick(self, indices: Sequence[int]) -> _Table:
        """The rows at `indices`."""
        dates = None if self.dates_ms is None else array("q", [self.dates_ms[index] for index in indices])
        columns = tuple(array(column.typecode, [column[index] for index in indices]) for column in self.columns)
        return _Table(columns, array("q", [self.rows[index] for index in indices]), [], dates, self.is_behind)


class TableRead(NamedTuple):
    """The candles of one file: of each of its markets, in the file's order. `form` is what the file was read as."""

    form: str
    candles: list[Candles]
    # in place of them the candles of a file that is too large for the memory
    stream: CandleStream | None = None


def read_table(
    path: Path,
    market: str | None,
    mapped: ColumnMap,
    report: Callable[[int], None] = lambda _rows: None,
    *,
    is_given: bool = False,
    rows_max: int | None = None,
) -> TableRead:
    """Read the candles of a file; `market` is None if each row names its own.

    With `is_given` the market was said, so that rows of several markets are an error. A file of one market with more
    rows than `rows_max` is a `stream`. `report` is called with the number of rows read. ConfigError with file and row
    for wrong data; TwoReadings with the options that decide.
    """
    kind = table_reader.arrow_kind(path)
    tables = _tables(path, kind, mapped, rows_max, report)
    table, second = next(tables), next(tables, None)
    tables.close()
    form = table.form if kind is None else f"{kind.capitalize()}, {table.form}"
    if second is not None:
        if table.dates_ms is not None:
            raise NeedsWholeFileError
        name = market or market_of(path, None)
        first = next(_portions(path, name, mapped, iter([table, second])))
        # The file is read again when its candles pass: until then nothing of it is held.
        again = _portions(path, name, mapped, _tables(path, kind, mapped, rows_max, report))
        return TableRead(form, [], CandleStream(name, first.interval, again))
    names = dict.fromkeys(table.markets)
    if mapped.market is not None:
        return TableRead(form, _by_market(path, mapped, table, mapped.market))
    if len(names) > 1 and is_given:
        other = next(at for at, name in enumerate(table.markets) if name != table.markets[0])
        raise ConfigError(
            f"{path}: row {table.rows[other]}: is of {table.markets[other]!r}, and the rows before it of"
            f" {table.markets[0]!r}: leave {market}= out, since each row names its market"
        )
    if names and (market is None or len(names) > 1):
        return TableRead(form, _by_market(path, mapped, table, None))
    return TableRead(form, [_candles(path, market or market_of(path, None), mapped, table)])


def _tables(
    path: Path, kind: str | None, mapped: ColumnMap, rows_max: int | None, report: Callable[[int], None]
) -> Generator[_Table]:
    """The table of a file in portions of about `rows_max` rows. Nothing is read before the first one is taken."""
    if kind is None:
        yield from _TextRows(path, mapped).tables(rows_max, report)
    else:
        yield from _arrow(path, kind, mapped, rows_max)


def _portions(path: Path, market: str, mapped: ColumnMap, tables: Iterator[_Table]) -> Iterator[Candles]:
    """The candles of each portion of a table. NeedsWholeFileError if its rows are not in the order of time, or of
    several intervals.
    """
    rest: _Table | None = None
    step, given = 0, mapped
    following = next(tables, None)
    while (table := following) is not None:
        following = next(tables, None)
        table = replace(table if rest is None else rest.plus(table), dates_ms=None)
        at_ms = table.columns[0]
        if any(map(ge, at_ms, islice(at_ms, 1, None))):
            raise NeedsWholeFileError
        is_first, step = not step, step or _step_of(at_ms)
        if len(at_ms) > 2 and _step_of(at_ms) != step:
            raise NeedsWholeFileError
        rest = None
        if following is not None and _is_joined(step, given):
            starts = _group_starts(at_ms, step, given)
            cut = bisect_left(starts, starts[-1])
            rest, table = table.between(cut, len(at_ms)), table.between(0, cut)
        try:
            read = _candles(path, market, mapped, table, is_first=is_first, is_last=following is None)
        except ConfigError:
            if is_first:
                raise
            raise NeedsWholeFileError from None
        mapped = replace(given, interval=read.interval)
        yield read


def read_foreign(
    path: Path, market: str, mapped: ColumnMap, report: Callable[[int], None] = lambda _rows: None
) -> Candles:
    """Read the candles of a file of one market, in its order."""
    return read_table(path, market, mapped, report).candles[0]


def read_markets(path: Path, mapped: ColumnMap, report: Callable[[int], None] = lambda _rows: None) -> list[Candles]:
    """Read the candles of every market in a file, by `mapped.market`. Each market keeps the file's order."""
    return read_table(path, None, mapped, report).candles


def _by_market(path: Path, mapped: ColumnMap, table: _Table, pattern: str | None) -> list[Candles]:
    """The candles of each market that the rows name: by a pattern like `event:{id}`, or by an exchange's symbol."""
    rows = table.rows
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(table.markets):
        indices.setdefault(name, []).append(index)
        if len(indices) > MARKETS_MAX:
            raise ConfigError(
                f"{path}: the column of markets has more than {MARKETS_MAX:,} names; those are no markets"
            )
    by_market: dict[str, Candles] = {}
    for name, mine in indices.items():
        try:
            market = _market_of_symbol(name) if pattern is None else market_name(_filled(pattern, name), listed=False)
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


def _filled(pattern: str, name: str) -> str:
    return re.sub(r"\{[^{}]*\}", lambda _: name, pattern)


def _market_of_symbol(name: str) -> str:
    """The market of an exchange's symbol: BTC-USDT is BTC. A symbol that names no known market is a market itself."""
    try:
        return market_of(Path(name.replace("/", "-")), None)
    except NamesNoMarket:
        return market_name(name, listed=False)


def _candles(
    path: Path, market: str, mapped: ColumnMap, table: _Table, *, is_first: bool = True, is_last: bool = True
) -> Candles:
    """The candles of a table, or of the first, the last or another portion of one."""
    table = _joined(path, table, mapped, is_first=is_first, is_last=is_last)
    rows, at_ms = table.rows, table.columns[0]
    if not at_ms:
        raise ConfigError(f"{path}: has no candles")
    if not MS_MIN <= min(at_ms) <= max(at_ms) < MS_MAX:
        at, row = next((at, row) for at, row in zip(at_ms, rows, strict=True) if not MS_MIN <= at < MS_MAX)
        raise ConfigError(
            f"{path}: row {row}: its time is {_day(at)}, and candles are taken from 1973-03-04 to the year 5138 alone; "
            "cut other rows out, or say with --unit how the times are written"
        )
    interval = _interval(path, at_ms, mapped)
    _judge_runs(path, at_ms, rows, mapped)
    _, opens, highs, lows, closes, volumes = table.columns
    parts = (CandlesPart(path, 0, rows[0], rows),)
    read = Candles(
        market, interval, at_ms, opens, highs, lows, closes, volumes, parts, are_samples=mapped.is_of_samples
    )
    return _at_opens(read, table, mapped)


def _step_of(at_ms: Sequence[int]) -> int:
    """The most frequent distance of rows in the order of time; 0 if there is none."""
    apart = Counter(b - a for a, b in pairwise(at_ms) if b > a)
    return -max(((count, -gap) for gap, count in apart.items()), default=(0, 0))[1]


def _is_joined(step: int, mapped: ColumnMap) -> bool:
    """True if rows `step` apart become candles of --interval: their interval is not known, and fits into it."""
    target = INTERVAL_MS.get(mapped.interval or "", 0)
    return not mapped.is_of_samples and 0 < step < target and step not in NAMES and target % step == 0


def _group_starts(at_ms: Sequence[int], step: int, mapped: ColumnMap) -> list[int]:
    """The start of the candle of --interval to which each row belongs: that in which it ends."""
    target, back = INTERVAL_MS[mapped.interval or ""], step if mapped.stamp == "close" else 0
    return [(at - back + step - 1) // target * target for at in at_ms]


def _joined(path: Path, table: _Table, mapped: ColumnMap, *, is_first: bool, is_last: bool) -> _Table:
    """The rows joined to candles of --interval, if `_is_joined`. A candle without its first or last row is left out at
    the beginning and at the end of the file.
    """
    at_ms, target = table.columns[0], INTERVAL_MS.get(mapped.interval or "", 0)
    order = sorted(range(len(at_ms)), key=at_ms.__getitem__)
    step = _step_of([at_ms[index] for index in order])
    if not _is_joined(step, mapped):
        return table
    opens = [at_ms[index] - (step if mapped.stamp == "close" else 0) for index in order]
    starts = _group_starts([at_ms[index] for index in order], step, mapped)
    groups = [list(group) for _, group in groupby(range(len(order)), key=starts.__getitem__)]
    if is_first and opens[groups[0][0]] > starts[0]:
        groups.pop(0)
    if is_last and groups and opens[groups[-1][-1]] + step < starts[groups[-1][0]] + target:
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


def _judge_runs(path: Path, at_ms: array[int], rows: Sequence[int], mapped: ColumnMap) -> None:
    """ConfigError if a file begins with rows of one interval and ends with those of another: it is two files in one."""
    apart = [abs(b - a) for a, b in pairwise(at_ms)]
    if len(apart) < 4 or mapped.interval is not None or apart[0] == apart[-1]:
        return
    head = next((index for index, step in enumerate(apart) if step != apart[0]), len(apart))
    tail = next((index for index, step in enumerate(reversed(apart)) if step != apart[-1]), len(apart))
    first, last = NAMES.get(apart[0]), NAMES.get(apart[-1])
    if first and last and min(head, tail) > 1 and head + tail >= RUNS_SHARE * len(apart):
        raise ConfigError(
            f"{path}: row {rows[len(apart) - tail]}: the rows from there on are {last} apart, and those before it"
            f" {first}: put each interval into a file of its own; if some candles are missing, say --interval"
            f" {min(first, last, key=INTERVAL_MS.__getitem__)}"
        )


def _about(at_ms: array[int]) -> str | None:
    """The interval of rows that are only about regular; None if there is none."""
    stamps = sorted(set(at_ms))
    if len(stamps) < 3:
        return None
    middle = median(map(sub, islice(stamps, 1, None), stamps))
    return next((name for name, ms in INTERVAL_MS.items() if abs(middle - ms) <= ABOUT * ms), None)


# ── Text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _TextRows:
    """The rows of a text table, read once from its start."""

    def __init__(self, path: Path, mapped: ColumnMap) -> None:
        self._path = path
        self._layout = layout = layout_of(path, mapped)
        self._mapped = mapped = _by_form(mapped, layout.form)
        header = layout.header
        self._places = places_of(path, header, layout.width, mapped)
        self._market_at = market_place(path, mapped, header, layout.width, layout.form)
        self._others = other_time(header, mapped)
        self._figures = sorted({index for name in COLUMNS[1:] for index in self._places[name]})
        self._wanted = sorted({*self._figures, *self._places["ts"], *self._market_at, *self._others})
        title = "" if header is None else " ".join(header[index] for index in self._places["ts"])
        self._stamps = RowTimes(path, mapped, title, lambda: _times(path, layout, self._places["ts"]))
        self._style = NumberStyle(path, mapped)
        _judge_clock(path, layout, self._places["ts"], mapped)
        self._clear()

    def _clear(self) -> None:
        self._at_ms, self._rows = array("q"), array("q")
        self._names: list[str] = []
        self._read = {name: [array("d") for _ in self._places[name]] for name in COLUMNS[1:]}
        self._stamps.begin_portion()

    def tables(self, rows_max: int | None, report: Callable[[int], None]) -> Iterator[_Table]:
        """The table in portions of about `rows_max` rows; None, and where all rows decide about one, as a whole."""
        if self._market_at or any(len(indices) > 1 for name, indices in self._places.items() if name != "ts"):
            rows_max = None
        count = 0
        for block in _blocks(self._path, self._layout, self._wanted):
            try:
                self._take(block, is_first=not count)
            except TwoReadings:
                raise
            # The error is from one column; another column may have an error in an earlier row.
            except ConfigError:
                for at, row in enumerate(block.rows):
                    cells = [[column[at]] for column in block.columns]
                    self._take(column_files.Block(cells, [row], block.plain), is_first=not count)
                raise
            count += len(block.rows)
            report(count)
            if rows_max is not None and len(self._rows) >= rows_max:
                yield self._table(is_first=count == len(self._rows))
                self._clear()
        if self._rows or not count:
            yield self._table(is_first=count == len(self._rows))

    def _take(self, block: column_files.Block, *, is_first: bool) -> None:
        header, places = self._layout.header, self._places
        by_index = dict(zip(self._wanted, block.columns, strict=True))
        texts = _joined_cells([by_index[index] for index in places["ts"]])
        names = [name.strip() for index in self._market_at for name in by_index[index]]
        self._at_ms.extend(self._stamps.read(texts, block.rows, names))
        if is_first and header is not None and self._others:
            first = {header[index]: by_index[index][0] for index in (*places["ts"], *self._others)}
            _judge_times(self._path, self._mapped, first)
        if self._layout.delimiter != "," or not block.plain:
            is_by_semicolons = self._layout.delimiter == ";"
            figures = [by_index[index] for index in self._figures]
            self._style.look(figures, block.rows, is_by_semicolons=is_by_semicolons)
        for name in COLUMNS[1:]:
            for values, index in zip(self._read[name], places[name], strict=True):
                values.extend(self._style.values(by_index[index], block.rows, name, is_plain=block.plain))
        self._names.extend(names)
        self._rows.extend(block.rows)

    def _table(self, *, is_first: bool) -> _Table:
        layout, mapped, places = self._layout, self._mapped, self._places
        header = layout.header
        columns: list[array[Any]] = [self._at_ms]
        for name, values in self._read.items():
            names = ["" if header is None else header[index] for index in places[name]]
            columns.append(
                one_of(self._path, name, names, values) if values else array("d", bytes(8 * len(self._rows)))
            )
        numbers = ["+".join(str(index + 1) for index in places[name]) or NO_COLUMN for name in COLUMNS]
        if is_first and header is None and mapped.columns == layout.form.columns:
            judge_order(self._path, layout.first_row, layout.width, columns, numbers)
        elif is_first and header is not None:
            _judge_names(self._path, mapped, header, places, columns, self._names)
        stamps = self._stamps
        return _Table(tuple(columns), self._rows, self._names, stamps.dates_ms, stamps.is_behind, form=layout.form.name)


def _judge_names(
    path: Path,
    mapped: ColumnMap,
    header: Sequence[str],
    places: Mapping[str, Sequence[int]],
    columns: Sequence[array[Any]],
    markets: Sequence[str],
) -> None:
    if len(set(markets)) < 2 and not mapped.is_of_samples and not mapped.names_prices:
        judge_names(path, columns, [header[indices[0]] if indices else NO_COLUMN for indices in places.values()])


def _by_form(mapped: ColumnMap, form: Form) -> ColumnMap:
    """What a form knows of its files, beside what the options say."""
    columns = mapped.columns if mapped.is_of_samples else {**form.columns, **mapped.columns}
    return replace(mapped, columns=columns, may_be_fixed=form.may_be_fixed)


def _joined_cells(columns: Sequence[Sequence[str]]) -> Sequence[str]:
    return columns[0] if len(columns) == 1 else list(map(" ".join, zip(*columns, strict=True)))


def _blocks(path: Path, layout: Layout, wanted: Sequence[int]) -> Iterator[column_files.Block]:
    """The columns `wanted` of a text table, in blocks."""
    with table_reader.opened_table(path) as stream:
        for _ in range(layout.first_row - 1):
            stream.readline(column_files.LINE_CHARS_MAX)
        yield from column_files.blocks(
            stream, path, width=layout.width, wanted=wanted, delimiter=layout.delimiter, row=layout.first_row
        )


def _times(path: Path, layout: Layout, places: Sequence[int]) -> Iterator[Sequence[str]]:
    """The times of the whole file as text, in blocks."""
    for block in _blocks(path, layout, list(places)):
        yield _joined_cells(block.columns)


def _judge_clock(path: Path, layout: Layout, places: Sequence[int], mapped: ColumnMap) -> None:
    """TwoReadings if a form writes the hours of a clock that the file does not name, and no option does."""
    clock = layout.form.clock
    texts = [layout.cells[index] for index in places if index < len(layout.cells)]
    if clock is None or mapped.tz != "UTC" or len(texts) < 2 or not texts[1].strip("0:"):
        return
    raise TwoReadings(
        f"{path}: row {layout.first_row}: the hours of {layout.form.name} are those of a clock that the file does not"
        f" name; say it with --tz {clock}, the clock of its site, or --tz Etc/UTC",
        {f"--tz {zone}": {"tz": zone} for zone in (clock, "Etc/UTC")},
    )


def _judge_times(path: Path, mapped: ColumnMap, texts: Mapping[str, str]) -> None:
    """ConfigError if two columns of the first row, `texts` by name, are different times.

    A date without an hour does not differ from a time.
    """
    instants: dict[str, int] = {}
    for name, text in texts.items():
        with suppress(ConfigError):
            stamps = RowTimes(path, mapped)
            at = stamps.read([text], [1])[0]
            if not stamps.is_date(text.strip()):
                instants[name] = at
    for (first, at), (other, then) in pairwise(instants.items()):
        if at != then:
            raise TwoReadings(
                f"{path}: row 1: {first!r} and {other!r} may both be the time, and they differ; say which with "
                f"--columns ts={first} or --columns ts={other}",
                {f"--columns ts={name}": {"columns": {"ts": name}} for name in (first, other)},
            )


# ── Parquet and Feather ─────────────────────────────────────────────────────────────────────────────────────────────


def _arrow(path: Path, kind: str, mapped: ColumnMap, rows_max: int | None) -> Iterator[_Table]:
    """The table in portions of `rows_max` rows; None, and where all rows decide about one, as a whole."""
    pl = column_files.research(kind.capitalize())
    frame = column_files.scan_parquet(path, kind)
    schema = frame.collect_schema()
    header = list(schema.names())
    form = form_of(path.name, header, ())
    mapped = _by_form(mapped, form)
    places = places_of(path, _with_index(schema, mapped), len(header), mapped)
    if len(places["ts"]) != 1:
        raise ConfigError(f"{path}: a {kind.capitalize()} file's time is one column")
    at = market_place(path, mapped, header, len(header), form)
    wanted = [header[index] for index in sorted({*at, *(index for indices in places.values() for index in indices)})]
    count = int(column_files.collected(frame.select(pl.len()), path).item())
    if not count:
        raise ConfigError(f"{path}: has no candles")
    is_whole = rows_max is None or at or any(len(indices) > 1 for indices in places.values())
    step = count if is_whole or rows_max is None else rows_max
    time = header[places["ts"][0]]
    stamps = RowTimes(path, mapped, column=lambda: [_texts(column_files.collected(frame.select(time), path)[time])])
    style = NumberStyle(path, mapped)
    for start in range(0, count, step):
        table = column_files.collected(frame.select(wanted).slice(start, step), path)
        rows = array("q", range(start + 1, start + len(table) + 1))
        markets = [str(value).strip() for index in at for value in table.get_column(header[index])]
        numbers = {name: [table.get_column(header[index]) for index in places[name]] for name in COLUMNS[1:]}
        style.look([_texts(series) for each in numbers.values() for series in each if _is_text(series)], rows)
        stamps.begin_portion()
        columns: list[array[Any]] = [_arrow_times(path, table.get_column(time), stamps, rows, markets)]
        for name, each in numbers.items():
            values = [_arrow_numbers(path, name, series, style, rows) for series in each]
            names = [series.name for series in each]
            columns.append(one_of(path, name, names, values) if values else array("d", bytes(8 * len(table))))
        if not start:
            _judge_names(path, mapped, header, places, columns, markets)
        yield _Table(tuple(columns), rows, markets, stamps.dates_ms, stamps.is_behind, form=form.name)


def _with_index(schema: Any, mapped: ColumnMap) -> list[str]:
    """The names of the columns.

    An unnamed index of pandas is the time if it has times and no other column is the time.
    """
    names = list(schema.names())
    if "ts" in mapped.columns or any(name.lower() in ALIASES["ts"] for name in names):
        return names
    return ["ts" if name.startswith(PANDAS_INDEX) and schema[name].is_temporal() else name for name in names]


def _arrow_numbers(path: Path, name: str, series: Any, style: NumberStyle, rows: Sequence[int]) -> array[float]:
    pl = column_files.research()
    if series.dtype.is_numeric():
        return column_files.column_of(pl.DataFrame({name: series}), name, "d")
    if _is_text(series):
        return style.values(_texts(series), rows, name)
    none = "; say --columns volume=none when there is none" if name == "volume" else ""
    raise ConfigError(f"{path}: column {series.name!r} holds {series.dtype}, not numbers{none}")


def _texts(series: Any) -> list[str]:
    return [text or "" for text in series.cast(column_files.research().String)]


def _is_text(series: Any) -> bool:
    pl = column_files.research()
    return series.dtype in (pl.String, pl.Categorical, pl.Enum)


def _arrow_times(path: Path, series: Any, stamps: RowTimes, rows: Sequence[int], markets: Sequence[str]) -> array[int]:
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
    """Remove the candles that are not closed at `now_ms`, by the source's own times: their values will change.

    Candles of the future stay.
    """
    step = candles.step_ms
    kept = [index for index, at in enumerate(candles.at_ms) if not at <= now_ms < at + step]
    return candles if len(kept) == len(candles) else candles.pick(kept)

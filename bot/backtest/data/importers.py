"""Read candle files of other programs: their column names, delimiters, time zones and units, samples of a price, many
markets in one file. An error names the row; nothing is repaired silently.

forms.py has the forms that are known, table_reader.py opens the files, row_clocks.py and number_forms.py read cells.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, islice, pairwise
from operator import sub
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from bot.backtest.data import column_files, table_reader
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

    def pick(self, indices: Sequence[int]) -> _Table:
        """The rows at `indices`."""
        dates = None if self.dates_ms is None else array("q", [self.dates_ms[index] for index in indices])
        columns = tuple(array(column.typecode, [column[index] for index in indices]) for column in self.columns)
        return _Table(columns, array("q", [self.rows[index] for index in indices]), [], dates, self.is_behind)


class TableRead(NamedTuple):
    """The candles of one file: of each of its markets, in the file's order. `form` is what the file was read as."""

    form: str
    rows: int
    candles: list[Candles]


def read_table(
    path: Path,
    market: str | None,
    mapped: ColumnMap,
    report: Callable[[int], None] = lambda _rows: None,
    *,
    is_given: bool = False,
) -> TableRead:
    """Read the candles of a file; `market` is None if each row names its own.

    With `is_given` the market was said, so that rows of several markets are an error. `report` is called with the
    number of rows read. ConfigError with file and row for wrong data; TwoReadings with the options that decide.
    """
    kind = table_reader.arrow_kind(path)
    table = _text(path, mapped, report) if kind is None else _arrow(path, kind, mapped)
    form = table.form if kind is None else f"{kind.capitalize()}, {table.form}"
    names = dict.fromkeys(table.markets)
    if mapped.market is not None:
        return TableRead(form, len(table.rows), _by_market(path, mapped, table, mapped.market))
    if len(names) > 1 and is_given:
        other = next(at for at, name in enumerate(table.markets) if name != table.markets[0])
        raise ConfigError(
            f"{path}: row {table.rows[other]}: is of {table.markets[other]!r}, and the rows before it of"
            f" {table.markets[0]!r}: leave {market}= out, since each row names its market"
        )
    if names and (market is None or len(names) > 1):
        return TableRead(form, len(table.rows), _by_market(path, mapped, table, None))
    return TableRead(form, len(table.rows), [_candles(path, market or market_of(path, None), mapped, table)])


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


def _candles(path: Path, market: str, mapped: ColumnMap, table: _Table) -> Candles:
    table = _joined(path, table, mapped)
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


def _text(path: Path, mapped: ColumnMap, report: Callable[[int], None]) -> _Table:
    at_ms, rows = array("q"), array("q")
    markets: list[str] = []
    layout = layout_of(path, mapped)
    header, mapped = layout.header, _by_form(mapped, layout.form)
    places = places_of(path, header, layout.width, mapped)
    market_at = market_place(path, mapped, header, layout.width, layout.form)
    others = other_time(header, mapped)
    read = {name: [array("d") for _ in places[name]] for name in COLUMNS[1:]}
    figures = sorted({index for name in COLUMNS[1:] for index in places[name]})
    wanted = sorted({*figures, *places["ts"], *market_at, *others})
    title = "" if header is None else " ".join(header[index] for index in places["ts"])
    stamps = RowTimes(path, mapped, title, lambda: _times(path, layout, places["ts"]))
    style = NumberStyle(path, mapped)
    _judge_clock(path, layout, places["ts"], mapped)

    def take(block: column_files.Block) -> None:
        by_index = dict(zip(wanted, block.columns, strict=True))
        texts = _joined_cells([by_index[index] for index in places["ts"]])
        names = [name.strip() for index in market_at for name in by_index[index]]
        at_ms.extend(stamps.read(texts, block.rows, names))
        if not rows and header is not None and others:
            _judge_times(path, mapped, {header[index]: by_index[index][0] for index in (*places["ts"], *others)})
        if layout.delimiter != "," or not block.plain:
            style.look([by_index[index] for index in figures], block.rows)
        for name in COLUMNS[1:]:
            for values, index in zip(read[name], places[name], strict=True):
                values.extend(style.values(by_index[index], block.rows, name, is_plain=block.plain))
        markets.extend(names)
        rows.extend(block.rows)

    for block in _blocks(path, layout, wanted):
        try:
            take(block)
        except TwoReadings:
            raise
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
    numbers = ["+".join(str(index + 1) for index in places[name]) or NO_COLUMN for name in COLUMNS]
    if header is None and mapped.columns == layout.form.columns:
        judge_order(path, layout.first_row, layout.width, columns, numbers)
    elif header is not None and len(set(markets)) < 2 and not mapped.is_of_samples and not mapped.names_prices:
        judge_names(path, columns, [header[indices[0]] if indices else NO_COLUMN for indices in places.values()])
    return _Table(tuple(columns), rows, markets, stamps.dates_ms, stamps.is_behind, form=layout.form.name)


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
    """ConfigError if two columns of the first row, `texts` by name, are different times. A date without an hour "
    "is no other time."""
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


def _arrow(path: Path, kind: str, mapped: ColumnMap) -> _Table:
    frame = column_files.scan_parquet(path, kind)
    schema = frame.collect_schema()
    header = list(schema.names())
    form = form_of(path.name, header, ())
    mapped = _by_form(mapped, form)
    places = places_of(path, _with_index(schema, mapped), len(header), mapped)
    if len(places["ts"]) != 1:
        raise ConfigError(f"{path}: a {kind.capitalize()} file's time is one column")
    at = market_place(path, mapped, header, len(header), form)
    wanted = sorted({*at, *(index for indices in places.values() for index in indices)})
    table = column_files.collected(frame.select([header[index] for index in wanted]), path)
    if not len(table):
        raise ConfigError(f"{path}: has no candles")
    rows = array("q", range(1, len(table) + 1))
    markets = [str(value).strip() for index in at for value in table.get_column(header[index])]
    times = table.get_column(header[places["ts"][0]])
    stamps = RowTimes(path, mapped, column=lambda: [[str(value) for value in times]])
    style = NumberStyle(path, mapped)
    numbers = {name: [table.get_column(header[index]) for index in places[name]] for name in COLUMNS[1:]}
    texts = [_texts(series) for each in numbers.values() for series in each if _is_text(series)]
    style.look(texts, rows)
    columns: list[array[Any]] = [_arrow_clocks(path, times, stamps, rows, markets)]
    for name, each in numbers.items():
        values = [_arrow_numbers(path, name, series, style, rows) for series in each]
        names = [series.name for series in each]
        columns.append(one_of(path, name, names, values) if values else array("d", bytes(8 * len(table))))
    if len(set(markets)) < 2 and not mapped.is_of_samples and not mapped.names_prices:
        judge_names(path, columns, [header[indices[0]] if indices else NO_COLUMN for indices in places.values()])
    return _Table(tuple(columns), rows, markets, stamps.dates_ms, stamps.is_behind, form=form.name)


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


def _arrow_clocks(path: Path, series: Any, stamps: RowTimes, rows: Sequence[int], markets: Sequence[str]) -> array[int]:
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

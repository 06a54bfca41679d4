"""How the table of a file of another program is laid out: delimiter, header, and which column is which. Where two
readings are possible, ConfigError names
both and the option that decides."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bot.backtest.data import column_files, table_reader
from bot.backtest.data.candles import COLUMNS
from bot.backtest.data.forms import YFINANCE, Form, form_of
from bot.errors import ConfigError
from bot.service.market_data import file_formats
from bot.words import many

# counts of price changes, in place of a volume that the source does not know
TICK_VOLUMES: Final = ("tick_volume", "tickvol")
# Column names in the exports of exchanges, terminals and data vendors. Others are given by --columns.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "ts": (
        "ts",
        "timestamp",
        "time",
        "date",
        "datetime",
        "open_time",
        "opentime",
        "open time",
        "unix",
        "date_time",
        "gmt time",
        "t",
        "datum",
    ),
    "open": ("open", "o", "open_price"),
    "high": ("high", "h", "high_price", "max"),
    "low": ("low", "l", "low_price", "min"),
    "close": ("close", "c", "close_price", "last"),
    "volume": ("volume", "vol", "v", "base_volume", *TICK_VOLUMES),
}
DECIMALS: Final = ("auto", ".", ",")
UNITS: Final = ("auto", "s", "ms", "us", "ns", "iso")
STAMPS: Final = ("open", "close")
# as in volume=none
NO_COLUMN: Final = "none"
# the column of a file with samples, instead of open, high, low and close
PRICE: Final = "price"
SAMPLE_CHARS: Final = 65_536
SAMPLE_LINES: Final = 20
# a smaller ratio of both sums says that open and close are exchanged; chance gives about 1
SWAPPED: Final = 0.9
# The ratio below which open and close of a file are exchanged although the file names its columns.
NAMES_SWAPPED: Final = 0.25
NAMED_MIN: Final = 20
# rows that decide which column is which
JUDGED_MAX: Final = 100_000
# further lines of a header
LEVELS_MAX: Final = 2
# relative difference: the ratio of adjusted close and close is steady but for rounding and dividends
STEADY: Final = 1e-4


class TwoReadings(ConfigError):
    """A file can be read in two ways. `ways`: each option that decides, and what it changes of a ColumnMap."""

    def __init__(self, text: str, ways: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(text)
        self.ways = ways


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """How to read a file of another program. `columns` maps our names to the file's names, to numbers from 1, to two
    names joined by `+`, or the volume to
    `none`. The name `price` stands for open, high, low and close. `market` is a pattern like `event:{id}`, where `id`
    is the column with each row's market."""

    columns: Mapping[str, str] = field(default_factory=dict)
    tz: str = "UTC"
    # one of UNITS, or a strptime format
    unit: str = "auto"
    # whether a row's time is the open or the close of its candle
    stamp: str = "open"
    # one of DECIMALS
    decimal: str = "auto"
    interval: str | None = None
    # lines before the header
    skip: int = 0
    market: str | None = None
    # Prices without a point are whole numbers of 1e-9, as Databento has them.
    may_be_fixed: bool = False

    def __post_init__(self) -> None:
        if self.unit not in UNITS and "%" not in self.unit:
            raise ConfigError(
                f"--unit {self.unit!r} is not known; write {', '.join(UNITS)}, or a format like '%d/%m/%Y %H:%M'"
            )
        if self.stamp not in STAMPS:
            raise ConfigError(f"--stamp is open or close, not {self.stamp!r}")
        if self.market is not None and self.market_column is None:
            raise ConfigError(f"--market {self.market!r} names no column; write it like event:{{id}}")
        if self.decimal not in DECIMALS:
            raise ConfigError(f"--decimal is a point or a comma, not {self.decimal!r}")
        if "%Z" in self.unit:
            raise ConfigError(
                f"--unit {self.unit!r}: names of zones (%Z) are not read; write the name as it stands in the file, "
                "and say the zone with --tz"
            )
        try:
            ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError):
            raise ConfigError(f"--tz {self.tz!r} is no time zone; write one like UTC or America/New_York") from None

    @property
    def is_of_samples(self) -> bool:
        return "open" in self.columns and len({self.columns.get(name) for name in _PRICES}) == 1

    @property
    def names_prices(self) -> bool:
        return "open" in self.columns or "close" in self.columns

    @property
    def market_column(self) -> str | None:
        template = None if self.market is None else re.fullmatch(r"[^{}]*\{([^{}]+)\}[^{}]*", self.market)
        return None if template is None else template[1].strip()


def columns_of(text: str) -> dict[str, str]:
    """Parse `ts=Time,open=O,volume=none` to a mapping. ConfigError if it is wrong."""
    columns: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, column = (word.strip() for word in part.partition("="))
        if not sign or not column:
            raise ConfigError(f"--columns {part!r} says no column; write it like ts=Time,open=O")
        if name not in (*COLUMNS, PRICE):
            near = get_close_matches(name, (*COLUMNS, PRICE), n=1)
            raise ConfigError(
                f"--columns {name!r} is none of "
                f"{', '.join((*COLUMNS, PRICE))}{f'; did you mean {near[0]}?' if near else ''}"
            )
        if name in columns:
            raise ConfigError(f"--columns names {name} twice")
        columns[name] = column
    if PRICE in columns:
        twice = sorted(set(columns) & set(_PRICES))
        if twice:
            raise ConfigError(f"--columns names price, which is {twice[0]} too; leave one of them out")
        price = columns.pop(PRICE)
        columns |= dict.fromkeys(_PRICES, price)
        columns.setdefault("volume", NO_COLUMN)
    return columns


_PRICES: Final = ("open", "high", "low", "close")


class Layout(NamedTuple):
    """The shape of a text table. `header` is None if the first row has values; `first_row` is the number of the first
    row with values, and `cells` are its cells.
    """

    delimiter: str
    header: list[str] | None
    width: int
    first_row: int
    cells: list[str]
    form: Form


def layout_of(path: Path, mapped: ColumnMap) -> Layout:
    """Detect the delimiter, the header and where the rows begin."""
    with table_reader.opened_table(path) as stream:
        read = stream.read(SAMPLE_CHARS).splitlines()
    # Excel writes `sep=;` above the header.
    skip = mapped.skip or int(re.fullmatch(r"sep=.", read[0].strip()) is not None if read else False)
    ahead = next((number for number, line in enumerate(read) if number >= skip and line.strip()), skip)
    lines = [line for line in read[ahead:][:SAMPLE_LINES] if line.strip()]
    if not lines:
        raise ConfigError(f"{path}: the file is empty")
    file_formats.judge_text(path, lines)
    if len(lines[0]) > column_files.LINE_CHARS_MAX:
        raise ConfigError(
            f"{path}: row 1: is longer than {column_files.LINE_CHARS_MAX:,} characters; this is no table of candles"
        )
    delimiter = _delimiter(lines, mapped)
    cells = column_files.split_line(lines[0], delimiter)
    least, what = (
        (2, "samples have at least time and price")
        if mapped.is_of_samples
        else (5, "candles have at least time, open, high, low, close")
    )
    if len(cells) < least:
        way = "--skip-rows leaves out lines before the header"
        if len(cells) == 1 and len(lines[0].split()) >= least:
            way = (
                f"columns apart by spaces are not read: tr -s ' ' ',' < {quote(str(path))} > NEW.csv puts commas there"
            )
        raise ConfigError(
            f"{path}: row {ahead + 1}: {lines[0][:80]!r} has {many(len(cells), 'column')} by {delimiter!r}; {what}. "
            f"{way}"
        )
    names = _names(cells)
    is_header = sum(1 for name in names if _is_name(name)) >= min(4, len(names))
    if not is_header:
        return Layout(delimiter, None, len(cells), ahead + 1, cells, form_of(path.name, None, cells))
    levels = [names]
    for line in lines[1 : 1 + LEVELS_MAX]:
        more = _names(column_files.split_line(line, delimiter))
        if (
            lower(more) == lower(names)
            or len(more) != len(names)
            or re.search(r"[0-9]", more[0])
            or any(map(column_files.is_number, more))
        ):
            break
        levels.append(more)
    header = names if len(levels) == 1 else _joined_header(path, levels, mapped)
    form = YFINANCE if len(levels) > 1 else form_of(path.name, header, ())
    below = [column_files.split_line(line, delimiter) for line in lines[len(levels) : len(levels) + 1]]
    return Layout(delimiter, header, len(cells), ahead + 1 + len(levels), below[0] if below else [], form)


def _delimiter(lines: Sequence[str], mapped: ColumnMap) -> str:
    """The delimiter that every line has most often. Of two, the one that is no decimal comma."""
    apart = {delimiter: min(line.count(delimiter) for line in lines) for delimiter in column_files.DELIMITERS}
    usable = [delimiter for delimiter in column_files.DELIMITERS if not (delimiter == "," == mapped.decimal)]
    # Commas between digits may be more than the separators of a row.
    delimiter = max(
        usable, key=lambda sign: (sign != "," and apart[sign] >= column_files.COLUMNS_MIN - 1, apart[sign], sign != ",")
    )
    # With decimal commas in quotes the delimiter may be a comma too.
    return delimiter if apart[delimiter] else ","


def _names(cells: Sequence[str]) -> list[str]:
    return [cell.strip().strip("<>").strip() for cell in cells]


def _is_name(cell: str) -> bool:
    return any(map(str.isalpha, cell)) and not re.fullmatch(r"[0-9TZ:.+\- ]+", cell)


def _joined_header(path: Path, levels: Sequence[list[str]], mapped: ColumnMap) -> list[str]:
    """One header of several lines, as a frame of pandas has them (yfinance: names, tickers, the name of the index).
    With several tickers a column's
    name has its ticker too."""
    known = {alias for name in COLUMNS for alias in ALIASES[name]}
    best = max(levels, key=lambda level: sum(name.lower() in known for name in level[1:]))
    times = [level[0] for level in levels if level[0].lower() in ALIASES["ts"]]
    header = [times[0] if times else best[0], *best[1:]]
    others = [level[1:] for level in levels if level is not best and any(level[1:])]
    tickers = sorted({cell for level in others for cell in level if cell})
    if len(tickers) < 2:
        return header
    for number in range(1, len(header)):
        header[number] = " ".join([header[number], *(level[number - 1] for level in others)]).strip()
    if not mapped.columns:
        pairs = ",".join(f"{name}={name.capitalize()} {tickers[0]}" for name in COLUMNS[1:])
        raise ConfigError(
            f"{path}: row 1: has columns of {' and '.join(tickers[:5])}; name those of one, like --columns "
            f"'ts={header[0]},{pairs}'"
        )
    return header


def places_of(path: Path, header: list[str] | None, width: int, mapped: ColumnMap) -> dict[str, list[int]]:
    """The position of each column: by --columns, by the usual names, or by the order in a file without a header. The
    time may be two columns; several
    columns of one price or of the volume are all there, and `one_of` decides."""
    if header is None and not mapped.columns:
        if width < 6:
            raise ConfigError(
                f"{path}: row 1: there is no header and {many(width, 'column')}; say which is which, like --columns "
                "ts=1,open=2,high=3,low=4,close=5,volume=none"
            )
        return {name: [index] for index, name in enumerate(COLUMNS)}
    names = lower(header)
    places: dict[str, list[int]] = {}
    for name in COLUMNS:
        given = mapped.columns.get(name)
        aliases = [alias for alias in ALIASES[name] if alias in names]
        if given is not None and given.lower() == NO_COLUMN:
            if name != "volume":
                raise ConfigError(f"--columns {name}=none: only the volume can be missing")
            places[name] = []
        elif given is not None:
            parts = given.split("+" if name == "ts" else "\0")
            if name == "ts" and mapped.stamp == "open" and _says_close(given):
                raise ConfigError(
                    f"{path}: row 1: {given!r} is probably the close of a candle: say --stamp close, or name the "
                    "column by its number, like --columns ts=1, if it is the open"
                )
            places[name] = [_place(path, part.strip(), names, width) for part in parts]
        elif name == "ts" and "date" in names and "time" in names:
            places[name] = [names.index("date"), names.index("time")]
        elif aliases:
            places[name] = [_place(path, alias, names, width) for alias in (aliases[:1] if name == "ts" else aliases)]
        # An index of a pandas frame may have no name.
        elif name == "ts" and names[:1] == [""]:
            places[name] = [0]
        else:
            raise ConfigError(f"{path}: row 1: {_missing(name, header, width)}")
    return places


def _missing(name: str, header: list[str] | None, width: int) -> str:
    """The error text for a column that no name in the header stands for."""
    if header is None:
        return (
            f"no column for {name!r} among {width} without names; say it with --columns {name}=NUMBER, for all columns"
        )
    if name == "ts":
        near, stamp = list(filter(_says_close, header)), " --stamp close"
    else:
        near, stamp = [column for column in header if re.search(rf"\b{name[:3]}", column, re.IGNORECASE)], ""
    ways = " or ".join(f"--columns {quote(f'{name}={column}')}{stamp}" for column in near)
    ways = ways or f"--columns {name}=NAME"
    none = " (volume=none when there is none)" if name == "volume" else ""
    return f"no column for {name!r} among {','.join(header)[:200]!r}; say it with {ways}{none}"


def _says_close(column: str) -> bool:
    """True for a name of a time that is probably the close of a candle: close_time, closeTime, end."""
    return (
        re.fullmatch(r"end|(?:close[d]?|end)[ _]?(?:time|ts|date|at)|(?:time|ts)[ _]?(?:close|end)", column.lower())
        is not None
    )


def market_place(path: Path, mapped: ColumnMap, header: list[str] | None, width: int, form: Form) -> list[int]:
    """The position of the column with each row's market, by --market or by the form; empty if there is none."""
    column = mapped.market_column or (form.market if form.market in lower(header) else None)
    return [] if column is None else [_place(path, column, lower(header), width)]


def other_time(header: list[str] | None, mapped: ColumnMap) -> list[int]:
    """The positions of further columns that may be the time, behind the one that `places_of` takes."""
    names = lower(header)
    if "ts" in mapped.columns or ("date" in names and "time" in names):
        return []
    return [names.index(alias) for alias in ALIASES["ts"] if alias in names][1:]


def one_of(path: Path, column: str, names: Sequence[str], values: Sequence[array[float]]) -> array[float]:
    """The values of a `column` that several names of the file may mean. ConfigError if they differ.

    Volumes of zeros do not count, and a count of ticks only if there is no other.
    """
    used = [index for index, these in enumerate(values) if column != "volume" or any(these)] or [0]
    real = [index for index in used if names[index].lower() not in TICK_VOLUMES] or used
    chosen = real[0]
    other = next((index for index in real[1:] if values[index] != values[chosen]), None)
    if other is not None:
        raise TwoReadings(
            f"{path}: row 1: {names[chosen]!r} and {names[other]!r} may both be the {column}; say which with "
            f"--columns {column}={names[chosen]} or --columns {column}={names[other]}",
            {f"--columns {column}={names[at]}": {"columns": {column: names[at]}} for at in (chosen, other)},
        )
    return values[chosen]


def _is_price(values: array[float], rows: Sequence[tuple[float, ...]]) -> bool:
    """True if values lie between the prices of their rows, or keep a ratio to them, as an adjusted close does."""
    inside = sum(min(row) <= value <= max(row) for value, row in zip(values, rows, strict=True))
    ratios = [value / row[-1] for value, row in zip(values, rows, strict=True) if row[-1] > 0]
    steady = sum(a > 0 and abs(b / a - 1) < STEADY for a, b in pairwise(ratios))
    quiet = sum(a[-1] > 0 and abs(b[-1] / a[-1] - 1) < STEADY for a, b in pairwise(rows))
    return 2 * inside > len(rows) or (2 * steady > len(rows) and 4 * quiet < len(rows))


def judge_order(path: Path, row: int, width: int, columns: Sequence[array[Any]], numbers: Sequence[str]) -> None:
    """ConfigError if the columns of a file without a header are probably not time, open, high, low, close, volume.
    `numbers` are their numbers, as --columns has them.
    """
    columns = [column[:JUDGED_MAX] for column in columns]
    prices = columns[1:5]
    count = len(columns[0])
    rows = list(zip(*prices, strict=True))
    volume = numbers[5]
    if volume.isdigit() and width > int(volume) and _is_price(columns[5], rows):
        raise ConfigError(
            f"{path}: row {row}: there is no header, and column {volume} is probably a price (an average or adjusted"
            f" one) and not the volume; say which column is, like {_columns_option(numbers[:5], str(int(volume) + 1))},"
            " or volume=none"
        )
    usual = sum(px[1] >= max(px) and px[2] <= min(px) for px in rows)
    if 2 * usual < count:
        high = max(range(4), key=lambda at: sum(px[at] >= max(px) for px in rows))
        low = max(range(4), key=lambda at: sum(px[at] <= min(px) for px in rows) - 2 * count * (at == high))
        first, last = sorted(set(range(4)) - {high, low})
        what = f"column {numbers[high + 1]} is mostly the highest and column {numbers[low + 1]} the lowest"
    else:
        first, high, low, last = range(4)
        if _continuity(columns) >= SWAPPED:
            return
        what = (
            f"column {numbers[1]} goes on from column {numbers[4]} of the row before less well than the other way round"
        )
    orders = [(a, high, low, b) for a, b in ((first, last), (last, first))]
    ways = [
        ",".join(
            [f"ts={numbers[0]}"]
            + [f"{name}={numbers[at + 1]}" for name, at in zip(COLUMNS[1:5], order, strict=True)]
            + [f"volume={volume}"]
        )
        for order in orders
    ]
    raise TwoReadings(
        f"{path}: row {row}: there is no header, and the columns are probably not time, open, high, low, close, "
        f"volume: {what}; say which is which: --columns {ways[0]} or --columns {ways[1]}",
        {f"--columns {way}": {"columns": columns_of(way)} for way in ways},
    )


def _columns_option(numbers: Sequence[str], volume: str) -> str:
    pairs = zip(COLUMNS, (*numbers, volume), strict=True)
    return f"--columns {','.join(f'{name}={number}' for name, number in pairs)}"


def judge_names(path: Path, columns: Sequence[array[Any]], names: Sequence[str]) -> None:
    """ConfigError if the names of open and close are probably exchanged. `names` are those of time, open, high, low,
    close and volume in the file.
    """
    columns = [column[:JUDGED_MAX] for column in columns]
    if len(columns[0]) < NAMED_MIN or _continuity(columns) >= NAMES_SWAPPED:
        return
    pairs = f"open={names[4]},close={names[1]}"
    raise TwoReadings(
        f"{path}: row 1: {names[1]!r} and {names[4]!r} are probably exchanged: each row begins where the row before has"
        f" its {names[1]!r}; say --columns {pairs}, or --columns open={names[1]},close={names[4]} if the names are"
        " right",
        {
            f"--columns {pairs}": {"columns": columns_of(pairs)},
            f"--columns open={names[1]},close={names[4]}": {"columns": {"open": names[1], "close": names[4]}},
        },
    )


def _continuity(columns: Sequence[array[Any]]) -> float:
    """How far the next row begins from a close, if open and close are exchanged, over the same as they are."""
    at_ms, opens, _, _, closes, *_ = columns
    order = sorted(range(len(at_ms)), key=at_ms.__getitem__)
    follows = sum(abs(opens[b] - closes[a]) for a, b in pairwise(order))
    backward = sum(abs(closes[b] - opens[a]) for a, b in pairwise(order))
    return 1.0 if follows == backward == 0 else math.inf if follows == 0 else backward / follows


def lower(header: list[str] | None) -> list[str]:
    """The names of a header in small letters; none without a header."""
    return [] if header is None else [name.lower() for name in header]


def _place(path: Path, column: str, names: list[str], width: int) -> int:
    if names.count(column.lower()) > 1:
        raise ConfigError(
            f"{path}: row 1: {column!r} is there twice; say which it is by its number, like --columns open=2"
        )
    if column.lower() in names:
        return names.index(column.lower())
    if column.isascii() and column.isdigit() and 1 <= int(column) <= width:
        return int(column) - 1
    near = get_close_matches(column.lower(), names, n=1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"there are {', '.join(names)[:200]}"
        if names
        else f"there are 1 to {width}"
    )
    raise ConfigError(f"{path}: row 1: there is no column {column!r}; {hint}")

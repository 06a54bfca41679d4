"""Candles of one market, stored by column: read them from files or a store, slice them, hash them. quality.py checks
them, resampling.py makes longer ones.

Files are CSV (`ts,open,high,low,close,volume`; ts = open time in ms UTC; plain or gzip; other columns are ignored) or
Parquet with the same columns. A store is a folder `<MARKET>/<interval>.parquet` or `.csv.gz`. Reading keeps the rows in
the file's order. A value that cannot be parsed is a ConfigError with file and row; the audit finds improbable values.
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import le, sub
from pathlib import Path
from shlex import quote
from typing import Any, Final

from bot.backtest.data import column_files
from bot.errors import ConfigError
from bot.files import OutsideFolder, inside
from bot.service.market_data import file_formats
from bot.wire.vocabulary import INTERVAL_MS
from bot.words import meant_markets

COLUMNS: Final = ("ts", "open", "high", "low", "close", "volume")
# 1973 in milliseconds; smaller numbers are seconds
MS_MIN: Final = 100_000_000_000
# the year 5138; larger numbers are micro- or nanoseconds
MS_MAX: Final = 100_000_000_000_000
# in a second
UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# A part of an interval: a second of a minute.
LATE_SHARE: Final = 60
LATE_MAX_MS: Final = 60_000
NAMES: Final = {ms: name for name, ms in INTERVAL_MS.items()}
# The files of a store beside the candles: funding rates, splits and dividends.
BESIDE_NAMES: Final = ("funding.csv", "actions.csv")
STORE_NAMES: Final = tuple(f"{name}{suffix}" for name in INTERVAL_MS for suffix in (".parquet", ".csv.gz"))
# The names of ignored files in one message.
NAMES_SHOWN: Final = 5
# names as in a config; the API limits only the length of a coin's name
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_GIVEN: Final = re.compile(rf"((?:perp:|event:)?{_NAME})=(.+)", re.DOTALL)
# some systems allow no colon in a folder's name
_EVENT_FOLDER: Final = "event_"


@dataclass(frozen=True, slots=True)
class CandlesPart:
    """The source of some rows: from candle `start` on, the rows of `path`, beginning with row `first_row` (a header
    is row 1).
    """

    path: Path
    start: int
    first_row: int
    # row of each candle, if the file has empty lines
    rows: array[int] | None = None


@dataclass(frozen=True, slots=True)
class Candles:
    """Candles of one market and interval.

    `at_ms` is when each opened, ms UTC; the other columns have the same length.
    """

    market: str
    interval: str
    at_ms: array[int]
    open: array[float] = field(repr=False)
    high: array[float] = field(repr=False)
    low: array[float] = field(repr=False)
    close: array[float] = field(repr=False)
    volume: array[float] = field(repr=False)
    parts: tuple[CandlesPart, ...] = field(default=(), compare=False, repr=False)
    # True: each row is one price at its instant, and not what happened in an interval.
    are_samples: bool = field(default=False, compare=False, repr=False)
    # True: some rows are later than at their source, because they were moved to the grid.
    is_moved: bool = field(default=False, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.at_ms)

    @property
    def step_ms(self) -> int:
        """The interval in milliseconds."""
        return INTERVAL_MS[self.interval]

    @property
    def end_ms(self) -> int:
        """The close of the last candle; 0 if there are none."""
        return self.at_ms[-1] + self.step_ms if self.at_ms else 0

    @property
    def grid_ms(self) -> array[int]:
        """The instants on the grid of the interval (UTC), which nothing reaches before its own end.

        A candle off the grid moves forward to the next start, never back: moved back it would close before it ends. A
        sample that is at most
        `LATE_SHARE` late stays in the interval that it opens.
        """
        step, late = self.step_ms, late_ms(self.step_ms) if self.are_samples else 0
        return array("q", (at - at % step if at % step <= late else at + -at % step for at in self.at_ms))

    @property
    def columns(self) -> tuple[array[Any], ...]:
        """at_ms, open, high, low, close, volume."""
        return self.at_ms, self.open, self.high, self.low, self.close, self.volume

    def is_sorted(self) -> bool:
        """True if the candles are in the order of time."""
        return all(map(le, self.at_ms, islice(self.at_ms, 1, None)))

    def slice(self, start_ms: int | None = None, end_ms: int | None = None) -> Candles:
        """The candles that open at `start_ms` or later and before `end_ms`."""
        if start_ms is None and end_ms is None:
            return self
        low, high = -(1 << 63) if start_ms is None else start_ms, 1 << 63 if end_ms is None else end_ms
        if self.is_sorted():
            first, last = bisect_left(self.at_ms, low), bisect_left(self.at_ms, high)
            if first == 0 and last == len(self):
                return self
            columns = tuple(column[first : max(first, last)] for column in self.columns)
            return replace(self._with(columns), parts=_cut(self.parts, first, max(first, last)))
        return self.pick([index for index, at in enumerate(self.at_ms) if low <= at < high])

    def pick(self, indices: Sequence[int]) -> Candles:
        """The candles at `indices`, in that order."""
        columns = tuple(array(column.typecode, map(column.__getitem__, indices)) for column in self.columns)
        picked = self._with(columns)
        if not indices or len({part.path for part in self.parts}) != 1:
            return picked
        rows = array("q", (self.where(index)[1] for index in indices))
        return replace(picked, parts=(CandlesPart(self.parts[0].path, 0, rows[0], rows),))

    def _with(self, columns: Sequence[array[Any]]) -> Candles:
        at_ms, opens, highs, lows, closes, volumes = columns
        return replace(self, at_ms=at_ms, open=opens, high=highs, low=lows, close=closes, volume=volumes, parts=())

    def where(self, index: int) -> tuple[Path | None, int]:
        """File and row of a candle. A candle without a file has None and its number from 1."""
        at = bisect_right(self.parts, index, key=lambda part: part.start) - 1
        if at < 0:
            return None, index + 1
        part = self.parts[at]
        offset = index - part.start
        return part.path, part.first_row + offset if part.rows is None else part.rows[offset]

    def digest(self) -> str:
        """SHA-256 of market, interval and every value. It does not depend on the file or its format."""
        sha256 = hashlib.sha256(f"{self.market} {self.interval} {len(self)}\n".encode())
        for column in self.columns:
            if sys.byteorder == "big":
                column = array(column.typecode, column)
                column.byteswap()
            sha256.update(memoryview(column).cast("B"))
        return sha256.hexdigest()


def late_ms(step_ms: int) -> int:
    """How far an instant may lie beside the grid of an interval and still mean the grid.

    23:59:59 is the end of a day.
    """
    return min(step_ms // LATE_SHARE, LATE_MAX_MS)


def _cut(parts: tuple[CandlesPart, ...], first: int, last: int) -> tuple[CandlesPart, ...]:
    """The parts of the candles `first` to `last`."""
    kept: list[CandlesPart] = []
    ends = [*(part.start for part in parts[1:]), last]
    for part, end in zip(parts, ends, strict=False):
        start = max(part.start, first)
        if start >= min(end, last):
            continue
        skipped = start - part.start
        rows = None if part.rows is None else part.rows[skipped : min(end, last) - part.start]
        kept.append(CandlesPart(part.path, start - first, part.first_row + (skipped if rows is None else 0), rows))
    return tuple(kept)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def load(
    paths: Sequence[Path],
    *,
    market: str | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    markets: Collection[str] | None = None,
    listed: bool = True,
    every: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> list[Candles]:
    """Read the candles of files, folders of files, and stores: by market, the shortest interval first.

    `market` names the market of the files; otherwise `MARKET=path` or the file's name does. `markets`: read only these.
    From a store only the shortest
        interval of each market is read, or `every` one. Several files of one market and interval are joined, in the
        order of their first candle. With `listed` a market that the embedded service does not list is a ConfigError.
        `report` is called with a line for each ignored file and each file that was given twice.
    """
    wanted = None if markets is None else {market_name(market, listed=listed) for market in markets}
    by_series: dict[tuple[str, int], list[Candles]] = {}
    named: list[tuple[str, Path, str | None]] = []
    known: set[tuple[str, Path]] = set()
    for source in sources(paths, market=market, listed=listed, every=every, report=report):
        name, path = source[0], source[1].resolve()
        if (name, path) in known:
            report(f"{source[1]}: given twice for {name}: it is read once")
        elif wanted is None or name in wanted:
            named.append(source)
        known.add((name, path))
    for name, path, interval in named:
        read = read_file(path, market=name, interval=interval, start_ms=start_ms, end_ms=end_ms)
        if len(read):
            by_series.setdefault((read.market, read.step_ms), []).append(read)
        else:
            by_series.setdefault((read.market, read.step_ms), [])
    if not by_series:
        what = f" of {', '.join(sorted(wanted))}" if wanted else ""
        raise ConfigError(f"{', '.join(str(path) for path in paths) or 'no file'}: no candles{what} here")
    joined = [join(parts) for key, parts in sorted(by_series.items()) if parts]
    if not joined:
        held = [read_file(path, market=name, interval=interval) for name, path, interval in named]
        first, last = min(min(entry.at_ms) for entry in held), max(max(entry.at_ms) for entry in held)
        there = f"they are there {_span(first, None)} {_span(None, last + 1)}"
        raise ConfigError(f"{', '.join(str(path) for path in paths)}: no candle {_span(start_ms, end_ms)}; {there}")
    return joined


def _span(start_ms: int | None, end_ms: int | None) -> str:
    from bot.clock import iso

    words = [] if start_ms is None else [f"from {iso(start_ms)}"]
    return " ".join(words if end_ms is None else [*words, f"before {iso(end_ms)}"])


def sources(
    paths: Sequence[Path],
    *,
    market: str | None = None,
    listed: bool = True,
    every: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> list[tuple[str, Path, str | None]]:
    """List (market, file, interval if in a store) for all paths. From a store: the shortest interval of each market, or
    `every` interval. ConfigError if a file's market is not known. Files in a folder that are not candles are ignored
    and passed to `report`.
    """
    places: list[tuple[str, Path, str | None]] = []
    for path in paths:
        given, path = given_market(path)
        name = given or market
        try:
            if path.is_dir():
                places += _inside(path, name, listed=listed, every=every, report=report)
            elif path.exists():
                column_files.judge_file(path)
                places.append((market_of(path, name, listed=listed), path, _store_interval(path)))
            else:
                raise ConfigError(_symbol_given(path) or f"{path}: there is no such file or folder")
        except OSError as error:
            raise ConfigError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from None
    return places


def given_market(path: Path) -> tuple[str | None, Path]:
    """The market and the path of an argument `MARKET=path`; None for a path alone."""
    given = _GIVEN.fullmatch(str(path))
    return (None, path) if given is None or path.exists() else (given[1], Path(given[2]))


def _symbol_given(path: Path) -> str | None:
    """What to write in place of `BTC/USDT:USDT=file.csv`; None for anything else."""
    from bot.service.market_data.file_names import way_of_symbol

    symbol, sign, file = str(path).partition("=")
    return way_of_symbol(symbol, f"={file}") if sign else None


def _inside(
    folder: Path, name: str | None, *, listed: bool, every: bool, report: Callable[[str], None]
) -> list[tuple[str, Path, str | None]]:
    """The sources of one folder, as `sources` gives those of all."""
    inside = store_files(folder)
    if inside:
        if odd := _beside(folder, [file for _, _, file in inside]):
            report(
                f"{folder}: left out, since a store has MARKET/INTERVAL.parquet or .csv.gz alone:"
                f" {_names(odd, folder)}; `bot data import` puts others there"
            )
        only = None if name is None else market_name(name, listed=listed)
        named = [(coin, file, interval) for coin, interval, file in inside if only in (None, coin)]
        return [*named] if every else finest(named)
    here = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    for entry in here:
        own_file(folder, entry.name)
    known = set(filter(_names_market, here))
    files = [
        entry for entry in here if column_files.is_table(entry) and (entry in known or column_files.has_rows(entry))
    ]
    if odd := sorted(set(here).difference(files)):
        report(f"{folder}: left out, and not taken for candles: {_names(odd, folder)}")
    if not files:
        for file in odd:
            column_files.refuse_other(file)
        raise ConfigError(f"{folder}: no candles in this folder: neither a store nor .csv, .csv.gz or .parquet files")
    if name is None and (nameless := next((file for file in files if file not in known), None)):
        _refuse_ambiguous(nameless)
        raise ConfigError(
            f"{nameless}: the name speaks of no known market; rename it, like BTC_{nameless.name}, take it out of the"
            f" folder, or name the files one by one, this one as MARKET={nameless}"
        )
    return [(market_of(file, name, listed=listed), file, None) for file in files]


def _refuse_ambiguous(file: Path) -> None:
    """ConfigError if a file's name may mean several markets; nothing if it means none."""
    from bot.service.market_data.file_names import NamesNoMarket

    with suppress(NamesNoMarket):
        market_of(file, None)


def _names_market(file: Path) -> bool:
    """True if a file's name contains a known market."""
    try:
        return bool(market_of(file, None))
    except ConfigError:
        return False


def _beside(store: Path, files: Collection[Path]) -> list[Path]:
    """Table files in a store's folders that do not belong to the store."""
    folders = [store, *sorted({file.parent for file in files})]
    tables = [
        entry
        for folder in folders
        for entry in sorted(folder.iterdir())
        if column_files.is_table(entry) and entry.is_file()
    ]
    own = (*STORE_NAMES, *BESIDE_NAMES)
    return [table for table in tables if table.name[0] != "." and (table.parent == store or table.name not in own)]


def _names(files: Sequence[Path], folder: Path) -> str:
    more = f" and {len(files) - NAMES_SHOWN:,} more" if len(files) > NAMES_SHOWN else ""
    return ", ".join(str(file.relative_to(folder)) for file in files[:NAMES_SHOWN]) + more


def finest(files: Iterable[tuple[str, Path, str]]) -> list[tuple[str, Path, str | None]]:
    """For each market the file with the shortest interval."""
    best: dict[str, tuple[str, Path, str | None]] = {}
    for file in sorted(files, key=lambda file: (file[0], INTERVAL_MS[file[2]])):
        best.setdefault(file[0], file)
    return list(best.values())


def store_files(store: Path) -> list[tuple[str, str, Path]]:
    """List (market, interval, file) of a store; empty if the folder is not a store. Parquet is preferred to CSV."""
    files: dict[tuple[str, str], Path] = {}
    for folder in sorted(store.iterdir()) if store.is_dir() else ():
        if not folder.is_dir():
            continue
        for name in STORE_NAMES:
            file = folder / name
            if file.is_file():
                own_file(store, f"{folder.name}/{name}")
                files.setdefault((market_of_folder(folder.name), name.split(".")[0]), file)
                if name.endswith(".parquet"):
                    files[(market_of_folder(folder.name), name.split(".")[0])] = file
    return [(*key, file) for key, file in sorted(files.items(), key=lambda item: (item[0][0], INTERVAL_MS[item[0][1]]))]


def own_file(folder: Path, name: str) -> Path:
    """The path of a file in a folder of candles. ConfigError if it, or the folder that it is in, is a link."""
    try:
        return inside(folder, name)
    except OutsideFolder as error:
        raise ConfigError(
            f"{error}: a folder of candles may come from others. Put the file itself there, or name it alone as"
            " MARKET=FILE"
        ) from None


def moved_mark(path: Path) -> Path:
    """The file beside candles of a store that says that some of them were moved: 1d.moved beside 1d.parquet."""
    return path.with_name(f"{path.name.split('.')[0]}.moved")


def folder_of_market(market: str) -> str:
    """The name of a market's folder in a store."""
    return _EVENT_FOLDER + market[6:] if market.startswith("event:") else market


def market_of_folder(name: str) -> str:
    return f"event:{name.removeprefix(_EVENT_FOLDER)}" if name.startswith(_EVENT_FOLDER) else name


def market_of(path: Path, given: str | None, *, listed: bool = True) -> str:
    """The market of a file: as given, or by its folder in a store, or by its name."""
    if given is not None:
        return market_name(given, listed=listed)
    from bot.service.market_data.file_names import NamesNoMarket, coin_of
    from bot.service.market_data.instruments import CATALOGUE

    if path.name in STORE_NAMES:
        return market_of_folder(path.parent.name)
    try:
        return coin_of(path, tuple(CATALOGUE))
    except NamesNoMarket:
        raise NamesNoMarket(
            f"{path}: the name speaks of no known market; write MARKET={path}, for example BTC={path}, or list its"
            " market in markets.yaml"
        ) from None


def market_name(text: str, *, listed: bool = True) -> str:
    """A market's name as the service writes it: `perp:btc` is BTC. ConfigError with similar names if `listed` and the
    service does not list the market; without `listed` any valid name is accepted.
    """
    from bot.service.market_data.file_names import way_of_symbol
    from bot.service.market_data.instruments import CATALOGUE

    name = text.strip()
    name = f"event:{name[6:].upper()}" if name[:6].lower() == "event:" else name.upper().removeprefix("PERP:")
    if name in CATALOGUE or (not listed and re.fullmatch(rf"(event:)?{_NAME}", name)):
        return name
    if (way := way_of_symbol(text, "")) is not None:
        raise ConfigError(f"market {way}")
    if not listed:
        raise ConfigError(
            f"market {text!r}: a name has at most 64 letters, digits, dots, underscores and dashes, and begins with a"
            " letter or digit"
        )
    near = meant_markets(name, CATALOGUE, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(list(CATALOGUE)[:12])} and others"
    raise ConfigError(f"market {text!r} is not listed by the service; {hint}")


def _store_interval(path: Path) -> str | None:
    return path.name.split(".")[0] if path.name in STORE_NAMES else None


def read_file(
    path: Path, *, market: str, interval: str | None = None, start_ms: int | None = None, end_ms: int | None = None
) -> Candles:
    """Read the candles of one file.

    The interval is the most frequent distance between rows; it must agree with `interval` or the file's name.
    """
    if column_files.is_parquet(path):
        columns, part = _read_parquet(path, start_ms, end_ms)
    else:
        columns, part = _read_text(path)
    at_ms, opens, highs, lows, closes, volumes = columns
    named = interval or interval_in(path.name)
    if not at_ms:
        if start_ms is None and end_ms is None:
            raise ConfigError(f"{path}: has no candles below its header")
        return Candles(market, named or "1m", at_ms, opens, highs, lows, closes, volumes)
    name = interval_of(path, at_ms, named)
    read = Candles(
        market, name, at_ms, opens, highs, lows, closes, volumes, (part,), is_moved=moved_mark(path).exists()
    )
    return read.slice(start_ms, end_ms)


def interval_of(path: Path, at_ms: array[int], named: str | None) -> str:
    """The interval of a file, from the most common distance between its rows.

    ConfigError if it is not one of the six, or differs from the file's name.
    """
    if len(at_ms) < 2:
        return named or "1m"
    apart = distances(at_ms)
    # Rows out of order or an instant twice: the audit reports these.
    if min(apart) <= 0:
        stamps = sorted(set(at_ms))
        apart = Counter(map(sub, islice(stamps, 1, None), stamps))
        if not apart:
            return named or "1m"
    step = -max((count, -gap) for gap, count in apart.items())[1]
    # The audit reports a wrong unit (s, us, ns), so here the distance is computed in the rows' own unit.
    step_ms = step * 1000 // UNITS[unit_of(at_ms[len(at_ms) // 2])]
    name = NAMES.get(step_ms)
    if name is None:
        if not MS_MIN <= min(at_ms) <= max(at_ms) < MS_MAX:
            return named or "1m"
        raise ConfigError(
            f"{path}: its candles are {_apart(step_ms)} apart, which is none of "
            f"{', '.join(INTERVAL_MS)}{_way_of(path, at_ms, step_ms)}"
        )
    if named is not None and named != name:
        if len(at_ms) < 3 and INTERVAL_MS[named] < step_ms:
            # Two candles with a gap between them.
            return named
        raise ConfigError(
            f"{path}: its name says {named} candles, but most of its rows are {name} apart; rename it, or cut what is"
            f" not {named}"
        )
    return name


def _way_of(path: Path, at_ms: array[int], step_ms: int) -> str:
    """What to do with candles of an interval that is not known."""
    for name, ms in INTERVAL_MS.items():
        if step_ms > 0 and ms > step_ms and ms % step_ms == 0:
            first, end = min(at_ms), max(at_ms) + step_ms
            if first + -first % ms + ms > end:
                return f"; get at least one whole candle of {name}, or {name} candles, from their source"
            return f"; `bot data import {quote(str(path))} --interval {name}` joins them to {name}"
    return "; get finer ones from their source, for example days"


def distances(at_ms: array[int]) -> Counter[int]:
    """Number of rows by their distance from the row before."""
    step = at_ms[1] - at_ms[0] if len(at_ms) > 1 else 0
    last = at_ms[0] + (len(at_ms) - 1) * step if step else 0
    if step > 0 and at_ms[-1] == last and at_ms == array("q", range(at_ms[0], last + 1, step)):
        return Counter({step: len(at_ms) - 1})
    return Counter(map(sub, islice(at_ms, 1, None), at_ms))


def unit_of(stamp: int) -> str:
    """The unit in which a number is a recent instant: s, ms, us or ns."""
    return "s" if stamp < MS_MIN else "ms" if stamp < MS_MAX else "us" if stamp < MS_MAX * 1_000 else "ns"


def _apart(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms / 1000:g} s"


def interval_in(name: str) -> str | None:
    """The interval in a file's name, if any: `binance_BTCUSDT_1m_202505.csv.gz` -> 1m."""
    words = re.split(r"[_.\s]|(?<=[A-Za-z])-|-(?=[0-9]+[mhd])", name)
    return next((word.lower() for word in words if word.lower() in INTERVAL_MS and word[-1] != "M"), None)


def _read_text(path: Path) -> tuple[tuple[array[Any], ...], CandlesPart]:
    if (taken := column_files.read_plain(path, COLUMNS)) is not None:
        return taken, CandlesPart(path, 0, 2)
    return _read_cells(path)


def _read_cells(path: Path) -> tuple[tuple[array[Any], ...], CandlesPart]:
    """Read cell by cell, so that an error names its row."""
    columns: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in COLUMNS[1:]))
    odd: array[int] | None = None
    with column_files.opened(path) as stream:
        header = stream.readline(column_files.LINE_CHARS_MAX)
        if not header.strip():
            what = "row 1: is empty" if stream.read(column_files.BLOCK_CHARS).strip() else "the file is empty"
            raise ConfigError(f"{path}: {what}; it must start with {','.join(COLUMNS)}")
        file_formats.judge_text(path, [header])
        names = [name.lower() for name in column_files.split_line(header.rstrip("\n"), ",")]
        _judge_header(path, names)
        wanted = [names.index(name) for name in COLUMNS]
        for block in column_files.blocks(stream, path, width=len(names), wanted=wanted):
            if odd is None and (block.rows[0], block.rows[-1]) != (
                len(columns[0]) + 2,
                len(columns[0]) + len(block.rows) + 1,
            ):
                odd = array("q", range(2, len(columns[0]) + 2))
            if odd is not None:
                odd.extend(block.rows)
            try:
                columns[0].extend(column_files.integers(block, 0, path, "ts"))
            except ConfigError as error:
                way = "`bot data import` reads dates, time zones and other units"
                raise ConfigError(f"{error} (milliseconds UTC); {way}") from None
            for index, name in enumerate(COLUMNS[1:], start=1):
                columns[index].extend(column_files.floats(block, index, path, name))
    return columns, CandlesPart(path, 0, 2, odd)


def _judge_header(path: Path, names: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if missing or twice:
        what = f"there is no {missing[0]!r}" if missing else f"{twice[0]!r} is there twice"
        raise ConfigError(
            f"{path}: row 1: the columns are {','.join(names)[:200]!r}, they must hold {','.join(COLUMNS)}; {what}. "
            "`bot data import` takes other names, time zones and units"
        )


def _read_parquet(path: Path, start_ms: int | None, end_ms: int | None) -> tuple[tuple[array[Any], ...], CandlesPart]:
    frame = column_files.scan_parquet(path)
    pl = column_files.research()
    schema = frame.collect_schema()
    _judge_header(path, [name.lower() for name in schema.names()])
    by_name = {name.lower(): name for name in schema.names()}
    for name in COLUMNS:
        if not schema[by_name[name]].is_numeric() or (name == "ts" and not schema[by_name[name]].is_integer()):
            kind = "whole numbers (ms UTC)" if name == "ts" else "numbers"
            raise ConfigError(
                f"{path}: column {by_name[name]!r} holds {schema[by_name[name]]}, it must hold {kind}; `bot data"
                " import` turns it into them"
            )
    first_row = 1
    frame = frame.select(pl.col(by_name[name]).alias(name) for name in COLUMNS)
    if start_ms is not None or end_ms is not None:
        frame = frame.with_row_index("row", offset=1)
        if start_ms is not None:
            frame = frame.filter((pl.col("ts") >= start_ms) | pl.col("ts").is_null())
        if end_ms is not None:
            frame = frame.filter((pl.col("ts") < end_ms) | pl.col("ts").is_null())
    table = column_files.collected(frame, path)
    stamps = table.get_column("ts")
    for is_odd, what in ((stamps.is_null(), "is empty"), (stamps > column_files.INT64_MAX, "is too large for ms UTC")):
        if is_odd.any():
            at = int(is_odd.arg_max() or 0)
            row = int(table.get_column("row")[at]) if "row" in table.columns else at + 1
            raise ConfigError(f"{path}: row {row}: ts {what}")
    columns = (
        column_files.column_of(table, "ts", "q"),
        *(column_files.column_of(table, name, "d") for name in COLUMNS[1:]),
    )
    odd = None
    if "row" in table.columns and len(table):
        rows = table.get_column("row")
        first_row = int(rows[0])
        if int(rows[-1]) - first_row + 1 != len(table):
            odd = column_files.column_of(table, "row", "q")
    return columns, CandlesPart(path, 0, first_row, odd)


def join(parts: Sequence[Candles]) -> Candles:
    """Join several files of one market and interval, in the order of their first candle. The audit reports overlaps."""
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(parts, key=lambda part: part.at_ms[0])
    columns: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in COLUMNS[1:]))
    places: list[CandlesPart] = []
    for file_candles in ordered:
        places += [replace(part, start=part.start + len(columns[0])) for part in file_candles.parts]
        for column, more in zip(columns, file_candles.columns, strict=True):
            column.extend(more)
    at_ms, opens, highs, lows, closes, volumes = columns
    return replace(
        ordered[0],
        at_ms=at_ms,
        open=opens,
        high=highs,
        low=lows,
        close=closes,
        volume=volumes,
        parts=tuple(places),
        is_moved=any(file_candles.is_moved for file_candles in ordered),
    )

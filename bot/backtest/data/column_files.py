"""Read tables (CSV, gzip or Parquet) as columns of text or numbers, in blocks, with the row of every value.
candles.py interprets the columns.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from pydantic_core import from_json

from bot.errors import ConfigError
from bot.extras import install
from bot.service.market_data import file_formats
from bot.words import many

# characters read at once; few enough for the processor's cache
BLOCK_CHARS: Final = 1 << 15
ROWS_OF_CSV: Final = 4_096
# a longer line cannot be a row of candles
LINE_CHARS_MAX: Final = 10_000
TEXT_SUFFIXES: Final = (".csv", ".csv.gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz")
PARQUET_SUFFIXES: Final = (".parquet", ".pq")
DELIMITERS: Final = (",", ";", "\t", "|")
# time, open, high, low, close
COLUMNS_MIN: Final = 5
HEAD_CHARS: Final = 4_096
INT64_MAX: Final = (1 << 63) - 1
_NUMBER: Final = re.compile(
    r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*|\s*[+-]?(?:nan|inf)\s*", re.ASCII | re.IGNORECASE
)
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,30}\s*", re.ASCII)


class Block(NamedTuple):
    """Some rows of a text table: the requested columns as text, and the row numbers (the header is row 1)."""

    columns: list[list[str]]
    rows: Sequence[int]
    # True if the text is ASCII without underscores: Python's number parser accepts 1_000 and digits of other scripts
    plain: bool = False


def refuse_other(path: Path) -> None:
    """ConfigError for a file of a known format that is no table here; nothing for any other file."""
    with opened(path) as stream:
        try:
            file_formats.judge_text(path, stream.read(HEAD_CHARS).splitlines())
        except UnicodeDecodeError:
            return


def is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(PARQUET_SUFFIXES)


def is_table(path: Path) -> bool:
    """True if the file's name ends like a readable table."""
    return path.name.lower().endswith((*TEXT_SUFFIXES, *PARQUET_SUFFIXES))


def judge_file(path: Path) -> None:
    """ConfigError for a pipe or a device, because a table is read several times from its start."""
    if not path.is_file():
        raise ConfigError(
            f"{path}: is a pipe or a device, which can be read only once: write its output to a file, and name that"
            " file"
        )


def has_rows(path: Path) -> bool:
    """True if a file begins like a table of candles.

    Also true for an empty or unreadable file, so that its reader raises the error.
    """
    if is_parquet(path):
        return True
    try:
        with opened(path) as stream:
            head = stream.read(HEAD_CHARS)
    except ConfigError:
        return True
    return not head.strip() or any(
        line.count(delimiter) >= COLUMNS_MIN - 1 for line in head.splitlines() for delimiter in DELIMITERS
    )


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a text file, gzipped or not. Lines end with LF. Errors of the file become a ConfigError with its name."""
    with named_faults(path), path.open("rb") as raw:
        binary: Any = file_formats.binary_stream(raw)
        file_formats.judge_format(path, binary)
        zipped = binary is not raw
        with io.TextIOWrapper(io.BufferedReader(binary, 1 << 16) if zipped else binary, "utf-8-sig") as text:
            yield text


@contextmanager
def named_faults(path: Path) -> Iterator[None]:
    """Errors of a file become a ConfigError with its name."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}: is not a whole gzip file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8: {error.reason}; save it as UTF-8") from None


def split_line(line: str, delimiter: str) -> list[str]:
    """The cells of one line that has no line break in it."""
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]


def blocks(
    stream: TextIO, path: Path, *, width: int, wanted: Sequence[int], delimiter: str = ",", row: int = 2
) -> Iterator[Block]:
    """The columns `wanted` of a table of `width` columns, from `row` on.

    A row of another width is a ConfigError; empty lines count, and are left out.
    """
    rest = ""
    while True:
        read = stream.read(BLOCK_CHARS)
        text = rest + read
        if '"' in text:
            yield from _quoted(chain([text], stream_lines(stream)), path, width, wanted, delimiter, row)
            return
        if read:
            cut = text.rfind("\n") + 1
            if not cut and len(text) > LINE_CHARS_MAX:
                raise ConfigError(
                    f"{path}: row {row}: is longer than {LINE_CHARS_MAX:,} characters; this is no table of candles"
                )
            text, rest = text[:cut], text[cut:]
        else:
            rest = ""
        if text:
            block, count = _plain(text, path, width, wanted, delimiter, row)
            row += count
            if block.rows:
                yield block
        if not read:
            return


def stream_lines(stream: TextIO) -> Iterator[str]:
    while read := stream.read(BLOCK_CHARS):
        yield read


def _plain(text: str, path: Path, width: int, wanted: Sequence[int], delimiter: str, row: int) -> tuple[Block, int]:
    """Split whole lines without quotes all at once, and one by one only if a line has the wrong number of cells."""
    body = text.removesuffix("\n")
    lines = body.split("\n")
    count = len(lines)
    rows: Sequence[int] = range(row, row + count)
    if set(map(str.count, lines, repeat(delimiter))) != {width - 1} or delimiter * (width - 1) in lines:
        kept = [
            (number, _without_tail(line, width, delimiter))
            for number, line in zip(rows, lines, strict=True)
            if line.replace(delimiter, "").strip()
        ]
        for number, line in kept:
            if line.count(delimiter) != width - 1:
                raise ConfigError(f"{path}: row {number}: has {many(line.count(delimiter) + 1, 'column')}, not {width}")
        rows = [number for number, _ in kept]
        body = "\n".join(line for _, line in kept)
    if not rows:
        return Block([], rows), count
    cells = body.replace("\n", delimiter).split(delimiter)
    return Block([cells[index::width] for index in wanted], rows, "_" not in text and text.isascii()), count


def _without_tail(line: str, width: int, delimiter: str) -> str:
    """A row without the extra separator at its end."""
    if line.count(delimiter) != width:
        return line
    rest, _, last = line.rpartition(delimiter)
    return line if last.strip() else rest


def _quoted(
    texts: Iterator[str], path: Path, width: int, wanted: Sequence[int], delimiter: str, row: int
) -> Iterator[Block]:
    """Read the rest of a table with quotes, row by row."""
    reader = csv.reader(_lines(texts), delimiter=delimiter, strict=True)
    before, begun = row - 1, row
    columns: list[list[str]] = [[] for _ in wanted]
    rows: list[int] = []
    try:
        for cells in reader:
            number = before + reader.line_num
            begun = number + 1
            if not cells or not any(cell.strip() for cell in cells):
                continue
            # a separator at its end
            if len(cells) == width + 1 and not cells[-1].strip():
                cells.pop()
            if len(cells) != width:
                raise ConfigError(f"{path}: row {number}: has {many(len(cells), 'column')}, not {width}")
            for column, index in zip(columns, wanted, strict=True):
                column.append(cells[index])
            rows.append(number)
            if len(rows) == ROWS_OF_CSV:
                yield Block(columns, rows)
                columns, rows = [[] for _ in wanted], []
    except csv.Error as error:
        if before + reader.line_num > begun:
            raise ConfigError(f"{path}: row {begun}: a quote begins there and does not end") from None
        raise ConfigError(f"{path}: row {before + reader.line_num}: {error}") from None
    if rows:
        yield Block(columns, rows)


def _lines(texts: Iterator[str]) -> Iterator[str]:
    rest = ""
    for text in texts:
        lines = (rest + text).split("\n")
        rest = lines.pop()
        for line in lines:
            yield line + "\n"
    if rest:
        yield rest


def floats(block: Block, index: int, path: Path, name: str) -> array[float]:
    """A column of numbers.

    NaN and infinity are accepted, and the audit reports them; text is a ConfigError with its row.
    """
    return _numbers(block, index, path, name, "d", float, _NUMBER, "a number")


def is_number(cell: str) -> bool:
    """True if `floats` accepts the cell."""
    return _NUMBER.fullmatch(cell) is not None


def integers(block: Block, index: int, path: Path, name: str) -> array[int]:
    """A column of whole numbers."""
    return _numbers(block, index, path, name, "q", int, _INTEGER, "an integer")


def _numbers(
    block: Block,
    index: int,
    path: Path,
    name: str,
    code: Any,
    of: Callable[[str], Any],
    shape: re.Pattern[str],
    what: str,
) -> array[Any]:
    cells = block.columns[index]
    try:
        if block.plain:
            return array(code, map(of, cells))
    except (ValueError, OverflowError):
        pass
    for number, cell in zip(block.rows, cells, strict=True):
        if not shape.fullmatch(cell) or (code == "q" and abs(int(cell)) > INT64_MAX):
            raise ConfigError(f"{path}: row {number}: {name} {cell.strip()[:40]!r} is not {what}")
    return array(code, map(of, cells))


def read_plain(path: Path, names: Sequence[str]) -> tuple[array[Any], ...] | None:
    """Read a file of plain numbers, three times as fast as `blocks` and with the same values: the first column
    integers, the others floats. None if anything is unusual; then the caller uses `blocks`, which gives the exact
    error.
    """
    columns: tuple[array[Any], ...] = tuple(array("d" if index else "q") for index in range(len(names)))
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
            header = stream.readline(LINE_CHARS_MAX).decode("utf-8-sig").rstrip("\r\n").lower().split(",")
            if len(set(header)) < len(header) or any("\r" in name for name in header):
                return None
            wanted = [header.index(name) for name in names]
            rest = b""
            while read := stream.read(BLOCK_CHARS):
                cut = read.rfind(b"\n") + 1
                if not cut:
                    return None
                _take(rest + read[:cut], len(header), wanted, columns)
                rest = read[cut:]
            if rest:
                _take(rest + b"\n", len(header), wanted, columns)
    except (ValueError, TypeError, OverflowError, OSError, EOFError, zlib.error):
        return None
    return columns


def _take(text: bytes, width: int, wanted: Sequence[int], columns: tuple[array[Any], ...]) -> None:
    """Parse whole lines as one JSON array of numbers into the columns.

    ValueError, TypeError or OverflowError for anything else.
    """
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    row = b"," * (width - 1) + b"\n"
    # JSON reads -0 as an integer, which loses the sign.
    if text.translate(None, b"0123456789.eE+-") != row * text.count(b"\n") or b",-0" in text:
        raise ValueError("not numbers and separators alone")
    cells = from_json(b"[" + text[:-1].replace(b"\n", b",") + b"]")
    for column, index in zip(columns, wanted, strict=True):
        column.extend(array(column.typecode, cells[index::width]))


# ── Parquet ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def research(what: str = "Parquet") -> Any:
    """The module polars, or a ConfigError that says how to install it. `what` needs it."""
    try:
        import polars as pl
    except ImportError:
        raise needs_extra(what) from None
    return pl


def needs_extra(what: str) -> ConfigError:
    """The error for a kind of file that only the extra `data` reads."""
    return ConfigError(
        f"{what} needs the data extra, which is not installed: {install('data')}. CSV (.csv, .csv.gz) and JSON work"
        " without"
    )


def has_research() -> bool:
    """Whether Parquet can be written and read here."""
    return find_spec("polars") is not None and find_spec("numpy") is not None


def scan_parquet(path: Path, kind: str = "parquet") -> Any:
    """Open a Parquet or Feather file (`kind`) lazily: only the requested columns are read. ConfigError if it is
    neither.
    """
    pl = research(kind.capitalize())
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: {kind.capitalize()} is read only where its path is UTF-8; rename it") from None
    try:
        frame = pl.scan_parquet(path, glob=False) if kind == "parquet" else pl.scan_ipc(path)
        frame.collect_schema()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or str(error).splitlines()[0]}") from None
    except (pl.exceptions.PolarsError, ValueError) as error:
        with path.open("rb") as raw:
            begins = raw.read(file_formats.BEGINS)
        if not begins.startswith(file_formats.PARQUET) and (what := file_formats.other_format(path, begins)):
            raise ConfigError(f"{path}: {what}") from None
        raise ConfigError(f"{path}: is no {kind.capitalize()} file: {str(error).splitlines()[0]}") from None
    return frame


def collected(frame: Any, path: Path) -> Any:
    """Read the columns of a lazy scan. ConfigError if the file is damaged."""
    pl = research()
    try:
        return frame.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read, it is damaged: {str(error).splitlines()[0]}") from None


def column_of(frame: Any, name: str, code: str) -> array[Any]:
    """One column as an array: `q` whole numbers of 64 bits, `d` floats (an empty cell is NaN)."""
    pl = research()
    if code == "q":
        values = frame.get_column(name).cast(pl.Int64, strict=True)
    else:
        values = frame.get_column(name).cast(pl.Float64, strict=True).fill_null(float("nan"))
    column: array[Any] = array(code)
    column.frombytes(values.to_numpy().tobytes())
    return column

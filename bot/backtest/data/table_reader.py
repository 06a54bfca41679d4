"""The files that tables of candles come in, opened as text in lines of CSV: text itself, gzip, a zip archive, JSON and
a spreadsheet. Nothing is unpacked to the disk, and only an object of JSON and a spreadsheet are held as a whole.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from bot.backtest.data import column_files
from bot.errors import ConfigError
from bot.service.market_data import file_formats
from bot.service.market_data.file_formats import OLD_SPREADSHEET, ZIP

SPREADSHEETS: Final = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
JSONS: Final = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson")
# endings of files that `bot data import FOLDER` takes for tables
SUFFIXES: Final = (*column_files.TEXT_SUFFIXES, *JSONS)
ARROW_SUFFIXES: Final = (*column_files.PARQUET_SUFFIXES, ".feather", ".arrow", ".ipc")
READ_CHARS: Final = 1 << 16
# rows that become text at once
ROWS: Final = 1_000
# An object of JSON is held as a whole: about 400,000 candles.
OBJECT_CHARS_MAX: Final = 32_000_000
_BETWEEN: Final = frozenset(" \t\r\n,")


@contextmanager
def opened_table(path: Path) -> Iterator[TextIO]:
    """Open a table as text in lines of CSV. ConfigError with the file's name if it is none.

    `path` may go on inside a zip archive or a spreadsheet: `archive.zip/BTC.csv`, `book.xlsx/Sheet1`.
    """
    with column_files.named_faults(path), ExitStack() as opened:
        file, inner = _parted(path)
        raw: BinaryIO = opened.enter_context(file.open("rb"))
        begins = _begins(raw)
        if begins.startswith(OLD_SPREADSHEET) or (begins.startswith(ZIP) and _is_spreadsheet(raw)):
            yield opened.enter_context(_as_text(_sheet_rows(file, inner, begins)))
            return
        if begins.startswith(ZIP):
            raw = opened.enter_context(_member(path, raw, inner))
        elif inner is not None:
            raise ConfigError(f"{path}: {file} is no zip archive and no spreadsheet, so there is nothing in it")
        binary: Any = file_formats.binary_stream(raw)
        is_json = _is_json(_begins(binary))
        if not is_json:
            file_formats.judge_format(path, binary)
        text = io.TextIOWrapper(binary if binary is raw else io.BufferedReader(binary, READ_CHARS), "utf-8-sig")
        opened.enter_context(text)
        yield opened.enter_context(_as_text(_json_rows(path, text))) if is_json else text


def arrow_kind(path: Path) -> str | None:
    """`feather` or `parquet` if a file has typed columns, by its first bytes or its name; None for text."""
    if not path.is_file():
        return None
    with column_files.named_faults(path), path.open("rb") as raw:
        begins = _begins(raw)
    if begins.startswith(file_formats.FEATHER):
        return "feather"
    return "parquet" if column_files.is_parquet(path) and not begins.startswith((ZIP, OLD_SPREADSHEET)) else None


def is_candidate(path: Path) -> bool:
    """True if the name of a file ends like a table that an import reads."""
    return path.name.lower().endswith((*SUFFIXES, *ARROW_SUFFIXES, *SPREADSHEETS, ".zip"))


def tables_in(path: Path) -> list[Path]:
    """The tables of a zip archive or a spreadsheet that holds several; otherwise the path itself."""
    if not path.is_file():
        return [path]
    with column_files.named_faults(path), path.open("rb") as raw:
        begins = _begins(raw)
        if begins.startswith(OLD_SPREADSHEET) or (begins.startswith(ZIP) and _is_spreadsheet(raw)):
            return [path]
        if not begins.startswith(ZIP):
            return [path]
        try:
            names = _members(raw)
        # The reader of this archive raises the error.
        except zipfile.BadZipFile:
            return [path]
    return [path] if len(names) < 2 else [path / name for name in names]


def _parted(path: Path) -> tuple[Path, str | None]:
    """The file on the disk, and the place in it; None if the path is a file."""
    if path.exists():
        return path, None
    file = next((parent for parent in path.parents if parent.is_file()), None)
    return (path, None) if file is None else (file, str(path.relative_to(file)))


def _begins(stream: BinaryIO) -> bytes:
    begins = stream.read(file_formats.BEGINS)
    stream.seek(0)
    return begins


def _is_json(begins: bytes) -> bool:
    return begins.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{")


# ── Zip archives ────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_spreadsheet(raw: BinaryIO) -> bool:
    try:
        names = zipfile.ZipFile(raw).namelist()
    except zipfile.BadZipFile:
        return False
    finally:
        raw.seek(0)
    return any(name.startswith("xl/") or name == "content.xml" for name in names)


def _members(raw: BinaryIO) -> list[str]:
    names = zipfile.ZipFile(raw).namelist()
    return sorted(name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("__MACOSX/"))


@contextmanager
def _member(path: Path, raw: BinaryIO, inner: str | None) -> Iterator[Any]:
    """One file of an archive."""
    names: list[str] = []
    try:
        names = _members(raw)
        if inner is None and len(names) != 1:
            shown = f"; name one, like BTC={path / names[0]}" if names else f": no {', '.join(SUFFIXES[:3])} or JSON"
            raise ConfigError(f"{path}: is a zip archive or a spreadsheet: it has {len(names)} tables{shown}")
        with zipfile.ZipFile(raw) as archive, archive.open(inner or names[0]) as member:
            yield member
    except KeyError:
        raise ConfigError(f"{path}: there is no such file in the archive; it has {', '.join(names[:5])}") from None
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ConfigError(f"{path}: {file_formats.OF_SERVICE[ZIP]}: {error}") from None
    except RuntimeError as error:
        raise ConfigError(f"{path}: cannot be unpacked: {error}; unpack it and import the files") from None


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _json_rows(path: Path, text: TextIO) -> Iterator[Sequence[Any]]:
    """The rows of JSON: lists, or objects under a row of their names. Each is decoded alone, so a file may be large."""
    head = text.read(READ_CHARS).lstrip()
    rows = iter(_items(path, text, head) if head[0] == "[" or _are_lines(head) else _rows_of_object(path, text, head))
    first = next(rows, None)
    if first is None:
        raise ConfigError(f"{path}: the file is empty")
    if isinstance(first, Mapping):
        yield list(first)
    for number, row in enumerate(chain([first], rows), 1):
        if type(row) is not type(first) or not isinstance(row, list | dict) or _nested(row):
            raise _no_table(path)
        if isinstance(row, dict) and row.keys() != first.keys():
            odd = min(row.keys() ^ first.keys())
            raise ConfigError(
                f"{path}: row {number + 1}: {odd!r} is in one object and not in another; write all fields"
            )
        yield [row[name] for name in first] if isinstance(row, dict) else row


def _nested(row: list[Any] | dict[str, Any]) -> bool:
    return any(isinstance(cell, list | dict) for cell in (row.values() if isinstance(row, dict) else row))


def _no_table(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: is JSON: write its candles as CSV with the columns time, open, high, low, close, volume"
    )


def _are_lines(head: str) -> bool:
    """True for JSON with an object in each line."""
    try:
        _, end = json.JSONDecoder().raw_decode(head)
    except ValueError:
        return False
    return head[end:].lstrip().startswith("{")


def _items(path: Path, text: TextIO, buffer: str) -> Iterator[Any]:
    """The items of a list, or of lines, one after the other."""
    decoder, is_list, count = json.JSONDecoder(), buffer[0] == "[", 0
    at, is_end = int(is_list), False
    while True:
        while buffer[at : at + 1] in _BETWEEN:
            at += 1
        if is_list and buffer[at : at + 1] == "]":
            return
        try:
            item, at = decoder.raw_decode(buffer, at)
        except ValueError:
            if at == len(buffer) and is_end and not is_list:
                return
            if is_end or len(buffer) - at > column_files.LINE_CHARS_MAX:
                # The rows of a list count from 1; row 1 of objects is that of their names.
                raise ConfigError(
                    f"{path}: is no whole JSON: it breaks off or is wrong behind item {count:,}; get it again"
                ) from None
            more = text.read(READ_CHARS)
            is_end = not more
            buffer, at = buffer[at:] + more, 0
            continue
        count += 1
        yield item


def _rows_of_object(path: Path, text: TextIO, head: str) -> Iterator[Any]:
    """The rows of one object: columns, or rows by their time, or what pandas writes as `split`."""
    whole = head + text.read(OBJECT_CHARS_MAX)
    if text.read(1):
        raise ConfigError(
            f"{path}: is one object of JSON with more than {OBJECT_CHARS_MAX:,} characters; write a list of rows,"
            " CSV or Parquet"
        )
    try:
        given: dict[str, Any] = json.loads(whole)
    except ValueError as error:
        raise ConfigError(f"{path}: is no whole JSON: {error}; get it again") from None
    if isinstance(given.get("data"), list) and isinstance(given.get("columns"), list):
        index = given.get("index", [])
        names = [str(name) for name in given["columns"]]
        has_index = len(index) == len(given["data"]) and index != list(range(len(index)))
        for number, cells in enumerate(given["data"]):
            row = dict(zip(names, cells, strict=False))
            yield {"": index[number]} | row if has_index else row
        return
    columns = {name: column for name, column in given.items() if isinstance(column, list)}
    if len(columns) >= column_files.COLUMNS_MIN and len({len(column) for column in columns.values()}) == 1:
        for cells in zip(*columns.values(), strict=True):
            yield dict(zip(columns, cells, strict=True))
        return
    if not given or not all(isinstance(column, dict) for column in given.values()):
        raise _no_table(path)
    if any(name.lower() in ("open", "o") for name in given):
        stamps = next(iter(given.values()))
        for stamp in stamps:
            yield {"": stamp, **{name: column.get(stamp, "") for name, column in given.items()}}
    else:
        for stamp, row in given.items():
            yield {"": stamp, **row}


# ── Spreadsheets ────────────────────────────────────────────────────────────────────────────────────────────────────


def _sheet_rows(path: Path, sheet: str | None, begins: bytes) -> Iterator[Sequence[Any]]:
    """The rows of a sheet, its cells as text. Rows above the table are empty, so that its rows keep their numbers."""
    pl = column_files.research("a spreadsheet")
    try:
        book: dict[str, Any] = pl.read_excel(
            path, sheet_id=0, engine="calamine", has_header=False, infer_schema_length=0, raise_if_empty=False
        )
    except ImportError:
        raise column_files.needs_extra("a spreadsheet") from None
    # The reader of spreadsheets has errors of its own.
    except Exception as error:  # noqa: BLE001
        kind = next(filter(begins.startswith, file_formats.OF_SERVICE))
        raise ConfigError(f"{path}: {file_formats.OF_SERVICE[kind]}: {str(error).splitlines()[0]}") from None
    tables = [name for name, frame in book.items() if frame.width >= column_files.COLUMNS_MIN and len(frame) > 1]
    wanted = [name for name in tables if sheet in (None, name)]
    if len(wanted) != 1:
        shown = ", ".join(tables) or "none with time, open, high, low, close"
        way = f"name one, like BTC={path / tables[0]}" if tables else "put the candles into one sheet"
        raise ConfigError(f"{path}: has the sheets {shown}; {way}")
    is_table = False
    for cells in book[wanted[0]].iter_rows():
        is_table = is_table or sum(cell is not None for cell in cells) >= column_files.COLUMNS_MIN
        yield ["" if cell is None else cell for cell in cells] if is_table else []


# ── Text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _TextBytes(io.RawIOBase):
    """Texts, as they come, as a stream of bytes."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            text = next(self._texts, None)
            if text is None:
                return 0
            self._rest = text.encode()
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _as_text(rows: Iterable[Sequence[Any]]) -> TextIO:
    return io.TextIOWrapper(io.BufferedReader(_TextBytes(_lines(iter(rows))), READ_CHARS), "utf-8")


def _lines(rows: Iterator[Sequence[Any]]) -> Iterator[str]:
    while some := list(islice(rows, ROWS)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(some)
        yield text.getvalue()

"""The formats of files that are no table of text here: by their first bytes, each with a sentence and the command that
converts it.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import BinaryIO, Final

from bot.errors import ConfigError

GZIP: Final = b"\x1f\x8b"
PARQUET: Final = b"PAR1"
FEATHER: Final = b"ARROW1"
ZIP: Final = b"PK\x03\x04"
OLD_SPREADSHEET: Final = b"\xd0\xcf\x11\xe0"
# First bytes of files that are not text, and what to do with such a file. A spreadsheet is a zip archive too.
OTHERS: Final = {
    ZIP: "is a zip archive or a spreadsheet: `bot data import` reads it",
    b"BZh": "is compressed by bzip2: unpack it, or compress it by gzip",
    b"\xfd7zXZ": "is compressed by xz: unpack it, or compress it by gzip",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: unpack it, or compress it by gzip",
    PARQUET: "is Parquet: its name must end with .parquet",
    b"\xff\xfe": "is not text in UTF-8, but in UTF-16; save it as UTF-8",
    b"\xfe\xff": "is not text in UTF-8, but in UTF-16; save it as UTF-8",
    FEATHER: "is Feather (Arrow): `bot data import` reads it",
    b"FEA1": "is Feather of the old version 1: write it as CSV with the program that made it",
    b"\x89HDF": "is HDF5: write the table of one market as CSV or Parquet with the program that made it",
    OLD_SPREADSHEET: "is an old spreadsheet (.xls): `bot data import` reads it",
    b"SQLite format 3": "is a SQLite database: write its table of candles as CSV with the program that made it",
    b"\x1f\x8b": "is compressed by gzip twice: unpack it once",
    b"\x04\x22\x4d\x18": "is compressed by lz4: unpack it, or compress it by gzip",
    b"7z\xbc\xaf": "is a 7-Zip archive: unpack it",
    b"Rar!": "is a RAR archive: unpack it",
    b"%PDF": "is a PDF: get the candles as CSV from their source",
    b"ORC": "is ORC: write it as CSV or Parquet with the program that made it",
    b"Obj\x01": "is Avro: write it as CSV or Parquet with the program that made it",
    b"\x93NUMPY": "is an array of NumPy: write it as CSV with the program that made it",
    b"\x80": "is a pickle of Python: write the frame as CSV (df.to_csv) or Parquet with the program that made it",
}
BINARY: Final = "is not text: write it as CSV or Parquet with the program that made it"
# where a tar archive has its mark
TAR_AT: Final = 257
# bytes that tell the format of a file
BEGINS: Final = 512
# What the service says of files that a backtest reads, or converts to such: the service reads CSV alone.
OF_SERVICE: Final = {
    ZIP: "is a zip archive or a spreadsheet: unpack it, or save it as CSV",
    OLD_SPREADSHEET: "is an old spreadsheet (.xls): save it as CSV",
    FEATHER: "is Feather (Arrow): write it as CSV with polars, which the extra `data` brings: {command}",
    PARQUET: "is Parquet, and a service reads CSV: write it as CSV with polars: {command}",
}


def binary_stream(raw: BinaryIO) -> BinaryIO:
    """The bytes of an open file, unpacked if it is packed by gzip, from their start."""
    is_packed = raw.read(len(GZIP)) == GZIP
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if is_packed else raw  # type: ignore[return-value]


def judge_format(path: Path, stream: BinaryIO, *, of_service: bool = False) -> None:
    """ConfigError if a stream does not begin like text. It is at its start afterwards."""
    what = other_format(path, stream.read(BEGINS), of_service=of_service)
    if what is not None:
        raise ConfigError(f"{path}: {what}")
    stream.seek(0)


def other_format(path: Path, begins: bytes, *, of_service: bool = False) -> str | None:
    """What a file is whose first bytes are not those of text, and what to do with it; None for text."""
    mark = next(filter(begins.startswith, OTHERS), None)
    way = None if mark is None else OTHERS[mark]
    if mark is None and begins[TAR_AT:].startswith(b"ustar"):
        way = "is a tar archive: unpack it"
    elif mark is None and b"\0" in begins:
        halves = (begins[0::2], begins[1::2])
        way = OTHERS[b"\xff\xfe"] if any(not any(half) for half in halves) and begins.strip(b"\0") else BINARY
    if way is None:
        return None
    if of_service and mark in OF_SERVICE:
        return OF_SERVICE[mark].replace("{command}", _to_csv(path, "read_ipc" if mark == FEATHER else "read_parquet"))
    return way


def _to_csv(path: Path, read: str) -> str:
    """The command that makes the CSV of a service of a table whose first column is the time."""
    names = "'ts', 'open', 'high', 'low', 'close', 'volume'"
    stamps = "pl.col('ts').cast(pl.Datetime('ms')).dt.epoch('ms')"
    script = (
        f"import polars as pl; f = pl.{read}({str(path)!r}); f = f.rename({{f.columns[0]: 'ts'}}); "
        f"f.with_columns({stamps}).select({names}).write_csv({_stem(path) + '.csv'!r})"
    )
    return _python(script)


def judge_text(path: Path, lines: Sequence[str], *, of_service: bool = False) -> None:
    """ConfigError for text that is no table: JSON or a web page. The sentence has the command that makes CSV of it,
    but for a service, which needs a header and its own units.
    """
    text = "\n".join(lines[:2])
    if re.match(r"\s*<(?:!doctype|html|\?xml)", text, re.IGNORECASE):
        raise ConfigError(
            f"{path}: is a web page or XML, and no table: the download has failed, or wants another address"
        )
    if not re.match(r"\s*[\[{]", text):
        return
    if not of_service and re.match(r"\s*\[\s*[\[{]", text):
        raise ConfigError(f"{path}: is JSON: `bot data import {quote(str(path))}` reads it")
    time = "ts (ms UTC)" if of_service else "time"
    raise ConfigError(
        f"{path}: is JSON: write its candles as CSV with the columns {time}, open, high, low, close, volume"
    )


def _python(script: str) -> str:
    """The command that runs a script, for a shell."""
    return f"python -c {quote(script)}" if re.search(r'["$`\\!]', script) else f'python -c "{script}"'


def _stem(path: Path) -> str:
    """The name of a file without the endings of its format, for a new file in the current folder."""
    name = path.name
    for ending in (".gz", ".feather", ".json", ".arrow", ".ipc", ".csv", ".txt", ".parquet"):
        name = name.removesuffix(ending) or name
    # The file itself stays as it is, whatever its name says.
    return f"{name}.new" if path.name.endswith((".csv", ".parquet")) else name

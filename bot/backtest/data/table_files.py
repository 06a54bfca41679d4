"""The files that an import reads: those that are named, those in folders and in the folders of these, and those in zip
archives, each with its market.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bot.backtest.data import column_files, table_reader
from bot.backtest.data.candles import given_market, market_of, own_file, sources, store_files
from bot.backtest.data.table_layout import ColumnMap, layout_of
from bot.errors import ConfigError
from bot.service.market_data.file_names import NamesNoMarket

# What freqtrade keeps beside its candles.
_BESIDE: Final = re.compile(r".+-(?:mark|index|premiumIndex|funding_rate|trades)\..+")
# The names of left-out files in one message.
NAMES_SHOWN: Final = 5


class ImportFile(NamedTuple):
    """A file of an import. `market` is None if neither its name nor an option says it; `is_given`: an option does."""

    path: Path
    market: str | None
    is_given: bool = False


def import_files(
    paths: Sequence[Path], mapped: ColumnMap, *, market: str | None, report: Callable[[str], None]
) -> list[ImportFile]:
    """List the files of an import. With `market` every file is of this market. `report` gets a line for each file that
    is left out.

    ConfigError if a file's market is not known, or a path is not there.
    """
    files: list[ImportFile] = []
    for given in paths:
        name, path = given_market(given)
        wanted = name or market
        if path.is_dir() and not store_files(path):
            files += _in_folder(path, mapped, wanted, report)
        elif path.is_dir() or not path.exists():
            if any(parent.is_file() for parent in path.parents):
                files.append(_named(path, wanted))
                continue
            files += [
                ImportFile(file, coin, is_given=wanted is not None)
                for coin, file, _ in sources([given], market=market, listed=False, report=report)
            ]
        else:
            column_files.judge_file(path)
            files += [_named(table, wanted) for table in table_reader.tables_in(path)]
    _judge_folders(files)
    known: set[tuple[str | None, Path]] = set()
    once: list[ImportFile] = []
    for file in files:
        key = file.market, file.path.resolve()
        if key in known:
            report(f"{file.path}: given twice: it is read once")
        else:
            once.append(file)
        known.add(key)
    return once


def _named(path: Path, market: str | None) -> ImportFile:
    if market is not None:
        return ImportFile(path, market_of(path, market, listed=False), is_given=True)
    try:
        return ImportFile(path, market_of(path, None, listed=False))
    except NamesNoMarket:
        return ImportFile(path, None)


def _in_folder(
    folder: Path, mapped: ColumnMap, market: str | None, report: Callable[[str], None]
) -> Iterator[ImportFile]:
    """The tables of a folder and of the folders in it, as freqtrade has one for each exchange."""
    here = sorted(
        file
        for file in folder.rglob("*")
        if not any(part.startswith(".") for part in file.relative_to(folder).parts) and file.is_file()
    )
    files: list[ImportFile] = []
    odd: list[Path] = []
    for path in here:
        own_file(folder, str(path.relative_to(folder)))
        if not table_reader.is_candidate(path) or _BESIDE.fullmatch(path.name):
            odd.append(path)
            continue
        tables = [_named(table, market) for table in table_reader.tables_in(path)]
        if tables[0].market is None and column_files.is_table(path) and not column_files.has_rows(path):
            odd.append(path)
        else:
            files += tables
    if odd:
        more = f" and {len(odd) - NAMES_SHOWN:,} more" if len(odd) > NAMES_SHOWN else ""
        shown = ", ".join(str(path.relative_to(folder)) for path in odd[:NAMES_SHOWN])
        report(f"{folder}: left out, and not taken for candles: {shown}{more}")
    if not files:
        for path in odd:
            column_files.refuse_other(path)
        raise ConfigError(f"{folder}: no candles in this folder: no store, and no CSV, JSON, Parquet or Feather files")
    for file in files:
        if file.market is None and not _names_markets(file.path, mapped):
            raise ConfigError(
                f"{file.path}: the name speaks of no known market; rename it, like BTC_{file.path.name}, take it out of"
                f" the folder, or name the files one by one, this one as MARKET={file.path}"
            )
    yield from files


def _names_markets(path: Path, mapped: ColumnMap) -> bool:
    """True if each row of a file names its market."""
    if mapped.market is not None:
        return True
    return table_reader.arrow_kind(path) is None and layout_of(path, mapped).form.market is not None


def _judge_folders(files: Sequence[ImportFile]) -> None:
    """ConfigError if folders have a file of the same name and market, as freqtrade has them for spot and futures."""
    by_name: dict[tuple[str, str], Path] = {}
    for file in files:
        if file.market is None:
            continue
        interval = re.search(r"-([0-9]+[mhdwM])(?:-futures)?\.", file.path.name)
        key = file.market, interval[1] if interval else file.path.name
        other = by_name.setdefault(key, file.path)
        if interval and other.parent != file.path.parent:
            raise ConfigError(
                f"{file.path}: is {key[0]} {key[1]}, and so is {other}: a store has one of each; import one of the"
                f" folders, like {other.parent}, after taking the other one out, or name the files one by one"
            )


def answered(mapped: ColumnMap, change: Mapping[str, Any]) -> ColumnMap:
    """The map after an answer to TwoReadings."""
    from dataclasses import replace

    changes = dict(change)
    if "columns" in changes:
        changes["columns"] = {**mapped.columns, **changes["columns"]}
    return replace(mapped, **changes)

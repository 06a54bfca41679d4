"""Read the files of `bot data import`, ask a person where a file can be read in two ways, and show what was read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bot.cli.data.output import day_text, progress, show_rows
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.data.candle_stream import CandleStream
    from bot.backtest.data.candles import Candles
    from bot.backtest.data.importers import TableRead
    from bot.backtest.data.table_files import ImportFile
    from bot.backtest.data.table_layout import ColumnMap, TwoReadings


class FileRead(NamedTuple):
    """What was read of one market in a file. `rows` are the candles that were taken."""

    file: str
    form: str
    market: str
    interval: str
    first_ms: int
    last_ms: int
    rows: int
    dropped: int

    def data(self) -> dict[str, Any]:
        names = ("file", "form", "market", "interval", "firstTs", "lastTs", "rows", "dropped")
        return dict(zip(names, self, strict=True))

    def cells(self) -> list[str]:
        span = [day_text(at) if self.rows else "-" for at in (self.first_ms, self.last_ms)]
        return [self.file, self.form, self.market, self.interval, *span, f"{self.rows:,}", f"{self.dropped:,}"]


class FilesRead(NamedTuple):
    """The closed candles of all files, one item for each market and interval, and what each file was read as."""

    candles: list[Candles]
    streams: list[CandleStream]
    shown: list[FileRead]
    # the file and the form of each stream
    of_streams: list[tuple[str, str]]


def read_files(
    files: Sequence[Path],
    mapped: ColumnMap,
    market: str | None,
    *,
    answers: dict[tuple[str, ...], Mapping[str, Any]],
    say: Callable[[str], None],
    show_progress: bool,
    rows_max: int | None,
) -> FilesRead:
    """Read all files. `answers` keeps what a person has answered; `say` gets a line for each row or file left out.

    ConfigError if there are no candles; NeedsWholeFileError if a file with more than `rows_max` rows must be read as a
    whole.
    """
    from bot.backtest.data.candle_stream import NeedsWholeFileError
    from bot.backtest.data.candles import join
    from bot.backtest.data.importers import closed, ordered
    from bot.backtest.data.table_files import import_files
    from bot.clock import SystemClock
    from bot.errors import ConfigError

    now_ms = SystemClock().now_ms()
    parts: dict[tuple[str, str], list[Candles]] = {}
    read_so_far = FilesRead([], [], [], [])
    of_all = market if mapped.market is None else None
    with progress(is_shown=show_progress) as show:
        for file in import_files(files, mapped, market=of_all, report=say):
            if mapped.market is not None and file.is_given:
                raise ConfigError(
                    f"{file.path}: {file.market}= names its market, and --market {market} says that each row names it;"
                    " leave one out"
                )
            reading = _read(
                file, mapped, answers, partial(show_rows, show, file.path.name), asks=show_progress, rows_max=rows_max
            )
            if reading.stream is not None:
                read_so_far.streams.append(reading.stream)
                read_so_far.of_streams.append((str(file.path), reading.form))
            unclosed = 0
            for read in map(ordered, reading.candles):
                whole = closed(read, now_ms)
                dropped = len(read) - len(whole)
                unclosed += dropped
                read_so_far.shown.append(_file_read(str(file.path), reading.form, whole, dropped))
                if len(whole):
                    parts.setdefault((read.market, read.interval), []).append(whole)
            say_unclosed(str(file.path), unclosed, say)
    series = [*parts, *((stream.market, stream.interval) for stream in read_so_far.streams)]
    if not series:
        names = ", ".join(map(str, files))
        raise ConfigError(f"{names}: no candles {'' if market is None else f'of {market} '}here")
    if len(set(series)) < len(series):
        raise NeedsWholeFileError
    return read_so_far._replace(candles=[join(part) for part in parts.values()])


def streams_read(read: FilesRead, passed: Sequence[CandleStream]) -> list[FileRead]:
    """What the files of streams were read as, after their candles have passed."""
    return [
        FileRead(file, form, item.market, item.interval, item.first_ms, item.last_ms, item.rows, before.dropped)
        for (file, form), before, item in zip(read.of_streams, read.streams, passed, strict=True)
    ]


def _file_read(file: str, form: str, candles: Candles, dropped: int) -> FileRead:
    first, last = (candles.at_ms[0], candles.at_ms[-1]) if len(candles) else (0, 0)
    return FileRead(file, form, candles.market, candles.interval, first, last, len(candles), dropped)


def say_unclosed(file: str, count: int, say: Callable[[str], None]) -> None:
    """Say how many candles of a file are left out because they have not ended."""
    if count:
        are = "is" if count == 1 else "are"
        say(f"{file}: {many(count, 'candle')} left out, which by this machine's clock {are} not closed yet")


def show_table(shown: Sequence[FileRead]) -> None:
    """Print what each file was read as."""
    from bot.cli.common.text_table import screen_width, table_lines

    heads = ["file", "form", "market", "interval", "from", "to", "rows", "dropped"]
    for line in table_lines(heads, [file.cells() for file in shown], right=(6, 7), width=screen_width()):
        click.echo(line)


def _read(
    file: ImportFile,
    mapped: ColumnMap,
    answers: dict[tuple[str, ...], Mapping[str, Any]],
    report: Any,
    *,
    asks: bool,
    rows_max: int | None,
) -> TableRead:
    """Read a file; where two readings are possible, ask the person at the terminal, once for each question."""
    from bot.backtest.data.importers import read_table
    from bot.backtest.data.table_files import answered
    from bot.backtest.data.table_layout import TwoReadings

    while True:
        try:
            return read_table(file.path, file.market, mapped, report, is_given=file.is_given, rows_max=rows_max)
        except TwoReadings as question:
            ways = tuple(question.ways)
            if ways not in answers:
                if not asks or sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
                    raise
                answers[ways] = question.ways[_choice(question)]
            before, mapped = mapped, answered(mapped, answers[ways])
            if mapped == before:
                raise


def _choice(question: TwoReadings) -> str:
    """The option that a person chooses."""
    ways = list(question.ways)
    click.echo(str(question), err=True)
    for number, way in enumerate(ways, 1):
        click.echo(f"  {number}  {way}", err=True)
    number = click.prompt("Which is right?", type=click.IntRange(1, len(ways)), err=True)
    return ways[number - 1]

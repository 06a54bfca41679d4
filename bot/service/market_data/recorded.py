"""Reads recorded candle files, and refuses bad ones with the row and the reason."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

from bot.errors import ConfigError
from bot.money import parse_decimal
from bot.service.market_data import file_formats
from bot.service.market_data.simulator import GridCandle
from bot.venue.model.numbers import E8
from bot.venue.model.outcome import PAYOUT, PX_MAX, PX_MIN
from bot.wire.vocabulary import INTERVAL_MS
from bot.words import many

COLUMNS: Final = ("ts", "open", "high", "low", "close", "volume")
# 1973 in milliseconds; smaller numbers are seconds
MS_MIN: Final = 100_000_000_000
# the year 5138; larger numbers are microseconds
MS_MAX: Final = 100_000_000_000_000
MINUTE_MS: Final = INTERVAL_MS["1m"]
# a longer line cannot be a row of candles
LINE_CHARS_MAX: Final = 10_000
BYTES_MAX: Final = 2_000_000_000


def read_candles(path: Path, *, sz_decimals: int, are_odds: bool = False) -> list[GridCandle]:
    """All candles of a `ts,open,high,low,close,volume` file (.csv or .csv.gz), ts = open time in ms UTC. ConfigError
    names the row and the fault.

    `are_odds`: prices of an event market, which are clamped to its lowest and highest price, as in a backtest.
    """
    candles: list[GridCandle] = []
    lot: int = 10 ** (8 - sz_decimals)
    try:
        with _open(path) as stream:
            rows = csv.reader(_lines(stream, path), strict=True)
            header = next(rows, None)
            file_formats.judge_text(path, [",".join(header or ())], of_service=True)
            if header is None:
                raise ConfigError(f"{path}: the file is empty; it must start with {','.join(COLUMNS)}")
            if tuple(name.strip().lower() for name in header) != COLUMNS:
                raise ConfigError(
                    f"{path}: row 1: the columns are {','.join(header)[:200]!r}; they must be {','.join(COLUMNS)}"
                )
            last = 0
            for number, row in enumerate(rows, start=2):
                if not row:
                    continue
                candle = _candle(path, number, row, lot, are_odds=are_odds)
                if candle.ts == last:
                    raise ConfigError(f"{path}: row {number}: ts {candle.ts} appears twice")
                if candle.ts < last:
                    raise ConfigError(
                        f"{path}: row {number}: ts {candle.ts} comes after {last}: rows must be sorted by time"
                    )
                last = candle.ts
                candles.append(candle)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: is not a complete gzip file: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8: {error.reason}; save it as UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{path}: row {len(candles) + 2}: {error}") from None
    if not candles:
        raise ConfigError(f"{path}: has no candles below its header")
    return candles


@contextmanager
def _open(path: Path) -> Iterator[io.TextIOWrapper]:
    with path.open("rb") as raw:
        binary: Any = file_formats.binary_stream(raw)
        file_formats.judge_format(path, binary, of_service=True)
        with io.TextIOWrapper(io.BufferedReader(binary), "utf-8-sig", newline="") as text:
            yield text


def _lines(stream: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """The lines of a file, each bounded before it is read: a zipped line of a small file may be longer than the memory.

    ConfigError beyond.
    """
    length = 0
    for number in count(1):
        line = stream.readline(LINE_CHARS_MAX + 1)
        if not line:
            return
        length += len(line)
        if len(line) > LINE_CHARS_MAX:
            raise ConfigError(
                f"{path}: row {number}: is longer than {LINE_CHARS_MAX:,} characters; this is no table of candles"
            )
        if length > BYTES_MAX:
            raise ConfigError(
                f"{path}: is larger than {BYTES_MAX:,} bytes when it is unpacked; cut it into several files"
            )
        yield line


def _candle(path: Path, number: int, row: list[str], lot: int, *, are_odds: bool) -> GridCandle:
    def wrong(text: str) -> ConfigError:
        return ConfigError(f"{path}: row {number}: {text}")

    if len(row) != len(COLUMNS):
        raise wrong(f"has {many(len(row), 'column')}, not {len(COLUMNS)}")
    stamp = row[0].strip()
    if not (stamp.isascii() and stamp.isdigit()):
        raise wrong(f"ts {row[0][:40]!r} is not an integer")
    ts = int(stamp) if len(stamp) <= 20 else MS_MAX
    if ts < MS_MIN:
        raise wrong(f"ts {ts} looks like seconds; it must be milliseconds (multiply by 1000)")
    if ts >= MS_MAX:
        raise wrong(f"ts {stamp[:24]} looks like micro- or nanoseconds; it must be milliseconds")
    if ts % MINUTE_MS:
        raise wrong(f"ts {ts} is not the start of a minute")
    amounts: list[int] = []
    for name, text in zip(COLUMNS[1:], row[1:], strict=True):
        try:
            value = int(parse_decimal(text.strip()) * E8)
        except ValueError:
            raise wrong(f"{name} {text[:40]!r} is not a number") from None
        if value < 0 or (value == 0 and name != "volume"):
            raise wrong(f"{name} must be {'at least 0' if name == 'volume' else 'above 0'}, not {text.strip()[:40]}")
        if are_odds and name != "volume" and value > PAYOUT:
            raise wrong(
                f"{name} {text.strip()[:40]} is above 1, the payout of a share; divide odds in cents or percent by 100"
            )
        amounts.append(value)
    opened, high, low, close, volume = amounts
    if high < low:
        raise wrong(f"high {row[2]} is below low {row[3]}")
    for name, value in (("open", opened), ("close", close)):
        if not low <= value <= high:
            raise wrong(f"{name} lies outside low..high ({row[3]}..{row[2]})")
    if are_odds:
        opened, high, low, close = (max(PX_MIN, min(PX_MAX, px)) for px in (opened, high, low, close))
    return GridCandle(ts, opened, high, low, close, volume - volume % lot)


def interval_of(path: Path, candles: list[GridCandle]) -> int:
    """The interval of a file in ms: the smallest distance between rows, which must be one of the six intervals.

    A single candle counts as one minute.
    """
    if len(candles) == 1:
        return MINUTE_MS
    step = min(b.ts - a.ts for a, b in pairwise(candles))
    if step not in INTERVAL_MS.values():
        raise ConfigError(
            f"{path}: its candles are {step / 1000:g} s apart; the interval must be one of {', '.join(INTERVAL_MS)}"
        )
    return step

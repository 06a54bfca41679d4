"""The store of candles: a folder `<MARKET>/<interval>.parquet`, or `.csv.gz` without the research extra. A file is
replaced as a whole or not at all.

Stored candles are sorted, closed and without duplicates. The store does not check candles.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, NamedTuple

from bot.backtest.data import column_files
from bot.backtest.data.candle_stream import CandleStream
from bot.backtest.data.candles import COLUMNS, Candles, folder_of_market, moved_mark, own_file, read_file, store_files
from bot.backtest.data.conversion import currency_of
from bot.clock import iso
from bot.errors import BotError, ConfigError
from bot.files import replacing, sync
from bot.service.market_data.file_names import converted_mark
from bot.words import many

# written at once
CSV_ROWS: Final = 8_192
CONFLICTS_SHOWN: Final = 3
# The ending of a file that is being written.
PART: Final = ".part"


class Conflict(BotError):
    """The store has different values for the same instants. Nothing was changed."""


class Written(NamedTuple):
    """The result of a write: the number of new candles, of candles that were stored already, and of replaced ones."""

    path: Path
    rows: int
    added: int
    same: int
    replaced: int
    first_ms: int
    last_ms: int


class StoredFile(NamedTuple):
    """One file of the store."""

    market: str
    interval: str
    path: Path
    rows: int
    first_ms: int
    last_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Store:
    """Candles by market and interval, in a folder."""

    root: Path

    def file(self, market: str, interval: str) -> Path | None:
        """The file of a market and interval; None if there is none."""
        return next((file for coin, name, file in self._files() if (coin, name) == (market, interval)), None)

    def read(
        self, market: str, interval: str, start_ms: int | None = None, end_ms: int | None = None
    ) -> Candles | None:
        """Read the candles of a market and interval; None if there are none."""
        file = self.file(market, interval)
        if file is None:
            return None
        return read_file(file, market=market, interval=interval, start_ms=start_ms, end_ms=end_ms)

    def held(self, unread: list[ConfigError] | None = None) -> list[StoredFile]:
        """List the store by market and interval.

        Errors of unreadable files are added to `unread`; without it the first error is raised.
        """
        files: list[StoredFile] = []
        for market, interval, file in self._files():
            try:
                candles = read_file(file, market=market, interval=interval)
            except ConfigError as error:
                if unread is None:
                    raise
                unread.append(error)
                continue
            files.append(
                StoredFile(
                    market, interval, file, len(candles), candles.at_ms[0], candles.at_ms[-1], file.stat().st_size
                )
            )
        return files

    def write(self, candles: Candles, *, replacing: bool = False) -> Written:
        """Add candles, sorted and without duplicates.

        Conflict, without a change, if the store has different values for an instant and not `replacing`.
        """
        return self.write_all([candles], replacing=replacing)[0]

    def write_all(
        self, many: Sequence[Candles | CandleStream], *, replacing: bool = False, are_in_usd: bool = False
    ) -> list[Written]:
        """`write` for several markets and intervals, each once.

        A conflict of one, or a full disk, changes none of them, and so does an error of candles that pass in portions.
        ConfigError for prices in another currency, unless they `are_in_usd` by a conversion.
        """
        foreign = [candles for candles in many if currency_of(candles.market) is not None]
        if foreign and not are_in_usd:
            raise ConfigError(
                f"{foreign[0].market} is priced in {currency_of(foreign[0].market)}, and the store holds prices in USD;"
                " bot data import --rate converts candles of a file"
            )
        assert len({(series.market, series.interval) for series in many}) == len(many), "each is there once"
        with self._alone(), ExitStack() as parts:
            done, ready = [], []
            for candles in many:
                if isinstance(candles, CandleStream):
                    written, part = self._prepare_stream(candles, parts, replacing=replacing)
                else:
                    written, part = self._prepare(candles, parts, replacing=replacing)
                done.append(written)
                if part is not None:
                    ready.append((candles, written.path, part))
                if (
                    candles.is_moved
                    # The mark is written before the candles, so that a killed writer leaves no candles without it.
                ):
                    self._mark_moved(written.path)
            for candles, path, part in ready:
                self._put_in_place(candles, path, part)
            for candles, written in zip(many, done, strict=True):
                if not candles.is_moved and len(candles) == written.rows:
                    moved_mark(written.path).unlink(missing_ok=True)
                if any(candles is each for each in foreign):
                    # Last: a killed writer leaves candles that are refused.
                    converted_mark(written.path).touch()
        return done

    def _prepare(self, candles: Candles, parts: ExitStack, *, replacing: bool) -> tuple[Written, Path | None]:
        """Write the new file beside the old one.

        Returns the result of the write and the new file; None if nothing changes.
        """
        assert len(candles), "there is something to write"
        assert all(a < b for a, b in zip(candles.at_ms, candles.at_ms[1:], strict=False)), (
            "they are sorted, one an instant"
        )
        before, path = self.file(candles.market, candles.interval), self._place(candles)
        held = None if before is None else read_file(before, market=candles.market, interval=candles.interval)
        merged, same, replaced = (candles, 0, 0) if held is None else merge(held, candles, replacing=replacing)
        part = None
        if held is None or same < len(candles) or before != path:
            part = parts.enter_context(_part(path, merged, is_alone=True))
        added = len(candles) - same - replaced
        return Written(path, len(merged), added, same, replaced, merged.at_ms[0], merged.at_ms[-1]), part

    def _prepare_stream(
        self, candles: CandleStream, parts: ExitStack, *, replacing: bool
    ) -> tuple[Written, Path | None]:
        """`_prepare` for candles that pass in portions: what the store has is read for the span of each portion."""
        before, path = self.file(candles.market, candles.interval), self._place(candles)
        counts = {"rows": 0, "same": 0, "replaced": 0, "first": 0, "last": 0}
        portions = self._merged(before, candles, counts, replacing=replacing)
        part = parts.enter_context(_part(path, portions, is_alone=True))
        added = candles.rows - counts["same"] - counts["replaced"]
        written = Written(
            path, counts["rows"], added, counts["same"], counts["replaced"], counts["first"], counts["last"]
        )
        return written, part

    def _merged(
        self, before: Path | None, candles: CandleStream, counts: dict[str, int], *, replacing: bool
    ) -> Iterator[Candles]:
        """The portions, with the stored candles before, between and after them. `counts` is filled as they pass."""

        def held(start_ms: int | None, end_ms: int | None) -> Candles | None:
            if before is None:
                return None
            stored = read_file(
                before, market=candles.market, interval=candles.interval, start_ms=start_ms, end_ms=end_ms
            )
            return stored if len(stored) else None

        def counted(portion: Candles) -> Candles:
            counts["first"] = counts["first"] if counts["rows"] else portion.at_ms[0]
            counts["last"] = portion.at_ms[-1]
            counts["rows"] += len(portion)
            return portion

        passing = candles.passing()
        portion = next(passing, None)
        if portion is not None and (earlier := held(None, portion.at_ms[0])) is not None:
            yield counted(earlier)
        while portion is not None:
            following = next(passing, None)
            stored = held(portion.at_ms[0], following.at_ms[0] if following is not None else None)
            if stored is None:
                yield counted(portion)
            else:
                merged, same, replaced = merge(stored, portion, replacing=replacing)
                counts["same"] += same
                counts["replaced"] += replaced
                yield counted(merged)
            portion = following

    def _mark_moved(self, path: Path) -> None:
        """Record that candles of a file have later times than at their source (`Candles.is_moved`)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(moved_mark(path), mode=0o644) as file:
            file.write(b"Some of these candles were moved forward to the grid of their interval.\n")

    def _put_in_place(self, candles: Candles | CandleStream, path: Path, part: Path) -> None:
        before = self.file(candles.market, candles.interval)
        _put_in_place(part, path)
        if before is not None and before != path:
            before.unlink()

    def put(self, candles: Candles, *, replacing: bool = False) -> Written:
        """Replace all candles of a market and interval.

        Conflict if the store has different ones and not `replacing`.
        """
        with self._alone():
            before = self.file(candles.market, candles.interval)
            if before is not None and not replacing:
                held = read_file(before, market=candles.market, interval=candles.interval)
                if held.digest() != candles.digest():
                    raise Conflict(
                        f"{before} holds {many(len(held), 'other candle')}; nothing was changed. Put the new ones in"
                        " their place with --replace, or choose another --store"
                    )
                return Written(before, len(held), 0, len(held), 0, held.at_ms[0], held.at_ms[-1])
            path = self._place(candles)
            moved_mark(path).unlink(missing_ok=True)
            with _part(path, candles, is_alone=True) as part:
                self._put_in_place(candles, path, part)
            if currency_of(candles.market) is not None:
                # Generated prices are in USD.
                converted_mark(path).touch()
        return Written(path, len(candles), len(candles), 0, 0, candles.at_ms[0], candles.at_ms[-1])

    def write_beside(self, market: str, name: str, text: str) -> Path:
        """Write a text file into the folder of a market. A reader sees either the old file or the new one."""
        path = own_file(self.root, f"{folder_of_market(market)}/{name}")
        with self._alone():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, mode=0o644) as file:
                file.write(text.encode())
        return path

    def _place(self, candles: Candles | CandleStream) -> Path:
        suffix = ".parquet" if column_files.has_research() else ".csv.gz"
        return self.root / folder_of_market(candles.market) / f"{candles.interval}{suffix}"

    def _files(self) -> list[tuple[str, str, Path]]:
        try:
            return store_files(self.root)
        except OSError as error:
            raise ConfigError(f"{self.root}: cannot be read: {error.strerror}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the store, because another writer must not change it between reading and writing back."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with own_file(self.root, ".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            why = f"{error.filename or self.root}: cannot be written: {error.strerror or error}"
            raise BotError(f"{why}; the old candles are unchanged. Choose another folder with --store") from None


def merge(held: Candles, more: Candles, *, replacing: bool = False) -> tuple[Candles, int, int]:
    """Merge both.

    Returns the candles, the number of `more` that were stored already, and the number of replaced ones. Conflict unless
    `replacing`.
    """
    overlap = held.slice(more.at_ms[0], more.at_ms[-1] + 1)
    if not len(overlap):
        first, last = (held, more) if held.at_ms[-1] < more.at_ms[0] else (more, held)
        return _after(first, last), 0, 0
    rows = {at: index for index, at in enumerate(overlap.at_ms)}
    same, other = 0, []
    for index, at in enumerate(more.at_ms):
        was = rows.get(at)
        if was is None:
            continue
        if all(old[was] == new[index] for old, new in zip(overlap.columns[1:], more.columns[1:], strict=True)):
            same += 1
        else:
            other.append((was, index))
    if other and not replacing:
        shown = "\n".join(
            f"  {iso(more.at_ms[new])}: {_values(overlap, old)} in the store, {_values(more, new)} now"
            for old, new in other[:CONFLICTS_SHOWN]
        )
        rest = f"\n  and {len(other) - CONFLICTS_SHOWN:,} more" if len(other) > CONFLICTS_SHOWN else ""
        raise Conflict(
            f"{held.market} {held.interval}: {many(len(other), 'candle')} {'is' if len(other) == 1 else 'are'} in the"
            " store with other values; nothing was changed. Take the new ones with --replace, or keep them apart with"
            f" another --store\n{shown}{rest}"
        )
    if same == len(more):
        return held, same, 0
    new_rows = set(more.at_ms)
    kept = [index for index, at in enumerate(overlap.at_ms) if at not in new_rows]
    middle = _after(overlap.pick(kept), more)
    order = sorted(range(len(middle)), key=middle.at_ms.__getitem__)
    before, after = held.slice(None, more.at_ms[0]), held.slice(more.at_ms[-1] + 1, None)
    return _after(_after(before, middle.pick(order)), after), same, len(other)


def _values(candles: Candles, index: int) -> str:
    return "/".join(_text(column[index]) for column in candles.columns[1:])


def _after(first: Candles, last: Candles) -> Candles:
    columns = [a + b for a, b in zip(first.columns, last.columns, strict=True)]
    at_ms, opens, highs, lows, closes, volumes = columns
    return replace(first, at_ms=at_ms, open=opens, high=highs, low=lows, close=closes, volume=volumes, parts=())


# ── Files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_file(path: Path, candles: Candles) -> None:
    """Write candles as Parquet or CSV, by the ending of the name. A reader sees either the old file or the new one."""
    with _part(path, candles) as part:
        _put_in_place(part, path)


@contextmanager
def _part(path: Path, candles: Candles | Iterator[Candles], *, is_alone: bool = False) -> Iterator[Path]:
    """Write the candles, or their portions, to a temporary file beside `path`; delete it at the end if it was not moved
    to `path`. With `is_alone` (the store is locked), delete what a killed writer has left.
    """
    portions = iter([candles]) if isinstance(candles, Candles) else candles
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*{PART}") if is_alone else ():
        left.unlink(missing_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with part.open("wb") as file:
            if column_files.is_parquet(path):
                _write_parquet(file, portions)
            else:
                _write_csv(file, portions, zipped=path.name.endswith(".gz"))
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)


def _put_in_place(part: Path, path: Path) -> None:
    part.replace(path)
    sync(path.parent)


def _write_parquet(file: IO[bytes], portions: Iterator[Candles]) -> None:
    """Write Parquet. Several portions are written one by one, and put together without holding them all."""
    first, second = next(portions), next(portions, None)
    # Polars reports a full disk as its own kind of error.
    buffer = io.BytesIO()
    if second is None:
        _frame(first).write_parquet(buffer, compression="zstd")
        file.write(buffer.getbuffer())
        return
    pl = column_files.research()
    with TemporaryDirectory(dir=Path(file.name).parent, prefix=".", suffix=PART) as folder:
        files = []
        for number, portion in enumerate(chain([first, second], portions)):
            files.append(Path(folder) / f"{number}.parquet")
            with files[-1].open("wb") as portion_file:
                _frame(portion).write_parquet(buffer := io.BytesIO(), compression="zstd")
                portion_file.write(buffer.getbuffer())
        whole = Path(folder) / "whole.parquet"
        try:
            pl.scan_parquet(files, glob=False).sink_parquet(whole, compression="zstd")
        except pl.exceptions.PolarsError as error:
            raise BotError(f"{file.name}: cannot be written: {str(error).splitlines()[0]}") from None
        with whole.open("rb") as source:
            copyfileobj(source, file)


def _frame(candles: Candles) -> Any:
    pl = column_files.research()
    import numpy as np

    kinds: dict[str, Any] = {"q": np.int64, "d": np.float64}
    return pl.DataFrame(
        {
            name: pl.Series(name, np.frombuffer(column, dtype=kinds[column.typecode]))
            for name, column in zip(COLUMNS, candles.columns, strict=True)
        }
    )


def _write_csv(file: IO[bytes], portions: Iterator[Candles], *, zipped: bool) -> None:
    """Write CSV, gzipped or not. The same candles give the same bytes."""
    with (
        gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) if zipped else nullcontext(file)
    ) as stream:
        stream.write((",".join(COLUMNS) + "\n").encode())
        for candles in portions:
            for start in range(0, len(candles), CSV_ROWS):
                cells = [_texts(column[start : start + CSV_ROWS]) for column in candles.columns]
                stream.write(("\n".join(map(",".join, zip(*cells, strict=True))) + "\n").encode())


def _texts(column: array[Any]) -> Sequence[str]:
    return list(map(str, column)) if column.typecode == "q" else [_text(value) for value in column]


def _text(value: float) -> str:
    """The shortest decimal text that gives the same float; without exponent."""
    text = repr(value)
    if "e" in text:
        return format(Decimal(text), "f")
    return text.removesuffix(".0")

"""Import files into the store: read, check and write them, a large file in portions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bot.cli.common.formatting import say_left_out
from bot.cli.data.file_reading import FileRead, read_files, say_unclosed, streams_read

if TYPE_CHECKING:
    from bot.backtest.data.candles import Candles
    from bot.backtest.data.findings import AuditReport, DataFinding
    from bot.backtest.data.store import Written
    from bot.backtest.data.table_layout import ColumnMap


class ImportTarget(NamedTuple):
    """The store, and which faults are taken into it."""

    store: Path
    accept: tuple[str, ...]
    hours: str | None
    replacing: bool
    # files of rates for candles in another currency, as [EURUSD=]FILE
    rates: tuple[str, ...] = ()


class ImportedSeries(NamedTuple):
    """The candles of one market and interval after an import, with a report for each portion of them."""

    market: str
    interval: str
    written: Written
    reports: tuple[AuditReport, ...]
    # None: they were too many for the memory; then `left` has the faults that the portions have in the store
    candles: Candles | None
    left: tuple[DataFinding, ...] = ()

    def faults(self, store: Path) -> tuple[DataFinding, ...]:
        """The faults of all candles that the store has now; of a large file, those of its own."""
        from bot.backtest.data.quality import audit
        from bot.backtest.data.store import Store

        if self.candles is None:
            return self.left
        is_all = self.written.rows == len(self.candles)
        held = self.candles if is_all else Store(store).read(self.market, self.interval)
        assert held is not None, "it was written just now"
        return audit(held).faults


class Imported(NamedTuple):
    shown: list[FileRead]
    series: list[ImportedSeries]


def import_files_of(
    files: Sequence[Path], mapped: ColumnMap, market: str | None, target: ImportTarget, *, show_progress: bool
) -> Imported:
    """Import all files, or none. A file of many rows passes in portions, unless it must be read as a whole."""
    from bot.backtest.data.candle_stream import PORTION_ROWS, NeedsWholeFileError

    said: set[str] = set()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            say_left_out(line)

    run = partial(_import, files, mapped, market, target, answers={}, say=say, show_progress=show_progress)
    try:
        return run(rows_max=PORTION_ROWS)
    except NeedsWholeFileError:
        return run(rows_max=None)


def _import(
    files: Sequence[Path],
    mapped: ColumnMap,
    market: str | None,
    target: ImportTarget,
    *,
    answers: dict[tuple[str, ...], Mapping[str, Any]],
    say: Callable[[str], None],
    show_progress: bool,
    rows_max: int | None,
) -> Imported:
    from bot.backtest.data.importers import closed
    from bot.backtest.data.quality import audit, checked
    from bot.backtest.data.store import Store
    from bot.clock import SystemClock

    read = read_files(files, mapped, market, answers=answers, say=say, show_progress=show_progress, rows_max=rows_max)
    markets = {part.market for part in read.candles} | {stream.market for stream in read.streams}
    into_usd = _converter(target.rates, markets, say)
    mended, reports = checked(map(into_usd, read.candles), accept=target.accept, hours=target.hours)
    now_ms = SystemClock().now_ms()

    of_streams: list[tuple[list[AuditReport], list[DataFinding]]] = [([], []) for _ in read.streams]

    def check(left: list[DataFinding], portion: Candles) -> tuple[Candles, AuditReport]:
        converted = into_usd(portion)
        (taken,), (report,) = checked([converted], accept=target.accept, hours=target.hours)
        left += (report if taken is converted else audit(taken)).faults
        return taken, report

    passing = [
        stream.checked(partial(check, left), lambda portion: closed(portion, now_ms), its_reports)
        for stream, (its_reports, left) in zip(read.streams, of_streams, strict=True)
    ]
    written = Store(target.store).write_all([*mended, *passing], replacing=target.replacing, are_in_usd=True)
    series = [
        ImportedSeries(item.market, item.interval, done, (report,), item)
        for item, done, report in zip(mended, written, reports, strict=False)
    ]
    series += [
        ImportedSeries(item.market, item.interval, done, tuple(its_reports), None, tuple(left))
        for item, done, (its_reports, left) in zip(passing, written[len(mended) :], of_streams, strict=True)
    ]
    for (file, _), stream in zip(read.of_streams, read.streams, strict=True):
        say_unclosed(file, stream.dropped, say)
    return Imported([*read.shown, *streams_read(read, passing)], series)


def _converter(given: Sequence[str], markets: Set[str], say: Callable[[str], None]) -> Callable[[Candles], Candles]:
    """What makes candles of these markets USD. `given`: files of rates, as [EURUSD=]FILE. ConfigError for a rate that
    nothing needs.
    """
    from bot.backtest.data.conversion import currency_of, in_usd
    from bot.backtest.data.table_layout import ColumnMap
    from bot.errors import ConfigError
    from bot.service.market_data.instruments import added_listings

    needed = {str(added_listings()[market].rate) for market in markets if currency_of(market) is not None}
    if given and not needed:
        raise ConfigError(
            "--rate converts candles of markets whose listing has another currency, and these are in USD; leave it out"
        )
    only = next(iter(needed)) if len(needed) == 1 else None
    rates: dict[str, Candles] = {}
    for text in given:
        named = only if "=" not in text else None
        read = read_files([Path(text)], ColumnMap({}), named, answers={}, say=say, show_progress=False, rows_max=None)
        best = min(read.candles, key=lambda part: part.step_ms)
        if best.market not in needed:
            raise ConfigError(f"--rate {best.market}: no listing names it; needed is {', '.join(sorted(needed))}")
        rates[best.market] = best
    return partial(in_usd, rates=rates)

"""Candles that are too many for the memory: they pass in portions, once, in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from bot.backtest.data.candles import Candles, join
from bot.backtest.data.findings import AuditReport

# The most rows of a file that are held as a whole, and of each portion of a larger one: about 6 MB.
PORTION_ROWS: Final = 100_000
# Faults that are mended by candles of other portions.
ACROSS: Final = frozenset(["unsorted", "duplicate", "off_grid"])


class NeedsWholeFileError(Exception):
    """A file cannot be taken in portions: its rows are out of order, or a fault concerns two portions."""


@dataclass(slots=True)
class CandleStream:
    """Candles of one market and interval. The counts are those of the portions that have passed."""

    market: str
    interval: str
    portions: Iterable[Candles]
    rows: int = 0
    first_ms: int = 0
    last_ms: int = 0
    is_moved: bool = False
    # candles that were left out, because they are not closed
    dropped: int = 0

    def __len__(self) -> int:
        return self.rows

    def passing(self) -> Iterator[Candles]:
        """The portions, each counted as it passes. NeedsWholeFileError if one begins before another has ended."""
        for portion in self.portions:
            if not len(portion):
                continue
            if self.rows and portion.at_ms[0] <= self.last_ms:
                raise NeedsWholeFileError
            self.first_ms = self.first_ms if self.rows else portion.at_ms[0]
            self.last_ms = portion.at_ms[-1]
            self.rows += len(portion)
            self.is_moved = self.is_moved or portion.is_moved
            yield portion

    def checked(
        self,
        check: Callable[[Candles], tuple[Candles, AuditReport]],
        closed: Callable[[Candles], Candles],
        reports: list[AuditReport],
    ) -> CandleStream:
        """This stream, with each portion closed and checked as it passes. The report of a check goes to `reports`."""
        return CandleStream(self.market, self.interval, self._checked(check, closed, reports))

    def _checked(
        self,
        check: Callable[[Candles], tuple[Candles, AuditReport]],
        closed: Callable[[Candles], Candles],
        reports: list[AuditReport],
    ) -> Iterator[Candles]:
        last: Candles | None = None
        for portion in self.passing():
            ended = closed(portion)
            self.dropped += len(portion) - len(ended)
            if not len(ended):
                continue
            # With the last candle before them, so that a gap between two portions is seen.
            mended, report = check(ended if last is None else join([last, ended]))
            if ACROSS & {item.kind for item in report.findings}:
                raise NeedsWholeFileError
            reports.append(report)
            last = ended.slice(ended.at_ms[-1])
            yield mended.slice(ended.at_ms[0])

"""Payments of an account, each reported once, from messages and reads that may repeat them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from bot.clock import HOUR_MS
from bot.exchanges.hyperliquid.fill_record import OVERLAP_MS
from bot.exchanges.protocol import UnknownForm


class KeyedReport(Protocol):
    """A report that has the same key in each copy."""

    @property
    def at_ms(self) -> int: ...

    @property
    def key(self) -> Hashable: ...


Report = TypeVar("Report", bound=KeyedReport)


class RowRecord(Generic[Report]):
    """The reports after `begin_ms`. No chain shows that one is lost, so every read goes back far enough to find it."""

    def __init__(self, begin_ms: int) -> None:
        self.verified_ms = begin_ms
        # It never goes back, because reports before it are forgotten: read again, they would be reported again.
        self._read_from_ms = begin_ms + 1
        self._known: dict[Hashable, Report] = {}

    @property
    def read_from_ms(self) -> int:
        """Where the next read begins. Copies of older reports are dropped."""
        return max(self._read_from_ms, self.verified_ms - OVERLAP_MS)

    def hear(self, report: Report) -> list[Report]:
        """Take one message. Returns the report if it is new."""
        known = self._known.get(report.key)
        if known is not None:
            _check_copy(known, report)
            return []
        if report.at_ms < self.read_from_ms:
            return []
        self._known[report.key] = report
        return [report]

    def read(self, reports: Iterable[Report], read_ms: int) -> list[Report]:
        """Take all reports from `read_from_ms` to `read_ms`, as the exchange has them. Returns the new ones."""
        fresh = [new for report in sorted(reports, key=lambda report: report.at_ms) for new in self.hear(report)]
        self.verified_ms = max(self.verified_ms, read_ms)
        self._read_from_ms = self.read_from_ms
        # The instants of two copies may differ a little, so those about the border are kept.
        border_ms = self._read_from_ms - HOUR_MS
        self._known = {key: report for key, report in self._known.items() if report.at_ms >= border_ms}
        return fresh


def _check_copy(known: Any, report: Any) -> None:
    """UnknownForm if a second copy says something else than the first."""
    if known != replace(report, at_ms=known.at_ms):
        raise UnknownForm(
            f"the exchange told one payment with two contents, {known} and {report}; compare both with the exchange's"
            " own page before you trade on"
        )

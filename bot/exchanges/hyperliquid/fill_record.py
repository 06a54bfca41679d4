"""The fills of an account, each booked once, from messages that may be lost, late, repeated or reordered. Pure.

A message is booked at once if it starts at the position that the fills before it have left. Otherwise it waits for a
read of all fills since the instant that the last read has verified. Messages never move that instant: a lost pair of
fills that leaves the position as it was breaks no chain, and only the next read finds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from bot.clock import MINUTE_MS
from bot.exchanges.hyperliquid.fill_order import check_copy, in_order
from bot.exchanges.protocol import ExecutionReport

# Answers of the exchange may be older than its messages, by about 1.2 s; a read goes back further than that.
OVERLAP_MS: Final = 10 * MINUTE_MS
# A fill whose predecessor is late waits so long before a read is due.
PATIENCE_MS: Final = 500
# A read is due so long after the last one.
READ_EVERY_MS: Final = 5 * MINUTE_MS

Key = tuple[str, int, int, int]


class FillRecord:
    """Books the fills after `begin_ms` once. `positions`: those after all fills up to and at that instant.

    A market that is not named has no position.
    """

    def __init__(self, begin_ms: int, positions: Mapping[str, int]) -> None:
        self.verified_ms = begin_ms
        # It never goes back, because fills before it are forgotten: read again, they would be booked again.
        self._read_from_ms = begin_ms + 1
        # The position of each market before the first of the recent fills, and after the last booked one.
        self._before: dict[str, int] = dict(positions)
        self._positions: dict[str, int] = dict(positions)
        # Booked fills that a read can still bring again.
        self._recent: dict[Key, ExecutionReport] = {}
        # Fills that cannot be booked yet, and when each was heard.
        self._waiting: dict[Key, tuple[ExecutionReport, int]] = {}

    @property
    def read_from_ms(self) -> int:
        """Where the next read begins.

        Older fills are verified or from before the record, and copies of them are dropped.
        """
        return max(self._read_from_ms, self.verified_ms - OVERLAP_MS)

    def position(self, market: str) -> int:
        """The signed size after the booked fills."""
        return self._positions.get(market, 0)

    @property
    def markets(self) -> set[str]:
        """The markets of all fills, and of the positions that the record began with."""
        return set(self._positions)

    def has_fill_of(self, order_id: str) -> bool:
        """True if a fill of this order is known, booked or waiting."""
        waiting = (report for report, _ in self._waiting.values())
        return any(report.order_id == order_id for report in (*self._recent.values(), *waiting))

    def is_read_due(self, now_ms: int) -> bool:
        """True if a fill has waited too long for the one before it, or the last read is too old."""
        is_late = any(now_ms - heard_ms >= PATIENCE_MS for _, heard_ms in self._waiting.values())
        return is_late or now_ms - self.verified_ms >= READ_EVERY_MS

    def hear(self, report: ExecutionReport, now_ms: int) -> list[ExecutionReport]:
        """Take one message.

        Returns the fills to book now, in order: none, this one, or also some that waited for it.
        """
        if self._is_known(report) or report.at_ms < self.read_from_ms:
            return []
        self._waiting[report.key] = (report, now_ms)
        booked: list[ExecutionReport] = []
        while (fitting := self._fitting(report.market)) is not None:
            del self._waiting[fitting.key]
            self._recent[fitting.key] = fitting
            self._positions[fitting.market] = fitting.position_after
            booked.append(fitting)
        return booked

    def _is_known(self, report: ExecutionReport) -> bool:
        known = self._recent.get(report.key) or self._waiting.get(report.key, (None, 0))[0]
        if known is None:
            return False
        check_copy(known, report)
        return True

    def _fitting(self, market: str) -> ExecutionReport | None:
        """The first waiting fill that starts at the position of its market, and is not older than a booked one."""
        newest_ms = max((report.at_ms for report in self._recent.values() if report.market == market), default=0)
        fitting = (
            report
            for report, _ in self._waiting.values()
            if report.market == market and report.position_before == self.position(market) and report.at_ms >= newest_ms
        )
        return min(fitting, key=lambda report: (report.at_ms, report.trade_id), default=None)

    def read(self, reports: Iterable[ExecutionReport], read_ms: int, now_ms: int) -> list[ExecutionReport]:
        """Take all fills from `read_from_ms` to `read_ms`, as the exchange has them. Returns the fills to book now.

        Fills of a market are booked as far as they chain, together with those that are booked already.
        """
        for report in reports:
            if report.at_ms >= self.read_from_ms and not self._is_known(report):
                self._waiting[report.key] = (report, now_ms)
        chains: defaultdict[str, list[ExecutionReport]] = defaultdict(list)
        waiting = (report for report, _ in self._waiting.values())
        for report in in_order([*self._recent.values(), *waiting], self._before):
            chains[report.market].append(report)
        booked: list[ExecutionReport] = []
        for market, chain in chains.items():
            booked += self._book(market, chain)
        booked.sort(key=lambda report: report.at_ms)
        self.verified_ms = min([read_ms, *(report.at_ms for report, _ in self._waiting.values())])
        self._read_from_ms = self.read_from_ms
        self._forget(chains)
        return booked

    def _book(self, market: str, chain: list[ExecutionReport]) -> list[ExecutionReport]:
        """Book the fills of a market up to the first gap; none if a booked fill lies beyond the gap."""
        position, whole = self._before.get(market, 0), 0
        for report in chain:
            if report.position_before != position:
                break
            position, whole = report.position_after, whole + 1
        if any(report.key in self._recent for report in chain[whole:]):
            return []
        fresh = [report for report in chain[:whole] if report.key not in self._recent]
        for report in fresh:
            del self._waiting[report.key]
            self._recent[report.key] = report
        self._positions[market] = position
        return fresh

    def _forget(self, chains: Mapping[str, list[ExecutionReport]]) -> None:
        """Forget booked fills that no read brings again."""
        for market, chain in chains.items():
            for report in chain:
                if report.at_ms < self.read_from_ms and self._recent.pop(report.key, None) is not None:
                    self._before[market] = report.position_after

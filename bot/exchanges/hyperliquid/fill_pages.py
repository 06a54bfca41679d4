"""Reads all fills of a range of time by pages of `userFillsByTime`. Pure: the caller sends the requests."""

from __future__ import annotations

from typing import Any, Final

from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.json_rows import rows_of
from bot.exchanges.protocol import ExecutionReport, UnknownForm

# Rows of a page that was cut: the documentation names both. Only a page shorter than both is surely the last.
PAGE_SIZES: Final = (500, 2_000)
# The exchange keeps only the newest 10,000 fills of an address.
KEPT: Final = 10_000
NAME: Final = "userFillsByTime"


class FillPages:
    """The pages of one range. Send `query` until it is None, and give each answer to `take`."""

    def __init__(self, user: str, start_ms: int, end_ms: int, *, page_sizes: tuple[int, ...] = PAGE_SIZES) -> None:
        self.found: list[ExecutionReport] = []
        self._user = user
        self.query: dict[str, Any] | None = {"type": NAME, "user": user, "startTime": start_ms, "endTime": end_ms}
        self._page_sizes = page_sizes
        self._keys: set[tuple[Any, ...]] = set()

    @property
    def is_cut(self) -> bool:
        """True if older fills of the range may be missing, because the exchange does not keep them."""
        return len(self._keys) >= KEPT

    def take(self, answer: Any) -> None:
        """Use one answer. UnknownForm if it is malformed, or if more fills have one instant than a page has rows."""
        assert self.query is not None
        rows = list(rows_of(answer, NAME))
        reports = form.fills(answer, self._user, NAME)
        keys = {(row.text("coin"), row.instant("time"), row.whole("tid"), row.text("startPosition")) for row in rows}
        fresh = keys - self._keys
        self._keys |= keys
        self.found += reports
        if len(rows) < min(self._page_sizes):
            self.query = None
            return
        times = [row.instant("time") for row in rows]
        is_one_instant = min(times) == max(times)
        if not fresh or (is_one_instant and len(rows) in self._page_sizes):
            raise UnknownForm(
                f"{NAME}: a page of {len(rows)} fills does not reach beyond {min(times)} ms, so the fills after it"
                " cannot be read; choose a later --since"
            )
        # Oldest first since 2026, newest first before. A page repeats the last millisecond of the one before it, which
        # may be cut.
        if times[0] <= times[-1]:
            self.query |= {"startTime": max(times) + is_one_instant}
        else:
            self.query |= {"endTime": min(times)}

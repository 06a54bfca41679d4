"""Reads all rows of a range of time by pages. Pure: the caller sends the requests."""

from __future__ import annotations

from typing import Any, Final

from bot.exchanges.hyperliquid.json_rows import rows_of
from bot.exchanges.protocol import UnknownForm

# Rows of a page that was cut: the documentation names both. Only a page shorter than both is surely the last.
PAGE_SIZES: Final = (500, 2_000)


class RowPages:
    """The pages of one range. Send `query` until it is None, and give each answer to `take`."""

    def __init__(
        self, name: str, user: str, start_ms: int, end_ms: int, *, page_sizes: tuple[int, ...] = PAGE_SIZES
    ) -> None:
        # All rows, some of them several times.
        self.rows: list[Any] = []
        self.query: dict[str, Any] | None = {"type": name, "user": user, "startTime": start_ms, "endTime": end_ms}
        self._name = name
        self._page_sizes = page_sizes
        self._seen: set[str] = set()

    def take(self, answer: Any) -> None:
        """Use one answer. UnknownForm if it is malformed, or if more rows have one instant than a page has."""
        assert self.query is not None
        rows = list(rows_of(answer, self._name))
        fresh = {row.content() for row in rows} - self._seen
        self._seen |= fresh
        self.rows += answer
        if len(rows) < min(self._page_sizes):
            self.query = None
            return
        times = [row.instant("time") for row in rows]
        is_one_instant = min(times) == max(times)
        if not fresh or (is_one_instant and len(rows) in self._page_sizes):
            raise UnknownForm(
                f"{self._name}: a page of {len(rows)} rows does not reach beyond {min(times)} ms, so the rows after it"
                " cannot be read; choose a later --since"
            )
        # Oldest first since 2026, newest first before. A page repeats the last millisecond of the one before it, which
        # may be cut.
        if times[0] <= times[-1]:
            self.query |= {"startTime": max(times) + is_one_instant}
        else:
            self.query |= {"endTime": min(times)}

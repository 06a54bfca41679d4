"""Reads all fills of a range of time by pages of `userFillsByTime`. Pure: the caller sends the requests."""

from __future__ import annotations

from typing import Any, Final

from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.row_pages import PAGE_SIZES, RowPages
from bot.exchanges.protocol import ExecutionReport

# The exchange keeps only the newest 10,000 fills of an address.
KEPT: Final = 10_000
NAME: Final = "userFillsByTime"


class FillPages(RowPages):
    """The pages of the fills of one range. A malformed fill is named by its place in the answer that has it."""

    def __init__(self, user: str, start_ms: int, end_ms: int, *, page_sizes: tuple[int, ...] = PAGE_SIZES) -> None:
        super().__init__(NAME, user, start_ms, end_ms, page_sizes=page_sizes)
        self.fills: list[ExecutionReport] = []
        self._user = user

    @property
    def is_cut(self) -> bool:
        """True if older fills of the range may be missing, because the exchange does not keep them."""
        return len(self._seen) >= KEPT

    def take(self, answer: Any) -> None:
        self.fills += form.fills(answer, self._user, NAME)
        super().take(answer)

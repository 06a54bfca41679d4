"""Which quotes of a source become prices. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Final

from bot.market_data.source import Quote

JUMP_MAX: Final = 0.05  # of the price in one tick; a larger move needs a second quote that confirms it
PX_MAX: Final = 10**9  # in the quote currency; no market is near it

REASONS: Final = ("no_price", "crossed", "out_of_order", "jump")


class QuoteFilter:
    """The quotes of one market in the order in which they came. `refused` counts the quotes that gave no price, by reason."""

    def __init__(self, jump_max: float = JUMP_MAX) -> None:
        self.refused: Counter[str] = Counter()
        self._jump_max = jump_max
        self._last: int | None = None
        self._last_ms = 0
        self._held: int | None = None

    def price(self, quote: Quote) -> int | None:
        """The price of a quote, scaled 1e8: the mid of bid and ask, else the last trade. None for a quote that is refused or held."""
        px = _price(quote)
        reason = px if isinstance(px, str) else None
        if reason is None and quote.at_ms is not None and quote.at_ms < self._last_ms:
            reason = "out_of_order"
        if reason is None:
            assert isinstance(px, int)
            self._last_ms = quote.at_ms or self._last_ms
            if self._is_near(px, self._last) or (self._held is not None and self._is_near(px, self._held)):
                self._last, self._held = px, None
                return px
            self._held, reason = px, "jump"
        self.refused[reason] += 1
        return None

    def _is_near(self, px: int, other: int | None) -> bool:
        return other is None or abs(px - other) <= self._jump_max * other


def scaled(value: float) -> int:
    """A price or volume of a source, scaled 1e8. The float is read as the shortest decimal that gives it, which is the exchange's own text."""
    return int(Decimal(repr(value)).scaleb(8))


def _price(quote: Quote) -> int | str:
    """The price of one quote by itself, or the reason why it has none."""
    bid, ask, last = quote.bid, quote.ask, quote.last
    if bid is None or ask is None:
        return scaled(last) if last is not None and 0 < last < PX_MAX else "no_price"
    if not (0 < bid < PX_MAX and 0 < ask < PX_MAX):
        return "no_price"
    return "crossed" if bid > ask else (scaled(bid) + scaled(ask)) // 2

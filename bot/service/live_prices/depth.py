"""The venue's book in the shape of an exchange's book. Pure.

The venue's book has the same levels on both sides, evenly spaced, with sizes that grow evenly (see
`bot/venue/prices/book.py`). The first level has what the exchange has at its best price, and all levels together have
what the exchange has within their span: on each count of the side that has less.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bot.market_data.quote_filter import PX_MAX, scaled
from bot.market_data.source import Depth
from bot.venue.model.numbers import E8
from bot.venue.model.state import BOOK_LEVELS, VenueMarket

# The size of one level, in the base currency.
SIZE_MAX: Final = 10**12
STEPS: Final = BOOK_LEVELS - 1
# how often the growth counts in the sum of all levels
GROWTHS: Final = sum(range(BOOK_LEVELS))


class BookFields(NamedTuple):
    """Fields of the venue's command SetBook."""

    level_step: int
    level_size: int
    level_growth: int


def book_of(market: VenueMarket, depth: Depth) -> BookFields | None:
    """The book of a market in the shape of the exchange's.

    None if a side is empty, or if prices or sizes are not possible.
    """
    sides = [_side(depth.bids), _side(depth.asks)]
    bids, asks = sides
    if not bids or not asks or bids[0][0] >= asks[0][0]:
        return None
    mid = (bids[0][0] + asks[0][0]) // 2
    span = max(min(abs(side[-1][0] - side[0][0]) for side in sides), STEPS * market.tick(mid))
    total = min(sum(size for px, size in side if abs(px - side[0][0]) <= span) for side in sides)
    first = min(bids[0][1], asks[0][1], total // BOOK_LEVELS)
    first = max(market.lot, first - first % market.lot)
    growth = max(0, (total - BOOK_LEVELS * first) * E8 // (GROWTHS * first))
    return BookFields(max(1, span * E8 // (mid * STEPS)), first, growth)


def _side(levels: list[tuple[float, float]]) -> list[tuple[int, int]]:
    """One side scaled 1e8, best first; empty if something in it is not possible."""
    if not all(0 < px < PX_MAX and 0 <= size < SIZE_MAX for px, size in levels):
        return []
    return [(scaled(px), scaled(size)) for px, size in levels if size]

"""A model of the order book: half a spread, and twenty levels that grow with the distance from the mid. It refills at
each price point.

The parameters are fitted to the depths in venue.md 2.12. A half-spread of 0 and a `level_size` of 0 make a book without
cost, for oracles.
"""

from __future__ import annotations

from bot.venue.model.numbers import E8
from bot.venue.model.outcome import clamp
from bot.venue.model.state import CLOSED_DEPTH, VenueMarket


def level_px(market: VenueMarket, mid: int, buy: int, index: int) -> int:
    """Price of a level on the grid. Asks round up and bids round down, never in the taker's favour."""
    spec = market.spec
    off = spec.half_spread + index * spec.level_step
    if market.external == "closed":
        off += spec.half_spread * (CLOSED_DEPTH - 1)
    # Steps are fractions of the payout; the last valid price takes all further levels.
    if spec.margin_mode == "full":
        px = clamp(spec, mid + buy * off)
    elif not off:
        px = mid
    else:
        px = (mid * (E8 + buy * off) + (E8 - 1 if buy > 0 else 0)) // E8
    return market.grid_up(px) if buy > 0 else market.grid_down(px)


def walk(market: VenueMarket, mid: int, buy: int, size: int, bound_px: int | None = None) -> list[tuple[int, int]]:
    """Fills of a taker of `size` as [(px, size)], best first, at no price beyond `bound_px`.

    In total less than `size` if depth ends.
    """
    sizes = market.level_sizes
    # The usual case: the best level is enough.
    if not sizes or size <= sizes[0]:
        px = level_px(market, mid, buy, 0)
        return [(px, size)] if px > 0 and (bound_px is None or (bound_px - px) * buy >= 0) else []
    fills: list[tuple[int, int]] = []
    for index, deep in enumerate(sizes):
        px = level_px(market, mid, buy, index)
        if px <= 0 or (bound_px is not None and (bound_px - px) * buy < 0):
            break
        part = min(size, deep)
        if not part:
            continue
        if fills and fills[-1][0] == px:
            fills[-1] = (px, fills[-1][1] + part)
        else:
            fills.append((px, part))
        size -= part
        if not size:
            break
    return fills


def book(market: VenueMarket) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Bids and asks as [(px, size)], best first, at most 20 per side.

    A book without cost shows one level of a million USD per side.
    """
    sides: list[list[tuple[int, int]]] = []
    if market.status == "settled":
        return [], []
    for buy in (-1, 1):
        costless = max(market.lot, 1_000_000 * E8 * E8 // market.mid // market.lot * market.lot)
        size = sum(market.level_sizes) or costless
        sides.append(walk(market, market.mid, buy, size))
    return sides[0], sides[1]

"""Fully paid markets (events): what a Yes or a No share is worth, and the range of prices. Pure arithmetic;
settlement.py settles.

Long is Yes, bought at p; short is No, bought at 1 - p from the same book, so that P(Yes) + P(No) = 1. A share pays at
most 1 USD, and its buyer pays its whole cost at once. The most it can lose is that cost, so it is never liquidated and
pays no funding.
"""

from __future__ import annotations

from typing import Final

from bot.venue.model.numbers import E8
from bot.venue.model.state import MarketSpec

# USD that a winning share pays
PAYOUT: Final = E8
PX_MIN: Final = E8 // 1_000
PX_MAX: Final = PAYOUT - PX_MIN

Fills = list[tuple[int, int]]


def share_px(spec: MarketSpec, side: int, px: int) -> int:
    """Cost of one unit of this side at `px`: the price, or 1 USD less the price for a No share."""
    return PAYOUT - px if side < 0 and spec.margin_mode == "full" else px


def worth(spec: MarketSpec, side: int, px: int, size: int) -> int:
    """|Notional| of `size` of this side at `px`; for a fully paid position, its sale value."""
    return share_px(spec, side, px) * size // E8


def paid(spec: MarketSpec, side: int, fills: Fills) -> Fills:
    """The fills at the prices that an opener of this side pays."""
    if side > 0 or spec.margin_mode != "full":
        return fills
    return [(PAYOUT - px, size) for px, size in fills]


def cost(side: int, entry_notional: int, size: int) -> int:
    """The cost of a fully paid position, which is its margin."""
    return entry_notional if side > 0 else size - entry_notional


def clamp(spec: MarketSpec, px: int) -> int:
    """The price within 0.001..0.999 in a fully paid market; unchanged in other markets."""
    return px if spec.margin_mode != "full" else max(PX_MIN, min(PX_MAX, px))


def outcome_of(mark: int) -> int:
    """The outcome that the last price implies if none was set: the nearer of the two, Yes at exactly one half."""
    return PAYOUT if 2 * mark >= PAYOUT else 0

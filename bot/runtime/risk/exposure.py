"""How much of a position stays after a close, in USD."""

from __future__ import annotations

from decimal import Decimal


def _staying_usd(notional_usd: Decimal, size: Decimal, leaving: Decimal) -> Decimal:
    """What a position takes of a budget without what closes that wait are about to take of it."""
    return notional_usd if not leaving else notional_usd * max(size - leaving, Decimal(0)) / size

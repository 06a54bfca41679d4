"""How much of a position stays after a close, in USD."""

from __future__ import annotations

from decimal import Decimal


def staying_usd(notional_usd: Decimal, size: Decimal, leaving: Decimal) -> Decimal:
    """The part of a position's notional that stays after the closes that wait.

    `leaving` is the size that they close.
    """
    return notional_usd if not leaving else notional_usd * max(size - leaving, Decimal(0)) / size

"""A planned entry, as the function of `approve: file:function` gets it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Proposal:
    """An entry that the service has planned and that is not sent yet.

    `est_px` is the average price that the service expects.
    """

    strategy: str
    market: str
    side: str
    size: Decimal
    est_px: Decimal | None
    notional_usd: Decimal
    leverage: int | None
    stop_px: Decimal | None
    target_px: Decimal | None
    at_ms: int

"""What requests weigh, and how much of the limit of a minute is used. Pure.

The exchange allows each IP address a weight of 1,200 a minute. A part is kept for what protects a position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bot.clock import MINUTE_MS
from bot.exchanges.actions import Rank

WEIGHT_A_MINUTE: Final = 1_200
# Kept for the ranks up to CANCEL.
RESERVED: Final = 300
# How long reads wait after "too many requests": another program at this IP address uses the limit too.
REFUSED_WAIT_MS: Final = 10_000
OTHER_WEIGHT: Final = 20
WEIGHTS: Final[Mapping[str, int]] = {
    "l2Book": 2,
    "allMids": 2,
    "clearinghouseState": 2,
    "orderStatus": 2,
    "spotClearinghouseState": 2,
    "exchangeStatus": 2,
    "userRole": 60,
}
# Answers whose rows weigh besides: rows for a weight of one, and the most rows of an answer.
ROWS: Final[Mapping[str, tuple[int, int]]] = {
    "userFillsByTime": (20, 2_000),
    "userFunding": (20, 500),
    "userNonFundingLedgerUpdates": (20, 500),
    "fundingHistory": (20, 500),
    "candleSnapshot": (60, 5_000),
}


@dataclass(slots=True)
class Charge:
    """The weight of one request, at the instant at which it was sent."""

    at_ms: int
    weight: int


def weight_before(query: Mapping[str, Any]) -> int:
    """The most that an info request can weigh."""
    kind = query["type"]
    each, most = ROWS.get(kind, (1, 0))
    return WEIGHTS.get(kind, OTHER_WEIGHT) + most // each


def weight_after(query: Mapping[str, Any], answer: Any) -> int:
    """What an info request with this answer weighs."""
    kind = query["type"]
    each, most = ROWS.get(kind, (1, 0))
    rows = len(answer) if most and isinstance(answer, list) else 0
    return WEIGHTS.get(kind, OTHER_WEIGHT) + -(-rows // each)


class WeightWindow:
    """The weight of the last minute."""

    def __init__(self, most: int = WEIGHT_A_MINUTE) -> None:
        self.most = most
        self._charges: deque[Charge] = deque()
        self._refused_ms: int | None = None

    def used(self, now_ms: int) -> int:
        while self._charges and self._charges[0].at_ms <= now_ms - MINUTE_MS:
            self._charges.popleft()
        return sum(charged.weight for charged in self._charges)

    def wait_ms(self, rank: Rank, weight: int, now_ms: int) -> int:
        """How long a request of this rank and weight must wait; 0: it may be sent now."""
        used = self.used(now_ms)
        refused_ms = now_ms if self._refused_ms is None else self._refused_ms + REFUSED_WAIT_MS
        pause_ms = max(0, refused_ms - now_ms) if rank > Rank.CANCEL else 0
        limit = self.most - (RESERVED if rank > Rank.CANCEL else 0)
        for charged in self._charges:
            if used + weight <= limit:
                break
            used -= charged.weight
            pause_ms = max(pause_ms, charged.at_ms + MINUTE_MS - now_ms)
        return pause_ms

    def charge(self, weight: int, now_ms: int) -> Charge:
        """Count a request that is sent now. Set the weight of the charge when the answer says it."""
        self._charges.append(Charge(now_ms, weight))
        return self._charges[-1]

    def refuse(self, now_ms: int) -> None:
        """The exchange has answered "too many requests"."""
        self._refused_ms = now_ms

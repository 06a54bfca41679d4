"""What the risk checks are asked and what they answer: limits of a strategy, a request, an approved order."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple

from bot.runtime.model.intents import Action, Path, Request
from bot.strategy import Intent as Signal

FRESH_INTERVALS: Final = 2  # a bar older than that is history, not a reason to trade


@dataclass(frozen=True, slots=True)
class StrategyLimits:
    """What one strategy may do."""

    strategy: str
    markets: frozenset[str]
    interval_ms: int
    budget_usd: Decimal
    max_leverage: int
    require_protection: bool = True
    path: Path = "plan"
    daily_loss_usd: Decimal | None = None
    nets: bool = False  # it may share a market: what it holds is its share, not the position


class RiskRequest(NamedTuple):
    """One wish of a strategy and the moment that it is judged at. `at_ms` is when its cause became visible."""

    signal: Signal
    at_ms: int
    now_ms: int
    price: Decimal | None = None
    closing: frozenset[str] = frozenset()  # markets that the same decision has closed before


class ApprovedOrder(NamedTuple):
    """The gate's yes: the request as it will leave."""

    request: Request
    action: Action
    market: str
    path: Path
    notional_usd: Decimal = Decimal(0)

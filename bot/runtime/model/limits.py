"""Values of the risk checks: the limits of a strategy, a request, an approved order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple

from bot.runtime.model.intents import Action, Path, Request
from bot.runtime.model.protection_rules import ProtectionRule
from bot.strategy import Intent as Signal
from bot.strategy import Proposal

# intervals; an older bar is not a reason to trade
FRESH_INTERVALS: Final = 2


@dataclass(frozen=True, slots=True)
class Approval:
    """Which entries need an agreement: those above `above_usd`.

    A person gives it, or the function `policy`, whose name is `policy_name`.
    """

    above_usd: Decimal = Decimal(0)
    policy: Callable[[Proposal], object] | None = None
    policy_name: str = ""


@dataclass(frozen=True, slots=True)
class StrategyLimits:
    """The limits of one strategy."""

    strategy: str
    markets: frozenset[str]
    interval_ms: int
    budget_usd: Decimal
    max_leverage: int
    require_protection: bool = True
    path: Path = "plan"
    daily_loss_usd: Decimal | None = None
    # None: nobody needs to agree
    approval: Approval | None = None
    # True: it may share a market, so it holds a share and not the whole position
    nets: bool = False
    # the protections of the strategy's own section
    protections: tuple[ProtectionRule, ...] = ()


class RiskRequest(NamedTuple):
    """One signal of a strategy, checked at `now_ms`. `at_ms` is when its cause became visible."""

    signal: Signal
    at_ms: int
    now_ms: int
    price: Decimal | None = None
    # markets that an earlier signal of the same decision closes
    closing: frozenset[str] = frozenset()


class ApprovedOrder(NamedTuple):
    """The risk engine's yes: the request as it will be sent."""

    request: Request
    action: Action
    market: str
    path: Path
    notional_usd: Decimal = Decimal(0)
    targets: str | None = None

"""From a config to the limits of one strategy: budget, leverage, markets, and which entries wait for an approval."""

from __future__ import annotations

from collections.abc import Mapping

from bot.config import Settings, StrategySettings
from bot.runtime.model.limits import Approval, StrategyLimits
from bot.runtime.strategy_host.loader import load_policy
from bot.wire import INTERVAL_MS


def limits_of(settings: Settings, one: StrategySettings) -> StrategyLimits:
    return StrategyLimits(
        strategy=one.name,
        markets=frozenset(one.markets),
        interval_ms=INTERVAL_MS[one.interval],
        budget_usd=one.budget_usd,
        max_leverage=one.max_leverage,
        require_protection=settings.safety.require_protection,
        path=settings.orders.path,
        daily_loss_usd=one.daily_loss_usd,
        nets=one.netting == "allow",
        approval=_approval_of(settings, one),
    )


def _approval_of(settings: Settings, one: StrategySettings) -> Approval | None:
    if isinstance(one.approve, Mapping):
        return Approval(above_usd=one.approve["above_usd"])
    if one.approve == "never":
        return None
    if one.approve == "always":
        return Approval()
    return Approval(policy=load_policy(one.approve, settings.strategies_dir), policy_name=one.approve)

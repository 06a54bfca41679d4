"""From a config to the limits of one strategy: budget, leverage, markets, and which entries wait for an approval."""

from __future__ import annotations

from collections.abc import Mapping

from bot.config import Settings, StrategySettings
from bot.runtime.model.limits import Approval, StrategyLimits
from bot.runtime.strategy_host.loader import load_policy
from bot.wire import INTERVAL_MS


def limits_of(settings: Settings, strategy: StrategySettings) -> StrategyLimits:
    return StrategyLimits(
        strategy=strategy.name,
        markets=frozenset(strategy.markets),
        interval_ms=INTERVAL_MS[strategy.interval],
        budget_usd=strategy.budget_usd,
        max_leverage=strategy.max_leverage,
        require_protection=settings.safety.require_protection,
        path=settings.orders.path,
        daily_loss_usd=strategy.daily_loss_usd,
        nets=strategy.netting == "allow",
        approval=_approval_of(settings, strategy),
    )


def _approval_of(settings: Settings, strategy: StrategySettings) -> Approval | None:
    if isinstance(strategy.approve, Mapping):
        return Approval(above_usd=strategy.approve["above_usd"])
    if strategy.approve == "never":
        return None
    if strategy.approve == "always":
        return Approval()
    return Approval(policy=load_policy(strategy.approve, settings.strategies_dir), policy_name=strategy.approve)

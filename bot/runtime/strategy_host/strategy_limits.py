"""From a config to the limits of one strategy: budget, leverage, markets, protections, and which entries wait for an
approval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from bot.config import Settings, StrategySettings
from bot.config.protections import Protection, ProtectionSettings, length_of
from bot.money import e16_of_decimal
from bot.runtime.model.limits import Approval, StrategyLimits
from bot.runtime.model.protection_rules import (
    COOLDOWN,
    LOW_PROFIT_MARKET,
    MAX_DRAWDOWN,
    MAX_ENTRIES,
    MAX_OPEN_POSITIONS,
    STOP_GUARD,
    Length,
    ProtectionRule,
    Scope,
)
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
        protections=protection_rules(
            strategy.protections, strategy=strategy.name, interval_ms=INTERVAL_MS[strategy.interval]
        ),
    )


def protection_rules(
    section: ProtectionSettings, *, strategy: str | None = None, interval_ms: int = 0
) -> tuple[ProtectionRule, ...]:
    """The rules of a section `protections`: of a strategy with its interval, or of the account."""

    def length(text: str) -> Length:
        written = length_of(text)
        return Length(written.ms(interval_ms), text, interval_ms if written.is_bars else 0)

    def rule(
        name: str, given: Protection, *, count: int = 1, usd: Decimal = Decimal(0), scope: Scope | None = None
    ) -> ProtectionRule:
        counted = scope or ("account" if strategy is None else "strategy")
        markets = frozenset(given.markets)
        return ProtectionRule(name, strategy, counted, markets, count=count, usd=e16_of_decimal(usd))

    rules: list[ProtectionRule] = []
    if (cooldown := section.cooldown) is not None:
        place, losses = cooldown.scope or "market", cooldown.only_losses
        rest = length(cooldown.length)
        rules.append(replace(rule(COOLDOWN, cooldown, scope=place), rest=rest, only_losses=losses))
    if (guard := section.stop_guard) is not None:
        stops, losses = rule(STOP_GUARD, guard, count=guard.stops, scope=guard.scope), guard.only_losses
        rules.append(replace(stops, within=length(guard.within), rest=length(guard.rest), only_losses=losses))
    if (entries := section.max_entries) is not None:
        rules.append(rule(MAX_ENTRIES, entries, count=entries.entries, scope=entries.scope))
    if (positions := section.max_open_positions) is not None:
        rules.append(rule(MAX_OPEN_POSITIONS, positions, count=positions.positions))
    if (low := section.low_profit_market) is not None:
        lost = rule(LOW_PROFIT_MARKET, low, count=low.trades, usd=low.below_usd, scope="market")
        rules.append(replace(lost, within=length(low.within), rest=length(low.rest)))
    if (fall := section.max_drawdown) is not None:
        fallen = rule(MAX_DRAWDOWN, fall, count=fall.trades, usd=fall.usd)
        rules.append(replace(fallen, within=length(fall.within), rest=length(fall.rest)))
    return tuple(rules)


def _approval_of(settings: Settings, strategy: StrategySettings) -> Approval | None:
    if isinstance(strategy.approve, Mapping):
        return Approval(above_usd=strategy.approve["above_usd"])
    if strategy.approve == "never":
        return None
    if strategy.approve == "always":
        return Approval()
    return Approval(policy=load_policy(strategy.approve, settings.strategies_dir), policy_name=strategy.approve)

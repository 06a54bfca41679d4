"""One run of the daemon as repairs see it: how far it is, what time its pass has, what is wrong with it, and what its
config demands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from bot.runtime.alerts.health import DaemonHealth
from bot.runtime.model.positions import AccountPosition
from bot.runtime.model.protection_rules import ProtectionRule
from bot.runtime.model.run_state import RunState
from bot.runtime.passes.pass_budget import PassBudget
from bot.runtime.reconciliation.guardians import WantedGuardian
from bot.runtime.reconciliation.schedule import RECONCILE_MS, ComparisonSchedule
from bot.runtime.risk.risk_engine import RiskEngine
from bot.runtime.strategy_host.host import StrategyHost


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """What the kernel needs of the config. `guardians` has the dead-man under the name DEAD_MAN when there is one."""

    guardians: Sequence[WantedGuardian] = ()
    # adopt | ignore | flatten
    foreign_positions: str = "ignore"
    # The stop of an adopted position that has none. None: the position is not adopted.
    adopted_stop_pct: Decimal | None = None
    reconcile_ms: int = RECONCILE_MS
    # For a position whose strategy no longer runs. The limits of the others say it too.
    require_protection: bool = True
    # the protections that count the trades of all strategies
    protections: tuple[ProtectionRule, ...] = ()


@dataclass(slots=True)
class DaemonRun:
    """`settings` change when the config is read again; the other parts stay the same objects for the whole run.

    `now_ms` is service time.
    """

    state: RunState
    budget: PassBudget
    health: DaemonHealth
    comparison: ComparisonSchedule
    settings: KernelSettings
    risk: RiskEngine
    strategy_host: StrategyHost
    now_ms: Callable[[], int]

    def requires_protection(self, position: AccountPosition) -> bool:
        """True if the config demands a stop for this position."""
        return self.requires_protection_of(position.owner)

    def requires_protection_of(self, owner: str | None) -> bool:
        """True if the config demands a stop for the positions of this strategy."""
        limits = self.risk.strategy_limits.get(owner or "")
        return self.settings.require_protection if limits is None else limits.require_protection

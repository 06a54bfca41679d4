"""What reconciliation works on: the parts of a run that it compares and repairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from bot.runtime.account.account import DaemonAccount
from bot.runtime.alerts.health import DaemonHealth
from bot.runtime.execution.execution_engine import EventReader, ExecutionEngine
from bot.runtime.execution.open_intents import OpenIntents
from bot.runtime.journal.journal import Journal
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.model.positions import AccountPosition
from bot.runtime.model.run_state import RunState
from bot.runtime.passes.pass_budget import PassBudget
from bot.runtime.passes.ports import VenuePort
from bot.runtime.reconciliation.guardians import Guardians
from bot.runtime.reconciliation.schedule import ComparisonSchedule
from bot.runtime.strategy_host.host import StrategyHost

if TYPE_CHECKING:
    from bot.runtime.account.account_state import AccountState
    from bot.runtime.account.ownership import OrderOwners, PositionOwners
    from bot.runtime.passes.ports import Pacer
    from bot.runtime.reconciliation.foreign_activity import ForeignActivity
    from bot.runtime.risk.risk_engine import RiskEngine


@dataclass(slots=True)
class RepairContext:
    """`events` is set right after the event consumer is built, which reads into this context."""

    port: VenuePort
    journal: Journal
    state: RunState
    account: DaemonAccount
    health: DaemonHealth
    budget: PassBudget
    execution: ExecutionEngine
    intents: OpenIntents
    guardians: Guardians
    strategy_host: StrategyHost
    foreign_activity: ForeignActivity
    comparison: ComparisonSchedule
    strategy_limits: Mapping[str, StrategyLimits]
    # what the config says about positions of others: adopt, ignore or flatten
    foreign_positions: str
    # distance of the stop of an adopted position that has none; None: it is not adopted
    adopted_stop_pct: Decimal | None
    # limits for a position whose strategy no longer runs
    require_protection: bool
    # service time
    now_ms: Callable[[], int]
    risk: RiskEngine
    events: EventReader = field(init=False)

    @property
    def account_state(self) -> AccountState:
        return self.account.account_state

    @property
    def order_owners(self) -> OrderOwners:
        return self.account.order_owners

    @property
    def position_owners(self) -> PositionOwners:
        return self.account.position_owners

    @property
    def pacer(self) -> Pacer:
        return self.budget.pacer

    def requires_protection(self, position: AccountPosition) -> bool:
        """True if the config demands a stop for this position."""
        return self.requires_protection_of(position.owner)

    def requires_protection_of(self, owner: str | None) -> bool:
        """True if the config demands a stop for the positions of this strategy."""
        limits = self.strategy_limits.get(owner or "")
        return self.require_protection if limits is None else limits.require_protection

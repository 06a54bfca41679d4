"""What reconciliation uses of the kernel: the parts that it compares and repairs, and the few things that it asks the kernel to do."""

from __future__ import annotations

from typing import Protocol

from bot.runtime.account.account_state import Mirror
from bot.runtime.account.ownership import OrderOwners, PositionOwners
from bot.runtime.alerts.health import Health
from bot.runtime.execution.execution_engine import ExecutionEngine
from bot.runtime.journal.journal import Journal
from bot.runtime.model.positions import MirrorPosition
from bot.runtime.pass_budget import PassBudget
from bot.runtime.ports import Pacer, VenuePort
from bot.runtime.reconciliation.guardians import Guardians
from bot.runtime.strategy_host.host import StrategyHost


class RepairContext(Protocol):
    """The kernel, as reconciliation sees it."""

    port: VenuePort
    journal: Journal
    mirror: Mirror
    health: Health
    pacer: Pacer
    budget: PassBudget
    execution: ExecutionEngine
    guardians: Guardians
    strategy_host: StrategyHost
    order_owners: OrderOwners
    position_owners: PositionOwners
    foreign_known: set[str]  # markets of positions that are nobody's of ours, and that were reported
    began_ms: int  # service time when this run began
    alone_since_ms: int  # service time from which only this run sends orders under its keys

    @property
    def foreign_positions(self) -> str:
        """What the config says about positions of others: adopt, ignore or flatten."""

    def now_ms(self) -> int:
        """Service time."""

    def compare_soon(self) -> None:
        """Bring the next comparison forward."""

    def requires_protection(self, position: MirrorPosition) -> bool:
        """True if the config demands a stop for this position."""

    async def drain(self) -> bool:
        """Read every event there is. False: not all of them could be read."""

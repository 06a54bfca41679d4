"""The second risk check, right before an entry is sent: the account may have changed since the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.runtime.model.intents import RUNTIME, Intent

if TYPE_CHECKING:
    from bot.errors import Refusal
    from bot.runtime.decisions.entry_conditions import EntryConditions
    from bot.runtime.passes.ports import PortClock
    from bot.runtime.risk.risk_engine import RiskEngine
    from bot.runtime.strategy_host.host import StrategyHost
    from bot.wire import Plan


class PreSendCheck:
    """Joins the risk engine, the conditions of the run and the strategy host for the order sender."""

    def __init__(self, risk: RiskEngine, conditions: EntryConditions, host: StrategyHost, clock: PortClock) -> None:
        self._risk = risk
        self._conditions = conditions
        self._host = host
        self._clock = clock

    def refusal(self, intent: Intent) -> Refusal | None:
        """Why an entry must not be sent now."""
        return (
            self._risk.may_still_open(intent, self._clock.now_ms())
            or self._host.no_entry(intent.strategy)
            or self._conditions.no_entry(intent.market, intent.trigger)
        )

    def own_refusal(self, intent: Intent) -> Refusal | None:
        """Why this strategy must not send an entry now, while others in its market may."""
        return self._host.no_entry(intent.strategy) or self._risk.of_its_own(intent, self._clock.now_ms())

    async def may_confirm(self, intent: Intent, plan: Plan) -> bool:
        """True if the strategy stands by its entry, given the plan."""
        return intent.strategy == RUNTIME or await self._host.may_confirm(intent.strategy, plan)

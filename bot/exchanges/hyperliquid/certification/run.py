"""Runs scenarios one after the other, each from an account without orders and positions, and cleans up after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bot.errors import BotError
from bot.exchanges.hyperliquid.certification.scenario import Observed, Scenario
from bot.exchanges.hyperliquid.certification.session import ContractSession, Exchanged, Unsettled
from bot.money import format_e8


@dataclass(frozen=True, slots=True)
class AssumptionResult:
    """What was seen of one assumption. `value` None: not known, for this reason."""

    assumption: str
    scenario: str
    value: str | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """What a scenario has shown, and what was sent and answered. `left`: what could not be cleaned up."""

    scenario: Scenario
    assumptions: tuple[AssumptionResult, ...]
    record: tuple[Exchanged, ...]
    left: str | None = None


@dataclass(slots=True)
class CertificationRun:
    """The scenarios that have run. `stopped` None: all of them. Amounts of USD are integers of 1e-8."""

    results: list[ScenarioResult] = field(default_factory=list)
    stopped: str | None = None
    cost: int = 0

    async def run(
        self,
        session: ContractSession,
        scenarios: Sequence[Scenario],
        cost_most: int,
        tell: Callable[[ScenarioResult], None],
    ) -> None:
        """Run the scenarios; `tell` hears of each at once. The run stops when it has cost more than it may, and when
        something is left open that cannot be cleaned up.
        """
        value = (await session.account.standing()).value
        for scenario in scenarios:
            self.results.append(await run_scenario(session, scenario))
            tell(self.results[-1])
            if (left := self.results[-1].left) is not None:
                self.stopped = f"{scenario.name} has left {left}"
                return
            self.cost = value - (await session.account.standing()).value
            if self.cost > cost_most:
                self.stopped = f"it has cost {format_e8(self.cost)} USD, and {format_e8(cost_most)} are allowed"
                return
        self.stopped = None


async def run_scenario(session: ContractSession, scenario: Scenario) -> ScenarioResult:
    """Run one scenario and clean up."""
    first = len(session.record)
    observed: Observed = {}
    reason = "the scenario did not show it"
    try:
        observed = await scenario.run(session)
    except (BotError, Unsettled) as error:
        reason = str(error)
    finally:
        # Also when the operator ends the run.
        left = await session.clean()
    shown = tuple(
        AssumptionResult(name, scenario.name, value := observed.get(name), None if value else reason)
        for name in scenario.shows
    )
    return ScenarioResult(scenario, shown, tuple(session.record[first:]), left)

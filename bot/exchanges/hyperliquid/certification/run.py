"""Runs scenarios one after the other, each from an account without orders and positions, and cleans up after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bot.errors import BotError
from bot.exchanges.hyperliquid.certification.scenario import Observed, Scenario
from bot.exchanges.hyperliquid.certification.session import ContractSession, Exchanged, Unsettled


@dataclass(frozen=True, slots=True)
class AssumptionResult:
    """What was seen of one assumption. `value` None: not known, for this reason."""

    assumption: str
    scenario: str
    value: str | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The findings of a scenario, and what was sent and answered. `left`: what could not be cleaned up."""

    findings: tuple[AssumptionResult, ...]
    record: tuple[Exchanged, ...]
    left: str | None = None


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
        left = await session.clean()
    findings = tuple(
        AssumptionResult(name, scenario.name, value := observed.get(name), None if value else reason)
        for name in scenario.shows
    )
    return ScenarioResult(findings, tuple(session.record[first:]), left)


async def run_all(
    session: ContractSession, scenarios: Sequence[Scenario], tell: Callable[[Scenario, ScenarioResult], None]
) -> list[ScenarioResult]:
    """Run scenarios until one leaves something open that cannot be cleaned up. `tell` hears of each at once."""
    results: list[ScenarioResult] = []
    for scenario in scenarios:
        results.append(await run_scenario(session, scenario))
        tell(scenario, results[-1])
        if results[-1].left is not None:
            break
    return results

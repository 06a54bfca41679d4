"""The contract with the exchange: each scenario of `bot exchange certify`, run against the local exchange."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from bot.exchanges.hyperliquid.certification.assumptions import ASSUMPTIONS, BY_NAME, NOT_SHOWN
from bot.exchanges.hyperliquid.certification.contract import SCENARIOS
from bot.exchanges.hyperliquid.certification.run import run_scenario
from bot.exchanges.hyperliquid.certification.scenario import Scenario
from bot.local_exchange.switches import SWITCHES, drawn
from tests.local_exchange.contract_access import AGENT, SHOWN, VALUES, VenueAccess, contract_venue, session_of
from tests.local_exchange.exchanges import ANN, Venue


def is_empty(venue: Venue) -> bool:
    states = [venue.info("clearinghouseState", user=ANN, dex=dex)["assetPositions"] for dex in ("", "xyz")]
    return not venue.exchange.users[ANN].orders and states == [[], []]


def run(venue: Venue, scenario: Scenario, folder: Path) -> dict[str, str | None]:
    result = asyncio.run(run_scenario(session_of(venue, folder), scenario))
    assert result.left is None and is_empty(venue)
    return {known.assumption: known.value or known.reason for known in result.assumptions}


def test_each_assumption_is_shown_by_one_scenario_and_each_switch_is_an_assumption() -> None:
    shown = [name for scenario in SCENARIOS for name in scenario.shows]
    assert sorted(shown) == sorted(assumption.name for assumption in ASSUMPTIONS)
    switches = {switch.name: (switch.values, switch.question) for switch in SWITCHES}
    asked = {known.name: (tuple(known.values), known.question) for known in ASSUMPTIONS if known.is_switch}
    assert {**asked, **{name: switches[name] for name in NOT_SHOWN}} == switches


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_finds_what_is_assumed(scenario: Scenario, tmp_path: Path) -> None:
    assumed = {name: next(iter(BY_NAME[name].values)) for name in scenario.shows}
    assert run(contract_venue(scenario, {}), scenario, tmp_path) == assumed


@pytest.mark.parametrize(("name", "value"), VALUES)
@pytest.mark.parametrize("seed", range(3))
def test_a_scenario_names_the_value_of_a_switch_whatever_the_others_are(
    name: str, value: str, seed: int, tmp_path: Path
) -> None:
    others = drawn(Random(f"contract:{name}:{seed}")) if seed else {}
    seen = run(contract_venue(SHOWN[name], {**others, name: value}), SHOWN[name], tmp_path)
    assert seen[name] == value


# Places in the requests of a scenario at which a fault begins, in one test.
PLACES = 5


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_requests_without_an_answer_never_make_a_value_wrong(scenario: Scenario, tmp_path: Path) -> None:
    total = run_with_faults(scenario, tmp_path, range(0), "lost")
    chance = Random(f"faults:{scenario.name}")
    # The first requests read, the last ones clean up; the many noops of one scenario are alike.
    for first in {1, *chance.sample(range(1, total + 1), min(PLACES, total))}:
        for kind in ("lost", "unanswered"):
            run_with_faults(scenario, tmp_path, range(first, first + chance.choice((1, 2, 4))), kind)


def run_with_faults(scenario: Scenario, folder: Path, places: range, kind: str) -> int:
    """Run a scenario whose requests at these places have a fault; how many requests it sent."""
    venue = contract_venue(scenario, {})
    session = session_of(venue, folder, lambda number, _: kind if number in places else None)
    result = asyncio.run(run_scenario(session, scenario))
    assert result.left is None and is_empty(venue), (places, result.left)
    for known in result.assumptions:
        assert known.value in (next(iter(BY_NAME[known.assumption].values)), None), (places, kind, known)
        assert (known.value is None) == (known.reason is not None)
    assert isinstance(session.access, VenueAccess)
    return session.access.requests


REFUSED_FOR_NOW = {
    "post_only": {"point": "exchange", "kind": "post_only", "ms": 600_000},
    "empty_budget": {"point": "exchange", "kind": "empty_budget", "address": ANN},
    "revoke_agent": {"point": "exchange", "kind": "revoke_agent", "address": AGENT},
    "delist": {"point": "exchange", "kind": "delist", "coin": "BTC"},
}


@pytest.mark.parametrize("fault", REFUSED_FOR_NOW)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_refusals_of_another_cause_never_make_a_value_wrong(scenario: Scenario, fault: str, tmp_path: Path) -> None:
    venue = contract_venue(scenario, {})
    session = session_of(venue, tmp_path)
    venue.control("fault", **REFUSED_FOR_NOW[fault])
    result = asyncio.run(run_scenario(session, scenario))
    for known in result.assumptions:
        assert known.value in (next(iter(BY_NAME[known.assumption].values)), None), known

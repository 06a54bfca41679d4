"""An order as one request where nothing can be lost: the same events as with a plan and its confirm, on every
shipped strategy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.engine.memory_journal import MemoryJournal
from bot.backtest.engine.options import SessionOptions
from bot.config import Settings
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.loader import build, load
from bot.runtime.strategy_host.strategy_limits import limits_of
from bot.strategy import Bar, Bracket, Intent, Open, View
from tests.backtest.builders import Scripted, minutes, placing, settings


def _ran(test: Backtest, *, is_atomic: bool) -> tuple[str, set[str]]:
    """The digest of the events, and the paths of the entries."""
    test.session.is_atomic = is_atomic
    result = test.run()
    assert isinstance(test.journal, MemoryJournal)
    return result.digest, {one.path for one in test.journal.intents.by_id.values() if one.action == "open"}


class Confirming(Scripted):
    """Confirms each of its entries, and counts the plans that it has seen."""

    seen = 0

    def confirm(self, plan: Any) -> bool:
        type(self).seen += plan.size > 0
        return True


def hourly(view: View, bar: Bar) -> list[Intent]:
    if bar.at_ms % 3_600_000 or view.position(bar.market):
        return []
    return [Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=0.1, target_pct=0.1))]


def test_a_strategy_that_confirms_sees_each_plan_and_the_others_send_one_request() -> None:
    def ran(kind: type[Scripted], *, is_atomic: bool) -> tuple[str, set[str]]:
        made = Backtest(settings(), [minutes(600)], SessionOptions(), place=placing(hourly, kind=kind))
        return _ran(made, is_atomic=is_atomic)

    assert ran(Scripted, is_atomic=True) == (ran(Scripted, is_atomic=False)[0], {"direct"})
    assert ran(Confirming, is_atomic=True) == (ran(Scripted, is_atomic=False)[0], {"plan"})
    assert Confirming.seen > 3


@pytest.mark.parametrize("use", ["trend", "reversion"])
def test_a_shipped_strategy_gives_the_same_events_in_one_request_and_in_two(repository: Path, use: str) -> None:
    strategy = load(use, repository / "strategies")

    def place(made: Settings) -> list[StrategySpec]:
        (one,) = made.strategies
        built = build(strategy, name=one.name, markets=one.markets, params={})
        return [StrategySpec(built, one.interval, limits_of(made, one))]

    found = [
        _ran(Backtest(settings(), [minutes(1_500)], SessionOptions(), place=place), is_atomic=is_atomic)
        for is_atomic in (True, False)
    ]
    assert found[0][0] == found[1][0]
    assert [paths for _, paths in found] == [{"direct"}, {"plan"}]


def test_a_backtest_with_latency_plans_and_confirms() -> None:
    """Between the decision and the order the market moves, as over a wire."""
    made = Backtest(settings(), [minutes(60)], SessionOptions(latency_ms=300), place=placing(hourly))
    assert not made.session.is_atomic

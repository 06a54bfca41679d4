"""Tests Rotation on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from pathlib import Path

from bot.testing import Run, assert_causal, assert_opened, assert_protected, backtest, bars, flat, ramp, walk

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "rotation:Rotation"
SHORT = {"window_bars": 10, "look_bars": 5, "lead_pct": 1}


def run(first: list[float], second: list[float]) -> Run:
    legs = [bars(first, market="BTC", interval="1h"), bars(second, market="ETH", interval="1h")]
    return backtest(USE, legs, params=SHORT, strategies_dir=STRATEGIES)


def test_it_holds_the_market_that_rises_most_and_changes_when_another_leads() -> None:
    first = [*ramp(100_000, 110_000, 30), *flat(110_000, 30)]
    second = [*flat(2_500, 30), *ramp(2_500, 2_900, 30)]
    changed = run(first, second)
    assert [trade.market for trade in changed.trades] == ["BTC", "ETH"]
    assert_protected(changed)


def test_it_holds_none_while_all_fall() -> None:
    assert_opened(run(ramp(100_000, 90_000, 60), ramp(2_500, 2_300, 60)), count=0)


def test_a_small_lead_is_not_worth_two_fees() -> None:
    first = ramp(100_000, 110_000, 60)
    assert_opened(run(first, [2_500 + (px / 40 - 2_500) * 1.02 for px in first]), count=1)


def test_it_does_not_look_ahead() -> None:
    assert_causal(run(walk(100_000, 120, seed=1), walk(2_500, 120, seed=2)))

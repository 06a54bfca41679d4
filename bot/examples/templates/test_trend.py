"""Tests Trend on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from pathlib import Path

from bot.testing import assert_causal, assert_flat, assert_opened, assert_protected, backtest, bars, flat, ramp, walk

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "trend:Trend"


def test_it_follows_a_rise_and_closes_when_the_averages_cross() -> None:
    closes = [*walk(100_000, 40), *ramp(100_000, 104_000, 40), *ramp(104_000, 100_000, 30), *flat(100_000, 5)]
    run = backtest(USE, bars(closes), params={"target_r": 20, "shorts": False}, strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long")
    assert_protected(run)
    assert_flat(run)


def test_it_stays_out_of_a_market_that_does_not_move() -> None:
    assert_opened(backtest(USE, bars(flat(100_000, 60)), strategies_dir=STRATEGIES), count=0)


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 120)), strategies_dir=STRATEGIES))

"""Tests MeanReversion on bars that the test describes: the daemon's own code in simulated time, without a service
and without a network.
"""

from pathlib import Path

from bot.testing import assert_causal, assert_opened, assert_protected, backtest, bars, flat, ramp, walk

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "reversion:MeanReversion"


def test_it_buys_a_fall_and_sells_a_rise_short() -> None:
    calm = walk(100_000, 40, volatility=0.0002)
    fall = backtest(USE, bars([*calm, *ramp(100_000, 99_500, 6), *flat(99_500, 5)]), strategies_dir=STRATEGIES)
    assert_opened(fall, "BTC", side="long")
    assert_protected(fall)
    rise = backtest(USE, bars([*calm, *ramp(100_000, 100_500, 6), *flat(100_500, 5)]), strategies_dir=STRATEGIES)
    assert_opened(rise, "BTC", side="short")


def test_it_stays_out_of_a_market_that_does_not_move() -> None:
    assert_opened(backtest(USE, bars(flat(100_000, 60)), strategies_dir=STRATEGIES), count=0)


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 120)), strategies_dir=STRATEGIES))

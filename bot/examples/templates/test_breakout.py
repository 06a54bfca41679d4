"""Tests Breakout on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from pathlib import Path

from bot.testing import (
    assert_causal,
    assert_flat,
    assert_opened,
    assert_protected,
    backtest,
    bars,
    flat,
    ramp,
    walk,
    wave,
)

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "breakout:Breakout"
CHANNEL = wave(100_000, 100, 10, 40)


def test_it_follows_a_rise_and_the_trailing_stop_ends_it() -> None:
    closes = [*CHANNEL, *ramp(100_000, 103_000, 20), *ramp(103_000, 101_000, 5), *flat(101_000, 5)]
    run = backtest(USE, bars(closes), params={"shorts": False}, strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long", count=1)
    assert_protected(run)
    assert_flat(run)
    assert run.trades[0].pnl_usd > 0


def test_it_sells_a_fall_short_unless_that_is_switched_off() -> None:
    fall = bars([*CHANNEL, *ramp(100_000, 97_000, 20)])
    assert_opened(backtest(USE, fall, strategies_dir=STRATEGIES), side="short")
    assert_opened(backtest(USE, fall, params={"shorts": False}, strategies_dir=STRATEGIES), count=0)


def test_it_stays_out_inside_the_channel() -> None:
    assert_opened(backtest(USE, bars(wave(100_000, 100, 10, 100)), strategies_dir=STRATEGIES), count=0)


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 120)), strategies_dir=STRATEGIES))

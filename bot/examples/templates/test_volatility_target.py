"""Tests VolatilityTarget on bars that the test describes: the daemon's own code in simulated time, without a service
and without a network.
"""

from pathlib import Path

from bot.testing import assert_causal, assert_opened, assert_protected, backtest, bars, walk, wave

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "volatility_target:VolatilityTarget"
SHORT = {"window_bars": 24, "most_usd": 1000}


def notional(closes: list[float]) -> float:
    run = backtest(USE, bars(closes, interval="1h"), params=SHORT, strategies_dir=STRATEGIES)
    assert_protected(run)
    return run.trades[0].size * closes[-1]


def test_it_holds_less_of_a_market_that_moves_more() -> None:
    calm, wild = wave(100_000, 300, 12, 60), wave(100_000, 3_000, 12, 60)
    assert notional(calm) > 3 * notional(wild)


def test_it_sells_a_part_when_the_market_becomes_wild() -> None:
    closes = [*wave(100_000, 300, 12, 60), *wave(100_000, 3_000, 12, 60)]
    run = backtest(USE, bars(closes, interval="1h"), params=SHORT, strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long", count=1)
    assert any((event.type, event.subtype) == ("fill", "exit") for event in run.events)


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 120), interval="1h"), params=SHORT, strategies_dir=STRATEGIES))

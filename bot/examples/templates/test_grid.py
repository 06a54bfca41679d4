"""Tests GridTrader on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from pathlib import Path

from bot.testing import assert_causal, assert_opened, assert_protected, backtest, bars, flat, ramp, walk, wave

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "grid:GridTrader"


def test_it_buys_a_fall_in_steps_and_sells_the_rise() -> None:
    run = backtest(USE, bars(wave(100_000, 2_500, 24, 24 * 4), interval="1h"), strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long")
    assert_protected(run)
    assert run.trades[0].pnl_usd > 0


def test_a_fall_through_the_grid_costs_what_the_stop_allows() -> None:
    closes = [*flat(100_000, 5), *ramp(100_000, 85_000, 40), *flat(85_000, 2)]
    run = backtest(USE, bars(closes, interval="1h"), params={"steps": 2}, strategies_dir=STRATEGIES)
    assert run.trades[0].exit_kind == "stop_loss"
    assert run.trades[0].pnl_usd > -2 * 75 * 0.07


def test_an_order_that_the_market_leaves_behind_is_moved() -> None:
    closes = [*flat(100_000, 3), *ramp(100_000, 104_000, 12), *ramp(104_000, 100_500, 8), *flat(100_500, 6)]
    run = backtest(USE, bars(closes, interval="1h"), params={"patience_bars": 4}, strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long")


def test_it_trades_nothing_while_the_market_stands() -> None:
    run = backtest(USE, bars(flat(100_000, 60), interval="1h"), strategies_dir=STRATEGIES)
    assert_opened(run, count=0)


def test_it_does_not_look_ahead() -> None:
    assert_causal(
        backtest(USE, bars(walk(100_000, 240), interval="1h"), params={"step_pct": 0.2}, strategies_dir=STRATEGIES)
    )

"""Tests Dca on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from pathlib import Path

from bot.testing import assert_causal, assert_opened, assert_protected, backtest, bars, flat, ramp, walk

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "dca:Dca"


def test_it_buys_each_day_at_noon_up_to_its_total() -> None:
    run = backtest(USE, bars(flat(100_000, 24 * 8), interval="1h"), params={"most_usd": 101}, strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long", count=1)
    assert_protected(run)
    fills = [event for event in run.events if (event.type, event.subtype) == ("fill", "entry")]
    assert len(fills) == 5
    assert {event.ts // 3_600_000 % 24 for event in fills} == {12}


def test_it_sells_all_when_the_gain_is_reached() -> None:
    closes = [*flat(100_000, 24 * 3), *ramp(100_000, 160_000, 12), *flat(160_000, 3)]
    run = backtest(USE, bars(closes, interval="1h"), strategies_dir=STRATEGIES)
    assert run.trades[0].exit_kind == "close"
    assert run.trades[0].pnl_usd > 0


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 240), interval="1h"), strategies_dir=STRATEGIES))

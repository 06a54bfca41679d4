"""Tests SessionOpen on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from pathlib import Path

from bot.testing import assert_causal, assert_flat, assert_opened, assert_protected, backtest, bars, flat, ramp, walk

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "session_open:SessionOpen"
DAY = "2026-01-05T00:00"


def day(after_open: list[float]) -> list[float]:
    """24 hours: calm until 15:00, then these closes, then calm."""
    return [*flat(100_000, 15), *after_open, *flat(after_open[-1], 9 - len(after_open))]


def test_it_follows_the_break_of_the_range_once_and_is_flat_at_the_close() -> None:
    closes = day([100_500, 100_600, 100_700])
    run = backtest(USE, bars(closes, interval="1h", start=DAY), params={"target_r": 20}, strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long", count=1)
    assert_protected(run)
    assert_flat(run)
    assert run.trades[0].exit_kind == "close"


def test_it_sells_a_break_downward_and_takes_its_target() -> None:
    closes = day([99_000, *ramp(99_000, 94_000, 4)])
    run = backtest(USE, bars(closes, interval="1h", start=DAY), strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="short", count=1)
    assert run.trades[0].exit_kind == "take_profit"


def test_it_stays_out_of_a_calm_day_and_of_a_break_before_the_open() -> None:
    early = [*flat(100_000, 5), *flat(103_000, 19)]
    for closes in (flat(100_000, 48), early):
        run = backtest(USE, bars(closes, interval="1h", start=DAY), strategies_dir=STRATEGIES)
        assert_opened(run, count=0)


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 240), interval="1h", start=DAY), strategies_dir=STRATEGIES))

"""Tests Schedule on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from datetime import UTC, datetime
from pathlib import Path

from bot.testing import assert_causal, assert_flat, assert_opened, assert_protected, backtest, bars, flat, ramp, walk

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "schedule:Schedule"


def hour(at_ms: int | None) -> int:
    assert at_ms is not None
    return datetime.fromtimestamp(at_ms / 1000, UTC).hour


def test_it_buys_at_13_and_closes_at_20_on_weekdays() -> None:
    # From a Friday to a Monday.
    run = backtest(USE, bars(flat(100_000, 96), interval="1h", start="2026-01-02T00:00"), strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long", count=2)
    assert_protected(run)
    assert_flat(run)
    assert {(hour(trade.entry_ms), hour(trade.exit_ms)) for trade in run.trades} == {(13, 20)}


def test_its_stop_closes_a_position_before_the_time() -> None:
    closes = [*flat(100_000, 14), *ramp(100_000, 95_000, 4), *flat(95_000, 6)]
    run = backtest(USE, bars(closes, interval="1h", start="2026-01-05T00:00"), strategies_dir=STRATEGIES)
    assert run.trades[0].exit_kind == "stop_loss"
    assert_flat(run)


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 120), interval="1h"), strategies_dir=STRATEGIES))

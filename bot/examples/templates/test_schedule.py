"""Tests Schedule on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from datetime import UTC, datetime
from pathlib import Path

from bot.testing import assert_causal, assert_flat, assert_opened, assert_protected, backtest, bars, flat, ramp, walk

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "schedule:Schedule"


def minute(at_ms: int | None) -> int:
    assert at_ms is not None
    return datetime.fromtimestamp(at_ms / 1000, UTC).minute


def test_it_buys_at_the_full_hour_and_closes_at_a_quarter_to() -> None:
    run = backtest(USE, bars(flat(100_000, 240), start="2026-01-01T09:30"), strategies_dir=STRATEGIES)
    assert_opened(run, "BTC", side="long", count=4)
    assert_protected(run)
    assert {(minute(trade.entry_ms), minute(trade.exit_ms)) for trade in run.trades[:3]} == {(0, 45)}


def test_its_stop_closes_a_position_before_the_time() -> None:
    closes = [*flat(100_000, 70), *ramp(100_000, 98_000, 10), *flat(98_000, 35)]
    run = backtest(USE, bars(closes), strategies_dir=STRATEGIES)
    assert run.trades[0].exit_kind == "stop_loss"
    assert_flat(run)


def test_it_does_not_look_ahead() -> None:
    assert_causal(backtest(USE, bars(walk(100_000, 120)), strategies_dir=STRATEGIES))

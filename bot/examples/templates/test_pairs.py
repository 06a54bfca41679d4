"""Tests Pairs on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from pathlib import Path

from bot.testing import (
    Run,
    assert_causal,
    assert_flat,
    assert_opened,
    assert_protected,
    backtest,
    bars,
    flat,
    walk,
    wave,
)

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "pairs:Pairs"
CALM = wave(100_000, 50, 10, 80)


def run(first: list[float], second: list[float]) -> Run:
    legs = [bars(first, market="BTC"), bars(second, market="ETH")]
    return backtest(USE, legs, params={"window_bars": 40}, strategies_dir=STRATEGIES)


def test_it_opens_both_legs_when_the_ratio_is_far_and_closes_both_when_it_is_back() -> None:
    first = [*CALM, *flat(101_000, 3), *flat(100_000, 10)]
    apart = run(first, flat(2_500, len(first)))
    assert_opened(apart, "BTC", side="short")
    assert_opened(apart, "ETH", side="long")
    assert_protected(apart)
    assert_flat(apart)


def test_it_closes_the_other_leg_when_one_is_stopped() -> None:
    first = [*CALM, *flat(101_000, 3), *flat(106_000, 5)]
    stopped = run(first, flat(2_500, len(first)))
    ends = {trade.market: trade.exit_kind for trade in stopped.trades[:2]}
    assert ends == {"BTC": "stop_loss", "ETH": "close"}


def test_it_does_nothing_while_both_move_together() -> None:
    closes = walk(100_000, 120)
    assert_opened(run(closes, [px / 40 for px in closes]), count=0)


def test_it_does_not_look_ahead() -> None:
    assert_causal(run(walk(100_000, 120, seed=1), walk(2_500, 120, seed=2)))

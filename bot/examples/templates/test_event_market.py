"""Tests EventMarket on bars that the test describes: the daemon's own code in simulated time, without a service and
without a network.
"""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from bot.testing import (
    Run,
    SessionOptions,
    Settlement,
    assert_causal,
    assert_flat,
    assert_opened,
    assert_protected,
    backtest,
    bars,
    flat,
    ramp,
    wave,
)

STRATEGIES = Path(__file__).resolve().parent.parent / "strategies"
USE = "event_market:EventMarket"
MARKET = "event:RATE-CUT"


def run(closes: Sequence[float], options: SessionOptions | None = None) -> Run:
    return backtest(USE, bars(closes, market=MARKET, volume=5_000), strategies_dir=STRATEGIES, options=options)


def test_it_buys_yes_below_its_estimate_and_takes_the_target_there() -> None:
    cheap = run([*flat(0.4, 3), *ramp(0.4, 0.52, 12), *flat(0.5, 3)])
    assert_opened(cheap, MARKET, side="long", count=1)
    assert_protected(cheap)
    assert_flat(cheap)
    assert cheap.trades[0].exit_kind == "take_profit"


def test_it_buys_no_above_its_estimate_and_the_stop_limits_the_loss() -> None:
    dear = run([*flat(0.6, 3), *ramp(0.6, 0.75, 5), *flat(0.75, 3)])
    assert dear.trades[0].side == "short"
    assert dear.trades[0].exit_kind == "stop_loss"


def test_a_settlement_pays_what_it_holds() -> None:
    options = SessionOptions(settlements={MARKET: Settlement(outcome=Decimal(1))})
    settled = run(flat(0.4, 10), options)
    assert settled.trades[0].exit_kind == "settlement"
    assert settled.trades[0].pnl_usd > 0


def test_it_does_nothing_at_its_estimate() -> None:
    assert_opened(run(wave(0.5, 0.05, 10, 60)), count=0)


def test_it_does_not_look_ahead() -> None:
    assert_causal(run(wave(0.5, 0.15, 40, 100)))

"""Intents are judged where they are made."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from typing import Any

import pytest

from bot.errors import StrategyError
from bot.strategy import Bracket, Cancel, Close, Intent, MaxHold, Open, TrailingStop

STOP = Bracket(stop_pct=2)

GOOD: list[Any] = [
    lambda: Open("BTC", "long", usd=100),
    lambda: Open("BTC", "short", size=Decimal("0.001"), leverage=3, bracket=Bracket(stop_px=70_000, target_r=2)),
    lambda: Open("BTC", "long", usd=100, limit_px=50_000.5, bracket=Bracket(target_pct=150)),
    lambda: Open("BTC", "long", usd=100, max_slippage_bps=0, guardians=(TrailingStop(trail_pct=1),)),
    lambda: Open("BTC", "long", usd=100, bracket=STOP, guardians=(TrailingStop(trail_r=1, activate_at_r=0.5),)),
    lambda: Open("BTC", "long", usd=100, bracket=STOP, guardians=[MaxHold(60), TrailingStop(trail_r=1)]),
    lambda: Open(
        "BTC", "long", usd=100, bracket=Bracket(stop_pct=1, targets=[(0.5, "1R"), (0.5, "3R")], break_even_at="1R")
    ),
    lambda: Open("BTC", "short", usd=100, bracket=Bracket(stop_pct=1, targets=[(0.5, 90_000), (0.2, Decimal(80_000))])),
    lambda: Open("BTC", "long", usd=90, bracket=Bracket(stop_px=9, targets=((1 / 3, "1%"), (2 / 3, "1.5%")))),
    lambda: Open("BTC", "long", usd=90, bracket=Bracket(stop_px=9, break_even_at="0.5R")),
    lambda: Open("BTC", "long", usd=90, bracket=Bracket(stop_pct=2, break_even_at="1%")),
    lambda: Close("BTC"),
    lambda: Close("BTC", fraction=1),
    lambda: Close("BTC", usd=20),
    lambda: Cancel(oid="17"),
    lambda: Cancel(market="BTC"),
]

BAD: list[tuple[Any, str]] = [
    (lambda: Open("BTC", "buy", usd=100), 'side is "long" or "short", not \'buy\''),
    (lambda: Open("", "long", usd=100), "market is a name"),
    (lambda: Open(7, "long", usd=100), "market is a name"),
    (lambda: Open("BT\udcff", "long", usd=1), "market is a name such as \"BTC\", not 'BT\\udcff'"),
    (lambda: Open("BTC", "long"), "exactly one of usd and size"),
    (lambda: Open("BTC", "long", usd=1, size=1), "exactly one of usd and size"),
    (lambda: Open("BTC", "long", usd=0), "usd is above 0"),
    (lambda: Open("BTC", "long", usd=-5), "usd is above 0"),
    (lambda: Open("BTC", "long", usd=math.nan), "usd is nan: an indicator was probably not ready"),
    (lambda: Open("BTC", "long", usd=math.inf), "usd is inf"),
    (lambda: Open("BTC", "long", usd=Decimal("NaN")), "usd is NaN"),
    (lambda: Open("BTC", "long", usd="100"), "usd is a number, not '100'"),
    (lambda: Open("BTC", "long", usd=True), "usd is a number"),
    (lambda: Open("BTC", "long", usd=1, leverage=0), "leverage is a whole number from 1 to 50"),
    (lambda: Open("BTC", "long", usd=1, leverage=2.5), "leverage is a whole number"),
    (lambda: Open("BTC", "long", usd=1, leverage=math.nan), "leverage is a whole number"),
    (lambda: Open("BTC", "long", usd=1, max_slippage_bps=1001), "max_slippage_bps is a whole number from 0 to 1000"),
    (lambda: Open("BTC", "long", usd=1, limit_px=5, max_slippage_bps=5), "limit_px is its own bound"),
    (lambda: Open("BTC", "long", usd=1, bracket={"stop_pct": 2}), "bracket is a Bracket"),
    (lambda: Open("BTC", "long", usd=1, guardians=TrailingStop(trail_pct=1)), "guardians is a tuple"),
    (lambda: Open("BTC", "long", usd=1, guardians=None), "Open: guardians is a tuple, () for none, not None"),
    (lambda: Open("BTC", "long", usd=1, guardians=("trail",)), "may hold TrailingStop(...) and MaxHold(...), not str"),
    (lambda: Open("BTC", "long", usd=1, bracket=STOP, guardians=MaxHold(60)), "guardians=(MaxHold(...),)"),
    (lambda: MaxHold(59), "MaxHold: seconds is a whole number from 60 to 9007199254740991, not 59"),
    (lambda: MaxHold(90.5), "seconds is a whole number"),
    (lambda: MaxHold(math.nan), "seconds is a whole number"),
    (lambda: MaxHold(None), "MaxHold: give seconds"),
    (lambda: Open("BTC", "long", usd=1, guardians=(TrailingStop(trail_r=1),)), "give a bracket with a stop"),
    (
        lambda: Open("BTC", "long", usd=1, bracket=Bracket(target_pct=1), guardians=(TrailingStop(trail_r=1),)),
        "bracket with a stop",
    ),
    (lambda: Close("BTC", fraction=1.5), "fraction is at most 1"),
    (lambda: Close("BTC", fraction=0), "fraction is above 0"),
    (lambda: Close("BTC", fraction=0.5, usd=10), "choose one of fraction and usd"),
    (lambda: Cancel(), "exactly one of oid and market"),
    (lambda: Cancel(oid="1", market="BTC"), "exactly one of oid and market"),
    (lambda: Cancel(oid=""), "oid is the text"),
    (lambda: Cancel(oid="1\udcff"), "oid is the text"),
    (lambda: Cancel(oid="1\n"), "oid is the text"),
    (lambda: Bracket(), "give a stop"),
    (lambda: Bracket(stop_pct=1, stop_px=2), "choose one of stop_pct and stop_px"),
    (lambda: Bracket(stop_pct=1, target_pct=1, target_r=2), "choose one of target_pct and target_r"),
    (lambda: Bracket(target_r=2), "target_r is a multiple of the stop's distance"),
    (lambda: Bracket(stop_pct=100), "stop_pct is below 100"),
    (lambda: Bracket(stop_pct=None, target_px=-1), "target_px is above 0"),
    (lambda: Bracket(stop_pct=1, target_r=1, targets=[(1, "1R")]), "choose one of target_r and targets"),
    (lambda: Bracket(targets=[(1, "1R")]), "targets needs a stop; give stop_pct or stop_px as well"),
    (lambda: Bracket(target_r=1, break_even_at="1R"), "target_r is a multiple"),
    (lambda: Bracket(target_pct=1, break_even_at="1R"), "break_even_at needs a stop"),
    (lambda: Bracket(stop_pct=1, targets=[]), 'targets is a list of 1 to 10 pairs such as (0.5, "1R"), not []'),
    (lambda: Bracket(stop_pct=1, targets="1R"), "targets is a list of 1 to 10 pairs"),
    (lambda: Bracket(stop_pct=1, targets=[(0.5, "1R", 2)]), "targets is a list of 1 to 10 pairs"),
    (
        lambda: Bracket(stop_pct=1, targets=[(0.01, f"{n}R") for n in range(1, 12)]),
        "targets is a list of 1 to 10 pairs",
    ),
    (
        lambda: Bracket(stop_pct=1, targets=[(0.6, "1R"), (0.5, "2R")]),
        "the fractions of targets add up to at most 1, not 1.1",
    ),
    (
        lambda: Bracket(stop_pct=1, targets=[(1.5, "1R")]),
        "the fraction of targets[0] is above 0 and at most 1, not 1.5",
    ),
    (lambda: Bracket(stop_pct=1, targets=[(0.5, "1R"), (math.nan, "2R")]), "the fraction of targets[1] is nan"),
    (lambda: Bracket(stop_pct=1, targets=[("half", "1R")]), "the fraction of targets[0] is a number, not 'half'"),
    (lambda: Bracket(stop_pct=1, targets=[(0.5, "1r")]), 'targets[0] is "1R", "2%" or a price, not \'1r\''),
    (lambda: Bracket(stop_pct=1, targets=[(0.5, "0R")]), "targets[0] is above 0, not 0R"),
    (lambda: Bracket(stop_pct=1, targets=[(0.5, -5)]), "targets[0] is above 0, not -5"),
    (lambda: Bracket(stop_pct=1, targets=[(0.5, math.inf)]), "targets[0] is inf: an indicator was probably not ready"),
    (
        lambda: Bracket(stop_pct=1, targets=[(0.5, "1R"), (0.5, "2%")]),
        "write all targets in one unit: R, percent or prices",
    ),
    (
        lambda: Bracket(stop_pct=1, targets=[(0.5, "2R"), (0.5, "1R")]),
        "each target lies beyond the one before it, not 2, 1",
    ),
    (lambda: Bracket(stop_pct=1, targets=[(0.5, 5), (0.2, 5)]), "each target lies beyond the one before it, not 5, 5"),
    (
        lambda: Bracket(stop_pct=1, break_even_at=100_000),
        'break_even_at is "1R", or with stop_pct also "2%", not 100000',
    ),
    (lambda: Bracket(stop_px=90, break_even_at="2%"), 'break_even_at is "1R", or with stop_pct also "2%"'),
    (lambda: Bracket(stop_pct=1, break_even_at="21R"), "break_even_at is from 0.01R to 20R, not 21R"),
    (lambda: TrailingStop(), "exactly one of trail_pct and trail_r"),
    (lambda: TrailingStop(trail_pct=1, trail_r=1), "exactly one of trail_pct and trail_r"),
    (lambda: TrailingStop(trail_pct=51), "trail_pct is at most 50"),
    (lambda: TrailingStop(trail_r=21), "trail_r is at most 20"),
    (lambda: TrailingStop(trail_pct=1, activate_at_r=-1), "activate_at_r is above 0"),
]


@pytest.mark.parametrize("make", GOOD)
def test_what_could_be_an_order_is_made_and_frozen(make: Any) -> None:
    intent: Intent = make()
    assert make() == intent
    with pytest.raises(dataclasses.FrozenInstanceError):
        intent.market = "ETH"  # type: ignore[misc]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_could_never_be_an_order_is_refused_where_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(StrategyError) as error:
        make()
    assert message in str(error.value)


def test_a_side_out_of_an_array_is_refused_where_it_is_made() -> None:
    """It is equal to "long", and nothing that is sent could hold it."""
    numpy = pytest.importorskip("numpy")
    for side in (numpy.where(True, "long", "short"), numpy.array(["long"])):
        with pytest.raises(StrategyError, match=r'side is "long" or "short", not array'):
            Open("BTC", side, usd=100)


def test_a_number_of_numpy_becomes_a_plain_one() -> None:
    numpy = pytest.importorskip("numpy")
    intent = Open(
        "BTC", "long", usd=numpy.float64(100.5), leverage=numpy.int64(3), bracket=Bracket(stop_pct=numpy.float32(2))
    )
    assert type(intent.usd) is float
    assert type(intent.leverage) is int
    assert intent.bracket is not None
    assert type(intent.bracket.stop_pct) is float

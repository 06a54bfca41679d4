"""Fills worked out by hand: gaps over a stop, a target and a limit, stop and target in one bar, parts, flips, trailing
stops, break-even, fees, liquidation.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest

from bot import Bar, Bracket, Close, Open, Strategy, TrailingStop, View
from bot.backtest.engine.options import MarketRules, SessionOptions
from bot.testing import backtest, bars


def rules(taker: str = "0") -> dict[str, MarketRules]:
    return {
        "": MarketRules(
            taker=Decimal(taker),
            maker=Decimal(0),
            spread_bps=Decimal(0),
            depth_usd=Decimal(0),
            tick=Decimal("0.01"),
            lot=Decimal("0.0001"),
        )
    }


def run(
    steps: dict[int, list[Any]], given: list[Any], *, balance: int = 10_000, taker: str = "0", leverage: int = 1
) -> Any:
    class Scripted(Strategy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.n = -1

        def on_bar(self, view: View, bar: Bar) -> Iterable[Any]:
            if view.is_warming_up:
                return
            self.n += 1
            yield from steps.get(self.n, ())

    options = SessionOptions(rules=rules(taker), balance_usd=Decimal(balance))
    return backtest(
        Scripted,
        bars(given),
        config={"safety": {"require_protection": False}},
        budget_usd=50_000,
        max_leverage=leverage,
        options=options,
    )


def buy(**more: Any) -> list[Open]:
    return [Open("BTC", "long", size=1, **more)]


FLAT = [100, 100, 100]
TWO = Bracket(stop_px=90, targets=[(0.5, "1R"), (0.5, "3R")])
CASES = {
    "gap over the stop": (
        {2: buy(bracket=Bracket(stop_px=90))},
        [*FLAT, 100, (50, 50, 50, 50), 50],
        [("long", 100, 50)],
    ),
    "gap over the target": (
        {2: buy(bracket=Bracket(stop_px=90, target_px=110))},
        [*FLAT, 100, (120, 121, 119, 120)],
        [("long", 100, 120)],
    ),
    "stop and target in one bar": (
        {2: buy(bracket=Bracket(stop_px=90, target_px=110))},
        [*FLAT, 100, (101, 115, 85, 100)],
        [("long", 100, 90)],
    ),
    "gap over a limit and its stop": (
        {2: [Open("BTC", "long", size=1, limit_px=100, bracket=Bracket(stop_px=97))]},
        [105, 105, 105, 105, (95, 96, 94, 95)],
        [("long", 95, 95)],
    ),
    "stop above the next open": (
        {2: buy(bracket=Bracket(stop_px=98))},
        [*FLAT, (97, 97.5, 96, 97)],
        [("long", 97, 97)],
    ),
    "2R from the fill after a gap": (
        {2: buy(bracket=Bracket(stop_px=90, target_r=2))},
        [*FLAT, (95, 95, 95, 95), (95, 106, 94.5, 104)],
        [("long", 95, 105)],
    ),
    "a quarter at 200, the rest at 500": (
        {2: buy(), 4: [Close("BTC", fraction=0.25)], 6: [Close("BTC")]},
        [*FLAT, 100, 200, 200, (500, 500, 500, 500), 500],
        [("long", 100, 425)],
    ),
    "half at 1R, then the stop": (
        {2: buy(bracket=TWO)},
        [*FLAT, 100, (100, 112, 99, 111), (111, 112, 111, 112), (110, 110, 85, 86)],
        [("long", 100, 100)],
    ),
    "targets after a partial close": (
        {2: buy(bracket=TWO), 4: [Close("BTC", fraction=0.75)]},
        [*FLAT, 100, 100, 100, (100, 112, 100, 111), 111],
        [("long", 100, 102.5)],
    ),
    "flip": (
        {2: buy(), 4: [Close("BTC"), Open("BTC", "short", size=2, bracket=Bracket(stop_px=200))], 6: [Close("BTC")]},
        [*FLAT, 100, 110, 110, 105, 105],
        [("long", 100, 110), ("short", 110, 105)],
    ),
    "second entry moves the stop of all": (
        {
            2: [Open("BTC", "short", size=1, bracket=Bracket(stop_px=110))],
            4: [Open("BTC", "short", size=0.5, bracket=Bracket(stop_px=105))],
        },
        [*FLAT, 100, 98, 98, 98, (98, 106, 98, 104)],
        [("short", 99.3333333, 105)],
    ),
    "trailing stop, low first": (
        {2: buy(guardians=(TrailingStop(trail_pct=2),))},
        [*FLAT, 100, (100, 106, 99, 105), (105, 105, 103.8, 104)],
        [("long", 100, 103.88)],
    ),
    "trailing stop, high first": (
        {2: buy(guardians=(TrailingStop(trail_pct=2),))},
        [*FLAT, 100, (100, 101, 95, 97)],
        [("long", 100, 98.98)],
    ),
    "break even": (
        {2: buy(bracket=Bracket(stop_px=90, break_even_at="1R"))},
        [*FLAT, 100, (100, 110, 100, 109), (109, 109, 99, 99)],
        [("long", 100, 100)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fill_is_the_one_worked_out_by_hand(name: str) -> None:
    steps, given, right = CASES[name]
    found = run(steps, given).trades
    assert [
        (one.side, pytest.approx(one.entry_px, abs=1e-6), pytest.approx(one.exit_px, abs=1e-6)) for one in found
    ] == right


def test_each_side_pays_its_fee_once() -> None:
    (trade,) = run(
        {2: buy(), 3: [Close("BTC")]}, [*FLAT, (100, 110, 100, 110), (110, 110, 110, 110)], taker="0.001"
    ).trades
    assert (trade.fees_usd, trade.pnl_usd) == (pytest.approx(0.21), pytest.approx(9.79))


@pytest.mark.parametrize(("low", "is_gone"), [(78_482, False), (78_480, True)])
def test_a_second_entry_moves_the_liquidation_price(low: float, is_gone: bool) -> None:
    """(0.02 * 97500 - 400) / (0.02 * (1 - 0.0125)) = 78481.01"""
    order = [Open("BTC", "long", size=0.01, leverage=10)]
    given = [100_000] * 4 + [
        95_000,
        (95_000, 95_000, 95_000, 95_000),
        (95_000, 95_000, 90_000, 90_000),
        (90_000, 90_000, low, 89_000),
        89_000,
    ]
    (trade,) = run({2: order, 4: order}, given, balance=400, leverage=20).trades
    assert (trade.exit_kind == "liquidation") is is_gone
    assert not is_gone or trade.exit_px == pytest.approx(78_481.01)

"""Entries that use all free margin are filled at any next open, in every margin mode."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from decimal import Decimal
from random import Random

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import MarketRules
from bot.errors import StrategyError
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from bot.strategy.intents import Side
from tests.backtest.builders import MINUTE_MS, START_MS, ran, settings
from tests.strategy.toy import ToySource

# a Monday at 14:00, in the hours of the exchange
OPEN_MS = START_MS + 38 * 3_600_000
RICH = {"name": "s0", "use": "x", "budget_usd": 10_000_000, "max_leverage": 50}
COSTS = {"": MarketRules(taker=Decimal("0.0009"), depth_usd=Decimal(20_000), spread_bps=Decimal(4))}
EVENT = "event:RATE-CUT"


def gapping(count: int, market: str, px: float, *, decimals: int) -> Candles:
    """Minutes that each open 1.5 % above or below the previous close."""
    chance = Random(market)
    columns = tuple(array("d") for _ in range(5))
    for _ in range(count):
        o, c = (round(px * (1 + chance.choice((-0.015, 0.015))), decimals) for _ in range(2))
        for column, value in zip(columns, (o, max(o, c), min(o, c), c, 1e6), strict=True):
            column.append(value)
    return Candles(market, "1m", array("q", [OPEN_MS + n * MINUTE_MS for n in range(count)]), *columns)


@pytest.mark.parametrize(
    ("market", "px", "leverage", "left"),
    [("BTC", 100_000.0, 1, 0.001), ("BTC", 100_000.0, 5, 0.005), ("AAPL", 200.0, 5, 0.0001), (EVENT, 0.5, 1, 0.1)],
    ids=["no leverage", "cross", "isolated", "paid in full"],
)
def test_every_all_in_entry_is_filled_at_any_next_open(market: str, px: float, leverage: int, left: float):
    """`left`: the part of the possible notional that is kept for the fee."""
    wanted = []

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(market) is not None:
            yield Close(market)
        else:
            side: Side = "long" if len(wanted) % 2 else "short"
            usd = view.all_in_usd(market, leverage)
            assert usd > view.free_margin_usd * leverage * (1 - left)
            wanted.append(usd)
            stop = Bracket(stop_px=round(bar.close * (0.92 if side == "long" else 1.08), 2))
            yield Open(market, side, usd=usd, leverage=leverage, bracket=stop)

    made = settings(strategies=[RICH | {"markets": [market]}])
    candles = gapping(189, market, px, decimals=3 if market == EVENT else 2)
    one = ran([candles], made=made, script=script, rules=COSTS)
    summary = one.result.summary()
    assert (summary["refusals"], summary["rejections"]) == ({}, {})
    assert [json.loads(line)["data"]["reason"] for line in one.lines if '"reason":"insufficient_funds"' in line] == []
    assert len(one.result.trade_ledger.trips) == 94 < len(wanted) == 95, (
        "the last is wanted on the last close: there is no open for it"
    )
    for trip, usd in zip(one.result.trade_ledger.trips, wanted, strict=False):
        worth = trip.bought - trip.entry_notional if (trip.side, market) == ("short", EVENT) else trip.entry_notional
        assert usd * 0.99 < worth / 10**8 <= usd


def test_an_all_in_order_respects_the_order_limits():
    source = ToySource(["BTC"])
    view = View(source)
    source.free_margin_usd = 1_000.018
    assert view.all_in_usd("BTC") == 1_000.01
    source.free_margin_usd = 9.999
    assert (view.all_in_usd("BTC"), view.all_in_usd("BTC", 2)) == (0.0, 19.99)
    source.free_margin_usd = 90_000.0
    assert view.all_in_usd("BTC", 50) == 1_000_000
    for leverage in (0, 51, 2.5, True):
        with pytest.raises(StrategyError, match="a whole number from 1 to 50"):
            view.all_in_usd("BTC", leverage)  # type: ignore[arg-type]

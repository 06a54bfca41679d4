"""Slippage, computed by hand: the cost of each taker fill against its reference price, and none for makers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import MarketRules
from bot.backtest.results.slippage import PriceHistory
from bot.strategy import Bar, Bracket, Close, Intent, Open, TrailingStop, View
from tests.backtest.builders import MINUTE_MS, START_MS, Ran, ran

# Half of 20 bps: whoever takes at 100 pays 100.1.
RULES = {
    "": MarketRules(
        taker=Decimal(0),
        maker=Decimal(0),
        spread_bps=Decimal(20),
        depth_usd=Decimal(0),
        tick=Decimal("0.001"),
        lot=Decimal("0.0001"),
    )
}
FLAT = (100.0, 100.0, 100.0, 100.0)


def candles(*bars: tuple[float, float, float, float]) -> Candles:
    columns = (array("d", column) for column in (*zip(*bars, strict=True), [1_000_000.0] * len(bars)))
    return Candles("BTC", "1m", array("q", range(START_MS, START_MS + len(bars) * MINUTE_MS, MINUTE_MS)), *columns)


def costs(bars: Candles, signals: dict[int, list[Intent]], **options: Any) -> tuple[str, list[str]]:
    """slippageUsd of the summary, and that of each trade."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        return signals.get((bar.at_ms - START_MS) // MINUTE_MS, ())

    result = ran([bars], script=script, rules=RULES, **options).result
    summary = result.summary()
    assert summary["strategies"]["s0"]["slippageUsd"] == summary["costs"]["slippageUsd"]
    return summary["costs"]["slippageUsd"], [trip.row(1)[-1] for trip in result.trade_ledger.trips]


def test_each_side_of_a_market_order_slips_half_the_spread_from_its_open():
    bars = candles(FLAT, FLAT, (101, 101, 101, 101), FLAT, FLAT, FLAT)
    signals: dict[int, list[Intent]] = {
        1: [Open("BTC", "long", size=1, bracket=Bracket(stop_pct=50))],
        # at 101: 0.101
        2: [Close("BTC")],
        3: [Open("BTC", "short", size=2, bracket=Bracket(stop_pct=50))],
        4: [Close("BTC")],
    }
    assert costs(bars, signals) == ("0.601", ["0.201", "0.4"])


def test_a_stop_slips_from_its_level_and_from_the_open_where_the_bar_opened_beyond_it():
    through, beyond = (100.0, 100.0, 97.0, 97.0), (97.0, 97.0, 97.0, 97.0)
    entry: list[Intent] = [Open("BTC", "long", size=1, bracket=Bracket(stop_px=98))]
    # 98 * 0.999 = 97.902, and 97 * 0.999 = 96.903.
    assert costs(candles(FLAT, FLAT, through, beyond), {1: entry}) == ("0.198", ["0.198"])
    assert costs(candles(FLAT, FLAT, beyond, beyond), {1: entry}) == ("0.197", ["0.197"])


def in_parts() -> Ran:
    """Twenty levels hold 13.5 where the first has 0.2: of 16 that a stop at 98 sells the rest waits for the bar's
    close, at 95.
    """

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms <= START_MS + 2 * MINUTE_MS:
            yield Open("BTC", "long", size=8, bracket=Bracket(stop_px=98), max_slippage_bps=500)

    thin = {"": replace(RULES[""], depth_usd=Decimal(20))}
    bars = candles(FLAT, FLAT, FLAT, (100.0, 100.0, 95.0, 95.0), (95.0, 95.0, 95.0, 95.0))
    return ran([bars], script=script, rules=thin)


def test_a_later_part_of_a_stop_slips_from_the_price_of_that_time():
    one = in_parts()
    fills = [event for event in map(json.loads, one.lines) if event["type"] == "fill"]
    first_ms, last_ms = (pick(one["ts"] for one in fills if one["data"]["intent"] == "close") for pick in (min, max))
    assert first_ms < last_ms == START_MS + 4 * MINUTE_MS - 1
    slipped = Decimal(0)
    for event in fills:
        px, size = (Decimal(event["data"][name]) for name in ("px", "size"))
        is_open = event["data"]["intent"] == "open"
        met = 100 if is_open else 98 if event["ts"] == first_ms else 95
        slipped += (px - met) * size if is_open else (met - px) * size
    assert Decimal(one.result.summary()["costs"]["slippageUsd"]) == slipped


def test_an_exit_in_many_fills_counts_once():
    one = in_parts()
    assert len([line for line in one.lines if '"intent":"close"' in line and '"type":"fill"' in line]) > 10
    assert one.result.summary()["exits"] == {"stop_loss": 1}


def test_a_target_a_trailing_stop_and_a_resting_limit_have_their_own_references():
    up, down = (100.0, 104.0, 100.0, 104.0), (104.0, 104.0, 100.0, 100.0)
    target: list[Intent] = [Open("BTC", "long", size=1, bracket=Bracket(stop_pct=50, target_px=103))]
    assert costs(candles(FLAT, FLAT, up, up), {1: target}) == ("0.203", ["0.203"])
    trail: list[Intent] = [Open("BTC", "long", size=1, guardians=(TrailingStop(trail_pct=1),))]
    # It follows to 104 and fires at 102.96; selling there gives 102.857.
    assert costs(candles(FLAT, FLAT, up, down, FLAT), {1: trail}) == ("0.203", ["0.203"])
    limit: list[Intent] = [Open("BTC", "long", size=1, limit_px=99, bracket=Bracket(stop_pct=50))]
    dip = (100.0, 100.0, 98.0, 100.0)
    assert costs(candles(FLAT, dip, FLAT, FLAT), {1: limit}) == ("0", ["0"])


def test_a_crossing_limit_has_the_slippage_of_a_market_order():
    """Decided at 100 in a market that opens at 102, so that nothing is offered at 100."""
    up = (102.0, 103.0, 102.0, 103.0)
    crossing: list[Intent] = [Open("BTC", "long", size=1, limit_px=101, bracket=Bracket(stop_pct=50))]
    signals = {START_MS + MINUTE_MS: crossing}
    assert not ran(
        [candles(FLAT, up, up)], script=lambda view, bar: signals.get(bar.at_ms, ()), rules=RULES
    ).result.trade_ledger.trips
    far: list[Intent] = [Open("BTC", "long", size=1, limit_px=103, bracket=Bracket(stop_pct=50))]
    market: list[Intent] = [Open("BTC", "long", size=1, bracket=Bracket(stop_pct=50))]
    assert costs(candles(FLAT, up, up), {1: far}) == costs(candles(FLAT, up, up), {1: market}) == ("0.102", ["0.102"])


def test_a_late_order_slips_from_its_price_point_and_not_from_the_open():
    bars = candles(FLAT, (100.0, 106.0, 97.0, 103.0), (103.0, 103.0, 103.0, 103.0), (103.0, 103.0, 103.0, 103.0))
    entry: list[Intent] = [Open("BTC", "long", size=1, bracket=Bracket(stop_px=50))]
    # After 25 s the path (open, low, high, close) is on its way to the high, 106.
    assert costs(bars, {1: entry}, latency_ms=25_000) == ("0.106", ["0.106"])


def test_the_price_of_an_instant_is_that_of_the_newest_point():
    from bot.backtest.engine.candle_readers import CandleReader

    reader = CandleReader(candles((100.0, 103.0, 98.0, 101.0)), start_ms=START_MS, end_ms=START_MS + MINUTE_MS)
    times = (-1, 0, 19_999, 20_000, 39_999, 40_000, 59_998, 59_999, 500_000)
    low_first = [PriceHistory([reader], "adaptive").at("BTC", START_MS + ms) for ms in times]
    assert low_first == [None, *(px * 10**8 for px in (100, 100, 98, 98, 103, 103, 101, 101))]
    high_first = [PriceHistory([reader], "ohlc").at("BTC", START_MS + ms) for ms in times]
    assert high_first == [None, *(px * 10**8 for px in (100, 100, 103, 103, 98, 98, 101, 101))]

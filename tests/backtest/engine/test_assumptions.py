"""Options of a backtest about costs and time: latency, fees, spread, depth, tick and lot, funding.

All figures are computed by hand.
"""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from bot.backtest.backtest import Backtest, band_of
from bot.backtest.data.candles import Candles
from bot.backtest.data.funding_rates import Payment, read_funding
from bot.backtest.engine import progress, timeline
from bot.backtest.engine.options import PATHS, MarketRules, Outage, SessionOptions
from bot.backtest.results.assumptions import assumptions_of
from bot.clock import HOUR_MS
from bot.errors import ConfigError
from bot.runtime.passes.bar_feed import BarSeries
from bot.service.market_data.instruments import CATALOGUE
from bot.strategy import Bar, Bracket, Close, Intent, Open, Strategy, TrailingStop, View, sma
from bot.strategy.indicators import Columns, Indicators, ema
from bot.venue.model.numbers import E8
from bot.wire import Plan
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, minutes, placing, ran, settings
from tests.backtest.engine.builders import FLAT, candles

# the low is nearer to the open, so it comes first
RISING = (100_100.0, 100_400.0, 100_000.0, 100_200.0)


def at_once(view: View, bar: Bar) -> Iterable[Intent]:
    if bar.at_ms == START_MS + MINUTE_MS:
        yield Open("BTC", "long", size=0.01, bracket=Bracket(stop_pct=5))


def entry(**options: object) -> tuple[int, float]:
    one = ran([candles(FLAT, RISING, FLAT, FLAT)], script=at_once, rules=FREE, **options)
    (fill,) = [json.loads(line) for line in one.lines if json.loads(line)["type"] == "fill"]
    return fill["ts"] - START_MS, float(fill["data"]["px"])


def fills(lines: Iterable[str]) -> list[tuple[int, str]]:
    found = [one for line in lines if (one := json.loads(line))["type"] == "fill"]
    return [(one["ts"] - START_MS, one["coin"]) for one in found]


def test_an_order_is_filled_at_the_next_open_and_with_latency_at_the_point_after_it_arrives():
    assert entry() == (MINUTE_MS, 100_100.0)
    # It arrives half a second after the open: the next price of the bar is its low, a third of a minute in.
    assert entry(latency_ms=500) == (MINUTE_MS + 20_000, 100_000.0)
    # 30 s: the low has passed, the high is next.
    assert entry(latency_ms=30_000) == (MINUTE_MS + 40_000, 100_400.0)
    # A millisecond less than the bar: its close, which is its last point.
    assert entry(latency_ms=59_999) == (2 * MINUTE_MS - 1, 100_200.0)


@pytest.mark.parametrize(("latency_ms", "filled_ms"), [(0, 0), (500, 20_000)])
def test_a_close_and_an_entry_in_one_decision_reverse_the_position(latency_ms: int, filled_ms: int):
    """Live, the close has filled before the entry is sent. In a backtest both fill at the same price."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        n = (bar.at_ms - START_MS) // MINUTE_MS
        if n in (1, 3):
            if n == 3:
                yield Close("BTC")
            yield Open("BTC", "long" if n == 1 else "short", size=0.01, bracket=Bracket(stop_pct=5))

    one = ran([candles(*[FLAT] * 6)], script=script, rules=FREE, latency_ms=latency_ms)
    assert fills(one.lines)[1:] == 2 * [(3 * MINUTE_MS + filled_ms, "BTC")]
    assert (one.result.trade_ledger.fills, one.test.exchange.account.positions["BTC"].side) == (3, -1)


@pytest.mark.parametrize("others", [[], ["ETH"]])
def test_a_longer_bar_that_closes_in_a_gap_is_decided_at_its_close(others: list[str]):
    """The last two minutes of a quarter hour are missing: the order fills at the first open after it, as it does
    with them.
    """

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC" and view.position("BTC") is None:
            yield Open("BTC", "long", size=0.01, bracket=Bracket(stop_pct=20))

    whole = minutes(40)
    holed = whole.pick([row for row in range(40) if row not in (13, 14)])
    made = settings(("BTC", *others), interval="15m")
    one = ran([holed, *(minutes(40, market=name) for name in others)], made=made, script=script, rules=FREE)
    (trip,) = one.result.trade_ledger.trips
    assert (trip.entry_ms - START_MS) / MINUTE_MS == 15
    assert trip.entry_notional * 100 == round(whole.open[15] * E8)


def test_a_warm_up_uses_its_own_series_and_its_part_in_the_range_is_reported():
    fine, coarse = BarSeries("BTC", "1m"), BarSeries("BTC", "1h")
    options = SessionOptions(start_ms=START_MS + 30 * MINUTE_MS)
    found = timeline.timeline_of([minutes(600)], [fine, coarse], options, {fine: 40, coarse: 2})
    assert found.cold == (
        "BTC: 0 of the 2 1h bars of warm-up lie before the range, the others in it",
        "BTC: 30 of the 40 1m bars of warm-up lie before the range, the others in it",
    )
    assert timeline.timeline_of([minutes(600)], [fine, coarse], options, {fine: 30, coarse: 1}).cold == ()
    with pytest.raises(
        ConfigError, match="a strategy needs 11 1h bars of BTC before its first decision, and the data have 10"
    ):
        timeline.timeline_of([minutes(600)], [fine, coarse], options, {fine: 40, coarse: 11})


def test_latency_and_closed_exchanges_are_listed_as_assumptions():
    data = [minutes(60, market=market, px=100.0) for market in ("BTC", "NVDA")]
    for latency_ms, funded in ((0, []), (500, ["NVDA"])):
        one = Backtest(settings(["BTC", "NVDA"]), data, SessionOptions(latency_ms=latency_ms), place=placing())
        said = assumptions_of(one.session.timeline, one.options, one.exchange, funded=funded)
        one.journal.close()
        assert any("fills at the next point of the path" in line for line in said) == bool(latency_ms)
        (closed,) = (line for line in said if "exchange's hours" in line)
        assert closed.startswith(
            "NVDA: outside of its exchange's hours the oracle stands still, and funding is paid on"
        )
        assert ("off the baseline" in closed) == (not funded)
        assert closed.endswith("; from the instant the exchange opens the oracle is the price again")


def test_every_multiplier_of_the_venue_is_listed_as_an_assumption():
    names = ["BTC", "HYG", "event:RATE-CUT"]
    data = [
        minutes(60, market=market, px=px, decimals=3) for market, px in zip(names, (100_000.0, 80.0, 0.5), strict=True)
    ]

    def said(**options: Any) -> dict[str, list[str]]:
        one = Backtest(settings(names), data, SessionOptions(**options), place=placing())
        found = assumptions_of(one.session.timeline, one.options, one.exchange, funded=[])
        one.journal.close()
        return {
            name: [line.removeprefix(f"{name}: ") for line in found if line.startswith(f"{name}: ")] for name in names
        }

    told = said(rules={"HYG": MarketRules(spread_bps=Decimal(3))})
    book = CATALOGUE["HYG"].spec
    assert told["BTC"][-3:] == [
        (
            "the book has 20 levels: each is 0.08 bps further from the mid than the one before it, and larger by 25 %"
            " of the first"
        ),
        (
            "an entry at market fills at most 100 bps from the mid unless it sets another bound, a close 500 bps, a"
            " stop, a target or a guardian 1000 bps"
        ),
        (
            "maintenance margin is 1.25 % of the notional and 2.5 % of the part above 150,000,000 USD; a position below"
            " it is liquidated (a position above 100,000 USD by a fifth first); below two thirds of it the liquidator"
            " takes the position with its margin"
        ),
    ]
    for line in (
        (
            "while its exchange is closed the spread is 3 times as wide, 9 bps, and each level of the book holds 1/3 of"
            " its size, and nothing is opened"
        ),
        (
            f"the book has 20 levels: each is {book.level_step / 10_000:g} bps further from the mid than the one before"
            " it, and larger by 25 % of the first"
        ),
        (
            "an entry at market fills at most 200 bps from the mid unless it sets another bound, a close 500 bps, a"
            " stop, a target or a guardian 1000 bps"
        ),
        (
            "the funding rate of a premium P over the oracle is 0.5 x (P + clamp(0.01 % - P, -0.05 % to 0.05 %)) / 8 an"
            " hour"
        ),
    ):
        assert line in told["HYG"]
    assert (
        "the book has 20 levels: each is 10 bps of the payout further from the mid than the one before it, and larger"
        " by 25 % of the first" in told["event:RATE-CUT"]
    )
    assert not [line for line in told["event:RATE-CUT"] if "maintenance" in line or "premium" in line]
    costless = said(rules=FREE)
    assert "while its exchange is closed nothing is opened" in costless["HYG"]
    assert not [line for line in costless["BTC"] if "levels" in line]


def test_a_latency_as_long_as_a_bar_is_refused_since_the_next_one_would_know_the_fill():
    with pytest.raises(ConfigError, match=r"a latency of 60 s is not shorter than a 1m bar of BTC"):
        entry(latency_ms=60_000)


def test_a_strategy_does_not_see_what_happens_while_another_markets_order_is_in_flight():
    """ETH is decided after BTC at each close, and its stops and targets also fill while BTC's orders are in flight."""

    def seen(is_busy: bool) -> list[tuple[int, bool]]:
        found: list[tuple[int, bool]] = []

        def script(view: View, bar: Bar) -> Iterable[Intent]:
            held = view.position(bar.market) is not None
            if bar.market == "ETH":
                found.append((bar.at_ms, held))
                if not held and bar.at_ms // MINUTE_MS % 3 == 0:
                    yield Open("ETH", "long", usd=300, bracket=Bracket(stop_pct=0.1, target_pct=0.1))
            elif is_busy:
                yield Close("BTC") if held else Open("BTC", "long", usd=300, bracket=Bracket(stop_pct=5))

        ran([minutes(60, seed=3), minutes(60, seed=4, market="ETH", px=2_500)], script=script, latency_ms=50_000)
        return found

    assert {held for _, held in seen(is_busy=False)} == {True, False}
    assert seen(is_busy=True) == seen(is_busy=False)


def test_orders_that_several_markets_cause_at_one_close_arrive_together():
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=5))

    markets = ("BTC", "ETH", "SOL")
    one = ran([minutes(4, seed=3, market=market, px=100.0) for market in markets], script=script, latency_ms=25_000)
    assert fills(one.lines) == [(MINUTE_MS + 40_000, market) for market in markets]


def test_an_order_caused_by_a_fill_has_the_same_latency_as_one_caused_by_a_bar():
    class Adds(Strategy):
        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            return at_once(view, bar)

        def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
            if fill.at_ms < START_MS + 2 * MINUTE_MS:
                yield Open("BTC", "long", size=0.005, bracket=Bracket(stop_pct=5))

    def place(config: Any) -> Any:
        (one,) = placing()(config)
        return [one._replace(strategy=Adds(name=one.strategy.name, markets=one.strategy.markets))]

    lines = io.StringIO()
    Backtest(settings(), [minutes(5, seed=3)], SessionOptions(latency_ms=25_000), place=place).run(events=lines)
    # Caused by the fill at 40 s of the second bar, there at 65 s: the next price of the third is the one after 20 s.
    assert fills(lines.getvalue().splitlines()) == [(MINUTE_MS + 40_000, "BTC"), (2 * MINUTE_MS + 20_000, "BTC")]


class Takes(Strategy):
    """Buys BTC with a target, again after each exit, and ETH a minute later."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - START_MS) // MINUTE_MS
        if minute == 1 and bar.market == "BTC":
            yield Open("BTC", "long", size=0.01, bracket=Bracket(stop_pct=5, target_pct=0.3))
        elif minute == 2 and bar.market == "ETH":
            yield Open("ETH", "long", usd=300, bracket=Bracket(stop_pct=5))

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        if fill.market == "BTC" and fill.action != "open":
            yield Open("BTC", "long", size=0.005, bracket=Bracket(stop_pct=5))


class Leaves(Strategy):
    """Rests an entry, and closes as soon as it is filled."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open("BTC", "long", size=0.01, limit_px=99_950.0, bracket=Bracket(stop_pct=5))

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        if fill.action == "open":
            yield Close("BTC")


def fills_of(kind: type[Strategy], data: list[Candles], **options: Any) -> list[tuple[int, str]]:
    markets = [one.market for one in data]
    made = settings(
        strategies=[{"name": "s0", "use": "scripted", "markets": markets, "budget_usd": 2_000, "max_leverage": 5}]
    )

    def place(config: Any) -> Any:
        return [one._replace(strategy=kind(name=one.strategy.name, markets=markets)) for one in placing()(config)]

    lines = io.StringIO()
    Backtest(made, data, SessionOptions(rules=FREE, **options), place=place).run(events=lines)
    return fills(lines.getvalue().splitlines())


# its low comes first, its high at 40 s
TARGET = (100_000.0, 100_500.0, 99_900.0, 100_400.0)


def test_the_latency_of_an_order_caused_by_a_fill_starts_at_the_fill():
    data = [candles(FLAT, FLAT, TARGET, FLAT, FLAT), minutes(5, seed=3, market="ETH", px=2_000.0)]
    # The target fills at 40 s of the third minute. What that causes is there 45 s later, at 25 s of the fourth: the
    # next price is at 40 s.
    assert fills_of(Takes, data, latency_ms=45_000) == [
        (2 * MINUTE_MS - 1, "BTC"),
        (2 * MINUTE_MS + 40_000, "BTC"),
        (3 * MINUTE_MS - 1, "ETH"),
        (3 * MINUTE_MS + 40_000, "BTC"),
    ]


def test_orders_caused_by_events_of_an_outage_are_sent_after_the_restart():
    data = [candles(FLAT, FLAT, TARGET, FLAT, FLAT, FLAT)]
    outage = Outage(START_MS + 2 * MINUTE_MS + 5_000, 70_000)
    # The entry fills at 20 s of the third minute. Up at 15 s of the fourth, the close is there at 45 s: the next price
    # is the last.
    assert fills_of(Leaves, data, outages=(outage,), latency_ms=30_000) == [
        (2 * MINUTE_MS + 20_000, "BTC"),
        (4 * MINUTE_MS - 1, "BTC"),
    ]


class Early(Strategy):
    """Buys ETH on three bars of BTC: long before ETH's first candle, at its instant, and a bar later."""

    shown: ClassVar[list[float]] = []

    def confirm(self, plan: Plan) -> bool:
        self.shown.append(float(plan.mid_px or 0))
        return True

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC" and bar.at_ms - START_MS in (5 * MINUTE_MS, 30 * MINUTE_MS, 31 * MINUTE_MS):
            yield Open("ETH", "long", usd=500, bracket=Bracket(stop_pct=20))


@pytest.mark.parametrize("skip", [True, False])
def test_a_market_is_closed_and_shows_no_price_before_its_first_candle(skip: bool):
    Early.shown.clear()
    eth = minutes(60, market="ETH", px=2_500.0)
    data = [minutes(60), eth.slice(START_MS + 30 * MINUTE_MS)]
    rates = {"ETH": [(START_MS + n * 10 * MINUTE_MS, 12_500_000) for n in range(6)]}
    made = settings(strategies=[{"name": "s0", "use": "scripted", "markets": ["BTC", "ETH"], "budget_usd": 2_000}])

    def place(config: Any) -> Any:
        return [one._replace(strategy=Early(name="s0", markets=["BTC", "ETH"])) for one in placing()(config)]

    test = Backtest(made, data, SessionOptions(start_ms=START_MS, skip=skip), rates=rates, place=place)
    result = test.run()
    assert result.rejections == {"market_closed": 2}
    assert Early.shown == [eth.close[30]]
    assert [trip.entry_ms for trip in result.trade_ledger.trips] == [START_MS + 31 * MINUTE_MS]
    said = assumptions_of(test.session.timeline, test.options, test.exchange, funded=["ETH"])
    assert "ETH: closed until its first candle, 2025-06-01T00:30: earlier orders are refused" in said


class Doubts(Strategy):
    """A No of 20 USD, the rest of it after a partial close, and one of 250 USD, which the budget allows."""

    close: ClassVar[Close] = Close("event:RATE-CUT", fraction=0.6)

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - START_MS) // MINUTE_MS
        if minute == 1:
            yield Open(bar.market, "short", usd=20)
        elif minute == 3:
            yield self.close
        elif minute == 5:
            yield Open(bar.market, "short", size=5_000)


@pytest.mark.parametrize(
    ("nets", "close", "left"),
    [
        (True, Close("event:RATE-CUT", fraction=0.6), []),
        (False, Close("event:RATE-CUT", fraction=0.6), ["384", "230"]),
        (False, Close("event:RATE-CUT", usd=12), ["384", "240"]),
    ],
)
def test_a_share_of_no_is_worth_one_dollar_minus_the_price_of_yes(nets: bool, close: Close, left: list[str]):
    made = settings(("event:RATE-CUT",), safety={"require_protection": False})

    def place(config: Any) -> Any:
        (one,) = placing()(config)
        strategy = type("Doubts", (Doubts,), {"close": close})(name=one.strategy.name, markets=one.strategy.markets)
        return [one._replace(strategy=strategy, limits=replace(one.limits, max_leverage=1, nets=nets))]

    lines = io.StringIO()
    flat = candles(*[(0.95, 0.95, 0.95, 0.95)] * 7, market="event:RATE-CUT")
    result = Backtest(made, [flat], SessionOptions(), place=place).run(events=lines)
    summary = result.summary()
    assert result.curve.exposure[1] == pytest.approx(384 * 0.05)
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    sizes = [one["data"]["size"] for one in told if one["type"] == "fill"]
    assert sizes[:2] == (left or ["384", "384"]), "what would be left is worth 7.70 USD, and could not be closed"
    assert summary["refusals"] == {}, "it costs 250 USD, not 4,750"


def test_fee_and_spread_come_from_the_options():
    rules = {"": MarketRules(taker=Decimal("0.001"), spread_bps=Decimal(20), depth_usd=Decimal(0), tick=Decimal("0.1"))}
    one = ran([candles(FLAT, FLAT, FLAT)], script=at_once, rules=rules)
    (fill,) = [json.loads(line)["data"] for line in one.lines if json.loads(line)["type"] == "fill"]
    # half of 20 bps above the middle
    assert float(fill["px"]) == 100_100.0
    assert float(fill["feeUsd"]) == pytest.approx(1.001)


def test_a_maker_rebate_is_a_negative_fee_in_every_figure():
    rules = {"": replace(FREE[""], maker=Decimal("-0.0002"), taker=Decimal("0.0005"))}
    rows = candles(FLAT, (100_000.0, 100_050.0, 99_800.0, 100_000.0), FLAT)
    one = ran([rows], script=resting, rules=rules)
    (fill,) = [json.loads(line)["data"] for line in one.lines if json.loads(line)["type"] == "fill"]
    assert (fill["liquidity"], fill["feeUsd"]) == ("maker", "-0.1998")
    summary = one.result.summary()
    assert summary["costs"]["feesUsd"] == summary["strategies"]["s0"]["feesUsd"] == "-0.1998"
    assert one.result.end_usd == pytest.approx(10_000 + 0.1998 + 1.0)
    spec = SessionOptions(rules=rules).spec_of(CATALOGUE["BTC"].spec, 100_000 * E8)
    assert spec.maker_rate == -20_000


def test_orders_keep_to_a_tick_and_a_lot_that_are_no_powers_of_ten():
    def odd(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open("BTC", "long", size=0.0123, limit_px=99_900.3, bracket=Bracket(stop_px=99_000.1))

    rules = {"": replace(FREE[""], tick=Decimal("0.5"), lot=Decimal("0.005"))}
    rows = candles(FLAT, (100_000.0, 100_050.0, 99_800.0, 100_000.0), FLAT)
    told = [json.loads(line) for line in ran([rows], script=odd, rules=rules).lines]
    (fill,) = [one["data"] for one in told if one["type"] == "fill"]
    assert (fill["size"], fill["px"]) == ("0.01", "99900")
    (stop,) = [one["data"] for one in told if one["type"] == "order" and one["subtype"] == "armed"]
    assert stop["triggerPx"] == "99000.5"


@pytest.mark.parametrize(
    ("maker", "said"), [("-1", "above -1 to below 1"), ("1", "above -1"), ("-0.000000001", "at most 8 decimals")]
)
def test_a_rebate_of_a_whole_notional_is_refused(maker: str, said: str):
    with pytest.raises(ConfigError, match=said):
        MarketRules(maker=Decimal(maker)).of(CATALOGUE["BTC"].spec, 100_000 * E8)


def test_a_markets_rules_override_those_of_its_class_and_these_the_general_ones():
    rules = {
        "": MarketRules(taker=Decimal("0.001"), maker=Decimal("0.0001")),
        "crypto": MarketRules(taker=Decimal("0.002"), spread_bps=Decimal(4)),
        "BTC": MarketRules(taker=Decimal("0.003")),
    }
    options = SessionOptions(rules=rules)
    btc, eth, spy = (options.spec_of(CATALOGUE[coin].spec, CATALOGUE[coin].px) for coin in ("BTC", "ETH", "SPY"))
    assert [spec.taker_rate for spec in (btc, eth, spy)] == [300_000, 200_000, 100_000]
    assert [spec.maker_rate for spec in (btc, eth, spy)] == [10_000] * 3
    assert btc.half_spread == eth.half_spread == E8 // 5_000
    assert spy.half_spread == CATALOGUE["SPY"].spec.half_spread


def test_depth_in_usd_limits_the_size_of_a_level():
    spec = SessionOptions(rules={"BTC": MarketRules(depth_usd=Decimal(50_000))}).spec_of(
        CATALOGUE["BTC"].spec, 100_000 * E8
    )
    assert spec.level_size == E8 // 2


def test_recorded_funding_is_paid_on_the_hour_and_an_eight_hourly_rate_whole_at_its_instant(tmp_path: Path):
    path = tmp_path / "BTC.csv"
    rows = [f"{START_MS + (n * 8 - 6) * HOUR_MS + 7},{rate}" for n, rate in enumerate((0.0008, 0.0016))]
    path.write_text("ts,rate\n" + "\n".join(rows) + "\n")
    funding = read_funding(path)
    rates = funding.rates
    assert rates == [(START_MS - 6 * HOUR_MS, 800_000_000, 8), (START_MS + 2 * HOUR_MS, 1_600_000_000, 8)]
    assert len(funding.sha256) == 64
    flat = candles(*[FLAT] * 150)
    one = ran([flat], script=at_once, rules=FREE, rates={"BTC": rates})
    paid = [json.loads(line) for line in one.lines if json.loads(line)["type"] == "funding"]
    assert [(event["ts"] - START_MS, event["data"]["amountUsd"]) for event in paid] == [(2 * HOUR_MS, "-1.6")]
    assert one.result.trade_ledger.funding == -160_000_000
    assert one.result.end_usd == pytest.approx(10_000 - 1.6)


# The minutes after 00:00 at which a position of 1,000 USD opens and closes, its side, and the funding at 0.1 % at
# 00:00, 08:00 and 16:00.
HELD = [
    ("short across 16:00", 957, 962, "short", 1.0),
    ("long across 16:00", 957, 962, "long", -1.0),
    ("long between 08:00 and 16:00", 485, 950, "long", 0.0),
    ("long across 08:00 and 16:00", 470, 970, "long", -2.0),
    ("long after the last row", 970, 1_430, "long", 0.0),
    ("long over a missing row, where the rate before goes on", 970, 1_500, "long", -1.0),
]


@pytest.mark.parametrize(("opens", "closes", "side", "usd"), [row[1:] for row in HELD], ids=[row[0] for row in HELD])
@pytest.mark.parametrize("skip", [True, False])
def test_who_holds_across_the_instant_of_an_eight_hourly_rate_pays_all_of_it(
    opens: int, closes: int, side: Literal["long", "short"], usd: float, skip: bool
):
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - START_MS) // MINUTE_MS
        if minute == opens:
            yield Open("BTC", side, size=0.01, bracket=Bracket(stop_pct=50))
        elif minute == closes:
            yield Close("BTC")

    flat = candles(*[FLAT] * 1_560)
    rates = [Payment(START_MS + hour * HOUR_MS, 10**9, 8) for hour in (8, 16)]
    one = ran([flat], script=script, rules=FREE, rates={"BTC": rates}, skip=skip)
    assert one.result.trade_ledger.funding / E8 == pytest.approx(usd)


def resting(view: View, bar: Bar) -> Iterable[Intent]:
    """Rests below the close of the first bar, with a stop that the bar after the next one reaches."""
    if bar.at_ms == START_MS + MINUTE_MS:
        yield Open("BTC", "long", size=0.01, limit_px=99_900, bracket=Bracket(stop_px=99_500))


def test_a_band_treats_trades_that_differ_only_inside_their_bars_as_equal():
    rows = candles(
        FLAT, (100_000.0, 100_050.0, 99_800.0, 100_000.0), FLAT, (100_000.0, 100_050.0, 99_400.0, 99_900.0), FLAT
    )
    high, low = (ran([rows], script=resting, rules=FREE, path=path).result for path in ("ohlc", "olhc"))
    (late,), (early,) = high.trade_ledger.trips, low.trade_ledger.trips
    assert late.entry_ms > early.entry_ms
    assert late.exit_ms > early.exit_ms
    band = band_of("ohlc", {"ohlc": high, "olhc": low}, [rows])
    assert (band["paths"]["olhc"]["differing"], band["orders"]) == ({"here": 0, "there": 0}, [])


def test_a_band_names_a_trailing_stop_that_fills_at_another_price_on_another_path():
    """For a trailing stop sl_first and adaptive are the same path: only the other two show the effect of the path."""

    def trails(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open("BTC", "long", size=0.01, guardians=(TrailingStop(trail_pct=1),))

    swing = (100_000.0, 102_000.0, 99_500.0, 101_900.0)
    calm = (101_900.0, 101_950.0, 101_850.0, 101_900.0)
    rows = candles(FLAT, swing, calm, calm)
    found = {path: ran([rows], script=trails, rules=FREE, path=path).result for path in PATHS}
    ends = {path: one.end_usd for path, one in found.items()}
    assert ends["sl_first"] == ends["adaptive"] == ends["olhc"] != ends["ohlc"]
    band = band_of("sl_first", found, [rows])
    assert {path: sum(one["differing"].values()) for path, one in band["paths"].items()} == {
        "ohlc": 2,
        "olhc": 0,
        "adaptive": 0,
    }
    assert (band["endUsd"], band["orderCount"]) == ([min(ends.values()), max(ends.values())], 1)
    (order,) = band["orders"]
    held = "market 100000 -> open"
    assert order == {
        "trade": 1,
        "strategy": "s0",
        "market": "BTC",
        "side": "long",
        "entryMs": START_MS + MINUTE_MS,
        "fills": {"sl_first": held, "ohlc": "market 100000 -> trailing_stop 100980", "olhc": held, "adaptive": held},
    }


def test_a_position_inside_one_bar_counts_for_exposure():
    rows = candles(FLAT, (100_000.0, 100_050.0, 90_000.0, 90_100.0), FLAT, FLAT)
    result = ran([rows], script=at_once, rules=FREE, path="olhc").result
    (trip,) = result.trade_ledger.trips
    assert list(result.curve.exposure) == [0.0] * 4
    held = (trip.exit_ms - trip.entry_ms) / (4 * MINUTE_MS)
    assert 0 < held < 0.25
    assert result.figures["Exposure Time [%]"] == pytest.approx(100 * held, abs=1e-6)
    open_one = ran([candles(FLAT, FLAT, FLAT, FLAT)], script=at_once, rules=FREE).result
    assert open_one.figures["Exposure Time [%]"] == 75


def test_the_last_value_of_the_curve_is_the_ledgers_own():
    one = ran([minutes(1_200, seed=4)], made=settings())
    assert one.result.curve.equity[-1] == pytest.approx(one.result.end_usd, abs=1e-6)
    pnl = sum(trip.pnl for trip in one.result.trade_ledger.trips if trip.exit_ms) / E8
    open_pnl = sum(trip.pnl for trip in one.result.trade_ledger.trips if not trip.exit_ms) / E8
    assert one.result.end_usd - 10_000 == pytest.approx(pnl + open_pnl + _unrealized(one), abs=1e-6)


def test_a_position_that_ends_between_two_closes_of_its_market_is_counted_once():
    """Its bars of five minutes are coarser than the other market's: a loss that a stop has realised is not counted
    as open before the close.
    """

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC" and bar.at_ms == START_MS + 5 * MINUTE_MS:
            yield Open("BTC", "long", size=10, bracket=Bracket(stop_px=90))

    rows = [
        (100.0, 100.0, 100.0, 100.0),
        (100.0, 100.0, 95.0, 95.0),
        (95.0, 95.0, 80.0, 85.0),
        (85.0, 85.0, 85.0, 85.0),
    ]
    coarse = candles(*rows)
    coarse = replace(coarse, interval="5m", at_ms=array("q", [START_MS + n * 5 * MINUTE_MS for n in range(4)]))
    body = settings(["BTC", "ETH"]).model_dump()
    body["strategies"][0]["interval"] = "5m"
    fine = candles(*[(50.0, 50.0, 50.0, 50.0)] * 20, market="ETH")
    one = ran([coarse, fine], made=type(settings()).model_validate(body), script=script, rules=FREE)
    curve = one.result.curve
    assert list(curve.at_ms) == [START_MS + n * MINUTE_MS for n in range(1, 21)]
    # Entered at 100, worth 95 at its close, stopped at 90 in the fourth minute of the next bar.
    assert list(curve.equity) == [10_000.0] * 9 + [9_950.0] * 4 + [9_900.0] * 7
    assert list(curve.exposure) == [0.0] * 5 + [1_000.0] * 4 + [950.0] * 4 + [0.0] * 7


@pytest.mark.parametrize("stopped_at", [13, 14])
def test_a_backtest_that_is_stopped_inside_a_coarse_bar_is_kept(stopped_at: int, monkeypatch: pytest.MonkeyPatch):
    """For a market whose bar has not ended, the newest close counts, or the price of a later fill."""
    monkeypatch.setattr(progress, "CHUNK", 1)
    monkeypatch.setattr(progress, "monotonic_ns", lambda: 0)

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC" and view.position("BTC") is None:
            yield Open("BTC", "long", size=0.01, bracket=Bracket(stop_pct=20))

    looks = iter(range(100))
    body = settings(["BTC", "ETH"]).model_dump()
    body["strategies"][0]["interval"] = "5m"
    one = ran(
        [minutes(20, seed=3, interval="5m"), minutes(100, seed=3, market="ETH", px=2_500.0)],
        made=type(settings()).model_validate(body),
        script=script,
        progress=lambda _done, _of: next(looks) < stopped_at - 1,
    )
    reader = one.test.exchange.readers["BTC"]
    assert one.result.stats.is_partial
    assert reader.step or reader.at == 2, "the stop is inside of a bar"
    assert one.result.curve.equity[-1] == pytest.approx(one.result.end_usd, abs=1e-6)
    assert one.result.left


def test_the_curve_of_a_large_size_at_a_small_price_ends_where_the_ledger_does():
    """An average entry price with eight decimals would be wrong by cents for each million."""

    def more_and_more(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms // MINUTE_MS % 7 == 0:
            yield Open("DOGE", "short", usd=301, bracket=Bracket(stop_pct=30))
        elif bar.at_ms // MINUTE_MS % 37 == 0:
            yield Close("DOGE", fraction=0.3)

    prices = minutes(60, seed=4, market="DOGE", px=0.0001, decimals=8)
    rules = {"": MarketRules(tick=Decimal("0.00000001"))}
    one = ran([prices], made=settings(["DOGE"]), script=more_and_more, rules=rules)
    assert one.test.exchange.account.positions["DOGE"].size > 10_000_000 * E8
    assert one.result.curve.equity[-1] == pytest.approx(one.result.end_usd, abs=1e-6)


def test_the_curve_of_prices_with_more_digits_than_the_venue_counts_ends_where_the_ledger_does():
    def once(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open("DOGE", "long", usd=1_900, bracket=Bracket(stop_pct=20))

    px = 0.000123456785
    rules = {"": replace(FREE[""], tick=Decimal("0.00000001"))}
    one = ran([candles(*[(px,) * 4] * 5, market="DOGE")], made=settings(["DOGE"]), script=once, rules=rules)
    assert one.result.left
    assert list(one.result.curve.equity) == pytest.approx([one.result.end_usd] * 5, abs=1e-6)


@pytest.mark.parametrize(("market", "left_usd"), [("BTC", 0), ("SPY", 5_100)])
def test_losses_beyond_the_margin_are_paid_by_the_service_and_listed_as_costs(market: str, left_usd: int):
    """The whole account backs a cross position; only its margin of 4,900 USD backs an isolated one."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open(market, "short", size=490, leverage=10)

    flat, jump = (100.0, 100.0, 100.0, 100.0), (150.0, 150.0, 150.0, 150.0)
    prices = candles(flat, flat, jump, jump, market=market)
    made = settings([market], safety={"require_protection": False})
    made = made.model_validate(
        made.model_dump()
        | {"strategies": [made.model_dump()["strategies"][0] | {"budget_usd": 100_000, "max_leverage": 10}]}
    )
    one = ran([prices], made=made, script=script, rules=FREE)
    costs = {name: float(usd) for name, usd in one.result.summary()["costs"].items()}
    assert one.result.figures["Equity Final [$]"] == one.result.end_usd == left_usd
    assert costs["realizedUsd"] == -50 * 490
    assert costs["backstopUsd"] == left_usd - 10_000 + 50 * 490


def test_the_margin_that_a_backstop_takes_is_a_loss_of_the_trade():
    """At 109.8 a margin of 4,900 USD has 98 USD left: too little for the book, and no loss for the service to pay."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open("SPY", "short", size=490, leverage=10)

    flat, jump = (100.0, 100.0, 100.0, 100.0), (109.8, 109.8, 109.8, 109.8)
    made = settings(["SPY"], safety={"require_protection": False})
    made = made.model_validate(
        made.model_dump()
        | {"strategies": [made.model_dump()["strategies"][0] | {"budget_usd": 100_000, "max_leverage": 10}]}
    )
    one = ran([candles(flat, flat, jump, jump, market="SPY")], made=made, script=script, rules=FREE)
    summary = one.result.summary()
    assert one.result.end_usd == summary["figures"]["Equity Final [$]"] == 5_100
    assert summary["figures"]["Worst Trade [$]"] == -4_900
    assert {row["pnlUsd"] for row in summary["strategies"].values()} == {"-4900"}
    assert summary["costs"]["backstopUsd"] == "0"


def _unrealized(one: object) -> float:
    account = one.test.exchange.account  # type: ignore[attr-defined]
    markets = one.test.exchange.state.markets  # type: ignore[attr-defined]
    return sum(held.pnl(markets[held.coin].mark) for held in account.positions.values()) / E8


def test_outages_that_touch_are_refused():
    with pytest.raises(ConfigError, match="overlap"):
        SessionOptions(outages=(Outage(1_000, 500), Outage(1_200, 10)))


def test_indicators_precomputed_by_a_backtest_equal_those_of_live_bars_to_the_last_bit():
    walk = minutes(700, seed=6)
    columns = [one.tolist() for one in (walk.open, walk.high, walk.low, walk.close, walk.volume)]
    declared = {"fast": sma(7), "slow": sma(40), "smooth": ema(9)}
    live, ahead = (Indicators(declared, ["BTC"], None) for _ in range(2))
    at = 0
    for size in (3, 30, 1, 200, 466):
        chunk = Columns(*(column[at : at + size] for column in columns))
        ahead.precompute("BTC", chunk)
        for row in range(at, at + size):
            bar = Bar("BTC", walk.at_ms[row] + MINUTE_MS, *(column[row] for column in columns))
            live.update(bar)
            ahead.update(bar)
            assert {name: dict(one) for name, one in live.values.items()} == {
                name: dict(one) for name, one in ahead.values.items()
            }
        at += size
    assert at == 700


@pytest.mark.parametrize(("path", "px"), [("sl_first", 100_400), ("ohlc", 100_000)])
def test_a_backtest_that_begins_inside_a_bar_gets_the_rest_of_it_and_its_close(path: Any, px: int):
    """As in a replay of a daemon that was started inside a bar: a decision on the bar before is filled in the rest
    of this one.
    """
    heard: list[int] = []

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        heard.append(bar.at_ms - START_MS)
        if len(heard) == 1:
            yield Open("BTC", "long", size=0.01, bracket=Bracket(stop_pct=5))
        elif view.position("BTC"):
            yield Close("BTC")

    data = candles(FLAT, RISING, FLAT, FLAT)
    one = ran([data], script=script, start_ms=START_MS + MINUTE_MS + 30_000, rules=FREE, path=path)
    assert heard == [n * MINUTE_MS for n in (1, 2, 3, 4)]
    (trip,) = one.result.trade_ledger.trips
    assert (trip.entry_ms - START_MS, trip.exit_ms - START_MS) == (MINUTE_MS + 40_000, 2 * MINUTE_MS)
    assert trip.entry_notional == px * 10**6
    assert (one.result.stats.bars, one.result.curve.at_ms[0] - START_MS) == (3, 2 * MINUTE_MS)

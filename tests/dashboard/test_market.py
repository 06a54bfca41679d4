"""The market page: indicators over the candles, lines that follow the orders, fills, the order book, and the same in
words.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from decimal import Decimal
from typing import Any

import pytest

from bot.backtest.report import svg
from bot.clock import DAY_MS
from bot.dashboard import server_chart
from bot.dashboard.pages import market
from bot.strategy import Bar
from bot.strategy.indicators import Atr, Ema, atr, ema
from bot.wire.market import BookResult, Level
from tests.dashboard.builders import NOW_MS, candle, order, position, snapshot, strategy

CANDLES = [candle(n, 100 + n % 7) for n in range(40)]
EMA = {**ema(4).described(None)._asdict(), "name": "fast"}
ATR = {**atr(16).described(None)._asdict(), "name": "range"}


def fill(subtype: str, side: str, **data: Any) -> dict[str, Any]:
    return {
        "type": "fill",
        "subtype": subtype,
        "ts": NOW_MS + 90_000,
        "data": {"side": side, "size": "0.5", "px": "101", **data},
    }


def test_an_overlay_has_the_values_that_the_daemon_would_compute() -> None:
    found = market.overlays("BTC", CANDLES, [strategy(indicators=[EMA, ATR])])
    bars = [
        Bar("BTC", one.ts + 60_000, *(float(x) for x in (one.open, one.high, one.low, one.close, one.volume)))
        for one in CANDLES
    ]
    ema, atr = Ema(4), Atr(16)
    assert found[0].values == tuple(ema.update(bar) for bar in bars)
    assert found[1].values == tuple(atr.update(bar) for bar in bars)
    assert [(one.label, one.pane) for one in found] == [("fast: EMA 4", 0), ("range: ATR 16", 2)]


def test_indicators_of_two_strategies_of_one_market_are_told_apart() -> None:
    found = market.overlays(
        "BTC",
        CANDLES,
        [
            strategy("a", indicators=[EMA]),
            strategy("b", indicators=[EMA]),
            strategy("c", markets=["ETH"], indicators=[EMA]),
        ],
    )
    assert [one.name for one in found] == ["a.fast", "b.fast"]


def test_the_lines_are_those_of_the_position_and_its_orders() -> None:
    orders = [
        order(),
        order(kind="limit", limit_px="108", trigger_px=None),
        order(kind="limit", action="open", limit_px="95", trigger_px=None),
        order(market="ETH"),
    ]
    found = market.lines("BTC", snapshot(positions=[position(stop_px="99")], orders=orders), Decimal("51.5"))
    assert [(one.kind, one.px) for one in found] == [
        ("entry", 100.0),
        ("stop", 99.0),
        ("liquidation", 51.5),
        ("target", 106.0),
        ("target", 108.0),
        ("limit", 95.0),
    ]
    assert market.lines("ETH", snapshot(positions=[position()]), None) == []


@pytest.mark.parametrize(
    ("subtype", "side", "word"),
    [("entry", "long", "bought"), ("exit", "long", "sold"), ("entry", "short", "sold"), ("exit", "short", "bought")],
)
def test_a_fill_buys_or_sells(subtype: str, side: str, word: str) -> None:
    (mark,) = market.fills([fill(subtype, side), {"type": "order"}])
    assert (mark.side, mark.text) == (word, f"{word} 0.5 at 101.00")


def test_an_exit_shows_what_it_gained() -> None:
    (mark,) = market.fills([fill("exit", "long", realizedPnlUsd="-3.2")])
    assert mark.text == "sold 0.5 at 101.00, −3.20 USD"


def test_a_fill_stands_at_its_candle_and_an_update_has_the_newest_candles_alone() -> None:
    overlays = market.overlays("BTC", CANDLES, [strategy(indicators=[EMA])])
    marks = market.fills([fill("entry", "long")])
    whole = market.chart(CANDLES, "1m", overlays, marks, [])
    assert whole["fills"][0]["time"] == CANDLES[1].ts // 1000
    assert whole["overlays"][0]["values"][0][0] == CANDLES[3].ts // 1000, "the first value of four bars"
    part = market.chart(CANDLES, "1m", overlays, marks, [], newest=2)
    assert part["candles"] == whole["candles"][-2:]
    assert part["overlays"][0]["values"] == whole["overlays"][0]["values"][-2:]


def test_the_chart_is_told_in_words() -> None:
    shown = snapshot(positions=[position()])
    text = market.summary("BTC", "1m", CANDLES, market.fills([fill("entry", "long")]), market.lines("BTC", shown, None))
    assert text.startswith("BTC, 40 bars of 1m: 104.00 now")
    assert "Entry 100.00. Stop 98.00." in text
    assert text.endswith("1 fills; the newest: bought 0.5 at 101.00.")
    assert market.summary("BTC", "1m", [], [], []) == "", "the page says whether there are none or they are not known"
    assert market.summary("BTC", "1m", CANDLES, None, []).endswith("The fills are not known.")


def test_the_book_adds_up_from_the_best_price_on() -> None:
    def levels(*pairs: tuple[str, str]) -> tuple[Level, ...]:
        return tuple(Level(px=Decimal(px), sz=Decimal(sz)) for px, sz in pairs)

    asks, bids = market.book_rows(
        BookResult(coin="BTC", bids=levels(("99", "1"), ("98", "3")), asks=levels(("100", "0.5"), ("101", "1.5")))
    )
    assert [(one.px, one.total, one.part) for one in asks] == [("101.00", "2.0", 50), ("100.00", "0.5", 12)]
    assert [(one.px, one.total, one.part) for one in bids] == [("99.00", "1.0", 25), ("98.00", "4.0", 100)]
    assert market.book_rows(None) == ([], [])


def test_markets_with_a_position_come_first() -> None:
    shown = snapshot(positions=[position(market="SOL")])
    assert [(one.coin, one.has_position) for one in market.listed(shown, [])] == [("SOL", True), ("BTC", False)]


def test_the_page_opens_with_the_interval_of_the_strategy() -> None:
    shown = snapshot()
    assert shown.status is not None
    shown.status["strategies"] = [strategy(interval="15m")]
    assert market.intervals_of("BTC", shown) == "15m"
    assert market.intervals_of("ETH", shown) == "1m"


def test_the_server_draws_candles_volume_indicators_lines_and_fills() -> None:
    overlays = market.overlays("BTC", CANDLES, [strategy(indicators=[EMA, ATR])])
    lines = market.lines("BTC", snapshot(positions=[position()]), Decimal("0.01"))
    marks = market.fills([fill("entry", "long")])
    picture = ET.fromstring(server_chart.candle_chart(CANDLES, "1m", overlays, marks, lines))
    paths = {one.get("class", ""): one.get("d", "") for one in picture.iter("path")}
    assert set(paths) <= {"wick su", "fu", "vol fu", "wick sd", "fd", "vol fd", "ln o0"}
    for kinds in (("fu", "fd"), ("wick su", "wick sd"), ("vol fu", "vol fd")):
        assert sum(paths.get(kind, "").count("M") for kind in kinds) == len(CANDLES), kinds
    known = [n for n, value in enumerate(overlays[0].values) if value is not None]
    steps = re.findall(r"[ML]([0-9.]+) ", paths["ln o0"])
    assert [float(x) for x in steps] == pytest.approx([1000 * (n + 0.5) / len(CANDLES) for n in known], abs=0.5)
    shown = [one.get("class") for one in picture.iter("line")]
    assert "lv stop" in shown
    assert "lv liquidation" not in shown, "a line far away would flatten the candles"
    (mark,) = [one for one in picture.iter("text") if "mk" in one.get("class", "")]
    assert (mark.get("class"), mark.text) == ("mk long", "▲")
    assert [one.text for one in mark] == [marks[0].text]
    high = server_chart.candle_chart([candle(n, 104_310.5) for n in range(9)], "1m", [], [], [])
    assert re.findall(r'class="tagt"[^>]*>([^<]*)<', high) == ["104,310"], "a tag is no wider than its box"
    assert server_chart.candle_chart([], "1m", [], [], []) == ""


def test_the_server_draws_the_value_of_the_account() -> None:
    drawn = server_chart.value_chart([(NOW_MS, 100.0), (NOW_MS + 1_000, 100.0), (NOW_MS + 4_000, 300.0)])
    (path,) = re.findall(r'class="ln " d="M([^"]+)"', drawn)
    steps = [tuple(map(int, step.split())) for step in path.split("L")]
    heights = [y for _, y in steps]
    assert heights[:-1] == [max(heights)] * (len(steps) - 1), "a value stands until the next one is known"
    assert (steps[-1][0], heights[-1]) == (1_000, min(heights))
    assert 'aria-label="Account value, newest 300.00"' in drawn
    assert server_chart.value_chart([(NOW_MS, 1.0)]) == ""


def test_an_indicator_of_a_longer_interval_is_drawn_in_steps() -> None:
    slow = {**EMA, "interval": "3m"}
    (drawn,) = market.overlays("BTC", CANDLES, [strategy(indicators=[slow])], "1m")
    assert drawn.label.endswith("3m")
    steps = [value for value in drawn.values if value is not None]
    assert len(set(steps)) < len(steps)
    assert market.overlays("BTC", CANDLES, [strategy(indicators=[slow])], "5m") == []


@pytest.mark.parametrize(
    ("minutes", "texts"),
    [
        (6, ["00:00", "00:01", "00:02", "00:03", "00:04", "00:05", "00:06"]),
        (59, ["00:00", "00:15", "00:30", "00:45"]),
        (300, ["00:00", "01:00", "02:00", "03:00", "04:00", "05:00"]),
        (1_440, ["00:00", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00", "00:00"]),
    ],
)
def test_an_axis_of_a_short_time_has_between_four_and_nine_instants(minutes: int, texts: list[str]) -> None:
    shown = svg.time_ticks(DAY_MS, DAY_MS + minutes * 60_000)
    assert [text for _, text, _ in shown] == texts

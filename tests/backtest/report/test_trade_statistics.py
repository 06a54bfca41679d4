"""The figures of trades, compared with figures worked out by hand."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from bot.backtest.report.svg import AXIS_CHARS, ChartLine, axis_number, histogram, line_chart, scale_of
from bot.backtest.report.trade_statistics import (
    Excursion,
    TradeGroup,
    bins,
    by_hour,
    by_weekday,
    excursion,
    exposure_by_market,
    finished,
    return_pct,
)
from tests.backtest.report.builders import DAY, HOUR, MONDAY_MS, trade

# Ten hours of trades: BTC long, ETH short, BTC long at a loss, and an event share of No that is still open.
TRADES = [
    trade(1, hours=(1, 3), pnl_usd=20.0),
    trade(2, hours=(2, 4), market="ETH", side="short", size=1.0, entry_px=50.0, pnl_usd=-5.0),
    trade(3, hours=(25, 27), pnl_usd=-10.0),
    trade(4, hours=(28, None), market="event:CUT", side="short", size=100.0, entry_px=0.4, pnl_usd=0.0),
]


def test_the_return_of_a_trade_is_its_result_over_the_notional_at_entry() -> None:
    # 20 of 2 * 100; -5 of 1 * 50; -10 of 200; a No costs 1 - 0.4 = 0.6, so 3 of 100 * 0.6 is 5 percent.
    assert [return_pct(one) for one in finished(TRADES)] == [10.0, -10.0, -5.0]
    no = trade(market="event:CUT", side="short", size=100.0, entry_px=0.4, pnl_usd=3.0)
    assert return_pct(no) == pytest.approx(5.0)
    assert return_pct(trade(size=0.0)) is None


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        # The price went from 100 down to 94 and up to 115; the stop at 96 makes 1 R = 4.
        ({"stop_px": 96.0}, Excursion(6.0, 15.0, 1.5, 3.75)),
        ({"side": "short", "stop_px": 105.0}, Excursion(15.0, 6.0, 3.0, 1.2)),
        ({"stop_px": None}, Excursion(6.0, 15.0, None, None)),
        # a stop beyond the entry risks nothing
        ({"stop_px": 101.0}, Excursion(6.0, 15.0, None, None)),
        ({"low_px": 100.5, "high_px": 99.5}, Excursion(0.0, 0.0, None, None)),
    ],
)
def test_excursions_are_measured_from_the_entry_price(over: dict[str, object], expected: Excursion) -> None:
    found = excursion(trade(**{"low_px": 94.0, "high_px": 115.0} | over))
    assert found is not None
    assert found == pytest.approx(expected)


def test_a_trade_of_an_older_run_has_no_excursion() -> None:
    assert excursion(trade(low_px=None, high_px=None)) is None


def test_results_are_grouped_by_the_hour_and_the_weekday_of_the_entry() -> None:
    hours, weekdays = by_hour(finished(TRADES)), by_weekday(finished(TRADES))
    assert [one for one in hours if one.trades] == [TradeGroup("01", 2, 1, 10.0), TradeGroup("02", 1, 0, -5.0)]
    assert [one for one in weekdays if one.trades] == [TradeGroup("Mon", 2, 1, 15.0), TradeGroup("Tue", 1, 0, -10.0)]
    assert (len(hours), len(weekdays)) == (24, 7)


def test_exposure_is_time_and_mean_notional_of_each_market() -> None:
    found = {one.market: one for one in exposure_by_market(TRADES, start_ms=MONDAY_MS, end_ms=MONDAY_MS + 40 * HOUR)}
    # BTC: 4 of 40 hours with 200 USD; ETH: 2 hours with 50; the No: 12 hours with 60. USD hours: 800 + 100 + 720 =
    # 1,620.
    assert found["BTC"][1:] == pytest.approx((10.0, 200.0, 100 * 800 / 1620))
    assert found["ETH"][1:] == pytest.approx((5.0, 50.0, 100 * 100 / 1620))
    assert found["event:CUT"][1:] == pytest.approx((30.0, 60.0, 100 * 720 / 1620))


def test_two_trades_of_one_market_at_once_count_their_common_time_once() -> None:
    both = [trade(1, hours=(0, 2)), trade(2, hours=(1, 3))]
    (found,) = exposure_by_market(both, start_ms=MONDAY_MS, end_ms=MONDAY_MS + DAY)
    assert found.time_pct == pytest.approx(100 * 3 / 24)


def test_a_bin_never_holds_both_losses_and_profits_and_every_value_is_in_one() -> None:
    chance = random.Random(5)
    values = [chance.gauss(0.1, 2) for _ in range(500)]
    found = bins(values)
    assert 10 <= len(found) <= 40
    assert all(one.high <= 0 or one.low >= 0 for one in found)
    for one in found:
        assert one.trades == sum(one.low <= value < one.high for value in values)
    assert sum(one.trades for one in found) == 500
    widths = Counter(f"{one.high - one.low:.6g}" for one in found)
    assert list(widths) == ["0.5"], "12 / 30, up to the next of 0.1, 0.2, 0.5"


@pytest.mark.parametrize("values", [[1.5], [2.0, 2.0], [0.0], [-3.0, -3.0]])
def test_equal_values_are_one_bin(values: list[float]) -> None:
    (found,) = bins(values)
    assert found.trades == len(values)
    assert found.low <= values[0] < found.high


def test_without_values_there_is_no_bin() -> None:
    assert bins([]) == []


def test_the_least_width_keeps_equal_values_in_one_bin_beside_zero() -> None:
    assert [(part.low, part.high, part.trades) for part in bins([0.2, 0.201], least=0.1)] == [
        (pytest.approx(0.2), pytest.approx(0.3), 2)
    ]
    drawn = histogram(bins([0.2] * 9, least=0.1), label="It", unit="R", mark=(0.2, "mean +0.20 R"))
    (x,) = re.findall(r'<rect[^>]* x="([0-9.]+)%"', drawn)
    assert float(x) > 60, "the losses would stand on the left of zero"
    (top,) = re.findall(r'<rect[^>]* y="([0-9.]+)%"', drawn)
    assert float(top) * 170 / 100 > 12, "the words of the mark stand above the bar"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (20_000.0, "", "20,000"),
        (0.25, " %", "0.25 %"),
        (-5.0, "×", "−5×"),
        (1_234_620.0, "", "1,234,620"),
        (-311_370_163.0, "", "−311.4M"),
        (-3_000_000.0, " %", "−3,000k %"),
    ],
)
def test_a_number_of_an_axis_fits_it(value: float, unit: str, text: str) -> None:
    assert axis_number(value, unit) == text
    assert len(text) <= AXIS_CHARS


def test_the_first_text_below_a_chart_begins_at_its_edge() -> None:
    drawn = line_chart([ChartLine("It", [1.0, 2.0])], scale_of([1.0, 2.0]), label="It", times=(0, 3_600_000))
    classes = re.findall(r'<text x="([0-9.]+)%" y="14"(?: class="([^"]*)")?>', drawn)
    assert [names.split() for x, names in classes if float(x) < 3] == [["first"]]
    assert not any("first" in names for x, names in classes if float(x) >= 3)

"""The figures of a run, compared with figures computed by hand and with formulas of the standard library."""

from __future__ import annotations

import math
import random
import statistics as library
from array import array
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from itertools import accumulate

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.report import price_chart
from bot.backtest.results import statistics as stats
from bot.backtest.results.statistics import Drawdown, FinishedTrade
from bot.money import format_e8
from bot.strategy import Bar, Bracket, Close, Intent, Open, TrailingStop, View
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, ran

DAY = 86_400_000
HOUR = 3_600_000
# 2025-01-01
START = 1_735_689_600_000


def days(*values: float) -> tuple[list[int], list[float]]:
    """One value at each midnight after the start."""
    return [START + (n + 1) * DAY for n in range(len(values))], list(values)


def trade(
    pnl: float, *, hours: tuple[int, int] = (0, 1), fees: float = 0.0, funding: float = 0.0, risk: float | None = None
) -> FinishedTrade:
    return FinishedTrade(START + hours[0] * HOUR, START + hours[1] * HOUR, pnl, fees, funding, risk)


def test_a_run_of_four_days_has_the_figures_computed_by_hand() -> None:
    """1,000 -> 1,100 -> 990 -> 1,089 -> 1,197.9: returns of 10, -10, 10, 10 percent."""
    at, usd = days(1100, 990, 1089, 1197.9)
    figures = stats.statistics(at, usd, [], start_ms=START, start_usd=1000, prices={"BTC": (100, 110), "ETH": (50, 45)})
    assert figures["Return [%]"] == 19.79
    assert figures["Buy & Hold Return [%]"] == 0
    # Mean 0.05; sum of squares about it 3 * 0.05^2 + 0.15^2 = 0.03; deviation sqrt(0.03 / 3) = 0.1.
    assert figures["Sharpe Ratio"] == round(0.5 * math.sqrt(365), 6)
    assert figures["Volatility (Ann.) [%]"] == round(10 * math.sqrt(365), 6)
    # Downside: sqrt(0.01 / 4) = 0.05.
    assert figures["Sortino Ratio"] == round(1.0 * math.sqrt(365), 6)
    assert figures["Max. Drawdown [%]"] == -10
    # from 1,100 until 1,197.9
    assert figures["Max. Drawdown Duration [h]"] == 72
    assert figures["Avg. Drawdown [%]"] == -10
    growth = 1.1979 ** (365 / 4) - 1
    assert figures["Return (Ann.) [%]"] == pytest.approx(100 * growth)
    assert figures["Calmar Ratio"] == pytest.approx(growth / 0.1)
    assert (figures["Equity Final [$]"], figures["Equity Peak [$]"]) == (1197.9, 1197.9)
    assert figures["# Trades"] == 0
    assert [figures[name] for name in ("Win Rate [%]", "Profit Factor", "SQN", "Avg. R", "Expectancy [$]")] == [
        None
    ] * 5


def test_trades_are_won_or_lost_after_their_costs() -> None:
    """Nets 90, -60, 30, 0, of risks 50, 50, 30 and none."""
    trades = [
        trade(100, fees=8, funding=-2, risk=50, hours=(0, 2)),
        trade(-55, fees=5, risk=50, hours=(2, 3)),
        trade(28, funding=2, risk=30, hours=(10, 12)),
        trade(1, fees=1, hours=(11, 14)),
    ]
    figures = stats.of_trades(trades)
    assert [one.net for one in trades] == [90, -60, 30, 0]
    assert figures["# Trades"] == 4
    assert figures["Win Rate [%]"] == 50
    assert figures["Profit Factor"] == 2
    assert figures["Expectancy [$]"] == 15
    assert (figures["Best Trade [$]"], figures["Worst Trade [$]"]) == (90, -60)
    assert figures["Avg. Trade Duration [h]"] == 2
    # R multiples 1.8, -1.2, 1.0: mean 1.6 / 3, squares about it summed 4.8267.
    assert figures["Avg. R"] == pytest.approx(1.6 / 3)
    assert figures["SQN"] == pytest.approx(math.sqrt(3) * (1.6 / 3) / math.sqrt((1.8**2 + 1.2**2 + 1 - 1.6**2 / 3) / 2))
    assert stats.exposure([(one.entry_ms, one.exit_ms) for one in trades], START, START + 20 * HOUR) == (3 + 4) / 20


def multiples(*bars: tuple[float, float, float, float], **signals: Intent) -> list[tuple[float | None, str]]:
    """R and result of each round trip, for signals at the close of minute m1, m2 and so on; without any costs."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        signal = signals.get(f"m{(bar.at_ms - START_MS) // MINUTE_MS}")
        return () if signal is None else (signal,)

    at = array("q", range(START_MS, START_MS + len(bars) * MINUTE_MS, MINUTE_MS))
    columns = (array("d", column) for column in (*zip(*bars, strict=True), [80.0] * len(bars)))
    ticks = {"": replace(FREE[""], tick=Decimal("0.01"), lot=Decimal("0.01"))}
    result = ran([Candles("BTC", "1m", at, *columns)], script=script, rules=ticks).result
    found = [(trip.r_multiple, format_e8(trip.pnl)) for trip in result.trade_ledger.trips if trip.exit_ms]
    assert result.figures["Avg. R"] == stats.mean([r for r, _ in found if r is not None])
    return found


def test_one_r_is_the_loss_at_the_first_stop_also_after_additions() -> None:
    """10 at 100 with a stop at 95 risk 50; 10 more at 96, all out at 90 loses 160."""
    first, more = (Open("BTC", "long", size=10, bracket=Bracket(stop_px=px)) for px in (95, 80))
    bars = [(px,) * 4 for px in (100, 100, 96, 90, 90)]
    assert multiples(*bars, m1=first, m2=more, m3=Close("BTC")) == [(-3.2, "-160")]
    short, again = (Open("BTC", "short", size=10, bracket=Bracket(stop_px=px)) for px in (104, 120))
    up = [(px,) * 4 for px in (100, 100, 103, 110, 110)]
    assert multiples(*up, m1=short, m2=again, m3=Close("BTC")) == [(-4.25, "-170")]


def test_a_first_stop_beyond_the_entry_risks_nothing_and_gives_no_r() -> None:
    """The stop comes with the addition at 110; at 105 the position from 100 still gains."""
    bare = Open("BTC", "long", size=10, guardians=(TrailingStop(trail_pct=30),))
    add = Open("BTC", "long", size=1, bracket=Bracket(stop_px=105))
    bars = [(px,) * 4 for px in (100, 100, 110, 110, 112, 112)]
    assert multiples(*bars, m1=bare, m3=add, m4=Close("BTC")) == [(None, "122")]


def test_the_risk_of_an_entry_in_parts_is_that_of_the_whole() -> None:
    """A tenth of each bar's volume of 80 at 100, until there are 20, with a stop at 96."""
    entry = Open("BTC", "long", size=20, limit_px=100, bracket=Bracket(stop_px=96))
    bars = [(101,) * 4, (101,) * 4, *[(101, 101, 99, 101)] * 3, (101,) * 4, (104,) * 4, (104,) * 4]
    assert multiples(*bars, m1=entry, m6=Close("BTC")) == [(1.0, "80")]


def test_without_any_stop_the_quality_number_is_of_results_in_usd() -> None:
    assert stats.of_trades([trade(10), trade(20)])["SQN"] == pytest.approx(math.sqrt(2) * 15 / math.sqrt(50))


def test_each_drawdown_lasts_from_its_peak_until_the_peak_is_reached_again() -> None:
    at, usd = days(90, 100, 120, 60, 90, 120, 130, 117)
    found = stats.drawdowns(at, usd, start_ms=START, start_usd=100)
    assert found == [
        Drawdown(START, START + 2 * DAY, 0.1, START + DAY),
        Drawdown(START + 3 * DAY, START + 6 * DAY, 0.5, START + 4 * DAY),
        Drawdown(START + 7 * DAY, START + 8 * DAY, 0.1, START + 8 * DAY, is_over=False),
    ]
    figures = stats.statistics(at, usd, [], start_ms=START, start_usd=100)
    assert (figures["Max. Drawdown [%]"], figures["Max. Drawdown Duration [h]"]) == (-50, 72)
    assert (figures["Avg. Drawdown [%]"], figures["Avg. Drawdown Duration [h]"]) == (round(-70 / 3, 6), 48)


def test_a_day_ends_at_midnight_utc() -> None:
    """The value at midnight is the day's last; a day without any returns 0; the last day is as long as it is."""
    at = [START + hour * HOUR for hour in (6, 24, 25, 47, 73, 80)]
    assert stats.daily_returns(at, [110, 100, 120, 150, 300, 75], start_ms=START, start_usd=50) == [1.0, 0.5, 0.0, -0.5]


def test_days_without_prices_before_the_first_candle_are_days_of_the_run_too() -> None:
    """From a Saturday on, in a market that opens on Monday: as if its price had been constant on both days."""
    at, usd = days(1000, 1000, 1010, 1005, 1020)
    late = stats.statistics(at[2:], usd[2:], [], start_ms=START, start_usd=1000)
    assert late == stats.statistics(at, usd, [], start_ms=START, start_usd=1000)
    found = stats.daily_returns([START + 50 * HOUR], [150], start_ms=START + 30 * HOUR, start_usd=100)
    assert found == [0.0, 0.5]


def test_ratios_of_a_market_closed_at_weekends_use_252_days_a_year() -> None:
    """Five days of seven have prices.

    The same returns, with a year of five sevenths of 365 days, as is usual for shares.
    """
    chance = random.Random(6)
    returns = [chance.gauss(0.001, 0.01) for _ in range(5 * 200)]
    at = [START + (7 * (n // 5) + n % 5 + 1) * DAY for n in range(len(returns))]
    usd = [*accumulate(returns, lambda value, move: value * (1 + move), initial=1000.0)][1:]
    figures = stats.statistics(at, usd, [], start_ms=START, start_usd=1000)
    root = math.sqrt(365 * 5 / 7)
    assert figures["Sharpe Ratio"] == pytest.approx(library.fmean(returns) / library.stdev(returns) * root, rel=0.01)
    assert figures["Volatility (Ann.) [%]"] == pytest.approx(100 * library.stdev(returns) * root, rel=0.01)


def test_a_lost_account_ends_the_returns_without_an_error() -> None:
    at, usd = days(50, 0, 0)
    figures = stats.statistics(at, usd, [trade(-100)], start_ms=START, start_usd=100)
    assert (figures["Return [%]"], figures["Max. Drawdown [%]"], figures["Return (Ann.) [%]"]) == (-100, -100, -100)
    assert stats.daily_returns(at, usd, start_ms=START, start_usd=100) == [-0.5, -1.0]


@pytest.mark.parametrize("usd", [[], [100.0], [100.0] * 5])
def test_a_run_in_which_nothing_happens_has_no_ratios(usd: list[float]) -> None:
    at, values = days(*usd)
    figures = stats.statistics(at, values, [], start_ms=START, start_usd=100)
    assert figures["Return [%]"] == figures["Max. Drawdown [%]"] == figures["Exposure Time [%]"] == 0
    assert math.copysign(1, figures["Max. Drawdown [%]"]) == 1
    assert figures["Sharpe Ratio"] is figures["Sortino Ratio"] is figures["Calmar Ratio"] is None


def test_a_run_of_less_than_a_day_has_no_annual_figures() -> None:
    figures = stats.statistics([START + HOUR], [200.0], [], start_ms=START, start_usd=100)
    assert figures["Return [%]"] == 100
    assert figures["Return (Ann.) [%]"] is None
    fallen = stats.statistics([START + HOUR], [99.0], [], start_ms=START, start_usd=100)
    assert fallen["Sharpe Ratio"] is fallen["Sortino Ratio"] is None


def test_random_returns_agree_with_the_standard_librarys_formulas() -> None:
    chance = random.Random(5)
    returns = [chance.gauss(0.001, 0.02) for _ in range(500)]
    at, usd = days(*accumulate(returns, lambda value, move: value * (1 + move), initial=1000.0))
    found = stats.daily_returns(at, usd, start_ms=START, start_usd=1000)
    assert found[0] == 0
    assert found[1:] == pytest.approx(returns)
    root = math.sqrt(365)
    assert stats.sharpe(found) == pytest.approx(library.fmean(found) / library.stdev(found) * root)
    below = math.sqrt(library.fmean(min(one, 0) ** 2 for one in found))
    assert stats.sortino(found) == pytest.approx(library.fmean(found) / below * root)
    worst = min(low / high - 1 for n, high in enumerate(usd) for low in usd[n:])
    assert max(one.depth for one in stats.drawdowns(at, usd, start_ms=START, start_usd=1000)) == pytest.approx(-worst)


def test_falls_are_the_same_whatever_the_length_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read in blocks: the drawdowns of the figures, and the deepest fall of each bucket of the chart."""
    chance = random.Random(3)
    for count in (0, 1, 2, 7, 255, 257, 700):
        steps = [chance.choice((0.0, 0.0, 1.0, -1.0, chance.gauss(0, 3))) for _ in range(count)]
        usd = list(accumulate(steps, initial=100.0))[1:]
        at = [START + n * 60_000 for n in range(count)]
        monkeypatch.setattr(stats, "BLOCK_ROWS", 1)
        one_by_one = stats.drawdowns(at, usd, start_ms=START, start_usd=100.0)
        for rows in (2, 3, 256):
            monkeypatch.setattr(stats, "BLOCK_ROWS", rows)
            assert stats.drawdowns(at, usd, start_ms=START, start_usd=100.0) == one_by_one
        peaks = list(accumulate(usd, max, initial=100.0))[1:]
        falls = [100 * (value / peak - 1) if peak > 0 else 0.0 for value, peak in zip(usd, peaks, strict=True)]
        peak = 100.0
        for start in range(0, count, 5):
            peak, deepest = price_chart._deepest_fall(usd[start : start + 5], peak)
            assert (peak, deepest) == (peaks[min(start + 5, count) - 1], min(falls[start : start + 5]))

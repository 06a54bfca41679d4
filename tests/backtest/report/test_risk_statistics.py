"""Value at risk, expected shortfall, rolling figures and the worst drawdowns, compared with numpy and with figures
worked out by hand.
"""

from __future__ import annotations

import random
import statistics as library

import numpy as np
import pytest

from bot.backtest.report.risk_statistics import expected_shortfall, rolling_sharpe, value_at_risk, worst
from bot.backtest.report.verdicts import run_lines
from bot.backtest.results.statistics import drawdowns
from tests.backtest.report.builders import DAY, MONDAY_MS

# Twenty-one days: -0.10, -0.09, ... 0.10.
RETURNS = [round(0.01 * (n * 8 % 21) - 0.1, 2) for n in range(21)]


def test_value_at_risk_and_expected_shortfall_of_21_days_are_those_worked_out_by_hand() -> None:
    assert sorted(RETURNS) == [round(0.01 * n - 0.1, 2) for n in range(21)]
    # The quantile 0.05 lies at place 20 * 0.05 = 1: -0.09. The returns up to it: -0.10 and -0.09.
    assert value_at_risk(RETURNS, 0.95) == pytest.approx(-0.09)
    assert expected_shortfall(RETURNS, 0.95) == pytest.approx(-0.095)


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_both_agree_with_numpy_and_with_empyricals_formula(level: float) -> None:
    chance = random.Random(7)
    returns = [chance.gauss(0.001, 0.02) for _ in range(365)]
    lowest = int((len(returns) - 1) * (1 - level))
    assert value_at_risk(returns, level) == pytest.approx(np.percentile(returns, 100 * (1 - level)))
    assert expected_shortfall(returns, level) == pytest.approx(np.mean(np.partition(returns, lowest)[: lowest + 1]))


def test_too_few_days_have_no_value_at_risk() -> None:
    assert value_at_risk(RETURNS[:19], 0.95) is expected_shortfall(RETURNS[:19], 0.95) is None
    assert value_at_risk(RETURNS[:20], 0.95) is not None
    assert value_at_risk(RETURNS * 5, 0.99) is not None
    assert value_at_risk(RETURNS, 0.99) is expected_shortfall(RETURNS, 0.99) is None


def test_the_rolling_sharpe_ratio_is_of_the_last_days_only() -> None:
    found = rolling_sharpe(RETURNS, days=5)
    assert len(found) == 17
    for n, one in enumerate(found):
        window = RETURNS[n : n + 5]
        assert one == pytest.approx(library.mean(window) / library.stdev(window) * 365**0.5)
    assert rolling_sharpe(RETURNS[:4], days=5) == []
    assert rolling_sharpe([0.25] * 5, days=5) == [None]


def test_the_worst_drawdowns_come_first_with_their_low_and_their_recovery() -> None:
    usd = [100.0, 95.0, 100.0, 80.0, 90.0, 100.0, 110.0, 99.0]
    at_ms = [MONDAY_MS + n * DAY for n in range(len(usd))]
    found = worst(drawdowns(at_ms, usd, start_ms=MONDAY_MS, start_usd=100.0), 2)
    days = [tuple((at - MONDAY_MS) // DAY for at in (one.peak_ms, one.low_ms, one.end_ms)) for one in found]
    assert days == [(2, 3, 5), (6, 7, 7)]
    assert [round(one.depth, 6) for one in found] == [0.2, 0.1]
    assert [one.is_over for one in found] == [True, False]


def test_the_report_says_how_sure_the_sharpe_ratio_is_and_nothing_of_nine_days() -> None:
    """Bailey, Lopez de Prado 2012, without skewness and with the kurtosis of the returns: cdf(sharpe * sqrt(n - 1) /
    sqrt(1 + (kurtosis - 1) / 4 * sharpe ** 2)).
    """
    returns = [0.02, -0.01] * 10
    spread = library.stdev(returns)
    sharpe = 0.005 / spread
    # two values of equal weight have a kurtosis of 1
    chance = library.NormalDist().cdf(sharpe * 19**0.5)
    (line,) = run_lines(returns, None)
    assert f"Probabilistic Sharpe ratio {chance:.2f}: " in line
    assert "20 daily returns" in line
    assert run_lines(returns[:9], None) == []

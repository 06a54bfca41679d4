"""The figures of how sure one can be: the papers' own examples, noise, and a planted edge."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import sqrt
from random import Random
from statistics import mean

import pytest

from bot.backtest.report.risk_statistics import Moments, moments_of, probabilistic_sharpe
from bot.extras import install
from bot.research.overfitting import best_by_luck, deflated_sharpe, overfitting_probability, superiority, verdicts

np = pytest.importorskip("numpy")


def test_the_probabilistic_sharpe_ratio_is_that_of_the_paper() -> None:
    """Bailey, Lopez de Prado 2012: 24 months, a monthly Sharpe ratio of 0.458, skewness -2.448, kurtosis 10.164."""
    assert probabilistic_sharpe(Moments(24, 0.458, -2.448, 10.164)) == pytest.approx(0.913, abs=0.001)
    assert probabilistic_sharpe(Moments(24, 0.458)) == pytest.approx(0.982, abs=0.001), "as if it were normal"


def test_the_deflated_sharpe_ratio_is_that_of_the_paper() -> None:
    """Bailey, Lopez de Prado 2014: 5 years of days, annualised 2.5, the best of 100 trials whose annualised ratios
    have a variance of 0.5.
    """
    found = Moments(1250, 2.5 / sqrt(250), -3, 10)
    assert best_by_luck(100, 0.5 / 250) == pytest.approx(0.1132, abs=0.0001)
    assert deflated_sharpe(found, 100, 0.5 / 250) == pytest.approx(0.9004, abs=0.0001)
    assert deflated_sharpe(found, 1, 0.5 / 250) == probabilistic_sharpe(found), "nothing was selected"


def test_moments_are_those_of_the_returns() -> None:
    values = [0.01, -0.02, 0.03, 0.0, 0.01, -0.01, 0.02, 0.04, -0.03, 0.01]
    found = moments_of(values)
    assert found is not None
    deviations = np.array(values) - np.mean(values)
    assert found.sharpe == pytest.approx(np.mean(values) / np.std(values, ddof=1))
    assert found.skewness == pytest.approx(np.mean(deviations**3) / np.std(values) ** 3)
    assert found.kurtosis == pytest.approx(np.mean(deviations**4) / np.std(values) ** 4)
    assert moments_of(values[:9]) is None
    assert moments_of([0.01] * 20) is None


def noise(trials: int, days: int, seed: int) -> list[list[float]]:
    chance = Random(seed)
    return [[chance.gauss(0, 0.01) for _ in range(days)] for _ in range(trials)]


def test_on_noise_the_probability_of_overfitting_is_about_a_half_and_with_an_edge_about_0() -> None:
    found = [overfitting_probability(noise(20, 160, seed)) for seed in range(12)]
    assert 0.4 < mean(one for one in found if one is not None) < 0.65
    edged = noise(20, 160, 1)
    edged[7] = [one + 0.006 for one in edged[7]]
    assert overfitting_probability(edged) == pytest.approx(0, abs=0.01)


def test_the_probability_of_overfitting_is_that_of_a_plain_count() -> None:
    """The formula of the paper without matrices: every half of the blocks, the best inside, its rank outside."""
    from itertools import combinations
    from statistics import stdev

    returns = noise(5, 40, 3)
    blocks = [range(n * 5, n * 5 + 5) for n in range(8)]

    def sharpe(row: list[float], chosen: tuple[int, ...]) -> float:
        values = [row[day] for n in chosen for day in blocks[n]]
        return mean(values) / stdev(values)

    below = []
    for inside in combinations(range(8), 4):
        outside = tuple(n for n in range(8) if n not in inside)
        best = max(range(5), key=lambda trial: sharpe(returns[trial], inside))
        ratios = [sharpe(row, outside) for row in returns]
        below.append((sum(one < ratios[best] for one in ratios) + 1) / 6 <= 0.5)
    assert overfitting_probability(returns) == pytest.approx(mean(below))


def test_superior_predictive_ability_is_shown_by_an_edge_and_not_by_noise_or_losses() -> None:
    pytest.importorskip("arch")
    rows = noise(20, 250, 1)
    losing = [one - 0.004 for one in rows[0]]
    edged = [one + 0.004 for one in rows[1]]
    for trials, is_edge in ((rows, False), ([losing, *rows], False), ([*rows, edged], True)):
        found = superiority(trials)
        assert found is not None
        assert (found.consistent <= 0.05) is is_edge
        assert found.consistent <= found.reality_check
        line = verdicts(trials, trials[-1])[-1]
        assert line.startswith("Superior predictive ability")
        assert ("an edge is likely" in line) is is_edge
    assert superiority([rows[0], [0.0] * 250]) is None, "one trial did not trade"


def test_without_arch_the_verdicts_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arch.bootstrap", None)
    rows = noise(5, 100, 1)
    assert install("research") in verdicts(rows, rows[0])[-1]


def test_too_little_data_give_no_figure_and_say_so() -> None:
    assert overfitting_probability(noise(1, 100, 1)) is None
    assert overfitting_probability(noise(5, 19, 1)) is None
    assert verdicts(noise(5, 5, 1), noise(1, 5, 1)[0]) == [
        "Too few days for a verdict: the best trial has 5 daily returns, and 10 are needed."
    ]


def sharpe_of(returns: Sequence[float]) -> float:
    moments = moments_of(returns)
    assert moments is not None
    return moments.sharpe


@pytest.mark.soak(worlds=8, full=100)
def test_the_best_of_many_random_walks_shows_no_edge_and_a_planted_one_is_found(worlds: int) -> None:
    shown = found = 0
    for seed in range(worlds):
        rows = noise(30, 250, seed)
        best = max(rows, key=sharpe_of)
        shown += "an edge is likely" in verdicts(rows, best)[1]
        planted = [one + 0.004 for one in best]
        found += "an edge is likely" in verdicts([*rows, planted], planted)[1]
    assert shown <= worlds * 0.05, shown
    assert found >= worlds * 0.95

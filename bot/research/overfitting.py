"""How sure one can be of the best of many trials: Sharpe ratios that allow for short samples, fat tails and selection,
the probability of overfitting, and the test of superior predictive ability.

All Sharpe ratios here are of one period (a day), not annualised: a count of periods and an annualised ratio do not
belong into one formula. Moments and the probabilistic Sharpe ratio are those of `risk_statistics`, which also serve the
report of one run.

- [1] Bailey, Lopez de Prado: The Deflated Sharpe Ratio. Journal of Portfolio Management 40 (5), 2014.
- [2] Bailey, Borwein, Lopez de Prado, Zhu: The Probability of Backtest Overfitting. Journal of Computational Finance 20
(4), 2017.
- [3] White: A Reality Check for Data Snooping. Econometrica 68 (5), 2000.
- [4] Hansen: A Test for Superior Predictive Ability. Journal of Business & Economic Statistics 23 (4), 2005.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import stdev
from typing import Any, Final, NamedTuple

from bot.backtest.report.risk_statistics import DAYS_MIN, NORMAL, Moments, moments_of, probabilistic_sharpe
from bot.backtest.report.verdicts import sharpe_text
from bot.errors import BotError
from bot.extras import install

SURE: Final = 0.95
# The blocks of CSCV: 12,870 ways to halve them, as in [2].
BLOCKS_MAX: Final = 16
# returns in a block
BLOCK_MIN: Final = 5
# The draws of the bootstrap of [4], as the package arch has it.
DRAWS: Final = 1_000
# returns that it draws in all, about 20 s; a larger sweep has fewer draws
CELLS_MAX: Final = 2_000_000_000
EULER: Final = 0.5772156649015329


def best_by_luck(trials: int, variance: float) -> float:
    """The Sharpe ratio that the best of so many trials without skill is expected to show [1].

    `variance` is that of the trials' Sharpe ratios.
    """
    if trials < 2:
        return 0.0
    low, high = NORMAL.inv_cdf(1 - 1 / trials), NORMAL.inv_cdf(1 - 1 / (trials * math.e))
    return math.sqrt(variance) * ((1 - EULER) * low + EULER * high)


def deflated_sharpe(moments: Moments, trials: int, variance: float) -> float:
    """The probability that the true Sharpe ratio is above the one that selection among so many trials shows by luck
    [1].
    """
    return probabilistic_sharpe(moments, best_by_luck(trials, variance))


def deflated_of(returns: Sequence[Sequence[float]], chosen: Sequence[float]) -> float | None:
    """The deflated Sharpe ratio of one trial. None for too few trials or days.

    `chosen` are the returns of that trial, `returns` those of all complete trials.
    """
    moments = moments_of(chosen)
    sharpes = [row_moments.sharpe for row in returns if (row_moments := moments_of(row)) is not None]
    return None if moments is None or len(sharpes) < 2 else deflated_sharpe(moments, len(sharpes), stdev(sharpes) ** 2)


def overfitting_probability(returns: Sequence[Sequence[float]]) -> float | None:
    """How often the trial that is best on one half of the days is below the median on the other half: CSCV [2].

    `returns` has a row of equal length for each trial. None for fewer than two trials, or too few days for four blocks.
    """
    try:
        import numpy as np
    except ImportError:
        raise BotError(f"this figure needs the package numpy: {install('research')}") from None
    if len(returns) < 2:
        return None
    blocks = min(BLOCKS_MAX, len(returns[0]) // BLOCK_MIN // 2 * 2)
    if blocks < 4:
        return None
    length = len(returns[0]) // blocks
    table: Any = np.asarray(returns, dtype=float)[:, : blocks * length].reshape(len(returns), blocks, length)
    # block x trial
    sums, squares = table.sum(axis=2).T, (table**2).sum(axis=2).T
    picked = np.zeros((math.comb(blocks, blocks // 2), blocks))
    for row, chosen in enumerate(combinations(range(blocks), blocks // 2)):
        picked[row, list(chosen)] = 1
    count = length * blocks // 2

    def sharpes(mask: Any) -> Any:
        mean = mask @ sums / count
        deviation = np.sqrt(np.maximum((mask @ squares - count * mean**2) / (count - 1), 0))
        return np.divide(mean, deviation, out=np.zeros_like(mean), where=deviation > 0)

    inside, outside = sharpes(picked), sharpes(1 - picked)
    best = outside[np.arange(len(picked)), inside.argmax(axis=1)][:, None]
    rank = ((outside < best).sum(axis=1) + 1) / (len(returns) + 1)
    return float((rank <= 0.5).mean())


class Superiority(NamedTuple):
    """The probability that the best of the trials does as well as it does if none is better than not trading."""

    # Hansen [4]
    consistent: float
    # White [3], the upper bound of the same statistic
    reality_check: float


def superiority(returns: Sequence[Sequence[float]], seed: int = 1) -> Superiority | None:
    """The test of superior predictive ability by the package arch: the returns of all trials against not trading, drawn
    in blocks of about the root of their length.

    `returns` has a row of equal length for each trial. Rows without any variation are left out; None if fewer than two
    are left. ImportError without arch.
    """
    import numpy as np
    from arch.bootstrap import SPA

    rows = [row for row in returns if moments_of(row) is not None]
    if len(rows) < 2:
        return None
    losses = -np.asarray(rows, dtype=float).T
    draws = max(100, min(DRAWS, CELLS_MAX // losses.size))
    test = SPA(np.zeros(len(losses)), losses, reps=draws, seed=seed)
    test.compute()
    return Superiority(float(test.pvalues["consistent"]), float(test.pvalues["upper"]))


class Doubt(NamedTuple):
    """A test of whether the best of many trials is more than luck.

    `value` None: it could not be computed. `bound`: what the value must reach (`is_least`) or not exceed. `sentence`:
    all of it in words.
    """

    name: str
    value: float | None
    bound: float
    is_least: bool
    note: str
    sentence: str

    @property
    def is_passed(self) -> bool:
        """True if the value keeps its bound. What is not known is not passed."""
        return self.value is not None and (self.value >= self.bound if self.is_least else self.value <= self.bound)


def doubts(returns: Sequence[Sequence[float]], best: Sequence[float]) -> list[Doubt]:
    """One test for each figure that the trials allow; empty if the best trial has too few days.

    `best` are the returns of the best trial, `returns` those of all complete trials.
    """
    moments = moments_of(best)
    if moments is None:
        return []
    sharpes = [row_moments.sharpe for row in returns if (row_moments := moments_of(row)) is not None]
    tests = [_probabilistic(moments)]
    if len(sharpes) > 1:
        tests.append(_deflated(moments, sharpes))
    chance = overfitting_probability(returns)
    if chance is not None:
        tests.append(_overfitting(chance))
    return tests + (_superior(returns) if len(returns) > 1 else [])


def verdicts(returns: Sequence[Sequence[float]], best: Sequence[float]) -> list[str]:
    """One plain sentence for each of `doubts`."""
    tests = doubts(returns, best)
    if not tests:
        return [f"Too few days for a verdict: the best trial has {len(best)} daily returns, and {DAYS_MIN} are needed."]
    return [test.sentence for test in tests]


def _probabilistic(moments: Moments) -> Doubt:
    note = "Probability that its true Sharpe ratio is above 0, as if it were the only trial. It allows for no choice."
    sentence = sharpe_text(moments, "the best trial's true")
    return Doubt(
        "Probabilistic Sharpe ratio", probabilistic_sharpe(moments), SURE, is_least=True, note=note, sentence=sentence
    )


def _deflated(moments: Moments, sharpes: Sequence[float]) -> Doubt:
    value = deflated_sharpe(moments, len(sharpes), stdev(sharpes) ** 2)
    edge = "an edge is likely" if value >= SURE else f"no edge is shown (less than {SURE})"
    sentence = (
        f"Deflated Sharpe ratio {value:.2f}: {edge}. It is the probability that the best trial's Sharpe ratio is"
        f" above what the best of {len(sharpes)} trials shows by luck (Bailey, Lopez de Prado 2014). Every trial"
        " counts, so alike trials make it lower."
    )
    note = f"Probability that the best is above what the best of {len(sharpes):,} shows by luck."
    return Doubt("Deflated Sharpe ratio", value, SURE, is_least=True, note=note, sentence=sentence)


def _overfitting(chance: float) -> Doubt:
    sentence = (
        f"Probability of backtest overfitting {chance:.2f}: how often the trial that is best on half of the days is"
        " below the median on the others (CSCV; Bailey, Borwein, Lopez de Prado, Zhu 2017). On noise it is 0.5,"
        " give or take 0.2, so it is never a verdict alone."
    )
    note = "How often the best on half of the days is below the median on the others. Noise gives 0.5. Never alone."
    return Doubt("Probability of overfitting", chance, 0.5, is_least=False, note=note, sentence=sentence)


def _superior(returns: Sequence[Sequence[float]]) -> list[Doubt]:
    name, note = "Superior predictive ability, p", "Chance of so good a best trial if no trial has an edge."
    try:
        test = superiority(returns)
    except ImportError:
        lacks = f"Test of superior predictive ability: it needs the package arch: {install('research')}"
        return [Doubt(name, None, 1 - SURE, is_least=False, note=note, sentence=lacks)]
    if test is None:
        return []
    edge = "an edge is likely" if test.consistent <= 1 - SURE else f"no edge is shown (more than {1 - SURE:.2f})"
    text = (
        f"Superior predictive ability, p = {test.consistent:.3f}: {edge}. It is the probability that the best trial"
        " does so well against not trading if no trial has an edge (Hansen 2005, by arch). White's reality check"
        f" (2000), which also counts bad trials, gives {test.reality_check:.3f}."
    )
    return [Doubt(name, test.consistent, 1 - SURE, is_least=False, note=note, sentence=text)]

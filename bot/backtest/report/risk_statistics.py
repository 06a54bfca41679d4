"""Risk over the days of a run: value at risk, expected shortfall, rolling Sharpe ratio, how sure the
Sharpe ratio is, the worst drawdowns. Pure.

Returns are daily, from 00:00 to 00:00 UTC, as fractions, and a year has 365 days (`statistics.daily_returns`). Rolling
figures count every day of the calendar; quantiles and moments are of days with prices, because a closed day is no
observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import Final, NamedTuple

from bot.backtest.results.statistics import Drawdown, mean, sharpe

LEVELS: Final = (0.95, 0.99)
# fewer returns say nothing of a Sharpe ratio
DAYS_MIN: Final = 10
NORMAL: Final = NormalDist()


def rolling_sharpe(returns: Sequence[float], days: int) -> list[float | None]:
    """The annual Sharpe ratio (`statistics.sharpe`) of the last `days` returns, from the first day that has so many.
    None for a window that does not vary.
    """
    return [sharpe(returns[end - days : end]) for end in range(days, len(returns) + 1)]


def value_at_risk(returns: Sequence[float], level: float) -> float | None:
    """The daily return that is not undercut on the share `level` of the days, by historical simulation (Jorion, Value
    at Risk, 1997, chapter 9).

    The quantile 1 - level lies on the straight line between its two neighbours, as in numpy and empyrical. None if
    fewer days than 1 / (1 - level).
    """
    if len(returns) < days_for(level):
        return None
    return quantile(sorted(returns), 1 - level)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the ordered values lies, on the straight line between its two neighbours."""
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def expected_shortfall(returns: Sequence[float], level: float) -> float | None:
    """The mean of the daily returns that are not above the value at risk (Acerbi and Tasche, Expected Shortfall,
    Economic Notes 31, 2002).

    These are the lowest int((n - 1) * (1 - level)) + 1 returns, as in empyrical. None if fewer days than 1 / (1 -
    level).
    """
    if len(returns) < days_for(level):
        return None
    return mean(sorted(returns)[: int((len(returns) - 1) * (1 - level)) + 1])


def days_for(level: float) -> int:
    """How many days hold at least one day beyond this level."""
    return math.ceil(round(1 / (1 - level), 6))


def worst(falls: Sequence[Drawdown], count: int) -> list[Drawdown]:
    """The deepest drawdowns, deepest first."""
    return sorted(falls, key=lambda fall: -fall.depth)[:count]


class Moments(NamedTuple):
    """Of a series of returns: its length, Sharpe ratio of one period, skewness and kurtosis.

    The standard deviation has n - 1 in its denominator; skewness and kurtosis are of the population (n), kurtosis 3 for
    a normal distribution.
    """

    length: int
    sharpe: float
    skewness: float = 0.0
    kurtosis: float = 3.0


def moments_of(returns: Sequence[float]) -> Moments | None:
    """None for fewer than ten returns, or returns that are all alike."""
    if len(returns) < DAYS_MIN:
        return None
    middle, spread = fmean(returns), stdev(returns)
    if spread == 0:
        return None
    population = math.sqrt(fmean((value - middle) ** 2 for value in returns))
    skewness = fmean(((value - middle) / population) ** 3 for value in returns)
    kurtosis = fmean(((value - middle) / population) ** 4 for value in returns)
    return Moments(len(returns), middle / spread, skewness, kurtosis)


def probabilistic_sharpe(moments: Moments, least: float = 0.0) -> float:
    """The probability that the true Sharpe ratio of one period is above `least` (Bailey, Lopez de Prado: The Sharpe
    Ratio Efficient Frontier. Journal of Risk 15 (2), 2012). Neither ratio is annualised.
    """
    spread = 1 - moments.skewness * moments.sharpe + (moments.kurtosis - 1) / 4 * moments.sharpe**2
    return NORMAL.cdf((moments.sharpe - least) * math.sqrt(moments.length - 1) / math.sqrt(max(spread, 1e-12)))

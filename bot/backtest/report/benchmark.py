"""The market beside the strategy: held long at the size that the strategy held on average, and the strategy's alpha and
beta to the market or to any other series. Pure.

A strategy that held a third of its balance is compared with a third of its balance in the market, because a comparison
with the whole balance would say only that it held less.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bot.backtest.data.candles import Candles
from bot.backtest.report.summary import daily_of, exposure_of
from bot.backtest.results.run_reader import StoredRun
from bot.backtest.results.statistics import DAYS_A_YEAR
from bot.clock import DAY_MS


class SameSize(NamedTuple):
    """The market held long at the strategy's own average size. `sizes`: USD by market. `usd`: the value at each instant
    that was asked for, without costs.
    """

    sizes: Mapping[str, float]
    usd: Sequence[float]


def same_size(run: StoredRun, at_ms: Sequence[int]) -> SameSize | None:
    """The value of the start balance with each market held long at its average size, set again at each 00:00 UTC.

    Average size: notional at entry times the time that it was held, over the time of the whole run. None without
    candles or without a position.
    """
    sizes = {part.market: part.mean_usd * part.time_pct / 100 for part in exposure_of(run) if part.market in run.chart}
    if not any(sizes.values()):
        return None
    usd = [float(run.summary["startUsd"])] * len(at_ms)
    for market, size in sizes.items():
        for row, gain in enumerate(_growth(run.chart[market], run.summary["course"]["fromMs"], at_ms)):
            usd[row] += size * gain
    return SameSize(sizes, usd)


def _growth(candles: Mapping[str, Any], start_ms: int, at_ms: Sequence[int]) -> list[float]:
    """At each instant: the returns of the days so far, added up, and that of the day that runs."""
    prices = ClosePrices(candles)
    base, total, midnight = prices.first, 0.0, start_ms // DAY_MS * DAY_MS + DAY_MS
    growth = []
    for at in at_ms:
        while midnight < at:
            close = prices.at(midnight)
            total, base, midnight = total + close / base - 1, close, midnight + DAY_MS
        growth.append(total + prices.at(at) / base - 1)
    return growth


class ClosePrices:
    """The last close of a market's candles up to an instant; before the first close, its first open."""

    def __init__(self, candles: Mapping[str, Any]) -> None:
        self._ends_ms = [ts + candles["stepMs"] for ts in candles["ts"]]
        # The last candle of the chart may hold fewer bars than the others.
        self._close = candles["close"]
        self.first = float(candles["open"][0]) if candles["open"] else 1.0

    @classmethod
    def of(cls, candles: Candles) -> ClosePrices:
        """Those of candles that are no part of a run."""
        return cls({"ts": candles.at_ms, "stepMs": candles.step_ms, "close": candles.close, "open": candles.open})

    def at(self, at_ms: int) -> float:
        row = bisect_right(self._ends_ms, at_ms) - 1
        return self.first if row < 0 else float(self._close[row])


def market_returns(run: StoredRun) -> list[float]:
    """The mean daily return of the markets of a run, for the days of `summary.daily_of`."""
    return price_returns(run, [ClosePrices(candles) for candles in run.chart.values() if candles["ts"]])


def price_returns(run: StoredRun, columns: Sequence[ClosePrices]) -> list[float]:
    """The mean daily return of some prices, for the days of a run."""
    start_ms, end_ms = run.summary["course"]["fromMs"], run.summary["course"]["toMs"]
    if not columns or end_ms <= start_ms:
        return []
    first = start_ms // DAY_MS * DAY_MS + DAY_MS
    ends = [*range(first, end_ms, DAY_MS), end_ms]
    before = [prices.first for prices in columns]
    returns = []
    for end in ends:
        now = [prices.at(end) for prices in columns]
        returns.append(math.fsum(a / b - 1 for a, b in zip(now, before, strict=True)) / len(columns))
        before = now
    return returns


class Relation(NamedTuple):
    """Of daily returns to those of another series: Jensen's alpha of a year as a fraction, beta, and the correlation of
    Pearson.
    """

    alpha: float
    beta: float
    correlation: float


def relation(returns: Sequence[float], others: Sequence[float]) -> Relation | None:
    """Alpha and beta to any series of daily returns, for the days that both have (Jensen, The Performance of Mutual
    Funds in the Period 1945-1964, Journal of Finance 23, 1968; riskless rate 0).

    None for fewer than two days, or for a series that does not vary.
    """
    days = min(len(returns), len(others))
    if days < 2:
        return None
    mine, theirs = returns[:days], others[:days]
    own, other = math.fsum(mine) / days, math.fsum(theirs) / days
    together = math.fsum((a - own) * (b - other) for a, b in zip(mine, theirs, strict=True))
    spread, spread_other = (math.fsum((a - b) ** 2 for a in values) for values, b in ((mine, own), (theirs, other)))
    if spread <= 0 or spread_other <= 0:
        return None
    beta = together / spread_other
    return Relation(DAYS_A_YEAR * (own - beta * other), beta, together / math.sqrt(spread * spread_other))


def relation_of(run: StoredRun, prices: ClosePrices | None = None) -> Relation | None:
    """Alpha, beta and correlation of a run to the mean daily return of its markets, or to that of other prices."""
    return relation(daily_of(run), market_returns(run) if prices is None else price_returns(run, [prices]))

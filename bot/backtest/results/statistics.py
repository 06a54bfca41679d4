"""The usual statistics of a run, computed from its equity curve and its trades. Each formula names its source.

Returns are daily, from 00:00 to 00:00 UTC, and a year has 365 days. In annual figures a day without prices (a weekend
of shares) has the return 0, so they agree with the usual ones for shares, which use 252 days. What is a quantile, a
moment or a count of days (value at risk, skewness, the probabilistic and the deflated Sharpe ratio) counts only days
with prices. The risk-free rate is 0. A figure whose divisor would be 0 is None.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bot.clock import DAY_MS, HOUR_MS

# Rows of the equity that are judged together: most of them lie below the last peak.
BLOCK_ROWS: Final = 256
DAYS_A_YEAR: Final = 365
YEAR_MS: Final = DAYS_A_YEAR * DAY_MS
WEEK_MS: Final = 7 * DAY_MS
# the first one, 3 January 1970
SATURDAY_MS: Final = 2 * DAY_MS
# The evening of a Friday in New York is Saturday in UTC.
EVENING_MS: Final = 6 * HOUR_MS
# time after a Saturday's beginning, in summer
MONDAY_BEGINS_MS: Final = DAY_MS + 22 * HOUR_MS
DECIMALS: Final = 6
# Figures of a year. A run of a few days says nothing of a year, so they are marked.
ANNUAL: Final = ("Return (Ann.) [%]", "Volatility (Ann.) [%]", "Sharpe Ratio", "Sortino Ratio", "Calmar Ratio")
DAYS_FOR_A_YEAR: Final = 30


class FinishedTrade(NamedTuple):
    """A finished round trip, in USD.

    `pnl` is before costs; fees are positive, rebates negative, funding positive when received. `risk` is 1 R: the loss
    at the first stop.
    """

    entry_ms: int
    exit_ms: int
    pnl: float
    fees: float = 0.0
    funding: float = 0.0
    risk: float | None = None

    @property
    def net(self) -> float:
        """After all costs."""
        return self.pnl - self.fees + self.funding

    @property
    def r_multiple(self) -> float | None:
        """The net result divided by the risk (Van Tharp, Trade Your Way to Financial Freedom, 1998)."""
        return self.net / self.risk if self.risk else None


class Drawdown(NamedTuple):
    """One drawdown: from the instant of a peak until the equity reaches it again, or until the end of the run."""

    peak_ms: int
    end_ms: int
    # the depth as a fraction of the peak, 0 to 1
    depth: float
    # the instant of the lowest equity
    low_ms: int
    # False: the equity had not reached the peak again when the run ended
    is_over: bool = True

    @property
    def ms(self) -> int:
        return self.end_ms - self.peak_ms


def statistics(
    at_ms: Sequence[int],
    usd: Sequence[float],
    trades: Sequence[FinishedTrade],
    *,
    start_ms: int,
    start_usd: float,
    prices: Mapping[str, tuple[float, float]] | None = None,
    exposed: float | None = None,
) -> dict[str, Any]:
    """Every figure of a run. `at_ms`, `usd`: the equity in order of time, after the start. `prices`: each market's
    first and last price, for Buy & Hold. `exposed`: the share of the time with a position, 0 to 1; by default from the
    trades, which knows nothing of one still open.
    """
    end_ms, end_usd = (at_ms[-1], usd[-1]) if at_ms else (start_ms, start_usd)
    falls = drawdowns(at_ms, usd, start_ms=start_ms, start_usd=start_usd)
    deepest = max((fall.depth for fall in falls), default=0.0)
    daily = daily_returns(at_ms, usd, start_ms=start_ms, start_usd=start_usd)
    growth = annual_growth(start_usd, end_usd, end_ms - start_ms)
    held = (
        exposed
        if exposed is not None
        else exposure(((trade.entry_ms, trade.exit_ms) for trade in trades), start_ms, end_ms)
    )
    figures: dict[str, float | int | None] = {
        "Return [%]": 100 * (end_usd / start_usd - 1),
        "Buy & Hold Return [%]": buy_and_hold(prices),
        "Return (Ann.) [%]": _percent(growth),
        "Volatility (Ann.) [%]": _percent(_times(deviation(daily), math.sqrt(DAYS_A_YEAR))),
        "Equity Final [$]": end_usd,
        "Equity Peak [$]": max([start_usd, *_peak(usd)]),
        "Sharpe Ratio": sharpe(daily),
        "Sortino Ratio": sortino(daily),
        "Calmar Ratio": growth / deepest if growth is not None and deepest else None,
        "Max. Drawdown [%]": -100 * deepest,
        "Avg. Drawdown [%]": -100 * math.fsum(fall.depth for fall in falls) / len(falls) if falls else 0.0,
        "Max. Drawdown Duration [h]": max((fall.ms for fall in falls), default=0) / HOUR_MS,
        "Avg. Drawdown Duration [h]": sum(fall.ms for fall in falls) / len(falls) / HOUR_MS if falls else 0.0,
        "Exposure Time [%]": 100 * held,
        **of_trades(trades),
    }
    return {name: value if isinstance(value, int) else _rounded(value) for name, value in figures.items()}


def of_trades(trades: Sequence[FinishedTrade]) -> dict[str, float | int | None]:
    """The statistics that need only the trades, all after costs."""
    nets = [trade.net for trade in trades]
    wins, losses = [net for net in nets if net > 0], [net for net in nets if net < 0]
    multiples = [r for trade in trades if (r := trade.r_multiple) is not None]
    return {
        "# Trades": len(trades),
        "Win Rate [%]": 100 * len(wins) / len(nets) if nets else None,
        "Profit Factor": math.fsum(wins) / -math.fsum(losses) if losses else None,
        "Expectancy [$]": mean(nets),
        "Best Trade [$]": max(nets, default=None),
        "Worst Trade [$]": min(nets, default=None),
        "Avg. Trade Duration [h]": mean([(trade.exit_ms - trade.entry_ms) / HOUR_MS for trade in trades]),
        "Avg. R": mean(multiples),
        "SQN": sqn(multiples or nets),
    }


# ── Formulas ────────────────────────────────────────────────────────────────────────────────────────────────────────


def extrapolated(names: Iterable[str], ms: int) -> tuple[str, ...]:
    """The figures of a year among these names, for a run of so many milliseconds; none if it is long enough."""
    return tuple(name for name in names if name in ANNUAL) if ms < DAYS_FOR_A_YEAR * DAY_MS else ()


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample (n - 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def daily_returns(
    at_ms: Sequence[int], usd: Sequence[float], *, start_ms: int, start_usd: float, only_with_prices: bool = False
) -> list[float]:
    """Returns from one 00:00 UTC to the next; the first and last day may be shorter. A value at midnight belongs to the
    day that ends there. A day without a value has the return 0, or is left out if `only_with_prices`; then the hours of
    an exchange's Friday that are Saturday in UTC count to Friday, and those of its Monday that are Sunday to Monday.
    After a loss of everything there are no more returns.
    """
    changes: list[float] = []
    row, before = 0, start_usd
    last = start_ms // DAY_MS * DAY_MS
    while row < len(at_ms) and before > 0:
        first, midnight = row, -(-at_ms[row] // DAY_MS) * DAY_MS
        row = bisect_right(at_ms, midnight, row)
        if not only_with_prices:
            changes += [0.0] * ((midnight - last) // DAY_MS - 1)
        elif row < len(at_ms) and is_evening_before(at_ms[first]) and (not changes or last < midnight - DAY_MS):
            # A market that never closes has values on Saturday, so its Sunday is a day.
            continue
        last, change = midnight, usd[row - 1] / before - 1
        if only_with_prices and changes and is_evening_after(at_ms[row - 1]):
            changes[-1] = (1 + changes[-1]) * (1 + change) - 1
        else:
            changes.append(change)
        before = usd[row - 1]
    return changes


def worst_day_usd(at_ms: Sequence[int], usd: Sequence[float], *, start_usd: float) -> float:
    """The lowest change of the equity in one UTC day, in USD; 0 without a day that lost. A value at midnight belongs to
    the day that ends there.
    """
    ends = {-(-at // DAY_MS): value for at, value in zip(at_ms, usd, strict=True)}
    starts = [start_usd, *ends.values()]
    return min([0.0, *(end - start for start, end in zip(starts, ends.values(), strict=False))])


def is_evening_after(at_ms: int) -> bool:
    """True for an instant of Saturday in UTC that is Friday evening in New York."""
    return 0 < (at_ms - SATURDAY_MS) % WEEK_MS <= EVENING_MS


def is_evening_before(at_ms: int) -> bool:
    """True for an instant of Sunday in UTC at which the Monday of indices has begun in New York."""
    return MONDAY_BEGINS_MS <= (at_ms - SATURDAY_MS) % WEEK_MS <= 2 * DAY_MS


def sharpe(returns: Sequence[float]) -> float | None:
    """Mean over standard deviation, for a year (Sharpe, The Sharpe Ratio, Journal of Portfolio Management 21, 1994;
    riskless rate 0).
    """
    spread, middle = deviation(returns), mean(returns)
    return middle / spread * math.sqrt(DAYS_A_YEAR) if spread and middle is not None else None


def sortino(returns: Sequence[float]) -> float | None:
    """Mean over downside deviation, for a year: the root of the mean square of negative returns, over all days (Sortino
    and van der Meer, Downside Risk, Journal of Portfolio Management 17, 1991; target 0). None for fewer than two days,
    because a single loss always gives the same ratio.
    """
    middle = mean(returns)
    if middle is None or len(returns) < 2:
        return None
    below = math.sqrt(math.fsum(min(value, 0.0) ** 2 for value in returns) / len(returns))
    return middle / below * math.sqrt(DAYS_A_YEAR) if below else None


def annual_growth(start_usd: float, end_usd: float, ms: int) -> float | None:
    """Compound annual growth rate (CAGR) as a fraction; None for a run of less than a day. The Calmar ratio is this
    divided by the deepest drawdown (Young, Calmar Ratio: A Smoother Tool, Futures, 1991) of the whole run.
    """
    if ms < DAY_MS or start_usd <= 0:
        return None
    if end_usd <= 0:
        return -1.0
    power = math.log(end_usd / start_usd) * YEAR_MS / ms
    return math.expm1(power) if power < 700 else None


def drawdowns(at_ms: Sequence[int], usd: Sequence[float], *, start_ms: int, start_usd: float) -> list[Drawdown]:
    """All drawdowns, in the order of time."""
    falls: list[Drawdown] = []
    peak, low, since, low_ms = start_usd, start_usd, start_ms, start_ms
    assert len(at_ms) == len(usd)
    for start in range(0, len(usd), BLOCK_ROWS):
        block = usd[start : start + BLOCK_ROWS]
        if max(block) < peak:
            if (least := min(block)) < low:
                low, low_ms = least, at_ms[start + block.index(least)]
            continue
        for at, value in zip(at_ms[start : start + BLOCK_ROWS], block, strict=True):
            if value >= peak:
                if low < peak:
                    falls.append(Drawdown(since, at, (peak - low) / peak, low_ms))
                peak = low = value
                since = at
            elif value < low:
                low, low_ms = value, at
    if low < peak:
        falls.append(Drawdown(since, at_ms[-1], (peak - low) / peak, low_ms, is_over=False))
    return falls


def sqn(results: Sequence[float]) -> float | None:
    """System quality number: root of the number of trades, times the mean R multiple over its deviation (Van Tharp,
    Definitive Guide to Position Sizing, 2008). If no trade had a stop, it uses the results in USD, as backtesting.py
    does.
    """
    spread, middle = deviation(results), mean(results)
    return math.sqrt(len(results)) * middle / spread if spread and middle is not None else None


def exposure(spans: Iterable[tuple[int, int]], start_ms: int, end_ms: int) -> float:
    """The share of the time in which at least one trade was open, 0 to 1.

    `trades` have entry and exit instants in ms.
    """
    if end_ms <= start_ms:
        return 0.0
    held, until = 0, start_ms
    for entry_ms, exit_ms in sorted(spans):
        held += max(0, min(exit_ms, end_ms) - max(entry_ms, until))
        until = max(until, min(exit_ms, end_ms))
    return held / (end_ms - start_ms)


def buy_and_hold(prices: Mapping[str, tuple[float, float]] | None) -> float | None:
    """Return in percent of equal amounts held in every market from the first to the last price, without leverage and
    costs.
    """
    if not prices:
        return None
    return 100 * math.fsum(last / first - 1 for first, last in prices.values()) / len(prices)


def _peak(usd: Sequence[float]) -> list[float]:
    return [max(usd)] if len(usd) else []


def _percent(value: float | None) -> float | None:
    return _times(value, 100)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _rounded(value: float | None) -> float | None:
    # + 0.0 turns -0.0 into 0.0
    return None if value is None or not math.isfinite(value) else round(value, DECIMALS) + 0.0

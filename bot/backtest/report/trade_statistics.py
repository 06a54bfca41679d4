"""Figures of trades: returns, excursions, results by hour and weekday, exposure by market, and the bins of a histogram.
Pure.

Every function takes finished trades, except `exposure_by_market`, which also counts a trade that is still open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from bot.backtest.results.run_reader import StoredTrade
from bot.backtest.results.statistics import exposure, mean
from bot.clock import datetime_of
from bot.runtime.model import excursions
from bot.runtime.model.excursions import Excursion
from bot.runtime.model.positions import unit_px

HOURS: Final = tuple(f"{hour:02d}" for hour in range(24))
WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Kind of an exit -> its words; other kinds are spelled out.
EXITS: Final = {
    "stop_loss": "Stop",
    "take_profit": "Target",
    "close": "Strategy closed",
    "market": "Strategy closed",
    "max_hold": "Holding time",
    "kill": "Kill switch",
}
# the usual number of bins in a histogram
BINS: Final = 30
# the narrowest bin of R multiples: finer differences are chance
R_WIDTH: Final = 0.1


def finished(trades: Iterable[StoredTrade]) -> list[StoredTrade]:
    """The trades that have an exit."""
    return [trade for trade in trades if trade.exit_ms is not None]


def entry_cost(trade: StoredTrade) -> float:
    """What one unit cost at entry: the average entry price; for a share of No, 1 - price."""
    return unit_px(trade.market, trade.side, trade.entry_px)


def return_pct(trade: StoredTrade) -> float | None:
    """The result after all costs, in percent of the notional at entry: 100 * result / (largest size * `entry_cost`)."""
    notional = trade.size * entry_cost(trade)
    return 100 * trade.pnl_usd / notional if notional else None


def excursion(trade: StoredTrade) -> Excursion | None:
    """MAE and MFE of a stored trade. None if the run has not stored the extremes."""
    return excursions.excursion(
        trade.market,
        trade.side,
        entry_px=trade.entry_px,
        low_px=trade.low_px,
        high_px=trade.high_px,
        stop_px=trade.stop_px,
    )


class TradeGroup(NamedTuple):
    """The trades that were entered in one hour of the day, or on one weekday. Results in USD after all costs."""

    name: str
    trades: int
    won: int
    result_usd: float


def by_hour(trades: Iterable[StoredTrade]) -> list[TradeGroup]:
    """Results by the hour of the entry, UTC."""
    return _grouped(trades, HOURS, lambda trade: datetime_of(trade.entry_ms).hour)


def by_weekday(trades: Iterable[StoredTrade]) -> list[TradeGroup]:
    """Results by the weekday of the entry, UTC."""
    return _grouped(trades, WEEKDAYS, lambda trade: datetime_of(trade.entry_ms).weekday())


def _grouped(
    trades: Iterable[StoredTrade], names: Sequence[str], group_of: Callable[[StoredTrade], int]
) -> list[TradeGroup]:
    results: list[list[float]] = [[] for _ in names]
    for trade in trades:
        results[group_of(trade)].append(trade.pnl_usd)
    return [
        TradeGroup(name, len(gains), sum(usd > 0 for usd in gains), math.fsum(gains))
        for name, gains in zip(names, results, strict=True)
    ]


class ResultSource(NamedTuple):
    """The finished trades of one strategy, market, side or kind of exit. Amounts in USD; costs are positive if paid."""

    group: str
    name: str
    trades: int
    win_rate_pct: float
    mean_r: float | None
    costs_usd: float
    result_usd: float


class CountedTrade(Protocol):
    """A finished trade of a backtest or of a journal. Costs are positive if paid."""

    @property
    def strategy(self) -> str: ...
    @property
    def market(self) -> str: ...
    @property
    def side(self) -> str: ...
    @property
    def r_multiple(self) -> float | None: ...
    @property
    def fees_usd(self) -> float: ...
    @property
    def funding_usd(self) -> float: ...
    @property
    def pnl_usd(self) -> float: ...


Trade = TypeVar("Trade", bound=CountedTrade)


def sources(trades: Iterable[Trade], exit_of: Callable[[Trade], str]) -> list[ResultSource]:
    """Where the result comes from. In each group every trade counts once, and the best source stands first.

    `exit_of`: the cause of a trade's exit in words.
    """
    ended = list(trades)
    groups: Mapping[str, Callable[[Trade], str]] = {
        "Strategy": lambda trade: trade.strategy or "(no strategy)",
        "Market": lambda trade: trade.market,
        "Side": lambda trade: trade.side,
        "Exit": exit_of,
    }
    rows = []
    for group, name_of in groups.items():
        parts: dict[str, list[Trade]] = {}
        for trade in ended:
            parts.setdefault(name_of(trade), []).append(trade)
        listed = [_source(group, name, part) for name, part in parts.items()]
        rows += sorted(listed, key=lambda row: (-row.result_usd, row.name))
    return rows


def _source(group: str, name: str, trades: Sequence[CountedTrade]) -> ResultSource:
    multiples = [trade.r_multiple for trade in trades if trade.r_multiple is not None]
    return ResultSource(
        group,
        name,
        len(trades),
        100 * sum(trade.pnl_usd > 0 for trade in trades) / len(trades),
        mean(multiples),
        math.fsum(trade.fees_usd - trade.funding_usd for trade in trades),
        math.fsum(trade.pnl_usd for trade in trades),
    )


def exit_text(kind: str) -> str:
    """The cause of an exit in words."""
    return EXITS.get(kind) or kind.replace("_", " ").capitalize() or "Open"


class MarketExposure(NamedTuple):
    """`time_pct`: share of the run with a position in the market. `mean_usd`: notional at entry while in a position,
    weighted by time. `share_pct`: the market's part of the sum of notional times time over all markets.
    """

    market: str
    time_pct: float
    mean_usd: float
    share_pct: float


def exposure_by_market(trades: Sequence[StoredTrade], *, start_ms: int, end_ms: int) -> list[MarketExposure]:
    """Time and notional of the positions of each market. A position counts with its largest size at `entry_cost`."""
    spans: dict[str, list[tuple[int, int, float]]] = {}
    for trade in trades:
        until = end_ms if trade.exit_ms is None else trade.exit_ms
        spans.setdefault(trade.market, []).append((trade.entry_ms, until, trade.size * entry_cost(trade)))
    weights = {market: math.fsum((end - start) * usd for start, end, usd in held) for market, held in spans.items()}
    whole = math.fsum(weights.values())
    exposures = []
    for market, held in sorted(spans.items()):
        held_ms = sum(end - start for start, end, _ in held)
        time = exposure(((start, end) for start, end, _ in held), start_ms, end_ms)
        mean_usd = weights[market] / held_ms if held_ms else 0.0
        exposures.append(MarketExposure(market, 100 * time, mean_usd, 100 * weights[market] / whole if whole else 0.0))
    return exposures


class Bin(NamedTuple):
    """From `low` up to, but without, `high`."""

    low: float
    high: float
    trades: int


def bins(values: Sequence[float], count: int = BINS, *, least: float = 0.0) -> list[Bin]:
    """A histogram of about `count` bins, without empty bins at its ends.

    The width is 1, 2 or 5 times a power of ten and at least `least`. Zero is a border, so that no bin holds both losses
    and profits.
    """
    if not values:
        return []
    low, high = min(values), max(values)
    width = nice_step(max(least, (high - low) / count if high > low else abs(high) / count or 1.0))
    places = [math.floor(value / width) for value in values]
    first = min(places)
    counts = [0] * (max(places) - first + 1)
    for place in places:
        counts[place - first] += 1
    return [Bin((first + n) * width, (first + n + 1) * width, trades) for n, trades in enumerate(counts)]


def nice_step(step: float) -> float:
    """The next number at or above `step` that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))

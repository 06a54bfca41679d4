"""How far the price went against a trade and for it while the trade was open. Pure; the daemon and the backtest use it.

The extremes of a trade are those of its average prices and of every price that is known to lie between its entry and
its exit. A bar that lies whole between the two counts with its low and its high.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import NamedTuple, TypeVar

from bot.runtime.model.positions import unit_px

Px = TypeVar("Px", int, float, Decimal)


class PriceBar(NamedTuple):
    """The part of a candle that the extremes need. `ts` is when it opens."""

    ts: int
    low: float
    high: float


class Excursion(NamedTuple):
    """How far the price went against a trade and for it, both zero or more: in percent of what one unit cost at entry,
    and in R.
    """

    adverse_pct: float
    favorable_pct: float
    adverse_r: float | None
    favorable_r: float | None


def excursion(
    market: str, side: str, *, entry_px: float, low_px: float | None, high_px: float | None, stop_px: float | None
) -> Excursion | None:
    """Maximum adverse and maximum favorable excursion, MAE and MFE (Sweeney, Maximum Adverse Excursion, 1997).

    For a long trade MAE = entry price - lowest price and MFE = highest price - entry price; for a short trade the other
    way round. 1 R is the distance of the first stop from the average entry price. Costs are not part of it. None if the
    extremes are not known.
    """
    cost = unit_px(market, side, entry_px)
    if low_px is None or high_px is None or cost <= 0:
        return None
    down, up = max(0.0, entry_px - low_px), max(0.0, high_px - entry_px)
    adverse, favorable = (down, up) if side == "long" else (up, down)
    risk = 0.0
    if stop_px is not None:
        risk = entry_px - stop_px if side == "long" else stop_px - entry_px
    in_r = (adverse / risk, favorable / risk) if risk > 0 else (None, None)
    return Excursion(100 * adverse / cost, 100 * favorable / cost, *in_r)


def is_whole(ts: int, step_ms: int, from_ms: int, until_ms: int) -> bool:
    """True if the bar that opens at `ts` lies whole between the two instants."""
    return from_ms <= ts and ts + step_ms <= until_ms


def prices_between(bars: Iterable[PriceBar], step_ms: int, from_ms: int, until_ms: int) -> Iterator[float]:
    """The lows and highs of the bars that lie whole between the two instants."""
    for bar in bars:
        if is_whole(bar.ts, step_ms, from_ms, until_ms):
            yield bar.low
            yield bar.high


def extremes(prices: Iterable[Px]) -> tuple[Px, Px]:
    """The lowest and the highest of the prices of a trade."""
    known = sorted(prices)
    return known[0], known[-1]

"""Faults of prices: candles with a shock or a gap. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, Final

from bot.backtest.data.candles import Candles
from bot.drill.faults import DrillFault

# bars in which a shock makes its move
RAMP_BARS: Final = (1, 2, 5)
# significant figures of a changed price
FIGURES: Final = 8


def changed(candles: Candles, faults: Iterable[DrillFault], chance: Random) -> Candles:
    """The candles with the shocks and without the gaps of a world."""
    for fault in faults:
        if fault.kind == "shock":
            candles = _shocked(candles, fault, chance.choice(RAMP_BARS))
        elif fault.kind == "gap":
            inside = range(bisect_left(candles.at_ms, fault.at_ms), bisect_left(candles.at_ms, fault.end_ms))
            candles = candles.pick([row for row in range(len(candles)) if row not in inside])
    return candles


def _shocked(candles: Candles, fault: DrillFault, ramp: int) -> Candles:
    """Prices move by `share` within `ramp` candles, stay there, and take a part of the move back at the end of the
    shock.
    """
    first, last = bisect_left(candles.at_ms, fault.at_ms), bisect_left(candles.at_ms, fault.end_ms)
    opens, highs, lows, closes = (
        array("d", column) for column in (candles.open, candles.high, candles.low, candles.close)
    )
    before = 1.0
    for row in range(first, len(candles)):
        reached = min(1.0, (row - first + 1) / ramp)
        if row >= last:
            reached -= fault.back * min(1.0, (row - last + 1) / ramp)
        factor = 1 + fault.share * reached
        opens[row], closes[row] = _px(opens[row] * before), _px(closes[row] * factor)
        highs[row] = max(opens[row], closes[row], _px(highs[row] * min(before, factor)))
        lows[row] = min(opens[row], closes[row], _px(lows[row] * max(before, factor)))
        before = factor
    named: dict[str, Any] = {"open": opens, "high": highs, "low": lows, "close": closes}
    return replace(candles, **named)


def _px(value: float) -> float:
    return float(f"{value:.{FIGURES}g}")

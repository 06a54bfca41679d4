"""Slippage: what a taker paid against the price that its order met. Reckoned afterwards, fill by fill, from events and candles; nothing a bar.

A market order is held against the price of the point at which it was filled (a bar's open, as a rule), a stop, a target and a trailing stop against
its level, or against the open where the bar opened beyond it, what a guardian of the clock closes against the price of its instant inside the bar;
what of them the book took only later, against the price of then. Half the spread and what was walked of the book is what is left. Makers slip nowhere; of a liquidation and of a drawdown guardian no event says which price they met, so
they are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from bot.backtest.engine.market_cursor import MarketCursor
from bot.venue.events import Fill, GuardianMoved, Triggered
from bot.venue.numbers import E8
from bot.venue.state import px_inside

LEVELS: Final = frozenset({"stop_loss", "take_profit"})  # kinds of fills that a Triggered announces
UNKNOWN: Final = frozenset({"liquidation"})
UNKNOWN_GUARDIANS: Final = frozenset({"account_drawdown"})
BETWEEN_POINTS: Final = frozenset({"dead_man_switch", "schedule"})  # as max_hold, whose event tells its price
INSIDE: Final = -1  # for a price: that of its instant inside the bar


class Prices:
    """The price of the newest point of a market at an instant, as the venue took it from the candles."""

    __slots__ = ("_cursors", "_path")

    def __init__(self, cursors: Iterable[MarketCursor], path: str) -> None:
        self._cursors = {cursor.coin: cursor for cursor in cursors}
        self._path = path

    def at(self, coin: str, ts: int) -> int | None:
        """Scaled 1e8; None before the first candle."""
        cursor = self._cursors[coin]
        row = bisect_right(cursor.ts, ts) - 1
        if row < 0:
            return None
        since = ts - cursor.ts[row]
        if since < cursor.third_ms:
            return round(cursor.open[row] * E8)
        if since >= cursor.step_ms - 1:
            return round(cursor.close[row] * E8)
        o, high, low, _, _ = cursor.ints(row)
        high_first = self._path == "ohlc" or (self._path != "olhc" and abs(high - o) < abs(o - low))
        return high if high_first == (since < 2 * cursor.third_ms) else low

    def inside(self, coin: str, ts: int) -> int:
        """At an instant inside a bar that no point names."""
        cursor = self._cursors[coin]
        row = bisect_right(cursor.ts, ts) - 1
        o, _, _, close, _ = cursor.ints(row)
        return px_inside(o, close, ts - cursor.ts[row], cursor.step_ms)


class SlippageMeter:
    """Fed every event once, in order; `of` is what a fill slipped, in USD scaled 1e16: a product of two amounts, not rounded."""

    __slots__ = ("_levels", "_prices")

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        # Trade -> when it met which price; None where no event says so.
        self._levels: dict[str, tuple[int, int | None]] = {}

    def triggered(self, e: Triggered) -> None:
        self._levels[e.trade] = e.ts, e.mark

    def fired(self, e: GuardianMoved) -> None:
        if e.mark is not None or e.guardian_type in UNKNOWN_GUARDIANS:
            self._levels.update(dict.fromkeys(e.trades, (e.ts, e.mark)))
        elif e.guardian_type in BETWEEN_POINTS and e.action is not None:
            self._levels.update(dict.fromkeys(e.trades, (e.ts, INSIDE)))

    def of(self, e: Fill) -> int:
        if e.liquidity != "taker" or e.kind in UNKNOWN:
            return 0
        levels = self._levels
        met_ms, met = levels.get(e.trade, (0, 0))
        # A market order, or what the book had no room for when the level was met.
        if met is not None and met_ms != e.ts:
            met = self._prices.at(e.coin, e.ts)
        elif met == INSIDE:
            met = self._prices.inside(e.coin, e.ts)
        if not e.remaining:
            levels.pop(e.trade, None)
        if met is None:
            return 0
        is_buy = (e.side == "long") == (e.intent == "open")
        return (e.px - met) * e.size if is_buy else (met - e.px) * e.size

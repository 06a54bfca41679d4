"""Slippage: the cost of a taker's fill against its reference price. Computed afterwards, fill by fill, from events and
candles.

The reference price of a market order is the candle's price at the fill, as a rule the open. A stop, a target or a
trailing stop has its level, or the open if the bar opens beyond the level. A MaxHold or a schedule has the price at its
instant inside the bar. A part that fills later has the price at that later instant. So slippage consists of half the
spread and the walk through the order book. Makers have none. Liquidations and drawdown guardians are left out, because
no event contains their reference price.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from bot.backtest.engine.candle_readers import CandleReader
from bot.model.events import FillEvent, GuardianMoved, Triggered
from bot.venue.model.numbers import E8
from bot.venue.model.state import px_inside

# fills of these kinds follow a Triggered event, which has the level
LEVELS: Final = frozenset({"stop_loss", "take_profit"})
UNKNOWN: Final = frozenset({"liquidation"})
UNKNOWN_GUARDIANS: Final = frozenset({"account_drawdown"})
# closed at an instant inside the bar; the guardian's event has the price
BETWEEN_POINTS: Final = frozenset({"dead_man_switch", "schedule"})
# stands for the price at the instant inside the bar
INSIDE: Final = -1


class PriceHistory:
    """The price of a market at an instant: its newest point, as the venue took it from the candles."""

    __slots__ = ("_path", "_readers")

    def __init__(self, readers: Iterable[CandleReader], path: str) -> None:
        self._readers = {reader.coin: reader for reader in readers}
        self._path = path

    def at(self, coin: str, ts: int) -> int | None:
        """Scaled 1e8; None before the first candle."""
        reader = self._readers[coin]
        row = bisect_right(reader.ts, ts) - 1
        if row < 0:
            return None
        since = ts - reader.ts[row]
        if since < reader.third_ms:
            return round(reader.open[row] * E8)
        if since >= reader.step_ms - 1:
            return round(reader.close[row] * E8)
        o, high, low, _, _ = reader.ints(row)
        high_first = self._path == "ohlc" or (self._path != "olhc" and abs(high - o) < abs(o - low))
        return high if high_first == (since < 2 * reader.third_ms) else low

    def inside(self, coin: str, ts: int) -> int:
        """The price at an instant between two points of a bar."""
        reader = self._readers[coin]
        row = bisect_right(reader.ts, ts) - 1
        o, _, _, close, _ = reader.ints(row)
        return px_inside(o, close, ts - reader.ts[row], reader.step_ms)


class SlippageMeter:
    """Takes every event once, in order. `of` returns the slippage of a fill in USD scaled 1e16, not rounded."""

    __slots__ = ("_levels", "_prices")

    def __init__(self, prices: PriceHistory) -> None:
        self._prices = prices
        # Trade -> instant and reference price; None if no event contains it.
        self._levels: dict[str, tuple[int, int | None]] = {}

    def triggered(self, e: Triggered) -> None:
        self._levels[e.trade] = e.ts, e.mark

    def fired(self, e: GuardianMoved) -> None:
        if e.mark is not None or e.guardian_type in UNKNOWN_GUARDIANS:
            self._levels.update(dict.fromkeys(e.trades, (e.ts, e.mark)))
        elif e.guardian_type in BETWEEN_POINTS and e.action is not None:
            self._levels.update(dict.fromkeys(e.trades, (e.ts, INSIDE)))

    def of(self, e: FillEvent) -> int:
        if e.liquidity != "taker" or e.kind in UNKNOWN:
            return 0
        levels = self._levels
        met_ms, met = levels.get(e.trade, (0, 0))
        # A market order, or a part that found no depth when its level was reached.
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

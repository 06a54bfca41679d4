"""Pairs: two markets that usually move together. When their ratio is far from its average, buy the cheap one and sell
the dear one short.

The result depends on the ratio, and little on the direction of both markets. Each leg has its own stop at the service.
If one leg is closed there, the strategy closes the other.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, View


class Pairs(Strategy):
    """Open both legs when the ratio is `enter_z` standard deviations from its average; close both when it is back at
    `leave_z`.
    """

    class Params(Params):
        window_bars: int = Field(60, ge=10, le=500, description="bars of the average and of the deviation")
        enter_z: float = Field(2.0, gt=0, le=10, description="distance at which both legs are opened, in deviations")
        leave_z: float = Field(0.5, ge=0, le=10, description="distance at which both legs are closed")
        usd: float = Field(150, ge=10, le=1_000_000, description="notional of each leg")
        stop_pct: float = Field(3.0, gt=0, le=50, description="the stop of each leg, in percent of its entry")

    warmup = "window_bars"

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        # on_bar is called for each market. In the call for the last one, both have their newest bar.
        if len(self.markets) != 2:
            raise ValueError(f"pairs trades two markets, and its config names {len(self.markets)}")
        first, second = sorted(self.markets)
        if bar.market != second:
            return
        held = [market for market in (first, second) if view.position(market)]
        working = any(view.orders(market) for market in (first, second) if market not in held)
        if len(held) == 1 and not working:
            view.log("leg.alone", market=held[0])
            yield Close(held[0])
            return
        z = self._distance(view.closes(first, self.params.window_bars), view.closes(second, self.params.window_bars))
        if z is None:
            return
        if held and abs(z) <= self.params.leave_z:
            view.log("ratio.back", z=round(z, 2))
            for market in held:
                yield Close(market)
        elif not held and not working and abs(z) >= self.params.enter_z:
            cheap, dear = (second, first) if z > 0 else (first, second)
            view.log("ratio.far", z=round(z, 2), cheap=cheap, dear=dear)
            bracket = Bracket(stop_pct=self.params.stop_pct)
            yield Open(cheap, "long", usd=self.params.usd, bracket=bracket)
            yield Open(dear, "short", usd=self.params.usd, bracket=bracket)

    def _distance(self, first: Sequence[float], second: Sequence[float]) -> float | None:
        """How far the newest ratio is from the average, in standard deviations;

        None without enough bars or without any movement.
        """
        if min(len(first), len(second)) < self.params.window_bars:
            return None
        ratios = [math.log(price / other) for price, other in zip(first, second, strict=True)]
        deviation = statistics.pstdev(ratios)
        return (ratios[-1] - statistics.fmean(ratios)) / deviation if deviation > 1e-9 else None

"""Volatility target: hold a market always, but less of it when it moves much.

The size is such that the position's expected daily move is the same in calm and in wild weeks (Moreira and Muir,
2017). It is changed only when it is far from what it should be, because each change costs a fee.
"""

import math
import statistics
from collections.abc import Iterable
from itertools import pairwise

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, View


class VolatilityTarget(Strategy):
    """Hold a long position whose daily deviation is `target_usd`; change it when it is off by `band`."""

    class Params(Params):
        window_bars: int = Field(168, ge=10, le=500, description="bars of the measured deviation")
        bars_a_day: int = Field(24, ge=1, le=1_440, description="bars of one day, 24 for bars of 1h")
        target_usd: float = Field(10, ge=1, le=100_000, description="wanted daily standard deviation of the position")
        most_usd: float = Field(500, ge=20, le=1_000_000, description="largest notional")
        band: float = Field(0.4, ge=0.05, le=0.9, description="part by which the size may be off before it is changed")
        stop_pct: float = Field(20.0, gt=0, le=50, description="the stop, in percent of the entry")

    warmup = "window_bars"

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        closes = view.closes(bar.market, self.params.window_bars)
        if len(closes) < self.params.window_bars:
            return
        steps = [math.log(after / before) for before, after in pairwise(closes)]
        daily = statistics.pstdev(steps) * math.sqrt(self.params.bars_a_day)
        if daily < 1e-6:
            return
        wanted = min(self.params.most_usd, self.params.target_usd / daily)
        position = view.position(bar.market)
        if position is None:
            if wanted >= 20 and not view.orders(bar.market):
                yield Open(bar.market, "long", usd=round(wanted, 2), bracket=Bracket(stop_pct=self.params.stop_pct))
            return
        has = position.size * bar.close
        change = wanted - has
        if abs(change) < max(12.0, self.params.band * has):
            return
        view.log("size.changed", market=bar.market, has=round(has), wanted=round(wanted))
        if change > 0:
            yield Open(bar.market, "long", usd=round(change, 2), bracket=Bracket(stop_pct=self.params.stop_pct))
        else:
            yield Close(bar.market, usd=round(-change, 2))

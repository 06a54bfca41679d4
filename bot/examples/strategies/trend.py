"""Trend: two moving averages give the direction of a market; the stop limits the loss.

A strategy reads a View and yields signals: Open, Close or Cancel. It has no client, no clock and no await. The daemon
checks each signal against the risk limits, records it and sends it. The stop stays at the service when the daemon does
not run.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, View, atr, ema


class Trend(Strategy):
    """Open in the direction of the fast average when it is far enough from the slow one; close at the stop, the
    target, or when they cross.
    """

    class Params(Params):
        # Make a param of every number that you may want to change: the config sets it, and an error names its bounds.
        fast_bars: int = Field(4, ge=2, le=200, description="bars of the fast average")
        slow_bars: int = Field(16, ge=3, le=500, description="bars of the slow average")
        band_atr: float = Field(
            0.2, ge=0, le=10, description="how far apart the averages must be, in average true ranges"
        )
        usd: float = Field(200, ge=10, le=1_000_000, description="notional of one position")
        stop_atr: float = Field(2.5, gt=0, le=50, description="distance of the stop, in average true ranges")
        target_r: float = Field(1.5, gt=0, le=20, description="target, in multiples of what the stop risks")
        shorts: bool = Field(default=True, description="also trade downward moves")

    # The daemon updates declared indicators for each market before it calls on_bar. A period may name a param.
    fast = ema("fast_bars")
    slow = ema("slow_bars")
    range = atr("slow_bars")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        fast, slow, range_ = self.fast[bar.market], self.slow[bar.market], self.range[bar.market]
        if fast is None or slow is None or not range_:
            # There are not enough bars yet, or the market does not move.
            return
        lead = (fast - slow) / range_

        position = view.position(bar.market)
        if position:
            # Stop and target wait at the service. The strategy only watches for the crossing.
            turned = lead < 0 if position.side == "long" else lead > 0
            if turned:
                view.log("trend.turned", market=bar.market, lead=round(lead, 2))
                yield Close(bar.market)
            return

        if abs(lead) < self.params.band_atr or (lead < 0 and not self.params.shorts) or view.orders(bar.market):
            return
        # One request carries entry, stop and target, so the position is never without its stop.
        stop_pct = max(0.1, min(45.0, 100 * self.params.stop_atr * range_ / bar.close))
        bracket = Bracket(stop_pct=round(stop_pct, 3), target_r=self.params.target_r)
        yield Open(bar.market, "long" if lead > 0 else "short", usd=self.params.usd, bracket=bracket)

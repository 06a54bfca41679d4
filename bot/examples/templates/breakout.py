"""Breakout: a market that leaves its range of the last bars tends to go on. A trailing stop at the service follows the
move.

The channel is that of Donchian: the highest high and the lowest low of the bars before this one.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Field, Intent, Open, Params, Strategy, TrailingStop, View, atr


class Breakout(Strategy):
    """Buy when a bar closes above the channel, sell short when it closes below; leave at the stop or at the trailing
    stop.
    """

    class Params(Params):
        channel_bars: int = Field(20, ge=2, le=500, description="bars of the channel")
        usd: float = Field(200, ge=10, le=1_000_000, description="notional of one position")
        stop_atr: float = Field(2.0, gt=0, le=50, description="distance of the stop, in average true ranges")
        trail_r: float = Field(
            1.0, gt=0, le=20, description="how far the trailing stop follows, in multiples of the stop"
        )
        shorts: bool = Field(default=True, description="also trade downward breaks")

    range = atr("channel_bars")
    warmup = "channel_bars"

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        # The newest bar is the last item, and the channel must not contain it.
        highs = view.highs(bar.market, self.params.channel_bars + 1)[:-1]
        lows = view.lows(bar.market, self.params.channel_bars + 1)[:-1]
        range_ = self.range[bar.market]
        if len(highs) < self.params.channel_bars or not range_:
            return
        # Stop and trailing stop work at the service. There is nothing to do while a position is open.
        if view.position(bar.market) or view.orders(bar.market):
            return
        is_above = bar.close > max(highs)
        is_below = bar.close < min(lows) and self.params.shorts
        if not (is_above or is_below):
            return
        stop_pct = max(0.1, min(45.0, 100 * self.params.stop_atr * range_ / bar.close))
        view.log("channel.left", market=bar.market, close=bar.close)
        yield Open(
            bar.market,
            "long" if is_above else "short",
            usd=self.params.usd,
            bracket=Bracket(stop_pct=round(stop_pct, 3)),
            guardians=(TrailingStop(trail_r=self.params.trail_r),),
        )

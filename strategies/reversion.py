"""MeanReversion: a market that fell fast tends to come back a little. Enters against the move, leaves by a trailing stop.

Shows three things that Trend does not: an oscillator, an inline guardian, and `view.state`, which survives a restart.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Fill, Intent, Open, Params, Strategy, TrailingStop, View, rsi, sma


class MeanReversion(Strategy):
    """Buy when RSI says oversold, sell short when it says overbought; the way out is the middle, the stop, or a trail."""

    class Params(Params):
        rsi_bars: int = Field(5, ge=2, le=200, description="bars of the RSI")
        middle_bars: int = Field(20, ge=2, le=500, description="bars of the average that the price returns to")
        low: float = Field(32, gt=0, lt=50, description="oversold below this")
        high: float = Field(68, gt=50, lt=100, description="overbought above this")
        usd: float = Field(150, ge=10, le=1_000_000, description="notional of one position")
        stop_pct: float = Field(0.5, gt=0, le=50, description="the stop, in percent of the entry")
        trail_r: float = Field(
            0.5, gt=0, le=20, description="how far the trailing stop follows, in multiples of the stop"
        )
        activate_at_r: float = Field(0.5, gt=0, le=20, description="profit at which it starts to follow")
        rest_bars: int = Field(3, ge=0, le=500, description="bars without an entry after a loss")

    strength = rsi("rsi_bars")
    middle = sma("middle_bars")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        strength, middle = self.strength[bar.market], self.middle[bar.market]
        if strength is None or middle is None:
            return

        position = view.position(bar.market)
        if position:
            back = bar.close >= middle if position.side == "long" else bar.close <= middle
            if back and position.unrealized_usd > 0:
                yield Close(bar.market)
            return

        # The state is a small dict of plain values, saved together with what happened. A rest outlives a crash.
        resting = view.state.get(f"rest.{bar.market}", 0)
        if resting > 0:
            view.state[f"rest.{bar.market}"] = resting - 1
            return
        if view.orders(bar.market):
            return
        oversold = strength <= self.params.low and bar.close < middle
        overbought = strength >= self.params.high and bar.close > middle
        if oversold or overbought:
            # A guardian works at the service: the trail follows the price also while this program is down.
            trail = TrailingStop(trail_r=self.params.trail_r, activate_at_r=self.params.activate_at_r)
            bracket = Bracket(stop_pct=self.params.stop_pct)
            yield Open(
                bar.market, "long" if oversold else "short", usd=self.params.usd, bracket=bracket, guardians=(trail,)
            )

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        if fill.action == "close" and (fill.realized_usd or 0) < 0:
            view.state[f"rest.{fill.market}"] = self.params.rest_bars
        return ()

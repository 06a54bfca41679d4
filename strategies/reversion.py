"""MeanReversion: a market that moved fast tends to come back a little. It opens against the move and closes with a
trailing stop.

It shows an oscillator, an inline guardian, and `view.state`, which survives a restart.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Fill, Intent, Open, Params, Strategy, TrailingStop, View, rsi, sma


class MeanReversion(Strategy):
    """Buy when the RSI is oversold, sell short when it is overbought; close at the average, at the stop or at the
    trailing stop.
    """

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

        # The daemon saves view.state, a small dict of plain values, in the same transaction as the bar, so it survives
        # a crash.
        resting = view.state.get(f"rest.{bar.market}", 0)
        if resting > 0:
            view.state[f"rest.{bar.market}"] = resting - 1
            return
        if view.orders(bar.market):
            return
        oversold = strength <= self.params.low and bar.close < middle
        overbought = strength >= self.params.high and bar.close > middle
        if oversold or overbought:
            # A guardian runs at the service: the trailing stop follows the price also while the daemon is down.
            trail = TrailingStop(trail_r=self.params.trail_r, activate_at_r=self.params.activate_at_r)
            bracket = Bracket(stop_pct=self.params.stop_pct)
            yield Open(
                bar.market, "long" if oversold else "short", usd=self.params.usd, bracket=bracket, guardians=(trail,)
            )

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        if fill.action == "close" and (fill.realized_usd or 0) < 0:
            view.state[f"rest.{fill.market}"] = self.params.rest_bars
        return ()

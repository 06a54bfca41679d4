"""Rotation: of several markets, hold the one that has risen most; hold none when all fall.

Momentum across markets: those that rose more than the others over weeks tend to go on doing so (Jegadeesh and Titman,
1993). Each change costs two fees, so the strategy looks at its markets rarely.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, View


class Rotation(Strategy):
    """Every `look_bars` bars hold the market with the highest return over `window_bars`, if that is above zero."""

    class Params(Params):
        window_bars: int = Field(336, ge=5, le=500, description="bars of the return by which markets are ranked")
        look_bars: int = Field(48, ge=1, le=500, description="bars between two looks")
        lead_pct: float = Field(3.0, ge=0, le=100, description="how much better another market must be to change")
        usd: float = Field(300, ge=10, le=1_000_000, description="notional of the position")
        stop_pct: float = Field(12.0, gt=0, le=50, description="the stop, in percent of the entry")

    warmup = "window_bars"

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        # In the call for the last market, each has its newest bar.
        if bar.market != max(self.markets):
            return
        view.state["bars"] = view.state.get("bars", 0) + 1
        held = next((market for market in sorted(self.markets) if view.position(market)), None)
        is_working = any(view.orders(market) for market in self.markets if market != held)
        if view.state["bars"] % self.params.look_bars or is_working:
            return
        closes = {market: view.closes(market, self.params.window_bars) for market in sorted(self.markets)}
        if min(map(len, closes.values())) < self.params.window_bars:
            return
        gains = {market: 100 * (prices[-1] / prices[0] - 1) for market, prices in closes.items()}
        best = max(gains, key=lambda market: gains[market])
        wanted = best if gains[best] > 0 else None
        # A small lead is not worth two fees.
        if held is not None and wanted is not None and gains[best] - gains[held] < self.params.lead_pct:
            wanted = held
        if wanted == held:
            return
        view.log("rotation", leaves=held, enters=wanted)
        if held is not None:
            yield Close(held)
        if wanted is not None:
            yield Open(wanted, "long", usd=self.params.usd, bracket=Bracket(stop_pct=self.params.stop_pct))

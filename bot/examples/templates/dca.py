"""Dollar-cost averaging: buy the same amount at fixed times, whatever the price, and stop at a total.

It is a plan to save and no trading rule: its result is that of the market, bought at an average price. A wide stop
stays under the whole position, because a daemon that is left alone holds nothing without one.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, Timer, View


class Dca(Strategy):
    """Buy `usd` each day at 12:00 UTC up to `most_usd`; sell all at `gain_pct` above the average entry."""

    class Params(Params):
        usd: float = Field(20, ge=10, le=100_000, description="what is bought each time")
        most_usd: float = Field(400, ge=10, le=1_000_000, description="notional at which buying ends")
        gain_pct: float = Field(25.0, gt=0, le=1_000, description="gain over the average entry at which all is sold")
        stop_pct: float = Field(40.0, gt=0, le=50, description="the stop, in percent of the newest entry")

    timers = {"buy": "0 12 * * *"}

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        for market in self.markets:
            position = view.position(market)
            held_usd = position.size * position.entry_px if position else 0.0
            # Orders of a position are its stop; without one, an entry is on its way.
            if held_usd + self.params.usd > self.params.most_usd or (not position and view.orders(market)):
                continue
            yield Open(market, "long", usd=self.params.usd, bracket=Bracket(stop_pct=self.params.stop_pct))

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        position = view.position(bar.market)
        if position and bar.close >= position.entry_px * (1 + self.params.gain_pct / 100):
            view.log("plan.done", market=bar.market, close=bar.close)
            yield Close(bar.market)

"""Event market: an event that ends with Yes or No. Its price is a probability: a share of Yes pays 1 USD if the event
happens, else nothing.

Your edge is your own estimate of the probability. The strategy buys Yes below it, buys No above it, and holds until the
price agrees, the stop is hit or the event is settled.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Field, Intent, Open, Params, Strategy, View


class EventMarket(Strategy):
    """Buy the side that is cheaper than `fair` says by at least `edge`; the target is `fair`."""

    class Params(Params):
        fair: float = Field(0.5, ge=0.05, le=0.95, description="your estimate of the probability of Yes")
        edge: float = Field(0.08, ge=0.02, le=0.5, description="least distance of the price from `fair`")
        stop: float = Field(0.1, ge=0.02, le=0.5, description="distance of the stop from the price")
        usd: float = Field(50, ge=10, le=1_000_000, description="what one position may cost")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) or view.orders(bar.market):
            return
        price, fair, stop = bar.close, self.params.fair, self.params.stop
        is_cheap, is_dear = price <= fair - self.params.edge, price >= fair + self.params.edge
        if not (is_cheap or is_dear):
            return
        # In an event market long is Yes and short is No. Prices of a No are given as prices of Yes, too.
        stop_px = round(min(0.99, max(0.01, price - stop if is_cheap else price + stop)), 2)
        if not 0.02 < price < 0.98 or stop_px == round(price, 2):
            # So close to 0 or 1 there is no room for a stop.
            return
        view.log("price.apart", market=bar.market, price=price, fair=fair)
        bracket = Bracket(stop_px=stop_px, target_px=round(fair, 2))
        yield Open(bar.market, "long" if is_cheap else "short", usd=self.params.usd, bracket=bracket)

"""Grid: limit orders below the price buy a fall in steps, and each step is sold a step higher.

A grid earns small amounts while a market moves sideways and loses the whole depth of the grid when it falls through:
the stop below the last step bounds that loss. It pays the maker fee, because its entries rest in the book.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Cancel, Close, Field, Intent, Open, Params, Strategy, View


class GridTrader(Strategy):
    """Rest one limit order a step below the price or below the last fill; close all one step above the average."""

    class Params(Params):
        step_pct: float = Field(1.5, ge=0.2, le=20, description="distance of two steps, in percent")
        steps: int = Field(4, ge=1, le=20, description="how many steps are bought at most")
        usd: float = Field(75, ge=10, le=100_000, description="notional of one step")
        stop_pct: float = Field(4.0, gt=0, le=50, description="the stop, in percent below the newest step")
        patience_bars: int = Field(24, ge=1, le=1_000, description="bars after which an order that rests is moved")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        position = view.position(bar.market)
        entries = [order for order in view.orders(bar.market) if order.kind == "limit"]
        step = self.params.step_pct / 100
        if position and bar.close >= position.entry_px * (1 + step):
            view.log("grid.sold", market=bar.market, close=bar.close)
            yield Cancel(market=bar.market)
            yield Close(bar.market)
            return
        if entries:
            waited = view.state.get(f"waited.{bar.market}", 0) + 1
            view.state[f"waited.{bar.market}"] = waited
            if not position and waited >= self.params.patience_bars:
                # The market has gone away from the order.
                yield Cancel(market=bar.market)
            return
        held_usd = position.size * position.entry_px if position else 0.0
        if held_usd + self.params.usd > self.params.usd * self.params.steps + 1:
            return
        view.state[f"waited.{bar.market}"] = 0
        limit_px = bar.close * (1 - step)
        bracket = Bracket(stop_pct=self.params.stop_pct)
        yield Open(bar.market, "long", usd=self.params.usd, limit_px=limit_px, bracket=bracket)

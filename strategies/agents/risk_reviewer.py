"""A rule opens; a language model reviews the open position on each bar and may only close it."""

from collections.abc import Iterable
from typing import Literal

from bot import Bar, Bracket, Field, Intent, Open, View
from bot.agents import AgentParams, AgentStrategy


class RiskReviewer(AgentStrategy):
    """Buy above the average; the stop, the target or the model ends the position."""

    class Params(AgentParams):
        may: tuple[Literal["close"], ...] = Field(("close",), description="The model may only close.")
        usd: float = Field(200, ge=10, le=1_000_000, description="notional of one position")
        stop_pct: float = Field(2, gt=0, lt=50, description="distance of the stop, in percent")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market):
            # Without a position there is nothing to ask.
            yield from super().on_bar(view, bar)
            return
        average = self.sma_20[bar.market]
        if average is not None and bar.close > average * 1.002:
            stop = Bracket(stop_pct=self.params.stop_pct, target_r=2)
            yield Open(bar.market, "long", usd=self.params.usd, bracket=stop)

"""A rule trades; a language model says whether the market trends at all, and gates the entries of the rule."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from bot import Bar, Bracket, Close, Intent, Open, View, highest, lowest
from bot.agents import AgentParams, AgentStrategy, Decision


class Regime(BaseModel):
    """What the model answers instead of decisions."""

    regime: Literal["trend", "range", "unclear"]
    reason: str = Field(max_length=500)


class RegimeFilter(AgentStrategy):
    """Buy a breakout of 20 bars while the model sees a trend; sell at the low of 10 bars."""

    class Params(AgentParams):
        usd: float = Field(200, ge=10, le=1_000_000, description="notional of one position")
        stop_pct: float = Field(2, gt=0, lt=50, description="distance of the stop, in percent")
        fresh_bars: int = Field(16, ge=1, le=1_000, description="bars for which an answer of the model counts")

    schema: ClassVar[type[BaseModel]] = Regime
    ceiling = highest(20)
    floor = lowest(10)

    def decisions_of(self, view: View, answer: Regime) -> Iterable[Decision]:
        view.state.update(regime=answer.regime, regime_bars=0)
        return ()

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        yield from super().on_bar(view, bar)
        ceiling, floor = view.state.get("ceiling"), view.state.get("floor")
        # The levels of the bar before: a close above them is a breakout.
        view.state.update(ceiling=self.ceiling[bar.market], floor=self.floor[bar.market])
        view.state["regime_bars"] = view.state.get("regime_bars", self.params.fresh_bars) + 1
        if ceiling is None or floor is None:
            return
        if view.position(bar.market):
            if bar.close < floor:
                # An exit asks nobody.
                yield Close(bar.market)
        elif bar.close > ceiling:
            is_trend = view.state.get("regime") == "trend" and view.state["regime_bars"] <= self.params.fresh_bars
            view.log("breakout.seen", market=bar.market, regime=view.state.get("regime"), taken=is_trend)
            if is_trend:
                yield Open(bar.market, "long", usd=self.params.usd, bracket=Bracket(stop_pct=self.params.stop_pct))

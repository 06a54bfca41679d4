"""The strategy of the replay tests: enters and exits by the last bars, with a stop and a target on each entry."""

from __future__ import annotations

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, View


class Momentum(Strategy):
    """Long after a rise over `bars` bars, out after a fall."""

    class Params(Params):
        bars: int = Field(5, ge=2)
        size: float = Field(0.002, gt=0)
        stop_pct: float = Field(0.2, gt=0)

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        closes = view.closes(bar.market, self.params.bars)
        held = view.position(bar.market)
        if len(closes) < self.params.bars:
            return
        if not held and closes[-1] > closes[0] * 1.0008:
            bracket = Bracket(stop_pct=self.params.stop_pct, target_pct=0.3)
            yield Open(bar.market, "long", size=self.params.size, bracket=bracket)
        elif held and closes[-1] < closes[0] * 0.9992:
            yield Close(bar.market)

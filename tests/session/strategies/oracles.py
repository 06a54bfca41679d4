"""The strategies of the outside results, as users would write them."""

from __future__ import annotations

from collections.abc import Iterable

from bot import Bar, Bracket, Field, Intent, Open, Params, Strategy, View


class Bracketed(Strategy):
    """Every `every` bars, when flat, with the mean of `mean` closes or against it; stop and target are set off the close, on a grid of 0.1."""

    class Params(Params):
        every: int = Field(ge=1)
        mean: int = Field(ge=1)
        stop: float = Field(gt=0)
        target: float = Field(gt=0)

    seen = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        at, self.seen = self.seen, self.seen + 1
        p = self.params
        if at % p.every != p.every - 1 or at < p.mean or view.position(bar.market):
            return
        tenths = [round(close * 10) for close in view.closes(bar.market, p.mean)]
        side = "long" if tenths[-1] * p.mean > sum(tenths) else "short"
        way = 1 if side == "long" else -1
        stop, target = (round(bar.close * off * 10) / 10 for off in (1 - way * p.stop, 1 + way * p.target))
        yield Open(bar.market, side, size=1, leverage=10, bracket=Bracket(stop_px=stop, target_px=target))


class Ticked(Strategy):
    """Buys one at the close of the bars that are named, with a stop and a target in percent of the fill."""

    class Params(Params):
        entries: list[int] = Field()
        stop_pct: float = Field(gt=0)
        target_pct: float = Field(gt=0)

    seen = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        at, self.seen = self.seen, self.seen + 1
        if at in self.params.entries and not view.position(bar.market):
            yield Open(
                bar.market,
                "long",
                size=1,
                leverage=1,
                bracket=Bracket(stop_pct=self.params.stop_pct, target_pct=self.params.target_pct),
            )


class AllIn(Strategy):
    """Buys once, on the bar that is named, what the balance pays for at its close less a buffer of 0.25 %, and holds."""

    class Params(Params):
        bar: int = Field(0, ge=0)

    seen = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        at, self.seen = self.seen, self.seen + 1
        if at == self.params.bar:
            yield Open(bar.market, "long", size=int(100_000 * 0.9975 // bar.close), leverage=10)

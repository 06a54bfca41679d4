"""The strategies of the outside results, as users would write them."""

from __future__ import annotations

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Fill, Intent, Open, Params, Strategy, TrailingStop, View


class Bracketed(Strategy):
    """Every `every` bars, when flat, with the mean of `mean` closes or against it; stop and target are set off the
    close, on a grid of 0.1.
    """

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
    """Buys once, on the bar that is named, what the balance pays for at its close less a buffer of 0.25 %, and
    holds.
    """

    class Params(Params):
        bar: int = Field(0, ge=0)

    seen = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        at, self.seen = self.seen, self.seen + 1
        if at == self.params.bar:
            yield Open(bar.market, "long", size=int(100_000 * 0.9975 // bar.close), leverage=10)


class Shares(Strategy):
    """Buys two hundred on one bar and sells them on another."""

    class Params(Params):
        buy: int = Field(ge=0)
        sell: int = Field(ge=1)

    seen = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        at, self.seen = self.seen, self.seen + 1
        if at == self.params.buy:
            yield Open(bar.market, "long", size=200)
        elif at == self.params.sell:
            yield Close(bar.market)


class StopOnFill(Strategy):
    """Sells short on the first bar, and on the fill wants to buy back at a stop that far below it: where the price
    is already, so at once.
    """

    class Params(Params):
        size: float = Field(gt=0)
        below: float = Field(gt=0)

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if not view.state.get("entered"):
            view.state["entered"] = True
            yield Open(bar.market, "short", size=self.params.size)

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        if fill.action == "open" and view.closes(fill.market, 1)[-1] >= fill.px - self.params.below:
            yield Close(fill.market)


class Trailed(Strategy):
    """Buys when the price has come `entry` up from its lowest, and sells when it has fallen `exit` from its highest
    since.

    The service trails stops of positions and no entries, so the entry's stop is trailed here, bar by bar: first looked
    at, then moved. Its own is a trailing stop of one R, and R is `exit`.
    """

    class Params(Params):
        size: float = Field(gt=0)
        entry: float = Field(gt=0)
        exit: float = Field(gt=0)

    stop = float("inf")
    done = False

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if not self.done and bar.high >= self.stop:
            self.done = True
            bracket = Bracket(stop_px=round(bar.close - self.params.exit, 6))
            yield Open(bar.market, "long", size=self.params.size, bracket=bracket, guardians=(TrailingStop(trail_r=1),))
        self.stop = min(self.stop, (bar.close if self.stop == float("inf") else bar.low) + self.params.entry)

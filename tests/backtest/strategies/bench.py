"""The strategies of the benchmark: one that never trades, and the cross of two averages with a bracket."""

from __future__ import annotations

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, View, sma


class Idle(Strategy):
    """Receives every bar and never trades."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        return ()


class Cross(Strategy):
    """Long when the fast average crosses the slow one from below, closed when it crosses back; stop 1 %, target 2 %."""

    class Params(Params):
        fast_bars: int = Field(10, ge=1)
        slow_bars: int = Field(30, ge=2)
        usd: float = Field(1_000, gt=0)
        stop_pct: float = Field(1, gt=0)
        target_pct: float = Field(2, gt=0)
        is_muted: bool = False

    fast = sma("fast_bars")
    slow = sma("slow_bars")
    before = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        fast, slow = self.fast[bar.market], self.slow[bar.market]
        if slow is None:
            return ()
        before = self.before
        now = self.before = 1 if fast > slow else -1 if fast < slow else before
        if before == now or not before or self.params.is_muted:
            return ()
        held = view.position(bar.market)
        if now > 0 and held is None:
            bracket = Bracket(stop_pct=self.params.stop_pct, target_pct=self.params.target_pct)
            return (Open(bar.market, "long", usd=self.params.usd, bracket=bracket),)
        if now < 0 and held is not None:
            return (Close(bar.market),)
        return ()


class Muted(Cross):
    """The same averages and crosses without any order, to measure the cost without orders."""

    class Params(Cross.Params):
        is_muted: bool = True


class Often(Strategy):
    """In on one bar and out on another, by turns of five bars: a hundred thousand trades a year."""

    at = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        self.at += 1
        if self.at % 5 == 1 and view.position(bar.market) is None:
            return (Open(bar.market, "long", usd=1_000, bracket=Bracket(stop_pct=20)),)
        if self.at % 5 == 3 and view.position(bar.market) is not None:
            return (Close(bar.market),)
        return ()

"""One strategy that decides on its view alone, and one that reads future prices."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from bot import Bar, Bracket, Close, Intent, Open, Strategy, View


class Honest(Strategy):
    """Long after a rise, out after a fall."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        closes = view.closes(bar.market, 6)
        held = view.position(bar.market)
        if len(closes) == 6 and not held and closes[-1] > closes[0]:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=2, target_pct=3))
        elif len(closes) == 6 and held and closes[-1] < closes[0]:
            yield Close(bar.market)


class Cheat(Strategy):
    """Long before a rise: it reads the backtest's candles through the frames of its callers."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        frame = sys._getframe()
        while "reader" not in frame.f_locals:
            assert frame.f_back is not None
            frame = frame.f_back
        reader = frame.f_locals["reader"]
        row = reader.index_of(bar.at_ms) + 3
        later = reader.close[row] if row < len(reader.close) else 0.0
        held = view.position(bar.market)
        if later > bar.close and not held:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=2, target_pct=3))
        elif later < bar.close and held:
            yield Close(bar.market)

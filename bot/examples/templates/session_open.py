"""Session open: the range of the first hours of a trading day, and the break of it.

The opening range break (Crabel, 1990): where the day leaves the range of its first bars, it tends to go on. One trade
a day at most, and none is held over night.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from bot import Bar, Bracket, Close, Field, Intent, Open, Params, Strategy, View


class SessionOpen(Strategy):
    """Follow the first close outside the range of the first `range_bars` bars from `open_hour` on; close at
    `close_hour`.
    """

    class Params(Params):
        open_hour: int = Field(13, ge=0, le=23, description="hour at which the session opens, in UTC")
        close_hour: int = Field(21, ge=1, le=23, description="hour at which the position is closed, in UTC")
        range_bars: int = Field(2, ge=1, le=100, description="bars of the opening range")
        target_r: float = Field(2.0, gt=0, le=20, description="target, in multiples of what the stop risks")
        usd: float = Field(300, ge=10, le=1_000_000, description="notional of one position")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        # A bar that closes at 14:00 belongs to the hour before.
        hour = datetime.fromtimestamp((bar.at_ms - 1) / 1000, UTC).hour
        is_over = not self.params.open_hour <= hour < self.params.close_hour
        if is_over:
            view.state[bar.market] = {}
            if view.position(bar.market):
                yield Close(bar.market)
            return
        session = view.state.get(bar.market) or {"bars": 0, "high": bar.high, "low": bar.low, "traded": False}
        session = session | {"bars": session["bars"] + 1}
        if session["bars"] <= self.params.range_bars:
            session |= {"high": max(session["high"], bar.high), "low": min(session["low"], bar.low)}
        elif not session["traded"]:
            is_above, is_below = bar.close > session["high"], bar.close < session["low"]
            if is_above or is_below:
                session |= {"traded": True}
                # The other end of the range is where the idea is wrong.
                risk = abs(bar.close - session["low" if is_above else "high"])
                stop_pct = max(0.2, min(45.0, 100 * risk / bar.close))
                view.log("range.left", market=bar.market, close=bar.close)
                bracket = Bracket(stop_pct=round(stop_pct, 3), target_r=self.params.target_r)
                yield Open(bar.market, "long" if is_above else "short", usd=self.params.usd, bracket=bracket)
        view.state[bar.market] = session

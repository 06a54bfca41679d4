"""Schedule: trade by the clock.

The daemon calls `on_timer` at the instants of `timers`, once each, also across restarts.
"""

from collections.abc import Iterable

from bot import Bar, Bracket, Close, Field, Intent, MaxHold, Open, Params, Strategy, Timer, View


class Schedule(Strategy):
    """Buy at 13:00 UTC from Monday to Friday and close at 20:00; a stop and a longest holding time work at the
    service.
    """

    class Params(Params):
        usd: float = Field(100, ge=10, le=1_000_000, description="notional of one position")
        stop_pct: float = Field(2.0, gt=0, le=50, description="the stop, in percent of the entry")
        hold_seconds: int = Field(28_800, ge=60, le=2_592_000, description="longest holding time, kept by the service")

    # Five cron fields in UTC: minute, hour, day, month, weekday. A number is
    # an interval in seconds. Each trade pays two fees, so trade rarely.
    timers = {"enter": "0 13 * * 1-5", "leave": "0 20 * * 1-5"}

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        for market in self.markets:
            position = view.position(market)
            if timer.name == "leave" and position:
                yield Close(market)
            elif timer.name == "enter" and not position and not view.orders(market):
                view.log("session.began", market=market)
                yield Open(
                    market,
                    "long",
                    usd=self.params.usd,
                    bracket=Bracket(stop_pct=self.params.stop_pct),
                    # If the daemon is down at "leave", the service closes the position after this time.
                    guardians=(MaxHold(self.params.hold_seconds),),
                )

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        # Every strategy has on_bar. This one decides by the clock only.
        return ()

"""A seat: what a strategy says of the past is not said again."""

from __future__ import annotations

from collections.abc import Iterable

from structlog.testing import capture_logs

from bot.runtime.feed import Feed, Series
from bot.runtime.mirror import Mirror
from bot.runtime.seats import Seat
from bot.strategy import Bar, Intent, Strategy, View


class Talker(Strategy):
    """Says each bar."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        view.log("seen", at_ms=bar.at_ms)
        return ()


def test_what_a_strategy_says_of_the_past_is_not_logged_again() -> None:
    feed = Feed({Series("BTC", "1m"): 1})
    seat = Seat(
        Talker(name="talker", markets=["BTC"], params={}), interval="1m", mirror=Mirror(lambda _key: None), feed=feed
    )
    old, new = (Bar("BTC", at_ms, 1.0, 1.0, 1.0, 1.0, 1.0) for at_ms in (60_000, 120_000))
    with capture_logs() as lines:
        seat.rehearse(lambda: seat.strategy.on_bar(seat.view, old), now_ms=old.at_ms)
        seat.call(lambda: seat.strategy.on_bar(seat.view, new), now_ms=new.at_ms)
    assert [line["at_ms"] for line in lines] == [120_000]

"""Everything a strategy is told live it is told in a session, at the same instants: fills, triggers, guardians, timers; and its daily loss holds."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar

from bot.session.backtest import Backtest
from bot.session.options import SessionOptions
from bot.strategy import Bar, Bracket, Close, Intent, Open, Strategy, View
from tests.session.rooms import MINUTE_MS, START_MS, minutes, placing, settings


class Listening(Strategy):
    """Writes down what it hears."""

    timers: ClassVar[dict[str, str]] = {"often": "*/7 * * * *"}

    def __init__(self, *, name: str, markets: Any) -> None:
        super().__init__(name=name, markets=markets)
        self.heard: list[tuple[str, int]] = []

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        assert view.now_ms == bar.at_ms
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=0.3, target_pct=0.3))

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        self.heard.append((f"fill {fill.action}", fill.at_ms))
        return ()

    def on_trigger(self, view: View, trigger: Any) -> Iterable[Intent]:
        self.heard.append(("trigger", trigger.at_ms))
        return ()

    def on_timer(self, view: View, timer: Any) -> Iterable[Intent]:
        self.heard.append((f"timer {timer.name}", timer.at_ms))
        return ()


def listened(*, skip: bool = True, count: int = 200, interval: str = "1m") -> list[tuple[str, int]]:
    made = settings(interval=interval)
    strategies: list[Listening] = []

    def place(config: Any) -> Any:
        (one,) = placing()(config)
        strategies.append(Listening(name=one.strategy.name, markets=one.strategy.markets))
        return [one._replace(strategy=strategies[-1])]

    Backtest(made, [minutes(count, seed=11)], SessionOptions(skip=skip), place=place).run()
    return strategies[-1].heard


def test_fills_triggers_and_timers_are_told_at_their_instants():
    heard = listened()
    kinds = {kind for kind, _ in heard}
    assert kinds == {"fill open", "fill close", "trigger", "timer often"}
    timers = [at for kind, at in heard if kind == "timer often"]
    hour = 60 * MINUTE_MS
    due = [START_MS + n * hour + m * MINUTE_MS for n in range(4) for m in range(0, 60, 7)]
    assert timers == [at for at in due if START_MS < at <= START_MS + 200 * MINUTE_MS]


def test_timers_of_a_strategy_on_coarse_bars_fire_between_them():
    timers = [at for kind, at in listened(interval="1h") if kind == "timer often"]
    assert len(timers) == 29
    assert {at % (60 * MINUTE_MS) // MINUTE_MS for at in timers} == set(range(0, 60, 7))


def test_what_is_heard_does_not_depend_on_bars_being_skipped():
    assert listened() == listened(skip=False)


def test_a_strategy_that_has_lost_its_daily_limit_opens_nothing_more_that_day():
    def falling_knife(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=1_000, bracket=Bracket(stop_pct=0.2))

    made = settings()

    def place(config: Any) -> Any:

        (one,) = placing(falling_knife)(config)
        return [one._replace(allowance=replace(one.allowance, daily_loss_usd=Decimal(10)))]

    days = minutes(2 * 1_440, seed=3, vol=0.001)
    test = Backtest(made, [days], SessionOptions(), place=place)
    result = test.run()
    assert result.refusals["daily_loss"] > 0
    day = START_MS + 1_440 * MINUTE_MS
    first, second = (
        [t for t in result.book.trips if lo <= t.entry_ms < lo + 1_440 * MINUTE_MS] for lo in (START_MS, day)
    )
    assert -16 * 10**8 < sum(trip.pnl for trip in first) <= -9 * 10**8
    assert second, "the next day it may again"


class Turns(Strategy):
    """In and out at minutes of its own."""

    minutes: ClassVar[dict[str, tuple[int, int]]] = {"first": (5, 60), "second": (20, 90)}

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - START_MS) // MINUTE_MS
        came, left = self.minutes[self.name]
        if minute == came:
            yield Open("BTC", "long", usd=400, bracket=Bracket(stop_pct=20))
        elif minute == left:
            yield Close("BTC")


def test_a_position_that_two_strategies_share_is_of_both_and_its_result_is_booked_to_each():
    one = {"use": "turns", "markets": ["BTC"], "budget_usd": 2_000, "netting": "allow"}
    made = settings(strategies=[one | {"name": "first"}, one | {"name": "second"}])

    def place(config: Any) -> Any:
        return [
            each._replace(
                strategy=Turns(name=each.strategy.name, markets=["BTC"]), allowance=replace(each.allowance, nets=True)
            )
            for each in placing()(config)
        ]

    lines = io.StringIO()
    test = Backtest(made, [minutes(120, seed=5)], SessionOptions(), place=place)
    summary = test.run(events=lines).summary()
    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    fills = [one["data"] for one in events if one["type"] == "fill"]
    came, added, left, last = ([Decimal(fill[name]) for name in ("size", "px", "feeUsd")] for fill in fills)
    assert list(summary["strategies"]) == ["first+second"]
    booked = summary["booked"]
    gained = came[0] * (left[1] - came[1]) - came[2] - left[2]
    assert Decimal(booked["first"]["pnlUsd"]) == gained + Decimal(booked["first"]["fundingUsd"])
    assert Decimal(booked["second"]["feesUsd"]) == added[2] + last[2]
    whole = sum(Decimal(each["pnlUsd"]) for each in booked.values())
    assert whole == Decimal(summary["strategies"]["first+second"]["pnlUsd"])


def test_nothing_is_booked_apart_where_nobody_shares():
    assert (
        Backtest(settings(), [minutes(120, seed=5)], SessionOptions(), place=placing()).run().summary()["booked"] == {}
    )

"""A backtest calls the same hooks as a live run, at the same instants: fills, triggers, guardians, timers.

The daily loss limit holds too.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import replace
from decimal import Context, Decimal, getcontext, setcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import MarketRules, Outage, SessionOptions
from bot.backtest.report.summary import refusals_text
from bot.backtest.results.assumptions import assumptions_of
from bot.cli.backtest.summary import summary_lines
from bot.clock import iso
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, MaxHold, Open, Strategy, View
from bot.venue.model.commands import SetRules
from bot.venue.model.numbers import E8
from bot.venue.model.state import Rules
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, Scripted, minutes, placing, settings


class Listening(Strategy):
    """Records its hook calls."""

    timers: ClassVar[dict[str, str | int]] = {"often": "*/7 * * * *"}

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


def test_fills_triggers_and_timers_are_delivered_at_their_instants():
    heard = listened()
    kinds = {kind for kind, _ in heard}
    assert kinds == {"fill open", "fill close", "trigger", "timer often"}
    timers = [at for kind, at in heard if kind == "timer often"]
    hour = 60 * MINUTE_MS
    due = [START_MS + n * hour + m * MINUTE_MS for n in range(4) for m in range(0, 60, 7)]
    assert timers == [at for at in due if START_MS < at <= START_MS + 200 * MINUTE_MS]


class Rebalancing(Strategy):
    """Records the view of its two markets at each timer."""

    timers: ClassVar[dict[str, str | int]] = {"often": "*/7 * * * *"}

    def __init__(self, *, name: str, markets: Any) -> None:
        super().__init__(name=name, markets=markets)
        self.bars: list[int] = []
        self.seen: list[tuple[int, int, list[int]]] = []

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        assert view.now_ms == bar.at_ms
        self.bars.append(bar.at_ms)
        return ()

    def on_timer(self, view: View, timer: Any) -> Iterable[Intent]:
        assert self.bars[-2:] == [timer.at_ms] * 2, "as live: the bars of an instant come first"
        newest = [view.bars(market, 1)[-1].at_ms for market in self.markets]
        self.seen.append((timer.at_ms, view.now_ms, newest))
        return ()


@pytest.mark.parametrize("options", [{}, {"skip": False}, {"latency_ms": 500}])
def test_a_timer_sees_its_own_instant_and_the_bars_of_all_markets_that_closed_at_it(options: dict[str, Any]):
    made: list[Rebalancing] = []

    def place(config: Any) -> Any:
        (one,) = placing()(config)
        made.append(Rebalancing(name="s0", markets=["BTC", "ETH"]))
        limits = replace(one.limits, markets=frozenset(made[-1].markets))
        return [one._replace(strategy=made[-1], limits=limits)]

    candles = [minutes(60, seed=11, market=market) for market in ("BTC", "ETH")]
    Backtest(settings(), candles, SessionOptions(**options), place=place).run()
    assert [at_ms for at_ms, _, _ in made[-1].seen] == [START_MS + n * MINUTE_MS for n in (*range(7, 57, 7), 60)]
    assert all(now_ms == at_ms and newest == [at_ms] * 2 for at_ms, now_ms, newest in made[-1].seen)


class Often(Listening):
    timers: ClassVar[dict[str, str | int]] = {"look": 30, "half": "30 * * * *", "hourly": "0 * * * *", "each": 300}


@pytest.mark.parametrize(("interval", "between"), [("5m", ["look"]), ("1h", ["look", "half", "each"])])
def test_timers_that_are_due_between_the_closes_of_the_data_are_among_the_assumptions(
    interval: str, between: list[str]
):
    strategy = Often(name="s0", markets=["BTC"])

    def place(config: Any) -> Any:
        return [one._replace(strategy=strategy) for one in placing()(config)]

    candles = minutes(10, seed=11, interval=interval)
    test = Backtest(settings(interval=interval), [candles], SessionOptions(), place=place)
    said = assumptions_of(test.session.timeline, test.options, test.exchange, funded=[], timers=test.session.timers)
    assert [one for one in said if "timer" in one] == [
        f"s0: timer {name}: when it is due several times between two closes of {interval} candles, it fires once, at"
        " the later close"
        for name in between
    ]
    test.run()
    polled = [at_ms for kind, at_ms in strategy.heard if kind == "timer look"]
    assert polled == [
        close + before
        for close in range(START_MS + candles.step_ms, candles.end_ms + 1, candles.step_ms)
        for before in (-30_000, 0)
    ]


def test_timers_of_a_strategy_on_coarse_bars_fire_between_them():
    timers = [at for kind, at in listened(interval="1h") if kind == "timer often"]
    assert len(timers) == 29
    assert {at % (60 * MINUTE_MS) // MINUTE_MS for at in timers} == set(range(0, 60, 7))


class Timed(Strategy):
    """Buys at its third timer and records all timers."""

    timers: ClassVar[dict[str, str | int]] = {"often": "*/7 * * * *", "each": 60}

    def __init__(self, *, name: str, markets: Any) -> None:
        super().__init__(name=name, markets=markets)
        self.rung: list[tuple[str, int]] = []

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        return ()

    def on_timer(self, view: View, timer: Any) -> Iterable[Intent]:
        self.rung.append((timer.name, timer.at_ms))
        if timer.name == "often" and len([one for one in self.rung if one[0] == "often"]) == 3:
            yield Open("BTC", "long", size=0.01, bracket=Bracket(stop_pct=20))


@pytest.mark.parametrize("skip", [True, False])
def test_timers_in_a_gap_fire_as_if_the_price_kept_its_last_value(skip: bool):
    """A gap from 15 to 20: the timer at 21 is due at the following open, and its order is filled at that open."""
    whole = minutes(60, seed=3)
    gone = range(15, 21)
    for row in gone:
        for column in whole.columns[1:5]:
            column[row] = whole.close[14]
    holed = whole.pick([row for row in range(60) if row not in gone])
    found = []
    for candles in (whole, holed):
        strategies: list[Timed] = []

        def place(config: Any, made: list[Timed] = strategies) -> Any:
            (one,) = placing()(config)
            made.append(Timed(name=one.strategy.name, markets=one.strategy.markets))
            return [one._replace(strategy=made[-1])]

        result = Backtest(settings(), [candles], SessionOptions(skip=skip), place=place).run()
        (trip,) = result.trade_ledger.trips
        found.append((strategies[-1].rung, trip.entry_ms, trip.entry_notional))
    assert found[0] == found[1]
    assert found[1][1] == START_MS + 21 * MINUTE_MS
    assert [at for name, at in found[1][0] if name == "each"] == [START_MS + n * MINUTE_MS for n in range(1, 61)]


class Held(Strategy):
    """Buys for 28 minutes at most, and records when it gets the event of their end."""

    def __init__(self, *, name: str, markets: Any) -> None:
        super().__init__(name=name, markets=markets)
        self.told: list[int] = []

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if not self.told and view.position("BTC") is None:
            yield Open("BTC", "long", size=0.01, bracket=Bracket(stop_pct=20), guardians=(MaxHold(seconds=1_680),))

    def on_guardian(self, view: View, note: Any) -> Iterable[Intent]:
        if note.happened == "fired":
            self.told.append(view.now_ms)
        return ()


@pytest.mark.parametrize("skip", [True, False])
def test_a_guardians_action_in_a_gap_is_delivered_at_the_next_close(skip: bool):
    """Bought at 15, ended at 43 in a gap from 40 to 70, where the bar of 30 to 45 closes."""
    whole = minutes(100)
    strategies: list[Held] = []

    def place(config: Any) -> Any:
        (one,) = placing()(config)
        strategies.append(Held(name=one.strategy.name, markets=one.strategy.markets))
        return [one._replace(strategy=strategies[-1])]

    holed = whole.pick([row for row in range(100) if not 40 <= row < 70])
    Backtest(settings(interval="15m"), [holed], SessionOptions(skip=skip), place=place).run()
    assert strategies[-1].told == [START_MS + 45 * MINUTE_MS - 1]


def test_the_hooks_called_do_not_depend_on_skipped_bars():
    assert listened() == listened(skip=False)


def test_a_strategy_that_has_lost_its_daily_limit_opens_nothing_more_that_day():
    def falling_knife(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=1_000, bracket=Bracket(stop_pct=0.2))

    made = settings(daily_loss_usd=Decimal(10))
    days = minutes(2 * 1_440, seed=3, vol=0.001)
    test = Backtest(made, [days], SessionOptions(), place=placing(falling_knife))
    result = test.run()
    assert result.refusals["daily_loss"] > 0
    day = START_MS + 1_440 * MINUTE_MS
    first, second = (
        [t for t in result.trade_ledger.trips if lo <= t.entry_ms < lo + 1_440 * MINUTE_MS] for lo in (START_MS, day)
    )
    assert -16 * 10**8 < sum(trip.pnl for trip in first) <= -9 * 10**8
    assert second, "the next day it may again"


def level(
    market: str, rows: dict[int, tuple[float, float, float, float]], px: float, *, start_ms: int = START_MS
) -> Candles:
    """Thirty minutes of a constant price, except the given ones."""
    columns = zip(*(rows.get(n, (px,) * 4) for n in range(30)), strict=True)
    at_ms = array("q", range(start_ms, start_ms + 30 * MINUTE_MS, MINUTE_MS))
    return Candles(market, "1m", at_ms, *(array("d", one) for one in columns), array("d", [50.0] * 30))


@pytest.mark.parametrize("skip", [True, False])
def test_a_daily_limit_reached_by_a_fill_holds_after_a_better_close(skip: bool):
    """As in live trading, where the fill comes inside the bar: a stop loses 20 USD, and another position gains 15 by
    the close of the same minute.
    """
    data = [
        level("BTC", {7: (100_000, 100_000, 97_000, 100_000)}, 100_000),
        level("ETH", {7: (4_000, 4_060, 4_000, 4_060), **dict.fromkeys(range(8, 30), (4_060,) * 4)}, 4_000),
    ]

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - START_MS) // MINUTE_MS
        if minute == 3:
            yield Open(bar.market, "long", usd=1_000, bracket=Bracket(stop_pct=2))
        elif minute == 12:
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=2))

    one = {"name": "s0", "use": "both", "markets": ["BTC", "ETH"], "budget_usd": 5_000, "daily_loss_usd": 15}
    test = Backtest(settings(strategies=[one]), data, SessionOptions(rules=FREE, skip=skip), place=placing(script))
    assert test.run().refusals == {"daily_loss": 2}


def test_an_unaccepted_entry_frees_its_budget_when_it_expires():
    """As in live trading, where the events are read before any decision."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - START_MS) // MINUTE_MS
        if minute == 3:
            # Half the spread is larger than that.
            yield Open("BTC", "long", usd=400, max_slippage_bps=0, bracket=Bracket(stop_pct=5))
        elif minute == 6:
            yield Open("BTC", "long", usd=400, max_slippage_bps=500, bracket=Bracket(stop_pct=5))

    made = settings(strategies=[{"name": "s0", "use": "once", "markets": ["BTC"], "budget_usd": 500}])
    wide = SessionOptions(rules={"": MarketRules(spread_bps=Decimal(100))})
    result = Backtest(made, [minutes(20)], wide, place=placing(script)).run()
    assert (result.rejections, result.refusals, result.trade_ledger.fills) == ({"insufficient_depth": 1}, {}, 1)


@pytest.mark.parametrize("markets", [["BTC"], ["BTC", "ETH"]])
@pytest.mark.parametrize("skip", [True, False])
def test_an_entry_on_the_bar_of_midnight_belongs_to_the_new_day(markets: list[str], skip: bool):
    """Before it 20 USD are lost of a limit of 15; the entry is filled at 00:00 at the earliest."""
    day_ms = START_MS + 1_440 * MINUTE_MS
    rows = {12: (100_000.0, 100_000.0, 97_000.0, 97_000.0), **dict.fromkeys(range(13, 30), (97_000.0,) * 4)}
    data = [level(market, rows, 100_000, start_ms=day_ms - 20 * MINUTE_MS) for market in markets]

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - day_ms) // MINUTE_MS
        if minute == -15 and bar.market == "BTC":
            yield Open("BTC", "long", usd=1_000, bracket=Bracket(stop_pct=2))
        elif minute in (-1, 0):
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=2))

    one = {"name": "s0", "use": "late", "markets": markets, "budget_usd": 5_000, "daily_loss_usd": 15}
    lines = io.StringIO()
    test = Backtest(settings(strategies=[one]), data, SessionOptions(rules=FREE, skip=skip), place=placing(script))
    assert test.run(events=lines).refusals == {"daily_loss": len(markets)}
    entries = [event for event in map(json.loads, lines.getvalue().splitlines()) if event["subtype"] == "entry"]
    assert [event["ts"] for event in entries[1:]] == [day_ms] * len(markets)


@pytest.mark.parametrize("skip", [True, False])
def test_a_day_starts_at_the_midnight_prices_of_all_markets(skip: bool):
    """ETH, whose bar is delivered after the entry in BTC, fell by 30 USD in the last minute of the previous day."""
    day_ms = START_MS + 1_440 * MINUTE_MS
    fallen = {19: (4_000.0, 4_000.0, 3_880.0, 3_880.0), **dict.fromkeys(range(20, 30), (3_880.0,) * 4)}
    data = [
        level("BTC", {}, 100_000, start_ms=day_ms - 20 * MINUTE_MS),
        level("ETH", fallen, 4_000, start_ms=day_ms - 20 * MINUTE_MS),
    ]

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - day_ms) // MINUTE_MS
        if minute == -15 and bar.market == "ETH":
            yield Open("ETH", "long", usd=1_000, bracket=Bracket(stop_pct=20))
        elif minute in (0, 1) and bar.market == "BTC":
            yield Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=20))

    one = {"name": "s0", "use": "late", "markets": ["BTC", "ETH"], "budget_usd": 5_000, "daily_loss_usd": 15}
    test = Backtest(settings(strategies=[one]), data, SessionOptions(rules=FREE, skip=skip), place=placing(script))
    result = test.run()
    assert (result.refusals, result.trade_ledger.fills) == ({}, 3)


class Turns(Strategy):
    """Enters and exits at its own minutes."""

    minutes: ClassVar[dict[str, tuple[int, int]]] = {"first": (5, 60), "second": (20, 90)}

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        minute = (bar.at_ms - START_MS) // MINUTE_MS
        came, left = self.minutes[self.name]
        if minute == came:
            yield Open("BTC", "long", usd=400, bracket=Bracket(stop_pct=20))
        elif minute == left:
            yield Close("BTC")


def test_a_shared_position_is_listed_for_both_strategies_and_its_result_split():
    one = {"use": "turns", "markets": ["BTC"], "budget_usd": 2_000, "netting": "allow"}
    made = settings(strategies=[one | {"name": "first"}, one | {"name": "second"}])

    def place(config: Any) -> Any:
        return [each._replace(strategy=Turns(name=each.strategy.name, markets=["BTC"])) for each in placing()(config)]

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


def test_without_shared_positions_nothing_is_booked_separately():
    assert (
        Backtest(settings(), [minutes(120, seed=5)], SessionOptions(), place=placing()).run().summary()["booked"] == {}
    )


class Eager(Strategy):
    """Yields an entry in on_start."""

    def on_start(self, view: View) -> Any:
        return [Open("BTC", "long", usd=100, bracket=Bracket(stop_pct=1))]

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        return ()


def test_a_signal_from_on_start_is_refused_with_an_error():
    def place(config: Any) -> Any:
        return [each._replace(strategy=Eager(name="s0", markets=["BTC"])) for each in placing()(config)]

    summary = Backtest(settings(), [minutes(10)], SessionOptions(), place=place).run().summary()
    assert "signals of on_start and on_stop are lost, so yield Open(market='BTC'" in summary["quarantined"]["s0"]


@pytest.mark.parametrize("listeners", [1, 2])
@pytest.mark.parametrize("nonsense", [False, 0])
def test_an_invalid_answer_quarantines_in_a_backtest_as_in_live_trading(nonsense: Any, listeners: int):
    """`return is_up and [Open(...)]` returns False on most bars, which must be an error in a backtest too."""
    one = {"use": "x", "markets": ["BTC"], "budget_usd": 2_000, "netting": "allow"}
    made = settings(strategies=[one | {"name": f"s{n}"} for n in range(listeners)])
    summary = Backtest(made, [minutes(10)], SessionOptions(), place=placing(lambda view, bar: nonsense)).run().summary()
    assert set(summary["quarantined"]) == {one.name for one in made.strategies}
    assert f"'{type(nonsense).__name__}' object is not iterable; a hook yields" in summary["quarantined"]["s0"]


@pytest.mark.parametrize("listeners", [1, 2])
@pytest.mark.parametrize("yields", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, BaseException])
def test_any_exception_of_a_strategy_ends_the_strategy_and_not_the_backtest(
    error: type[BaseException], yields: bool, listeners: int
):
    def raises(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms > START_MS + 5 * MINUTE_MS:
            raise error("enough")
        return ()

    def gives(view: View, bar: Bar) -> Iterable[Intent]:
        yield from raises(view, bar)

    one = {"use": "x", "markets": ["BTC"], "budget_usd": 2_000, "netting": "allow"}
    made = settings(strategies=[one | {"name": f"s{n}"} for n in range(listeners)])
    test = Backtest(made, [minutes(10)], SessionOptions(), place=placing(gives if yields else raises))
    quarantined = test.run().summary()["quarantined"]
    assert set(quarantined) == {one.name for one in made.strategies}
    assert f"{error.__name__}: enough" in quarantined["s0"]


@pytest.mark.parametrize("listeners", [1, 2])
def test_a_strategy_has_its_own_decimal_context_as_in_live_trading(listeners: int):
    """In live trading the strategy has its own thread; a backtest calls it in the thread that computes the money."""
    kept = getcontext().prec
    seen: list[int] = []
    margins: list[list[float]] = []

    class Rough(Scripted):
        def on_start(self, view: View) -> None:
            getcontext().prec = 4

        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            seen.append(getcontext().prec)
            getcontext().prec = 3
            margins[-1].append(view.free_margin_usd)
            return super().on_bar(view, bar)

        def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
            seen.append(getcontext().prec)
            return super().on_fill(view, fill)

    class Fine(Scripted):
        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            margins[-1].append(view.free_margin_usd)
            return super().on_bar(view, bar)

    one = {"use": "x", "markets": ["BTC"], "budget_usd": 2_000, "max_leverage": 5, "netting": "allow"}
    made = settings(strategies=[one | {"name": f"s{n}"} for n in range(listeners)])
    played = []
    for kind in (Rough, Fine):
        lines = io.StringIO()
        margins.append([])
        result = Backtest(made, [minutes(600)], SessionOptions(), place=placing(kind=kind)).run(events=lines)
        played.append((lines.getvalue(), list(result.curve.equity), result.refusals))
    assert played[0] == played[1]
    assert margins[0] == margins[1]
    assert played[0][0].count('"type":"fill"') > 10
    assert (set(seen), getcontext().prec) == ({3, 4}, kept)


@pytest.mark.parametrize("listeners", [1, 2])
@pytest.mark.parametrize("counts", [False, True])
def test_a_decimal_context_that_a_strategy_sets_ends_with_its_call(listeners: int, counts: bool):
    """`counts`: with a durable state. A generator's signals are made in the strategy's context, too."""
    ours = getcontext()
    seen: set[tuple[str, int]] = set()

    class Setting(Scripted):
        def on_start(self, view: View) -> None:
            getcontext().prec = 7

        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            seen.add(("call", getcontext().prec))
            if bar.at_ms % (2 * MINUTE_MS):
                setcontext(Context(prec=3))
                return ()
            if counts:
                view.state["n"] = view.state.get("n", 0) + 1
            return self.generated(view, bar)

        def generated(self, view: View, bar: Bar) -> Iterable[Intent]:
            seen.add(("generator", getcontext().prec))
            setcontext(Context(prec=2))
            if view.position(bar.market) is None:
                yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=0.3, target_pct=0.3))

    one = {"use": "x", "markets": ["BTC"], "budget_usd": 2_000, "max_leverage": 5, "netting": "allow"}
    made = settings(strategies=[one | {"name": f"s{n}"} for n in range(listeners)])
    place = placing(kind=Setting, counts=False)
    Backtest(made, [minutes(300)], SessionOptions(), place=place).run()
    assert seen == {("call", 7), ("generator", 7)}
    assert getcontext() is ours


@pytest.mark.parametrize("listeners", [1, 2])
def test_a_method_that_a_strategy_replaces_is_called_from_the_next_bar_on(listeners: int):
    class Replacing(Scripted):
        def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
            calls.append("first")
            self.on_bar = self.later  # type: ignore[method-assign]
            return ()

        def later(self, view: View, bar: Bar) -> Iterable[Intent]:
            calls.append("later")
            return ()

    calls: list[str] = []
    one = {"use": "x", "markets": ["BTC"], "budget_usd": 2_000, "netting": "allow"}
    made = settings(strategies=[one | {"name": f"s{n}"} for n in range(listeners)])
    Backtest(made, [minutes(10)], SessionOptions(), place=placing(kind=Replacing, counts=False)).run()
    assert calls == ["first"] * listeners + ["later"] * 9 * listeners


def test_the_last_bar_before_a_failure_is_kept_as_decided():
    """A strategy that fails or begins to keep a state in the middle of a run of bars leaves the rest to the general
    way.
    """

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        count.append(bar.at_ms)
        if len(count) == 40:
            view.state["began"] = bar.at_ms
        if len(count) == 80:
            raise RuntimeError("enough")
        return ()

    count: list[int] = []
    test = Backtest(settings(), [minutes(100)], SessionOptions(), place=placing(script, counts=False))
    result = test.run()
    assert len(count) == 80
    assert result.stats.bars == 100
    assert [*result.summary()["quarantined"]] == ["s0"]
    assert test.journal.state.done_until("BTC", "1m") == START_MS + 100 * MINUTE_MS


def test_an_interrupt_in_a_strategy_ends_the_backtest():
    def interrupted(view: View, bar: Bar) -> Iterable[Intent]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Backtest(settings(), [minutes(10)], SessionOptions(), place=placing(interrupted)).run()


def test_orders_accept_prices_computed_in_floats():
    def reckons(view: View, bar: Bar) -> Iterable[Intent]:
        third = bar.close / 3
        if view.position(bar.market) is None and not view.orders(bar.market):
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_px=third * 2.99, target_px=third * 3.01))
        elif not any(one.kind == "limit" for one in view.orders(bar.market)):
            yield Open(bar.market, "long", usd=300, limit_px=third * 2.995)

    prices = {"BTC": 104_209.6, "ETH": 2_611.87, "SOL": 178.123, "XRP": 2.2718, "KPEPE": 0.0123456}
    for coin, px in prices.items():
        candles = minutes(200, market=coin, px=px, seed=7, decimals=8)
        result = Backtest(settings([coin]), [candles], SessionOptions(), place=placing(reckons)).run()
        assert result.rejections == {}, (coin, result.failures.first_rejections)
        assert {trip.entry_kind for trip in result.trade_ledger.trips} <= {"market", "limit"}
        assert result.trade_ledger.fills > 3, coin


def test_a_price_on_the_configured_tick_is_sent_unchanged():
    def exact(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=300_000, bracket=Bracket(stop_px=bar.close - 1_234.567))

    for rules in (MarketRules(tick=Decimal("0.01")), MarketRules(lot=Decimal(1))):
        made = settings(strategies=[{"name": "s0", "use": "x", "markets": ["BTC"], "budget_usd": 1_000_000}])
        options = SessionOptions(rules={"": rules}, balance_usd=Decimal(1_000_000))
        candles = minutes(5)
        result = Backtest(made, [candles], options, place=placing(exact)).run()
        assert result.rejections == {}, result.failures.first_rejections
        (trip,) = result.trade_ledger.trips
        stop = (
            -(-round(candles.close[0] * 1_000 - 1_234_567) // 10) / 100
            if rules.tick
            else math.ceil(candles.close[0] - 1_234.567)
        )
        assert trip.stop_px is not None
        assert trip.stop_px / 10**8 == pytest.approx(stop, abs=1e-9)


def test_a_refusal_is_reported_with_the_message_of_the_first_of_its_code():
    def greedy(view: View, bar: Bar) -> Iterable[Intent]:
        yield Open(bar.market, "long", usd=5_000 if bar.at_ms % 120_000 else 9, bracket=Bracket(stop_pct=1))

    summary = Backtest(settings(), [minutes(60)], SessionOptions(), place=placing(greedy)).run().summary()
    assert summary["refusals"] == {"over_budget": 30}
    assert summary["rejections"] == {"below_min_notional": 30}
    gate, service = summary["firstRefusals"]["over_budget"], summary["firstRejections"]["below_min_notional"]
    assert gate | {"atMs": 0} == {
        "atMs": 0,
        "strategy": "s0",
        "market": "BTC",
        "message": "5000.00 USD is more than the 2000.00 USD left of budget_usd 2000",
    }
    assert "the minimum is 10 USD" in service["message"]
    assert gate["atMs"] < service["atMs"] < START_MS + 3 * MINUTE_MS
    assert refusals_text(summary, "rejections") == [
        (
            f"refused by the service: below_min_notional 30, first at {iso(service['atMs'])[:19]}, s0 in BTC:"
            f" {service['message']}"
        )
    ]


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "a journal"])
def test_each_accepted_and_unfilled_order_is_counted_with_the_first_message(on_disk: bool, tmp_path: Path):
    """At the opens of these minutes: 100,000, 104,000 (too dear for the margin), 104,000, 90,000 (the stop is
    first), 90,000.
    """

    def wants(view: View, bar: Bar) -> Iterable[Intent]:
        n = (bar.at_ms - START_MS) // MINUTE_MS
        if n == 1:
            yield Open("BTC", "long", size=0.1, bracket=Bracket(stop_pct=20))
        if n == 2:
            yield Open("BTC", "long", size=0.05, bracket=Bracket(stop_pct=5))
            yield Open("BTC", "long", usd=100, limit_px=80_000, bracket=Bracket(stop_pct=5))
        if n == 3:
            yield Close("BTC")
        if n == 4:
            yield Cancel(market="BTC")
            yield Open("BTC", "long", usd=100, limit_px=70_000, bracket=Bracket(stop_pct=5))
        if n == 5:
            yield Open("BTC", "long", size=0.05, bracket=Bracket(stop_pct=5))

    opens = (100_000.0, 104_000.0, 104_000.0, 90_000.0, 90_000.0)
    at = array("q", [START_MS + n * MINUTE_MS for n in range(5)])
    made = settings(strategies=[{"name": "s0", "use": "x", "markets": ["BTC"], "budget_usd": 50_000}])
    path = tmp_path / "journal.db" if on_disk else None
    options = SessionOptions(balance_usd=Decimal(10_200))
    candles = Candles("BTC", "1m", at, *[array("d", opens)] * 4, array("d", [1e9] * 5))
    result = Backtest(made, [candles], options, place=placing(wants), journal_path=path).run()
    summary = result.summary()
    assert summary["unfilled"] == {"insufficient_funds": 1, "reduce_only": 1, "session_ended": 2}
    first = summary["firstUnfilled"]
    assert first["insufficient_funds"] == {
        "atMs": START_MS + MINUTE_MS,
        "strategy": "s0",
        "market": "BTC",
        "message": (
            "market order to open long 0.1, 0 of it filled: its margin was more than the free margin at the execution"
            " price"
        ),
    }
    lines = summary_lines(result, [])
    for code, one in first.items():
        told = (
            f"not filled: {code} {summary['unfilled'][code]}, first at {iso(one['atMs'])[:19]}, s0 in BTC:"
            f" {one['message']}"
        )
        assert f"  {told}" in lines
        assert told in refusals_text(summary, "unfilled")


def test_an_entry_that_waits_for_the_next_open_uses_budget():
    def both(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + 5 * MINUTE_MS:
            yield Open(bar.market, "long", usd=1_500, bracket=Bracket(stop_pct=20))

    made = settings(strategies=[{"name": "s0", "use": "scripted", "markets": ["BTC", "ETH"], "budget_usd": 2_000}])
    candles = [minutes(20), minutes(20, market="ETH", px=2_500.0)]
    result = Backtest(made, candles, SessionOptions(), place=placing(both)).run()
    assert result.summary()["refusals"] == {"over_budget": 1}
    assert [trip.coin for trip in result.trade_ledger.trips] == ["BTC"]


def test_a_position_is_held_no_longer_than_its_max_hold():
    """The service closes the position, because the daemon is down."""

    def holds(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + 5 * MINUTE_MS:
            yield Open("BTC", "long", usd=300, bracket=Bracket(stop_pct=20), guardians=(MaxHold(30 * 60),))

    options = SessionOptions(outages=(Outage(START_MS + 10 * MINUTE_MS, 60 * MINUTE_MS),))
    result = Backtest(settings(), [minutes(120)], options, place=placing(holds)).run()
    (trip,) = result.trade_ledger.trips
    assert (trip.exit_ms - trip.entry_ms, trip.exit_kind) == (30 * MINUTE_MS, "guardian")
    (fired,) = result.trade_ledger.guardians
    assert fired.event.guardian_type == "max_hold"


STOP = Bracket(stop_pct=5)


class Wanting(Strategy):
    """Yields the signals of the script for the minute and market of a bar, or for the minute of its timer."""

    timers: ClassVar[dict[str, str | int]] = {"look": "* * * * *"}

    def __init__(self, wanted: dict[tuple[int, str], list[Intent]], *, name: str, markets: Any) -> None:
        super().__init__(name=name, markets=markets)
        self.wanted = wanted

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        return self.wanted.get(((bar.at_ms - START_MS) // MINUTE_MS, bar.market), [])

    def on_timer(self, view: View, timer: Any) -> Iterable[Intent]:
        return self.wanted.get(((timer.at_ms - START_MS) // MINUTE_MS, timer.name), [])


def played(
    fill_at: str, *scripts: dict[tuple[int, str], list[Intent]], balance: int = 10_000
) -> tuple[Backtest, dict[str, float]]:
    """The backtest and the positions at its end, with constant prices: equal with fills at once, as in live trading,
    and at the next open.
    """
    markets = ["BTC", "ETH"]

    def place(config: Any) -> Any:
        (one,) = placing()(config)
        return [
            one._replace(
                strategy=Wanting(wanted, name=f"s{n}", markets=markets),
                limits=replace(one.limits, strategy=f"s{n}", markets=frozenset(markets), nets=len(scripts) > 1),
            )
            for n, wanted in enumerate(scripts)
        ]

    options = SessionOptions(balance_usd=Decimal(balance))
    test = Backtest(settings(), [minutes(8, market=market, vol=0) for market in markets], options, place=place)
    test.exchange.run(SetRules(Rules(fill_at=fill_at, paths="sl_first")))
    test.run()
    return test, {coin: one.side * one.size / E8 for coin, one in test.exchange.account.positions.items()}


BOUGHT = {(1, "BTC"): [Open("BTC", "long", size=0.016, bracket=STOP)]}
SHARED = {(1, "BTC"): [Open("BTC", "long", size=0.01, bracket=STOP)]}


@pytest.mark.parametrize(
    ("scripts", "held"),
    [
        (
            [BOUGHT | {(3, "BTC"): [Close("BTC")], (3, "ETH"): [Open("ETH", "long", size=0.016, bracket=STOP)]}],
            {"ETH": 0.016},
        ),
        (
            [BOUGHT | {(3, "BTC"): [Close("BTC")], (3, "look"): [Open("BTC", "short", size=0.016, bracket=STOP)]}],
            {"BTC": -0.016},
        ),
        ([BOUGHT | {(3, at): [Close("BTC", fraction=0.5)] for at in ("BTC", "look")}], {"BTC": 0.004}),
        ([SHARED | {(3, at): [Close("BTC")] for at in ("BTC", "look")}, SHARED], {"BTC": 0.01}),
        ([SHARED | {(3, at): [Close("BTC", fraction=0.5)] for at in ("BTC", "look")}, SHARED], {"BTC": 0.0125}),
        (
            [SHARED | {(3, "BTC"): [Close("BTC")]}, {(3, "look"): [Open("BTC", "short", size=0.01, bracket=STOP)]}],
            {"BTC": -0.01},
        ),
    ],
    ids=[
        "another market",
        "the other side",
        "parts",
        "a share, twice",
        "parts of a share",
        "the other side of another's",
    ],
)
@pytest.mark.parametrize("fill_at", ["now", "next"])
def test_an_order_after_a_close_of_the_same_instant_is_checked_against_the_rest(
    fill_at: str, scripts: list[dict[tuple[int, str], list[Intent]]], held: dict[str, float]
):
    assert played(fill_at, *scripts)[1] == held


@pytest.mark.parametrize(
    ("wanted", "held"),
    [
        ([Open("BTC", "long", size=0.004, bracket=STOP), Close("BTC")], {}),
        (
            [Open("BTC", "short", size=0.01, bracket=STOP), Open("BTC", "long", size=0.003, bracket=STOP)],
            {"BTC": -0.004},
        ),
        ([Open("BTC", "short", size=0.01, bracket=STOP), Close("BTC")], {}),
        ([Close("BTC"), Open("BTC", "short", size=0.01, bracket=STOP), Close("BTC")], {}),
    ],
    ids=["an addition", "two sides", "a turn", "a turn in two"],
)
@pytest.mark.parametrize("fill_at", ["now", "next"])
def test_an_order_after_an_entry_of_the_same_instant_is_checked_with_it(
    fill_at: str, wanted: list[Intent], held: dict[str, float]
):
    script = {(1, "BTC"): [Open("BTC", "long", size=0.006, bracket=STOP)], (3, "BTC"): wanted}
    assert played(fill_at, script)[1] == held


@pytest.mark.parametrize("fill_at", ["now", "next"])
def test_a_cancel_of_a_markets_resting_entries_keeps_a_waiting_market_entry(fill_at: str):
    limit = Open("BTC", "long", size=0.004, limit_px=99_000, bracket=STOP)
    script = SHARED | {
        (2, "BTC"): [limit, Open("BTC", "long", size=0.006, bracket=STOP)],
        (2, "look"): [Cancel(market="BTC")],
    }
    test, held = played(fill_at, script)
    assert held == {"BTC": 0.016}
    assert [order.kind for order in test.exchange.account.orders.values()] == ["stop_loss"]


@pytest.mark.parametrize("fill_at", ["now", "next"])
def test_of_one_calls_orders_in_several_markets_the_exits_are_sent_first(fill_at: str):
    """As in live trading: the margin of one is available for the other, in any order of the signals."""
    wanted = [Open("ETH", "short", size=0.009, bracket=STOP), Close("BTC", size=0.004), Close("BTC")]
    assert played(fill_at, SHARED | {(3, "BTC"): wanted}, balance=1_800)[1] == {"ETH": -0.009}

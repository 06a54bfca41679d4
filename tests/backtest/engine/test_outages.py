"""Outages of the daemon in simulated time: the dead-man switch fires, stops fill, and a new daemon recovers from the
same journal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import ClassVar

import pytest

from bot.backtest.backtest import Backtest, prove_causal
from bot.backtest.engine.options import Outage, SessionOptions, within
from bot.config import Settings
from bot.errors import ConfigError
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Bar, Bracket, Close, Intent, Open, Timer, View
from tests.backtest.builders import MINUTE_MS, START_MS, Scripted, minutes, placing, ran, settings

HOUR_MS = 60 * MINUTE_MS


def always_long(view: View, bar: Bar) -> Iterable[Intent]:
    if not view.position(bar.market) and not view.orders(bar.market):
        yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=20))


def fired(lines: list[str], kind: str) -> list[dict[str, object]]:
    events = [json.loads(line) for line in lines]
    return [
        e for e in events if e["type"] == "guardian" and e["subtype"] == "fired" and e["data"]["guardianType"] == kind
    ]


def test_the_dead_man_switch_fires_while_the_daemon_is_down_and_is_armed_again_afterwards():
    outage = Outage(START_MS + 2 * HOUR_MS, HOUR_MS)
    made = settings(dead_man={"heartbeat_seconds": 300, "on_miss": "flatten"})
    one = ran([minutes(6 * 60)], made=made, script=always_long, outages=(outage,))
    (shot,) = fired(one.lines, "dead_man_switch")
    # It sends a heartbeat every 50 s: the last one is at most that long before the outage, and the switch waits its
    # whole time from it.
    assert outage.at_ms + 300_000 - 50_000 <= shot["ts"] <= outage.at_ms + 300_000
    (down,) = one.result.stats.outage_records
    assert len(down.open_before) == 1
    assert down.open_after == ()
    events = [json.loads(line) for line in one.lines]
    after = [e for e in events if e["ts"] >= outage.end_ms - 1]
    assert any(e["type"] == "guardian" and e["subtype"] == "armed" for e in after)
    assert any(e["type"] == "fill" and e["subtype"] == "entry" for e in after), "it trades again"
    assert not any(
        e["type"] == "fill" and e["subtype"] == "entry" for e in events if outage.at_ms <= e["ts"] < outage.end_ms - 1
    )


def test_the_dead_man_switch_of_a_daemon_that_is_never_down_does_not_fire():
    made = settings(dead_man={"heartbeat_seconds": 60, "on_miss": "flatten"})
    one = ran([minutes(3 * 60)], made=made, script=always_long)
    assert fired(one.lines, "dead_man_switch") == []
    assert len(one.result.left) == 1


def test_a_stop_at_the_service_fires_while_the_daemon_is_down():
    def once(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + 30 * MINUTE_MS:
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=0.3, target_pct=0.3))

    outage = Outage(START_MS + 32 * MINUTE_MS, 10 * HOUR_MS)
    one = ran([minutes(12 * 60, seed=5)], script=once, outages=(outage,))
    (trip,) = one.result.trade_ledger.trips
    assert trip.exit_kind in ("stop_loss", "take_profit")
    assert outage.at_ms < trip.exit_ms < outage.end_ms
    assert trip.strategy == "s0"


def test_the_cost_of_an_outage_uses_the_prices_at_its_start_and_end():
    """Also for a strategy on bars of a quarter hour, whose last bar is then seven minutes old."""
    outage = Outage(START_MS + 2 * HOUR_MS + 7 * MINUTE_MS, HOUR_MS)
    made = settings(interval="15m")
    one = ran([minutes(4 * 60, vol=0.002)], made=made, script=always_long, outages=(outage,))
    (down,) = one.result.stats.outage_records
    worth = dict(zip(one.result.curve.at_ms, one.result.curve.equity, strict=True))
    assert down.equity_before_usd == pytest.approx(worth[outage.at_ms], abs=1e-6)
    assert down.equity_after_usd == pytest.approx(worth[outage.end_ms], abs=1e-6)
    assert down.open_before == down.open_after == ("BTC long 0.00299",)


def test_a_strategys_state_and_positions_survive_an_outage():
    seen: list[tuple[int, int]] = []

    def counting(view: View, bar: Bar) -> Iterable[Intent]:
        view.state["n"] = view.state.get("n", 0) + 1
        seen.append((bar.at_ms, view.state["n"]))
        held = view.position(bar.market)
        if not held and view.state["n"] == 5:
            yield Open(bar.market, "long", usd=300, bracket=Bracket(stop_pct=20))

    outage = Outage(START_MS + 60 * MINUTE_MS, 30 * MINUTE_MS)
    one = ran([minutes(120)], script=counting, outages=(outage,))
    after = [n for at, n in seen if at > outage.end_ms]
    assert after[0] == 62, (
        "60 bars before, the newest one at its start, then the next: nothing forgotten, and what is history counts for"
        " nothing"
    )
    assert one.test.session.kernel is not None
    (position,) = one.test.session.kernel.account.account_state.positions.values()
    assert position.owner == "s0"


@pytest.mark.parametrize("skip", [True, False])
def test_the_bar_that_is_decided_after_an_outage_has_closed_by_then(skip: bool):
    told: dict[int, int] = {}

    def telling(view: View, bar: Bar) -> Iterable[Intent]:
        told[bar.at_ms] = view.now_ms
        return ()

    outage = Outage(START_MS + 60 * MINUTE_MS, 30 * MINUTE_MS)
    ran([minutes(120)], script=telling, outages=(outage,), skip=skip)
    assert told[outage.end_ms] == outage.end_ms
    assert all(now_ms >= at_ms for at_ms, now_ms in told.items())


class Ringing(Scripted):
    """Records its timers and the times of their delivery."""

    timers: ClassVar[dict[str, str]] = {"hourly": "0 * * * *"}
    rung: ClassVar[list[tuple[int, int]]] = []

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        self.rung.append((timer.at_ms, view.now_ms))
        return ()


@pytest.mark.parametrize("markets", [["BTC"], ["BTC", "ETH"]])
def test_a_timer_missed_in_an_outage_is_delivered_after_it(markets: list[str]):
    """At the next close, which is its next instant, it would not be delivered at all."""
    Ringing.rung = []

    def place(made: Settings) -> list[StrategySpec]:
        placed = placing()(made)
        return [one._replace(strategy=Ringing(always_long, name="s0", markets=markets)) for one in placed[:1]]

    hours = [minutes(8, interval="1h", market=market) for market in markets]
    outage = Outage(START_MS + 110 * MINUTE_MS, HOUR_MS)
    Backtest(settings(interval="1h"), hours, SessionOptions(outages=(outage,)), place=place).run()
    assert Ringing.rung[1] == (START_MS + 2 * HOUR_MS, outage.end_ms - 1)
    assert [at_ms for at_ms, _ in Ringing.rung] == [START_MS + hour * HOUR_MS for hour in range(1, 9)]


def test_outages_skip_and_feed_alike():
    outages = (
        Outage(START_MS + 130 * MINUTE_MS + 12_345, 47 * MINUTE_MS),
        Outage(START_MS + 400 * MINUTE_MS, 20 * MINUTE_MS),
    )
    made = settings(dead_man={"heartbeat_seconds": 120, "on_miss": "flatten"})
    skipped, fed = (ran([minutes(700, seed=8)], made=made, outages=outages, skip=skip) for skip in (True, False))
    assert skipped.lines == fed.lines
    assert len(skipped.result.stats.outage_records) == 2


@pytest.mark.parametrize("at_ms", [START_MS - 1, START_MS + HOUR_MS, START_MS + 10 * HOUR_MS])
def test_an_outage_that_begins_outside_the_backtest_is_refused(at_ms: int):
    with pytest.raises(ConfigError, match="it must begin within the session"):
        ran([minutes(60)], outages=(Outage(at_ms, HOUR_MS),))
    options = SessionOptions(outages=(Outage(at_ms, HOUR_MS),), end_ms=START_MS + 5 * HOUR_MS)
    assert within(options, [minutes(60)]).outages == ()
    inside = SessionOptions(outages=(Outage(START_MS, HOUR_MS),), end_ms=START_MS + 5 * HOUR_MS)
    assert within(inside, [minutes(60)]) == inside


def test_data_that_are_cut_in_an_outage_prove_a_strategy_causal_all_the_same():
    outage = Outage(START_MS + 2 * HOUR_MS, HOUR_MS)
    made = settings(dead_man={"heartbeat_seconds": 300, "on_miss": "flatten"})
    candles = minutes(6 * 60)
    one = ran([candles], made=made, script=always_long, outages=(outage,))

    def make(options: SessionOptions, cut_ms: int) -> Backtest:
        part = candles.slice(None, cut_ms)
        return Backtest(made, [part], within(options, [part]), place=placing(always_long))

    cuts = [START_MS + HOUR_MS, outage.at_ms, outage.at_ms + HOUR_MS // 2, outage.end_ms, outage.end_ms + HOUR_MS]
    proof = prove_causal(make, SessionOptions(outages=(outage,)), one.lines, cuts)
    assert (proof.differs, proof.is_whole) == (None, True)
    assert proof.compared > 10
    late = [
        line.replace('"size":"', '"size":"1') if json.loads(line)["ts"] < outage.end_ms else line for line in one.lines
    ]
    assert prove_causal(make, SessionOptions(outages=(outage,)), late, cuts).differs is not None


def test_data_that_are_cut_in_the_night_of_one_market_prove_a_strategy_causal_all_the_same():
    """The other goes on, so that the coarse bar in which the day ended closes before the cut: with the data of the
    morning after, and without.
    """
    days = minutes(3 * 288, interval="5m", market="ETH", px=2_500.0)
    # until 16:40
    nightly = days.pick([n for n in range(len(days)) if n % 288 < 200])
    candles = [minutes(3 * 288, interval="5m"), nightly]
    heard: list[int] = []

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "ETH":
            heard.append(bar.at_ms)
            yield Close("BTC") if view.position("BTC") else Open("BTC", "long", usd=300, bracket=Bracket(stop_pct=20))

    made = settings(
        strategies=[
            {
                "name": "s0",
                "use": "scripted",
                "markets": ["BTC", "ETH"],
                "interval": "4h",
                "budget_usd": 2_000,
                "max_leverage": 5,
            }
        ]
    )
    one = ran(candles, made=made, script=script)
    assert [at_ms for at_ms in heard if at_ms > START_MS + 64 * HOUR_MS] == [START_MS + 68 * HOUR_MS]

    def make(options: SessionOptions, cut_ms: int) -> Backtest:
        parts = [each.slice(None, cut_ms) for each in candles]
        return Backtest(made, parts, within(options, parts), place=placing(script), is_cut=True)

    proof = prove_causal(make, SessionOptions(), one.lines, [START_MS + hour * HOUR_MS for hour in (18, 22, 45)])
    assert (proof.differs, proof.is_whole) == (None, True)

"""Protections in backtests: an independent recount of the events agrees with every entry and every refusal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from bot.backtest.engine.options import Outage
from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, utc_day_start_ms
from bot.config import Settings
from bot.runtime.journal.round_trips import Trip, trips
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from tests.backtest.builders import START_MS, Ran, busy, minutes, ran

STOPS = {"stop_loss", "trailing_stop", "liquidation"}


def config(own: Mapping[str, Any], of_account: Mapping[str, Any] | None = None, **more: Any) -> Settings:
    strategies = [
        {
            "name": f"s{number}",
            "use": "scripted",
            "markets": [market],
            "interval": "1m",
            "budget_usd": 2_000,
            "max_leverage": 5,
            "protections": own,
        }
        for number, market in enumerate(("BTC", "ETH"))
    ]
    body = {"account": {"base_url": "embedded"}, "dead_man": "off", "strategies": strategies}
    return Settings.model_validate(body | {"protections": of_account or {}} | more)


def two_days(*, seed: int = 3) -> list[Any]:
    return [minutes(2_880, seed=seed), minutes(2_880, seed=seed, market="ETH", px=4_000, decimals=2)]


def events_of(run: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.lines]


def closed(run: Ran) -> list[Trip]:
    return [trip for trip in trips(events_of(run)) if trip.closed_ms is not None]


def entries(run: Ran) -> dict[str, tuple[str, int]]:
    """Trade id of each entry order -> its market and its first fill."""
    filled: dict[str, tuple[str, int]] = {}
    for event in events_of(run):
        if (event["type"], event["subtype"]) == ("fill", "entry"):
            filled.setdefault(event["data"]["tradeId"], (event["coin"], event["ts"]))
    return filled


def tried(view: View, bar: Bar) -> Iterable[Intent]:
    """An entry on each bar without a position, a close now and then: a wait is used to its last bar."""
    held = view.position(bar.market)
    if held is None:
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=0.1, target_pct=0.3))
    elif bar.at_ms // MINUTE_MS % 7 == 0:
        yield Close(bar.market)


def test_after_each_exit_the_next_bars_open_nothing_and_the_bar_after_them_does() -> None:
    run = ran(two_days(), made=config({"cooldown": "4 bars"}), script=tried)
    began = Counter[int]()
    for market in ("BTC", "ETH"):
        of_market = [trip for trip in trips(events_of(run)) if trip.market == market]
        assert len(of_market) > 50
        for before, after in pairwise(of_market):
            assert before.closed_ms is not None
            assert after.opened_ms is not None
            assert after.opened_ms == before.closed_ms // MINUTE_MS * MINUTE_MS + 5 * MINUTE_MS
            began[(before.closed_ms or 0) % MINUTE_MS] += 1
    assert len(began) > 1, "exits at the open and inside of bars"
    assert run.result.refusals["cooldown"] > 200


def test_no_more_entries_of_a_day_than_allowed_and_as_many_as_allowed() -> None:
    run = ran(two_days(), made=config({"max_entries": 5}, {"max_entries": 9}), script=tried)
    of_day = Counter((market, utc_day_start_ms(ts)) for market, ts in entries(run).values())
    of_account = Counter(utc_day_start_ms(ts) for _, ts in entries(run).values())
    assert set(of_account) == {START_MS, START_MS + DAY_MS}
    assert set(of_account.values()) == {9}
    assert max(of_day.values()) == 5


def test_no_more_positions_at_one_time_than_allowed() -> None:
    run = ran(two_days(), made=config({}, {"max_open_positions": 1}), script=tried)
    held: set[str] = set()
    seen = Counter[str]()
    for event in events_of(run):
        if event["type"] == "fill":
            (held.add if Decimal(event["data"]["positionSize"]) else held.discard)(event["coin"])
            assert len(held) <= 1, event
            seen.update(held)
    assert run.result.refusals["max_open_positions"] > 100
    assert seen["BTC"]


def test_stops_within_a_window_pause_all_strategies() -> None:
    guard = {"stops": 3, "within": "1h", "rest": "2h"}
    run = ran(two_days(), made=config({}, {"stop_guard": guard}), script=tried)
    stops = [trip.closed_ms or 0 for trip in closed(run) if trip.exit_reason in STOPS]
    pauses = [
        third // MINUTE_MS * MINUTE_MS
        for number, third in enumerate(stops)
        if sum(third // MINUTE_MS - one // MINUTE_MS < 60 for one in stops[: number + 1]) >= 3
    ]
    assert len(pauses) > 3
    for _, ts in entries(run).values():
        assert not any(pause < ts < pause + 2 * HOUR_MS for pause in pauses)
    assert run.result.refusals["stop_guard"] > 100


@pytest.mark.parametrize("script", [tried, busy])
def test_losses_over_a_window_pause_a_market_and_a_fall_pauses_a_strategy(script: Any) -> None:
    low = {"within": "3h", "rest": "1h", "trades": 2, "below_usd": -0.5}
    fall = {"usd": 1, "within": "6h", "rest": "2h"}
    run = ran(two_days(), made=config({"low_profit_market": low, "max_drawdown": fall}), script=script)
    waits: list[tuple[str, int, int]] = []
    for market in ("BTC", "ETH"):
        trades = [trip for trip in closed(run) if trip.market == market]
        for number, newest in enumerate(trades):
            at_ms = (newest.closed_ms or 0) // MINUTE_MS * MINUTE_MS
            window = [
                one
                for one in trades[: number + 1]
                if at_ms - (one.closed_ms or 0) // MINUTE_MS * MINUTE_MS < 3 * HOUR_MS
            ]
            if len(window) >= 2 and sum(one.net_usd for one in window) < Decimal("-0.5"):
                waits.append((market, at_ms, at_ms + HOUR_MS))
            nets = [
                one.net_usd
                for one in trades[: number + 1]
                if at_ms - (one.closed_ms or 0) // MINUTE_MS * MINUTE_MS < 6 * HOUR_MS
            ]
            sums = [sum(nets[:count], Decimal(0)) for count in range(len(nets) + 1)]
            if max(a - b for n, a in enumerate(sums) for b in sums[n:]) >= 1:
                waits.append((market, at_ms, at_ms + 2 * HOUR_MS))
    assert waits
    resting = {
        event["data"]["tradeId"]
        for event in events_of(run)
        if event["type"] == "order" and event["data"]["kind"] == "limit"
    }
    for trade, (market, ts) in entries(run).items():
        # An entry that rests was decided before.
        if trade not in resting:
            assert not any(there == market and since < ts < until for there, since, until in waits), (market, ts)
    assert run.result.refusals["max_drawdown"]


def test_an_outage_of_the_daemon_forgets_nothing() -> None:
    own = {"cooldown": "30 bars", "max_entries": 6}
    outage = Outage(START_MS + 5 * HOUR_MS, START_MS + 5 * HOUR_MS + 2 * MINUTE_MS)
    run = ran(two_days(), made=config(own), script=tried, outages=(outage,))
    of_day = Counter((market, utc_day_start_ms(ts)) for market, ts in entries(run).values())
    assert max(of_day.values()) <= 6
    for market in ("BTC", "ETH"):
        of_market = [trip for trip in trips(events_of(run)) if trip.market == market]
        for before, after in pairwise(of_market):
            assert (after.opened_ms or 0) >= (before.closed_ms or 0) // MINUTE_MS * MINUTE_MS + 31 * MINUTE_MS


def test_a_run_whose_protections_never_apply_has_the_events_of_one_without_any() -> None:
    wide = {"max_entries": 1_000, "max_open_positions": 2, "stop_guard": {"stops": 1_000, "within": "1d", "rest": "1d"}}
    with_rules = ran(two_days(), made=config(wide, wide))
    assert with_rules.result.refusals.keys() <= {"no_position", "over_budget", "market_in_doubt", "nothing_to_cancel"}
    assert with_rules.digest == ran(two_days(), made=config({})).digest


def leveraged(view: View, bar: Bar) -> Iterable[Intent]:
    """Entries with a leverage that a walk of a day liquidates, and no stop."""
    if view.position(bar.market) is None:
        yield Open(bar.market, "long" if bar.at_ms // MINUTE_MS % 2 else "short", usd=100, leverage=20)


@pytest.mark.parametrize("script", [busy, leveraged])
def test_the_trades_of_a_strategy_add_up_to_its_result(script: Any) -> None:
    """With shared markets, funding, partial exits, reversals and liquidations."""
    strategies = [
        {"name": name, "use": "scripted", "markets": ["BTC", "ETH"], "budget_usd": 4_000, "max_leverage": 50}
        | {"netting": "allow", "protections": {"max_entries": 1_000}}
        for name in ("one", "two")
    ]
    more = {"strategies": strategies, "safety": {"require_protection": False}}
    candles = [minutes(2_880, seed=5, vol=0.004), minutes(2_880, seed=6, market="ETH", px=4_000, decimals=2, vol=0.004)]
    rates = {"BTC": [(START_MS + hour * HOUR_MS, 100_000) for hour in range(1, 48)]}
    balance = Decimal(10_000 if script is busy else 40)
    run = ran(candles, made=config({}, **more), script=script, rates=rates, balance_usd=balance)
    kernel = run.test.session.kernel
    assert kernel is not None
    attribution = kernel.account.attribution
    rows = kernel.journal.state.trade_rows(attribution.epoch)
    totals = Counter[str]()
    for row in rows:
        totals[row.strategy] += row.net or 0
    assert dict(totals) == {name: attribution.rows[name].net for name in ("one", "two")}
    assert len(rows) > (20 if script is busy else 3)
    stopped = [row.is_stop for row in rows if row.closed_ms is not None]
    assert any(stopped) if script is busy else all(stopped), rows
    kinds = {event["type"] for event in events_of(run)}
    assert {"fill", "funding"} <= kinds
    assert ("liquidation" in kinds) == (script is leveraged)

"""Seeded histories of a real daemon, and the same orders given to it again with other guardians."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bot.backtest.backtest import Backtest
from bot.backtest.engine.options import PATHS, Outage, SessionOptions
from bot.logs import quiet_log
from bot.research.what_if.account_replay import Playback
from bot.research.what_if.history import AccountHistory, history_of_session
from bot.runtime.journal import queries
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, MaxHold, Open, TrailingStop, View
from tests.backtest.builders import MINUTE_MS, START_MS, minutes, placing, settings

BARS = 240
ACTIONS = ("flatten", "block_opens", "cancel_orders")
Guardians = tuple[TrailingStop | MaxHold, ...]


@dataclass(frozen=True)
class Given:
    """What the strategies of a history sent: the bars with an order, and the limit prices that they canceled."""

    bars: frozenset[tuple[str, int]]
    canceled: Mapping[tuple[str, int], frozenset[float]]


def script(seed: int, guardians: Guardians, given: Given | None) -> Callable[[View, Bar], Iterable[Intent]]:
    """Orders by chance. With `given`: those of that history alone, whatever the account holds meanwhile."""

    def on_bar(view: View, bar: Bar) -> Iterable[Intent]:
        place = (bar.market, bar.at_ms)
        if given is not None:
            wanted = given.canceled.get(place, frozenset())
            yield from (
                Cancel(oid=order.oid) for order in view.orders(bar.market) if float(order.limit_px or 0) in wanted
            )
            if place not in given.bars:
                return
        chance = Random(f"{seed}:{place}")
        kind, side = chance.random(), chance.choice(["long", "short"])
        stop = Bracket(stop_pct=chance.choice([0.3, 0.6, 2]), target_r=chance.choice([1, 2, 4]))
        if kind < 0.08:
            yield Open(bar.market, side, usd=chance.choice([100, 300]), bracket=stop, guardians=guardians)
        elif kind < 0.14:
            yield Close(bar.market)
        elif kind < 0.2:
            away = 0.999 if side == "long" else 1.001
            yield Open(
                bar.market, side, usd=150, limit_px=float(f"{bar.close * away:.5g}"), bracket=stop, guardians=guardians
            )
        elif kind < 0.23 and given is None and view.orders(bar.market):
            yield Cancel(market=bar.market)

    return on_bar


@dataclass(frozen=True)
class Lived:
    """A run of the daemon: its history and the lines of its events."""

    history: AccountHistory
    events: str


def lived(
    seed: int,
    guardians: Guardians = (),
    given: Given | None = None,
    *,
    outages: tuple[Outage, ...] = (),
    latency_ms: int = 0,
    config: Mapping[str, Any] | None = None,
    alter: str = "",
) -> Lived:
    """A run of the daemon on seeded candles, with other sections of its config. `alter`: SQL on its journal."""
    markets = ("BTC", "ETH")[: 1 + seed % 2]
    prices = {"BTC": 100_000.0, "ETH": 3_000.0}
    candles = [minutes(BARS, seed=seed, market=market, px=prices[market], vol=0.001) for market in markets]
    options = SessionOptions(outages=outages, latency_ms=latency_ms, path=PATHS[seed % len(PATHS)])
    place, lines = placing(script(seed, guardians, given)), StringIO()
    with tempfile.TemporaryDirectory() as folder, quiet_log():
        file = Path(folder) / queries.FILE
        session = Backtest(settings(markets, **(config or {})), candles, options, place=place, journal_path=file)
        session.journal.db.execute("PRAGMA synchronous=OFF")
        session.run(events=lines)
        if alter:
            with sqlite3.connect(file) as db:
                db.execute("PRAGMA foreign_keys=OFF")
                db.execute(alter)
            db.close()
        return Lived(history_of_session("lived", session, Path(folder), lines.getvalue()), lines.getvalue())


def given_of(history: AccountHistory) -> Given:
    """What a history's strategies sent, so that another run can send the same."""
    limits = {r.key: float(r.body.get("limitPx", 0)) for r in history.requests if r.action == "order"}
    bars: set[tuple[str, int]] = set()
    canceled: dict[tuple[str, int], frozenset[float]] = {}
    for request in history.requests:
        # After an outage a daemon decides late on the newest bar.
        place = (request.market, (request.at_ms + 1) // MINUTE_MS * MINUTE_MS)
        if request.action == "cancel":
            canceled[place] = canceled.get(place, frozenset()) | {limits[request.key]}
        elif request.action in ("order", "close"):
            bars.add(place)
    return Given(frozenset(bars), canceled)


# ── Histories by number ─────────────────────────────────────────────────────────────────────────────────────────────


class Case(NamedTuple):
    """A seeded history, the setting that is tried, and what a daemon with that setting has instead."""

    seed: int
    now: Mapping[str, Any]
    then: Mapping[str, Any]
    setting: Mapping[str, str]


def case(seed: int) -> Case:
    """One of the five types that can be set in advance, or two together."""
    chance = Random(f"what-if:{seed}")
    kind = ("trailing_stop", "max_hold", "account_drawdown", "schedule", "dead_man_switch", "two")[seed % 6]
    if kind == "trailing_stop":
        now, then = chance.choice([None, 0.2, 0.5, 1]), chance.choice([0.1, 0.3, 0.7, 2])
        trail = () if now is None else (TrailingStop(trail_pct=now),)
        return _of_positions(seed, trail, (TrailingStop(trail_pct=then),), {"trailing_stop.trailPct": str(then)})
    if kind == "max_hold":
        held, then_s = chance.choice([None, 600, 3_600]), chance.choice([60, 300, 1_800])
        hold = () if held is None else (MaxHold(seconds=held),)
        return _of_positions(seed, hold, (MaxHold(seconds=then_s),), {"max_hold.seconds": str(then_s)})
    if kind == "account_drawdown":
        loss, action = chance.choice(["0.005", "0.02", "0.05"]), chance.choice(ACTIONS)
        body = {"type": kind, "max_loss_pct_from_day_start": Decimal(loss), "action": action}
        return _of_account(seed, body, {f"{kind}.maxLossPctFromDayStart": loss, f"{kind}.action": action})
    if kind == "schedule":
        cron = chance.choice(["30 * * * *", "15 2 * * *"])
        action = chance.choice(ACTIONS)
        return _of_account(
            seed, {"type": kind, "cron": cron, "action": action}, {f"{kind}.cron": cron, f"{kind}.action": action}
        )
    if kind == "dead_man_switch":
        at_ms = START_MS + chance.randrange(40, 120) * MINUTE_MS
        outages = (Outage(at_ms, chance.choice([300, 1_200, 4_000]) * 1_000),)
        now_s, then_s = chance.choice([300, 3_600]), chance.choice([60, 900])
        sections = ({"outages": outages, "config": {"dead_man": {"heartbeat_seconds": s}}} for s in (now_s, then_s))
        return Case(seed, *sections, {f"{kind}.heartbeatSeconds": str(then_s)})
    both = {"trailing_stop.trailR": "1", "trailing_stop.activateAtR": "0.5", "max_hold.seconds": "900"}
    now_two = (TrailingStop(trail_pct=0.5), MaxHold(seconds=3_600))
    return _of_positions(seed, now_two, (TrailingStop(trail_r=1, activate_at_r=0.5), MaxHold(seconds=900)), both)


def _of_positions(seed: int, now: Guardians, then: Guardians, setting: Mapping[str, str]) -> Case:
    return Case(seed, {"guardians": now}, {"guardians": then}, setting)


def _of_account(seed: int, body: Mapping[str, Any], setting: Mapping[str, str]) -> Case:
    return Case(seed, {}, {"config": {"guardians": [body]}}, setting)


class Compared(NamedTuple):
    """The lines of events: of a play of the history as it was and of its record, of the setting and of the real run."""

    played: str
    recorded: str
    what_if: str
    real: str

    @property
    def is_equal(self) -> bool:
        return self.played == self.recorded and self.what_if == self.real


def events_of(history: AccountHistory, setting: Mapping[str, str]) -> str:
    """The lines of the events of a play."""
    lines: list[str] = []
    Playback(history, setting, lines.append).run()
    return "".join(lines)


def compared(case: Case) -> Compared:
    """A history, its what-if, and a real run of the daemon that gives the same orders with that setting."""
    record = lived(case.seed, **case.now)
    real = lived(case.seed, given=given_of(record.history), **case.then)
    history = record.history
    return Compared(events_of(history, {}), record.events, events_of(history, case.setting), real.events)

"""A world: one seed, one stretch of candles with its faults, and the daemon that trades under them.

Afterwards its venue and its journal are judged.
"""

from __future__ import annotations

import json
import time as real
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final

from bot.backtest.data.candles import Candles
from bot.backtest.data.funding_rates import Payment
from bot.backtest.data.resampling import drivers
from bot.backtest.engine.local_port import LocalPort, drive
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.timeline import Timeline, series_of, timeline_of
from bot.clock import MINUTE_MS, iso
from bot.config import Settings
from bot.drill.daemon import DrillDaemon, Setup, rows_of
from bot.drill.drill_port import DrillPort, Killed
from bot.drill.faults import DrillFault, Point, Span, faults_of
from bot.drill.judgment import (
    DEAD_MAN,
    OURS,
    Bare,
    Event,
    Finding,
    bare_spans,
    belief_findings,
    order_findings,
    unguarded_entries,
)
from bot.drill.market_faults import changed
from bot.drill.outcome import WorldOutcome, fires_of
from bot.drill.simulated_clock import SimulatedTime
from bot.errors import ConfigError
from bot.model.events import FillEvent
from bot.runtime.kernel.assembly import place_strategies
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.risk.order_builder import Grid
from bot.runtime.strategy_host.host import StrategySpec
from bot.service.bodies import event_bodies
from bot.service.operations.executor import Context
from bot.venue.accounting.ledger import account_value
from bot.venue.model.commands import SetRules
from bot.venue.model.numbers import E8
from bot.venue.model.state import Rules
from bot.wire import INTERVAL_MS

# time without faults at the end of a world, in which everything must come right
CALM_MS: Final = 15 * MINUTE_MS
# The bars of a world, in the strategies' shortest interval.
BARS: Final = 240
# before the warm-up
SPARE_BARS: Final = 10
# a death that waits longer for its point comes at once
POINT_MS: Final = 2 * MINUTE_MS
# time without a stop, besides that in which the daemon could do nothing
BARE_MAX_MS: Final = MINUTE_MS
# faults in which the daemon can do nothing, or little
TROUBLES: Final = ("outage", "lossy", "death")
# a process manager needs at least that long
RESTED_MS: Final = 1_000

Rates = Mapping[str, Sequence[Payment]]


@dataclass(frozen=True)
class DrillSetup:
    """What all worlds of a drill have in common: config, candles, options.

    `place` makes the strategies, again for each life of the daemon.
    """

    settings: Settings
    candles: Sequence[Candles] = field(repr=False)
    options: SessionOptions
    rates: Rates = field(default_factory=dict, repr=False)
    bars: int = BARS
    place: Callable[[Settings], list[StrategySpec]] = place_strategies

    @cached_property
    def specs(self) -> list[StrategySpec]:
        return self.place(self.settings)

    @cached_property
    def driving(self) -> list[Candles]:
        """The finest candles of each market that a strategy trades."""
        markets = {series.market for series in series_of(self.specs)}
        return [driver.slice(None, self.options.end_ms) for driver in drivers(self.candles) if driver.market in markets]

    @cached_property
    def warm_ms(self) -> int:
        """The history that the strategies need before a world."""
        return max((spec.warmup_bars + SPARE_BARS) * INTERVAL_MS[spec.interval] for spec in self.specs)

    @cached_property
    def bar_ms(self) -> int:
        return min(INTERVAL_MS[spec.interval] for spec in self.specs)

    @cached_property
    def length_ms(self) -> int:
        """Of a world: the bars asked for, and a calm of at least CALM_MS in it."""
        return max(self.bars * self.bar_ms, 3 * CALM_MS // self.bar_ms * self.bar_ms)

    def starts(self) -> tuple[int, int]:
        """The first and the last instant at which a world may begin.

        ConfigError if the candles are too short for one.
        """
        markets = {driver.market for driver in self.driving}
        for series in series_of(self.specs):
            if series.market not in markets:
                raise ConfigError(f"there are no candles of {series.market}, which a strategy trades")
        first = max(driver.at_ms[0] for driver in self.driving) + self.warm_ms
        first = -(-max(first, self.options.start_ms or 0) // self.bar_ms) * self.bar_ms
        last = (min(driver.end_ms for driver in self.driving) - self.length_ms) // self.bar_ms * self.bar_ms
        if last < first:
            raise ConfigError(
                f"the candles are too short: a world takes {self.length_ms // MINUTE_MS:,} min after"
                f" {self.warm_ms // MINUTE_MS:,} min of warm-up; give more of them, or ask for fewer --bars"
            )
        return first, last


class World:
    """`folder` takes the journal. `is_told`: record what happens, step by step."""

    def __init__(self, ground: DrillSetup, seed: int, folder: Path, *, is_told: bool = False) -> None:
        self.seed = seed
        self.ground = ground
        self.chance = Random(f"{seed}:drill")
        first, last = ground.starts()
        self.start_ms = first + self.chance.randrange((last - first) // ground.bar_ms + 1) * ground.bar_ms
        self.end_ms = self.start_ms + ground.length_ms
        self.calm_ms = self.end_ms - CALM_MS
        dead_man = ground.settings.dead_man
        span = Span(
            self.start_ms + 2 * ground.bar_ms,
            self.calm_ms,
            ground.driving[0].step_ms,
            None if dead_man is None else dead_man.heartbeat_seconds * 1000,
        )
        self.faults = faults_of(self.chance, span)
        self.steps: list[tuple[int, str]] = []
        self.journal = folder / f"{seed}.db"
        self.candles = [
            changed(driver.slice(self.start_ms - ground.warm_ms, self.end_ms), self.faults, Random(f"{seed}:prices"))
            for driver in ground.driving
        ]
        timeline, exchange = self._exchange()
        note = (lambda at_ms, text: self.steps.append((at_ms, text))) if is_told else None
        self.time = SimulatedTime(exchange, end_ms=timeline.end_ms, note=note)
        self.port = DrillPort(self.time, timeline.series_readers, self.faults, Random(f"{seed}:network"))
        self.port.at_point = self._at_point
        self.lives: list[DrillDaemon] = []
        # spans from the end of a life to the start of the next
        self.deaths: list[tuple[int, int]] = []
        # the death of the daemon that waits for its point in a pass
        self._death: DrillFault | None = None

    def _exchange(self) -> tuple[Timeline, SimulatedExchange]:
        ground = self.ground
        options = replace(
            ground.options, start_ms=self.start_ms, end_ms=self.end_ms, outages=(), settlements={}, latency_ms=0
        )
        warmups: dict[BarSeries, int] = {}
        for spec in ground.specs:
            for series in spec.series:
                warmups[series] = max(warmups.get(series, 0), spec.warmup_bars)
        timeline = timeline_of(self.candles, series_of(ground.specs), options, warmups, is_cut=True)
        exchange = SimulatedExchange(timeline.readers, options, start_ms=timeline.start_ms, rates=ground.rates)
        # As in the service, an order fills when it arrives: here time passes between a decision and its order.
        exchange.run(SetRules(Rules(fill_at="now", paths=options.path)))
        return timeline, exchange

    # -- the story

    def run(self) -> WorldOutcome:
        """Live through the world, and judge it."""
        began = real.perf_counter()
        for fault in self.faults:
            if fault.kind == "death":
                self.time.at(fault.at_ms, lambda fault=fault: self._dies(fault))  # type: ignore[misc]
                self.time.at(fault.at_ms + POINT_MS, lambda fault=fault: self._dies_now(fault))  # type: ignore[misc]
            elif fault.kind == "no_stop":
                self.time.at(fault.at_ms, self._cancel_stops)
            self.time.at(fault.at_ms, lambda fault=fault: self.time.say(f"fault: {fault}"))  # type: ignore[misc]
        error = None
        try:
            self._live()
        # A defect of the daemon is a finding of this world, and the others go on.
        except Exception as failure:  # noqa: BLE001
            error = Finding("error", f"the daemon ended: {type(failure).__name__}: {failure}")
        return self._judged(error, real.perf_counter() - began)

    def _live(self) -> None:
        grids = {
            coin: Grid(spec.px_decimals, spec.sig_figs)
            for coin, market in self.time.exchange.state.markets.items()
            if (spec := market.spec).px_decimals is not None and spec.tick is None
        }
        setup = Setup(self.ground.settings, self.ground.place, self.journal, grids)
        while self.time.now_ms() < self.time.end_ms - 1:
            before = self.lives[-1].heartbeats if self.lives else None
            life = DrillDaemon(
                setup,
                self.port,
                self.chance,
                fence=len(self.lives) + 1,
                boot_beats=before.heart.boot_beats if before else 0,
            )
            self.lives.append(life)
            self.time.say(f"daemon: life {len(self.lives)} starts")
            try:
                life.live(self.time.end_ms - 1)
            except Killed:
                died_ms = self.time.now_ms()
                self.time.say("daemon: dies")
                life.stop()
                death, self._death = self._death, None
                back_ms = died_ms + (RESTED_MS if death is None else death.for_ms)
                self.time.move_to(min(back_ms, max(self.calm_ms, died_ms + RESTED_MS)))
                self.deaths.append((died_ms, self.time.now_ms()))

    def _dies(self, fault: DrillFault) -> None:
        """Note that a death is due: the daemon dies at that point of its pass."""
        if self._is_alive():
            self._death = fault

    def _dies_now(self, fault: DrillFault) -> None:
        if self._death is fault and self._is_alive():
            raise Killed

    def _is_alive(self) -> bool:
        beats = None if not self.lives else self.lives[-1]
        return beats is not None and not beats.is_stopped

    def _at_point(self, point: Point) -> None:
        if self._death is not None and self._death.point == point:
            raise Killed

    def _cancel_stops(self) -> None:
        """Somebody cancels every stop of the account."""
        exchange = self.time.exchange
        for body in json.loads(exchange.operations.open_orders(exchange.principal, None).body)["orders"]:
            if body["kind"] == "stop_loss":
                self.time.say(f"somebody cancels the stop {body['oid']} of {body['coin']}")
                exchange.operations.cancel(exchange.principal, body["oid"], Context("req_somebody"))

    # -- the judgment

    def _judged(self, error: Finding | None, took_s: float) -> WorldOutcome:
        time, exchange, life = self.time, self.time.exchange, self.lives[-1]
        # without faults
        port = LocalPort(exchange, ())
        trades = self._trades(port)
        findings = [] if error is None else [error]
        if life.kernel is not None and error is None:
            account = json.loads(exchange.operations.snapshot(exchange.principal, Context("req_judge")).body)
            findings += belief_findings(life.kernel.account.account_state, account)
        for live in self.lives:
            findings += [
                Finding("strategy", f"{name} raised and was stopped: {why}") for name, why in live.quarantined.items()
            ]
        life.stop()
        rows = rows_of(self.journal) if self.journal.exists() else []
        findings += order_findings(rows, trades)
        changed_keys = [key for key, bodies in self.port.bodies.items() if len(bodies) > 1]
        findings += [Finding("doubled", f"the key {key} was sent with two orders") for key in changed_keys]
        spans: list[Bare] = []
        events = [event_bodies.event(event) for event in exchange.event_buffer.events]
        keys = {row["id"] for row in rows}
        if self.ground.settings.safety.require_protection:
            spans = bare_spans(events, keys, end_ms=self.end_ms, sleepers=time.sleepers)
            findings += self._unprotected(spans)
        if self.ground.settings.dead_man is not None:
            findings += self._unguarded(events, keys)
        begin = time.begin_usd_e8
        return WorldOutcome(
            seed=self.seed,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            faults=self.faults,
            findings=tuple(dict.fromkeys(findings)),
            orders=sum(trade["source"] == OURS for trade in trades),
            fills=sum(isinstance(event, FillEvent) for event in exchange.event_buffer.events),
            deaths=len(self.deaths),
            spoiled=dict(self.port.met.items()),
            bare_ms=sum(span.to_ms - span.from_ms for span in spans),
            longest_bare_ms=max((span.to_ms - span.from_ms for span in spans), default=0),
            worst_usd=(time.lowest_usd_e8 - begin) / E8,
            end_usd=(account_value(exchange.state, exchange.account) - begin) / E8,
            fires=fires_of(exchange.event_buffer.events, self.candles, self.faults, end_ms=self.end_ms),
            took_s=took_s,
            steps=tuple(f"{iso(at_ms)} {text}" for at_ms, text in self.steps),
        )

    def _unguarded(self, events: Sequence[Event], keys: Set[str]) -> list[Finding]:
        """Entries that filled without a dead-man switch, and a world that ends without one."""
        findings = [
            Finding("unguarded", f"{event['coin']} was opened at {iso(event['ts'])} while no dead-man switch stood")
            for event in unguarded_entries(events, keys, late=self.port.late_ids)
        ]
        guardians = self.time.exchange.account.guardians.values()
        if not any(guardian.spec.type == DEAD_MAN for guardian in guardians):
            findings.append(Finding("unguarded", "no dead-man switch stands at the end"))
        return findings

    def _unprotected(self, spans: Sequence[Bare]) -> list[Finding]:
        """Positions that had no stop for longer than BARE_MAX_MS while the daemon could have armed one."""
        troubled = [(fault.at_ms, fault.end_ms) for fault in self.faults if fault.kind in TROUBLES] + self.deaths
        findings = []
        for span in spans:
            excused = covered_ms(span.from_ms, span.to_ms, troubled)
            if span.to_ms - span.from_ms - excused > BARE_MAX_MS:
                seconds = (span.to_ms - span.from_ms) / 1000
                findings.append(
                    Finding("unprotected", f"{span.coin} had no stop for {seconds:,.1f} s from {iso(span.from_ms)} on")
                )
        return findings

    def _trades(self, port: LocalPort) -> list[dict[str, Any]]:
        """Every trade of the account, as the interface shows it."""
        trades: list[dict[str, Any]] = []
        before: int | None = None
        while True:
            page = drive(port.trades(limit=200, before=before))
            trades += [trade.model_dump(by_alias=True, mode="json") for trade in page.trades]
            before = page.next_before
            if before is None:
                return trades


def covered_ms(from_ms: int, to_ms: int, spans: Sequence[tuple[int, int]]) -> int:
    """How much of a stretch the spans cover. Spans may overlap."""
    total, at = 0, from_ms
    for begin, end in sorted(spans):
        begin, end = max(begin, at), min(end, to_ms)
        if end > begin:
            total += end - begin
            at = end
    return total

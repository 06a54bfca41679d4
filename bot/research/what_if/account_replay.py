"""Gives the requests of a history to the venue under one setting. The venue's own rules decide everything that follows.

No strategy runs: later requests stay as they were given, and what the venue refuses or does not fill is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bot.backtest.engine.local_port import LocalPort, drive
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.timeline import timeline_of
from bot.backtest.results.equity import curve_of
from bot.backtest.results.statistics import daily_returns
from bot.backtest.results.trade_ledger import RoundTrip, TradeLedger
from bot.errors import ApiError, BotError, ConfigError
from bot.logs import quiet_log
from bot.model.events import OrderChanged
from bot.research.space import Params
from bot.research.trials import Task, TrialOutcome
from bot.research.what_if.history import DEAD_MAN, AccountHistory
from bot.research.what_if.recorded_requests import GivenRequest
from bot.research.what_if.setting import kinds_of, requests_under, with_fields
from bot.runtime.liveness.heartbeat_rule import beat_timing
from bot.runtime.passes.bar_feed import BarSeries
from bot.venue.accounting import ledger
from bot.venue.model.numbers import E8
from bot.venue.model.state import guardian_id, oid_text
from bot.wire import CloseRequest, GuardianRequest, OrderRequest

# events in memory before they are added to the ledger
EVENTS_HELD: Final = 2_000
NS_PER_MS: Final = 1_000_000


class PlayedTrade(NamedTuple):
    """A round trip; `exit_ms` is 0 and `exit_px` the last price while it is open. Amounts are scaled 1e8."""

    market: str
    strategy: str
    side: str
    entry_ms: int
    exit_ms: int
    exit_kind: str
    exit_px: int
    pnl: int


@dataclass(frozen=True, slots=True)
class Played:
    """A history under one setting. `not_placed`: the requests that the venue refused or did not fill, and why."""

    trades: Sequence[PlayedTrade]
    not_placed: Sequence[tuple[GivenRequest, str]]
    fills: int
    value: int
    cash: int
    digest: str
    returns: Sequence[float] = field(repr=False)


def evaluate_setting(history: AccountHistory, task: Task) -> TrialOutcome:
    """Play the history under the setting of a task, in any process."""
    try:
        played = play(history, task.params)
    except ConfigError as error:
        return TrialOutcome(task.number, "refused", message=str(error))
    except BotError as error:
        return TrialOutcome(task.number, "failed", message=str(error))
    return TrialOutcome(task.number, "complete", {"played": played})


def play(history: AccountHistory, cell: Params) -> Played:
    """The history under a setting; under an empty one it is the history as it was."""
    with quiet_log():
        return Playback(history, cell).run()


class Playback:
    """One play of a history. `write` takes the lines of its events."""

    def __init__(self, history: AccountHistory, cell: Params, write: Callable[[str], object] | None = None) -> None:
        self._history, options = history, history.options
        series = [BarSeries(candles.market, candles.interval) for candles in history.candles]
        self._timeline = timeline_of(history.candles, series, options)
        self._readers, start_ms = self._timeline.readers, self._timeline.start_ms
        self._exchange = SimulatedExchange(self._readers, options, start_ms=start_ms, rates=history.rates)
        self._port = LocalPort(self._exchange, ())
        self._may_skip = len({reader.step_ms for reader in self._readers}) == 1
        self._requests, self._kinds = requests_under(history, cell), kinds_of(cell)
        self._by_key = {request.key: request for request in self._requests if request.action in ("order", "close")}
        self._start_cash = int(options.balance_usd * E8)
        self._ledger = TradeLedger(
            self._start_cash, lambda key: self._by_key[key].strategy if key in self._by_key else None, write
        )
        # recorded id of a guardian -> its id here
        self._guardians: dict[str, str] = {}
        # by key, or by action and key
        self._not_placed: dict[str, tuple[GivenRequest, str]] = {}

    def run(self) -> Played:
        """Play every request at its instant, then the prices to their end."""
        end_ms, since_ms = self._timeline.end_ms, self._history.since_ms
        lives = list(self._history.lives)
        if DEAD_MAN in self._kinds:
            lives += [(since_ms, to_ms) for from_ms, to_ms in lives if from_ms < since_ms < to_ms]
        lives.sort()
        for request in [*self._requests, GivenRequest(end_ms, "disarm", "")]:
            while lives and lives[0][0] <= request.at_ms:
                self._live(*lives.pop(0))
            if request.at_ms >= end_ms:
                break
            self._advance(request.at_ms)
            # The dead-man switch is armed where a life begins.
            if request.armed != DEAD_MAN:
                self._answered(request)
            if len(self._exchange.event_buffer.events) > EVENTS_HELD:
                self._take()
        self._advance(end_ms - 1)
        return self._result()

    def _advance(self, to_ms: int) -> None:
        """Move the prices to an instant. Bars that touch nothing are skipped, where all bars have one length."""
        exchange = self._exchange
        while self._may_skip and (now_ms := exchange.clock.now_ms()) < to_ms:
            calm_ms = exchange.calm_until(to_ms, exchange.bands())
            if calm_ms > now_ms:
                exchange.skip_to(calm_ms)
            closes = [close for reader in self._readers if (close := reader.next_close_ms()) is not None]
            exchange.advance(max(exchange.clock.now_ms(), min([to_ms, *(close - 1 for close in closes)])))
        exchange.advance(max(to_ms, exchange.clock.now_ms()))

    def _live(self, from_ms: int, to_ms: int) -> None:
        """A daemon starts, or its setting changes: it arms its dead-man switch unless that is armed, and sends
        heartbeats until it ends.
        """
        body = self._history.dead_man
        if DEAD_MAN in self._kinds and from_ms >= self._history.since_ms:
            fields = self._kinds[DEAD_MAN]
            body = None if fields is None else with_fields(GuardianRequest, DEAD_MAN, body or {}, fields)
        wanted = None if body is None else GuardianRequest.from_wire(body).filled()
        self._advance(from_ms)
        account, stands = self._exchange.account, False
        for guardian in [g for g in account.guardians.values() if g.spec.type == DEAD_MAN and g.status == "armed"]:
            has = guardian.spec.heartbeat_seconds, guardian.spec.on_miss
            stands = wanted is not None and has == (wanted.heartbeat_seconds, wanted.on_miss)
            if not stands:
                drive(self._port.disarm(guardian_id(account, guardian.number)))
        if wanted is None or wanted.heartbeat_seconds is None:
            return
        if not stands:
            # Under the recorded id, so that what disarms it finds it.
            key = next((request.key for request in self._requests if request.armed == DEAD_MAN), DEAD_MAN)
            self._answered(GivenRequest(from_ms, "arm", key, body=body or {}))
        period_ms = beat_timing(wanted.heartbeat_seconds).period_ns // NS_PER_MS
        self._exchange.beat((to_ms - from_ms) // period_ms * period_ms)

    def _answered(self, request: GivenRequest) -> None:
        port, key = self._port, request.key
        try:
            if request.action == "order":
                drive(port.place(OrderRequest.from_wire(request.body), key=key))
            elif request.action == "close":
                drive(port.close(request.market, CloseRequest.from_wire(request.body), key=key))
            elif request.action == "arm":
                armed = drive(port.arm(GuardianRequest.from_wire(request.body), key=f"{key}:{request.at_ms}"))
                self._guardians[key] = armed.id
            elif request.action == "disarm" and key in self._guardians:
                drive(port.disarm(self._guardians[key]))
            elif request.action == "cancel":
                self._cancel(request)
        except ApiError as error:
            self._lack(request, error.code)

    def _cancel(self, request: GivenRequest) -> None:
        """Cancel the recorded order if it still waits; a canceled stop or target is that of the order's bracket."""
        account = self._exchange.account
        trade = account.trade_by_key.get(request.key, "")
        for order in list(account.orders.values()):
            if order.trade == trade and order.kind == request.kind:
                drive(self._port.cancel(oid_text(account, order.number)))

    def _lack(self, request: GivenRequest, code: str) -> None:
        # A guardian that has fired or gone with its position need not be disarmed.
        if request.action != "disarm":
            self._not_placed.setdefault(f"{request.action}:{request.key}", (request, code))

    def _take(self) -> None:
        buffer = self._exchange.event_buffer
        for event in buffer.events:
            if isinstance(event, OrderChanged) and event.subtype == "canceled" and event.reason != "user":
                request = self._by_key.get(event.idempotency_key or "")
                if request is not None:
                    self._lack(request, event.reason or "canceled")
        self._ledger.take(buffer.events)
        buffer.first += len(buffer.events)
        buffer.events.clear()
        self._exchange.forget(buffer.first)

    def _result(self) -> Played:
        self._take()
        exchange, timeline = self._exchange, self._timeline
        exchange.show_marks()
        curve = curve_of(self._readers, self._ledger.steps, start_cash=self._start_cash, end_ms=timeline.end_ms)
        start_usd = self._start_cash / E8
        return Played(
            tuple(map(self._trade, self._ledger.trips)),
            tuple(self._not_placed.values()),
            self._ledger.fills,
            ledger.account_value(exchange.state, exchange.account),
            self._ledger.cash,
            self._ledger.digest,
            daily_returns(curve.at_ms, curve.equity, start_ms=timeline.start_ms, start_usd=start_usd),
        )

    def _trade(self, trip: RoundTrip) -> PlayedTrade:
        px, pnl = trip.exit_notional * E8 // trip.sold if trip.sold else 0, trip.pnl
        if not trip.exit_ms:
            px = self._exchange.state.markets[trip.coin].mark
            pnl += self._exchange.account.positions[trip.coin].pnl(px)
        return PlayedTrade(trip.coin, trip.strategy, trip.side, trip.entry_ms, trip.exit_ms, trip.exit_kind, px, pnl)

"""A backtest session: the daemon's own kernel on candles, under a simulated clock. The kernel's code is the same as in
a live run.

`BacktestSession` decides which path takes the next bars, when the daemon is down, and when it starts again. It contains
no trading rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bot.backtest.data.candles import Candles
from bot.backtest.data.funding_rates import Payment
from bot.backtest.engine.fast_path import SingleMarketPath
from bot.backtest.engine.latency import OrderLatency
from bot.backtest.engine.local_port import LocalPort, OwnEvents, drive
from bot.backtest.engine.memory_journal import MemoryJournal
from bot.backtest.engine.options import Outage, SessionOptions
from bot.backtest.engine.progress import OutageRecord, Progress, RunMonitor, RunStats, rare_garbage_collection
from bot.backtest.engine.recorded_answers import RecordedAnswers
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.slot_path import SlotPath
from bot.backtest.engine.stepper import ExchangeControl, Stepper
from bot.backtest.engine.timeline import Timeline, series_of, timeline_of
from bot.config import Settings
from bot.errors import ConfigError
from bot.money import format_decimal
from bot.runtime.journal.journal import Journal
from bot.runtime.kernel.assembly import kernel_settings, place_strategies
from bot.runtime.kernel.kernel import Hooks, Kernel
from bot.runtime.liveness import heartbeat_rule
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.passes.ports import VenuePort
from bot.runtime.risk.order_builder import Grid
from bot.runtime.strategy_host.host import StrategySpec, run_inline
from bot.runtime.strategy_host.instance import LogSink, StrategyInstance
from bot.runtime.strategy_host.timers import Spec


@dataclass(slots=True)
class Paths:
    """Which of the faster paths a session may take. All of them give the same events."""

    # one market, and strategies only on its own candles
    single_market: bool
    # all strategies use longer bars than the candles, so that most closes concern no strategy
    leap: bool

    @classmethod
    def of(cls, timeline: Timeline) -> Paths:
        readers, series_readers = timeline.readers, timeline.series_readers
        are_base = all(series_reader.is_base for series_reader in series_readers)
        step_ms = readers[0].step_ms
        return cls(
            single_market=len(readers) == 1 and len(series_readers) == 1 and are_base,
            leap=not any(series_reader.is_base for series_reader in series_readers)
            and all(reader.step_ms == step_ms and not reader.ts[0] % step_ms for reader in readers),
        )


class BacktestSession:
    """One backtest run.

    `place` makes the strategies, again for each start of the daemon. `wait` runs a coroutine to its end.
    """

    def __init__(
        self,
        settings: Settings,
        timeline: Timeline,
        options: SessionOptions,
        *,
        exchange: ExchangeControl,
        port: VenuePort,
        journal: Journal,
        place: Callable[[Settings], list[StrategySpec]] = place_strategies,
        wait: Callable[..., Any] = drive,
    ) -> None:
        self.settings = settings
        self.timeline = timeline
        self.options = options
        self.exchange = exchange
        self.port = port
        self.journal = journal
        self.stats = RunStats(bars_in_all=sum(reader.end - reader.first for reader in timeline.readers))
        self.stepper = Stepper(
            exchange, port.clock, self.stats, latency_ms=options.latency_ms, wait=wait, started_ms=timeline.start_ms
        )
        self.asker = RecordedAnswers(options.agents)
        self._log_sink: LogSink | None = None
        # an entry is one request, because nothing can happen between its plan and its confirm
        self.is_atomic = False
        # The markets whose grid of prices does not follow from their listing.
        self.grids: Mapping[str, Grid] = {}
        # strategy, name of its timer, when it is due
        self.timers: Sequence[tuple[str, str, Spec]] = ()
        # strategies as placed before the run; each start of the daemon places its own
        self.specs: Sequence[StrategySpec] = ()
        self.paths = Paths.of(timeline)
        self._place = place
        self._wait = wait
        self._outages = sorted(options.outages, key=lambda outage: outage.at_ms)
        self._monitor = RunMonitor(self.stats)
        # True: the progress callback asked to stop during a warm-up
        self._is_stopped = False

    @property
    def kernel(self) -> Kernel | None:
        """The running daemon's kernel; None while the daemon is down."""
        return self.stepper.kernel if self.stepper.is_up else None

    def keep_in_process(self, specs: Sequence[StrategySpec], grids: Mapping[str, Grid]) -> None:
        """The exchange is in this process: an entry is one request, unless orders have a latency.

        `specs` are the strategies as placed before the run.
        """
        self.specs, self.grids, self.is_atomic = specs, grids, not self.options.latency_ms
        self.timers = [(spec.strategy.name, *timer) for spec in specs for timer in spec.strategy.timers.items()]

    def run(self, progress: Progress | None = None, log_sink: LogSink | None = None) -> RunStats:
        """Run from the first bar to the last, or until `progress` returns False.

        `log_sink` takes what the strategies log.
        """
        self._log_sink = log_sink
        self._monitor = monitor = RunMonitor(self.stats, progress)
        with rare_garbage_collection(self.stats.bars_in_all), monitor.polling.watched():
            self._start_daemon()
            self._run_to_end()
            self._stop_daemon()
        return self.stats

    def _run_to_end(self) -> None:
        timeline, stepper = self.timeline, self.stepper
        end_ms = timeline.end_ms
        common = (timeline, self.options, self.exchange, stepper, self._monitor)
        single = SingleMarketPath(*common)
        by_slot = SlotPath(*common, may_leap=self.paths.leap)
        for outage in [*self._outages, None]:
            until_ms = end_ms if outage is None else min(outage.at_ms, end_ms)
            path = single if self.paths.single_market else by_slot
            if self._is_stopped or not path.run(until_ms):
                self.stats.is_partial = True
                return
            if outage is not None and outage.at_ms < end_ms:
                self._run_outage(outage)
        # A market may be settled after the last close.
        if stepper.now_ms() < end_ms - 1:
            self.exchange.advance(end_ms - 1)
            stepper.catch_up(at_once=True)

    def _run_outage(self, outage: Outage) -> None:
        """The daemon dies at the start of the outage, as in a power cut.

        A new one starts at its end on the same journal. The service goes on alone.
        """
        exchange, stepper, stats, timeline = self.exchange, self.stepper, self.stats, self.timeline
        exchange.advance(max(outage.at_ms - 1, stepper.now_ms()))
        stepper.catch_up(at_once=True)
        kernel = stepper.kernel
        record = OutageRecord(
            outage, exchange.count + 1, equity_before_usd=self._equity_usd(), open_before=_open_positions(kernel)
        )
        self._keep_quarantined(kernel)
        stepper.stop()
        end_ms = min(outage.end_ms, timeline.end_ms)
        before = timeline.passed_bars()
        exchange.advance(max(end_ms - 1, stepper.now_ms()))
        stats.bars = timeline.passed_bars()
        stats.touched += stats.bars - before
        record.last_event = exchange.count
        # For the new daemon the bars of the outage are history.
        for series_reader in timeline.series_readers:
            series_reader.pass_over(end_ms)
        self._start_daemon()
        record.equity_after_usd, record.open_after = self._equity_usd(), _open_positions(stepper.kernel)
        stats.outage_records.append(record)

    def _equity_usd(self) -> float:
        """The account's value at the newest prices.

        The kernel uses the closes of the strategies' bars, which may be a day old.
        """
        return float(self._wait(self.port.account()).account_value_usd)

    def _start_daemon(self) -> None:
        """A daemon starts: it recovers, as every run begins, and decides on the newest bar that has no decision yet."""
        settings, stepper = self.settings, self.stepper
        memory = self.journal if isinstance(self.journal, MemoryJournal) else None
        source = None
        if memory is not None and isinstance(self.port, LocalPort):
            source = OwnEvents(self.port.exchange, memory.events)
        hooks = Hooks(
            run=self._run_warm_up,
            asker=self.asker,
            log_sink=self._log_sink,
            is_atomic=self.is_atomic,
            loses_nothing=self.is_atomic and memory is not None,
            grids=self.grids,
            source=source,
        )
        kernel = Kernel(
            port=self.port,
            journal=self.journal,
            specs=self._place(settings),
            pacer=stepper.pacer,
            settings=kernel_settings(settings),
            hooks=hooks,
        )
        kernel.approvals.leave_to(self.options.approve)
        if memory is not None and source is not None:
            memory.state.follow(kernel.account.attribution)
        stepper.start(kernel)
        self._wait(kernel.recover())
        kernel.strategy_host.call_by(run_inline)
        stepper.has_recovered()
        if self._is_stopped:
            return
        self._send_heartbeats()
        if kernel.timers.next_ms is not None and self.timeline.readers[0].has_holes:
            # Only the slot path fires timers where candles are missing.
            self.paths.single_market = False
        for closed in kernel.bars.take_all():
            kernel.budget.begin()
            self._wait(kernel.step(closed))
            stepper.settle()
        # The clock stands in the millisecond before the bar's end, as at every bar.
        at_ms = stepper.now_ms() + 1
        # The timer was due during an outage.
        if kernel.timers.next_ms is not None and kernel.timers.next_ms <= at_ms:
            stepper.fire_timers(at_ms)

    async def _run_warm_up(self, instance: StrategyInstance, call: Callable[[], Any]) -> Any:
        """As run_inline.

        During warm-up bars it also reports the progress; after a stop the rest of the warm-up is skipped.
        """
        if self.stepper.kernel.state.warming is not None:
            if not self._is_stopped and self._monitor.polling.is_late:
                self._is_stopped = not self._monitor.goes_on()
            if self._is_stopped:
                return None
        return await run_inline(instance, call)

    def _stop_daemon(self) -> None:
        """The daemon stops in order at the end of the session. Its kernel can be read afterwards."""
        stepper = self.stepper
        kernel = stepper.kernel
        self._keep_quarantined(kernel)
        stepper.catch_up(at_once=True)
        stepper.begin_pass()
        self._wait(kernel.reconciliation.reconcile())
        stepper.has_read_all()
        self._wait(kernel.stop())

    def _keep_quarantined(self, kernel: Kernel) -> None:
        self.stats.quarantined |= {
            instance.name: instance.quarantined for instance in kernel.strategy_host.instances if instance.quarantined
        }

    def _send_heartbeats(self) -> None:
        """Send one heartbeat for all heartbeats until the next outage.

        The dead-man switch expires after the last of these.
        """
        dead_man = self.settings.dead_man
        if dead_man is None:
            return
        now_ms = self.stepper.now_ms()
        next_down = next((outage.at_ms for outage in self._outages if outage.at_ms > now_ms), self.timeline.end_ms)
        period_ms = heartbeat_rule.beat_timing(dead_man.heartbeat_seconds).period_ns // 1_000_000
        self.exchange.beat((next_down - now_ms) // period_ms * period_ms)


def local(
    settings: Settings,
    candles: Sequence[Candles],
    options: SessionOptions,
    *,
    journal: Journal,
    address: str | None = None,
    rates: Mapping[str, Sequence[Payment]] | None = None,
    place: Callable[[Settings], list[StrategySpec]] = place_strategies,
    is_cut: bool = False,
) -> tuple[BacktestSession, SimulatedExchange]:
    """A session in this process, and its exchange.

    `is_cut`: the candles are the beginning of those of another session (see `timeline_of`).
    """
    specs = place(settings)
    warmups: dict[BarSeries, int] = {}
    for spec in specs:
        for series in spec.series:
            warmups[series] = max(warmups.get(series, 0), spec.warmup_bars)
    timeline = timeline_of(candles, series_of(specs), options, warmups, is_cut=is_cut)
    shortest = min(timeline.series_readers, key=lambda reader: reader.step_ms)
    if options.latency_ms >= shortest.step_ms:
        raise ConfigError(
            f"a latency of {options.latency_ms / 1000:g} s is not shorter than a {shortest.interval} bar of"
            f" {shortest.reader.coin}: the strategy would decide on the next bar before its order has arrived; use a"
            " shorter latency or longer bars"
        )
    named = {} if address is None else {"address": address}
    exchange = SimulatedExchange(timeline.readers, options, start_ms=timeline.start_ms, rates=rates, **named)
    port = LocalPort(exchange, timeline.series_readers)
    session = BacktestSession(settings, timeline, options, exchange=exchange, port=port, journal=journal, place=place)
    listings = {reader.coin: exchange.state.markets[reader.coin].spec for reader in timeline.readers}
    grids = {
        coin: Grid(listing.px_decimals, listing.sig_figs)
        for coin, listing in listings.items()
        if listing.px_decimals is not None and listing.tick is None
    }
    session.keep_in_process(specs, grids)
    if options.latency_ms:
        latency = OrderLatency(session.stepper, exchange, latency_ms=options.latency_ms, end_ms=timeline.end_ms)
        port.delay_orders(latency)
    return session, exchange


def _open_positions(kernel: Kernel) -> tuple[str, ...]:
    return tuple(
        f"{p.market} {p.side} {format_decimal(p.size)}" for p in kernel.account.account_state.positions.values()
    )

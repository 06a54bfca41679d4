"""The strategy host calls the hooks of all strategies, keeps their states, and quarantines a strategy that fails.

If a strategy raises, its signals are dropped and it is not called again; the others go on. This module checks no risk
and sends no orders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import getcontext, setcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from bot.clock import INTERVALS
from bot.errors import Refusal, StrategyError
from bot.logs import log
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.journal.journal import Journal
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.model.shares import Part
from bot.runtime.passes.bar_feed import BarFeed, BarSeries, ClosedBar
from bot.runtime.risk.pauses import quarantine, quarantine_of
from bot.runtime.strategy_host.asker import Asker
from bot.runtime.strategy_host.event_backlog import BacklogEvent, EventBacklog
from bot.runtime.strategy_host.instance import HOOKS, LogSink, StrategyInstance, hook_of
from bot.strategy import Intent as Signal
from bot.strategy import Reply, Strategy, Timer

if TYPE_CHECKING:
    from pathlib import Path

    from bot.model.events import Event as ModelEvent
    from bot.wire import Event, Plan

T = TypeVar("T")

Hook = Callable[[], Iterable[Signal] | None]
Run = Callable[[StrategyInstance, Callable[[], Any]], Awaitable[Any]]


class StrategySpec(NamedTuple):
    """A configured strategy with its interval and limits."""

    strategy: Strategy
    interval: str
    limits: StrategyLimits
    # a hash of code and params; a quarantined version stays in quarantine
    version: str = ""
    # The hash of the source text that runs.
    sha256: str | None = None
    # the file of that source
    source: Path | None = None

    @property
    def series(self) -> list[BarSeries]:
        """Every series that it listens to, those of informative markets included."""
        strategy = self.strategy
        return [BarSeries(market, self.interval) for market in (*strategy.markets, *strategy.informative)]

    @property
    def warmup_bars(self) -> int:
        """Own bars before the first decision, those of longer intervals included."""
        own_ms = INTERVALS[self.interval]
        longer = [bars * INTERVALS[name] // own_ms for name, bars in self.strategy.longer_bars.items()]
        return max(self.strategy.warmup_bars, *longer) if longer else self.strategy.warmup_bars


class OwnedSignal(NamedTuple):
    instance: StrategyInstance
    signal: Signal


@dataclass(slots=True)
class Decision:
    """The strategies' signals for one trigger, and their states afterwards."""

    signals: list[OwnedSignal] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)


async def run_inline(instance: StrategyInstance, call: Callable[[], T]) -> T:
    """Call a strategy in this thread, for backtests and tests.

    The daemon uses a thread with a time limit instead (`Worker`).
    """
    ours = getcontext()
    setcontext(instance.context)
    try:
        return call()
    finally:
        setcontext(ours)


# most hooks without signals return this object, which is fast to compare
NO_SIGNALS: Final = ()


class StrategyHost:
    def __init__(
        self,
        specs: Sequence[StrategySpec],
        *,
        journal: Journal,
        account_state: AccountState,
        feed: BarFeed,
        run: Run = run_inline,
        attribution: Attribution | None = None,
        asker: Asker | None = None,
        log_sink: LogSink | None = None,
    ) -> None:
        self._log_sink = log_sink
        self.journal = journal
        self.asker = asker
        self.account_state = account_state
        self.feed = feed
        self.run = run
        self.attribution = attribution
        self.instances: list[StrategyInstance] = []
        # backlogs of strategies that are being rebuilt or warmed up
        self.backlogs: dict[str, EventBacklog] = {}
        # instances that were rebuilt and still read their backlog
        self.late: StrategyInstance | None = None
        # by series: those that decide on its bars, and those that only read them
        self.by_series: dict[BarSeries, list[StrategyInstance]] = {}
        self.readers: dict[BarSeries, list[StrategyInstance]] = {}
        # by market, for events
        self._listeners_by_market: dict[str, list[StrategyInstance]] = {}
        # The classes of events that some strategy gets.
        self.event_types: frozenset[type] = frozenset()
        self._started = False
        self.set_instances([self.make_instance(spec) for spec in specs])

    def call_by(self, run: Run) -> None:
        """Call the hooks of strategies by this function from now on."""
        self.run = run

    def read_backlog_of(self, instance: StrategyInstance) -> None:
        """This rebuilt instance reads the backlog of its strategy."""
        self.late = instance

    def make_instance(self, spec: StrategySpec, feed: BarFeed | None = None) -> StrategyInstance:
        """Make the instance of a strategy with its durable state. It is in quarantine if this version was."""
        name = spec.strategy.name
        instance = StrategyInstance(
            spec.strategy,
            interval=spec.interval,
            account_state=self.account_state,
            feed=feed or self.feed,
            state=self.journal.state.of_strategy(name),
            version=spec.version,
            attribution=self.attribution if spec.limits.nets else None,
        )
        instance.source.connect(self.asker, self._log_sink)
        known = quarantine_of(self.journal, name)
        if known is not None and known.version == spec.version:
            instance.quarantine(known.why)
            log.warning(
                "strategy.still_quarantined",
                strategy=name,
                message=known.why,
                way_out=f"correct it, or run: bot resume {name}",
            )
        return instance

    def set_instances(self, instances: Sequence[StrategyInstance], *, unready: Collection[str] = ()) -> None:
        """Host these strategies from now on, in this order. Events for `unready` strategies go to their backlogs."""
        self.instances = list(instances)
        self.backlogs = {
            name: self.backlogs[name] if name in self.backlogs else EventBacklog(self.journal, name) for name in unready
        }
        self.late = None
        self.by_series = {s: [x for x in self.instances if s in x.decided_series] for s in self.feed.wanted}
        reading = {s: [x for x in self.instances if s in x.read_series] for s in self.feed.wanted}
        self.readers = {series: readers for series, readers in reading.items() if readers}
        self._listeners_by_market = {
            s.market: [x for x in self.instances if s.market in x.markets] for s in self.feed.wanted
        }
        self.event_types = frozenset(HOOKS if unready else ()).union(
            *(instance.event_types for instance in self.instances)
        )

    def stop_delivery(self) -> None:
        """Deliver no more events, because the run was interrupted, maybe inside a hook. All later events go to the
        backlogs for the next run.

        The backlogs are read from the journal, because the service sends the interrupted page again.
        """
        names = {instance.name for instance in self.instances} | self.backlogs.keys()
        self.backlogs = {name: EventBacklog.of_journal(self.journal, name, self.account_state.epoch) for name in names}
        self.set_instances(self.instances, unready=names)

    def listeners(self) -> dict[str, frozenset[str]]:
        """Names of the strategies of each market, those that only read its bars included."""
        names = {
            market: frozenset(instance.name for instance in instances)
            for market, instances in self._listeners_by_market.items()
        }
        for series, readers in self.readers.items():
            names[series.market] |= {instance.name for instance in readers}
        return names

    def instance_for(self, market: str) -> StrategyInstance | None:
        """The first strategy of a market."""
        return next((instance for instance in self.instances if market in instance.markets), None)

    def working(self) -> list[StrategyInstance]:
        return [instance for instance in self.instances if instance.quarantined is None]

    # -- decisions

    async def decide(self, closed: ClosedBar, *, now_ms: int) -> Decision:
        """Take a bar and collect the signals of each strategy of its series, one after the other."""
        decision = Decision()
        self.see(closed)
        for instance in self.by_series[closed.series]:
            await self._ask(
                instance, partial(instance.strategy.on_bar, instance.view, closed.bar), decision, now_ms=now_ms
            )
        return decision

    async def decide_alone(self, instance: StrategyInstance, closed: ClosedBar, *, now_ms: int) -> Decision:
        """Collect one strategy's signals on a bar that the history has already."""
        decision = Decision()
        if closed.series in instance.decided_series:
            hook = partial(instance.strategy.on_bar, instance.view, closed.bar)
            await self._ask(instance, hook, decision, now_ms=now_ms)
        return decision

    async def call_one(
        self, strategy: str, hook: Literal["on_timer", "on_reply"], given: Timer | Reply, *, now_ms: int
    ) -> Decision:
        """Collect the signals of one strategy: its timer is due, or its question has a reply."""
        decision = Decision()
        instance = next((instance for instance in self.instances if instance.name == strategy), None)
        if instance is not None:
            call = partial(getattr(instance.strategy, hook), instance.view, given)
            await self._ask(instance, call, decision, now_ms=now_ms)
        return decision

    def keep(self, event: Event, parts: Mapping[str, Part]) -> None:
        """Keep an event that a hook gets for the strategies that are still under construction."""
        here = self.instances if event.coin is None else self._listeners_by_market.get(event.coin, ())
        hosted, concerned = {instance.name for instance in self.instances}, {instance.name for instance in here}
        for name, waiting in self.backlogs.items():
            # The markets of a strategy without an instance are not known yet.
            if name in concerned or name not in hosted:
                waiting.append(BacklogEvent(event, parts))

    async def deliver(
        self, event: ModelEvent, decision: Decision, *, now_ms: int, parts: Mapping[str, Part] = MappingProxyType({})
    ) -> list[OwnedSignal]:
        """Deliver an event to the strategies that it concerns. Returns their signals, which are in the decision too.

        `parts` maps owners to their parts of a fill: a strategy in a shared market gets its own part only.
        """
        before = len(decision.signals)
        here = self.instances if event.coin is None else self._listeners_by_market.get(event.coin, ())
        for instance in here:
            if instance.name not in self.backlogs:
                await self.deliver_to(instance, event, decision, now_ms=now_ms, parts=parts)
        return decision.signals[before:]

    async def deliver_to(
        self,
        instance: StrategyInstance,
        event: ModelEvent,
        decision: Decision,
        *,
        now_ms: int,
        parts: Mapping[str, Part] = MappingProxyType({}),
    ) -> None:
        """Deliver an event to one strategy, if the event concerns the strategy."""
        hook = hook_of(instance, event, parts)
        if hook is not None:
            await self._ask(instance, hook, decision, now_ms=now_ms)

    def no_entry(self, strategy: str) -> Refusal | None:
        """Why an entry of this strategy must not be sent: the strategy is in quarantine or no longer runs."""
        instance = self._instance_of(strategy)
        if instance is None:
            return Refusal("no_strategy", f"strategy {strategy} no longer runs")
        return None if instance.quarantined is None else Refusal("quarantined", f"{strategy} is in quarantine")

    async def may_confirm(self, strategy: str, plan: Plan) -> bool:
        """True if the strategy confirms its entry, given the plan. A quarantined strategy does not."""
        instance = self._instance_of(strategy)
        if instance is None or instance.quarantined is not None:
            return False
        return not instance.checks_plans or bool(await self._run(instance, partial(instance.confirms, plan)))

    def checks_plans(self, strategy: str) -> bool:
        """True if the strategy checks the plan of an entry before it becomes an order."""
        instance = self._instance_of(strategy)
        return instance is not None and instance.checks_plans

    # -- the run

    async def start(self, *, now_ms: int) -> None:
        """Call on_start of each strategy, once in a run."""
        if self._started:
            return
        self._started = True
        for instance in self.working():
            await self.start_one(instance, now_ms=now_ms)

    async def start_one(self, instance: StrategyInstance, *, now_ms: int) -> None:
        await self._run(
            instance,
            partial(instance.call_without_signals, partial(instance.strategy.on_start, instance.view), now_ms=now_ms),
        )
        self.keep_state(instance, None)

    async def warm_up(self, closed: ClosedBar) -> None:
        """Call on_bar with a past bar and drop the signals. Markets with a position keep their mark, which is newer."""
        self.see(
            closed,
            is_marked=closed.market in self.account_state.positions and closed.market in self.account_state.marks,
        )
        for instance in self.by_series[closed.series]:
            await self.warm_up_one(instance, closed)

    async def warm_up_one(self, instance: StrategyInstance, closed: ClosedBar) -> None:
        if instance.quarantined is None and closed.series in instance.decided_series:
            hook = partial(instance.strategy.on_bar, instance.view, closed.bar)
            await self._run(instance, partial(instance.warm_up, hook, now_ms=closed.at_ms))

    async def stop(self, *, now_ms: int) -> None:
        """Call on_stop of each strategy and keep its state."""
        for instance in self.working():
            await self.stop_one(instance, now_ms=now_ms)

    async def stop_one(self, instance: StrategyInstance, *, now_ms: int) -> None:
        if instance.quarantined is None:
            await self._run(
                instance,
                partial(
                    instance.call_without_signals, partial(instance.strategy.on_stop, instance.view), now_ms=now_ms
                ),
            )
            self.keep_state(instance, None)

    def see(self, closed: ClosedBar, *, is_marked: bool = False) -> None:
        """Add a bar to history and declared indicators, and to the marks unless there is a newer one."""
        self.feed.take(closed)
        if not is_marked:
            self.account_state.marks[closed.market] = closed.bar.close
        for instance in (*self.by_series[closed.series], *self.readers.get(closed.series, ())):
            instance.indicators.update(closed.bar)

    def _instance_of(self, strategy: str) -> StrategyInstance | None:
        if self.late is not None and self.late.name == strategy:
            return self.late
        # Runs twice an entry; a generator would cost more.
        for instance in self.instances:
            if instance.name == strategy:
                return instance
        return None

    async def _ask(self, instance: StrategyInstance, hook: Hook, decision: Decision, *, now_ms: int) -> None:
        if instance.quarantined is not None:
            return
        signals = await self._run(instance, partial(instance.call, hook, now_ms=now_ms))
        if signals is None:
            return
        self.keep_state(instance, decision)
        if instance.quarantined is None:
            decision.signals += [OwnedSignal(instance, signal) for signal in signals]

    def keep_state(self, instance: StrategyInstance, decision: Decision | None) -> None:
        if instance.source.asks:
            for record in instance.source.asks:
                self.journal.keep_ask(instance.name, record)
            instance.source.asks.clear()
        try:
            state = instance.changed_state()
        except StrategyError as error:
            self.quarantine(instance, error)
            return
        if state is None:
            return
        if decision is None:
            self.journal.decided((), states={instance.name: state})
        else:
            decision.states[instance.name] = state

    async def _run(self, instance: StrategyInstance, call: Callable[[], T]) -> T | None:
        """Call a strategy through `run`. If it fails, quarantine it and return None."""
        try:
            answer: T = await self.run(instance, call)
        except StrategyError as error:
            self.quarantine(instance, error)
            return None
        return answer

    def quarantine(self, instance: StrategyInstance, error: StrategyError) -> None:
        if instance.quarantined is not None:
            return
        # A strategy's text may contain lone surrogates, which cannot be encoded.
        why = str(error).encode(errors="backslashreplace").decode()
        instance.quarantine(why)
        resting = self.account_state.resting_of(instance.name)
        quarantine(self.journal, instance.name, instance.version, why, at_ms=instance.source.now_ms, resting=resting)

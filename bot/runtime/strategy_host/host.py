"""The strategy host calls the hooks of all strategies, keeps their states, and quarantines a strategy that fails.

If a strategy raises, its signals are dropped and it is not called again; the others go on. This module checks no risk and sends no orders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import getcontext, setcontext
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import structlog

from bot.errors import Refusal, StrategyError
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.bar_feed import BarFeed, Closed, Series
from bot.runtime.journal.journal import Journal
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.model.shares import Part
from bot.runtime.ports import Calm
from bot.runtime.risk.pauses import quarantine, quarantine_of
from bot.runtime.strategy_host.asker import Asker
from bot.runtime.strategy_host.event_backlog import BacklogEvent, EventBacklog
from bot.runtime.strategy_host.instance import HOOKS, StrategyInstance, hook_of
from bot.strategy import Bar, Reply, Strategy, Timer
from bot.strategy import Intent as Signal
from bot.strategy.hook_answers import intents_of
from bot.wire import Event

if TYPE_CHECKING:
    from bot.wire import Plan

log = structlog.get_logger()
T = TypeVar("T")

Hook = Callable[[], Iterable[Signal] | None]
Run = Callable[[StrategyInstance, Callable[[], Any]], Awaitable[Any]]


class StrategySpec(NamedTuple):
    """A configured strategy with its interval and limits."""

    strategy: Strategy
    interval: str
    limits: StrategyLimits
    version: str = ""  # a hash of code and params; a quarantined version stays in quarantine
    sha256: str | None = None  # of the source text that runs


class OwnedSignal(NamedTuple):
    instance: StrategyInstance
    signal: Signal


@dataclass(slots=True)
class Decision:
    """The strategies' signals for one trigger, and their states afterwards."""

    signals: list[OwnedSignal] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)


async def run_inline(instance: StrategyInstance, call: Callable[[], T]) -> T:
    """Call a strategy in this thread, for backtests and tests. The daemon uses a thread with a time limit instead (`Worker`)."""
    ours = getcontext()
    setcontext(instance.context)
    try:
        return call()
    finally:
        setcontext(ours)


NO_SIGNALS: Final = ()  # most hooks without signals return this object, which is fast to compare


class StrategyHost:
    def __init__(
        self, specs: Sequence[StrategySpec], *, journal: Journal, mirror: AccountState, feed: BarFeed, run: Run = run_inline,
        attribution: Attribution | None = None, asker: Asker | None = None,
    ) -> None:  # fmt: skip
        self.journal = journal
        self.asker = asker
        self.mirror = mirror
        self.feed = feed
        self.run = run
        self.attribution = attribution
        self.instances: list[StrategyInstance] = []
        self.backlogs: dict[str, EventBacklog] = {}  # backlogs of strategies that are being rebuilt or warmed up
        self.late: StrategyInstance | None = None  # rebuilt, and still catching up on its backlog
        self._listeners: dict[Series, list[StrategyInstance]] = {}
        self._listeners_by_market: dict[str, list[StrategyInstance]] = {}  # by market, for events
        self.event_types: frozenset[str] = frozenset()  # event types that some strategy gets
        self._started = False
        self.set_instances([self.made(one) for one in specs])

    def made(self, one: StrategySpec, feed: BarFeed | None = None) -> StrategyInstance:
        """Make the instance of a strategy with its durable state. It is in quarantine if this version was."""
        name = one.strategy.name
        instance = StrategyInstance(
            one.strategy, interval=one.interval, mirror=self.mirror, feed=feed or self.feed, state=self.journal.state.of_strategy(name),
            version=one.version, attribution=self.attribution if one.limits.nets else None,
        )  # fmt: skip
        instance.source.asker = self.asker
        known = quarantine_of(self.journal, name)
        if known is not None and known.version == one.version:
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
        self._listeners = {s: [x for x in self.instances if s in x.series] for s in self.feed.wanted}
        self._listeners_by_market = {
            s.market: [x for x in self.instances if s.market in x.markets] for s in self.feed.wanted
        }
        self.event_types = frozenset(HOOKS if unready else ()).union(
            *(instance.event_types for instance in self.instances)
        )

    def stop_delivery(self) -> None:
        """Deliver no more events, because the run was interrupted, maybe inside a hook. All later events go to the backlogs for the next run.

        The backlogs are read from the journal, because the service sends the interrupted page again.
        """
        names = {instance.name for instance in self.instances} | self.backlogs.keys()
        self.backlogs = {name: EventBacklog.of_journal(self.journal, name, self.mirror.epoch) for name in names}
        self.set_instances(self.instances, unready=names)

    def clear_backlogs(self) -> None:
        """Clear the backlogs after an account reset."""
        for waiting in self.backlogs.values():
            waiting.clear()

    def listeners(self) -> dict[str, frozenset[str]]:
        """Names of the strategies of each market."""
        return {
            market: frozenset(instance.name for instance in instances)
            for market, instances in self._listeners_by_market.items()
        }

    def instance_for(self, market: str) -> StrategyInstance | None:
        """The first strategy of a market."""
        return next((instance for instance in self.instances if market in instance.markets), None)

    def working(self) -> list[StrategyInstance]:
        return [instance for instance in self.instances if instance.quarantined is None]

    # -- decisions

    async def decide(self, closed: Closed, *, now_ms: int) -> Decision:
        """Take a bar and collect the signals of each strategy of its series, one after the other."""
        decision = Decision()
        self.see(closed)
        for instance in self._listeners[closed.series]:
            await self._ask(
                instance, partial(instance.strategy.on_bar, instance.view, closed.bar), decision, now_ms=now_ms
            )
        return decision

    async def decide_alone(self, instance: StrategyInstance, closed: Closed, *, now_ms: int) -> Decision:
        """Collect one strategy's signals on a bar that the history has already."""
        decision = Decision()
        await self._ask(instance, partial(instance.strategy.on_bar, instance.view, closed.bar), decision, now_ms=now_ms)
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

    async def deliver(
        self, event: Event, decision: Decision, *, now_ms: int, parts: Mapping[str, Part] = MappingProxyType({})
    ) -> list[OwnedSignal]:
        """Deliver an event to the strategies that it concerns. Returns their signals, which are in the decision too.

        `parts` maps owners to their parts of a fill: a strategy in a shared market gets its own part only.
        """
        before = len(decision.signals)
        here = self.instances if event.coin is None else self._listeners_by_market.get(event.coin, ())
        if self.backlogs:
            hosted, concerned = {instance.name for instance in self.instances}, {instance.name for instance in here}
            for name, waiting in self.backlogs.items():
                if name in concerned or name not in hosted:  # Without an instance, its markets are not known yet.
                    waiting.append(BacklogEvent(event, parts))
        for instance in here:
            if instance.name not in self.backlogs:
                await self.deliver_to(instance, event, decision, now_ms=now_ms, parts=parts)
        return decision.signals[before:]

    async def deliver_to(
        self, instance: StrategyInstance, event: Event, decision: Decision, *, now_ms: int, parts: Mapping[str, Part] = MappingProxyType({})
    ) -> None:  # fmt: skip
        """Deliver an event to one strategy, if the event concerns the strategy."""
        hook = hook_of(instance, event, parts)
        if hook is not None:
            await self._ask(instance, hook, decision, now_ms=now_ms)

    def decide_run(
        self, series: Series, bars: Iterator[Bar], calm: Calm, seen: Bar | None = None
    ) -> tuple[Bar | None, Decision | None]:
        """In a backtest: decide bar after bar of one series, until a bar leaves the range `calm` or a strategy yields a signal.

        (bar, None): the venue must see this bar before the strategies do. (bar, decision): act on the decision. (None, None): no bar is left.
        `seen` is a bar that the venue has already seen: it comes first, and may leave the range.
        """
        instances = self._listeners[series]
        if len(instances) == 1 and instances[0].quarantined is None and not instances[0].has_state:
            return self._run_alone(series, bars, calm, instances[0], seen)
        return self._run_together(series, bars, calm, seen)

    def _run_together(
        self, series: Series, bars: Iterator[Bar], calm: Calm, seen: Bar | None = None, last_ms: int | None = None
    ) -> tuple[Bar | None, Decision | None]:
        """`decide_run` for any strategies. `last_ms`: a bar that was decided before and is not marked as done yet."""
        lo, hi, until_ms = calm
        market = series.market
        history, marks = self.feed.histories[series], self.mirror.marks
        instances = self._listeners[series]
        leaving: Bar | None = None
        for bar in bars if seen is None else chain((seen,), bars):
            _, at_ms, _, high, low, close, _ = bar
            if (low <= lo or high >= hi or at_ms >= until_ms) and bar is not seen:
                leaving = bar
                break
            history.take(bar)
            marks[market] = close
            decision = self._call_on_bar(instances, bar)
            if decision is not None:
                return bar, decision
            last_ms = at_ms
        if last_ms is not None:
            self.journal.state.bar_done(market, series.interval, last_ms)
        return leaving, None

    def _run_alone(
        self, series: Series, bars: Iterator[Bar], calm: Calm, instance: StrategyInstance, seen: Bar | None
    ) -> tuple[Bar | None, Decision | None]:
        """`decide_run` for one strategy without a state. What stays the same from bar to bar is looked up once, and its decimal context is set once."""
        lo, hi, until_ms = calm
        market = series.market
        take, marks = self.feed.histories[series].take, self.mirror.marks
        source, strategy, view, context = instance.source, instance.strategy, instance.view, instance.context
        update = instance.indicators.update if instance.indicators.names else None
        leaving: Bar | None = None
        last_ms: int | None = None
        ours = getcontext()
        setcontext(context)
        try:
            for bar in bars if seen is None else chain((seen,), bars):
                _, at_ms, _, high, low, close, _ = bar
                if (low <= lo or high >= hi or at_ms >= until_ms) and bar is not seen:
                    leaving = bar
                    break
                take(bar)
                marks[market] = close
                if update is not None:
                    update(bar)
                source.now_ms = at_ms
                try:
                    signals: Any = strategy.on_bar(view, bar)
                except BaseException as error:  # noqa: BLE001 - as in StrategyInstance.call
                    setcontext(ours)
                    self._quarantine(instance, instance.named_error(error))
                    return self._run_together(series, bars, calm, last_ms=at_ms)
                if getcontext() is not context:
                    setcontext(context)  # The strategy has set another one, which ends with its call.
                if (signals is not NO_SIGNALS and signals is not None) or source.state:
                    setcontext(ours)
                    decision = self._taken(instance, signals, None)
                    if decision is not None and (decision.signals or decision.states):
                        return bar, decision
                    if instance.quarantined is not None or instance.has_state:
                        return self._run_together(series, bars, calm, last_ms=at_ms)
                    setcontext(context)
                last_ms = at_ms
        finally:
            setcontext(ours)
        if last_ms is not None:
            self.journal.state.bar_done(market, series.interval, last_ms)
        return leaving, None

    def _call_on_bar(self, instances: Sequence[StrategyInstance], bar: Bar) -> Decision | None:
        """Call on_bar of each strategy; None if there is no signal and no state has changed."""
        at_ms = bar.at_ms
        decision: Decision | None = None
        ours = getcontext()
        for instance in instances:
            if instance.indicators.names:
                instance.indicators.update(bar)
            if instance.quarantined is not None:
                continue
            source = instance.source
            source.now_ms = at_ms
            signals: Any = None
            setcontext(instance.context)
            try:
                signals = instance.strategy.on_bar(instance.view, bar)
            except BaseException as error:  # noqa: BLE001 - as in StrategyInstance.call
                self._quarantine(instance, instance.named_error(error))
            finally:
                setcontext(ours)
            if (signals is not NO_SIGNALS and signals is not None) or source.state or instance.has_state:
                decision = self._taken(instance, signals, decision)
        return decision if decision is not None and (decision.signals or decision.states) else None

    def _taken(self, instance: StrategyInstance, signals: Any, decision: Decision | None) -> Decision | None:
        """Add what a call of on_bar gave, and the state after it, to the decision. None if there is nothing to add to."""
        source = instance.source
        if signals is not NO_SIGNALS and signals is not None:
            ours = getcontext()
            setcontext(instance.context)  # A generator runs only now.
            try:
                signals = iter(intents_of(signals, "on_bar"))
                for signal in signals:
                    decision = decision or Decision()
                    found = instance.call(partial(chain, (signal,), signals), now_ms=source.now_ms)
                    decision.signals += [OwnedSignal(instance, one) for one in found]
            except BaseException as error:  # noqa: BLE001 - as in StrategyInstance.call
                self._quarantine(instance, instance.named_error(error))
            finally:
                setcontext(ours)
        if source.state or instance.has_state:
            if source.asks:  # A reply may be ready, so the run ends here.
                decision = decision or Decision()
            self._keep_state(instance, decision)
        return decision

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
        self._keep_state(instance, None)

    async def warm_up(self, closed: Closed) -> None:
        """Call on_bar with a past bar and drop the signals. Markets with a position keep their mark, which is newer."""
        self.see(closed, is_marked=closed.market in self.mirror.positions and closed.market in self.mirror.marks)
        for instance in self._listeners[closed.series]:
            await self.warm_up_one(instance, closed)

    async def warm_up_one(self, instance: StrategyInstance, closed: Closed) -> None:
        if instance.quarantined is None:
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
            self._keep_state(instance, None)

    def see(self, closed: Closed, *, is_marked: bool = False) -> None:
        """Add a bar to history and declared indicators, and to the marks unless there is a newer one."""
        self.feed.take(closed)
        if not is_marked:
            self.mirror.marks[closed.market] = closed.bar.close
        for instance in self._listeners[closed.series]:
            instance.indicators.update(closed.bar)

    def _instance_of(self, strategy: str) -> StrategyInstance | None:
        if self.late is not None and self.late.name == strategy:
            return self.late
        for instance in self.instances:  # Runs twice an entry; a generator would cost more.
            if instance.name == strategy:
                return instance
        return None

    async def _ask(self, instance: StrategyInstance, hook: Hook, decision: Decision, *, now_ms: int) -> None:
        if instance.quarantined is not None:
            return
        signals = await self._run(instance, partial(instance.call, hook, now_ms=now_ms))
        if signals is None:
            return
        self._keep_state(instance, decision)
        if instance.quarantined is None:
            decision.signals += [OwnedSignal(instance, signal) for signal in signals]

    def _keep_state(self, instance: StrategyInstance, decision: Decision | None) -> None:
        if instance.source.asks:
            for record in instance.source.asks:
                self.journal.keep_ask(instance.name, record)
            instance.source.asks.clear()
        try:
            state = instance.changed_state()
        except StrategyError as error:
            self._quarantine(instance, error)
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
            self._quarantine(instance, error)
            return None
        return answer

    def _quarantine(self, instance: StrategyInstance, error: StrategyError) -> None:
        if instance.quarantined is not None:
            return
        # A strategy's text may contain lone surrogates, which cannot be encoded.
        why = str(error).encode(errors="backslashreplace").decode()
        instance.quarantine(why)
        resting = self.mirror.resting_of(instance.name)
        quarantine(self.journal, instance.name, instance.version, why, at_ms=instance.source.now_ms, resting=resting)

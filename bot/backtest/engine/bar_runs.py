"""Runs of bars: the strategies get bar after bar, up to the next signal or to a bar that the venue must see first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import getcontext, setcontext
from functools import partial
from itertools import chain
from typing import Any, Final

from bot.runtime.kernel.kernel import Kernel
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.passes.ports import Calm
from bot.runtime.strategy_host.host import NO_SIGNALS, Decision, OwnedSignal, StrategyHost
from bot.runtime.strategy_host.instance import INTENTS_MAX, StrategyInstance
from bot.strategy import Bar
from bot.strategy.hook_answers import INTENTS, intents_of

_KINDS: Final = frozenset(INTENTS)


class BarRuns:
    """The runs of one daemon.

    Live, its kernel takes one bar at a time (`Kernel.step`), with the same calls of the strategies.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._host: StrategyHost = kernel.strategy_host

    def has_bounds(self, series: BarSeries) -> bool:
        """True if a timer or a daily loss ends `decide` there, besides the band that it is given."""
        losses = self._kernel.conditions.losses
        return self._kernel.timers.next_ms is not None or (losses.is_used and losses.has_limits(series.market))

    def decide(
        self, series: BarSeries, bars: Iterator[Bar], calm: Calm, seen: Bar | None = None
    ) -> tuple[Bar | None, Decision | None]:
        """Decide bar after bar of one series, until a bar leaves the range `calm` or a strategy yields a signal.

        (bar, None): the venue must see this bar before the strategies do. (bar, decision): act on the decision. (None,
        None): no bar is left. It ends before the next timer and before a close that would reach a daily loss: such a
        bar goes through `Kernel.step`. `seen` is a bar that the venue has already seen: it comes first, wherever it
        lies, and only for a series without `has_bounds`.
        """
        timers, losses = self._kernel.timers, self._kernel.conditions.losses
        if timers.next_ms is not None and timers.next_ms < calm.until_ms:
            calm = calm._replace(until_ms=timers.next_ms)
        if losses.is_used:
            calm = losses.narrowed(series, calm)
        instances = self._host.by_series[series]
        is_alone = len(instances) == 1 and instances[0].quarantined is None and not instances[0].has_state
        if is_alone and series not in self._host.readers:
            return self._run_alone(series, bars, calm, instances[0], seen)
        return self._run_together(series, bars, calm, seen)

    def _run_together(
        self, series: BarSeries, bars: Iterator[Bar], calm: Calm, seen: Bar | None = None, last_ms: int | None = None
    ) -> tuple[Bar | None, Decision | None]:
        """`decide` for any strategies. `last_ms`: a bar that was decided before and is not marked as done yet."""
        lo, hi, until_ms = calm
        market = series.market
        history, marks = self._host.feed.histories[series], self._host.account_state.marks
        instances = self._host.by_series[series]
        readers = self._host.readers.get(series, ())
        leaving: Bar | None = None
        for bar in bars if seen is None else chain((seen,), bars):
            _, at_ms, _, high, low, close, _ = bar
            if (low <= lo or high >= hi or at_ms >= until_ms) and bar is not seen:
                leaving = bar
                break
            history.take(bar)
            marks[market] = close
            for reader in readers:
                reader.indicators.update(bar)
            decision = self._call_on_bar(instances, bar)
            if decision is not None:
                return bar, decision
            last_ms = at_ms
        if last_ms is not None:
            self._host.journal.state.bar_done(market, series.interval, last_ms)
        return leaving, None

    def _run_alone(
        self, series: BarSeries, bars: Iterator[Bar], calm: Calm, instance: StrategyInstance, seen: Bar | None
    ) -> tuple[Bar | None, Decision | None]:
        """`decide` for one strategy without a state.

        What stays the same from bar to bar is looked up once, and its decimal context is set once.
        """
        lo, hi, until_ms = calm
        market = series.market
        take, marks = self._host.feed.histories[series].take, self._host.account_state.marks
        source, strategy, view, context = instance.source, instance.strategy, instance.view, instance.context
        update = instance.indicators.updates(market) if instance.indicators.names else None
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
                    self._host.quarantine(instance, instance.named_error(error))
                    return self._run_together(series, bars, calm, last_ms=at_ms)
                if getcontext() is not context:
                    # The strategy has set another one, which ends with its call.
                    setcontext(context)
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
            self._host.journal.state.bar_done(market, series.interval, last_ms)
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
                self._host.quarantine(instance, instance.named_error(error))
            finally:
                setcontext(ours)
            if (signals is not NO_SIGNALS and signals is not None) or source.state or instance.has_state:
                decision = self._taken(instance, signals, decision)
        return decision if decision is not None and (decision.signals or decision.states) else None

    def _taken(self, instance: StrategyInstance, signals: Any, decision: Decision | None) -> Decision | None:
        """Add what a call of on_bar gave, and the state after it, to the decision.

        None if there is nothing to add to.
        """
        source = instance.source
        if type(signals) is tuple and len(signals) <= INTENTS_MAX and _KINDS.issuperset(map(type, signals)):
            # Nothing of the strategy runs any more: what StrategyInstance.call checks holds.
            if signals:
                decision = decision or Decision()
                decision.signals += [OwnedSignal(instance, signal) for signal in signals]
        elif signals is not None:
            ours = getcontext()
            # A generator runs only now.
            setcontext(instance.context)
            try:
                signals = iter(intents_of(signals, "on_bar"))
                for signal in signals:
                    decision = decision or Decision()
                    chained = instance.call(partial(chain, (signal,), signals), now_ms=source.now_ms)
                    decision.signals += [OwnedSignal(instance, chained_signal) for chained_signal in chained]
            except BaseException as error:  # noqa: BLE001 - as in StrategyInstance.call
                self._host.quarantine(instance, instance.named_error(error))
            finally:
                setcontext(ours)
        if source.state or instance.has_state:
            # A reply may be ready, so the run ends here.
            if source.asks:
                decision = decision or Decision()
            self._host.keep_state(instance, decision)
        return decision

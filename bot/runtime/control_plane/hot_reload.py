"""Hot reload: add, remove and replace strategies of a running kernel, between two passes. The service is asked for bars
first.

A removed strategy keeps its positions in its book, and they keep their stops. A strategy that is built again begins as
at a start:
on_start with its durable state, then the warm-up bars, whose signals are dropped. That may take long, so the passes of
the others go on meanwhile, and its events wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bot.runtime.decisions.bar_queue import feed_of, reads_of, wanted_series
from bot.runtime.passes.bar_feed import BarFeed, BarSeries, ClosedBar, YieldToPass
from bot.runtime.strategy_host.host import StrategySpec

if TYPE_CHECKING:
    from bot.runtime.kernel.kernel import Kernel
    from bot.runtime.strategy_host.instance import StrategyInstance


@dataclass(frozen=True, slots=True)
class Warm:
    """The warm-up bars of a strategy that is to be built, and a feed of its own for them.

    `due` bars are not decided yet.
    """

    feed: BarFeed
    past: Sequence[ClosedBar]
    due: Sequence[ClosedBar] = field(default=())


async def warm_up(kernel: Kernel, spec: StrategySpec) -> Warm:
    """Ask for the bars of one strategy. It changes nothing; an error of the service is raised.

    Of a series that other strategies use, only the decided bars are for warm-up: the next one all strategies decide
    together.
    """
    feed = feed_of([spec])
    bars = await feed.warm_up(kernel.port, kernel.journal.state.done_until, kernel.now_ms())
    past: list[ClosedBar] = []
    due: list[ClosedBar] = []
    for closed in feed.in_order([*bars.past, *bars.due]):
        running = kernel.bars.feed.histories.get(closed.series)
        if running is None:
            (due if closed in bars.due else past).append(closed)
        elif running.last_at_ms is not None and closed.at_ms <= running.last_at_ms:
            past.append(closed)
    return Warm(feed, past, due)


async def hot_reload(
    kernel: Kernel,
    specs: Sequence[StrategySpec],
    *,
    fresh: dict[str, Warm],
    gone: Sequence[str],
    renew: Callable[[str], None],
    yield_to_pass: YieldToPass,
) -> None:
    """Run these strategies from now on, in this order. `fresh` are to be built; `gone` are to be stopped first,
    replaced ones included.

    `renew` gives a strategy a new worker thread before its first call. Each strategy is active as soon as it is built.
    Due bars of a series that no active strategy uses wait until then.
    """
    instances = {instance.name: instance for instance in kernel.strategy_host.instances}
    order = [spec.strategy.name for spec in specs]
    unready: list[str] = []
    waiting: list[ClosedBar] = []
    # newest bar that the old instance has decided
    decided: dict[str, dict[BarSeries, int]] = {}
    for name in gone:
        instance = instances.pop(name)
        await kernel.strategy_host.stop_one(instance, now_ms=kernel.now_ms())
        decided[name] = _decided(kernel, instance)
        _drop_unsent(kernel, name)
        renew(name)
        unready += [name] if name in fresh else []
        waiting += _activate(kernel, list(instances.values()), unready)
        await yield_to_pass()
    kernel.bars.feed.read_first(reads_of(specs))
    kernel.risk.limit({spec.strategy.name: spec.limits for spec in specs})
    kernel.conditions.losses.limits_changed()
    kernel.follow_protections(kernel.run.settings)
    for spec in specs:
        name = spec.strategy.name
        if name not in fresh:
            continue
        if name not in gone:
            renew(name)
            # Events of a new instance wait from its on_start on.
            unready.append(name)
            kernel.strategy_host.set_instances(kernel.strategy_host.instances, unready=unready)
        warm = fresh[name]
        instance = await _built(kernel, spec, warm, yield_to_pass)
        await _catch_up(kernel, instance, warm.feed, decided.get(name, {}), yield_to_pass)
        kernel.bars.join(closed for closed in warm.due if closed.series not in kernel.bars.feed.histories)
        kernel.bars.join(closed for closed in waiting if closed.series in instance.series)
        waiting = [closed for closed in waiting if closed.series not in instance.series]
        kernel.bars.feed.join(warm.feed)
        instances[name] = instance
        unready = [other for other in unready if other != name]
        waiting += _activate(
            kernel, sorted(instances.values(), key=lambda instance: order.index(instance.name)), unready
        )
    wanted = wanted_series(specs)
    for series in [series for series in kernel.bars.feed.histories if series not in wanted]:
        kernel.bars.feed.drop(series)
    waiting += _activate(kernel, [instances[name] for name in order], ())
    assert not any(closed.series in wanted for closed in waiting), "a bar that a strategy waits for is due"
    kernel.reconciliation.compare_strategies_anew()
    kernel.journal.flush()


def _activate(kernel: Kernel, instances: Sequence[StrategyInstance], unready: Sequence[str]) -> list[ClosedBar]:
    """Make these instances the active ones.

    Returns the due bars of series that none of them uses; those series are not polled meanwhile.
    """
    for instance in instances:
        instance.use_feed(kernel.bars.feed)
    used: set[BarSeries] = {series for instance in instances for series in instance.series}
    for series in [series for series in kernel.bars.feed.wanted if series not in used]:
        kernel.bars.feed.rest(series)
    kernel.strategy_host.set_instances(instances, unready=unready)
    kernel.timers.follow(instances, kernel.journal, now_ms=kernel.now_ms())
    due = kernel.bars.take_all()
    kernel.bars.join(closed for closed in due if closed.series in used)
    return [closed for closed in due if closed.series not in used]


async def _built(kernel: Kernel, spec: StrategySpec, warm: Warm, yield_to_pass: YieldToPass) -> StrategyInstance:
    """Build, start and warm up one strategy. If it fails, it is in quarantine, as at a start."""
    strategy_host = kernel.strategy_host
    instance = strategy_host.make_instance(spec, warm.feed)
    if instance.quarantined is None:
        await strategy_host.start_one(instance, now_ms=kernel.now_ms())
    for closed in warm.past:
        warm.feed.take(closed)
        kernel.account.account_state.marks.setdefault(closed.market, closed.bar.close)
        instance.indicators.update(closed.bar)
        await strategy_host.warm_up_one(instance, closed)
        await yield_to_pass()
    return instance


def _decided(kernel: Kernel, instance: StrategyInstance) -> dict[BarSeries, int]:
    """Series -> close instant of the newest bar that the instance has seen."""
    last = {series: kernel.bars.feed.histories[series].last_at_ms for series in instance.series}
    return {series: at_ms for series, at_ms in last.items() if at_ms is not None}


async def _catch_up(
    kernel: Kernel,
    instance: StrategyInstance,
    feed: BarFeed,
    decided: Mapping[BarSeries, int],
    yield_to_pass: YieldToPass,
) -> None:
    """Deliver the events and bars that came while the instance was built. It decides only the newest bar of each
    series.

    `decided`: series -> the newest bar that the old instance has decided.
    """
    kernel.strategy_host.read_backlog_of(instance)
    while True:
        await kernel.warm_up.deliver_waiting(instance, yield_to_pass)
        missed = feed.in_order(closed for series in instance.series for closed in _missed(kernel, series, feed))
        if not missed:
            return
        closed = missed[0]
        feed.take(closed)
        instance.indicators.update(closed.bar)
        is_newest = not any(later.series == closed.series for later in missed[1:])
        if not is_newest or closed.at_ms <= decided.get(closed.series, 0):
            await kernel.strategy_host.warm_up_one(instance, closed)
        else:
            await kernel.decide_late(instance, closed)
        await yield_to_pass()


def _missed(kernel: Kernel, series: BarSeries, feed: BarFeed) -> list[ClosedBar]:
    """Bars of a running series that are not in this feed yet."""
    running, last_ms = kernel.bars.feed.histories.get(series), feed.histories[series].last_at_ms
    if running is None or running.last_at_ms is None or running.last_at_ms == last_ms:
        return []
    bars = [bar for bar in running.bars(len(running)) if last_ms is None or bar.at_ms > last_ms]
    return [ClosedBar(bar.at_ms, *series, bar) for bar in bars]


def _drop_unsent(kernel: Kernel, strategy: str) -> None:
    """Drop its intents that were never sent. Intents that may have been sent are settled as usual."""
    for intent in list(kernel.intents.live.values()):
        if intent.strategy == strategy:
            kernel.intents.live[intent.id] = kernel.execution.sender.give_up(intent)

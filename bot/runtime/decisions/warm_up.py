"""Warm-up: strategies get the bars of the past, and their signals on them are dropped. Events that happen meanwhile wait for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bot import logs
from bot.errors import ApiError
from bot.runtime.bar_feed import BarFeed, YieldToPass, at_once
from bot.runtime.decisions.bar_queue import BarQueue
from bot.runtime.decisions.intent_builder import IntentBuilder
from bot.runtime.model.intents import Intent
from bot.runtime.reconciliation.context import RepairContext
from bot.runtime.strategy_host.event_backlog import EventBacklog
from bot.runtime.strategy_host.host import Decision
from bot.words import many

if TYPE_CHECKING:
    from bot.runtime.strategy_host.instance import StrategyInstance

log = logs.FastLogger()


class WarmUp:
    """`yield_to_pass` makes a pass if one is due. The warm-up calls it often, because it may take long."""

    def __init__(
        self, context: RepairContext, feed: BarFeed, bars: BarQueue, builder: IntentBuilder, yield_to_pass: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._context = context
        self._host = context.strategy_host
        self._feed = feed
        self._bars = bars
        self._builder = builder
        self._yield_to_pass = yield_to_pass

    @property
    def is_ahead(self) -> bool:
        """True if no strategy has seen a bar yet."""
        return not any(len(history) for history in self._feed.histories.values())

    async def run(self) -> None:
        """Show the strategies the bars of the past. The newest bar that was not decided is due.

        Passes run meanwhile, however long it takes. Events wait until the strategies are ready.
        """
        if not self.is_ahead:
            return
        context, host = self._context, self._host
        instances, names = host.instances, [instance.name for instance in host.instances]
        others = [name for name in host.away if name not in names]  # of a reload under way
        host.set_instances(instances, away=[*others, *names])
        context.state.warming = "their bars are asked for"
        try:
            warm = await self._feed.warm_up(
                context.port, context.journal.state.done_until, context.now_ms(), self._yield_to_pass
            )
            for number, closed in enumerate(warm.past, start=1):
                await host.rehearse(closed)
                context.state.warming = f"{number:,} of {many(len(warm.past), 'bar')}"
                await self._yield_to_pass()
            context.position_owners.mend_day()
            context.budget.begin()
            for instance in instances:
                await self.deliver_waiting(instance, self._yield_to_pass)
                del host.away[
                    instance.name
                ]  # From here on it gets events at once: signals of the next one may concern it.
        except ApiError:  # The next try delivers the rest; if the run ends here, the next run does.
            host.set_instances(instances, away=others)
            raise
        finally:
            context.state.warming = None
        host.set_instances(instances, away=others)
        self._bars.due = warm.due

    async def catch_up(self) -> None:
        """Show the past bars of a market that had no candles at the start. It may take many passes; other markets do not wait."""
        bars = self._bars
        past = [closed for closed in bars.catching_up if self._feed.is_past(closed)]
        after = [closed for closed in bars.catching_up if not self._feed.is_past(closed)]
        while past and self._context.budget.has_time():
            await self._host.rehearse(past.pop(0))
        self._context.position_owners.mend_day()
        bars.catching_up = [*past, *after] if past else []
        if not past:
            bars.join(after)

    async def deliver_waiting(self, instance: StrategyInstance, yield_to_pass: YieldToPass = at_once) -> None:
        """Deliver the events that happened while the strategy was being built, and send what it wants on them."""
        backlog = self._host.away.get(instance.name)
        while backlog:
            await self._context.execution.send_all(*await self._deliver_next(instance, backlog))
            await yield_to_pass()

    async def deliver_left(self) -> None:
        """Deliver the events that the last run left, because it ended while it built its strategies. Intents on them are sent later.

        If that takes long, the rest is delivered after the warm-up.
        """
        context, host = self._context, self._host
        began_ms = context.pacer.mono_ms()
        left: dict[str, EventBacklog] = {}
        for instance in host.working():
            host.away.pop(instance.name, None)  # After a start that failed the journal still has it.
            backlog = EventBacklog.of_journal(context.journal, instance.name, context.mirror.epoch)
            for name, why in backlog.damaged.items():
                with context.journal.together():
                    copy = context.journal.state.set_aside(name)
                    message = f"the note of the events that wait for it cannot be read ({why}), kept as {copy}"
                    context.health.incident("strategy.backlog_lost", name, strategy=instance.name, message=message)
            while backlog and not (self.is_ahead and context.budget.is_used_up_since(began_ms)):
                context.execution.forget_unwritten(*await self._deliver_next(instance, backlog))
            if backlog:
                left[instance.name] = backlog
        if left:
            host.away |= left
            host.set_instances(host.instances, away=[*host.away])

    async def _deliver_next(
        self, instance: StrategyInstance, backlog: EventBacklog
    ) -> tuple[list[Intent], list[Intent]]:
        """Deliver the oldest waiting event and remove it, in one transaction. Returns the intents on it, and those of them that are new."""
        journal, epoch = self._context.journal, self._context.mirror.epoch
        event, parts = backlog.first
        decision = Decision()
        await self._host.tell(instance, event, decision, now_ms=self._context.now_ms(), parts=parts)
        intents = self._builder.build(decision.signals, trigger=self._builder.trigger_of(event), at_ms=event.ts)
        backlog.drop_first()
        with journal.together():
            backlog.write(epoch)
            return intents, journal.decided(intents, states=decision.states)

"""Warm-up: strategies get past bars, and their signals are dropped. Events that happen meanwhile wait in backlogs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bot.errors import ApiError
from bot.runtime.account.account import DaemonAccount
from bot.runtime.decisions.bar_queue import BarQueue
from bot.runtime.decisions.intent_builder import IntentBuilder
from bot.runtime.model.intents import Intent
from bot.runtime.passes.bar_feed import YieldToPass, at_once
from bot.runtime.reconciliation.daemon_run import DaemonRun
from bot.runtime.reconciliation.repair_actions import RepairActions
from bot.runtime.strategy_host.event_backlog import EventBacklog
from bot.runtime.strategy_host.host import Decision
from bot.wire.events import model_event
from bot.words import many

if TYPE_CHECKING:
    from bot.runtime.strategy_host.instance import StrategyInstance


class WarmUp:
    """`yield_to_pass` runs a pass if one is due. A warm-up may take long, so it calls `yield_to_pass` often."""

    def __init__(
        self,
        run: DaemonRun,
        account: DaemonAccount,
        actions: RepairActions,
        bars: BarQueue,
        builder: IntentBuilder,
        yield_to_pass: Callable[[], Awaitable[None]],
    ) -> None:
        self._run = run
        self._account = account
        self._actions = actions
        self._host = run.strategy_host
        self._feed = bars.feed
        self._bars = bars
        self._builder = builder
        self._yield_to_pass = yield_to_pass

    @property
    def is_ahead(self) -> bool:
        """True if no strategy has seen a bar yet."""
        return not any(len(history) for history in self._feed.histories.values())

    async def run(self) -> None:
        """Give the strategies the past bars. The newest undecided bar is due afterwards.

        Passes run meanwhile, and events wait until the strategies are ready.
        """
        if not self.is_ahead:
            return
        host = self._host
        instances, names = host.instances, [instance.name for instance in host.instances]
        # The strategies of a reload under way.
        others = [name for name in host.backlogs if name not in names]
        host.set_instances(instances, unready=[*others, *names])
        self._run.state.warming = "fetching bars"
        try:
            warm = await self._feed.warm_up(
                self._actions.port, self._account.journal.state.done_until, self._run.now_ms(), self._yield_to_pass
            )
            for number, closed in enumerate(warm.past, start=1):
                await host.warm_up(closed)
                self._run.state.warming = f"{number:,} of {many(len(warm.past), 'bar')}"
                await self._yield_to_pass()
            self._account.position_owners.mend_day()
            self._run.budget.begin()
            for instance in instances:
                await self.deliver_waiting(instance, self._yield_to_pass)
                # From here the strategy gets events at once, because signals of the next strategy may concern it.
                del host.backlogs[instance.name]
        # The next try delivers the rest; if the run ends here, the next run does.
        except ApiError:
            host.set_instances(instances, unready=others)
            raise
        finally:
            self._run.state.warming = None
        host.set_instances(instances, unready=others)
        self._bars.begin_with(warm.due)

    async def catch_up(self) -> None:
        """Give the strategies the past bars of a market that had no candles at the start.

        This may take many passes; other markets do not wait.
        """
        bars = self._bars
        past = [closed for closed in bars.catching_up if self._feed.is_past(closed)]
        after = [closed for closed in bars.catching_up if not self._feed.is_past(closed)]
        while past and self._run.budget.has_time():
            await self._host.warm_up(past.pop(0))
        self._account.position_owners.mend_day()
        bars.wait_for(past, after)

    async def deliver_waiting(self, instance: StrategyInstance, yield_to_pass: YieldToPass = at_once) -> None:
        """Deliver the events that happened while the strategy was being built, and send the orders that it decides
        on them.
        """
        backlog = self._host.backlogs.get(instance.name)
        while backlog:
            await self._actions.execution.send_all(*await self._deliver_next(instance, backlog))
            await yield_to_pass()

    async def deliver_left(self) -> None:
        """Deliver the events that the last run had not delivered to strategies under construction. Their intents are
        sent later.

        If the delivery takes long, the rest follows after the warm-up.
        """
        host = self._host
        began_ms = self._run.budget.pacer.mono_ms()
        left: dict[str, EventBacklog] = {}
        for instance in host.working():
            # Left by a start that failed; the journal still has it.
            host.backlogs.pop(instance.name, None)
            backlog = EventBacklog.of_journal(self._account.journal, instance.name, self._account.account_state.epoch)
            for name, why in backlog.damaged.items():
                with self._account.journal.together():
                    copy = self._account.journal.state.set_aside(name)
                    message = f"the note with its undelivered events cannot be read ({why}), kept as {copy}"
                    self._run.health.incident("strategy.backlog_lost", name, strategy=instance.name, message=message)
            while backlog and not (self.is_ahead and self._run.budget.is_used_up_since(began_ms)):
                self._actions.intents.forget_unwritten(*await self._deliver_next(instance, backlog))
            if backlog:
                left[instance.name] = backlog
        if left:
            host.backlogs.update(left)
            host.set_instances(host.instances, unready=[*host.backlogs])

    async def _deliver_next(
        self, instance: StrategyInstance, backlog: EventBacklog
    ) -> tuple[list[Intent], list[Intent]]:
        """Deliver the oldest waiting event and remove it, in one transaction.

        Returns the intents on it, and the new ones among them.
        """
        journal, epoch = self._account.journal, self._account.account_state.epoch
        event, parts = backlog.first
        decision = Decision()
        happened = model_event(event)
        if happened is not None:  # Another version may have kept an event that this one does not know.
            await self._host.deliver_to(instance, happened, decision, now_ms=self._run.now_ms(), parts=parts)
        trigger = journal.events.trigger_of(event.id, event.ts)
        intents = self._builder.build(decision.signals, trigger=trigger, at_ms=event.ts)
        backlog.drop_first()
        with journal.together():
            backlog.write(epoch)
            approvals = self._actions.execution.sender.approvals
            return intents, approvals.write_decision(intents, states=decision.states)

"""The kernel: learn what happened, decide on one closed bar, act, learn again. Read `recover`, `cycle` and `step`
first.

The kernel trusts only the journal and the service. Every run begins with `recover`. Unfinished work of a pass is in the
journal, and the next pass continues it. The kernel does not sleep, does not read the machine's clock and does not know
HTTP.

A bar: strategy host -> intent builder (risk engine) -> journal -> execution -> order sender -> port. A fill: port ->
event consumer -> attribution, account state, owner -> strategy host -> journal, all in one transaction a page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from bot.clock import MINUTE_MS
from bot.errors import ApiError, Refusal, is_access_lost
from bot.logs import log
from bot.runtime.account.account import DaemonAccount
from bot.runtime.alerts.health import ENDING, ORDERS, DaemonHealth, key_problem
from bot.runtime.decisions.bar_queue import BarQueue, feed_of
from bot.runtime.decisions.entry_conditions import EntryConditions
from bot.runtime.decisions.event_consumer import EventConsumer, NoticesOf
from bot.runtime.decisions.intent_builder import IntentBuilder
from bot.runtime.decisions.pre_send_check import PreSendCheck
from bot.runtime.decisions.warm_up import WarmUp
from bot.runtime.execution.approvals import Approvals, RunPolicy, run_policy_inline
from bot.runtime.execution.dispatch import side_by_side
from bot.runtime.execution.execution_engine import ExecutionEngine
from bot.runtime.execution.open_intents import SLOW_MS, OpenIntents
from bot.runtime.execution.order_search import OrderSearch
from bot.runtime.execution.order_sender import OrderSender
from bot.runtime.execution.outcome_writer import OutcomeWriter
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.state_store import is_number
from bot.runtime.kernel.upkeep import Upkeep
from bot.runtime.model.intents import Intent
from bot.runtime.model.run_state import RunState
from bot.runtime.passes.bar_feed import ClosedBar, at_once
from bot.runtime.passes.pass_budget import YIELD_MS, PassBudget
from bot.runtime.passes.ports import EventSource, Pacer, VenuePort
from bot.runtime.reconciliation import protection, reconciler, target_orders
from bot.runtime.reconciliation.comparison import Reconciliation
from bot.runtime.reconciliation.daemon_run import DaemonRun, KernelSettings
from bot.runtime.reconciliation.guardians import Guardians, counted
from bot.runtime.reconciliation.order_events import attach_events
from bot.runtime.reconciliation.repair_actions import RepairActions
from bot.runtime.reconciliation.schedule import ComparisonSchedule
from bot.runtime.risk.loss_limits import LossLimits
from bot.runtime.risk.order_builder import Grid
from bot.runtime.risk.protections import Protections
from bot.runtime.risk.risk_engine import RiskEngine, VenueTerms
from bot.runtime.strategy_host.asker import AGENT, Asker, ThreadAsker
from bot.runtime.strategy_host.host import Decision, Run, StrategyHost, StrategySpec, run_inline
from bot.runtime.strategy_host.instance import LogSink
from bot.runtime.strategy_host.timers import Timers

if TYPE_CHECKING:
    from bot.runtime.strategy_host.instance import StrategyInstance
    from bot.wire import AccountSnapshot

# the note of when a journal was begun, by the clock of the service
BEGUN: Final = "begun_ms"
# how far the instant of that note may lie ahead of a later start
BEGUN_AHEAD_MS: Final = 10 * MINUTE_MS
# the note that an earlier run was cut off: the account was not empty when the journal was begun
CUT: Final = "begun_cut"
# Real time after a start in which requests of an earlier run of ours may still arrive.
LATE_MS: Final = MINUTE_MS
# the interface's bound on ?limit
MARKETS_MAX: Final = 250


@dataclass(slots=True)
class Hooks:
    """What a daemon or a session adds to a kernel.

    `run` calls a strategy and `run_policy` its policy: a daemon gives each call a thread and a time limit. `lease` says
    why the dead-man's deadline is uncertain, `schedule` why bars and timers cannot be trusted. `passed` is called at
    the end of each pass with the close of the newest decided bar. `between` runs before each pass that is made during a
    warm-up. `wake` asks for another pass, because a reply came. `new_serial` makes the serial of a guardian's key.
    `asker` answers the questions of strategies; None: in threads. `log_sink` takes the log lines of strategies.

    Of a session in this process: `is_atomic` and `grids` as in VenueTerms, `loses_nothing` as in OpenIntents, and the
    `source` of events that need no pages.
    """

    run: Run = run_inline
    run_policy: RunPolicy = run_policy_inline
    lease: Callable[[], Refusal | None] = lambda: None
    schedule: Callable[[], Refusal | None] = lambda: None
    passed: Callable[[int | None], None] = lambda _at_ms: None
    notices_of: NoticesOf | None = None
    between: Callable[[], Awaitable[None]] = at_once
    wake: Callable[[], None] = lambda: None
    new_serial: Callable[[int], int] = counted
    asker: Asker | None = None
    log_sink: LogSink | None = None
    is_atomic: bool = False
    loses_nothing: bool = False
    grids: Mapping[str, Grid] = field(default_factory=dict)
    source: EventSource | None = None


class Kernel:
    """One run.

    `abreast` requests may be on their way at once; with 1, as in a backtest, the kernel needs no event loop.
    """

    def __init__(
        self,
        *,
        port: VenuePort,
        journal: Journal,
        specs: Sequence[StrategySpec],
        pacer: Pacer,
        settings: KernelSettings | None = None,
        hooks: Hooks | None = None,
        abreast: int = 1,
    ) -> None:
        settings, hooks = settings or KernelSettings(), hooks or Hooks()
        self.port, now_ms = port, port.clock.now_ms
        self.journal = journal
        self.hooks = hooks
        self.budget = PassBudget(pacer, port.clock)
        self.state = RunState()
        feed = feed_of(specs)
        self.intents = intents = OpenIntents(
            journal, self.budget, hooks.wake, abreast, loses_nothing=hooks.loses_nothing
        )
        self.account = account = DaemonAccount(journal, intents.live, feed, now_ms)
        account_state = account.account_state
        limits = {spec.strategy.name: spec.limits for spec in specs}
        self.timers = Timers()
        self.strategy_host = host = StrategyHost(
            specs,
            journal=journal,
            account_state=account_state,
            feed=feed,
            run=hooks.run,
            attribution=account.attribution,
            asker=hooks.asker or ThreadAsker(hooks.wake),
            log_sink=hooks.log_sink,
        )
        self.bars = BarQueue(feed, host)
        wanted, serial = settings.guardians, hooks.new_serial
        self.guardians = guardians = Guardians(
            port=port, journal=journal, account_state=account_state, wanted=wanted, new_serial=serial
        )
        self.health = DaemonHealth(journal=journal, now_ms=now_ms)
        losses = LossLimits(account.attribution, limits, account.position_owners, journal, self.state)
        self.conditions = EntryConditions(
            self.state, journal, account_state, self.health, guardians, losses, hooks.lease, hooks.schedule
        )
        self.risk = RiskEngine(
            account_state,
            limits,
            intents,
            self.conditions,
            account.attribution,
            VenueTerms(account.order_rules, port.clock.speed > 0, hooks.is_atomic, hooks.grids),
            checks_plans=host.checks_plans,
            foreign_positions=settings.foreign_positions,
        )
        self.risk.protect_by(Protections(account, intents.live))
        self.follow_protections(settings)
        self.builder = IntentBuilder(journal, account, self.risk, self.conditions, intents, self.budget, now_ms)
        comparison = ComparisonSchedule(pacer, settings.reconcile_ms)
        run = DaemonRun(self.state, self.budget, self.health, comparison, settings, self.risk, host, now_ms)
        sender = self._order_sender(run)
        self.events = EventConsumer(run, account, sender, guardians, self.builder, hooks.notices_of, hooks.source)
        drain, restart = self.events.drain, self.events.restart
        self.execution = ExecutionEngine(sender, account.order_owners, drain)
        actions = RepairActions(port, guardians, intents, self.execution, drain, restart)
        self.reconciliation = Reconciliation(run, account, actions)
        self.warm_up = WarmUp(run, account, actions, self.bars, self.builder, self._yield_to_pass)
        self.upkeep = Upkeep(run, account, actions)

    def _order_sender(self, run: DaemonRun) -> OrderSender:
        port, journal, intents, risk = self.port, self.journal, self.intents, self.risk
        account_state = self.account.account_state
        check = PreSendCheck(risk, self.conditions, self.strategy_host, port.clock)
        search = OrderSearch(port, account_state, risk, intents)
        attach = partial(attach_events, self.account, run.comparison)
        outcomes = OutcomeWriter(journal, account_state, risk, port.clock, attach)
        approvals = Approvals(
            journal, risk.strategy_limits, intents.live, account_state.marks, port.clock.now_ms, self.hooks.run_policy
        )
        return OrderSender(port, journal, check, search, outcomes, self.budget, intents, approvals)

    def now_ms(self) -> int:
        """Service time."""
        return self.port.clock.now_ms()

    def take_settings(self, settings: KernelSettings) -> None:
        """Follow a changed config from now on. The guardians that it wants are armed by the caller."""
        self.run.settings = settings
        self.risk.treat_foreign_positions(settings.foreign_positions)
        self.run.comparison.compare_every(settings.reconcile_ms)

    @property
    def protections(self) -> Protections:
        """The protections of the config."""
        assert self.risk.protections is not None
        return self.risk.protections

    def follow_protections(self, settings: KernelSettings) -> None:
        """Follow the protections of these settings and of the present limits of the strategies."""
        self.protections.configure(settings.protections, self.risk.strategy_limits.values())

    # -- the run

    async def recover(self) -> None:
        """Read account, events, guardians, open intents and history, in this order.

        Every run begins here; it may be called again.
        """
        state, account = self.state, self.account
        state.ready = False
        self.budget.begin()
        self.state.pass_ended_ms = self.budget.pacer.mono_ms()
        snapshot = await self.port.account()
        if not state.alone_since_ms:
            state.began_ms = self.now_ms()
            state.alone_since_ms = state.began_ms + int(LATE_MS * max(1.0, self.port.clock.speed))
        if not account.order_rules:
            account.learn_markets((await self.port.markets(view="all", limit=MARKETS_MAX)).markets)
        self._check_key(snapshot)
        account.account_state.of_snapshot(snapshot)
        self.intents.reload(account.account_state)
        if not account.account_state.events_named and self.journal.events.has_seen_own_key():
            account.account_state.prove_keys()
        await self.strategy_host.start(now_ms=self.now_ms())
        cursor = self.journal.events.cursor
        if cursor is None:
            self._note_beginning(snapshot)
        self._read_beginning()
        if cursor is None or cursor.epoch != snapshot.epoch or not await reconciler.overlaps(account, self.actions):
            await self.events.restart(snapshot)
        # A strategy may close its position on an event that is delivered now.
        account.position_owners.find_owners()
        await self.warm_up.deliver_left()
        await self.events.drain()
        target_orders.find_entries(self.run, account, self.actions)
        await protection.arm_all(self.run, account, self.guardians)
        await self.events.drain()
        state.ready = True
        await self.execution.settle()
        await self.execution.settle_in_flight(SLOW_MS)
        await self.reconciliation.reconcile()
        await self.warm_up.run()
        self.timers.follow(self.strategy_host.instances, self.journal, now_ms=self.now_ms())
        self.journal.flush()
        log.info(
            "kernel.recovered",
            positions=len(account.account_state.positions),
            orders=len(account.account_state.orders),
            open_intents=len(self.intents.live),
        )

    @property
    def run(self) -> DaemonRun:
        """How far the run is, what is wrong with it, and what its config demands."""
        return self.reconciliation.run

    @property
    def actions(self) -> RepairActions:
        """What reconciliation may do."""
        return self.reconciliation.actions

    @property
    def approvals(self) -> Approvals:
        """Entries that wait for a person or a policy."""
        return self.events.approvals

    def _note_beginning(self, snapshot: AccountSnapshot) -> None:
        """Note when this journal was begun, and whether the account was empty then."""
        stood = bool(snapshot.guardians or snapshot.positions or snapshot.orders)
        with self.journal.together():
            self.journal.state.write_note(BEGUN, str(self.now_ms()))
            self.journal.state.write_note(CUT, str(int(stood)))

    def _read_beginning(self) -> None:
        """Read when this journal was begun.

        A damaged note means the worst: an earlier journal may have sent all that was decided until now.
        """
        now_ms = self.now_ms()
        self.journal.state.set_aside_if_damaged(
            BEGUN, lambda text: is_number(text, now_ms + BEGUN_AHEAD_MS), instead=str(now_ms)
        )
        self.journal.state.set_aside_if_damaged(CUT, lambda text: text in ("0", "1"), instead="1")
        begun_ms, was_cut = int(self.journal.state.note(BEGUN) or 0), self.journal.state.note(CUT) == "1"
        self.execution.sender.search.learn_beginning(begun_ms, lost_requests_may_arrive=was_cut)

    def _check_key(self, snapshot: AccountSnapshot) -> None:
        self.health.key_expiry.see(snapshot)
        problem = key_problem(snapshot)
        if problem is None:
            self.health.restore("scope")
        else:
            self.health.degrade("scope", problem)

    # -- one pass

    async def cycle(self, *, with_bars: bool = True, is_begun: bool = False) -> None:
        """Run one pass: read the events, decide the due bars, settle the intents, reconcile if due.

        A service that is away or refuses a question does not end the pass. Lost access and a bad journal do.
        `is_begun`: the caller has begun the budget of this pass. If the caller has used all of it, the next pass does
        the work and begins at once.
        """
        if not is_begun:
            self.budget.begin()
        if not is_begun or self.budget.may_go_on():
            await self._look_and_act(with_bars=with_bars)
        self.upkeep.run()
        self.health.key_expiry.look(self.now_ms())
        self.journal.flush()
        if not self.is_late:
            self.journal.checkpoint()
        self.state.pass_ended_ms = self.budget.pacer.mono_ms()
        self.hooks.passed(self.state.last_bar_ms)

    async def _look_and_act(self, *, with_bars: bool) -> None:
        hurries = self.state.is_starved
        if hurries:
            # Entries need newer events.
            self.budget.refuse_entries()
        await self.execution.settle_replies(self.budget.may_go_on)
        if hurries:
            await self.execution.settle()
            if not self.reconciliation.repairs_were_long:
                await self.reconciliation.repair()
        else:
            await self.events.drain()
        if with_bars and not self.bars.due and self.budget.has_time():
            self.bars.join(
                await self.bars.feed.poll(
                    self.port,
                    self.journal.state.done_until,
                    self.now_ms(),
                    self.budget.has_time,
                    abreast=self.intents.in_flight.abreast,
                )
            )
        self.state.is_starved = not (hurries or self.budget.has_time())
        if with_bars:
            await self._decide_due()
        await self.execution.settle()
        await self.reconciliation.repair()
        if not hurries:
            await self.reconciliation.reconcile_if_due()
        await self.reconciliation.review_foreign_activity()
        self.health.keep("market:", self.bars.feed.gone)
        self.health.keep(ORDERS, self.intents.without_outcome())

    async def _decide_due(self) -> None:
        """Decide the bars that have closed, and let the timers fire."""
        if self.bars.due and not self.reconciliation.repairs_were_long:
            # The daemon opens nothing while its guardians are not armed.
            await self.reconciliation.repair()
        elif self.bars.due:
            self.reconciliation.forget_long_repairs()
        # A bar that this pass has no time for stays due: no bar is ever skipped.
        while (ready := self._ready()) and self.budget.has_time():
            count = side_by_side(ready, self.strategy_host.listeners()) if self.intents.in_flight.abreast > 1 else 1
            group = ready[:count]
            self.bars.remove(group)
            done = await self._steps(group)
            self.bars.put_back(group[done:])
            if not done:
                break
        if self.bars.catching_up:
            await self.warm_up.catch_up()
        if not self.bars.due:
            await self.fire_timers(self.now_ms())
        await self.take_replies()
        self.conditions.losses.watch(self.now_ms())

    def _ready(self) -> list[ClosedBar]:
        """The bars that may be decided now."""
        return self.bars.ready(self.intents.awaited() if self.bars.due else ())

    @property
    def is_late(self) -> bool:
        """True if bars, orders or events wait that the last pass had no time for.

        The next pass then begins at once, unless the service is away.
        """
        waits = bool(self._ready() or self.bars.catching_up) or self.budget.is_cut_short
        return self.state.is_page_cut or (waits and not self.state.behind)

    async def _yield_to_pass(self) -> None:
        """Run a pass without bars if the last pass ended at least YIELD_MS ago."""
        if self.budget.pacer.mono_ms() - self.state.pass_ended_ms < YIELD_MS:
            return
        try:
            await self.hooks.between()
            await self.cycle(with_bars=False)
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("pass.failed", code=error.code, message=error.message)
            self.state.pass_ended_ms = self.budget.pacer.mono_ms()

    # -- one bar

    async def step(self, closed: ClosedBar) -> bool:
        """Read the events, decide on one closed bar, act, read the events again. False: the events could not be read,
        and the bar stays due.

        After EXITS_WAIT_MS without events the bar is decided all the same: closes of whole positions go, entries are
        refused.
        """
        return await self._steps([closed]) == 1

    async def _steps(self, group: Sequence[ClosedBar]) -> int:
        """Decide bars side by side: the events are read once, one transaction, and the orders leave together.

        Returns how many were decided.
        """
        if not await self.events.drain_or_wait():
            return 0
        await self.fire_timers(group[0].at_ms - 1)
        decided: list[tuple[Decision, ClosedBar]] = []
        for closed in group:
            if decided and not self.budget.has_time():
                break
            log.info(
                "bar.closed", market=closed.market, interval=closed.interval, at_ms=closed.at_ms, close=closed.bar.close
            )
            if self.journal.keeps_traces:
                self.journal.saw(closed.market, closed.interval, closed.at_ms, closed.bar[-5:])
            # A session's clock stands in the millisecond before the close.
            decision = await self.strategy_host.decide(closed, now_ms=max(self.now_ms(), closed.at_ms))
            decided.append((decision, closed))
        await self.act(decided)
        await self.reconciliation.repair()
        self.state.last_bar_ms = group[0].at_ms
        return len(decided)

    async def act(self, decided: Sequence[tuple[Decision, ClosedBar]], *, reads: bool = True) -> None:
        """Check the decisions, write all of them at once, then send what was written.

        `reads`: see `ExecutionEngine.send_all`.
        """
        intents: list[Intent] = []
        states: dict[str, str] = {}
        for decision, closed in decided:
            bar = closed.bar
            # The day had begun before the price of its midnight came.
            if bar.at_ms <= self.account.attribution.day_ms:
                self.account.position_owners.mend_day()
            if self.conditions.losses.is_used:
                self.conditions.losses.watch(self.now_ms(), bar.market)
            built = self.builder.build(decision.signals, trigger=f"bar:{bar.market}:{bar.at_ms}", at_ms=bar.at_ms)
            if built and self.journal.keeps_traces:
                text = json.dumps(bar._asdict() | {"interval": closed.interval})
                for intent in built:
                    self.journal.trace(intent.id, "bar", text, at_ms=bar.at_ms)
            intents += built
            states |= decision.states
        bars = [(closed.market, closed.interval, closed.at_ms) for _, closed in decided]
        fresh = self.events.approvals.write_decision(intents, states=states, bars=bars)
        await self.execution.send_all(intents, fresh, reads=reads)

    async def decide_late(self, instance: StrategyInstance, closed: ClosedBar) -> None:
        """Decide a bar that the other strategies have decided, for a strategy that was being built meanwhile."""
        await self.act([(await self.strategy_host.decide_alone(instance, closed, now_ms=self.now_ms()), closed)])

    async def fire_timers(self, until_ms: int) -> None:
        """Ask the strategies whose timers are due at or before that instant.

        A session calls it when the bars of an instant are decided.
        """
        # Only a sandbox's time goes back.
        if self.port.clock.is_sandbox:
            self.timers.go_back(self.journal, now_ms=self.now_ms())
        for due in self.timers.due(until_ms):
            if any(intent.strategy == due.strategy for intent in self.intents.awaited()):
                # The timer stays due until the strategy's orders have their replies.
                return
            if not self.budget.has_time() or not await self.events.drain_or_wait():
                return
            log.info("timer.fired", strategy=due.strategy, timer=due.name, at_ms=due.at_ms)
            # A session's clock stands in the millisecond before the instant.
            now_ms = max(self.now_ms(), due.at_ms)
            decision = await self.strategy_host.call_one(due.strategy, "on_timer", due.timer, now_ms=now_ms)
            intents = self.builder.build(decision.signals, trigger=due.trigger, at_ms=due.at_ms)
            fresh = self.events.approvals.write_decision(intents, states=decision.states, bars=(due.done,))
            self.timers.fired(due)
            await self.execution.send_all(intents, fresh)

    async def take_replies(self) -> None:
        """Hand strategies the replies to their questions, and act on what they decide."""
        asker = self.strategy_host.asker
        assert asker is not None
        for strategy in asker.answered():
            if any(intent.strategy == strategy for intent in self.intents.awaited()):
                # The bar waits until the strategy's orders have their replies.
                continue
            if not self.budget.has_time() or not await self.events.drain_or_wait():
                return
            reply = asker.take(strategy)
            now_ms = max(self.now_ms(), reply.asked_ms)
            decision = await self.strategy_host.call_one(strategy, "on_reply", reply, now_ms=now_ms)
            intents = self.builder.build(decision.signals, trigger=f"{AGENT}:{reply.cause}", at_ms=reply.asked_ms)
            await self.execution.send_all(
                intents, self.events.approvals.write_decision(intents, states=decision.states)
            )

    # -- the end

    async def cancel_in_flight(self) -> None:
        """Wait for no reply any more. Orders whose requests are on their way are in doubt, as after a crash."""
        await asyncio.gather(*self.intents.in_flight.cancel(), *self.bars.feed.cancel(), return_exceptions=True)

    async def stop(self) -> None:
        """End the run: open nothing more, call on_stop of every strategy, write what waits."""
        self.state.paused = ENDING
        await self.strategy_host.stop(now_ms=self.now_ms())
        self.journal.flush()

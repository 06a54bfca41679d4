"""The kernel: learn what happened, decide on one closed bar, act, learn again. Read `recover`, `cycle` and `step` first.

The kernel trusts only the journal and the service. Every run begins with `recover`. What a pass cannot finish is in the journal, and the
next pass goes on with it. The kernel does not sleep, does not read the machine's clock and does not know HTTP. `run` calls a strategy;
a live daemon gives each call a thread and a time limit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeVar

from bot import logs
from bot.clock import MINUTE_MS
from bot.errors import ApiError, Refusal, Refused, TryLater, is_access_lost
from bot.runtime.account.account_state import Mirror, entry_terms
from bot.runtime.account.attribution import BOOKED, Attribution
from bot.runtime.account.event_logging import tell
from bot.runtime.account.ownership import OrderOwners, PositionOwners
from bot.runtime.alerts.health import ENDING, ORDERS, Health, key_problem
from bot.runtime.bar_feed import BarFeed, Closed, Series, YieldToPass, at_once
from bot.runtime.decisions.bar_queue import BarQueue, wanted_series
from bot.runtime.execution.dispatch import side_by_side
from bot.runtime.execution.execution_engine import SLOW_MS, ExecutionEngine
from bot.runtime.execution.in_flight import InFlight
from bot.runtime.execution.order_sender import OrderSender
from bot.runtime.journal.journal import Journal, Notice
from bot.runtime.journal.retention import Held
from bot.runtime.journal.state_store import is_number
from bot.runtime.model.intents import FIRST_LEG, RUNTIME, Intent, intent_key
from bot.runtime.model.limits import FRESH_INTERVALS, ApprovedOrder, RiskRequest
from bot.runtime.model.positions import Drift, MirrorPosition
from bot.runtime.model.shares import Part
from bot.runtime.pass_budget import BREATH_MS, PassBudget
from bot.runtime.ports import Calm, Pacer, VenuePort
from bot.runtime.reconciliation import protection, reconciler
from bot.runtime.reconciliation.foreign_activity import ForeignActivity, look_closer
from bot.runtime.reconciliation.guardians import DEAD_MAN, Guardians, WantedGuardian, counted
from bot.runtime.reconciliation.reconciler import CursorLost
from bot.runtime.risk.loss_limits import LossLimits
from bot.runtime.risk.pauses import Pauses
from bot.runtime.risk.risk_engine import RiskEngine
from bot.runtime.strategy_host.event_backlog import EventBacklog
from bot.runtime.strategy_host.host import Decision, OwnedSignal, Run, StrategyHost, StrategySpec, run_inline
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.runtime.strategy_host.timers import Timers
from bot.strategy import Bar, Close, Open
from bot.strategy import Intent as Signal
from bot.wire import EVENTS_PAGE_MAX, INTERVAL_MS, Event, bare_coin
from bot.words import many

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot, Plan

log = logs.Quiet()
T = TypeVar("T")

BEGUN: Final = "begun_ms"  # the note of when a journal was begun, by the clock of the service
BEGUN_AHEAD_MS: Final = 10 * MINUTE_MS  # that it may lie ahead of a later start, whose clock was a little behind
CUT: Final = "begun_cut"  # the note that a run before it was cut off: something stood on the account when it was begun
RECONCILE_MS: Final = 3 * MINUTE_MS  # of real time between two comparisons when nothing asks for one
TRIM_MS: Final = MINUTE_MS  # of real time; a look that finds nothing too much is a few questions to an index
ENTRIES_HELD: Final = 200  # of one open position, the newest: one is enough to say whose it is
LATE_MS: Final = MINUTE_MS  # of real time after a start in which requests of an earlier life of ours may still arrive
LOOKS_MAX: Final = 4  # tries to get a snapshot as new as the events; a busier feed waits for the next comparison
MARKETS_MAX: Final = 250  # the interface's bound on ?limit
EXITS_WAIT_MS: Final = (
    6_000  # of real time that a bar waits for events that cannot be read; then it is decided for its exits alone
)
REFUSED_MS: Final = 10_000  # of real time before a comparison that was not answered, or was refused, is asked for again
MEND_MS: Final = 5_000  # of real time between two tries to write the journal's file again


@dataclass(frozen=True, slots=True)
class Settings:
    """What the loop needs of the config. `guardians` has the dead-man under the name DEAD_MAN when there is one."""

    guardians: Sequence[WantedGuardian] = ()
    foreign_positions: str = "ignore"  # adopt | ignore | flatten
    reconcile_ms: int = RECONCILE_MS
    require_protection: bool = True  # of a position whose strategy runs no more; the others' allowances say it too


SCHEDULED: Final = ("bar:", "timer:", "timer.")  # causes that are only as right as the clock


def _allowed() -> Refusal | None:
    return None


def _is_whole(signal: Close) -> bool:
    return signal.usd is None and signal.size is None and signal.fraction in (None, 1)


class Kernel:
    """`lease` answers why the dead-man's deadline is not certain, if so. `schedule` answers why bars and timers are not trusted, if so.
    `passed` is called at the end of each pass with the time of the newest decided bar. `ring` asks for another pass, because a reply came.

    `between` runs before each pass that a start makes while strategies warm up. `new_serial` makes the serial of a guardian's key.
    `abreast` requests may be on their way at once. With 1, as in a backtest, the kernel needs no event loop.
    """

    def __init__(
        self,
        *,
        port: VenuePort,
        journal: Journal,
        specs: Sequence[StrategySpec],
        pacer: Pacer,
        settings: Settings | None = None,
        run: Run = run_inline,
        lease: Callable[[], Refusal | None] = _allowed,
        passed: Callable[[int | None], None] = lambda _at_ms: None,
        notices_of: Callable[[Event, Mapping[str, Part]], Iterable[Notice]] | None = None,
        schedule: Callable[[], Refusal | None] = _allowed,
        between: Callable[[], Awaitable[None]] = at_once,
        abreast: int = 1,
        new_serial: Callable[[int], int] = counted,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        self.port = port
        self.now_ms = port.clock.now_ms
        self.journal = journal
        self.pacer = pacer
        self.budget = PassBudget(pacer, port.clock)
        self.settings = settings if settings is not None else Settings()
        self.lease = lease
        self.schedule = schedule
        self.passed = passed
        self.between = between
        self.notices_of = notices_of
        self.live: dict[str, Intent] = {}  # not final, or accepted and not seen in the events yet
        self.order_owners = OrderOwners(journal, self.live)
        self.mirror = Mirror(self.order_owners.owner_of, self.order_owners.keys_of, self.order_owners.leverage_of)
        self.feed = BarFeed(wanted_series(specs))
        self.pauses = Pauses(journal)
        self.attribution = Attribution.of_journal(
            journal, owner_of=self.order_owners.owner_of, mark_at=self._mark_at, step_of=self._step_of
        )
        self.position_owners = PositionOwners(journal, self.mirror, self.attribution, self.order_owners, self.now_ms)
        self.losses = LossLimits(
            self.attribution,
            lambda: self.risk.strategy_limits,
            self.position_owners.write_attribution,
            journal,
            is_behind=lambda: self.behind or not self.ready,
        )
        self.timers = Timers()
        self.strategy_host = StrategyHost(
            specs, journal=journal, mirror=self.mirror, feed=self.feed, run=run, attribution=self.attribution
        )
        self.bars = BarQueue(self.feed, self.strategy_host)
        self.in_flight = InFlight(ring, SLOW_MS / 1000, abreast)
        self.execution = ExecutionEngine(
            self.live, self.in_flight, journal, self.mirror, self.order_owners, self.budget, port.clock, self.drain
        )  # fmt: skip
        self.risk = RiskEngine(
            self.mirror,
            {one.strategy.name: one.limits for one in specs},
            live=self.live.values,
            entries_stopped=self.entries_stopped,
            in_doubt=self.execution.is_doubtful,
            size_decimals={},
            judges_freshness=port.clock.speed > 0,
            foreign_positions=self.settings.foreign_positions,
            strategy_stopped=self.strategy_stopped,
            share_of=self.attribution.share,
            shares_of=self.attribution.shares_of,
            looks_at_plans=self.strategy_host.looks_at_plans,
        )
        self.sender = OrderSender(
            port=port, journal=journal, mirror=self.mirror, risk=self.risk, pacer=pacer, may_confirm=self._may_confirm,
            time_left_ms=self.budget.entries_left_ms, stopped=self._stopped,
            entry_wait_ms=port.entry_wait_ms, name=self._name, of_its_own=self._of_its_own,
            may_go_on=lambda: self.in_flight.abreast > 1 or self.budget.may_go_on(), ask=self.execution.ask,
        )  # fmt: skip
        self.execution.sender = self.sender
        self.guardians = Guardians(
            port=port, journal=journal, mirror=self.mirror, wanted=self.settings.guardians, new_serial=new_serial
        )
        self.health = Health(journal=journal, now_ms=self.now_ms)
        self.foreign_activity = ForeignActivity()
        self.foreign_known: set[str] = set()
        self.began_ms = 0  # when this run began, by the clock of the service
        # From then on an order that is not in the journal is none of ours, whatever its key.
        self.alone_since_ms = 0
        self.paused: str | None = None  # ENDING, at the end
        self.ready = False  # recovered: positions, guardians and open intents are known
        self.warming: str | None = None  # how far the strategies have come through their past, at a start
        self.behind = False  # the last drain did not reach the end of the feed
        # It was cut because the strategies took the time of the pass: positions are as they were in the midst of a page, and nothing is repaired.
        self.is_page_cut = False
        self.last_bar_ms: int | None = None
        self._reconcile_at_ms = 0
        self._trim_at_ms = 0
        self._passed_ms = 0  # of real time: when the newest pass ended
        self._behind_since_ms: int | None = None
        # The last pass was over when it had asked for its events and bars, as where such questions hang. The next one asks for none before exits
        # and stops, which would wait for ever.
        self._is_starved = False
        # The last pass was over when it had asked for them. The next bars are decided first, whose exits would wait for ever.
        self.repairs_were_long = False
        self._mend_at_ms = 0

    # -- the run

    async def recover(self) -> None:
        """Read account, events, guardians, open intents and history, in this order. Every run begins here; it may be called again."""
        self.ready = False
        self.budget.begin()
        self._passed_ms = self.pacer.mono_ms()
        snapshot = await self.port.account()
        if not self.alone_since_ms:
            self.began_ms = self.now_ms()
            self.alone_since_ms = self.began_ms + int(LATE_MS * max(1.0, self.port.clock.speed))
        await self._learn_markets()
        self._judge_key(snapshot)
        self.mirror.of_snapshot(snapshot)
        self.execution.reload_live()
        if not self.mirror.events_named and self.journal.events.has_seen_own_key():
            self.mirror.keys_proven = self.mirror.events_named = True
        await self.strategy_host.start(now_ms=self.now_ms())
        cursor = self.journal.events.cursor
        if cursor is None:
            stood = bool(snapshot.guardians or snapshot.positions or snapshot.orders)
            with self.journal.together():
                self.journal.state.write_note(BEGUN, str(self.now_ms()))
                self.journal.state.write_note(CUT, str(int(stood)))
        self._learn_beginning()
        if cursor is None or cursor.epoch != snapshot.epoch or not await reconciler.overlaps(self):
            await self._restart(snapshot)
        self.position_owners.find_owners()  # An exit that is wanted on what is told now is of a position of ours.
        await self._deliver_backlog()
        await self.drain()
        await protection.arm_all(self)
        await self.drain()
        self.ready = True
        await self.execution.settle()
        await self.execution.settle_in_flight(SLOW_MS)
        await self.reconcile()
        await self._warm_up()
        self.timers.follow(self.strategy_host.instances, self.journal, now_ms=self.now_ms())
        self.journal.flush()
        log.info(
            "loop.recovered",
            positions=len(self.mirror.positions),
            orders=len(self.mirror.orders),
            open_intents=len(self.live),
        )

    def _learn_beginning(self) -> None:
        """Read when this journal was begun. A damaged note means the worst: an earlier journal may have sent all that was decided until now."""
        now_ms = self.now_ms()
        self.journal.state.set_aside_if_damaged(
            BEGUN, lambda text: is_number(text, now_ms + BEGUN_AHEAD_MS), instead=str(now_ms)
        )
        self.journal.state.set_aside_if_damaged(CUT, lambda text: text in ("0", "1"), instead="1")
        self.sender.begun_ms = int(self.journal.state.note(BEGUN) or 0)
        self.sender.is_cut = self.journal.state.note(CUT) == "1"

    async def cycle(self, *, with_bars: bool = True, is_begun: bool = False) -> None:
        """Run one pass: read the events, decide the due bars, settle the intents, reconcile if due.

        A service that is away or refuses a question does not end the pass. Lost access and a bad journal do. `is_begun`: the caller has
        begun the budget of this pass. If the caller has used all of it, the next pass does the work and begins at once.
        """
        if not is_begun:
            self.budget.begin()
        if not is_begun or self.budget.may_go_on():
            await self._look_and_act(with_bars=with_bars)
        self._mend()
        self._housekeep()
        self.journal.flush()
        if not self.is_late:
            self.journal.checkpoint()
        self._passed_ms = self.pacer.mono_ms()
        self.passed(self.last_bar_ms)

    async def _look_and_act(self, *, with_bars: bool) -> None:
        hurries = self._is_starved
        self.budget.takes_entries = not hurries  # What may be opened is judged on newer events.
        await self.execution.settle_replies(self.budget.may_go_on)
        if hurries:
            await self.execution.settle()
            if not self.repairs_were_long:
                await repairs_when_up(self)
        else:
            await self.drain()
        if with_bars and not self.bars.due and self.budget.has_time():
            found = await self.feed.poll(
                self.port,
                self.journal.state.done_until,
                self.now_ms(),
                self.budget.has_time,
                abreast=self.in_flight.abreast,
            )
            self.bars.join(found)
        self._is_starved = not (hurries or self.budget.has_time())
        if with_bars:
            await self._decide_due()
        await self.execution.settle()
        await repairs_when_up(self)
        if self.wants_comparison and self.budget.has_time() and not hurries:
            try:
                await self.reconcile()
            except ApiError as error:
                if is_access_lost(error):
                    raise
                log.warning("reconcile.postponed", code=error.code, message=error.message)
                if isinstance(error, Refused):  # Not away: what is held may differ from what we believe.
                    self.health.degrade(
                        "reconcile", f"the service refuses a comparison ({error.code}): {error.message}"
                    )
                self.compare_soon()
        await self._look_closer()
        self.health.keep("market:", self.feed.gone)
        self.health.keep(ORDERS, self.execution.without_outcome())

    async def _decide_due(self) -> None:
        """Decide the bars that have closed, and let the timers fire."""
        if self.bars.due and not self.repairs_were_long:
            await repairs_when_up(self)  # Guardians stand again before anything is decided, or it would be refused.
        elif self.bars.due:
            self.repairs_were_long = False
        # What there was no time for stays due: no bar is ever skipped.
        while (ready := self._ready()) and self.budget.has_time():
            group = ready[: side_by_side(ready, self.strategy_host.listeners()) if self.in_flight.abreast > 1 else 1]
            self.bars.remove(group)
            done = await self._steps(group)
            self.bars.put_back(group[done:])
            if not done:
                break
        if self.bars.catching_up:
            await self._live_through()
        if not self.bars.due:
            await self.fire_timers(self.now_ms())
        self.losses.watch(self.now_ms())

    async def _live_through(self) -> None:
        """Let strategies see the past of a market that had no candles at the start. It may take many passes; other markets do not wait."""
        past = [closed for closed in self.bars.catching_up if self.feed.is_past(closed)]
        after = [closed for closed in self.bars.catching_up if not self.feed.is_past(closed)]
        while past and self.budget.has_time():
            await self.strategy_host.rehearse(past.pop(0))
        self.position_owners.mend_day()
        self.bars.catching_up = [*past, *after] if past else []
        if not past:
            self.bars.join(after)

    async def step(self, closed: Closed) -> bool:
        """Read the events, decide on one closed bar, act, read the events again. False: the events could not be read, and the bar stays due.

        After EXITS_WAIT_MS without events the bar is decided all the same: closes of whole positions go, entries are refused.
        """
        return await self._steps([closed]) == 1

    async def _steps(self, group: Sequence[Closed]) -> int:
        """Decide bars side by side: the events are read once, one transaction, and the orders leave together. Returns how many were decided."""
        if not await self.drain() and not self._behind_for_long():
            return 0
        await self.fire_timers(group[0].at_ms - 1)
        decided: list[tuple[Decision, Closed]] = []
        for closed in group:
            if decided and not self.budget.has_time():
                break
            log.info(
                "bar.closed", market=closed.market, interval=closed.interval, at_ms=closed.at_ms, close=closed.bar.close
            )
            # As in `fire_timers`: a session's clock stands in the millisecond before.
            decision = await self.strategy_host.decide(closed, now_ms=max(self.now_ms(), closed.at_ms))
            decided.append((decision, closed))
        await self._act_on(decided)
        await repairs_when_up(self)
        self.last_bar_ms = group[0].at_ms
        return len(decided)

    async def cancel_in_flight(self) -> None:
        """Wait for no reply any more. Orders whose requests are on their way are in doubt, as after a crash."""
        await asyncio.gather(*self.in_flight.cancel(), *self.feed.cancel(), return_exceptions=True)

    def _ready(self) -> list[Closed]:
        """The bars that may be decided now."""
        return self.bars.ready(self.execution.awaited() if self.bars.due else ())

    async def reconcile(self) -> list[Drift] | None:
        """Compare with the service and repair. Returns what differed; None if nothing could be compared.

        The time of the next comparison is set first, so that a repair can bring it forward.
        """
        self._reconcile_at_ms = self.pacer.mono_ms() + self.settings.reconcile_ms
        drifts: list[Drift] | None
        try:
            snapshot = await self._aligned_snapshot()
        except CursorLost as lost:
            log.warning("drift.cursor_lost", message=lost.why)
            await self._restart(lost.snapshot if lost.snapshot is not None else await self.port.account())
            drifts = [lost.drift]
        else:
            drifts = None if snapshot is None else await reconciler.reconcile(self, snapshot)
        if drifts is None:
            self.compare_soon()
        else:
            self.health.restore("reconcile")
        await self.guardians.retire()
        await self.execution.send_replies()
        return drifts

    async def compare(self) -> list[Drift]:
        """What `reconcile` would find now. Repairs nothing, but reads the events first."""
        try:
            snapshot = await self._aligned_snapshot(needs_all_events=False)
        except CursorLost as lost:
            return [lost.drift]
        if snapshot is None:
            raise TryLater("busy", "events keep coming faster than they can be compared; ask again")
        return reconciler.differences(self, snapshot)

    async def _aligned_snapshot(self, *, needs_all_events: bool = True) -> AccountSnapshot | None:
        """A snapshot that is as new as the events that were read. None if there is none: events keep coming, or could not be read.

        `needs_all_events`: give up when the events cannot be read to their end. Raises CursorLost when events are missing.
        """
        if not await reconciler.overlaps(self):
            raise CursorLost("the event before the cursor is not the one that we took")
        for _ in range(LOOKS_MAX):
            if not await self.drain() and needs_all_events:
                return None
            snapshot = await self.port.account()
            cursor = self.journal.events.cursor
            if cursor is None or cursor.epoch != snapshot.epoch:
                raise CursorLost("the account was reset", snapshot)
            if snapshot.last_event_id == cursor.last_id:
                return snapshot
        if needs_all_events:
            log.info("reconcile.postponed", why="events keep coming")
        return None

    async def _restart(self, snapshot: AccountSnapshot) -> None:
        """Begin the events anew at this snapshot."""
        if await reconciler.restart(self, snapshot):
            self.foreign_activity.clear()

    @property
    def foreign_positions(self) -> str:
        """What the config says about positions of others: adopt, ignore or flatten."""
        return self.settings.foreign_positions

    @property
    def wants_comparison(self) -> bool:
        """True if it is time to compare with the service. It is so at once when somebody else acts on the account."""
        return self.pacer.mono_ms() >= self._reconcile_at_ms

    def compare_soon(self) -> None:
        """Bring the next comparison forward, after one that failed or whose repairs had no time."""
        self._reconcile_at_ms = min(self._reconcile_at_ms, self.pacer.mono_ms() + REFUSED_MS)

    def look_again(self) -> None:
        """Compare in the next pass, because the strategies have changed: a position of nobody may belong to one of them now."""
        self.foreign_known.clear()
        self._reconcile_at_ms = 0

    async def stop(self) -> None:
        """End the run: open nothing more, call on_stop of every strategy, write what waits."""
        self.paused = ENDING
        await self.strategy_host.stop(now_ms=self.now_ms())
        self.journal.flush()

    @property
    def is_late(self) -> bool:
        """True if bars, orders or events wait that the last pass had no time for. The next pass then begins at once, unless the service is away."""
        waits = bool(self._ready() or self.bars.catching_up) or self.budget.is_cut_short
        return self.is_page_cut or (waits and not self.behind)

    # -- deciding

    def has_bounds(self, series: Series) -> bool:
        """Whether anything of our own ends `decide_run` there, besides the band that it is given."""
        return self.timers.next_ms is not None or self.losses.has_limits(series.market)

    def decide_run(
        self, series: Series, bars: Iterator[Bar], calm: Calm, seen: Bar | None = None
    ) -> tuple[Bar | None, Decision | None]:
        """A session's hot loop; see StrategyHost.decide_run. Live goes through `step`, one bar at a time.

        It ends before the next timer and before a close that would reach a daily loss: such a bar goes through `step`. `seen`, which
        comes before them all, is decided wherever it lies: only for a series that has no bounds of ours.
        """
        if self.timers.next_ms is not None and self.timers.next_ms < calm.until_ms:
            calm = calm._replace(until_ms=self.timers.next_ms)
        return self.strategy_host.decide_run(series, bars, self.losses.narrowed(series, calm), seen)

    async def fire_timers(self, until_ms: int) -> None:
        """Ask the strategies whose timers are due at or before that instant. A session calls it when the bars of an instant are decided."""
        if self.port.clock.is_sandbox:  # No other service's time goes back: a clock that does is this machine's.
            self.timers.go_back(self.journal, now_ms=self.now_ms())
        for due in self.timers.due(until_ms):
            if any(one.strategy == due.strategy for one in self.execution.awaited()):
                return  # It stays due, until it is known what the strategy has.
            if not self.budget.has_time() or not (await self.drain() or self._behind_for_long()):
                return
            log.info("timer.fired", strategy=due.strategy, timer=due.name, at_ms=due.at_ms)
            # A session's clock stands in the millisecond before the instant of its bars, which is what they are told.
            decision = await self.strategy_host.ring(due, now_ms=max(self.now_ms(), due.at_ms))
            intents = self._judge(decision.signals, trigger=due.trigger, at_ms=due.at_ms)
            fresh = self.journal.decided(intents, states=decision.states, bars=(due.done,))
            self.timers.fired(due)
            await self.execution.send_all(intents, fresh)

    async def decide_late(self, instance: StrategyInstance, closed: Closed) -> None:
        """A bar that the others have decided, for a strategy that was being built meanwhile."""
        await self.act(await self.strategy_host.decide_alone(instance, closed, now_ms=self.now_ms()), closed)

    async def tell_late(self, instance: StrategyInstance, yield_to_pass: YieldToPass = at_once) -> None:
        """What has happened to a strategy while it was being built."""
        waiting = self.strategy_host.away.get(instance.name)
        while waiting:
            await self.execution.send_all(*await self._tell_next(instance, waiting))
            await yield_to_pass()

    async def _deliver_backlog(self) -> None:
        """What the last run could not tell any more, because it was ended while it built them. What they want leaves when it may.

        Where that takes long, the rest is told when they have lived through their past.
        """
        began_ms = self.pacer.mono_ms()
        left: dict[str, EventBacklog] = {}
        for instance in self.strategy_host.working():
            self.strategy_host.away.pop(
                instance.name, None
            )  # Of a start that is tried again: the journal has what it left.
            waiting = EventBacklog.of_journal(self.journal, instance.name, self.mirror.epoch)
            for name, why in waiting.damaged.items():
                with self.journal.together():
                    said = f"what had happened while it was being built stands in a note that cannot be read ({why}), kept as {self.journal.state.set_aside(name)}"
                    self.health.incident("strategy.backlog_lost", name, strategy=instance.name, message=said)
            while waiting and not (self._will_warm_up() and self.budget.is_used_up_since(began_ms)):
                self.execution.forget_unwritten(*await self._tell_next(instance, waiting))
            if waiting:
                left[instance.name] = waiting
        if left:
            self.strategy_host.away |= left
            self.strategy_host.set_instances(self.strategy_host.instances, away=[*self.strategy_host.away])

    async def _tell_next(self, instance: StrategyInstance, waiting: EventBacklog) -> tuple[list[Intent], list[Intent]]:
        """The first that waits, told and crossed off in one transaction. What it wants, and which of that is new."""
        event, parts = waiting.first
        decision = Decision()
        await self.strategy_host.tell(instance, event, decision, now_ms=self.now_ms(), parts=parts)
        intents = self._judge(decision.signals, trigger=self._cause(event), at_ms=event.ts)
        waiting.drop_first()
        with self.journal.together():
            waiting.write(self.mirror.epoch)
            return intents, self.journal.decided(intents, states=decision.states)

    async def act(self, decision: Decision, closed: Closed) -> None:
        """Check the decision, write all of it at once, then send what was written."""
        await self._act_on([(decision, closed)])

    async def _act_on(self, decided: Sequence[tuple[Decision, Closed]]) -> None:
        intents: list[Intent] = []
        states: dict[str, str] = {}
        for decision, closed in decided:
            bar = closed.bar
            if bar.at_ms <= self.attribution.day_ms:  # The day had begun before the price of its midnight came.
                self.position_owners.mend_day()
            self.losses.watch(self.now_ms(), bar.market)
            judged = self._judge(decision.signals, trigger=f"bar:{bar.market}:{bar.at_ms}", at_ms=bar.at_ms)
            if judged and self.journal.keeps_traces:
                text = json.dumps(bar._asdict() | {"interval": closed.interval})
                for intent in judged:
                    self.journal.trace(intent.id, "bar", text, at_ms=bar.at_ms)
            intents += judged
            states |= decision.states
        bars = [(closed.market, closed.interval, closed.at_ms) for _, closed in decided]
        await self.execution.send_all(intents, self.journal.decided(intents, states=states, bars=bars))

    # -- learning

    async def drain(self) -> bool:
        """Read every event there is. False if the service did not answer, or if the strategies took the time of the pass.

        After False nothing is opened until the events could be read.
        """
        self.is_page_cut = False
        try:
            try:
                self.is_page_cut = not await self._pages()
            except Refused as error:
                if not reconciler.is_cursor_lost(error):
                    raise
                log.warning("drift.cursor_lost", message=error.message)
                await self._restart(await self.port.account())
        except ApiError as error:
            if is_access_lost(error):
                raise
            self.behind = True
            if self._behind_since_ms is None:
                self._behind_since_ms = self.pacer.mono_ms()
            log.warning("feed.behind", code=error.code, message=error.message)
            return False
        self.behind = self.is_page_cut
        self._behind_since_ms = None
        if self.is_page_cut:
            return False
        self.execution.learn_from_events()
        return True

    async def _pages(self) -> bool:
        """Read page after page. False: the pass had no time for all of them."""
        while True:
            cursor = self.journal.events.cursor
            assert cursor is not None, "recover sets the cursor"
            events = (await self.port.events(cursor.last_id, limit=EVENTS_PAGE_MAX)).events
            for event in events:
                if event.type == "account" and _begins_epoch(event, cursor.epoch):
                    # Nothing of the page is taken: were the cursor past it and the snapshot lost, the reset would be forgotten.
                    await self._restart(await self.port.account())
                    return True
            # The cursor is what was taken, whatever else the page says is the last.
            if events and not await self._take(events, events[-1].id, cursor.epoch):
                return False
            if len(events) < EVENTS_PAGE_MAX or events[-1].id == cursor.last_id:
                return True

    async def _take(self, events: Sequence[Event], last_id: str, epoch: int) -> bool:
        """Apply one page, call the strategies, and write the page with all that it changed in one transaction.

        False: only a part of the page, because a strategy took the time of the pass.
        """
        fresh = self.journal.events.unseen(events)
        if not self.mirror.events_named:
            fresh = self.mirror.named(fresh)
        is_written = False
        self.attribution.begin_page()
        try:
            opened, is_whole = await self._fold(fresh, last_id, epoch)
            is_written = True
        finally:
            self.attribution.end_page(is_written=is_written)
        if opened:
            self.execution.replies += opened
        for position in self.mirror.positions.values():
            if position.owner is None and position.market not in self.foreign_known:
                self._reconcile_at_ms = 0  # Another hand is on the account: the end of this pass looks closer.
        return is_whole

    async def _fold(self, fresh: Sequence[Event], last_id: str, epoch: int) -> tuple[list[Intent], bool]:
        decision: Decision | None = None
        intents: list[Intent] = []
        notices: list[Notice] = []
        heard, is_said = self.strategy_host.heard, logs.is_said(logs.INFO)
        began_ms, taken = self.pacer.mono_ms(), len(fresh)
        for n, event in enumerate(fresh, start=1):
            parts: Mapping[str, Part] = {}
            if event.type in BOOKED:
                parts = self.attribution.apply(event)
                self.mirror.apply(event)
                self.position_owners.pass_on(event.coin)
            else:
                self.mirror.apply(event)
            self.foreign_activity.see(event, self.order_owners.owner_of)
            if self.notices_of is not None:
                notices += self.notices_of(event, parts)
            if is_said:
                tell(event)
            if event.type not in heard:  # As most are: then nothing is built for nobody.
                continue
            decision = decision or Decision()
            signals = await self.strategy_host.hear(event, decision, now_ms=self.now_ms(), parts=parts)
            if signals:
                intents += self._judge(signals, trigger=self._cause(event), at_ms=event.ts)
            if n < taken and self.budget.is_used_up_since(began_ms):
                fresh, last_id = fresh[:n], event.id
                break
        with self.journal.together() if self.strategy_host.away else nullcontext():
            for waiting in self.strategy_host.away.values():
                waiting.write(epoch)
            opened = self.journal.take(
                fresh, last_id, epoch=epoch, states=None if decision is None else decision.states, intents=intents, notices=notices,
                attribution=self.attribution.changes(), now_ms=self.now_ms(),
            )  # fmt: skip
        self.execution.forget_unwritten(intents, opened)
        return opened, len(fresh) == taken

    # -- judging and sending

    def _cause(self, event: Event) -> str:
        """Where the service went back and gives an id again, what was wanted on the first one has the keys of the id alone."""
        return f"event:{event.id}:{event.ts}" if event.id in self.journal.events.reused_ids else f"event:{event.id}"

    def _judge(self, signals: Sequence[OwnedSignal], *, trigger: str, at_ms: int) -> list[Intent]:
        """The gate's answer to each wish: an intent, or a no that is kept."""
        intents: list[Intent] = []
        is_said = logs.is_said(logs.INFO)
        ordinals: dict[str, int] = {}
        closing: set[str] = set()
        now_ms = self.now_ms()
        for instance, signal in signals:
            ordinal = ordinals[instance.name] = ordinals.get(instance.name, -1) + 1
            market = signal.market or ""
            mark = self.mirror.marks.get(market)
            price = None if mark is None else Decimal(repr(mark))
            answer = self._not_now(signal, trigger) or self.risk.judge(
                # As in `fire_timers`: the bar of midnight is of the day that begins.
                instance.name,
                RiskRequest(signal, at_ms, max(now_ms, at_ms), price, frozenset(closing)),
            )
            if isinstance(answer, Refusal):
                self.journal.refused(
                    answer, strategy=instance.name, market=market, trigger=trigger, ordinal=ordinal, at_ms=now_ms
                )
                log.warning(
                    "intent.refused", strategy=instance.name, market=market, code=answer.code, message=answer.message
                )
                continue
            if isinstance(signal, Close) and signal.fraction is None and signal.usd is None and signal.size is None:
                closing.add(market)
            intent = self._intent(instance, answer, trigger=trigger, ordinal=ordinal, now_ms=now_ms)
            self.live.setdefault(intent.id, intent)
            self.order_owners.by_key[intent.id] = instance.name
            intents.append(intent)
            if self.journal.keeps_traces:
                self.journal.trace(intent.id, "wish", json.dumps({"wish": str(signal)}), at_ms=now_ms)
            if is_said:
                log.info(
                    "intent.decided",
                    intent=intent.id,
                    strategy=instance.name,
                    market=market,
                    action=intent.action,
                    signal=str(signal),
                )
        return intents

    def _intent(
        self, instance: StrategyInstance, approved: ApprovedOrder, *, trigger: str, ordinal: int, now_ms: int
    ) -> Intent:
        epoch = self.mirror.epoch
        key = intent_key(
            address=self.journal.address, epoch=epoch, strategy=instance.name, market=approved.market, trigger=trigger, ordinal=ordinal,
            leg=FIRST_LEG[approved.action],
        )  # fmt: skip
        return Intent(
            id=key, strategy=instance.name, market=approved.market, action=approved.action, path=approved.path, trigger=trigger,
            ordinal=ordinal, leg=FIRST_LEG[approved.action], epoch=epoch, body=approved.request.body() if self.journal.keeps_bodies else b"", request=approved.request,
            not_after_ms=now_ms + self.budget.hold_ms(FRESH_INTERVALS * INTERVAL_MS[instance.interval]), opened_ms=now_ms,
            notional_usd=approved.notional_usd,
        )  # fmt: skip

    def _name(self, done: Intent) -> None:
        """Its events came before the answer that says which trade it is, and show no key: they, and what they opened, are ours all the same."""
        events = self.journal.events.attach_key(done)
        self.attribution.name(map(Event.model_validate, events), done.strategy)
        self.position_owners.write_attribution()
        if events:
            self.foreign_known.discard(done.market)
            self._reconcile_at_ms = 0  # It takes the position and the orders for ours.

    # -- what the gate and the repairs ask

    def entries_stopped(self, now_ms: int) -> Refusal | None:
        """Why nothing may be opened now, in any market."""
        if not self.ready:
            return Refusal("not_ready", "the run has not recovered yet", {"action": "wait"})
        if self.paused is not None:
            return Refusal("paused", self.paused)
        if self.behind:
            return Refusal("behind", "the service's events could not be read to their end", {"action": "wait"})
        if self.journal.fault is not None:
            return Refusal("journal_fault", f"closes only: {self.journal.fault}", {"action": "wait"})
        if self.health.degraded and (no := self.health.no_entry()) is not None:
            return no
        fallen = self.guardians.fallen()
        if fallen:
            code = "dead_man_gone" if fallen[0].name == DEAD_MAN else "guardian_gone"
            return Refusal(
                code,
                f"guardian {fallen[0].name} of the config does not stand; it is armed anew first",
                {"action": "wait"},
            )
        return self.lease()

    def strategy_stopped(self, strategy: str, now_ms: int) -> Refusal | None:
        """Why this strategy may open nothing just now."""
        return self.pauses.refusal(strategy) or self.losses.refusal(strategy, now_ms)

    @property
    def degraded(self) -> dict[str, str]:
        """Reason -> sentence, while there is one that keeps entries out; a reason of one market ends in its name."""
        return self.health.degraded

    def _not_now(self, signal: Signal, trigger: str) -> Refusal | None:
        """Why the daemon, and not a risk rule, refuses a signal."""
        if isinstance(signal, Open):
            return self._no_entry(signal.market, trigger)
        if isinstance(signal, Close) and not _is_whole(signal):
            if self.behind:
                return Refusal(
                    "behind", "a part of a position is not closed while the events cannot be read; all of it is"
                )
            if self.journal.fault is not None and not self.mirror.keys_proven:
                return Refusal(
                    "journal_fault", "a part cannot be closed exactly once without the journal; all of it can"
                )
        return None

    def _no_entry(self, market: str, trigger: str) -> Refusal | None:
        no = self.health.no_entry(market) if self.health.degraded else None
        return no if no is not None or not trigger.startswith(SCHEDULED) else self.schedule()

    def _judge_key(self, snapshot: AccountSnapshot) -> None:
        problem = key_problem(snapshot)
        if problem is None:
            self.health.restore("scope")
        else:
            self.health.degrade("scope", problem)

    def _stopped(self, intent: Intent) -> Refusal | None:
        """Why an entry must not be sent. Asked right before it is sent."""
        return self.strategy_host.no_entry(intent.strategy) or self._no_entry(intent.market, intent.trigger)

    def _of_its_own(self, intent: Intent) -> Refusal | None:
        """Why only this strategy may not send an entry, while others in its market may."""
        return self.strategy_host.no_entry(intent.strategy) or self.risk.of_its_own(intent, self.now_ms())

    def cursor_lag_s(self) -> float:
        """How long the events could not be read to their end, of real time; 0 when they could."""
        since_ms = self._behind_since_ms
        return 0.0 if since_ms is None else (self.pacer.mono_ms() - since_ms) / 1000

    def _behind_for_long(self) -> bool:
        since_ms = self._behind_since_ms
        return self.ready and since_ms is not None and self.pacer.mono_ms() - since_ms >= EXITS_WAIT_MS

    async def _look_closer(self) -> None:
        try:
            await look_closer(self.foreign_activity, self)
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("foreign_activity.postponed", code=error.code, message=error.message)
            if isinstance(error, Refused):  # Who else trades here is not known, and that may stay so.
                self.health.degrade(
                    "foreign_activity", f"the service refuses its trades ({error.code}): {error.message}"
                )
        else:
            self.health.restore("foreign_activity")

    def _mend(self) -> None:
        """Notice that the journal's file is gone, and try to write it again every MEND_MS."""
        self.journal.check_file(now_ms=self.now_ms())
        fault, now_ms = self.journal.fault, self.pacer.mono_ms()
        if fault is None:
            return
        self.health.degrade("journal", fault)
        if now_ms >= self._mend_at_ms:
            self._mend_at_ms = now_ms + MEND_MS
            if self.journal.mend():
                self.health.restore("journal")

    def _step_of(self, market: str) -> Decimal:
        return self.risk.step(market)

    def _mark_at(self, market: str, at_ms: int | None) -> Decimal | None:
        """The close of the last bar by that instant, as far back as the bars are kept; else the mark as it is."""
        found: float | None = None
        if at_ms is not None:
            newest = -1
            for series, history in self.feed.histories.items():
                past = history.close_at(at_ms) if series.market == market else None
                if past is not None and past[0] > newest:
                    newest, found = past
        mark = self.mirror.marks.get(market) if found is None else found
        return None if mark is None else Decimal(repr(mark))

    def requires_protection(self, position: MirrorPosition) -> bool:
        limits = self.risk.strategy_limits.get(position.owner or "")
        return self.settings.require_protection if limits is None else limits.require_protection

    async def _may_confirm(self, intent: Intent, plan: Plan) -> bool:
        return intent.strategy == RUNTIME or await self.strategy_host.may_confirm(intent.strategy, plan)

    # -- bars and rest

    async def _warm_up(self) -> None:
        """Show the strategies the bars of the past and drop their signals. The newest bar that was not decided is due.

        Passes run meanwhile, however long it takes. Events wait until the strategies are ready.
        """
        if not self._will_warm_up():
            return
        instances, names = self.strategy_host.instances, [instance.name for instance in self.strategy_host.instances]
        others = [name for name in self.strategy_host.away if name not in names]  # of a reload under way
        self.strategy_host.set_instances(instances, away=[*others, *names])
        self.warming = "their bars are asked for"
        try:
            warm = await self.feed.warm_up(self.port, self.journal.state.done_until, self.now_ms(), self._watch_over)
            for number, closed in enumerate(warm.past, start=1):
                await self.strategy_host.rehearse(closed)
                self.warming = f"{number:,} of {many(len(warm.past), 'bar')}"
                await self._watch_over()
            self.position_owners.mend_day()
            self.budget.begin()
            for instance in instances:
                await self.tell_late(instance, self._watch_over)
                del self.strategy_host.away[instance.name]  # It hears again: what the next one does may concern it.
        except ApiError:  # The next try tells what waits. Where the run ends here, the next run does.
            self.strategy_host.set_instances(instances, away=others)
            raise
        finally:
            self.warming = None
        self.strategy_host.set_instances(instances, away=others)
        self.bars.due = warm.due

    def _will_warm_up(self) -> bool:
        return not any(len(history) for history in self.feed.histories.values())

    async def _watch_over(self) -> None:
        """Run a pass without bars if the last pass ended at least BREATH_MS ago."""
        if self.pacer.mono_ms() - self._passed_ms < BREATH_MS:
            return
        try:
            await self.between()
            await self.cycle(with_bars=False)
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("pass.failed", code=error.code, message=error.message)
            self._passed_ms = self.pacer.mono_ms()

    async def _learn_markets(self) -> None:
        if not self.risk.size_decimals:
            answer = await self.port.markets(view="all", limit=MARKETS_MAX)
            self.risk.size_decimals = {bare_coin(one.coin): one.sz_decimals for one in answer.markets}
            self.mirror.terms = {bare_coin(one.coin): entry_terms(one) for one in answer.markets}

    def _housekeep(self) -> None:
        now_ms = self.pacer.mono_ms()
        is_known = not self.behind and self.journal.fault is None  # what the account holds, which keeps its keys
        if is_known and now_ms >= self._trim_at_ms:
            self._trim_at_ms = now_ms + TRIM_MS
            self.journal.trim(self.held, now_ms=self.now_ms())
            self.order_owners.forget_oldest()
            self.sender.forget(self.live)
            self.guardians.forget(self.mirror.positions)

    def held(self) -> Held:
        """What the journal must not forget, because the account has it."""
        positions = {one.market: one.opened_ms for one in self.mirror.positions.values()}
        keys = {order.key for order in self.mirror.orders.values() if order.key is not None} | {*self.live}
        for market, opened_ms in positions.items():
            keys.update(
                self.journal.events.entry_keys(market, epoch=self.mirror.epoch, since_ms=opened_ms)[-ENTRIES_HELD:]
            )
        return Held(frozenset(keys), positions)


async def repairs_when_up(kernel: Kernel) -> None:
    """Stops and guardians, before a decision and right after acting; a service that is away is asked again at the end of the pass."""
    if not kernel.budget.has_time() or kernel.is_page_cut or protection.nothing_to_do(kernel):
        return
    try:
        await protection.protect(kernel)
        if kernel.budget.has_time():
            await protection.stand(kernel)
    except ApiError as error:
        if is_access_lost(error):
            raise
        log.warning("repair.postponed", code=error.code, message=error.message)
    kernel.repairs_were_long = not kernel.budget.has_time()


def _begins_epoch(event: Event, epoch: int) -> bool:
    """A reset that came as an event, before the feed could say that our cursor is gone."""
    return (event.type, event.subtype) == ("account", "reset") and event.data.epoch != epoch

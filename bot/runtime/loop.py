"""The loop: learn what happened, decide on one closed bar, act, learn again. Read this first; `recover`, `cycle` and `step` are the whole daemon.

It trusts only what the journal holds and what the service says. Every run begins with `recover`, there is no other
start. What a pass cannot settle stays written, and the next pass goes on; nothing in here sleeps, reads the machine's
clock or knows HTTP. Strategies are called through `run`, which live gives each call a thread and a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import structlog

from bot.clock import HOUR_MS, MINUTE_MS
from bot.errors import OutcomeUnknown, Refusal, Refused, TryLater
from bot.runtime import reconcile as repairs
from bot.runtime.arming import DEAD_MAN, Arming, Wanted
from bot.runtime.desk import Decision, Desk, Placed, Run, Wished, run_inline
from bot.runtime.feed import Closed, Feed, Series
from bot.runtime.gate import FRESH_INTERVALS, Ask, Gate, Permit
from bot.runtime.intents import FINAL, IN_DOUBT, Intent, intent_key
from bot.runtime.journal import Journal, Notice
from bot.runtime.mirror import Mirror, MirrorPosition
from bot.runtime.ports import Calm, Pacer, VenuePort
from bot.runtime.seats import Seat
from bot.runtime.send import Sender
from bot.runtime.telling import tell
from bot.strategy import Bar, Close
from bot.strategy.history import HISTORY_BARS
from bot.wire import EVENTS_PAGE_MAX, INTERVAL_MS

if TYPE_CHECKING:
    from bot.wire import Event, Plan

log = structlog.get_logger()

RECONCILE_MS: Final = 3 * MINUTE_MS  # of real time between two comparisons when nothing asks for one
TRIM_MS: Final = HOUR_MS
REAL_HOLD_MS: Final = 20_000  # of real time that an intent may at least take to leave
REPLIES_MAX: Final = 50  # intents of event hooks sent in one pass; a hook that answers its own fills waits for the next
SETTLED_PERIODS: Final = (
    40  # After so many periods nothing is left of a recursive average's first value: e^-40 is below a float's last bit.
)
MARKETS_MAX: Final = 250  # the interface's bound on ?limit
PASS_MS: Final = (
    4_000  # of real time after which a pass begins nothing new: one that hangs proves no progress and stops the beats
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the loop needs of the config. `guardians` has the dead-man under the name DEAD_MAN when there is one."""

    guardians: Sequence[Wanted] = ()
    foreign_positions: str = "ignore"  # adopt | ignore | flatten
    reconcile_ms: int = RECONCILE_MS


def _allowed() -> Refusal | None:
    return None


class Loop:
    """`belief` says why the dead-man's deadline is not trusted, if so; `passed` is told the end of each pass (the progress stamp)."""

    def __init__(
        self,
        *,
        port: VenuePort,
        journal: Journal,
        placed: Sequence[Placed],
        pacer: Pacer,
        settings: Settings | None = None,
        run: Run = run_inline,
        belief: Callable[[], Refusal | None] = _allowed,
        passed: Callable[[int | None], None] = lambda _at_ms: None,
        notices_of: Callable[[Event], Iterable[Notice]] = lambda _event: (),
    ) -> None:
        self.port = port
        self.journal = journal
        self.pacer = pacer
        self.settings = settings if settings is not None else Settings()
        self.belief = belief
        self.passed = passed
        self.notices_of = notices_of
        self.live: dict[str, Intent] = {}  # not final, or accepted and not seen in the events yet
        self.owners: dict[str, str] = {}  # idempotency key -> strategy, as far as they were asked for
        self.mirror = Mirror(self.owner_of)
        self.feed = Feed(_wanted(placed))
        self.gate = Gate(
            self.mirror,
            {one.strategy.name: one.allowance for one in placed},
            live=self.live.values,
            entries_stopped=self.entries_stopped,
            in_doubt=self.in_doubt,
            size_decimals={},
            judges_freshness=port.clock.speed > 0,
            foreign_positions=self.settings.foreign_positions,
        )
        self.sender = Sender(
            port=port, journal=journal, mirror=self.mirror, gate=self.gate, pacer=pacer, may_confirm=self._may_confirm,
            has_time=self.has_time,
        )  # fmt: skip
        self.arming = Arming(port=port, journal=journal, mirror=self.mirror, wanted=self.settings.guardians)
        self.desk = Desk(placed, journal=journal, mirror=self.mirror, feed=self.feed, run=run)
        self.foreign_known: set[str] = set()
        self.paused: str | None = None
        self.ready = False  # recovered: positions, guardians and open intents are known
        self.behind = False  # the last drain did not reach the end of the feed
        self.last_bar_ms: int | None = None
        self._due: list[Closed] = []
        self._replies: list[Intent] = []  # intents of event hooks, written and not sent yet
        self._reconcile_at_ms = 0
        self._trim_at_ms = 0
        self._pass_ends_ms = 0

    # -- the run

    async def recover(self) -> None:
        """Every run begins here: account, events, guardians, open intents, history; only then the first bar. May be called again."""
        self.ready = False
        self.begin_pass()
        snapshot = await self.port.account()
        await self._learn_markets()
        self.mirror.of_snapshot(snapshot)
        self.reload_live()
        self.mirror.keys_proven = self.mirror.keys_proven or self.journal.has_seen_own_key()
        await self.desk.start(now_ms=self.now_ms())
        cursor = self.journal.cursor
        if cursor is None or cursor.epoch != snapshot.epoch or not await repairs.overlaps(self):
            await repairs.restart(self, snapshot)
        await self.drain()
        await self.arming.arm_all(epoch=self.mirror.epoch)
        await self.drain()
        self.ready = True
        await self.settle()
        await self.reconcile()
        await self._warm_up()
        self.journal.flush()
        log.info(
            "loop.recovered",
            positions=len(self.mirror.positions),
            orders=len(self.mirror.orders),
            open_intents=len(self.live),
        )

    async def cycle(self) -> None:
        """One pass: drain, due bars, settle, reconcile if due. The service being away ends no pass; what is lost access or a bad journal does."""
        self.begin_pass()
        await self.drain()
        if not self._due and self.has_time():
            self._due = await self.feed.poll(self.port, self.now_ms(), self.has_time)
        if self._due:
            await repairs_when_up(self)  # Guardians stand again before anything is decided, or it would be refused.
        while self._due and self.has_time():  # What there was no time for stays due: no bar is ever skipped.
            closed = self._due.pop(0)
            if not await self.step(closed):
                self._due.insert(0, closed)
                break
        await self.settle()
        await repairs_when_up(self)
        if self.pacer.mono_ms() >= self._reconcile_at_ms and self.has_time():
            try:
                await self.reconcile()
            except (TryLater, OutcomeUnknown) as error:
                log.warning("reconcile.postponed", code=error.code, message=error.message)
        self._housekeep()
        self.journal.flush()
        self.passed(self.last_bar_ms)

    async def step(self, closed: Closed) -> bool:
        """Learn what happened, decide on one closed bar, act, learn again. False: nothing could be learnt, so nothing is decided and the bar stays due."""
        if not await self.drain():
            return False
        log.info(
            "bar.closed", market=closed.market, interval=closed.interval, at_ms=closed.at_ms, close=closed.bar.close
        )
        decision = await self.desk.decide(closed, now_ms=self.now_ms())
        await self.act(decision, closed)
        await repairs_when_up(self)
        self.last_bar_ms = closed.at_ms
        return True

    async def settle(self, *, at_once: bool = False) -> None:
        """Go on with every intent that is not final: one attempt each, when its time has come, or at once."""
        for intent in list(self.live.values()):
            is_due = (at_once and intent.state == "sending") or self.sender.is_due(intent)
            if intent.state not in FINAL and is_due and self.has_time():
                await self._send(intent)
        await self._send_replies()

    def give_up_entries(self) -> None:
        """The run ends: an entry that was written and never sent is no longer wanted. One that may have left stays in doubt."""
        for intent in list(self.live.values()):
            if intent.action == "open" and intent.state in ("opened", "planned"):
                self.live[intent.id] = self.sender.give_up(intent)

    async def reconcile(self) -> None:
        """Compare with the service and repair; the next time is set whatever comes of it."""
        self._reconcile_at_ms = self.pacer.mono_ms() + self.settings.reconcile_ms
        await repairs.reconcile(self)
        await self._send_replies()

    async def stop(self) -> None:
        """The end of a run in order: nothing is opened any more, on_stop of every strategy, then what waits is written."""
        self.paused = "the run is ending"
        await self.desk.stop(now_ms=self.now_ms())
        self.journal.flush()

    def begin_pass(self) -> None:
        """From here a pass has PASS_MS."""
        self._pass_ends_ms = self.pacer.mono_ms() + PASS_MS

    def end_pass(self) -> None:
        """The pass under way begins nothing new."""
        self._pass_ends_ms = 0

    def has_time(self) -> bool:
        """Whether this pass may begin another thing. What it may not is done by the next one."""
        return self.pacer.mono_ms() < self._pass_ends_ms

    @property
    def is_late(self) -> bool:
        """Bars wait that the last pass had no time for; the next one begins at once, unless the service is away."""
        return bool(self._due) and not self.behind

    # -- deciding

    def decide_run(self, series: Series, bars: Iterator[Bar], calm: Calm) -> tuple[Bar | None, Decision | None]:
        """A session's hot loop; see Desk.decide_run. Live goes through `step`, one bar at a time."""
        return self.desk.decide_run(series, bars, calm)

    async def act(self, decision: Decision, closed: Closed) -> None:
        """Judge, write the whole decision at once, then send what was written."""
        bar = closed.bar
        intents = self._judge(decision.wishes, trigger=f"bar:{bar.market}:{bar.at_ms}", at_ms=bar.at_ms)
        fresh = self.journal.decided(
            intents, states=decision.states, bar=(closed.market, closed.interval, closed.at_ms)
        )
        await self._send_all(intents, fresh)

    # -- learning

    async def drain(self) -> bool:
        """Take every event there is. False when the service could not be asked; then nothing is opened until it could."""
        try:
            try:
                await self._pages()
            except Refused as error:
                if not repairs.is_cursor_lost(error):
                    raise
                log.warning("drift.cursor_lost", message=error.message)
                await repairs.restart(self, await self.port.account())
        except (TryLater, OutcomeUnknown) as error:
            self.behind = True
            log.warning("feed.behind", code=error.code, message=error.message)
            return False
        self.behind = False
        for key in [key for key, intent in self.live.items() if intent.state in FINAL]:
            del self.live[key]
        return True

    async def _pages(self) -> None:
        while True:
            cursor = self.journal.cursor
            assert cursor is not None, "recover sets the cursor"
            page = await self.port.events(cursor.last_id, limit=EVENTS_PAGE_MAX)
            if any(_begins_epoch(event, cursor.epoch) for event in page.events):
                # Nothing of the page is taken: were the cursor past it and the snapshot lost, the reset would be forgotten.
                await repairs.restart(self, await self.port.account())
                return
            if page.events:  # The cursor is what was taken, whatever else the page says is the last.
                await self._take(page.events, page.events[-1].id, cursor.epoch)
            if len(page.events) < EVENTS_PAGE_MAX or page.events[-1].id == cursor.last_id:
                return

    async def _take(self, events: Sequence[Event], last_id: str, epoch: int) -> None:
        """One page: fold, tell the strategies, and write it with all that it changed, in one transaction."""
        fresh = self.journal.unseen(events)
        decision = Decision()
        intents: list[Intent] = []
        notices: list[Notice] = []
        for event in fresh:
            self.mirror.apply(event)
            notices += self.notices_of(event)
            tell(event)
            wishes = await self.desk.hear(event, decision, now_ms=self.now_ms())
            intents += self._judge(wishes, trigger=f"event:{event.id}", at_ms=event.ts)
        opened = self.journal.take(
            fresh, last_id, epoch=epoch, states=decision.states, intents=intents, notices=notices, now_ms=self.now_ms()
        )
        self._forget_unwritten(intents, opened)
        self._replies += opened
        if any(p.owner is None and p.market not in self.foreign_known for p in self.mirror.positions.values()):
            self._reconcile_at_ms = 0  # Another hand is on the account: the end of this pass looks closer.

    # -- judging and sending

    def _judge(self, wishes: Sequence[Wished], *, trigger: str, at_ms: int) -> list[Intent]:
        """The gate's answer to each wish: an intent, or a no that is kept."""
        intents: list[Intent] = []
        ordinals: dict[str, int] = {}
        closing: set[str] = set()
        now_ms = self.now_ms()
        for seat, wish in wishes:
            ordinal = ordinals[seat.name] = ordinals.get(seat.name, -1) + 1
            market = wish.market or ""
            mark = self.mirror.marks.get(market)
            price = None if mark is None else Decimal(repr(mark))
            answer = self.gate.judge(seat.name, Ask(wish, at_ms, now_ms, price, frozenset(closing)))
            if isinstance(answer, Refusal):
                self.journal.refused(
                    answer, strategy=seat.name, market=market, trigger=trigger, ordinal=ordinal, at_ms=now_ms
                )
                log.warning(
                    "intent.refused", strategy=seat.name, market=market, code=answer.code, message=answer.message
                )
                continue
            if isinstance(wish, Close) and wish.fraction is None and wish.usd is None and wish.size is None:
                closing.add(market)
            intent = self._intent(seat, answer, trigger=trigger, ordinal=ordinal, now_ms=now_ms)
            self.live.setdefault(intent.id, intent)
            self.owners[intent.id] = seat.name
            intents.append(intent)
            log.info(
                "intent.decided",
                intent=intent.id,
                strategy=seat.name,
                market=market,
                action=intent.action,
                wish=str(wish),
            )
        return intents

    def _intent(self, seat: Seat, permit: Permit, *, trigger: str, ordinal: int, now_ms: int) -> Intent:
        epoch = self.mirror.epoch
        key = intent_key(
            address=self.journal.address, epoch=epoch, strategy=seat.name, market=permit.market, trigger=trigger, ordinal=ordinal,
            leg="order",
        )  # fmt: skip
        return Intent(
            id=key, strategy=seat.name, market=permit.market, action=permit.action, path=permit.path, trigger=trigger,
            ordinal=ordinal, leg="order", epoch=epoch, body=permit.request.body(),
            not_after_ms=now_ms + self.hold_ms(FRESH_INTERVALS * INTERVAL_MS[seat.interval]), opened_ms=now_ms,
            notional_usd=permit.notional_usd,
        )  # fmt: skip

    async def open_and_send(self, intents: Sequence[Intent]) -> None:
        """Write intents of our own (repairs) and send them."""
        for intent in intents:
            self.live.setdefault(intent.id, intent)
        await self._send_all(intents, self.journal.decided(intents))

    async def _send_all(self, intents: Sequence[Intent], fresh: Sequence[Intent]) -> None:
        """Each in its order, with what it caused learned before the next: a reversal opens against what its close has left."""
        self._forget_unwritten(intents, fresh)
        for intent in fresh:
            if not self.has_time():
                break  # It is written and live: the next pass goes on with it.
            await self._send(intent)
            await self.drain()
        await self._send_replies()

    async def _send(self, intent: Intent) -> None:
        self.live[intent.id] = await self.sender.send(intent)

    async def _send_replies(self) -> None:
        for _ in range(REPLIES_MAX):
            if not self._replies:
                return
            if not self.has_time():
                break
            intent = self._replies.pop(0)
            await self._send(self.live.get(intent.id, intent))
            await self.drain()
        self._replies.clear()  # They are written and live: the next pass goes on with them.

    def _forget_unwritten(self, intents: Sequence[Intent], fresh: Sequence[Intent]) -> None:
        """An intent that was written before stands as the journal has it."""
        written = {intent.id for intent in fresh}
        for intent in intents:
            if intent.id not in written:
                known = self.journal.find(intent.id)
                if known is None or known.state in FINAL:
                    self.live.pop(intent.id, None)
                else:
                    self.live[intent.id] = known

    # -- what the gate and the repairs ask

    def now_ms(self) -> int:
        return self.port.clock.now_ms()

    def hold_ms(self, wanted_ms: int) -> int:
        """At least REAL_HOLD_MS of real time, whatever the speed of the service's clock."""
        return max(wanted_ms, int(REAL_HOLD_MS * max(1.0, self.port.clock.speed)))

    def in_doubt(self, market: str) -> bool:
        """Whether an order of ours may exist there that we have not seen."""
        return any(intent.market == market and intent.state in IN_DOUBT for intent in self.live.values())

    def is_closing(self, market: str) -> bool:
        """Whether all of that position is about to be closed. A part of it is not enough, nor is a close that waits for a person."""
        return any(
            i.market == market and i.action == "close" and i.state not in FINAL and i.state != "quarantined" and i.is_whole
            for i in self.live.values()
        )  # fmt: skip

    def entries_stopped(self, now_ms: int) -> Refusal | None:
        """Why nothing may be opened just now, in any market."""
        if not self.ready:
            return Refusal("not_ready", "the run has not recovered yet", {"action": "wait"})
        if self.paused is not None:
            return Refusal("paused", self.paused)
        if self.behind:
            return Refusal("behind", "the service's events could not be read to their end", {"action": "wait"})
        fallen = self.arming.fallen()
        if fallen:
            code = "dead_man_gone" if fallen[0].name == DEAD_MAN else "guardian_gone"
            return Refusal(
                code,
                f"guardian {fallen[0].name} of the config does not stand; it is armed anew first",
                {"action": "wait"},
            )
        return self.belief()

    def owner_of(self, key: str) -> str | None:
        """The strategy whose intent this key is."""
        owner = self.owners.get(key)
        if owner is None:
            intent = self.journal.find(key)
            if intent is None:
                return None
            owner = self.owners[key] = intent.strategy
        return owner

    def own_positions(self, *, events_skipped: bool = False) -> None:
        """After a snapshot, which names no owners: a position is its opener's, by the entries that the journal has of it.

        Where the feed began anew, those may be missing; then it is that of our newest accepted entry before it.
        """
        for position in list(self.mirror.positions.values()):
            if position.owner is not None:
                continue
            keys = self.journal.entry_keys(position.market, epoch=self.mirror.epoch, since_ms=position.opened_ms)
            owner = next(filter(None, map(self.owner_of, keys)), None)
            if owner is None and events_skipped and not keys:
                opener = self.journal.last_open(position.market, self.mirror.epoch)
                owner = opener.strategy if opener is not None and opener.opened_ms <= position.opened_ms else None
            if owner is not None:
                self.mirror.adopt(position.market, owner)

    def reload_live(self) -> None:
        self.live.clear()
        self._replies.clear()
        self.live.update((intent.id, intent) for intent in self.journal.live())

    def requires_protection(self, position: MirrorPosition) -> bool:
        allowance = self.gate.allowances.get(position.owner or "")
        return allowance is None or allowance.require_protection

    async def _may_confirm(self, intent: Intent, plan: Plan) -> bool:
        return intent.strategy == repairs.RUNTIME or await self.desk.may_confirm(intent.strategy, plan)

    # -- bars and rest

    async def _warm_up(self) -> None:
        """Bars of the past, with their intents dropped; the newest one that was not decided is due."""
        if any(len(history) for history in self.feed.histories.values()):
            return
        warm = await self.feed.warm_up(self.port, self.journal.done_until, self.now_ms())
        for closed in warm.past:
            await self.desk.rehearse(closed)
        self._due = warm.due

    async def _learn_markets(self) -> None:
        if not self.gate.size_decimals:
            answer = await self.port.markets(view="all", limit=MARKETS_MAX)
            self.gate.size_decimals = {one.coin: one.sz_decimals for one in answer.markets}

    def _housekeep(self) -> None:
        now_ms = self.pacer.mono_ms()
        if now_ms >= self._trim_at_ms:
            self._trim_at_ms = now_ms + TRIM_MS
            self.journal.trim()
            self.owners.clear()


async def repairs_when_up(loop: Loop) -> None:
    """Stops and guardians, before a decision and right after acting; a service that is away is asked again at the end of the pass."""
    if not loop.has_time():
        return
    try:
        await repairs.protect(loop)
        await repairs.stand(loop)
    except (TryLater, OutcomeUnknown) as error:
        log.warning("repair.postponed", code=error.code, message=error.message)


def _wanted(placed: Sequence[Placed]) -> dict[Series, int]:
    """So many bars that a restart sees what an unbroken run sees: the whole history that a view keeps, and averages that have settled."""
    wanted: dict[Series, int] = {}
    for one in placed:
        for market in one.strategy.markets:
            series = Series(market, one.interval)
            wanted[series] = max(wanted.get(series, HISTORY_BARS), one.strategy.warmup_bars * SETTLED_PERIODS)
    return wanted


def _begins_epoch(event: Event, epoch: int) -> bool:
    """A reset that came as an event, before the feed could say that our cursor is gone."""
    return (event.type, event.subtype) == ("account", "reset") and event.data.epoch != epoch

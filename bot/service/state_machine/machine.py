"""The machine: venue state, clock, prices and command log behind one door. The only caller of `venue.apply`; knows no operation and no transport.

Before a caller's command everything that time and prices have caused up to now is applied, each at its own instant. A price inside a
market's calm band changes nothing but the mark, so it is neither applied nor logged; the marks that a command sees are said once, just before it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

import structlog
from pydantic_core import to_json

from bot.clock import SystemClock
from bot.service.market_data.event_series import Series
from bot.service.market_data.price_feed import Feed, Point
from bot.service.market_data.trading_hours import session_at
from bot.service.state_machine.clock import ServiceClock
from bot.service.state_machine.command_log import CommandLog, Push, Row, SavedClock, Snapshot, Statement
from bot.service.state_machine.snapshots import Saving, tracked
from bot.service.views.read_access import peek, peek_all
from bot.venue import codec, index, pages
from bot.venue.apply import Applied, apply
from bot.venue.commands import (
    CancelOrder,
    ClosePosition,
    Command,
    ConfirmPlan,
    ListMarket,
    PayFunding,
    PlaceOrder,
    PricePoint,
    Pulse,
    RunOverdue,
    SetMarket,
    SetMarks,
    ShiftDeadlines,
    StorePlan,
)
from bot.venue.events import Event
from bot.venue.numbers import E8
from bot.venue.quiet_band import QuietBand, band_of
from bot.venue.state import State

log = structlog.get_logger()

SNAPSHOT_EVERY: Final = 10_000  # commands: what a start after a crash has to replay at most, about a second's work
EVENTS_OPEN: Final = (
    256  # the newest of an account, which readers ask for all the time; older ones are packed to a tenth
)
LEASE_REAL_MS: Final = 3_000  # how far ahead of the clock the saved ceiling lies, in real time
DEAD_MAN_FLOOR_REAL_MS: Final = 30_000  # a restart leaves a dead-man switch at least this much, or its whole time


# Commands that come by the thousand, and of which few bring a deadline nearer.
_TRADING: Final = frozenset(
    {PlaceOrder, StorePlan, ConfirmPlan, ClosePosition, CancelOrder, SetMarks, PayFunding, PricePoint}
)


class Machine:
    """State that moves only through `run` and `catch_up`. `kept_seq`: up to there it stands in a snapshot on disk."""

    def __init__(
        self,
        *,
        clock: ServiceClock,
        command_log: CommandLog,
        feed: Feed,
        state: State,
        seq: int,
        chain: bytes,
        events: int,
        kept_seq: int = 0,
    ) -> None:
        self.clock = clock
        self.log = command_log
        self.feed = feed
        self.state = state
        self.seq = seq
        self.chain = chain
        self.events = events
        self.fault: BaseException | None = None  # our own mistake: the state is not to be trusted any more
        self.moved = asyncio.Event()  # set whenever the next instant of interest may have come nearer
        self.sleeps_until_ms: int | None = None  # what whoever waits for `moved` would wait for
        self.caught_ms = 0  # everything that time and prices have caused up to there has happened
        self.down_since_ms: int | None = None  # of a start that goes on and has not caught up yet
        self.processed = 0  # points and deadlines run since the start
        self.last_price_ms: int | None = None
        self.publish: Callable[[list[Event]], Sequence[Statement]] | None = (
            None  # told of events before they are on disk
        )
        # From the last snapshot, not from this start: a service that is killed again and again keeps its log short too.
        self._snapshot_seq = kept_seq
        self._snapshot_due = kept_seq + SNAPSHOT_EVERY
        self._saving: tuple[Saving, Snapshot] | None = None
        if command_log.path is not None:
            tracked(state)
        self._ceiling_ms = 0
        self._marks: dict[str, int] = {}  # seen, not said to the log yet
        self._bands: dict[str, QuietBand] = {}
        self.turns: list[tuple[int, str]] = []  # when an outside price opens or closes next, a heap
        self.known = ""  # where the prices come from, as the file has it
        self.series: Series | None = None  # what is listed when an event market is settled
        self.generation = 0  # another one: the state was replaced, and who held a part of it holds nothing

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def catch_up(self) -> int:
        """Apply everything due at or before now, each at its own instant; answers now."""
        now = self.clock.now_ms()
        if self.down_since_ms is not None:
            self._put_off(now)
        self._catch_up_to(now)
        self.caught_ms = now
        if now > self._ceiling_ms:
            self.save_clock()
        return now

    def _catch_up_to(self, now_ms: int) -> None:
        feed = self.feed
        while True:
            at, turn = feed.next_ms(), self.turns[0][0] if self.turns else None
            if turn is not None and turn <= now_ms and (at is None or turn <= at):
                self._run_deadlines(before_ms=turn)
                self._turn()
            elif at is not None and at <= now_ms:
                self._run_deadlines(before_ms=at)
                self._pay_funding(at)
                self._take(feed.pop())
            else:
                break
        self._run_deadlines(before_ms=now_ms + 1)

    def follow_sessions(self, at_ms: int) -> None:
        """Know when the outside prices open and close; those that nobody has looked at yet get the session of `at_ms`."""
        for coin, market in self.state.markets.items():
            expires_ms = market.spec.expires_ms
            if expires_ms is not None and expires_ms > at_ms and market.status != "settled" and self._follower(coin):
                self.turns.append((expires_ms, coin))
            if market.spec.hours is None:
                continue
            if market.external is None:
                found = session_at(market.spec.hours, at_ms)
                external = "open" if found.is_open else "closed"
                self._apply(SetMarket(coin, external=external, turns_ms=found.turns_ms), max(at_ms, self.state.now_ms))
            turns_ms = market.closes_ms if market.external == "open" else market.opens_ms
            if turns_ms is not None:
                self.turns.append((turns_ms, coin))
        heapify(self.turns)

    def _turn(self) -> None:
        """An outside price opens or closes: told to the venue at its instant, before the prices of that instant."""
        at_ms, coin = heappop(self.turns)
        hours = self.state.markets[coin].spec.hours
        if hours is None:
            self._follow(coin, at_ms)
            return
        found = session_at(hours, at_ms)
        external = "open" if found.is_open else "closed"
        self._apply(SetMarket(coin, external=external, turns_ms=found.turns_ms), max(at_ms, self.state.now_ms))
        heappush(self.turns, (found.turns_ms, coin))
        self.processed += 1

    def _follower(self, coin: str) -> str | None:
        """The event market that is to follow this one and is not listed yet."""
        name = None if self.series is None else self.series.next_coin(coin)
        return None if name is None or name in self.state.markets else name

    def _follow(self, coin: str, at_ms: int) -> None:
        """An event market is about to be settled: the next one of its series is listed."""
        assert self.series is not None
        following = self.series.after(coin, at_ms)
        spec = following.spec
        assert spec.expires_ms is not None
        self._apply(ListMarket(spec, following.px), max(at_ms, self.state.now_ms))
        self.feed.add(spec.coin, following.source, at_ms)
        if self.series.is_held:
            self.feed.hold(spec.coin)
        heappush(self.turns, (spec.expires_ms, spec.coin))
        for over, market in self.state.markets.items():
            if market.status == "settled":
                self.feed.forget(over)
        self.processed += 1

    def _run_deadlines(self, *, before_ms: int) -> None:
        while (deadline := index.next_deadline_ms(self.state)) is not None and deadline < before_ms:
            # A deadline may lie in the past of the state: that of a hold, say, that comes with a fill of a price and was over by then.
            now_ms = self.state.now_ms
            self._apply(RunOverdue() if deadline < now_ms else Pulse(), max(deadline, now_ms))
            self.processed += 1

    def _pay_funding(self, at_ms: int) -> None:
        """Funding comes before all prices of its instant."""
        if index.next_deadline_ms(self.state) == at_ms and any(
            market.next_funding_ms == at_ms for market in self.state.markets.values()
        ):
            self._apply(PayFunding(self.feed.opens(at_ms)), at_ms)

    def _take(self, point: Point) -> None:
        """One price point: skipped while its market is calm."""
        coin, px, at = point.coin, point.px, point.at_ms
        self.processed += 1
        self.last_price_ms = at
        band = self._bands.get(coin)
        if band is None:
            band = self._bands[coin] = band_of(self.state, coin)
        if band.lo < px / E8 < band.hi and at < band.until_ms:
            self._marks[coin] = px
        else:
            market = self.state.markets[coin]
            seen = self._marks.pop(coin, market.mark)
            if point.step and market.bar_ms != point.bar_ms:
                # Its open was calm, so the venue has not heard of this bar: what resting limits may take of it comes with an open.
                self._apply(PricePoint(coin, seen, 0, point.bar_ms, point.volume), at)
            self._apply(PricePoint(coin, px, point.step, point.bar_ms, point.volume), at)
        listed = self.state.markets[coin]
        if self.feed.has_ended(coin) and listed.status == "open" and listed.spec.expires_ms is None:
            self._apply(SetMarket(coin, status="closed"), at)
            log.info("market.closed", coin=coin, reason="the recorded data have ended", at_ms=at)

    def next_instant_ms(self) -> int | None:
        """When something happens by itself next."""
        instants = [self.feed.next_ms(), index.next_deadline_ms(self.state)]
        if self.turns:
            instants.append(self.turns[0][0])
        return min((at for at in instants if at is not None), default=None)

    # ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, command: Command) -> Any:
        """Apply a caller's command at the instant of the last `catch_up`, just before; answers what the venue answers.

        The clock has gone on since, by seconds where it runs fast: at its instant now the command would overtake what is due in between.
        """
        return self._apply(command, max(self.caught_ms, self.state.now_ms)).answer

    def push_price(
        self, coin: str, px: int, *, mid: int | None = None, oracle: int | None = None, volume: int = 0
    ) -> None:
        """A price from outside; from now on this market moves by such prices only."""
        at = self.catch_up()
        self.feed.push(coin, at, px, volume)
        self._marks.pop(coin, None)
        self._apply(PricePoint(coin, px, 0, at - at % 60_000, volume or None, oracle, mid), at)
        self.log.push(Push(self.seq, at, coin, px, volume))
        self.last_price_ms = at

    def _apply(self, command: Command, at_ms: int) -> Applied:
        assert self.fault is None, "half a command may stand in the state"
        if self._marks:
            marks = SetMarks(tuple(sorted(self._marks.items())), running=True)
            self._marks = {}
            self._apply(marks, at_ms)
        text = _text(command)
        try:
            applied = apply(self.state, command, at_ms)
            if applied.events:
                self.chain = chain_of(self.chain, applied.events)
        except Exception as error:
            # Half a command may stand in the state; the log has none of it. Only a new start is right.
            self.fault = error
            self.moved.set()
            raise
        self._bands = {}
        self.seq += 1
        self.events += len(applied.events)
        self._fold(applied.events)
        also = self.publish(applied.events) if applied.events and self.publish is not None else ()
        self.log.append(Row(self.seq, at_ms, text, self.chain), also)
        if type(command) not in _TRADING or self._is_nearer():
            self.moved.set()
        return applied

    def _fold(self, events: Sequence[Event]) -> None:
        """Pack what is old of the accounts that these events are of. A snapshot does so too, but of a file only, and after thousands of commands."""
        for name in {event.account for event in events}:
            account = peek(self.state, name)
            if len(account.events) >= 2 * EVENTS_OPEN or len(account.trades) >= 2 * EVENTS_OPEN:
                pages.fold(account, but_newest=EVENTS_OPEN)

    def _is_nearer(self) -> bool:
        """Has the last command brought something nearer than what is waited for?"""
        at, until = index.next_deadline_ms(self.state), self.sleeps_until_ms
        return self.seq >= self._snapshot_due or (at is not None and (until is None or at < until))

    def show_marks(self) -> None:
        """Let a reader see the marks of calm markets. What SetMarks does, unsaid: the log hears of them before the next command."""
        for coin, px in self._marks.items():
            self.state.markets[coin].see(px)

    # ── Keeping ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def save_clock(self, *, final: bool = False) -> None:
        """Say on disk how far time has come, and how far it may be shown before the next time."""
        now = self.clock.now_ms()
        lease = 0 if final else int(LEASE_REAL_MS * self.clock.speed)
        self._ceiling_ms = now + lease
        offset = 0 if self.clock.is_real else now - SystemClock().now_ms()
        self.log.save_clock(SavedClock(self.caught_ms, self._ceiling_ms, offset))

    def snapshot_if_due(self) -> bool:
        """Begin a snapshot when one is due and write a piece of the one under way; True while there is more of it to write."""
        if self._saving is None:
            if self.seq < self._snapshot_due or self.log.path is None:
                return False
            self._begin_saving()
        return not self._save_on()

    def snapshot(self) -> None:
        """Keep the whole state at once, so that the next start replays from here."""
        while self._saving is not None:
            self._save_on(whole=True)
        if self.seq != self._snapshot_seq and self.log.path is not None:
            self._begin_saving()
            self._save_on(whole=True)

    def _begin_saving(self) -> None:
        self._say_marks()
        saving = Saving(self.state, tracked(self.state))
        self._saving = saving, Snapshot(self.seq, self.state.now_ms, saving.head, self.chain, self.events)

    def _save_on(self, *, whole: bool = False) -> bool:
        """Go on with the snapshot under way; True when it is queued for the disk, in one transaction."""
        assert self._saving is not None
        saving, snapshot = self._saving
        if not saving.go_on(None) if whole else not saving.go_on():
            return False
        self.log.save_snapshot(snapshot, SystemClock().now_ms(), saving.kept)
        self._saving = None
        self._snapshot_seq = snapshot.seq
        self._snapshot_due = snapshot.seq + SNAPSHOT_EVERY
        return True

    def become(
        self, *, clock: ServiceClock, feed: Feed, state: State, seq: int, chain: bytes, events: int, known: str
    ) -> None:
        """Go on as another state at another instant; its log is the caller's business."""
        self.clock, self.feed, self.state, self.known = clock, feed, state, known
        self.generation += 1
        self.seq, self.chain, self.events = seq, chain, events
        self._snapshot_seq, self._snapshot_due = seq, seq + SNAPSHOT_EVERY
        self._saving = None
        if self.log.path is not None:
            tracked(state)
        self._ceiling_ms, self.caught_ms, self.down_since_ms, self.last_price_ms = 0, 0, None, None
        self._marks, self._bands, self.turns = {}, {}, []
        self.moved.set()

    def say_marks(self) -> None:
        """Have the log hear of all marks."""
        self._say_marks()

    def _say_marks(self) -> None:
        if self._marks:
            marks, self._marks = SetMarks(tuple(sorted(self._marks.items())), running=True), {}
            self._apply(marks, self.state.now_ms)

    def _put_off(self, now_ms: int) -> None:
        """Time that passed while the service was down counts for no dead-man switch. Said with what else that time has caused, so that a kill
        in between leaves all of it, or nothing, to the next start."""
        assert self.down_since_ms is not None
        since_ms, self.down_since_ms = self.down_since_ms, None
        if any(account.guardians for account in peek_all(self.state)):
            floor = int(DEAD_MAN_FLOOR_REAL_MS * (self.clock.speed or 1))
            self._apply(ShiftDeadlines(max(0, now_ms - since_ms), floor), max(since_ms, self.state.now_ms))

    def see_price(self, coin: str, px: int) -> None:
        """The price that a calm market had when the service went down; the log need not have heard of it."""
        market = self.state.markets[coin]
        if market.mark != px and market.status != "settled":
            self._marks[coin] = px

    async def settle(self) -> None:
        """Wait until all that has happened is on disk."""
        await self.log.settle()


def _text(command: Command) -> str:
    """What `codec.loads` reads."""
    return to_json(codec.encode(command)).decode()


def chain_of(chain: bytes, events: Sequence[Event], encode: Callable[[Event], Any] = codec.encode) -> bytes:
    """The running hash of all events, one command's after the other's."""
    return hashlib.sha256(chain + to_json([encode(event) for event in events])).digest()

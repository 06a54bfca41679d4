"""The machine: owns venue state, clock, prices and command log. The only caller of `venue.apply`. Knows no operation
and no transport.

Before a caller's command the machine applies everything that time and prices have caused up to now, each at its own
instant. A price inside a market's quiet band changes only the mark, so the machine neither applies nor logs it. The
marks that a command sees are logged just before it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic_core import to_json

from bot.clock import SystemClock
from bot.logs import log
from bot.model.events import Event
from bot.service.bodies.read_access import peek, peek_all
from bot.service.market_data.price_feed import MINUTE_MS, FeedPoint, PriceFeed, points_of
from bot.service.market_data.session_calendars import hours_name
from bot.service.market_data.simulator import GridCandle
from bot.service.market_data.trading_hours import session_at
from bot.service.state_machine.clock import MachineClock
from bot.service.state_machine.command_log import CommandLog, LogRow, Push, SavedClock, Statement
from bot.service.state_machine.market_schedule import MarketSchedule
from bot.service.state_machine.quiet_marks import QuietMarks
from bot.service.state_machine.snapshot_schedule import SnapshotSchedule
from bot.venue.apply import Applied, apply
from bot.venue.model.commands import (
    CancelOrder,
    ClosePosition,
    Command,
    ConfirmPlan,
    ListMarket,
    PayFunding,
    PlaceOrder,
    PricePoint,
    Pulse,
    QuotePoint,
    RunOverdue,
    SetBook,
    SetMarket,
    SetMarks,
    SetQuotes,
    ShiftDeadlines,
    StorePlan,
)
from bot.venue.model.record import changed_actions
from bot.venue.model.state import State, VenueAction
from bot.venue.prices import index
from bot.venue.storage import codec, pages

# unpacked events of an account; packed ones take a tenth of the memory
EVENTS_OPEN: Final = 256
# how far the saved ceiling is ahead of the clock, in real time
LEASE_REAL_MS: Final = 3_000
# least time of a dead-man switch after a restart, unless its whole interval is shorter
DEAD_MAN_FLOOR_REAL_MS: Final = 30_000


# Frequent commands, of which few make a deadline earlier.
_TRADING: Final = frozenset(
    {
        PlaceOrder,
        StorePlan,
        ConfirmPlan,
        ClosePosition,
        CancelOrder,
        SetMarks,
        SetQuotes,
        PayFunding,
        PricePoint,
        QuotePoint,
        SetBook,
    }
)


class MachineSignals:
    """What the machine tells its tasks. `moved`: set when the next due instant may have become earlier.

    `acted`: called after a command that has made or changed an action at an exchange.
    """

    def __init__(self) -> None:
        self.moved = asyncio.Event()
        self.acted: Callable[[], None] | None = None


class Machine:
    """State that changes only through `run` and `catch_up`. `stored_seq`: the last command in the snapshot on disk."""

    def __init__(
        self,
        *,
        clock: MachineClock,
        command_log: CommandLog,
        feed: PriceFeed,
        state: State,
        seq: int,
        chain: bytes,
        events: int,
        stored_seq: int = 0,
    ) -> None:
        self.clock = clock
        self.log = command_log
        self.feed = feed
        self.state = state
        self.seq = seq
        self.chain = chain
        self.events = events
        # set after a bug: the state can no longer be trusted
        self.fault: BaseException | None = None
        self.signals = MachineSignals()
        # the instant that the ticker sleeps until
        self.sleeps_until_ms: int | None = None
        # everything due until then is applied
        self.caught_ms = 0
        # when the service stopped; None after the first catch_up
        self.down_since_ms: int | None = None
        # price points and deadlines run since the start
        self.processed = 0
        self.last_price_ms: int | None = None
        # gets events before they are on disk
        self.publish: Callable[[list[Event]], Sequence[Statement]] | None = None
        self.snapshots = SnapshotSchedule(command_log, state, stored_seq)
        self._ceiling_ms = 0
        self._quiet = QuietMarks()
        self.schedule = MarketSchedule()
        # changes when the state is replaced, which invalidates all references into it
        self.generation = 0

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def catch_up(self) -> int:
        """Apply everything due at or before now, each at its own instant. Returns now."""
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
            at, turn = feed.next_ms(), self.schedule.next_ms()
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
        """Schedule the openings and closings of outside prices.

        A market without a session gets the session of `at_ms`.
        """
        schedule = self.schedule
        for coin, market in self.state.markets.items():
            expires_ms = market.spec.expires_ms
            if (
                expires_ms is not None
                and expires_ms > at_ms
                and market.status != "settled"
                and self._has_successor(coin)
            ):
                schedule.add(expires_ms, coin)
            if market.spec.hours is None:
                continue
            if market.external is None:
                self._set_session(market.spec.hours, coin, at_ms)
                continue
            turns_ms = market.closes_ms if market.external == "open" else market.opens_ms
            if turns_ms is not None:
                schedule.add(turns_ms, coin)

    def _turn(self) -> None:
        """An outside price opens or closes: apply that at its instant, before the prices of that instant."""
        at_ms, coin = self.schedule.pop()
        hours = self.state.markets[coin].spec.hours
        if hours is None:
            self._list_successor(coin, at_ms)
        else:
            self._set_session(hours, coin, at_ms)
        self.processed += 1

    def _set_session(self, hours: str, coin: str, at_ms: int) -> None:
        """Apply whether the outside price is open at `at_ms`, and schedule when that changes."""
        session = session_at(hours, at_ms)
        external, is_first = "open" if session.is_open else "closed", self.state.markets[coin].external is None
        last_px = None if session.is_open or is_first else self.feed.close_after(coin, at_ms)
        command = SetMarket(coin, external=external, turns_ms=session.turns_ms, premium_px=last_px)
        self._apply(command, max(at_ms, self.state.now_ms))
        if session.turns_ms is not None:
            self.schedule.add(session.turns_ms, coin)
        else:
            log.warning("market.sessions_ended", coin=coin, hours=hours_name(hours), at_ms=at_ms)

    def _has_successor(self, coin: str) -> bool:
        """True if another event market follows this one and is not listed yet."""
        series = self.schedule.series
        name = None if series is None else series.next_coin(coin)
        return name is not None and name not in self.state.markets

    def _list_successor(self, coin: str, at_ms: int) -> None:
        """List the next event market of a series just before this one is settled."""
        series = self.schedule.series
        assert series is not None, "only a series schedules a market without trading hours"
        following = series.after(coin, at_ms)
        spec = following.spec
        assert spec.expires_ms is not None
        self._apply(ListMarket(spec, following.px), max(at_ms, self.state.now_ms))
        self.feed.add(spec.coin, following.source, at_ms)
        if series.is_held:
            self.feed.hold(spec.coin)
        self.schedule.add(spec.expires_ms, spec.coin)
        for over, market in self.state.markets.items():
            if market.status == "settled":
                self.feed.forget(over)

    def _run_deadlines(self, *, before_ms: int) -> None:
        while (deadline := index.next_deadline_ms(self.state)) is not None and deadline < before_ms:
            # A deadline may be before the state's time, for example when a fill starts a hold that is already over.
            now_ms = self.state.now_ms
            self._apply(RunOverdue() if deadline < now_ms else Pulse(), max(deadline, now_ms))
            self.processed += 1

    def _pay_funding(self, at_ms: int) -> None:
        """Apply funding before all prices of its instant."""
        if index.next_deadline_ms(self.state) == at_ms and any(
            market.next_funding_ms == at_ms for market in self.state.markets.values()
        ):
            self._apply(PayFunding(self.feed.opens(at_ms)), at_ms)

    def _take(self, point: FeedPoint) -> None:
        """Apply one price point. While the market is quiet, only note its mark."""
        coin, px, at = point.coin, point.px, point.at_ms
        self.processed += 1
        self.last_price_ms = at
        if not point.step and self.state.markets[coin].external == "closed":
            self._measure_premium(coin, at)
        if not self._quiet.note(self.state, point):
            market = self.state.markets[coin]
            seen = self._quiet.take(coin, market.mark)
            if point.step and market.bar_ms != point.bar_ms:
                # The bar's open was quiet and not applied. Apply it now, because it carries the volume that resting
                # limits may fill.
                self._apply(PricePoint(coin, seen, 0, point.bar_ms, point.volume), at)
            self._apply(PricePoint(coin, px, point.step, point.bar_ms, point.volume), at)
        listed = self.state.markets[coin]
        if self.feed.has_ended(coin) and listed.status == "open" and listed.spec.expires_ms is None:
            self._apply(SetMarket(coin, status="closed"), at)
            log.info("market.closed", coin=coin, reason="the recorded data have ended", at_ms=at)

    def _measure_premium(self, coin: str, at_ms: int) -> None:
        """A candle begins while the outside price is closed. If it opens inside a long candle, the candle's prices are
        no premium before that.
        """
        listed, length_ms = self.state.markets[coin], self.feed.length_ms(coin)
        opens_inside = length_ms > MINUTE_MS and listed.opens_ms is not None and listed.opens_ms < at_ms + length_ms
        if opens_inside:
            self._apply(SetMarket(coin, premium_px=self._quiet.marks.get(coin, listed.mark)), at_ms)
        elif listed.premium_px is not None:
            self._apply(SetMarket(coin, premium_px=0), at_ms)

    def next_instant_ms(self) -> int | None:
        """The next instant at which something is due."""
        instants = (self.feed.next_ms(), index.next_deadline_ms(self.state), self.schedule.next_ms())
        return min((at for at in instants if at is not None), default=None)

    # ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, command: Command) -> Any:
        """Apply a caller's command at the instant of the last `catch_up`, and return the venue's answer.

        The clock has moved on since; at the present instant the command would overtake what is due in between.
        """
        return self._apply(command, max(self.caught_ms, self.state.now_ms)).answer

    def push_price(
        self, coin: str, px: int, *, mid: int | None = None, oracle: int | None = None, volume: int = 0
    ) -> None:
        """Apply a price from outside. From then on only such prices move this market."""
        at = self.catch_up()
        self.feed.push(coin, at, px, volume)
        self._quiet.take(coin, px)
        if self.state.markets[coin].premium_px is not None:
            self._apply(SetMarket(coin, premium_px=0), at)
        self._apply(PricePoint(coin, px, 0, at - at % 60_000, volume or None, oracle, mid), at)
        self.log.push(Push(self.seq, at, coin, px, volume))
        self.last_price_ms = at

    def live_quote(self, coin: str, mark: int, bid: int, ask: int) -> int:
        """Apply a quote of a live market at the present instant, which it returns.

        The price may jump, so a stop fills at the quote.
        """
        at = self.catch_up()
        self.feed.store(coin).point(at, (bid + ask) // 2)
        self.processed += 1
        self.last_price_ms = at
        if not self._quiet.note_quote(self.state, coin, at, mark, bid, ask):
            self._apply(QuotePoint(coin, mark, bid, ask), at)
        return at

    def missed_candle(self, coin: str, candle: GridCandle) -> None:
        """Apply a candle of a live market that nobody saw, at the present instant: its four prices in order."""
        at = self.catch_up()
        for point in points_of(coin, candle, 60_000):
            self._take(point._replace(at_ms=at))

    def _apply(self, command: Command, at_ms: int) -> Applied:
        assert self.fault is None, "the state may hold half a command"
        for marks in self._quiet.drain():
            self._apply(marks, at_ms)
        text = _text(command)
        try:
            applied = apply(self.state, command, at_ms)
            actions = changed_actions(self.state)
            if applied.events or actions:
                self.chain = chain_of(self.chain, applied.events, actions=actions)
        except Exception as error:
            # The state may hold half a command that the log does not have. Only a new start is safe.
            self.fault = error
            self.signals.moved.set()
            raise
        self._quiet.forget_bands()
        self.seq += 1
        self.events += len(applied.events)
        self._fold(applied.events)
        also = self.publish(applied.events) if applied.events and self.publish is not None else ()
        self.log.append(LogRow(self.seq, at_ms, text, self.chain), also)
        if actions and self.signals.acted is not None:
            self.signals.acted()
        if type(command) not in _TRADING or self._is_nearer():
            self.signals.moved.set()
        return applied

    def _fold(self, events: Sequence[Event]) -> None:
        """Pack old records of the accounts of these events, which bounds the memory between snapshots."""
        for name in {event.account for event in events}:
            account = peek(self.state, name)
            if len(account.events) >= 2 * EVENTS_OPEN or len(account.trades) >= 2 * EVENTS_OPEN:
                pages.fold(account, but_newest=EVENTS_OPEN)

    def _is_nearer(self) -> bool:
        """True if the last command made something due earlier than the ticker expects."""
        at, until = index.next_deadline_ms(self.state), self.sleeps_until_ms
        return self.snapshots.is_due(self.seq) or (at is not None and (until is None or at < until))

    def show_marks(self) -> None:
        """Show the marks of quiet markets to a reader. They are logged before the next command."""
        self._quiet.show(self.state)

    # ── Saving
    # ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def save_clock(self, *, final: bool = False) -> None:
        """Save how far time has come, and the latest time that callers may see before the next save."""
        now = self.clock.now_ms()
        lease = 0 if final else int(LEASE_REAL_MS * self.clock.speed)
        self._ceiling_ms = now + lease
        offset = 0 if self.clock.is_real else now - SystemClock().now_ms()
        self.log.save_clock(SavedClock(self.caught_ms, self._ceiling_ms, offset))

    def snapshot_if_due(self) -> bool:
        """Start a snapshot if one is due, and write a piece of it. True while there is more to write."""
        if not self.snapshots.is_running:
            if not self.snapshots.is_due(self.seq):
                return False
            self._begin_snapshot()
        return not self.snapshots.write_piece()

    def snapshot(self) -> None:
        """Save the whole state now, so that the next start replays from here."""
        self.snapshots.finish()
        if self.snapshots.is_behind(self.seq):
            self._begin_snapshot()
            self.snapshots.finish()

    def _begin_snapshot(self) -> None:
        self.log_marks()
        self.snapshots.begin(self.state, self.seq, self.chain, self.events)

    def become(
        self, *, clock: MachineClock, feed: PriceFeed, state: State, seq: int, chain: bytes, events: int
    ) -> None:
        """Replace the state and its time. The caller replaces the log."""
        self.clock, self.feed, self.state = clock, feed, state
        self.generation += 1
        self.seq, self.chain, self.events = seq, chain, events
        self.snapshots = SnapshotSchedule(self.log, state, seq)
        self._ceiling_ms, self.caught_ms, self.down_since_ms, self.last_price_ms = 0, 0, None, None
        self._quiet, self.schedule = QuietMarks(), MarketSchedule()
        self.signals.moved.set()

    def log_marks(self) -> None:
        """Log the marks of quiet markets."""
        for marks in self._quiet.drain():
            self._apply(marks, self.state.now_ms)

    def _put_off(self, now_ms: int) -> None:
        """Shift the deadlines of dead-man switches by the time that the service was down. The shift is logged together
        with everything else that is due, so that after a kill the next start sees all of it or nothing.
        """
        assert self.down_since_ms is not None
        since_ms, self.down_since_ms = self.down_since_ms, None
        if any(account.guardians for account in peek_all(self.state)):
            floor = int(DEAD_MAN_FLOOR_REAL_MS * (self.clock.speed or 1))
            self._apply(ShiftDeadlines(max(0, now_ms - since_ms), floor), max(since_ms, self.state.now_ms))

    def see_price(self, coin: str, px: int) -> None:
        """Note the price that a quiet market had when the service stopped, which may not be in the log."""
        market = self.state.markets[coin]
        if market.mark != px and market.status != "settled":
            self._quiet.marks[coin] = px

    async def settle(self) -> None:
        """Wait until everything that has happened is on disk."""
        await self.log.settle()


def _text(command: Command) -> str:
    """The text of a command that `codec.loads` reads."""
    return to_json(codec.encode(command)).decode()


def chain_of(
    chain: bytes,
    events: Sequence[Event],
    encode: Callable[[Event], Any] = codec.encode,
    *,
    actions: Sequence[VenueAction] = (),
) -> bytes:
    """The running hash of all events, extended by the events of one command, and by the actions that it has changed."""
    happened = [*(encode(event) for event in events), *(codec.encode(action) for action in actions)]
    return hashlib.sha256(chain + to_json(happened)).digest()

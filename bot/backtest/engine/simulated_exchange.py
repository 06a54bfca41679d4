"""The stage: the service's machine in a session. Candles drive it instead of a feed, and nothing is kept for a restart.

The same venue and the same `apply` as behind every served sandbox. What differs is who moves time: the session says how far, and bars that
can touch nothing are not even said. Every command sees the marks of its instant, so that a skipped bar is said once, by its close.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop
from typing import Any, Final

from bot.backtest.engine.caps import Cap, cap_requests
from bot.backtest.engine.market_cursor import MarketCursor
from bot.backtest.engine.options import SessionOptions
from bot.runtime.ports import Calm
from bot.service.market_data.candles import CandleStore
from bot.service.market_data.instruments import CATALOGUE, listing_at
from bot.service.market_data.price_feed import Feed
from bot.service.operations.operations import Operations
from bot.service.security.auth import OWNER_SCOPES, Principal
from bot.service.security.rate_limits import RateLimits
from bot.service.state_machine.clock import ServiceClock
from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.machine import Machine
from bot.service.state_machine.replay import EMPTY_CHAIN
from bot.venue import index, pages
from bot.venue.apply import apply
from bot.venue.commands import (
    Command,
    Heartbeat,
    ListMarket,
    OpenAccount,
    PassBar,
    PassBars,
    PassPoints,
    Pulse,
    SetMarket,
    SetRules,
)
from bot.venue.events import Event
from bot.venue.numbers import E8
from bot.venue.quiet_band import FOREVER_MS
from bot.venue.record import forget_oldest
from bot.venue.state import Account, Key, Market, Rules, State

ACCOUNT: Final = "acc_00000001"
KEY: Final = "key_00000001"
ADDRESS: Final = "0x" + "5e" * 20  # no chance in a session: the same manifest gives the same bytes
EVENTS_SHOWN: Final = (
    2_000  # kept for whoever asks again after they were written away: a run that starts anew looks at its last page
)

Change = tuple[int, int, SetMarket]


class _Prices(Feed):
    """No prices of its own: the session gives them. Candles are asked of the session's port."""

    def __init__(self, coins: Iterable[str]) -> None:
        super().__init__({})
        self._stores = {coin: CandleStore() for coin in coins}

    def store(self, coin: str) -> CandleStore:
        return self._stores[coin]

    def has_ended(self, coin: str) -> bool:
        return False


@dataclass(slots=True)
class EventBuffer:
    """Events in their order, from number `first` on. The numbers are the account's own: 1, 2, 3 ..."""

    events: list[Event] = field(default_factory=list)
    first: int = 1

    @property
    def last(self) -> int:
        return self.first + len(self.events) - 1

    def after(self, seq: int, limit: int) -> list[Event]:
        at = seq + 1 - self.first
        assert at >= 0, "an event was asked for that has been written away"
        return self.events[at : at + limit]


class SimulatedExchange(Machine):
    """One account in one venue, moved by its session. `rates` are recorded hourly funding rates by market, scaled 1e12."""

    def __init__(
        self, cursors: list[MarketCursor], options: SessionOptions, *, start_ms: int, address: str = ADDRESS,
        rates: Mapping[str, list[tuple[int, int]]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            clock=ServiceClock.start(0.0, start_ms), command_log=CommandLog(None), feed=_Prices(cursor.coin for cursor in cursors),
            state=State(), seq=0, chain=EMPTY_CHAIN, events=0,
        )  # fmt: skip
        self.cursors = {cursor.coin: cursor for cursor in cursors}
        self.path = options.path
        self.event_buffer = EventBuffer()
        self._changes: list[Change] = []
        self._bands_now: dict[str, Calm] = {}
        self._banded_seq = -1
        self._is_behind = False
        self._skipped: dict[str, int] = {}  # when the newest of the skipped bars opened, of the markets in _marks
        self.run(SetRules(Rules(fill_at="next", paths=options.path)))
        for number, cursor in enumerate(cursors):
            listed = CATALOGUE[cursor.coin]
            before = cursor.last_px(options.path)
            px = round(cursor.open[cursor.at] * E8) if before is None else before
            spec = replace(options.spec_of(listing_at(listed, px).spec, px), bar_length_ms=cursor.step_ms)
            settlement = options.settlements.get(cursor.coin)
            if settlement is not None:  # As a bar, whose close comes in the millisecond before its end.
                spec = replace(spec, expires_ms=settlement.after(cursor.ts[-1] + cursor.step_ms) - 1)
            self.run(ListMarket(spec, px))
            if cursor.step:  # Amid a bar, whose open the venue has not been told.
                opened, _, _, closed, _ = cursor.ints(cursor.at)
                self.state.markets[cursor.coin].begin_bar(cursor.ts[cursor.at], opened, closed)
            if (
                before is None and cursor.ts[cursor.at] > start_ms
            ):  # Nobody knows its price yet: no order is taken there.
                self.run(SetMarket(cursor.coin, status="closed"))
                self._changes.append(
                    (cursor.ts[cursor.at], len(cursors) + number, SetMarket(cursor.coin, status="open"))
                )
            if settlement is not None and settlement.outcome is not None:
                self.run(SetMarket(cursor.coin, outcome_px=int(settlement.outcome * E8)))
            event_buffer = (rates or {}).get(cursor.coin, [])
            begun = [rate for at_ms, rate in event_buffer if at_ms < start_ms]
            if begun:
                self.run(SetMarket(cursor.coin, funding_rate=begun[-1]))
            self._changes += [
                (at_ms, number, SetMarket(cursor.coin, funding_rate=rate))
                for at_ms, rate in event_buffer
                if at_ms >= start_ms
            ]
        heapify(self._changes)
        self.follow_sessions(start_ms)
        key = Key(KEY, ACCOUNT, "owner", "", "", OWNER_SCOPES, start_ms, "sandbox", owner=True)
        self.run(OpenAccount(ACCOUNT, address, "session", int(options.balance_usd * E8), key))
        self.account: Account = self.state.accounts[ACCOUNT]
        self.key = apply_caps(self, options.caps, account=ACCOUNT, owner=KEY) if options.caps else KEY
        self.principal = Principal(ACCOUNT, self.key, frozenset(OWNER_SCOPES), owner=self.key == KEY)
        self.operations = Operations(self, RateLimits(enabled=False), "http://session.invalid")

    # ── What the session asks ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def count(self) -> int:
        """Number of the newest event."""
        event_buffer = self.event_buffer
        return event_buffer.first + len(event_buffer.events) - 1

    def band(self, coin: str) -> Calm:
        """How far the market may move, and until when, before the venue has to look: see venue.quiet_band. What the backtest itself changes counts too.

        A bar that closes at the instant of a deadline is over in the millisecond before it.
        """
        return self._band(self.state.markets[coin], self._until_ms())

    def _band(self, market: Market, until_ms: int) -> Calm:
        if market.pending or market.working:
            return _NEVER
        falling, rising = market.falling, market.rising
        return Calm(falling[-1][0] / E8 if falling else _LOWEST, -rising[-1][0] / E8 if rising else _HIGHEST, until_ms)

    def _until_ms(self) -> int:
        """Where every band ends: after the next deadline, or what the session itself changes."""
        until = index.next_deadline_ms(self.state)
        until_ms = FOREVER_MS if until is None else until
        change_ms = self._next_change_ms()
        return 1 + (until_ms if change_ms is None or change_ms > until_ms else change_ms)

    def bands(self) -> Mapping[str, Calm]:
        """The band of every market, as it has been since the last command."""
        if self._banded_seq != self.seq:
            until_ms, markets = self._until_ms(), self.state.markets
            self._bands_now = {coin: self._band(markets[coin], until_ms) for coin in self.cursors}
            self._banded_seq = self.seq
        return self._bands_now

    def skip(self, cursor: MarketCursor, last: int) -> None:
        """Bars up to row `last` have touched nothing: all that is left of them is the close."""
        self._leave(cursor, last)
        self.clock.move_to(cursor.ts[last] + cursor.step_ms - 1)

    def _leave(self, cursor: MarketCursor, last: int) -> None:
        cursor.seek(last + 1)
        self._marks[cursor.coin] = round(cursor.close[last] * E8)
        self._skipped[cursor.coin] = cursor.ts[last]

    def pass_bar(self, cursor: MarketCursor, row: int) -> None:
        """One whole bar of a session with one market; its earlier bars were skipped. The clock stands in its last millisecond then."""
        end_ms = cursor.ts[row] + cursor.step_ms - 1
        change_ms = self._next_change_ms()
        if row > cursor.at:
            self.skip(cursor, row - 1)
        if change_ms is not None and change_ms <= end_ms:
            self.advance(end_ms)
            return
        assert not cursor.step
        o, high, low, close, volume = cursor.ints(row)
        cursor.seek(row + 1)
        self._apply(PassBar(cursor.coin, cursor.ts[row], o, high, low, close, volume, cursor.step_ms), end_ms)
        self.clock.move_to(end_ms)

    def advance(self, to_ms: int) -> None:
        """All markets up to `to_ms`, point by point, each thing at its own instant."""
        while (change_ms := self._next_change_ms()) is not None and change_ms <= to_ms:
            self._walk(max(change_ms - 1, self.clock.now_ms()))
            if self._changes and self._changes[0][0] <= change_ms:
                at_ms, _, command = heappop(self._changes)
                self._apply(command, max(at_ms, self.state.now_ms))
            else:
                self._turn()
        self._walk(to_ms)

    def is_calm(self, to_ms: int, bands: Mapping[str, Calm]) -> bool:
        """Whether nothing can happen up to `to_ms`, where a bar ends, in any market. Of a bar that is longer the whole range counts, unless it has no
        point until then."""
        for coin, cursor in self.cursors.items():
            row = cursor.at
            if row >= cursor.end or cursor.ts[row] > to_ms or (cursor.step and cursor.next_point_ms() > to_ms):
                continue
            lo, hi, until_ms = bands[coin]
            if until_ms <= to_ms + 1 or cursor.low[row] <= lo or cursor.high[row] >= hi:
                return False
        return True

    def calm_until(self, to_ms: int, bands: Mapping[str, Calm]) -> int:
        """Up to when, and no later than `to_ms`, nothing can happen in any market: where a bar ends, of lanes whose bars are equally long."""
        step_ms = 0
        to_ms = min([to_ms, *(band.until_ms - 2 for band in bands.values())])
        for coin, cursor in self.cursors.items():
            row, step_ms = cursor.at, cursor.step_ms
            last = bisect_right(cursor.ts, to_ms, row, cursor.end)
            if row >= last:
                continue
            lo, hi, _ = bands[coin]
            lows, highs = cursor.low[row:last], cursor.high[row:last]
            if min(lows) <= lo or max(highs) >= hi:
                leaves = (at for at, (low, high) in enumerate(zip(lows, highs, strict=True)) if low <= lo or high >= hi)
                to_ms = cursor.ts[row + next(leaves)] - 1
        return (to_ms + 1) // step_ms * step_ms - 1

    def skip_to(self, to_ms: int) -> None:
        """What `is_calm` or `calm_until` has found: the bars that end up to `to_ms` leave their close. One that ends later stays where it is: what has
        passed of it is told to the venue before the next command."""
        for cursor in self.cursors.values():
            row = cursor.at
            if row < cursor.end and cursor.ts[row] <= to_ms:
                last = row
                if row + 1 < cursor.end and cursor.ts[row + 1] <= to_ms:
                    last = bisect_right(cursor.ts, to_ms, row, cursor.end) - 1
                if cursor.ts[last] + cursor.step_ms - 1 > to_ms:
                    self._is_behind = True
                    last -= 1
                if last >= row:
                    self._leave(cursor, last)
        self.clock.move_to(to_ms)

    def show_marks(self) -> None:
        self._tell_passed()
        super().show_marks()

    def forget(self, first: int) -> None:
        """Events before number `first` are written away, and nobody asks the account for them; its trades are packed when they are over."""
        account = self.account
        while account.events_first < first:
            forget_oldest(account)
        pages.fold_trades(account)

    def beat(self, ahead_ms: int = 0) -> None:
        """A heartbeat; the beats of the next `ahead_ms` are said with it."""
        self.catch_up()
        self.run(Heartbeat(ACCOUNT, ahead_ms))

    # ── As a machine ────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, command: Command) -> Any:
        """As the service, at the clock's instant: it never stands beyond the prices that have been taken."""
        self.caught_ms = self.clock.now_ms()
        return super().run(command)

    def catch_up(self) -> int:
        """Prices have been taken as far as the clock stands; deadlines may lie between the last of them and now."""
        now = self.clock.now_ms()
        waiting = self.state.deadlines
        if waiting and waiting[0][0] <= now:  # Nothing is due before the first of them, stale or not.
            deadline = index.next_deadline_ms(self.state)
            if deadline is not None and deadline <= now:
                self._run_deadlines(before_ms=now + 1)
        return now

    def _apply(self, command: Command, at_ms: int) -> Any:
        if self._is_behind:
            self._tell_passed()
        if self._marks:
            self._say_marks()
        applied = apply(self.state, command, at_ms)
        self.seq += 1
        if applied.events:
            self.event_buffer.events += applied.events
        return applied

    def _say_marks(self) -> None:
        """What the command SetMarks does. Nobody replays a session from a log, so nobody is told."""
        for coin, px in self._marks.items():
            market = self.state.markets[coin]
            market.see(px)
            market.volume_left = 0
            market.begin_bar(self._skipped[coin], px, px)  # Only its last millisecond is left of it.
        self._marks = {}

    def _tell_passed(self) -> None:
        """What has passed of longer bars that were calm so far. None of it meets anything; orders of this instant have to find the bar as it is."""
        if self._is_behind:
            self._is_behind = False
            self._pass_points(self.clock.now_ms())

    def _pass_points(self, to_ms: int) -> bool:
        """The points of all markets up to `to_ms`; False when there are none."""
        if bars := self._whole_bars(to_ms):
            self._apply(PassBars(tuple(bars)), to_ms)
            return True
        found = []
        for order, cursor in enumerate(self.cursors.values()):
            found += [(at_ms, order, step, point) for at_ms, step, point in cursor.until(to_ms, self.path)]
        if found:
            found.sort(key=_in_time)
            self._apply(PassPoints(tuple(point for *_, point in found), to_ms), to_ms)
        return bool(found)

    def _whole_bars(self, to_ms: int) -> list[PassBar]:
        """The next bar of each market, taken, where all of them begin at one instant and end at `to_ms`; else none, and nothing is taken."""
        cursors = [cursor for cursor in self.cursors.values() if cursor.at < cursor.end]
        for cursor in cursors:
            if (
                cursor.step
                or cursor.ts[cursor.at] + cursor.step_ms - 1 != to_ms
                or cursor.step_ms != cursors[0].step_ms
            ):
                return []
        bars = []
        for cursor in cursors:
            row = cursor.at
            bars.append(PassBar(cursor.coin, cursor.ts[row], *cursor.ints(row), cursor.step_ms))
            cursor.seek(row + 1)
        return bars

    def _walk(self, to_ms: int) -> None:
        are_there = self._pass_points(to_ms)
        deadline = None if are_there else index.next_deadline_ms(self.state)
        if deadline is not None and deadline <= to_ms:
            self._apply(Pulse(), to_ms)
        if to_ms > self.clock.now_ms():
            self.clock.move_to(to_ms)

    def _next_change_ms(self) -> int | None:
        turn = self.turns[0][0] if self.turns else None
        change = self._changes[0][0] if self._changes else None
        if turn is None or change is None:
            return turn if change is None else change
        return min(turn, change)


def _in_time(one: tuple[int, int, int, Any]) -> tuple[int, int, int]:
    return one[0], one[1], one[2]


_LOWEST: Final = float("-inf")
_HIGHEST: Final = float("inf")
_NEVER: Final = Calm(_HIGHEST, _LOWEST, 0)


SCOPED_KEY: Final = "key_00000002"  # the first is the account's own


def apply_caps(exchange: SimulatedExchange, caps: Mapping[str, Cap], *, account: str, owner: str) -> str:
    """Make the account's limits and the session's key, by the commands that a request would give. Answers the id of the key to trade with."""
    from bot.service.operations.keys import cap, key_of
    from bot.service.security.auth import Minted
    from bot.venue.commands import ChangeSettings, CreateKey

    key_request, own_request = cap_requests(caps)
    if own_request is not None:
        trade, daily = (
            cap(own_request.max_trade_usd, "maxTradeUsd"),
            cap(own_request.daily_trade_cap_usd, "dailyTradeCapUsd"),
        )
        exchange.run(ChangeSettings(account, trade, daily))
    if key_request is None:
        return owner
    # No secret is made: nobody signs in to a session.
    key = key_of(key_request, Minted("", SCOPED_KEY, "", ""), account, exchange.state.now_ms, "key")
    exchange.run(CreateKey(key))
    return key.id

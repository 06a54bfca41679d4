"""The simulated exchange: the service's state machine in a session. Candles set its prices instead of a feed, and it
stores nothing on disk.

The venue and its `apply` are the same as in a sandbox. The session advances the clock and skips bars that cannot change
anything in the venue. Before each command the venue gets the mark of that instant, so it sees skipped bars as one
price, the last close.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop
from typing import Any, Final

from bot.backtest.data.funding_rates import Payment, from_start
from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.caps import Cap, cap_requests
from bot.backtest.engine.options import SessionOptions
from bot.model.events import Event
from bot.runtime.passes.ports import Calm
from bot.service.market_data.candles import CandleStore
from bot.service.market_data.instruments import listing_at
from bot.service.market_data.price_feed import PriceFeed
from bot.service.operations.operations import Operations
from bot.service.security.auth import OWNER_SCOPES, Principal
from bot.service.security.rate_limits import RateLimits
from bot.service.state_machine.clock import MachineClock
from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.machine import Machine
from bot.service.state_machine.replay import EMPTY_CHAIN
from bot.venue.apply import apply
from bot.venue.model.commands import (
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
    pass_bar,
)
from bot.venue.model.numbers import E8
from bot.venue.model.record import forget_oldest
from bot.venue.model.state import Rules, State, VenueAccount, VenueKey
from bot.venue.prices import index
from bot.venue.prices.quiet_band import FOREVER_MS
from bot.venue.storage import pages

ACCOUNT: Final = "acc_00000001"
KEY: Final = "key_00000001"
# fixed, so that the same manifest gives the same bytes
ADDRESS: Final = "0x" + "5e" * 20
# written events that stay in memory: a restarted daemon reads its last page again
EVENTS_SHOWN: Final = 2_000

Change = tuple[int, int, SetMarket]


class _Prices(PriceFeed):
    """A feed without prices, because the session sets them. The local port answers requests for candles."""

    def __init__(self, coins: Iterable[str]) -> None:
        super().__init__({})
        self._stores = {coin: CandleStore() for coin in coins}

    def store(self, coin: str) -> CandleStore:
        return self._stores[coin]

    def has_ended(self, coin: str) -> bool:
        return False


@dataclass(slots=True)
class EventBuffer:
    """The account's events in order, from number `first` on. The numbers are 1, 2, 3 ..."""

    events: list[Event] = field(default_factory=list)
    first: int = 1

    @property
    def last(self) -> int:
        return self.first + len(self.events) - 1


class SimulatedExchange(Machine):
    """One account in one venue; the session advances its clock. `rates` are recorded funding rates by market."""

    def __init__(
        self,
        readers: list[CandleReader],
        options: SessionOptions,
        *,
        start_ms: int,
        address: str = ADDRESS,
        rates: Mapping[str, Sequence[Payment]] | None = None,
    ) -> None:
        super().__init__(
            clock=MachineClock.start(0.0, start_ms),
            command_log=CommandLog(None),
            feed=_Prices(reader.coin for reader in readers),
            state=State(),
            seq=0,
            chain=EMPTY_CHAIN,
            events=0,
        )
        self.readers = {reader.coin: reader for reader in readers}
        self.path = options.path
        self.event_buffer = EventBuffer()
        # number of the newest event
        self.count = 0
        self._changes: list[Change] = []
        # the next instant at which the session itself changes a market
        self._change_ms: int | None = None
        self._bands_now: dict[str, Calm] = {}
        self._banded_seq = -1
        self._is_behind = False
        # market -> the open time of its newest skipped bar
        self._skipped: dict[str, int] = {}
        self.run(SetRules(Rules(fill_at="next", paths=options.path)))
        for number, reader in enumerate(readers):
            listed = options.listing_of(reader.coin)
            before = reader.last_px(options.path)
            px = round(reader.open[reader.at] * E8) if before is None else before
            spec = replace(options.spec_of(listing_at(listed, px).spec, px), bar_length_ms=reader.step_ms)
            settlement = options.settlements.get(reader.coin)
            if (
                settlement is not None
                # The settlement comes in the millisecond before its instant, as the close of a bar does.
            ):
                spec = replace(spec, expires_ms=settlement.after(reader.ts[-1] + reader.step_ms) - 1)
            self.run(ListMarket(spec, px))
            # The session starts inside this bar: the venue has not seen its open.
            if reader.step:
                opened, _, _, closed, _ = reader.ints(reader.at)
                self.state.markets[reader.coin].begin_bar(reader.ts[reader.at], opened, closed)
            if (
                before is None and reader.ts[reader.at] > start_ms
                # The market has no price yet, so it takes no orders.
            ):
                self.run(SetMarket(reader.coin, status="closed"))
                self._changes.append(
                    (reader.ts[reader.at], len(readers) + number, SetMarket(reader.coin, status="open"))
                )
            if settlement is not None and settlement.outcome is not None:
                self.run(SetMarket(reader.coin, outcome_px=int(settlement.outcome * E8)))
            for paid in from_start((rates or {}).get(reader.coin, ()), start_ms):
                command = SetMarket(
                    reader.coin, funding_rate=paid.rate, funding_hours=paid.hours, funding_ms=paid.at_ms
                )
                if paid.at_ms < start_ms:
                    self.run(command)
                else:
                    self._changes.append((paid.at_ms, number, command))
        heapify(self._changes)
        self.follow_sessions(start_ms)
        self._change_ms = self._next_change_ms()
        key = VenueKey(KEY, ACCOUNT, "owner", "", "", OWNER_SCOPES, start_ms, "sandbox", owner=True)
        self.run(OpenAccount(ACCOUNT, address, "session", int(options.balance_usd * E8), key))
        self.account: VenueAccount = self.state.accounts[ACCOUNT]
        self.key = apply_caps(self, options.caps, account=ACCOUNT, owner=KEY) if options.caps else KEY
        self.principal = Principal(ACCOUNT, self.key, frozenset(OWNER_SCOPES), owner=self.key == KEY)
        self.operations = Operations(self, RateLimits(enabled=False), "http://session.invalid")

    # ── For the session ───────────────────────────────────────────────────────────────────────────────────────

    def band(self, coin: str) -> Calm:
        """The price range, and its end in time, inside which the venue need not see prices (venue.quiet_band). Changes
        by the session itself count too.

        A bar that closes at the instant of a deadline ends in the millisecond before it.
        """
        market = self.state.markets[coin]
        if market.pending or market.working:
            return _NEVER
        falling, rising = market.falling, market.rising
        lo, hi = falling[-1][0] / E8 if falling else _LOWEST, -rising[-1][0] / E8 if rising else _HIGHEST
        until_ms, change_ms = index.next_deadline_ms(self.state) or FOREVER_MS, self._change_ms
        return _calm((lo, hi, 1 + (until_ms if change_ms is None or change_ms > until_ms else change_ms)))

    def bands(self) -> Mapping[str, Calm]:
        """The band of every market. It stays the same until the next command."""
        if self._banded_seq != self.seq:
            self._bands_now = {coin: self.band(coin) for coin in self.readers}
            self._banded_seq = self.seq
        return self._bands_now

    def skip(self, reader: CandleReader, last: int) -> None:
        """Skip the bars up to row `last`, which touch nothing. The venue will only see the last close."""
        self._leave(reader, last)
        self.clock.move_to(self._skipped[reader.coin] + reader.step_ms - 1)

    def _leave(self, reader: CandleReader, last: int) -> None:
        reader.seek(last + 1)
        self._quiet.marks[reader.coin] = round(reader.close[last] * E8)
        self._skipped[reader.coin] = reader.ts[last]

    def pass_bar(self, reader: CandleReader, row: int) -> None:
        """Show the venue one whole bar of the only market; earlier bars are skipped.

        Afterwards the clock stands in the bar's last millisecond.
        """
        end_ms = reader.ts[row] + reader.step_ms - 1
        change_ms = self._change_ms
        if row > reader.at:
            self.skip(reader, row - 1)
        if change_ms is not None and change_ms <= end_ms:
            self.advance(end_ms)
            return
        assert not reader.step
        reader.at = row + 1
        self._apply(pass_bar((reader.coin, reader.ts[row], *reader.ints(row), reader.step_ms, None, 0)), end_ms)
        self.clock.move_to(end_ms)

    def advance(self, to_ms: int) -> None:
        """Advance all markets to `to_ms`, point by point, with each change at its own instant."""
        while (change_ms := self._change_ms) is not None and change_ms <= to_ms:
            self._walk(max(change_ms - 1, self.clock.now_ms()))
            if self._changes and self._changes[0][0] <= change_ms:
                at_ms, _, command = heappop(self._changes)
                self._apply(command, max(at_ms, self.state.now_ms))
            else:
                self._turn()
            self._change_ms = self._next_change_ms()
        self._walk(to_ms)

    def is_calm(self, to_ms: int, bands: Mapping[str, Calm]) -> bool:
        """True if nothing can happen in any market up to `to_ms`, where a bar ends. A bar that ends later counts with
        its whole range, if any of its points comes by `to_ms`.
        """
        for coin, reader in self.readers.items():
            row = reader.at
            if row >= reader.end or reader.ts[row] > to_ms or (reader.step and reader.next_point_ms() > to_ms):
                continue
            lo, hi, until_ms = bands[coin]
            if until_ms <= to_ms + 1 or reader.low[row] <= lo or reader.high[row] >= hi:
                return False
        return True

    def calm_until(self, to_ms: int, bands: Mapping[str, Calm]) -> int:
        """The last close, at most `to_ms`, up to which nothing can happen in any market.

        All markets must have bars of one length.
        """
        step_ms = 0
        to_ms = min([to_ms, *(band.until_ms - 2 for band in bands.values())])
        for coin, reader in self.readers.items():
            row, step_ms = reader.at, reader.step_ms
            last = bisect_right(reader.ts, to_ms, row, reader.end)
            if row >= last:
                continue
            lo, hi, _ = bands[coin]
            lows, highs = reader.low[row:last], reader.high[row:last]
            if min(lows) <= lo or max(highs) >= hi:
                leaves = (at for at, (low, high) in enumerate(zip(lows, highs, strict=True)) if low <= lo or high >= hi)
                to_ms = reader.ts[row + next(leaves)] - 1
        return (to_ms + 1) // step_ms * step_ms - 1

    def skip_to(self, to_ms: int) -> None:
        """Skip the bars that end by `to_ms`, as `is_calm` or `calm_until` allows. A bar that ends later stays: the
        venue sees its past points before the next command.
        """
        for reader in self.readers.values():
            row = reader.at
            if row < reader.end and reader.ts[row] <= to_ms:
                last = row
                if row + 1 < reader.end and reader.ts[row + 1] <= to_ms:
                    last = bisect_right(reader.ts, to_ms, row, reader.end) - 1
                if reader.ts[last] + reader.step_ms - 1 > to_ms:
                    self._is_behind = True
                    last -= 1
                if last >= row:
                    self._leave(reader, last)
        self.clock.move_to(to_ms)

    def show_marks(self) -> None:
        self._show_passed_points()
        super().show_marks()

    def forget(self, first: int) -> None:
        """Forget events before number `first`, which are written to disk, and pack finished trades."""
        account = self.account
        while account.events_first < first:
            forget_oldest(account)
        pages.fold_trades(account)

    def beat(self, ahead_ms: int = 0) -> None:
        """One heartbeat that stands for all heartbeats of the next `ahead_ms`."""
        self.catch_up()
        self.run(Heartbeat(ACCOUNT, ahead_ms))

    # ── As a machine ────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, command: Command) -> Any:
        """Run a command at the clock's instant, as the service does. The clock is never ahead of the prices."""
        self.caught_ms = now_ms = self.clock.now_ms()
        return self._apply(command, now_ms).answer

    def catch_up(self) -> int:
        """Run the deadlines between the last price and the clock's instant. Prices are always taken up to the clock."""
        now = self.clock.now_ms()
        waiting = self.state.deadlines
        # Stale deadlines only ever come too early.
        if waiting and waiting[0][0] <= now:
            deadline = index.next_deadline_ms(self.state)
            if deadline is not None and deadline <= now:
                self._run_deadlines(before_ms=now + 1)
        return now

    def _apply(self, command: Command, at_ms: int) -> Any:
        if self._is_behind:
            self._show_passed_points()
        if self._quiet.marks:
            self.log_marks()
        applied = apply(self.state, command, at_ms)
        self.seq += 1
        if applied.events:
            events = self.event_buffer.events
            events += applied.events
            self.count += len(applied.events)
        return applied

    def log_marks(self) -> None:
        """The effect of the command SetMarks. A session has no log to replay, so the command itself is left out."""
        for coin, px in self._quiet.marks.items():
            market = self.state.markets[coin]
            market.see(px)
            market.volume_left = 0
            # Only the bar's last millisecond is left.
            market.begin_bar(self._skipped[coin], px, px)
        self._quiet.marks.clear()

    def _show_passed_points(self) -> None:
        """Show the venue the past points of longer bars that were skipped so far.

        They touch nothing, but new orders must meet the current bar.
        """
        if self._is_behind:
            self._is_behind = False
            self._pass_points(self.clock.now_ms())

    def _pass_points(self, to_ms: int) -> bool:
        """Apply the points of all markets up to `to_ms`; False when there are none."""
        if bars := self._whole_bars(to_ms):
            self._apply(PassBars(tuple(bars)), to_ms)
            return True
        points = []
        for order, reader in enumerate(self.readers.values()):
            points += [(at_ms, order, step, point) for at_ms, step, point in reader.until(to_ms, self.path)]
        if points:
            points.sort(key=_in_time)
            self._apply(PassPoints(tuple(point for *_, point in points), to_ms), to_ms)
        return bool(points)

    def _whole_bars(self, to_ms: int) -> list[PassBar]:
        """Take the next bar of each market if all of them are whole and end at `to_ms`; otherwise take nothing."""
        readers = [reader for reader in self.readers.values() if reader.at < reader.end]
        for reader in readers:
            if (
                reader.step
                or reader.ts[reader.at] + reader.step_ms - 1 != to_ms
                or reader.step_ms != readers[0].step_ms
            ):
                return []
        bars = []
        for reader in readers:
            row = reader.at
            bars.append(pass_bar((reader.coin, reader.ts[row], *reader.ints(row), reader.step_ms, None, 0)))
            reader.seek(row + 1)
        return bars

    def _walk(self, to_ms: int) -> None:
        are_there = self._pass_points(to_ms)
        deadline = None if are_there else index.next_deadline_ms(self.state)
        if deadline is not None and deadline <= to_ms:
            self._apply(Pulse(), to_ms)
        if to_ms > self.clock.now_ms():
            self.clock.move_to(to_ms)

    def _next_change_ms(self) -> int | None:
        turn = self.schedule.next_ms()
        if not self._changes:
            return turn
        change = self._changes[0][0]
        return change if turn is None or change < turn else turn


def _in_time(point: tuple[int, int, int, Any]) -> tuple[int, int, int]:
    return point[0], point[1], point[2]


_calm: Final = partial(tuple.__new__, Calm)
_LOWEST: Final = float("-inf")
_HIGHEST: Final = float("inf")
_NEVER: Final = Calm(_HIGHEST, _LOWEST, 0)


# the first is the account's own
SCOPED_KEY: Final = "key_00000002"


def apply_caps(exchange: SimulatedExchange, caps: Mapping[str, Cap], *, account: str, owner: str) -> str:
    """Set the account's limits and create the session's key with the commands that a request gives.

    Returns the id of the key to trade with.
    """
    from bot.service.operations.keys import cap, key_of
    from bot.service.security.auth import Minted
    from bot.venue.model.commands import ChangeSettings, CreateKey

    key_request, own_request = cap_requests(caps)
    if own_request is not None:
        trade, daily = (
            cap(own_request.max_trade_usd, "maxTradeUsd"),
            cap(own_request.daily_trade_cap_usd, "dailyTradeCapUsd"),
        )
        exchange.run(ChangeSettings(account, trade, daily))
    if key_request is None:
        return owner
    # The key has no secret, because nobody signs in to a session.
    key = key_of(key_request, Minted("", SCOPED_KEY, "", ""), account, exchange.state.now_ms, "key")
    exchange.run(CreateKey(key))
    return key.id

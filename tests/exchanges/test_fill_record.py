"""Each fill is booked once, whatever happens to the messages, and the positions are the exchange's."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bot.clock import MINUTE_MS
from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.fill_order import gaps, in_order
from bot.exchanges.hyperliquid.fill_record import OVERLAP_MS, PATIENCE_MS, READ_EVERY_MS, FillRecord
from bot.exchanges.protocol import ExecutionReport
from bot.local_exchange.wire import rows
from bot.money import parse_e8
from tests.exchanges.reports import report
from tests.local_exchange.exchanges import START_MS
from tests.local_exchange.worlds import COINS, USERS, World


class Listener:
    """One user's record behind an unreliable connection."""

    def __init__(self, world: World, user: str, random: Random) -> None:
        self.world, self.user, self.random = world, user, random
        self.positions: dict[str, int] = {}
        self.record = FillRecord(START_MS - 1, self.positions)
        self.booked: list[ExecutionReport] = []
        self.on_the_way: list[ExecutionReport] = []
        self.counts: Counter[str] = Counter()
        self.heard = 0

    def journal(self) -> list[ExecutionReport]:
        """The engine's own record of the fills."""
        return form.fills([rows.fill(row) for row in self.world.venue.exchange.users[self.user].fills], self.user)

    def step(self) -> None:
        """Deliver some messages, lose some, repeat some; read when a read is due."""
        now_ms, journal = self.world.venue.exchange.now_ms, self.journal()
        for message in journal[self.heard :]:
            fate = self.random.choices(["arrives", "lost", "doubled"], [6, 3, 1])[0]
            self.counts[fate] += 1
            self.on_the_way += [message] * {"arrives": 1, "lost": 0, "doubled": 2}[fate]
        self.heard = len(journal)
        self.random.shuffle(self.on_the_way)
        while self.on_the_way and self.random.random() < 0.8:
            self.book(self.record.hear(self.on_the_way.pop(), now_ms))
        if self.random.random() < 0.05:
            self.on_the_way += self.random.choices(journal, k=3) if journal else []
        if self.record.is_read_due(now_ms) or self.random.random() < 0.05:
            self.read(lag_ms=self.random.choice([0, 0, 1, 1_200]))

    def read(self, lag_ms: int = 0) -> None:
        """A read of all fills, as the exchange had them some time ago."""
        now_ms = self.world.venue.exchange.now_ms
        start, self.counts["reads"] = self.record.read_from_ms, self.counts["reads"] + 1
        found = [one for one in self.journal() if start <= one.at_ms <= now_ms - lag_ms]
        self.random.shuffle(found)
        self.book(self.record.read(found, now_ms, now_ms))

    def book(self, reports: list[ExecutionReport]) -> None:
        self.booked += reports
        for market in COINS:
            signed = sum(one.position_after - one.position_before for one in self.booked if one.market == market)
            assert self.record.position(market) == self.positions.get(market, 0) + signed


@pytest.mark.soak(worlds=10, full=400)
def test_lost_late_repeated_and_reordered_messages_give_the_journal_of_the_engine(worlds: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(worlds):
        world = World(seed)
        listeners = [Listener(world, user, Random(f"messages:{seed}:{user}")) for user in USERS]
        for _ in range(60):
            trade(world, 1)
            for one in listeners:
                one.step()
        for one in listeners:
            one.read()
            journal = one.journal()
            assert Counter(fill.key for fill in one.booked) == Counter(fill.key for fill in journal), (seed, one.user)
            assert gaps(in_order(one.booked)) == []
            assert not one.record.is_read_due(world.venue.exchange.now_ms)
            for market in COINS:
                assert one.record.position(market) == parse_e8(world.venue.size(one.user, market)), (seed, market)
            counts += one.counts
    assert min(counts[name] for name in ("arrives", "lost", "doubled", "reads")) >= 4 * worlds, counts


def test_a_message_that_fits_is_booked_at_once_and_a_later_one_waits_for_it() -> None:
    record, first, second = FillRecord(0, {}), report(0, 5, 1, 10), report(5, 2, 2, 20)
    assert record.hear(second, 100) == []
    assert not record.is_read_due(100 + PATIENCE_MS - 1)
    assert record.is_read_due(100 + PATIENCE_MS)
    assert record.hear(first, 120) == [first, second]
    assert record.hear(first, 130) == record.hear(second, 130) == []
    assert not record.is_read_due(100 + PATIENCE_MS)
    assert record.is_read_due(READ_EVERY_MS)


def test_a_lost_pair_that_leaves_the_position_as_it_was_is_found_by_the_next_read() -> None:
    """No message breaks the chain, so only a read from the last verified instant can find the pair."""
    lost, later = [report(0, 5, 1, 10), report(5, -5, 2, 20)], report(0, 5, 3, 60 * MINUTE_MS)
    record = FillRecord(0, {})
    assert record.hear(later, later.at_ms) == [later]
    assert record.read_from_ms == 1
    assert record.read([*lost, later], later.at_ms, later.at_ms) == lost
    assert record.position("BTC") == 5


def test_half_of_a_lost_pair_waits_for_the_other_half() -> None:
    lost, later = [report(0, 5, 1, 10), report(5, -5, 2, 20)], report(0, 5, 3, 30)
    record = FillRecord(0, {})
    assert record.hear(later, 30) == [later]
    assert record.read([lost[0], later], 40, 40) == []
    assert (record.position("BTC"), record.verified_ms) == (5, 10)
    assert record.read([*lost, later], 50, 50) == lost


def test_a_read_without_the_newest_fills_books_what_chains_and_verifies_no_more() -> None:
    fills = [report(0, 5, 1, 10), report(5, 1, 2, 20), report(6, 1, 3, 30)]
    record = FillRecord(0, {})
    assert record.hear(fills[2], 30) == []
    assert record.read(fills[:1], 40, 40) == fills[:1]
    assert record.verified_ms == 30
    assert record.read(fills[:2], 50, 50) == fills[1:]
    assert record.verified_ms == 50


@pytest.mark.soak(worlds=5, full=200)
def test_a_record_that_begins_in_the_middle_books_only_later_fills(worlds: int) -> None:
    before = after = 0
    for seed in range(worlds):
        world = World(seed)
        trade(world, 30)
        begin_ms = world.venue.exchange.now_ms
        listeners = [Listener(world, user, Random(f"middle:{seed}:{user}")) for user in USERS]
        skipped = {one.user: {fill.key for fill in one.journal()} for one in listeners}
        for one in listeners:
            one.positions = {market: parse_e8(world.venue.size(one.user, market)) for market in COINS}
            one.record = FillRecord(begin_ms, one.positions)
        world.venue.control("advance", ms=1)
        for _ in range(30):
            trade(world, 1)
            for one in listeners:
                one.step()
        for one in listeners:
            one.read()
            later = {fill.key for fill in one.journal()} - skipped[one.user]
            assert Counter(fill.key for fill in one.booked) == Counter(later), (seed, one.user)
            before, after = before + len(skipped[one.user]), after + len(later)
    assert min(before, after) >= 5 * worlds, (before, after)


def trade(world: World, steps: int) -> None:
    """Steps of a world with more orders than it has by itself."""
    for _ in range(steps):
        world.step()
        for _ in range(4):
            world.order()


def test_a_position_from_before_is_where_the_first_fill_starts() -> None:
    record, fill = FillRecord(0, {"BTC": 7}), report(7, -7, 1, 10)
    assert record.hear(fill, 10) == [fill]
    assert record.position("BTC") == 0
    assert FillRecord(0, {}).hear(fill, 10) == []


@pytest.mark.parametrize("late", ["an older read", "an older waiting fill"])
def test_what_was_forgotten_is_not_booked_again_when_the_verified_instant_goes_back(late: str) -> None:
    pair = [report(0, 5, 1, 10), report(5, -5, 2, 10)]
    record, now_ms = FillRecord(0, {}), 60 * MINUTE_MS
    assert record.read(pair, now_ms, now_ms) == pair
    begin_ms = record.read_from_ms
    if late == "an older waiting fill":
        assert record.hear(report(7, 1, 3, begin_ms), now_ms) == []
    assert record.read(pair, 20, now_ms) == []
    assert record.verified_ms < now_ms
    assert record.read_from_ms == begin_ms
    assert record.hear(pair[0], now_ms) == record.read(pair, now_ms, now_ms) == []
    assert record.position("BTC") == 0


def test_memory_holds_only_fills_that_a_read_can_bring_again() -> None:
    record, position = FillRecord(0, {}), 0
    for minute in range(1, 1_001):
        at_ms = minute * MINUTE_MS
        fill = report(position, 1, minute, at_ms)
        assert record.hear(fill, at_ms) == [fill]
        position += 1
        if record.is_read_due(at_ms):
            assert record.read([fill], at_ms, at_ms) == []
            assert len(record._recent) <= (OVERLAP_MS + READ_EVERY_MS) // MINUTE_MS + 1
    old = report(0, 1, 1, MINUTE_MS)
    assert record.hear(old, 10**9) == []
    assert record.position("BTC") == position

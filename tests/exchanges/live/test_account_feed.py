"""Reports of an account equal the engine's own journal, whatever happens to messages, answers and connections."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, TypeVar

import pytest

from bot.clock import ManualClock
from bot.exchanges.hyperliquid import form, money_form
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.hyperliquid.fill_order import gaps, in_order
from bot.exchanges.hyperliquid.live.account_feed import AGAIN_MS, FILL_WAIT_MS, STANDING_MAX_MS
from bot.exchanges.hyperliquid.live.account_reader import AccountReader
from bot.exchanges.hyperliquid.live.connections import Counters, Down, Event, LiveSocket, Tick, Up
from bot.exchanges.hyperliquid.live.subscriptions import ChannelMessage
from bot.exchanges.protocol import (
    ORDER_ENDS,
    AccountReport,
    AccountStanding,
    ExecutionReport,
    FillCursor,
    FundingReport,
    LinkState,
    LiquidationReport,
    NoExchangeAnswer,
    OpenOrders,
    OrderUpdate,
    TransferReport,
    UnknownForm,
)
from bot.local_exchange.engine.state import Exchange
from bot.local_exchange.wire import rows
from bot.local_exchange.wire.account_answers import ledger_row
from bot.local_exchange.wire.channels import CHANNELS, normalised
from bot.money import parse_e8
from tests.exchanges.sources import InProcess
from tests.local_exchange.exchanges import ANN, BOB, BTC, Venue, limit
from tests.local_exchange.worlds import COINS, USERS, World

T = TypeVar("T")
# The channels that tell rows, and where a message has them.
ROWS_IN = {
    "userFills": "fills",
    "userFundings": "fundings",
    "userNonFundingLedgerUpdates": "nonFundingLedgerUpdates",
    "orderUpdates": None,
}


class Unreliable(InProcess):
    """Info answers of which some are faults."""

    def __init__(self, venue: Venue, random: Random) -> None:
        super().__init__(venue)
        self.random, self.share = random, 0.0

    async def info(self, query: Any) -> Any:
        if self.random.random() < self.share:
            raise NoExchangeAnswer(f"{query['type']}: the exchange answers HTTP 502; try again later")
        return await super().info(query)


class Follower:
    """A reader of one user's account behind an unreliable connection, on the exchange's manual clock."""

    def __init__(self, venue: Venue, user: str, random: Random, cursor: FillCursor | None = None) -> None:
        self.venue, self.user, self.random = venue, user, random
        # Our clock differs from the exchange's.
        self.ahead_ms = random.randrange(-20_000, 20_000)
        self.clock = ManualClock(self.now_ms)
        self.source = Unreliable(venue, random)
        self.reader = AccountReader(HyperliquidAccount(self.source, user), self.clock, cursor)
        self.socket = LiveSocket("", [], self.clock, random, Counters())
        self.reports: list[AccountReport] = []
        self.on_the_way: list[ChannelMessage] = []
        self.counts: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.is_up = False

    @property
    def now_ms(self) -> int:
        return self.venue.exchange.now_ms + self.ahead_ms

    def journal(self) -> list[ExecutionReport]:
        return form.fills([rows.fill(row) for row in self.venue.exchange.users[self.user].fills], self.user)

    def fills(self) -> list[ExecutionReport]:
        return [one for one in self.reports if isinstance(one, ExecutionReport)]

    async def take(self, event: Event) -> None:
        self.clock.set(max(self.clock.now_ms(), self.now_ms))
        self.reports += await self.reader.take(event, self.socket)

    def message(self, kind: str, **more: str) -> ChannelMessage:
        """What a channel that tells states says now."""
        exchange: Exchange = self.venue.exchange
        subscription = normalised(exchange, {"type": kind, "user": self.user, **more})
        state = CHANNELS[kind].state
        assert state is not None
        return ChannelMessage(CHANNELS[kind].name, state(exchange, subscription))

    def rows_of(self, channel: str) -> list[Any]:
        """All rows of a channel that the exchange has for the user."""
        user = self.venue.exchange.users[self.user]
        return {
            "userFills": lambda: [rows.fill(row) for row in user.fills],
            "userFundings": lambda: [flat_funding(row) for row in user.fundings],
            "userNonFundingLedgerUpdates": lambda: [ledger_row(row) for row in user.ledger_rows],
            "orderUpdates": lambda: [order_row(row) for row in user.history],
        }[channel]()

    async def step(self) -> None:
        """Deliver, lose, repeat and mix messages; cut and open the connection."""
        for channel, name in ROWS_IN.items():
            told = self.rows_of(channel)
            for row in told[self.heard[channel] :] if self.is_up else ():
                fate = self.random.choices(["arrives", "lost", "doubled"], [6, 2, 1])[0]
                self.counts[fate] += 1
                copies = {"arrives": 1, "lost": 0, "doubled": 2}[fate]
                data = [row] if name is None else {"user": self.user, name: [row]}
                self.on_the_way += [ChannelMessage(channel, data)] * copies
            self.heard[channel] = len(told)
        if self.random.random() < 0.2:
            self.on_the_way.append(self.message("allDexsClearinghouseState"))
            self.on_the_way += [self.message("openOrders", dex=dex) for dex in ("", "xyz")]
        self.random.shuffle(self.on_the_way)
        while self.is_up and self.on_the_way and self.random.random() < 0.8:
            await self.take(self.on_the_way.pop())
        if self.random.random() < 0.08:
            self.is_up, self.on_the_way = not self.is_up, []
            self.counts["cut"] += not self.is_up
            await self.take(Up() if self.is_up else Down("the connection broke"))
        else:
            await self.take(Tick())

    async def settle(self) -> None:
        """A good connection for some seconds."""
        self.source.share, self.is_up = 0.0, True
        await self.take(Up())
        for _ in range(3):
            self.venue.control("advance", ms=AGAIN_MS)
            for dex in ("", "xyz"):
                await self.take(self.message("openOrders", dex=dex))
            await self.take(Tick())

    def of(self, kind: type[T]) -> list[T]:
        return [one for one in self.reports if isinstance(one, kind)]

    def cash(self) -> dict[str, int]:
        """The cash at cost of each dex, as the exchange has it."""
        return {dex: parse_e8(self.summary(dex)["totalRawUsd"]) for dex in ("", "xyz")}

    def summary(self, dex: str) -> Any:
        return self.venue.info("clearinghouseState", user=self.user, dex=dex)["marginSummary"]

    def open_orders(self) -> set[str]:
        return {str(oid) for oid in self.venue.exchange.users[self.user].orders}


def flat_funding(row: Any) -> dict[str, Any]:
    told = rows.funding_row(row)
    return {"time": told["time"], **told["delta"]}


def order_row(row: Any) -> dict[str, Any]:
    order = rows.basic_order(row, row.told_sz)
    return {"order": order, "status": row.status, "statusTimestamp": row.status_ms}


def move_money(venue: Venue, random: Random) -> None:
    """A deposit, a withdrawal, or a transfer to another user, dex or spot."""
    user, other = random.sample(USERS, 2)
    usd = random.choice(["1", "2.5", "10"])
    signed = {"hyperliquidChain": "Testnet", "signatureChainId": "0x66eee"}
    sent = {"destination": random.choice([user, other]), "token": "USDC", "amount": usd, "fromSubAccount": ""}
    actions: list[dict[str, Any]] = [
        {"type": "usdSend", "destination": other, "amount": usd, "time": 0},
        {"type": "withdraw3", "destination": user, "amount": usd, "time": 0},
        {"type": "usdClassTransfer", "amount": usd, "toPerp": random.random() < 0.5, "nonce": 0},
        {"type": "sendAsset", "sourceDex": "", "destinationDex": random.choice(["xyz", "spot"]), **sent, "nonce": 0},
        {"type": "sendAsset", "sourceDex": "xyz", "destinationDex": random.choice(["", "spot"]), **sent, "nonce": 0},
    ]
    action = random.choice([None, *actions])
    if action is None:
        venue.control("deposit", address=user, usd=usd, dex=random.choice(["", "xyz"]))
        return
    nonce = venue.nonce()
    venue.act(user, {**action, **signed, "time" if "time" in action else "nonce": nonce}, nonce=nonce)


@pytest.mark.soak(worlds=8, full=300)
async def test_each_report_comes_once_and_the_link_is_in_step_at_the_end(worlds: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(worlds):
        world = World(seed)
        followers = [Follower(world.venue, user, Random(f"account:{seed}:{user}")) for user in USERS]
        for one in followers:
            await one.reader.prepare()
            await one.take(Up())
            one.is_up = True
        begun_ms, cash = world.venue.exchange.now_ms, {one.user: one.cash() for one in followers}
        world.venue.control("advance", ms=1)
        for one in followers:
            one.source.share = 0.1
        for _ in range(50):
            world.step()
            for _ in range(4):
                world.order()
            move_money(world.venue, world.random)
            for one in followers:
                await one.step()
        for one in followers:
            await one.settle()
            check_reports(one, begun_ms)
            counts["checked cash"] += has_cash_of_reports(one, cash[one.user])
            assert one.reader.feed.state.phase == "in_step", (seed, one.user, one.reader.feed.state)
            assert one.reader.feed.records is not None
            for market in COINS:
                booked = one.reader.feed.records.fills.position(market)
                assert booked == parse_e8(world.venue.size(one.user, market))
            counts += one.counts + Counter(type(report).__name__ for report in one.reports)
    needed = ("ExecutionReport", "FundingReport", "TransferReport", "OrderUpdate", "arrives", "lost", "doubled", "cut")
    assert min(counts[name] for name in (*needed, "checked cash")) >= 2 * worlds, counts


def check_reports(one: Follower, begun_ms: int) -> None:
    """Each row after the beginning was reported once, and no order that was told open is open no more."""
    expected: dict[type[Any], list[Any]] = {
        ExecutionReport: one.journal(),
        FundingReport: money_form.fundings(one.rows_of("userFundings")),
        TransferReport: money_form.ledger(one.rows_of("userNonFundingLedgerUpdates"), one.user),
    }
    for kind, journal in expected.items():
        reported = Counter(report.key for report in one.reports if isinstance(report, kind))
        later = (report for report in journal if isinstance(report, kind) and report.at_ms > begun_ms)
        assert reported == Counter(report.key for report in later), (kind, one.user)
    assert gaps(in_order(one.fills())) == []
    updates = one.of(OrderUpdate)
    assert len({update.key for update in updates}) == len(updates)
    ended = {update.order_id for update in updates if update.state in ORDER_ENDS}
    told = {order.order_id for state in one.of(OpenOrders) for order in state.orders}
    told |= {update.order_id for update in updates}
    triggered = {update.order_id for update in updates if update.state == "triggered"}
    assert told - ended - triggered == one.open_orders() - triggered, one.user
    assert one.open_orders() <= told - ended, one.user


def has_cash_of_reports(one: Follower, cash: dict[str, int]) -> bool:
    """The cash at cost is the one at the beginning and what was reported. False: a liquidation took money besides."""
    if one.of(LiquidationReport):
        return False
    for fill in one.fills():
        signed = fill.size if fill.is_buy else -fill.size
        cash[form.dex_of(fill.market)] -= signed * fill.px // 10**8 + fill.fee
    for funding in one.of(FundingReport):
        cash[form.dex_of(funding.market)] += funding.amount
    for transfer in one.of(TransferReport):
        assert transfer.amount is not None
        cash[transfer.group] += transfer.amount
    assert cash == one.cash()
    return True


def follower(**more: Any) -> Follower:
    return Follower(Venue(), ANN, Random(1), **more)


async def test_fills_from_before_a_cursor_are_not_reported_and_those_after_it_are() -> None:
    venue = Venue()
    venue.place(ANN, limit(BTC, "B", "0.01", "110000", "Ioc"))
    cursor = FillCursor(venue.exchange.now_ms, {"BTC": parse_e8(venue.size(ANN, "BTC"))})
    venue.control("advance", ms=60_000)
    venue.place(ANN, limit(BTC, "B", "0.02", "110000", "Ioc"))
    one = Follower(venue, ANN, Random(1), cursor)
    await one.reader.prepare()
    await one.take(Up())
    assert one.fills() == one.journal()[-len(one.fills()) :]
    assert sum(fill.size for fill in one.fills()) == parse_e8("0.02")
    assert one.reader.feed.state.phase == "in_step"


async def test_a_position_that_the_fills_do_not_give_is_named_and_the_link_is_behind() -> None:
    one = Follower(Venue(), ANN, Random(1), FillCursor(0, {"BTC": parse_e8("3")}))
    await one.reader.prepare()
    await one.take(Up())
    state = one.reader.feed.state
    assert state.phase == "behind"
    assert state.reason is not None and state.reason.startswith(
        "BTC: the exchange has a position of 0, and its fills give 3; they are read again"
    )
    asked = len(one.source.asked)
    await one.take(Tick())
    assert len(one.source.asked) == asked
    one.venue.control("advance", ms=AGAIN_MS)
    await one.take(Tick())
    assert len(one.source.asked) > asked


async def test_one_difference_of_an_account_in_step_is_read_again_before_it_is_told() -> None:
    one = follower()
    await one.reader.prepare()
    await one.take(Up())
    assert one.reader.feed.state.phase == "in_step"
    one.venue.control("advance", ms=301_000)
    one.source.changes["userFillsByTime"] = []
    one.venue.place(ANN, limit(BTC, "B", "0.01", "110000", "Ioc"))
    await one.take(one.message("allDexsClearinghouseState"))
    assert one.source.asked[-1] == "clearinghouseState"
    assert (one.fills(), one.reader.feed.state.phase) == ([], "in_step")
    del one.source.changes["userFillsByTime"]
    one.venue.control("advance", ms=AGAIN_MS)
    await one.take(Tick())
    assert one.reader.feed.state.phase == "in_step"
    assert len(one.fills()) >= 1


async def test_a_message_that_comes_before_the_read_of_a_new_connection_waits_for_it() -> None:
    venue = Venue()
    begun_ms = venue.exchange.now_ms - 1
    for side in "BABAB":
        venue.place(ANN, limit(BTC, side, "0.01", "110000" if side == "B" else "90000", "Ioc"))
        venue.control("advance", ms=1_000)
    reader = Follower(venue, ANN, Random(1), FillCursor(begun_ms, {}))
    await reader.reader.prepare()
    reader.source.share = 1.0
    await reader.take(Up())
    # It begins where the cursor is, as the first fill does.
    newest = [row for row in reader.rows_of("userFills") if parse_e8(row["startPosition"]) == 0][-1]
    await reader.take(ChannelMessage("userFills", {"user": ANN, "fills": [newest]}))
    assert reader.fills() == []
    reader.source.share = 0.0
    venue.control("advance", ms=AGAIN_MS)
    await reader.take(Tick())
    assert [fill.key for fill in reader.fills()] == [fill.key for fill in in_order(reader.journal())]


async def test_a_fill_whose_message_is_lost_is_read_when_two_standings_have_shown_it() -> None:
    reader = follower()
    await reader.reader.prepare()
    await reader.take(Up())
    reader.venue.control("advance", ms=1_000)
    reader.venue.place(ANN, limit(BTC, "B", "0.01", "110000", "Ioc"))
    await reader.take(reader.message("allDexsClearinghouseState"))
    assert reader.fills() == []
    await reader.take(reader.message("allDexsClearinghouseState"))
    assert [fill.key for fill in reader.fills()] == [fill.key for fill in reader.journal()]
    assert reader.reader.feed.state.phase == "in_step"


async def test_a_fill_that_an_answer_tells_is_read_although_the_socket_is_silent() -> None:
    reader = follower()
    await reader.reader.prepare()
    await reader.take(Up())
    reader.venue.control("advance", ms=1_000)
    reader.venue.place(ANN, limit(BTC, "B", "0.01", "110000", "Ioc"))
    (fill,) = reader.journal()
    reader.reader.feed.expect_fill(fill.order_id, reader.now_ms)
    await reader.take(Tick())
    assert reader.fills() == []
    reader.venue.control("advance", ms=FILL_WAIT_MS)
    await reader.take(Tick())
    assert [known.key for known in reader.fills()] == [fill.key]
    asked = len(reader.source.asked)
    # Known by now: an answer that comes after the fill's own message asks for nothing.
    reader.reader.feed.expect_fill(fill.order_id, reader.now_ms)
    reader.venue.control("advance", ms=FILL_WAIT_MS)
    await reader.take(Tick())
    assert len(reader.source.asked) == asked


async def test_a_fill_that_never_comes_is_looked_for_a_few_times_only() -> None:
    reader = follower()
    await reader.reader.prepare()
    await reader.take(Up())
    asked = len(reader.source.asked)
    reader.reader.feed.expect_fill("77", reader.now_ms)
    reads = []
    for _ in range(30):
        reader.venue.control("advance", ms=1_000)
        await reader.take(Tick())
        reads.append(reader.source.asked[asked:].count("userFillsByTime"))
    assert reads[0] == 0
    assert 2 <= reads[10] == reads[-1] <= 5


async def test_a_clock_that_is_set_and_a_late_standing_change_nothing_of_what_is_read() -> None:
    one = follower()
    await one.reader.prepare()
    await one.take(Up())
    late = one.message("allDexsClearinghouseState")
    one.venue.control("advance", ms=3_600_000)
    one.ahead_ms += 7_200_000
    await one.take(one.message("allDexsClearinghouseState"))
    difference_ms = one.reader.feed.clock_difference_ms
    await one.take(late)
    assert one.reader.feed.clock_difference_ms == difference_ms
    one.ahead_ms += 7_200_000
    await one.take(Tick())
    await one.take(Up())
    assert one.reader.feed.records is not None
    assert one.reader.feed.records.fills.verified_ms <= one.venue.exchange.now_ms
    one.venue.place(ANN, limit(BTC, "B", "0.01", "110000", "Ioc"))
    await one.take(Up())
    assert [fill.key for fill in one.fills()] == [fill.key for fill in one.journal()]


async def test_a_read_without_an_answer_leaves_the_link_behind_with_the_reason() -> None:
    one = follower()
    await one.reader.prepare()
    one.source.share = 1.0
    await one.take(Up())
    state = one.reader.feed.state
    assert (state.phase, "HTTP 502" in str(state.reason)) == ("behind", True)
    one.source.share = 0.0
    one.venue.control("advance", ms=AGAIN_MS)
    await one.take(Tick())
    assert one.reader.feed.state.phase == "in_step"


async def test_a_connection_that_lives_without_a_standing_is_given_up() -> None:
    one = follower()
    await one.reader.prepare()
    await one.take(Up())
    one.venue.control("advance", ms=STANDING_MAX_MS)
    await one.take(Tick())
    assert one.socket.end_reason is None
    one.venue.control("advance", ms=1)
    await one.take(Tick())
    assert one.socket.end_reason == "the exchange has told no standing for 20 s"
    await one.take(Down(one.socket.end_reason))
    assert one.reader.feed.state == LinkState("away", one.clock.now_ms(), "the exchange has told no standing for 20 s")


async def test_open_orders_and_standings_are_reported_by_margin_group() -> None:
    one = follower()
    await one.reader.prepare()
    await one.take(Up())
    one.venue.rest(ANN, limit(BTC, "B", "0.01", "90000"))
    await one.take(one.message("openOrders"))
    await one.take(one.message("openOrders", dex="xyz"))
    await one.take(one.message("allDexsClearinghouseState"))
    orders = {report.group: report.orders for report in one.reports if isinstance(report, OpenOrders)}
    assert [order.market for order in orders[""]] == ["BTC"] and orders["xyz"] == ()
    assert {report.group for report in one.reports if isinstance(report, AccountStanding)} == {"", "xyz"}


@pytest.mark.parametrize(
    ("channel", "data", "field"),
    [
        ("userFills", {"user": BOB, "fills": []}, "userFills.user"),
        ("userFills", {"user": ANN}, "userFills.fills"),
        ("userFills", {"user": ANN, "fills": [{"coin": "BTC"}]}, "userFills.fills[0].sz"),
        ("allDexsClearinghouseState", {"user": ANN, "clearinghouseStates": [["", {}, 1]]}, "allDexs"),
        ("allDexsClearinghouseState", {"user": ANN, "clearinghouseStates": [["", {}]]}, "clearinghouseState"),
        ("openOrders", {"user": ANN, "orders": []}, "openOrders.dex"),
        ("openOrders", [], "openOrders"),
    ],
)
async def test_a_message_in_an_unknown_form_is_named(channel: str, data: Any, field: str) -> None:
    with pytest.raises(UnknownForm) as raised:
        follower().reader.feed.take(ChannelMessage(channel, data), 1)
    assert str(raised.value).startswith(field)

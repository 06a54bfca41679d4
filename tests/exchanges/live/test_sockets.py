"""Real sockets to a local exchange: its faults, breaks and renewals lose and repeat nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, TypeVar
from weakref import WeakSet

import eth_account
import pytest
from hyperliquid.exchange import Exchange

from bot.clock import SystemClock
from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.live import connections
from bot.exchanges.hyperliquid.live import exchange as live
from bot.exchanges.hyperliquid.live.connections import Counters, Down, LiveSocket, Up
from bot.exchanges.protocol import (
    AccountReport,
    ExecutionReport,
    LinkState,
    NoExchangeAnswer,
    OpenOrders,
    OrderUpdate,
    TransferReport,
)
from bot.market_data.source import Depth, Quote, Update
from bot.testing.hyperliquid import LocalExchange
from tests.integration.virtual import virtual_time

T = TypeVar("T")
WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
FUNDED = pytest.mark.hyperliquid(accounts={ADDRESS: "100000"}, clock="real")


async def until(seconds: float, is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


def plugin(hyperliquid: LocalExchange) -> live.Hyperliquid:
    return live.open_exchange(hyperliquid.base_url.rpartition(":")[2])


class Followed:
    """The reports of an account as they come."""

    def __init__(self) -> None:
        self.reports: list[AccountReport] = []

    def of(self, kind: type[T]) -> list[T]:
        return [one for one in self.reports if isinstance(one, kind)]

    @property
    def fills(self) -> list[ExecutionReport]:
        return self.of(ExecutionReport)

    @property
    def phases(self) -> list[str]:
        return [one.phase for one in self.reports if isinstance(one, LinkState)]


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@asynccontextmanager
async def following(exchange: live.Hyperliquid, address: str) -> AsyncIterator[Followed]:
    followed = Followed()

    async def follow() -> None:
        async for reports in exchange.account(address, None):
            followed.reports += reports

    async with exchange:
        task = asyncio.create_task(follow())
        try:
            yield followed
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def all_of(stream: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in stream]


class Trader:
    """Real orders of an account, signed by the official SDK."""

    def __init__(self, hyperliquid: LocalExchange) -> None:
        self._sdk = Exchange(WALLET, hyperliquid.base_url)
        self._is_buy = False
        self.fills = 0

    def trade(self, count: int = 1) -> None:
        """Orders that fill at once: buy, sell, buy, ..."""
        for _ in range(count):
            self._is_buy = not self._is_buy
            px = 110_000 if self._is_buy else 90_000
            answer = self._sdk.order("BTC", self._is_buy, 0.001, px, {"limit": {"tif": "Ioc"}})
            assert "filled" in answer["response"]["data"]["statuses"][0], answer
            self.fills += 1


@FUNDED
@pytest.mark.parametrize(
    "faults",
    [
        [{"point": "socket_message", "kind": "lost", "channel": "userFills", "count": 3}],
        [{"point": "socket_message", "kind": "double", "channel": "userFills", "count": 5}],
        [{"point": "socket_message", "kind": "late", "channel": "userFills", "count": 2, "ms": 700}],
        [{"point": "socket_message", "kind": "reorder", "channel": "userFills", "count": 1}],
        [{"point": "socket", "kind": "close"}],
        [{"point": "socket", "kind": "close"}, {"point": "socket", "kind": "refuse", "count": 2}],
        [
            {"point": "socket", "kind": "close"},
            {"point": "request_in", "kind": "status_429", "action": "userFillsByTime"},
        ],
        [
            {"point": "socket", "kind": "close"},
            {"point": "request_in", "kind": "html_502", "path": "/info", "count": 4},
        ],
        [{"point": "socket", "kind": "close"}, {"point": "request_in", "kind": "lost", "path": "/info", "count": 4}],
        [{"point": "socket", "kind": "close"}, {"point": "reply_out", "kind": "late", "path": "/info", "ms": 1_500}],
    ],
    ids=lambda faults: "+".join(one["kind"] for one in faults),
)
async def test_a_fault_loses_no_fill_and_repeats_none(
    hyperliquid: LocalExchange, faults: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.exchanges.hyperliquid.weights.REFUSED_WAIT_MS", 300)
    monkeypatch.setattr("bot.exchanges.hyperliquid.fill_record.READ_EVERY_MS", 3_000)
    trader = await asyncio.to_thread(Trader, hyperliquid)
    async with following(plugin(hyperliquid), ADDRESS) as followed:
        await until(20, lambda: "in_step" in followed.phases)
        for fault in faults:
            hyperliquid.fault(**fault)
        await asyncio.to_thread(trader.trade, 6)
        await until(20, lambda: len(followed.fills) >= trader.fills)
        await asyncio.to_thread(trader.trade, 1)
        await until(20, lambda: len(followed.fills) >= trader.fills and followed.phases[-1] == "in_step")
        told = form.fills(hyperliquid.info("userFills", user=ADDRESS), ADDRESS)
        assert sorted(fill.key for fill in followed.fills) == sorted(fill.key for fill in told)


@FUNDED
@pytest.mark.parametrize(
    "fault",
    [
        *({"point": "socket_message", "kind": kind, "count": 9, "ms": 500} for kind in ("lost", "double", "late")),
        {"point": "socket", "kind": "close"},
    ],
    ids=lambda fault: fault["kind"],
)
async def test_a_fault_loses_no_transfer_and_no_end_of_an_order_and_repeats_none(
    hyperliquid: LocalExchange, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.exchanges.hyperliquid.fill_record.READ_EVERY_MS", 3_000)
    sdk = await asyncio.to_thread(Exchange, WALLET, hyperliquid.base_url)
    resting = {"limit": {"tif": "Gtc"}}
    answers = [await asyncio.to_thread(sdk.order, "BTC", True, 0.01, 80_000, resting) for _ in range(2)]
    oids = [answer["response"]["data"]["statuses"][0]["resting"]["oid"] for answer in answers]
    async with following(plugin(hyperliquid), ADDRESS) as followed:
        await until(20, lambda: "in_step" in followed.phases and followed.of(OpenOrders) != [])
        for channel in ("userNonFundingLedgerUpdates", "orderUpdates"):
            hyperliquid.fault(**(fault if "count" not in fault else {**fault, "channel": channel}))
        hyperliquid.deposit(ADDRESS, "7")
        await asyncio.to_thread(sdk.cancel, "BTC", oids[0])
        await until(30, lambda: len(followed.of(TransferReport)) >= 1 and len(followed.of(OrderUpdate)) >= 1)
        hyperliquid.deposit(ADDRESS, "8")
        await asyncio.to_thread(sdk.cancel, "BTC", oids[1])
        await until(30, lambda: len(followed.of(TransferReport)) >= 2 and len(followed.of(OrderUpdate)) >= 2)
        assert [one.amount for one in followed.of(TransferReport)] == [7 * 10**8, 8 * 10**8]
        ends = [(one.order_id, one.state, one.reason) for one in followed.of(OrderUpdate)]
        assert sorted(ends) == [(str(oid), "canceled", "user") for oid in oids]


@FUNDED
async def test_a_silent_socket_is_given_up_after_20_s_without_an_answer(
    hyperliquid: LocalExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.exchanges.hyperliquid.live.subscriptions.SILENCE_MAX_MS", 1_000)
    monkeypatch.setattr("bot.exchanges.hyperliquid.live.subscriptions.PING_EVERY_MS", 300)
    trader = await asyncio.to_thread(Trader, hyperliquid)
    exchange = plugin(hyperliquid)
    async with following(exchange, ADDRESS) as followed:
        await until(20, lambda: "in_step" in followed.phases)
        hyperliquid.fault("socket", "silence")
        await asyncio.to_thread(trader.trade, 2)
        await until(20, lambda: len(followed.fills) == 2 and followed.phases[-1] == "in_step")
        assert followed.phases == ["behind", "in_step", "away", "behind", "in_step"]
        assert exchange.health().opened == 2
        away = next(one for one in followed.reports if isinstance(one, LinkState) and one.phase == "away")
        assert "has sent nothing for" in str(away.reason)


async def test_no_socket_at_all_is_said_with_its_reason_and_tried_again(free_port: int) -> None:
    exchange = live.open_exchange(str(free_port))
    async with exchange:
        for stream in (exchange.account(ADDRESS, None), exchange.quotes(["BTC"])):
            with pytest.raises(NoExchangeAnswer, match=f"127.0.0.1:{free_port}"):
                await all_of(stream)


def test_sockets_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a link would grow with each attempt while its exchange is away."""
    opened, kept = Counters(), WeakSet[Any]()

    class Session(connections._Session):
        def __init__(self, owner: LiveSocket) -> None:
            super().__init__(owner)
            kept.add(self)
            opened.opened += 1

    async def refused(url: str) -> Any:
        raise NoExchangeAnswer(f"{url}: no route")

    async def read() -> None:
        downs = 0
        async for event in LiveSocket("http://127.0.0.1:1", [], SystemClock(), Random(1), Counters()).events():
            downs += isinstance(event, Down)
            if downs == 50:
                gc.collect()
                assert len(kept) <= 2 and opened.opened >= 50
                return

    monkeypatch.setattr(connections, "_Session", Session)
    monkeypatch.setattr(connections.WebSocket, "open", refused)
    with virtual_time() as (loop, _):
        loop.run_until_complete(read())


@FUNDED
async def test_a_renewal_opens_the_new_socket_before_the_old_one_ends_and_loses_nothing(
    hyperliquid: LocalExchange,
) -> None:
    counters, heard = Counters(), list[Any]()
    wanted = [{"type": "l2Book", "coin": "BTC"}]
    renewed = LiveSocket(hyperliquid.base_url, wanted, SystemClock(), Random(1), counters, age_ms=500)
    open_at_a_message: set[int] = set()
    async with asyncio.timeout(30):
        async for event in renewed.events():
            open_at_a_message.add(counters.open)
            heard.append(event)
            if sum(isinstance(one, Up) for one in heard) == 4:
                break
    assert not any(isinstance(one, Down) for one in heard)
    assert counters.opened >= 4 and 0 not in open_at_a_message
    await until(5, lambda: counters.open == 0)


@pytest.mark.hyperliquid(clock="real", prices="simulated", switches={"ip_limit": "on"})
async def test_prices_stream_and_minutes_need_no_request_once_the_socket_has_told_them(
    hyperliquid: LocalExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, updates = plugin(hyperliquid), list[Update]()
    async with exchange:
        symbols = [one.symbol for one in await exchange.instruments(print)]

        async def read() -> None:
            async for batch in exchange.quotes(symbols):
                updates.extend(batch)

        task = asyncio.create_task(read())
        await until(20, lambda: {one.symbol for one in updates if isinstance(one, Quote)} == set(symbols))
        await until(20, lambda: any(isinstance(one, Depth) for one in updates))
        feed = exchange._feeds[symbols[0]]
        await until(20, lambda: feed.candles[symbols[0]].whole_from_ms is not None)
        for symbol in symbols:
            await exchange.minutes(symbol, SystemClock().now_ms() - 600_000, print)
        before, now_ms = exchange.health().reads, SystemClock().now_ms()
        # A minute later by the machine's clock, of which the socket has told everything.
        monkeypatch.setattr(exchange, "_clock", Later(120_000))
        for symbol in symbols:
            whole_ms = feed.candles[symbol].whole_from_ms
            assert whole_ms is not None
            page = await exchange.minutes(symbol, whole_ms, print)
            assert page.until_ms > now_ms
        assert exchange.health().reads == before
        task.cancel()


@pytest.mark.hyperliquid(clock="real", prices="simulated")
async def test_a_market_that_is_not_listed_any_more_does_not_end_the_prices_of_the_others(
    hyperliquid: LocalExchange,
) -> None:
    exchange, found = plugin(hyperliquid), set[str]()
    async with exchange, asyncio.timeout(20):
        async for updates in exchange.quotes(["GONE", "BTC"]):
            found |= {one.symbol for one in updates if isinstance(one, Quote)}
            if found:
                break
    assert found == {"BTC"}


class Later(SystemClock):
    """A clock that is ahead of the machine's."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ms

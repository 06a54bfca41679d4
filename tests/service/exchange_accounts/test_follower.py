"""A service follows an account at a local exchange, with real processes and sockets or in virtual time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import eth_account
import httpx
import pytest

from bot.errors import ConfigError
from bot.model.events import OrderChanged
from bot.service.bodies import event_bodies
from bot.service.exchange_accounts.account_options import FollowedAccount
from bot.service.host import Service, build
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model.numbers import E8
from bot.wire import AccountSnapshot, EventsPage, StatusResult
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.followers import (
    ADDRESS,
    FUNDED,
    Hand,
    account_of,
    cash_of,
    is_in_step,
    kill_link,
    options_of,
    running,
    size_of,
    until,
)
from tests.service.exchange_accounts.virtual_time import in_virtual_time


@asynccontextmanager
async def owner(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """The owner of the account, with a key as an embedded daemon gets it."""
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        control = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
        minted = (await http.post("/sandbox/v1/keys", json={}, headers=control)).json()
        assert minted["address"] == ADDRESS
        http.headers["Authorization"] = f"Bearer {minted['apiKey']}"
        yield http


@FUNDED
async def test_hand_trades_become_events_and_the_books_equal_the_exchange(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    await asyncio.to_thread(hand.trade, 0.01)
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        assert size_of(service) == E8 // 100
        for size in (0.02, -0.05, 0.01):
            await asyncio.to_thread(hand.trade, size)
        await asyncio.to_thread(hand.trade, 0.3, "ETH")
        await until(lambda: size_of(service) == -E8 // 100 and size_of(service, "ETH") == 3 * E8 // 10)
        assert cash_of(service) == hand.raw()
        order_id = await asyncio.to_thread(hand.rest, 0.01, 80_000)
        await until(lambda: len(account_of(service).orders) == 1)
        async with owner(service) as http:
            answer = AccountSnapshot.model_validate((await http.get("/v1/account")).json())
            assert answer.exchange is not None and answer.exchange.link == "in_step"
            assert (answer.environment, answer.address) == ("local", ADDRESS)
            assert [str(order.limit_px) for order in answer.orders] == ["80000"]
            page = EventsPage.model_validate((await http.get("/v1/events")).json())
            kinds = [f"{event.type}.{event.subtype}" for event in page.events]
            assert kinds.count("fill.entry") == 3 and kinds.count("fill.exit") == 2
            assert {"account.link", "account.created", "order.open"} <= set(kinds)
            assert all(event.data.venue_ts for event in page.events if event.type == "fill")
            status = StatusResult.model_validate((await http.get("/v1/system/status")).json())
            assert status.exchange is not None
            assert (status.exchange.link, status.exchange.differences) == ("in_step", ())
        await asyncio.to_thread(hand.sdk.cancel, "BTC", order_id)
        await until(lambda: not account_of(service).orders)
        last = account_of(service).events[-1]
        assert isinstance(last, OrderChanged) and (last.subtype, last.reason) == ("canceled", "user")


@FUNDED
@in_virtual_time
async def test_nothing_is_sent_and_the_refusal_says_so(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    await asyncio.to_thread(hand.trade, 0.01)
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        async with owner(service) as http:
            for path, body in (
                ("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 100}),
                ("/v1/positions/BTC/close", {}),
                ("/v1/account/kill", {}),
                ("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60, "onMiss": "flatten"}),
            ):
                answer = await http.post(path, json=body, headers={"Idempotency-Key": path})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (503, "service_unavailable"), answer.text
                assert error["message"].startswith("this account is watched only")
                assert error["details"] == {"reason": "watched_only"}
                assert error.get("orderSubmitted", False) is False
            control = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
            for path, body in (
                ("clock/advance", {"ms": 1}),
                ("reset", {}),
                ("restore", {"name": "a"}),
                ("fork", {"name": "a"}),
                ("seed", {"seed": 1}),
            ):
                answer = await http.post(f"/sandbox/v1/{path}", json=body, headers=control)
                assert answer.status_code == 403, (path, answer.text)
                assert "follows an account at an exchange" in answer.json()["error"]["message"]
            assert (await http.post("/v1/sandbox/accounts/reset", json={})).status_code == 403
        assert [order["sz"] for order in hyperliquid.info("openOrders", user=ADDRESS)] == []


@FUNDED
@in_virtual_time
async def test_a_restart_books_what_happened_meanwhile_once(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    options = options_of(hyperliquid, tmp_path / "a.db")
    async with running(options) as service:
        await until(lambda: is_in_step(service))
        await asyncio.to_thread(hand.trade, 0.02)
        await asyncio.to_thread(hand.rest, 0.01, 80_000)
        await until(lambda: size_of(service) == 2 * E8 // 100 and len(account_of(service).orders) == 1)
    for size in (0.01, -0.05):
        await asyncio.to_thread(hand.trade, size)
    await asyncio.to_thread(hand.sdk.cancel, "BTC", hyperliquid.info("openOrders", user=ADDRESS)[0]["oid"])
    # Without the option: the database knows the account.
    async with running(options_of(hyperliquid, tmp_path / "a.db", followed=None)) as service:
        await until(lambda: is_in_step(service) and not account_of(service).orders)
        assert size_of(service) == -2 * E8 // 100
        assert cash_of(service) == hand.raw()
        assert account_of(service).trade_seq == 1 + 1 + 2
        books = size_of(service), cash_of(service), account_of(service).fees
    async with running(options) as service:
        assert (size_of(service), cash_of(service), account_of(service).fees) == books
        await until(lambda: is_in_step(service))
        assert account_of(service).trade_seq == 4


@pytest.mark.hyperliquid(accounts={ADDRESS: "100000"}, clock="real", switches={"trigger_oid": "new"})
@in_virtual_time
async def test_a_stop_that_fires_under_another_id_leaves_no_order_behind(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        await asyncio.to_thread(hand.trade, 0.01)
        stop: Any = {"trigger": {"triggerPx": 95_000, "isMarket": True, "tpsl": "sl"}}
        await asyncio.to_thread(hand.sdk.order, "BTC", False, 0.01, 90_000, stop, True)
        await until(lambda: len(account_of(service).orders) == 1 and size_of(service) == E8 // 100)
        held = account_of(service).positions["BTC"]
        assert account_of(service).orders[held.stop_oid or 0].trigger_px == 95_000 * E8
        hyperliquid.price("BTC", 94_000)
        await until(lambda: size_of(service) == 0)
        await until(lambda: not account_of(service).orders)
        assert cash_of(service) == hand.raw()


OTHERS = [eth_account.Account.from_key("0x" + f"0{number}" * 32) for number in (2, 3)]
SMALL = pytest.mark.hyperliquid(accounts={ADDRESS: "600", OTHERS[0].address.lower(): "100000"}, clock="real")


def told(service: Service) -> list[str]:
    """Type and subtype of each event of the account."""
    return [".".join(event_bodies.kind_of(event)) for event in account_of(service).events]


@SMALL
@in_virtual_time
@pytest.mark.parametrize("kind", ["full", "backstop"])
async def test_funding_transfers_and_a_liquidation_become_events(
    hyperliquid: LocalExchange, tmp_path: Path, kind: str
) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        await asyncio.to_thread(hand.sdk.update_leverage, 20, "BTC")
        await asyncio.to_thread(hand.trade, 0.09)
        hyperliquid.deposit(ADDRESS, "7")
        await until(
            lambda: {"account.transfer", "funding.payment", "account.leverage"} <= set(told(service)),
            80,
            lambda: told(service),
        )
        assert cash_of(service) == hand.raw()
        account = account_of(service)
        assert account.positions["BTC"].leverage == 20
        assert account.day_value == 607 * E8
        level = float(
            hyperliquid.info("clearinghouseState", user=ADDRESS)["assetPositions"][0]["position"]["liquidationPx"]
        )
        hyperliquid.price("BTC", round(level - (1 if kind == "full" else 1_000)))
        await until(lambda: size_of(service) == 0, 60, lambda: service.follower and service.follower.body())
        await until(lambda: cash_of(service) == hand.raw(), 80, lambda: service.follower and service.follower.body())
        assert f"liquidation.{kind}" in told(service)
        assert (account.absorbed, account.margin_lost > 0) == (0, kind == "backstop")


@SMALL
@in_virtual_time
async def test_a_position_that_the_exchange_deleverages_becomes_an_exit(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    other = await asyncio.to_thread(Hand, hyperliquid, OTHERS[1])
    hyperliquid.deposit(OTHERS[1].address.lower(), "600")
    await asyncio.to_thread(other.sdk.update_leverage, 20, "BTC")
    await asyncio.to_thread(hand.sdk.update_leverage, 20, "BTC")
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        await asyncio.to_thread(other.trade, 0.09)
        await asyncio.to_thread(hand.trade, -0.05)
        await until(lambda: size_of(service) == -5 * E8 // 100)
        hyperliquid.price("BTC", 90_000)
        await until(lambda: size_of(service) == 0, 60, lambda: service.follower and service.follower.body())
        assert [trade.kind for trade in account_of(service).trades][-1] == "adl"
        await until(lambda: cash_of(service) == hand.raw())


@FUNDED
async def test_a_killed_link_is_started_again_and_nothing_is_lost(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        assert service.follower is not None
        for count in (1, 2):
            kill_link(service.follower.link)
            await asyncio.to_thread(hand.trade, 0.01)
            await until(lambda: not is_in_step(service))
            await until(lambda: is_in_step(service))
            assert size_of(service) == count * E8 // 100
        assert cash_of(service) == hand.raw()
        assert service.follower.sessions == 3


def process(hyperliquid: LocalExchange, db: Path, *more: str) -> subprocess.Popen[str]:
    place = f"hyperliquid:{hyperliquid.base_url.rpartition(':')[2]}:{ADDRESS}"
    command = [sys.executable, "-m", "bot", "sandbox", "--port", "0", "--json", "--db", str(db), "--markets", "BTC,ETH"]
    return subprocess.Popen([*command, "--exchange-account", place, *more], stdout=subprocess.PIPE, text=True)


@FUNDED
async def test_kill_9_of_the_service_loses_and_repeats_no_fill(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    fills = 0
    for _ in range(2):
        service = process(hyperliquid, tmp_path / "a.db")
        try:
            assert service.stdout is not None
            base_url = json.loads(await asyncio.to_thread(service.stdout.readline))["baseUrl"]
            async with asyncio.timeout(60):
                while link_of(base_url)["link"] != "in_step":
                    await asyncio.sleep(0.1)
            for size in (0.01, -0.02, 0.02):
                await asyncio.to_thread(hand.trade, size)
                fills += 1
        finally:
            service.kill()
            service.wait()
            service.stdout.close()
    async with running(options_of(hyperliquid, tmp_path / "a.db", followed=None)) as last:
        await until(lambda: is_in_step(last))
        assert (size_of(last), cash_of(last)) == (2 * E8 // 100, hand.raw())
        assert account_of(last).trade_seq == fills


def link_of(base_url: str) -> dict[str, Any]:
    told: dict[str, Any] = httpx.get(f"{base_url}/v1/system/status", timeout=10).json()["exchange"]
    return told


@FUNDED
@in_virtual_time
async def test_a_market_that_the_service_does_not_list_is_named(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    await asyncio.to_thread(hand.trade, 0.3, "ETH")
    options = options_of(hyperliquid, tmp_path / "a.db", markets=("BTC",))
    async with running(options) as service:
        assert service.follower is not None
        await until(lambda: service.follower is not None and service.follower.trouble is not None)
        assert service.follower.trouble is not None
        assert service.follower.trouble.startswith("ETH: the account trades this market, and this service does not")
        assert service.follower.body()["reason"] == service.follower.trouble
        assert service.follower.account is None


@FUNDED
async def test_options_that_cannot_keep_such_an_account_are_refused(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    other = FollowedAccount("hyperliquid", "testnet", "0x" + "b" * 40)
    for more, text in (
        ({"db": ":memory:"}, "needs a database file; name one with --db"),
        ({"clock": "manual"}, "needs --clock real"),
        ({"followed": FollowedAccount("hyperliquid", "moon", ADDRESS)}, "write hyperliquid:testnet"),
        ({"followed": FollowedAccount("binance", "testnet", ADDRESS)}, "exchange 'binance' is not known"),
    ):
        options = options_of(hyperliquid, **{"db": tmp_path / "b.db"} | more)
        with pytest.raises(ConfigError, match=text):
            build(options)
    async with running(options_of(hyperliquid, db)) as service:
        await until(lambda: is_in_step(service))
    with pytest.raises(ConfigError, match="this database follows 0x.* use a new database"):
        build(options_of(hyperliquid, db, followed=other))

"""A person who trades at a local exchange, and a service that follows the account."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import eth_account
import pytest
from hyperliquid.exchange import Exchange

from bot.exchanges.link.client import ExchangeLink
from bot.service.exchange_accounts.account_options import FollowedAccount
from bot.service.host import HostOptions, Service, build
from bot.testing.hyperliquid import LocalExchange
from bot.venue.accounting import nav
from bot.venue.model.state import VenueAccount
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.virtual_exchange import TaskLink

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
FUNDED = pytest.mark.hyperliquid(accounts={ADDRESS: "100000"}, clock="real")


class Hand:
    """A person who trades on the exchange's own page."""

    def __init__(self, exchange: LocalExchange, wallet: Any = WALLET) -> None:
        self.exchange = exchange
        self.sdk = Exchange(wallet, exchange.base_url)

    def trade(self, size: float, coin: str = "BTC", px: float | None = None) -> None:
        """Buy at once, near `px`; a negative size sells."""
        px = (px or {"BTC": 100_000, "ETH": 3_000}[coin]) * (1.1 if size > 0 else 0.9)
        answer = self.sdk.order(coin, size > 0, abs(size), round(px), {"limit": {"tif": "Ioc"}})
        assert "filled" in answer["response"]["data"]["statuses"][0], answer

    def rest(self, size: float, px: float) -> int:
        answer = self.sdk.order("BTC", size > 0, abs(size), px, {"limit": {"tif": "Gtc"}})
        return int(answer["response"]["data"]["statuses"][0]["resting"]["oid"])

    def raw(self) -> int:
        """The cash at cost that the exchange has, in units of 1e-8."""
        told = self.exchange.info("clearinghouseState", user=ADDRESS)["marginSummary"]["totalRawUsd"]
        return round(float(told) * 1e6) * 100


def options_of(exchange: LocalExchange, db: Path, **more: Any) -> HostOptions:
    followed = FollowedAccount("hyperliquid", exchange.base_url.rpartition(":")[2], ADDRESS)
    defaults: dict[str, Any] = {"markets": ("BTC", "ETH"), "hold_prices": True, "followed": followed}
    return HostOptions(db=db, **defaults | more)


@asynccontextmanager
async def running(options: HostOptions) -> AsyncIterator[Service]:
    service = build(options, control_token=CONTROL_TOKEN)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def until(is_so: Callable[[], bool], seconds: float = 40, show: Callable[[], object] = lambda: "") -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.02)
    assert is_so(), show()


def account_of(service: Service) -> VenueAccount:
    assert service.follower is not None and service.follower.account is not None
    return service.follower.account


def is_in_step(service: Service) -> bool:
    account = service.follower and service.follower.account
    return account is not None and account.exchange is not None and account.exchange.link == "in_step"


def size_of(service: Service, coin: str = "BTC") -> int:
    held = account_of(service).positions.get(coin)
    return 0 if held is None else held.side * held.size


def cash_of(service: Service) -> int:
    return nav.stand_of(account_of(service), service.machine.state).cash


def kill_link(link: ExchangeLink | TaskLink | None) -> None:
    """kill -9 of a link, or the end of the task in its place."""
    assert link is not None
    if isinstance(link, TaskLink):
        link.kill()
    else:
        os.kill(link.pid, signal.SIGKILL)

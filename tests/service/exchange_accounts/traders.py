"""A service with an agent's key at a local exchange, its owner, and a person who trades on the exchange's page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bot.money import format_e8
from bot.service.exchange_accounts.account_options import FollowedAccount
from bot.service.host import HostOptions, Service
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model.numbers import E8
from bot.venue.model.state import VenueAction
from tests.exchanges.agents import approve, key_file
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.followers import (
    ADDRESS,
    Hand,
    account_of,
    cash_of,
    is_in_step,
    options_of,
    running,
    size_of,
    until,
)


def trading_options(exchange: LocalExchange, folder: Path, **more: Any) -> HostOptions:
    """The account with an agent's key."""
    place = exchange.base_url.rpartition(":")[2]
    followed = FollowedAccount("hyperliquid", place, ADDRESS, key_file(folder))
    return options_of(exchange, folder / "a.db", **{"followed": followed} | more)


@dataclass
class Trader:
    """A running service, its owner, and a person at the exchange."""

    service: Service
    http: httpx.AsyncClient
    hand: Hand

    async def close(self, coin: str = "BTC", key: str | None = "k", **body: Any) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.http.post(f"/v1/positions/{coin}/close", json=body, headers=headers)

    async def trade(self, size: float, coin: str = "BTC") -> None:
        before = size_of(self.service, coin)
        px = self.service.machine.state.markets[coin].mid / E8
        await asyncio.to_thread(self.hand.trade, size, coin, px)
        await until(lambda: size_of(self.service, coin) == before + round(size * E8))

    def placed(self) -> list[dict[str, Any]]:
        """Our fills at the exchange: those whose order has an id of ours."""
        fills = self.hand.exchange.info("userFills", user=ADDRESS)
        return [fill for fill in fills if fill.get("cloid")]

    def check_books(self) -> None:
        """Cash, sizes and orders are those of the exchange."""
        state = self.hand.exchange.info("clearinghouseState", user=ADDRESS)
        theirs = {row["position"]["coin"]: float(row["position"]["szi"]) for row in state["assetPositions"]}
        account = account_of(self.service)
        assert {coin: held.side * held.size / E8 for coin, held in account.positions.items()} == theirs
        assert cash_of(self.service) == self.hand.raw()


@asynccontextmanager
async def owner(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
        control = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
        minted = (await http.post("/sandbox/v1/keys", json={}, headers=control)).json()
        http.headers["Authorization"] = f"Bearer {minted['apiKey']}"
        yield http


def actions_of(service: Service) -> list[VenueAction]:
    known = account_of(service).exchange
    assert known is not None
    return list(known.actions.values())


def can_send(service: Service) -> bool:
    account = service.follower and service.follower.account
    return (
        is_in_step(service) and account is not None and account.exchange is not None and bool(account.exchange.signer)
    )


@asynccontextmanager
async def trading(exchange: LocalExchange, folder: Path, **more: Any) -> AsyncIterator[Trader]:
    hand = await asyncio.to_thread(Hand, exchange)
    await asyncio.to_thread(approve, exchange)
    async with running(trading_options(exchange, folder, **more)) as service:
        await until(lambda: can_send(service))
        for coin, market in service.machine.state.markets.items():
            # The service's own prices stand still; the exchange's are set to them.
            await asyncio.to_thread(exchange.price, coin, format_e8(market.mid))
        async with owner(service) as http:
            yield Trader(service, http, hand)

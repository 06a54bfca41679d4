"""kill -9 of the service and of its link at every commit and call of a close: done once, and told as it is."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from bot.testing.hyperliquid import LocalExchange
from tests.conftest import REPOSITORY
from tests.exchanges.agents import approve, key_file
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED, Hand, until

# Moments of one close, and of one entry with its leverage, without a fault; a lost answer has some more.
MOMENTS = 9
ENTRY_MOMENTS = 13


def cases(moments: int) -> list[tuple[int, str, bool]]:
    return [(at, who, lost) for who in ("service", "link") for lost in (False, True) for at in range(1, moments + 1)]


CASES, ENTRY_CASES = cases(MOMENTS), cases(ENTRY_MOMENTS)


class Process:
    """A service process, and the client of its account."""

    def __init__(self, exchange: LocalExchange, folder: Path, at: int, who: str) -> None:
        place = f"hyperliquid:{exchange.base_url.rpartition(':')[2]}:{ADDRESS}"
        command = [sys.executable, "-m", "tests.service.exchange_accounts.killed_service", str(at), who]
        command += ["--port", "0", "--json", "--db", str(folder / "a.db"), "--markets", "BTC"]
        command += ["--exchange-account", place, "--agent-key-file", str(key_file(folder))]
        environment = os.environ | {"BOT_CONTROL_TOKEN": CONTROL_TOKEN}
        self._process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)

    async def ready(self) -> None:
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        self.http = httpx.AsyncClient(base_url=json.loads(line)["baseUrl"], timeout=60)
        async with asyncio.timeout(90):
            while (await self.http.get("/v1/system/status")).json()["exchange"]["link"] != "in_step":
                await asyncio.sleep(0.05)
        control = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
        minted = await self.http.post("/sandbox/v1/keys", json={}, headers=control)
        self.http.headers["Authorization"] = f"Bearer {minted.json()['apiKey']}"

    async def close(self, key: str) -> httpx.Response | None:
        """A close of 0.01 BTC; None if the service ended before its answer."""
        try:
            body, headers = {"size": "0.01"}, {"Idempotency-Key": key}
            return await self.http.post("/v1/positions/BTC/close", json=body, headers=headers)
        except httpx.TransportError:
            return None

    async def enter(self, key: str) -> httpx.Response | None:
        """An entry of 0.01 BTC with its bracket; None if the service ended before its answer."""
        try:
            body = {"market": "BTC", "side": "long", "size": "0.01", "bracket": {"stopLoss": {"pct": 3}}}
            return await self.http.post("/v1/orders", json=body, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            return None

    async def end(self) -> None:
        await self.http.aclose()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        assert self._process.stdout is not None
        self._process.stdout.close()


@asynccontextmanager
async def running(exchange: LocalExchange, folder: Path, at: int = 0, who: str = "service") -> AsyncIterator[Process]:
    process = Process(exchange, folder, at, who)
    try:
        await process.ready()
        yield process
    finally:
        await process.end()


async def settled(
    process: Process, key: str, send: Callable[[Process, str], Awaitable[httpx.Response | None]] = Process.close
) -> dict[str, Any] | None:
    """The answer of a key when it is decided; None if the service ended before."""
    async with asyncio.timeout(90):
        while True:
            answer = await send(process, key)
            if answer is None:
                return None
            if answer.status_code == 200 or answer.json()["error"]["code"] == "trade_failed":
                result: dict[str, Any] = answer.json()
                return result
            assert answer.json()["error"]["orderSubmitted"] == "unknown" or _is_away(answer), answer.text


def _is_away(answer: httpx.Response) -> bool:
    """The link was killed and is being started again."""
    return bool(answer.json()["error"].get("details", {}).get("reason") in ("away", "behind"))


def ours(exchange: LocalExchange) -> list[str]:
    return [fill["sz"] for fill in exchange.info("userFills", user=ADDRESS) if fill.get("cloid")]


@FUNDED
@pytest.mark.soak(worlds=3, full=len(CASES))
async def test_kill_9_at_each_commit_and_call_of_a_close_does_it_once_and_tells_it(
    hyperliquid: LocalExchange, tmp_path: Path, worlds: int
) -> None:
    hand = await asyncio.to_thread(Hand, hyperliquid)
    await asyncio.to_thread(approve, hyperliquid)
    async with running(hyperliquid, tmp_path):
        # The account begins here, so that the next start knows it.
        await asyncio.to_thread(hand.trade, 0.09)
    cases = CASES if worlds >= len(CASES) else Random(f"{worlds}:kills").sample(CASES, worlds)
    for number, (at, who, is_lost) in enumerate(cases, 1):
        case, key = (at, who, is_lost), f"close-{number}"
        async with running(hyperliquid, tmp_path, at, who) as process:
            if is_lost:
                hyperliquid.fault("after_execution", "lost", action="order")
            result = await settled(process, key)
        assert result is not None or who == "service", case
        async with running(hyperliquid, tmp_path) as process:
            told = await settled(process, key)
            assert told is not None and result in (None, told), case
            if "trade" not in told:
                # It was not sent before its expiry, and is told as that: a new close does it.
                assert told["error"]["orderSubmitted"] is False, case
                told = await settled(process, f"{key}-again")
                assert told is not None, case
        assert told["trade"]["filledSize"] == "0.01", case
        assert ours(hyperliquid) == ["0.01"] * number, case
        if number % 8 == 0:
            await asyncio.to_thread(hand.trade, 0.08)
    async with running(hyperliquid, tmp_path) as process:
        theirs = hyperliquid.info("clearinghouseState", user=ADDRESS)["assetPositions"]
        here = (await process.http.get("/v1/account")).json()["positions"]
        assert [row["size"] for row in here] == [row["position"]["szi"] for row in theirs]
        status = (await process.http.get("/v1/system/status")).json()["exchange"]
        assert status["differences"] == []


@FUNDED
@pytest.mark.soak(worlds=2, full=len(ENTRY_CASES))
async def test_kill_9_at_each_commit_and_call_of_an_entry_does_it_once_and_leaves_its_stop(
    hyperliquid: LocalExchange, tmp_path: Path, worlds: int
) -> None:
    await asyncio.to_thread(approve, hyperliquid)
    async with running(hyperliquid, tmp_path) as process:
        # The account begins here, so that the next start knows it. The prices of the service stand still.
        listed = (await process.http.get("/v1/markets")).json()["markets"]
        await asyncio.to_thread(hyperliquid.price, "BTC", listed[0]["midPx"])
    chosen = ENTRY_CASES if worlds >= len(ENTRY_CASES) else Random(f"{worlds}:entries").sample(ENTRY_CASES, worlds)
    fills = 0
    for number, (at, who, is_lost) in enumerate(chosen, 1):
        case, key = (at, who, is_lost), f"entry-{number}"
        async with running(hyperliquid, tmp_path, at, who) as process:
            if is_lost:
                hyperliquid.fault("after_execution", "lost", action="order")
            result = await settled(process, key, Process.enter)
        assert result is not None or who == "service", case
        async with running(hyperliquid, tmp_path) as process:
            told = await settled(process, key, Process.enter)
            assert told is not None and result in (None, told), case
            # One that was not sent within 6 s is given up, and told as what it is.
            is_done = "trade" in told
            assert is_done or told["error"]["orderSubmitted"] is False, case
            fills += 2 * is_done
            if is_done:
                assert told["trade"]["filledSize"] == "0.01", case
                await until(lambda: open_rows(hyperliquid) == ["Stop Market"])
                closed = await settled(process, f"close-{number}")
                assert closed is not None and "trade" in closed, case
            assert ours(hyperliquid) == ["0.01"] * fills, case
            await until(lambda: open_rows(hyperliquid) == [])
            status = (await process.http.get("/v1/system/status")).json()["exchange"]
            assert status["differences"] == [], case


def open_rows(exchange: LocalExchange) -> list[str]:
    return [row["orderType"] for row in exchange.info("frontendOpenOrders", user=ADDRESS)]

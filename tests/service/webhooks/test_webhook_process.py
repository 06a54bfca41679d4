"""Webhooks of a real process that is killed between deliveries: each event arrives at least once under the same id,
and the schedule continues.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook as Library
from standardwebhooks.webhooks import WebhookVerificationError

from tests.service import serving
from tests.service.webhooks.receiver import OK, Got, receiving, status

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
# orders in each run of the service
ORDERS_MIN = 4
PATIENCE_S = 120

Start = Callable[..., serving.Served]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[serving.Served] = []

    def make(**options: Any) -> serving.Served:
        made = serving.start(**({"port": 0, "markets": ["BTC"], "rate_limits": False} | options))
        running.append(made)
        return made

    yield make
    for served in running:
        serving.end(served)


async def orders(http: httpx.AsyncClient, answered: asyncio.Semaphore) -> None:
    """Sends one after the other until the service is killed."""
    side = "long"
    try:
        while True:
            await http.post("/v1/orders", json={"market": "BTC", "side": side, "usdAmount": 30})
            answered.release()
            side = "short" if side == "long" else "long"
    except httpx.TransportError:
        return


async def all_fills(http: httpx.AsyncClient) -> set[str]:
    found: set[str] = set()
    since: dict[str, str] = {}
    while page := (await http.get("/v1/events", params={"limit": "200", "types": "fill", **since})).json()["events"]:
        found |= {event["id"] for event in page}
        since = {"since": page[-1]["id"]}
    return found


@pytest.mark.soak(kills=2, full=100)
async def test_no_event_is_lost_to_a_kill_9_and_each_comes_under_its_own_id(
    start: Start, tmp_path: Path, kills: int, base_seed: int
) -> None:
    chance = Random(base_seed)
    db = tmp_path / "s.db"

    unproven: list[str] = []

    def answer(number: int, got: Got) -> bytes:
        # Now: its instant is a part of what is signed, and may be some minutes old at the most.
        try:
            Library(SECRET).verify(got.body, got.headers)
        except WebhookVerificationError as error:
            unproven.append(f"{got.id}: {error}")
        return status(500) if chance.random() < 0.02 else OK

    async with receiving(answer=answer) as receiver:
        headers: dict[str, str] = {}
        for _ in range(kills):
            served = start(db=db)
            async with httpx.AsyncClient(base_url=served.base_url, headers=headers, timeout=60) as http:
                if not headers:
                    opened = (await http.post("/v1/sandbox/accounts", json={"startingBalanceUsd": 100_000})).json()
                    headers = {"Authorization": f"Bearer {opened['apiKey']}"}
                    http.headers.update(headers)
                    made = await http.post(
                        "/v1/webhooks", json={"url": receiver.url, "types": ["fill"], "secret": SECRET}
                    )
                    assert made.status_code == 200
                answered = asyncio.Semaphore(0)
                task = asyncio.create_task(orders(http, answered))
                await asyncio.sleep(chance.uniform(0.3, 0.9))
                for _order in range(ORDERS_MIN):
                    await answered.acquire()
                await asyncio.to_thread(served.kill)
                await task
        # Deliveries with a retry after 5 s are due now in real time, in any run.
        with sqlite3.connect(db) as file:
            file.execute("UPDATE deliveries SET due_ms = 0")
        file.close()
        served = start(db=db)
        async with httpx.AsyncClient(base_url=served.base_url, headers=headers, timeout=60) as http:
            fills = await all_fills(http)
            assert len(fills) >= ORDERS_MIN * kills
            async with asyncio.timeout(PATIENCE_S):
                while {got.id for got in receiver.got} != fills:
                    await asyncio.sleep(0.1)
        bodies: dict[str, set[bytes]] = {}
        for got in receiver.got:
            bodies.setdefault(got.id, set()).add(got.body)
        assert {len(one) for one in bodies.values()} == {1}
        assert unproven == []
        # a killed sender's connection may not be seen closed yet
        assert receiver.open_most <= 2


async def test_the_retry_schedule_continues_after_kill_9(start: Start, tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    answers = [status(500)]
    async with receiving(answer=lambda number, got: answers[0]) as receiver:
        served = start(db=db)
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as http:
            opened = (await http.post("/v1/sandbox/accounts")).json()
            http.headers["Authorization"] = f"Bearer {opened['apiKey']}"
            await http.post("/v1/webhooks", json={"url": receiver.url, "types": ["fill"], "secret": SECRET})
            await http.post("/v1/orders", json={"market": "BTC", "side": "long", "usdAmount": 30})
            await receiver.until(1)
            began = asyncio.get_running_loop().time()
            # The answer has arrived; its record is written next.
            async with asyncio.timeout(60):
                while (before := (await http.get("/v1/webhooks")).json())["webhooks"][0]["failures"] == 0:
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(served.kill)
        answers[0] = OK
        served = start(db=db)
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60, headers=http.headers) as again:
            assert (await again.get("/v1/webhooks")).json() == before
            assert before["webhooks"][0]["failures"] == 1
            first, second = await receiver.until(2, seconds=60)
            assert asyncio.get_running_loop().time() - began > 4, "five seconds, give or take a tenth"
            assert (first.id, first.body) == (second.id, second.body)
        assert await asyncio.to_thread(served.stop) == 0
    with sqlite3.connect(db) as file:
        assert file.execute("SELECT count(*) FROM deliveries").fetchone() == (0,)
    file.close()

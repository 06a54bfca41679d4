"""A guardian fires once if the service is killed, restarted or down around its instant."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.service import serving
from tests.service.conftest import Start

SPEED = 600
ORDER: dict[str, Any] = {"market": "BTC", "side": "long", "usdAmount": 500}
FLATTENING: tuple[dict[str, Any], ...] = (
    {"type": "dead_man_switch", "heartbeatSeconds": 240, "onMiss": "flatten"},
    {"type": "max_hold", "market": "BTC", "seconds": 240},
)


async def all_of(http: httpx.AsyncClient, path: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get(f"{path}{'&' if '?' in path else '?'}limit=200")).json()[name]
    return found


@pytest.mark.soak(kills=3, full=100)
async def test_kill_9_while_a_guardian_fires_leaves_exactly_one_flatten(
    start: Start, tmp_path: Path, kills: int, base_seed: int
) -> None:
    chance = Random(base_seed)
    for turn in range(kills):
        db = tmp_path / f"{turn}.db"
        served = start(db=db, clock=f"{SPEED}x")
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as http:
            opened = (await http.post("/v1/sandbox/accounts", json={})).json()
            headers = {"Authorization": f"Bearer {opened['apiKey']}"}
            http.headers.update(headers)
            for body in ({"market": "ETH", "side": "short", "usdAmount": 500}, ORDER):
                assert (await http.post("/v1/orders", json=body)).status_code == 200
            armed = (await http.post("/v1/guardians", json=FLATTENING[turn % 2])).json()
            # It is due after about 0.4 s of real time; the kill comes around that time.
            await asyncio.sleep(chance.uniform(0.3, 0.5))
            await asyncio.to_thread(served.kill)
        served = start(db=db, clock=f"{SPEED}x")
        async with httpx.AsyncClient(base_url=served.base_url, headers=headers, timeout=60) as http:
            fired: list[dict[str, Any]] = []
            # The dead-man switch has its remaining time again.
            until = time.monotonic() + 60
            while not fired and time.monotonic() < until:
                fired = await all_of(http, "/v1/events?types=guardian.fired", "events")
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            fired = await all_of(http, "/v1/events?types=guardian.fired", "events")
            assert [e["data"]["guardianId"] for e in fired] == [armed["id"]]
            exits = [t for t in await all_of(http, "/v1/trades", "trades") if t["kind"] == "guardian"]
            assert sorted(t["id"] for t in exits) == sorted(fired[0]["data"]["tradeIds"])
            assert len(exits) == (2 if turn % 2 == 0 else 1)
            held = (await http.get("/v1/account")).json()["positions"]
            assert [p["coin"] for p in held] == ([] if turn % 2 == 0 else ["ETH"])
        serving.end(served)


async def test_over_a_kill_a_schedule_runs_no_minute_twice_and_skips_the_downtime(start: Start, tmp_path: Path) -> None:
    headers: dict[str, str] = {}
    # the latest instant of the first run, the earliest of the next
    away: list[tuple[float, float]] = []
    for _ in range(3):
        began = time.monotonic()
        served = start(db=tmp_path / "s.db", clock=f"{SPEED}x")
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as http:
            if not headers:
                opened = (await http.post("/v1/sandbox/accounts", json={})).json()
                headers = {"Authorization": f"Bearer {opened['apiKey']}"}
                body = {"type": "schedule", "cron": "* * * * *", "action": "cancel_orders"}
                assert (await http.post("/v1/guardians", json=body, headers=headers)).status_code == 200
            http.headers.update(headers)
            now = (await http.get("/v1/system/status")).json()["serverTime"]
            if away:
                away[-1] = (away[-1][0], now - SPEED * 1_000 * (time.monotonic() - began))
            await asyncio.sleep(0.5)
            asked = time.monotonic()
            last = (await http.get("/v1/system/status")).json()["serverTime"]
            await asyncio.to_thread(served.kill)
            away.append((last + SPEED * 1_000 * (time.monotonic() - asked), 0))
    served = start(db=tmp_path / "s.db", clock=f"{SPEED}x")
    async with httpx.AsyncClient(base_url=served.base_url, headers=headers, timeout=60) as http:
        runs = [e["ts"] for e in await all_of(http, "/v1/events?types=guardian.fired", "events")]
    assert len(runs) == len(set(runs)) >= 6
    assert all(ts % 60_000 == 0 for ts in runs)
    # Between the last moment that it was alive and the first after the restart lie the lease of the clock and no run
    # for each minute.
    for gone, back in away[:2]:
        assert [ts for ts in runs if gone < ts < back] == []

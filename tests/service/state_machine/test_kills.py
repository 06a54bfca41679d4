"""kill -9 at any moment under load: acknowledged orders exist once, the log replays to the same events, guardians
keep their remaining time.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.replay import replay
from tests.service.conftest import Start

ORDER: dict[str, Any] = {"market": "BTC", "side": "long", "usdAmount": 30, "bracket": {"stopLoss": {"pct": 30}}}
# seven minutes past a full hour, so that no funding is due
START_MS = 1_750_000_020_000
CONTROL = "bbc_of_the_kills"
# real time that the service is down once
AWAY_SECONDS = 2.0


class Account:
    """The answers to one account, over all runs of the service."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.headers: dict[str, str] = {}
        self.sent: dict[str, dict[str, Any]] = {}
        self.acknowledged: dict[str, bytes] = {}
        self.canceled: set[str] = set()

    async def order(self, http: httpx.AsyncClient, worker: int) -> None:
        """Sends one order after the other until the service is killed; sometimes a limit, which is canceled again."""
        while True:
            key = f"w{worker}-{len(self.sent)}"
            body = ORDER | {"side": self.chance.choice(["long", "short"])}
            resting = self.chance.random() < 0.2
            if resting:
                body = {"market": "ETH", "side": "long", "usdAmount": 20, "type": "limit", "limitPx": "900"}
            self.sent[key] = body
            try:
                answer = await http.post("/v1/orders", json=body, headers={"Idempotency-Key": key})
                if answer.status_code != 200:
                    continue
                self.acknowledged[key] = answer.content
                if resting:
                    oid = answer.json()["trade"]["venueOid"]
                    if (await http.delete(f"/v1/orders/{oid}")).status_code == 200:
                        self.canceled.add(oid)
            except httpx.TransportError:
                return


async def pages(http: httpx.AsyncClient, path: str, name: str) -> list[dict[str, Any]]:
    """Everything of a list that is paged: trades backwards, events forwards."""
    found: list[dict[str, Any]] = []
    place = ""
    while page := (await http.get(f"{path}?limit=200{place}")).json()[name]:
        found += page
        place = f"&before={page[-1]['seq']}" if name == "trades" else f"&since={page[-1]['id']}"
    return found


def chain_in(db: Path, scratch: Path) -> str:
    """The digest of the file's rows, from the first one on."""
    for suffix in ("", "-wal"):
        if db.with_name(db.name + suffix).exists():
            shutil.copy(db.with_name(db.name + suffix), scratch.with_name(scratch.name + suffix))
    command_log = CommandLog(scratch)
    try:
        return replay(command_log.open(), str(scratch)).chain.hex()
    finally:
        command_log.close()


async def waiting(http: httpx.AsyncClient) -> tuple[float, dict[str, int], float, float]:
    """What is left of the dead-man switch in real seconds, the instants of the others, and between which two moments
    that was so.
    """
    asked_at = time.monotonic()
    account = (await http.get("/v1/account")).json()
    at = {g["type"]: g["nextDeadline"] for g in account["guardians"]}
    left = (at.pop("dead_man_switch") - account["serverTime"]) / 1000
    return left, at, asked_at, time.monotonic()


@pytest.mark.soak(kills=8, full=100)
async def test_after_kill_9_under_load_each_acknowledged_order_exists_once_and_guardians_stay_armed(
    start: Start, tmp_path: Path, kills: int, base_seed: int
) -> None:
    chance = Random(base_seed)
    account = Account(chance)
    db = tmp_path / "s.db"
    left = seen_at = killed_at = 0.0
    instants: dict[str, int] = {}
    for turn in range(kills + 1):
        digest = chain_in(db, tmp_path / f"copy{turn}.db") if turn else ""
        if turn == 1:
            await asyncio.sleep(AWAY_SECONDS)
        asked_at = time.monotonic()
        options = {"clock": "1x", "start_ms": START_MS, "markets": ["BTC", "ETH", "SOL"]}
        served = await asyncio.to_thread(start, db=db, env={"BOT_CONTROL_TOKEN": CONTROL}, **options)
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60, headers=account.headers) as http:
            if turn:
                said = await http.get("/sandbox/v1/digest", headers={"Authorization": f"Bearer {CONTROL}"})
                assert said.json()["digest"] == digest
                still, others, _, now = await waiting(http)
                assert others == instants and set(others) == {"max_hold", "schedule"}
                # without what it was away
                ran = (killed_at - seen_at) + (now - asked_at)
                # The place of the clock is written down every second: so much may be given back, and nothing taken.
                assert left - ran - 0.1 <= still <= left + 4, (turn, left, still, ran)
                newest = int((await http.get("/v1/account")).json()["lastEventId"][4:])
                since = "" if turn < 3 else f"&since=evt_{min(chance.randrange(1, 20), newest - 1):012d}"
                events = (await http.get(f"/v1/events?limit=200{since}")).json()["events"]
                numbers = [int(one["id"][4:]) for one in events]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            else:
                opened = (await http.post("/v1/sandbox/accounts", json={"startingBalanceUsd": 100_000})).json()
                account.headers = {"Authorization": f"Bearer {opened['apiKey']}"}
                http.headers.update(account.headers)
                held = {"market": "SOL", "side": "long", "usdAmount": 50, "bracket": {"stopLoss": {"pct": 50}}}
                assert (await http.post("/v1/orders", json=held)).status_code == 200
                for body in (
                    {"type": "dead_man_switch", "heartbeatSeconds": 86_400},
                    {"type": "max_hold", "market": "SOL", "seconds": 86_400},
                    {"type": "schedule", "cron": "0 0 1 1 *", "action": "cancel_orders"},
                ):
                    assert (await http.post("/v1/guardians", json=body)).status_code == 200
            if turn == kills:
                await judge(http, account, kills)
                break
            workers = [asyncio.create_task(account.order(http, worker)) for worker in range(4)]
            await asyncio.sleep(chance.uniform(0.02, 0.3))
            while turn == kills - 1 and len(account.acknowledged) <= kills:
                # On a busy machine, wait until there are answers to check.
                await asyncio.sleep(0.01)
            left, instants, seen_at, _ = await waiting(http)
            await asyncio.sleep(chance.uniform(0, 0.05))
            await asyncio.to_thread(served.kill)
            killed_at = time.monotonic()
            await asyncio.gather(*workers)


async def judge(http: httpx.AsyncClient, account: Account, kills: int) -> None:
    """At the end: every acknowledged order exists, and nothing was done twice."""
    trades = await pages(http, "/v1/trades", "trades")
    keys = [t["idempotencyKey"] for t in trades if t["idempotencyKey"] is not None]
    assert len(account.acknowledged) > kills
    assert len(keys) == len(set(keys))
    assert set(account.acknowledged) <= set(keys) <= set(account.sent)
    for key in [*list(account.acknowledged)[:20], *list(account.acknowledged)[-20:]]:
        again = await http.post("/v1/orders", json=account.sent[key], headers={"Idempotency-Key": key})
        assert again.content == account.acknowledged[key]
    assert len(await pages(http, "/v1/trades", "trades")) == len(trades), "a replay ordered anew"
    events = await pages(http, "/v1/events", "events")
    assert [e["id"] for e in events] == [f"evt_{n:012d}" for n in range(1, len(events) + 1)]
    entered = {e["idempotencyKey"] for e in events if e["type"] == "fill" and "idempotencyKey" in e}
    assert entered == {t["idempotencyKey"] for t in trades if t["filledSize"] != "0" and t["idempotencyKey"]}
    ended = {t["venueOid"] for t in trades if t["status"] == "canceled"}
    assert account.canceled <= ended
    snapshot = (await http.get("/v1/account")).json()
    assert snapshot["health"]["unprotected"] == []
    assert not account.canceled & {o["oid"] for o in snapshot["orders"]}

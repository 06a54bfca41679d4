"""Sixty-four callers at once in one process: in any order of turns, a key is one order and a token one execution.

Rate limits are off.
"""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from tests.service.conftest import Box, Caller

COPIES = 64
ORDER = {"market": "BTC", "side": "long", "usdAmount": 100}


async def ask(box: Box, path: str, body: Any, headers: dict[str, str], turns: list[int]) -> tuple[int, Any, bytes]:
    """One POST to the application; the body comes in pieces, with `turns` turns of the event loop between them."""
    content = json.dumps(body).encode()
    parts = [content[: len(content) // 2], content[len(content) // 2 :]]
    status, kept = 0, b""
    names: dict[bytes, bytes] = {}

    async def receive() -> dict[str, Any]:
        for _ in range(turns.pop() if turns else 0):
            await asyncio.sleep(0)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        nonlocal status, kept, names
        if message["type"] == "http.response.start":
            status, names = message["status"], dict(message["headers"])
        else:
            kept += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), *((n.lower().encode(), v.encode()) for n, v in headers.items())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    await box.service.app(scope, receive, send)
    return status, names, kept


async def all_at_once(box: Box, path: str, bodies: list[tuple[Any, dict[str, str]]], chance: Random) -> list[Any]:
    return await asyncio.gather(
        *(ask(box, path, body, headers, [chance.randrange(8), chance.randrange(8)]) for body, headers in bodies)
    )


@pytest.mark.soak(worlds=50, full=1_000)
async def test_one_of_sixty_four_confirms_executes(box: Box, caller: Caller, worlds: int, base_seed: int) -> None:
    for seed in range(base_seed, base_seed + worlds):
        chance = Random(seed)
        plan = ORDER | {"side": "short" if (seed - base_seed) % 2 else "long", "dryRun": True}
        token = (await caller.post("/v1/orders", plan))["confirmToken"]
        keyed = chance.choice(["none", "own", "one"])
        keys = {"none": [{}] * COPIES, "own": [{"Idempotency-Key": f"{seed}-{n}"} for n in range(COPIES)]}
        headers = keys.get(keyed, [{"Idempotency-Key": f"{seed}"}] * COPIES)
        body = {"confirmToken": token}
        answers = await all_at_once(
            box, "/v1/orders/confirm", [(body, caller.headers | own) for own in headers], chance
        )
        won = [json.loads(content) for status, _, content in answers if status == 200]
        made = {one["trade"]["id"] for one in won}
        assert len(made) == 1, (seed, keyed)
        assert len(won) == (COPIES if keyed == "one" else 1)
        for status, _, content in answers:
            if status != 200:
                error = json.loads(content)["error"]
                assert (status, error["code"], error["orderSubmitted"]) == (409, "idempotency_conflict", True)
                assert (error["details"]["reason"], {error["details"]["tradeId"]}) == ("used_token", made)
        newest = (await caller.get("/v1/trades?limit=2"))["trades"]
        assert {newest[0]["id"]} == made
        assert newest[0]["seq"] == seed - base_seed + 1


@pytest.mark.soak(worlds=10, full=1_000)
async def test_sixty_four_copies_of_a_keyed_order_execute_once_and_answer_alike(
    box: Box, caller: Caller, worlds: int, base_seed: int
) -> None:
    for seed in range(base_seed, base_seed + worlds):
        chance = Random(seed)
        headers = caller.headers | {"Idempotency-Key": f"k{seed}"}
        before = (await caller.get("/v1/account"))["lastEventId"]
        order = ORDER | {"side": "short" if (seed - base_seed) % 2 else "long"}
        answers = await all_at_once(box, "/v1/orders", [(order, headers)] * COPIES, chance)
        assert {status for status, _, _ in answers} == {200}
        assert len({content for _, _, content in answers}) == 1
        assert sum(b"idempotency-replayed" not in names for _, names, _ in answers) == 1
        fills = (await caller.get(f"/v1/events?since={before}"))["events"]
        # An order that flips has two fills in one trade: the closing and the opening one.
        assert {(e["type"], e["idempotencyKey"]) for e in fills} == {("fill", f"k{seed}")}
        assert len({e["data"]["tradeId"] for e in fills}) == 1
        assert (await caller.get("/v1/trades?limit=1"))["trades"][0]["seq"] == seed - base_seed + 1


async def test_different_orders_under_one_key_are_one_order_and_conflicts(box: Box, caller: Caller) -> None:
    headers = caller.headers | {"Idempotency-Key": "k"}
    bodies = [(ORDER | {"usdAmount": 100 + n % 2}, headers) for n in range(COPIES)]
    answers = await all_at_once(box, "/v1/orders", bodies, Random(1))
    good = [content for status, _, content in answers if status == 200]
    assert len(good) == COPIES // 2
    assert len(set(good)) == 1
    for status, _, content in answers:
        if status != 200:
            error = json.loads(content)["error"]
            assert (status, error["details"]["reason"]) == (422, "fingerprint")
    assert len((await caller.get("/v1/trades"))["trades"]) == 1

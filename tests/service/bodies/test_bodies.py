"""The contract: every body has exactly the fields of the interface, and the models of `bot.wire` read it without
loss.
"""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from bot import wire
from bot.wire.base import Resource
from bot.wire.events import DATA_OF
from tests.service.builders import ENTRY
from tests.service.conftest import Box, Caller


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for arg in get_args(annotation) for found in _models(arg)]


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(_is_list(arg) for arg in get_args(annotation))
    return origin in (tuple, list)


def assert_exact(model: type[BaseModel], body: Any, path: str = "body") -> None:
    """The body has exactly the fields of the model; so have inner models."""
    assert isinstance(body, dict), path
    known = {info.alias or name: info for name, info in model.model_fields.items()}
    optional = {alias for alias, info in known.items() if info.exclude_if is not None}
    assert set(body) <= set(known), f"{path}: unknown {set(body) - set(known)}"
    assert set(known) - optional <= set(body), f"{path}: missing {set(known) - optional - set(body)}"
    for alias, value in body.items():
        inner = _models(known[alias].annotation)
        if value is None or not inner:
            continue
        for index, item in enumerate(value if _is_list(known[alias].annotation) else [value]):
            assert_exact(inner[0], item, f"{path}.{alias}[{index}]")
    parsed = model.model_validate(body)
    assert isinstance(parsed, Resource)
    assert parsed.model_dump(mode="json", by_alias=True) == body, path


def assert_event(event: dict[str, Any]) -> None:
    assert_exact(wire.Event, event)
    name = event["type"] if event["type"] != "account" else f"account/{event['subtype']}"
    assert_exact(DATA_OF[name], event["data"], f"event {name}")


async def test_public_bodies_are_those_of_the_interface(box: Box) -> None:
    for path, model in (
        ("/v1/start", wire.StartResult),
        ("/v1/system/status", wire.StatusResult),
        ("/v1/markets?view=all", wire.MarketsResult),
        ("/v1/markets?view=opportunities", wire.MarketsResult),
        ("/v1/markets/BTC/candles?interval=1m&limit=5", wire.CandlesResult),
        ("/v1/markets/perp:eth/book", wire.BookResult),
    ):
        answer = await box.http.get(path)
        assert answer.status_code == 200, answer.text
        assert_exact(model, answer.json(), path)


async def test_account_and_order_bodies_are_those_of_the_interface(box: Box, caller: Caller) -> None:
    assert_exact(wire.SandboxAccountResult, caller.opened)
    plan = await caller.post(
        "/v1/orders", ENTRY | {"dryRun": True, "guardians": [{"type": "trailing_stop", "trailR": 1}]}
    )
    assert_exact(wire.PlanResult, plan)
    made = await caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert_exact(wire.OrderResult, made)
    resting = await caller.post("/v1/orders", ENTRY | {"type": "limit", "limitPx": "90000", "usdAmount": 100})
    assert_exact(wire.OrderResult, resting)
    guardian = await caller.post(
        "/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 300, "onMiss": "flatten"}
    )
    assert_exact(wire.Guardian, guardian)
    assert_exact(wire.HeartbeatResult, await caller.post("/v1/heartbeat"))
    assert_exact(wire.GuardiansPage, await caller.get("/v1/guardians"))
    assert_exact(wire.OrdersPage, await caller.get("/v1/orders"))
    assert_exact(wire.AccountSnapshot, await caller.get("/v1/account"))
    assert_exact(wire.Limits, await caller.get("/v1/limits"))
    assert_exact(wire.SuggestResult, await caller.post("/v1/orders/suggest", {"coin": "BTC"}))
    assert_exact(wire.SuggestResult, await caller.post("/v1/orders/suggest", {"coin": "BTC", "intent": "close"}))
    assert_exact(wire.CancelResult, await caller.delete(f"/v1/orders/{resting['orders'][-1]['oid']}"))
    assert_exact(wire.OrderResult, await caller.post("/v1/positions/BTC/close", {"fraction": 0.5}))
    await box.price("BTC", "100500")
    # Funding is paid, the dead-man switch fires.
    await box.advance(3_600_000)
    assert_exact(wire.CancelCoinResult, await caller.delete("/v1/orders", {"coin": "BTC"}))
    assert_exact(wire.TradesPage, await caller.get("/v1/trades"))
    page = await caller.get("/v1/events?limit=200")
    assert_exact(wire.EventsPage, page)
    for event in page["events"]:
        assert_event(event)
    assert {e["type"] for e in page["events"]} >= {"account", "fill", "order", "guardian"}
    assert_exact(wire.ResetResult, await caller.post("/v1/sandbox/accounts/reset"))
    for event in (await caller.get("/v1/events"))["events"]:
        assert_event(event)


async def test_a_liquidation_and_a_leverage_change_are_reported(box: Box, caller: Caller) -> None:
    await caller.post("/v1/sandbox/accounts/reset", {"balanceUsd": 500})
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 4000, "leverage": 10})
    change = {"market": "BTC", "side": "long", "usdAmount": 100, "leverage": 20, "acknowledgeLeverageChange": True}
    await caller.post("/v1/orders", change)
    held = (await caller.get("/v1/account"))["positions"][0]
    level = float(held["liquidationPx"])
    await box.price("BTC", str(int(level) - 100))
    page = await caller.get("/v1/events?limit=200")
    for event in page["events"]:
        assert_event(event)
    assert {"liquidation", "account"} <= {e["type"] for e in page["events"]}
    assert "leverage" in {e["subtype"] for e in page["events"]}


async def test_funding_is_reported_and_adds_up(box: Box, caller: Caller) -> None:
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 5000})
    await box.advance(3 * 3_600_000)
    page = await caller.get("/v1/events?types=funding")
    assert len(page["events"]) == 3
    for event in page["events"]:
        assert_event(event)
        assert event["ts"] % 3_600_000 == 0
        assert event["data"]["amountUsd"].startswith("-")
    paid = sum(float(e["data"]["amountUsd"]) for e in page["events"])
    assert abs(float((await caller.get("/v1/account"))["positions"][0]["fundingUsd"]) - paid) < 1e-8


async def test_control_bodies_are_those_of_the_interface(box: Box) -> None:
    clock = (await box.http.get("/sandbox/v1/clock", headers=box.control)).json()
    assert set(clock) == {"mode", "speed", "now", "nextDeadlineMs"}
    assert set(await box.advance(1000)) == {"mode", "speed", "now", "nextDeadlineMs", "processed", "lastPriceMs"}
    assert_exact(wire.DigestResult, await box.digest())
    assert_exact(wire.Market, await box.price("ETH", "2500"))
    minted = await box.http.post("/sandbox/v1/keys", json={"accountId": None}, headers=box.control)
    assert_exact(wire.MintKeyResult, minted.json())

"""The main path through the whole service, seen by a caller: orders, brackets, prices, guardians, events."""

from __future__ import annotations

from typing import Any

from tests.service.builders import ENTRY
from tests.service.conftest import START_MS, Box, Caller


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [f"{e['type']}.{e['subtype']}" for e in events]


async def test_an_order_with_a_bracket_is_stopped_out_when_the_price_falls_through_its_stop(
    box: Box, caller: Caller
) -> None:
    made = await caller.post("/v1/orders", ENTRY)
    assert made["orderSubmitted"] is True
    assert made["protected"] is True
    assert [order["kind"] for order in made["orders"]] == ["stop_loss", "take_profit"]
    entry = float(made["position"]["entryPx"])
    assert abs(float(made["position"]["stopPx"]) / entry - 0.98) < 0.0002
    await box.price("BTC", "97000")
    page = await caller.get("/v1/events?limit=200")
    assert kinds(page["events"]) == [
        "account.created",
        "account.key_created",
        "fill.entry",
        "order.armed",
        "order.armed",
        "trigger.stop_loss",
        "order.canceled",
        "fill.exit",
    ]
    snapshot = await caller.get("/v1/account")
    assert snapshot["positions"] == []
    assert snapshot["orders"] == []
    assert snapshot["lastEventId"] == page["lastEventId"]
    fees = sum(float(t["feeUsd"]) for t in (await caller.get("/v1/trades"))["trades"])
    realized = float(page["events"][-1]["data"]["realizedPnlUsd"])
    assert abs(float(snapshot["balanceUsd"]) - (10_000 + realized - fees)) < 1e-8


async def test_a_target_fills_at_its_price_or_better(box: Box, caller: Caller) -> None:
    made = await caller.post("/v1/orders", ENTRY)
    target = made["position"]["takeProfitPx"]
    await box.price("BTC", str(int(float(target)) + 5))
    trades = (await caller.get("/v1/trades"))["trades"]
    assert trades[0]["kind"] == "take_profit"
    assert float(trades[0]["realizedPnlUsd"]) > 0


async def test_a_plan_is_confirmed_once(caller: Caller) -> None:
    plan = await caller.post("/v1/orders", ENTRY | {"dryRun": True})
    assert plan["dryRun"] is True
    assert plan["orderSubmitted"] is False
    assert plan["expiresAt"] == START_MS + 60_000
    assert (await caller.get("/v1/account"))["positions"] == []
    made = await caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]}, key="one")
    assert made["trade"]["size"] == plan["plan"]["size"]
    again = await caller.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]}, key="two")
    assert again.status_code == 409
    error = again.json()["error"]
    assert (error["code"], error["details"]["reason"]) == ("idempotency_conflict", "used_token")
    assert error["details"]["tradeId"] == made["trade"]["id"]
    assert error["orderSubmitted"] is True


async def test_a_plan_that_drifted_or_expired_is_stale(box: Box, caller: Caller) -> None:
    plan = await caller.post("/v1/orders", ENTRY | {"dryRun": True, "maxDriftBps": 10})
    await box.price("BTC", "100200")
    late = await caller.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "plan_stale")
    plan = await caller.post("/v1/orders", ENTRY | {"dryRun": True})
    await box.advance(60_000)
    late = await caller.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "plan_stale")
    assert late.json()["error"]["orderSubmitted"] is False
    assert (await caller.get("/v1/account"))["positions"] == []


async def test_the_log_and_the_venue_never_see_a_confirm_token(box: Box, caller: Caller) -> None:
    plan = await caller.post("/v1/orders", ENTRY | {"dryRun": True})
    assert plan["confirmToken"] not in box.service.machine.state.plans


async def test_positions_close_in_part_and_whole(caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY)
    half = await caller.post("/v1/positions/btc/close", {"fraction": 0.5})
    assert half["trade"]["kind"] == "close"
    assert half["position"] is not None
    rest = await caller.post("/v1/positions/perp:BTC/close", {})
    assert rest["position"] is None
    assert rest["orders"] == []
    none = await caller.send("POST", "/v1/positions/BTC/close", {})
    assert (none.status_code, none.json()["error"]["code"]) == (404, "not_found")
    assert none.json()["error"]["orderSubmitted"] is False


async def test_a_limit_order_rests_fills_and_arms_its_stop(box: Box, caller: Caller) -> None:
    order = ENTRY | {"type": "limit", "limitPx": "99000", "usdAmount": 990}
    made = await caller.post("/v1/orders", order)
    assert made["position"] is None
    assert made["protected"] is True
    (resting,) = made["orders"]
    assert resting["status"] == "open"
    assert resting["bracket"]["stopLoss"]["px"] == "97020"
    assert float((await caller.get("/v1/account"))["marginUsedUsd"]) > 0
    await box.price("BTC", "98990")
    snapshot = await caller.get("/v1/account")
    # A pushed price is a gap: the limit fills at 98,990, and the stop is measured from there, rounded to the safer
    # side.
    assert snapshot["positions"][0]["stopPx"] == "97011"
    assert {o["kind"] for o in snapshot["orders"]} == {"stop_loss", "take_profit"}


async def test_orders_are_canceled_by_id_and_by_coin(caller: Caller) -> None:
    order = ENTRY | {"type": "limit", "limitPx": "90000", "usdAmount": 100}
    first = (await caller.post("/v1/orders", order))["orders"][0]["oid"]
    assert await caller.delete(f"/v1/orders/{first}") == {
        "oid": first,
        "coin": "BTC",
        "canceled": True,
        "filledSize": "0",
        "unprotected": False,
    }
    second = (await caller.post("/v1/orders", order))["orders"][0]["oid"]
    assert await caller.delete("/v1/orders", {"coin": "perp:btc"}) == {
        "coin": "BTC",
        "canceledOids": [second],
        "unprotected": False,
    }
    assert await caller.delete("/v1/orders", {"coin": "BTC"}) == {
        "coin": "BTC",
        "canceledOids": [],
        "unprotected": False,
    }
    for oid in (first, "0", "x", "²", "9" * 30):
        gone = await caller.send("DELETE", f"/v1/orders/{oid}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def test_canceling_the_stop_says_that_the_position_is_unprotected(caller: Caller) -> None:
    made = await caller.post("/v1/orders", ENTRY)
    stop = next(order for order in made["orders"] if order["kind"] == "stop_loss")
    gone = await caller.delete(f"/v1/orders/{stop['oid']}")
    assert gone["unprotected"] is True
    assert (await caller.get("/v1/account"))["health"]["unprotected"] == ["BTC"]


async def test_a_dead_man_switch_fires_at_its_deadline_and_not_before(box: Box, caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY)
    armed = await caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60, "onMiss": "flatten"})
    assert armed["nextDeadline"] == START_MS + 60_000
    await box.advance(59_999)
    beat = await caller.post("/v1/heartbeat")
    assert beat == {
        "guardians": [{"id": armed["id"], "nextDeadline": START_MS + 119_999}],
        "serverTime": START_MS + 59_999,
    }
    # A heartbeat at exactly the deadline is too late.
    await box.advance(60_000)
    assert (await caller.post("/v1/heartbeat"))["guardians"] == []
    snapshot = await caller.get("/v1/account")
    assert snapshot["positions"] == []
    assert snapshot["health"]["opensBlocked"] is True
    refused = await caller.send("POST", "/v1/orders", ENTRY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "limit_exceeded")
    assert refused.json()["error"]["details"]["guardianId"] == armed["id"]
    fired = next(e for e in (await caller.get("/v1/events?types=guardian.fired"))["events"])
    assert fired["ts"] == START_MS + 119_999
    assert await caller.delete(f"/v1/guardians/{armed['id']}") == {
        "id": armed["id"],
        "type": "dead_man_switch",
        "disarmed": True,
    }
    await caller.post("/v1/orders", ENTRY)


async def test_an_inline_trailing_stop_protects_and_follows(box: Box, caller: Caller) -> None:
    order = {k: v for k, v in ENTRY.items() if k != "bracket"} | {
        "guardians": [{"type": "trailing_stop", "trailPct": 1}]
    }
    made = await caller.post("/v1/orders", order)
    assert made["protected"] is True
    assert made["guardians"][0]["tradeId"] == made["trade"]["id"]
    await box.price("BTC", "102000")
    (guardian,) = (await caller.get("/v1/guardians"))["guardians"]
    assert guardian["stopPx"] == "100980"
    await box.price("BTC", "100900")
    assert (await caller.get("/v1/account"))["positions"] == []
    assert (await caller.get("/v1/guardians"))["guardians"] == []
    assert (await caller.get("/v1/trades"))["trades"][0]["kind"] == "guardian"


async def test_a_suggested_order_can_be_sent_unchanged(caller: Caller) -> None:
    found = await caller.post("/v1/orders/suggest", {"coin": "BTC", "notionalUsd": 250, "leverage": 3})
    assert found["feasible"] is True
    request = found["request"]
    made = (await caller.send(request["method"], request["path"], request["body"])).json()
    assert made["trade"]["filledSize"] == found["size"]
    found = await caller.post("/v1/orders/suggest", {"coin": "BTC", "intent": "close"})
    request = found["request"]
    made = (await caller.send(request["method"], request["path"], request["body"])).json()
    assert made["position"] is None


async def test_a_reset_wipes_trades_and_events_and_continues_the_numbering(caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY)
    before = (await caller.get("/v1/account"))["lastEventId"]
    reset = await caller.post("/v1/sandbox/accounts/reset", {"balanceUsd": 500})
    assert (reset["epoch"], reset["balanceUsd"]) == (1, "500")
    snapshot = await caller.get("/v1/account")
    assert (snapshot["epoch"], snapshot["positions"], snapshot["balanceUsd"]) == (1, [], "500")
    page = await caller.get("/v1/events")
    assert kinds(page["events"]) == ["account.reset"]
    assert page["events"][0]["id"] > before
    gone = await caller.send("GET", "/v1/events?since=evt_000000000001")
    assert gone.status_code == 410
    assert gone.json()["error"]["fix"] == {"action": "resync", "lastEventId": page["lastEventId"]}
    assert (await caller.get("/v1/trades"))["trades"] == []


async def test_pages_of_events_give_the_whole_feed_for_any_limit(box: Box, caller: Caller) -> None:
    for _ in range(4):
        await caller.post("/v1/orders", ENTRY)
        await caller.post("/v1/positions/BTC/close")
    whole = (await caller.get("/v1/events?limit=200"))["events"]
    for limit in (1, 3, 7):
        got: list[Any] = []
        since = ""
        while page := (await caller.get(f"/v1/events?limit={limit}{since}"))["events"]:
            got += page
            since = f"&since={page[-1]['id']}"
        assert got == whole
    fills = await caller.get("/v1/events?types=fill,guardian.armed&limit=200")
    assert fills["events"] == [e for e in whole if e["type"] == "fill"]
    assert fills["lastEventId"] == whole[-1]["id"]
    newest = await caller.get(f"/v1/events?since={whole[-1]['id']}")
    assert newest == {"events": [], "lastEventId": whole[-1]["id"]}


async def test_trades_page_backwards_by_seq(caller: Caller) -> None:
    for _ in range(3):
        await caller.post("/v1/orders", ENTRY)
        await caller.post("/v1/positions/BTC/close")
    whole = await caller.get("/v1/trades")
    assert whole["nextBefore"] is None
    assert [t["seq"] for t in whole["trades"]] == [6, 5, 4, 3, 2, 1]
    first = await caller.get("/v1/trades?limit=4")
    assert first["nextBefore"] == 3
    rest = await caller.get("/v1/trades?limit=4&before=3")
    assert first["trades"] + rest["trades"] == whole["trades"]
    assert rest["nextBefore"] is None
    assert (await caller.get("/v1/trades?coin=ETH"))["trades"] == []


async def test_another_account_sees_nothing_of_an_account(box: Box, caller: Caller) -> None:
    made = await caller.post("/v1/orders", ENTRY)
    guardian = await caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    other = await box.caller()
    for method, path in (
        ("DELETE", f"/v1/orders/{made['orders'][0]['oid']}"),
        ("DELETE", f"/v1/guardians/{guardian['id']}"),
    ):
        answer = await other.send(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
    plan = await caller.post("/v1/orders", ENTRY | {"dryRun": True})
    stolen = await other.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert stolen.status_code == 404
    assert (await other.get("/v1/account"))["positions"] == []
    assert len((await caller.get("/v1/orders"))["orders"]) == 2

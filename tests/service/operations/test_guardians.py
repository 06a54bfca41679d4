"""Guardians and the kill switch as a caller sees them: fields, instants, scopes, effects of a restart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.builders import ENTRY, assert_refused, scoped
from tests.service.conftest import START_MS, Box, Caller, OpenBox

DAY_MS = 86_400_000
MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS + DAY_MS
MINUTE_MS = 60_000
NEXT_MINUTE_MS = START_MS // MINUTE_MS * MINUTE_MS + MINUTE_MS

FIELDS = {
    "id",
    "type",
    "scope",
    "status",
    "coin",
    "market",
    "heartbeatSeconds",
    "onMiss",
    "seconds",
    "trailPct",
    "trailR",
    "activateAtR",
    "maxLossPctFromDayStart",
    "action",
    "cron",
    "orderTemplate",
    "nextDeadline",
    "lastHeartbeatAt",
    "active",
    "extremePx",
    "stopPx",
    "dayStartValueUsd",
    "floorValueUsd",
    "blocksOpens",
    "tradeId",
    "firedAt",
    "fireCount",
    "createdAt",
}

BARE: dict[str, Any] = {"market": "BTC", "side": "long", "usdAmount": 5000, "leverage": 5}


def body_of(kind: str) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {
        "trailing_stop": {"market": "BTC", "trailPct": 2},
        "max_hold": {"market": "perp:btc", "seconds": 60},
        "account_drawdown": {"maxLossPctFromDayStart": 5},
        "dead_man_switch": {"heartbeatSeconds": 60},
        "schedule": {"cron": "* * * * *", "action": "cancel_orders"},
        "kill_switch": {},
    }
    return {"type": kind, **more[kind]}


async def fired(caller: Caller) -> list[dict[str, Any]]:
    return (await caller.get("/v1/events?types=guardian.fired&limit=200"))["events"]


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("trailing_stop", {"scope": "position", "status": "armed", "coin": "BTC", "trailPct": 2, "nextDeadline": None}),
        ("max_hold", {"scope": "position", "coin": "BTC", "seconds": 60, "nextDeadline": START_MS + 60_000}),
        (
            "account_drawdown",
            {
                "scope": "account",
                "action": "flatten",
                "maxLossPctFromDayStart": 5,
                "dayStartValueUsd": "10000",
                "floorValueUsd": "9500",
                "nextDeadline": None,
                "blocksOpens": False,
            },
        ),
        ("dead_man_switch", {"onMiss": "cancel_orders", "nextDeadline": START_MS + 60_000}),
        ("schedule", {"cron": "* * * * *", "action": "cancel_orders", "nextDeadline": NEXT_MINUTE_MS}),
        (
            "kill_switch",
            {"status": "latched", "action": "cancel_orders", "blocksOpens": True, "fireCount": 1, "firedAt": START_MS},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_type_is_armed_shown_and_disarmed(caller: Caller, kind: str, shown: dict[str, Any]) -> None:
    await caller.post("/v1/orders", BARE)
    armed = await caller.post("/v1/guardians", body_of(kind))
    assert set(armed) == FIELDS
    assert armed | shown == armed
    assert (await caller.get("/v1/guardians"))["guardians"] == [armed]
    assert (await caller.get("/v1/account"))["guardians"] == [armed]
    gone = await caller.delete(f"/v1/guardians/{armed['id']}")
    assert gone == {"id": armed["id"], "type": kind, "disarmed": True}
    assert (await caller.get("/v1/guardians"))["guardians"] == []
    await caller.post("/v1/orders", BARE)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "schedule", "cron": "61 * * * *", "action": "flatten"}, "cron"),
        ({"type": "schedule", "cron": "* * * * *"}, "orderTemplate"),
        (
            {"type": "schedule", "cron": "* * * * *", "orderTemplate": {"market": "BTC", "side": "up"}},
            "orderTemplate.side",
        ),
        ({"type": "schedule", "cron": "* * * * *", "orderTemplate": {**BARE, "dryRun": True}}, "orderTemplate.dryRun"),
        (
            {"type": "schedule", "cron": "* * * * *", "orderTemplate": {**BARE, "bracket": {"stop": {"pct": 1}}}},
            "orderTemplate.bracket.stop",
        ),
        ({"type": "max_hold", "market": "BTC", "seconds": 59}, "seconds"),
        ({"type": "max_hold", "seconds": 60}, "market"),
        ({"type": "account_drawdown"}, "maxLossPctFromDayStart"),
        ({"type": "account_drawdown", "maxLossPctFromDayStart": 101}, "maxLossPctFromDayStart"),
        ({"type": "kill_switch", "scope": "position"}, "scope"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(caller: Caller, body: dict[str, Any], field: str) -> None:
    error = assert_refused(await caller.send("POST", "/v1/guardians", body), 400, "invalid_input")
    assert field in [problem["field"] for problem in error["details"]["fields"]] or field in error["message"]


async def test_a_drawdown_flattens_blocks_and_is_armed_again_at_midnight(box: Box, caller: Caller) -> None:
    await caller.post("/v1/guardians", {"type": "account_drawdown", "maxLossPctFromDayStart": 5})
    await caller.post("/v1/orders", BARE)
    await box.price("BTC", "91000")
    await caller.get("/v1/account")
    await box.price("BTC", "89000")
    snapshot = await caller.get("/v1/account")
    assert snapshot["positions"] == []
    assert snapshot["health"]["opensBlocked"] is True
    (guardian,) = snapshot["guardians"]
    assert (guardian["status"], guardian["nextDeadline"], guardian["firedAt"]) == ("latched", MIDNIGHT_MS, START_MS)
    (event,) = await fired(caller)
    assert event["data"]["reason"] == "drawdown"
    assert event["data"]["tradeIds"] == [(await caller.get("/v1/trades"))["trades"][0]["id"]]
    await box.advance(MIDNIGHT_MS - START_MS - 1)
    assert_refused(await caller.send("POST", "/v1/orders", BARE), 422, "limit_exceeded")
    await box.advance(1)
    (again,) = (await caller.get("/v1/guardians"))["guardians"]
    assert (again["status"], again["nextDeadline"], again["blocksOpens"]) == ("armed", None, False)
    assert again["dayStartValueUsd"] == (await caller.get("/v1/account"))["balanceUsd"]
    await caller.post("/v1/orders", BARE)


async def test_a_schedule_places_its_order_each_time(box: Box, caller: Caller) -> None:
    template = BARE | {"usdAmount": 20.5, "bracket": {"stopLoss": {"pct": 2}}}
    armed = await caller.post("/v1/guardians", {"type": "schedule", "cron": "*/2 * * * *", "orderTemplate": template})
    assert armed["orderTemplate"] == template
    await box.advance(6 * MINUTE_MS)
    trades = (await caller.get("/v1/trades"))["trades"]
    assert [(t["guardianId"], t["source"], t["kind"]) for t in trades] == [(armed["id"], None, "market")] * 3
    assert [e["data"]["tradeIds"] for e in await fired(caller)] == [[t["id"]] for t in reversed(trades)]
    assert (await caller.get("/v1/guardians"))["guardians"][0]["fireCount"] == 3


async def test_an_unknown_member_of_a_template_is_stored_ignored_and_reported(box: Box, caller: Caller) -> None:
    template = BARE | {
        "zzz": {"deep": [1]},
        "braket": {},
        "guardians": [{"type": "trailing_stop", "trailPct": 1, "activateAtr": 2}],
    }
    body = {"type": "schedule", "cron": "* * * * *", "orderTemplate": template}
    armed = await caller.post("/v1/guardians", body)
    assert armed["orderTemplate"] == template
    assert armed["warnings"] == [
        {"code": "unknown_member", "message": f"the service ignores {what}"}
        for what in (
            "orderTemplate.zzz, which is unknown",
            "orderTemplate.braket, which is unknown; did you mean bracket?",
            "orderTemplate.guardians.0.activateAtr, which is unknown; did you mean activateAtR?",
        )
    ]
    assert (await caller.get("/v1/guardians"))["guardians"] == [
        {name: value for name, value in armed.items() if name != "warnings"}
    ]
    await box.advance(MINUTE_MS)
    assert len((await caller.get("/v1/trades"))["trades"]) == 1


async def test_an_unknown_member_of_an_orders_guardian_is_reported(caller: Caller) -> None:
    order = BARE | {"guardians": [{"type": "trailing_stop", "trailPct": 1, "zzz": "mine"}]}
    told = [{"code": "unknown_member", "message": "the service ignores guardians.0.zzz, which is unknown"}]
    plan = (await caller.post("/v1/orders", order | {"dryRun": True}))["plan"]
    assert [one for one in plan["warnings"] if one["code"] == "unknown_member"] == told
    done = await caller.post("/v1/orders", order)
    assert [one for one in done["warnings"] if one["code"] == "unknown_member"] == told
    assert [one["type"] for one in done["guardians"]] == ["trailing_stop"]


async def test_a_refused_template_is_a_skipped_run_with_its_code(box: Box, caller: Caller) -> None:
    await caller.post(
        "/v1/guardians", {"type": "schedule", "cron": "* * * * *", "orderTemplate": BARE | {"usdAmount": 2}}
    )
    await box.advance(MINUTE_MS)
    (event,) = await fired(caller)
    assert (event["data"]["reason"], event["data"]["code"]) == ("skipped", "below_min_notional")
    assert (await caller.get("/v1/trades"))["trades"] == []


async def test_a_kill_switch_in_an_order_waits_for_no_deadline(caller: Caller) -> None:
    placed = await caller.post("/v1/orders", BARE | {"guardians": [{"type": "kill_switch"}]})
    (guardian,) = placed["guardians"]
    assert (guardian["nextDeadline"], guardian["blocksOpens"]) == (None, True)
    events = (await caller.get("/v1/events?types=guardian"))["events"]
    assert [(e["subtype"], e["data"]["nextDeadline"]) for e in events] == [("armed", None), ("fired", None)]


async def test_an_order_may_contain_guardians_of_every_type(box: Box, caller: Caller) -> None:
    inline = [
        body_of(kind) for kind in ("trailing_stop", "max_hold", "account_drawdown", "dead_man_switch", "schedule")
    ]
    for guardian in inline:
        guardian.pop("market", None)
    plan = await caller.post("/v1/orders", BARE | {"guardians": inline, "dryRun": True})
    assert [g["type"] for g in plan["plan"]["guardians"]] == [g["type"] for g in inline]
    made = await caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert [g["type"] for g in made["guardians"]] == [g["type"] for g in inline]
    assert {g["tradeId"] for g in made["guardians"]} == {made["trade"]["id"]}


# ── Kill ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_kill_without_flatten_cancels_entries_and_keeps_protection(box: Box, caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY)
    resting = await caller.post("/v1/orders", ENTRY | {"type": "limit", "limitPx": "90000", "usdAmount": 100})
    oid = next(o["oid"] for o in resting["orders"] if o["kind"] == "limit")
    killed = await caller.post("/v1/account/kill", {})
    assert set(killed) == {
        "guardian",
        "flatten",
        "canceledOids",
        "trades",
        "positions",
        "orderSubmitted",
        "lastEventId",
    }
    assert (killed["flatten"], killed["canceledOids"], killed["trades"]) == (False, [oid], [])
    assert killed["orderSubmitted"] is True
    assert [p["coin"] for p in killed["positions"]] == ["BTC"]
    assert (killed["guardian"]["type"], killed["guardian"]["status"]) == ("kill_switch", "latched")
    assert len((await caller.get("/v1/orders"))["orders"]) == 2
    error = assert_refused(await caller.send("POST", "/v1/orders", ENTRY), 422, "limit_exceeded")
    assert error["details"] == {"guardianId": killed["guardian"]["id"], "guardianType": "kill_switch"}
    # The stop still works.
    await box.price("BTC", "97000")
    assert (await caller.get("/v1/account"))["positions"] == []


async def test_a_kill_with_flatten_closes_everything_and_is_idempotent_by_key(caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY)
    await caller.post("/v1/orders", ENTRY | {"market": "ETH", "side": "short"})
    first = await caller.send("POST", "/v1/account/kill", {"flatten": True}, key="stop")
    killed = first.json()
    assert killed["positions"] == []
    assert sorted(t["symbol"] for t in killed["trades"]) == ["BTC", "ETH"]
    assert {(t["kind"], t["reason"], t["guardianId"]) for t in killed["trades"]} == {
        ("kill", "kill", killed["guardian"]["id"])
    }
    again = await caller.send("POST", "/v1/account/kill", {"flatten": True}, key="stop")
    assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    other = await caller.send("POST", "/v1/account/kill", {"flatten": False}, key="stop")
    assert assert_refused(other, 422, "idempotency_conflict")["details"]["reason"] == "fingerprint"
    nothing = await caller.post("/v1/account/kill", {"flatten": True}, key="again")
    assert (nothing["orderSubmitted"], nothing["trades"]) == (False, [])
    assert nothing["guardian"]["id"] == killed["guardian"]["id"]
    assert nothing["guardian"]["fireCount"] == 2
    assert len((await caller.get("/v1/guardians"))["guardians"]) == 1


async def test_only_the_owner_lifts_a_block(box: Box, caller: Caller) -> None:
    trader = scoped(box, caller, "read", "trade")
    closer = scoped(box, caller, "trade:close_only")
    reader = scoped(box, caller, "read")
    refused = assert_refused(await reader.send("POST", "/v1/account/kill", {}), 403, "forbidden")
    assert refused["orderSubmitted"] is False
    assert_refused(await closer.send("POST", "/v1/guardians", {"type": "kill_switch"}), 403, "forbidden")
    assert_refused(await closer.send("POST", "/v1/account/kill", {}), 403, "forbidden")
    killed = (await trader.send("POST", "/v1/account/kill", {})).json()["guardian"]["id"]
    assert_refused(await trader.send("DELETE", f"/v1/guardians/{killed}"), 403, "forbidden")
    assert (await caller.get("/v1/account"))["health"]["blockedBy"] == [killed]
    await caller.delete(f"/v1/guardians/{killed}")
    assert (await caller.get("/v1/account"))["health"]["opensBlocked"] is False
    armed = (await trader.send("POST", "/v1/guardians", body_of("account_drawdown"))).json()["id"]
    assert (await trader.send("DELETE", f"/v1/guardians/{armed}")).status_code == 200


@pytest.mark.parametrize("body", [{"flatten": "yes"}, {"flatten": None}, {"all": True}, []], ids=str)
async def test_a_kill_with_a_bad_body_does_nothing(caller: Caller, body: Any) -> None:
    error = assert_refused(await caller.send("POST", "/v1/account/kill", body), 400, "invalid_input")
    assert error["orderSubmitted"] is False
    assert (await caller.get("/v1/guardians"))["guardians"] == []


async def test_a_late_kill_is_refused_and_stays_refused(caller: Caller) -> None:
    late = await caller.send("POST", "/v1/account/kill", {}, key="late", X_Expires_After=str(START_MS - 1))
    assert assert_refused(late, 409, "idempotency_conflict")["details"]["reason"] == "expired"
    assert (await caller.get("/v1/guardians"))["guardians"] == []


async def test_the_kill_has_its_own_rate_limit(open_box: OpenBox) -> None:
    box = await open_box(clock="real")
    caller = await box.caller()
    answer = await caller.send("POST", "/v1/account/kill", {})
    assert answer.headers["ratelimit-policy"].startswith('"kill"')

"""Keys and settings: creation, views, caps, revocation; a key never makes a wider one."""

from __future__ import annotations

from typing import Any

import pytest

from bot.service.operations.keys import wider_than
from bot.venue.model.state import VenueKey
from tests.service.builders import assert_refused, make, order, owner
from tests.service.conftest import START_MS, Box, Caller, OpenBox

TRADER = ["read", "trade"]


async def refused(caller: Caller, body: dict[str, Any], cap: str) -> Any:
    error = assert_refused(await caller.send("POST", "/v1/orders", body), 403, "key_limit_exceeded")
    assert error["details"]["cap"] == cap
    assert error["orderSubmitted"] is False
    return error


async def test_a_key_is_shown_once_and_listed_without_its_secret(box: Box, caller: Caller) -> None:
    made = await caller.post("/v1/keys", {})
    assert made["scopes"] == ["read"]
    assert (made["name"], made["source"], made["lastUsedAt"], made["createdAt"]) == ("key", "key", None, START_MS)
    caps = ("maxExposureUsd", "maxDailyNotionalUsd", "maxLeverage", "allowedCoins", "maxOpenPositions", "expiresAt")
    assert all(made[cap] is None for cap in caps)
    assert made["apiKey"].startswith(made["prefix"])
    assert len(made["prefix"]) == 12
    full = await caller.post(
        "/v1/keys",
        {
            "name": "n" * 64,
            "scopes": ["read", "trade", "trade:close_only", "outcomes"],
            "maxExposureUsd": 1e9,
            "maxDailyNotionalUsd": 0.5,
            "maxLeverage": 50,
            "allowedCoins": ["perp:btc", "BTC", "ETH"],
            "maxOpenPositions": 100,
            "expiresAt": 9007199254740991,
        },
    )
    assert full["allowedCoins"] == ["BTC", "ETH"]
    assert (full["maxExposureUsd"], full["maxDailyNotionalUsd"]) == ("1000000000", "0.5")
    await Caller(box.http, made).get("/v1/account")
    listed = (await caller.get("/v1/keys"))["keys"]
    assert [key["id"] for key in listed] == [caller.opened["keyId"], made["id"], full["id"]]
    assert listed[0]["source"] == "sandbox"
    assert listed[1]["lastUsedAt"] == START_MS
    assert "apiKey" not in str(listed)
    assert listed[2] == {k: v for k, v in full.items() if k != "apiKey"}
    events = (await caller.get("/v1/events?types=account.key_created"))["events"]
    assert [event["data"]["keyId"] for event in events] == [key["id"] for key in listed]


async def test_a_replay_has_the_key_but_not_its_secret(caller: Caller) -> None:
    first = await caller.send("POST", "/v1/keys", {"name": "a"}, key="k1")
    again = await caller.send("POST", "/v1/keys", {"name": "a"}, key="k1")
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == {**first.json(), "apiKey": None}
    assert first.json()["apiKey"]
    other = await caller.send("POST", "/v1/keys", {"name": "b"}, key="k1")
    assert_refused(other, 422, "idempotency_conflict")
    assert len((await caller.get("/v1/keys"))["keys"]) == 2
    late = await caller.send("POST", "/v1/keys", {}, X_Expires_After=str(START_MS - 1))
    assert_refused(late, 409, "idempotency_conflict")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["read", "read"]}, "scopes"),
        ({"scopes": ["read", "admin"]}, "scopes"),
        ({"scopes": "read"}, "scopes"),
        ({"name": ""}, "name"),
        ({"name": "n" * 65}, "name"),
        ({"maxExposureUsd": 0}, "maxExposureUsd"),
        ({"maxExposureUsd": 1000000000.01}, "maxExposureUsd"),
        ({"maxDailyNotionalUsd": "5"}, "maxDailyNotionalUsd"),
        ({"maxDailyNotionalUsd": 0.000000001}, "maxDailyNotionalUsd"),
        ({"maxLeverage": 0}, "maxLeverage"),
        ({"maxLeverage": 51}, "maxLeverage"),
        ({"maxLeverage": None}, "maxLeverage"),
        ({"allowedCoins": ["x"] * 51}, "allowedCoins"),
        ({"allowedCoins": ["x" * 33]}, "allowedCoins"),
        ({"maxOpenPositions": 101}, "maxOpenPositions"),
        ({"expiresAt": 0}, "expiresAt"),
        ({"expiresAt": 9007199254740992}, "expiresAt"),
        ({"owner": True}, "owner"),
    ],
)
async def test_a_bad_key_request_names_its_field(caller: Caller, body: Any, field: str) -> None:
    error = assert_refused(await caller.send("POST", "/v1/keys", body), 400, "invalid_input")
    assert error["details"]["fields"][0]["field"].startswith(field)


async def test_an_account_has_at_most_fifty_keys_and_a_revocation_frees_one(caller: Caller) -> None:
    made = [await caller.post("/v1/keys", {}) for _ in range(49)]
    assert_refused(await caller.send("POST", "/v1/keys", {}), 422, "limit_exceeded")
    await caller.delete(f"/v1/keys/{made[0]['id']}")
    await caller.post("/v1/keys", {})


async def test_a_revoked_key_is_not_found_at_once_and_neither_is_a_foreign_one(box: Box, caller: Caller) -> None:
    reader, other = await make(caller), await box.caller()
    foreign = await other.send("DELETE", f"/v1/keys/{reader.opened['id']}")
    unknown = await other.send("DELETE", "/v1/keys/key_99999999")
    assert_refused(foreign, 404, "not_found")
    assert_refused(unknown, 404, "not_found")
    assert (await reader.send("GET", "/v1/account")).status_code == 200
    assert await caller.delete(f"/v1/keys/{reader.opened['id']}") == {
        "id": reader.opened["id"],
        "revoked": True,
        "canceledOids": [],
        "disarmedGuardianIds": [],
    }
    assert_refused(await reader.send("GET", "/v1/account"), 401, "unauthorized")
    assert_refused(await caller.send("DELETE", f"/v1/keys/{reader.opened['id']}"), 404, "not_found")
    assert [key["id"] for key in (await caller.get("/v1/keys"))["keys"]] == [caller.opened["keyId"]]


async def test_a_key_expires_by_the_services_clock(box: Box, caller: Caller) -> None:
    reader = await make(caller, expiresAt=START_MS + 1_000)
    await box.advance(999)
    assert (await reader.send("GET", "/v1/account")).status_code == 200
    await box.advance(1)
    error = assert_refused(await reader.send("GET", "/v1/account"), 401, "session_expired")
    assert error["details"]["expiresAt"] == START_MS + 1_000


def test_a_key_is_never_wider_than_the_one_that_makes_it() -> None:
    def key(*scopes: str, **caps: Any) -> VenueKey:
        return VenueKey("k", "a", "k", "p", "d", scopes, 0, "key", **caps)

    assert wider_than(key("read", "trade"), key("trade:close_only")) is None
    assert wider_than(key("read"), key("read", "trade")) == ("scopes", ["read"])
    assert wider_than(key("trade:close_only"), key("trade")) == ("scopes", ["trade:close_only"])
    caps = {
        "max_exposure": "maxExposureUsd",
        "max_daily_notional": "maxDailyNotionalUsd",
        "max_leverage": "maxLeverage",
        "max_open_positions": "maxOpenPositions",
        "expires_ms": "expiresAt",
    }
    for name, field in caps.items():
        parent = key("read", **{name: 5})
        for wide in (key("read"), key("read", **{name: 6})):
            assert (wider_than(parent, wide) or ("",))[0] == field
        for narrow in (5, 4):
            assert wider_than(parent, key("read", **{name: narrow})) is None
    parent = key("read", allowed_coins=("BTC",))
    assert wider_than(parent, key("read", allowed_coins=("BTC",))) is None
    assert wider_than(parent, key("read", allowed_coins=())) is None
    assert wider_than(parent, key("read", allowed_coins=("BTC", "ETH"))) == ("allowedCoins", ["BTC"])
    assert wider_than(parent, key("read")) == ("allowedCoins", ["BTC"])


async def test_a_key_made_by_a_session_says_so(box: Box) -> None:
    assert (await (await owner(box)).post("/v1/keys", {}))["source"] == "session"


# ── Caps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_exposure_cap_counts_positions_and_resting_entries_of_the_whole_account(
    box: Box, caller: Caller
) -> None:
    trader = await make(caller, scopes=TRADER, maxExposureUsd=1_000)
    await caller.post("/v1/orders", order(300, leverage=5))
    await trader.post("/v1/orders", order(300, type="limit", limitPx="90000"))
    error = await refused(trader, order(500), "maxExposureUsd")
    assert error["fix"]["field"] == "usdAmount"
    assert (await trader.send("POST", "/v1/orders", order(300, leverage=5))).status_code == 200
    limits = await trader.get("/v1/limits")
    assert limits["key"]["maxExposureUsd"] == "1000"
    assert float(limits["key"]["exposureUsd"]) == pytest.approx(900, abs=5)
    # The exposure is beyond its cap now: no opening, every exit.
    await box.price("BTC", "200000")
    await refused(trader, order(100), "maxExposureUsd")
    assert (await trader.send("POST", "/v1/positions/BTC/close", {})).status_code == 200


async def test_the_daily_cap_is_the_keys_own_and_starts_anew_at_midnight(box: Box, caller: Caller) -> None:
    trader, second = (
        await make(caller, scopes=TRADER, maxDailyNotionalUsd=500),
        await make(caller, scopes=TRADER, maxDailyNotionalUsd=500),
    )
    # Orders of another credential are not counted.
    await caller.post("/v1/orders", order(400, leverage=5))
    await trader.post("/v1/orders", order(400, leverage=5))
    error = await refused(trader, order(200, leverage=5), "maxDailyNotionalUsd")
    assert error["details"]["resetsAt"] % 86_400_000 == 0
    assert (await second.send("POST", "/v1/orders", order(200, leverage=5))).status_code == 200
    # An exit is not counted.
    assert (await trader.send("POST", "/v1/orders", order(300, side="short"))).status_code == 200
    await box.advance(error["details"]["resetsAt"] - START_MS)
    assert (await trader.send("POST", "/v1/orders", order(200, leverage=5))).status_code == 200


async def test_resting_entries_reduce_the_remaining_daily_cap_but_are_not_counted_as_used(
    box: Box, caller: Caller
) -> None:
    await box.price("BTC", "100000")
    await caller.send("PATCH", "/v1/settings", {"dailyTradeCapUsd": 1000})
    order = {"market": "BTC", "side": "long", "usdAmount": 900, "type": "limit", "limitPx": "90000"}
    oid = (await caller.post("/v1/orders", order))["trade"]["venueOid"]
    limits = (await caller.get("/v1/limits"))["account"]
    assert (limits["usedTodayUsd"], limits["remainingTodayUsd"]) == ("0", "100")
    refused = (await caller.send("POST", "/v1/orders", order)).json()["error"]
    assert (refused["code"], refused["fix"]) == ("limit_exceeded", {"field": "usdAmount", "value": 100})
    await caller.delete(f"/v1/orders/{oid}")
    assert (await caller.get("/v1/account"))["budget"]["remainingTodayUsd"] == "1000"


async def test_a_reset_restores_the_daily_caps_of_account_and_keys(caller: Caller) -> None:
    trader = await make(caller, scopes=TRADER, maxDailyNotionalUsd=500)
    assert (await caller.send("PATCH", "/v1/settings", {"dailyTradeCapUsd": 600})).status_code == 200
    await trader.post("/v1/orders", order(400))
    await refused(trader, order(200), "maxDailyNotionalUsd")
    await caller.post("/v1/sandbox/accounts/reset")
    limits = await trader.get("/v1/limits")
    assert (limits["account"]["usedTodayUsd"], limits["key"]["usedTodayUsd"]) == ("0", "0")
    await trader.post("/v1/orders", order(400))
    await refused(trader, order(200), "maxDailyNotionalUsd")


async def test_the_leverage_cap_applies_to_given_and_default_leverage(box: Box, caller: Caller) -> None:
    trader = await make(caller, scopes=TRADER, maxLeverage=3)
    await refused(trader, order(100, leverage=4), "maxLeverage")
    clamped = await trader.post("/v1/orders", order(100, market="ETH", leverage=10, leverageMode="clamp"))
    assert (clamped["leverage"], clamped["leverageClamped"]) == (3, True)
    await caller.post("/v1/orders", order(100, leverage=10))
    for body in (
        order(100),
        order(100, dryRun=True),
        order(500, side="short"),
        # The position's 10x applies with and without a given leverage.
    ):
        error = await refused(trader, body, "maxLeverage")
        assert error["fix"] == {"field": "leverage", "value": 3}
    error = assert_refused(
        await trader.send("POST", "/v1/orders", order(100, leverageMode="clamp")), 400, "invalid_input"
    )
    assert error["fix"] == {"field": "acknowledgeLeverageChange", "value": True}
    grown = await trader.post("/v1/orders", order(100, leverageMode="clamp", acknowledgeLeverageChange=True))
    assert (grown["leverage"], grown["position"]["leverage"]) == (3, 3)
    assert (await trader.send("POST", "/v1/positions/BTC/close", {})).status_code == 200


async def test_a_plan_is_checked_against_the_caps_of_the_confirming_key(caller: Caller) -> None:
    narrow = await make(caller, scopes=TRADER, maxLeverage=3)
    plan = await caller.post("/v1/orders", order(100, leverage=10, dryRun=True))
    answer = await narrow.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert assert_refused(answer, 403, "key_limit_exceeded")["details"]["cap"] == "maxLeverage"


async def test_allowed_coins_apply_to_orders_closes_and_guardians(box: Box, caller: Caller) -> None:
    trader = await make(caller, scopes=TRADER, allowedCoins=["perp:eth"])
    await refused(trader, order(100), "allowedCoins")
    await trader.post("/v1/orders", order(100, market="eth"))
    await caller.post("/v1/orders", order(100))
    answer = await trader.send("POST", "/v1/positions/BTC/close", {})
    assert assert_refused(answer, 403, "key_limit_exceeded")["details"]["cap"] == "allowedCoins"
    guardian = {"type": "trailing_stop", "market": "BTC", "trailPct": 1}
    assert_refused(await trader.send("POST", "/v1/guardians", guardian), 403, "key_limit_exceeded")
    assert (await trader.send("POST", "/v1/guardians", guardian | {"market": "ETH"})).status_code == 200
    none = await make(caller, scopes=TRADER, allowedCoins=[])
    await refused(none, order(100, market="ETH"), "allowedCoins")


async def test_a_key_limited_to_markets_removes_no_protection_in_others(box: Box, caller: Caller) -> None:
    paths = (await box.http.get("/openapi.json")).json()["paths"]
    stop = {"stopLoss": {"pct": 5}}
    held = await caller.post(
        "/v1/orders", order(100, bracket=stop, guardians=[{"type": "trailing_stop", "trailPct": 3}])
    )
    template = order(50, market="perp:btc")
    plan = {"type": "schedule", "cron": "0 0 1 1 *", "orderTemplate": template}
    ids = [held["guardians"][0]["id"], (await caller.post("/v1/guardians", plan))["id"]]
    confined = await make(caller, scopes=TRADER, allowedCoins=["ETH"])
    for method, path, body in (
        ("DELETE", f"/v1/orders/{held['orders'][0]['oid']}", None),
        ("DELETE", "/v1/orders", {"coin": "BTC"}),
        ("DELETE", f"/v1/guardians/{ids[0]}", None),
        ("DELETE", f"/v1/guardians/{ids[1]}", None),
        ("POST", "/v1/guardians", plan),
    ):
        error = assert_refused(await confined.send(method, path, body), 403, "key_limit_exceeded")
        assert error["details"] == {"cap": "allowedCoins", "allowed": ["ETH"]}
        route = path if body is not None else path.rpartition("/")[0] + ("/{oid}" if "orders" in path else "/{id}")
        assert "key_limit_exceeded" in paths[route][method.lower()]["responses"]["403"]["description"]
    assert_refused(await confined.send("DELETE", "/v1/orders/1"), 404, "not_found")
    assert [one["id"] for one in (await caller.get("/v1/guardians"))["guardians"]] == ids
    assert (await caller.get("/v1/account"))["positions"][0]["stopPx"] is not None
    # A switch of the whole account also acts in BTC.
    beat = {"type": "dead_man_switch", "heartbeatSeconds": 60}
    armed = (await caller.post("/v1/guardians", beat))["id"]
    assert_refused(await confined.send("DELETE", f"/v1/guardians/{armed}"), 403, "key_limit_exceeded")
    assert await caller.delete(f"/v1/guardians/{armed}")


async def test_the_cap_on_open_positions_counts_markets_with_a_position_or_an_entry(box: Box, caller: Caller) -> None:
    trader = await make(caller, scopes=TRADER, maxOpenPositions=1)
    resting = await trader.post("/v1/orders", order(100, type="limit", limitPx="90000"))
    error = await refused(trader, order(100, market="ETH"), "maxOpenPositions")
    assert error["fix"] == {"action": "close_first"}
    # The same market.
    assert (await trader.send("POST", "/v1/orders", order(100))).status_code == 200
    await trader.delete(f"/v1/orders/{resting['orders'][0]['oid']}")
    await trader.post("/v1/positions/BTC/close")
    assert (await trader.send("POST", "/v1/orders", order(100, market="ETH"))).status_code == 200


async def test_suggestions_respect_the_keys_markets_and_their_number(box: Box, caller: Caller) -> None:
    await caller.post("/v1/orders", order(100))
    elsewhere = await make(caller, scopes=TRADER, allowedCoins=["ETH"])
    full = await make(caller, scopes=TRADER, maxOpenPositions=1)
    for key, coin, intent, feasible in (
        (elsewhere, "BTC", "open", False),
        (elsewhere, "BTC", "close", False),
        (elsewhere, "ETH", "open", True),
        (full, "ETH", "open", False),
        (full, "BTC", "open", True),
        (full, "BTC", "close", True),
    ):
        said = await key.post("/v1/orders/suggest", {"coin": coin, "intent": intent})
        assert (said["feasible"], said["request"] is not None) == (feasible, feasible), (coin, intent)
        assert (said["maxSize"] != "0") == feasible
        path, body = "/v1/orders", order(50, market=coin)
        if intent == "close":
            path, body = f"/v1/positions/{coin}/close", {"fraction": 0.5}
        if feasible:
            path, body = said["request"]["path"], said["request"]["body"]
        if intent == "open":
            body = body | {"dryRun": True}
        answer = await key.send("POST", path, body)
        assert (answer.status_code == 200) == feasible, answer.text


# ── Settings ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, None),
        ("", None),
        ("empty", None),
        ("none", None),
        ("null", None),
        (5, "5"),
        (0.5, "0.5"),
        (1e9, "1000000000"),
        ("250", "250"),
        ("250.10", "250.1"),
        ("1000000000", "1000000000"),
        ("0.00000001", "0.00000001"),
    ],
)
async def test_a_cap_is_accepted_in_every_form(caller: Caller, given: Any, shown: str | None) -> None:
    await caller.send("PATCH", "/v1/settings", {"maxTradeUsd": 7, "dailyTradeCapUsd": 9})
    for name, other, kept in (("maxTradeUsd", "dailyTradeCapUsd", "9"), ("dailyTradeCapUsd", "maxTradeUsd", shown)):
        answer = await caller.send("PATCH", "/v1/settings", {name: given})
        assert answer.status_code == 200, answer.text
        assert answer.json() == {name: shown, other: kept}
        assert await caller.get("/v1/settings") == answer.json()
    assert (await caller.get("/v1/account"))["budget"]["maxTradeUsd"] == shown


@pytest.mark.parametrize(
    "given",
    [
        0,
        -1,
        1000000000.01,
        "1000000001",
        "0",
        "-5",
        "1e3",
        " 5",
        "5 ",
        "Infinity",
        "१२",
        True,
        [],
        {},
        "0.000000001",
        "None",
    ],
)
async def test_an_invalid_cap_is_refused_and_changes_nothing(caller: Caller, given: Any) -> None:
    for name in ("maxTradeUsd", "dailyTradeCapUsd"):
        error = assert_refused(await caller.send("PATCH", "/v1/settings", {name: given}), 400, "invalid_input")
        assert error["details"]["fields"][0]["field"] == name
    assert_refused(await caller.send("PATCH", "/v1/settings", {}), 400, "invalid_input")
    assert await caller.get("/v1/settings") == {"maxTradeUsd": None, "dailyTradeCapUsd": None}


async def test_self_limits_apply_to_every_credential_of_the_account(box: Box, caller: Caller) -> None:
    trader = await make(caller, scopes=TRADER)
    await caller.send("PATCH", "/v1/settings", {"maxTradeUsd": 100, "dailyTradeCapUsd": "150"})
    for who in (caller, trader):
        error = assert_refused(await who.send("POST", "/v1/orders", order(101)), 422, "limit_exceeded")
        assert error["details"]["cap"] == "maxTradeUsd"
    await trader.post("/v1/orders", order(90))
    error = assert_refused(await caller.send("POST", "/v1/orders", order(90)), 422, "limit_exceeded")
    assert error["details"]["cap"] == "dailyTradeCapUsd"
    await box.advance(error["details"]["resetsAt"] - START_MS)
    await caller.post("/v1/orders", order(90))
    assert (await caller.post("/v1/positions/BTC/close"))["position"] is None


async def test_revoking_a_key_cancels_its_entries_and_schedules_and_reports_them(box: Box, caller: Caller) -> None:
    trader = await make(caller, scopes=TRADER)
    limit = order(100, type="limit", limitPx="90000")
    held = await trader.post("/v1/orders", order(100, bracket={"stopLoss": {"pct": 5}}))
    mine = (await trader.post("/v1/orders", limit))["trade"]["venueOid"]
    other = (await caller.post("/v1/orders", limit))["trade"]["venueOid"]
    plan = {"type": "schedule", "cron": "* * * * *", "orderTemplate": order(50)}
    flat = {"type": "schedule", "cron": "* * * * *", "action": "flatten"}
    schedules = [(await trader.post("/v1/guardians", body))["id"] for body in (plan, flat)]
    switch = {"type": "dead_man_switch", "heartbeatSeconds": 3_600}
    staying = [(await one.post("/v1/guardians", body))["id"] for one, body in ((caller, plan), (trader, switch))]
    key_id = trader.opened["id"]
    gone = await caller.delete(f"/v1/keys/{key_id}")
    assert gone == {"id": key_id, "revoked": True, "canceledOids": [mine], "disarmedGuardianIds": schedules}
    assert {o["oid"] for o in (await caller.get("/v1/orders"))["orders"]} == {held["orders"][0]["oid"], other}
    assert [g["id"] for g in (await caller.get("/v1/guardians"))["guardians"]] == staying
    told = (await caller.get("/v1/events?limit=200"))["events"][-4:]
    assert [(e["type"], e["subtype"], e["data"].get("reason")) for e in told] == [
        ("account", "key_revoked", None),
        ("guardian", "disarmed", "key_revoked"),
        ("guardian", "disarmed", "key_revoked"),
        ("order", "canceled", "key_revoked"),
    ]
    await box.advance(60_000)
    assert (await caller.get("/v1/account"))["positions"][0]["stopPx"] is not None


@pytest.mark.parametrize("ends", [1, START_MS // 1000 + 3_600, START_MS - 1, START_MS])
async def test_a_key_with_a_past_expiry_is_refused(caller: Caller, ends: int) -> None:
    answer = await caller.send("POST", "/v1/keys", {"expiresAt": ends}, key="k")
    error = assert_refused(answer, 400, "invalid_input")
    assert "milliseconds?" in error["message"]
    assert [one["field"] for one in error["details"]["fields"]] == ["expiresAt"]
    seconds = START_MS // 1000 < ends < START_MS // 100
    assert error.get("fix") == ({"field": "expiresAt", "value": ends * 1000} if seconds else None)
    assert len((await caller.get("/v1/keys"))["keys"]) == 1


async def test_a_key_of_outcomes_alone_trades_event_markets_and_nothing_else(open_box: OpenBox) -> None:
    box: Box = await open_box(markets=("BTC", "event:RATE-CUT"))
    await box.price("BTC", "100000")
    await box.price("event:RATE-CUT", "0.5")
    caller = await box.caller()
    key = await make(caller, scopes=["outcomes"])
    event = order(100, market="event:RATE-CUT")
    plan = await key.post("/v1/orders", event | {"dryRun": True})
    assert (await key.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]}))["trade"][
        "fillStatus"
    ] == "filled"
    await key.post("/v1/orders", event | {"guardians": [{"type": "max_hold", "seconds": 3_600}]})
    resting = await key.post("/v1/orders", event | {"type": "limit", "limitPx": "0.1"})
    await key.delete(f"/v1/orders/{resting['trade']['venueOid']}")
    await key.post("/v1/orders", event | {"type": "limit", "limitPx": "0.1"})
    assert len((await key.delete("/v1/orders", {"coin": "event:RATE-CUT"}))["canceledOids"]) == 1
    switch = await key.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    await key.post("/v1/heartbeat")
    await caller.post("/v1/orders", order(500, bracket={"stopLoss": {"pct": 5}}))
    bought = await caller.post("/v1/orders", order(100, dryRun=True))
    stop = next(o["oid"] for o in (await caller.get("/v1/orders"))["orders"])
    brakes = [{"type": "kill_switch"}, {"type": "account_drawdown", "maxLossPctFromDayStart": 5}]
    for method, path, body in (
        ("POST", "/v1/orders", order(100)),
        ("POST", "/v1/orders", order(100, dryRun=True)),
        ("POST", "/v1/orders/confirm", {"confirmToken": bought["confirmToken"]}),
        ("POST", "/v1/positions/BTC/close", {}),
        ("DELETE", "/v1/orders", {"coin": "BTC"}),
        ("DELETE", f"/v1/orders/{stop}", None),
        ("DELETE", f"/v1/guardians/{switch['id']}", None),
        ("POST", "/v1/guardians", {"type": "trailing_stop", "market": "BTC", "trailPct": 5}),
        ("POST", "/v1/guardians", {"type": "schedule", "cron": "* * * * *", "orderTemplate": order(50)}),
        *[("POST", "/v1/guardians", brake) for brake in brakes],
        *[("POST", "/v1/orders", event | {"guardians": [brake]}) for brake in brakes],
        ("POST", "/v1/account/kill", {}),
    ):
        assert_refused(await key.send(method, path, body), 403, "forbidden")
    assert_refused(await key.send("GET", "/v1/account"), 403, "forbidden")
    closed = await key.post("/v1/positions/event:RATE-CUT/close")
    assert closed["position"] is None

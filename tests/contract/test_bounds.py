"""Every bound of the interface: one below, at, one above.

What is inside may fail for another reason, never for this one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.target import Caller, Target

ORDER: dict[str, Any] = {"market": "BTC", "side": "long", "usdAmount": 50}
LIMIT: dict[str, Any] = ORDER | {"type": "limit", "limitPx": "90000"}
DEAD: dict[str, Any] = {"type": "dead_man_switch", "heartbeatSeconds": 60}
TRAIL: dict[str, Any] = {"type": "trailing_stop", "market": "BTC", "trailPct": 2}
NO_INTEGER: list[Any] = ["1", True, 1.5, [], {}]
NO_NUMBER: list[Any] = ["1", True, [], {}]
NO_TEXT: list[Any] = [1, True, [], {}]
NO_FLAG: list[Any] = ["true", 1, 0, [], {}]
DRY = {"dryRun": True}


def inline(**fields: Any) -> dict[str, Any]:
    return ORDER | DRY | {"guardians": [{"type": "trailing_stop"} | fields]}


# path, body, field, inside, outside
CELLS: list[tuple[str, dict[str, Any], str, list[Any], list[Any]]] = [
    ("/v1/sandbox/accounts", {}, "name", ["x", "x" * 64, "é" * 64], ["", "x" * 65, *NO_TEXT]),
    (
        "/v1/sandbox/accounts",
        {},
        "startingBalanceUsd",
        [0.01, 1, 100_000, 1e5],
        [0, -1, 100_000.01, 100_001, *NO_NUMBER],
    ),
    ("/v1/sandbox/accounts/reset", {}, "balanceUsd", [0, 0.01, 100_000], [-0.01, 100_000.01, *NO_NUMBER]),
    ("/v1/orders", ORDER | DRY, "market", ["B" * 80], ["", "B" * 81, *NO_TEXT]),
    ("/v1/orders", ORDER | DRY, "side", ["long", "short"], ["", "Long", "buy", *NO_TEXT]),
    (
        "/v1/orders",
        {"market": "BTC", "side": "long"} | DRY,
        "usdAmount",
        [0.5, 10, 999_999.99, 1_000_000],
        [0, -1, 1_000_000.01, 1_000_001, *NO_NUMBER],
    ),
    ("/v1/orders", ORDER | DRY, "leverage", [1, 50], [0, 51, -1, *NO_INTEGER]),
    ("/v1/orders", ORDER | DRY, "leverageMode", ["error", "clamp"], ["", "CLAMP", *NO_TEXT]),
    ("/v1/orders", ORDER | DRY, "type", ["market"], ["", "stop", *NO_TEXT]),
    ("/v1/orders", ORDER | DRY, "maxSlippageBps", [0, 1, 1000], [-1, 1001, *NO_INTEGER]),
    ("/v1/orders", ORDER | DRY, "maxDriftBps", [1, 5000], [0, 5001, *NO_INTEGER]),
    ("/v1/orders", ORDER | DRY, "allowPartial", [True, False], NO_FLAG),
    ("/v1/orders", ORDER | DRY, "requireProtection", [True, False], NO_FLAG),
    ("/v1/orders", ORDER | DRY, "acknowledgeLeverageChange", [True, False], NO_FLAG),
    ("/v1/orders", ORDER, "dryRun", [True, False], NO_FLAG),
    ("/v1/orders", ORDER | DRY, "source", ["dashboard", "agent", "api"], ["", "cli", *NO_TEXT]),
    (
        "/v1/orders",
        ORDER | DRY,
        "bracket",
        [{"stopLoss": {"pct": 2}}, {"takeProfit": {"pct": 2}}],
        [{}, [], "x", 1, True],
    ),
    (
        "/v1/orders",
        ORDER | DRY,
        "guardians",
        [[], [{"type": "trailing_stop", "trailPct": 1}]],
        [{}, "x", 1, [1], ["x"], [[]]],
    ),
    ("/v1/orders/confirm", {}, "confirmToken", ["x" * 8, "x" * 128], ["x" * 7, "x" * 129, *NO_TEXT]),
    ("/v1/orders/suggest", {}, "coin", ["BTC", "B" * 64], ["", "B" * 65, *NO_TEXT]),
    ("/v1/orders/suggest", {"coin": "BTC"}, "intent", ["open", "close"], ["", "flip", *NO_TEXT]),
    ("/v1/orders/suggest", {"coin": "BTC"}, "side", ["long", "short"], ["", "buy", *NO_TEXT]),
    ("/v1/orders/suggest", {"coin": "BTC"}, "notionalUsd", [0.01, 1_000_000], [0, -1, 1_000_000.01, *NO_NUMBER]),
    ("/v1/orders/suggest", {"coin": "BTC"}, "leverage", [1, 50], [0, 51, *NO_INTEGER]),
    ("/v1/orders/suggest", {"coin": "BTC"}, "slippageBps", [0, 1000], [-1, 1001, *NO_INTEGER]),
    ("/v1/positions/BTC/close", {}, "fraction", [0.0001, 1], [0, -1, 1.0001, *NO_NUMBER]),
    ("/v1/positions/BTC/close", {}, "usdAmount", [0.01, 1_000_000], [0, 1_000_000.01, *NO_NUMBER]),
    ("/v1/positions/BTC/close", {}, "slippageBps", [0, 1000], [-1, 1001, *NO_INTEGER]),
    ("/v1/positions/BTC/close", {}, "source", ["dashboard", "agent", "api"], ["", "cli", *NO_TEXT]),
    ("/v1/guardians", DEAD, "heartbeatSeconds", [60, 86_400], [59, 86_401, *NO_INTEGER]),
    ("/v1/guardians", DEAD, "onMiss", ["flatten", "block_opens", "cancel_orders"], ["", "none", *NO_TEXT]),
    ("/v1/guardians", DEAD, "type", [], ["", "dead_man", *NO_TEXT]),
    ("/v1/guardians", DEAD, "scope", ["account"], ["", "position", "all", *NO_TEXT]),
    ("/v1/guardians", TRAIL, "scope", ["position"], ["account"]),
    ("/v1/guardians", TRAIL, "market", ["BTC", "B" * 80], ["", "B" * 81, *NO_TEXT]),
    ("/v1/guardians", TRAIL, "trailPct", [0.01, 50], [0, -1, 50.01, *NO_NUMBER]),
    ("/v1/guardians", {"type": "trailing_stop", "market": "BTC"}, "trailR", [0.01, 20], [0, 20.01, *NO_NUMBER]),
    ("/v1/guardians", TRAIL, "activateAtR", [0.01, 20], [0, 20.01, *NO_NUMBER]),
    ("/v1/guardians", {"type": "max_hold", "market": "BTC"}, "seconds", [], [59, 9_007_199_254_740_992, *NO_INTEGER]),
    ("/v1/guardians", {"type": "account_drawdown"}, "maxLossPctFromDayStart", [], [0, 100.01, *NO_NUMBER]),
    ("/v1/guardians", {"type": "kill_switch"}, "action", [], ["", "sell", *NO_TEXT]),
    ("/v1/guardians", {"type": "schedule", "action": "flatten"}, "cron", [], ["", "x" * 65, *NO_TEXT]),
]


def complained(answer: Any, name: str) -> bool:
    """Whether the answer refuses this very field as the interface's bound would."""
    if answer.status_code != 400:
        return False
    details = answer.json()["error"].get("details") or {}
    return any(one["field"] == name or one["field"].startswith(f"{name}.") for one in details.get("fields", ()))


@pytest.mark.parametrize(
    ("path", "body", "name", "inside", "outside"), CELLS, ids=[f"{c[0]} {c[2]} {n}" for n, c in enumerate(CELLS)]
)
def test_a_field_is_held_to_its_bounds(
    caller: Caller, path: str, body: dict[str, Any], name: str, inside: list[Any], outside: list[Any]
) -> None:
    for value in inside:
        answer = caller.send("POST", path, body | {name: value})
        if not (name in ("market", "trailR", "activateAtR", "trailPct") and "error" in answer.json()):
            assert not complained(answer, name), (value, answer.text)
        assert answer.status_code < 500
        assert "must" not in answer.text or answer.status_code != 400 or name in ("trailR", "activateAtR"), (
            value,
            answer.text,
        )
    for value in outside:
        answer = caller.send("POST", path, body | {name: value})
        assert answer.status_code == 400, (value, answer.text)
        assert answer.json()["error"]["code"] == "invalid_input"
        assert complained(answer, name), (value, answer.text)
        if path != "/v1/guardians":
            assert name in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "inside", "outside"),
    [
        (
            "/v1/markets?limit=",
            ["1", "250"],
            ["0", "251", "-1", "", "x", "1.0", "1e1", "１", "²", "+1", "%201", "9" * 400],
        ),
        ("/v1/markets?query=", ["", "x" * 64], ["x" * 65]),
        ("/v1/markets?asset_class=", ["stocks", "bonds", "crypto", "prediction", "all"], ["", "Crypto", "x"]),
        ("/v1/markets?view=", ["trending", "opportunities", "all"], ["", "x"]),
        ("/v1/markets/BTC/candles?interval=", ["1m", "5m", "15m", "1h", "4h", "1d"], ["", "2m", "1M", "60"]),
        ("/v1/markets/BTC/candles?limit=", ["1", "5000"], ["0", "5001", "-1", "x", ""]),
        ("/v1/orders?coin=", ["BTC"], ["", "x" * 65]),
        ("/v1/events?limit=", ["1", "200"], ["0", "201", "-1", "x", "", "１"]),
        (
            "/v1/events?types=",
            # An unknown type matches nothing, with a warning.
            ["fill", "fill,trigger", "fill.entry,guardian", "order.open", "nope", "fill,nope", "fill.nope", "FILL"],
            [],
        ),
        ("/v1/events?since=", [], ["1", "x", "evt_", "evt_x", "evt_-1", "trd_1", "", "evt_１"]),
        ("/v1/trades?limit=", ["1", "200"], ["0", "201", "-1", "x", ""]),
        ("/v1/trades?before=", ["0", "1", "9007199254740991"], ["-1", "x", "1.5", "", "²"]),
    ],
)
def test_a_query_is_held_to_its_bounds(caller: Caller, path: str, inside: list[str], outside: list[str]) -> None:
    name = path.partition("?")[2].rstrip("=")
    for value in inside:
        assert caller.send("GET", path + value).status_code == 200, value
    for value in outside:
        status, error = caller.refused("GET", path + value)
        assert (status, error["code"]) == (400, "invalid_input"), (value, error)
        assert name in error["message"], (value, error)
        assert [one["field"] for one in error["details"]["fields"]] == [name], error


# Which fields stand together: body, the field that the answer must name.
TOGETHER = [
    ({"market": "BTC", "side": "long"}, {"usdAmount", "size"}),
    (ORDER | {"size": "0.001"}, {"usdAmount", "size"}),
    (ORDER | {"limitPx": "90000"}, {"limitPx"}),
    (ORDER | {"type": "limit"}, {"limitPx"}),
    (LIMIT | {"maxSlippageBps": 50}, {"maxSlippageBps"}),
    (LIMIT | {"allowPartial": True}, {"allowPartial"}),
    (ORDER | {"bracket": {"stopLoss": {}}}, {"bracket.stopLoss"}),
    (ORDER | {"bracket": {"stopLoss": {"pct": 1, "px": "99000"}}}, {"bracket.stopLoss"}),
    (ORDER | {"bracket": {"stopLoss": {"r": 1}}}, {"bracket.stopLoss", "bracket.stopLoss.r"}),
    (ORDER | {"bracket": {"takeProfit": {"r": 2}}}, {"bracket.takeProfit", "bracket.takeProfit.r"}),
    (ORDER | {"bracket": {"stopLoss": {"pct": 1}, "takeProfit": {"r": 0}}}, {"bracket.takeProfit.r"}),
    (ORDER | {"bracket": {"stopLoss": {"pct": 1}, "takeProfit": {"r": 1, "pct": 1}}}, {"bracket.takeProfit"}),
    (ORDER | {"bracket": {"stopLoss": {"pct": 0}}}, {"bracket.stopLoss.pct"}),
    (ORDER | {"bracket": {"stopLoss": {"pct": -1}}}, {"bracket.stopLoss.pct"}),
    (ORDER | {"bracket": {"stopLoss": {"pct": 100}}}, {"bracket.stopLoss", "bracket.stopLoss.pct"}),
    (ORDER | {"bracket": {"stopLoss": {"pct": 100.5}}}, {"bracket.stopLoss", "bracket.stopLoss.pct"}),
    (
        ORDER | {"side": "short", "bracket": {"takeProfit": {"pct": 100}}},
        {"bracket.takeProfit", "bracket.takeProfit.pct"},
    ),
    (ORDER | {"bracket": {"stopLoss": {"px": "100001"}}}, {"bracket.stopLoss", "bracket.stopLoss.px"}),
    (ORDER | {"bracket": {"takeProfit": {"px": "99999"}}}, {"bracket.takeProfit", "bracket.takeProfit.px"}),
    (ORDER | {"bracket": {"stopLoss": {"px": "99000.5"}}}, {"bracket.stopLoss", "bracket.stopLoss.px"}),
    (ORDER | {"requireProtection": True}, {"bracket", "requireProtection", "bracket.stopLoss"}),
    (
        ORDER | {"requireProtection": True, "bracket": {"takeProfit": {"pct": 1}}},
        {"bracket", "requireProtection", "bracket.stopLoss"},
    ),
    (ORDER | {"guardians": [{"type": "trailing_stop", "trailPct": 1, "market": "ETH"}]}, {"guardians.0.market"}),
    (ORDER | {"guardians": [{"type": "trailing_stop"}]}, {"guardians.0.trailPct"}),
    (ORDER | {"guardians": [{"type": "trailing_stop", "trailPct": 1, "seconds": 60}]}, {"guardians.0.seconds"}),
    (ORDER | {"guardians": [{"type": "nope"}]}, {"guardians.0.type"}),
    (
        ORDER | {"guardians": [{"type": "trailing_stop", "trailPct": 1}, {"type": "max_hold", "seconds": 59}]},
        {"guardians.1.seconds"},
    ),
    (ORDER | {"guardians": [{"type": "trailing_stop", "trailR": 1}]}, {"guardians.0.trailR"}),
    ({"market": "BTC", "side": "long", "size": "0.0000001"}, {"size"}),
    ({"market": "BTC", "side": "long", "size": "0.000005"}, {"size"}),
]


@pytest.mark.parametrize(("body", "names"), TOGETHER)
def test_fields_that_do_not_go_together_are_named(caller: Caller, body: dict[str, Any], names: set[str]) -> None:
    for more in ({}, DRY):
        status, error = caller.refused("POST", "/v1/orders", body | more)
        assert (status, error["code"]) == (400, "invalid_input"), error
        assert error["orderSubmitted"] is False
        fields = {one["field"] for one in (error.get("details") or {}).get("fields", ())}
        assert fields & names, error
    assert caller.get("/v1/trades")["trades"] == []


GUARDIANS = [
    ({"type": "dead_man_switch"}, "heartbeatSeconds"),
    (DEAD | {"seconds": 60}, "seconds"),
    (DEAD | {"market": "BTC"}, "market"),
    (DEAD | {"trailPct": 1}, "trailPct"),
    (DEAD | {"action": "flatten"}, "action"),
    (DEAD | {"cron": "* * * * *"}, "cron"),
    (DEAD | {"orderTemplate": {}}, "orderTemplate"),
    (TRAIL | {"heartbeatSeconds": 60}, "heartbeatSeconds"),
    (TRAIL | {"onMiss": "flatten"}, "onMiss"),
    (TRAIL | {"trailR": 1}, "trail"),
    ({"type": "trailing_stop", "trailPct": 1}, "market"),
    ({"type": "trailing_stop", "market": "BTC"}, "trail"),
]


@pytest.mark.parametrize(("body", "name"), GUARDIANS)
def test_a_guardian_takes_only_the_fields_of_its_type(caller: Caller, body: dict[str, Any], name: str) -> None:
    status, error = caller.refused("POST", "/v1/guardians", body)
    assert (status, error["code"]) == (400, "invalid_input")
    assert any(one["field"].startswith(name) for one in error["details"]["fields"]), error


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"type": "account_drawdown", "maxLossPctFromDayStart": 5}, "armed"),
        ({"type": "schedule", "cron": "0 0 * * *", "action": "flatten"}, "armed"),
        ({"type": "kill_switch"}, "latched"),
    ],
)
def test_a_guardian_of_the_account_is_armed(caller: Caller, body: dict[str, Any], status: str) -> None:
    armed = caller.post("/v1/guardians", body)
    assert (armed["type"], armed["scope"], armed["status"]) == (body["type"], "account", status)
    assert [one["id"] for one in caller.get("/v1/guardians")["guardians"]] == [armed["id"]]


def test_max_hold_needs_a_position(caller: Caller) -> None:
    status, error = caller.refused("POST", "/v1/guardians", {"type": "max_hold", "market": "BTC", "seconds": 60})
    assert (status, error["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "body", [{"fraction": 0.5, "size": "1"}, {"fraction": 0.5, "usdAmount": 20}, {"size": "1", "usdAmount": 20}]
)
def test_a_close_takes_at_most_one_amount(caller: Caller, body: dict[str, Any]) -> None:
    caller.order(usdAmount=100)
    status, error = caller.refused("POST", "/v1/positions/BTC/close", body)
    assert (status, error["code"]) == (400, "invalid_input")


def test_the_bounds_are_said_in_the_limits(site: Target) -> None:
    platform = site.send("GET", "/v1/system/status").json()["limits"]["platform"]
    assert platform == platform | {
        "maxNotionalUsd": None,
        "minNotionalUsd": "10",
        "usdAmountMax": "1000000",
        "leverageMax": 50,
        "slippageBpsMax": 1000,
        "slippageBpsDefault": {
            "main": 100,
            "stocks": 200,
            "events": platform["slippageBpsDefault"]["events"],
            "close": 500,
        },
        "driftBpsDefault": 50,
        "driftBpsMax": 5000,
        "planTtlMs": 60_000,
        "heartbeatSecondsMin": 60,
        "heartbeatSecondsMax": 86_400,
        "guardianSecondsMin": 60,
        "openOrdersMax": 200,
        "guardiansMax": 100,
        "keysMax": 50,
        "webhooksMax": 20,
        "eventsKept": 100_000,
        "idempotencyTtlMs": 7 * 86_400_000,
        "bodyBytesMax": 65_536,
    }

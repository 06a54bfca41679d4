"""What the interface allows is judged by the venue, and not refused for its form: tiny amounts, many decimals, types
of a later version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.service.conftest import Caller

Body = dict[str, Any]

ORDER: Body = {"market": "BTC", "side": "long"}


async def refused(caller: Caller, path: str, body: bytes) -> dict[str, Any]:
    headers = {**caller.headers, "Content-Type": "application/json"}
    answer = await caller.http.request("POST", path, content=body, headers=headers)
    error: dict[str, Any] = answer.json()["error"]
    return error | {"status": answer.status_code}


@pytest.mark.parametrize(
    "number", ["5e-324", "1e-300", "1e-309", "1e-5000", "0.000000001", "1e-8", "0.01", "4.9999e-324"]
)
async def test_an_amount_above_zero_however_small_is_below_the_minimum(caller: Caller, number: str) -> None:
    body = f'{{"market": "BTC", "side": "long", "usdAmount": {number}}}'.encode()
    error = await refused(caller, "/v1/orders", body)
    assert (error["status"], error["code"]) == (422, "below_min_notional")


@pytest.mark.parametrize("number", ["0", "0e-5000", "-5e-324", "-1e-5000", "1e309", "1e5000"])
async def test_an_amount_that_is_not_above_zero_or_no_double_is_refused(caller: Caller, number: str) -> None:
    body = f'{{"market": "BTC", "side": "long", "usdAmount": {number}}}'.encode()
    error = await refused(caller, "/v1/orders", body)
    assert (error["status"], error["code"]) == (400, "invalid_input")


@pytest.mark.parametrize(
    "size", ["0.001000000001", "0.00099999999999999", "0.0010000000000000000000000001", "1.000000009"]
)
async def test_a_size_with_more_than_eight_decimals_is_judged_against_the_step(caller: Caller, size: str) -> None:
    for path in ("/v1/orders", "/v1/positions/BTC/close"):
        answer = await caller.send("POST", path, {**({} if "close" in path else ORDER), "size": size})
        error = answer.json()["error"]
        assert "decimals" not in error["message"]
        if path == "/v1/orders":
            assert "is not a multiple of" in error["message"] and error["fix"]["neighbours"]


@pytest.mark.parametrize("size", ["0.000000000001", "0.00000000000000000000000000000000000000000000000000000001"])
async def test_a_size_above_zero_however_small_is_judged(caller: Caller, size: str) -> None:
    error = (await caller.send("POST", "/v1/orders", {**ORDER, "size": size})).json()["error"]
    assert "decimals" not in error["message"]
    assert error["code"] in ("below_min_notional", "invalid_input") and error["fix"]


async def test_zeros_behind_the_eighth_decimal_change_nothing(caller: Caller) -> None:
    await caller.post("/v1/orders", {**ORDER, "size": "0.00100000000000000000000"})
    assert (await caller.get("/v1/account"))["positions"][0]["size"] == "0.001"


@pytest.mark.parametrize(
    ("types", "unknown"),
    [("nope", ["nope"]), ("fill,nope,order.never", ["nope", "order.never"]), ("%1B[2J", ["\ufffd[2J"])],
)
async def test_an_unknown_event_type_matches_nothing_and_is_told(
    caller: Caller, types: str, unknown: list[str]
) -> None:
    await caller.post("/v1/orders", {**ORDER, "usdAmount": 50})
    page = await caller.get(f"/v1/events?types={types}")
    assert {one["type"] for one in page["events"]} <= {"fill"}
    assert bool(page["events"]) == types.startswith("fill")
    assert [one["code"] for one in page["warnings"]] == ["unknown_type"] * len(unknown)
    assert all(name in one["message"] for name, one in zip(unknown, page["warnings"], strict=True))
    assert "warnings" not in await caller.get("/v1/events?types=fill")


CRON = {"type": "schedule", "cron": "0 9 * * *"}
# Each place of an order in a request: path, body around the order, path of the order in the field's name.
PLACES: list[tuple[str, Callable[[Body], Body], str]] = [
    ("/v1/orders", lambda order: order, ""),
    ("/v1/orders", lambda order: {**order, "dryRun": True}, ""),
    ("/v1/orders", lambda order: {**order, "type": "limit", "limitPx": "50000"}, ""),
    ("/v1/guardians", lambda order: {**CRON, "orderTemplate": order}, "orderTemplate."),
    (
        "/v1/orders",
        lambda order: {**ORDER, "usdAmount": 50, "guardians": [{**CRON, "orderTemplate": order}]},
        "orderTemplate.",
    ),
]
IN_R = [
    ({"stopLoss": {"r": 1}}, "bracket.stopLoss.r"),
    ({"stopLoss": {"r": 1e-12}}, "bracket.stopLoss.r"),
    ({"stopLoss": {"r": 1.5}, "takeProfit": {"pct": 4}}, "bracket.stopLoss.r"),
    ({"stopLoss": {"r": 1.5}, "takeProfit": {"r": 3}}, "bracket.stopLoss.r"),
    ({"takeProfit": {"r": 2}}, "bracket.takeProfit.r"),
]


@pytest.mark.parametrize(("path", "around", "at"), PLACES)
@pytest.mark.parametrize(("bracket", "field"), IN_R)
async def test_a_leg_in_r_without_a_stop_is_judged_and_its_way_out_works(
    caller: Caller, path: str, around: Callable[[Body], Body], at: str, bracket: Body, field: str
) -> None:
    order = {**ORDER, "usdAmount": 50, "bracket": bracket}
    answer = await caller.send("POST", path, around(order))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_input")
    assert [one["field"] for one in error["details"]["fields"]] == [at + field]
    assert error["message"].startswith(f"{at}{field}: ") and "pct or px" in error["message"]
    assert error["fix"] == {"action": "arm_stop", "field": f"{at}bracket.stopLoss", "value": {"pct": 2}}
    await caller.post(path, around({**order, "bracket": {**bracket, "stopLoss": error["fix"]["value"]}}))


async def test_a_leg_in_r_is_judged_after_the_market_and_the_key(caller: Caller) -> None:
    order = {**ORDER, "usdAmount": 50, "bracket": {"stopLoss": {"r": 1}}}
    other = (await caller.send("POST", "/v1/orders", {**order, "market": "NOPE"})).json()["error"]
    assert other["code"] == "not_found"
    first = await caller.send("POST", "/v1/orders", order, key="one")
    again = await caller.send("POST", "/v1/orders", order, key="one")
    assert again.headers["Idempotency-Replayed"] == "true" and again.json() == first.json()


@pytest.mark.parametrize(
    "bracket", [{"stopLoss": {"pct": 1e-12}}, {"stopLoss": {"pct": 2}, "takeProfit": {"r": 1e-12}}]
)
async def test_a_distance_above_zero_however_small_is_judged(caller: Caller, bracket: Body) -> None:
    answer = await caller.send("POST", "/v1/orders", {**ORDER, "usdAmount": 50, "bracket": bracket})
    assert answer.status_code == 200 or "at least 0.00000001" not in answer.json()["error"]["message"]

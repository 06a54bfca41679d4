"""Requests that nobody thought of, from a seed: every answer is lawful, every way out that an error names is one,
and the books add up.
"""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pytest

from tests.contract.shapes import judge
from tests.contract.target import Caller, Target

D = Decimal

AMOUNTS: list[Any] = [5, 9.99, 10, 10.01, 33.3, 500, 5_000, 19_000, 400_000, 1_000_000]
SIZES = ["0.00009", "0.0001", "0.001", "0.00123", "0.0500", "0.11", "3", "0.000123"]
PRICES = ["50000", "99000", "99999", "100001", "100050", "150000", "99999.5", "0.1", "1"]


def some_order(chance: Random) -> dict[str, Any]:
    body: dict[str, Any] = {
        "market": chance.choice(["BTC", "perp:btc", "ETH"]),
        "side": chance.choice(["long", "short"]),
    }
    if chance.random() < 0.7:
        body["usdAmount"] = chance.choice(AMOUNTS)
    else:
        body["size"] = chance.choice(SIZES)
    if chance.random() < 0.4:
        body["leverage"] = chance.choice([1, 2, 5, 10, 40, 41, 50])
        body["acknowledgeLeverageChange"] = chance.random() < 0.7
        body["leverageMode"] = chance.choice(["error", "clamp"])
    if chance.random() < 0.3:
        body |= {"type": "limit", "limitPx": chance.choice(PRICES)}
    elif chance.random() < 0.3:
        body |= {"maxSlippageBps": chance.choice([0, 1, 10, 1000]), "allowPartial": chance.random() < 0.5}
    if chance.random() < 0.5:
        bracket: dict[str, Any] = {}
        if chance.random() < 0.8:
            bracket["stopLoss"] = chance.choice(
                [{"pct": 2}, {"pct": 0.01}, {"pct": 60}, {"pct": 100}, {"px": chance.choice(PRICES)}]
            )
        if chance.random() < 0.6:
            bracket["takeProfit"] = chance.choice(
                [
                    {"pct": 3},
                    {"r": 2},
                    {"r": 0.001},
                    {"r": 5000},
                    {"pct": 100},
                    {"pct": 5000},
                    {"px": chance.choice(PRICES)},
                ]
            )
        body["bracket"] = bracket
    if chance.random() < 0.2:
        body["guardians"] = [
            chance.choice(
                [
                    {"type": "trailing_stop", "trailPct": 2},
                    {"type": "trailing_stop", "trailR": 1},
                    {"type": "trailing_stop", "trailPct": 50, "activateAtR": 20},
                    {"type": "dead_man_switch", "heartbeatSeconds": 60},
                ]
            )
        ]
    if chance.random() < 0.3:
        body["requireProtection"] = True
    return body


def mended(body: dict[str, Any], fix: dict[str, Any]) -> dict[str, Any] | None:
    """The request as the fix says, when it names a field and a value."""
    if not {"field", "value"} <= set(fix) or "." in fix["field"]:
        return None
    return {name: one for name, one in body.items() if (name, fix["field"]) != ("usdAmount", "size")} | {
        fix["field"]: fix["value"]
    }


def check_books(caller: Caller) -> None:
    account = caller.get("/v1/account")
    judge("account", account)
    trades: list[Any] = []
    before = ""
    while True:
        page = caller.get(f"/v1/trades?limit=200{before}")
        trades += page["trades"]
        if page["nextBefore"] is None:
            break
        before = f"&before={page['nextBefore']}"
    judge("trades", {"trades": trades, "nextBefore": None})
    money = sum((D(t["realizedPnlUsd"] or 0) - D(t["feeUsd"] or 0) for t in trades), D(0))
    # there the house bears what the account has not
    if not any(t["kind"] == "liquidation" for t in trades):
        assert D(account["balanceUsd"]) == 10_000 + money
    assert D(account["accountValueUsd"]) == D(account["balanceUsd"]) + D(account["unrealizedPnlUsd"])
    held = {p["coin"]: p for p in account["positions"]}
    for order in account["orders"]:
        if order["kind"] != "limit":
            assert order["size"] == held[order["coin"]]["size"]
            assert order["side"] == held[order["coin"]]["side"]


@pytest.mark.soak(worlds=4, full=250)
def test_any_order_gets_a_lawful_answer_and_its_way_out_is_one(site: Target, worlds: int, base_seed: int) -> None:
    for seed in range(base_seed, base_seed + worlds):
        chance = Random(seed)
        site.price("BTC", "100000")
        caller = site.caller()
        for _ in range(40):
            body = some_order(chance)
            before = caller.get("/v1/account")["lastEventId"]
            answer = caller.send("POST", "/v1/orders", body)
            assert answer.status_code < 500, (seed, body, answer.text)
            if answer.status_code == 200:
                judge("ordered", answer.json())
            else:
                assert caller.get("/v1/account")["lastEventId"] == before
                error = answer.json()["error"]
                again = mended(body, error.get("fix") or {})
                if again is not None:
                    second = caller.send("POST", "/v1/orders", again)
                    if second.status_code != 200:
                        other = second.json()["error"]
                        assert (other["code"], (other.get("fix") or {}).get("field")) != (
                            error["code"],
                            error["fix"]["field"],
                        ), (seed, body, error, other)
            planned = caller.send("POST", "/v1/orders", (body := some_order(chance)) | {"dryRun": True})
            if planned.status_code == 200:
                judge("planned", planned.json())
                done = caller.send("POST", "/v1/orders/confirm", {"confirmToken": planned.json()["confirmToken"]})
                assert done.status_code == 200, (seed, body, done.text)
                judge("ordered", done.json())
                plan, trade = planned.json()["plan"], done.json()["trade"]
                assert (plan["size"], plan["intent"], plan["side"]) == (trade["size"], trade["intent"], trade["side"])
                assert plan["fillSize"] == trade["filledSize"]
                assert plan["estPx"] == trade["avgPx"]
                assert plan["protected"] == done.json()["protected"], (seed, body, plan, done.json())
            if chance.random() < 0.3:
                close = caller.send(
                    "POST",
                    "/v1/positions/BTC/close",
                    chance.choice([{}, {"fraction": 0.3}, {"usdAmount": 25}, {"size": "0.001"}]),
                )
                assert close.status_code < 500
                if close.status_code == 200:
                    judge("ordered", close.json())
            if chance.random() < 0.3:
                site.price("BTC", str(chance.choice([95_000, 99_000, 100_000, 101_000, 108_000])))
            if chance.random() < 0.1:
                caller.delete("/v1/orders", {"coin": "ETH"})
        check_books(caller)
        page = caller.get("/v1/events?limit=200")
        judge("events", page)

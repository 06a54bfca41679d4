"""Accounts, orders, closes, cancels and suggestions: the bodies, the figures and the refusals with their way out."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.contract.shapes import judge
from tests.contract.target import Caller, Target

D = Decimal


def fields(error: dict[str, Any]) -> set[str]:
    return {one["field"] for one in (error.get("details") or {}).get("fields", ())}


def test_opening_an_account(site: Target) -> None:
    opened = site.send("POST", "/v1/sandbox/accounts").json()
    judge("opened", opened)
    assert opened["balanceUsd"] == "10000"
    assert opened["scopes"] == ["read", "trade", "outcomes"]
    assert opened["name"] is None
    assert opened["lastEventId"].startswith("evt_")
    assert opened["address"].startswith("0x")
    assert len(opened["address"]) == 42
    assert int(opened["address"], 16) > 0
    assert opened["createdAt"] == site.now()
    other = site.send("POST", "/v1/sandbox/accounts", {"name": "two", "startingBalanceUsd": 123.45}).json()
    assert (other["balanceUsd"], other["name"]) == ("123.45", "two")
    assert not {opened[n] for n in ("apiKey", "keyId", "accountId", "address")} & {
        other[n] for n in ("apiKey", "keyId", "accountId", "address")
    }


def test_a_fresh_account(caller: Caller) -> None:
    account = caller.get("/v1/account")
    judge("account", account)
    assert caller.get("/v1/limits") == account["limits"]
    assert account["accountValueUsd"] == account["balanceUsd"] == account["freeMarginUsd"] == "10000"
    assert (account["marginUsedUsd"], account["unrealizedPnlUsd"], account["epoch"]) == ("0", "0", 0)
    assert account["positions"] == account["orders"] == account["guardians"] == []
    assert account["budget"] == account["limits"]["account"]
    assert account["credit"] == account["credit"] | {"grantedUsd": "10000", "remainingUsd": "10000", "expiresAt": None}
    assert account["health"] == {
        "status": "ok",
        "opensBlocked": False,
        "blockedBy": [],
        "marginRatio": account["health"]["marginRatio"],
        "unprotected": [],
        "venue": "ok",
    }
    assert account["lastEventId"] == caller.opened["lastEventId"]
    assert account["limits"]["limitsVersion"] == 2
    assert account["limits"]["key"]["id"] == caller.opened["keyId"]
    assert account["limits"]["account"]["resetsAt"] % 86_400_000 == 0
    assert 0 < account["limits"]["account"]["resetsAt"] - account["serverTime"] <= 86_400_000


def test_a_reset_wipes_what_it_should_and_keeps_the_key(caller: Caller) -> None:
    caller.order(usdAmount=100, bracket={"stopLoss": {"pct": 5}})
    caller.order(market="ETH", usdAmount=100, type="limit", limitPx="2000")
    caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    plan = caller.order(usdAmount=50, dryRun=True)
    before = caller.get("/v1/account")["lastEventId"]
    # without one: the starting balance
    reset = caller.post("/v1/sandbox/accounts/reset", {"balanceUsd": 77})
    judge("reset", reset)
    assert (reset["balanceUsd"], reset["epoch"]) == ("77", 1)
    account = caller.get("/v1/account")
    assert (account["balanceUsd"], account["accountValueUsd"], account["epoch"]) == ("77", "77", 1)
    assert account["positions"] == account["orders"] == account["guardians"] == []
    assert caller.get("/v1/trades") == {"trades": [], "nextBefore": None}
    assert caller.get("/v1/guardians")["guardians"] == []
    page = caller.get("/v1/events")
    first = page["events"][0]
    assert (first["type"], first["subtype"], first["data"]) == ("account", "reset", {"balanceUsd": "77", "epoch": 1})
    assert int(first["id"][4:]) == int(before[4:]) + 1
    assert page["lastEventId"] == reset["lastEventId"] == first["id"] == account["lastEventId"]
    status, error = caller.refused("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert (status, error["code"]) in {(409, "plan_stale"), (404, "not_found"), (409, "idempotency_conflict")}
    assert error["orderSubmitted"] is False
    assert caller.target.caller(startingBalanceUsd=123.4).post("/v1/sandbox/accounts/reset")["balanceUsd"] == "123.4"
    assert caller.post("/v1/sandbox/accounts/reset", {"balanceUsd": 0})["balanceUsd"] == "0"
    assert (
        caller.refused("POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50})[1]["code"]
        == "insufficient_funds"
    )


@pytest.mark.parametrize("side", ["long", "short"])
def test_a_market_order_and_its_books(caller: Caller, side: str) -> None:
    book = caller.get("/v1/markets/BTC/book")
    answer = caller.order(
        side=side, usdAmount=500, leverage=5, source="agent", bracket={"stopLoss": {"pct": 2}, "takeProfit": {"r": 2}}
    )
    judge("ordered", answer)
    trade, position = answer["trade"], answer["position"]
    assert (trade["side"], trade["intent"], trade["kind"], trade["reduceOnly"]) == (side, "open", "market", False)
    assert (trade["status"], trade["fillStatus"], trade["source"], trade["symbol"], trade["market"]) == (
        "done",
        "filled",
        "agent",
        "BTC",
        "perp:BTC",
    )
    assert trade["size"] == trade["filledSize"] == position["size"]
    assert trade["realizedPnlUsd"] is None
    assert D(position["size"]) * D(book["midPx"]) <= 500
    best = book["asks" if side == "long" else "bids"][0]["px"]
    assert trade["avgPx"] == position["entryPx"] == best
    assert D(trade["feeUsd"]) == (D(position["size"]) * D(best) * D("0.00045")).quantize(D("0.000001"), "ROUND_DOWN")
    assert (position["side"], position["leverage"], position["book"], position["market"]) == (
        side,
        5,
        "main",
        "perp:BTC",
    )
    assert D(position["notionalUsd"]) == D(position["size"]) * D(position["markPx"])
    sign = 1 if side == "long" else -1
    assert D(position["unrealizedPnlUsd"]) == sign * (D(position["markPx"]) - D(best)) * D(position["size"])
    assert D(position["riskUsd"]) == abs(D(best) - D(position["stopPx"])) * D(position["size"])
    assert sign * (D(best) - D(position["stopPx"])) > 0
    assert sign * (D(position["takeProfitPx"]) - D(best)) > 0
    assert answer["protected"] is True
    assert answer["leverageClamped"] is False
    orders = answer["orders"]
    assert [(o["kind"], o["status"], o["reduceOnly"], o["intent"], o["side"], o["size"]) for o in orders] == [
        ("stop_loss", "armed", True, "close", side, position["size"]),
        ("take_profit", "armed", True, "close", side, position["size"]),
    ]
    assert [o["triggerPx"] for o in orders] == [position["stopPx"], position["takeProfitPx"]]
    assert caller.get("/v1/orders") == {"orders": orders} == caller.get("/v1/orders?coin=perp:btc")
    assert caller.get("/v1/orders?coin=ETH") == {"orders": []}
    account = caller.get("/v1/account")
    judge("account", account)
    assert account["orders"] == orders
    assert account["positions"] == [position]
    assert D(account["balanceUsd"]) == 10_000 - D(trade["feeUsd"])
    assert D(account["accountValueUsd"]) == D(account["balanceUsd"]) + D(account["unrealizedPnlUsd"])
    assert D(account["freeMarginUsd"]) == D(account["accountValueUsd"]) - D(account["marginUsedUsd"])
    assert answer["lastEventId"] == account["lastEventId"]


@pytest.mark.parametrize(("side", "sign"), [("long", 1), ("short", -1)])
def test_signs_follow_the_money(site: Target, caller: Caller, side: str, sign: int) -> None:
    caller.order(side=side, usdAmount=1000, leverage=2)
    site.price("BTC", "110000")
    up = caller.get("/v1/account")
    assert sign * D(up["positions"][0]["unrealizedPnlUsd"]) > 0
    assert D(up["positions"][0]["size"]) > 0
    site.price("BTC", "95000")
    down = caller.get("/v1/account")["positions"][0]
    assert sign * D(down["unrealizedPnlUsd"]) < 0
    closed = caller.post("/v1/positions/BTC/close")
    judge("ordered", closed)
    trade = closed["trade"]
    assert (trade["side"], trade["intent"], trade["kind"], trade["reduceOnly"]) == (side, "close", "close", True)
    assert sign * D(trade["realizedPnlUsd"]) < 0
    assert D(trade["feeUsd"]) > 0
    assert closed["position"] is None
    trades = caller.get("/v1/trades")["trades"]
    money = sum(D(t["realizedPnlUsd"] or 0) - D(t["feeUsd"]) for t in trades)
    assert D(caller.get("/v1/account")["balanceUsd"]) == 10_000 + money


def test_an_order_against_a_position_closes_and_a_larger_one_flips_in_one_trade(caller: Caller) -> None:
    caller.order(size="0.01")
    less = caller.order(side="short", size="0.004")["trade"]
    assert (less["side"], less["intent"], less["size"]) == ("long", "close", "0.004")
    assert less["realizedPnlUsd"] is not None
    flip = caller.order(side="short", size="0.01")
    assert (flip["trade"]["side"], flip["trade"]["intent"], flip["trade"]["size"]) == ("short", "open", "0.01")
    assert flip["trade"]["realizedPnlUsd"] is not None
    assert (flip["position"]["side"], flip["position"]["size"]) == ("short", "0.004")
    assert len(caller.get("/v1/trades")["trades"]) == 3
    gone = caller.order(side="long", size="0.004")
    assert (gone["trade"]["intent"], gone["trade"]["side"], gone["position"]) == ("close", "short", None)


def test_markets_have_two_names_in_any_case(caller: Caller) -> None:
    for name in ("BTC", "btc", "perp:BTC", "PERP:btc", "Perp:Btc"):
        assert caller.order(market=name, usdAmount=20)["trade"]["symbol"] == "BTC"
        assert caller.post("/v1/orders/suggest", {"coin": name})["market"] == "perp:BTC"
        assert caller.get(f"/v1/markets/{name}/book")["coin"] == "BTC"
        assert caller.post(f"/v1/positions/{name}/close")["position"] is None
    for name in ("NOPE", "perp:NOPE", "event:nope", "event:BTC"):
        assert caller.refused("POST", "/v1/orders", {"market": name, "side": "long", "usdAmount": 20})[:1] == (404,)
        assert caller.target.send("GET", f"/v1/markets/{name}/book").status_code == 404
        assert caller.target.send("GET", f"/v1/markets/{name}/candles").status_code == 404
        assert caller.refused("POST", "/v1/orders/suggest", {"coin": name})[0] == 404
        assert caller.refused("GET", f"/v1/orders?coin={name}")[0] == 404
        assert caller.refused("DELETE", "/v1/orders", {"coin": name})[0] == 404


def test_refusals_of_the_venue_have_their_code_status_and_way_out(caller: Caller) -> None:
    def no(**more: Any) -> tuple[int, str, Any]:
        status, error = caller.refused("POST", "/v1/orders", {"market": "BTC", "side": "long"} | more)
        assert error["orderSubmitted"] is False
        return status, error["code"], error

    status, code, error = no(usdAmount=9.99)
    assert (status, code) == (422, "below_min_notional")
    for tiny in (1e-9, 4e-300):
        assert no(usdAmount=tiny)[1] == "below_min_notional"
        assert no(usdAmount=tiny, dryRun=True)[1] == "below_min_notional"
        assert caller.post("/v1/orders/suggest", {"coin": "BTC", "notionalUsd": tiny})["request"] is not None
    assert error["fix"]["field"] == "usdAmount"
    assert caller.order(usdAmount=error["fix"]["value"])["trade"]["fillStatus"] == "filled"
    caller.post("/v1/positions/BTC/close")
    status, code, error = no(size="0.00009")
    assert (status, code, error["fix"]) == (422, "below_min_notional", {"field": "size", "value": "0.0001"})
    status, code, error = no(usdAmount=50, leverage=41)
    assert (status, code, error["fix"]) == (422, "leverage_too_high", {"field": "leverage", "value": 40})
    clamped = caller.order(usdAmount=50, leverage=41, leverageMode="clamp")
    assert (clamped["leverage"], clamped["leverageClamped"]) == (40, True)
    assert "leverage_clamped" in {w["code"] for w in clamped["warnings"]}
    caller.post("/v1/positions/BTC/close")
    status, code, error = no(usdAmount=20_000)
    assert (status, code) == (422, "insufficient_funds")
    assert error["fix"]["field"] == "usdAmount"
    assert caller.order(usdAmount=error["fix"]["value"])["trade"]["fillStatus"] == "filled"
    caller.post("/v1/positions/BTC/close")
    status, code, error = no(usdAmount=50, maxSlippageBps=0)
    assert (status, code, error["retryable"]) == (409, "insufficient_depth", True)
    assert no(usdAmount=50, maxSlippageBps=0, allowPartial=True)[:2] == (409, "insufficient_depth")
    # a refused order leaves none
    assert len(caller.get("/v1/trades")["trades"]) == 6


def test_leverage_of_a_position_changes_only_when_acknowledged(caller: Caller) -> None:
    caller.order(usdAmount=100)
    assert caller.get("/v1/account")["positions"][0]["leverage"] == 1
    status, error = caller.refused(
        "POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50, "leverage": 3}
    )
    assert (status, error["code"]) == (400, "invalid_input")
    assert error["fix"] == {"field": "acknowledgeLeverageChange", "value": True}
    assert caller.order(usdAmount=50, leverage=3, acknowledgeLeverageChange=True)["leverage"] == 3
    assert caller.order(usdAmount=50)["leverage"] == 3
    changes = [e["data"] for e in caller.get("/v1/events?types=account.leverage")["events"]]
    assert {"coin": "BTC", "from": 1, "to": 3} in changes


def test_a_limit_order_rests_shows_its_bracket_and_is_cancelled(site: Target, caller: Caller) -> None:
    answer = caller.order(
        usdAmount=900, type="limit", limitPx="90000", bracket={"stopLoss": {"pct": 1}, "takeProfit": {"r": 3}}
    )
    judge("ordered", answer)
    assert answer["position"] is None
    trade, order = answer["trade"], answer["orders"][0]
    assert (trade["status"], trade["fillStatus"], trade["filledSize"], trade["avgPx"], trade["kind"]) == (
        "open",
        "none",
        "0",
        None,
        "limit",
    )
    assert order == order | {
        "kind": "limit",
        "status": "open",
        "limitPx": "90000",
        "size": "0.01",
        "filledSize": "0",
        "oid": trade["venueOid"],
        "tradeId": trade["id"],
        "bracket": {
            "stopLoss": {"px": "89100", "pct": 1, "r": None},
            "takeProfit": {"px": "92700", "pct": None, "r": 3},
        },
    }
    assert caller.get("/v1/account")["freeMarginUsd"] != "10000"
    assert [
        e["type"] + e["subtype"] for e in caller.get(f"/v1/events?since={caller.opened['lastEventId']}")["events"]
    ] == ["orderopen"]
    gone = caller.delete(f"/v1/orders/{order['oid']}")
    judge("canceled", gone)
    assert gone == {"oid": order["oid"], "coin": "BTC", "canceled": True, "filledSize": "0", "unprotected": False}
    assert caller.get("/v1/account")["freeMarginUsd"] == "10000"
    after = caller.get("/v1/trades")["trades"][0]
    assert (after["status"], after["reason"]) == ("canceled", "user")
    assert caller.refused("DELETE", f"/v1/orders/{order['oid']}")[0] == 404


def test_a_crossing_limit_pays_taker_and_takes_the_better_price(caller: Caller) -> None:
    book = caller.get("/v1/markets/BTC/book")
    answer = caller.order(size="0.001", type="limit", limitPx="101000")
    assert answer["trade"]["avgPx"] == book["asks"][0]["px"]
    assert (answer["trade"]["status"], answer["trade"]["fillStatus"]) == ("done", "filled")
    fill = caller.get("/v1/events?types=fill")["events"][0]["data"]
    assert fill["liquidity"] == "taker"
    assert caller.get("/v1/events?types=order.open")["events"] == []


def test_a_limit_that_crosses_has_its_bracket_from_where_it_fills(caller: Caller) -> None:
    near = {"type": "limit", "limitPx": "101000", "bracket": {"stopLoss": {"pct": 0.5}, "takeProfit": {"r": 2}}}
    planned = caller.order(usdAmount=900, dryRun=True, **near)
    plan = planned["plan"]
    position = caller.post("/v1/orders/confirm", {"confirmToken": planned["confirmToken"]})["position"]
    assert plan["estPx"] == position["entryPx"]
    bracket = plan["bracket"]
    assert (bracket["stopLoss"]["px"], bracket["takeProfit"]["px"]) == (position["stopPx"], position["takeProfitPx"])
    assert D(plan["riskUsd"]) == D(position["riskUsd"])


def test_an_entry_that_is_filled_in_part_shows_no_bracket_beside_the_armed_one(site: Target, caller: Caller) -> None:
    bracket = {"stopLoss": {"pct": 2}, "takeProfit": {"r": 2}}
    oid = caller.order(size="0.05", type="limit", limitPx="99000", bracket=bracket)["trade"]["venueOid"]
    site.price("BTC", "98500", volume="0.2")
    entry, stop, target = caller.get("/v1/orders?coin=BTC")["orders"]
    assert (entry["oid"], entry["filledSize"], entry["bracket"]) == (oid, "0.02", None)
    position = caller.get("/v1/account")["positions"][0]
    assert (stop["triggerPx"], target["triggerPx"]) == (position["stopPx"], position["takeProfitPx"])
    assert (position["stopPx"], stop["size"]) == ("96530", "0.02")


def test_a_limit_that_only_closes_ends_with_its_position_and_opens_nothing_under_a_kill(
    site: Target, caller: Caller
) -> None:
    caller.order(size="0.01", bracket={"stopLoss": {"pct": 5}})
    caller.post("/v1/account/kill", {})
    out = caller.order(side="short", size="0.01", type="limit", limitPx="101000")
    assert (out["trade"]["intent"], out["trade"]["reduceOnly"], out["orders"][-1]["reduceOnly"]) == (
        "close",
        True,
        True,
    )
    caller.post("/v1/positions/BTC/close")
    assert caller.get("/v1/orders")["orders"] == []
    gone = next(t for t in caller.get("/v1/trades")["trades"] if t["id"] == out["trade"]["id"])
    assert (gone["status"], gone["reason"], gone["filledSize"]) == ("canceled", "reduce_only", "0")
    site.price("BTC", "103000")
    assert caller.get("/v1/account")["positions"] == []


def test_an_order_that_will_turn_a_position_round_says_whether_it_brings_a_stop(caller: Caller) -> None:
    caller.order(size="0.01", bracket={"stopLoss": {"pct": 5}})
    flip = {"side": "short", "size": "0.03", "type": "limit", "limitPx": "101000"}
    assert caller.order(**flip)["protected"] is False
    assert caller.order(**flip, bracket={"stopLoss": {"pct": 2}})["protected"] is True
    assert caller.order(**flip | {"size": "0.005"})["protected"] is True


@pytest.mark.parametrize("oid", ["0", "999999999", "x", "²", "１", "-1", "9" * 400, "%00"])
def test_cancelling_what_is_not_there_is_404(caller: Caller, oid: str) -> None:
    assert caller.refused("DELETE", f"/v1/orders/{oid}")[1]["code"] in ("not_found", "invalid_input")


def test_nobody_cancels_or_sees_what_is_anothers(site: Target, caller: Caller) -> None:
    mine = caller.order(usdAmount=900, type="limit", limitPx="90000")
    guardian = caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    plan = caller.order(usdAmount=50, dryRun=True)
    other = site.caller()
    assert other.refused("DELETE", f"/v1/orders/{mine['trade']['venueOid']}")[0] == 404
    assert other.refused("DELETE", f"/v1/guardians/{guardian['id']}")[0] == 404
    status, error = other.refused("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert status == 404
    assert error["orderSubmitted"] is False
    assert other.delete("/v1/orders", {"coin": "BTC"})["canceledOids"] == []
    assert other.get("/v1/trades")["trades"] == other.get("/v1/orders")["orders"] == []
    assert len(caller.get("/v1/orders")["orders"]) == 1
    assert caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})["trade"]["fillStatus"] == "filled"


def test_cancels_tell_when_a_position_is_left_without_a_stop(caller: Caller) -> None:
    orders = caller.order(usdAmount=500, bracket={"stopLoss": {"pct": 2}, "takeProfit": {"pct": 4}})["orders"]
    assert caller.delete(f"/v1/orders/{orders[1]['oid']}")["unprotected"] is False
    assert caller.delete(f"/v1/orders/{orders[0]['oid']}")["unprotected"] is True
    assert caller.get("/v1/account")["health"]["unprotected"] == ["BTC"]
    orders = caller.order(usdAmount=50, bracket={"stopLoss": {"pct": 2}})["orders"]
    limit = caller.order(usdAmount=900, type="limit", limitPx="90000")["trade"]["venueOid"]
    gone = caller.delete("/v1/orders", {"coin": "perp:btc"})
    judge("canceled_coin", gone)
    assert gone["coin"] == "BTC"
    assert set(gone["canceledOids"]) == {orders[0]["oid"], limit}
    assert gone["unprotected"] is True
    judge("canceled_coin", empty := caller.delete("/v1/orders", {"coin": "ETH"}))
    assert empty == {"coin": "ETH", "canceledOids": [], "unprotected": False}


def test_closes_by_fraction_usd_and_size(caller: Caller) -> None:
    assert caller.refused("POST", "/v1/positions/BTC/close")[0] == 404
    caller.order(size="0.01")
    for body, left in (({"fraction": 0.5}, "0.005"), ({"usdAmount": 100}, "0.004"), ({"size": "0.001"}, "0.003")):
        answer = caller.post("/v1/positions/perp:BTC/close", body)
        assert answer["position"]["size"] == left
        assert answer["trade"]["reduceOnly"] is True
    status, error = caller.refused("POST", "/v1/positions/BTC/close", {"size": "0.00005"})
    assert (status, error["code"], error["orderSubmitted"]) == (422, "below_min_notional", False)
    assert caller.post("/v1/positions/BTC/close", {"size": "5"})["position"] is None
    caller.order(usdAmount=20)
    assert caller.post("/v1/positions/BTC/close", {"usdAmount": 1_000_000})["position"] is None
    caller.order(size="0.0001")
    # worth 5 USD now: all of it always goes
    caller.target.price("BTC", "50000")
    assert caller.refused("POST", "/v1/positions/BTC/close", {"fraction": 0.5})[1]["code"] in (
        "below_min_notional",
        "invalid_input",
    )
    assert caller.post("/v1/positions/BTC/close", {"fraction": 1})["position"] is None
    status, error = caller.refused("POST", "/v1/positions/BTC/close")
    assert (status, error["code"], error["orderSubmitted"]) == (404, "not_found", False)


def test_suggest_answers_with_an_order_that_is_taken_as_it_is(caller: Caller) -> None:
    for body in (
        {},
        {"notionalUsd": 50},
        {"side": "short", "notionalUsd": 33.3, "leverage": 7},
        {"size": "0.002"},
        {"notionalUsd": 3},
        {"slippageBps": 20},
    ):
        said = caller.post("/v1/orders/suggest", {"coin": "BTC"} | body)
        judge("suggested", said)
        assert said["minNotionalUsd"] == "10"
        assert said["minSize"] == "0.0001"
        if said["feasible"]:
            request = said["request"]
            answer = caller.send(request["method"], request["path"], request["body"])
            assert answer.status_code == 200, answer.text
            assert answer.json()["trade"]["size"] == said["size"]
            closing = caller.post(
                "/v1/orders/suggest", {"coin": "BTC", "intent": "close", "side": body.get("side", "long")}
            )
            judge("suggested", closing)
            assert closing["feasible"] is True
            request = closing["request"]
            gone = caller.send(request["method"], request["path"], request["body"])
            assert gone.status_code == 200, gone.text
            assert gone.json()["position"] is None
    large = caller.post("/v1/orders/suggest", {"coin": "BTC", "notionalUsd": 1_000_000})
    judge("suggested", large)
    assert large["feasible"] is False or D(large["notionalUsd"]) < 1_000_000
    nothing = caller.send("POST", "/v1/orders/suggest", {"coin": "BTC", "intent": "close"})
    assert nothing.status_code in (200, 404)
    if nothing.status_code == 200:
        assert nothing.json()["feasible"] is False
    assert caller.get("/v1/events?types=order.open")["events"] == []
    # The largest size is one that the venue takes.
    said = caller.post("/v1/orders/suggest", {"coin": "BTC", "leverage": 10})
    assert caller.order(size=said["maxSize"], leverage=10)["trade"]["fillStatus"] == "filled"


@pytest.mark.parametrize(("held", "asked"), [(2, 10), (10, 2), (10, 1)])
def test_a_suggested_order_acknowledges_the_leverage_that_it_changes(caller: Caller, held: int, asked: int) -> None:
    caller.order(usdAmount=15_000 if held == 10 else 500, leverage=held)
    for wanted in ({"notionalUsd": 50}, {"notionalUsd": 1_000_000}):
        said = caller.post("/v1/orders/suggest", {"coin": "BTC", "leverage": asked} | wanted)
        judge("suggested", said)
        assert said["feasible"] == (asked > 1)
        if said["feasible"]:
            assert caller.post("/v1/orders", said["request"]["body"])["position"]["leverage"] == asked
    again = caller.post("/v1/orders/suggest", {"coin": "BTC"})
    assert "acknowledgeLeverageChange" not in (again["request"] or {"body": {}})["body"]


def test_without_a_remaining_limit_nothing_is_suggested(caller: Caller) -> None:
    caller.order(usdAmount=500)
    assert caller.send("PATCH", "/v1/settings", {"dailyTradeCapUsd": 100}).status_code == 200
    said = caller.post("/v1/orders/suggest", {"coin": "BTC"})
    judge("suggested", said)
    assert (said["feasible"], said["request"], said["maxSize"]) == (False, None, "0")
    assert caller.post("/v1/orders/suggest", {"coin": "BTC", "intent": "close"})["feasible"]


def test_a_number_that_was_reckoned_is_taken_to_the_nearest_unit(caller: Caller) -> None:
    plan = caller.post(
        "/v1/orders",
        {
            "market": "BTC",
            "side": "long",
            "usdAmount": 1000 / 3,
            "dryRun": True,
            "bracket": {"stopLoss": {"pct": 0.7 + 0.1}, "takeProfit": {"r": 1.1 * 3}},
        },
    )["plan"]
    assert (plan["bracket"]["stopLoss"]["pct"], plan["bracket"]["takeProfit"]["r"]) == (0.8, 3.3)
    caller.order(usdAmount=300)
    closed = caller.post("/v1/positions/BTC/close", {"fraction": 1 / 3})["trade"]
    assert (closed["intent"], closed["fillStatus"]) == ("close", "filled")
    arm = {"type": "trailing_stop", "market": "BTC", "trailPct": 0.1 + 0.2}
    assert caller.post("/v1/guardians", arm)["trailPct"] == 0.3
    # The interface allows any number above 0: one below the unit becomes the unit, and never 0.
    for amount in (1e-9, 4e-300):
        assert caller.post("/v1/guardians", arm | {"trailPct": amount})["trailPct"] == 1e-8
    assert caller.refused("POST", "/v1/guardians", arm | {"trailPct": 0})[0] == 400
    far = {"market": "BTC", "side": "long", "usdAmount": 50, "bracket": {"takeProfit": {"pct": 1e300}}}
    status, error = caller.refused("POST", "/v1/orders", far)
    assert (status, error["message"]) == (400, "bracket.takeProfit.pct is out of range")


def test_an_order_that_only_reduces_drops_no_guardian_without_a_word(caller: Caller) -> None:
    caller.order(usdAmount=500)
    trail = [{"type": "trailing_stop", "trailPct": 2}]
    for dry in ({}, {"dryRun": True}):
        less = {"market": "BTC", "side": "short", "usdAmount": 100, "guardians": trail} | dry
        status, error = caller.refused("POST", "/v1/orders", less)
        assert (status, error["code"], error["fix"]) == (
            400,
            "invalid_input",
            {"action": "remove", "field": "guardians"},
        )
    assert len(caller.get("/v1/trades")["trades"]) == 1
    flipped = caller.order(side="short", usdAmount=900, guardians=trail)
    assert [one["type"] for one in flipped["guardians"]] == ["trailing_stop"]
    assert flipped["protected"]


def test_lists_stand_in_their_order(caller: Caller) -> None:
    for coin in ("SOL", "BTC", "ETH"):
        caller.order(market=coin, usdAmount=50, bracket={"stopLoss": {"pct": 5}})
    assert [p["coin"] for p in caller.get("/v1/account")["positions"]] == ["BTC", "ETH", "SOL"]
    assert [o["coin"] for o in caller.get("/v1/orders")["orders"]] == ["SOL", "BTC", "ETH"]
    assert [t["symbol"] for t in caller.get("/v1/trades")["trades"]] == ["ETH", "BTC", "SOL"]


def test_two_hundred_open_orders_and_no_more(caller: Caller) -> None:
    for _ in range(200):
        caller.order(usdAmount=10, type="limit", limitPx="50000")
    status, error = caller.refused(
        "POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 10, "type": "limit", "limitPx": "50000"}
    )
    assert (status, error["code"]) == (422, "limit_exceeded")
    assert len(caller.get("/v1/orders")["orders"]) == 200
    assert len(caller.delete("/v1/orders", {"coin": "BTC"})["canceledOids"]) == 200


def test_exits_by_stop_and_target_are_told_once_and_the_books_agree(site: Target, caller: Caller) -> None:
    for side, px, kind in (
        ("long", "97000", "stop_loss"),
        ("long", "105000", "take_profit"),
        ("short", "103000", "stop_loss"),
        ("short", "95000", "take_profit"),
    ):
        site.price("BTC", "100000")
        since = caller.order(side=side, usdAmount=500, bracket={"stopLoss": {"pct": 2}, "takeProfit": {"pct": 4}})[
            "lastEventId"
        ]
        site.price("BTC", px)
        events = caller.get(f"/v1/events?since={since}")["events"]
        judge("events", {"events": events, "lastEventId": "x"})
        assert [(e["type"], e["subtype"]) for e in events] == [
            ("trigger", kind),
            ("order", "canceled"),
            ("fill", "exit"),
        ]
        assert events[1]["data"]["reason"] == "sibling_filled"
        trade = caller.get("/v1/trades")["trades"][0]
        assert (trade["kind"], trade["side"], trade["intent"], trade["source"], trade["requestId"]) == (
            kind,
            side,
            "close",
            None,
            None,
        )
        assert events[0]["data"]["tradeId"] == trade["id"] == events[2]["data"]["tradeId"]
        assert (D(trade["realizedPnlUsd"]) > 0) is (kind == "take_profit")
    trades = caller.get("/v1/trades")["trades"]
    judge("trades", {"trades": trades, "nextBefore": None})
    assert D(caller.get("/v1/account")["balanceUsd"]) == 10_000 + sum(
        D(t["realizedPnlUsd"] or 0) - D(t["feeUsd"]) for t in trades
    )
    assert caller.get("/v1/orders")["orders"] == []


def test_a_stop_that_more_leverage_leaves_beyond_liquidation_protects_nothing_anywhere(simulated: Target) -> None:
    """Plan, answer and health say the same of it."""
    caller = simulated.caller()
    order = {"market": "AAPL", "side": "long", "leverage": 2, "size": "10", "bracket": {"stopLoss": {"pct": 7.5}}}
    assert caller.post("/v1/orders", order)["protected"] is True
    more = {"market": "AAPL", "side": "long", "leverage": 10, "size": "1", "acknowledgeLeverageChange": True}
    planned = caller.post("/v1/orders", more | {"dryRun": True})
    done = caller.post("/v1/orders/confirm", {"confirmToken": planned["confirmToken"]})
    assert planned["plan"]["protected"] is done["protected"] is False
    assert "unprotected" in [warning["code"] for warning in done["warnings"]]
    (stop,) = done["orders"]
    assert float(done["position"]["liquidationPx"]) > float(stop["triggerPx"])
    assert caller.get("/v1/account")["health"]["unprotected"] == ["AAPL"]


@pytest.mark.parametrize(
    ("side", "px", "size"), [("long", "90000", "0.001"), ("short", "110000", "0.02")], ids=["grows", "turns"]
)
def test_a_position_that_has_no_stop_yet_is_called_so_until_the_order_that_brings_one_fills(
    simulated: Target, side: str, px: str, size: str
) -> None:
    """Plan, answer and health say the same of it; the stop that the order brings is enough for requireProtection."""
    simulated.price("BTC", "100000")
    caller = simulated.caller()
    caller.order(usdAmount=1000)
    waits = {
        "market": "BTC",
        "side": side,
        "type": "limit",
        "limitPx": px,
        "size": size,
        "bracket": {"stopLoss": {"pct": 2}},
        "requireProtection": True,
    }
    planned = caller.post("/v1/orders", waits | {"dryRun": True})
    done = caller.post("/v1/orders/confirm", {"confirmToken": planned["confirmToken"]})
    assert planned["plan"]["protected"] is done["protected"] is False
    assert planned["plan"]["warnings"] == done["warnings"]
    assert [warning["code"] for warning in done["warnings"]] == ["unprotected"]
    assert caller.get("/v1/account")["health"]["unprotected"] == ["BTC"]
    simulated.price("BTC", str(int(px) + (-10 if side == "long" else 10)))
    assert caller.get("/v1/account")["health"]["unprotected"] == []

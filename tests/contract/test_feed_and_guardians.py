"""The event feed, the trades' pages and the guardians: what is told, in which order, from where on, and when a rule
acts.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from tests.contract.shapes import judge
from tests.contract.target import Caller, Target

D = Decimal


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [f"{e['type']}/{e['subtype']}" for e in events]


@pytest.fixture
def busy(caller: Caller) -> Caller:
    """An account with some history."""
    for _ in range(6):
        caller.order(usdAmount=100, bracket={"stopLoss": {"pct": 2}})
        caller.post("/v1/positions/BTC/close")
    caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    return caller


def test_events_have_gapless_sortable_ids_and_their_shapes(busy: Caller) -> None:
    page = busy.get("/v1/events?limit=200")
    judge("events", page)
    ids = [e["id"] for e in page["events"]]
    assert ids == sorted(ids)
    assert [int(i[4:]) for i in ids] == list(range(1, len(ids) + 1))
    assert all(re.fullmatch(r"evt_[0-9]+", i) for i in ids)
    assert page["lastEventId"] == ids[-1] == busy.get("/v1/account")["lastEventId"]
    assert kinds(page["events"])[:4] == ["account/created", "account/key_created", "fill/entry", "order/armed"]
    assert page["events"][0]["data"] == {"balanceUsd": "10000"}
    fill = page["events"][2]
    assert fill["coin"] == "BTC"
    assert "requestId" in fill
    assert "idempotencyKey" not in fill
    trades = {t["id"]: t for t in busy.get("/v1/trades")["trades"]}
    for event in page["events"]:
        if event["type"] == "fill":
            trade = trades[event["data"]["tradeId"]]
            assert (event["data"]["oid"], event["requestId"]) == (trade["venueOid"], trade["requestId"])
            assert (event["data"]["side"], event["data"]["intent"], event["data"]["feeUsd"]) == (
                trade["side"],
                trade["intent"],
                trade["feeUsd"],
            )
            assert event["subtype"] == ("entry" if trade["intent"] == "open" else "exit")


@pytest.mark.parametrize("limit", [1, 3, 7, 200])
def test_pages_follow_each_other_without_gap_or_repeat(busy: Caller, limit: int) -> None:
    whole = busy.get("/v1/events?limit=200")["events"]
    assert busy.get("/v1/events")["events"] == whole[:50]
    seen: list[Any] = []
    since = ""
    while page := busy.get(f"/v1/events?limit={limit}{since}"):
        if not page["events"]:
            break
        assert len(page["events"]) <= limit
        assert page["lastEventId"] == page["events"][-1]["id"]
        seen += page["events"]
        since = f"&since={page['lastEventId']}"
    assert seen == whole
    assert page["lastEventId"] == whole[-1]["id"]


@pytest.mark.parametrize(
    "types", ["fill", "order", "fill,order", "fill.entry", "fill.exit,account", "guardian", "trigger", "order.canceled"]
)
@pytest.mark.parametrize("limit", [1, 2, 200])
def test_a_filtered_reader_moves_on_and_misses_nothing(busy: Caller, types: str, limit: int) -> None:
    wanted = set(types.split(","))
    whole = busy.get("/v1/events?limit=200")["events"]
    expected = [e for e in whole if e["type"] in wanted or f"{e['type']}.{e['subtype']}" in wanted]
    seen: list[Any] = []
    since = ""
    for _ in range(100):
        page = busy.get(f"/v1/events?types={types}&limit={limit}{since}")
        seen += page["events"]
        since = f"&since={page['lastEventId']}"
        if page["lastEventId"] == whole[-1]["id"]:
            break
    assert seen == expected
    assert page["lastEventId"] == whole[-1]["id"]
    assert busy.get(f"/v1/events?types={types}{since}") == {"events": [], "lastEventId": whole[-1]["id"]}


def test_a_cursor_beyond_the_newest_or_wiped_is_410_with_the_way_on(busy: Caller) -> None:
    last = busy.get("/v1/account")["lastEventId"]
    width = len(last) - 4
    ahead = f"evt_{int(last[4:]) + 1:0{width}d}"
    for cursor in (ahead, f"evt_{10**width - 1}"):
        status, error = busy.refused("GET", f"/v1/events?since={cursor}")
        assert (status, error["code"], error.get("retryable", False)) == (410, "not_found", False)
        assert error["fix"] == {"action": "resync", "lastEventId": last}
    old = busy.get("/v1/events?limit=3")["lastEventId"]
    reset = busy.post("/v1/sandbox/accounts/reset")
    for cursor in (old, last):
        status, error = busy.refused("GET", f"/v1/events?since={cursor}")
        assert (status, error["code"]) == (410, "not_found")
        assert error["fix"] == {"action": "resync", "lastEventId": reset["lastEventId"]}
    assert kinds(busy.get("/v1/events")["events"]) == ["account/reset"]
    assert busy.get(f"/v1/events?since={reset['lastEventId']}") == {"events": [], "lastEventId": reset["lastEventId"]}


def test_trades_are_paged_newest_first(busy: Caller) -> None:
    busy.order(market="ETH", usdAmount=50)
    whole = busy.get("/v1/trades?limit=200")
    judge("trades", whole)
    assert whole["nextBefore"] is None
    seqs = [t["seq"] for t in whole["trades"]]
    assert seqs == sorted(set(seqs), reverse=True)
    assert len(seqs) == 13
    for limit in (1, 4, 12, 13, 50):
        seen: list[Any] = []
        before = ""
        pages = 0
        while True:
            page = busy.get(f"/v1/trades?limit={limit}{before}")
            seen += page["trades"]
            pages += 1
            assert len(page["trades"]) <= limit
            if page["nextBefore"] is None:
                break
            assert len(page["trades"]) == limit
            assert page["nextBefore"] == page["trades"][-1]["seq"]
            before = f"&before={page['nextBefore']}"
        assert seen == whole["trades"]
        assert pages == -(-13 // limit), limit
    assert [t["symbol"] for t in busy.get("/v1/trades?coin=perp:eth")["trades"]] == ["ETH"]
    assert len(busy.get("/v1/trades?coin=BTC&limit=5")["trades"]) == 5
    assert busy.get("/v1/trades?coin=SOL") == {"trades": [], "nextBefore": None}
    assert busy.get("/v1/trades?before=0") == {"trades": [], "nextBefore": None}
    assert busy.get("/v1/trades?before=9007199254740991&limit=200") == whole
    assert busy.refused("GET", "/v1/trades?coin=NOPE")[0] == 404


def test_a_dead_man_switch_lives_by_heartbeats(caller: Caller) -> None:
    site = caller.target
    made = caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    assert {"guardians": [made]} == caller.get("/v1/guardians")
    judge("guardians", {"guardians": [made]})
    now = site.now()
    assert made == made | {
        "type": "dead_man_switch",
        "scope": "account",
        "status": "armed",
        "onMiss": "cancel_orders",
        "heartbeatSeconds": 60,
        "coin": None,
        "market": None,
        "nextDeadline": now + 60_000,
        "active": True,
        "blocksOpens": False,
        "fireCount": 0,
        "createdAt": now,
        "firedAt": None,
        "tradeId": None,
    }
    site.advance(59_999)
    beat = caller.post("/v1/heartbeat")
    judge("beat", beat)
    assert beat == {
        "guardians": [{"id": made["id"], "nextDeadline": now + 59_999 + 60_000}],
        "serverTime": now + 59_999,
    }
    assert caller.get("/v1/guardians")["guardians"][0]["lastHeartbeatAt"] == now + 59_999
    stop = caller.order(usdAmount=100, bracket={"stopLoss": {"pct": 2}})["orders"][0]
    entry = caller.order(usdAmount=900, type="limit", limitPx="90000")["trade"]["venueOid"]
    since = caller.get("/v1/account")["lastEventId"]
    site.advance(60_000)
    # at the deadline is too late
    assert caller.post("/v1/heartbeat")["guardians"] == []
    assert caller.get("/v1/guardians")["guardians"] == []
    events = caller.get(f"/v1/events?since={since}")["events"]
    judge("events", {"events": events, "lastEventId": "x"})
    assert kinds(events) == ["guardian/fired", "order/canceled"]
    fired, canceled = events[0]["data"], events[1]["data"]
    assert (fired["guardianId"], fired["reason"], fired["canceledOids"], fired["action"]) == (
        made["id"],
        "deadline",
        [entry],
        "cancel_orders",
    )
    assert (canceled["oid"], canceled["reason"]) == (entry, "guardian")
    assert events[0]["ts"] == now + 59_999 + 60_000
    assert [o["oid"] for o in caller.get("/v1/orders")["orders"]] == [stop["oid"]]
    assert caller.refused("DELETE", f"/v1/guardians/{made['id']}")[0] == 404


def test_one_that_flattens_is_latched_until_it_is_deleted(caller: Caller) -> None:
    made = caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60, "onMiss": "flatten"})
    caller.order(usdAmount=100, bracket={"stopLoss": {"pct": 2}})
    since = caller.order(market="ETH", usdAmount=100, side="short")["lastEventId"]
    caller.target.advance(60_000)
    account = caller.get("/v1/account")
    judge("account", account)
    assert account["positions"] == account["orders"] == []
    assert account["guardians"][0] == account["guardians"][0] | {
        "id": made["id"],
        "status": "latched",
        "blocksOpens": True,
        "fireCount": 1,
    }
    assert account["health"] == account["health"] | {
        "status": "restricted",
        "opensBlocked": True,
        "blockedBy": [made["id"]],
    }
    events = caller.get(f"/v1/events?since={since}")["events"]
    judge("events", {"events": events, "lastEventId": "x"})
    assert kinds(events)[0] == "guardian/fired"
    assert kinds(events).count("fill/exit") == 2
    trades = caller.get("/v1/trades?limit=2")["trades"]
    assert {(t["kind"], t["guardianId"], t["reason"]) for t in trades} == {
        ("guardian", made["id"], trades[0]["reason"])
    }
    assert set(events[0]["data"]["tradeIds"]) == {t["id"] for t in trades}
    status, error = caller.refused("POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50})
    assert (status, error["code"], error["orderSubmitted"]) == (422, "limit_exceeded", False)
    assert error["details"] == {"guardianId": made["id"], "guardianType": "dead_man_switch"}
    assert (
        caller.refused("POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50, "dryRun": True})[1][
            "code"
        ]
        == "limit_exceeded"
    )
    gone = caller.delete(f"/v1/guardians/{made['id']}")
    judge("disarmed", gone)
    assert gone == {"id": made["id"], "type": "dead_man_switch", "disarmed": True}
    assert caller.order(usdAmount=50)["orderSubmitted"] is True


def test_a_new_dead_man_switch_lifts_a_latched_one(caller: Caller) -> None:
    caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60, "onMiss": "block_opens"})
    caller.order(usdAmount=50)
    caller.target.advance(60_000)
    assert len(caller.get("/v1/account")["positions"]) == 1
    assert caller.get("/v1/account")["health"]["opensBlocked"] is True
    assert (
        caller.refused("POST", "/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50})[1]["code"]
        == "limit_exceeded"
    )
    assert caller.order(side="short", size="0.0002")["trade"]["intent"] == "close"
    new = caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 120})
    assert [g["id"] for g in caller.get("/v1/guardians")["guardians"]] == [new["id"]]
    assert caller.get("/v1/account")["health"]["opensBlocked"] is False
    assert caller.order(usdAmount=50)["orderSubmitted"] is True


def test_a_trailing_stop_needs_a_position_and_r_needs_a_stop(caller: Caller) -> None:
    trail = {"type": "trailing_stop", "market": "BTC", "trailPct": 2}
    assert caller.refused("POST", "/v1/guardians", trail)[:1] == (404,)
    caller.order(usdAmount=500)
    for body in ({"type": "trailing_stop", "market": "BTC", "trailR": 1}, trail | {"activateAtR": 1}):
        status, error = caller.refused("POST", "/v1/guardians", body)
        assert (status, error["code"]) == (400, "invalid_input")
    made = caller.post("/v1/guardians", trail)
    judge("guardians", {"guardians": [made]})
    assert made == made | {
        "scope": "position",
        "coin": "BTC",
        "market": "perp:BTC",
        "trailPct": 2,
        "trailR": None,
        "active": True,
        "heartbeatSeconds": None,
        "onMiss": None,
    }
    assert caller.get("/v1/account")["health"]["unprotected"] == []
    caller.post("/v1/positions/BTC/close")
    assert caller.get("/v1/guardians")["guardians"] == []
    last = caller.get("/v1/events?types=guardian&limit=200")["events"][-1]
    assert (last["subtype"], last["data"]["reason"]) == ("released", "position_closed")


def test_a_trailing_stop_ratchets_and_fires(caller: Caller) -> None:
    site = caller.target
    since = caller.order(usdAmount=1000, requireProtection=True, guardians=[{"type": "trailing_stop", "trailPct": 2}])[
        "lastEventId"
    ]
    for px in ("106000", "104500"):
        site.price("BTC", px)
    made = caller.get("/v1/guardians")["guardians"][0]
    assert (made["extremePx"], made["stopPx"]) == ("106000", "103880")
    assert made["tradeId"] == caller.get("/v1/trades")["trades"][0]["id"]
    site.price("BTC", "103880")
    account = caller.get("/v1/account")
    assert account["positions"] == account["guardians"] == []
    events = caller.get(f"/v1/events?since={since}")["events"]
    judge("events", {"events": events, "lastEventId": "x"})
    assert kinds(events) == ["guardian/fired", "fill/exit"]
    assert events[0]["data"]["reason"] == "trail"
    trade = caller.get("/v1/trades")["trades"][0]
    assert (trade["kind"], trade["guardianId"], trade["reduceOnly"], trade["source"]) == (
        "guardian",
        made["id"],
        True,
        None,
    )
    assert D(trade["realizedPnlUsd"]) > 0


def test_a_hundred_guardians_and_no_more(caller: Caller) -> None:
    body = {"type": "dead_man_switch", "heartbeatSeconds": 86_400}
    made = [caller.post("/v1/guardians", body) for _ in range(100)]
    assert [g["id"] for g in caller.get("/v1/guardians")["guardians"]] == [g["id"] for g in made]
    assert caller.refused("POST", "/v1/guardians", body)[:1] == (422,)
    assert caller.refused("POST", "/v1/guardians", body)[1]["code"] == "limit_exceeded"
    caller.delete(f"/v1/guardians/{made[0]['id']}")
    assert caller.post("/v1/guardians", body)["status"] == "armed"


def test_guardians_that_resting_orders_will_arm_are_among_the_hundred(caller: Caller) -> None:
    rides = {"guardians": [{"type": "max_hold", "seconds": 3_600}] * 60, "type": "limit", "usdAmount": 50}
    caller.order(limitPx="90000", **rides)
    entry = {"market": "BTC", "side": "long", "limitPx": "89000", **rides}
    assert caller.refused("POST", "/v1/orders", entry)[1]["code"] == "limit_exceeded"
    caller.delete("/v1/orders", {"coin": "BTC"})
    caller.order(limitPx="89000", **rides)


def test_a_schedule_on_an_order_for_a_market_that_is_not_there_leaves_the_service_up(caller: Caller) -> None:
    rides = {
        "type": "schedule",
        "cron": "* * * * *",
        "orderTemplate": {"market": "WXYZ", "side": "long", "usdAmount": 20},
    }
    order = {"market": "BTC", "side": "long", "usdAmount": 100, "guardians": [rides]}
    for dry in (False, True):
        status, error = caller.refused("POST", "/v1/orders", order | {"dryRun": dry})
        assert (status, error["code"], error["orderSubmitted"]) == (404, "not_found", False)
        assert error["message"] == "guardians.0.orderTemplate.market: no market WXYZ"
    caller.target.advance(120_000)
    assert caller.order(usdAmount=100)["trade"]["fillStatus"] == "filled"


def test_a_trailing_stop_that_waits_for_its_activation_is_no_stop(caller: Caller) -> None:
    wait = {"type": "trailing_stop", "trailR": 1, "activateAtR": 1}
    made = caller.order(usdAmount=500, bracket={"stopLoss": {"pct": 2}}, guardians=[wait])
    assert made["protected"] is True
    assert [one["active"] for one in made["guardians"]] == [False]
    assert caller.delete(f"/v1/orders/{made['orders'][0]['oid']}")["unprotected"] is True
    assert caller.get("/v1/account")["health"]["unprotected"] == ["BTC"]
    more = {"market": "BTC", "side": "long", "usdAmount": 50, "requireProtection": True, "guardians": [wait]}
    assert caller.refused("POST", "/v1/orders", more)[1]["fix"]["action"] == "arm_stop"
    assert caller.order(usdAmount=50)["protected"] is False
    caller.target.price("BTC", "103000")
    assert caller.get("/v1/account")["health"]["unprotected"] == []
    assert caller.order(usdAmount=50, requireProtection=True)["protected"] is True


@pytest.mark.parametrize("one", ["grd_1", "x", "grd_", "%00", "grd_" + "9" * 300, "²"])
def test_a_guardian_that_is_not_there_is_404(caller: Caller, one: str) -> None:
    status, error = caller.refused("DELETE", f"/v1/guardians/{one}")
    assert (status, error["code"]) == (404, "not_found")


def test_a_heartbeat_without_a_switch_beats_nothing_and_makes_no_event(site: Target, caller: Caller) -> None:
    assert caller.post("/v1/heartbeat") == {"guardians": [], "serverTime": site.now()}
    assert caller.get("/v1/account")["lastEventId"] == caller.opened["lastEventId"]

"""Triggers, groupings, reduce-only and modify: each row of the reference as a scenario, under both answers of each open
question.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.local_exchange.exchanges import ANN, BTC, START_MS, Venue, limit, trigger

MARGIN_MS = 5_000


def opened(venue: Venue, size: str = "0.02", user: str = ANN) -> None:
    assert "filled" in venue.place(user, limit(BTC, "B", size, "101000", "Ioc"))[0]


def bracket(venue: Venue, parent: dict[str, Any], size: str = "0.02") -> list[Any]:
    stop, target = trigger(BTC, "A", size, "95000", "sl"), trigger(BTC, "A", size, "105000", "tp")
    return venue.place(ANN, parent, stop, target, grouping="normalTpsl")


def statuses(venue: Venue, first: int, count: int = 3) -> list[str]:
    return [venue.status(ANN, first + number) for number in range(count)]


# ── Children of a parent ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_parent_that_fills_at_once_has_its_children_live() -> None:
    venue = Venue()
    answer = bracket(venue, limit(BTC, "B", "0.02", "101000", "Ioc"))
    assert answer[1:] == ["waitingForTrigger", "waitingForTrigger"]
    oid = answer[0]["filled"]["oid"]
    assert statuses(venue, oid) == ["filled", "open", "open"]
    rows = venue.info("frontendOpenOrders", user=ANN)
    assert [(row["orderType"], row["triggerCondition"], row["tif"]) for row in rows] == [
        ("Take Profit Market", "Price above 105000", None),
        ("Stop Market", "Price below 95000", None),
    ]
    assert all(row["isTrigger"] and row["reduceOnly"] and not row["isPositionTpsl"] for row in rows)


@pytest.mark.parametrize(("rows", "count"), [("twice", 3), ("once", 1)])
def test_children_of_a_resting_parent_wait_and_are_shown(rows: str, count: int) -> None:
    venue = Venue(switches={"children_rows": rows})
    answer = bracket(venue, limit(BTC, "B", "0.02", "99000"))
    assert answer[1:] == ["waitingForFill", "waitingForFill"]
    oid = answer[0]["resting"]["oid"]
    shown = venue.info("frontendOpenOrders", user=ANN)
    parent = next(row for row in shown if row["oid"] == oid)
    assert len(shown) == count
    assert [child["oid"] for child in parent["children"]] == [oid + 1, oid + 2], "oids follow the parent's"
    venue.price("BTC", "94000")
    assert venue.size(ANN, "BTC") == "0.0", "filled by the sweep, then stopped in the same update"
    assert statuses(venue, oid) == ["filled", "filled", "siblingFilledCanceled"]


def test_a_partial_fill_leaves_the_children_waiting_and_a_cancel_of_the_parent_cancels_them() -> None:
    venue = Venue()
    oid = bracket(venue, limit(BTC, "B", "0.02", "99000"))[0]["resting"]["oid"]
    venue.price("BTC", "98900", volume="0.01")
    assert venue.size(ANN, "BTC") == "0.01"
    venue.price("BTC", "94000", volume="0")
    assert venue.size(ANN, "BTC") == "0.01", "the filled part has no protection"
    assert venue.cancel(ANN, BTC, oid) == "success"
    assert statuses(venue, oid) == ["canceled", "canceled", "canceled"]
    assert venue.size(ANN, "BTC") == "0.01"


def test_children_live_when_the_rest_of_the_parent_fills_later() -> None:
    venue = Venue()
    oid = bracket(venue, limit(BTC, "B", "0.02", "99000"))[0]["resting"]["oid"]
    venue.price("BTC", "98900", volume="0.01")
    venue.price("BTC", "98900")
    assert statuses(venue, oid) == ["filled", "open", "open"]


def test_a_parent_that_loses_its_margin_after_a_partial_fill_leaves_children_of_full_size() -> None:
    venue = Venue(usd="150")
    oid = bracket(venue, limit(BTC, "B", "0.02", "99000"))[0]["resting"]["oid"]
    venue.price("BTC", "98900", volume="0.015")
    # the rest needs more margin than there is
    venue.exchange.users[ANN].leverage["BTC"] = (True, 1)
    venue.price("BTC", "98800")
    assert statuses(venue, oid) == ["marginCanceled", "open", "open"]
    assert {row["sz"] for row in venue.info("openOrders", user=ANN)} == {"0.02"}


def test_faults_of_a_bracket_refuse_the_whole_batch() -> None:
    venue = Venue()
    good = trigger(BTC, "A", "0.02", "95000", "sl")
    for orders, text in (
        ([limit(BTC, "B", "0.02", "99000"), good | {"r": False}], "TP/SL orders must be reduce-only."),
        ([good, good], "Main order cannot be trigger order."),
    ):
        assert venue.place(ANN, *orders, grouping="normalTpsl") == [{"error": text}]
    refused = venue.place(ANN, limit(BTC, "B", "0.02", "98765.4"), good, grouping="normalTpsl")
    assert refused == [{"error": "Price must be divisible by tick size. asset=0"}] * 2
    assert venue.info("openOrders", user=ANN) == []


# ── Stops of a position ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_of_the_whole_position_follows_its_size_and_ends_with_it() -> None:
    venue = Venue()
    opened(venue)
    stop, target = trigger(BTC, "A", "0", "95000", "sl"), trigger(BTC, "A", "0", "105000", "tp")
    assert venue.place(ANN, stop, target, grouping="positionTpsl") == ["waitingForTrigger"] * 2
    rows = venue.info("frontendOpenOrders", user=ANN)
    assert {(row["sz"], row["origSz"], row["isPositionTpsl"]) for row in rows} == {("0.0", "0.0", True)}
    opened(venue, "0.01")
    venue.price("BTC", "94900")
    assert venue.size(ANN, "BTC") == "0.0", "all 0.03 of it"
    assert sorted(row["status"] for row in venue.info("historicalOrders", user=ANN)[:2]) == [
        "filled",
        "siblingFilledCanceled",
    ]
    opened(venue)
    venue.place(ANN, trigger(BTC, "A", "0", "90000", "sl"), grouping="positionTpsl")
    venue.place(ANN, limit(BTC, "A", "0.02", "90000", "Ioc", reduce=True))
    assert venue.info("historicalOrders", user=ANN)[0]["status"] == "reduceOnlyCanceled"


# ── Triggers ────────────────────────────────────────────────────────────────────────────────────────────────────────

KINDS = (
    ("B", "sl", "105000", True, "105001"),
    ("A", "sl", "95000", False, "94999"),
    ("B", "tp", "95000", False, "94999"),
    ("A", "tp", "105000", True, "105001"),
)


@pytest.mark.parametrize(("side", "kind", "at", "rises", "beyond"), KINDS)
@pytest.mark.parametrize("oids", ["same", "new"])
def test_each_kind_of_trigger_fires_at_its_mark_price(
    side: str, kind: str, at: str, rises: bool, beyond: str, oids: str
) -> None:
    venue = Venue(switches={"trigger_oid": oids})
    oid = venue.rest(ANN, trigger(BTC, side, "0.01", at, kind, reduce=False))[0]
    row = venue.info("frontendOpenOrders", user=ANN)[0]
    assert row["triggerCondition"] == f"Price {'above' if rises else 'below'} {at}"
    venue.price("BTC", "100000", mark=str(int(at) + (-1 if rises else 1)))
    assert venue.status(ANN, oid) == "open"
    venue.price("BTC", at, mark=beyond)
    assert venue.size(ANN, "BTC") == ("0.01" if side == "B" else "-0.01")
    told = [(row["status"], row["order"]["oid"]) for row in venue.info("historicalOrders", user=ANN)]
    if oids == "same":
        assert told == [("filled", oid), ("triggered", oid), ("open", oid)]
    else:
        new = told[0][1]
        assert told == [("filled", new), ("open", new), ("triggered", oid), ("open", oid)] and new != oid
    assert venue.info("userFills", user=ANN)[0]["hash"] == "0x" + "0" * 64, "no action of the user caused it"


@pytest.mark.parametrize(("side", "kind", "at", "rises", "beyond"), KINDS)
@pytest.mark.parametrize("answer", ["refused", "fires"])
def test_a_trigger_whose_price_has_passed(side: str, kind: str, at: str, rises: bool, beyond: str, answer: str) -> None:
    venue = Venue(switches={"trigger_passed": answer})
    passed = "99000" if rises else "101000"
    status = venue.place(ANN, trigger(BTC, side, "0.01", passed, kind, reduce=False))[0]
    if answer == "refused":
        assert status == {"error": "Invalid TP/SL price. asset=0"}
        assert venue.info("historicalOrders", user=ANN)[0]["status"] == "badTriggerPxRejected"
    else:
        assert "resting" in status and venue.size(ANN, "BTC") != "0.0"


def test_the_price_of_a_market_trigger_must_lie_on_the_worse_side() -> None:
    venue = Venue()
    opened(venue)
    assert venue.place(ANN, trigger(BTC, "A", "0.02", "95000", "sl", px="95001")) == [
        {"error": "Invalid TP/SL price. asset=0"}
    ]


def test_a_limit_trigger_rests_when_the_price_has_jumped_over_it() -> None:
    venue = Venue()
    opened(venue)
    oid = venue.rest(ANN, trigger(BTC, "A", "0.02", "95000", "sl", px="94900", market=False))[0]
    venue.price("BTC", "94000")
    assert venue.size(ANN, "BTC") == "0.02"
    assert venue.info("openOrders", user=ANN)[0]["limitPx"] == "94900.0"
    venue.price("BTC", "95000")
    assert venue.status(ANN, oid) == "filled"
    assert venue.info("userFills", user=ANN)[0]["px"] == "94900.0"


@pytest.mark.parametrize(("answer", "left"), [("wait", "0.02"), ("fire", "0.0")])
def test_triggers_during_the_post_only_minutes(answer: str, left: str) -> None:
    venue = Venue(switches={"upgrade_triggers": answer})
    opened(venue)
    venue.rest(ANN, trigger(BTC, "A", "0.02", "95000", "sl"))
    venue.control("post_only", ms=60_000)
    venue.price("BTC", "94900")
    assert venue.size(ANN, "BTC") == left
    venue.control("advance", ms=60_000)
    venue.price("BTC", "94900")
    assert venue.size(ANN, "BTC") == "0.0"


# ── Reduce-only ─────────────────────────────────────────────────────────────────────────────────────────────────────

TOO_LARGE = {"error": "Reduce only order would increase position. asset=0"}


@pytest.mark.parametrize("tif", ["Ioc", "Gtc"])
def test_a_reduce_only_order_larger_than_the_position(tif: str) -> None:
    for answer in ("refuse", "cap"):
        venue = Venue(switches={"reduce_larger": answer})
        opened(venue)
        px = "99000" if tif == "Ioc" else "101000"
        status = venue.place(ANN, limit(BTC, "A", "0.05", px, tif, reduce=True))[0]
        if answer == "refuse":
            assert status == TOO_LARGE
        elif tif == "Ioc":
            assert status["filled"]["totalSz"] == "0.02"
        else:
            assert venue.info("openOrders", user=ANN)[0]["origSz"] == "0.02"


def test_a_resting_reduce_only_order_ends_with_its_position() -> None:
    venue = Venue()
    opened(venue)
    oid = venue.rest(ANN, limit(BTC, "A", "0.02", "101000", reduce=True))[0]
    venue.place(ANN, limit(BTC, "A", "0.02", "99000", "Ioc"))
    assert venue.status(ANN, oid) == "reduceOnlyCanceled"


@pytest.mark.parametrize(("answer", "is_closed"), [("exempt_whole", True), ("applies", False)])
def test_a_close_below_ten_dollars(answer: str, is_closed: bool) -> None:
    venue = Venue(switches={"close_minimum": answer})
    opened(venue, "0.0002")
    minimum = {"error": "Order must have minimum value of $10. asset=0"}
    assert venue.place(ANN, limit(BTC, "A", "0.00005", "99000", "Ioc", reduce=True)) == [minimum], "a part"
    venue.price("BTC", "49990")
    status = venue.place(ANN, limit(BTC, "A", "0.0002", "49000", "Ioc", reduce=True))[0]
    assert ("filled" in status) is is_closed


# ── Modify and scheduled cancels ────────────────────────────────────────────────────────────────────────────────────


def modify(venue: Venue, oid: int, order: dict[str, Any], *, always: bool = False) -> Any:
    action = {"type": "batchModify", "modifies": [{"oid": oid, "order": order}]}
    answer = venue.act(ANN, {**action, "a": True} if always else action)
    return answer["response"]["data"]["statuses"][0]


def test_modify_is_a_cancel_and_a_new_order_and_its_single_form_answers_without_an_oid() -> None:
    venue = Venue()
    oid = venue.rest(ANN, limit(BTC, "B", "0.01", "99000"))[0]
    new = modify(venue, oid, limit(BTC, "B", "0.01", "98000"))["resting"]["oid"]
    assert (venue.status(ANN, oid), venue.status(ANN, new)) == ("canceled", "open")
    action = {"type": "modify", "oid": new, "order": limit(BTC, "B", "0.01", "97000")}
    assert venue.act(ANN, action) == {"status": "ok", "response": {"type": "default"}}
    assert venue.info("openOrders", user=ANN)[0]["limitPx"] == "97000.0"
    assert venue.info("frontendOpenOrders", user=ANN)[0]["tif"] == "Alo", "a Gtc order is turned into Alo"


def test_without_always_place_only_a_passive_order_replaces_an_open_one() -> None:
    venue = Venue()
    opened(venue)
    oid = venue.rest(ANN, limit(BTC, "B", "0.01", "99000"))[0]
    for order in (
        limit(BTC, "B", "0.01", "101000"),
        limit(BTC, "B", "0.01", "99000", "Ioc"),
        trigger(BTC, "A", "0.02", "95000", "sl"),
    ):
        assert "error" in modify(venue, oid, order)
    venue.cancel(ANN, BTC, oid)
    assert modify(venue, oid, limit(BTC, "B", "0.01", "98000")) == {"error": "Cannot modify canceled or filled order"}


def test_with_always_place_a_stop_moves_and_can_exist_twice() -> None:
    venue = Venue()
    opened(venue)
    stop = venue.rest(ANN, trigger(BTC, "A", "0.02", "95000", "sl"))[0]
    moved = modify(venue, stop, trigger(BTC, "A", "0.02", "96000", "sl"), always=True)["resting"]["oid"]
    assert [row["oid"] for row in venue.info("openOrders", user=ANN)] == [moved]
    again = modify(venue, stop, trigger(BTC, "A", "0.02", "97000", "sl"), always=True)["resting"]["oid"]
    assert {row["oid"] for row in venue.info("openOrders", user=ANN)} == {moved, again}


def test_a_fast_cancel_is_refused_for_a_trigger_order() -> None:
    venue = Venue()
    opened(venue)
    stop = venue.rest(ANN, trigger(BTC, "A", "0.02", "95000", "sl"))[0]
    resting = venue.rest(ANN, limit(BTC, "B", "0.01", "99000"))[0]
    action = {"type": "cancel", "cancels": [{"a": BTC, "o": stop}, {"a": BTC, "o": resting}], "f": True}
    refused, done = venue.act(ANN, action)["response"]["data"]["statuses"]
    assert "error" in refused and done == "success"


def test_a_scheduled_cancel_needs_volume_and_takes_stops_too() -> None:
    venue = Venue(usd="1000000", network="mainnet")
    at_ms = START_MS + MARGIN_MS
    refused = venue.act(ANN, {"type": "scheduleCancel", "time": at_ms})["response"]
    assert refused == ("Cannot set scheduled cancel time until enough volume traded. Required: $1000000. Traded: $0.0")
    venue.exchange.users[ANN].volume = 1_000_000 * 10**8
    opened(venue)
    oids = venue.rest(ANN, limit(BTC, "B", "0.01", "99000"), trigger(BTC, "A", "0.02", "95000", "sl"))
    assert venue.act(ANN, {"type": "scheduleCancel", "time": at_ms - 1})["status"] == "err", "at least 5 s ahead"
    assert venue.act(ANN, {"type": "scheduleCancel", "time": at_ms})["status"] == "ok"
    assert venue.act(ANN, {"type": "scheduleCancel"})["status"] == "ok"
    venue.control("advance", ms=MARGIN_MS)
    assert [venue.status(ANN, oid) for oid in oids] == ["open", "open"], "it was unset"
    for _ in range(10):
        later = venue.exchange.now_ms + MARGIN_MS
        assert venue.act(ANN, {"type": "scheduleCancel", "time": later})["status"] == "ok"
        venue.control("advance", ms=MARGIN_MS)
    assert [venue.status(ANN, oid) for oid in oids] == ["scheduledCancel", "scheduledCancel"]
    late = {"type": "scheduleCancel", "time": venue.exchange.now_ms + MARGIN_MS}
    assert venue.act(ANN, late)["response"] == "Too many scheduled cancels today."

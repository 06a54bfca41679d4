"""Orders, events and guardians as rows: their words, their order, their links."""

from __future__ import annotations

from typing import Any

import pytest

from bot.dashboard.pages import events, guardians
from bot.wire.vocabulary import EVENT_SUBTYPES
from tests.dashboard.builders import NOW_MS, order, snapshot, status


def event(kind: str, subtype: str, /, **data: Any) -> dict[str, Any]:
    return {"id": "evt_1", "type": kind, "subtype": subtype, "ts": NOW_MS, "coin": "BTC", "data": data}


FILL = {"side": "long", "size": "0.5", "px": "104310", "feeUsd": "0.09", "tradeId": "trd_1", "kind": "market"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (event("fill", "entry", **FILL), "bought 0.5 at 104,310.00, fee −0.09 USD"),
        (event("fill", "exit", **FILL, realizedPnlUsd="-3"), "sold 0.5 at 104,310.00, fee −0.09 USD, profit −3.00 USD"),
        (event("order", "armed", kind="stop_loss", size="0", triggerPx="98"), "stop at 98.00 for the whole position"),
        (
            event("order", "canceled", kind="limit", size="2", limitPx="98", reason="sibling_filled"),
            "entry order at 98.00 for 2, sibling filled",
        ),
        (
            event("guardian", "fired", guardianType="trailing_stop", action="close", reason="trail", markPx="101"),
            "trailing stop, close, trail, mark 101.00",
        ),
        (event("funding", "payment", rate="0.0000125", amountUsd="-0.02"), "−0.02 USD at a rate of 0.0000125"),
        (event("account", "reset"), "reset"),
    ],
)
def test_an_event_is_told_in_words(given: dict[str, Any], text: str) -> None:
    assert events.in_words(given) == text


def test_events_come_newest_first_and_lead_to_the_chain_of_their_order() -> None:
    found = events.rows([event("fill", "entry", **FILL), event("account", "created")])
    assert [(one.type, one.id) for one in found] == [("account", "evt_1"), ("fill", "trd_1")]


def test_each_type_of_event_has_a_shape_of_its_own() -> None:
    assert set(events.MARKS) == set(EVENT_SUBTYPES)
    assert len(set(events.MARKS.values())) == len(EVENT_SUBTYPES)


def test_entries_come_before_stops_and_targets() -> None:
    given = [
        order(),
        order(oid="8", kind="stop_loss", size="0"),
        order(oid="9", kind="limit", action="open", limit_px="95", trigger_px=None),
    ]
    found = events.orders(snapshot(orders=given))
    assert [(one.oid, one.kind, one.size, one.px) for one in found] == [
        ("9", "entry order", "0.5", "95.00"),
        ("8", "stop", "whole position", "106.00"),
        ("7", "target", "0.5", "106.00"),
    ]


def test_a_guardian_of_the_config_that_is_not_armed_comes_first() -> None:
    answer = {
        "config": [
            {"name": "dead_man", "type": "dead_man_switch", "id": "grd_1", "stands": True},
            {"name": "loss", "type": "account_drawdown", "id": None, "stands": False},
        ],
        "guardians": [
            {
                "id": "grd_1",
                "type": "dead_man_switch",
                "market": None,
                "latched": False,
                "blocks_opens": False,
                "active": True,
            },
            {
                "id": "grd_2",
                "type": "trailing_stop",
                "market": "ETH",
                "latched": False,
                "blocks_opens": False,
                "active": False,
            },
            {
                "id": "grd_3",
                "type": "kill_switch",
                "market": None,
                "latched": True,
                "blocks_opens": True,
                "active": True,
            },
        ],
    }
    assert [(one.name, one.type, one.market, one.state) for one in guardians.rows(answer)] == [
        ("loss", "account drawdown", "account", "NOT ARMED"),
        ("dead_man", "dead man switch", "account", "armed"),
        ("", "trailing stop", "ETH", "armed, not active yet"),
        ("", "kill switch", "account", "blocks entries"),
    ]
    assert guardians.rows(None) == []


def test_orders_that_wait_for_a_person_are_listed() -> None:
    waits = {"id": "I1", "strategy": "trend", "action": "open", "market": "BTC", "message": "look first"}
    (one,) = guardians.waiting(status(intents={"waiting": [waits]}))
    assert (one.id, one.text, one.message) == ("I1", "open BTC of trend", "look first")
    assert guardians.waiting(None) == []

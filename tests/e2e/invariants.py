"""What must hold of an account and a journal whatever was killed: none lost, none doubled, no moment without a stop,
books exact.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from itertools import groupby
from typing import Any

from tests.e2e.processes import Daemon, Sandbox

START_USD = Decimal(10_000)


def check(sandbox: Sandbox, daemon: Daemon) -> None:
    """All of them."""
    events, trades, account = as_of_one_instant(sandbox)
    assert [event["id"] for event in events] == [f"evt_{n:012d}" for n in range(1, len(events) + 1)]
    none_lost_none_doubled(daemon, trades)
    never_naked(events)
    books_are_exact(account, events)


def as_of_one_instant(sandbox: Sandbox) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Its clock runs on: a payment or a stop may come between two questions."""
    for _ in range(20):
        events, trades, account = sandbox.events(), sandbox.trades(), sandbox.get("/v1/account")
        if account["lastEventId"] == events[-1]["id"]:
            return events, trades, account
    raise AssertionError("events keep coming")


def none_lost_none_doubled(daemon: Daemon, trades: list[dict[str, Any]]) -> None:
    """Each accepted intent is exactly one trade; each trade that the service did not make by itself is such an
    intent.
    """
    intents = daemon.intents()
    keys = Counter(trade["idempotencyKey"] for trade in trades if trade["source"] is not None)
    assert None not in keys, "a trade without a key"
    assert [key for key, count in keys.items() if count > 1] == []
    accepted = {
        key for key, (action, state, _) in intents.items() if state == "accepted" and action in ("open", "close")
    }
    assert set(keys) == accepted
    unsettled = daemon.unsettled()
    assert unsettled == [], unsettled
    assert accepted, "nothing was traded: the test shows nothing"


def never_naked(events: list[dict[str, Any]]) -> None:
    """After each instant, every open position has a stop that is armed at the service."""
    size: dict[str, Decimal] = {}
    stops: dict[str, set[str]] = {}
    entries = 0
    for at_ms, together in groupby(events, key=lambda event: event["ts"]):
        for event in together:
            coin, data = event.get("coin"), event["data"]
            if event["type"] == "fill":
                size[coin] = Decimal(data["positionSize"])
                entries += event["subtype"] == "entry"
            elif event["type"] == "order" and data["kind"] == "stop_loss":
                armed = stops.setdefault(coin, set())
                (armed.add if event["subtype"] in ("armed", "changed") else armed.discard)(data["oid"])
            elif event["type"] == "trigger":
                stops.setdefault(coin, set()).discard(data["oid"])
        naked = [coin for coin, held in size.items() if held and not stops.get(coin)]
        assert naked == [], f"no stop at {at_ms}"
    assert entries, "nothing was opened: the test shows nothing"


def books_are_exact(account: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """The balance is what was begun with, plus realised, less fees, plus funding: after every event, to the last
    digit.
    """
    balance = START_USD
    for event in events:
        data = event["data"]
        if event["type"] == "fill":
            balance += Decimal(data["realizedPnlUsd"] or 0) - Decimal(data["feeUsd"])
        elif event["type"] == "funding":
            balance += Decimal(data["amountUsd"])
        else:
            assert event["type"] != "liquidation", "these small positions are never liquidated"
            continue
        assert Decimal(data["balanceUsd"]) == balance, event
    assert Decimal(account["balanceUsd"]) == balance
    assert Decimal(account["accountValueUsd"]) == balance + Decimal(account["unrealizedPnlUsd"])

"""What must be so of an account and a journal, whatever happened on the way. Reads the service's own events and trades, and the journal's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

Event = Mapping[str, Any]
FINAL = ("accepted", "rejected", "expired", "void")


def intents_and_trades(
    rows: Sequence[Mapping[str, Any]],
    trades: Sequence[Mapping[str, Any]],
    *,
    settled: bool = True,
    buried: Set[str] = frozenset(),
) -> None:
    """Each accepted intent is exactly one trade with its key; a trade of ours without an intent there is none; none is doubled.

    `buried`: intents of a journal that was lost with all that was in it.
    """
    ours = [trade for trade in trades if trade["source"] == "agent"]
    counts = Counter(trade["idempotencyKey"] for trade in ours)
    assert None not in counts, "a trade of ours without a key"
    assert [key for key, n in counts.items() if n > 1] == [], "an order was placed twice"
    by_id = {row["id"]: row for row in rows}
    assert set(counts) <= set(by_id) | buried, "an order left that was not written"
    trade_of = {trade["idempotencyKey"]: trade["id"] for trade in ours}
    for key, row in by_id.items():
        if settled:
            assert row["state"] in FINAL, f"{key} never ended: {dict(row)}"
        if row["action"] == "cancel":
            continue
        if row["state"] == "accepted":
            assert counts[key] == 1, f"{key} is accepted, and there is no trade: {dict(row)}"
            assert row["trade_id"] == trade_of[key], f"{key} has another's trade"
        elif row["state"] in ("rejected", "expired"):
            assert counts[key] == 0, f"{key} is {row['state']}, and there is a trade: {dict(row)}"


def never_naked(
    events: Sequence[Event],
    our_keys: set[str],
    *,
    excused: Mapping[str, Sequence[tuple[int, int]]] | None = None,
    sleepers: Set[str] = frozenset(),
) -> None:
    """At the end of each instant, every position that our orders opened has a stop or a trailing guardian. `excused`: market -> spans.

    `sleepers`: guardians that are no stop before they are activated.
    """
    size: dict[str, Decimal] = {}
    is_ours: dict[str, bool] = {}
    stands: dict[str, set[str]] = {}
    for instant in instants(events):
        for event in instant:
            coin, data = event.get("coin"), event["data"]
            if event["type"] == "fill":
                before = size.get(coin, Decimal(0))
                size[coin] = Decimal(data["positionSize"])
                if not size[coin]:
                    is_ours[coin] = False
                    stands[coin] = set()
                elif event["subtype"] == "entry":
                    is_ours[coin] = (bool(before) and is_ours.get(coin, False)) or event.get(
                        "idempotencyKey"
                    ) in our_keys
            elif event["type"] == "order" and data["kind"] == "stop_loss":
                here = stands.setdefault(coin, set())
                (here.add if event["subtype"] in ("armed", "changed") else here.discard)(data["oid"])
            elif event["type"] == "trigger":
                stands.setdefault(coin, set()).discard(data["oid"])
            elif event["type"] == "guardian" and data["guardianType"] == "trailing_stop":
                here = stands.setdefault(coin, set())
                name = data["guardianId"]
                is_stop = event["subtype"] == "activated" or (event["subtype"] == "armed" and name not in sleepers)
                (here.add if is_stop else here.discard)(name)
        for coin, held in size.items():
            spans = (excused or {}).get(coin, ())
            if (
                held
                and is_ours.get(coin)
                and not stands.get(coin)
                and not any(a <= instant[0]["ts"] <= b for a, b in spans)
            ):
                raise AssertionError(f"{coin} has no stop after {instant[0]}")


def instants(events: Sequence[Event]) -> list[list[Event]]:
    """The events of one cause together: a request with all that it brought, or what one moment of the clock did."""
    found: list[list[Event]] = []
    request: object = None
    for event in events:
        its = event.get("requestId")
        if not found or found[-1][0]["ts"] != event["ts"] or (its is not None and its != request):
            found.append([])
            request = its
        found[-1].append(event)
    return found


def guarded_entries(events: Sequence[Event], our_keys: set[str], *, but: set[str]) -> None:
    """Whenever a market entry of ours fills, a dead-man stands. `but`: requests that arrived late."""
    standing: set[str] = set()
    for event in events:
        data = event["data"]
        if event["type"] == "guardian" and data["guardianType"] == "dead_man_switch":
            (standing.add if event["subtype"] == "armed" else standing.discard)(data["guardianId"])
        elif event["type"] == "fill" and event["subtype"] == "entry" and data["kind"] == "market":
            is_ours = event.get("idempotencyKey") in our_keys and event.get("requestId") not in but
            assert standing or not is_ours, f"opened without a dead-man: {event}"


def books_are_exact(events: Sequence[Event], account: Mapping[str, Any]) -> None:
    """The balance is what was begun with, plus realised, less fees, plus funding: after every event, to the last digit."""
    first = events[0]
    assert first["type"] == "account", first
    balance = Decimal(first["data"]["balanceUsd"])
    for event in events[1:]:
        data = event["data"]
        if event["type"] == "fill":
            balance += Decimal(data["realizedPnlUsd"] or 0) - Decimal(data["feeUsd"])
        elif event["type"] == "funding":
            balance += Decimal(data["amountUsd"])
        else:
            assert event["type"] != "liquidation"
            continue
        assert Decimal(data["balanceUsd"]) == balance, event
    assert Decimal(account["balanceUsd"]) == balance
    assert Decimal(account["accountValueUsd"]) == balance + Decimal(account["unrealizedPnlUsd"])


def mirror_is_right(mirror: Any, account: Mapping[str, Any]) -> None:
    """What the loop believes is what the service has."""
    theirs = {one["coin"]: (one["side"], Decimal(one["size"])) for one in account["positions"]}
    assert {one.market: (one.side, one.size) for one in mirror.positions.values()} == theirs
    assert set(mirror.orders) == {one["oid"] for one in account["orders"]}
    assert set(mirror.guardians) == {one["id"] for one in account["guardians"]}
    assert mirror.balance_usd == Decimal(account["balanceUsd"])

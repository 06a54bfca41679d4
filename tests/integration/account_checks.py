"""What must be so of an account and a journal, whatever happened on the way: the checks of a drill, each as an
assertion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

from bot.drill.judgment import Event, bare_markets, belief_findings, order_findings, unguarded_entries


def intents_and_trades(
    rows: Sequence[Mapping[str, Any]], trades: Sequence[Event], *, settled: bool = True, buried: Set[str] = frozenset()
) -> None:
    """Each accepted intent is exactly one trade, and no trade of ours is without its intent."""
    assert (found := order_findings(rows, trades, settled=settled, buried=buried)) == [], found


def never_naked(
    events: Sequence[Event],
    our_keys: set[str],
    *,
    excused: Mapping[str, Sequence[tuple[int, int]]] | None = None,
    sleepers: Set[str] = frozenset(),
) -> None:
    """At the end of each instant, every position that our orders opened has a stop or a trailing guardian.

    `excused`: market -> spans.
    """
    for at_ms, bare in bare_markets(events, our_keys, sleepers=sleepers):
        for coin in bare:
            is_excused = any(a <= at_ms <= b for a, b in (excused or {}).get(coin, ()))
            assert is_excused, f"{coin} has no stop after {at_ms}"


def guarded_entries(events: Sequence[Event], our_keys: set[str], *, but: set[str]) -> None:
    """Whenever a market entry of ours fills, a dead-man stands. `but`: requests that arrived late."""
    assert (fills := unguarded_entries(events, our_keys, late=but)) == [], f"opened without a dead-man: {fills}"


def books_are_exact(events: Sequence[Event], account: Mapping[str, Any]) -> None:
    """The balance is what was begun with, plus realised, less fees, plus funding: after every event, to the last
    digit.
    """
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


def account_state_is_right(account_state: Any, account: Mapping[str, Any]) -> None:
    """What the loop believes is what the service has."""
    assert (found := belief_findings(account_state, account)) == [], found

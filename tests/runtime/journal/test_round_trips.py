"""Round trips from events: averages, reversals, liquidation, settlement, trades from before the journal, and exact
sums.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from bot.runtime.journal.round_trips import EXACT, Trip, trips


def fill(
    subtype: str, size: str, px: str, after: str, *, at: int = 0, fee: str = "0.1", pnl: str | None = None, **more: Any
) -> dict[str, Any]:
    data = {
        "tradeId": f"trd_{at}",
        "kind": "market",
        "side": "long",
        "size": size,
        "px": px,
        "feeUsd": fee,
        "positionSize": after,
        "realizedPnlUsd": pnl,
    }
    named = {name: more.pop(name) for name in ("idempotencyKey",) if name in more}
    return {
        "id": f"evt_{at}",
        "type": "fill",
        "subtype": subtype,
        "ts": at,
        "coin": "BTC",
        "data": data | more,
        **named,
    }


def event(kind: str, subtype: str, at: int, **data: Any) -> dict[str, Any]:
    return {
        "id": f"evt_{at}",
        "type": kind,
        "subtype": subtype,
        "ts": at,
        "coin": None if kind == "account" else "BTC",
        "data": data,
    }


def rows(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [one.row(lambda keys: [f"owner-of-{key}" for key in dict.fromkeys(keys)]) for one in trips(events)]


def test_a_trade_of_several_fills_has_average_prices_and_summed_costs() -> None:
    (trip,) = rows(
        fill("entry", "1", "100", "1", at=1, idempotencyKey="K"),
        fill("entry", "2", "103", "3", at=2, idempotencyKey="K"),
        event("funding", "payment", 3, amountUsd="-0.05"),
        fill("exit", "1", "110", "2", at=4, pnl="8"),
        event("trigger", "stop_loss", 5, tradeId="trd_6"),
        fill("exit", "2", "99", "0", at=6, pnl="-6", kind="stop_loss"),
    )
    assert (trip["status"], trip["strategy"], trip["exit_reason"], trip["complete"]) == (
        "closed",
        "owner-of-K",
        "stop_loss",
        True,
    )
    assert (trip["size"], trip["entry_px"], trip["exit_px"]) == ("3", "102", "102.66666667")
    assert (trip["entry_usd"], trip["exit_usd"]) == ("306", "308")
    assert (trip["fees_usd"], trip["funding_usd"], trip["realized_usd"], trip["net_usd"]) == (
        "0.4",
        "-0.05",
        "2",
        "1.55",
    )


def test_a_reversal_ends_one_trade_and_begins_the_next() -> None:
    first, second = rows(
        fill("entry", "1", "100", "1", at=1),
        fill("exit", "1", "101", "0", at=2, pnl="1"),
        fill("entry", "1", "101", "1", at=2, side="short"),
    )
    assert (first["side"], first["status"], second["side"], second["status"], second["open_size"]) == (
        "long",
        "closed",
        "short",
        "open",
        "1",
    )


def test_a_liquidation_is_counted_once_with_its_fills_and_also_without_them() -> None:
    (filled,) = rows(
        fill("entry", "2", "100", "2", at=1),
        fill("exit", "2", "60", "0", at=2, pnl="-80", kind="liquidation"),
        event(
            "liquidation",
            "full",
            2,
            tradeId="trd_2",
            size="2",
            px="60",
            realizedPnlUsd="-80",
            feeUsd="0.1",
            marginLostUsd="0",
        ),
    )
    (taken,) = rows(
        fill("entry", "2", "100", "2", at=1),
        event(
            "liquidation",
            "backstop",
            2,
            tradeId="trd_2",
            size="2",
            px="60",
            realizedPnlUsd="-80",
            feeUsd="0",
            marginLostUsd="3",
        ),
    )
    assert (filled["realized_usd"], filled["exit_usd"], filled["exit_reason"]) == ("-80", "120", "liquidation")
    assert (taken["realized_usd"], taken["exit_usd"], taken["exit_reason"], taken["net_usd"]) == (
        "-80",
        "120",
        "liquidation",
        "-83.1",
    )


def test_a_settlement_is_an_exit_at_its_outcome() -> None:
    (trip,) = rows(
        fill("entry", "10", "0.4", "10", at=1),
        event(
            "settlement",
            "settled",
            2,
            tradeId="trd_2",
            size="10",
            outcomePx="1",
            payoutUsd="10",
            realizedPnlUsd="6",
            feeUsd="0",
        ),
    )
    assert (trip["exit_px"], trip["exit_reason"], trip["net_usd"]) == ("1", "settlement", "5.9")


def test_a_trade_that_began_before_the_journal_is_not_complete() -> None:
    exit_only, grown = rows(fill("exit", "1", "100", "0", at=1, pnl="5"), fill("entry", "1", "100", "3", at=2))
    assert (exit_only["complete"], exit_only["opened_at"], exit_only["entry_px"], exit_only["net_usd"]) == (
        False,
        None,
        None,
        "4.9",
    )
    assert grown["complete"] is False


def test_a_guardian_that_closed_is_the_exit_reason() -> None:
    (trip,) = rows(
        fill("entry", "1", "100", "1", at=1),
        event("guardian", "fired", 2, guardianType="max_hold", tradeIds=["trd_3"]),
        fill("exit", "1", "100", "0", at=3, pnl="0", kind="guardian"),
    )
    assert trip["exit_reason"] == "max_hold"


def test_a_reset_ends_open_trades_without_an_exit() -> None:
    wiped, fresh = rows(
        fill("entry", "1", "100", "1", at=1),
        event("account", "reset", 2, balanceUsd="10000", epoch=1),
        fill("entry", "1", "9", "1", at=3),
    )
    assert (wiped["status"], wiped["closed_at"], fresh["status"], fresh["entry_px"]) == ("reset", None, "open", "9")


def test_a_reset_without_an_event_ends_open_trades_too() -> None:
    wiped, fresh = rows(
        fill("entry", "1", "100", "1", at=1) | {"epoch": 0},
        fill("entry", "2", "9", "2", at=3) | {"epoch": 1},
        fill("exit", "2", "10", "0", at=4, pnl="2") | {"epoch": 1},
    )
    assert (wiped["status"], wiped["closed_at"], wiped["size"]) == ("reset", None, "1")
    assert (fresh["status"], fresh["entry_px"], fresh["realized_usd"]) == ("closed", "9", "2")


def test_sums_of_amounts_with_many_digits_are_exact() -> None:
    sizes = [f"123456789.{n:08d}" for n in range(1, 40)]
    total = Decimal(0)
    events = []
    for n, size in enumerate(sizes):
        total += Decimal(size)
        events.append(fill("entry", size, "98765.43210987", str(total), at=n))
    (trip,) = list(trips(events))
    assert isinstance(trip, Trip)
    # in units of 1e-16
    whole = sum(int(size.replace(".", "")) * 9876543210987 for size in sizes)
    assert EXACT.multiply(trip.entry_usd, Decimal(10**16)) == whole

"""Ledger rows, payments and order statuses as neutral values: one table each."""

from __future__ import annotations

from typing import Any

import pytest

from bot.exchanges.hyperliquid import money_form, order_form
from bot.exchanges.hyperliquid.row_pages import RowPages
from bot.exchanges.hyperliquid.row_record import RowRecord
from bot.exchanges.protocol import FundingReport, LiquidationReport, TransferReport, UnknownForm
from bot.money import format_e8
from tests.local_exchange.exchanges import ANN, BOB

HOUR_MS = 3_600_000
MOVE = {"token": "USDC", "amount": "5.0", "usdcValue": "5.0", "fee": "0.25"}


def row(at_ms: int = 7, tx: str = "0xaa", **delta: Any) -> dict[str, Any]:
    return {"time": at_ms, "hash": tx, "delta": delta}


def send(user: str, destination: str, source: str, target: str, **more: str) -> dict[str, Any]:
    places = {"sourceDex": source, "destinationDex": target}
    return row(type="send", user=user, destination=destination, **places, **{**MOVE, **more})


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (row(type="deposit", usdc="10.0"), [("deposit", "", "10")]),
        (row(type="withdraw", usdc="10.0", fee="1.0"), [("withdrawal", "", "-11")]),
        (row(type="accountClassTransfer", usdc="3.0", toPerp=True), [("transfer", "", "3")]),
        (row(type="accountClassTransfer", usdc="3.0", toPerp=False), [("transfer", "", "-3")]),
        (row(type="internalTransfer", usdc="2.0", user=ANN, destination=BOB, fee="1.0"), [("send", "", "-3")]),
        (row(type="internalTransfer", usdc="2.0", user=BOB, destination=ANN, fee="1.0"), [("send", "", "2")]),
        (row(type="subAccountTransfer", usdc="2.0", user=ANN, destination=BOB), [("send", "", "-2")]),
        (row(type="subAccountTransfer", usdc="2.0", user=BOB, destination=ANN), [("send", "", "2")]),
        (send(ANN, BOB, "", ""), [("send", "", "-5.25")]),
        (send(BOB, ANN, "", "xyz"), [("send", "xyz", "5")]),
        (send(ANN, ANN, "", "xyz"), [("transfer", "", "-5.25"), ("transfer", "xyz", "5")]),
        (send(ANN, ANN, "spot", ""), [("transfer", "", "5")]),
        (send(ANN, ANN, "xyz", "spot", feeToken="HYPE"), [("transfer", "xyz", "-5")]),
        (send(ANN, ANN, "spot", "spot"), []),
        (row(type="vaultDeposit", usdc="4.0", vault=BOB), [("vault", "", "-4")]),
        (row(type="vaultCreate", usdc="4.0", vault=BOB), [("vault", "", "-4")]),
        (row(type="vaultWithdraw", netWithdrawnUsd="4.0", vault=BOB), [("vault", "", "4")]),
        (row(type="vaultDistribution", usdc="4.0", vault=BOB), [("vault", "", "4")]),
        (row(type="vaultLeaderCommission", usdc="4.0"), [("vault", "", "4")]),
        (row(type="rewardsClaim", amount="4.0"), [("reward", "", None)]),
        (row(type="aTypeOfNextYear", wei=4), [("unknown", "", None)]),
        *((row(type=kind, amount="4.0"), []) for kind in money_form.ELSEWHERE),
    ],
)
def test_a_ledger_row_says_what_it_did_to_the_cash_of_each_dex(told: Any, expected: list[Any]) -> None:
    reports = money_form.ledger([told], ANN)
    shown = [
        (one.kind, one.group, None if one.amount is None else format_e8(one.amount))
        for one in reports
        if isinstance(one, TransferReport)
    ]
    assert shown == expected
    assert len({one.key for one in reports}) == len(reports)


def test_a_liquidation_names_its_positions_and_their_dex() -> None:
    positions = [{"coin": "xyz:TSLA", "szi": "-2.0"}, {"coin": "xyz:GOLD", "szi": "1.0"}]
    told = row(type="liquidation", accountValue="1.0", leverageType="Cross", liquidatedPositions=positions)
    (report,) = money_form.ledger([told], ANN)
    assert isinstance(report, LiquidationReport)
    assert (report.group, report.is_isolated) == ("xyz", False)
    assert report.positions == (("xyz:TSLA", -2 * 10**8), ("xyz:GOLD", 10**8))
    positions[0]["coin"] = "BTC"
    with pytest.raises(UnknownForm, match="positions of one dex"):
        money_form.ledger([told], ANN)


def test_rows_of_two_transactions_have_two_names_and_copies_have_one() -> None:
    rows = [
        row(type="deposit", usdc="1.0"),
        row(type="deposit", usdc="1.0", tx="0xbb"),
        row(type="deposit", usdc="2.0"),
    ]
    assert len({one.key for one in money_form.ledger([*rows, *rows], ANN)}) == len(rows)
    assert money_form.ledger([row(type="deposit", usdc="1")], ANN) == money_form.ledger(rows[:1], ANN)


def test_a_payment_is_the_same_in_an_answer_and_in_a_message() -> None:
    told = {"coin": "BTC", "usdc": "-1.25", "szi": "0.5", "fundingRate": "0.000000000125", "nSamples": None}
    expected = FundingReport("BTC", HOUR_MS, -125_000_000, 125, 50_000_000)
    assert money_form.fundings([{"time": HOUR_MS, "hash": "0x", "delta": {"type": "funding", **told}}]) == [expected]
    assert money_form.fundings([{"time": HOUR_MS, **told}]) == [expected]
    with pytest.raises(UnknownForm, match="at most 12 decimals"):
        money_form.fundings([{"time": HOUR_MS, **told, "fundingRate": "0.0000000000001"}])


def test_the_two_instants_of_one_payment_may_differ_and_two_hours_are_two_payments() -> None:
    first, copy, later = (FundingReport("BTC", at_ms, 1, 2, 3) for at_ms in (HOUR_MS - 30, HOUR_MS + 48, 2 * HOUR_MS))
    record: RowRecord[FundingReport] = RowRecord(0)
    assert record.hear(first) == [first]
    assert record.read([copy, later], 2 * HOUR_MS) == [later]
    assert record.hear(copy) == []
    with pytest.raises(UnknownForm, match="with two contents"):
        record.hear(FundingReport("BTC", HOUR_MS, 9, 2, 3))


def test_a_row_from_before_the_beginning_or_of_a_verified_time_is_not_reported() -> None:
    record: RowRecord[FundingReport] = RowRecord(HOUR_MS)
    assert record.hear(FundingReport("BTC", HOUR_MS, 1, 2, 3)) == []
    assert record.read([], 9 * HOUR_MS) == []
    assert record.hear(FundingReport("BTC", 5 * HOUR_MS, 1, 2, 3)) == []
    late = FundingReport("BTC", record.read_from_ms, 1, 2, 3)
    assert record.hear(late) == [late]


@pytest.mark.parametrize("most", [2, 3, 7])
def test_pages_of_a_ledger_repeat_the_last_instant_and_lose_nothing(most: int) -> None:
    rows = [row(at_ms=at_ms // 2, tx=hex(at_ms), type="deposit", usdc="1.0") for at_ms in range(40)]
    pages = RowPages("userNonFundingLedgerUpdates", ANN, 3, 18, page_sizes=(most + 1,))
    while (query := pages.query) is not None:
        pages.take([one for one in rows if query["startTime"] <= one["time"] <= query["endTime"]][: most + 1])
    assert {one["hash"] for one in pages.rows} == {one["hash"] for one in rows if 3 <= one["time"] <= 18}


OFFICIAL_STATUSES = [
    "open",
    "filled",
    "canceled",
    "triggered",
    "rejected",
    "marginCanceled",
    "vaultWithdrawalCanceled",
    "openInterestCapCanceled",
    "selfTradeCanceled",
    "reduceOnlyCanceled",
    "siblingFilledCanceled",
    "delistedCanceled",
    "liquidatedCanceled",
    "scheduledCancel",
    "tickRejected",
    "minTradeNtlRejected",
    "perpMarginRejected",
    "reduceOnlyRejected",
    "badAloPxRejected",
    "iocCancelRejected",
    "badTriggerPxRejected",
    "marketOrderNoLiquidityRejected",
    "positionIncreaseAtOpenInterestCapRejected",
    "positionFlipAtOpenInterestCapRejected",
    "tooAggressiveAtOpenInterestCapRejected",
    "openInterestIncreaseRejected",
    "insufficientSpotBalanceRejected",
    "oracleRejected",
    "perpMaxPositionRejected",
]


def update(status: str) -> Any:
    order = {"coin": "BTC", "side": "B", "limitPx": "1.0", "sz": "1.0", "oid": 5, "timestamp": 1, "origSz": "1.0"}
    return {"order": order, "status": status, "statusTimestamp": 9}


def test_every_documented_status_stands_in_the_table() -> None:
    assert set(OFFICIAL_STATUSES) <= set(order_form.STATUSES)


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        *((status, *meaning) for status, meaning in order_form.STATUSES.items()),
        ("newReasonCanceled", "canceled", "venue"),
        ("newCancel", "canceled", "venue"),
        ("newReasonRejected", "refused", "trade_failed"),
    ],
)
def test_a_status_has_a_state_and_a_reason(status: str, state: str, reason: str | None) -> None:
    (found,) = order_form.order_updates([update(status)])
    assert (found.order_id, found.at_ms, found.state, found.reason) == ("5", 9, state, reason)
    assert order_form.order_status({"status": "order", "order": update(status)}) == found
    assert (state in ("open", "triggered", "filled")) == (reason is None)


def test_an_unknown_order_is_none_and_an_unknown_status_is_named() -> None:
    assert order_form.order_status({"status": "unknownOid"}) is None
    with pytest.raises(UnknownForm, match=r"orderUpdates\[0\].status: expected a known status"):
        order_form.order_updates([update("paused")])

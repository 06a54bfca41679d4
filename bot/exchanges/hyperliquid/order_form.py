"""Statuses of orders, from the wire form to neutral values. Pure.

`STATUSES` has every status that the exchange is known to use. A status that is not in it is read by its ending.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bot.exchanges.hyperliquid.json_rows import JsonRow, rows_of, unknown
from bot.exchanges.protocol import OrderState, OrderUpdate

# Status -> the state, and why an order was canceled, or the error code of a refusal.
STATUSES: Final[Mapping[str, tuple[OrderState, str | None]]] = {
    "accepted": ("open", None),
    "open": ("open", None),
    "triggered": ("triggered", None),
    "filled": ("filled", None),
    "canceled": ("canceled", "user"),
    "marginCanceled": ("canceled", "insufficient_funds"),
    "selfTradeCanceled": ("canceled", "self_trade"),
    "reduceOnlyCanceled": ("canceled", "reduce_only"),
    "siblingFilledCanceled": ("canceled", "oco"),
    "openInterestCapCanceled": ("canceled", "open_interest"),
    "scheduledCancel": ("canceled", "scheduled"),
    "delistedCanceled": ("canceled", "delisted"),
    "outcomeSettledCanceled": ("canceled", "delisted"),
    "liquidatedCanceled": ("canceled", "liquidated"),
    "vaultWithdrawalCanceled": ("canceled", "venue"),
    "internalCancel": ("canceled", "venue"),
    "rejected": ("refused", "trade_failed"),
    "tickRejected": ("refused", "invalid_input"),
    "minTradeNtlRejected": ("refused", "below_min_notional"),
    "minTradeSpotNtlRejected": ("refused", "below_min_notional"),
    "perpMarginRejected": ("refused", "insufficient_funds"),
    "insufficientSpotBalanceRejected": ("refused", "insufficient_funds"),
    "reduceOnlyRejected": ("refused", "not_found"),
    "badAloPxRejected": ("refused", "trade_failed"),
    "iocCancelRejected": ("refused", "insufficient_depth"),
    "marketOrderNoLiquidityRejected": ("refused", "insufficient_depth"),
    "badTriggerPxRejected": ("refused", "invalid_input"),
    "oracleRejected": ("refused", "invalid_input"),
    "positionIncreaseAtOpenInterestCapRejected": ("refused", "limit_exceeded"),
    "positionFlipAtOpenInterestCapRejected": ("refused", "limit_exceeded"),
    "tooAggressiveAtOpenInterestCapRejected": ("refused", "limit_exceeded"),
    "openInterestIncreaseRejected": ("refused", "limit_exceeded"),
    "perpMaxPositionRejected": ("refused", "limit_exceeded"),
    "tooManyOpenOrdersRejected": ("refused", "limit_exceeded"),
}
# A status by its ending, for those that the table does not name.
ENDINGS: Final[tuple[tuple[str, tuple[OrderState, str]], ...]] = (
    ("Canceled", ("canceled", "venue")),
    ("Cancel", ("canceled", "venue")),
    ("Rejected", ("refused", "trade_failed")),
)


def order_updates(answer: Any, where: str = "orderUpdates") -> list[OrderUpdate]:
    """Changes of orders, in the order of the message."""
    return [_update(row) for row in rows_of(answer, where)]


def order_status(answer: Any) -> OrderUpdate | None:
    """What `orderStatus` says about an order; None if the exchange does not know it, or not yet."""
    row = JsonRow(answer, "orderStatus")
    if not row.choice("status", {"order": True, "unknownOid": False}):
        return None
    return _update(row.row("order"))


def _update(row: JsonRow) -> OrderUpdate:
    order = row.row("order")
    state, reason = _state(row)
    return OrderUpdate(
        order_id=str(order.whole("oid")),
        client_order_id=order.text("cloid") if order.has("cloid") else None,
        market=order.text("coin"),
        at_ms=row.instant("statusTimestamp"),
        state=state,
        reason=reason,
    )


def _state(row: JsonRow) -> tuple[OrderState, str | None]:
    status = row.text("status")
    if status in STATUSES:
        return STATUSES[status]
    for ending, meaning in ENDINGS:
        if status.endswith(ending):
            return meaning
    raise unknown(f"{row.where}.status", "a known status, or one that ends in Canceled, Cancel or Rejected", status)

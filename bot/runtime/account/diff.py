"""Compares the account state with a snapshot of the service and names each difference.

Repairs belong to `reconciliation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.runtime.account.account_state import AccountState
from bot.runtime.model.positions import PROTECTIVE, AccountPosition, Drift

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot, Position


def diff(state: AccountState, snapshot: AccountSnapshot) -> list[Drift]:
    """Every difference. The snapshot must be as of the last event that was folded."""
    drifts: list[Drift] = []
    listed_positions = {position.coin: position for position in snapshot.positions}
    for market in sorted(listed_positions.keys() | state.positions.keys()):
        drifts += _position_drift(market, listed_positions.get(market), state.positions.get(market))
    for listed in snapshot.orders:
        if listed.oid not in state.orders:
            message = f"order {listed.oid} ({listed.kind}) exists at the service only"
            drifts.append(Drift("missing_fill", listed.coin, listed.oid, message))
        if listed.kind not in PROTECTIVE and state.is_foreign(listed.idempotency_key):
            message = f"order {listed.oid} was not placed by us"
            drifts.append(Drift("foreign_order", listed.coin, listed.oid, message))
    order_ids = {listed.oid for listed in snapshot.orders}
    for order in state.orders.values():
        if order.oid not in order_ids:
            message = f"order {order.oid} ({order.kind}) no longer exists at the service"
            drifts.append(Drift("order_gone", order.market, order.oid, message))
    guardian_ids = {listed.id for listed in snapshot.guardians}
    for guardian in state.guardians.values():
        if guardian.id not in guardian_ids:
            message = f"guardian {guardian.id} ({guardian.type}) no longer exists at the service"
            drifts.append(Drift("guardian_gone", guardian.market, guardian.id, message))
    return drifts


def _position_drift(market: str, listed: Position | None, ours: AccountPosition | None) -> list[Drift]:
    if listed is None:
        return [Drift("missing_fill", market, "", f"our {market} position is closed at the service")]
    if ours is None or (ours.side, ours.size) != (listed.side, listed.size):
        expected = "no position" if ours is None else f"{ours.side} {ours.size}"
        message = f"the service has {listed.side} {listed.size}, the daemon expected {expected}"
        return [Drift("missing_fill", market, "", message)]
    return []

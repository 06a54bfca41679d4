"""Fills of an order: books them in the ledger, and starts or ends the protection of the position."""

from __future__ import annotations

from collections.abc import Sequence

from bot.venue.accounting import ledger
from bot.venue.model.state import State, VenueAccount, VenueMarket, VenueOrder, VenuePosition, VenueTrade
from bot.venue.orders import open_orders
from bot.venue.protection import guardian_lifecycle, protection


def take(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    order: VenueOrder,
    trade: VenueTrade,
    fills: Sequence[tuple[int, int]],
    *,
    maker: bool = False,
    by_limit: bool = False,
) -> tuple[int, ...]:
    """Book an order's fills.

    Arms the bracket and guardians of the part that opens, and ends those of a closed position. Returns the armed
    guardians.
    """
    if not fills:
        return ()
    before = account.positions.get(market.spec.coin)
    for px, size in fills:
        ledger.fill(state, account, market, trade, order, (px, size, maker, None))
    position = account.positions.get(market.spec.coin)
    protection.follow(state, account, market, before)
    if account.resting and before is not None and before is not position:
        open_orders.drop_closings(state, account, market)
    if (
        position is not None
        and position.side == order.buy
        and not order.armed
        and (order.stop_leg or order.target_leg or order.guardians)
    ):
        order.armed = True
        entry_px = position.entry_px() if before is not position else trade.avg_px()
        assert entry_px is not None
        if order.stop_leg is not None or order.target_leg is not None:
            protection.arm_bracket(state, account, market, position, order, entry_px, by_limit=by_limit)
        if order.guardians:
            return tuple(_arm_inline(state, account, market, position, order, entry_px, by_limit=by_limit))
    return ()


def take_reported(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    order: VenueOrder,
    trade: VenueTrade,
    execution: ledger.Execution,
) -> None:
    """Book a fill that an exchange reports, and arm or end the protection in the same command."""
    before = account.positions.get(market.spec.coin)
    ledger.fill(state, account, market, trade, order, execution)
    protection.follow(state, account, market, before)
    position = account.positions.get(market.spec.coin)
    if position is None or position.side != order.buy or order.armed:
        return
    if order.stop_leg is None and order.target_leg is None and not order.guardians:
        return
    order.armed = True
    entry_px = position.entry_px() if before is not position else trade.avg_px()
    assert entry_px is not None
    if order.stop_leg is not None or order.target_leg is not None:
        protection.arm_bracket(state, account, market, position, order, entry_px, by_limit=False)
    _arm_inline(state, account, market, position, order, entry_px, by_limit=False)


def _arm_inline(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition,
    order: VenueOrder,
    entry_px: int,
    *,
    by_limit: bool,
) -> list[int]:
    numbers = []
    for spec in order.guardians:
        if spec.type == "trailing_stop":
            guardian = protection.arm_trail(
                state, account, market, position, spec, extreme=entry_px, trade=order.trade, by_limit=by_limit
            )
        else:
            guardian = guardian_lifecycle.arm_inline(state, account, position, spec, trade=order.trade, key=order.key)
        numbers.append(guardian.number)
    return numbers


def finish(state: State, trade: VenueTrade, *, reason: str | None = None) -> None:
    """Mark a trade as done: the order is filled, or its own rule dropped the rest."""
    trade.status, trade.updated_ms = "done", state.now_ms
    if reason is not None:
        trade.reason = reason

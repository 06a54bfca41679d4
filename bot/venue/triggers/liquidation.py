"""Liquidation: checked at the mark price.

Closes through the book, below two thirds of maintenance by the backstop. The venue pays a negative rest.
"""

from __future__ import annotations

from typing import Final

from bot.model.events import Liquidated
from bot.venue.accounting import ledger
from bot.venue.model.numbers import E8
from bot.venue.model.record import emit, next_seq, open_trade
from bot.venue.model.state import State, VenueAccount, VenueMarket, VenuePosition, VenueTrade, side_name
from bot.venue.orders import exits, open_orders, order_fills
from bot.venue.prices.book import walk
from bot.venue.protection import protection

# Above this notional the first order closes a fifth; for 30 s after that, orders close everything.
PARTIAL_FROM: Final = 100_000 * E8
COOLDOWN_MS: Final = 30_000


def standing(state: State, account: VenueAccount, position: VenuePosition) -> tuple[int, int]:
    """(equity, maintenance) of the isolated position or the cross account, at mark."""
    if position.isolated:
        market = state.markets[position.coin]
        return position.margin + position.pnl(market.mark), ledger.maintenance(
            market, market.mark * position.size // E8
        )
    need = sum(
        ledger.maintenance(m := state.markets[c], m.mark * p.size // E8)
        for c, p in account.positions.items()
        if not p.isolated
    )
    return ledger.cross_value(state, account), need


def liquidate(state: State, account: VenueAccount, position: VenuePosition, ref_px: int) -> None:
    """Close a position whose equity is below maintenance, around `ref_px`, the mark of its market.

    Then, if necessary, the account's other positions.
    """
    market = state.markets[position.coin]
    _cancel_resting(state, account, position)
    _liquidate(state, account, market, position, ref_px)
    while not position.isolated and (others := [p for p in account.positions.values() if not p.isolated]):
        equity, need = standing(state, account, others[0])
        if equity >= need or any(p.liquidation_cooldown_ms == state.now_ms + COOLDOWN_MS for p in others):
            # A fifth was closed at this instant; the next point checks again.
            return
        worst = max(others, key=lambda p: ledger.maintenance(m := state.markets[p.coin], m.mark * p.size // E8))
        market = state.markets[worst.coin]
        _liquidate(state, account, market, worst, market.mark)


def _liquidate(state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition, ref_px: int) -> None:
    equity, need = standing(state, account, position)
    size = position.size
    notional = ref_px * size // E8
    if notional > PARTIAL_FROM and state.now_ms >= position.liquidation_cooldown_ms:
        size = max(market.lot, size // 5 // market.lot * market.lot)
        position.liquidation_cooldown_ms = state.now_ms + COOLDOWN_MS
        position.watched_point = market.point
    fills = walk(market, market.mid if market.is_quoted else ref_px, -position.side, size)
    lost = sum((ref_px - px) * position.side * sz // E8 for px, sz in fills)
    if not fills or 3 * (equity - lost) < 2 * need:
        _backstop(state, account, position)
        return
    whole = sum(sz for _, sz in fills) == position.size
    # A partial liquidation keeps the stop.
    if whole:
        _drop_protection(state, account, market, position)
    order = exits.exit_order(state, account, market, position, size=size, bound_px=0, reason="liquidated")
    trade = open_trade(state, account, order, kind="liquidation", intent="close", reason="liquidated")
    order_fills.take(state, account, market, order, trade, fills)
    order_fills.finish(state, trade)
    _emit(state, account, market, trade, "full" if whole else "partial", px=trade.avg_px() or ref_px)
    if account.positions.get(position.coin) is position:
        ledger.rewatch(state, account, position)


def _backstop(state: State, account: VenueAccount, position: VenuePosition) -> None:
    """The liquidator takes position and margin at mark: an isolated position alone; of a cross account all cross
    positions and the balance.
    """
    siblings = [position] if position.isolated else [p for p in account.positions.values() if not p.isolated]
    for p in siblings:
        market = state.markets[p.coin]
        _drop_protection(state, account, market, p)
        size, mark = p.size, market.mark
        realized = p.pnl(mark)
        order = exits.exit_order(state, account, market, p, size=size, bound_px=0, reason="liquidated")
        trade = open_trade(state, account, order, kind="liquidation", intent="close", reason="liquidated")
        trade.filled, trade.filled_notional, trade.realized = size, mark * size // E8, realized
        left = 0
        if p.isolated:
            left = p.margin + realized
            p.margin = 0
        else:
            account.balance += realized
            if p is siblings[-1]:
                left, account.balance = account.balance, 0
        trade.margin_lost, trade.absorbed = max(0, left), max(0, -left)
        account.margin_lost += trade.margin_lost
        account.absorbed += trade.absorbed
        account.realized += realized
        ledger.realize_today(account, state.now_ms, realized - left)
        p.size = p.entry_notional = 0
        ledger.leave(state, account, market, p)
        order_fills.finish(state, trade)
        _emit(state, account, market, trade, "backstop", px=mark)
        protection.follow(state, account, market, p, reason="liquidated")


def _cancel_resting(state: State, account: VenueAccount, position: VenuePosition) -> None:
    """Cancel resting orders in this market; for a cross account also entries in other markets, because they reserve
    margin. Closing orders there stay.
    """
    open_orders.cancel_resting(state, account, "liquidated", position.coin, entries_elsewhere=not position.isolated)


def _drop_protection(state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition) -> None:
    for oid in (position.stop_oid, position.target_oid):
        if oid is not None:
            protection.drop_child(state, account, market, position, account.orders[oid], "liquidated")
    for order in [o for o in account.orders.values() if o.coin == position.coin and o.status == "working"]:
        open_orders.drop(state, account, order, "liquidated")


def _emit(
    state: State, account: VenueAccount, market: VenueMarket, trade: VenueTrade, subtype: str, *, px: int
) -> None:
    emit(
        state,
        account,
        Liquidated(
            account.id,
            next_seq(account),
            state.now_ms,
            subtype,
            market.spec.coin,
            trade.id,
            side_name(trade.side),
            trade.filled,
            px,
            market.mark,
            trade.realized or 0,
            trade.fee,
            trade.margin_lost,
            account.balance,
            trade.absorbed,
        ),
    )

"""Exits that the venue makes: a trigger, a guardian or a liquidation closes a position.

The part that the book cannot fill is tried again.
"""

from __future__ import annotations

from bot.venue.accounting.order_sizes import TRIGGER_SLIPPAGE_BPS, bound_of
from bot.venue.model.numbers import BPS
from bot.venue.model.record import emit_order, next_oid, open_trade
from bot.venue.model.state import (
    State,
    VenueAccount,
    VenueGuardian,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    VenueTrade,
    guardian_id,
    oid_text,
    trade_id,
)
from bot.venue.orders import exchange_actions, order_fills
from bot.venue.orders.exchange_actions import STOP_RANK
from bot.venue.prices.book import walk
from bot.venue.protection import protection
from bot.venue.protection.protection import GuardianEffects, emit_guardian
from bot.venue.storage import pages


def exit_order(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition,
    *,
    size: int,
    bound_px: int,
    reason: str | None = None,
) -> VenueOrder:
    """A reduce-only order of the venue against the position, not yet part of the account."""
    return VenueOrder(
        number=next_oid(account),
        account=account.id,
        coin=position.coin,
        kind="close",
        side=position.side,
        buy=-position.side,
        size=size,
        created_ms=state.now_ms,
        reduce_only=True,
        leverage=position.leverage,
        bound_px=bound_px,
        reason=reason,
        born=market.point,
    )


def force_exit(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition,
    *,
    size: int,
    kind: str,
    ref_px: int,
    guardian: str | None = None,
) -> VenueTrade:
    """Close `size` of the position now, at most ten per cent away from `ref_px`. The unfilled part is tried again at
    each price point. A market without a price has no book. `kind` is also the reason.
    """
    bound_px = bound_of_trigger(market, ref_px, -position.side)
    order = exit_order(state, account, market, position, size=size, bound_px=bound_px, reason=kind)
    trade = open_trade(state, account, order, kind=kind, intent="close", guardian=guardian, reason=kind)
    if account.exchange is not None:
        order.status, order.bound_px = "working", bound_of(market, ref_px, order.buy, TRIGGER_SLIPPAGE_BPS)
        account.orders[order.number] = order
        emit_order(state, account, order, "changed")
        exchange_actions.place(state, account, order, size, STOP_RANK)
        return trade
    if market.px_at(state.now_ms) is not None:
        order_fills.take(
            state, account, market, order, trade, walk(market, ref_px, order.buy, order.size, order.bound_px)
        )
    settle_exit(state, account, market, order, trade)
    return trade


def count_fire(state: State, guardian: VenueGuardian) -> None:
    guardian.fired_ms, guardian.fire_count = state.now_ms, guardian.fire_count + 1


def unclosed(state: State, account: VenueAccount, position: VenuePosition) -> int:
    """The part of a position that no working exit closes: what was added after those exits started."""
    at_work = [o for o in protection.working_exits(account, state.markets[position.coin]) if o.kind == "close"]
    return max(0, position.size - sum(order.size - order.filled for order in at_work))


def end_fired(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    guardian: VenueGuardian,
    reason: str,
    *,
    canceled: list[VenueOrder],
    trades: int,
) -> None:
    """A guardian of a position fires, and ends. Its event names the orders that end and the trades that are next."""
    del account.guardians[guardian.number]
    guardian.deadline_ms = None
    count_fire(state, guardian)
    coming = tuple(trade_id(account, account.trade_seq + n) for n in range(1, trades + 1))
    effects = GuardianEffects("close", tuple(oid_text(account, o.number) for o in canceled), coming)
    emit_guardian(state, account, guardian, "fired", reason=reason, mark=market.mark, effects=effects)


def close_position(
    state: State, account: VenueAccount, market: VenueMarket, guardian: VenueGuardian, ref_px: int, reason: str
) -> None:
    """Close the guardian's position, reduce-only around `ref_px`. Its bracket and the guardian end."""
    position = account.positions[market.spec.coin]
    left = unclosed(state, account, position)
    # Without a price the exit waits, and the bracket stays until there is one; at an exchange until the position ends.
    children = (
        []
        if not left or account.exchange is not None or market.px_at(state.now_ms) is None
        else [
            account.orders[oid]
            for oid in (position.stop_oid, position.target_oid)
            if oid is not None and account.orders[oid].status == "armed"
        ]
    )
    end_fired(state, account, market, guardian, reason, canceled=children, trades=1 if left else 0)
    # A working exit already closes all of it.
    if not left:
        return
    for child in children:
        protection.drop_child(state, account, market, position, child, "guardian")
    by = guardian_id(account, guardian.number)
    force_exit(state, account, market, position, size=left, kind="guardian", ref_px=ref_px, guardian=by)


def ask_again(state: State, account: VenueAccount, nonce: int) -> None:
    """Ask the exchange again for the rest of an exit, at the price of now."""
    action = exchange_actions.known(account).actions[nonce]
    action.again_ms = None
    order = account.orders[action.oid or 0]
    market, position = state.markets[order.coin], account.positions.get(order.coin)
    assert action.over_ms
    if position is None or position.side != order.side:
        end_exit(state, account, order)
        return
    order.bound_px = bound_of(market, market.mid, order.buy, TRIGGER_SLIPPAGE_BPS)
    size = min(order.size - order.filled, position.size)
    exchange_actions.place(state, account, order, size, STOP_RANK, before=action)


def end_exit(state: State, account: VenueAccount, order: VenueOrder) -> None:
    """An exit at an exchange is complete, or there is nothing left that it could close."""
    del account.orders[order.number]
    order_fills.finish(state, pages.trade_of(account, order.trade or ""))


def bound_of_trigger(market: VenueMarket, px: int, buy: int) -> int:
    """Worst price of a stop, a target or a guardian's exit around `px`: ten per cent of the price, or ten cents in
    an event market.
    """
    if market.spec.margin_mode == "full":
        return bound_of(market, px, buy, TRIGGER_SLIPPAGE_BPS)
    return max(1, px + buy * px * TRIGGER_SLIPPAGE_BPS // BPS)


def settle_exit(state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder, trade: VenueTrade) -> None:
    """Finish a filled exit; otherwise keep trying the rest."""
    position = account.positions.get(order.coin)
    if order.filled >= order.size or position is None or position.side != order.side:
        account.orders.pop(order.number, None)
        if order.status == "working":
            market.working.remove((account.id, order.number))
            if position is not None and position.stop_oid == order.number:
                position.stop_oid = None
            elif position is not None and position.target_oid == order.number:
                position.target_oid = None
        order_fills.finish(state, trade)
    elif order.status != "working":
        order.status = "working"
        account.orders[order.number] = order
        market.working.append((account.id, order.number))
        emit_order(state, account, order, "changed")


def work(state: State, account: VenueAccount, market: VenueMarket, order: VenueOrder) -> None:
    """Try the rest of an exit at the current price."""
    position = account.positions.get(order.coin)
    trade = pages.trade_of(account, order.trade or "")
    if position is not None and position.side == order.side:
        size = min(order.size - order.filled, position.size)
        # If this fill closes the position, its children are canceled; the exit that is filling must not be among them.
        if position.stop_oid == order.number:
            position.stop_oid = None
        elif position.target_oid == order.number:
            position.target_oid = None
        order_fills.take(
            state,
            account,
            market,
            order,
            trade,
            walk(market, market.mid, order.buy, size, bound_of_trigger(market, market.mid, order.buy)),
        )
        if position.size and order.kind == "stop_loss" and position.stop_oid is None:
            position.stop_oid = order.number
    settle_exit(state, account, market, order, trade)

"""Brackets and trailing stops of a position: armed at its first fill, resized with it, ended with it."""

from __future__ import annotations

from typing import Final, NamedTuple

from bot.model.events import GuardianMoved
from bot.venue.accounting import ledger
from bot.venue.accounting.order_margin import liquidation_of_fills
from bot.venue.accounting.order_sizes import entry_of
from bot.venue.model import outcome
from bot.venue.model.numbers import E8
from bot.venue.model.record import emit, emit_order, next_oid, next_seq
from bot.venue.model.state import (
    GuardianSpec,
    LegSpec,
    State,
    VenueAccount,
    VenueGuardian,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    guardian_id,
    new_leg,
)
from bot.venue.prices import index
from bot.venue.protection import guardians
from bot.venue.protection.brackets import PERCENT, off_entry
from bot.venue.storage import pages


def levels_of(
    market: VenueMarket, side: int, entry_px: int, stop: LegSpec | None, target: LegSpec | None
) -> tuple[int | None, int | None]:
    """Stop and target of a filled entry on the grid, rounded to the safer side.

    A price given by the caller stays unchanged.
    """
    stop_px: int | None = None
    if stop is not None:
        stop_px = (
            stop.px
            if stop.px is not None
            else off_entry(market, entry_px, -side, entry_px * (stop.pct or 0) // PERCENT, safer=side)
        )
    target_px: int | None = None
    if target is not None:
        if target.px is not None:
            target_px = target.px
        elif target.pct is not None:
            target_px = off_entry(market, entry_px, side, entry_px * target.pct // PERCENT, safer=-side)
        else:
            assert stop_px is not None
            assert target.r is not None
            target_px = off_entry(market, entry_px, side, abs(entry_px - stop_px) * target.r // E8, safer=-side)
    return stop_px or None, target_px or None


def arm_bracket(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition,
    entry: VenueOrder,
    entry_px: int,
    *,
    by_limit: bool,
) -> None:
    """Arm the entry's stop and target for the whole position. They replace an older bracket."""
    stop_px, target_px = levels_of(market, position.side, entry_px, entry.stop_leg, entry.target_leg)
    for oid in () if position.stop_oid is position.target_oid else (position.stop_oid, position.target_oid):
        if oid is not None and ((child := account.orders[oid]).leg is not None or account.exchange is None):
            drop_child(state, account, market, position, child, "replaced")
    if stop_px is not None:
        position.r_px = abs(entry_px - stop_px)
        assert entry.stop_leg is not None
        leg = (stop_px, entry.stop_leg.pct, entry.stop_leg.r)
        position.stop_oid = _arm(state, account, market, position, entry, "stop_loss", leg, by_limit=by_limit)
    if target_px is not None:
        assert entry.target_leg is not None
        leg = (target_px, entry.target_leg.pct, entry.target_leg.r)
        position.target_oid = _arm(state, account, market, position, entry, "take_profit", leg, by_limit=by_limit)


def _arm(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition,
    entry: VenueOrder,
    kind: str,
    leg: tuple[int, int | None, int | None],
    *,
    by_limit: bool,
) -> int:
    """Arm one level of a bracket. `leg`: its price, and the percent or the R that the price comes from."""
    px = leg[0]
    child = VenueOrder(
        number=next_oid(account),
        account=account.id,
        coin=market.spec.coin,
        kind=kind,
        side=position.side,
        buy=-position.side,
        size=position.size,
        created_ms=state.now_ms,
        status="armed",
        trigger_px=px,
        reduce_only=True,
        leverage=position.leverage,
        born=market.point,
        leg=new_leg(leg),
        trade=entry.trade,
    )
    falls = index.order_falls(child)
    child.through = market.mark <= px if falls else market.mark >= px
    if child.through or (by_limit and kind == "stop_loss"):
        # The same point that filled the entry may reach this level, because its path goes on.
        child.born -= 1
    if by_limit and not child.through:
        child.limit_bar_ms = market.bar_ms
    account.orders[child.number] = child
    index.watch_order(market, child)
    emit_order(state, account, child, "armed")
    return child.number


def arm_trail(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    position: VenuePosition,
    spec: GuardianSpec,
    *,
    extreme: int,
    trade: str | None = None,
    by_limit: bool = False,
) -> VenueGuardian:
    """Start a trailing stop on an open position. `extreme` is its first extreme."""
    account.guardian_seq += 1
    guardian = VenueGuardian(
        number=account.guardian_seq,
        account=account.id,
        spec=spec,
        created_ms=state.now_ms,
        side=position.side,
        r_px=position.r_px,
        extreme=extreme,
        trade=trade,
        born=market.point - (1 if by_limit else 0),
    )
    if spec.activate_at_r is not None:
        guardian.active = False
        guardian.extreme = guardians.activation_px(guardian, position.entry_px())
        if (market.mark - guardian.extreme) * guardian.side >= 0:
            guardian.active, guardian.extreme = True, market.mark
    if guardian.active:
        guardian.stop_px = outcome.clamp(market.spec, guardians.trail_stop(guardian))
        guardian.through = (market.mark - guardian.stop_px) * guardian.side <= 0
        if guardian.through:
            guardian.born = market.point - 1
    account.guardians[guardian.number] = guardian
    index.watch_trail(market, guardian)
    emit_guardian(state, account, guardian, "armed")
    return guardian


class GuardianEffects(NamedTuple):
    """What a guardian did: its action, the orders that it canceled and the trades that it made, or why it did not."""

    action: str | None = None
    canceled: tuple[str, ...] = ()
    trades: tuple[str, ...] = ()
    code: str | None = None


NO_EFFECTS: Final = GuardianEffects()


def emit_guardian(
    state: State,
    account: VenueAccount,
    guardian: VenueGuardian,
    subtype: str,
    *,
    reason: str | None = None,
    mark: int | None = None,
    value: int | None = None,
    effects: GuardianEffects = NO_EFFECTS,
) -> None:
    spec = guardian.spec
    assert spec.scope is not None
    emit(
        state,
        account,
        GuardianMoved(
            account.id,
            next_seq(account),
            state.now_ms,
            subtype,
            spec.coin,
            guardian_id(account, guardian.number),
            spec.type,
            spec.scope,
            guardian.blocks_opens,
            effects.action,
            reason,
            guardian.deadline_ms,
            mark,
            value,
            effects.canceled,
            effects.trades,
            effects.code,
        ),
    )


def drop_child(
    state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition, child: VenueOrder, reason: str
) -> None:
    """Cancel a stop or target with this reason."""
    if child.status == "working":
        market.working.remove((account.id, child.number))
        trade = pages.trade_of(account, child.trade or "")
        trade.status, trade.reason, trade.updated_ms = "canceled", reason, state.now_ms
    else:
        index.unwatch_order(market, child)
    del account.orders[child.number]
    if position.stop_oid == child.number:
        position.stop_oid = None
    elif position.target_oid == child.number:
        position.target_oid = None
    emit_order(state, account, child, "canceled", reason=reason)


def drop_trails(state: State, account: VenueAccount, market: VenueMarket, reason: str) -> None:
    """Release every trailing stop of this market."""
    for guardian in [
        g for g in account.guardians.values() if g.spec.type == "trailing_stop" and g.spec.coin == market.spec.coin
    ]:
        index.unwatch_trail(market, guardian)
        del account.guardians[guardian.number]
        emit_guardian(state, account, guardian, "released", reason=reason)


def arm_hold(
    state: State, account: VenueAccount, position: VenuePosition, spec: GuardianSpec, *, trade: str | None = None
) -> VenueGuardian:
    """Start a max_hold on an open position. Its time counts from the first opening fill."""
    account.guardian_seq += 1
    guardian = VenueGuardian(
        number=account.guardian_seq, account=account.id, spec=spec, created_ms=state.now_ms, trade=trade
    )
    account.guardians[guardian.number] = guardian
    _time_hold(state, account, position, guardian)
    return guardian


def _time_hold(state: State, account: VenueAccount, position: VenuePosition, guardian: VenueGuardian) -> None:
    assert guardian.spec.seconds is not None
    guardian.deadline_ms = position.opened_ms + guardian.spec.seconds * 1000
    index.schedule_guardian(state, account, guardian)
    emit_guardian(state, account, guardian, "armed")


def _follow_holds(state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition | None) -> None:
    """End the max_hold of a closed position; restart it if the position has changed its side."""
    for guardian in [
        g for g in account.guardians.values() if g.spec.type == "max_hold" and g.spec.coin == market.spec.coin
    ]:
        if position is not None:
            _time_hold(state, account, position, guardian)
            continue
        del account.guardians[guardian.number]
        guardian.deadline_ms = None
        emit_guardian(state, account, guardian, "released", reason="position_closed")


def working_exits(account: VenueAccount, market: VenueMarket) -> list[VenueOrder]:
    """Exits of this account that are tried again: at each point, or at an exchange after a pause."""
    if account.exchange is not None:
        coin = market.spec.coin
        return [order for order in account.orders.values() if order.coin == coin and order.status == "working"]
    return [account.orders[number] for owner, number in market.working if owner == account.id]


def is_protected(state: State, account: VenueAccount, position: VenuePosition) -> bool:
    """True if a stop at the venue fires before the liquidation price: of the bracket, or a trailing stop."""
    stop_px = guardians.held_stop(account, position)
    return stop_px is not None and guardians.can_fire(stop_px, position.side, ledger.liquidation_px(state, position))


def lacks_stop(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    order: VenueOrder,
    fills: list[tuple[int, int]],
    against: int,
    leverage: int,
    *,
    maker: bool,
) -> bool:
    """True if these fills of an entry would open a position without the stop that the order was accepted with. The stop
    (or the one that defines R) may have ended, or lie beyond the new liquidation price. For a cross account the preview
    has checked that price.
    """
    is_isolated = market.spec.margin_mode == "isolated"
    position = account.positions.get(order.coin)
    held = position if position is not None and position.side == order.buy else None
    if order.stop_leg is not None and not order.armed:
        if not is_isolated:
            return False
        stop_px, _ = levels_of(
            market, order.buy, _entry_after(account, order, held, fills, against), order.stop_leg, None
        )
    else:
        r_px = None if held is None else held.r_px
        if not order.armed and guardians.refuse_inline(order.guardians, has_r=r_px is not None) is not None:
            return True
        if not order.require_protection:
            return False
        stop_px = None
        if held is not None:
            stop_px = guardians.held_trail(account, order.coin, order.buy)
            if (
                order.armed or order.target_leg is None
                # The stop of the entry's own bracket may have been canceled meanwhile.
            ):
                stop_px = guardians.held_stop(account, held)
        if not order.armed and order.guardians:
            entry_px = _entry_after(account, order, held, fills, against)
            stop_px = guardians.nearest(
                order.buy, stop_px, guardians.coming_trail(order.guardians, order.buy, entry_px, r_px)
            )
    if stop_px is None or not is_isolated:
        return stop_px is None
    left_at = liquidation_of_fills(state, account, market, order.buy, fills, against, leverage, maker=maker)
    return not guardians.can_fire(stop_px, order.buy, left_at)


def _entry_after(
    account: VenueAccount, order: VenueOrder, held: VenuePosition | None, fills: list[tuple[int, int]], against: int
) -> int:
    """The price that the bracket is measured from after these fills: the new position's entry, or the order's
    average.
    """
    if held is None:
        entry_px = entry_of(fills, against)
        assert entry_px is not None
        return entry_px
    trade = pages.trade_of(account, order.trade or "")
    notional = trade.filled_notional + sum([px * size // E8 for px, size in fills])
    return notional * E8 // (trade.filled + sum([size for _, size in fills]))


def _resize_exits(state: State, account: VenueAccount, market: VenueMarket, position: VenuePosition) -> None:
    for exit_ in working_exits(account, market):
        rest = exit_.size - exit_.filled
        # A working stop also closes what is added meanwhile, because that part has no other stop.
        if rest > position.size or (rest < position.size and exit_.number == position.stop_oid):
            exit_.size = exit_.filled + position.size
            trade = pages.trade_of(account, exit_.trade or "")
            trade.size = max(trade.size, exit_.size)
            emit_order(state, account, exit_, "changed")


def follow(
    state: State,
    account: VenueAccount,
    market: VenueMarket,
    before: VenuePosition | None,
    *,
    reason: str = "position_closed",
) -> None:
    """After fills: cancel the stops and targets of a closed position, resize those of a changed one, and move the
    liquidation levels. Those that somebody else has placed at an exchange have no leg, and end when it says so.
    """
    position = account.positions.get(market.spec.coin)
    if before is not None and before is not position:
        for oid in (before.stop_oid, before.target_oid):
            if oid is not None and ((child := account.orders[oid]).leg is not None or account.exchange is None):
                drop_child(state, account, market, before, child, reason)
        if account.guardians:
            drop_trails(state, account, market, "position_closed")
            _follow_holds(state, account, market, position)
        if account.resting:
            # An entry that continues to fill opens a new position, which needs its own bracket.
            for number in account.resting:
                entry = account.orders[number]
                if entry.armed and entry.coin == market.spec.coin:
                    entry.armed = False
                    entry.guardians = tuple(spec for spec in entry.guardians if spec.scope == "position")
        if market.working:
            for exit_ in working_exits(account, market):
                if exit_.filled < exit_.size:
                    drop_child(state, account, market, before, exit_, reason)
    if position is not None:
        for oid in () if position.stop_oid is position.target_oid else (position.stop_oid, position.target_oid):
            if oid is None or (child := account.orders[oid]).size == position.size or child.status != "armed":
                continue
            if child.leg is not None or account.exchange is None:
                child.size = position.size
                emit_order(state, account, child, "changed")
        if market.working:
            _resize_exits(state, account, market, position)
    if account.exchange is not None:
        # The exchange liquidates.
        ledger.rewatch_floor(state, account)
    elif position is not None:
        ledger.rewatch(state, account, position)
    elif account.positions:
        ledger.rewatch(state, account)
    else:
        ledger.rewatch_floor(state, account)

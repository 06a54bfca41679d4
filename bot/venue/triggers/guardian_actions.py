"""What a guardian does to the account when it fires at a price or on request. It fires once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bot.venue.accounting import drawdown_floors, ledger, limits
from bot.venue.model import outcome
from bot.venue.model.state import (
    DAY_MS,
    State,
    VenueAccount,
    VenueGuardian,
    VenueMarket,
    VenuePosition,
    guardian_id,
    oid_text,
    trade_id,
)
from bot.venue.orders import exits, open_orders, protection_orders
from bot.venue.prices import index
from bot.venue.protection import guardians
from bot.venue.protection.protection import GuardianEffects, emit_guardian

BLOCKING: Final = ("flatten", "block_opens")


@dataclass(slots=True)
class KillEffects:
    """The guardian of a kill, the orders that it canceled and the trades that it closed positions with."""

    guardian: VenueGuardian
    canceled: tuple[str, ...]
    trades: tuple[str, ...]


def act(
    state: State, account: VenueAccount, guardian: VenueGuardian, action: str, reason: str, *, kind: str = "guardian"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Emit the `fired` event, then cancel entries and close positions as `action` says.

    Returns the orders canceled and the trades made.
    """
    # The event comes before its effects and lists them: each exit below makes one trade, in this order.
    sweeps = action in ("cancel_orders", "flatten")
    entries = (
        [entry for entry in open_orders.entries(account) if limits.reaches(state, guardian, entry.coin)]
        if sweeps
        else []
    )
    gone = tuple(oid_text(account, order.number) for order in entries)
    leaving = _staying(state, account, guardian) if action == "flatten" else []
    trades = tuple(trade_id(account, account.trade_seq + n) for n in range(1, len(leaving) + 1))
    value, effects = ledger.account_value(state, account), GuardianEffects(action, gone, trades)
    emit_guardian(state, account, guardian, "fired", reason=reason, value=value, effects=effects)
    open_orders.cancel_each(state, account, entries, kind)
    for (position, size), trade in zip(leaving, trades, strict=True):
        market = state.markets[position.coin]
        by = guardian_id(account, guardian.number)
        exit_trade = exits.force_exit(
            state, account, market, position, size=size, kind=kind, ref_px=market.mid, guardian=by
        )
        assert exit_trade.id == trade
    return gone, trades


def _staying(state: State, account: VenueAccount, guardian: VenueGuardian) -> list[tuple[VenuePosition, int]]:
    """Positions that the guardian may close, each without the size that a working exit closes already."""
    held = [position for position in account.positions.values() if limits.reaches(state, guardian, position.coin)]
    left = [(position, exits.unclosed(state, account, position)) for position in held]
    return [(position, size) for position, size in left if size]


def fire_trail(state: State, account: VenueAccount, market: VenueMarket, guardian: VenueGuardian, ref_px: int) -> None:
    """The price reached the trailing stop: close reduce-only around `ref_px`."""
    if account.exchange is not None:
        protection_orders.reach(state, account, market.spec.coin, "stop_loss", guardian)
        return
    index.unwatch_trail(market, guardian)
    exits.close_position(state, account, market, guardian, ref_px, "trail")


def move_trail(state: State, account: VenueAccount, market: VenueMarket, guardian: VenueGuardian, px: int) -> None:
    """Move the stop after a new extreme or the activation. It never loosens."""
    index.unwatch_trail(market, guardian)
    woke = not guardian.active
    guardian.active, guardian.extreme = True, px
    stop = outcome.clamp(market.spec, guardians.trail_stop(guardian))
    if guardian.stop_px is None or (stop - guardian.stop_px) * guardian.side > 0:
        guardian.stop_px = stop
    guardian.born = market.point
    index.watch_trail(market, guardian)
    if woke:
        emit_guardian(state, account, guardian, "activated", mark=px)
    if account.exchange is not None:
        protection_orders.settle_coin(state, account, market.spec.coin)


def fire_drawdown(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
    """The day's loss reached its maximum: do the action, and block openings until 00:00 UTC."""
    guardian.status, guardian.blocks_opens = "latched", True
    exits.count_fire(state, guardian)
    guardian.deadline_ms = state.now_ms // DAY_MS * DAY_MS + DAY_MS
    index.schedule_guardian(state, account, guardian)
    act(state, account, guardian, guardian.spec.action or "flatten", "drawdown")
    ledger.rewatch_floor(state, account)


def touch_floor(state: State, account: VenueAccount, market: VenueMarket) -> None:
    """A position has used up its share of the slack above the floor: check the account's value at this price."""
    value = ledger.account_value(state, account)
    if drawdown_floors.is_rolling(state) or not drawdown_floors.armed(account):
        drawdown_floors.rewatch(state, account, value)
        return
    breached = drawdown_floors.breached(account, value)
    for guardian in breached:
        fire_drawdown(state, account, guardian)
    if not breached:
        drawdown_floors.widen(state, account, market, value)


def begin_day(state: State) -> None:
    """00:00 UTC: store the account value that the day's loss is measured from, for each account with a position or a
    floor.
    """
    state.next_day_ms = 0
    is_stored = False
    for account in state.accounts.values():
        if account.positions or drawdown_floors.is_watched(account):
            is_stored = True
            drawdown_floors.begin_day(account, state.now_ms, ledger.account_value(state, account))
            ledger.rewatch_floor(state, account)
    if is_stored:
        index.schedule_day(state)


def kill(state: State, account: VenueAccount, guardian: VenueGuardian) -> KillEffects:
    """Act now and block openings until a caller disarms the guardian."""
    guardian.status, guardian.blocks_opens, guardian.deadline_ms = "latched", True, None
    exits.count_fire(state, guardian)
    canceled, trades = act(state, account, guardian, guardian.spec.action or "cancel_orders", "manual", kind="kill")
    return KillEffects(guardian, canceled, trades)

"""Take over a position that another hand opened (`foreign_positions: adopt`), or decline it and say why.

A position is adopted only when a stop stands under it that fires before the liquidation price. If it has none, the
daemon first arms a trailing stop at `adopted_stop_pct`. Without that distance, if it reaches beyond the liquidation
price, or if the service refuses the stop, the position stays as it is: open, without an owner, in a market where
nothing is opened. The same holds for an adopted position that loses its stop. The daemon never closes it for that
reason, because no order of ours opened it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bot.errors import Refused
from bot.logs import log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from bot.runtime.account.account import DaemonAccount
    from bot.runtime.model.positions import AccountPosition
    from bot.runtime.reconciliation.daemon_run import DaemonRun
    from bot.runtime.reconciliation.repair_actions import RepairActions
    from bot.wire import Guardian, Position


async def adopt(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, position: AccountPosition, strategy: str
) -> None:
    """Make the strategy the owner of a position without an owner, once it has a stop. Otherwise decline it."""
    market = position.market
    if run.requires_protection_of(strategy):
        theirs = next((held for held in (await actions.port.account()).positions if held.coin == market), None)
        if theirs is None or theirs.side != position.side:
            # The position was closed just now. The next comparison judges what is there then.
            return
        why = await _why_uncovered(run, account, actions, position, theirs)
        if why is not None:
            decline(run, account, market, why)
            return
    if market not in account.account_state.positions or account.account_state.positions[market].owner is not None:
        # The events that were read meanwhile have closed it, or have named its owner.
        return
    account.account_state.adopt(market, strategy, is_adopted=True)
    account.foreign_activity.known_markets.discard(market)
    account.foreign_activity.declined_markets.discard(market)
    log.warning("position.adopted", market=market, strategy=strategy, side=position.side, size=position.size)


def decline(run: DaemonRun, account: DaemonAccount, market: str, why: str) -> None:
    """Leave the position to the hand that opened it: nothing is opened in its market, and nothing is closed."""
    if account.account_state.positions[market].owner is not None:
        account.position_owners.disown(market)
    run.health.forget_bare(market)
    account.foreign_activity.known_markets.add(market)
    if market in account.foreign_activity.declined_markets:
        # Told already. A stop that cannot fire is judged again in each comparison.
        return
    account.foreign_activity.declined_markets.add(market)
    message = (
        f"the {market} position was not opened by us and has no working stop: {why}. It stays open and is not adopted;"
        f" nothing is opened in {market}. Give it a stop, close it, or set safety.adopted_stop_pct"
    )
    run.health.incident("adoption.declined", market, market=market, message=message)


async def _why_uncovered(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, position: AccountPosition, theirs: Position
) -> str | None:
    """Why no stop can close this position, although the stop of the config's distance was asked for.

    None if one can.
    """
    market, trail_pct, liquidation_px = position.market, run.settings.adopted_stop_pct, theirs.liquidation_px
    # Only the list says if a trailing stop is active, and where it is.
    listed = await actions.guardians.listed()
    trails = [
        guardian
        for guardian in listed
        if guardian.type == "trailing_stop" and guardian.coin == market and guardian.status != "latched"
    ]
    is_trailed = any(trail.active and position.can_fire(trail.stop_px, liquidation_px) for trail in trails)
    if is_trailed or account.account_state.is_stopped(position, liquidation_px):
        return None
    if trail_pct is None:
        is_dead = account.account_state.is_protected(market)
        return f"its stop lies {_beyond(theirs)}" if is_dead else "the config gives no distance for one"
    return _why_dead(position, theirs, trail_pct) or await _arm(account, actions, position, trail_pct, listed)


async def why_dead(actions: RepairActions, position: AccountPosition, trail_pct: Decimal) -> str | None:
    """Why a trailing stop that is armed now at this distance could never close the position. None if it could."""
    theirs = next((held for held in (await actions.port.account()).positions if held.coin == position.market), None)
    return None if theirs is None else _why_dead(position, theirs, trail_pct)


def _why_dead(position: AccountPosition, theirs: Position, trail_pct: Decimal) -> str | None:
    if theirs.mark_px is None:
        return None
    away = theirs.mark_px * trail_pct / 100
    stop_px = theirs.mark_px - away if position.side == "long" else theirs.mark_px + away
    can_fire = position.can_fire(stop_px, theirs.liquidation_px)
    return None if can_fire else f"one at {trail_pct} % would lie {_beyond(theirs)}"


def _beyond(theirs: Position) -> str:
    return f"beyond the liquidation price {theirs.liquidation_px}, which the price reaches first"


async def _arm(
    account: DaemonAccount,
    actions: RepairActions,
    position: AccountPosition,
    trail_pct: Decimal,
    listed: Sequence[Guardian],
) -> str | None:
    """Arm the stop of the config's distance. Returns why there is none; None if the service has taken it."""
    try:
        await actions.guardians.cover(position, trail_pct, listed, epoch=account.account_state.epoch)
    except Refused as error:
        log.warning("repair.refused", market=position.market, code=error.code, message=error.message)
        return f"the service refuses one at {trail_pct} % ({error.code}: {error.message})"
    await actions.drain()
    return None

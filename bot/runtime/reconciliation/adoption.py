"""Take over a position that another hand opened (`foreign_positions: adopt`), or decline it and say why.

A position is adopted only when a stop stands under it. If it has none, the daemon first arms a trailing stop at `adopted_stop_pct`. Without
that distance, or if the service refuses the stop, the position stays as it is: open, without an owner, in a market where nothing is
opened. The same holds for an adopted position that loses its stop. The daemon never closes it for that reason, because no order of ours opened it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from bot.errors import Refused

if TYPE_CHECKING:
    from bot.runtime.model.positions import MirrorPosition
    from bot.runtime.reconciliation.context import RepairContext

log = structlog.get_logger()


async def adopt(context: RepairContext, position: MirrorPosition, strategy: str) -> None:
    """Make the strategy the owner of a position without an owner, once it has a stop. Otherwise decline it."""
    market = position.market
    if context.requires_protection_of(strategy) and not await _is_covered(context, market):
        why = await _why_uncovered(context, position)
        if why is not None:
            decline(context, market, why)
            return
    if market not in context.mirror.positions or context.mirror.positions[market].owner is not None:
        return  # The events that were read meanwhile have closed it, or have named its owner.
    context.mirror.adopt(market, strategy, is_adopted=True)
    context.foreign_activity.known_markets.discard(market)
    context.foreign_activity.declined_markets.discard(market)
    log.warning("position.adopted", market=market, strategy=strategy, side=position.side, size=position.size)


def decline(context: RepairContext, market: str, why: str) -> None:
    """Leave the position to the hand that opened it: nothing is opened in its market, and nothing is closed."""
    if context.mirror.positions[market].owner is not None:
        context.position_owners.disown(market)
    context.health.forget_bare(market)
    context.foreign_activity.known_markets.add(market)
    context.foreign_activity.declined_markets.add(market)
    message = (
        f"the {market} position was not opened by us and has no stop: {why}. It stays open and is not adopted; nothing is opened in {market}."
        " Give it a stop, close it, or set safety.adopted_stop_pct"
    )
    context.health.incident("adoption.declined", market, market=market, message=message)


async def _is_covered(context: RepairContext, market: str) -> bool:
    if context.mirror.is_unsure_of(market):
        await context.guardians.listed()  # Only the list says if its trailing stop is active.
    return context.mirror.is_protected(market)


async def _why_uncovered(context: RepairContext, position: MirrorPosition) -> str | None:
    """Arm the stop of the config's distance. Returns why there is none; None if the service has taken it."""
    trail_pct = context.adopted_stop_pct
    if trail_pct is None:
        return "the config gives no distance for one"
    listed = await context.guardians.listed()  # A list that cannot be read is no refusal of the stop.
    try:
        await context.guardians.cover(position, trail_pct, listed, epoch=context.mirror.epoch)
    except Refused as error:
        log.warning("repair.refused", market=position.market, code=error.code, message=error.message)
        return f"the service refuses one at {trail_pct} % ({error.code}: {error.message})"
    await context.events.drain()
    return None

"""Claiming: what the account holds by an order of ours that the journal does not know, because the file was lost. Evidence only, no guess.

A key is a hash of its decision (intents.py), so whoever can spell the decision has made the key: strategy, bar and
ordinal are tried for the bars around the order. What another hand did has no such spelling and stays foreign.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import TYPE_CHECKING, Final

import structlog

from bot.runtime.gate import FRESH_INTERVALS
from bot.runtime.intents import intent_key
from bot.runtime.legs import LEGS
from bot.runtime.timers import instants
from bot.wire import INTERVAL_MS

if TYPE_CHECKING:
    from bot.runtime.loop import Loop
    from bot.runtime.mirror import MirrorPosition
    from bot.runtime.seats import Seat
    from bot.wire import AccountSnapshot

log = structlog.get_logger()

ORDINALS: Final = 10  # of one decision; more intents on one bar are rare, and then the position stays foreign
INSTANTS: Final = 500  # of one timer; more often than that in so short a time is a clock, not a decision
TRADES_PAGE: Final = 200  # the interface's bound on ?limit


def claim_orders(loop: Loop, snapshot: AccountSnapshot) -> None:
    """Know again the resting entries whose keys are ours."""
    for order in snapshot.orders:
        if order.idempotency_key is not None and loop.owner_of(order.idempotency_key) is None:
            claimed(loop, order.idempotency_key, order.coin, order.created_at or loop.now_ms())


async def claim_positions(loop: Loop) -> None:
    """Give every position without an owner to the strategy that made the key of its entry, also of one that rested first."""
    for position in list(loop.mirror.positions.values()):
        if position.owner is None and position.market not in loop.foreign_known:
            owner = await _owner_of(loop, position)
            if owner is not None:
                loop.mirror.adopt(position.market, owner)
                log.warning("position.claimed", market=position.market, strategy=owner)


async def _owner_of(loop: Loop, position: MirrorPosition) -> str | None:
    """By the trades since it was opened, one page of them: an older or busier one is a person's to look at."""
    page = await loop.port.trades(limit=TRADES_PAGE, coin=position.market)
    for trade in page.trades:
        at_ms = trade.ts or position.opened_ms
        # A resting entry was decided before the position that it became; its last fill was not.
        filled_ms = max(at_ms, trade.updated_at or 0)
        if trade.idempotency_key is None or trade.intent != "open" or filled_ms < position.opened_ms:
            continue
        owner = loop.owner_of(trade.idempotency_key) or claimed(loop, trade.idempotency_key, position.market, at_ms)
        if owner is not None:
            return owner
    return None


def claimed(loop: Loop, key: str, market: str, at_ms: int) -> str | None:
    """The strategy whose decision around that instant spells this key."""
    for seat in loop.desk.seats:
        if market not in seat.markets:  # The gate lets nobody trade in another's market.
            continue
        for trigger in _triggers(loop, seat, at_ms):
            for ordinal, leg in product(range(ORDINALS), LEGS):
                made = intent_key(
                    address=loop.journal.address, epoch=loop.mirror.epoch, strategy=seat.name, market=market, trigger=trigger,
                    ordinal=ordinal, leg=leg,
                )  # fmt: skip
                if made == key:
                    loop.owners[key] = seat.name
                    return seat.name
    return None


def _triggers(loop: Loop, seat: Seat, at_ms: int) -> Iterator[str]:
    """Bars on which an order of that instant can have been decided."""
    step = INTERVAL_MS[seat.interval]
    last = at_ms // step * step
    first = at_ms - FRESH_INTERVALS * step - loop.hold_ms(FRESH_INTERVALS * step)
    for close_ms in range(last, first, -step):
        for market in seat.strategy.markets:
            yield f"bar:{market}:{close_ms}"
    for name, spec in seat.strategy.timers.items():
        for due_ms in islice(instants(spec, first, at_ms), INSTANTS):
            yield f"timer:{name}:{due_ms}"

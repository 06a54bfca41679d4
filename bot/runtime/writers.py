"""Foreign writers: another agent that trades on this account. Orders whose keys are not ours are noted, and their trades say who made them.

A person at the dashboard is no writer in this sense, and what the service does by itself has no source. What another agent
has done is treated as foreign_positions says; that there is one keeps entries out of all markets until a person looks (`bot resume`) or the account is reset, over a restart too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from bot.runtime.claiming import claimed
from bot.runtime.safety import FOREIGN
from bot.wire import TRADES_PAGE_MAX

if TYPE_CHECKING:
    from bot.runtime.loop import Loop
    from bot.wire import Event

log = structlog.get_logger()

TYPES: Final = ("fill", "order")  # with one of these subtypes: a fill, or an order that rests
SUBTYPES: Final = ("entry", "exit", "open")
SOURCES: Final = frozenset({"agent", "api"})
BY_REQUEST: Final = frozenset(
    {"market", "limit", "close"}
)  # kinds of order that somebody asks for; stops fire by themselves
WAITING_MAX: Final = 100  # orders that are looked at together; of a flood the first ones tell enough


class Strangers:
    """Trades of orders that are not ours, until somebody has looked at them: trade id -> (market, key, instant)."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[str, str | None, int]] = {}

    def see(self, event: Event, owner_of: Callable[[str], str | None]) -> None:
        """Note a fill or an order that rests, when its key is not in our journal."""
        if event.subtype not in SUBTYPES or event.type not in TYPES:
            return
        data = event.data
        if data.trade_id is None or data.kind not in BY_REQUEST or len(self.waiting) >= WAITING_MAX:
            return
        key = event.idempotency_key
        if key is None or owner_of(key) is None:
            self.waiting[data.trade_id] = (event.coin or "", key, event.ts)


async def look_closer(loop: Loop) -> None:
    """Ask who made them. One page of trades a market: it is looked at within a pass of their coming."""
    if not loop.strangers.waiting:
        return
    for market in sorted({market for market, _, _ in loop.strangers.waiting.values()}):
        if not loop.has_time():
            return  # The rest of them wait for the next pass.
        page = await loop.port.trades(limit=TRADES_PAGE_MAX, coin=market)
        trades = {trade.id: trade for trade in page.trades}
        for trade_id, (of_market, key, at_ms) in list(loop.strangers.waiting.items()):
            if of_market != market:
                continue
            del loop.strangers.waiting[trade_id]
            trade = trades.get(trade_id)
            if trade is None or trade.source not in SOURCES:
                continue
            key = key or trade.idempotency_key  # Events may show none where trades do.
            if (key is None and not loop.mirror.keys_proven) or (
                key is not None and _is_ours(loop, key, market, at_ms)
            ):
                continue
            message = f"trade {trade_id} was made by another {trade.source} on this account"
            loop.health.incident("account.foreign", trade_id, market=market, message=message)
            loop.health.degrade(FOREIGN, f"{message}; no entries until bot resume")


def _is_ours(loop: Loop, key: str, market: str, at_ms: int) -> bool:
    """In the journal by now, or a decision of ours that the journal has lost."""
    return loop.owner_of(key) is not None or claimed(loop, key, market, at_ms) is not None

"""Keeps the open orders of an account. The exchange sends states (all open orders of a dex) and changes (one order);
any message may be lost. Pure.

Each change is reported once. If two states of a dex, at least 2 s apart, both lack an order, its end was lost, and the
link looks the order up. One state alone proves nothing, because it may be older than the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from bot.clock import SECOND_MS
from bot.exchanges.hyperliquid.form import dex_of
from bot.exchanges.protocol import ORDER_ENDS, OpenOrders, OrderUpdate

ABSENT_MS: Final = 2 * SECOND_MS
# Reported changes whose copies are still recognised; those of one block are few, and a copy comes soon.
KEPT: Final = 2_000
Key = TypeVar("Key")


@dataclass(slots=True)
class WatchedOrder:
    """`absent_ms`: since when the states of its dex lack it; None: the newest state has it."""

    market: str
    absent_ms: int | None = None
    is_due: bool = False


class OrderWatch:
    """The orders of one account."""

    def __init__(self) -> None:
        self._open: dict[str, WatchedOrder] = {}
        self._reported: dict[tuple[str, str, int], None] = {}
        self._ended: dict[str, None] = {}

    def hear(self, update: OrderUpdate) -> list[OrderUpdate]:
        """Take a change. Returns it if it is new."""
        if update.key in self._reported:
            return []
        _keep(self._reported, update.key)
        if update.state in ORDER_ENDS:
            self._open.pop(update.order_id, None)
            _keep(self._ended, update.order_id)
        elif update.order_id not in self._ended:
            self._open.setdefault(update.order_id, WatchedOrder(update.market))
        return [update]

    def see(self, state: OpenOrders, now_ms: int) -> None:
        """Take the open orders of a dex."""
        told = {order.order_id: order for order in state.orders}
        for order_id, order in told.items():
            # A state that has an ended order is older than its end.
            if order_id not in self._ended:
                self._open[order_id] = WatchedOrder(order.market)
        for order_id, watched in self._open.items():
            if order_id in told or dex_of(watched.market) != state.group:
                continue
            if watched.absent_ms is None:
                watched.absent_ms = now_ms
            elif now_ms - watched.absent_ms >= ABSENT_MS:
                watched.is_due = True

    @property
    def due(self) -> Sequence[str]:
        """The orders to look up."""
        return [order_id for order_id, watched in self._open.items() if watched.is_due]

    def looked_up(self, order_id: str, update: OrderUpdate | None, now_ms: int) -> list[OrderUpdate]:
        """Take what the exchange says about an order; None: it does not know it, or not yet."""
        watched = self._open.get(order_id)
        if watched is not None:
            watched.absent_ms, watched.is_due = now_ms, False
        if update is None:
            return []
        if update.state == "triggered":
            # A triggered order goes on under another id, which the reported states have.
            self._open.pop(order_id, None)
            _keep(self._ended, order_id)
        return self.hear(update)


def _keep(kept: dict[Key, None], key: Key) -> None:
    """Add a key, and drop the oldest one beyond the limit."""
    kept[key] = None
    if len(kept) > KEPT:
        del kept[next(iter(kept))]

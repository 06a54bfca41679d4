"""The order book of one market: resting orders of accounts in price-time order, and the ladder of the other
participants around the price.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from bot.local_exchange.engine.records import ExchangeOrder

BOOK_LEVELS = 20


class BookLevel(NamedTuple):
    """Size and number of orders at one price."""

    px: int
    size: int
    orders: int


@dataclass(slots=True)
class Book:
    """`bids` and `asks` are sorted, best first, as (key, order) with key = (signed price, oid).

    `ladder` has [px, size] of the others, best first.
    """

    bids: list[tuple[tuple[int, int], ExchangeOrder]] = field(default_factory=list)
    asks: list[tuple[tuple[int, int], ExchangeOrder]] = field(default_factory=list)
    ladder: tuple[list[list[int]], list[list[int]]] = field(default_factory=lambda: ([], []))
    last_px: int = 0
    # something of the ladder has been taken since it was laid
    is_taken: bool = False

    def side(self, *, buy: bool) -> list[tuple[tuple[int, int], ExchangeOrder]]:
        return self.bids if buy else self.asks

    def add(self, order: ExchangeOrder) -> None:
        insort(self.side(buy=order.buy), (_key(order), order), key=_first)
        order.in_book = True

    def drop(self, order: ExchangeOrder) -> None:
        orders = self.side(buy=order.buy)
        at = bisect_left(orders, _key(order), key=_first)
        assert orders[at][1] is order, order
        del orders[at]
        order.in_book = False

    def lay(self, ladder: tuple[list[list[int]], list[list[int]]]) -> None:
        """Lay the others' ladder anew. It never crosses a resting order."""
        bids, asks = ladder
        if self.asks:
            bids = [level for level in bids if level[0] < self.asks[0][1].px]
        if self.bids:
            asks = [level for level in asks if level[0] > self.bids[0][1].px]
        self.ladder = (bids, asks)
        self.is_taken = False

    def best(self, *, buy: bool) -> int | None:
        """The best price of a side; None if the side is empty."""
        orders, others = self.side(buy=buy), self.ladder[0 if buy else 1]
        prices = ([orders[0][1].px] if orders else []) + ([others[0][0]] if others else [])
        if not prices:
            return None
        return max(prices) if buy else min(prices)

    def crosses(self, px: int, *, buy: bool) -> bool:
        """True if an order at this price would meet the other side."""
        best = self.best(buy=not buy)
        return best is not None and (px >= best if buy else px <= best)

    def levels(self, *, buy: bool, fewest: int = BOOK_LEVELS) -> list[BookLevel]:
        """The best levels of a side, accounts and others together."""
        sums: dict[int, list[int]] = {}
        for _, order in self.side(buy=buy):
            level = sums.setdefault(order.px, [0, 0])
            level[0] += order.sz
            level[1] += 1
        for px, size in self.ladder[0 if buy else 1]:
            level = sums.setdefault(px, [0, 0])
            level[0] += size
            level[1] += 1
        return [BookLevel(px, *sums[px]) for px in sorted(sums, reverse=buy)[:fewest]]

    def depth(self, *, buy: bool) -> Iterator[tuple[int, int]]:
        for level in self.levels(buy=buy, fewest=1_000_000):
            yield level.px, level.size


def _key(order: ExchangeOrder) -> tuple[int, int]:
    return (-order.px if order.buy else order.px, order.oid)


def _first(entry: tuple[tuple[int, int], ExchangeOrder]) -> tuple[int, int]:
    return entry[0]

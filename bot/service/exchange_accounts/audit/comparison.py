"""What the books of the service have otherwise than those of the exchange. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bot.clock import iso
from bot.money import format_e8
from bot.service.exchange_accounts.audit.books import AccountBooks, BookedFill, BookedOrder, BookedPayment


@dataclass(frozen=True, slots=True)
class BookDifference:
    """One difference: which check, what it is about, and both sides in words. `market` is empty if it concerns all."""

    check: str
    name: str
    here: str
    there: str
    market: str = ""


def differences(ours: AccountBooks, theirs: AccountBooks) -> list[BookDifference]:
    """All differences, in the order of the checks."""
    return [
        *_cash(ours.cash, theirs.cash),
        *_sizes(ours.sizes, theirs.sizes),
        *_rows("fill", ours.fills, theirs.fills),
        *_rows("funding", ours.funding, theirs.funding),
        *_rows("transfer", ours.transfers, theirs.transfers),
        *_orders(ours, theirs),
        *_value(ours),
        *_margins(ours, theirs),
    ]


def _cash(ours: int, theirs: int) -> Iterator[BookDifference]:
    if ours != theirs:
        yield BookDifference("cash", "USD", format_e8(ours), format_e8(theirs))


def _sizes(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Iterator[BookDifference]:
    for market in sorted({*ours, *theirs}):
        here, there = ours.get(market, 0), theirs.get(market, 0)
        if here != there:
            yield BookDifference("size", market, format_e8(here), format_e8(there), market)


def _rows(check: str, ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[BookDifference]:
    """Rows that only one side has. Two of one market and instant are one row that was altered."""
    here, there = Counter(ours), Counter(theirs)
    only_here = sorted((here - there).elements())
    only_there = sorted((there - here).elements())
    for row in only_there:
        altered = next((known for known in only_here if _place(known) == _place(row)), None)
        if altered is not None:
            only_here.remove(altered)
        here_text = "missing" if altered is None else _text(altered)
        yield BookDifference(check, _name(row), here_text, _text(row), row.market)
    for row in only_here:
        yield BookDifference(check, _name(row), _text(row), "missing", row.market)


def _place(row: BookedFill | BookedPayment) -> tuple[str, int]:
    return row.market, row.at_ms


def _name(row: BookedFill | BookedPayment) -> str:
    return f"{row.market} {iso(row.at_ms)}".strip()


def _text(row: BookedFill | BookedPayment) -> str:
    if isinstance(row, BookedPayment):
        return f"{format_e8(row.amount)} USD"
    verb = "bought" if row.size > 0 else "sold"
    return f"{verb} {format_e8(abs(row.size))} at {format_e8(row.px)}, fee {format_e8(row.fee)}"


def _orders(ours: AccountBooks, theirs: AccountBooks) -> Iterator[BookDifference]:
    for order_id in sorted({*ours.orders, *theirs.orders}):
        here, there = ours.orders.get(order_id), theirs.orders.get(order_id)
        follows = here is not None and there is not None and there.size is None
        same = (here.market, here.buy, here.px) == (there.market, there.buy, there.px) if here and there else False
        if not same or not (follows or here == there):
            market = (here or there or BookedOrder("", 1, 0, None)).market
            yield BookDifference("order", order_id, _order_text(here), _order_text(there), market)


def _order_text(order: Any) -> str:
    if order is None:
        return "missing"
    size = "the position" if order.size is None else format_e8(order.size)
    return f"{'buy' if order.buy > 0 else 'sell'} {size} {order.market} at {format_e8(order.px)}"


def _value(ours: AccountBooks) -> Iterator[BookDifference]:
    """The cash of our books against the sum of their rows. The same comparison at the exchange's marks would add the
    same unrealized profit to both sides, so no mark is read.
    """
    if ours.sum is not None and ours.sum != ours.cash:
        yield BookDifference("value", "USD", format_e8(ours.cash), format_e8(ours.sum))


def _margins(ours: AccountBooks, theirs: AccountBooks) -> Iterator[BookDifference]:
    for market in sorted({*ours.margins} & {*theirs.margins}):
        here, there = ours.margins[market], theirs.margins[market]
        if here != there:
            yield BookDifference("margin", market, _margin_text(here), _margin_text(there), market)


def _margin_text(margin: tuple[int, bool]) -> str:
    return f"{margin[0]}x {'isolated' if margin[1] else 'cross'}"

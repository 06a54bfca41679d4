"""The books of an account as its exchange tells them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bot.exchanges.protocol import AccountReading, OrderReport
from bot.service.exchange_accounts.audit.books import AccountBooks, BookedFill, BookedOrder, BookedPayment, hour_of
from bot.wire.vocabulary import bare_coin


@dataclass(frozen=True, slots=True)
class ToldBooks:
    """`at_ms`: the exchange's instant before the rows were read. `is_cut`: it does not keep all fills any more."""

    books: AccountBooks
    at_ms: int
    is_cut: bool


def told_books(reading: AccountReading) -> ToldBooks:
    """The books that a reading shows."""
    positions = [position for standing in reading.standings for position in standing.positions]
    funding = {report.key: report for report in reading.funding}
    transfers = {report.key: report for report in reading.transfers}
    books = AccountBooks(
        cash=sum(standing.cash for standing in reading.standings),
        sizes={bare_coin(position.market): position.signed_size for position in positions},
        fills=[
            BookedFill(bare_coin(row.market), row.at_ms, row.size if row.is_buy else -row.size, row.px, row.fee)
            for row in reading.fills
        ],
        funding=[BookedPayment(bare_coin(row.market), hour_of(row.at_ms), row.amount) for row in funding.values()],
        transfers=[BookedPayment("", row.at_ms, row.amount) for row in transfers.values() if row.amount is not None],
        orders={
            order.order_id: _waiting(order)
            for order in reading.orders
            if order.kind != "market" and not order.is_waiting
        },
        margins={bare_coin(position.market): (position.leverage, position.is_isolated) for position in positions},
    )
    return ToldBooks(books, reading.at_ms, reading.is_cut)


def _waiting(order: OrderReport) -> BookedOrder:
    px = order.px if order.trigger_px is None else order.trigger_px
    return BookedOrder(bare_coin(order.market), 1 if order.is_buy else -1, px, order.size or None)

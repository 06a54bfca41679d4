"""The books of an account as its exchange tells them."""

from __future__ import annotations

from dataclasses import dataclass

from bot.cli.audit.books import AccountBooks, BookedFill, BookedOrder, BookedPayment, hour_of
from bot.clock import DAY_MS
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.hyperliquid.form import MAIN_DEX
from bot.exchanges.protocol import OrderReport, TransferReport
from bot.wire.vocabulary import bare_coin


@dataclass(frozen=True, slots=True)
class ToldBooks:
    """`is_cut`: the exchange does not keep all fills of this time any more."""

    books: AccountBooks
    value: int
    unrealized: tuple[int, ...]
    is_cut: bool


async def told_books(account: HyperliquidAccount, begin_ms: int) -> ToldBooks:
    """What happened after `begin_ms`, and what there is now. The answers are read one after the other."""
    dexes = [MAIN_DEX, *await account.dex_names()]
    first = await account.standing()
    end_ms = first.at_ms + DAY_MS
    fills = await account.fills(begin_ms + 1, end_ms)
    funding = {report.key: report for report in await account.funding(begin_ms + 1, end_ms)}
    ledger = {report.key: report for report in await account.ledger(begin_ms + 1, end_ms)}
    orders = [order for dex in dexes for order in await account.open_orders(dex)]
    standings = [await account.standing(dex) for dex in dexes]
    positions = [position for standing in standings for position in standing.positions]
    books = AccountBooks(
        cash=sum(standing.cash for standing in standings),
        sizes={bare_coin(position.market): position.signed_size for position in positions},
        fills=[
            BookedFill(bare_coin(row.market), row.at_ms, row.size if row.is_buy else -row.size, row.px, row.fee)
            for row in fills.reports
        ],
        funding=[BookedPayment(bare_coin(row.market), hour_of(row.at_ms), row.amount) for row in funding.values()],
        transfers=[
            BookedPayment("", row.at_ms, row.amount)
            for row in ledger.values()
            if isinstance(row, TransferReport) and row.amount is not None
        ],
        orders={order.order_id: _waiting(order) for order in orders if order.kind != "market" and not order.is_waiting},
        margins={bare_coin(position.market): (position.leverage, position.is_isolated) for position in positions},
    )
    unrealized = tuple(position.unrealized for position in positions)
    return ToldBooks(books, sum(standing.value for standing in standings), unrealized, fills.is_cut)


def _waiting(order: OrderReport) -> BookedOrder:
    px = order.px if order.trigger_px is None else order.trigger_px
    return BookedOrder(bare_coin(order.market), 1 if order.is_buy else -1, px, order.size or None)

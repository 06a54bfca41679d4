"""The commands that a report of the link needs. Pure: reads the account, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bot.errors import BotError
from bot.exchanges.protocol import (
    ORDER_ENDS,
    AccountReport,
    AccountStanding,
    ExecutionReport,
    FundingReport,
    LinkState,
    OpenOrders,
    OrderReport,
    OrderUpdate,
    PositionReport,
    TransferReport,
)
from bot.venue.exchange.money import fresh_margins
from bot.venue.exchange.order_reports import VENUE, is_news
from bot.venue.model import commands as c
from bot.venue.model.state import ExchangePosition, ReportedExecution, ReportedOrder, VenueAccount
from bot.wire.vocabulary import bare_coin

# Orders of the exchange that the venue shows; a market order never waits.
ORDER_KINDS: Final = {"limit": "limit", "stop": "stop_loss", "target": "take_profit"}


class UnlistedMarket(BotError):
    """A report is about a market that this service does not list, so nothing more of the account can be booked."""


@dataclass(frozen=True, slots=True)
class MarketNames:
    """The coins of this service by the names that the exchange has for them."""

    symbols: Mapping[str, str]
    listed: Mapping[str, object]

    def coin(self, market: str) -> str:
        coin = self.symbols.get(market) or bare_coin(market)
        if coin not in self.listed:
            raise UnlistedMarket(
                f"{market}: the account trades this market, and this service does not list it; start the service with a"
                f" new database and --markets with {coin}"
            )
        return coin


def commands_of(report: AccountReport, account: VenueAccount, names: MarketNames) -> Iterator[c.Command]:
    """The commands of one report; none if it says nothing new, or nothing that the venue keeps."""
    if isinstance(report, ExecutionReport):
        yield c.BookExecution(account.id, _execution(report, names))
    elif isinstance(report, FundingReport):
        coin = names.coin(report.market)
        yield c.BookFunding(account.id, coin, report.at_ms, report.amount, report.signed_size, report.rate)
    elif isinstance(report, TransferReport):
        # One without an amount shows in the cash of the next standing alone.
        if report.amount is not None:
            yield c.BookTransfer(account.id, report.transfer_id, report.at_ms, report.kind, report.amount)
    elif isinstance(report, OpenOrders):
        for order in report.orders:
            if (told := _order(order, names)) is not None and is_news(account, told):
                yield c.SeeReportedOrder(account.id, told)
    elif isinstance(report, OrderUpdate):
        if report.state in ORDER_ENDS:
            reason = None if report.state == "filled" else report.reason or VENUE
            yield c.EndReportedOrder(account.id, report.order_id, report.at_ms, reason, report.client_order_id)
    elif isinstance(report, AccountStanding):
        if fresh := fresh_margins(account, tuple(position(reported, names) for reported in report.positions)):
            yield c.SeeMargins(account.id, fresh)
    elif isinstance(report, LinkState):
        yield c.SeeLink(account.id, report.phase, report.reason)


def _execution(report: ExecutionReport, names: MarketNames) -> ReportedExecution:
    return ReportedExecution(
        coin=names.coin(report.market),
        at_ms=report.at_ms,
        trade_id=report.trade_id,
        order_id=report.order_id,
        client_order_id=report.client_order_id,
        buy=1 if report.is_buy else -1,
        size=report.size,
        px=report.px,
        fee=report.fee,
        before=report.position_before,
        maker=not report.is_taker,
        # A backstop that is reported as a fill is booked as one.
        kind="liquidation" if report.is_liquidation else report.kind,
    )


def _order(order: OrderReport, names: MarketNames) -> ReportedOrder | None:
    kind = ORDER_KINDS.get(order.kind)
    if kind is None or order.is_waiting:
        return None
    return ReportedOrder(
        order_id=order.order_id,
        client_order_id=order.client_order_id,
        coin=names.coin(order.market),
        buy=1 if order.is_buy else -1,
        kind=kind,
        size=order.size,
        px=order.px,
        trigger_px=order.trigger_px,
        reduce_only=order.is_reduce_only,
        placed_ms=order.placed_ms,
    )


def position(report: PositionReport, names: MarketNames) -> ExchangePosition:
    """A position with its margin at cost: what an exchange tells of an isolated one contains its unrealized profit."""
    return ExchangePosition(
        coin=names.coin(report.market),
        size=report.signed_size,
        entry_px=report.entry_px,
        leverage=report.leverage,
        isolated=report.is_isolated,
        margin=report.margin - report.unrealized if report.is_isolated else 0,
        liquidation_px=report.liquidation_px,
    )

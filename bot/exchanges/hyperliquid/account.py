"""Reads an account through a transport: one method for each answer, already in neutral values."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bot.clock import DAY_MS
from bot.exchanges.hyperliquid import form, money_form, order_form
from bot.exchanges.hyperliquid.fill_order import in_order
from bot.exchanges.hyperliquid.fill_pages import FillPages
from bot.exchanges.hyperliquid.form import MAIN_DEX
from bot.exchanges.hyperliquid.money_form import LedgerReport
from bot.exchanges.hyperliquid.row_pages import RowPages
from bot.exchanges.protocol import (
    AccountReading,
    AccountStanding,
    AddressReport,
    AgentReport,
    ExecutionReport,
    FundingReport,
    MarketListing,
    OrderReport,
    OrderUpdate,
    RequestBudget,
    TransferReport,
)

FUNDING: Final = "userFunding"
LEDGER: Final = "userNonFundingLedgerUpdates"


class InfoSource(Protocol):
    """Anything that answers info requests."""

    def info(self, query: Mapping[str, Any]) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class Fills:
    """Fills in the order of execution. `is_cut`: older ones of the range may be missing at the exchange."""

    reports: tuple[ExecutionReport, ...]
    is_cut: bool


class HyperliquidAccount:
    """What the exchange says about one address, and about its markets."""

    def __init__(self, source: InfoSource, address: str) -> None:
        self.address = address.lower()
        self._source = source

    async def _of(self, kind: str, **query: Any) -> Any:
        return await self._source.info({"type": kind, "user": self.address, **query})

    async def dex_names(self) -> list[str]:
        return form.dex_names(await self._source.info({"type": "perpDexs"}))

    async def listings(self, dex: str = MAIN_DEX) -> list[MarketListing]:
        return form.listings(await self._source.info({"type": "meta", "dex": dex}))

    async def exchange_ms(self, market: str) -> int:
        """The exchange's clock, by the newest book of a market."""
        return form.book_time(await self._source.info({"type": "l2Book", "coin": market}))

    async def address_report(self, address: str) -> AddressReport:
        return form.address_report(await self._source.info({"type": "userRole", "user": address}))

    async def agents(self) -> list[AgentReport]:
        return form.agents(await self._of("extraAgents"))

    async def mode(self) -> str:
        return form.account_mode(await self._of("userAbstraction"))

    async def standing(self, dex: str = MAIN_DEX) -> AccountStanding:
        return form.standing(await self._of("clearinghouseState", dex=dex), dex)

    async def open_orders(self, dex: str = MAIN_DEX) -> list[OrderReport]:
        return form.open_orders(await self._of("frontendOpenOrders", dex=dex))

    async def budget(self) -> RequestBudget:
        return form.request_budget(await self._of("userRateLimit"))

    async def fills(self, start_ms: int, end_ms: int) -> Fills:
        """All fills of perpetual markets in this range, both ends included."""
        pages = FillPages(self.address, start_ms, end_ms)
        while (query := pages.query) is not None:
            pages.take(await self._source.info(query))
        return Fills(tuple(in_order(pages.fills)), pages.is_cut)

    async def order(self, name: str) -> OrderUpdate | None:
        """The newest change of an order by the exchange's id or by ours; None if the exchange does not know it."""
        return order_form.order_status(await self._of("orderStatus", oid=int(name) if name.isdecimal() else name))

    async def funding(self, start_ms: int, end_ms: int) -> list[FundingReport]:
        """All payments of funding in this range, both ends included. Some may stand there twice."""
        return money_form.fundings(await self._rows(FUNDING, start_ms, end_ms), FUNDING)

    async def ledger(self, start_ms: int, end_ms: int) -> list[LedgerReport]:
        """All transfers and liquidations in this range, both ends included. Some may stand there twice."""
        return money_form.ledger(await self._rows(LEDGER, start_ms, end_ms), self.address, LEDGER)

    async def reading(self, after_ms: int) -> AccountReading:
        """Everything at once: the rows after this instant, then what there is now."""
        dexes = [MAIN_DEX, *await self.dex_names()]
        at_ms = (await self.standing()).at_ms
        end_ms = at_ms + DAY_MS
        fills = await self.fills(after_ms + 1, end_ms)
        funding = await self.funding(after_ms + 1, end_ms)
        ledger = await self.ledger(after_ms + 1, end_ms)
        orders = [order for dex in dexes for order in await self.open_orders(dex)]
        standings = [await self.standing(dex) for dex in dexes]
        transfers = tuple(row for row in ledger if isinstance(row, TransferReport))
        return AccountReading(
            at_ms, tuple(standings), tuple(orders), fills.reports, tuple(funding), transfers, fills.is_cut
        )

    async def _rows(self, kind: str, start_ms: int, end_ms: int) -> list[Any]:
        pages = RowPages(kind, self.address, start_ms, end_ms)
        while (query := pages.query) is not None:
            pages.take(await self._source.info(query))
        return pages.rows

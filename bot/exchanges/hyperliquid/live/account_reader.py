"""Reads an account on behalf of its feed: the repairs, with requests, and the end of a socket that is silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bot.clock import DAY_MS, SECOND_MS, Clock
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.hyperliquid.form import MAIN_DEX
from bot.exchanges.hyperliquid.live.account_feed import (
    STANDING_MAX_MS,
    AccountFeed,
    AccountRecords,
    AccountRows,
    subscriptions_of,
)
from bot.exchanges.hyperliquid.live.connections import Down, Event, LiveSocket, Tick, Up
from bot.exchanges.hyperliquid.live.subscriptions import Subscription
from bot.exchanges.protocol import AccountReport, AccountStanding, FillCursor, NoExchangeAnswer

# A lookup weighs 2, and messages wait meanwhile.
LOOKED_UP_AT_ONCE: Final = 20


class AccountReader:
    """One account."""

    def __init__(self, account: HyperliquidAccount, clock: Clock, cursor: FillCursor | None) -> None:
        self.feed = AccountFeed(account.address, cursor, clock.now_ms())
        self.subscriptions: Sequence[Subscription] = ()
        self._account = account
        self._clock = clock
        self._dexes: list[str] = []

    async def prepare(self) -> None:
        """Read what there is to listen to."""
        self._dexes = [MAIN_DEX, *await self._account.dex_names()]
        self.subscriptions = subscriptions_of(self._account.address, self._dexes)

    async def take(self, event: Event, socket: LiveSocket) -> list[AccountReport]:
        """Take an event of the socket, and repair if that is due."""
        now_ms = self._clock.now_ms()
        if isinstance(event, Up):
            reports = self.feed.up(now_ms)
        elif isinstance(event, Down):
            reports = self.feed.down(event.reason, now_ms)
        elif isinstance(event, Tick):
            reports = []
        else:
            reports = self.feed.take(event, now_ms)
        if self.feed.is_silent(now_ms):
            socket.end_reason = f"the exchange has told no standing for {STANDING_MAX_MS // SECOND_MS} s"
        elif self.feed.is_repair_due(now_ms):
            reports += await self._repair()
        if self.feed.orders.due and self.feed.state.phase != "away":
            reports += await self._look_up()
        return reports

    async def _look_up(self) -> list[AccountReport]:
        """Ask for the orders whose end no message has told."""
        orders, reports = self.feed.orders, list[AccountReport]()
        for order_id in orders.due[:LOOKED_UP_AT_ONCE]:
            try:
                update = await self._account.order(order_id)
            except NoExchangeAnswer:
                # The order stays due, and the next event asks again.
                return reports
            reports += orders.looked_up(order_id, update, self._clock.now_ms())
        return reports

    async def _repair(self) -> list[AccountReport]:
        """Read all rows since the verified instants, and compare the positions."""
        feed = self.feed
        try:
            before = await self._standings()
            feed.begin(before, self._clock.now_ms())
            assert feed.records is not None
            # By the exchange's own clock: ours may have been set, and what is verified is never read again.
            read_ms = min(standing.at_ms for standing in before.values())
            rows = await self._rows(feed.records, read_ms)
            standings = await self._standings()
            feed.hear_standings(standings, self._clock.now_ms())
        except NoExchangeAnswer as error:
            return feed.failed(str(error), self._clock.now_ms())
        return feed.repaired(rows, standings, self._clock.now_ms())

    async def _rows(self, records: AccountRecords, read_ms: int) -> AccountRows:
        account, end_ms = self._account, read_ms + DAY_MS
        fills = await account.fills(min(records.fills.read_from_ms, read_ms), end_ms)
        funding = await account.funding(min(records.funding.read_from_ms, read_ms), end_ms)
        ledger = await account.ledger(min(records.ledger.read_from_ms, read_ms), end_ms)
        return AccountRows(read_ms, fills.reports, funding, ledger)

    async def _standings(self) -> dict[str, AccountStanding]:
        return {dex: await self._account.standing(dex) for dex in self._dexes}

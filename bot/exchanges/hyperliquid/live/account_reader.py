"""Reads an account on behalf of its feed: the repairs, with requests, and the end of a socket that is silent."""

from __future__ import annotations

from collections.abc import Sequence

from bot.clock import DAY_MS, SECOND_MS, Clock
from bot.exchanges.hyperliquid.account import MAIN_DEX, HyperliquidAccount
from bot.exchanges.hyperliquid.live.account_feed import STANDING_MAX_MS, AccountFeed, subscriptions_of
from bot.exchanges.hyperliquid.live.connections import Down, Event, LiveSocket, Tick, Up
from bot.exchanges.hyperliquid.live.subscriptions import Subscription
from bot.exchanges.protocol import AccountReport, AccountStanding, FillCursor, NoExchangeAnswer


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
        return reports

    async def _repair(self) -> list[AccountReport]:
        """Read all fills since the verified instant, and compare the positions."""
        feed, reports = self.feed, list[AccountReport]()
        try:
            before = await self._standings()
            reports += feed.begin(before, self._clock.now_ms())
            assert feed.record is not None
            # By the exchange's own clock: ours may have been set, and what is verified is never read again.
            read_ms = min(standing.at_ms for standing in before.values())
            answer = await self._account.fills(min(feed.record.read_from_ms, read_ms), read_ms + DAY_MS)
            standings = await self._standings()
            feed.hear_standings(standings, self._clock.now_ms())
        except NoExchangeAnswer as error:
            return [*reports, *feed.failed(str(error), self._clock.now_ms())]
        return [*reports, *feed.repaired(answer.reports, read_ms, standings, self._clock.now_ms())]

    async def _standings(self) -> dict[str, AccountStanding]:
        return {dex: await self._account.standing(dex) for dex in self._dexes}

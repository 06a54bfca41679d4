"""What the service says about the source of its prices and about the account at an exchange that it follows: for
`bot status`, the alarms, the metrics and the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from bot.errors import ApiError
from bot.logs import log
from bot.wire.exchange_facts import ExchangeFact, facts

if TYPE_CHECKING:
    from bot.client import Client
    from bot.wire.market import ExchangeLinkStatus, LivePriceMarket, LivePriceStatus

# time between two requests
ASK_S: Final = 5.0


class PriceWatch:
    """Asks the service every few seconds, and logs each change of its prices."""

    def __init__(self, client: Client) -> None:
        # the source of live prices; None if the service names none
        self.newest: LivePriceStatus | None = None
        # when this daemon saw the source connect or disconnect; the service's clock
        self.changed_ms: int | None = None
        # the account at an exchange as the service told it at `told_ms` of its clock; None: it follows none
        self.exchange: ExchangeLinkStatus | None = None
        self.told_ms = 0
        self._client = client

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Ask until cancelled. Ends at once if the service names no source and follows no account."""
        while await self._ask():
            await sleep(ASK_S)

    async def _ask(self) -> bool:
        """Ask once. False if the service names no source and follows no account."""
        try:
            answer = await self._client.status()
        except ApiError:
            # The service is away, which the passes report.
            return True
        before, now = self.newest, answer.prices
        self.exchange, self.told_ms = answer.exchange, answer.server_time or self._client.clock.now_ms()
        if now is None:
            self.newest = None
            return answer.exchange is not None
        if before is None or before.connected != now.connected:
            self.changed_ms = self._client.clock.now_ms()
        self.newest = now
        _log_changes(before, now)
        return True

    def age_s(self, market: LivePriceMarket) -> float | None:
        """Seconds since the market's newest price, too high by ASK_S at most. None: it has no price yet."""
        at_ms = market.quoted_at
        return None if at_ms is None else max(0, self._client.clock.now_ms() - at_ms) / 1_000

    def exchange_facts(self) -> tuple[ExchangeFact, ...]:
        """What is known of the account at an exchange, as of `told_ms`; empty if there is none."""
        return () if self.exchange is None else facts(self.exchange, self.told_ms)

    def exchange_document(self) -> dict[str, Any] | None:
        """The facts for `bot status` and the dashboard; None if the service follows no account, or has told nothing."""
        if self.exchange is None:
            return None
        return {
            "as_of_ms": self.told_ms,
            "facts": [asdict(fact) | {"line": fact.line} for fact in self.exchange_facts()],
        }

    def document(self) -> dict[str, Any] | None:
        """The state of the prices for `bot status`; None if the service names no source."""
        now = self.newest
        if now is None:
            return None
        return {
            "source": now.source,
            "connected": now.connected,
            "since_ms": self.changed_ms,
            "trouble": now.trouble,
            "transport": now.transport,
            "clock_difference_ms": now.clock_difference_ms,
            "missing": dict(now.missing),
            "markets": [
                {
                    "market": market.coin,
                    "symbol": market.symbol,
                    "open": market.open,
                    "reason": market.reason,
                    "since_ms": market.since,
                    "age_s": self.age_s(market),
                    "refused": dict(market.refused),
                }
                for market in now.markets
            ],
        }


def _log_changes(before: LivePriceStatus | None, now: LivePriceStatus) -> None:
    was_connected = before is not None and before.connected
    if now.connected and not was_connected:
        log.info("prices.connected", source=now.source, transport=now.transport)
    elif not now.connected and (before is None or was_connected or (now.trouble and not before.trouble)):
        log.warning("prices.disconnected", source=now.source, message=now.trouble or "it has sent no price yet")
    were_closed = {market.coin for market in (() if before is None else before.markets) if not market.open}
    for market in now.markets:
        if market.open and market.coin in were_closed:
            log.info("prices.market_opened", market=market.coin)
        elif not market.open and market.coin not in were_closed:
            log.warning("prices.market_closed", market=market.coin, message=market.reason, since_ms=market.since)

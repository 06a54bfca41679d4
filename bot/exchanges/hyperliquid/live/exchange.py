"""Hyperliquid as a plug-in of the link: prices, candles and accounts, over sockets as far as possible."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, Clock, SystemClock
from bot.errors import ConfigError
from bot.exchanges.actions import ActionAnswer, ExchangeAction, Rank
from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.hyperliquid.actions.sender import ActionSender, sender_of
from bot.exchanges.hyperliquid.form import MAIN_DEX
from bot.exchanges.hyperliquid.json_rows import rows_of
from bot.exchanges.hyperliquid.live import market_feed
from bot.exchanges.hyperliquid.live.account_feed import AccountFeed
from bot.exchanges.hyperliquid.live.account_reader import AccountReader
from bot.exchanges.hyperliquid.live.candle_record import candle_row, closed_until
from bot.exchanges.hyperliquid.live.connections import Counters, Down, LiveSocket, Up
from bot.exchanges.hyperliquid.live.market_feed import MarketFeed
from bot.exchanges.hyperliquid.live.subscriptions import ChannelMessage
from bot.exchanges.hyperliquid.requests import RankedSource, Requests
from bot.exchanges.hyperliquid.transport import Transport
from bot.exchanges.protocol import AccountReading, AccountReport, FillCursor, LinkHealth, NoExchangeAnswer, OrderUpdate
from bot.market_data.paging import PageAnswer, Pager
from bot.market_data.source import Action, Connection, Instrument, NotOffered, Page, Rate, Row, Say, Update

INTERVALS: Final[Mapping[str, int]] = {
    "1m": MINUTE_MS,
    "5m": 5 * MINUTE_MS,
    "15m": 15 * MINUTE_MS,
    "1h": HOUR_MS,
    "4h": 4 * HOUR_MS,
    "1d": DAY_MS,
}
# Rows of one answer of `fundingHistory`.
FUNDING_ROWS: Final = 500
# A change of the clocks' difference that is told.
DIFFERENCE_TOLD_MS: Final = 250
SERVER: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+/?", re.ASCII)
PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
MIN_NOTIONAL_USD: Final = "10"


def url_of(place: str) -> str:
    """The server of `testnet`, `mainnet`, a port on this machine, or a whole address.

    ConfigError for any other place.
    """
    if place in form.URLS:
        return form.URLS[place]
    if PORT.fullmatch(place) and 0 < int(place) < 65_536:
        return f"http://127.0.0.1:{place}"
    if SERVER.fullmatch(place):
        return place.rstrip("/")
    raise ConfigError(
        f"hyperliquid:{place}: write hyperliquid:testnet, hyperliquid:mainnet, or hyperliquid:PORT for a local exchange"
        " on this machine, such as hyperliquid:3001"
    )


class Hyperliquid:
    """One server. Several operations run at the same time and share sockets' counters and the weight of requests."""

    revises_history = False

    def __init__(
        self, place: str, agent_key_file: str | None = None, clock: Clock | None = None, random: Random | None = None
    ) -> None:
        self.name = f"hyperliquid:{place}"
        self._url = url_of(place)
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._transport = Transport(self._url, pauses_s=())
        self._requests = Requests(self._transport, self._clock)
        self._counters = Counters()
        self._sender: ActionSender | None = None
        if agent_key_file is not None:
            is_mainnet = self._url == form.URLS["mainnet"]
            self._sender = sender_of(
                agent_key_file, self._transport, self._requests, self._clock, is_mainnet=is_mainnet
            )
        self._feeds: dict[str, MarketFeed] = {}
        self._difference_ms: int | None = None
        # The accounts whose reports are streamed, by address.
        self._accounts: dict[str, AccountFeed] = {}

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    # ── Markets ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def instruments(self, say: Say) -> list[Instrument]:
        answer = await self._info({"type": "meta", "dex": MAIN_DEX})
        return [
            Instrument(
                symbol=listing.market,
                base=listing.market,
                quote="USDC",
                kind="swap",
                linear=True,
                size_step=f"1e-{listing.size_decimals}",
                min_notional=MIN_NOTIONAL_USD,
                max_leverage=str(listing.max_leverage),
            )
            for listing in form.listings(answer)
            if not listing.is_delisted
        ]

    async def quotes(self, symbols: Sequence[str]) -> AsyncIterator[list[Update]]:
        """Prices of these markets for ever, over one socket."""
        if len(symbols) > market_feed.MARKETS_MAX:
            raise NotOffered(
                f"{self.name}: {len(symbols)} markets; at most {market_feed.MARKETS_MAX} share a socket, so name fewer"
            )
        feed = MarketFeed(symbols)
        self._feeds |= dict.fromkeys(symbols, feed)
        wanted = market_feed.subscriptions_of(symbols)
        yield [Connection("websocket", None)]
        told_ms: int | None = None
        # A market that was delisted must not end the prices of the others.
        async for event in self._socket(wanted, needs_all=False).events():
            now_ms = self._clock.now_ms()
            if isinstance(event, ChannelMessage):
                updates = feed.take(event, now_ms)
                difference_ms = feed.clock_difference_ms
                if difference_ms is not None and _is_news(difference_ms, told_ms):
                    told_ms = difference_ms
                    updates.append(Connection("websocket", told_ms))
                self._difference_ms = difference_ms
                if updates:
                    yield updates
            elif isinstance(event, Up):
                feed.up(now_ms)
            elif isinstance(event, Down):
                feed.down()
                raise NoExchangeAnswer(event.reason)

    async def minutes(self, symbol: str, since_ms: int, say: Say) -> Page:
        """Closed minutes: from the socket those that it has told whole, the others by one request."""
        feed = self._feeds.get(symbol)
        exchange_ms = None if feed is None else feed.exchange_ms(self._clock.now_ms())
        if exchange_ms is None:
            exchange_ms = form.book_time(await self._info({"type": "l2Book", "coin": symbol}))
        end_ms = closed_until(exchange_ms)
        kept = None if feed is None else feed.candles[symbol]
        whole_ms = end_ms if kept is None or kept.whole_from_ms is None else min(end_ms, kept.whole_from_ms)
        rows: list[Row] = []
        if since_ms < whole_ms:
            rows = [row for row in await self._candles(symbol, "1m", since_ms, whole_ms) if row.at_ms < whole_ms]
        if kept is not None and kept.whole_from_ms is not None:
            rows += kept.rows(max(since_ms, whole_ms), end_ms)
        elif whole_ms < end_ms:
            # The socket went down during the request, so the last minutes may lack trades.
            end_ms = whole_ms
        return Page(rows, max(since_ms, end_ms))

    async def history(self, symbol: str, interval: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[Page]:
        step_ms = INTERVALS.get(interval)
        if step_ms is None:
            raise NotOffered(f"{self.name} has no candles of {interval}; it has {', '.join(INTERVALS)}")

        async def fetch(interval: str, since_ms: int, limit: int) -> PageAnswer:
            end_ms = since_ms + limit * INTERVALS[interval]
            return PageAnswer(await self._candles(symbol, interval, since_ms, end_ms), await self._exchange_ms(symbol))

        async for page in Pager(fetch, interval, step_ms, until_ms, has_days=True).pages(since_ms):
            yield page

    async def _candles(self, symbol: str, interval: str, since_ms: int, until_ms: int) -> list[Row]:
        asked = {"coin": symbol, "interval": interval, "startTime": since_ms, "endTime": until_ms}
        answer = await self._info({"type": "candleSnapshot", "req": asked})
        return sorted(candle_row(row) for row in rows_of(answer, "candleSnapshot"))

    async def _exchange_ms(self, symbol: str) -> int:
        """The exchange's clock, from the prices if they stream, else by a request."""
        now_ms = self._clock.now_ms()
        if self._difference_ms is None:
            book_ms = form.book_time(await self._info({"type": "l2Book", "coin": symbol}))
            self._difference_ms = book_ms - now_ms
        return now_ms + self._difference_ms

    async def funding(self, symbol: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[list[Rate]]:
        at_ms = since_ms
        while at_ms < until_ms:
            query = {"type": "fundingHistory", "coin": symbol, "startTime": at_ms, "endTime": until_ms - 1}
            rows = list(rows_of(await self._info(query), "fundingHistory"))
            rates = sorted(Rate(row.instant("time"), float(row.decimal("fundingRate"))) for row in rows)
            if rates:
                yield rates
            if len(rows) < FUNDING_ROWS:
                return
            at_ms = rates[-1].at_ms + 1

    async def actions(self, symbol: str) -> list[Action]:
        return []

    # ── Accounts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def account(self, address: str, cursor: FillCursor | None) -> AsyncIterator[list[AccountReport]]:
        """Stream the reports of an account, without an end."""
        account = HyperliquidAccount(RankedSource(self._requests, Rank.REPAIR), address)
        if self._sender is not None:
            await self._sender.check(address, self._network)
        reader = AccountReader(account, self._clock, cursor)
        await reader.prepare()
        self._accounts[address] = reader.feed
        socket = self._socket(reader.subscriptions)
        async for event in socket.events():
            reports = await reader.take(event, socket)
            if self._sender is not None:
                await self._sender.check_again(address, self._network)
            self._difference_ms = reader.feed.clock_difference_ms
            if reports:
                yield reports

    @property
    def _network(self) -> str:
        return "mainnet" if self._url == form.URLS["mainnet"] else "this test network"

    async def look(self, address: str, name: str) -> OrderUpdate | None:
        """The newest change of an order; None if the exchange does not know it, or not yet."""
        return await HyperliquidAccount(RankedSource(self._requests, Rank.CANCEL), address).order(name)

    async def read(self, address: str, after_ms: int) -> AccountReading:
        """Read the account anew."""
        return await HyperliquidAccount(RankedSource(self._requests, Rank.REPAIR), address).reading(after_ms)

    async def act(self, action: ExchangeAction) -> ActionAnswer:
        """Send an action once."""
        if self._sender is None:
            text = "the link has no agent's key; it only reads"
            return ActionAnswer(action.action_nonce, "not_sent", text=text, code="service_unavailable")
        answer = await self._sender.act(action)
        for order in answer.orders:
            if order.outcome == "filled" and order.order_id is not None:
                for feed in self._accounts.values():
                    feed.expect_fill(order.order_id, self._clock.now_ms())
        return answer

    def health(self) -> LinkHealth:
        counters, now_ms = self._counters, self._clock.now_ms()
        window = self._requests.window
        return LinkHealth(
            connections=counters.open,
            opened=counters.opened,
            messages=counters.messages,
            reads=self._requests.sent,
            weight=window.used(now_ms),
            weight_most=window.most,
            clock_difference_ms=self._difference_ms,
            heard_ms=counters.heard_ms,
            signer=None if self._sender is None else self._sender.signer.address,
            actions_left=None if self._sender is None else self._sender.left,
            agent=None if self._sender is None else self._sender.agent,
            agent_read_ms=None if self._sender is None else self._sender.read_ms,
            agent_fault=None if self._sender is None else self._sender.fault,
        )

    def _socket(self, wanted: Sequence[Mapping[str, str]], *, needs_all: bool = True) -> LiveSocket:
        return LiveSocket(self._url, wanted, self._clock, self._random, self._counters, needs_all=needs_all)

    async def _info(self, query: Mapping[str, Any]) -> Any:
        return await self._requests.info(query, Rank.PRICE)


def _is_news(difference_ms: int, told_ms: int | None) -> bool:
    return told_ms is None or abs(difference_ms - told_ms) >= DIFFERENCE_TOLD_MS


def open_exchange(place: str, agent_key_file: str | None = None) -> Hyperliquid:
    """The exchange at `testnet`, `mainnet`, or a port on this machine."""
    return Hyperliquid(place, agent_key_file)

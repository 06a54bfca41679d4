"""A live source in the hands of a test, and a machine on it with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bot.errors import Refusal
from bot.market_data.quote_filter import scaled
from bot.market_data.source import Action, Instrument, NoAnswer, NotOffered, Page, Quote, Rate, Row, Say, SourceError
from bot.service.live_prices.listings import live_options
from bot.service.live_prices.live_prices import LivePrices
from bot.service.state_machine.bootstrap import PriceOptions, open_machine
from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.machine import Machine
from bot.venue.model.commands import OpenAccount, PlaceOrder
from bot.venue.model.state import LegSpec, OrderSpec
from bot.venue.orders.orders import OrderPlaced

MINUTE = 60_000
# 2025-05-01
START = 1_746_057_600_000
# half a minute after noon
NOW = START + 12 * 3_600_000 + 30_000

BTC = Instrument("BTC/USDT:USDT", "BTC", "USDT", "swap", linear=True, tick="0.10", size_step="0.001", max_leverage="20")
ETH = Instrument("ETH/USDT:USDT", "ETH", "USDT", "swap", linear=True, tick="0.01", size_step="0.01")


def row(ts: int, px: float, low: float | None = None) -> Row:
    """A minute around `px`."""
    return Row(ts, px, px + 1.5, px - 1.5 if low is None else low, px + 0.5, 1.25)


class FakeSource:
    """What the source has. `now_ms` is its clock; minutes that close later are not told."""

    name = "fake"
    revises_history = False

    def __init__(self) -> None:
        self.now_ms = NOW
        self.listed = [BTC, ETH]
        self.first = {"BTC/USDT:USDT": 94_000.0, "ETH/USDT:USDT": 1_800.0}
        self.rows = {
            symbol: [row(START - 86_400_000 + n * MINUTE, px) for n in range(2880)] for symbol, px in self.first.items()
        }
        self.delisted: set[str] = set()
        self.fault: SourceError | None = None
        # set after each request of minutes
        self.asked = asyncio.Event()
        self.opened = 0
        self._batches: asyncio.Queue[list[Quote]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self.opened += 1
        if self.fault is not None:
            raise self.fault
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def instruments(self, say: Say) -> list[Instrument]:
        return self.listed

    async def quotes(self, symbols: Sequence[str]) -> AsyncIterator[list[Quote]]:
        yield [quote(self.first[symbol], symbol) for symbol in symbols]
        while True:
            yield await self._batches.get()

    def send(self, *quotes: Quote) -> None:
        self._batches.put_nowait(list(quotes))

    async def minutes(self, symbol: str, since_ms: int, say: Say) -> Page:
        self.asked.set()
        if symbol in self.delisted:
            raise NotOffered(f"fake has no market {symbol!r}")
        until_ms = (self.now_ms - 5_000) // MINUTE * MINUTE
        return Page([one for one in self.rows[symbol] if since_ms <= one.at_ms < until_ms], until_ms)

    async def history(self, symbol: str, interval: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[Page]:
        yield Page([], until_ms)

    def funding(self, symbol: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[list[Rate]]:
        raise NotOffered("fake has no funding rates")

    async def actions(self, symbol: str) -> list[Action]:
        return []


def quote(px: float, symbol: str = BTC.symbol, *, at_ms: int | None = None, half: float = 0.05) -> Quote:
    """A quote whose mid is `px`."""
    return Quote(symbol, at_ms, px - half, px + half, px)


class Live:
    """A machine and its live prices, moved by hand."""

    def __init__(self, source: FakeSource, db: Path | None = None, markets: tuple[str, ...] = ("BTC", "ETH")) -> None:
        self.source = source
        options = live_options("fake", markets, lambda: source)
        coins = tuple(market.partition("=")[0] for market in markets)
        self.machine: Machine = open_machine(
            CommandLog(db), speed=0.0, prices=PriceOptions(markets=coins, start_ms=NOW, live=(options,))
        )
        self.prices = LivePrices(self.machine, lambda _: source)
        self.machine.log.start()
        self.prices.begin()

    def end(self) -> None:
        """Stop as a service does."""
        self.machine.snapshot()
        self.machine.save_clock(final=True)
        self.machine.log.close()

    def market(self, coin: str = "BTC"):
        return next(market for market in self.prices.markets if market.coin == coin)

    def move(self, ms: int) -> None:
        """Move both clocks on and check the ages."""
        self.source.now_ms += ms
        self.machine.clock.move_to(self.machine.clock.now_ms() + ms)
        self.prices.check_ages()

    async def fetch(self, coin: str = "BTC") -> None:
        """Fetch the closed minutes of a market, as a session does after each minute."""
        market = self.market(coin)
        since_ms = market.candles.until_ms or START - 86_400_000
        market.take_minutes(await self.source.minutes(market.symbol, since_ms, print))

    async def wait_for_minute(self, px: float, coin: str = "BTC") -> None:
        """Send quotes from the end of this minute into the next one, and then fetch this minute."""
        symbol = self.market(coin).symbol
        self.move((MINUTE - 10_000 - self.source.now_ms) % MINUTE)
        self.market(coin).take_quote(quote(px, symbol))
        self.move(20_000)
        self.market(coin).take_quote(quote(px, symbol))
        await self.fetch(coin)

    async def open(self, coin: str = "BTC", px: float = 94_000.0) -> None:
        await self.fetch(coin)
        self.market(coin).take_quote(quote(px, self.market(coin).symbol))
        assert self.market(coin).closed_reason is None


__all__ = ["BTC", "ETH", "MINUTE", "NOW", "START", "FakeSource", "Live", "NoAnswer", "quote", "row"]


def trade(live: Live, stop: float | None = None) -> OrderPlaced | Refusal:
    """Buy 0.01 BTC, with a stop if given."""
    if "me" not in live.machine.state.accounts:
        live.machine.run(OpenAccount("me", "0x0", None, 10_000 * 10**8))
    leg = None if stop is None else LegSpec(px=scaled(stop))
    answer: OrderPlaced | Refusal = live.machine.run(
        PlaceOrder("me", OrderSpec("BTC", 1, size=1_000_000, leverage=1, stop=leg))
    )
    return answer

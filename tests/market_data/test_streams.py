"""Live data by WebSocket: the real feeder with ccxt against the local exchange."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from bot.market_data.ccxt_source import CcxtSource
from bot.market_data.source import Connection, Depth, FundingRate, Mark, Missing, Quote, Update
from tests.market_data.exchange import Series, minutes, served
from tests.market_data.websocket_exchange import WebSocketExchange, ladder

WAIT_SECONDS = 60.0
PERPETUAL, SPOT = "BTC/USDT:USDT", "BTC/USD"


@pytest.fixture
def streaming(quick_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebSocketExchange]:
    """A Binance and a Kraken with BTC at 94,000, whose clock is 7 s ahead."""
    made = WebSocketExchange(clock_ahead_ms=7_000)
    series = Series(minutes(10, time.time_ns() // 60_000_000_000 * 60_000))
    made.futures["BTCUSDT"] = made.kraken["XXBTZUSD"] = series
    for name in ("BTCUSDT", "XXBTZUSD"):
        made.tops[name] = ("93999.9", "94000.1")
        made.books[name] = ladder(93_999.9, -1, [1.0] * 20), ladder(94_000.1, 1, [2.0] * 20)
    made.marks["BTCUSDT"] = "94010.0"
    made.rates["BTCUSDT"] = "0.0004"
    with served(made) as url:
        monkeypatch.setenv("BOT_MARKETS_PYTHON", quick_python)
        monkeypatch.setenv("BOT_MARKETS_URL", url)
        yield made


class Reader:
    """The updates of one session, read until one that fits."""

    def __init__(self, batches: AsyncIterator[Sequence[Update]]) -> None:
        self._batches = batches
        self.seen: list[Update] = []

    async def until(self, *wanted: Update) -> None:
        """Read until every one of these has come; of a quote only symbol, bid and ask count."""

        async def read() -> None:
            left = [_plain(one) for one in wanted]
            async for batch in self._batches:
                self.seen += batch
                left = [one for one in left if one not in [_plain(update) for update in batch]]
                if not left:
                    return

        await asyncio.wait_for(read(), WAIT_SECONDS)

    def of(self, kind: type) -> list[Update]:
        return [one for one in self.seen if isinstance(one, kind)]


def _plain(one: Update) -> Update:
    return (
        one._replace(at_ms=None, last=None)
        if isinstance(one, Quote)
        else one._replace(at_ms=None)
        if isinstance(one, Mark)
        else one
    )


def top(symbol: str, bid: float, ask: float) -> Quote:
    return Quote(symbol, None, bid, ask, None)


async def test_quotes_marks_depth_and_funding_of_binance_come_by_websocket_and_rest(
    streaming: WebSocketExchange,
) -> None:
    streaming.hours["BTCUSDT"] = 4
    async with CcxtSource("binance") as source:
        reader = Reader(source.quotes([PERPETUAL]))
        first = [(93_999.9 - n / 10, 1.0) for n in range(20)]
        await reader.until(
            top(PERPETUAL, 93_999.9, 94_000.1),
            Mark(PERPETUAL, None, 94_010.0),
            FundingRate(PERPETUAL, 0.0004, 4, streaming.next_funding_ms),
        )
        streaming.wait_for_subscription("btcusdt@bookTicker")
        streaming.tops["BTCUSDT"] = ("94499.9", "94500.1")
        streaming.marks["BTCUSDT"] = "94505.0"
        streaming.tell()
        await reader.until(top(PERPETUAL, 94_499.9, 94_500.1), Mark(PERPETUAL, None, 94_505.0))
        assert [round(px, 1) for px, _ in reader.of(Depth)[0].bids] == [round(px, 1) for px, _ in first]
        connection = reader.of(Connection)[-1]
        assert connection.transport == "websocket"
        assert abs(connection.clock_difference_ms - 7_000) < 2_000
        assert not reader.of(Missing)


async def test_quotes_of_kraken_come_by_websocket(streaming: WebSocketExchange) -> None:
    async with CcxtSource("kraken") as source:
        reader = Reader(source.quotes([SPOT]))
        await reader.until(top(SPOT, 93_999.9, 94_000.1))
        await asyncio.to_thread(streaming.wait_for_subscription, f"ticker:{SPOT}")
        streaming.tops["XXBTZUSD"] = ("94100.0", "94100.5")
        streaming.tell()
        await reader.until(top(SPOT, 94_100.0, 94_100.5))
        assert reader.of(Depth)[0].asks[:2] == [(94_000.1, 2.0), (94_000.2, 2.0)]
        assert reader.of(Connection)[-1].transport == "websocket"


async def test_a_thousand_messages_a_second_become_a_few_batches_with_the_newest_last(
    streaming: WebSocketExchange,
) -> None:
    async with CcxtSource("binance") as source:
        reader = Reader(source.quotes([PERPETUAL]))
        await reader.until(top(PERPETUAL, 93_999.9, 94_000.1))
        await asyncio.to_thread(streaming.wait_for_subscription, "btcusdt@bookTicker")
        before = len(reader.of(Quote))

        def burst() -> None:
            for n in range(500):
                streaming.tops["BTCUSDT"] = (f"{94_000 + n}.0", f"{94_000 + n}.1")
                streaming.tell()

        begun = time.monotonic()
        await asyncio.gather(asyncio.to_thread(burst), reader.until(top(PERPETUAL, 94_499.0, 94_499.1)))
        assert len(reader.of(Quote)) - before <= 4 * (time.monotonic() - begun) + 3


async def test_quotes_are_polled_when_the_exchange_refuses_the_websocket(streaming: WebSocketExchange) -> None:
    streaming.is_refusing = True
    async with CcxtSource("binance") as source:
        reader = Reader(source.quotes([PERPETUAL]))
        await reader.until(top(PERPETUAL, 93_999.9, 94_000.1))
        streaming.tops["BTCUSDT"] = ("94100.0", "94100.5")
        streaming.marks["BTCUSDT"] = "94111.0"
        await reader.until(top(PERPETUAL, 94_100.0, 94_100.5))
        await reader.until(Mark(PERPETUAL, None, 94_111.0))
        assert reader.of(Connection)[-1].transport == "polling"
        assert streaming.opened == 0

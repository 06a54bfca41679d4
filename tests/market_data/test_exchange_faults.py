"""Faults of an exchange through the real feeder and ccxt: what the source makes of each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from starlette.requests import Request
from starlette.responses import Response

from bot.clock import ManualClock
from bot.market_data.ccxt_source import CcxtSource
from bot.market_data.source import NoAnswer, NotOffered, Page, Quote, Row, Update
from tests.market_data.conftest import START
from tests.market_data.exchange import Exchange, cut, half, silent, status

BTC = "BTC/USDT:USDT"
MINUTE = 60_000
# the instant at which the fixture ends
NOW = START + 6_000 * MINUTE + 30_000
SINCE = START + 5_990 * MINUTE


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
async def source(exchange: Exchange, clock: ManualClock) -> AsyncIterator[CcxtSource]:
    exchange.quotes["BTCUSDT"] = "94000.0"
    async with CcxtSource("binance", clock=clock, sleep=no_sleep) as source:
        yield source


async def no_sleep(_seconds: float) -> None: ...


def true_rows(exchange: Exchange, until_ms: int) -> list[Row]:
    """The closed candles of the exchange from SINCE on."""
    found = (Row(at, *map(float, texts)) for at, *texts in exchange.futures["BTCUSDT"].minutes)
    return [row for row in found if SINCE <= row.at_ms < until_ms]


async def test_candles_are_the_same_after_each_fault_of_an_answer(
    source: CcxtSource, exchange: Exchange, said: list[str]
) -> None:
    wanted = Page(true_rows(exchange, NOW - 30_000), NOW - 30_000)
    ban = f'{{"code": -1003, "msg": "Way too many requests; IP banned until {NOW + 9_000}."}}'
    assert await source.minutes(BTC, SINCE, said.append) == wanted
    for fault in (status(503), status(429, retry_after="2"), status(418, ban), status(502, "<html>"), cut):
        exchange.faults = [fault]
        assert await source.minutes(BTC, SINCE, said.append) == wanted
    assert len(said) == 5
    # ccxt makes an empty list of it.
    exchange.faults = [half]
    assert await source.minutes(BTC, SINCE, said.append) == Page([], SINCE)
    exchange.is_shuffled = exchange.is_doubled = True
    assert await source.minutes(BTC, SINCE, said.append) == wanted

    exchange.status_of_all = (503, "<html>maintenance</html>")
    with pytest.raises(NoAnswer, match="check the network"):
        await source.minutes(BTC, SINCE, said.append)
    exchange.status_of_all = None
    assert await source.minutes(BTC, SINCE, said.append) == wanted


@pytest.mark.parametrize("off_ms", [5_000, -5_000])
async def test_a_clock_that_is_off_closes_no_candle_early(
    source: CcxtSource, exchange: Exchange, clock: ManualClock, said: list[str], off_ms: int
) -> None:
    exchange.clock_off_ms = off_ms
    # The minute ends after 30 s.
    for after_ms in range(29_000, 46_000, 1_000):
        exchange.now_ms = clock.set(NOW + after_ms)
        page = await source.minutes(BTC, SINCE, said.append)
        assert page.rows == true_rows(exchange, page.until_ms)
        assert page.until_ms <= min(clock.now_ms(), exchange.clock_ms) - 5_000
    assert page.until_ms == NOW + 30_000


async def test_a_market_that_is_delisted_is_not_quoted_and_has_no_candles(
    source: CcxtSource, exchange: Exchange, said: list[str]
) -> None:
    assert [one.symbol for one in await source.instruments(said.append)] == ["ETH/USDT", BTC]
    exchange.delisted.add("BTCUSDT")
    with pytest.raises(NotOffered, match="Invalid symbol"):
        await source.minutes(BTC, SINCE, said.append)
    quotes = source.quotes([BTC])
    assert [one for one in await anext(quotes) if isinstance(one, Quote) and one.symbol == BTC] == []
    exchange.delisted.clear()
    assert await source.minutes(BTC, SINCE, said.append) == Page(true_rows(exchange, NOW - 30_000), NOW - 30_000)


async def test_a_change_of_precision_changes_quotes_at_once_and_the_tick_at_the_next_start(
    source: CcxtSource, exchange: Exchange, said: list[str]
) -> None:
    exchange.tick, exchange.quotes["BTCUSDT"] = "0.01", "94000.07"
    async for quotes in source.quotes([BTC]):
        assert isinstance(quotes[0], Quote)
        assert (quotes[0].bid, quotes[0].ask) == (93_999.57, 94_000.57)
        break
    btc = next(one for one in await source.instruments(said.append) if one.symbol == BTC)
    assert btc.tick is not None
    assert float(btc.tick) == 0.01


async def next_quotes(updates: AsyncIterator[Sequence[Update]]) -> list[Quote]:
    """The quotes of the next batch that has any."""
    async for batch in updates:
        if quotes := [one for one in batch if isinstance(one, Quote)]:
            return quotes
    raise AssertionError("the stream has ended")


async def test_a_silent_exchange_sends_no_quote_and_no_error(source: CcxtSource, exchange: Exchange) -> None:
    quotes = source.quotes([BTC])
    assert await next_quotes(quotes)
    is_silent = threading.Event()

    def silence(request: Request) -> Response:
        is_silent.set()
        return silent(request)

    exchange.quote_faults = [silence]
    waiting = asyncio.ensure_future(next_quotes(quotes))
    assert await asyncio.to_thread(is_silent.wait, 10)
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    # The quote of the last request before the silence was still on its way.
    if done:
        waiting = asyncio.ensure_future(next_quotes(quotes))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    waiting.cancel()

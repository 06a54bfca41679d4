"""A service on quotes by WebSocket, marks, depth and funding of the local exchange, through the real feeder and
ccxt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from bot.market_data.quote_filter import scaled
from bot.model.events import FillEvent, FundingPaid
from bot.service.host import Service
from bot.venue.model.commands import OpenAccount, PlaceOrder
from bot.venue.model.state import HOUR_MS, OrderSpec
from tests.market_data.exchange import Series, minutes, served
from tests.market_data.live_service import running
from tests.market_data.websocket_exchange import WebSocketExchange, ladder

DEADLINE_SECONDS = 120.0


@pytest.fixture
def streaming(quick_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebSocketExchange]:
    """A Binance with BTC's perpetual at 94,000 and its mark at 94,100, and 0.5 BTC on each level, a dollar apart."""
    made = WebSocketExchange()
    made.futures["BTCUSDT"] = Series(minutes(4_400, made.now_ms // 60_000 * 60_000 - 4_320 * 60_000))
    made.tops["BTCUSDT"] = ("93999.9", "94000.1")
    made.books["BTCUSDT"] = ladder(93_999.9, -1, [0.5] * 20, 1.0), ladder(94_000.1, 1, [0.5] * 20, 1.0)
    made.marks["BTCUSDT"], made.rates["BTCUSDT"] = "94100.0", "0.0004"
    with served(made) as url:
        monkeypatch.setenv("BOT_MARKETS_PYTHON", quick_python)
        monkeypatch.setenv("BOT_MARKETS_URL", url)
        yield made


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for what the feeder writes.

    There is no event to wait for on the way from another process into the machine.
    """
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def is_complete(service: Service) -> bool:
    """True once the market is open and has marks, depth and funding, and quotes come by WebSocket."""
    assert service.live is not None
    (live,) = service.live.sources
    market = live.markets[0]
    told = (market.marked_ms, market.depth_ms, market.funding_ms)
    return market.closed_reason is None and None not in told and live.connection.transport == "websocket"


async def test_a_position_lives_on_quotes_mark_depth_and_funding_of_the_exchange_and_a_closed_socket_is_replaced(
    streaming: WebSocketExchange,
) -> None:
    async with running() as (service, http):
        await until(lambda: is_complete(service))
        machine = service.machine
        machine.run(OpenAccount("me", "0x0", None, 10_000_000 * 10**8))
        machine.catch_up()
        machine.run(PlaceOrder("me", OrderSpec("BTC", 1, size=scaled(1.2), leverage=1)))
        account = machine.state.accounts["me"]
        fills = [(event.px, event.size) for event in account.events if isinstance(event, FillEvent)]
        assert fills == [
            (scaled(94_000.1), scaled(0.5)),
            (scaled(94_001.1), scaled(0.5)),
            (scaled(94_002.1), scaled(0.2)),
        ]
        position = account.positions["BTC"]
        assert position.pnl(machine.state.markets["BTC"].mark) == scaled(1.2) * 94_100 - position.entry_notional

        await asyncio.to_thread(streaming.wait_for_subscription, "btcusdt@markPrice@1s")
        streaming.marks["BTCUSDT"], streaming.tops["BTCUSDT"] = "94200.0", ("94099.9", "94100.1")
        streaming.tell()
        await until(lambda: machine._quiet.quotes.get("BTC") == (scaled(94_099.9), scaled(94_100.1)))
        await until(lambda: machine._quiet.marks.get("BTC") == scaled(94_200.0))
        found = (await http.get("/v1/markets", params={"query": "BTC"})).json()["markets"]
        market = next(one for one in found if one["coin"] == "BTC")
        assert (market["markPx"], market["midPx"]) == ("94200", "94100")

        paid_ms = market["nextFundingAt"]
        assert (paid_ms - streaming.next_funding_ms) % (8 * HOUR_MS) == 0, "the exchange's own instant"
        assert 0 < paid_ms - machine.clock.now_ms() <= 8 * HOUR_MS
        machine._catch_up_to(paid_ms)
        (paid,) = [event for event in account.events if isinstance(event, FundingPaid)]
        assert paid.ts == paid_ms
        assert paid.amount == -scaled(1.2) * 94_200 * 4 // 10_000, "0.04 % of the value at the mark, once in 8 hours"

        prices = (await http.get("/v1/system/status")).json()["prices"]
        assert (prices["transport"], prices["missing"]) == ("websocket", {})
        assert abs(prices["clockDifferenceMs"]) < 5_000

        assert service.live is not None
        (live,) = service.live.sources
        sessions, opened = live.sessions, streaming.opened
        streaming.close_sockets()
        await until(lambda: live.trouble is not None)
        assert "closed by remote server" in live.trouble
        await until(lambda: live.sessions > sessions and live.connection.transport == "websocket")
        assert streaming.opened > opened, "a new session has new sockets"
        await asyncio.to_thread(streaming.wait_for_subscription, "btcusdt@bookTicker")
        streaming.tops["BTCUSDT"] = ("94199.9", "94200.1")
        streaming.tell()
        await until(lambda: machine._quiet.quotes.get("BTC") == (scaled(94_199.9), scaled(94_200.1)))

"""A wrong price that its source repeats fires nothing; a true jump becomes the price by a second witness, and is told.

A known disconnection opens nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.errors import Refusal
from bot.market_data.quote_filter import is_near, scaled
from bot.market_data.source import Mark, NoAnswer
from bot.service.live_prices.live_market import AGE_MAX_MS
from bot.service.live_prices.live_prices import NewConnection
from bot.venue.model.commands import ClosePosition
from bot.venue.orders.orders import OrderPlaced
from bot.wire.market import LivePriceStatus
from tests.service.live_prices.source import BTC, MINUTE, FakeSource, Live, quote, row, trade

TENTH, PRICE, HALF = 9_400.0, 94_000.0, 47_000.0


def told(live: Live, px: float, *, mark: float | None = None) -> None:
    """One second later the source tells this price, and this mark."""
    live.move(1_000)
    live.market().take(quote(px))
    if mark is not None:
        live.market().take(Mark(BTC.symbol, None, mark))


async def opened(*, marked: bool) -> Live:
    """A market at PRICE with a position, a stop below it and a target at half of the price."""
    live = Live(FakeSource())
    await live.open()
    assert isinstance(trade(live, stop=90_000.0), OrderPlaced)
    for _ in range(3):
        told(live, PRICE, mark=PRICE if marked else None)
    return live


def mark_of(live: Live) -> int:
    live.machine.show_marks()
    return live.machine.state.markets["BTC"].mark


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("seconds", [1, 6, 25])
async def test_a_tenth_of_the_price_for_some_seconds_fires_nothing(seconds: int, marked: bool) -> None:
    live = await opened(marked=marked)
    for _ in range(seconds):
        told(live, TENTH, mark=PRICE if marked else None)
    for _ in range(3):
        told(live, PRICE, mark=PRICE if marked else None)
    assert live.machine.state.accounts["me"].positions
    assert mark_of(live) == scaled(PRICE)
    assert live.market().jump is None


async def test_a_mark_that_denies_the_jump_is_believed_for_as_long_as_it_does() -> None:
    live = await opened(marked=True)
    for _ in range(300):
        told(live, HALF, mark=PRICE)
    assert live.machine.state.accounts["me"].positions
    closed = live.market().closed_reason
    assert closed is not None
    assert closed.startswith("the price jumped from 94000 to 47000, and neither mark nor candle")


async def test_a_wrong_mark_alone_fires_nothing() -> None:
    live = await opened(marked=True)
    for _ in range(60):
        told(live, PRICE, mark=TENTH)
    assert live.machine.state.accounts["me"].positions
    assert mark_of(live) == scaled(PRICE)


def mark_agrees(live: Live) -> None:
    for _ in range(2):
        told(live, HALF, mark=HALF)


def time_agrees(live: Live) -> None:
    """A jump of 6 %, which no mark and no candle knows yet."""
    for _ in range(9):
        told(live, 88_000.0)


@pytest.mark.parametrize("agrees", [mark_agrees, time_agrees])
async def test_a_jump_that_a_witness_confirms_is_the_price_and_is_told(agrees: Callable[[Live], None]) -> None:
    live = await opened(marked=agrees is mark_agrees)
    agrees(live)
    assert not live.machine.state.accounts["me"].positions, "its stop has fired"
    view = LivePriceStatus.model_validate(live.prices.body())
    jump = next(one for one in view.markets if one.coin == "BTC").jump
    assert jump is not None
    assert jump.from_px == 94_000
    assert jump.to_px in (47_000, 88_000)


async def test_a_wrong_price_that_stands_at_a_restart_is_a_jump_too(tmp_path: Path) -> None:
    live = Live(FakeSource(), tmp_path / "s.db")
    await live.open()
    assert isinstance(trade(live, stop=90_000.0), OrderPlaced)
    told(live, PRICE)
    live.end()
    later = Live(live.source, tmp_path / "s.db", markets=())
    for _ in range(6):
        told(later, TENTH)
    await minute(later, PRICE)
    await minute(later, PRICE)
    assert later.market().closed_reason is None
    assert later.machine.state.accounts["me"].positions
    assert mark_of(later) == scaled(PRICE)
    later.end()


async def test_a_price_that_has_moved_far_while_the_service_was_down_is_confirmed_by_the_candles(
    tmp_path: Path,
) -> None:
    live = Live(FakeSource(), tmp_path / "s.db")
    await live.open()
    live.end()
    rows, now_ms = live.source.rows[BTC.symbol], live.source.now_ms
    rows[:] = [row(one.at_ms, HALF) if one.at_ms > now_ms else one for one in rows]
    later = Live(live.source, tmp_path / "s.db", markets=())
    later.move(10 * MINUTE)
    await later.fetch()
    for _ in range(2):
        told(later, HALF)
    assert later.market().closed_reason is None
    assert is_near(mark_of(later), scaled(HALF), 0.001)
    later.end()


async def minute(live: Live, px: float) -> None:
    """Quotes to the end of the minute and a little beyond, and then its candle."""
    end_ms = live.source.now_ms // MINUTE * MINUTE + MINUTE + 6_000
    while live.source.now_ms < end_ms:
        told(live, px)
    await live.fetch()
    told(live, px)


@pytest.mark.parametrize("goes_there", [True, False])
async def test_a_candle_decides_a_jump_that_no_mark_knows(goes_there: bool) -> None:
    live = await opened(marked=False)
    now_ms, rows = live.source.now_ms // MINUTE * MINUTE, live.source.rows[BTC.symbol]
    if goes_there:
        rows[:] = [
            row(one.at_ms, HALF if one.at_ms > now_ms else PRICE, HALF - 10) if one.at_ms >= now_ms else one
            for one in rows
        ]
    for _ in range(3):
        await minute(live, HALF)
    assert (not live.machine.state.accounts["me"].positions) is goes_there
    assert (live.market().jump is not None) is goes_there
    assert (live.market().closed_reason is None) is goes_there


async def test_a_known_disconnection_closes_every_market_at_once_and_keeps_the_way_out() -> None:
    live = await opened(marked=False)
    live.source.fault = NoAnswer("503 from the exchange")
    live.prices._sleep = stopped
    with pytest.raises(asyncio.CancelledError):
        await live.prices.run()
    reasons = {market.coin: market.closed_reason for market in live.prices.markets}
    assert reasons["BTC"] == "fake is not connected: 503 from the exchange"
    refused = trade(live)
    assert isinstance(refused, Refusal)
    assert refused.code == "market_closed"
    assert isinstance(live.machine.run(ClosePosition("me", "BTC")), OrderPlaced)


async def test_the_daily_new_connection_closes_nothing() -> None:
    live = await opened(marked=False)
    live.source.fault = NewConnection("the daily new connection to fake")
    live.prices._sleep = stopped
    with pytest.raises(asyncio.CancelledError):
        await live.prices.run()
    assert live.market().closed_reason is None
    live.move(AGE_MAX_MS + 1)
    assert live.market().closed_reason == "no price for 30 s", "unless it does not come back"


async def stopped(_seconds: float) -> None:
    raise asyncio.CancelledError

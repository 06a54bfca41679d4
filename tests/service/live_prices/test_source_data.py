"""Marks, depth and funding of the source in a live market."""

from __future__ import annotations

import pytest

from bot.market_data.quote_filter import scaled
from bot.market_data.source import Connection, Depth, FundingRate, Mark, Missing, Quote
from bot.model.events import FillEvent
from bot.service.live_prices.live_market import AGE_MAX_MS, QUIET_MS
from bot.venue.model.commands import OpenAccount, PlaceOrder
from bot.venue.model.state import HOUR_MS, OrderSpec, VenueMarket
from tests.service.live_prices.source import BTC, FakeSource, Live, quote


@pytest.fixture
async def live() -> Live:
    made = Live(FakeSource())
    await made.open()
    return made


def listed(live: Live) -> VenueMarket:
    live.machine.show_marks()
    return live.machine.state.markets["BTC"]


def depth(bid: float = 93_999.9, ask: float = 94_000.1, size: float = 0.5) -> Depth:
    return Depth(BTC.symbol, [(bid - n, size) for n in range(20)], [(ask + n, size) for n in range(20)])


async def test_the_mark_of_the_source_is_the_mark_and_the_quote_is_bid_and_ask(live: Live) -> None:
    live.market().take(Mark(BTC.symbol, None, 94_100.0))
    assert (listed(live).mark, listed(live).mid) == (scaled(94_100.0), scaled(94_000.0))
    live.market().take(quote(94_010.0, half=0.5))
    assert (listed(live).mark, listed(live).mid) == (scaled(94_100.0), scaled(94_010.0))
    live.machine.run(OpenAccount("me", "0x0", None, 10_000 * 10**8))
    live.machine.run(PlaceOrder("me", OrderSpec("BTC", 1, size=1_000_000, leverage=1)))
    (fill,) = [event for event in live.machine.state.accounts["me"].events if isinstance(event, FillEvent)]
    assert fill.px == scaled(94_010.5)


async def test_a_source_without_bid_and_ask_keeps_the_spread_of_the_catalogue() -> None:
    live = Live(FakeSource())
    spread = listed(live).spec.half_spread
    await live.fetch()
    for n in range(100):
        live.market().take(Quote(BTC.symbol, None, None, None, 94_000.0 + n))
    assert (listed(live).mid, listed(live).spec.half_spread) == (scaled(94_099.0), spread)


async def test_an_old_mark_gives_way_to_the_middle(live: Live) -> None:
    live.market().take(Mark(BTC.symbol, None, 94_100.0))
    live.move(AGE_MAX_MS)
    live.market().take(quote(94_020.0))
    assert listed(live).mark == scaled(94_100.0)
    live.move(1)
    live.market().take(quote(94_030.0))
    assert listed(live).mark == scaled(94_030.0)


async def test_a_mark_far_from_the_last_one_waits_for_a_second_one(live: Live) -> None:
    live.market().take(Mark(BTC.symbol, None, 94_100.0))
    live.market().take(Mark(BTC.symbol, None, 9.0))
    assert listed(live).mark == scaled(94_100.0)
    assert live.prices.body()["markets"][0]["refused"] == {"jump": 1}


async def test_a_mark_of_a_closed_market_waits_for_its_quote(live: Live) -> None:
    live.market().close("test", 0)
    live.market().take(Mark(BTC.symbol, None, 94_100.0))
    assert listed(live).mark == scaled(94_000.0)


async def test_the_depth_of_the_source_bounds_an_order(live: Live) -> None:
    live.market().take(depth())
    live.market().take(quote(94_000.0, half=0.1))
    live.machine.run(OpenAccount("me", "0x0", None, 10_000_000 * 10**8))
    live.machine.run(PlaceOrder("me", OrderSpec("BTC", 1, size=scaled(1.2), leverage=1)))
    found = [(e.px, e.size) for e in live.machine.state.accounts["me"].events if isinstance(e, FillEvent)]
    assert [size for _, size in found] == [scaled(0.5), scaled(0.5), scaled(0.2)]
    assert [px for px, _ in found] == [scaled(94_000.1), scaled(94_001.1), scaled(94_002.1)]


async def test_an_unchanged_book_is_not_logged_again(live: Live) -> None:
    live.market().take(depth())
    seq = live.machine.seq
    live.market().take(depth())
    assert live.machine.seq == seq


async def test_the_book_keeps_a_market_open_in_which_no_price_changes(live: Live) -> None:
    live.market().take(depth(bid=93_000.0, ask=93_001.0))
    assert listed(live).mid == scaled(94_000.0), "the quote is fresh"
    live.move(QUIET_MS + 1)
    live.market().take(depth(bid=94_050.0, ask=94_051.0))
    assert listed(live).mid == scaled(94_050.5)
    live.move(AGE_MAX_MS)
    assert live.market().closed_reason is None


def funding_of(live: Live) -> tuple[int, int, int]:
    return listed(live).funding_rate, listed(live).funding_hours, listed(live).funding_ms


async def test_funding_is_the_whole_rate_at_the_exchanges_instants(live: Live) -> None:
    live.market().take(FundingRate(BTC.symbol, 0.0004, 8))
    assert funding_of(live) == (400_000_000, 8, 0), "at 00:00, 08:00 and 16:00 UTC"
    assert listed(live).is_rate_recorded
    seq = live.machine.seq
    live.market().take(FundingRate(BTC.symbol, 0.0004, 8))
    assert live.machine.seq == seq
    live.market().take(FundingRate(BTC.symbol, -0.0001, 8, paid_ms=12 * HOUR_MS + 7))
    assert funding_of(live) == (-100_000_000, 8, 4 * HOUR_MS), "at 04:00, 12:00 and 20:00 UTC"


@pytest.mark.parametrize("rate", [0.33, -1.0, float("nan"), float("inf")])
async def test_a_rate_above_four_percent_an_hour_is_not_believed(live: Live, rate: float) -> None:
    live.market().take(FundingRate(BTC.symbol, rate, 8))
    assert not listed(live).is_rate_recorded


async def test_the_status_has_the_transport_the_clocks_and_what_is_missing(live: Live) -> None:
    for update in (
        Connection("websocket", 1_500),
        Missing("depth", "no route"),
        Missing("marks", "busy"),
        Missing("marks", None),
    ):
        live.prices._take(update)
    view = live.prices.body()
    assert (view["transport"], view["clockDifferenceMs"], view["missing"]) == (
        "websocket",
        1_500,
        {"depth": "no route"},
    )
    market = view["markets"][0]
    assert (market["markedAt"], market["depthAt"], market["fundingAt"]) == (None, None, None)
    for update in (Mark(BTC.symbol, None, 94_000.0), depth(), FundingRate(BTC.symbol, 0.0001, 8)):
        live.prices._take(update)
    market = live.prices.body()["markets"][0]
    assert market["markedAt"] == market["depthAt"] == market["fundingAt"] == live.machine.clock.now_ms()

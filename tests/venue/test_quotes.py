"""Quotes of a real exchange: triggers and liquidations go by the mark, resting limits and fills by bid and ask."""

from __future__ import annotations

from random import Random

import pytest

from bot.model.events import Event, FillEvent, FundingPaid, Liquidated
from bot.service.state_machine.quiet_marks import QuietMarks
from bot.venue.model.commands import PlaceOrder, QuotePoint, SetBook, SetMarket, SetQuotes
from bot.venue.model.state import HOUR_MS
from bot.venue.prices.book import book
from tests.builders import T0, VenueDriver, e8, market, order, trail
from tests.venue.world import check

GRID = {"sig_figs": None, "px_decimals": 1}


def quoted(mark: str = "100", bid: str = "99.9", ask: str = "100.1", **over) -> VenueDriver:
    venue = VenueDriver((market(**{**GRID, **over}), "100"))
    quote(venue, mark, bid, ask)
    return venue


def quote(venue: VenueDriver, mark: str, bid: str, ask: str) -> list[Event]:
    return venue.do(QuotePoint("BTC", e8(mark), e8(bid), e8(ask))).events


def fills(events: list[Event]) -> list[tuple[str, int]]:
    return [(one.px, one.size) for one in events if isinstance(one, FillEvent)]


def test_market_orders_fill_at_the_ask_and_the_bid():
    venue = quoted("100", "103.1", "104.6")
    assert fills(venue.place(order(size="1")).events) == [(e8("104.6"), e8("1"))]
    assert fills(venue.close().events) == [(e8("103.1"), e8("1"))]


def test_a_position_is_valued_at_the_mark():
    venue = quoted("100", "103.1", "103.1")
    venue.place(order(size="1"))
    assert venue.position().pnl(venue.mark()) == e8("-3.1")


def test_a_stop_fires_by_the_mark_and_fills_at_the_bid():
    venue = quoted()
    venue.place(order(size="1", stop="95"))
    assert not fills(quote(venue, "96", "94.0", "94.2")), "only the bid is below the stop"
    assert fills(quote(venue, "94.9", "96.3", "96.5")) == [(e8("96.3"), e8("1"))]


def test_a_target_and_a_trailing_stop_fire_by_the_mark_and_fill_at_the_bid():
    venue = quoted()
    venue.place(order(size="1", take="110"))
    assert not fills(quote(venue, "109", "111.0", "111.2"))
    assert fills(quote(venue, "110", "109.4", "109.6")) == [(e8("109.4"), e8("1"))]
    venue.place(order(size="1", guardians=(trail("5%"),)))
    quote(venue, "120", "100.0", "100.2")
    assert fills(quote(venue, "113.9", "115.0", "115.2")) == [(e8("115"), e8("1"))]


def test_a_resting_limit_fills_when_the_ask_is_below_it_whatever_the_mark_is():
    venue = quoted()
    venue.place(order(size="1", limit_px="99"))
    assert not fills(quote(venue, "97", "98.8", "99.0")), "the ask only touches the limit"
    # Another order looks at the levels again.
    venue.place(order(size="1"))
    assert [one.kind for one in venue.account.orders.values()] == ["limit"]
    assert fills(quote(venue, "101", "98.6", "98.8")) == [(e8("98.8"), e8("1"))]


def test_a_resting_sale_fills_when_the_bid_is_above_it():
    venue = quoted()
    venue.place(order(side=-1, size="1", limit_px="101"))
    assert not fills(quote(venue, "103", "101.0", "101.4"))
    assert fills(quote(venue, "100", "101.1", "101.3")) == [(e8("101.1"), e8("1"))]


def test_a_liquidation_is_decided_by_the_mark_and_fills_at_the_bid():
    venue = quoted("100000", "99999.9", "100000.1", margin_mode="isolated", px_decimals=1)
    venue.place(order(size="0.01", leverage=10))
    assert not fills(quote(venue, "91200", "90000.0", "90000.1"))
    events = quote(venue, "91100", "91150.0", "91150.1")
    assert [one.subtype for one in events if isinstance(one, Liquidated)] == ["full"]
    assert fills(events) == [(e8("91150"), e8("0.01"))]


def test_a_recorded_rate_is_paid_on_the_mark_whatever_the_quotes_are():
    venue = quoted("100", "103.1", "103.3")
    # 0.005 % an hour
    venue.do(SetMarket("BTC", funding_rate=50_000_000))
    venue.place(order(size="10"))
    paid = [one for one in venue.wait(HOUR_MS - T0 % HOUR_MS) if isinstance(one, FundingPaid)]
    assert [(one.oracle, one.amount) for one in paid] == [(e8("100"), e8("-0.05"))]


def test_the_book_has_the_depth_that_was_set_around_bid_and_ask():
    venue = quoted()
    venue.do(SetBook("BTC", e8("0.001"), e8("2"), e8("0.5")))
    assert fills(venue.place(order(size="6")).events) == [
        (e8("100.1"), e8("2")),
        (e8("100.2"), e8("3")),
        (e8("100.3"), e8("1")),
    ]
    bids, asks = book(venue.state.markets["BTC"])
    assert (bids[0], asks[0]) == ((e8("99.9"), e8("2")), (e8("100.1"), e8("2")))


def test_after_a_quote_a_plain_price_is_mark_and_mid_again():
    venue = quoted("100", "103.1", "103.1")
    venue.place(order(size="1", limit_px="99"))
    venue.move("BTC", "98.5")
    assert venue.state.markets["BTC"].mid == venue.mark() == e8("98.5")
    assert not venue.account.resting


@pytest.mark.parametrize("seed", range(4))
def test_every_fill_is_at_a_bid_or_an_ask_and_quiet_quotes_change_nothing(seed: int):
    """One venue gets every quote. The other one only notes the quotes inside the quiet band, as the service does."""
    whole, quiet = (VenueDriver((market(margin_mode="isolated", **GRID), "1000"), cash="100000") for _ in range(2))
    chance, noted, tops, px, skipped = Random(seed), QuietMarks(), set(), 10_000, 0

    def do(command) -> None:
        whole.do(command)
        for one in noted.drain():
            quiet.do(one)
        quiet.do(command)
        noted.forget_bands()

    for _ in range(150):
        px += chance.randint(-30, 30)
        half, off = chance.randint(0, 12), chance.randint(-40, 40)
        tops |= {(px - half) * 10**7, (px + half) * 10**7}
        mark, bid, ask = ((px + by) * 10**7 for by in (off, -half, half))
        whole.do(QuotePoint("BTC", mark, bid, ask))
        if noted.note_quote(quiet.state, "BTC", quiet.now_ms, mark, bid, ask):
            skipped += 1
        else:
            for one in noted.drain():
                quiet.do(one)
            quiet.do(QuotePoint("BTC", mark, bid, ask))
            noted.forget_bands()
        side = chance.choice((1, -1))
        if not chance.randrange(6):
            protected = {"stop": "2%", "take": "3%"} if chance.randrange(2) else {"guardians": (trail("1.5%"),)}
            do(
                PlaceOrder(
                    "a",
                    order(side=side, size="0.5", leverage=chance.choice((1, 20)), leverage_mode="clamp", **protected),
                )
            )
        if not chance.randrange(5):
            limit = (px - side * chance.randint(5, 60)) * 10**7
            do(PlaceOrder("a", order(side=side, size="0.5", leverage=2, limit_px=limit, leverage_mode="clamp")))
    for one in noted.drain():
        quiet.do(one)
    filled = [one for one in whole.account.events if isinstance(one, FillEvent)]
    assert len(filled) > 10
    assert skipped > 20
    assert {one.px for one in filled} <= tops
    assert whole.digest() == quiet.digest()
    assert whole.state.markets["BTC"].spec == quiet.state.markets["BTC"].spec
    check([(now_ms, command) for command, now_ms in whole.log], whole=True)


def test_a_quiet_quote_sets_mark_spread_and_oracle():
    venue = quoted()
    venue.do(SetQuotes((("BTC", e8("101"), e8("100.0"), e8("100.4")),)))
    listed = venue.state.markets["BTC"]
    assert (listed.mark, listed.mid, listed.oracle) == (e8("101"), e8("100.2"), e8("101"))
    assert fills(venue.place(order(size="1")).events) == [(e8("100.4"), e8("1"))]

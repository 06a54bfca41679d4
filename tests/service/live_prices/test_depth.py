"""The venue's book in the shape of an exchange's."""

from __future__ import annotations

import pytest

from bot.market_data.source import Depth
from bot.service.live_prices.depth import book_of
from bot.venue.model.commands import ListMarket, QuotePoint, SetBook
from bot.venue.model.numbers import E8
from bot.venue.model.state import MarketSpec, State, VenueMarket
from bot.venue.prices.book import walk
from tests.builders import e8

SPEC = MarketSpec("BTC", sz_decimals=3, sig_figs=None, px_decimals=1)


def market() -> VenueMarket:
    return VenueMarket(SPEC, e8("1000"), e8("1000"), e8("1000"))


def side(best: float, buy: int, *sizes: float, step: float = 1.0) -> list[tuple[float, float]]:
    return [(round(best + buy * n * step, 1), size) for n, size in enumerate(sizes)]


def test_the_book_has_the_top_and_the_sum_of_the_thinner_side():
    found = book_of(market(), Depth("x", side(999.9, -1, *[2.0] + [4.0] * 19), side(1000.1, 1, *[3.0] + [5.0] * 30)))
    assert found is not None
    step, size, growth = found
    assert (step, size) == (e8("0.001"), e8("2"))
    total = sum(size * (E8 + n * growth) // E8 for n in range(20))
    assert e8("77.9") < total <= e8("78"), "2 + 19 * 4, and not 3 + 19 * 5"


def test_a_book_that_is_thick_at_the_top_gets_equal_levels_of_the_same_sum():
    found = book_of(market(), Depth("x", side(999.9, -1, 100.0, *[0.1] * 19), side(1000.1, 1, *[50.0] * 20)))
    assert found is not None
    assert (found.level_size, found.level_growth) == (e8("5.095"), 0)


def test_a_short_book_has_levels_of_at_least_one_tick():
    found = book_of(market(), Depth("x", [(999.9, 0.5)], [(1000.1, 0.5)]))
    assert found is not None
    assert found == (e8("0.0001"), e8("0.025"), 0)


def test_a_taker_gets_no_more_than_the_exchange_has_at_each_price():
    """Sizes between two levels of the venue count at the worse one."""
    bids, asks = side(999.9, -1, *[1.0] * 58, step=1 / 3), side(1000.1, 1, *[1.0] * 58, step=1 / 3)
    found = book_of(market(), Depth("x", bids, asks))
    assert found is not None
    state = State()
    from bot.venue.apply import apply

    for command in (
        ListMarket(SPEC, e8("1000")),
        QuotePoint("BTC", e8("1000"), e8("999.9"), e8("1000.1")),
        SetBook("BTC", *found),
    ):
        apply(state, command, 0)
    got = 0
    for px, size in walk(state.markets["BTC"], e8("1000"), 1, e8("58")):
        got += size
        assert got <= sum(e8(str(have)) for at, have in asks if e8(str(at)) <= px + 3 * e8("0.1")), px


@pytest.mark.parametrize(
    ("bids", "asks"),
    [
        ([], [(1000.1, 1.0)]),
        ([(999.9, 1.0)], []),
        ([(1000.1, 1.0)], [(1000.1, 1.0)]),
        ([(999.9, -1.0)], [(1000.1, 1.0)]),
        ([(999.9, float("nan"))], [(1000.1, 1.0)]),
        ([(float("inf"), 1.0)], [(1000.1, 1.0)]),
        ([(999.9, 0.0)], [(1000.1, 1.0)]),
    ],
)
def test_a_book_that_is_not_possible_is_not_used(bids: list[tuple[float, float]], asks: list[tuple[float, float]]):
    assert book_of(market(), Depth("x", bids, asks)) is None

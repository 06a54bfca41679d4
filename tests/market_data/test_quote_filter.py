"""Which quotes become prices, as a table."""

from __future__ import annotations

import pytest

from bot.market_data.quote_filter import QuoteFilter, Witness, no_witness, scaled
from bot.market_data.source import Quote


def quote(bid: float | None, ask: float | None, at_ms: int | None = 1, last: float | None = None) -> Quote:
    return Quote("BTC/USDT", at_ms, bid, ask, last)


GOOD = quote(99.5, 100.5)

TABLE = [
    ("the mid of bid and ask", [GOOD], ["100"], {}),
    ("the last trade if there is no bid", [quote(None, 100.5, last=99.0)], ["99"], {}),
    ("no price at all", [quote(None, None)], [None], {"no_price": 1}),
    ("a bid of zero", [quote(0.0, 100.5)], [None], {"no_price": 1}),
    ("a negative ask", [quote(99.5, -1.0)], [None], {"no_price": 1}),
    ("not a number", [quote(float("nan"), 100.5)], [None], {"no_price": 1}),
    ("an infinite ask", [quote(99.5, float("inf"))], [None], {"no_price": 1}),
    ("bid above ask", [quote(100.5, 99.5)], [None], {"crossed": 1}),
    ("bid equal to ask", [quote(100.0, 100.0)], ["100"], {}),
    (
        "an older quote after a newer one",
        [quote(99.5, 100.5, 5), quote(98.5, 99.5, 4)],
        ["100", None],
        {"out_of_order": 1},
    ),
    ("the same quote twice", [GOOD, GOOD], ["100", "100"], {}),
    ("no time of the source", [quote(99.5, 100.5, 5), quote(98.5, 99.5, None)], ["100", "99"], {}),
    ("a jump that nothing confirms", [GOOD, quote(120.0, 120.0), GOOD], ["100", None, "100"], {"jump": 1}),
    (
        "a jump that only its own source repeats",
        [GOOD, quote(120.0, 120.0), quote(121.0, 121.0)],
        ["100", None, None],
        {"jump": 2},
    ),
    ("two jumps to different prices", [GOOD, quote(120.0, 120.0), quote(80.0, 80.0)], ["100", None, None], {"jump": 2}),
    (
        "a jump confirmed only after another price",
        [GOOD, quote(120.0, 120.0), GOOD, quote(120.0, 120.0)],
        ["100", None, "100", None],
        {"jump": 2},
    ),
    ("five per cent", [GOOD, quote(105.0, 105.0)], ["100", "105"], {}),
]


@pytest.mark.parametrize(("quotes", "prices", "refused"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_quote_becomes_a_price_or_is_counted(
    quotes: list[Quote], prices: list[str | None], refused: dict[str, int]
) -> None:
    kept = QuoteFilter()
    assert [kept.price(one) for one in quotes] == [None if px is None else int(px) * 10**8 for px in prices]
    assert kept.refused == refused


@pytest.mark.parametrize(
    ("value", "units"),
    [(0.1, 10_000_000), (94172.05, 9_417_205_000_000), (1e-08, 1), (0.00001234, 1234), (1.25, 125_000_000)],
)
def test_a_price_has_the_digits_of_the_exchange(value: float, units: int) -> None:
    assert scaled(value) == units


def says(verdict: bool | None) -> Witness:
    return lambda _px: verdict


@pytest.mark.parametrize("px", [10.0, 50.0, 80.0, 94.0, 106.0, 120.0, 200.0, 1_000.0])
@pytest.mark.parametrize("verdict", [True, False, None])
def test_a_jump_needs_a_second_quote_and_a_witness_or_time_in_proportion(px: float, verdict: bool | None) -> None:
    """Quotes of the new price each second. How long until it is the price, by what the witness says."""
    kept = QuoteFilter()
    assert kept.price(GOOD, 0) == scaled(100.0)
    proportion_s = abs(px - 100.0) / min(px, 100.0) * 100
    expected_s = {True: 1, False: None, None: next(s for s in range(1, 1_000) if s >= proportion_s)}[verdict]
    taken = [s for s in range(1_000) if kept.price(quote(px, px), 1_000 * (s + 1), says(verdict)) is not None]
    assert (taken[0] if taken else None) == expected_s
    assert kept.jumps == (expected_s is not None)
    if expected_s is not None:
        assert kept.jump is not None
        assert (kept.jump.from_px, kept.jump.to_px, kept.jump.at_ms) == (
            scaled(100.0),
            scaled(px),
            1_000 * (expected_s + 1),
        )


def test_time_begins_again_when_the_price_comes_back_or_a_witness_denies() -> None:
    kept = QuoteFilter()
    kept.price(GOOD, 0)
    for second in range(19):
        assert kept.price(quote(120.0, 120.0), second * 1_000) is None
    assert kept.price(GOOD, 19_000) == scaled(100.0)
    assert kept.price(quote(120.0, 120.0), 20_000) is None
    assert kept.price(quote(120.0, 120.0), 39_000, says(False)) is None
    assert kept.price(quote(120.0, 120.0), 45_000, no_witness) is None
    assert kept.price(quote(120.0, 120.0), 59_000, no_witness) == scaled(120.0)


def test_a_price_that_is_held_is_seen_so_that_it_can_be_a_witness() -> None:
    kept = QuoteFilter()
    kept.price(GOOD, 0)
    kept.price(quote(10.0, 10.0), 5)
    assert (kept.seen, kept.held_jump) == ((scaled(10.0), 5), (scaled(100.0), scaled(10.0)))

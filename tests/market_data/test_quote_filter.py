"""Which quotes become prices, as a table."""

from __future__ import annotations

import pytest

from bot.market_data.quote_filter import QuoteFilter, scaled
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
    ("an older quote after a newer one", [quote(99.5, 100.5, 5), quote(98.5, 99.5, 4)], ["100", None], {"out_of_order": 1}),
    ("the same quote twice", [GOOD, GOOD], ["100", "100"], {}),
    ("no time of the source", [quote(99.5, 100.5, 5), quote(98.5, 99.5, None)], ["100", "99"], {}),
    ("a jump that nothing confirms", [GOOD, quote(120.0, 120.0), GOOD], ["100", None, "100"], {"jump": 1}),
    ("a jump that a second quote confirms", [GOOD, quote(120.0, 120.0), quote(121.0, 121.0)], ["100", None, "121"], {"jump": 1}),
    ("two jumps to different prices", [GOOD, quote(120.0, 120.0), quote(80.0, 80.0)], ["100", None, None], {"jump": 2}),
    ("a jump confirmed only after another price", [GOOD, quote(120.0, 120.0), GOOD, quote(120.0, 120.0)],
     ["100", None, "100", None], {"jump": 2}),
    ("five per cent", [GOOD, quote(105.0, 105.0)], ["100", "105"], {}),
]  # fmt: skip


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

"""Markets with an outside price: while it is closed the oracle does not move, the book is thinner, and strict
markets open nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from bot.errors import Refusal
from bot.venue.accounting import funding
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.prices.book import book
from tests.builders import T0, VenueDriver, e8, market, order

OPENS = T0 + 7_200_000


def venue_with(**over: Any) -> VenueDriver:
    plain: dict[str, Any] = {
        "margin_mode": "isolated",
        "book": "stocks",
        "hours": "equity",
        "sz_decimals": 2,
        "half_spread": 10_000,
    }
    return VenueDriver((market("AAPL", **{**plain, "level_size": e8("30"), "level_step": 10_000, **over}), "200"))


def shut(venue: VenueDriver) -> None:
    venue.do(c.SetMarket("AAPL", external="closed", turns_ms=OPENS))


def test_a_closed_outside_price_freezes_the_oracle_until_it_reopens() -> None:
    venue = venue_with()
    shut(venue)
    venue.do(c.PricePoint("AAPL", e8("201")))
    venue.do(c.SetMarks((("AAPL", e8("202")),)))
    listed = venue.state.markets["AAPL"]
    assert (listed.mark, listed.oracle) == (e8("202"), e8("200"))
    venue.do(c.SetMarket("AAPL", external="open", turns_ms=OPENS))
    assert listed.oracle == e8("202"), "no price has come since the opening"
    venue.do(c.PricePoint("AAPL", e8("205"), step=1))
    assert (listed.oracle, listed.opens_ms, listed.closes_ms) == (e8("205"), None, OPENS)


def test_a_closed_outside_price_makes_the_spread_three_times_as_wide_and_the_book_a_third_as_deep() -> None:
    venue = venue_with()
    listed = venue.state.markets["AAPL"]
    bids, asks = book(listed)
    shut(venue)
    wide_bids, wide_asks = book(listed)
    assert wide_asks[0][0] - wide_bids[0][0] == 3 * (asks[0][0] - bids[0][0])
    assert (bids[0][1], wide_bids[0][1]) == (e8("30"), e8("10"))


def test_strict_hours_refuse_openings_and_allow_every_close() -> None:
    venue = venue_with(strict_hours=True)
    venue.place(order("AAPL", 1, usd="1000", stop="5%"))
    venue.place(order("AAPL", 1, usd="1000", limit_px="198"))
    shut(venue)
    refused = venue.place(order("AAPL", 1, usd="1000")).answer
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.details) == ("market_closed", {"opensAt": OPENS})
    venue.do(c.PricePoint("AAPL", e8("197")))
    # Resting orders wait for the session.
    assert len(venue.account.resting) == 1
    venue.do(c.ClosePosition("a", "AAPL", fraction=E8 // 2))
    venue.do(c.PricePoint("AAPL", e8("189")))
    # Stops stay possible.
    assert not venue.account.positions
    venue.do(c.SetMarket("AAPL", external="open", turns_ms=OPENS))
    venue.do(c.PricePoint("AAPL", e8("189")))
    assert venue.account.positions


def test_markets_without_strict_hours_trade_at_all_hours_with_a_warning() -> None:
    venue = venue_with()
    shut(venue)
    placed = venue.place(order("AAPL", 1, usd="1000")).answer
    assert "external_closed" in [code for code, _ in placed.warnings]


def test_funding_follows_the_premium_over_a_frozen_oracle_at_the_stocks_share() -> None:
    venue = venue_with(funding_rate=6_250_000, funding_factor=E8 // 2, half_spread=0, level_step=0, level_size=0)
    listed = venue.state.markets["AAPL"]
    assert funding.rate_now(listed) == 6_250_000
    shut(venue)
    # One per cent above the oracle: (0.01 - 0.0005) / 8, and half of it.
    venue.do(c.PricePoint("AAPL", e8("202")))
    assert funding.rate_now(listed) == 593_750_000


def test_no_premium_is_charged_from_the_opening_on_though_the_next_candle_is_hours_away() -> None:
    """A daily candle begins at midnight UTC, an hour before the exchange opens in winter."""
    venue = venue_with(funding_rate=6_250_000, funding_factor=E8 // 2, half_spread=0, level_step=0, level_size=0)
    shut(venue)
    venue.do(c.PricePoint("AAPL", e8("202")))
    venue.do(c.SetMarket("AAPL", external="open", turns_ms=OPENS))
    assert funding.rate_now(venue.state.markets["AAPL"]) == 6_250_000


@pytest.mark.parametrize("rate", [6_250_000, 6_250_001])
def test_a_recorded_rate_is_paid_unchanged_also_if_it_equals_the_baseline(rate: int) -> None:
    venue = venue_with(funding_rate=6_250_000, funding_factor=E8 // 2, half_spread=0, level_step=0, level_size=0)
    venue.do(c.SetMarket("AAPL", funding_rate=rate))
    shut(venue)
    venue.do(c.PricePoint("AAPL", e8("202")))
    assert funding.rate_now(venue.state.markets["AAPL"]) == rate


def test_the_spread_warning_uses_the_wider_spread_of_closed_hours() -> None:
    """Three times as wide while the outside price is closed: 60 bps instead of 20, which alone would give no
    warning.
    """
    venue = venue_with(half_spread=100_000)

    def warned() -> dict[str, str]:
        return dict(venue.do(c.StorePlan("a", order("AAPL", size="1"), str(venue.state.commands), 1)).answer.warnings)

    assert "wide_spread" not in warned()
    shut(venue)
    assert warned()["wide_spread"] == "the spread is 60 bps"
    cheap = VenueDriver(
        (
            market("event:X", margin_mode="full", sz_decimals=0, sig_figs=None, px_decimals=3, half_spread=200_000),
            "0.04",
        )
    )
    plan = cheap.do(c.StorePlan("a", order("event:X", size="500", slippage_bps=500), "t", 1)).answer
    assert dict(plan.warnings)["wide_spread"] == "the spread is 1000 bps"
    cheap.bar("event:X", "0.96", "0.96", "0.96", "0.96")
    plan = cheap.do(c.StorePlan("a", order("event:X", -1, size="500", slippage_bps=500), "u", 1)).answer
    assert dict(plan.warnings)["wide_spread"] == "the spread is 1000 bps", "of what a No costs"

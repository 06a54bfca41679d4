"""Funding: at every full hour, before that hour's open, on the oracle price, for each position held at that instant."""

from __future__ import annotations

import pytest

from bot.model.events import FundingPaid
from bot.venue.accounting import funding, ledger
from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8, E12
from bot.venue.model.state import GuardianSpec
from tests.builders import HOUR_MS, T0, VenueDriver, e8, market, order
from tests.scenario import run

# 0.0000125
RATE = 125 * E12 // 10_000_000


def hours_bars(venue: VenueDriver, minutes: int) -> list:
    return [e for _ in range(minutes) for e in venue.bar("BTC", "100", "100", "100", "100")]


def test_funding_is_paid_at_the_full_hour_at_the_price_of_its_open():
    venue = VenueDriver((market(funding_rate=RATE), "100"))
    venue.bar("BTC", "100", "100", "100", "100")
    venue.place(order(size="10"))
    assert not hours_bars(venue, 59)
    events = venue.bar("BTC", "200", "200", "200", "200")
    assert [(e.ts, e.oracle, e.amount) for e in events] == [(T0 + HOUR_MS, e8("200"), e8("-0.025"))]


def test_funding_comes_before_the_price_of_the_same_instant():
    venue = VenueDriver((market(funding_rate=RATE), "100"))
    venue.place(order(size="10", stop="98"))
    hours_bars(venue, 60)
    events = venue.bar("BTC", "97", "97", "97", "97")
    assert [type(e).__name__ for e in events][:2] == ["FundingPaid", "Triggered"]
    assert {e.ts for e in events} == {T0 + HOUR_MS}


@pytest.mark.parametrize("walk", ["bars", "points"])
def test_funding_of_all_markets_comes_before_any_price_of_the_same_instant(walk: str):
    """A position that the first market's price closes was held at that instant.

    It pays on its own open, or on its last price if it has no open.
    """
    venue = VenueDriver(*((market(coin, funding_rate=RATE), "100") for coin in ("BTC", "ETH", "SOL")))
    venue.arm(GuardianSpec("account_drawdown", max_loss_pct=5 * E8, action="flatten"))
    for coin, size in (("BTC", "60"), ("ETH", "10"), ("SOL", "10")):
        venue.place(order(coin, size=size))
    venue.wait(HOUR_MS - 1)
    opens = (("BTC", e8("90")), ("ETH", e8("80")))
    command: c.Command
    if walk == "bars":
        command = c.PassBars(tuple(c.PassBar(coin, T0 + HOUR_MS, px, px, px, px, E8) for coin, px in opens))
    else:
        points = tuple((T0 + HOUR_MS, coin, px, 0, T0 + HOUR_MS, E8, None, px) for coin, px in opens)
        command = c.PassPoints(points, T0 + HOUR_MS)
    events = apply(venue.state, command, T0 + HOUR_MS + 59_999).events
    paid = [(e.ts, e.coin, e.oracle) for e in events[:3] if isinstance(e, FundingPaid)]
    assert paid == [(T0 + HOUR_MS, coin, e8(px)) for coin, px in (("BTC", "90"), ("ETH", "80"), ("SOL", "100"))]
    assert not venue.account.positions


def test_a_position_closed_before_the_hour_pays_nothing():
    venue = VenueDriver((market(funding_rate=RATE), "100"))
    venue.place(order(size="10"))
    hours_bars(venue, 59)
    venue.close()
    assert not hours_bars(venue, 10)


def test_a_position_opened_at_the_hour_waits_for_the_next():
    venue = VenueDriver((market(funding_rate=RATE), "100"))
    hours_bars(venue, 60)
    venue.place(order(size="10"))
    assert not hours_bars(venue, 60)
    assert len(hours_bars(venue, 1)) == 1


def test_funding_is_paid_each_hour_also_when_no_price_comes():
    run("""
        mark BTC 100 funding 0.0000125
        long BTC 10
        wait 3h                        | funding -0.0125, funding -0.0125, funding -0.0125
        cash                           | 9999.9625
    """)


def test_each_missed_funding_hour_has_its_own_instant():
    venue = VenueDriver((market(funding_rate=RATE), "100"))
    venue.place(order(size="10"))
    events = [e for e in venue.wait(3 * HOUR_MS) if isinstance(e, FundingPaid)]
    assert [e.ts for e in events] == [T0 + n * HOUR_MS for n in (1, 2, 3)]


def test_shorts_receive_what_longs_pay():
    run("""
        mark BTC 100 funding 0.0000125
        mark ETH 100
        rate ETH -0.0000625
        short BTC 10
        long ETH 10
        wait 1h                        | funding 0.0125, funding 0.0625
    """)


def test_funding_goes_to_the_isolated_margin_and_moves_the_liquidation_price():
    run("""
        mark BTC 100 isolated funding 0.001
        long BTC 10 lev 10
        liquidation BTC                | 91.1392405
        wait 1h                        | funding -1
        margin BTC                     | 99
        cash                           | 9900
        liquidation BTC                | 91.24050632
    """)


def test_funding_that_brings_a_position_below_maintenance_liquidates_it_at_the_next_point():
    run("""
        mark BTC 100 isolated
        rate BTC 0.005
        long BTC 10 lev 10
        move BTC 91.5
        wait 1h                        | funding -4.575
        move BTC 91.5                  | liquidation 10 @ 91.5
    """)


def test_funding_beyond_an_isolated_margin_is_neither_charged_nor_reported():
    venue = VenueDriver((market(margin_mode="isolated"), "100"))
    venue.do(c.SetMarket("BTC", funding_rate=4 * E12 // 100))
    venue.place(order(size="10", leverage=10))
    paid = [e.amount for e in venue.wait(4 * HOUR_MS) if isinstance(e, FundingPaid)]
    assert paid == [e8("-40"), e8("-40"), e8("-20"), 0]
    held = venue.position()
    assert (held.margin, held.funding, venue.account.funding) == (0, e8("-100"), e8("-100"))
    assert venue.account.absorbed == 0
    assert ledger.account_value(venue.state, venue.account) == e8("10000") + sum(paid)


@pytest.mark.parametrize(
    ("hours", "first", "paid"),
    [(1, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9]), (4, 0, [4, 8]), (8, 0, [8]), (8, 4, [4]), (8, -4, [4]), (8, 17, [1, 9])],
)
def test_a_recorded_rate_for_several_hours_is_paid_whole_at_its_instants(hours: int, first: int, paid: list[int]):
    venue = VenueDriver((market(), "100"))
    rate = c.SetMarket("BTC", funding_rate=E12 // 1_000, funding_hours=hours, funding_ms=T0 + first * HOUR_MS)
    venue.do(rate)
    venue.place(order(size="10"))
    listed = venue.state.markets["BTC"]
    assert funding.next_payment_ms(listed, T0) == T0 + paid[0] * HOUR_MS
    assert funding.hourly_rate_now(listed) == E12 // 1_000 // hours
    events = [e for e in venue.wait(9 * HOUR_MS) if isinstance(e, FundingPaid)]
    assert [((e.ts - T0) // HOUR_MS, e.amount) for e in events] == [(hour, e8("-1")) for hour in paid]


def test_a_rate_change_counts_from_the_next_payment():
    run("""
        mark BTC 100 funding 0.0000125
        long BTC 10
        wait 1h                        | funding -0.0125
        rate BTC 0.0001
        wait 1h                        | funding -0.1
    """)

"""Liquidation: on mark, through the book, a fifth first when large, backstop below two thirds; never below zero."""

from __future__ import annotations

from random import Random

import pytest

from bot.model.events import FillEvent, Liquidated
from bot.venue.accounting import ledger
from bot.venue.model.numbers import E8, text_of
from bot.venue.model.state import Rules
from tests.builders import VenueDriver, code_of, e8, market, order
from tests.scenario import run


def isolated(px: str = "100000", **over) -> VenueDriver:
    """Long 0.01 BTC at 100,000 with 10x: margin 100, liquidation at 91,139.24."""
    venue = VenueDriver((market(margin_mode="isolated", sig_figs=None, px_decimals=8, **over), px))
    venue.place(order(size="0.01", leverage=10))
    return venue


def liquidated(events) -> list[tuple[str, int, int]]:
    return [(e.subtype, e.px, e.margin_lost) for e in events if isinstance(e, Liquidated)]


def test_below_maintenance_the_book_closes_the_position_and_the_trader_keeps_the_rest():
    venue = isolated()
    assert liquidated(venue.jump("BTC", "91100")) == [("full", e8("91100"), 0)]
    assert venue.account.balance == e8("9911")
    assert (venue.account.margin_lost, venue.account.absorbed) == (0, 0)


def test_a_waiting_close_in_another_market_survives_a_cross_liquidation():
    """Resting entries end: they reserve the missing margin."""
    markets = (market(), market("ETH"), market("AAPL", margin_mode="isolated"))
    venue = VenueDriver(*((one, "100") for one in markets), cash="121", rules=Rules(fill_at="next"))
    venue.place(order(size="10", leverage=20))
    venue.place(order("ETH", size="1", leverage=20))
    venue.place(order("AAPL", size="1", leverage=5))
    for one in markets:
        venue.jump(one.coin, "100")
    venue.place(order("ETH", size="1", limit_px="90"))
    venue.close("ETH")
    venue.close("AAPL")
    assert [kind for kind, *_ in liquidated(venue.jump("BTC", "91.1"))] == ["full"]
    assert [venue.account.orders[n].kind for n in venue.account.resting] == ["close", "close"]
    venue.jump("ETH", "100")
    venue.jump("AAPL", "100")
    assert not venue.account.positions
    assert venue.account.balance == e8("32")


def test_below_two_thirds_of_maintenance_the_backstop_takes_the_margin():
    venue = isolated()
    assert liquidated(venue.jump("BTC", "90700")) == [("backstop", e8("90700"), e8("7"))]
    assert venue.account.balance == e8("9900")
    assert venue.account.margin_lost == e8("7")


@pytest.mark.parametrize(("px", "route"), [("90756.31", "full"), ("90756.30", "backstop")])
def test_the_route_changes_where_equity_is_two_thirds_of_maintenance(px: str, route: str):
    # Equity 100 - (100,000 - p)/100 equals two thirds of p * 0.01 / 80 at p = 900 / (0.01 - 0.01/120) = 90,756.3025.
    assert [kind for kind, *_ in liquidated(isolated().jump("BTC", px))] == [route]


def test_just_above_maintenance_nothing_happens():
    venue = isolated()
    assert not venue.jump("BTC", "91139.25")
    assert liquidated(venue.jump("BTC", "91139.24"))[0][0] == "full"


def test_a_walk_through_the_liquidation_price_fills_there():
    venue = isolated()
    ((kind, px, _),) = liquidated(venue.move("BTC", "80000"))
    assert kind == "full"
    # 1e-8 USD of a hundredth of a coin.
    assert abs(px - e8("91139.24050633")) <= 100


def test_a_jump_far_beyond_costs_no_more_than_the_isolated_margin():
    venue = isolated()
    ((kind, _, lost),) = liquidated(venue.jump("BTC", "50000"))
    assert (kind, lost) == ("backstop", 0)
    assert venue.account.balance == e8("9900")
    assert venue.account.absorbed == e8("400")


def test_a_cross_account_never_ends_below_zero():
    venue = VenueDriver((market(), "100"), cash="1000")
    venue.place(order(size="100", leverage=20))
    assert liquidated(venue.jump("BTC", "50"))[0][0] == "backstop"
    a = venue.account
    assert (a.balance, a.absorbed) == (0, e8("4000"))
    assert a.balance == e8("1000") + a.realized - a.fees + a.funding - a.margin_lost + a.absorbed


def test_a_stop_before_the_liquidation_price_fires_first_and_bounds_the_loss():
    run("""
        mark BTC 100 isolated
        long BTC 5 lev 10 stop 92
        bar BTC 100 100 80 85          | stop_loss 5 @ 92
        cash                           | 9960
    """)


def test_a_bar_that_opens_beyond_stop_and_liquidation_price_liquidates():
    run("""
        mark BTC 100 isolated
        long BTC 5 lev 10 stop 92
        bar BTC 91.1 92 90 91          | liquidation 5 @ 91.1
        orders BTC                     | none
    """)


def test_when_the_bar_opens_beyond_the_stop_alone_the_stop_fires_at_the_open():
    run("""
        mark BTC 100 isolated
        long BTC 5 lev 10 stop 92
        bar BTC 91.5 92 90 91          | stop_loss 5 @ 91.5
    """)


def test_liquidation_cancels_the_bracket_the_trail_and_the_resting_entries():
    run("""
        mark BTC 100 isolated
        long BTC 5 lev 10 stop 92 take 120
        long BTC 1 limit 50
        trail BTC 20%
        jump BTC 91.1                  || canceled limit 50 liquidated, canceled stop_loss 92 liquidated, canceled \
take_profit 120 liquidated, liquidation 5 @ 91.1, released trailing_stop position_closed, liquidated full
        trade                          | liquidation close done filled liquidated
    """)


@pytest.mark.parametrize(("px", "route"), [("91.1", "full"), ("90.5", "backstop")])
def test_a_liquidation_ends_a_working_target_like_any_exit(px: str, route: str):
    venue = VenueDriver((market(margin_mode="isolated", level_size=10**7, level_step=10_000), "100"))
    for _ in range(4):
        venue.place(order(size="1.5", leverage=10, take="1%"))
    venue.jump("BTC", "101.2")
    assert [o.status for o in venue.account.orders.values()] == ["working"]
    events = venue.jump("BTC", px)
    assert [kind for kind, *_ in liquidated(events)] == [route]
    said = [(type(e).__name__, getattr(e, "reason", None)) for e in events if not isinstance(e, FillEvent)]
    assert said == [("OrderChanged", "liquidated"), ("Liquidated", None)]
    target = next(trade for trade in venue.account.trades if trade.kind == "take_profit")
    assert (target.status, target.reason) == ("canceled", "liquidated")


def test_an_isolated_liquidation_leaves_other_markets_alone():
    run("""
        mark BTC 100 isolated
        mark ETH 100 isolated
        long BTC 5 lev 10
        long ETH 5 lev 10 stop 95
        long ETH 1 limit 90
        jump BTC 91                    | liquidation 5 @ 91
        orders ETH                     | stop_loss 5 @ 95, limit 1 @ 90
    """)


def test_a_liquidation_pays_the_taker_fee():
    run("""
        mark BTC 100 isolated fee 0.1% 0.1%
        long BTC 5 lev 10
        jump BTC 91.1                  | liquidation 5 @ 91.1
        cash                           | 9954.5445
    """)


# ── Large positions ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_above_100k_the_first_order_closes_a_fifth():
    run("""
        mark BTC 100
        long BTC 1900 lev 20 take 120
        jump BTC 95.9                  || liquidation 380 @ 95.9, changed take_profit 120, liquidated partial
        position BTC                   | long 1520 @ 100 20x
    """)


def test_within_30_seconds_of_a_partial_liquidation_the_next_order_takes_everything():
    # One jump leaves the account just above, the next one, seconds later, below again.
    run("""
        mark BTC 100
        long BTC 1900 lev 20
        jump BTC 95.9                  | liquidation 380 @ 95.9
        wait 10s
        jump BTC 95.5                  | liquidation 1520 @ 95.5
    """)


def test_after_30_seconds_a_liquidation_closes_a_fifth_again():
    run("""
        mark BTC 100
        long BTC 1900 lev 20
        jump BTC 95.9                  | liquidation 380 @ 95.9
        wait 30s
        jump BTC 95.5                  | liquidation 304 @ 95.5
    """)


def test_the_backstop_reports_the_end_of_the_positions_trailing_stop():
    run("""
        mark BTC 100 isolated
        long BTC 5 lev 10 stop 92
        trail BTC 20%
        jump BTC 80                    || canceled stop_loss 92 liquidated, liquidated backstop, released \
trailing_stop position_closed
    """)


def test_any_position_on_the_way_of_one_point_is_liquidated_at_its_level():
    chance = Random(7)
    for _ in range(300):
        side, leverage, px = (
            chance.choice((1, -1)),
            chance.randint(2, 40),
            chance.choice((0.4321, 7.77, 103.5, 2500, 97_531)),
        )
        venue = VenueDriver(
            (market(margin_mode="isolated", sz_decimals=chance.randint(0, 5), sig_figs=None, px_decimals=8), f"{px}"),
            cash="100000000",
        )
        lot = venue.state.markets["BTC"].lot
        size = max(lot, round(chance.uniform(11, 90_000) / px * E8) // lot * lot)
        if code_of(venue.place(order(side=side, size=text_of(size), leverage=leverage))):
            continue
        level = ledger.liquidation_px(venue.state, venue.position())
        events = venue.move("BTC", f"{px * (0.01 if side > 0 else 3):.8f}")
        got = [e.px for e in events if isinstance(e, Liquidated)]
        assert len(got) == 1, (side, leverage, px, size)
        assert level is not None and abs(got[0] - level) <= 2 + 2 * E8 // size, (side, leverage, px, size, got, level)


def test_an_account_still_below_after_its_fifth_is_closed_at_the_next_point():
    venue = VenueDriver((market(sz_decimals=2, half_spread=500_000), "100"))
    venue.place(order(size="1900", leverage=20))
    venue.jump("BTC", "96.4")
    assert 0 < venue.position().size < e8("1900")
    venue.wait(1000)
    venue.jump("BTC", "96.3")
    equity, need = ledger.cross_value(venue.state, venue.account), 0
    for p in venue.account.positions.values():
        need += ledger.maintenance(venue.state.markets["BTC"], venue.state.markets["BTC"].mark * p.size // E8)
    assert not venue.account.positions or equity >= need


@pytest.mark.parametrize(("px", "gone"), [("102", ["full"]), ("102.2", [])])
def test_an_account_still_below_after_its_fifth_is_checked_at_the_next_price_of_any_market(px: str, gone: list[str]):
    """After a fifth 207.34 USD are missing; the other market gives back 197.50 or 217.25 of them."""
    venue = VenueDriver((market(sz_decimals=2), "100"), (market("ETH"), "100"))
    venue.place(order(size="1900", leverage=20))
    venue.place(order("ETH", size="100", leverage=20))
    assert [kind for kind, *_ in liquidated(venue.jump("BTC", "95.65"))] == ["partial"]
    venue.wait(1000)
    assert [kind for kind, *_ in liquidated(venue.jump("ETH", px))] == gone


# ── Cross accounts ──────────────────────────────────────────────────────────────────────────────────────────────────


def two_markets(cash: str = "500") -> VenueDriver:
    venue = VenueDriver((market("ETH", max_leverage=25, sz_decimals=4), "2500"), (market("BTC"), "100000"), cash=cash)
    venue.place(order("ETH", size="1", leverage=25))
    venue.place(order("BTC", -1, size="0.01", leverage=40))
    return venue


def test_one_markets_fall_liquidates_the_account_where_all_maintenance_is_used_up():
    venue = two_markets()
    events = liquidated(venue.move("ETH", "2000"))
    assert events[0][0] == "full"
    assert abs(events[0][1] - e8("2053.5714")) <= 2 * 10**7, "within two ticks of the shared price"


def test_a_cross_account_is_liquidated_by_the_sum_of_losses_in_two_markets():
    venue = two_markets()
    assert not venue.move("ETH", "2300")
    assert not venue.move("BTC", "115000")
    events = venue.move("BTC", "130000")
    first, *_ = liquidated(events)
    # 500 - 200 - (p - 100000)/100 = 46 + p/8000
    assert abs(first[1] - 124_938_271_60493) < 10**8 or first[0] == "full"
    assert abs(first[1] / E8 - (1000 + 500 - 200 - 46) / (0.01 + 0.01 / 80)) < 2


def test_a_gain_in_one_market_prevents_the_liquidation_in_another():
    venue = two_markets()
    venue.move("BTC", "80000")
    assert not venue.move("ETH", "2000")
    assert venue.account.positions["ETH"].size == E8


def test_a_cross_backstop_takes_all_cross_positions_and_leaves_isolated_ones():
    venue = VenueDriver(
        (market("ETH"), "100"), (market("BTC"), "100"), (market("SOL", margin_mode="isolated"), "100"), cash="1000"
    )
    venue.place(order("SOL", size="5", leverage=5))
    venue.place(order("ETH", size="50", leverage=20))
    venue.place(order("BTC", size="1", leverage=20))
    venue.jump("ETH", "70")
    assert list(venue.account.positions) == ["SOL"]
    assert venue.account.balance == 0 and venue.position("SOL").margin == e8("100")


@pytest.mark.parametrize("path", ["adaptive", "ohlc", "olhc", "sl_first"])
def test_under_sl_first_no_target_fills_before_a_liquidation_in_the_same_bar(path: str):
    venue = run(
        """
        mark BTC 100 isolated
        long BTC 5 lev 10 take 104
        bar BTC 100 105 80 90
        position BTC                   | flat
    """,
        rules=Rules(paths=path),
    )
    kinds = [t.kind for t in venue.account.trades]
    assert kinds[-1] == ("take_profit" if path in ("ohlc", "adaptive") else "liquidation")


def test_a_short_of_an_account_without_equity_is_liquidated_at_any_price_of_its_market():
    """Funding exceeded the equity, and its market has had no price since."""
    run("""
        mark BTC 100
        mark ETH 100 funding 0.01
        short BTC 1
        long ETH 500 lev 10
        wait 20h                       | ...
        move BTC 90                    | backstop 1 @ 90, backstop 500 @ 100
    """)

"""Margin: cross and isolated, free and reserved amounts, effects of a change of leverage."""

from __future__ import annotations

from typing import Any

import pytest

from bot.venue.accounting import ledger
from bot.venue.model import commands as c
from bot.venue.model.state import Rules
from bot.venue.protection.protection import is_protected
from tests.builders import VenueDriver, code_of, e8, market, order, trail
from tests.scenario import run


def test_a_cross_position_uses_its_value_at_mark_over_leverage():
    run("""
        mark BTC 100
        long BTC 50 lev 5
        cash                           | 10000
        used                           | 1000
        free                           | 9000
        move BTC 110
        value                          | 10500
        used                           | 1100
        free                           | 9400
    """)


def test_an_isolated_position_takes_its_margin_out_of_the_balance():
    run("""
        mark BTC 100 isolated fee 0.1% 0.1%
        long BTC 50 lev 5
        cash                           | 9000
        margin BTC                     | 995
        free                           | 9000
        move BTC 110
        value                          | 10495
        free                           | 9000
    """)


def test_adding_to_an_isolated_position_adds_margin_and_closing_a_part_frees_it_pro_rata():
    run("""
        mark BTC 100 isolated
        long BTC 50 lev 5
        long BTC 50
        margin BTC                     | 2000
        close BTC 25%
        margin BTC                     | 1500
        cash                           | 8500
        move BTC 110
        close BTC 50%
        margin BTC                     | 750
        position BTC                   | long 37.5 @ 100 5x
        close BTC
        cash                           | 10750
    """)


def test_a_partial_close_at_a_profit_pays_its_share_of_margin_and_the_profit():
    run("""
        mark BTC 100 isolated
        long BTC 50 lev 5
        move BTC 110
        close BTC 50%                  | close 25 @ 110
        cash                           | 9750
        margin BTC                     | 500
    """)


def test_an_order_beyond_the_free_margin_is_refused_with_the_largest_that_passes():
    venue = VenueDriver((market(), "100"), cash="1000")
    refused = venue.place(order(usd="1001")).answer
    assert (refused.code, refused.fix["field"]) == ("insufficient_funds", "usdAmount")
    assert code_of(venue.place(order(usd=refused.fix["value"]))) == ""
    assert code_of(VenueDriver((market(), "100"), cash="1000").place(order(usd="1000"))) == ""
    refused = VenueDriver((market(), "100"), cash="1000").place(order(size="50.1", leverage=5)).answer
    assert refused.fix["field"] == "size"
    assert (
        code_of(VenueDriver((market(), "100"), cash="1000").place(order(size=refused.fix["value"], leverage=5))) == ""
    )


def test_the_fee_of_a_cross_order_needs_margin_too():
    run("""
        mark BTC 100 fee 1% 1%
        long BTC 100                   | no insufficient_funds
        long BTC 99                    | open 99 @ 100
    """)


def test_a_resting_entry_reserves_margin_and_fee_until_it_fills_or_ends():
    run("""
        mark BTC 100 fee 1% 1%
        long BTC 50 limit 90 lev 2
        reserved                       | 2295
        free                           | 7705
        long BTC 80                    | no insufficient_funds
        bar BTC 90 90 89 89            | open 50 @ 90
        reserved                       | 0
        used                           | 2225
    """)


def test_a_partly_crossing_limit_that_turns_reserves_margin_for_its_whole_opening():
    run("""
        mark BTC 100 depth 2 10bps
        long BTC 2
        long BTC 2
        long BTC 1
        short BTC 8 limit 100          | limit 2 @ 100
        reserved                       | 300
    """)


def test_an_order_that_turns_a_position_reuses_its_margin():
    run("""
        mark BTC 100
        long BTC 90
        short BTC 180                  | market 90 @ 100, open 90 @ 100
        short BTC 180                  | no insufficient_funds
    """)


@pytest.mark.parametrize("kind", ["", "isolated"])
def test_a_resting_limit_that_turns_a_position_reuses_its_margin(kind: str):
    run(f"""
        mark BTC 100 {kind}
        long BTC 90
        short BTC 180 limit 110        || open limit 110
        bar BTC 100 111 100 111        | limit 90 @ 110, open 90 @ 110
    """)


def test_a_resting_limit_that_turns_is_dropped_if_its_close_frees_too_little_margin():
    run("""
        mark BTC 100
        mark ETH 100
        long BTC 90
        short ETH 40 lev 10
        short BTC 170 limit 110
        jump ETH 300
        bar BTC 100 111 100 111        || canceled limit 110 insufficient_funds
    """)


def test_a_turn_of_an_isolated_position_uses_the_margin_that_its_close_frees():
    for over, cash, most in (({"half_spread": 1_000_000}, "1010", "181.82"), ({"taker_rate": 90_000}, "1000", "198.2")):
        venue = VenueDriver((market(margin_mode="isolated", **over), "100"), cash=cash)
        venue.place(order(size="100", leverage=10))
        refused = venue.place(order(side=-1, size="199"))
        assert code_of(refused) == "insufficient_funds"
        assert e8(refused.answer.fix["value"]) <= e8(most)
        assert code_of(venue.place(order(side=-1, size=refused.answer.fix["value"]))) == ""
        assert 0 <= venue.account.balance < e8("10") and venue.account.absorbed == 0


def test_a_turn_of_an_isolated_position_may_use_the_gain_of_its_close():
    run("""
        mark BTC 100 isolated
        long BTC 100
        move BTC 110
        short BTC 200                  | market 100 @ 110, open 100 @ 110
        cash                           | 0
    """)


def test_a_turn_of_a_losing_cross_position_opens_no_more_than_the_account_is_worth():
    run(
        """
        mark BTC 100
        long BTC 100 lev 10
        move BTC 95
        short BTC 195 lev 10           | no insufficient_funds
        short BTC 153 lev 10           | market 100 @ 95, open 53 @ 95
        free                           | 6.5
    """,
        cash="1010",
    )


def test_a_backtest_turns_an_isolated_position_with_the_margin_that_its_close_frees():
    venue = VenueDriver(
        (market(margin_mode="isolated", half_spread=1_000_000), "100"), cash="1010", rules=Rules(fill_at="next")
    )
    venue.place(order(size="100", leverage=10))
    venue.bar("BTC", "100", "100", "100", "100")
    venue.place(order(side=-1, size="171"))
    venue.bar("BTC", "98", "98", "98", "98")
    assert venue.account.balance >= 0 and venue.account.absorbed == 0


def test_raising_leverage_frees_margin():
    run("""
        mark BTC 100 isolated
        long BTC 50 lev 2
        cash                           | 7500
        long BTC 1 lev 5 ack           || account leverage BTC 2x to 5x, open 1 @ 100
        margin BTC                     | 1020
        cash                           | 8980
    """)


def test_raising_leverage_of_a_losing_isolated_position_leaves_its_new_initial_margin():
    # 5,000 / 2 - 1,000 of loss - 4,000 / 5 = 700 are free; 2,500 - 700 + 16 remain.
    run("""
        mark BTC 100 isolated
        long BTC 50 lev 2
        move BTC 80
        long BTC 1 lev 5 ack
        margin BTC                     | 1816
    """)


def test_raising_leverage_pays_out_no_unrealised_gain():
    # 5,000 / 2 - 5,000 / 10 = 2,000 would go back, and the gain would leave the new initial margin in place; 500 are
    # there.
    run("""
        mark BTC 100 isolated funding 0.02
        long BTC 50 lev 2
        wait 20h                       | ...
        margin BTC                     | 500
        move BTC 140
        long BTC 1 lev 10 ack
        margin BTC                     | 14
    """)


def test_lowering_leverage_needs_free_margin():
    run("""
        mark BTC 100
        long BTC 300 lev 10
        long BTC 1 lev 3 ack           | no insufficient_funds
        position BTC                   | long 300 @ 100 10x
        long BTC 1 lev 4 ack           || account leverage BTC 10x to 4x, open 1 @ 100
        used                           | 7525
    """)


def test_a_refused_change_of_leverage_changes_nothing():
    venue = run("""
        mark BTC 100 isolated
        long BTC 300 lev 10
        long BTC 1 lev 3 ack           | no insufficient_funds
        margin BTC                     | 3000
        cash                           | 7000
    """)
    assert venue.position().leverage == 10


def test_an_isolated_position_does_not_secure_another():
    run("""
        mark BTC 100 isolated
        mark ETH 100
        long BTC 90 lev 1
        move BTC 200
        long ETH 11                    | no insufficient_funds
        long ETH 10                    | open 10 @ 100
    """)


def test_a_cross_profit_is_free_margin_for_another_market():
    run("""
        mark BTC 100
        mark ETH 100
        long BTC 100 lev 2
        move BTC 150
        free                           | 7500
        long ETH 75                    | open 75 @ 100
        long ETH 1                     | no insufficient_funds
    """)


def test_a_whole_round_trip_leaves_the_balance_identity_exact():
    venue = run("""
        mark BTC 97.33 isolated fee 0.045% 0.015% funding 0.0000125
        long BTC 7.77 lev 3
        wait 1h
        move BTC 99.19
        close BTC 33.3%
        short BTC 20 lev 3
        wait 2h
        close BTC
    """)
    a = venue.account
    assert not a.positions
    assert a.balance == e8("10000") + a.realized - a.fees + a.funding
    assert a.realized == sum(t.realized or 0 for t in a.trades) and a.fees == sum(t.fee for t in a.trades)


def test_margin_ratio_is_one_at_liquidation():
    venue = VenueDriver((market(margin_mode="isolated"), "100000"))
    venue.place(order(size="0.01", leverage=10))
    venue.state.markets["BTC"].mark = ledger.liquidation_px(venue.state, venue.position())
    need, value = ledger.margin_ratio(venue.state, venue.account)
    assert abs(need - value) <= 2


@pytest.mark.parametrize("held", ["5", "-5", "-2", None], ids=["added", "flipped", "flipped more", "opened"])
@pytest.mark.parametrize("side", [1, -1], ids=["long", "short"])
@pytest.mark.parametrize("leverage", [2, 10])
def test_a_plan_shows_the_liquidation_price_after_its_order(held: str | None, side: int, leverage: int):
    venue = VenueDriver((market(margin_mode="isolated", max_leverage=10, taker_rate=90_000), "100"))
    if held is not None:
        own = side if not held.startswith("-") else -side
        venue.place(order(side=own, size=held.lstrip("-"), leverage=3))
    spec = order(side=side, size="8", leverage=leverage, acknowledge_leverage_change=True)
    plan = venue.do(c.StorePlan("a", spec, "t", 60_000)).answer
    assert code_of(venue.do(c.ConfirmPlan("a", "t"))) == ""
    found = ledger.liquidation_px(venue.state, venue.position())
    assert abs(plan.liquidation_px - found) <= 100, (plan.liquidation_px, found)


def test_a_stop_that_raising_the_leverage_would_leave_beyond_liquidation_is_refused():
    venue = VenueDriver((market(margin_mode="isolated", max_leverage=10), "100"))
    venue.place(order(size="50", leverage=1))
    more = order(size="1", leverage=10, stop="80", acknowledge_leverage_change=True)
    refused = venue.place(more).answer
    assert refused.code == "invalid_input"
    assert "beyond the liquidation price" in refused.message


@pytest.mark.parametrize(
    ("mode", "most", "held", "more"),
    [
        ("isolated", 10, {"size": "50", "leverage": 1, "stop": "80"}, {"size": "1", "leverage": 10}),
        ("cross", 40, {"size": "500", "leverage": 10, "stop": "82"}, {"size": "300", "leverage": 10}),
    ],
)
def test_a_stop_that_an_order_would_leave_beyond_liquidation_is_no_protection(
    mode: str, most: int, held: dict[str, Any], more: dict[str, Any]
):
    venue = VenueDriver((market(margin_mode=mode, max_leverage=most), "100"))
    venue.place(order(**held))
    refused = venue.place(order(**more, acknowledge_leverage_change=True, require_protection=True)).answer
    assert refused.code == "invalid_input" and "beyond the liquidation price" in refused.message
    plan = venue.do(c.StorePlan("a", order(**more, acknowledge_leverage_change=True), "t", 60_000)).answer
    assert not plan.protected and "unprotected" in dict(plan.warnings)
    smaller = order(size="1", acknowledge_leverage_change=True, require_protection=True)
    assert code_of(venue.place(smaller)) == ""


# ── Entries that rest ───────────────────────────────────────────────────────────────────────────────────────────────

AAPL = "mark AAPL 200 isolated max 10"


@pytest.mark.parametrize("depth", ["", " depth 1 0%"], ids=["whole", "in part"])
def test_a_crossing_limit_is_checked_with_its_own_stop_and_not_the_replaced_one(depth: str):
    venue = run(f"""
        {AAPL}{depth}
        long AAPL 10 lev 2 stop 185                        | open 10 @ 200
    """)
    more = order(
        "AAPL",
        size="30",
        leverage=10,
        limit_px="201",
        stop="195",
        acknowledge_leverage_change=True,
        require_protection=True,
    )
    plan = venue.do(c.StorePlan("a", more, "t", 60_000)).answer
    assert plan.protected and "unprotected" not in dict(plan.warnings)
    placed = venue.do(c.ConfirmPlan("a", "t")).answer
    assert placed.protected and is_protected(venue.state, venue.account, venue.position("AAPL"))


def test_a_limit_that_raises_the_leverage_is_checked_against_the_current_position():
    venue = run(f"""
        {AAPL}
        long AAPL 10 lev 2 stop 185                        | open 10 @ 200
        long AAPL 30 limit 150 lev 10 ack protect          | no invalid_input
        long AAPL 30 limit 150 lev 10 ack stop 145 protect | no invalid_input
        liquidation AAPL                                   | 105.26315789
    """)
    plan = venue.do(
        c.StorePlan(
            "a", order("AAPL", size="30", limit_px="150", leverage=10, acknowledge_leverage_change=True), "t", 1
        )
    )
    assert not plan.answer.protected
    assert "185 would lie beyond" in dict(plan.answer.warnings)["unprotected"]


def test_a_fill_that_would_replace_a_stop_by_one_beyond_liquidation_drops_the_entry():
    run(f"""
        {AAPL}
        long AAPL 5 limit 196 lev 1 stop 30% protect       | -
        long AAPL 50 lev 10 stop 3% protect                | open 50 @ 200
        bar AAPL 200 200 195 195                           || canceled limit 196 position_closed
        bar AAPL 195 195 190 190                           | stop_loss 50 @ 194
    """)


def test_a_first_fill_whose_stop_would_lie_beyond_liquidation_drops_the_entry():
    run(f"""
        {AAPL} part 10%
        long AAPL 10 lev 10 stop 194                       | open 10 @ 200
        long AAPL 300 limit 195 lev 10 stop 187 protect    | -
        bar AAPL 200 200 194.5 194.5 volume 10             || canceled limit 195 position_closed
        bar AAPL 194.5 194.5 193 193                       | stop_loss 10 @ 194
    """)


def test_the_stop_of_a_partly_crossing_limit_is_checked_against_that_part():
    run(f"""
        {AAPL} depth 1 0%
        long AAPL 10 lev 10 stop 194                       | open 10 @ 200
        cancel AAPL stop_loss
        move AAPL 192
        long AAPL 300 limit 192 lev 10 stop 183 protect    | no invalid_input
        long AAPL 300 limit 192 lev 10 stop 185 protect    | open 20 @ 192
        liquidation AAPL                                   | 184.42105263
    """)


@pytest.mark.parametrize("held", [False, True])
def test_a_trailing_stop_beyond_liquidation_is_no_protection(held: bool):
    venue = VenueDriver((market("BTC", max_leverage=40), "100"), cash="10000")
    if held:
        venue.place(order(size="1", leverage=40))
        venue.arm(trail("50%", coin="BTC"))
    more = order(size="2000", leverage=40, guardians=() if held else (trail("50%"),))
    plan = venue.do(c.StorePlan("a", more, "t", 60_000)).answer
    assert plan.liquidation_px > e8("50")
    assert not plan.protected
    assert "50 would lie beyond" in dict(plan.warnings)["unprotected"]
    more.require_protection = True
    assert venue.place(more).answer.code == "invalid_input"
    more.guardians = (trail("1%"),)
    venue.place(more)
    assert is_protected(venue.state, venue.account, venue.position())

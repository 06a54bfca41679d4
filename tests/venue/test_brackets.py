"""Brackets: linked to the position, armed at its first fill, as large as the position, ended with it."""

from __future__ import annotations

import pytest

from bot.model.events import FillEvent
from bot.venue.model import commands as c
from bot.venue.model.state import Rules
from bot.venue.storage import pages
from tests.builders import VenueDriver, e8, market, order
from tests.scenario import run

SL_FIRST = Rules(paths="sl_first")


def test_a_bracket_is_armed_at_the_first_fill_in_percent_of_the_entry():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%     || open 5 @ 100, armed stop_loss 98, armed take_profit 104
        orders BTC                     | stop_loss 5 @ 98, take_profit 5 @ 104
    """)


def test_a_shorts_bracket_is_mirrored():
    run("""
        mark BTC 100
        short BTC 5 stop 103 take 1.5r
        orders BTC                     | stop_loss 5 @ 103, take_profit 5 @ 95.5
        bar BTC 100 101 95 96          | take_profit 5 @ 95.5
    """)


def test_percent_is_of_the_average_fill():
    run("""
        mark BTC 100 depth 2 100bps
        long BTC 4 stop 2%             | open 2 @ 100, open 2 @ 101
        orders BTC                     | stop_loss 4 @ 98.49
    """)


def test_a_stop_fires_at_its_trigger_and_cancels_its_sibling():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        bar BTC 100 101 97 97.5        || trigger stop_loss, canceled take_profit 104 sibling_filled, stop_loss 5 @ 98
        orders BTC                     | none
        trade                          | stop_loss close done filled
        cash                           | 9990
    """)


def test_a_target_fires_at_its_trigger_and_cancels_the_stop():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        bar BTC 100 105 99 104.5       || trigger take_profit, canceled stop_loss 98 sibling_filled, take_profit 5 @ 104
        cash                           | 10020
    """)


def test_a_target_gets_the_open_only_when_the_bar_gapped_over_it():
    run("""
        mark BTC 100
        long BTC 5 take 4%
        bar BTC 106 107 105 105        | take_profit 5 @ 106
    """)


def test_a_stop_pays_the_spread_and_the_taker_fee():
    run("""
        mark BTC 100 spread 20bps fee 0.045% 0.015%
        long BTC 5 stop 95             | open 5 @ 100.1
        bar BTC 98 98 94 94            | stop_loss 5 @ 94.905
        cash, fees off                 | 9974.025
    """)


def test_a_stop_filled_in_parts_continues_until_the_position_is_closed():
    # 0.1 a level, 60 bps apart: ten per cent hold 17 levels.
    venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    venue.place(order(size="1.5", stop="95", allow_partial=True))
    venue.place(order(size="1.5", allow_partial=True))
    held = venue.position().size
    assert held > 17 * 10**7
    venue.bar("BTC", "96", "96", "94.9", "94.9")
    assert not venue.account.positions and not venue.account.orders
    trade = venue.account.trades[-1]
    assert (trade.kind, trade.filled, trade.status) == ("stop_loss", held, "done")


def test_size_added_while_a_stop_is_working_is_closed_by_it_too():
    venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    venue.place(order(size="1.5", stop="95", allow_partial=True))
    venue.place(order(size="1.5", allow_partial=True))
    venue.move("BTC", "94.9")
    stop = venue.account.orders[venue.position().stop_oid]
    assert stop.status == "working"
    left = venue.position().size
    venue.place(order(size="0.3", allow_partial=True, require_protection=True))
    assert venue.position().size > left
    assert stop.size - stop.filled == venue.position().size
    trade = pages.trade_of(venue.account, stop.trade)
    assert trade.size == stop.size
    venue.bar("BTC", "94.9", "94.9", "94.9", "94.9")
    assert not venue.account.positions and not venue.account.orders
    assert (trade.filled, trade.status) == (trade.size, "done")


def test_adding_to_a_position_grows_its_bracket_and_keeps_its_prices():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        jump BTC 101
        long BTC 3                     || open 3 @ 101, changed stop_loss 98, changed take_profit 104
        orders BTC                     | stop_loss 8 @ 98, take_profit 8 @ 104
    """)


def test_reducing_a_position_shrinks_its_bracket():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        close BTC 40%                  || close 2 @ 100, changed stop_loss 98, changed take_profit 104
        orders BTC                     | stop_loss 3 @ 98, take_profit 3 @ 104
    """)


def test_a_new_bracket_replaces_the_old_one():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        long BTC 1 stop 97
        orders BTC                     | stop_loss 6 @ 97
        short BTC 6
        orders BTC                     | none
    """)


def test_replaced_orders_are_reported_as_replaced():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        long BTC 1 stop 97             || open 1 @ 100, changed stop_loss 98, changed take_profit 104, canceled \
stop_loss 98 replaced, canceled take_profit 104 replaced, armed stop_loss 97
    """)


def test_closing_the_position_cancels_its_bracket():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        close BTC                      || close 5 @ 100, canceled stop_loss 98 position_closed, canceled take_profit \
104 position_closed
    """)


def test_flipping_a_position_cancels_the_old_bracket_and_arms_the_new():
    run("""
        mark BTC 100
        long BTC 5 stop 2%
        short BTC 8 stop 2%
        orders BTC                     | stop_loss 3 @ 102
        position BTC                   | short 3 @ 100 1x
    """)


@pytest.mark.parametrize(
    "levels", ["stop 101", "stop 100", "take 99", "take 100", "stop 98 take 98", "stop 0%", "stop 100%"]
)
def test_a_level_on_the_wrong_side_is_refused(levels: str):
    run(f"""
        mark BTC 100
        long BTC 5 {levels}            | no invalid_input
        position BTC                   | flat
    """)


def test_a_stop_beyond_the_liquidation_price_is_refused_since_it_could_never_fire():
    run("""
        mark BTC 100 isolated
        long BTC 5 lev 10 stop 91.14   | open 5 @ 100
        close BTC
        long BTC 5 lev 10 stop 91.13   | no invalid_input
        short BTC 5 lev 10 stop 109    | no invalid_input
    """)


def test_a_bracket_on_an_order_that_only_reduces_is_refused():
    run("""
        mark BTC 100
        long BTC 5
        short BTC 2 stop 2%            | no invalid_input
    """)


def test_a_stop_that_the_entrys_open_has_jumped_over_fires_at_once_at_that_price():
    run(
        """
        mark BTC 100
        long BTC 5 stop 98 take 104
        bar BTC 97 99 96 98.5          | open 5 @ 97, stop_loss 5 @ 97
    """,
        rules=Rules(fill_at="next"),
    )


def test_a_target_that_the_entrys_open_has_jumped_over_fires_at_that_price_not_at_its_own():
    run(
        """
        mark BTC 100
        short BTC 5 stop 103 take 98
        bar BTC 97 99 96 98.5          | open 5 @ 97, take_profit 5 @ 97
    """,
        rules=Rules(fill_at="next"),
    )


def test_the_bracket_of_an_entry_at_the_open_can_fire_in_the_rest_of_the_bar():
    run(
        """
        mark BTC 100
        long BTC 5 stop 98 take 104
        bar BTC 101 105 100.5 104.5    | open 5 @ 101, take_profit 5 @ 104
    """,
        rules=Rules(fill_at="next"),
    )


def test_an_order_never_fills_at_the_price_point_at_which_it_was_placed():
    run("""
        mark BTC 100
        bar BTC 100 100 95 100
        long BTC 5 stop 98 take 104    | open 5 @ 100
        orders BTC                     | stop_loss 5 @ 98, take_profit 5 @ 104
    """)


@pytest.mark.parametrize("path", ["adaptive", "ohlc", "olhc", "sl_first"])
def test_a_limit_entrys_stop_on_the_same_path_fires_for_certain(path: str):
    run(
        """
        mark BTC 100
        long BTC 5 limit 98 stop 97 take 99
        bar BTC 100 100.5 96 99.5      | open 5 @ 98, stop_loss 5 @ 97
    """,
        rules=Rules(paths=path),
    )


def test_a_limit_entrys_target_counts_in_its_bar_only_at_the_close():
    run("""
        mark BTC 100
        long BTC 5 limit 98 stop 95 take 99
        bar BTC 100 100.5 97 98.5      | open 5 @ 98
        bar BTC 98.5 98.9 98 98.9      | -
        bar BTC 98.9 99.2 98 98.9      | take_profit 5 @ 99
    """)


def test_a_high_after_a_limit_entrys_fill_is_not_its_targets():
    run(
        """
        mark BTC 100
        long BTC 5 limit 98 stop 95 take 99
        bar BTC 100 100.5 97 98.5      | open 5 @ 98
        orders BTC                     | stop_loss 5 @ 95, take_profit 5 @ 99
    """,
        rules=Rules(paths="olhc"),
    )


def test_a_limit_entrys_target_fills_in_its_bar_if_the_close_is_beyond_it():
    run("""
        mark BTC 100
        long BTC 5 limit 98 stop 95 take 99
        bar BTC 100 100.5 97 99.5      | open 5 @ 98, take_profit 5 @ 99
    """)


def test_a_limit_entrys_bracket_is_fixed_at_its_first_fill_and_grows_with_the_rest():
    run("""
        mark BTC 100 part 10%
        long BTC 5 limit 98 stop 2% take 4%
        orders BTC                             | limit 5 @ 98
        bar BTC 100 100 97.5 97.5 volume 20    | open 2 @ 98
        orders BTC                             | limit 3 @ 98, stop_loss 2 @ 96.04, take_profit 2 @ 101.92
        bar BTC 97.5 98 97 97 volume 1000      | open 3 @ 97.5
        orders BTC                             | stop_loss 5 @ 96.04, take_profit 5 @ 101.92
    """)


def test_a_resting_entry_that_is_canceled_leaves_the_filled_part_protected():
    run("""
        mark BTC 100 part 10%
        long BTC 5 limit 98 stop 2%
        bar BTC 100 100 97.5 97.5 volume 20    | open 2 @ 98
        cancel BTC limit                       || canceled limit 98 user
        orders BTC                             | stop_loss 2 @ 96.04
    """)


# ── Both levels in one bar ──────────────────────────────────────────────────────────────────────────────────────────

BOTH = """
    mark BTC 100
    long BTC 5 stop 98 take 104
    bar BTC 100 {high} {low} 100   | {what}
"""


@pytest.mark.parametrize(
    ("path", "high", "low", "what"),
    [
        # The high comes first on the path, but the stop fires.
        ("sl_first", "105", "90", "stop_loss 5 @ 98"),
        ("ohlc", "105", "90", "take_profit 5 @ 104"),
        ("olhc", "105", "90", "stop_loss 5 @ 98"),
        ("adaptive", "105", "90", "take_profit 5 @ 104"),
        ("adaptive", "110", "97", "stop_loss 5 @ 98"),
        # A tie goes low first.
        ("adaptive", "105", "95", "stop_loss 5 @ 98"),
    ],
)
def test_with_both_levels_in_a_bar_the_path_policy_decides(path: str, high: str, low: str, what: str):
    run(BOTH.format(high=high, low=low, what=what), rules=Rules(paths=path))


def test_a_masked_target_waits_for_the_stop_of_its_own_position_only():
    run(
        """
        mark BTC 100
        mark ETH 100
        long BTC 5 stop 98 take 104
        long ETH 5 take 104
        bar ETH 100 105 90 100         | take_profit 5 @ 104
    """,
        rules=SL_FIRST,
    )


def test_a_drawdown_floor_in_the_bar_masks_no_target():
    """The floor belongs to the account, not the position: it is checked at each market's points, here too late."""
    run(
        """
        mark BTC 100
        drawdown 5%
        long BTC 100 take 104
        bar BTC 100 104 90 100         | take_profit 100 @ 104
    """,
        rules=SL_FIRST,
    )
    run(
        """
        mark BTC 100
        drawdown 5%
        long BTC 100 take 104
        bar BTC 100 112 94 100         | guardian 100 @ 95
    """,
        rules=SL_FIRST,
    )


def test_a_target_at_a_gapped_open_fills_even_when_the_stop_lies_ahead():
    run(
        """
        mark BTC 100
        long BTC 5 stop 98 take 104
        bar BTC 105 106 97 97          | take_profit 5 @ 105
    """,
        rules=SL_FIRST,
    )


def test_the_refusal_of_a_bracket_names_the_wrong_side():
    refused = VenueDriver((market(), "100")).place(order(size="1", stop="101")).answer
    assert refused.code == "invalid_input" and "wrong side" in refused.message
    assert refused.details["fields"][0]["field"] == "bracket.stopLoss"


def test_a_new_bracket_gives_the_position_a_new_r():
    run("""
        mark BTC 100
        long BTC 5 stop 98
        long BTC 1 stop 96
        trail BTC 1r
        guardians                      | trailing_stop armed 96
    """)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("limit", [False, True], ids=["market", "limit that crosses"])
@pytest.mark.parametrize("held", [0, 1, -1], ids=["flat", "added", "flipped"])
def test_a_plan_shows_exactly_the_armed_levels(side: int, limit: bool, held: int):
    venue = VenueDriver((market(half_spread=30_000, level_size=e8("0.03"), level_step=20_000), "97531"))
    if held:
        venue.place(order(side=side * held, size="0.05"))
    spec = order(side=side, size="0.1", leverage=3, stop="1.2345%", take="1.777r", acknowledge_leverage_change=True)
    # Its price lies a third of the stop's distance beyond the book.
    if limit:
        spec.type, spec.limit_px = "limit", e8("97931" if side > 0 else "97131")
    plan = venue.do(c.StorePlan("a", spec, "t", 60_000)).answer
    venue.place(spec)
    position = venue.position()
    assert plan.bracket.stop.px == venue.account.orders[position.stop_oid].trigger_px
    assert plan.bracket.target.px == venue.account.orders[position.target_oid].trigger_px


def test_a_crossing_limits_bracket_is_checked_from_its_fill_price():
    run("""
        mark BTC 100
        long BTC 5 limit 103 stop 1% take 1r   | open 5 @ 100
        bar BTC 100 101 100 101                | take_profit 5 @ 101
        long BTC 5 limit 105 stop 102          | no invalid_input
        long BTC 5 limit 105 take 104          | open 5 @ 101
    """)


@pytest.mark.parametrize(
    ("bar", "sold"),
    [
        # the high comes first, and the stop is still to come
        (("100", "103", "94", "95"), []),
        (("100", "103", "99", "101"), [("102", "4")]),
        # the bar opens beyond it
        (("102.5", "103", "94", "95"), [("102.5", "4")]),
    ],
)
def test_a_part_of_a_position_takes_profit_only_in_a_bar_that_does_not_reach_the_stop_afterwards(
    bar: tuple[str, str, str, str], sold: list[tuple[str, str]]
) -> None:
    """A resting sale of a part of a long is one of several targets."""
    venue = VenueDriver((market(), "100"), rules=Rules(paths="sl_first"))
    venue.place(order(size="10", stop="95"))
    venue.place(order("BTC", -1, size="4", limit_px="102"))
    fills = [(e.px, e.size) for e in venue.bar("BTC", *bar) if isinstance(e, FillEvent) and e.kind == "limit"]
    assert fills == [(e8(px), e8(size)) for px, size in sold]
    assert bool(venue.account.positions) == (bar[2] != "94")


def test_a_resting_entry_is_not_masked_by_the_stop_of_the_position_that_it_would_turn() -> None:
    venue = VenueDriver((market(), "100"), rules=Rules(paths="sl_first"))
    venue.place(order(size="10", stop="95"))
    venue.place(order("BTC", -1, size="14", limit_px="102"))
    events = venue.bar("BTC", "100", "103", "94", "95")
    assert [e.px for e in events if isinstance(e, FillEvent)][:1] == [e8("102")]

"""Orders: fills, resting orders, flips, and refusals with their fix."""

from __future__ import annotations

import pytest

from bot.errors import Refusal
from bot.model.events import OrderChanged
from bot.venue.model.commands import CancelCoin, CancelOrder, ClosePosition, CreateKey
from bot.venue.model.numbers import E8
from bot.venue.model.state import Rules, VenueKey, oid_text
from tests.builders import VenueDriver, code_of, e8, market, order
from tests.scenario import run

# A backtest: market orders fill at the next bar's open.
NEXT = Rules(fill_at="next")


def test_a_market_order_fills_at_the_mid_of_a_costless_book():
    run("""
        mark BTC 100
        long BTC 500 usd               || open 5 @ 100
        position BTC                   | long 5 @ 100 1x
        trade                          | market open done filled
    """)


def test_a_market_order_pays_half_the_spread_and_the_fee():
    run("""
        mark BTC 100 spread 20bps fee 0.045% 0.015%
        long BTC 5                     | open 5 @ 100.1
        cash                           | 9999.774775
        close BTC                      | close 5 @ 99.9
        cash, fees off                 | 9999
        cash                           | 9998.55
    """)


def test_a_market_order_walks_the_book_level_by_level():
    run("""
        mark BTC 100 depth 2 10bps
        long BTC 5                     | open 2 @ 100, open 2 @ 100.1, open 1 @ 100.2
        position BTC                   | long 5 @ 100.08 1x
    """)


def test_an_order_that_the_book_cannot_fill_within_its_bound_fills_nothing():
    run("""
        mark BTC 100 depth 2 10bps
        long BTC 5 slip 10             | no insufficient_depth
        position BTC                   | flat
        long BTC 5 slip 20             | open 2 @ 100, open 2 @ 100.1, open 1 @ 100.2
    """)


def test_allow_partial_fills_the_depth_within_the_bound_and_drops_the_rest():
    run("""
        mark BTC 100 depth 2 10bps
        long BTC 5 slip 10 partial     | open 2 @ 100, open 2 @ 100.1
        trade                          | market open done partial slippage_bound
        orders BTC                     | none
    """)


def test_allow_partial_with_nothing_within_the_bound_is_refused():
    run("""
        mark BTC 100 spread 100bps
        long BTC 5 slip 10 partial     | no insufficient_depth
        position BTC                   | flat
    """)


def test_the_refusal_of_a_thin_book_names_the_size_that_would_pass():
    venue = VenueDriver((market(level_size=2 * E8, level_step=100_000), "100"))
    refused = venue.place(order(size="5", slippage_bps=10)).answer
    assert refused.fix == {"field": "size", "value": "4"}
    assert code_of(venue.place(order(size="4", slippage_bps=10))) == ""


def test_a_refused_order_leaves_no_trade_and_no_event():
    venue = VenueDriver((market(), "100"))
    for spec in (
        order(size="0.01"),
        order(size="1000"),
        order(size="1", leverage=41),
        order(size="1", take="2r"),
        order("ETH", size="1"),
    ):
        applied = venue.place(spec)
        assert code_of(applied) and not applied.events
    assert not venue.account.trades


def test_a_limit_below_the_price_rests_until_the_price_goes_through_it():
    run("""
        mark BTC 100 fee 0.045% 0.015%
        long BTC 5 limit 99            || open limit 99
        orders BTC                     | limit 5 @ 99
        bar BTC 100 100 99 99.5        | -
        bar BTC 99.5 100 98.999 99.5   | open 5 @ 99
        cash, fees off                 | 10000
        cash                           | 9999.92575
    """)


def test_a_touch_fills_a_limit_if_the_market_is_set_so():
    run("""
        mark BTC 100 touch
        long BTC 5 limit 99
        bar BTC 100 100 99 99.5        | open 5 @ 99
    """)


def test_a_limit_whose_bar_opens_beyond_it_fills_at_the_better_open():
    run("""
        mark BTC 100
        long BTC 5 limit 99
        bar BTC 97 98 96 97.5          | open 5 @ 97
    """)


def test_a_limit_that_crosses_on_arrival_takes_the_book_and_pays_taker():
    run("""
        mark BTC 100 fee 0.045% 0.015%
        long BTC 5 limit 101           || open 5 @ 100
        cash                           | 9999.775
    """)


def test_the_rest_of_a_crossing_limit_rests_and_pays_maker():
    run("""
        mark BTC 100 depth 2 10bps fee 0.045% 0.015%
        long BTC 10 limit 100          || open 2 @ 100, open limit 100
        trade                          | limit open open partial
        bar BTC 100 100 99 99          | open 8 @ 100
        trade                          | limit open done filled
        cash                           | 9999.79
    """)


def test_a_resting_limit_receives_the_rebate_at_its_entry_and_at_its_exit():
    run("""
        mark BTC 100 fee 0.045% -0.01%
        long BTC 5 limit 99
        bar BTC 99.5 100 98.999 99.5   | open 5 @ 99
        cash                           | 10000.0495
        short BTC 5 limit 101
        bar BTC 99.5 101.1 99.5 101    | limit 5 @ 101
        cash                           | 10010.1
        cash, fees off                 | 10010
    """)


def test_a_crossing_limit_pays_taker_and_its_rest_receives_the_rebate():
    run("""
        mark BTC 100 depth 2 10bps fee 0.045% -0.01%
        long BTC 10 limit 100          || open 2 @ 100, open limit 100
        cash                           | 9999.91
        bar BTC 100 100 99 99          | open 8 @ 100
        cash                           | 9999.99
    """)


def test_a_rebate_belongs_to_the_margin_of_an_isolated_position():
    venue = run("""
        mark BTC 100 isolated fee 0.045% -0.01%
        long BTC 5 limit 99 lev 5
        bar BTC 99.5 100 98.999 99.5   | open 5 @ 99
    """)
    assert venue.position().margin == e8("99.0495")
    assert venue.account.balance == e8("9901")


def test_prices_and_sizes_off_a_grid_that_is_no_power_of_ten_are_refused_with_their_neighbours():
    spec = market(tick=e8("0.5"), sig_figs=None, sz_decimals=2, size_step=e8("0.05"), half_spread=100_000)
    venue = VenueDriver((spec, "1000"))
    refused = venue.place(order(size="1", limit_px="990.3")).answer
    assert refused.code == "invalid_input"
    assert refused.fix == {"field": "limitPx", "value": "990", "neighbours": ["990", "990.5"]}
    refused = venue.place(order(size="1.02")).answer
    assert refused.fix == {"field": "size", "value": "1", "neighbours": ["1", "1.05"]}
    assert code_of(venue.place(order(size="1.05", stop="990.5", take="1010.5"))) == ""
    assert venue.position().entry_px() == e8("1001"), "the best ask 1000.1 is rounded up to a tick of 0.5"
    assert code_of(venue.place(order(size="1", stop="990.3"))) == "invalid_input"
    refused = venue.do(ClosePosition("a", "BTC", size=e8("0.07"))).answer
    assert (refused.code, refused.fix["value"]) == ("invalid_input", "0.05")


def test_an_amount_in_usd_becomes_whole_steps_of_a_size():
    venue = VenueDriver((market(sz_decimals=0, size_step=e8("5")), "3"))
    assert code_of(venue.place(order(usd="100"))) == ""
    assert venue.position().size == e8("30"), "33.3 rounded down to a multiple of 5"


def test_the_smallest_order_is_the_markets_own():
    venue = VenueDriver((market(sz_decimals=2, min_notional=e8("100")), "50"))
    refused = venue.place(order(size="1.99")).answer
    assert (refused.code, refused.fix) == ("below_min_notional", {"field": "size", "value": "2"})
    assert refused.message == "the order is worth 99.5 USD; the minimum is 100 USD"
    assert code_of(venue.place(order(size="2.5"))) == ""
    refused = venue.do(ClosePosition("a", "BTC", size=e8("1"))).answer
    assert (refused.code, refused.fix) == ("below_min_notional", {"field": "size", "value": "2"})
    assert "the minimum is 100 USD" in refused.message
    assert code_of(venue.do(ClosePosition("a", "BTC"))) == "", "the whole position can always be closed"
    small = VenueDriver((market(sz_decimals=2, min_notional=e8("5")), "50"))
    assert code_of(small.place(order(size="0.1"))) == ""


@pytest.mark.parametrize("fill_at", ["now", "next"])
def test_an_order_is_not_paid_by_the_rebate_that_its_fill_will_bring(fill_at: str):
    """With 1,000 USD, 10 at 100 may rest; 10.01 may not, although the rebate would be 10.01 USD.

    A taker's fee is not offset by the rest's rebate.
    """
    rules = Rules(fill_at=fill_at)
    for size, depth, refused in (("10", 0, ""), ("10.01", 0, "insufficient_funds"), ("10", 2, "insufficient_funds")):
        spec = market(
            taker_rate=45_000, maker_rate=-1_000_000, level_size=e8(str(depth)), level_step=100_000, sz_decimals=2
        )
        venue = VenueDriver((spec, "100.01" if not depth else "100"), cash="1000", rules=rules)
        assert code_of(venue.place(order(size=size, limit_px="100"))) == refused
        assert venue.account.reserved >= 0


@pytest.mark.parametrize("way", ["long", "short"])
def test_the_rest_of_a_limit_after_a_thin_book_fills_at_the_current_price(way: str):
    limit, beyond = ("150", "100.4") if way == "long" else ("50", "99.6")
    run(f"""
        mark BTC 100 depth 2 1bps
        jump BTC 100
        {way} BTC 50 limit {limit} lev 10  | ...
        orders BTC                     | limit 10 @ {limit}
        move BTC 100                   | open 10 @ 100
    """)
    run(f"""
        mark BTC 100 depth 2 1bps
        jump BTC 100
        {way} BTC 50 limit {limit} lev 10  | ...
        move BTC {beyond}              | open 10 @ 100
    """)


def test_a_resting_limit_takes_no_more_than_its_part_of_a_bars_volume():
    run("""
        mark BTC 100 part 10%
        long BTC 5 limit 99
        bar BTC 100 100 98 98 volume 20    | open 2 @ 99
        orders BTC                         | limit 3 @ 99
        bar BTC 98 98 97 97 volume 0       | -
        bar BTC 97 97 97 97 volume 1000    | open 3 @ 97
    """)


def test_a_limit_uses_only_its_fill_of_a_bars_volume():
    run("""
        mark BTC 100 part 10%
        long BTC 2
        short BTC 2 limit 101
        close BTC 1
        short BTC 4 limit 102
        bar BTC 100 104 100 104 volume 40  | limit 1 @ 101, open 3 @ 102
    """)


def test_a_limit_just_below_a_power_of_ten_needs_one_tick_of_the_finer_grid():
    # One tick through 10,000 is 9,999.9: below it the tick is 0.1, not 1.
    run("""
        mark BTC 10100
        long BTC 0.1 limit 10000
        bar BTC 10100 10100 9999.9 10050   | open 0.1 @ 10000
    """)


def test_an_order_against_a_smaller_position_closes_it_and_opens_the_rest_in_one_trade():
    venue = run("""
        mark BTC 100
        long BTC 5                     | open 5 @ 100
        move BTC 110                   | -
        short BTC 8                    | market 5 @ 110, open 3 @ 110
        position BTC                   | short 3 @ 110 1x
        trade                          | market open done filled
        cash                           | 10050
    """)
    trade = venue.account.trades[-1]
    assert len(venue.account.trades) == 2
    assert (trade.side, trade.realized, trade.size) == (-1, e8("50"), e8("8"))


def test_an_order_against_a_larger_position_only_reduces_it():
    run("""
        mark BTC 100
        long BTC 5
        short BTC 2                    | market 2 @ 100
        position BTC                   | long 3 @ 100 1x
        trade                          | market close done filled
    """)


def test_a_reduce_only_order_never_grows_or_flips():
    run("""
        mark BTC 100
        long BTC 5
        short BTC 8 reduce             | market 5 @ 100
        position BTC                   | flat
        short BTC 8 reduce             | no forbidden
        long BTC 1
        long BTC 1 reduce              | no forbidden
    """)


def test_a_resting_reduce_only_order_ends_when_nothing_is_left_to_reduce():
    run("""
        mark BTC 100
        long BTC 5
        short BTC 5 limit 110 reduce
        short BTC 5 limit 112 reduce
        short BTC 2 limit 111 reduce
        bar BTC 100 110.1 100 110.1    || limit 5 @ 110, canceled limit 112 reduce_only, canceled limit 111 reduce_only
        position BTC                   | flat
    """)


def test_a_limit_that_only_closes_opens_nothing_when_its_position_is_gone():
    run("""
        mark BTC 100
        long BTC 5 stop 90
        short BTC 5 limit 110          || open limit 110
        kill                           || armed kill_switch, fired kill_switch manual
        close BTC                      || close 5 @ 100, canceled stop_loss 90 position_closed, canceled limit 110 \
reduce_only
        bar BTC 100 120 100 120
        position BTC                   | flat
    """)


def test_a_limit_that_closes_and_flips_still_opens_the_checked_size():
    run("""
        mark BTC 100
        long BTC 5
        short BTC 6 limit 110
        bar BTC 100 111 100 111        || limit 5 @ 110, open 1 @ 110
    """)


def test_leverage_above_the_market_is_an_error_or_is_clamped():
    venue = run("""
        mark BTC 100 max 10
        long BTC 5 lev 11              | no leverage_too_high
        long BTC 5 lev 11 clamp        | open 5 @ 100
        position BTC                   | long 5 @ 100 10x
    """)
    placed = venue.place(order(size="1", leverage=20, leverage_mode="clamp", acknowledge_leverage_change=True)).answer
    assert placed.leverage_clamped and placed.warnings[0][0] == "leverage_clamped"


def test_changing_an_open_positions_leverage_must_be_acknowledged():
    run("""
        mark BTC 100
        long BTC 5 lev 2
        long BTC 1 lev 5               | no invalid_input
        long BTC 1 lev 5 ack           || account leverage BTC 2x to 5x, open 1 @ 100
        long BTC 1                     | open 1 @ 100
        position BTC                   | long 7 @ 100 5x
    """)


def test_an_order_worth_less_than_ten_dollars_is_refused_unless_it_closes_the_whole_position():
    run("""
        mark BTC 100
        long BTC 0.09                  | no below_min_notional
        long BTC 0.1                   | open 0.1 @ 100
        jump BTC 50
        short BTC 0.05                 | no below_min_notional
        short BTC 0.1                  | market 0.1 @ 50
    """)


def test_a_position_without_a_stop_is_refused_where_protection_is_required():
    run("""
        mark BTC 100
        long BTC 5 protect             | no invalid_input
        long BTC 5 protect take 4%     | no invalid_input
        long BTC 5 protect trail 1%    | open 5 @ 100
        long BTC 5 protect             | open 5 @ 100
    """)


def test_a_stop_in_the_bracket_or_on_the_position_meets_required_protection():
    run("""
        mark BTC 100
        long BTC 5 protect stop 2%     | open 5 @ 100
        long BTC 1 protect             | open 1 @ 100
        short BTC 2 protect            | market 2 @ 100
        short BTC 9 protect            | no invalid_input
    """)


def test_replacing_the_stop_by_a_lone_target_loses_protection_and_is_refused():
    run("""
        mark BTC 100
        long BTC 5 stop 2%
        long BTC 1 protect take 4%     | no invalid_input
    """)


@pytest.mark.parametrize("status", ["closed", "halted"])
def test_a_market_that_is_not_open_refuses_orders_and_its_stops_still_fire(status: str):
    run(f"""
        mark BTC 100
        long BTC 5 stop 2%
        status BTC {status}
        long BTC 5                     | no market_closed
        bar BTC 99 99 97 97            | stop_loss 5 @ 98
    """)


def test_an_unknown_market_is_not_found():
    assert code_of(VenueDriver((market(), "100")).place(order("DOGE", size="1"))) == "not_found"


def test_a_late_request_is_refused_and_stays_without_effect():
    venue = VenueDriver((market(), "100"))
    venue.wait(1000)
    late = venue.place(order(size="1"), expires_ms=venue.now_ms - 1)
    assert (late.answer.code, late.answer.details["reason"]) == ("idempotency_conflict", "expired")
    assert code_of(venue.place(order(size="1"), expires_ms=venue.now_ms)) == ""


def test_an_idempotency_key_is_used_once():
    venue = VenueDriver((market(), "100"))
    first = venue.place(order(size="1"), idempotency_key="k").answer
    again = venue.place(order(size="1"), idempotency_key="k").answer
    assert (again.code, again.details["tradeId"]) == ("idempotency_conflict", first.trade.id)
    assert venue.position().size == E8


def test_a_market_order_of_a_backtest_fills_at_the_next_open():
    run(
        """
        mark BTC 100
        long BTC 5 stop 2% take 4%     || open market
        bar BTC 101 102 100.5 101      | open 5 @ 101
        orders BTC                     | stop_loss 5 @ 98.98, take_profit 5 @ 105.04
    """,
        rules=NEXT,
    )


def test_a_crossing_limit_of_a_backtest_fills_at_the_next_open_as_far_as_its_price_allows():
    """It crosses at the price of its decision, which is no longer available."""
    run(
        """
        mark BTC 100 fee 0.1% 0.01%
        long BTC 5 limit 101 stop 2%   || open limit 101
        bar BTC 100.5 102 100.5 101    | open 5 @ 100.5
        cash, fees off                 | 10000
        orders BTC                     | stop_loss 5 @ 98.49
    """,
        rules=NEXT,
    )


@pytest.mark.parametrize(
    ("side", "limit_px", "opened", "filled"), [(1, "99", "98.7654321", "98.8"), (-1, "101", "101.2345678", "101.2")]
)
def test_a_resting_limit_gets_the_better_open_on_the_grid_never_in_its_favour(
    side: int, limit_px: str, opened: str, filled: str
):
    venue = VenueDriver((market(), "100"))
    venue.place(order(side=side, size="5", limit_px=limit_px))
    venue.bar("BTC", opened, opened, opened, opened)
    assert venue.position().entry_px() == e8(filled)


def test_a_limit_of_a_backtest_rests_if_the_next_open_does_not_reach_it():
    venue = VenueDriver((market(), "100"), rules=NEXT)
    venue.place(order(size="5", limit_px="101", stop="2%"))
    venue.bar("BTC", "102", "103", "101.5", "103")
    assert not venue.account.positions
    assert venue.account.reserved == 505 * E8
    venue.bar("BTC", "102", "102", "100", "100")
    assert venue.position().entry_px() == e8("101"), "its own price, as any that rests"
    assert (venue.account.reserved, venue.account.resting) == (0, {})


def test_a_limit_that_rests_inside_the_spread_fills_at_its_price_not_at_the_middle():
    """It crossed at 101, where the best bid was 99.9.

    At 100 the best bid is 99, so the order is the best ask, and a taker pays its price.
    """
    venue = VenueDriver((market(half_spread=1_000_000), "101"), rules=NEXT)
    venue.place(order(side=-1, size="5", limit_px="99.9"))
    venue.bar("BTC", "100", "102", "100", "102")
    assert venue.position().entry_px() == e8("99.9")


def test_a_limit_of_a_backtest_fills_the_available_depth_and_the_rest_rests():
    venue = VenueDriver((market(level_size=2 * E8, level_step=1_000_000), "100"), rules=NEXT)
    venue.place(order(size="5", limit_px="101"))
    venue.jump("BTC", "100.5")
    assert venue.position().size == 2 * E8
    (number,) = venue.account.resting
    assert venue.account.orders[number].filled == 2 * E8
    assert venue.account.reserved == 303 * E8
    venue.jump("BTC", "102")
    venue.move("BTC", "100")
    assert venue.position().size == 5 * E8
    assert (venue.account.reserved, venue.account.orders) == (0, {})


@pytest.mark.parametrize("coin", ["", "BTC"], ids=["by its id", "with its market"])
def test_a_limit_of_a_backtest_can_be_canceled_before_the_next_price(coin: str):
    venue = VenueDriver((market(), "100"), rules=NEXT)
    venue.place(order(size="5", limit_px="101"))
    number = next(iter(venue.account.resting))
    venue.do(
        CancelCoin(venue.account.id, "BTC") if coin else CancelOrder(venue.account.id, oid_text(venue.account, number))
    )
    assert (venue.account.reserved, venue.account.orders, venue.state.markets["BTC"].pending) == (0, {}, [])
    venue.bar("BTC", "100", "102", "98", "100")
    assert not venue.account.positions


def test_of_two_closing_limits_in_a_backtest_the_second_ends_with_the_position():
    venue = VenueDriver((market(), "100"), rules=NEXT)
    venue.place(order(size="5"))
    venue.bar("BTC", "100", "100", "100", "100")
    for _ in range(2):
        venue.place(order(side=-1, size="5", limit_px="99"))
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions
    assert (venue.account.reserved, venue.account.orders, venue.state.markets["BTC"].pending) == (0, {}, [])
    assert [(trade.status, trade.reason) for trade in venue.account.trades[1:]] == [
        ("done", None),
        ("canceled", "reduce_only"),
    ]


def test_a_closing_limit_of_a_backtest_with_less_to_close_ends_with_an_event():
    venue = VenueDriver((market(), "100"), rules=NEXT)
    venue.place(order(size="5"))
    venue.bar("BTC", "100", "100", "100", "100")
    for size in ("2", "8"):
        venue.place(order(side=-1, size=size, limit_px="99"))
    events = venue.bar("BTC", "100", "100", "100", "100")
    assert venue.position().size == 3 * E8, "three closed, and the three that it was to open"
    (gone,) = [one for one in events if isinstance(one, OrderChanged) and one.subtype == "canceled"]
    assert (gone.kind, gone.filled, gone.reason) == ("limit", 6 * E8, "position_closed")
    assert (venue.account.trades[-1].status, venue.account.reserved, venue.account.orders) == ("canceled", 0, {})


@pytest.mark.parametrize(("side", "size"), [(-1, "3"), (-1, "5"), (-1, "8"), (1, "5")])
@pytest.mark.parametrize("mode", ["cross", "isolated"])
def test_after_a_close_in_a_backtest_the_next_order_finds_no_position(side: int, size: str, mode: str):
    """All cash is used before and after, because a close frees its margin. The new position has its own leverage."""
    venue = VenueDriver((market(margin_mode=mode), "100"), cash="100", rules=NEXT)
    venue.place(order(size="5", leverage=5, stop="2%"))
    venue.bar("BTC", "100", "100", "100", "100")
    venue.close()
    placed = venue.place(order(side=side, size=size, leverage=8, stop="3%"))
    assert (placed.answer.trade.intent, venue.position().leverage) == ("open", 5)
    venue.bar("BTC", "100", "100", "100", "100")
    now = venue.position()
    assert (now.side, now.size, now.leverage, now.stop_oid is not None) == (side, e8(size), 8, True)
    assert (venue.account.reserved, len(venue.account.orders)) == (0, 1)


def test_after_a_partial_close_in_a_backtest_the_next_order_finds_the_rest():
    venue = VenueDriver((market(), "100"), cash="100", rules=NEXT)
    venue.place(order(size="5", leverage=5))
    venue.bar("BTC", "100", "100", "100", "100")
    venue.close(size=2 * E8)
    venue.place(order(side=-1, size="8", leverage=5, stop="3%"))
    venue.bar("BTC", "100", "100", "100", "100")
    assert (venue.position().side, venue.position().size) == (-1, 5 * E8)


def test_a_full_close_in_a_backtest_also_closes_an_earlier_entry_of_the_instant():
    venue = VenueDriver((market(), "100"), rules=NEXT)
    venue.place(order(size="5"))
    venue.bar("BTC", "100", "100", "100", "100")
    venue.place(order(size="3"))
    venue.close()
    assert code_of(venue.close()) == "not_found", "nothing is left for it"
    venue.bar("BTC", "100", "100", "100", "100")
    assert (venue.account.positions, venue.account.reserved, venue.account.orders) == ({}, 0, {})
    assert [(trade.status, trade.reason) for trade in venue.account.trades] == [("done", None)] * 3


@pytest.mark.parametrize("fill_at", ["now", "next"])
@pytest.mark.parametrize("mode", ["cross", "isolated"])
def test_an_order_of_a_backtest_is_checked_against_the_position_after_earlier_orders(mode: str, fill_at: str):
    """From a flat account, one order after another at one price: the same answers and the same end with fills at
    once and at the next open.
    """
    venue = VenueDriver((market(margin_mode=mode), "100"), cash="250", rules=Rules(fill_at=fill_at))
    asked = [
        order(size="5", leverage=5, stop="2%"),
        order(size="5", leverage=4, stop="2%"),
        order(side=-1, size="5", stop="2%"),
        order(side=-1, size="8", leverage=2, stop="3%"),
        order(side=-1, size="9", stop="3%"),
        order(side=-1, size="1", stop="3%"),
        order(size="2"),
    ]
    told = [code_of(venue.place(one)) for one in asked] + [code_of(venue.close(size=1 * E8))]
    assert told == ["", "invalid_input", "invalid_input", "", "insufficient_funds", "", "", ""]
    venue.bar("BTC", "100", "100", "100", "100")
    now = venue.position()
    assert (now.side, now.size, now.leverage, venue.account.reserved, len(venue.account.orders)) == (
        -1,
        1 * E8,
        2,
        0,
        1,
    )


@pytest.mark.parametrize("fill_at", ["now", "next"])
@pytest.mark.parametrize(("limit_px", "side", "size"), [(None, 1, "8"), ("99", -1, "7")])
def test_an_entry_of_a_backtest_fills_although_a_later_order_turns_it(
    limit_px: str | None, side: int, size: str, fill_at: str
):
    venue = VenueDriver((market(), "100"), cash="900", rules=Rules(fill_at=fill_at))
    venue.place(order(side=-1, size="7", stop="5%"))
    turn = order(size="15", stop="5%") if limit_px is None else order(size="15", stop="5%", limit_px=limit_px)
    assert code_of(venue.place(turn)) == ""
    venue.bar("BTC", "100", "100", "100", "100")
    assert (venue.position().side, venue.position().size) == (side, e8(size))
    assert "canceled" not in [trade.status for trade in venue.account.trades]


@pytest.mark.parametrize(("opens", "size"), [("125", "40"), ("80", "62.5"), ("100", "50")])
def test_a_waiting_entry_in_usd_is_sized_at_its_fill_price(opens: str, size: str):
    """Sized as a service would size it at that price: all free margin is used, and no jump makes the order too
    large.
    """
    venue = VenueDriver((market(), "100"), cash="1000", rules=NEXT)
    venue.place(order(usd="5000", leverage=5, stop="2%"))
    venue.bar("BTC", opens, opens, opens, opens)
    assert (venue.position().size, venue.position().entry_px()) == (e8(size), e8(opens))
    (trade,) = venue.account.trades
    assert (trade.status, trade.size, trade.filled, venue.account.reserved) == ("done", e8(size), e8(size), 0)


def test_a_waiting_entry_in_usd_is_never_below_the_least_order():
    venue = VenueDriver((market(), "100"), cash="1000", rules=NEXT)
    venue.place(order(usd="10", stop="2%"))
    venue.bar("BTC", "170", "170", "170", "170")
    assert venue.position().size * 170 >= 10 * E8 > venue.position().size * 169


@pytest.mark.parametrize(("sold", "bought"), [("BTC", "ETH"), ("ETH", "BTC")])
def test_in_a_backtest_a_close_frees_its_margin_for_an_entry_in_another_market(sold: str, bought: str):
    """In either order of the markets' opens, and also if the key's caps allow only one position and its exposure."""
    venue = VenueDriver((market(), "100"), (market("ETH"), "100"), cash="100", rules=NEXT)
    caps = {"max_open_positions": 1, "max_exposure": e8("500")}
    venue.do(CreateKey(VenueKey("key_1", "a", "k", "bbk_test_1", "1", ("trade",), 0, "key", **caps)))
    venue.place(order(sold, size="5", leverage=5), key="key_1")
    for coin in ("BTC", "ETH"):
        venue.jump(coin, "100")
    venue.close(sold)
    venue.place(order(bought, size="5", leverage=5), key="key_1")
    for coin in ("BTC", "ETH"):
        venue.jump(coin, "100")
    assert {coin: one.size for coin, one in venue.account.positions.items()} == {bought: e8("5")}


@pytest.mark.parametrize("reason", ["slippage_bound", "reduce_only", "position_closed"])
def test_the_unfilled_rest_of_a_market_order_in_a_backtest_ends_with_an_event(reason: str):
    """Without the event a caller would believe that the rest still waits."""
    venue = VenueDriver((market(level_size=2 * E8, level_step=1_000_000), "100"), rules=NEXT)
    venue.place(order(size="2"))
    venue.bar("BTC", "100", "100", "100", "100")
    if reason == "slippage_bound":
        venue.place(order(size="5", slippage_bps=50, allow_partial=True))
    # A limit may stay unfilled, so it is not counted; it gets the open first.
    else:
        venue.place(order(side=-1, size="1", limit_px="99"))
        venue.close() if reason == "reduce_only" else venue.place(order(side=-1, size="8"))
    events = venue.bar("BTC", "100", "100", "100", "100")
    (gone,) = [one for one in events if isinstance(one, OrderChanged) and one.subtype == "canceled"]
    assert gone.reason == reason and 0 < gone.filled < gone.size
    assert (venue.account.trades[-1].status, venue.account.trades[-1].reason) == ("done", reason)
    assert (venue.account.reserved, venue.account.orders) == (0, {})


def test_a_limit_of_a_backtest_without_margin_at_its_price_does_not_rest():
    venue = VenueDriver((market(), "100"), cash="1010", rules=NEXT)
    venue.place(order(size="10", limit_px="110"))
    events = venue.bar("BTC", "112", "112", "112", "112")
    assert [one.reason for one in events if isinstance(one, OrderChanged)] == ["insufficient_funds"]
    assert (venue.account.reserved, venue.account.orders, venue.account.trades[-1].status) == (0, {}, "canceled")


def test_an_order_of_a_backtest_keeps_the_callers_slippage_bound():
    run(
        """
        mark BTC 100 depth 2 100bps slip 1000
        long BTC 4 slip 50 partial
        bar BTC 110 110 110 110        | open 2 @ 110
        trade                          | market open done partial slippage_bound
        long BTC 4
        bar BTC 110 110 110 110        | open 2 @ 110, open 2 @ 111.1
        close BTC slip 150
        bar BTC 110 110 110 110        | close 2 @ 110, close 2 @ 108.9
    """,
        rules=NEXT,
    )


@pytest.mark.parametrize(("side", "limit_px"), [(1, "103"), (-1, "97"), (-1, "103")])
def test_an_order_in_usd_never_exceeds_its_amount_also_if_its_limit_crosses(side: int, limit_px: str):
    venue = VenueDriver((market(half_spread=100_000), "100"))
    placed = venue.place(order(side=side, usd="1000", limit_px=limit_px)).answer.trade
    worth = max(placed.avg_px() or 0, e8(limit_px) if placed.filled < placed.size else 0) * placed.size // E8
    assert e8("970") < worth <= e8("1000")


@pytest.mark.parametrize(
    ("px", "tick", "more"),
    [
        (
            "0.00001234",
            "0.000001",
            ": the tick of 0.000001 is 8.1 % of the price, so the best price is 0.000013 at a middle of 0.00001234",
        ),
        ("100.5", "2", ": the tick of 2 is 1.99 % of the price, so the best price is 102 at a middle of 100.5"),
        ("100.5", "0.5", ""),
    ],
)
@pytest.mark.parametrize("closes", [False, True])
def test_a_tick_larger_than_the_slippage_is_named_as_the_cause(px: str, tick: str, more: str, closes: bool) -> None:
    """An order of the book's own tick is told so, not that the book is shallow."""
    # Where the tick is fine, the spread is the cause.
    half = 3_000_000 if not more else 0
    spec = market("DOGE", sz_decimals=0, tick=e8(tick), sig_figs=None, slippage_bps=100, half_spread=half)
    venue = VenueDriver((spec, px))
    size = "100000000" if px.startswith("0.0000") else "10"
    if closes:
        venue.place(order("DOGE", -1, size=size, slippage_bps=5_000))
        refused = venue.close("DOGE", slippage_bps=100).answer
    else:
        refused = venue.place(order("DOGE", 1, size=size)).answer
    said = f"the book holds 0 of {size} within 100 bps{more}"
    assert (refused.code, refused.message) == ("insufficient_depth", said)


def test_an_amount_that_buys_less_than_one_size_step_says_so() -> None:
    venue = VenueDriver((market(size_step=200_000, sz_decimals=3), "100000"))
    refused = venue.place(order(usd="150")).answer
    assert refused.code == "below_min_notional"
    assert refused.message == "150 USD buy less than the size step of 0.002 BTC, worth 200 USD; the minimum is 10 USD"
    assert refused.fix == {"field": "usdAmount", "value": "200"}
    assert not isinstance(venue.place(order(usd=refused.fix["value"])).answer, Refusal)

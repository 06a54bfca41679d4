"""Closes shrink a position by a part or the whole; cancels remove orders and name the positions that are unprotected
then.
"""

from __future__ import annotations

import pytest

from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.orders.open_orders import OrderCanceled
from tests.builders import VenueDriver, code_of, dead_man, e8, market, order, trail
from tests.scenario import run


@pytest.mark.parametrize(
    ("part", "size", "left"),
    [
        ("", "5", "flat"),
        ("100%", "5", "flat"),
        ("50%", "2.5", "long 2.5 @ 100 1x"),
        ("2", "2", "long 3 @ 100 1x"),
        ("150 usd", "1.5", "long 3.5 @ 100 1x"),
        ("9", "5", "flat"),
        ("9000 usd", "5", "flat"),
        ("33.333%", "1.66", "long 3.34 @ 100 1x"),
    ],
)
def test_a_close_takes_a_fraction_an_amount_a_size_or_all(part: str, size: str, left: str):
    run(f"""
        mark BTC 100
        long BTC 5
        close BTC {part}               | close {size} @ 100
        position BTC                   | {left}
        trade                          | close close done filled
    """)


def test_a_close_without_a_position_is_not_found():
    run("""
        mark BTC 100
        close BTC                      | no not_found
        close ETH                      | no not_found
    """)


def test_a_partial_close_under_ten_dollars_is_refused_and_a_full_close_never():
    run("""
        mark BTC 100
        long BTC 0.15
        close BTC 50%                  | no below_min_notional
        close BTC 0.09                 | no below_min_notional
        jump BTC 50
        close BTC 0.1                  | no below_min_notional
        close BTC                      | close 0.15 @ 50
    """)


@pytest.mark.parametrize(
    ("part", "fix"),
    [
        ({"size": e8("0.01")}, {"field": "size", "value": "0.10001"}),
        ({"usd": e8("1")}, {"field": "usdAmount", "value": "10.00089999"}),
        ({"fraction": e8("0.001")}, {"field": "fraction", "value": "0.03333667"}),
    ],
    ids=["size", "usd", "fraction"],
)
def test_the_fix_of_a_too_small_close_uses_the_field_of_the_request(part: dict[str, int], fix: dict[str, str]):
    venue = VenueDriver((market(), "99.999"))
    venue.place(order(size="3"))
    refused = venue.close(**part).answer
    assert (refused.code, refused.fix) == ("below_min_notional", fix)
    closed = venue.close(**{name: e8(fix["value"]) for name in part}).answer
    assert closed.trade.filled == e8("0.10001")


def test_a_close_off_the_lot_is_refused():
    run("""
        mark BTC 100
        long BTC 5
        close BTC 1.005                | no invalid_input
    """)


def test_the_part_of_a_close_without_depth_stays_open():
    run("""
        mark BTC 100 depth 1 100bps
        long BTC 8 slip 1000
        close BTC                      | close 1 @ 100, close 1 @ 99, close 1 @ 98, close 1 @ 97, close 1 @ 96, close \
1 @ 95
        trade                          | close close done partial slippage_bound
        close BTC slip 0               | close 1 @ 100
        orders BTC                     | none
    """)


def test_a_close_outside_its_bound_is_refused():
    run("""
        mark BTC 100 spread 200bps
        long BTC 5 slip 200
        close BTC slip 50              | no insufficient_depth
        position BTC                   | long 5 @ 101 1x
    """)


def test_caps_and_guardians_do_not_refuse_a_close():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5"))
    venue.do(c.ChangeSettings("a", e8("1"), e8("1")))
    venue.arm(dead_man(60, "block_opens"))
    venue.wait(60_000)
    assert code_of(venue.place(order(size="1"))) == "limit_exceeded"
    assert code_of(venue.close()) == ""


def test_canceling_a_coin_takes_stops_and_targets_too():
    run("""
        mark BTC 100
        mark ETH 100
        long BTC 5 stop 2% take 4%
        long BTC 1 limit 90
        long ETH 1 limit 90
        cancel BTC                     || canceled stop_loss 98 user, canceled take_profit 104 user, canceled limit 90 \
user
        orders BTC                     | none
        orders ETH                     | limit 1 @ 90
        bar BTC 100 100 90 90          | -
    """)


def canceled(venue: VenueDriver, command: c.Command) -> OrderCanceled:
    answer = venue.do(command).answer
    assert isinstance(answer, OrderCanceled)
    return answer


def test_a_cancel_reports_whether_the_position_still_has_a_stop():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5", stop="98", take="104"))
    venue.place(order(size="1", limit_px="90"))
    position, number = venue.position(), venue.account.number * 1_000_000_000
    resting = next(iter(venue.account.resting))
    assert canceled(venue, c.CancelOrder("a", str(number + resting))).unprotected is False
    assert canceled(venue, c.CancelOrder("a", str(number + position.target_oid))).unprotected is False
    assert canceled(venue, c.CancelOrder("a", str(number + position.stop_oid))).unprotected is True
    venue.arm(trail("1%", coin="BTC"))
    assert canceled(venue, c.CancelCoin("a", "BTC")).unprotected is False


def test_a_working_exit_that_is_removed_is_canceled_with_the_cause():
    for ends, reason in ((c.CancelCoin("a", "BTC"), "user"), (c.ClosePosition("a", "BTC"), "position_closed")):
        venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
        for size in ("1.5", "0.3"):
            venue.place(order(size=size, stop="95", allow_partial=True))
        venue.move("BTC", "94.9")
        assert venue.account.orders[venue.position().stop_oid].status == "working"
        venue.do(ends)
        stop = next(trade for trade in venue.account.trades if trade.kind == "stop_loss")
        assert (stop.status, stop.reason, stop.fill_status()) == ("canceled", reason, "partial")


def test_a_cancel_without_orders_succeeds_by_coin_and_is_not_found_by_id():
    venue = VenueDriver((market(), "100"))
    assert canceled(venue, c.CancelCoin("a", "BTC")).oids == ()
    for oid in ("1", "1000000001", "x", "-1", "²", ""):
        assert code_of(venue.do(c.CancelOrder("a", oid))) == "not_found"
    assert code_of(venue.do(c.CancelCoin("a", "DOGE"))) == "not_found"


def test_another_accounts_order_is_not_found():
    venue = VenueDriver((market(), "100"))
    venue.do(c.OpenAccount("b", "0x" + "1" * 40, None, 10_000 * E8))
    venue.do(c.PlaceOrder("b", order(size="1", limit_px="90")))
    assert code_of(venue.do(c.CancelOrder("a", "2000000001"))) == "not_found"
    assert venue.state.accounts["b"].orders


def test_a_canceled_entry_frees_its_reserved_margin():
    run("""
        mark BTC 100 fee 0.045% 0.015%
        long BTC 5 limit 90 lev 5
        reserved                       | 90.2025
        free                           | 9909.7975
        cancel BTC limit
        reserved                       | 0
        free                           | 10000
        trade                          | limit open canceled none user
    """)

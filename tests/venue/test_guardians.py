"""Guardians: the dead-man switch to the millisecond, and the trailing stop that never loosens."""

from __future__ import annotations

import pytest

from bot.model.events import FillEvent, GuardianMoved
from bot.venue.model import commands as c
from bot.venue.model.numbers import text_of
from bot.venue.model.state import GuardianSpec, Rules, oid_text
from bot.venue.storage import pages
from tests.builders import VenueDriver, code_of, dead_man, e8, hold, market, order, trail
from tests.scenario import run

# ── Dead-man switch ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_man_switch_fires_at_its_deadline_and_not_a_millisecond_earlier():
    run("""
        mark BTC 100
        deadman 60
        long BTC 1 limit 90
        wait 59999ms                   || -
        wait 1ms                       || fired dead_man_switch deadline, canceled limit 90 guardian
        guardians                      | none
        wait 10m                       || -
    """)


def test_a_heartbeat_one_millisecond_early_counts_and_one_at_the_deadline_is_too_late():
    run("""
        mark BTC 100
        deadman 60 block_opens
        wait 59999ms
        beat                           || -
        wait 59999ms                   || -
        beat
        wait 59999ms
        wait 1ms                       || fired dead_man_switch deadline
    """)
    late = VenueDriver((market(), "100"))
    late.arm(dead_man(60, "block_opens"))
    # No time step in between: the heartbeat itself arrives at the deadline.
    late.now_ms += 60_000
    applied = late.do(c.Heartbeat("a"))
    assert [event.subtype for event in applied.events] == ["fired"]
    assert applied.answer == ()


def test_any_heartbeat_refreshes_every_dead_man_switch_of_the_account():
    venue = VenueDriver((market(), "100"))
    for seconds in (60, 90):
        venue.arm(dead_man(seconds))
    venue.wait(30_000)
    beaten = venue.do(c.Heartbeat("a")).answer
    assert [g.deadline_ms - venue.now_ms for g in beaten] == [60_000, 90_000]
    assert [e.guardian_type for e in venue.wait(60_000)] == ["dead_man_switch"]


def test_an_ordinary_request_is_no_heartbeat():
    run("""
        mark BTC 100
        deadman 60 block_opens
        wait 59s
        long BTC 1
        wait 1s                        || fired dead_man_switch deadline
    """)


def test_cancel_orders_cancels_entries_and_keeps_the_protection():
    run("""
        mark BTC 100
        long BTC 5 stop 2% take 4%
        long BTC 5 limit 90
        deadman 60 cancel_orders
        wait 60s                       || fired dead_man_switch deadline, canceled limit 90 guardian
        orders BTC                     | stop_loss 5 @ 98, take_profit 5 @ 104
        long BTC 1                     | open 1 @ 100
    """)


def test_flatten_cancels_closes_and_blocks_until_it_is_disarmed():
    run("""
        mark BTC 100
        mark ETH 50
        long BTC 5 stop 2%
        short ETH 4
        long BTC 5 limit 90
        deadman 60 flatten
        wait 60s                       || fired dead_man_switch deadline, canceled limit 90 guardian, guardian 5 @ \
100, canceled stop_loss 98 position_closed, guardian 4 @ 50
        guardians                      | dead_man_switch latched
        long BTC 1                     | no limit_exceeded
        beat
        long BTC 1                     | no limit_exceeded
        disarm 1                       || disarmed dead_man_switch user
        long BTC 1                     | open 1 @ 100
    """)


def test_block_opens_keeps_positions_and_refuses_entries():
    venue = run("""
        mark BTC 100
        long BTC 5
        deadman 60 block_opens
        wait 60s
        long BTC 1                     | no limit_exceeded
        short BTC 2                    | market 2 @ 100
        short BTC 9                    | no limit_exceeded
        close BTC                      | close 3 @ 100
    """)
    refused = venue.place(order(size="1")).answer
    assert refused.details["guardianType"] == "dead_man_switch"


def test_a_new_dead_man_switch_lifts_the_block_of_one_that_fired():
    run("""
        mark BTC 100
        deadman 60 block_opens
        wait 60s
        long BTC 1                     | no limit_exceeded
        deadman 60                     || released dead_man_switch manual, armed dead_man_switch
        long BTC 1                     | open 1 @ 100
    """)


def test_flatten_continues_until_a_thin_book_has_filled_everything():
    venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    venue.place(order(size="1.5", allow_partial=True))
    venue.place(order(size="1.5", allow_partial=True))
    venue.arm(dead_man(60, "flatten"))
    venue.wait(60_000)
    assert venue.account.positions
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions and not venue.account.orders
    assert venue.account.trades[-1].status == "done"


def at_work() -> VenueDriver:
    """A position whose max_hold has fired, in a book that did not take all of it."""
    venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    for _ in range(2):
        venue.place(order(size="1.5", allow_partial=True))
    venue.arm(hold(60, "BTC"))
    venue.wait(60_000)
    assert [o.status for o in venue.account.orders.values()] == ["working"]
    return venue


def test_a_flatten_closes_size_added_while_another_exit_was_working():
    venue = at_work()
    venue.place(order(size="1", stop="5%"))
    killed = venue.do(c.Kill("a", flatten=True)).answer
    assert [pages.trade_of(venue.account, made).size for made in killed.trades] == [e8("1")]
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions and not venue.account.orders
    assert {trade.status for trade in venue.account.trades} == {"done"}


def test_a_second_flatten_adds_no_exit_beside_a_full_one():
    venue = at_work()
    assert venue.do(c.Kill("a", flatten=True)).answer.trades == ()
    assert len(venue.account.orders) == 1


def test_a_working_flatten_survives_a_cancel_of_all_orders_of_its_market():
    venue = at_work()
    venue.place(order(size="1", limit_px="50"))
    assert len(venue.do(c.CancelCoin("a", "BTC")).answer.oids) == 1
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions and not venue.account.orders


def test_a_working_flatten_cannot_be_canceled_by_its_oid():
    venue = at_work()
    (working,) = venue.account.orders.values()
    assert code_of(venue.do(c.CancelOrder("a", oid_text(venue.account, working.number)))) == "not_found"
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions and not venue.account.orders


def test_a_trailing_stop_closes_size_added_while_another_exit_was_working():
    venue = at_work()
    venue.place(order(size="1", guardians=(trail("1%"),)))
    venue.move("BTC", "98.9")
    venue.bar("BTC", "98.9", "98.9", "98.9", "98.9")
    assert not venue.account.positions and not venue.account.orders


def test_the_remaining_size_of_a_working_exit_is_the_size_left_to_close():
    """The caller's close has meanwhile closed a part of the position, and the exit's order has shrunk."""
    venue = at_work()
    venue.close(size=e8("0.5"))
    (working,) = venue.account.orders.values()
    assert working.size - working.filled == venue.position().size
    fills = [event for event in venue.jump("BTC", "100") if isinstance(event, FillEvent)]
    assert [fill.remaining for fill in fills] == [fill.position_size for fill in fills]
    assert not venue.account.positions and not venue.account.orders


def test_a_resting_entry_does_not_fill_while_openings_are_blocked_and_fills_afterwards():
    run("""
        mark BTC 100
        long BTC 5
        long BTC 1 limit 95
        short BTC 2 limit 103
        deadman 60 block_opens
        wait 60s
        bar BTC 100 100 94 94          | -
        bar BTC 94 104 94 104          | limit 2 @ 103
        orders BTC                     | limit 1 @ 95
        deadman 60 cancel_orders
        bar BTC 104 104 94 94          | open 1 @ 95
    """)


def test_an_entry_that_waited_for_a_block_to_end_fills_at_the_current_price():
    run("""
        mark BTC 100
        drawdown 5% block_opens
        long BTC 100 lev 2
        long BTC 10 limit 90 stop 2%
        bar BTC 100 100 80 80          | -
        wait 1d                        | ...
        move BTC 80                    | open 10 @ 80
        orders BTC                     | stop_loss 110 @ 78.4
        move BTC 78                    | stop_loss 110 @ 78.4
    """)


def test_an_order_that_waits_for_the_next_point_opens_nothing_once_openings_are_blocked():
    venue = VenueDriver((market(), "100"), rules=Rules(fill_at="next"))
    venue.arm(dead_man(60, "block_opens"))
    venue.now_ms += 59_000
    venue.place(order(size="5"))
    venue.wait(1_000)
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions
    assert (venue.account.trades[-1].status, venue.account.trades[-1].reason) == ("canceled", "guardian")


def test_the_fired_event_names_its_canceled_orders_and_its_trades():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5"))
    venue.place(order(size="5", limit_px="90"))
    resting = f"{venue.account.number * 1_000_000_000 + next(iter(venue.account.resting))}"
    venue.arm(dead_man(60, "flatten"))
    events = venue.wait(60_000)
    fired = next(e for e in events if isinstance(e, GuardianMoved))
    assert fired.canceled == (resting,)
    assert fired.trades == tuple(e.trade for e in events if isinstance(e, FillEvent))
    assert fired.account_value == venue.account.balance


def test_an_inline_dead_man_switch_is_armed_with_its_orders_first_fill():
    run("""
        mark BTC 100
        long BTC 5 limit 99 deadman 60
        guardians                      | none
        bar BTC 100 100 98 98
        guardians                      | dead_man_switch armed
    """)


@pytest.mark.parametrize(
    "spec",
    [
        GuardianSpec("max_hold", coin="BTC", seconds=59),
        GuardianSpec("max_hold", coin="BTC"),
        GuardianSpec("max_hold", seconds=60),
        GuardianSpec("max_hold", scope="account", coin="BTC", seconds=60),
        GuardianSpec("max_hold", coin="BTC", seconds=60, action="flatten"),
        GuardianSpec("schedule", cron="* * * * *"),
        GuardianSpec("schedule", action="flatten"),
        GuardianSpec("schedule", cron="* * *", action="flatten"),
        GuardianSpec("schedule", cron="0 0 30 2 *", action="flatten"),
        GuardianSpec("schedule", cron="* * * * *", action="sell"),
        GuardianSpec("schedule", cron="* * * * *", action="flatten", order=order(size="1")),
        GuardianSpec("schedule", cron="* * * * *", order=order(size="1", guardians=(GuardianSpec("schedule"),))),
        GuardianSpec("kill_switch", cron="* * * * *"),
        GuardianSpec("kill_switch", scope="position"),
        GuardianSpec("kill_switch", coin="BTC"),
        GuardianSpec("account_drawdown"),
        GuardianSpec("account_drawdown", max_loss_pct=0),
        GuardianSpec("account_drawdown", max_loss_pct=10**10 + 1),
        GuardianSpec("account_drawdown", max_loss_pct=10**8, coin="BTC"),
        GuardianSpec("account_drawdown", max_loss_pct=10**8, on_miss="flatten"),
        GuardianSpec("watchdog"),
        GuardianSpec("dead_man_switch"),
        dead_man(59),
        dead_man(86_401),
        dead_man(60, "panic"),
        GuardianSpec("dead_man_switch", heartbeat_seconds=60, coin="BTC"),
        GuardianSpec("dead_man_switch", heartbeat_seconds=60, trail_pct=10**8),
        GuardianSpec("dead_man_switch", heartbeat_seconds=60, scope="position"),
        GuardianSpec("trailing_stop", trail_pct=10**8),
        GuardianSpec("trailing_stop", coin="BTC"),
        GuardianSpec("trailing_stop", coin="BTC", trail_pct=10**8, trail_r=10**8),
        GuardianSpec("trailing_stop", coin="BTC", trail_pct=51 * 10**8),
        GuardianSpec("trailing_stop", coin="BTC", trail_r=21 * 10**8),
        GuardianSpec("trailing_stop", coin="BTC", trail_pct=10**8, heartbeat_seconds=60),
        trail("1r", coin="BTC"),
        trail("1%", coin="BTC", start="1"),
    ],
    ids=str,
)
def test_a_guardian_with_the_wrong_fields_is_refused(spec: GuardianSpec):
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="1"))
    refused = venue.arm(spec)
    assert code_of(refused) == "invalid_input" and not refused.events
    assert refused.answer.details["fields"][0]["field"]


def test_the_refusal_of_an_unknown_type_names_the_known_types():
    refused = VenueDriver((market(), "100")).arm(GuardianSpec("watchdog")).answer
    assert "dead_man_switch" in refused.message and "trailing_stop" in refused.message


# ── Trailing stop ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trail_in_r_starts_at_its_activation_follows_and_fires():
    venue = run("""
        mark BTC 100
        long BTC 5 stop 98 trail 1r from 1r
        move BTC 101.9
        guardians                      | trailing_stop armed asleep
        move BTC 103                   || activated trailing_stop
        guardians                      | trailing_stop armed 101
        move BTC 102                   || -
        guardians                      | trailing_stop armed 101
        move BTC 106
        guardians                      | trailing_stop armed 104
        jump BTC 103.9                 || fired trailing_stop trail, canceled stop_loss 98 guardian, guardian 5 @ 103.9
        guardians                      | none
    """)
    # +1.95 R
    assert venue.account.realized / (5 * 2 * 10**8) == 1.95


def test_a_trail_in_percent_follows_the_extreme():
    run("""
        mark BTC 100
        long BTC 5
        trail BTC 2%                   || armed trailing_stop
        guardians                      | trailing_stop armed 98
        move BTC 106
        guardians                      | trailing_stop armed 103.88
        move BTC 104
        guardians                      | trailing_stop armed 103.88
        move BTC 103                   | guardian 5 @ 103.88
    """)


def test_the_callback_of_one_percent_from_the_highest_since_activation_fires_at_103_95():
    # Activation at 101 is half an R of 2: path 100, 101, 105, 104, 103.95.
    run("""
        mark BTC 100
        long BTC 5 stop 98 trail 1% from 0.5r
        move BTC 101                   || activated trailing_stop
        move BTC 105
        move BTC 104                   || -
        move BTC 103.95                | guardian 5 @ 103.95
    """)


def test_a_shorts_trail_is_mirrored():
    run("""
        mark BTC 100
        short BTC 5 trail 2%
        guardians                      | trailing_stop armed 102
        move BTC 95
        guardians                      | trailing_stop armed 96.9
        move BTC 96
        move BTC 97                    | guardian 5 @ 96.9
        cash                           | 10015.5
    """)


def test_in_one_bar_the_extreme_moves_only_by_prices_before_the_one_tested():
    # O-L-H-C: the low meets the old stop at 98, then the high moves it to 102.9, then the close meets that one.
    run(
        """
        mark BTC 100
        long BTC 5 trail 2%
        bar BTC 100 105 98.5 103       | -
        guardians                      | trailing_stop armed 102.9
    """,
        rules=Rules(paths="olhc"),
    )
    run(
        """
        mark BTC 100
        long BTC 5 trail 2%
        bar BTC 100 105 98.5 102.5     | guardian 5 @ 102.9
    """,
        rules=Rules(paths="olhc"),
    )
    run(
        """
        mark BTC 100
        long BTC 5 trail 2%
        bar BTC 100 105 98.5 103       | guardian 5 @ 102.9
    """,
        rules=Rules(paths="ohlc"),
    )


def test_a_gap_through_the_trail_fills_at_the_open():
    run("""
        mark BTC 100
        long BTC 5 trail 2%
        bar BTC 95 96 94 95            | guardian 5 @ 95
    """)


@pytest.mark.parametrize(
    ("trail_pct", "fires"), [("1%", "guardian 5 @ 99"), ("5%", "stop_loss 5 @ 98")], ids=["the trail", "the stop"]
)
def test_of_a_trail_and_a_brackets_stop_the_nearer_fires_and_the_other_ends(trail_pct: str, fires: str):
    run(f"""
        mark BTC 100
        long BTC 5 stop 2% take 4% trail {trail_pct}
        bar BTC 100 100 90 90          | {fires}
        orders BTC                     | none
        guardians                      | none
    """)


def test_a_trail_is_released_when_its_position_is_closed_or_flipped():
    run("""
        mark BTC 100
        long BTC 5 trail 2%
        close BTC                      || close 5 @ 100, released trailing_stop position_closed
        long BTC 5 trail 2%
        short BTC 8                    || market 5 @ 100, open 3 @ 100, released trailing_stop position_closed
        guardians                      | none
    """)


def test_a_trail_needs_a_position_and_in_r_a_stop():
    run("""
        mark BTC 100
        trail BTC 2%                   | no not_found
        trail DOGE 2%                  | no not_found
        long BTC 5 trail 1r            | no invalid_input
        long BTC 5
        trail BTC 1r                   | no invalid_input
        long BTC 1 stop 2%
        trail BTC 1r                   || armed trailing_stop
        guardians                      | trailing_stop armed 98
    """)


def test_a_disarmed_trail_does_not_fire():
    run("""
        mark BTC 100
        long BTC 5 trail 2%
        disarm 1                       || disarmed trailing_stop user
        bar BTC 95 96 94 95            | -
    """)


def test_a_trail_armed_later_starts_at_the_mark():
    run("""
        mark BTC 100
        long BTC 5
        move BTC 110
        trail BTC 2%
        guardians                      | trailing_stop armed 107.8
    """)


def test_a_limit_entrys_inline_trail_is_armed_at_its_fill_and_dropped_with_an_unfilled_order():
    run("""
        mark BTC 100
        long BTC 5 limit 99 trail 2%
        bar BTC 100 100 98.5 98.5      | open 5 @ 99
        guardians                      | trailing_stop armed 97.02
        close BTC
        long BTC 5 limit 90 trail 2%
        cancel BTC
        guardians                      | none
    """)


def test_a_limit_entry_and_its_trail_meet_on_the_same_path():
    run("""
        mark BTC 100
        long BTC 5 limit 99 trail 2%
        bar BTC 100 100 96 98          | open 5 @ 99, guardian 5 @ 97.02
    """)


def test_the_trail_carries_r_of_the_first_entry():
    run("""
        mark BTC 100
        long BTC 5 stop 98
        move BTC 110
        long BTC 5
        trail BTC 1r
        guardians                      | trailing_stop armed 108
    """)


def test_an_inactive_trailing_stop_protects_nothing_before_its_activation():
    run("""
        mark BTC 100
        long BTC 5 stop 98 trail 1r from 1r
        cancel BTC stop_loss
        long BTC 1 protect             | no invalid_input
        long BTC 1 protect trail 1% from 1r | no invalid_input
        move BTC 102                   || activated trailing_stop
        long BTC 1 protect             | open 1 @ 102
    """)
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5", stop="98", guardians=(trail("1r", start="1"),)))
    assert venue.do(c.CancelCoin("a", "BTC")).answer.unprotected is True


def test_a_stop_that_a_trail_replaced_leaves_the_position_protected_in_a_cancel():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5", stop="98"))
    venue.arm(trail("1%", coin="BTC"))
    assert venue.do(c.CancelCoin("a", "BTC")).answer.unprotected is False
    assert text_of(next(iter(venue.account.guardians.values())).stop_px) == "99"

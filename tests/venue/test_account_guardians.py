"""max_hold, account_drawdown, schedule and kill_switch: each at its instant, once, and in the right order beside the
others.
"""

from __future__ import annotations

import pytest

from bot import cron
from bot.model.events import FillEvent, GuardianMoved, OrderChanged
from bot.venue.accounting import ledger
from bot.venue.model import commands as c
from bot.venue.model.numbers import text_of
from bot.venue.model.state import DAY_MS, GuardianSpec, Rules, VenueKey
from tests.builders import T0, VenueDriver, code_of, dead_man, drawdown, e8, hold, market, order, trail
from tests.scenario import run

# ── max_hold ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_max_hold_closes_a_position_its_seconds_after_the_first_opening_fill():
    run("""
        mark BTC 100
        long BTC 5 stop 2% hold 60
        wait 30s
        long BTC 5                     | open 5 @ 100
        wait 29999ms                   || -
        wait 1ms                       || fired max_hold time, canceled stop_loss 98 guardian, guardian 10 @ 100
        guardians                      | none
        wait 10m                       || -
        long BTC 1                     | open 1 @ 100
    """)


def test_a_max_hold_that_is_armed_later_counts_from_the_first_fill_too():
    run("""
        mark BTC 100
        long BTC 5
        wait 59s
        hold BTC 60                    || armed max_hold
        wait 999ms                     || -
        wait 1ms                       | guardian 5 @ 100
        long BTC 5
        wait 2m
        hold BTC 60
        wait 0s                        | guardian 5 @ 100
    """)


def test_a_flip_restarts_the_holding_time_and_a_close_ends_it():
    run("""
        mark BTC 100
        long BTC 5 hold 60
        wait 40s
        short BTC 8                    || market 5 @ 100, open 3 @ 100, armed max_hold
        wait 59999ms                   || -
        wait 1ms                       | guardian 3 @ 100
        long BTC 5 hold 60
        close BTC                      || close 5 @ 100, released max_hold position_closed
        wait 2m                        || -
    """)


def test_a_limit_entrys_max_hold_runs_from_its_first_fill():
    run("""
        mark BTC 100
        long BTC 5 limit 99 hold 120
        guardians                      | none
        wait 10m
        bar BTC 100 100 98 98          | open 5 @ 99
        wait 60s                       | -
        wait 60s                       | guardian 5 @ 98
    """)


def test_a_max_hold_needs_a_position_or_an_order():
    run("""
        mark BTC 100
        hold BTC 60                    | no not_found
        hold DOGE 60                   | no not_found
    """)


def test_a_max_hold_adds_no_exit_beside_a_working_one():
    venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    for _ in range(2):
        venue.place(order(size="1.5", allow_partial=True))
    venue.arm(hold(60, "BTC"))
    venue.arm(dead_man(60, "flatten"))
    venue.wait(60_000)
    exits = [t for t in venue.account.trades if t.kind == "guardian"]
    assert len(exits) == 1
    assert [g.spec.type for g in venue.account.guardians.values()] == ["dead_man_switch"]
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions


# ── account_drawdown ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_drawdown_fires_at_the_first_price_at_which_the_days_loss_is_reached():
    run("""
        mark BTC 100
        drawdown 5%                    || armed account_drawdown
        long BTC 100 lev 2
        long BTC 10 limit 90
        bar BTC 100 100 95.01 96       || -
        bar BTC 96 96 90 93            || fired account_drawdown drawdown, canceled limit 90 guardian, guardian 100 @ 95
        cash                           | 9500
        guardians                      | account_drawdown latched
        long BTC 1                     | no limit_exceeded
    """)


@pytest.mark.parametrize("come", ["jump", "move"])
def test_a_resting_entry_does_not_fill_below_a_floor_that_a_working_exit_has_reached(come: str):
    venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    for _ in range(2):
        venue.place(order(size="1.5", allow_partial=True))
    venue.place(order(size="5", limit_px="90"))
    venue.arm(drawdown("0.3", "cancel_orders"))
    venue.arm(hold(60, "BTC"))
    venue.jump("BTC", "100")
    venue.wait(60_000)
    assert [o.kind for o in venue.account.orders.values()] == ["limit", "close"]
    events = getattr(venue, come)("BTC", "85") + venue.wait(0)
    assert not [e for e in events if isinstance(e, FillEvent) and e.subtype == "entry"]
    assert [(e.kind, e.reason) for e in events if isinstance(e, OrderChanged)] == [("limit", "guardian")]


def test_a_waiting_order_opens_nothing_below_a_floor_that_an_earlier_order_has_reached():
    venue = VenueDriver((market(taker_rate=1_000_000), "100"), rules=Rules(fill_at="next"))
    venue.arm(drawdown("0.5", "block_opens"))
    for size in ("60", "20"):
        venue.place(order(size=size))
    venue.jump("BTC", "100")
    assert venue.position().size == e8("60")
    assert venue.account.trades[-1].reason == "guardian"
    assert [e.subtype for e in venue.wait(0)] == ["fired"]


def test_a_gap_through_the_floor_closes_at_the_open():
    run("""
        mark BTC 100
        drawdown 5%
        long BTC 100 stop 2% take 9%
        bar BTC 90 91 89 90            || fired account_drawdown drawdown, guardian 100 @ 90, canceled stop_loss 98 \
position_closed, canceled take_profit 109 position_closed
        guardians                      | account_drawdown latched
    """)


def test_a_shorts_drawdown_is_mirrored():
    run("""
        mark BTC 100
        drawdown 5%
        short BTC 100
        bar BTC 100 104.99 99 100      || -
        bar BTC 100 120 100 100        | guardian 100 @ 105
        cash                           | 9500
    """)


def test_several_positions_share_the_floor_exactly():
    run("""
        mark BTC 100
        mark ETH 100
        mark SOL 100 isolated
        drawdown 6%
        long BTC 50
        short ETH 20
        long SOL 20
        move BTC 93                    || -
        move ETH 105                   || -
        move SOL 95                    || -
        value                          | 9450
        move ETH 103                   || -
        move SOL 93                    || -
        move BTC 92.01                 || -
        value                          | 9400.5
        move BTC 91                    | guardian 50 @ 92, guardian 20 @ 103, guardian 20 @ 93
        cash                           | 9400
    """)


def test_a_stop_nearer_than_the_floor_fires_first():
    run("""
        mark BTC 100
        mark ETH 100
        drawdown 6%
        long ETH 1
        long BTC 100 lev 2 stop 96
        bar BTC 100 100 90 90          | stop_loss 100 @ 96
        guardians                      | account_drawdown armed
    """)
    run("""
        mark BTC 100
        mark ETH 100
        drawdown 3%
        long ETH 1
        long BTC 100 lev 2 stop 96
        bar BTC 100 100 90 90          | guardian 1 @ 100, guardian 100 @ 97
    """)


def test_a_profit_in_another_market_delays_the_floor():
    run("""
        mark BTC 100
        mark ETH 100
        drawdown 5%
        long BTC 100 lev 5
        short ETH 100 lev 5
        bar ETH 100 100 90 90 & BTC 100 100 90 90  || -
        value                          | 10000
        move BTC 85.01                 || -
        move BTC 80                    | guardian 100 @ 85, guardian 100 @ 90
    """)


def test_the_day_starts_at_midnight_and_counts_unrealised_profit():
    run("""
        mark BTC 100
        drawdown 10%
        long BTC 50
        wait 12h
        move BTC 110
        wait 11h
        move BTC 120
        wait 1h                        || ...
        value                          | 11000
        move BTC 98.01                 || -
        move BTC 97                    | guardian 50 @ 98
        cash                           | 9900
    """)


def test_a_latched_drawdown_is_released_at_midnight_and_armed_again():
    venue = run("""
        mark BTC 100
        drawdown 5%
        long BTC 100
        wait 10h
        move BTC 90                    | guardian 100 @ 95
        wait 13h
        long BTC 1                     | no limit_exceeded
        wait 3599999ms                 || -
        wait 1ms                       || released account_drawdown day_end, armed account_drawdown day_end
        guardians                      | account_drawdown armed
        long BTC 100                   | open 100 @ 90
        move BTC 85.26                 || -
        move BTC 85                    | guardian 100 @ 85.25
    """)
    (guardian,) = venue.account.guardians.values()
    assert guardian.fire_count == 2
    assert guardian.deadline_ms == T0 + 2 * DAY_MS
    assert text_of(venue.account.day_value) == "9500"


def test_block_opens_and_cancel_orders_leave_the_position_and_fire_once():
    for action, canceled in (("block_opens", ""), ("cancel_orders", ", canceled limit 50 guardian")):
        run(f"""
            mark BTC 100
            drawdown 5% {action}
            long BTC 90
            long BTC 1 limit 50
            bar BTC 94 94 93 94        || fired account_drawdown drawdown{canceled}
            bar BTC 94 94 80 81        || -
            long BTC 1                 | no limit_exceeded
            close BTC                  | close 90 @ 81
        """)


def test_a_floor_reached_by_fees_acts_at_that_instant():
    run("""
        mark BTC 100 fee 1% 1%
        drawdown 1%
        long BTC 90                    | open 90 @ 100
        close BTC                      || close 90 @ 100
        wait 0s                        || fired account_drawdown drawdown
        guardians                      | account_drawdown latched
        long BTC 1                     | no limit_exceeded
    """)


def test_a_drawdown_armed_after_the_loss_fires_at_once():
    run("""
        mark BTC 100
        long BTC 90
        move BTC 90
        drawdown 10%                   || armed account_drawdown
        drawdown 9%                    || armed account_drawdown
        wait 0s                        || fired account_drawdown drawdown, guardian 90 @ 90
        guardians                      | account_drawdown armed, account_drawdown latched
    """)


def test_a_disarmed_drawdown_does_not_fire():
    venue = run("""
        mark BTC 100
        drawdown 5%
        long BTC 90
        disarm 1                       || disarmed account_drawdown user
        bar BTC 94 94 80 81            || -
    """)
    assert venue.position().floor_level is None


def test_the_tighter_of_two_drawdowns_fires_first_and_the_other_stays_armed():
    run("""
        mark BTC 100
        drawdown 10%
        drawdown 5% block_opens
        long BTC 100
        move BTC 94                    || fired account_drawdown drawdown
        move BTC 80                    || fired account_drawdown drawdown, guardian 100 @ 90
    """)


def test_a_quiet_band_ends_where_the_floor_may_be_reached():
    venue = VenueDriver((market(), "100"), (market("ETH"), "50"))
    venue.arm(drawdown("5"))
    venue.place(order(size="10"))
    venue.place(order("ETH", -1, size="10"))
    # 500 USD above the floor, 250 for each position of ten.
    from bot.venue.prices.quiet_band import band_of

    assert band_of(venue.state, "BTC").lo == 75
    assert band_of(venue.state, "ETH").hi == 75
    assert band_of(venue.state, "BTC").until_ms <= T0 + DAY_MS


def test_a_drawdown_of_an_empty_account_does_not_fire():
    venue = VenueDriver((market(), "100"))
    venue.do(c.ResetAccount("a", 0))
    venue.arm(drawdown("1"))
    assert venue.wait(2 * DAY_MS) == []


# ── schedule ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_acts_at_each_of_its_minutes_and_never_twice_in_one():
    run("""
        mark BTC 100
        schedule */5_*_*_*_* cancel_orders
        long BTC 5 limit 90
        wait 299999ms                  || -
        wait 1ms                       || fired schedule schedule, canceled limit 90 guardian
        wait 30s                       || -
        wait 269999ms                  || -
        wait 1ms                       || fired schedule schedule
        guardians                      | schedule armed
        wait 10m                       || fired schedule schedule, fired schedule schedule
    """)


def test_a_schedule_armed_in_its_minute_runs_at_the_next_one():
    venue = VenueDriver((market(), "100"))
    armed = venue.arm(GuardianSpec("schedule", cron="* * * * *", action="cancel_orders")).answer
    assert armed.deadline_ms == T0 + 60_000


def test_a_scheduled_order_passes_the_ordinary_checks():
    venue = run("""
        mark BTC 100
        schedule 5_*_*_*_* long BTC 1 stop 2% take 4% trail 1%
        wait 5m                        || fired schedule schedule, open 1 @ 100, armed stop_loss 98, armed take_profit \
104, armed trailing_stop
        wait 30m                       || -
        wait 30m                       || funding 0, fired schedule schedule, open 1 @ 100, changed stop_loss 98, \
changed take_profit 104, canceled stop_loss 98 replaced, canceled take_profit 104 replaced, armed stop_loss 98, armed \
take_profit 104, armed trailing_stop
        position BTC                   | long 2 @ 100 1x
        bar BTC 100 105 100 105        | take_profit 2 @ 104
    """)
    first = venue.account.trades[0]
    assert (first.kind, first.guardian, first.source) == ("market", "grd_00001000000001", None)
    fired = next(e for e in venue.account.events if isinstance(e, GuardianMoved) and e.subtype == "fired")
    assert fired.trades == (first.id,)
    assert fired.next_deadline == T0 + 3_900_000


def test_a_refused_scheduled_order_is_a_skipped_firing_with_its_code():
    venue = run("""
        mark BTC 100
        schedule 0_*_*_*_* long BTC 1
        schedule 30_*_*_*_* long BTC 1000
        deadman 60 block_opens
        wait 30m                       || fired dead_man_switch deadline, fired schedule skipped
        wait 30m                       || fired schedule skipped
        disarm 3
        wait 30m                       || fired schedule skipped
        wait 30m                       | open 1 @ 100
    """)
    codes = [e.code for e in venue.account.events if isinstance(e, GuardianMoved) and e.reason == "skipped"]
    assert codes == ["limit_exceeded", "limit_exceeded", "insufficient_funds"]


def test_flatten_by_schedule_closes_and_blocks_until_it_is_disarmed():
    run("""
        mark BTC 100
        schedule 0_21_*_*_fri flatten
        wait 1d
        wait 20h                       || -
        long BTC 5
        wait 1h                        || funding 0, fired schedule schedule, guardian 5 @ 100
        guardians                      | schedule latched
        long BTC 1                     | no limit_exceeded
        disarm 1
        long BTC 1                     | open 1 @ 100
    """)


def test_scheduled_runs_during_downtime_are_skipped():
    run("""
        mark BTC 100
        schedule */10_*_*_*_* cancel_orders
        wait 9m
        away 25m                       || -
        wait 359999ms                  || -
        wait 1ms                       || fired schedule schedule
        away 10m                       || fired schedule schedule
    """)


def test_downtime_moves_no_max_hold_and_no_end_of_a_day():
    run("""
        mark BTC 100
        long BTC 5 hold 600
        wait 9m
        away 25m                       | guardian 5 @ 100
        drawdown 5%
        long BTC 100
        move BTC 90                    | guardian 100 @ 95
        away 1d                        || released account_drawdown day_end, armed account_drawdown day_end
    """)


def test_a_scheduled_order_counts_for_the_key_that_armed_it():
    venue = VenueDriver((market(), "100"))
    key = VenueKey(
        "k", "a", "k", "p", "d", ("trade",), T0, "key", max_exposure=e8("150"), expires_ms=T0 + 3 * 3_600_000
    )
    venue.do(c.CreateKey(key))
    spec = GuardianSpec("schedule", cron="0 * * * *", order=order(size="1"))
    venue.do(c.ArmGuardian("a", spec, key="k"))
    venue.do(c.ArmGuardian("a", GuardianSpec("schedule", cron="1 * * * *", order=order(size="1")), key="k"))
    venue.wait(3 * 3_600_000)
    assert venue.do(c.RevokeKey("a", "k")).answer.key.revoked
    venue.wait(3_600_000)
    skipped = [e.code for e in venue.account.events if isinstance(e, GuardianMoved) and e.reason == "skipped"]
    assert len([t for t in venue.account.trades if t.filled]) == 1
    assert skipped[:3] == ["key_limit_exceeded", "key_limit_exceeded", "key_limit_exceeded"]
    assert skipped[-1] == "unauthorized"


def test_a_scheduled_market_must_exist():
    venue = VenueDriver((market(), "100"))
    assert code_of(venue.arm(GuardianSpec("schedule", cron="* * * * *", order=order("DOGE", size="1")))) == "not_found"


def test_a_schedule_in_an_order_must_name_an_existing_market():
    venue = VenueDriver((market(), "100"))
    rides = GuardianSpec("schedule", cron="* * * * *", order=order("DOGE", size="1"))
    for limit in ({}, {"limit_px": "90"}):
        refused = venue.place(order(size="1", guardians=(rides,), **limit)).answer
        assert (refused.code, refused.message) == ("not_found", "guardians.0.orderTemplate.market: no market DOGE")
    assert venue.account.guardians == {}


def test_a_schedule_whose_market_is_gone_is_skipped():
    venue = VenueDriver((market(), "100"))
    armed = venue.arm(GuardianSpec("schedule", cron="* * * * *", order=order(size="1"))).answer
    armed.spec.order.coin = "DOGE"
    venue.wait(60_000)
    fired = venue.account.events[-1]
    assert (fired.reason, fired.code) == ("skipped", "not_found")


# ── kill_switch ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_kill_acts_at_once_and_blocks_until_it_is_lifted():
    venue = run("""
        mark BTC 100
        mark ETH 50
        long BTC 5 stop 2%
        short ETH 4
        long BTC 1 limit 90
        kill                           || armed kill_switch, fired kill_switch manual, canceled limit 90 kill
        orders BTC                     | stop_loss 5 @ 98
        long BTC 1                     | no limit_exceeded
        short BTC 2                    | market 2 @ 100
        kill flatten                   || fired kill_switch manual, kill 3 @ 100, canceled stop_loss 98 \
position_closed, kill 4 @ 50
        guardians                      | kill_switch latched
        wait 3d                        || -
        long BTC 1                     | no limit_exceeded
        disarm 1                       || disarmed kill_switch user
        long BTC 1                     | open 1 @ 100
    """)
    assert {(t.kind, t.reason) for t in venue.account.trades if t.guardian} == {("kill", "kill")}


def test_a_kill_reports_its_effects():
    venue = VenueDriver((market(), "100"))
    assert venue.do(c.Kill("a", flatten=True)).answer.trades == ()
    other = VenueDriver((market(), "100"))
    other.place(order(size="5"))
    resting = other.place(order(size="1", limit_px="90")).answer.trade
    killed = other.do(c.Kill("a", flatten=True))
    assert killed.answer.canceled == (f"1{resting.oid:09d}",)
    assert killed.answer.trades == tuple(e.trade for e in killed.events if isinstance(e, FillEvent))
    assert killed.answer.guardian.blocks_opens


def test_the_limit_of_guardians_refuses_no_kill():
    venue = VenueDriver((market(), "100"))
    for _ in range(100):
        venue.arm(GuardianSpec("schedule", cron="0 0 1 1 *", action="cancel_orders"))
    assert code_of(venue.arm(dead_man())) == "limit_exceeded"
    assert not code_of(venue.do(c.Kill("a")))
    assert not code_of(venue.do(c.Kill("a")))
    assert len(venue.account.guardians) == 101


def test_a_late_kill_is_refused():
    venue = VenueDriver((market(), "100"))
    assert code_of(venue.do(c.Kill("a", expires_ms=T0 - 1))) == "idempotency_conflict"
    assert not venue.account.guardians


def test_a_kill_continues_until_a_thin_book_has_filled_everything():
    venue = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    for _ in range(2):
        venue.place(order(size="1.5", allow_partial=True))
    venue.do(c.Kill("a", flatten=True))
    assert venue.account.positions
    # The working exit is enough.
    assert venue.do(c.Kill("a", flatten=True)).answer.trades == ()
    venue.bar("BTC", "100", "100", "100", "100")
    assert not venue.account.positions and not venue.account.orders


# ── Together ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_order_may_carry_every_type_of_guardian():
    run("""
        mark BTC 100
        long BTC 5 limit 99 trail 2% hold 600 drawdown 5% deadman 60 schedule 0_*_*_*_* cancel_orders kill
        guardians                      | none
        bar BTC 100 100 98 98          || ...
        guardians                      | trailing_stop armed 97.02, max_hold armed, account_drawdown armed, \
dead_man_switch armed, schedule armed, kill_switch latched
        long BTC 1                     | no limit_exceeded
        position BTC                   | long 5 @ 99 1x
    """)


def test_an_inline_kill_acts_at_the_instant_of_the_fill():
    run("""
        mark BTC 100
        long BTC 1 limit 50
        long BTC 5 kill                || open 5 @ 100, armed kill_switch
        wait 0s                        || fired kill_switch manual, canceled limit 50 kill
        long BTC 1                     | no limit_exceeded
    """)


def test_an_inline_kill_lets_no_other_entry_fill_at_the_price_that_armed_it():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5", limit_px="99", guardians=(GuardianSpec("kill_switch"),)))
    venue.place(order(size="5", limit_px="98"))
    events = venue.jump("BTC", "95") + venue.wait(0)
    assert [e.size for e in events if isinstance(e, FillEvent)] == [e8("5")]
    assert [(e.guardian_type, e.subtype) for e in events if isinstance(e, GuardianMoved)] == [
        ("kill_switch", "armed"),
        ("kill_switch", "fired"),
    ]
    assert [(e.kind, e.reason) for e in events if isinstance(e, OrderChanged)] == [("limit", "kill")]


def test_an_inline_kill_blocks_the_orders_that_wait_behind_it():
    venue = VenueDriver((market(), "100"), rules=Rules(fill_at="next"))
    venue.place(order(size="5", guardians=(GuardianSpec("kill_switch"),)))
    venue.place(order(size="5"))
    venue.jump("BTC", "100")
    assert venue.position().size == e8("5")
    assert venue.account.trades[-1].reason == "guardian"


def test_several_clock_guardians_fire_in_the_order_of_the_table():
    venue = VenueDriver((market(), "100"))
    venue.arm(GuardianSpec("schedule", cron="1 * * * *", action="cancel_orders"))
    venue.place(order(size="1", guardians=(hold(60),)))
    venue.arm(dead_man(60, "block_opens"))
    fired = [e.guardian_type for e in venue.wait(60_000) if isinstance(e, GuardianMoved)]
    assert fired == ["dead_man_switch", "max_hold", "schedule"]


def test_a_liquidation_comes_before_a_drawdown_and_a_drawdown_before_a_stop():
    events = run("""
        mark BTC 100
        drawdown 5%
        long BTC 900 lev 10 stop 5%
        jump BTC 90                    || ...
    """).account.events
    kinds = [type(e).__name__ for e in events]
    assert "Liquidated" in kinds
    run("""
        mark BTC 100
        drawdown 5%
        long BTC 100 stop 95
        move BTC 94                    || fired account_drawdown drawdown, guardian 100 @ 95, canceled stop_loss 95 \
position_closed
    """)


def test_a_price_at_midnight_is_compared_with_the_floor_of_the_new_day():
    """The new day starts with the price of 00:00: a loss at that price counts for the new day's start, not for the
    old day.
    """
    venue = VenueDriver((market(), "100"))
    venue.arm(drawdown("5"))
    venue.place(order(size="100"))
    venue.now_ms = T0 + DAY_MS
    assert [e for e in venue.jump("BTC", "90") if isinstance(e, GuardianMoved)] == []
    venue.wait(0)
    assert text_of(venue.account.day_value) == "9000"
    assert [e for e in venue.jump("BTC", "85.51") if isinstance(e, GuardianMoved)] == []
    assert [e.reason for e in venue.jump("BTC", "85.5") if isinstance(e, GuardianMoved)] == ["drawdown"]


def test_the_guardians_survive_a_restore_at_any_moment():
    text = """
        mark BTC 100
        mark ETH 50
        drawdown 5%
        long BTC 60 hold 3600
        short ETH 60
        schedule */7_*_*_*_* short ETH 1
        bar BTC 100 101 99 100 & ETH 50 51 49 50.5
        bar BTC 99 99 97 97 & ETH 50.5 53 50 52
        wait 30m
        bar BTC 97 97 94 94 & ETH 52 52 51 51
        wait 1d
    """
    assert run(text).account.trades


# ── Entries and protection ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("spec", [dead_man(60), GuardianSpec("kill_switch")], ids=lambda s: s.type)
def test_a_close_that_waits_for_the_next_price_is_not_canceled_as_an_entry(spec: GuardianSpec):
    venue = VenueDriver((market(), "100"), rules=Rules(fill_at="next"))
    venue.place(order(size="5"))
    venue.jump("BTC", "100")
    venue.now_ms += 59_999
    venue.close()
    venue.place(order(size="1"))
    venue.arm(spec)
    events = venue.wait(60_000)
    canceled = [e.kind for e in venue.account.events if isinstance(e, OrderChanged) and e.subtype == "canceled"]
    assert canceled == ["market"], events
    venue.jump("BTC", "100")
    assert not venue.account.positions


def test_an_armed_child_names_the_trade_of_its_entry_everywhere():
    venue = VenueDriver((market(), "100"))
    trade = venue.place(order(size="5", stop="2%", take="4%")).answer.trade
    assert {o.trade for o in venue.account.orders.values()} == {trade.id}
    venue.do(c.CancelCoin("a", "BTC"))
    said = {e.trade for e in venue.account.events if isinstance(e, OrderChanged)}
    assert said == {trade.id}


def test_a_trailing_stop_in_r_and_a_drawdown_do_not_affect_each_other():
    venue = VenueDriver((market(), "100"))
    venue.arm(drawdown("50"))
    venue.place(order(size="10", stop="98"))
    venue.arm(trail("1r", coin="BTC"))
    venue.move("BTC", "104")
    venue.jump("BTC", "101")
    assert [t.kind for t in venue.account.trades] == ["market", "guardian"]
    assert ledger.account_value(venue.state, venue.account) == venue.account.balance
    assert cron.next_run(cron.parse("0 0 * * *"), T0) == T0

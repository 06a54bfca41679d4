"""The event log: order within one instant, reasons, resets, and equal states after a restart at any point."""

from __future__ import annotations

import json

import pytest

from bot.model.events import AccountChanged, FillEvent, GuardianMoved, OrderChanged
from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model.state import Rules, State, VenuePlan
from bot.venue.prices import index
from bot.venue.storage import codec
from tests.builders import WAYS, VenueDriver, code_of, dead_man, e8, market, order, replayed, trail
from tests.scenario import run, whole


def told(story: str) -> str:
    """A scenario without expected events: every way of running it must end in the same state."""
    return "\n".join(line + "  | ..." for line in story.strip().splitlines())


STORY = told("""
    mark BTC 100 isolated fee 0.045% 0.015% spread 4bps funding 0.0000125
    mark ETH 2500 fee 0.045% 0.015% depth 3 2bps part 10%
    deadman 3600 cancel_orders
    long BTC 20 lev 5 stop 2% take 2r trail 1.5% from 0.5r
    short ETH 2 lev 3 stop 2600 take 2400
    long BTC 3 limit 99 stop 3%
    plan long drift 500 ETH 1
    bar BTC 100 101.2 98.6 101 & ETH 2500 2510 2440 2450
    bar BTC 101 101.1 100.9 101 & ETH 2450 2451 2449 2450
    confirm
    bar BTC 101 102.5 100.8 102.4 & ETH 2450 2460 2390 2395
    beat
    bar BTC 102.4 102.5 102.3 102.4 & ETH 2395 2396 2394 2395
    close ETH 50%
    long ETH 1 limit 2300 stop 1%
    bar BTC 102.4 102.6 90 91 & ETH 2395 2400 2290 2310
    trail ETH 1%
    bar BTC 91 91 91 91 & ETH 2310 2400 2300 2360
    cancel BTC
    long BTC 20 lev 10 stop 89
    long BTC 20 stop 88
    wait 2h
    bar BTC 91 91 79 80 & ETH 2360 2360 2200 2250
    bar BTC 80 80 80 80 & ETH 2250 2250 2250 2250
""")
ENDS = told("""
    mark BTC 100
    mark ETH 100 isolated
    long BTC 5 stop 98 take 110
    close BTC
    long BTC 5 limit 90
    cancel BTC
    long BTC 5 stop 98 trail 1%
    bar BTC 100 100 97 97
    long BTC 5 limit 90
    short BTC 1 limit 120 reduce
    deadman 60 flatten
    wait 60s
    disarm 2
    long ETH 50 lev 10 stop 95 take 120
    jump ETH 91.1
    long ETH 50 lev 10
    jump ETH 40
""")

LOSSES = told("""
    mark BTC 100 isolated
    mark ETH 100
    long BTC 50 lev 10 stop 95 take 120
    trail BTC 20%
    long BTC 1 limit 50
    jump BTC 91.1
    long ETH 1900 lev 20
    jump ETH 95.9
    wait 10s
    jump ETH 80
    reset
    deadman 60 flatten
    long BTC 1 limit 50
    wait 60s
    disarm 3
    reset
    long BTC 5
    cancel BTC
""")


# ── Order within one instant ────────────────────────────────────────────────────────────────────────────────────────


def test_an_order_event_comes_before_those_of_its_fills_bracket_and_guardians():
    run("""
        mark BTC 100
        long BTC 5 limit 99 stop 97 take 104 trail 2%    || open limit 99
        bar BTC 100 100 98.5 98.5      || open 5 @ 99, armed stop_loss 97, armed take_profit 104, armed trailing_stop
    """)


def test_a_trigger_event_comes_before_its_cancels_and_these_before_its_fill():
    run("""
        mark BTC 100
        long BTC 5 stop 98 take 104 trail 10%
        bar BTC 100 100 97 97          || trigger stop_loss, canceled take_profit 104 sibling_filled, stop_loss 5 @ \
98, released trailing_stop position_closed
    """)


def test_at_one_instant_funding_comes_first_then_the_price_then_guardians_by_the_clock():
    venue = VenueDriver((market(funding_rate=12_500_000), "100"))
    venue.place(order(size="5", stop="98"))
    venue.bars(*[("BTC", ("100", "100", "100", "100"))], interval_ms=3_540_000)
    venue.arm(dead_man(60, "block_opens"))
    events = venue.bar("BTC", "100", "100", "100", "100")
    assert not events
    events = venue.bar("BTC", "97", "97", "97", "97")
    assert [whole(e).split()[0] for e in events] == ["funding", "trigger", "stop_loss", "fired"]
    assert len({e.ts for e in events}) == 1


def test_two_guardians_of_one_instant_fire_in_the_order_they_were_armed():
    venue = VenueDriver((market(), "100"))
    for on_miss in ("cancel_orders", "flatten"):
        venue.arm(dead_man(60, on_miss))
    assert [e.guardian[-1] for e in venue.wait(60_000) if isinstance(e, GuardianMoved)] == ["1", "2"]


def test_event_numbers_have_no_gap_and_instants_never_go_back():
    venue = run(STORY)
    events = list(venue.account.events)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.ts for e in events] == sorted(e.ts for e in events)


def test_reads_heartbeats_and_refusals_make_no_event():
    venue = VenueDriver((market(), "100"))
    venue.arm(dead_man(60))
    before = venue.account.event_seq
    venue.do(c.Heartbeat("a"))
    venue.place(order(size="1", leverage=99))
    venue.do(c.StorePlan("a", order(size="1"), "t", 1000))
    assert venue.account.event_seq == before


# ── Reasons ─────────────────────────────────────────────────────────────────────────────────────────────────────────

ORDER_REASONS = {
    "user",
    "kill",
    "guardian",
    "sibling_filled",
    "position_closed",
    "replaced",
    "reduce_only",
    "slippage_bound",
    "insufficient_funds",
    "liquidated",
    "market_closed",
    "settled",
    "reset",
}
GUARDIAN_REASONS = {
    "deadline",
    "drawdown",
    "time",
    "trail",
    "schedule",
    "manual",
    "user",
    "position_closed",
    "day_end",
    "skipped",
}


def test_every_reason_is_in_the_interface():
    seen: set[str] = set()
    for story in (STORY, ENDS):
        for event in run(story).account.events:
            reason = getattr(event, "reason", None)
            if reason is not None:
                assert reason in (GUARDIAN_REASONS if isinstance(event, GuardianMoved) else ORDER_REASONS), event
                seen.add(reason)
    assert {
        "user",
        "guardian",
        "sibling_filled",
        "position_closed",
        "replaced",
        "liquidated",
        "deadline",
        "trail",
    } <= seen


def test_an_entry_without_enough_margin_is_canceled_when_its_price_comes():
    run("""
        mark BTC 100
        mark ETH 100
        long BTC 100 limit 99
        long ETH 40 lev 40
        jump ETH 50
        jump BTC 98                    || canceled limit 99 insufficient_funds
    """)


# ── Reset ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reset_wipes_the_account_and_continues_the_numbering():
    venue = run("""
        mark BTC 100
        settings 500 -
        long BTC 5 stop 2%
        long BTC 2 limit 90
        deadman 60 flatten
        plan long BTC 1
        reset                          || account reset
        cash                           | 10000
        position BTC                   | flat
        orders BTC                     | none
        guardians                      | none
        confirm                        | no not_found
        wait 1h                        || -
        bar BTC 50 50 50 50            || -
        long BTC 11                    | no limit_exceeded
        long BTC 5                     | open 5 @ 50
    """)
    a = venue.account
    assert (a.epoch, len(a.trades)) == (1, 1)
    first = a.events[0]
    assert isinstance(first, AccountChanged)
    assert (first.subtype, first.epoch, first.seq) == ("reset", 1, a.events_first)
    assert first.seq > 1
    assert a.trades[0].id.endswith("3"), "two trades were before"


def test_a_reset_may_name_the_balance_of_its_epoch():
    run("""
        mark BTC 100
        reset 250
        cash                           | 250
        reset
        cash                           | 10000
    """)


def test_a_reset_fences_earlier_keys_and_no_later_ones():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="1"), idempotency_key="old")
    venue.do(c.ResetAccount("a"))
    again = venue.place(order(size="1"), idempotency_key="old").answer
    assert (again.code, again.details["reason"]) == ("idempotency_conflict", "account_reset")
    assert code_of(venue.place(order(size="1"), idempotency_key="new")) == ""


def test_a_reset_leaves_other_accounts_alone():
    venue = VenueDriver((market(), "100"))
    venue.do(c.OpenAccount("b", "0x" + "1" * 40, None, e8("10000")))
    venue.do(c.PlaceOrder("b", order(size="5", stop="98")))
    venue.place(order(size="5", stop="98"))
    venue.do(c.ResetAccount("a"))
    events = venue.bar("BTC", "97", "97", "97", "97")
    assert {e.account for e in events} == {"b"}


# ── The same machine ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("story", [STORY, LOSSES], ids=["story", "losses"])
def test_the_same_commands_give_the_same_bytes(story: str):
    venue = run(story)
    again = replayed(venue.log)
    assert codec.dumps([list(a.events) for a in again.accounts.values()]) == codec.dumps(
        [list(a.events) for a in venue.state.accounts.values()]
    )
    assert codec.digest(again) == codec.digest(venue.state)


@pytest.mark.parametrize("story", [STORY, LOSSES], ids=["story", "losses"])
def test_a_snapshot_taken_after_any_command_continues_identically(story: str):
    venue = run(story, ways=("passed",))
    whole_state = codec.digest(venue.state)
    for at in range(len(venue.log)):
        state = State()
        for number, (command, now_ms) in enumerate(venue.log):
            apply(state, codec.loads(codec.dumps(command)), now_ms)
            if number == at:
                state = codec.loads(codec.dumps(state))
                index.rebuild(state)
        assert codec.digest(state) == whole_state, f"taken up after command {at}"


@pytest.mark.parametrize("path", ["adaptive", "sl_first", "ohlc", "olhc", "seeded"])
@pytest.mark.parametrize("fill_at", ["now", "next"])
def test_skipping_quiet_bars_changes_nothing(path: str, fill_at: str):
    run(STORY, rules=Rules(paths=path, fill_at=fill_at), ways=WAYS)


def test_a_rebuilt_index_equals_the_incremental_one():
    venue = run(STORY, ways=("passed",))
    for market_ in venue.state.markets.values():
        falling, rising = list(market_.falling), list(market_.rising)
        index.rebuild(venue.state)
        assert (market_.falling, market_.rising) == (falling, rising)


def test_a_command_and_a_state_read_back_as_they_were_written():
    venue = run(STORY, ways=("passed",))
    assert codec.loads(codec.dumps(venue.state)) == venue.state
    for command, _ in venue.log:
        assert codec.loads(codec.dumps(command)) == command


def test_a_record_without_a_newer_field_is_read_with_its_former_meaning():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5"))
    venue.place(order(side=-1, size="6", limit_px="110"))
    (turning,) = venue.account.orders.values()
    assert turning.left_to_open() == e8("1")
    assert codec.decode(list(codec.encode(turning))[:-1]) == turning
    assert codec.decode(list(codec.encode(turning))[:-2]).left_to_open() == e8("6")
    assert codec.loads('["SetMarks",["!t",["!t","BTC",100]]]') == c.SetMarks((("BTC", 100),), running=False)


def test_no_answer_depends_on_later_commands():
    venue = run(STORY, ways=("passed",))
    for at in range(0, len(venue.log), 5):
        cut = replayed(venue.log[:at])
        if "a" not in cut.accounts:
            continue
        events = list(cut.accounts["a"].events)
        assert events == list(venue.account.events)[: len(events)]


def test_after_downtime_a_shifted_deadline_keeps_its_remaining_time():
    venue = VenueDriver((market(), "100"))
    venue.arm(dead_man(60, "block_opens"))
    venue.wait(20_000)
    assert not venue.do(c.ShiftDeadlines(600_000, 30_000)).events
    assert not venue.wait(600_000)
    assert not venue.wait(39_999)
    assert [e.subtype for e in venue.wait(1)] == ["fired"]


def test_a_restart_leaves_at_least_the_floor():
    venue = VenueDriver((market(), "100"))
    venue.arm(dead_man(60, "block_opens"))
    venue.wait(59_000)
    venue.do(c.ShiftDeadlines(600_000, 30_000))
    assert not venue.wait(629_999)
    assert [e.subtype for e in venue.wait(1)] == ["fired"]


def test_a_fill_event_carries_the_state_after_it():
    venue = VenueDriver((market(taker_rate=100_000), "100"))
    venue.place(order(size="5", leverage=5), request_id="req_1", idempotency_key="k")
    fill = venue.account.events[-1]
    assert isinstance(fill, FillEvent)
    assert (fill.size, fill.px, fill.fee, fill.realized, fill.liquidity) == (
        e8("5"),
        e8("100"),
        e8("0.5"),
        None,
        "taker",
    )
    assert (fill.remaining, fill.position_size, fill.entry_px, fill.balance) == (0, e8("5"), e8("100"), e8("9999.5"))
    venue.close(size=e8("2"))
    fill = venue.account.events[-1]
    assert (fill.subtype, fill.intent, fill.reduce_only, fill.realized) == ("exit", "close", True, 0)
    assert (fill.position_size, fill.entry_px) == (e8("3"), e8("100"))


def test_an_armed_child_names_the_trade_of_its_entry_and_its_exit_names_its_own():
    venue = VenueDriver((market(), "100"))
    entry = venue.place(order(size="5", stop="98", take="104"))
    armed = [e for e in entry.events if isinstance(e, OrderChanged)]
    assert {e.trade for e in armed} == {entry.answer.trade.id}
    events = venue.bar("BTC", "97", "97", "97", "97")
    exit_ = venue.account.trades[-1]
    assert [e.trade for e in events if isinstance(e, FillEvent)] == [exit_.id]
    assert (exit_.kind, exit_.source, exit_.reduce_only) == ("stop_loss", None, True)


def test_a_trailing_stops_event_names_its_canceled_orders_and_its_trade():
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5", stop="95", guardians=(trail("1%"),)))
    events = venue.bar("BTC", "97", "97", "97", "97")
    fired = next(e for e in events if isinstance(e, GuardianMoved) and e.subtype == "fired")
    assert fired.canceled == tuple(e.oid for e in events if isinstance(e, OrderChanged))
    assert fired.trades == tuple(e.trade for e in events if isinstance(e, FillEvent))


def test_a_confirm_without_the_reduce_only_field_is_read_as_before():
    spec = codec.encode(order(size="5"))
    assert codec.loads('["ConfirmPlan","a","t",null,"req_1",null,7]') == c.ConfirmPlan("a", "t", None, "req_1", None, 7)
    plan = codec.loads(json.dumps(["Plan", "t", "a", None, spec, 100, 1, 2, 50, "open", None]))
    assert plan == VenuePlan("t", "a", None, order(size="5"), 100, 1, 2, 50)
    assert not plan.shrinks

"""An account at an exchange: its reports, in any order and any number of copies, give the exchange's own books."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bot.errors import Refusal
from bot.model.events import AccountChanged, FillEvent, FundingPaid, Liquidated, OrderChanged, Triggered
from bot.venue.accounting import ledger, nav
from bot.venue.exchange import money, reports
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import (
    ExchangePosition,
    GuardianSpec,
    OrderSpec,
    ReportedExecution,
    ReportedOrder,
    VenueAccount,
)
from bot.venue.prices import index
from bot.venue.storage import codec
from tests.venue.exchange_worlds import BEGIN_MS, NAME, Follower, adopt, listed, session


def sizes(account: VenueAccount) -> dict[str, int]:
    return {coin: position.side * position.size for coin, position in account.positions.items()}


def fill(before: float, size: float, px: float = 100_000, *, at_ms: int = 1, fee: float = 0, **more: Any) -> c.Command:
    """A fill of BTC; a negative size sells."""
    defaults: dict[str, Any] = {"trade_id": at_ms, "order_id": str(at_ms), "client_order_id": None, "maker": False}
    made = ReportedExecution(
        coin="BTC",
        at_ms=BEGIN_MS + at_ms,
        buy=1 if size > 0 else -1,
        size=round(abs(size) * E8),
        px=round(px * E8),
        fee=round(fee * E8),
        before=round(before * E8),
        **defaults | more,
    )
    return c.BookExecution(NAME, made)


def begun(cash: int = 10_000 * E8, *positions: ExchangePosition) -> Follower:
    follower = Follower()
    follower.take(adopt(cash, *positions))
    return follower


@pytest.mark.parametrize("seed", range(120))
def test_the_books_equal_the_raw_ledger_of_the_exchange_to_the_last_unit(seed: int) -> None:
    random = Random(f"{seed}:exchange")
    commands, raw = session(random)
    follower = begun(5_000 * E8)
    for command in commands:
        follower.take(command)
    account = follower.account
    assert nav.stand_of(account, follower.state).cash == 5_000 * E8 + raw.cash
    assert sizes(account) == {coin: size for coin, size in raw.sizes.items() if size}
    assert (account.fees, account.funding) == (raw.fees, raw.funding)
    assert account.exchange is not None and account.exchange.transferred == raw.transfers
    assert (account.absorbed, account.margin_lost, account.exchange.waiting) == (0, 0, [])
    margins = sum(position.margin for position in account.positions.values())
    equity = account.start_balance + account.realized - account.fees + account.funding + raw.transfers
    assert account.balance + margins == equity
    assert sum(trade.fee for trade in account.trades) == raw.fees


@pytest.mark.parametrize("seed", range(120))
def test_any_order_and_any_number_of_copies_of_the_reports_give_one_result(seed: int) -> None:
    random = Random(f"{seed}:order")
    commands, raw = session(random, 30)
    mixed = commands + random.choices(commands, k=10)
    random.shuffle(mixed)
    follower = begun(5_000 * E8)
    for command in mixed:
        follower.take(command)
    account = follower.account
    exchange = account.exchange
    assert exchange is not None
    if exchange.waiting:
        # Fills that return to a position may be booked in another order, and then some still wait: never a wrong one.
        starts = [one.fill.before for one in commands if isinstance(one, c.BookExecution)]
        assert max(Counter(starts).values()) > 1
        return
    assert nav.stand_of(account, follower.state).cash == 5_000 * E8 + raw.cash
    assert sizes(account) == {coin: size for coin, size in raw.sizes.items() if size}
    assert (account.fees, account.funding, exchange.transferred) == (raw.fees, raw.funding, raw.transfers)


@pytest.mark.parametrize("seed", range(20))
def test_a_cursor_names_the_positions_of_its_instant(seed: int) -> None:
    random = Random(f"{seed}:cursor")
    commands, _ = session(random, 80)
    follower = begun()
    follower.take(*commands)
    at_ms, at_sizes = reports.cursor(follower.account)
    then: dict[str, int] = {}
    for one in commands:
        if isinstance(one, c.BookExecution) and one.fill.at_ms <= at_ms:
            then[one.fill.coin] = one.fill.before + one.fill.buy * one.fill.size
    assert at_sizes == {coin: size for coin, size in then.items() if size}
    assert at_ms >= BEGIN_MS


def test_replay_and_a_snapshot_give_the_same_state() -> None:
    random = Random("replay")
    commands, _ = session(random, 60)
    one, other = begun(), begun()
    for number, command in enumerate(commands):
        assert one.take(command)[0].events == other.take(command)[0].events
        if number % 7 == 0:
            other.state = codec.loads(codec.dumps(other.state))
            index.rebuild(other.state)
    assert codec.digest(one.state) == codec.digest(other.state)


def test_an_account_of_a_snapshot_without_the_field_is_a_sandbox_account() -> None:
    state = listed()
    plain = codec.encode(begun().account)
    assert plain[0] == "Account" and plain[-1][0] == "ExchangeAccount"
    assert codec.decode(plain[:-1]).exchange is None
    assert state.accounts == {}


def test_it_begins_with_the_cash_and_the_positions_that_the_exchange_has() -> None:
    short = ExchangePosition("ETH", -2 * E8, 2_400 * E8, 5, True, 900 * E8, 2_900 * E8)
    follower = begun(6_000 * E8, ExchangePosition("BTC", E8 // 10, 90_000 * E8, 10, False, 0, None), short)
    account, state = follower.account, follower.state
    assert nav.stand_of(account, state).cash == 6_000 * E8
    assert sizes(account) == {"BTC": E8 // 10, "ETH": -2 * E8}
    assert account.positions["ETH"].margin == 900 * E8 and account.positions["ETH"].isolated
    assert ledger.liquidation_px(state, account.positions["ETH"]) == 2_900 * E8
    assert ledger.account_value(state, account) == (6_000 + 10_000 - 5_000) * E8 == account.day_value


def test_a_report_from_before_the_beginning_is_contained_in_it() -> None:
    follower = begun()
    follower.take(fill(0, 1, at_ms=0), fill(0, 1, at_ms=-5))
    follower.take(c.BookTransfer(NAME, "0x1", BEGIN_MS, "deposit", E8))
    follower.take(c.BookFunding(NAME, "BTC", BEGIN_MS, E8, E8, 0))
    assert (follower.account.positions, follower.account.balance) == ({}, 10_000 * E8)


def test_a_fill_carries_the_told_fee_the_instant_of_the_exchange_and_its_source() -> None:
    follower = begun()
    (opened,) = follower.take(fill(0, 1, at_ms=7, fee=12.345678))
    (turned,) = follower.take(fill(1, -3, 101_000, at_ms=9, fee=9, client_order_id="0xabc", maker=True))
    (entry,) = opened.events
    assert isinstance(entry, FillEvent)
    assert (entry.subtype, entry.fee, entry.venue_ts, entry.liquidity) == (
        "entry",
        1_234_567_800,
        BEGIN_MS + 7,
        "taker",
    )
    assert entry.ts == follower.now_ms - 1
    leaving, entering = turned.events
    assert isinstance(leaving, FillEvent) and isinstance(entering, FillEvent)
    assert [(e.subtype, e.size, e.fee, e.realized) for e in (leaving, entering)] == [
        ("exit", E8, 3 * E8, 1_000 * E8),
        ("entry", 2 * E8, 6 * E8, None),
    ]
    assert [trade.source for trade in follower.account.trades] == ["dashboard", "api"]
    assert all(trade.status == "done" for trade in follower.account.trades)


def test_a_fill_that_starts_elsewhere_waits_for_the_one_between() -> None:
    follower = begun()
    first, second, third = fill(0, 1, at_ms=1), fill(1, 1, at_ms=2), fill(2, -2, at_ms=3)
    assert [one.answer for one in follower.take(first, third, third)] == [1, 0, 0]
    assert sizes(follower.account) == {"BTC": E8}
    assert [one.answer for one in follower.take(second, first)] == [2, 0]
    assert sizes(follower.account) == {}


def test_fills_that_are_reported_late_are_booked_once_they_leave_the_position_as_it_was() -> None:
    follower = begun()
    first, sold, bought, last = fill(0, 1), fill(1, -1, 99_000, at_ms=2), fill(0, 1, at_ms=3), fill(1, 2, at_ms=4)
    assert [done.answer for done in follower.take(first, last)] == [1, 1]
    exchange = follower.account.exchange
    assert [done.answer for done in follower.take(sold)] == [0] and exchange is not None and exchange.waiting
    assert [done.answer for done in follower.take(bought)] == [2] and not exchange.waiting
    assert sizes(follower.account) == {"BTC": 3 * E8}
    # 10,000 less what the three that remain have cost, and the loss between.
    assert nav.stand_of(follower.account, follower.state).cash == (10_000 - 3 * 100_000 - 1_000) * E8


def test_funding_transfers_and_margin_become_events_and_only_money_that_moved_is_booked() -> None:
    follower = begun()
    follower.take(fill(0, 1))
    balance = follower.account.balance
    funded, sent, moved = follower.take(
        c.BookFunding(NAME, "BTC", BEGIN_MS + 5, -3 * E8, E8, 12_500_000),
        c.BookTransfer(NAME, "0x9", BEGIN_MS + 6, "withdrawal", -500 * E8),
        c.SeeMargins(NAME, (ExchangePosition("BTC", E8, 100_000 * E8, 20, True, 5_000 * E8, 95_500 * E8),)),
    )
    (paid,) = funded.events
    assert isinstance(paid, FundingPaid)
    assert (paid.amount, paid.rate, paid.side, paid.venue_ts) == (-3 * E8, 12_500_000, "long", BEGIN_MS + 5)
    (left,) = sent.events
    assert isinstance(left, AccountChanged)
    assert (left.subtype, left.state, left.amount, left.venue_ts) == ("transfer", "withdrawal", -500 * E8, BEGIN_MS + 6)
    assert [event.subtype for event in moved.events] == ["leverage", "margin"]
    account = follower.account
    position = account.positions["BTC"]
    assert (position.leverage, position.isolated, position.margin) == (20, True, 5_000 * E8)
    assert account.balance + position.margin == balance - 503 * E8
    again = follower.take(
        c.SeeMargins(NAME, (ExchangePosition("BTC", E8, 0, 20, True, 5_000 * E8 + 100, 95_500 * E8),))
    )
    assert again[0].events == []
    assert money.fresh_margins(account, (ExchangePosition("BTC", E8, 0, 20, True, 5_000 * E8, 95_500 * E8),)) == ()


def test_a_transfer_is_no_gain_of_the_day() -> None:
    follower = begun()
    before = ledger.account_value(follower.state, follower.account) - follower.account.day_value
    follower.take(c.BookTransfer(NAME, "0x1", BEGIN_MS + 1, "deposit", 700 * E8))
    account = follower.account
    assert ledger.account_value(follower.state, account) - account.day_value == before
    assert account.history[-1].cash == 10_700 * E8


def test_an_isolated_loss_beyond_its_margin_is_booked_whole() -> None:
    follower = begun(1_000 * E8, ExchangePosition("BTC", E8, 100_000 * E8, 40, True, 2_500 * E8, 98_000 * E8))
    follower.take(fill(1, -1, 95_000, kind="liquidation", fee=10))
    account = follower.account
    assert nav.stand_of(account, follower.state).cash == (1_000 + 95_000 - 10) * E8 == account.balance
    assert (account.absorbed, account.positions) == (0, {})


@pytest.mark.parametrize(("kind", "subtypes"), [("liquidation", ["partial", "full"]), ("adl", [])])
def test_liquidations_and_adl_are_told(kind: str, subtypes: list[str]) -> None:
    follower = begun()
    follower.take(fill(0, 2))
    told = follower.take(fill(2, -1, 90_000, at_ms=2, kind=kind), fill(1, -1, 89_000, at_ms=3, kind=kind))
    events = [event for one in told for event in one.events]
    assert [event.subtype for event in events if isinstance(event, Liquidated)] == subtypes
    assert [event.kind for event in events if isinstance(event, FillEvent)] == [kind, kind]
    assert {trade.source for trade in follower.account.trades[1:]} == {None}


def test_a_takeover_without_fills_ends_the_positions_with_the_cash_that_the_exchange_left() -> None:
    eth = ExchangePosition("ETH", -2 * E8, 2_400 * E8, 5, False, 0, None)
    follower = begun(6_000 * E8, ExchangePosition("BTC", E8 // 10, 90_000 * E8, 10, False, 0, None), eth)
    (taken,) = follower.take(c.BookTakeover(NAME, "0x1", BEGIN_MS + 9, ("BTC", "ETH"), 0))
    account = follower.account
    assert (account.balance, account.positions, account.absorbed) == (0, {}, 0)
    assert [(event.subtype, event.coin) for event in taken.events] == [("backstop", "BTC"), ("backstop", "ETH")]
    assert account.margin_lost == 11_000 * E8
    again = follower.take(c.BookTakeover(NAME, "0x1", BEGIN_MS + 9, ("BTC", "ETH"), 0))
    assert again[0].events == []


# ── Orders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def seen(order_id: str, kind: str = "limit", *, buy: int = 1, size: float = 1, px: float = 99_000, **more: Any) -> Any:
    trigger = None if kind == "limit" else round(px * E8)
    order = ReportedOrder(order_id, None, "BTC", buy, kind, round(size * E8), round(px * E8), trigger, False, BEGIN_MS)
    return c.SeeReportedOrder(NAME, replace(order, **more))


def test_an_order_at_the_exchange_is_shown_and_never_waits_here() -> None:
    follower = begun()
    (told,) = follower.take(seen("7"))
    (event,) = told.events
    assert isinstance(event, OrderChanged) and event.subtype == "open"
    market = follower.state.markets["BTC"]
    assert (market.falling, market.rising, follower.account.reserved) == ([], [], 0)
    follower.take(c.PricePoint("BTC", 50_000 * E8))
    assert len(follower.account.orders) == 1
    again, moved = follower.take(seen("7"), seen("7", px=98_500))
    assert again.events == [] and [event.subtype for event in moved.events] == ["changed"]
    follower.take(fill(0, 0.4, 98_500, order_id="7"), c.EndReportedOrder(NAME, "7", BEGIN_MS + 5, None))
    assert len(follower.account.orders) == 1
    (rest,) = follower.take(fill(0.4, 0.6, 98_500, at_ms=2, order_id="7"))
    assert [event.remaining for event in rest.events if isinstance(event, FillEvent)] == [0]
    (trade,) = follower.account.trades
    assert (trade.status, trade.filled, follower.account.orders) == ("done", E8, {})
    assert follower.take(seen("7"))[0].events == [] and follower.account.orders == {}


def test_the_nearest_stop_and_target_are_those_of_the_position() -> None:
    follower = begun()
    follower.take(seen("2", "stop_loss", buy=-1, px=90_000), seen("3", "stop_loss", buy=-1, px=95_000, size=0))
    follower.take(
        seen("4", "take_profit", buy=-1, px=120_000), fill(0, 1), seen("5", "take_profit", buy=-1, px=110_000)
    )
    account = follower.account
    position = account.positions["BTC"]
    stop, target = (account.orders[oid or 0].trigger_px for oid in (position.stop_oid, position.target_oid))
    assert (stop, target) == (95_000 * E8, 110_000 * E8)
    (ended,) = follower.take(c.EndReportedOrder(NAME, "3", BEGIN_MS + 2, "user"))
    assert [(event.subtype, event.reason) for event in ended.events] == [("canceled", "user")]
    assert account.orders[position.stop_oid or 0].trigger_px == 90_000 * E8
    (fired,) = follower.take(fill(1, -1, 89_900, at_ms=3, order_id="2"))
    assert [type(event) for event in fired.events] == [Triggered, FillEvent]
    assert account.trades[-1].kind == "stop_loss"


def test_an_order_that_was_filled_without_all_its_fills_leaves_when_everything_is_known() -> None:
    follower = begun()
    follower.take(seen("7"), c.EndReportedOrder(NAME, "7", BEGIN_MS + 1, None))
    assert len(follower.account.orders) == 1
    (known,) = follower.take(c.SeeLink(NAME, "in_step"))
    assert [(event.subtype, event.reason) for event in known.events if isinstance(event, OrderChanged)] == [
        ("canceled", "venue")
    ]
    assert follower.account.orders == {}


# ── Link, and what is refused ───────────────────────────────────────────────────────────────────────────────────────


def test_a_change_of_the_link_is_told_once() -> None:
    follower = begun()
    told = follower.take(
        c.SeeLink(NAME, "behind", "connected"), c.SeeLink(NAME, "behind", "connected"), c.SeeLink(NAME, "in_step")
    )
    assert [[(event.state, event.reason) for event in one.events] for one in told] == [
        [("behind", "connected")],
        [],
        [("in_step", None)],
    ]


@pytest.mark.parametrize(
    "command",
    [
        c.PlaceOrder(NAME, OrderSpec("BTC", 1, usd=100 * E8)),
        c.ConfirmPlan(NAME, "token"),
        c.ClosePosition(NAME, "BTC"),
        c.CancelOrder(NAME, "1"),
        c.CancelCoin(NAME, "BTC"),
        c.ArmGuardian(NAME, GuardianSpec("dead_man_switch", heartbeat_seconds=60)),
        c.Kill(NAME, flatten=True),
    ],
    ids=lambda command: type(command).__name__,
)
def test_nothing_can_be_sent_and_the_refusal_says_why(command: c.Command) -> None:
    follower = begun()
    follower.take(fill(0, 1), seen("1"))
    before = codec.digest(follower.account)
    (applied,) = follower.take(command)
    assert isinstance(applied.answer, Refusal) and applied.events == []
    assert applied.answer.code == "service_unavailable"
    assert applied.answer.message.startswith("this account is watched only: it follows 0xa1a1")
    assert applied.answer.details == {"reason": "watched_only"}
    assert codec.digest(follower.account) == before


def test_a_reset_is_refused_and_a_dry_run_is_not() -> None:
    follower = begun()
    reset, plan = follower.take(
        c.ResetAccount(NAME), c.StorePlan(NAME, OrderSpec("BTC", 1, usd=100 * E8, leverage=2), "token", 60_000)
    )
    assert isinstance(reset.answer, Refusal) and reset.answer.code == "forbidden"
    assert not isinstance(plan.answer, Refusal)


def test_a_price_or_an_hour_causes_nothing_at_the_service() -> None:
    follower = begun(100 * E8, ExchangePosition("BTC", E8, 100_000 * E8, 40, True, 2_500 * E8, 98_000 * E8))
    follower.take(c.PricePoint("BTC", 10_000 * E8))
    follower.now_ms += 3 * 3_600_000
    follower.take(c.Pulse())
    assert sizes(follower.account) == {"BTC": E8}
    assert [type(event) for event in follower.account.events] == [AccountChanged]

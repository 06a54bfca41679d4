"""The account state: folding the venue's events gives the same as its snapshot."""

from __future__ import annotations

import random
from decimal import ROUND_DOWN, Decimal

import pytest

from bot.model.events import CLASSES
from bot.money import E8
from bot.runtime.account.account import DaemonAccount
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.diff import diff
from bot.runtime.account.fold import FOLD, fold_event
from bot.runtime.journal.opening import open_journal
from bot.runtime.model.positions import AccountGuardian
from bot.runtime.passes.bar_feed import BarFeed
from bot.service.bodies import event_bodies
from bot.venue.model.commands import SeeLink, SeeMargins
from bot.venue.model.state import ExchangePosition
from bot.wire import BracketRequest, CloseRequest, Event, GuardianRequest, LegRequest, OrderRequest
from tests.builders import VenueDriver, market, order
from tests.faulty_port import ADDRESS, FaultyPort
from tests.runtime.builders import DEAD_MAN_60, folded_form, held_position, resting_order
from tests.venue.exchange_worlds import NAME, Follower, adopt, session

STOP = BracketRequest(stop_loss=LegRequest(pct=Decimal(2)), take_profit=LegRequest(r=Decimal(2)))


def test_every_class_of_event_has_a_fold() -> None:
    assert set(FOLD) == set(CLASSES)
    account = DaemonAccount(open_journal(None, address=ADDRESS), {}, BarFeed([]), lambda: 0)
    assert set(account.folds) == set(CLASSES)


async def a_life(venue: FaultyPort, seed: int, steps: int = 40) -> None:
    chance = random.Random(seed)
    await venue.arm(DEAD_MAN_60.request, key="arm")
    for n in range(steps):
        coin = chance.choice(venue.coins)
        act = chance.randrange(6)
        if act == 0 and coin not in venue.positions:
            side = chance.choice(["long", "short"])
            order = OrderRequest(
                market=coin,
                side=side,  # type: ignore[arg-type]
                usd_amount=Decimal(200),
                bracket=STOP,
            )
            await venue.place(order, key=f"K{n}")
        elif act == 1 and coin in venue.positions:
            size = str((venue.positions[coin].size / 2).quantize(Decimal("0.0001"), ROUND_DOWN))
            await venue.close(coin, CloseRequest(size=size), key=f"K{n}")
        elif act == 2 and coin not in venue.positions:
            px = str(venue.px[coin] - 2)
            await venue.place(
                OrderRequest(market=coin, side="long", size="1", type="limit", limit_px=px, bracket=STOP), key=f"K{n}"
            )
        elif act == 3 and coin in venue.positions:
            await venue.arm(GuardianRequest(type="trailing_stop", market=coin, trail_pct=Decimal(3)), key=f"K{n}")
        elif act == 4 and venue.working:
            await venue.cancel(next(iter(venue.working)))
        venue.minute(**{coin: str(100 + chance.randrange(-5, 6))})


@pytest.mark.parametrize("seed", range(12))
async def test_folded_events_equal_the_snapshot(seed: int) -> None:
    venue = FaultyPort()
    await a_life(venue, seed)
    folded = AccountState(lambda _key: "trend")
    for event in venue.event_rows:
        fold_event(folded, folded_form(event))
    snapshot = await venue.account()
    assert [drift for drift in diff(folded, snapshot) if not drift.kind.startswith("foreign")] == []
    assert folded.balance_usd == snapshot.balance_usd
    twice = AccountState(lambda _key: "trend")
    for event in venue.event_rows:
        fold_event(twice, folded_form(event))
        fold_event(twice, folded_form(event))
    assert (twice.positions, twice.orders, twice.guardians) == (folded.positions, folded.orders, folded.guardians)
    believed = AccountState(lambda _key: "trend")
    believed.of_snapshot(snapshot)
    assert diff(believed, snapshot) == []
    assert believed.equity_usd == pytest.approx(float(snapshot.account_value_usd))


@pytest.mark.parametrize("seed", range(12))
def test_transfers_and_moved_margin_of_an_exchange_account_keep_balance_and_value(seed: int) -> None:
    follower, folded = Follower(), AccountState()
    chance = random.Random(f"{seed}:fold")
    margins = [SeeMargins(NAME, (ExchangePosition("BTC", 0, 0, 5, True, 0, None),))]
    for command in (adopt(5_000 * E8), *margins, *session(chance, 40)[0]):
        for applied in follower.take(command):
            for event in applied.events:
                # The service's views are the way of every event to the daemon.
                fold_event(folded, folded_form(Event.model_validate(event_bodies.event(event))))
        account = follower.account
        told = tuple(
            ExchangePosition(coin, p.side * p.size, 0, 5, True, chance.randrange(1_000) * E8, None)
            for coin, p in account.positions.items()
        )
        for event in follower.take(SeeMargins(NAME, told))[0].events:
            fold_event(folded, folded_form(Event.model_validate(event_bodies.event(event))))
        assert folded.balance_e8 == account.balance
        margin = sum(position.margin for position in account.positions.values())
        assert folded.value_offset_usd == pytest.approx(margin / E8)


def test_the_link_of_a_followed_account_is_folded() -> None:
    follower, folded = Follower(), AccountState()
    told = []
    for command in (adopt(0), SeeLink(NAME, "in_step"), SeeLink(NAME, "away", "no answer")):
        for event in follower.take(command)[0].events:
            fold_event(folded, folded_form(Event.model_validate(event_bodies.event(event))))
            told.append((folded.place.link, folded.place.reason))
    assert told == [(None, None), ("in_step", None), ("away", "no answer")]


async def test_each_difference_from_a_snapshot_is_named() -> None:
    venue = FaultyPort()
    await venue.place(OrderRequest(market="BTC", side="long", usd_amount=Decimal(200), bracket=STOP), key="OURS")
    await venue.place(OrderRequest(market="ETH", side="long", size="1", type="limit", limit_px="90"), key="THEIRS")
    await venue.arm(DEAD_MAN_60.request, key="arm")
    account_state = AccountState(lambda key: "trend" if key == "OURS" else None)
    drifts = diff(account_state, await venue.account())
    assert [(drift.kind, drift.market) for drift in drifts] == [
        ("missing_fill", "BTC"),
        ("missing_fill", "BTC"),
        ("missing_fill", "BTC"),
        ("missing_fill", "ETH"),
        ("foreign_order", "ETH"),
    ]
    account_state.of_snapshot(await venue.account())
    gone = FaultyPort()
    kinds = {drift.kind for drift in diff(account_state, await gone.account())}
    assert kinds == {"missing_fill", "order_gone", "guardian_gone"}


@pytest.mark.parametrize("seed", range(30))
def test_the_positions_without_a_stop_are_those_that_are_not_protected(seed: int) -> None:
    chance = random.Random(seed)
    account_state = AccountState()
    for coin in ("BTC", "ETH", "SOL"):
        if chance.random() < 0.8:
            side, owner = chance.choice(["long", "short"]), chance.choice(["trend", "trend", None])
            account_state.positions[coin] = held_position(coin, side=side, size="3", owner=owner)
        for _ in range(chance.randrange(4)):
            kind = chance.choice(["stop_loss", "stop_loss", "take_profit", "limit"])
            action, side = chance.choice(["close", "close", "open"]), chance.choice(["long", "short"])
            size, oid = chance.choice("0123"), str(len(account_state.orders))
            account_state.orders[oid] = resting_order(oid, kind, action, market=coin, side=side, size=size)
        if chance.random() < 0.2:
            active = chance.choice([True, False, None])
            account_state.guardians[coin] = AccountGuardian(coin, "trailing_stop", coin, active=active)
    bare = [
        one.market
        for one in account_state.positions.values()
        if one.owner and not account_state.is_protected(one.market)
    ]
    assert [one.market for one in account_state.unprotected()] == bare


async def test_a_position_belongs_to_the_strategy_whose_key_opened_it() -> None:
    venue = FaultyPort()
    await venue.place(OrderRequest(market="BTC", side="long", usd_amount=Decimal(200)), key="OURS")
    await venue.place(OrderRequest(market="ETH", side="long", usd_amount=Decimal(200)), key="THEIRS")
    account_state = AccountState(lambda key: "trend" if key == "OURS" else None)
    for event in venue.event_rows:
        fold_event(account_state, folded_form(event))
    assert {p.market: p.owner for p in account_state.positions.values()} == {"BTC": "trend", "ETH": None}
    assert [p.market for p in account_state.unprotected()] == ["BTC"]
    assert account_state.keys_proven


def test_an_isolated_margin_counts_in_the_account_value_from_the_fill_on() -> None:
    account_state = AccountState(lambda _key: "trend")

    def value_after(type_: str, subtype: str, **data: object) -> float:
        row = {"id": "evt_1", "type": type_, "subtype": subtype, "ts": 1, "coin": "AAPL", "data": data}
        fold_event(account_state, folded_form(Event.model_validate(row)))
        return account_state.equity_usd

    fill = {
        "tradeId": "t",
        "oid": "1",
        "kind": "market",
        "side": "long",
        "reduceOnly": False,
        "liquidity": "taker",
        "remainingSize": "0",
    }
    value_after("account", "created", balanceUsd="10000")
    entry = {**fill, "intent": "open", "size": "30", "px": "100", "feeUsd": "1.5", "realizedPnlUsd": None}
    assert value_after("fill", "entry", **entry, positionSize="30", entryPx="100", balanceUsd="7000") == 9_998.5
    paid = {"side": "long", "size": "30", "oraclePx": "100", "rate": "0.00001", "amountUsd": "-0.5"}
    assert value_after("funding", "payment", **paid, balanceUsd="7000") == 9_998, "out of the margin"
    left = {**fill, "intent": "close", "size": "30", "px": "101", "feeUsd": "1.5", "realizedPnlUsd": "30"}
    assert value_after("fill", "exit", **left, positionSize="0", entryPx=None, balanceUsd="10026.5") == 10_026.5
    assert account_state.value_offset_usd == 0
    assert value_after("fill", "entry", **entry, positionSize="30", entryPx="100", balanceUsd="7025") == 10_025
    taken = {
        "tradeId": "t",
        "side": "long",
        "size": "30",
        "px": "10",
        "markPx": "10",
        "feeUsd": "0",
        "balanceUsd": "7025",
    }
    assert value_after("liquidation", "backstop", **taken, realizedPnlUsd="-2700", marginLostUsd="300") == 7_025
    assert account_state.value_offset_usd == 0
    assert (
        value_after(
            "fill",
            "entry",
            **{**entry, "size": "100", "px": "0.4"},
            positionSize="100",
            entryPx="0.4",
            balanceUsd="6983.5",
        )
        == 7_023.5
    )
    settled = {"tradeId": "t", "side": "long", "size": "100", "outcomePx": "1", "payoutUsd": "100", "feeUsd": "0"}
    assert value_after("settlement", "settled", **settled, realizedPnlUsd="60", balanceUsd="7083.5") == 7_083.5
    assert (account_state.value_offset_usd, account_state.positions) == (0, {})


def state_after(venue: VenueDriver) -> AccountState:
    """The account state of a run that read every event. Every order is a strategy's, with no leverage requested."""
    account_state = AccountState(lambda _key: "trend")
    for happened in venue.account.events:
        fold_event(account_state, happened)
    return account_state


def test_a_loss_beyond_the_isolated_margin_costs_the_margin_and_no_more() -> None:
    venue = VenueDriver((market("BTC", margin_mode="isolated"), "100"))
    venue.place(order("BTC", 1, size="5", leverage=10))
    venue.jump("BTC", "50")
    account_state = state_after(venue)
    assert (account_state.equity_usd, account_state.value_offset_usd) == (9_950, 0)


def test_a_reversal_by_one_order_takes_over_the_leverage_of_what_it_closes() -> None:
    venue = VenueDriver((market("BTC"), "100"))
    venue.place(order("BTC", 1, size="5", leverage=3))
    venue.place(order("BTC", 1, size="1", leverage=5, acknowledge_leverage_change=True))
    venue.place(order("BTC", -1, size="12"))
    held = state_after(venue).positions["BTC"]
    assert (held.side, held.size, held.leverage) == ("short", 6, venue.account.positions["BTC"].leverage)
    assert held.leverage == 5
    venue.close("BTC")
    venue.place(order("BTC", 1, size="1"))
    assert state_after(venue).positions["BTC"].leverage == venue.account.positions["BTC"].leverage == 1


def test_r_is_that_of_the_newest_bracket_and_an_order_dates_from_its_first_event() -> None:
    venue = VenueDriver((market("BTC"), "100"))
    venue.place(order("BTC", 1, size="5", stop="20%"))
    first_ms = venue.now_ms
    venue.wait(60_000)
    venue.place(order("BTC", 1, size="2"))
    account_state = state_after(venue)
    (stop,) = account_state.orders.values()
    assert (stop.size, stop.created_ms) == (7, first_ms), "it has grown with the position"
    assert account_state.positions["BTC"].first_stop_px == 80
    venue.place(order("BTC", 1, size="2", stop="5%"))
    account_state = state_after(venue)
    (stop,) = account_state.orders.values()
    assert (stop.size, stop.created_ms) == (9, venue.now_ms)
    assert account_state.positions["BTC"].first_stop_px == 95

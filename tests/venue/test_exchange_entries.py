"""Entries at an exchange and the protection of their positions: one after another, and in any order of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bot.errors import Refusal
from bot.venue.exchange import action_answers
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import LegSpec, OrderSpec, VenueAction
from bot.venue.orders import exchange_actions, exchange_levels, exits, protection_orders
from bot.venue.orders.exchange_actions import ActionsSent
from bot.venue.orders.orders import OrderPlaced
from bot.venue.prices import index
from tests.venue.exchange_sessions import (
    AGENT,
    SIZE,
    SPEC,
    actions,
    begun,
    children,
    entered,
    events,
    fill,
    see,
    trading,
)
from tests.venue.exchange_worlds import NAME, Follower
from tests.venue.protection_search import World


def phase(follower: Follower, kind: str = "stop_loss") -> str | None:
    return protection_orders.phase(follower.account, "BTC", kind)


def test_an_entry_sets_the_leverage_first_and_takes_its_bracket_along() -> None:
    follower = trading()
    (applied,) = follower.take(c.PlaceOrder(NAME, SPEC, idempotency_key="k1"))
    sent = applied.answer
    assert isinstance(sent, ActionsSent) and events(applied) == []
    (leverage,) = actions(follower)
    assert (leverage.kind, leverage.leverage, leverage.isolated, leverage.rank) == ("leverage", 5, False, 3)
    follower.take(see(leverage))
    entry = actions(follower)[-1]
    assert (entry.kind, entry.size, entry.is_part, len(entry.protections)) == ("place", SIZE, True, 2)
    there = exchange_actions.known(follower.account).protection_orders
    levels = [(there[name].kind, there[name].px, there[name].size) for name in entry.protections]
    assert levels == [("stop_loss", 98_000 * E8, SIZE), ("take_profit", 104_000 * E8, SIZE)]
    assert phase(follower) == "carried"
    assert action_answers.answer_of(follower.state, follower.account, sent) is None


def test_the_command_that_books_a_fill_arms_its_stop_and_a_whole_fill_needs_no_further_action() -> None:
    follower = trading()
    sent, entry = begun(follower)
    follower.take(see(entry, filled=SIZE, protections=children(entry)))
    (booked,) = follower.take(fill(follower, entry.client_order_id, SIZE))
    assert events(booked) == ["FillEvent.entry", "OrderChanged.armed", "OrderChanged.armed"]
    assert phase(follower) == "children" and actions(follower)[-1] is entry
    placed = action_answers.answer_of(follower.state, follower.account, sent)
    assert isinstance(placed, OrderPlaced) and placed.protected
    assert (placed.trade.status, placed.trade.filled, placed.warnings) == ("done", SIZE, ())


def test_after_a_part_a_stop_for_the_whole_position_stands_before_the_children_go() -> None:
    follower = trading()
    sent, entry = begun(follower)
    half = SIZE // 2
    follower.take(see(entry, filled=half, protections=children(entry)), fill(follower, entry.client_order_id, half))
    stop, target = actions(follower)[-2:]
    assert [(action.kind, action.rank) for action in (stop, target)] == [("protect", 0)] * 2
    assert phase(follower) == "placing"
    follower.take(see(stop, protections=children(stop)))
    assert phase(follower) == "standing"
    cancel = actions(follower)[-1]
    assert (cancel.kind, cancel.protections) == ("cancel", entry.protections[:1])
    placed = action_answers.answer_of(follower.state, follower.account, sent)
    assert isinstance(placed, OrderPlaced) and placed.trade.reason == "slippage_bound"
    assert [code for code, _ in placed.warnings] == ["partial_depth"]


def test_the_venue_guards_a_level_itself_until_the_exchange_has_it() -> None:
    follower = trading()
    _, entry = begun(follower)
    follower.take(fill(follower, entry.client_order_id, SIZE // 2))
    applied = follower.take(c.PricePoint("BTC", 97_900 * E8, step=0))
    assert events(*applied) == ["Triggered.stop_loss", "OrderChanged.changed"]
    exit_ = actions(follower)[-1]
    assert (exit_.kind, exit_.size, exit_.rank) == ("place", SIZE // 2, 0)
    assert follower.account.orders[exit_.oid or 0].reduce_only


def test_a_stop_that_stands_has_3_s_to_fill_before_the_venue_exits() -> None:
    follower = trading()
    entered(follower)
    count = len(actions(follower))
    follower.take(c.PricePoint("BTC", 97_900 * E8, step=0))
    assert len(actions(follower)) == count and phase(follower) == "firing"
    follower.now_ms += protection_orders.FIRING_MS
    follower.take(c.Pulse())
    assert actions(follower)[-1].kind == "place"


def test_the_fill_of_a_stop_tells_that_it_fired_and_ends_its_target() -> None:
    follower = trading()
    _, entry = entered(follower)
    (booked,) = follower.take(fill(follower, entry.protections[0], SIZE, buy=-1, number=2))
    assert events(booked) == ["Triggered.stop_loss", "OrderChanged.canceled", "FillEvent.exit"]
    assert (follower.account.positions, follower.account.orders) == ({}, {})
    assert (follower.account.trades[-1].kind, follower.account.trades[-1].status) == ("stop_loss", "done")


@pytest.mark.parametrize(
    ("code", "is_released"), [("insufficient_depth", True), ("insufficient_funds", False), ("trade_failed", False)]
)
def test_a_refused_entry_was_never_an_order_and_its_plan_must_be_made_anew(code: str, is_released: bool) -> None:
    follower = trading()
    follower.take(c.StorePlan(NAME, SPEC, "t1", 60_000, 50))
    (confirmed,) = follower.take(c.ConfirmPlan(NAME, "t1", idempotency_key="k1"))
    follower.take(see(actions(follower)[-1]))
    entry = actions(follower)[-1]
    ended = follower.take(see(entry, "refused", code=code, text="Words of theirs."))
    assert events(*ended) == []
    refusal = action_answers.answer_of(follower.state, follower.account, confirmed.answer)
    assert isinstance(refusal, Refusal) and refusal.code == code and "Words of theirs." in refusal.message
    assert (follower.account.trades[-1].status, phase(follower)) == ("void", None)
    assert (exchange_actions.sent_of_key(follower.account, "k1") is None) == is_released
    (again,) = follower.take(c.ConfirmPlan(NAME, "t1", idempotency_key="k1"))
    assert again.answer.code == "plan_stale" if is_released else "idempotency_conflict"


REFUSED: dict[str, tuple[OrderSpec, str, tuple[c.Command, ...]]] = {
    "behind": (SPEC, "service_unavailable", (c.SeeLink(NAME, "behind", "why"),)),
    "clock": (SPEC, "service_unavailable", (c.SeeAgent(NAME, AGENT, 31_000),)),
    "watched_only": (SPEC, "service_unavailable", (c.SeeAgent(NAME, None, 0),)),
    "undecided": (SPEC, "service_unavailable", (c.PlaceOrder(NAME, SPEC),)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_protected_or_known_is_refused_before_anything_is_sent(reason: str) -> None:
    follower = trading()
    spec, code, before = REFUSED[reason]
    follower.take(*before)
    count = len(actions(follower))
    (applied,) = follower.take(c.PlaceOrder(NAME, spec, idempotency_key="k9"))
    assert isinstance(applied.answer, Refusal)
    assert (applied.answer.code, applied.answer.details) == (code, {"reason": reason})
    assert len(actions(follower)) == count


def test_the_caps_of_an_account_count_entries_that_are_on_their_way_or_wait_at_the_exchange() -> None:
    follower = trading()
    follower.take(c.ChangeSettings(NAME, None, 15_000 * E8))
    limit = OrderSpec("BTC", 1, size=SIZE, leverage=5, type="limit", limit_px=99_000 * E8, stop=LegSpec(pct=2 * E8))
    _, entry = begun(follower, limit)
    other = OrderSpec("ETH", 1, usd=6_000 * E8, leverage=5, stop=LegSpec(pct=2 * E8))
    for command in (None, see(entry, filled=0, order_id="7", protections=children(entry))):
        follower.take(*([] if command is None else [command]))
        (applied,) = follower.take(c.PlaceOrder(NAME, other, idempotency_key="k2"))
        assert isinstance(applied.answer, Refusal), applied.answer
        assert applied.answer.details is not None and applied.answer.details["cap"] == "dailyTradeCapUsd"


def test_the_main_network_takes_entries_only_with_a_cap() -> None:
    follower = trading("mainnet")
    (applied,) = follower.take(c.PlaceOrder(NAME, SPEC))
    assert applied.answer.details == {"reason": "not_at_exchange"}
    assert "bot exchange connect CONFIG --network mainnet" in applied.answer.message
    assert actions(follower) == []
    follower.take(c.SetExposureCap(NAME, 20_000 * E8))
    assert begun(follower)[1].kind == "place"


def limit(coin: str, side: int, size: int, px: int) -> OrderSpec:
    return OrderSpec(coin, side, size=size, leverage=1, type="limit", limit_px=px * E8, stop=LegSpec(pct=2 * E8))


def rested(follower: Follower) -> VenueAction:
    """A limit entry that waits at the exchange, worth 9,900."""
    _, entry = begun(follower, limit("BTC", 1, SIZE, 99_000))
    follower.take(see(entry, filled=0, order_id="7", protections=children(entry)))
    return entry


def half_filled(follower: Follower) -> None:
    entry = rested(follower)
    follower.take(fill(follower, entry.client_order_id, SIZE // 2))


# What there is before an entry, and its exposure in USD: positions at the mark, entries at their limit or at the mark.
EXPOSED: dict[str, tuple[Callable[[Follower], object], int]] = {
    "nothing": (lambda follower: None, 0),
    "a position": (entered, 10_000),
    "a market order that is not decided": (begun, 10_000),
    "a limit that is not decided": (lambda follower: begun(follower, limit("BTC", 1, SIZE, 99_000)), 10_000),
    "a sale that will fill above its limit": (lambda follower: begun(follower, limit("BTC", -1, SIZE, 90_000)), 10_000),
    "an entry that waits": (rested, 9_900),
    "an entry that is half filled": (half_filled, 5_000 + 4_950),
}


@pytest.mark.parametrize("way", ["order", "plan"])
@pytest.mark.parametrize("name", EXPOSED)
def test_the_exposure_cap_holds_to_the_unit_whatever_there_is(name: str, way: str) -> None:
    follower = trading("mainnet")
    follower.take(c.SetExposureCap(NAME, 10_000_000 * E8))
    begin, exposure = EXPOSED[name]
    begin(follower)
    # 2,400 USD
    order = limit("ETH", 1, E8, 2_400)
    follower.take(*(c.StorePlan(NAME, order, token, 60_000, 50) for token in ("beyond", "within")))
    count = len(actions(follower))
    for cap, token in (((exposure + 2_400) * E8 - 1, "beyond"), ((exposure + 2_400) * E8, "within")):
        is_sent = token == "within"
        command = c.PlaceOrder(NAME, order) if way == "order" else c.ConfirmPlan(NAME, token)
        (_, applied) = follower.take(c.SetExposureCap(NAME, cap), command)
        assert isinstance(applied.answer, ActionsSent) == is_sent, applied.answer
        assert (len(actions(follower)) > count) == is_sent
        if not is_sent:
            assert (applied.answer.code, applied.answer.details) == ("limit_exceeded", {"cap": "exchangeCapUsd"})


def test_an_order_that_turns_a_position_is_refused_and_one_that_reduces_it_is_sent() -> None:
    follower = trading()
    entered(follower)
    (turned,) = follower.take(c.PlaceOrder(NAME, OrderSpec("BTC", -1, size=2 * SIZE, leverage=5)))
    assert (turned.answer.code, turned.answer.fix) == ("invalid_input", {"action": "close_first"})
    (reduced,) = follower.take(c.PlaceOrder(NAME, OrderSpec("BTC", -1, size=SIZE // 2)))
    assert isinstance(reduced.answer, ActionsSent)
    assert (actions(follower)[-1].kind, actions(follower)[-1].rank) == ("place", 1)


def test_nothing_is_added_to_a_position_before_a_stop_follows_its_size() -> None:
    follower = trading()
    entered(follower)
    (applied,) = follower.take(c.PlaceOrder(NAME, OrderSpec("BTC", 1, size=SIZE, leverage=5), idempotency_key="k2"))
    assert isinstance(applied.answer, ActionsSent)
    stop, target = (action for action in actions(follower) if action.kind == "protect")
    follower.take(see(target, protections=children(target)))
    assert [action.kind for action in actions(follower)].count("place") == 1
    follower.take(see(stop, protections=children(stop)))
    added = [action for action in actions(follower) if action.kind == "place"][-1]
    assert (added.size, added.protections, phase(follower)) == (SIZE, (), "standing")
    (booked,) = follower.take(fill(follower, added.client_order_id, SIZE, number=2))
    assert events(booked) == ["FillEvent.entry", "OrderChanged.changed", "OrderChanged.changed"]
    assert phase(follower) == "standing"


def test_an_addition_is_not_sent_when_no_such_stop_stands_in_time() -> None:
    follower = trading()
    entered(follower)
    spec = OrderSpec("BTC", 1, size=SIZE, leverage=5)
    (applied,) = follower.take(c.PlaceOrder(NAME, spec, idempotency_key="k2"))
    follower.now_ms += 8_000
    follower.take(c.Pulse())
    refusal = action_answers.answer_of(follower.state, follower.account, applied.answer)
    assert isinstance(refusal, Refusal) and refusal.message == action_answers.UNCOVERED
    assert follower.account.trades[-1].status == "void"


def test_a_kill_gives_up_an_entry_on_its_way_and_closes_what_it_opens_all_the_same() -> None:
    follower = trading()
    _, entry = begun(follower)
    follower.take(c.Kill(NAME, flatten=True))
    assert (entry.status, entry.unwanted) == ("voiding", True)
    follower.take(fill(follower, entry.client_order_id, SIZE))
    exit_ = actions(follower)[-1]
    assert (exit_.kind, exit_.size, follower.account.orders[exit_.oid or 0].reduce_only) == ("place", SIZE, True)


# An entry's stop was tighter than its trailing stop, a step was refused, and a late stop took another one's place.
BROKEN_ONCE = (3110, 3154, 3287, 3721, 4033, 4227, 4257)


@pytest.mark.soak(worlds=300, full=10_000)
def test_in_any_order_of_events_a_stop_is_never_taken_away_and_none_multiplies_or_stays(worlds: int) -> None:
    phases = set()
    for seed in (*BROKEN_ONCE, *range(worlds)):
        world = World(seed).run()
        assert not world.faults, (seed, world.faults)
        phases |= world.seen.keys()
    assert {"carried", "children", "placing", "standing", "firing", "naked"} <= phases


def _canceled_first(state: Any, account: Any, position: Any, kind: str, px: int) -> Any:
    """The order that stands is canceled before the new one does."""
    there = exchange_actions.known(account).protection_orders.values()
    standing = [o for o in there if (o.coin, o.kind, o.status) == (position.coin, kind, "there")]
    exchange_actions.cancel_protection(state, account, standing)
    return PROTECT(state, account, position, kind, px)


def _sized_by_the_request(state: Any, account: Any, position: Any, kind: str, px: int) -> Any:
    """A stop has the size of the entry, not of the position."""
    asked = PROTECT(state, account, position, kind, px)
    asked.size = SIZE
    return asked


def _loosening_step(state: Any, account: Any, watched: Any, coin: str) -> Any:
    """A trailing stop moves away from the price."""
    before_px, again_ms = watched.step_px, STEP(state, account, watched, coin)
    if before_px is not None and watched.step_px is not None:
        watched.step_px = 2 * before_px - watched.step_px
    return again_ms


def _armed_again(state: Any, account: Any, market: Any, guardian: Any, *given: Any, **named: Any) -> Any:
    """A guardian that has fired stays armed."""
    END_FIRED(state, account, market, guardian, *given, **named)
    account.guardians[guardian.number] = guardian
    exchange_actions.known(account).protections[market.spec.coin].fired = None
    index.watch_trail(market, guardian)


PROTECT, STEP, END_FIRED = exchange_actions.protect, exchange_levels.step, exits.end_fired
BUGS: dict[str, tuple[Any, str, Any]] = {
    "a stop of any size or level counts": (
        protection_orders,
        "_covers",
        lambda account, position, level, there, *, whole: there.status == "there",
    ),
    "children are canceled before their entry fills": (exchange_actions, "is_carried", lambda *_: False),
    "none is waited for": (protection_orders, "_waits_until", lambda *_: 0),
    "the old stop goes first": (exchange_actions, "protect", _canceled_first),
    "a step loosens": (exchange_levels, "step", _loosening_step),
    "a guardian fires twice": (exits, "end_fired", _armed_again),
    "a tighter stop goes for a looser one": (exchange_levels, "may_loosen", lambda *_: True),
    "a stop that another one may have replaced counts": (protection_orders, "_is_later", lambda *_: False),
    "a stop is sized by the request": (exchange_actions, "protect", _sized_by_the_request),
}


@pytest.mark.parametrize("bug", BUGS)
def test_seeded_bugs_are_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    monkeypatch.setattr(*BUGS[bug])
    for seed in (*BROKEN_ONCE, *range(300)):
        try:
            if World(seed).run().faults:
                return
        except (AssertionError, KeyError):
            return
    raise AssertionError("the seeded bug was not found")

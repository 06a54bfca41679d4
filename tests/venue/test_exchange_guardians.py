"""Guardians of an account at an exchange: steps of a trailing stop, and what each guardian sends when it fires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bot.errors import Refusal
from bot.model.events import Event, GuardianMoved
from bot.venue.apply import Applied
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import GuardianSpec, LegSpec, OrderSpec, ProtectionOrder
from bot.venue.orders import exchange_actions, exchange_levels, protection_orders
from bot.venue.prices import index
from bot.venue.storage import codec
from tests.venue.exchange_sessions import AGENT, SIZE, SPEC, actions, children, entered, events, fill, see, trading
from tests.venue.exchange_worlds import NAME, Follower

TRAIL = GuardianSpec("trailing_stop", trail_pct=2 * E8)
TRAILED = OrderSpec("BTC", 1, size=SIZE, leverage=5, guardians=(TRAIL,), require_protection=True)
MINUTE_MS = 60_000


def stops(follower: Follower) -> list[ProtectionOrder]:
    known = exchange_actions.known(follower.account).protection_orders.values()
    return [order for order in known if order.kind == "stop_loss" and order.status != "ended"]


def move(follower: Follower, px: int) -> Applied:
    (applied,) = follower.take(c.PricePoint("BTC", px * E8, step=0))
    return applied


def fired(*applied: Applied) -> list[GuardianMoved]:
    told: list[Event] = [event for result in applied for event in result.events]
    return [event for event in told if isinstance(event, GuardianMoved) and event.subtype == "fired"]


def answer_all(follower: Follower) -> None:
    """The exchange performs everything that it was asked."""
    while asked := [action for action in actions(follower) if not action.over_ms and action.kind != "place"]:
        status = "ended" if asked[0].kind == "cancel" else "there"
        follower.take(see(asked[0], protections=children(asked[0], status)))


def restarted(follower: Follower) -> None:
    """As after kill -9: what is stored is all that is left."""
    follower.state = codec.loads(codec.dumps(follower.state))
    index.rebuild(follower.state)


# ── Steps of a trailing stop ────────────────────────────────────────────────────────────────────────────────────────


def test_an_entry_with_a_trailing_stop_alone_takes_its_stop_along() -> None:
    follower = trading()
    entered(follower, TRAILED)
    assert [(order.px, order.size, order.status) for order in stops(follower)] == [(98_000 * E8, SIZE, "there")]
    assert protection_orders.phase(follower.account, "BTC", "stop_loss") == "children"
    assert [action.kind for action in actions(follower)] == ["leverage", "place"]


def test_a_step_stands_before_the_stop_that_it_replaces_is_canceled() -> None:
    follower = trading()
    entered(follower, TRAILED)
    move(follower, 103_000)
    assert [(order.px, order.status) for order in stops(follower)] == [(98_000 * E8, "there"), (100_940 * E8, "asked")]
    step = actions(follower)[-1]
    assert (step.kind, step.rank) == ("protect", 0)
    follower.take(see(step, protections=children(step)))
    assert actions(follower)[-1].kind == "cancel"
    answer_all(follower)
    assert [order.px for order in stops(follower)] == [100_940 * E8]
    move(follower, 101_500)
    assert [order.px for order in stops(follower)] == [100_940 * E8]


@pytest.mark.parametrize(("extreme", "stop"), [(100_050, 98_000), (100_051, 98_050), (100_500, 98_490)])
def test_a_step_is_at_least_4_ticks_and_5_hundredths_of_a_per_cent(extreme: int, stop: int) -> None:
    follower = trading()
    entered(follower, TRAILED)
    move(follower, extreme)
    answer_all(follower)
    assert [order.px for order in stops(follower)] == [stop * E8]


@pytest.mark.parametrize(
    ("left", "steps"), [(10_000, 4), (2_000, 4), (1_999, 2), (1_000, 2), (999, 0), (0, 0), (None, 2)]
)
def test_steps_in_a_minute_keep_to_the_budget_and_the_next_one_waits_for_its_minute(
    left: int | None, steps: int
) -> None:
    follower = trading()
    follower.take(c.SeeAgent(NAME, AGENT, 0, left))
    entered(follower, TRAILED)
    for extreme in range(101_000, 107_000, 1_000):
        move(follower, extreme)
        answer_all(follower)
    assert [action.kind for action in actions(follower)].count("protect") == steps
    assert [order.px for order in stops(follower)] == [(98_000 + 980 * steps) * E8]
    follower.now_ms += MINUTE_MS
    follower.take(c.Pulse())
    answer_all(follower)
    assert [order.px for order in stops(follower)] == [(103_880 if steps else 98_000) * E8]


def test_the_venue_exits_at_the_exact_level_while_the_stop_at_the_exchange_lags() -> None:
    follower = trading()
    follower.take(c.SeeAgent(NAME, AGENT, 0, 0))
    entered(follower, TRAILED)
    move(follower, 105_000)
    applied = move(follower, 102_800)
    (told,) = fired(applied)
    assert (told.action, told.reason, told.trades) == ("close", "trail", (follower.account.trades[-1].id,))
    exit_ = actions(follower)[-1]
    assert (exit_.kind, exit_.size, exit_.rank) == ("place", SIZE, 0)
    # The looser stop stays until the position is gone.
    assert [order.px for order in stops(follower)] == [98_000 * E8]
    follower.take(see(exit_, filled=SIZE), fill(follower, exit_.client_order_id, SIZE, buy=-1, number=2))
    assert follower.account.positions == {} and follower.account.guardians == {}
    assert follower.account.trades[-1].guardian == told.guardian


def test_a_stop_that_stands_at_the_exact_level_has_3_s_to_fill() -> None:
    follower = trading()
    entered(follower, TRAILED)
    count = len(actions(follower))
    assert not fired(move(follower, 97_900)) and len(actions(follower)) == count
    assert protection_orders.phase(follower.account, "BTC", "stop_loss") == "firing"
    follower.now_ms += protection_orders.FIRING_MS
    (applied,) = follower.take(c.Pulse())
    assert len(fired(applied)) == 1 and actions(follower)[-1].kind == "place"


def test_a_price_that_comes_back_leaves_the_trailing_stop_as_it_was() -> None:
    follower = trading()
    entered(follower, TRAILED)
    move(follower, 97_900)
    move(follower, 98_500)
    follower.now_ms += protection_orders.FIRING_MS
    assert not fired(*follower.take(c.Pulse()))
    move(follower, 103_000)
    assert stops(follower)[-1].px == 100_940 * E8


@pytest.mark.parametrize("size", [SIZE, SIZE // 2], ids=["whole", "part"])
def test_the_fill_of_its_stop_fires_the_guardian_once_and_the_rest_is_closed(size: int) -> None:
    follower = trading()
    _, entry = entered(follower, OrderSpec(**{**_fields(SPEC), "guardians": (TRAIL,), "stop": LegSpec(pct=5 * E8)}))
    move(follower, 100_300)
    answer_all(follower)
    step = stops(follower)[-1]
    (booked,) = follower.take(fill(follower, step.client_order_id, size, buy=-1, number=2))
    assert events(booked)[0] == "GuardianMoved.fired" and "Triggered.stop_loss" not in events(booked)
    (told,) = fired(booked)
    trade = follower.account.trades[-1]
    assert (trade.kind, trade.guardian, trade.filled, told.trades) == ("guardian", told.guardian, size, (trade.id,))
    restarted(follower)
    follower.now_ms += protection_orders.FIRING_MS
    later = follower.take(c.Pulse())
    if size < SIZE:
        later += follower.take(fill(follower, step.client_order_id, SIZE - size, buy=-1, number=3))
    assert not fired(*later)
    rest = [action for action in actions(follower) if action.kind == "place" and action is not entry]
    assert [action.size for action in rest][1:] == ([] if size == SIZE else [SIZE - size])
    assert follower.account.positions == {} and follower.account.guardians == {}


def _fields(spec: OrderSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in OrderSpec.__dataclass_fields__}


def test_a_step_that_the_exchange_refuses_leaves_the_stop_where_it_stands() -> None:
    follower = trading()
    entered(follower, TRAILED)
    for extreme in range(101_000, 110_000, 1_000):
        move(follower, extreme)
        for action in actions(follower):
            if not action.over_ms and action.kind == "protect":
                first = len(stops(follower)) == 2 and stops(follower)[0].size
                told = (
                    see(action, protections=children(action)) if first else see(action, "refused", code="trade_failed")
                )
                follower.take(told)
        follower.now_ms += MINUTE_MS
        answer_all(follower)
    assert [order.status for order in stops(follower)] == ["there"]
    assert exchange_levels.wanted(follower.account, "BTC", "stop_loss") is not None
    assert [action.kind for action in actions(follower)].count("place") == 1


def test_a_stop_of_a_disarmed_guardian_goes_after_the_one_that_is_wanted_stands() -> None:
    follower = trading()
    entered(follower)
    (applied,) = follower.take(c.ArmGuardian(NAME, GuardianSpec("trailing_stop", coin="BTC", trail_pct=E8)))
    assert not isinstance(applied.answer, Refusal)
    answer_all(follower)
    assert [order.px for order in stops(follower)] == [99_000 * E8]
    guardian = applied.answer.number
    follower.take(c.DisarmGuardian(NAME, f"grd_00001{guardian:09d}"))
    assert [(order.px, order.status) for order in stops(follower)] == [(99_000 * E8, "there"), (98_000 * E8, "asked")]
    answer_all(follower)
    assert [order.px for order in stops(follower)] == [98_000 * E8]


# ── What each guardian does ─────────────────────────────────────────────────────────────────────────────────────────

# Each type: its spec, and what makes it fire.
GUARDIANS: dict[str, tuple[GuardianSpec, Callable[[Follower], Any]]] = {
    "trailing_stop": (GuardianSpec("trailing_stop", coin="BTC", trail_pct=E8), lambda f: move(f, 98_900)),
    "max_hold": (GuardianSpec("max_hold", coin="BTC", seconds=60), lambda f: later(f, MINUTE_MS)),
    "account_drawdown": (
        GuardianSpec("account_drawdown", max_loss_pct=E8 // 10, action="flatten"),
        lambda f: move(f, 99_400),
    ),
    "dead_man_switch": (
        GuardianSpec("dead_man_switch", heartbeat_seconds=60, on_miss="flatten"),
        lambda f: later(f, MINUTE_MS),
    ),
    "schedule": (GuardianSpec("schedule", cron="* * * * *", action="flatten"), lambda f: later(f, MINUTE_MS)),
    "kill_switch": (GuardianSpec("kill_switch", action="flatten"), lambda f: f.take(c.Kill(NAME, flatten=True))[0]),
}


def later(follower: Follower, ms: int) -> Applied:
    follower.now_ms += ms
    (applied,) = follower.take(c.Pulse())
    return applied


@pytest.mark.parametrize("name", GUARDIANS)
@pytest.mark.parametrize("link", ["in_step", "away"])
def test_each_guardian_fires_once_closes_by_rank_0_and_its_stop_stays_until_the_position_is_gone(
    name: str, link: str
) -> None:
    spec, fire = GUARDIANS[name]
    follower = trading()
    entered(follower)
    follower.take(c.SeeLink(NAME, link, "why"))
    if name != "kill_switch":
        (armed,) = follower.take(c.ArmGuardian(NAME, spec))
        assert not isinstance(armed.answer, Refusal)
    answer_all(follower)
    restarted(follower)
    before = len(actions(follower))
    applied = [fire(follower)]
    restarted(follower)
    applied.append(later(follower, protection_orders.FIRING_MS))
    sent = actions(follower)[before:]
    assert [(action.kind, action.rank, action.size) for action in sent if action.kind == "place"] == [
        ("place", 0, SIZE)
    ]
    assert not any(action.kind == "cancel" for action in sent)
    # The hour away: the action expires, and the exit is asked for anew at the price of then.
    (exit_,) = sent
    if link == "away":
        applied.append(later(follower, 60 * MINUTE_MS))
        follower.take(c.SeeAction(NAME, exit_.nonce, "void", True, follower.now_ms))
        applied.append(later(follower, 60_000))
        exit_ = actions(follower)[-1]
        assert (exit_.kind, exit_.attempt, exit_.made_ms > follower.now_ms - MINUTE_MS) == ("place", 1, True)
    follower.take(see(exit_, filled=SIZE), fill(follower, exit_.client_order_id, SIZE, buy=-1, number=2))
    restarted(follower)
    applied.append(later(follower, 30 * MINUTE_MS))
    assert follower.account.positions == {}
    effects = [event for event in fired(*applied) if event.trades]
    assert [(event.guardian_type, len(event.trades)) for event in effects] == [(spec.type, 1)]
    if name in ("trailing_stop", "max_hold"):
        assert len(fired(*applied)) == 1


SCHEDULED = GuardianSpec("schedule", cron="0 * * * *", order=SPEC)


def test_a_scheduled_order_is_sent_once_over_a_restart_and_its_event_names_the_trade() -> None:
    follower = trading()
    follower.take(c.ArmGuardian(NAME, SCHEDULED))
    applied = later(follower, 60 * MINUTE_MS)
    (told,) = fired(applied)
    trade = follower.account.trades[-1]
    assert (told.trades, told.reason, trade.guardian) == ((trade.id,), "schedule", told.guardian)
    restarted(follower)
    assert not fired(later(follower, 1_000))
    assert [action.kind for action in actions(follower)] == ["leverage"]


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (c.SeeLink(NAME, "away", "why"), "service_unavailable"),
        (c.SeeLink(NAME, "behind", "why"), "service_unavailable"),
        (c.SeeAgent(NAME, None, 0), "service_unavailable"),
    ],
    ids=["away", "behind", "without_an_agent"],
)
def test_a_scheduled_order_whose_instant_cannot_be_kept_is_skipped_and_not_sent_later(
    before: c.Command, code: str
) -> None:
    follower = trading()
    follower.take(c.ArmGuardian(NAME, SCHEDULED), before)
    (told,) = fired(later(follower, 60 * MINUTE_MS))
    assert (told.reason, told.code, told.trades) == ("skipped", code, ())
    follower.take(c.SeeLink(NAME, "in_step"), c.SeeAgent(NAME, AGENT, 0))
    assert not fired(later(follower, 30 * MINUTE_MS)) and actions(follower) == []


def test_a_schedule_skips_the_instants_at_which_the_service_was_down() -> None:
    follower = trading()
    follower.take(c.ArmGuardian(NAME, SCHEDULED))
    follower.take(c.ShiftDeadlines(180 * MINUTE_MS + 1, 60_000))
    assert not fired(later(follower, 180 * MINUTE_MS)) and actions(follower) == []
    assert len(fired(later(follower, 60 * MINUTE_MS))) == 1

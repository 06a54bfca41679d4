"""Actions that an exchange is asked to perform: made by the command that wants them, over when all is booked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bot.errors import Refusal
from bot.model.events import FillEvent, OrderChanged
from bot.venue.accounting import nav
from bot.venue.apply import Applied
from bot.venue.exchange import action_answers, action_reports
from bot.venue.exchange.action_lifecycle import PATIENCE_MS
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.record import changed_actions
from bot.venue.model.state import ExchangePosition, GuardianSpec, ReportedExecution, ReportedOrder, VenueAction
from bot.venue.orders import exchange_actions
from bot.venue.orders.exchange_actions import AGAIN_MS, EXPIRY_MS, ActionsSent
from bot.venue.orders.open_orders import OrderCanceled
from bot.venue.orders.orders import OrderPlaced
from bot.venue.prices import index
from bot.venue.storage import codec
from tests.venue.exchange_worlds import BEGIN_MS, NAME, Follower, adopt

AGENT = "0x" + "b2" * 20
LONG = ExchangePosition("BTC", E8, 100_000 * E8, 10, False, 0, None)
CLOSE = c.ClosePosition(NAME, "BTC", idempotency_key="k1", request_id="r1")


def trading(*positions: ExchangePosition, difference_ms: int = 0) -> Follower:
    follower = Follower()
    follower.take(adopt(50_000 * E8, *positions or (LONG,)), c.SeeLink(NAME, "in_step"))
    follower.take(c.SeeAgent(NAME, AGENT, difference_ms))
    changed_actions(follower.state)
    return follower


def sent(follower: Follower, command: c.Command) -> VenueAction:
    """The one action of a command."""
    (applied,) = follower.take(command)
    assert isinstance(applied.answer, ActionsSent), applied.answer
    (nonce,) = applied.answer.nonces
    return actions(follower)[nonce]


def actions(follower: Follower) -> dict[int, VenueAction]:
    assert follower.account.exchange is not None
    return follower.account.exchange.actions


def told(follower: Follower, action: VenueAction, *orders: Any) -> Any:
    return action_answers.answer_of(follower.state, follower.account, ActionsSent((action.nonce,), orders))


def fill(follower: Follower, action: VenueAction, size: int, px: int = 100_000, *, number: int = 1) -> c.Command:
    """A fill of the order of an action."""
    held = follower.account.positions[action.coin]
    execution = ReportedExecution(
        action.coin,
        follower.now_ms,
        number,
        "77",
        action.client_order_id,
        -held.side,
        size,
        px * E8,
        5 * E8,
        held.side * held.size,
        maker=False,
    )
    return c.BookExecution(NAME, execution)


def see(action: VenueAction, status: str, *, is_final: bool = False, **more: Any) -> c.SeeAction:
    return c.SeeAction(NAME, action.nonce, status, is_final, BEGIN_MS + 10, **more)


def events(*applied: Applied) -> list[str]:
    kinds = [event for result in applied for event in result.events]
    return [f"{type(event).__name__}.{event.subtype}" for event in kinds if isinstance(event, FillEvent | OrderChanged)]


# ── Close ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_close_is_one_action_whose_fills_are_booked_for_its_trade() -> None:
    follower = trading(difference_ms=-700)
    (applied,) = follower.take(CLOSE)
    assert events(applied) == [], "an event with the key would tell a daemon that the close is an order"
    (action,) = changed_actions(follower.state)
    assert (action.kind, action.coin, action.rank, action.signer, action.size) == ("place", "BTC", 1, AGENT, E8)
    assert action.nonce == follower.now_ms and action.expires_ms == follower.now_ms - 700 + EXPIRY_MS
    assert (action.is_part, told(follower, action)) == (False, None)
    order = follower.account.orders[action.oid or 0]
    assert (order.reduce_only, order.buy, order.bound_px) == (True, -1, 95_000 * E8)
    follower.take(see(action, "placed", filled=E8))
    assert told(follower, action) is None, "the fills that the answer owes are not booked yet"
    ended = follower.take(fill(follower, action, E8 // 4))
    ended += follower.take(fill(follower, action, 3 * E8 // 4, 99_000))
    assert events(*ended) == ["FillEvent.exit", "FillEvent.exit"]
    placed = told(follower, action)
    assert isinstance(placed, OrderPlaced) and not placed.warnings
    trade = placed.trade
    assert (trade.status, trade.filled, trade.idempotency_key, trade.request_id) == ("done", E8, "k1", "r1")
    assert (follower.account.orders, follower.account.positions) == ({}, {})
    assert nav.stand_of(follower.account, follower.state).cash == 50_000 * E8 + (25_000 + 74_250 - 10) * E8


def test_fills_that_come_before_the_answer_decide_it() -> None:
    follower = trading()
    action = sent(follower, CLOSE)
    follower.take(fill(follower, action, E8))
    assert action.status == "placed" and isinstance(told(follower, action), OrderPlaced)
    # A late answer changes nothing.
    assert follower.take(see(action, "placed", filled=E8))[0].events == []


def test_a_close_that_fills_in_part_is_told_with_the_rest() -> None:
    follower = trading()
    action = sent(follower, CLOSE)
    applied = follower.take(fill(follower, action, E8 // 2), see(action, "placed", filled=E8 // 2))
    assert events(*applied) == ["FillEvent.exit", "OrderChanged.canceled"]
    placed = told(follower, action)
    assert [code for code, _ in placed.warnings] == ["partial_depth"]
    assert (placed.trade.status, placed.trade.reason) == ("done", "slippage_bound")
    assert follower.account.positions["BTC"].size == E8 // 2


def test_an_answer_that_is_lost_is_replaced_by_books_that_equal_the_exchange() -> None:
    follower = trading()
    action = sent(follower, CLOSE)
    follower.take(fill(follower, action, E8 // 2))
    assert told(follower, action) is None, "more fills may be on their way"
    at_ms = action.placed_ms + PATIENCE_MS
    follower.take(c.SettleActions(NAME, at_ms))
    assert told(follower, action) is None
    follower.take(c.SettleActions(NAME, at_ms + 1))
    assert isinstance(told(follower, action), OrderPlaced)


# Code -> (code that is told, part of the sentence, whether the key may ask again).
REFUSALS = {
    "not_found": ("no position in BTC any more", False),
    "insufficient_depth": ("lies within the bound", True),
    "service_unavailable": ("no such order at present", True),
    "rate_limited": ("no more actions of this account", True),
    "trade_failed": ("the exchange has refused it", False),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refused_close_is_one_sentence_and_its_key_asks_again_only_if_the_reason_passes(code: str) -> None:
    follower = trading()
    action = sent(follower, CLOSE)
    refused = follower.take(see(action, "refused", is_final=True, code=code, text="Words of theirs."))
    assert events(*refused) == [], "it never was an order"
    text, is_released = REFUSALS[code]
    refusal = told(follower, action)
    assert isinstance(refusal, Refusal) and refusal.code == code
    assert text in refusal.message and refusal.message.endswith("The exchange: Words of theirs.")
    assert (follower.account.orders, follower.account.positions["BTC"].size) == ({}, E8)
    assert follower.account.trades[-1].status == "void"
    (again,) = follower.take(CLOSE)
    if is_released:
        second = actions(follower)[again.answer.nonces[0]]
        assert (second.attempt, second.nonce > action.nonce) == (1, True)
        assert second.client_order_id != action.client_order_id
    else:
        assert isinstance(again.answer, Refusal) and again.answer.code == "idempotency_conflict"


def test_an_end_without_an_order_is_told_only_when_it_is_final() -> None:
    follower = trading()
    action = sent(follower, CLOSE)
    for status in ("voiding", "void"):
        follower.take(see(action, status))
        assert told(follower, action) is None and action.oid in follower.account.orders
    follower.take(see(action, "void", is_final=True))
    refusal = told(follower, action)
    assert (refusal.code, refusal.message) == ("trade_failed", action_answers.LAPSED)
    assert isinstance(follower.take(CLOSE)[0].answer, Refusal), "a lapsed order is never asked for anew"


def test_an_order_that_is_seen_after_an_end_without_one_is_believed() -> None:
    follower = trading()
    action = sent(follower, CLOSE)
    follower.take(see(action, "void"), fill(follower, action, E8))
    assert action.status == "placed" and isinstance(told(follower, action), OrderPlaced)


def test_a_fill_beyond_what_was_asked_for_is_booked_as_one_of_others() -> None:
    follower = trading()
    action = sent(follower, replace(CLOSE, fraction=E8 // 4))
    follower.take(fill(follower, action, E8 // 2))
    assert (action.filled, told(follower, action)) == (0, None)
    assert follower.account.positions["BTC"].size == E8 // 2
    assert [trade.source for trade in follower.account.trades] == [None, "api"]


def test_one_order_of_a_market_is_undecided_at_a_time() -> None:
    follower = trading()
    action = sent(follower, replace(CLOSE, fraction=E8 // 4))
    assert action.is_part
    (other,) = follower.take(replace(CLOSE, idempotency_key="k2"))
    assert isinstance(other.answer, Refusal)
    assert (other.answer.code, other.answer.details) == ("service_unavailable", {"reason": "undecided"})
    follower.take(fill(follower, action, E8 // 4))
    assert sent(follower, replace(CLOSE, idempotency_key="k2")).size == 3 * E8 // 4


def test_nonces_grow_also_when_the_clock_stands_and_the_id_of_a_request_is_always_the_same() -> None:
    follower, other = trading(), trading()
    first = sent(follower, CLOSE)
    follower.take(see(first, "refused", is_final=True, code="insufficient_depth"))
    account, state = follower.account, follower.state
    assert account.exchange is not None
    account.exchange.action_nonce = state.now_ms + 5_000
    assert sent(follower, CLOSE).nonce == account.exchange.action_nonce > state.now_ms
    other.now_ms += 3_000
    assert sent(other, CLOSE).client_order_id == first.client_order_id


@pytest.mark.parametrize(
    ("make", "code", "reason"),
    [
        (lambda f: f.take(c.SeeAgent(NAME, None, 0)), "service_unavailable", "watched_only"),
        (lambda f: f.take(c.SeeLink(NAME, "away", "no network")), "service_unavailable", "away"),
    ],
)
def test_a_close_that_cannot_be_sent_is_refused_and_makes_nothing(
    make: Callable[[Follower], Any], code: str, reason: str
) -> None:
    follower = trading()
    make(follower)
    for command in (CLOSE, c.CancelCoin(NAME, "BTC"), c.CancelOrder(NAME, "1")):
        (applied,) = follower.take(command)
        assert isinstance(applied.answer, Refusal)
        assert (applied.answer.code, (applied.answer.details or {})["reason"]) == (code, reason)
    assert actions(follower) == {} and follower.account.trades == []


# ── Cancel ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def waiting(follower: Follower, *ids: str, kind: str = "limit", coin: str = "BTC") -> list[Any]:
    """Orders of others that wait at the exchange."""
    account = follower.account
    for order_id in ids:
        px = 90_000 * E8
        trigger = None if kind == "limit" else px
        buy = 1 if kind == "limit" else -1
        order = ReportedOrder(order_id, None, coin, buy, kind, E8 // 10, px, trigger, kind != "limit", BEGIN_MS)
        follower.take(c.SeeReportedOrder(NAME, order))
    assert account.exchange is not None
    return [account.orders[account.exchange.orders[order_id]] for order_id in ids]


def test_a_cancel_names_the_order_by_its_id_at_the_exchange_and_ends_with_its_end() -> None:
    follower = trading()
    (order,) = waiting(follower, "31")
    action = sent(follower, c.CancelOrder(NAME, str(1_000_000_000 + order.number)))
    assert (action.kind, action.cancels, action.rank) == ("cancel", ("31",), 2)
    assert told(follower, action, order) is None
    (canceled,) = follower.take(see(action, "placed", canceled=("31",)))
    assert events(canceled) == ["OrderChanged.canceled"]
    result = told(follower, action, order)
    assert isinstance(result, OrderCanceled) and result.oids == (str(1_000_000_000 + order.number),)


def test_a_cancel_that_is_asked_twice_is_one_action_and_both_wait_for_it() -> None:
    follower = trading()
    (order,) = waiting(follower, "31")
    oid = str(1_000_000_000 + order.number)
    first = sent(follower, c.CancelOrder(NAME, oid))
    assert sent(follower, c.CancelCoin(NAME, "BTC")) is first
    assert len(actions(follower)) == 1


def test_an_order_that_fills_before_its_cancel_is_told_as_not_found() -> None:
    follower = trading()
    (order,) = waiting(follower, "31")
    action = sent(follower, c.CancelCoin(NAME, "BTC"))
    bought = ReportedExecution("BTC", follower.now_ms, 1, "31", None, 1, E8 // 10, 90_000 * E8, 0, E8, maker=True)
    follower.take(c.BookExecution(NAME, bought), see(action, "refused", is_final=True, code="not_found"))
    refusal = told(follower, action, order)
    assert isinstance(refusal, Refusal) and refusal.code == "not_found"
    assert follower.account.positions["BTC"].size == 11 * E8 // 10


def test_a_cancel_without_an_answer_ends_with_the_end_of_its_orders() -> None:
    follower = trading()
    orders = waiting(follower, "31", "32")
    action = sent(follower, c.CancelCoin(NAME, "BTC"))
    follower.take(c.EndReportedOrder(NAME, "31", BEGIN_MS + 5, "user"))
    assert told(follower, action, *orders) is None
    follower.take(c.EndReportedOrder(NAME, "32", BEGIN_MS + 5, "user"))
    assert len(told(follower, action, *orders).oids) == 2


def test_orders_of_a_market_are_canceled_in_pieces_of_39() -> None:
    follower = trading()
    waiting(follower, *map(str, range(100, 180)))
    (applied,) = follower.take(c.CancelCoin(NAME, "BTC"))
    assert [len(actions(follower)[nonce].cancels) for nonce in applied.answer.nonces] == [39, 39, 2]


# ── Kill, and exits that are tried again ────────────────────────────────────────────────────────────────────────────

ETH = ExchangePosition("ETH", -2 * E8, 2_500 * E8, 5, False, 0, None)


def test_a_kill_cancels_entries_closes_positions_and_blocks_also_while_the_link_is_away() -> None:
    follower = trading(LONG, ETH)
    waiting(follower, "31")
    waiting(follower, "32", kind="stop_loss")
    follower.take(c.SeeLink(NAME, "away", "no network"))
    (applied,) = follower.take(c.Kill(NAME, flatten=True))
    asked = [actions(follower)[nonce] for nonce in applied.answer.nonces]
    assert [(action.kind, action.coin, action.rank, action.cancels, action.is_part) for action in asked] == [
        ("cancel", "BTC", 0, ("31",), False),
        ("place", "BTC", 0, (), False),
        ("place", "ETH", 0, (), False),
    ]
    killed = applied.answer.answer
    assert killed.guardian.blocks_opens and len(killed.trades) == 2 and len(killed.canceled) == 1
    # A second kill asks for nothing twice.
    (again,) = follower.take(c.Kill(NAME, flatten=True))
    assert again.answer.nonces == ()


def test_what_is_left_of_an_exit_is_asked_for_anew_when_the_action_before_it_is_over() -> None:
    follower = trading()
    (applied,) = follower.take(c.Kill(NAME, flatten=True))
    first = actions(follower)[applied.answer.nonces[0]]
    follower.take(fill(follower, first, E8 // 4), see(first, "placed", filled=E8 // 4))
    assert first.over_ms and first.again_ms == follower.now_ms + AGAIN_MS
    follower.state = codec.loads(codec.dumps(follower.state))
    index.rebuild(follower.state)
    follower.take(c.PricePoint("BTC", 98_000 * E8))
    assert index.next_deadline_ms(follower.state) == first.again_ms
    follower.now_ms = first.again_ms
    follower.take(c.Pulse())
    second = list(actions(follower).values())[-1]
    assert (second.size, second.attempt, second.nonce > first.nonce) == (3 * E8 // 4, 1, True)
    assert follower.account.orders[second.oid or 0].bound_px == 88_200 * E8
    follower.take(fill(follower, second, 3 * E8 // 4, 97_000, number=2))
    assert (follower.account.positions, follower.account.orders) == ({}, {})
    assert [(trade.kind, trade.status, trade.filled) for trade in follower.account.trades] == [("kill", "done", E8)]
    assert index.next_deadline_ms(follower.state) == follower.state.next_day_ms


def test_an_exit_whose_position_is_gone_ends() -> None:
    follower = trading()
    (applied,) = follower.take(c.Kill(NAME, flatten=True))
    action = actions(follower)[applied.answer.nonces[0]]
    sold = ReportedExecution("BTC", follower.now_ms, 1, "9", None, -1, E8, 99_000 * E8, 0, E8, maker=False)
    follower.take(c.BookExecution(NAME, sold), see(action, "refused", is_final=True, code="not_found"))
    assert follower.account.orders == {} and action.again_ms is None


def test_a_refused_exit_is_asked_for_after_pauses_that_grow() -> None:
    follower = trading()
    follower.take(c.Kill(NAME, flatten=True))
    pauses = []
    for _ in range(7):
        action = list(actions(follower).values())[-1]
        follower.take(see(action, "refused", is_final=True, code="service_unavailable"))
        assert action.again_ms is not None
        pauses.append(action.again_ms - action.over_ms)
        follower.now_ms = action.again_ms
        follower.take(c.Pulse())
    assert pauses == [2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000]
    nonces = list(actions(follower))
    assert nonces == sorted(nonces) and len({action.oid for action in actions(follower).values()}) == 1


def test_a_dead_man_switch_closes_at_the_exchange() -> None:
    follower = trading()
    spec = GuardianSpec("dead_man_switch", scope="account", heartbeat_seconds=60, on_miss="flatten")
    (armed,) = follower.take(c.ArmGuardian(NAME, spec))
    assert not isinstance(armed.answer, Refusal)
    follower.now_ms += 61_000
    follower.take(c.Pulse())
    (action,) = actions(follower).values()
    assert (action.kind, action.rank, action.size) == ("place", 0, E8)
    follower.take(fill(follower, action, E8))
    assert follower.account.positions == {}
    assert follower.account.trades[-1].kind == "guardian" and follower.account.trades[-1].status == "done"


# ── Log ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def session(random: Random, follower: Follower) -> None:
    """A random session of closes, kills, cancels, answers and fills."""
    for number in range(60):
        undecided = exchange_actions.undecided(exchange_actions.known(follower.account))
        follower.now_ms += random.choice((1, 500, 3_000))
        if undecided and random.random() < 0.7:
            action = random.choice(undecided)
            position = follower.account.positions.get(action.coin)
            left = 0 if position is None else min(position.size, action.size - action.filled)
            if action.kind == "place" and left and random.random() < 0.5:
                follower.take(fill(follower, action, random.randint(1, left), number=number + 1))
            elif action.status in ("open", "placed") and random.random() < 0.5:
                follower.take(see(action, "placed", filled=action.filled, canceled=action.cancels))
            elif action.status != "placed":
                follower.take(see(action, "void", is_final=random.random() < 0.5))
            follower.take(c.SettleActions(NAME, follower.now_ms + 10_000))
        else:
            key = f"k{number}"
            follower.take(
                random.choice(
                    (
                        c.ClosePosition(NAME, "BTC", fraction=E8 // 2, idempotency_key=key),
                        c.ClosePosition(NAME, "ETH", idempotency_key=key),
                        c.Kill(NAME, flatten=random.random() < 0.3),
                        c.CancelCoin(NAME, "BTC"),
                        c.Pulse(),
                    )
                )
            )
            if random.random() < 0.3:
                waiting(follower, str(1_000 + number))


@pytest.mark.parametrize("seed", range(40))
def test_each_nonce_is_new_each_order_of_ours_is_over_once_and_replay_gives_the_same(seed: int) -> None:
    played, other = trading(LONG, ETH), trading(LONG, ETH)
    log: list[tuple[c.Command, int]] = []
    original = played.take

    def take(*commands: c.Command) -> list[Applied]:
        applied = []
        for command in commands:
            applied += original(command)
            log.append((command, played.now_ms))
        return applied

    played.take = take
    session(Random(f"{seed}:actions"), played)
    changed = changed_actions(played.state)
    for number, (command, at_ms) in enumerate(log):
        other.now_ms = at_ms - 1
        other.take(command)
        if number % 9 == 0:
            other.state = codec.loads(codec.dumps(other.state))
            index.rebuild(other.state)
    assert codec.digest(played.state) == codec.digest(other.state)
    assert changed
    nonces = [action.nonce for action in actions(played).values()]
    assert nonces == sorted(set(nonces))
    alive = [a.oid for a in exchange_actions.undecided(exchange_actions.known(played.account)) if a.kind == "place"]
    assert len(set(alive)) == len(alive), "one nonce of a wish at a time"
    for action in actions(played).values():
        assert action.status in action_reports.FOLLOWING
        again = action.again_ms is not None
        is_open = action.oid in played.account.orders
        assert not (action.kind == "place" and not action.over_ms and not is_open)
        assert not again or is_open


def test_a_database_without_actions_still_loads() -> None:
    follower = trading()
    plain = codec.encode(follower.account.exchange)
    older = codec.decode(plain[:12])
    assert (older.signer, older.actions, older.action_nonce) == (None, {}, 0)
    assert older.transferred == 0

"""Steps of a session with an account at an exchange: its entries, their answers and their fills."""

from __future__ import annotations

from typing import Any

from bot.model.events import FillEvent, GuardianMoved, OrderChanged, Triggered
from bot.venue.apply import Applied
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import LegSpec, OrderSpec, ReportedExecution, VenueAction
from bot.venue.orders import exchange_actions
from bot.venue.orders.exchange_actions import ActionsSent
from tests.venue.exchange_worlds import BEGIN_MS, NAME, Follower, adopt
from tests.venue.protection_search import AGENT

SIZE = E8 // 10
SPEC = OrderSpec("BTC", 1, size=SIZE, leverage=5, stop=LegSpec(pct=2 * E8), target=LegSpec(pct=4 * E8))


def trading(network: str = "testnet") -> Follower:
    follower = Follower()
    begun = adopt(50_000 * E8)
    begun.network = network
    follower.take(begun, c.SeeLink(NAME, "in_step"), c.SeeAgent(NAME, AGENT, 0))
    return follower


def actions(follower: Follower) -> list[VenueAction]:
    return list(exchange_actions.known(follower.account).actions.values())


def see(action: VenueAction, status: str = "placed", **more: Any) -> c.SeeAction:
    return c.SeeAction(NAME, action.nonce, status, status == "refused", BEGIN_MS + 10, **more)


def children(action: VenueAction, status: str = "there") -> tuple[tuple[str, str], ...]:
    return tuple((name, status) for name in action.protections)


def fill(follower: Follower, name: str | None, size: int, *, buy: int = 1, number: int = 1) -> c.Command:
    held = follower.account.positions.get("BTC")
    before = 0 if held is None else held.side * held.size
    px = follower.state.markets["BTC"].mid
    return c.BookExecution(
        NAME, ReportedExecution("BTC", follower.now_ms, number, "7", name, buy, size, px, E8, before, maker=False)
    )


def events(*applied: Applied) -> list[str]:
    kinds = [event for result in applied for event in result.events]
    shown = [event for event in kinds if isinstance(event, FillEvent | GuardianMoved | OrderChanged | Triggered)]
    return [f"{type(event).__name__}.{event.subtype}" for event in shown]


def begun(follower: Follower, spec: OrderSpec = SPEC, key: str = "k1") -> tuple[ActionsSent, VenueAction]:
    """An entry whose leverage is set, and its action."""
    (applied,) = follower.take(c.PlaceOrder(NAME, spec, idempotency_key=key))
    assert isinstance(applied.answer, ActionsSent), applied.answer
    if actions(follower)[-1].kind == "leverage":
        follower.take(see(actions(follower)[-1]))
    return applied.answer, actions(follower)[-1]


def entered(follower: Follower, spec: OrderSpec = SPEC) -> tuple[ActionsSent, VenueAction]:
    """A whole entry whose children stand."""
    sent, entry = begun(follower, spec)
    follower.take(see(entry, filled=SIZE, protections=children(entry)), fill(follower, entry.client_order_id, SIZE))
    return sent, entry

"""One call of the link for an action: a copy of it, its void, or a lookup of its order, and what the answer means.

`bot/venue/exchange/action_lifecycle.py` decides which call is due. A link that ends is a missing answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from bot.clock import SECOND_MS
from bot.exchanges.actions import ActionAnswer, ExchangeAction, OrderAnswer, Rank
from bot.exchanges.protocol import ORDER_ENDS, NoExchangeAnswer, OrderUpdate, UnknownForm
from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange.action_lifecycle import Seen, Step
from bot.venue.model.state import VenueAction

# An answer that has not come when the next copy is due counts as lost.
ANSWER_SECONDS: Final = life.RESEND_MS / SECOND_MS


class ActionLink(Protocol):
    """What is needed of a link."""

    async def act(self, action: ExchangeAction) -> ActionAnswer: ...

    async def look(self, address: str, name: str) -> OrderUpdate | None: ...


def seen_of_answer(action: ExchangeAction, answer: ActionAnswer) -> Seen | None:
    """What an answer says about the nonce of an action; None: nothing."""
    if answer.outcome == "duplicate" or answer.outcome == "nonce_too_low":
        return "nonce_used"
    if action.kind == "void":
        return "void_done" if answer.outcome == "done" else None
    if answer.outcome == "done":
        # The children of an entry have answers of their own, and only the entry says whether it was taken.
        decisive = answer.orders[:1] if action.group == "entry" else answer.orders
        is_refused = bool(decisive) and all(order.outcome == "refused" for order in decisive)
        return "refused" if is_refused else "placed"
    return answer.outcome


def looked_up_name(action: ExchangeAction) -> str | None:
    """The order by which an action is looked up: the others are placed or canceled with it. None: there is none."""
    if action.orders:
        return action.orders[0].client_order_id
    if action.cancels:
        return action.cancels[0].client_order_id or action.cancels[0].order_id
    return None


def seen_of_order(action: ExchangeAction, update: OrderUpdate | None) -> Seen:
    """What a lookup says. A cancel has been performed, or is not needed any more, when its order has ended."""
    if update is None:
        return "unknown"
    if action.kind == "cancel":
        return "placed" if update.state in ORDER_ENDS else "unknown"
    return "known_refused" if update.state == "refused" else "placed"


@dataclass(frozen=True, slots=True)
class Heard:
    """What one call has said about the nonce of an action.

    `answer`: of the action itself, if it has come. `words`: about an answer that could not be read.
    """

    what: Seen
    answer: ActionAnswer | None = None
    words: str | None = None


@dataclass(frozen=True, slots=True)
class OrdersHeard:
    """What an answer says of the orders of an action. `protections`: of stops and targets, by our ids."""

    filled: int | None = None
    order_id: str | None = None
    canceled: tuple[str, ...] = ()
    protections: tuple[tuple[str, str], ...] = ()


def heard_of_orders(action: VenueAction, orders: Sequence[OrderAnswer]) -> OrdersHeard:
    """The answers of the orders of an action, in the order in which it names them."""
    if not orders:
        return OrdersHeard()
    if action.kind == "cancel":
        canceled = tuple(
            name for name, order in zip(action.cancels, orders, strict=False) if order.outcome == "canceled"
        )
        return OrdersHeard(canceled=canceled)
    protecting = orders[1:] if action.kind == "place" else orders
    told = tuple(
        (name, "ended" if order.outcome == "refused" else "there")
        for name, order in zip(action.protections, protecting, strict=False)
    )
    if action.kind != "place":
        return OrdersHeard(protections=told)
    first = orders[0]
    filled = first.filled_size if first.outcome in ("filled", "resting") else None
    return OrdersHeard(filled, first.order_id, (), told)


async def perform(link: ActionLink, address: str, action: ExchangeAction, step: Step) -> Heard | None:
    """Send the action, its void, or a lookup of its order. None: no answer came, or it says nothing."""
    if step == "look":
        return await _look(link, address, action)
    sent = _void_of(action) if step == "void" else action
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await link.act(sent)
    except (NoExchangeAnswer, TimeoutError):
        return None
    except UnknownForm as error:
        # The exchange has read another signer out of the signature, or answers in a form that says nothing.
        return Heard("wrong_signer", words=str(error))
    what = seen_of_answer(sent, answer)
    return None if what is None else Heard(what, answer if step == "send" else None)


async def _look(link: ActionLink, address: str, action: ExchangeAction) -> Heard | None:
    name = looked_up_name(action)
    if name is None:
        return Heard("unknown")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return Heard(seen_of_order(action, await link.look(address, name)))
    except (NoExchangeAnswer, UnknownForm, TimeoutError):
        return None


def _void_of(action: ExchangeAction) -> ExchangeAction:
    """The action that uses up the nonce of another one."""
    return replace(
        action, kind="void", rank=Rank.STOP, expires_ms=None, orders=(), group="single", cancels=(), leverage=None
    )

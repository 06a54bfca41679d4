"""Sends one action through the link until its end is known: each copy, its void, and lookups of its orders.

`bot/venue/exchange/action_lifecycle.py` decides what is done and what an answer means; this module does the I/O. A link
that ends is a missing answer. The caller gives the link that lives now, and keeps the action if the service ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from bot.clock import SECOND_MS, Clock
from bot.exchanges.actions import ActionAnswer, ExchangeAction, Rank
from bot.exchanges.protocol import ORDER_ENDS, NoExchangeAnswer, OrderUpdate, UnknownForm
from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange.action_lifecycle import Seen, TrackedAction

POLL_SECONDS: Final = 0.05
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
        is_refused = bool(answer.orders) and all(order.outcome == "refused" for order in answer.orders)
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


class ActionSending:
    """The actions of one account. `link` gives the link that lives now, `exchange_ms` the exchange's clock."""

    def __init__(
        self, link: Callable[[], ActionLink], address: str, clock: Clock, exchange_ms: Callable[[], int]
    ) -> None:
        self._link = link
        self._address = address
        self._clock = clock
        self._exchange_ms = exchange_ms

    async def settle(self, action: ExchangeAction, tracked: TrackedAction) -> TrackedAction:
        """Do what is due until the end of the action may be told. Returns the action with its end."""
        while not life.may_be_told(tracked):
            now_ms, exchange_ms = self._clock.now_ms(), self._exchange_ms()
            step = life.step(tracked, now_ms, exchange_ms)
            if step == "give_up":
                tracked = life.given_up(tracked)
            elif step == "send":
                tracked = await self._act(action, life.sent(tracked, now_ms))
            elif step == "void":
                tracked = await self._act(_void_of(action), life.voided(tracked, now_ms))
            elif step == "look":
                tracked = await self._look(action, life.looked(tracked, now_ms), now_ms, exchange_ms)
            else:
                await asyncio.sleep(POLL_SECONDS)
        return tracked

    async def _act(self, action: ExchangeAction, tracked: TrackedAction) -> TrackedAction:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                what = seen_of_answer(action, await self._link().act(action))
        except (NoExchangeAnswer, TimeoutError):
            return tracked
        except UnknownForm:
            # The exchange has read another signer out of the signature, or answers in a form that says nothing.
            what = "wrong_signer"
        return tracked if what is None else life.seen(tracked, what, self._clock.now_ms(), self._exchange_ms())

    async def _look(
        self, action: ExchangeAction, tracked: TrackedAction, asked_ms: int, exchange_ms: int
    ) -> TrackedAction:
        name = looked_up_name(action)
        if name is None:
            return life.seen(tracked, "unknown", asked_ms, exchange_ms)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                update = await self._link().look(self._address, name)
        except (NoExchangeAnswer, TimeoutError):
            return tracked
        return life.seen(tracked, seen_of_order(action, update), asked_ms, exchange_ms)


def _void_of(action: ExchangeAction) -> ExchangeAction:
    """The action that uses up the nonce of another one."""
    return replace(
        action, kind="void", rank=Rank.STOP, expires_ms=None, orders=(), group="single", cancels=(), leverage=None
    )

"""The task that sends the actions of an account to its exchange, after their commit and in the order of their ranks.

An action is sent again under the same nonce until its end is known, or made void. What is heard of it becomes a command
of the log. After a restart every action that is not over may have been sent.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final, cast

from bot.clock import SECOND_MS
from bot.exchanges.actions import ActionAnswer, ExchangeAction
from bot.plain_text import one_line
from bot.service.exchange_accounts import action_sending, action_wire
from bot.service.exchange_accounts.action_sending import Heard
from bot.service.exchange_accounts.follower import ExchangeFollower
from bot.service.state_machine.machine import Machine
from bot.venue.exchange import action_answers
from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange.action_lifecycle import ActionStatus, Step, TrackedAction
from bot.venue.model import commands as c
from bot.venue.model.state import ExchangeAccount, VenueAccount, VenueAction
from bot.venue.orders import exchange_actions
from bot.venue.orders.exchange_actions import ActionsSent

# Calls of the link that run at a time.
CALLS_MAX: Final = 8
# characters of the exchange's own words that a client is shown
TEXT_MAX: Final = 300
# code of an action that came to nothing after an answer that did not say so
UNDECIDED_CODE: Final = "trade_failed"


class ActionDispatcher:
    """The actions of one account."""

    def __init__(self, machine: Machine, follower: ExchangeFollower) -> None:
        self._machine = machine
        self._follower = follower
        # by nonce: what is known of an action beside the log
        self._tracked: dict[int, TrackedAction] = {}
        # by nonce: the words of an answer that has not decided the action
        self._words: dict[int, str] = {}
        # by nonce: the call of the link that runs for it
        self._calls: dict[int, tuple[str, int, asyncio.Task[None]]] = {}
        # an error of a call that was not expected
        self._fault: Exception | None = None
        self._changed = asyncio.Event()
        self._decided = asyncio.Event()
        account = follower.account
        for action in () if account is None else exchange_actions.undecided(exchange_actions.known(account)):
            self._tracked[action.nonce] = life.after_restart(_tracked_of(action))

    def wake(self) -> None:
        """An action was made or has changed, or a link has come or gone."""
        self._changed.set()
        decided, self._decided = self._decided, asyncio.Event()
        decided.set()

    async def run(self) -> None:
        """Do what is due until cancelled."""
        try:
            while True:
                self._changed.clear()
                if self._fault is not None:
                    raise self._fault
                due_ms = self._do_due()
                seconds = None if due_ms is None else max(0, due_ms - self._machine.clock.now_ms()) / SECOND_MS
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()
        finally:
            tasks = [task for _, _, task in self._calls.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def decided(self, sent: ActionsSent, seconds: float) -> None:
        """Wait until the exchange has decided what was sent, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_open(sent):
                    await self._decided.wait()

    def _is_open(self, sent: ActionsSent) -> bool:
        account = self._follower.account
        return account is not None and account.exchange is not None and action_answers.is_open(account, sent)

    # ── What is due ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _do_due(self) -> int | None:
        """Start every call that is due. Returns when the next one is, by the clock alone."""
        account = self._follower.account
        if account is None:
            return None
        exchange = exchange_actions.known(account)
        actions = {action.nonce: action for action in exchange_actions.undecided(exchange)}
        self._tracked = {nonce: self._present(action) for nonce, action in actions.items()}
        self._words = {nonce: words for nonce, words in self._words.items() if nonce in actions}
        instants = []
        for action in sorted(actions.values(), key=lambda action: (action.rank, action.nonce)):
            now_ms, exchange_ms = self._instants(exchange)
            tracked = self._tracked[action.nonce]
            step = life.step(tracked, now_ms, exchange_ms)
            if step == "give_up":
                self._note(account, action, life.given_up(tracked))
            elif step is not None and self._is_free(action):
                self._call(account, action, step)
            elif step is None and (at_ms := life.next_step_ms(tracked, now_ms, exchange_ms)) is not None:
                instants.append(at_ms)
        return min(instants, default=None)

    def _present(self, action: VenueAction) -> TrackedAction:
        tracked = self._tracked.get(action.nonce) or _tracked_of(action)
        return replace(tracked, status=cast(ActionStatus, action.status), is_final=action.is_final)

    def _instants(self, exchange: ExchangeAccount) -> tuple[int, int]:
        """Now, by our clock and by the exchange's."""
        now_ms = self._machine.clock.now_ms()
        return now_ms, now_ms + exchange.clock_difference_ms

    def _is_free(self, action: VenueAction) -> bool:
        """True if a call for this action may run now: one of a market and rank, and a few in all."""
        if self._follower.link is None or action.nonce in self._calls or len(self._calls) >= CALLS_MAX:
            return False
        return all((coin, rank) != (action.coin, action.rank) for coin, rank, _ in self._calls.values())

    # ── Calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, account: VenueAccount, action: VenueAction, step: Step) -> None:
        task = asyncio.create_task(self._perform(account, action, step), name=f"service-action-{action.nonce}")
        self._calls[action.nonce] = action.coin, action.rank, task

    async def _perform(self, account: VenueAccount, action: VenueAction, step: Step) -> None:
        """One call, once the action is on disk."""
        try:
            await self._machine.settle()
            exchange = exchange_actions.known(account)
            now_ms, exchange_ms = self._instants(exchange)
            tracked, link = self._present(action), self._follower.link
            if action.over_ms or link is None or life.step(tracked, now_ms, exchange_ms) != step:
                return
            if step == "send" and self._may_be_known(action, tracked):
                heard = await action_sending.perform(link, account.address, self._wire(account, action), "look")
                if heard is None or heard.what != "unknown":
                    # Without an answer it is looked up again when a copy would be due.
                    self._tracked[action.nonce] = replace(tracked, sent_ms=now_ms)
                    if heard is not None:
                        self._hear(account, action, heard, now_ms, exchange_ms)
                    return
            begun = {"send": life.sent, "void": life.voided, "look": life.looked}[step]
            self._tracked[action.nonce] = begun(tracked, now_ms)
            heard = await action_sending.perform(link, account.address, self._wire(account, action), step)
            if heard is not None:
                asked = (now_ms, exchange_ms) if step == "look" else self._instants(exchange)
                self._hear(account, action, heard, *asked)
        except Exception as error:  # noqa: BLE001  `run` raises it
            self._fault = error
        finally:
            del self._calls[action.nonce]
            self._changed.set()

    def _may_be_known(self, action: VenueAction, tracked: TrackedAction) -> bool:
        """True for an action whose order the exchange may have from before: the database may be that of a backup, until
        the link has told everything once.
        """
        return action.idempotency_key is not None and not tracked.copies and not self._follower.has_caught_up

    def _hear(self, account: VenueAccount, action: VenueAction, heard: Heard, now_ms: int, exchange_ms: int) -> None:
        """Take what was heard of an action. By reports it may be over by now, and its children are not known yet."""
        is_news = action.status == "placed" and action.protections and heard.answer is not None
        if action.over_ms and not is_news:
            return
        words = heard.words if heard.answer is None else heard.answer.text
        if words is not None:
            self._words[action.nonce] = one_line(words[:TEXT_MAX])
        tracked = life.seen(self._present(action), heard.what, now_ms, exchange_ms)
        self._note(account, action, tracked, heard.answer)

    def _note(
        self, account: VenueAccount, action: VenueAction, tracked: TrackedAction, answer: ActionAnswer | None = None
    ) -> None:
        """Log what is known of an action now, if it is news."""
        self._tracked[action.nonce] = tracked
        orders = () if answer is None else answer.orders
        heard = action_sending.heard_of_orders(action, orders)
        is_news = (tracked.status, tracked.is_final) != (action.status, action.is_final)
        is_told = heard.canceled or heard.protections or (heard.filled is not None and action.owed is None)
        if not is_news and not is_told:
            return
        code, text = _refusal_in(answer)
        if code is None and tracked.status in life.NO_ORDER and action.nonce in self._words:
            code, text = UNDECIDED_CODE, self._words[action.nonce]
        self._machine.catch_up()
        _, exchange_ms = self._instants(exchange_actions.known(account))
        self._machine.run(
            c.SeeAction(
                account.id,
                action.nonce,
                tracked.status,
                tracked.is_final,
                exchange_ms,
                heard.filled,
                heard.canceled,
                code,
                text,
                heard.order_id,
                heard.protections,
            )
        )

    def _wire(self, account: VenueAccount, action: VenueAction) -> ExchangeAction:
        """An action in the values of the link."""
        return action_wire.wire_action(self._machine.state, account, action, self._follower.symbol(action.coin))


def _tracked_of(action: VenueAction) -> TrackedAction:
    status = cast(ActionStatus, action.status)
    return TrackedAction(action.nonce, action.is_part, action.made_ms, action.expires_ms, status, action.is_final)


def _refusal_in(answer: ActionAnswer | None) -> tuple[str | None, str | None]:
    """Code and words of the first refusal of an answer."""
    if answer is None:
        return None, None
    refused = next((order for order in answer.orders if order.code is not None), answer)
    return refused.code, None if refused.text is None else one_line(refused.text[:TEXT_MAX])

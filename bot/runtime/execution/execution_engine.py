"""The open intents, from the decision to the outcome: sent, tried again, settled.

`order_sender.py` sends one intent; this module says which intents may be sent, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from bot.logs import log
from bot.runtime.account.ownership import OrderOwners
from bot.runtime.execution.dispatch import next_batch, one_by_one
from bot.runtime.execution.order_sender import OrderSender
from bot.runtime.execution.replan import next_leg
from bot.runtime.model.intents import FINAL, Intent

if TYPE_CHECKING:
    pass

# intents of event hooks that one pass sends, because a hook may order on each of its own fills
REPLIES_MAX: Final = 50


def _entries_last(intent: Intent) -> bool:
    return intent.action == "open"


class ExecutionEngine:
    """Sends the open intents and settles them.

    `drain` reads the events between two orders, if one request at a time may be on its way.
    """

    def __init__(self, sender: OrderSender, order_owners: OrderOwners, drain: Callable[[], Awaitable[bool]]) -> None:
        self.sender = sender
        self._drain = drain
        self._intents = sender.intents
        self._live = sender.intents.live
        self._in_flight = sender.intents.in_flight
        self._journal = sender.journal
        self._order_owners = order_owners
        self._budget = sender.budget
        self._clock = sender.port.clock

    async def settle(self, *, at_once: bool = False) -> None:
        """Try every intent that is not final once more, if its time has come.

        `at_once`: also one whose request may have left.
        """
        await self.dispatch(
            intent
            for intent in sorted(self._live.values(), key=_entries_last)
            if intent.state not in FINAL and ((at_once and intent.state == "sending") or self.sender.is_due(intent))
        )
        if self._intents.replies:
            await self.send_replies()

    async def settle_replies(self, may_go_on: Callable[[], bool]) -> None:
        """Settle the intents whose replies have come.

        Call it before the events are read, because those say what the orders did.
        """
        if self._in_flight:
            try:
                await self._in_flight.settle(self._intents.is_open, may_go_on)
            # A reply that ends the run is taken too: an order that is known to be accepted is not left in doubt.
            finally:
                self._write_accepted()

    async def settle_in_flight(self, within_ms: int) -> None:
        """Wait at most so long, in real time, for the replies that are still to come."""
        if not self._in_flight:
            return
        try:
            async with asyncio.timeout(within_ms / 1000):
                while self._in_flight:
                    await self._in_flight.wait()
                    await self.settle_replies(lambda: True)
        except TimeoutError:
            log.warning("replies.late", requests=len(self._in_flight), waited_ms=within_ms)

    def give_up_entries(self) -> None:
        """Void the entries that have not been sent, because the run ends.

        An entry that may have been sent stays in doubt.
        """
        for intent in list(self._live.values()):
            self._live[intent.id] = self.sender.give_up(intent)

    def release(self) -> None:
        """Void the intents that wait for a person, because a person has looked at them.

        None of them can become an order any more.
        """
        for intent in list(self._live.values()):
            if intent.state == "quarantined":
                self._live[intent.id] = self._journal.intents.end(
                    intent,
                    "void",
                    "released",
                    f"a person has looked at it ({intent.message})",
                    now_ms=self._clock.now_ms(),
                )
                log.warning("intent.released", intent=intent.id, strategy=intent.strategy, market=intent.market)

    async def open_and_send(self, intents: Sequence[Intent]) -> None:
        """Write intents of the daemon itself, such as the close of a repair, and send them."""
        for intent in intents:
            self._live.setdefault(intent.id, intent)
        await self.send_all(intents, self.sender.approvals.write_decision(intents))

    async def send_all(self, intents: Sequence[Intent], fresh: Sequence[Intent], *, reads: bool = True) -> None:
        """Send the intents that were just written, in their order, as far as they may be sent now.

        `reads`: read the events of the last of them too. Otherwise the caller reads them.
        """
        self._intents.forget_unwritten(intents, fresh)
        if self._in_flight.abreast == 1:
            await self._send_in_turn(one_by_one(fresh), is_approved=True, reads=reads)
        else:
            await self.dispatch(fresh)
        if self._intents.replies:
            await self.send_replies()

    async def _send_in_turn(self, waiting: Iterable[Intent], *, is_approved: bool = False, reads: bool = True) -> None:
        """Send with a pool of one, as in a backtest: an intent waits for the reply and the events of the one before it.

        A reversal opens against what its close has left. `is_approved`: the risk engine has just approved these
        intents.
        """
        sent = 0
        for intent in waiting:
            if not self._budget.has_time():
                # The intent is in the journal, and the next pass goes on with the intent.
                break
            if sent:
                await self._drain()
            await self._send(intent, is_approved=is_approved and not sent)
            sent += 1
        if sent and reads:
            await self._drain()

    async def dispatch(self, waiting: Iterable[Intent]) -> None:
        """Send what may be sent now; the rest waits for a later pass.

        The journal has each attempt before its request is sent.
        """
        if self._in_flight.abreast == 1:
            for intent in waiting:
                if not self._budget.has_time():
                    break
                await self._send(intent)
            return
        requests = self._intents.requests()
        busy = {request.id for request in requests}
        waiting = [intent for intent in waiting if intent.id not in busy and self._intents.is_open(intent)]
        while waiting and self._budget.may_go_on():
            # A request that nobody waits for any more still uses a connection.
            free = self._in_flight.abreast - (len(self._in_flight) - len(requests))
            batch = next_batch(waiting, free, requests, self._intents.slow())
            if not batch:
                return
            if batch[0].action == "open" and not self._budget.takes_entries:
                self._budget.cut_short()
                return
            # One wait for the disk.
            with self._journal.together():
                marked = self.sender.mark_sending(batch)
            for intent in batch:
                await self._in_flight.start(
                    intent, self._send(marked.get(intent.id, intent), is_marked=intent.id in marked)
                )
            gone = {intent.id for intent in batch}
            waiting = [intent for intent in waiting if intent.id not in gone]
            requests = self._intents.requests()

    def _write_accepted(self) -> None:
        for accepted in self.sender.write_accepted():
            self._live[accepted.id] = accepted

    async def _send(self, intent: Intent, *, is_marked: bool = False, is_approved: bool = False) -> None:
        """Take an intent as far as it goes now. An entry whose plan is stale goes on under a new plan.

        An intent that has ended meanwhile, by an event or a reset, is not sent. `is_approved`: nothing has happened
        since the risk engine has approved it.
        """
        if not is_marked:
            known = self._live.get(intent.id)
            if known is None or known.state in FINAL:
                return
            is_approved = is_approved and known is intent
            intent = known
        while True:
            sending = (
                self.sender.send_marked(intent) if is_marked else self.sender.send(intent, is_approved=is_approved)
            )
            sent = self._live[intent.id] = await sending
            if sent.state == "accepted":
                return
            is_marked = is_approved = False
            leg = next_leg(
                sent,
                address=self._journal.address,
                now_ms=self._clock.now_ms(),
                needs_approval=sent.code is not None and self.sender.approvals.of(sent) is not None,
            )
            if leg is None or not self._journal.decided([leg]):
                return
            self._live[leg.id] = intent = leg
            self._order_owners.by_key[leg.id] = leg.strategy
            log.info(
                "intent.replanned", intent=leg.id, before=sent.id, strategy=leg.strategy, market=leg.market, leg=leg.leg
            )
            if not self._budget.has_time():
                return

    async def send_replies(self) -> None:
        """Send the intents that strategies wanted on events, REPLIES_MAX of them at most."""
        if self._in_flight.abreast > 1:
            await self.dispatch(self._intents.replies)
        else:
            for _ in range(REPLIES_MAX):
                if not self._intents.replies or not self._budget.has_time():
                    break
                await self._send_in_turn([self._intents.replies.pop(0)])
        # The replies are written, and the next pass goes on with them.
        self._intents.replies.clear()

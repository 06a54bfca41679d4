"""The open intents, from the decision to the outcome: sent, tried again, settled.

`order_sender.py` sends one intent; this module says which intents may be sent, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from bot.logs import log
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.ownership import OrderOwners
from bot.runtime.execution.dispatch import next_batch, one_by_one
from bot.runtime.execution.in_flight import InFlight
from bot.runtime.execution.order_sender import UNSETTLED_MS, OrderSender
from bot.runtime.execution.replan import next_leg
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import FINAL, IN_DOUBT, Intent
from bot.runtime.passes.pass_budget import PassBudget
from bot.runtime.passes.ports import PortClock

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot

# intents of event hooks that one pass sends, because a hook may order on each of its own fills
REPLIES_MAX: Final = 50
# Real time that bars of a market, and entries after an exit, wait for the reply to a request. A healthy service replies
# in less, and later decisions know what the order did. After that time other markets go on, and the orders of this
# market are in doubt.
SLOW_MS: Final = 1_000


def _entries_last(intent: Intent) -> bool:
    return intent.action == "open"


class EventReader(Protocol):
    """The event consumer, as execution and reconciliation see it."""

    async def drain(self) -> bool:
        """Read every event there is. False: not all of them could be read."""

    async def restart(self, snapshot: AccountSnapshot | None = None) -> None:
        """Begin the events anew at this snapshot, or at one of now."""


class ExecutionEngine:
    """Sends the intents and settles them. `live` holds those that are not final, or accepted and not seen in the events
    yet.

    `events` and `sender` are set right after the engine is built, because both need the engine.
    """

    events: EventReader
    sender: OrderSender

    def __init__(
        self,
        live: dict[str, Intent],
        in_flight: InFlight,
        journal: Journal,
        account_state: AccountState,
        order_owners: OrderOwners,
        budget: PassBudget,
        clock: PortClock,
    ) -> None:
        self.live = live
        # intents of event hooks, written and not sent yet
        self.replies: list[Intent] = []
        # accepted entries whose target orders are not all made, by id
        self.with_targets: dict[str, Intent] = {}
        self.in_flight = in_flight
        self._journal = journal
        self._account_state = account_state
        self._order_owners = order_owners
        self._budget = budget
        self._clock = clock

    @property
    def abreast(self) -> int:
        """How many requests may be on their way at once."""
        return self.in_flight.abreast

    def cancel_requests(self) -> list[asyncio.Task[None]]:
        """Wait for no reply any more. Returns the cancelled tasks."""
        return self.in_flight.cancel()

    async def settle(self, *, at_once: bool = False) -> None:
        """Try every intent that is not final once more, if its time has come.

        `at_once`: also one whose request may have left.
        """
        await self.dispatch(
            intent
            for intent in sorted(self.live.values(), key=_entries_last)
            if intent.state not in FINAL and ((at_once and intent.state == "sending") or self.sender.is_due(intent))
        )
        if self.replies:
            await self.send_replies()

    async def settle_replies(self, may_go_on: Callable[[], bool]) -> None:
        """Settle the intents whose replies have come.

        Call it before the events are read, because those say what the orders did.
        """
        if self.in_flight:
            try:
                await self.in_flight.settle(self._is_open, may_go_on)
            # A reply that ends the run is taken too: an order that is known to be accepted is not left in doubt.
            finally:
                self._write_accepted()

    async def settle_in_flight(self, within_ms: int) -> None:
        """Wait at most so long, in real time, for the replies that are still to come."""
        if not self.in_flight:
            return
        try:
            async with asyncio.timeout(within_ms / 1000):
                while self.in_flight:
                    await self.in_flight.wait()
                    await self.settle_replies(lambda: True)
        except TimeoutError:
            log.warning("replies.late", requests=len(self.in_flight), waited_ms=within_ms)

    def _is_open(self, intent: Intent) -> bool:
        """True if the intent is not final. An event or a reset may have ended it while its request was on its way."""
        known = self.live.get(intent.id)
        return known is not None and known.state not in FINAL

    def requests(self) -> list[Intent]:
        """The open intents that have a request on its way."""
        return [intent for intent in self.in_flight.intents if self._is_open(intent)] if self.in_flight else []

    def awaited(self) -> list[Intent]:
        """The intents whose replies bars and entries wait for.

        A slow reply holds up the orders of its own market alone.
        """
        requests = self.requests()
        slow = self._slow() if requests else ()
        return [request for request in requests if request.id not in slow]

    def _slow(self) -> set[str]:
        """Ids of the intents that no other market waits for: their request is slow, or a request before it got no
        reply.
        """
        return self.in_flight.slow | self.sender.without_outcome(SLOW_MS).keys()

    def without_outcome(self) -> dict[str, str]:
        """Market -> sentence, for the markets in which the service does not say what became of an order."""
        problems: dict[str, str] = {}
        for key, error in self.sender.without_outcome(UNSETTLED_MS).items():
            if (intent := self.live.get(key)) is not None and intent.state not in FINAL:
                problems[intent.market] = (
                    f"the service does not say what became of an order in {intent.market} ({error})"
                )
        return problems

    def learn_from_events(self) -> None:
        """Accept the open intents whose orders the events have shown, and forget the final ones."""
        if self.in_flight.abreast > 1:
            self._accept_seen()
        if self.live:
            for key in [key for key, intent in self.live.items() if intent.state in FINAL]:
                done = self.live.pop(key)
                if done.targets is not None and done.state == "accepted":
                    self.with_targets[key] = done
        if self._account_state.closed:
            self._account_state.closed &= self.live.keys()

    def _accept_seen(self) -> None:
        """Accept the intents whose events came before their replies, which may never come."""
        if seen := [intent for intent in self.requests() if self.sender.is_seen(intent)]:
            # One wait for the disk.
            with self._journal.together():
                accepted = [self.sender.accept_seen(self.live[intent.id]) for intent in seen]
            self.live |= {intent.id: intent for intent in accepted}

    def give_up_entries(self) -> None:
        """Void the entries that have not been sent, because the run ends.

        An entry that may have been sent stays in doubt.
        """
        for intent in list(self.live.values()):
            self.live[intent.id] = self.sender.give_up(intent)

    def release(self) -> None:
        """Void the intents that wait for a person, because a person has looked at them.

        None of them can become an order any more.
        """
        for intent in list(self.live.values()):
            if intent.state == "quarantined":
                self.live[intent.id] = self._journal.intents.end(
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
            self.live.setdefault(intent.id, intent)
        await self.send_all(intents, self.sender.approvals.write_decision(intents))

    async def send_all(self, intents: Sequence[Intent], fresh: Sequence[Intent], *, reads: bool = True) -> None:
        """Send the intents that were just written, in their order, as far as they may be sent now.

        `reads`: read the events of the last of them too. Otherwise the caller reads them.
        """
        self.forget_unwritten(intents, fresh)
        if self.in_flight.abreast == 1:
            await self._send_in_turn(one_by_one(fresh), is_approved=True, reads=reads)
        else:
            await self.dispatch(fresh)
        if self.replies:
            await self.send_replies()

    async def _send_in_turn(self, waiting: Iterable[Intent], *, is_approved: bool = False, reads: bool = True) -> None:
        """Send with a pool of one, as in a backtest: an intent waits for the reply and the events of the one before it.

        A reversal opens against what its close has left. `is_approved`: the risk engine has just approved these
        intents.
        """
        sent = 0
        for intent in waiting:
            if not self._budget.has_time():
                # It is written, and the next pass goes on with it.
                break
            if sent:
                await self.events.drain()
            await self._send(intent, is_approved=is_approved and not sent)
            sent += 1
        if sent and reads:
            await self.events.drain()

    async def dispatch(self, waiting: Iterable[Intent]) -> None:
        """Send what may be sent now; the rest waits for a later pass.

        The journal has each attempt before its request is sent.
        """
        if self.in_flight.abreast == 1:
            for intent in waiting:
                if not self._budget.has_time():
                    break
                await self._send(intent)
            return
        requests = self.requests()
        busy = {request.id for request in requests}
        waiting = [intent for intent in waiting if intent.id not in busy and self._is_open(intent)]
        while waiting and self._budget.may_go_on():
            # A request that nobody waits for any more still uses a connection.
            free = self.in_flight.abreast - (len(self.in_flight) - len(requests))
            batch = next_batch(waiting, free, requests, self._slow())
            if not batch:
                return
            if batch[0].action == "open" and not self._budget.takes_entries:
                self._budget.is_cut_short = True
                return
            # One wait for the disk.
            with self._journal.together():
                marked = self.sender.mark_sending(batch)
            for intent in batch:
                await self.in_flight.start(
                    intent, self._send(marked.get(intent.id, intent), is_marked=intent.id in marked)
                )
            gone = {intent.id for intent in batch}
            waiting = [intent for intent in waiting if intent.id not in gone]
            requests = self.requests()

    def _write_accepted(self) -> None:
        for accepted in self.sender.write_accepted():
            self.live[accepted.id] = accepted

    async def _send(self, intent: Intent, *, is_marked: bool = False, is_approved: bool = False) -> None:
        """Take an intent as far as it goes now. An entry whose plan is stale goes on under a new plan.

        An intent that has ended meanwhile, by an event or a reset, is not sent. `is_approved`: nothing has happened
        since the risk engine has approved it.
        """
        if not is_marked:
            known = self.live.get(intent.id)
            if known is None or known.state in FINAL:
                return
            is_approved = is_approved and known is intent
            intent = known
        while True:
            sending = (
                self.sender.send_marked(intent) if is_marked else self.sender.send(intent, is_approved=is_approved)
            )
            sent = self.live[intent.id] = await sending
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
            self.live[leg.id] = intent = leg
            self._order_owners.by_key[leg.id] = leg.strategy
            log.info(
                "intent.replanned", intent=leg.id, before=sent.id, strategy=leg.strategy, market=leg.market, leg=leg.leg
            )
            if not self._budget.has_time():
                return

    async def send_replies(self) -> None:
        """Send the intents that strategies wanted on events, REPLIES_MAX of them at most."""
        if self.in_flight.abreast > 1:
            await self.dispatch(self.replies)
        else:
            for _ in range(REPLIES_MAX):
                if not self.replies or not self._budget.has_time():
                    break
                await self._send_in_turn([self.replies.pop(0)])
        # The replies are written, and the next pass goes on with them.
        self.replies.clear()

    def forget_unwritten(self, intents: Sequence[Intent], fresh: Sequence[Intent]) -> None:
        """Replace the intents that the journal already had with the journal's version."""
        if len(fresh) == len(intents):
            return
        written = {intent.id for intent in fresh}
        for intent in intents:
            if intent.id not in written:
                known = self._journal.intents.find(intent.id)
                if known is None or known.state in FINAL:
                    self.live.pop(intent.id, None)
                else:
                    self.live[intent.id] = known

    def in_doubt(self, market: str, besides: str | None = None) -> bool:
        """True if an order of ours with an unknown outcome may exist in the market.

        `besides`: the id of an intent that does not count.
        """
        # Runs three times an order; a generator would cost more.
        for intent in self.live.values():
            if intent.market == market and intent.state in IN_DOUBT and intent.id != besides:
                return True
        return False

    def is_doubtful(self, market: str, besides: str | None = None) -> bool:
        """True if nothing may be opened in the market because an outcome is unknown. A reply that may still come in
        time does not count.

        A target order that is not settled always counts: it could arrive when its position is gone, and grow the new
        one.
        """
        if not self.live:
            return False
        if any(i.market == market and i.is_target and i.state not in FINAL for i in self.live.values()):
            return True
        if not self.in_flight:
            return self.in_doubt(market, besides)
        awaited = {intent.id for intent in self.awaited()}
        late = {request.id for request in self.requests()} - awaited
        return any(
            i.market == market and i.id not in awaited and i.id != besides and (i.state in IN_DOUBT or i.id in late)
            for i in self.live.values()
        )

    def is_closing(self, market: str) -> bool:
        """True if a close of the whole position is on its way.

        A close that waits for a person, or for too long, does not count.
        """
        now_ms, hold_ms = self._clock.now_ms(), self._budget.hold_ms(0)
        return any(
            i.market == market
            and i.action == "close"
            and i.state not in FINAL
            and i.state != "quarantined"
            and i.is_whole
            and abs(now_ms - i.opened_ms) <= hold_ms
            for i in self.live.values()
        )

    def has_close(self, market: str) -> bool:
        """True if any close in the market is on its way, in doubt, or waits for a person."""
        return any(i.market == market and i.action == "close" and i.state not in FINAL for i in self.live.values())

    def reload_live(self) -> None:
        """Read the open intents from the journal again."""
        self.live.clear()
        self.replies.clear()
        self.live.update((intent.id, intent) for intent in self._journal.intents.live())
        self.sender.search.inherited = frozenset(self.live)
        # The run before may have been killed after the event that showed an order and before the intent was accepted.
        unsure = [key for key, intent in self.live.items() if intent.state in IN_DOUBT and intent.action != "cancel"]
        if unsure:
            for key, trade_id in self._journal.events.trades_by_key(unsure, epoch=self._account_state.epoch).items():
                self._account_state.see_trade(key, trade_id)

"""The open intents of a run: those that are not final, or accepted and not seen in the events yet.

The risk rules, the execution engine and the order sender share it; none of them needs the others to ask what is open,
in flight or in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bot.runtime.account.account_state import AccountState
from bot.runtime.execution.in_flight import InFlight
from bot.runtime.execution.send_state import SendStates
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import FINAL, IN_DOUBT, Intent
from bot.runtime.passes.pass_budget import PassBudget

# Real time that bars of a market, and entries after an exit, wait for the reply to a request. A healthy service replies
# in less, and later decisions know what the order did. After that time other markets go on, and the orders of this
# market are in doubt.
SLOW_MS: Final = 1_000
# Real time without an outcome after which the run reports that it cannot order in that market. A healthy service
# answers in less than a second, and the rate limiter delays an exit by at most 2 s.
UNSETTLED_MS: Final = 3_000


class OpenIntents:
    """`live` holds the open intents by id, `in_flight` the requests of those that wait for a reply, `states` what is
    known of their requests.

    `wake` and `abreast`: see `InFlight`. `loses_nothing`: no request or reply can be lost, because the venue and the
    journal are in this process and no time passes in a request.
    """

    def __init__(
        self,
        journal: Journal,
        budget: PassBudget,
        wake: Callable[[], None] = lambda: None,
        abreast: int = 1,
        *,
        loses_nothing: bool = False,
    ) -> None:
        self.loses_nothing = loses_nothing
        self.live: dict[str, Intent] = {}
        # intents of event hooks, written and not sent yet
        self.replies: list[Intent] = []
        # accepted entries whose target orders are not all made, by id
        self.with_targets: dict[str, Intent] = {}
        # Ids of the intents of an earlier run, or of before the journal was read again.
        self.inherited: frozenset[str] = frozenset()
        self.in_flight = InFlight(self.live, wake, SLOW_MS / 1000, abreast)
        self.states = SendStates()
        self._journal = journal
        self._budget = budget

    def reload(self, account_state: AccountState) -> None:
        """Read the open intents from the journal again."""
        self.live.clear()
        self.replies.clear()
        self.live.update((intent.id, intent) for intent in self._journal.intents.live())
        self.inherited = frozenset(self.live)
        # The run before may have been killed after the event that showed an order and before the intent was accepted.
        unsure = [i.id for i in self.live.values() if i.state in IN_DOUBT and i.action != "cancel"]
        if unsure:
            for key, trade_id in self._journal.events.trades_by_key(unsure, epoch=account_state.epoch).items():
                account_state.see_trade(key, trade_id)

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

    def forget_states(self) -> None:
        """Forget the requests of intents that are not open any more, such as those that a reset has voided."""
        self.states.keep(self.live)

    # -- in flight

    def is_open(self, intent: Intent) -> bool:
        """True if the intent is not final. An event or a reset may have ended it while its request was on its way."""
        known = self.live.get(intent.id)
        return known is not None and known.state not in FINAL

    def requests(self) -> list[Intent]:
        """The open intents that have a request on its way."""
        return [intent for intent in self.in_flight.intents if self.is_open(intent)] if self.in_flight else []

    def awaited(self) -> list[Intent]:
        """The intents whose replies bars and entries wait for.

        A slow reply holds up the orders of its own market alone.
        """
        requests = self.requests()
        slow = self.slow() if requests else ()
        return [intent for intent in requests if intent.id not in slow]

    def slow(self) -> set[str]:
        """Ids of the intents that no other market waits for: their request is slow, or a request before it got no
        reply.
        """
        return self.in_flight.slow | self._without_outcome(SLOW_MS).keys()

    def without_outcome(self) -> dict[str, str]:
        """Market -> sentence, for the markets in which the service does not say what became of an order."""
        problems: dict[str, str] = {}
        for key, error in self._without_outcome(UNSETTLED_MS).items():
            if (intent := self.live.get(key)) is not None and intent.state not in FINAL:
                problems[intent.market] = (
                    f"the service does not say what became of an order in {intent.market} ({error})"
                )
        return problems

    def _without_outcome(self, for_ms: int) -> dict[str, str]:
        """The ids of intents whose requests have had no outcome for so long, each with the last error."""
        now_ms = self._budget.pacer.mono_ms()
        return {
            intent_id: "no reply yet" if state.last_error is None else state.last_error
            for intent_id, state in self.states.items()
            if state.no_outcome_since_ms is not None and now_ms - state.no_outcome_since_ms >= for_ms
        }

    # -- in doubt or closing

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
        late = {intent.id for intent in self.requests()} - awaited
        return any(
            i.market == market and i.id not in awaited and i.id != besides and (i.state in IN_DOUBT or i.id in late)
            for i in self.live.values()
        )

    def is_closing(self, market: str) -> bool:
        """True if a close of the whole position is on its way.

        A close that waits for a person, or for too long, does not count.
        """
        now_ms, hold_ms = self._budget.clock.now_ms(), self._budget.hold_ms(0)
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

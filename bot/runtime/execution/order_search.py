"""Finds the order of an intent when no reply says whether there is one.

Two cases need it. The reply to a request is lost or unclear. Or an earlier journal was lost with its disk, while its
orders are still on the account. This journal then decides the same bar again under the same key, and the lost one may
have sent that order already.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bot.runtime.account.account_state import AccountState
from bot.runtime.execution.open_intents import OpenIntents
from bot.runtime.execution.outcome import SETTLE_MS, Fences
from bot.runtime.model.intents import Intent
from bot.runtime.passes.ports import VenuePort
from bot.runtime.risk.risk_engine import RiskEngine
from bot.wire import TRADES_PAGE_MAX, TradeResource

# lifetime of a plan if the service does not say it
PLAN_TTL_MS: Final = 60_000
# Our clock may be this far ahead of the service's. A trade of ours then looks older than its intent.
CLOCK_AHEAD_MS: Final = 5_000
# a search that needs more pages proves nothing
TRADES_PAGES_MAX: Final = 10


# Status of a trade whose exchange has not decided it, and of one that its exchange has refused or never got.
PENDING: Final = "pending"
VOID: Final = "void"


class SearchResult(NamedTuple):
    """`trade_id` of the order under our key, if found. `is_proof`: None then means that there is no such order.

    `is_undecided`: the service knows the request, and whether it becomes an order is not decided yet.
    """

    trade_id: str | None
    is_proof: bool
    is_undecided: bool = False


class OrderSearch:
    """Looks for orders by their key, and knows which intents an earlier, lost journal may have sent.

    The kernel says by `learn_beginning` when the journal was begun.
    """

    def __init__(self, port: VenuePort, account_state: AccountState, risk: RiskEngine, intents: OpenIntents) -> None:
        self._port = port
        self.account_state = account_state
        self._risk = risk
        self._intents = intents
        # Service time when this journal was begun. An earlier journal may have sent what was decided for an instant
        # before.
        self.begun_ms = 0
        # The account was not empty then, so an earlier run may have been killed with requests on their way.
        self.lost_requests_may_arrive = False

    def learn_beginning(self, begun_ms: int, *, lost_requests_may_arrive: bool) -> None:
        """The journal was begun at this instant of the service.

        `lost_requests_may_arrive`: the account was not empty then.
        """
        self.begun_ms, self.lost_requests_may_arrive = begun_ms, lost_requests_may_arrive

    def seen(self, intent: Intent) -> str | None:
        """The trade id that the events have shown for this intent. A cancel never has one."""
        return None if intent.action == "cancel" else self.account_state.trades_by_key.get(intent.id)

    async def find(self, intent: Intent) -> SearchResult:
        """Look for the intent's key among the trades since the intent was written. Raises ApiError."""
        trade_id = self.seen(intent)
        if trade_id is not None:
            return SearchResult(trade_id, is_proof=True)
        # A cancel never makes a trade.
        if intent.action == "cancel":
            return SearchResult(None, is_proof=True)
        before: int | None = None
        maybe_ours = False
        for _ in range(TRADES_PAGES_MAX):
            question = self._port.trades(limit=TRADES_PAGE_MAX, before=before, coin=intent.market)
            page = await self._intents.in_flight.ask(intent, question)
            # trades that belong to other intents
            accepted = self.account_state.keys_of(trade.id for trade in page.trades)
            for trade in page.trades:
                if trade.idempotency_key == intent.id:
                    if trade.status in (PENDING, VOID):
                        is_void = trade.status == VOID
                        return SearchResult(None, is_proof=is_void, is_undecided=not is_void)
                    self.account_state.see_trade(intent.id, trade.id)
                    return SearchResult(trade.id, is_proof=True)
                is_accepted = (intent.market, trade.id, trade.intent) in accepted
                maybe_ours = maybe_ours or (_may_be_ours(trade, intent) and not is_accepted)
            before = page.next_before
            if before is None or (page.trades and _is_older(page.trades[-1], intent)):
                # Until the service has shown one of our keys, it may list our order without its key.
                return SearchResult(None, is_proof=self.account_state.keys_proven or not maybe_ours)
        return SearchResult(None, is_proof=False)

    def is_needed(self, intent: Intent) -> bool:
        """True if an intent that this run has not sent may be an order all the same, so that it must not end without a
        search.

        A lost journal may have sent the intent. The run before may have sent a close, because closes go out even while
        the journal cannot be written.
        """
        is_old_close = intent.action == "close" and intent.id in self._intents.inherited
        return is_old_close or self._is_older_than_journal(intent)

    def may_arrive_late(self, intent: Intent) -> bool:
        """True if a lost journal may have sent the same request, so that it may still reach the service before its
        fence.
        """
        return self.lost_requests_may_arrive and self._is_older_than_journal(intent)

    def must_wait_for_late(self, intent: Intent, now_ms: int) -> bool:
        """True while a request of a lost journal may still become an order, so that not finding it proves nothing."""
        return self.may_arrive_late(intent) and now_ms <= self._late_fence_ms(intent) + SETTLE_MS

    def fences(self, intent: Intent) -> Fences:
        """The fence after which no copy of the request can become an order, copies of a lost journal included."""
        fence_ms = intent.fence_ms
        if self.may_arrive_late(intent):
            fence_ms = max(fence_ms, self._late_fence_ms(intent))
        return Fences(fence_ms, keys_proven=self.account_state.keys_proven)

    def _is_older_than_journal(self, intent: Intent) -> bool:
        """True if the intent was decided for an instant at which this journal did not exist yet."""
        return _decided_for_ms(intent) <= self.begun_ms

    def _late_fence_ms(self, intent: Intent) -> int:
        """When the service begins to refuse requests and plans of a lost journal.

        They are older than this intent, so they expire earlier.
        """
        limits = self._risk.strategy_limits.get(intent.strategy)
        if intent.action == "open" and limits is not None and limits.path == "plan":
            return min(intent.not_after_ms, self.begun_ms + PLAN_TTL_MS)
        return intent.not_after_ms


def _decided_for_ms(intent: Intent) -> int:
    """The instant of the bar or timer that caused the intent. For any other cause, when the intent was written."""
    at = intent.trigger.rpartition(":")[2]
    return int(at) if at.isdecimal() else intent.opened_ms


def _may_be_ours(trade: TradeResource, intent: Intent) -> bool:
    return trade.idempotency_key is None and trade.source is not None and not _is_older(trade, intent)


def _is_older(trade: TradeResource, intent: Intent) -> bool:
    """True if the trade existed before the intent was written."""
    return trade.ts is not None and trade.ts < intent.opened_ms - CLOCK_AHEAD_MS

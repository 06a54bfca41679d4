"""Takes one intent as far as it goes: plan, confirm, request, and what each reply means. No other module sends orders.

Each step is in the journal before its request is sent. If a reply does not settle the intent, the journal keeps it open
and a later pass tries again. Live, requests and waits run beside the pass (`in_flight.py`), and a later pass takes on
the reply.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from bot.errors import NO_ERROR_OBJECT, AccessLost, ApiError, OutcomeUnknown, Refused, TryLater
from bot.logs import log
from bot.runtime.execution.approvals import Approvals
from bot.runtime.execution.entry_wait import EntryChecks, EntryWait
from bot.runtime.execution.open_intents import OpenIntents
from bot.runtime.execution.order_search import PLAN_TTL_MS, OrderSearch, SearchResult
from bot.runtime.execution.outcome import Accept, Again, End, Look, Move, settle_move
from bot.runtime.execution.outcome_writer import OutcomeWriter, log_plan, log_state
from bot.runtime.execution.send_state import Ending
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import FINAL, Intent, State
from bot.runtime.passes.pass_budget import PassBudget
from bot.runtime.passes.ports import PlacedOrder, VenuePort
from bot.wire import OrderRequest

T = TypeVar("T")

# Times are real milliseconds.
# tries in one `send`; the next `send` has as many again
TRIES: Final = 3
# time from the first request of one `send`; a try after that is left to a later pass
WINDOW_MS: Final = 2_000
# longest wait before an exit is tried again, whatever Retry-After says
EXIT_AGAIN_MS: Final = 10_000
# time between two searches for an order that a lost journal may have sent
SEARCH_AGAIN_MS: Final = 5_000
# if the service refuses to show its trades for so long, a person must look
SEARCH_REFUSED_MS: Final = 30_000

KEY_USED_OTHERWISE: Final = (
    "the service has answered another request under its key, of which there is no order: an earlier run whose journal"
    " was lost, or another host, asked for the same with another plan or other numbers"
)
NO_EVIDENCE: Final = "nothing at the service can tell whether it became an order"

_STALE_PLAN: Final = ("plan_stale", "its plan ran out before it was sent")
_STALE_BAR: Final = ("stale_bar", "it was not sent in time")
_RUN_ENDED: Final = ("run_ended", "the run ended before it was sent")


class _PassOver(Exception):
    """A pass has no time left for the rest of a cancel, so the next pass goes on with the cancel."""


class OrderSender:
    """Sends intents and settles them. Every method takes the newest version of an intent and returns the next one.

    `checks` are asked before an entry is sent. `budget` limits what this pass may start. `search` finds orders without
    a reply.
    """

    def __init__(
        self,
        port: VenuePort,
        journal: Journal,
        checks: EntryChecks,
        search: OrderSearch,
        outcomes: OutcomeWriter,
        budget: PassBudget,
        intents: OpenIntents,
        approvals: Approvals,
    ) -> None:
        self.port = port
        self.journal = journal
        self.checks = checks
        self.search = search
        self.outcomes = outcomes
        self.budget = budget
        self.pacer = budget.pacer
        self.intents = intents
        self.in_flight = intents.in_flight
        self.approvals = approvals
        self._account_state = search.account_state
        self._now_ms = port.clock.now_ms
        self._states = intents.states
        self._entry_wait = EntryWait(checks, port, journal, search, self._states, self.pacer)
        # accepted by the service, not written yet: intent and trade id
        self._replies: list[tuple[Intent, str]] = []
        self.loses_nothing = intents.loses_nothing
        # the last planned entry and its dry run
        self._last_dry_run: tuple[OrderRequest, OrderRequest] | None = None

    # -- what the execution engine calls

    async def send(self, intent: Intent, *, is_approved: bool = False) -> Intent:
        """Take the intent as far as it goes now: to its end, or to the point where a later pass goes on.

        `is_approved`: the risk engine has just approved it, and nothing has happened since.
        """
        before = intent.state
        # Nothing stands between an intent that was just approved and its request.
        is_certain = is_approved and self.loses_nothing and intent.path == "direct" and not self._states
        if is_certain and self.journal.fault is None and not self.search.may_arrive_late(intent):
            return self._moved(await self._send_at_once(intent), before)
        return self._moved(await self._advance(intent), before)

    def mark_sending(self, intents: Sequence[Intent]) -> dict[str, Intent]:
        """Write in one transaction that these intents are being sent. Returns those to pass to `send_marked`, by id.

        An intent that needs a plan or a check first is left out. So is a single one, which `send` writes itself.
        """
        ready = [intent for intent in intents if self._needs_no_plan(intent)]
        if len(ready) < 2:
            return {}
        return {intent.id: intent for intent in self.journal.intents.sending_all(ready, now_ms=self._now_ms())}

    async def send_marked(self, intent: Intent) -> Intent:
        """Send an intent that `mark_sending` has written.

        If the service accepts it, `write_accepted` writes that later.
        """
        intent = await self._try(intent, is_marked=True)
        return intent if any(waits is intent for waits, _ in self._replies) else self._moved(intent, "opened")

    def write_accepted(self) -> list[Intent]:
        """Write, in one transaction, the marked intents that the service has accepted since the last call."""
        replies, self._replies = self._replies, []
        if not replies:
            return []
        return [self._moved(intent, "sending") for intent in self.outcomes.accept_all(replies)]

    def is_due(self, intent: Intent) -> bool:
        """True if the intent may be tried now.

        A quarantined intent is due only if the events show that it is an order after all.
        """
        if intent.state == "quarantined":
            return self.search.seen(intent) is not None
        state = self._states.get(intent.id)
        return state is None or self.pacer.mono_ms() >= state.next_try_ms

    def is_seen(self, intent: Intent) -> bool:
        """True if the events have shown the intent's order."""
        return self.search.seen(intent) is not None

    def learn_from_events(self) -> None:
        """Accept the open intents whose orders the events have shown, and forget the final ones."""
        if self.in_flight.abreast > 1:
            self._accept_seen()
        live = self.intents.live
        if live:
            for key in [key for key, intent in live.items() if intent.state in FINAL]:
                done = live.pop(key)
                if done.targets is not None and done.state == "accepted":
                    self.intents.with_targets[key] = done
        if self._account_state.closed:
            self._account_state.closed.intersection_update(live)

    def _accept_seen(self) -> None:
        """Accept the intents whose events came before their replies, which may never come."""
        seen = [(intent, trade_id) for intent in self.intents.requests() if (trade_id := self.search.seen(intent))]
        if seen:
            # One wait for the disk.
            with self.journal.together():
                accepted = [self._accept(self.intents.live[intent.id], trade_id) for intent, trade_id in seen]
            self.intents.live.update({intent.id: intent for intent in accepted})

    def _accept(self, intent: Intent, trade_id: str) -> Intent:
        """Accept an intent whose order the events have shown. No reply is needed any more."""
        return self._moved(self.outcomes.accept(intent, trade_id), intent.state)

    def give_up(self, intent: Intent) -> Intent:
        """End an entry that has not been sent. An entry that may have been sent, also by a lost journal, stays open."""
        if intent.action != "open" or not self.journal.intents.is_unsent(intent) or self.search.may_arrive_late(intent):
            return intent
        before = intent.state
        return self._moved(self.outcomes.end(intent, "expired", *self._states.expiry_of(intent.id, _RUN_ENDED)), before)

    # -- before the first request

    async def _advance(self, intent: Intent) -> Intent:
        """Plan the intent if it needs a plan, end it if it came too late, and else send it if it may be sent now."""
        trade_id = self.search.seen(intent)
        # The event came before the reply.
        if trade_id is not None:
            return self.outcomes.accept(intent, trade_id)
        if (no := self._entry_wait.blocked_too_long(intent)) is not None:
            why = f"{no.message} (it could not be sent for a minute)"
            return await self._end_unsent(intent, Ending("expired", no.code, why))
        if intent.state == "opened":
            if self.approvals.is_used and (ending := self.approvals.ending(intent)) is not None:
                return await self._end_unsent(intent, ending)
            intent = await self._prepare(intent)
        elif intent.state == "planned" and (ending := self.approvals.ending(intent)) is not None:
            return await self._end_unsent(intent, ending)
        elif self._now_ms() >= intent.fence_ms and self._entry_wait.is_postponed(intent):
            reason = _STALE_BAR if intent.confirm_token is None else _STALE_PLAN
            return await self._end_unsent(intent, Ending("expired", *self._states.expiry_of(intent.id, reason)))
        if intent.state in FINAL or (intent.state == "opened" and not self._may_send_directly(intent)):
            return intent
        if intent.state == "planned" and self.approvals.is_pending(intent):
            return intent
        # An entry in doubt is kept too: an attempt that is in memory alone would be lost with the process.
        if self._entry_wait.lacks_journal(intent):
            return intent
        if self.loses_nothing and intent.state == "opened" and not self.search.may_arrive_late(intent):
            return await self._send_at_once(intent)
        if self._entry_wait.is_postponed(intent) and (
            self._entry_wait.must_wait(intent) or self.budget.entries_left_ms() <= 0
        ):
            return intent
        return await self._try(intent)

    def _may_send_directly(self, intent: Intent) -> bool:
        """True if the intent needs no plan and may be sent now."""
        return intent.path == "direct" and not self._entry_wait.must_wait(intent)

    def _needs_no_plan(self, intent: Intent) -> bool:
        """True if `send` would send the intent now as it is: not sent before, in time, and without a plan."""
        if intent.state != "opened" or self.is_seen(intent) or self._now_ms() > intent.not_after_ms:
            return False
        return self._may_send_directly(intent) and not self._entry_wait.lacks_journal(intent)

    async def _prepare(self, intent: Intent) -> Intent:
        """Get the plan of an entry that was never sent, or end it. A direct intent stays as it is."""
        state = self._states.get(intent.id)
        if state is not None and state.ending is not None:
            return await self._end_unsent(intent, state.ending)
        now_ms = self._now_ms()
        if now_ms > intent.not_after_ms:
            return await self._end_unsent(intent, Ending("expired", *self._states.expiry_of(intent.id, _STALE_BAR)))
        if intent.path == "direct" or self._entry_wait.must_wait(intent):
            return intent
        request = self._dry_run(intent.order())
        started_ms = self.pacer.mono_ms()
        for n in range(1, TRIES + 1):
            try:
                result = await self._ask(intent, self.port.plan(request, key=intent.id))
            except Refused as error:
                return await self._end_unsent(intent, Ending("rejected", error.code, error.message))
            # A dry run orders nothing, so nothing is in doubt.
            except (TryLater, OutcomeUnknown) as error:
                self._states.of(intent.id).failed(error)
                if not await self._wait(intent, n, started_ms, getattr(error, "after_ms", None)):
                    return intent
            else:
                break
        else:
            return intent
        self._states.of(intent.id).last_error = self._states.of(intent.id).last_code = None
        if not await self.checks.may_confirm(intent, result.plan):
            why = "the strategy withdrew it when it saw the plan"
            return await self._end_unsent(intent, Ending("rejected", "vetoed", why))
        needs_approval = self.approvals.of(intent) is not None
        # A policy takes its time beside the pass.
        if needs_approval:
            no = await self.in_flight.ask(intent, self.approvals.ask_policy(intent, result.plan))
            if no is not None:
                return await self._end_unsent(intent, no)
        expires_ms = result.expires_at if result.expires_at is not None else now_ms + PLAN_TTL_MS
        log_plan(intent, result.plan)
        if self.journal.keeps_traces:
            self.journal.trace(intent.id, "plan", result.plan.model_dump_json(exclude_none=True), at_ms=now_ms)
        if not needs_approval:
            return self.journal.intents.planned(intent, result.confirm_token, expires_ms, now_ms=now_ms)
        # After a crash there is no plan whose question is not written.
        with self.journal.together():
            planned = self.journal.intents.planned(intent, result.confirm_token, expires_ms, now_ms=now_ms)
            self.approvals.propose(planned, result.plan)
        return planned

    def _dry_run(self, order: OrderRequest) -> OrderRequest:
        """The order as a dry run. Equal signals give the same order object, so the last copy is used again."""
        if self._last_dry_run is None or self._last_dry_run[0] is not order:
            self._last_dry_run = order, order.model_copy(update={"dry_run": True})
        return self._last_dry_run[1]

    async def _end_unsent(self, intent: Intent, ending: Ending) -> Intent:
        """End an intent that this run has not sent, unless a search finds its order: a lost journal or an earlier run
        may have sent it.

        While a request of a lost journal may still arrive, the end waits and nothing is sent.
        """
        if self.search.is_needed(intent):
            try:
                result = await self.search.find(intent)
            except AccessLost:
                raise
            # The next pass searches again; nothing is sent meanwhile.
            except ApiError:
                return intent
            if result.trade_id is not None:
                return self.outcomes.accept(intent, result.trade_id)
            if result.is_undecided or self.search.must_wait_for_late(intent, self._now_ms()):
                state = self._states.of(intent.id)
                state.ending = ending
                state.next_try_ms = self.pacer.mono_ms() + SEARCH_AGAIN_MS
                return intent
        return self.outcomes.end(intent, *ending)

    # -- requests and replies

    async def _send_at_once(self, intent: Intent) -> Intent:
        """Send a request that cannot be lost.

        The journal gets one record, the outcome; an error that settles nothing takes the ordinary way.
        """
        try:
            if intent.action == "cancel":
                trade_id = await self._cancel(intent)
            # Nothing waits beside it, so there is no wait to measure.
            else:
                trade_id = (await _order_request(self.port, intent)).trade.id
        except ApiError as error:
            move = settle_move(error, ambiguous_before=False, now_ms=self._now_ms(), fences=self.search.fences(intent))
            if isinstance(move, End):
                return self.outcomes.end(intent, move.state, move.code, move.message)
            return await self._try(intent)
        return self.outcomes.accept(intent, trade_id)

    async def _try(self, intent: Intent, *, is_marked: bool = False) -> Intent:
        """Send the request, up to TRIES times, until a reply settles the intent or a later pass must go on.

        `is_marked`: `mark_sending` has written the first attempt. If that attempt is accepted, `write_accepted` writes
        it.
        """
        started_ms = self.pacer.mono_ms()
        for n in range(1, TRIES + 1):
            is_written = is_marked and n == 1
            ambiguous_before = self.search.may_arrive_late(intent) or (
                not is_written and self.journal.intents.is_ambiguous(intent)
            )
            if not is_written:
                intent = self.journal.intents.sending(intent, now_ms=self._now_ms())
            # The write of the intent has failed, so nothing is sent.
            if self._entry_wait.lacks_journal(intent):
                self.journal.intents.attempt_ended(intent, "no", code="journal_fault", order_submitted=False)
                return intent
            try:
                trade_id = await self._request(intent)
            except _PassOver:
                self.journal.intents.attempt_ended(intent, "no", code="no_time", order_submitted=False)
                return intent
            except ApiError as error:
                now_ms, fences = self._now_ms(), self.search.fences(intent)
                move = settle_move(error, ambiguous_before=ambiguous_before, now_ms=now_ms, fences=fences)
                intent = await self._settle(intent, move, error, is_past=fences.passed(now_ms))
            else:
                if is_written:
                    self._replies.append((intent, trade_id))
                    return intent
                return self.outcomes.accept(intent, trade_id)
            if intent.state in FINAL or intent.state == "quarantined":
                return intent
            if not await self._wait(intent, n, started_ms, move.after_ms if isinstance(move, Again) else None):
                break
        log.warning(
            "intent.unsettled",
            intent=intent.id,
            strategy=intent.strategy,
            market=intent.market,
            attempts=intent.attempts,
        )
        return intent

    async def _request(self, intent: Intent) -> str:
        """Send one request of the intent and return the id of its trade."""
        if intent.action == "cancel":
            return await self._cancel(intent)
        return (await self._ask(intent, _order_request(self.port, intent))).trade.id

    async def _ask(self, intent: Intent, request: Coroutine[Any, Any, T]) -> T:
        """The reply to an order operation. Measures the time from the first request until there is an outcome."""
        state = self._states.of(intent.id)
        if state.no_outcome_since_ms is None:
            state.no_outcome_since_ms = self.pacer.mono_ms()
        try:
            reply = await self.in_flight.ask(intent, request)
        except ApiError as error:
            # The service works; only the limit is used up.
            if error.code == "rate_limited":
                state.no_outcome_since_ms = None
            raise
        state.no_outcome_since_ms = None
        return reply

    async def _cancel(self, intent: Intent) -> str:
        """Cancel each order of the intent and return the id of the first.

        Raises _PassOver if this pass has no time for all of them.
        """
        oids = intent.cancel().oids
        canceled = self._states.of(intent.id).canceled
        await self._ask(intent, self._cancel_each([oid for oid in oids if oid not in canceled], canceled))
        return oids[0]

    async def _cancel_each(self, oids: Sequence[str], canceled: set[str]) -> None:
        """Cancel the orders one after another, and note each in `canceled`.

        An order that is gone counts as canceled.
        """
        takes_time_of_pass = self.in_flight.abreast == 1
        for n, oid in enumerate(oids):
            if n and takes_time_of_pass and not self.budget.may_go_on():
                raise _PassOver
            try:
                await self.port.cancel(oid)
            except Refused as error:
                if error.code != "not_found":
                    raise
            canceled.add(oid)

    async def _settle(self, intent: Intent, move: Move, error: ApiError, *, is_past: bool) -> Intent:
        """Handle an error as `settle_move` has decided."""
        match move:
            case Accept(trade_id):
                return self.outcomes.accept(intent, trade_id)
            case End(state, code, message):
                return self.outcomes.end(intent, state, code, message)
            case Look(absent, doubt):
                return await self._look(intent, absent, error, doubt=doubt, is_past=is_past)
            case Again(doubt):
                self._write_unsettled(intent, error, doubt=doubt)
                return intent
            case _:
                self._write_unsettled(intent, error, doubt=False)
                raise error

    async def _look(
        self, intent: Intent, absent: End | str | None, error: ApiError, *, doubt: bool, is_past: bool
    ) -> Intent:
        """Search for the order. `absent` says what it means if the search proves that there is none.

        `is_past`: the fence has passed, so that no later search can tell more, unless an exchange has not decided the
        order yet. Without a proof a person must look then.
        """
        try:
            result = await self.search.find(intent)
        except AccessLost:
            raise
        # Away: search again later. Refused for SEARCH_REFUSED_MS: the service will not tell.
        except ApiError as no:
            result = SearchResult(None, is_proof=False)
            is_past = is_past and self._is_search_refused_for_long(intent, no)
        else:
            self._states.of(intent.id).search_refused_since_ms = None
        if result.trade_id is not None:
            return self.outcomes.accept(intent, result.trade_id)
        if result.is_undecided:
            self._write_unsettled(intent, error, doubt=True)
            return intent
        if absent is not None and result.is_proof:
            if isinstance(absent, End):
                return self.outcomes.end(intent, absent.state, absent.code, absent.message)
            return self.outcomes.end(intent, "quarantined", error.code, f"{KEY_USED_OTHERWISE} ({error.message})")
        if is_past:
            return self.outcomes.end(intent, "quarantined", error.code, f"{NO_EVIDENCE} ({error.message})")
        self._write_unsettled(intent, error, doubt=doubt)
        return intent

    def _is_search_refused_for_long(self, intent: Intent, error: ApiError) -> bool:
        """True if the service has refused the search, again and again, for SEARCH_REFUSED_MS."""
        if not isinstance(error, Refused) or error.code == NO_ERROR_OBJECT:
            return False
        state, now_ms = self._states.of(intent.id), self.pacer.mono_ms()
        if state.search_refused_since_ms is None:
            state.search_refused_since_ms = now_ms
        return now_ms - state.search_refused_since_ms >= SEARCH_REFUSED_MS

    def _write_unsettled(self, intent: Intent, error: ApiError, *, doubt: bool) -> None:
        """Write that an attempt did not settle the intent. `doubt`: the attempt may have reached the venue."""
        self._states.of(intent.id).failed(error)
        self.journal.intents.attempt_ended(
            intent, "unknown" if doubt else "no", code=error.code, order_submitted=error.order_submitted
        )

    async def _wait(self, intent: Intent, n: int, started_ms: int, after_ms: int | None) -> bool:
        """Wait before try n + 1. False: there is no time for it now, and a later pass tries when the intent is due."""
        state = self._states.of(intent.id)
        state.tries += 1
        wait_ms = max(after_ms or 0, self.pacer.delay_ms(state.tries))
        if intent.action != "open":
            wait_ms = min(wait_ms, EXIT_AGAIN_MS)
        now_ms = self.pacer.mono_ms()
        state.next_try_ms = now_ms + wait_ms
        left_ms = started_ms + WINDOW_MS - now_ms
        if intent.action == "open":
            left_ms = min(left_ms, self.budget.entries_left_ms())
        if n == TRIES or wait_ms > left_ms:
            return False
        await self.in_flight.ask(intent, self.pacer.sleep(wait_ms))
        return True

    def _moved(self, intent: Intent, before: State) -> Intent:
        """Log the state of an intent if it is a new one, and forget what is not needed any more."""
        if intent.state in FINAL:
            self._states.pop(intent.id, None)
        elif intent.state == "quarantined":
            self._states.of(intent.id).no_outcome_since_ms = None
        if intent.state != before:
            log_state(intent)
        return intent


def _order_request(port: VenuePort, intent: Intent) -> Coroutine[Any, Any, PlacedOrder]:
    """The request that makes the intent an order."""
    if intent.action == "close" and not intent.is_target:
        return port.close(intent.market, intent.close(), key=intent.id, expires_at_ms=intent.not_after_ms)
    if intent.confirm_token is not None:
        return port.confirm(intent.confirm_token, key=intent.id, expires_at_ms=intent.token_expires_ms)
    return port.place(intent.order(), key=intent.id, expires_at_ms=intent.not_after_ms)

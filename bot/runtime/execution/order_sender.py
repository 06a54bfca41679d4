"""Carrying one intent to its end: plan, confirm, and what an answer without certainty asks for. The only caller of the order operations.

Written before sent, at every step. What one call cannot settle stays as it is in the journal, and the loop's next pass
tries again. Each request and each wait goes through `ask`: live, the pass goes on meanwhile, and a later one takes on the reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from bot import logs
from bot.errors import NO_ERROR_OBJECT, AccessLost, ApiError, OutcomeUnknown, Refusal, Refused, TryLater
from bot.money import format_decimal
from bot.runtime.account.account_state import Mirror
from bot.runtime.alerts.messages import notice
from bot.runtime.execution.outcome import SETTLE_MS, Accept, Again, End, Fences, Look, Move, settle_move
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import FINAL, Intent, State
from bot.runtime.ports import Pacer, VenuePort
from bot.runtime.risk.risk_engine import RiskEngine
from bot.wire import TRADES_PAGE_MAX, OrderRequest, Plan, Trade

log = logs.Quiet()
T = TypeVar("T")

TRIES: Final = 3  # in one `send`; the next one has as many again
WINDOW_MS: Final = 2_000  # of real time from the first request of one `send`, after which it waits for no other try
EXIT_AGAIN_MS: Final = 10_000  # of real time: an exit is tried again after so long, whatever Retry-After says
LOOK_MS: Final = 5_000  # of real time between two looks for an order that a lost journal may have sent
# Of real time, as long as a plan lives: an entry of which nothing has left and that its own strategy is kept from keeps others of its market
# out no longer.
HELD_MS: Final = 60_000
UNTOLD_MS: Final = 30_000  # of real time after which who refuses to show the trades is not asked for one any more
PLAN_TTL_MS: Final = 60_000  # of a plan whose answer does not say
OTHERWISE: Final = (
    "the service has answered another request under its key, of which there is no order: an earlier run whose journal was lost, or another"
    " host, asked for the same with another plan or other numbers"
)
WAY_OUT: Final = "look at the account, then bot resume"
UNTOLD: Final = "nothing at the service can tell whether it became an order"
SMALL_SHARE: Final = (
    "This is all that the strategy has of a shared position, and it is worth too little to be closed by itself. The way out: an entry"
    " that makes it 10 USD again, then the close; or the others close theirs first. The stop takes it too, and bot kill --flatten"
)
# That our clock may be ahead of the service's, by which a trade of ours is then older than our decision.
AHEAD_MS: Final = 5_000
TRADES_PAGES_MAX: Final = 10  # further back than that the search proves nothing

_STALE_PLAN: Final = ("plan_stale", "its plan ran out before it was sent")
_STALE_BAR: Final = ("stale_bar", "it was not sent in time")
_RUN_ENDED: Final = ("run_ended", "the run ended before it was sent")

# Of real time without an outcome of what was sent, after which the run says that it cannot order there. A healthy service answers in
# less than a second, and the rate limiter keeps an exit for 2 s at most.
UNSETTLED_MS: Final = 3_000

Veto = Callable[[Intent, Plan], Awaitable[bool]]


class Ask(Protocol):
    """The reply to a request of an intent, which is as it was written last."""

    async def __call__(self, intent: Intent, request: Coroutine[Any, Any, T], /) -> T: ...


async def ask_here(_intent: Intent, request: Coroutine[Any, Any, T], /) -> T:
    """The caller waits for the reply."""
    return await request


class Search(NamedTuple):
    """`trade_id` of the order under our key. `is_proof`: when there is none, there is none."""

    trade_id: str | None
    is_proof: bool


class _Cut(Exception):
    """This pass has no time for the rest of an intent; the next one goes on with it."""


class OrderSender:
    """`may_confirm` asks the strategy whether it stands by an entry, given the plan."""

    def __init__(
        self, *, port: VenuePort, journal: Journal, mirror: Mirror, risk: RiskEngine, pacer: Pacer, may_confirm: Veto,
        time_left_ms: Callable[[], int] = lambda: WINDOW_MS, stopped: Callable[[Intent], Refusal | None] = lambda _intent: None,
        entry_wait_ms: Callable[[], int] = lambda: 0, name: Callable[[Intent], None] = lambda _intent: None,
        of_its_own: Callable[[Intent], Refusal | None] = lambda _intent: None, may_go_on: Callable[[], bool] = lambda: True,
        ask: Ask = ask_here,
    ) -> None:  # fmt: skip
        self.port = port
        self._now_ms = port.clock.now_ms
        self.journal = journal
        self.mirror = mirror
        self.risk = risk
        self.pacer = pacer
        self.may_confirm = may_confirm
        self.ask = ask
        self.time_left_ms = time_left_ms  # of this pass, for entries
        self.stopped = stopped
        self.entry_wait_ms = entry_wait_ms
        self.may_go_on = may_go_on  # with another request of an intent that has several, in this pass
        self.of_its_own = of_its_own  # of what `stopped` and the gate say, that which is no other strategy's concern
        self.name = name  # gives what was told of an order under no name to its strategy
        # When this journal was begun: what is decided for an instant before, an earlier one may have sent.
        self.begun_ms = 0
        self.is_cut = False  # the earlier one was lost with its run: requests of that run may still be on their way
        self._next_ms: dict[str, int] = {}  # real time before which an intent is not tried again
        self._tries: dict[str, int] = {}
        self._held_ms: dict[str, int] = {}  # real time since which its own strategy is kept from an entry
        self._refused_ms: dict[str, int] = {}  # real time since which nothing about an intent could be asked
        # Intents of an earlier run, or of before the account was read anew.
        self.inherited: frozenset[str] = frozenset()
        # How an intent ends, unless an order of a lost journal turns up.
        self._ends: dict[str, tuple[State, str, str]] = {}
        self._canceled: dict[str, set[str]] = {}  # what a cancel of several orders has done so far
        self._answers: dict[str, str] = {}  # why the service did not take it the last time
        self._asked_ms: dict[str, int] = {}  # real time of the first request since an outcome was known
        self._answered: list[tuple[Intent, str]] = []  # of a wave: accepted by the service, and not written yet
        self._planned: tuple[OrderRequest, OrderRequest] | None = (
            None  # the last entry that was planned, and its dry run
        )

        self._kept = (
            self._next_ms,
            self._tries,
            self._ends,
            self._refused_ms,
            self._held_ms,
            self._canceled,
            self._answers,
            self._asked_ms,
        )  # by intent

    def is_due(self, intent: Intent) -> bool:
        """One that waits for a person is due when the events have told after all that it is an order."""
        if intent.state == "quarantined":
            return intent.id in self.mirror.trades_by_key
        return self.pacer.mono_ms() >= self._next_ms.get(intent.id, 0)

    def forget(self, live: Collection[str]) -> None:
        """What is kept of intents that are none any more: voided by a reset, say."""
        for kept in self._kept:
            for intent_id in [one for one in kept if one not in live]:
                del kept[intent_id]

    def is_seen(self, intent: Intent) -> bool:
        """Whether the events have told of its order."""
        return intent.action != "cancel" and intent.id in self.mirror.trades_by_key

    def accept_seen(self, intent: Intent) -> Intent:
        """Its order is told of: no reply is needed any more."""
        return self._told(self._accept(intent, self.mirror.trades_by_key[intent.id]), intent.state)

    async def send(self, intent: Intent) -> Intent:
        """Take the intent as far as it goes now: to its end, or to where the next pass goes on."""
        before = intent.state
        return self._told(await self._advance(intent), before)

    def mark(self, intents: Sequence[Intent]) -> dict[str, Intent]:
        """Write of several at once that they are about to leave, those of which nothing has to be asked before; each is carried on by `send_marked`."""
        ready = [intent for intent in intents if self._leaves_at_once(intent)]
        if len(ready) < 2:
            return {}
        return {intent.id: intent for intent in self.journal.intents.sending_all(ready, now_ms=self._now_ms())}

    async def send_marked(self, intent: Intent) -> Intent:
        """As `send`, of an intent that `mark` has written. One that the service accepts is written by `settle_answered`."""
        intent = await self._attempts(intent, is_marked=True)
        return intent if any(one is intent for one, _ in self._answered) else self._told(intent, "opened")

    def settle_answered(self) -> list[Intent]:
        """Write what the service has accepted since the last call, in one transaction."""
        answered, self._answered = self._answered, []
        if not answered:
            return []
        return [self._told(one, "sending") for one in self._accept_all(answered)]

    def _accept(self, intent: Intent, trade_id: str) -> Intent:
        if self._is_late(intent):
            return self._accept_all([(intent, trade_id)])[0]
        return self.journal.intents.accept(intent, trade_id, now_ms=self._now_ms())

    def _accept_all(self, answered: Sequence[tuple[Intent, str]]) -> list[Intent]:
        """They are orders; what the events have told of one under no name gets its name in the same transaction."""
        with self.journal.together():
            done = self.journal.intents.accept_all(answered, now_ms=self._now_ms())
            for one in filter(self._is_late, done):
                self.name(one)
        return done

    def _is_late(self, intent: Intent) -> bool:
        """Whether its events, which show no key, may have come before the answer that says which trade it is."""
        return not self.mirror.events_named

    def _told(self, intent: Intent, before: State) -> Intent:
        if intent.state in FINAL or intent.state == "quarantined":
            self._asked_ms.pop(intent.id, None)
        if intent.state in FINAL:
            for kept in self._kept:
                if kept:
                    kept.pop(intent.id, None)
        if intent.state != before:
            _tell(intent)
        return intent

    def give_up(self, intent: Intent) -> Intent:
        """End an entry of which nothing has left; one that may have, also by a lost journal's hand, is settled as ever, or by the next run."""
        if intent.action != "open" or not self.journal.intents.is_unsent(intent) or self.may_be_out(intent):
            return intent
        before = intent.state
        return self._told(self._end(intent, "expired", *self._ran_out(intent, _RUN_ENDED)), before)

    async def _advance(self, intent: Intent) -> Intent:
        if self.is_seen(intent):
            return self._accept(intent, self.mirror.trades_by_key[intent.id])  # The event came before the answer.
        if self._held_ms and (no := self._held_for_long(intent)) is not None:
            return await self._end_unsent(
                intent, "expired", no.code, f"{no.message} (nothing of it had left for a minute)"
            )
        if intent.state == "opened":
            intent = await self._prepare(intent)
        elif self._now_ms() >= intent.fence_ms and self._is_put_off(intent):
            why = _STALE_BAR if intent.confirm_token is None else _STALE_PLAN
            return await self._end_unsent(intent, "expired", *self._ran_out(intent, why))
        if intent.state in FINAL or (intent.state == "opened" and not self._may_leave(intent)):
            return intent
        if self._is_unwritten(intent):
            return intent  # Also one in doubt: what the memory holds of it would be lost with the process.
        if self._is_put_off(intent) and (self._is_held(intent) or self.time_left_ms() <= 0):
            return intent
        return await self._attempts(intent)

    def _leaves_at_once(self, intent: Intent) -> bool:
        """An intent that would be sent next, as it is: no plan is made of it, and nobody has seen it before."""
        if intent.state != "opened" or intent.id in self.mirror.trades_by_key or self._now_ms() > intent.not_after_ms:
            return False
        return self._may_leave(intent) and not self._is_unwritten(intent)

    def _is_put_off(self, intent: Intent) -> bool:
        """An entry that has a plan, or was put off by the service: whether it may leave is judged anew each time, for nothing of it has left."""
        if intent.action != "open" or intent.state == "opened":
            return False
        return self.journal.intents.is_unsent(intent) and (intent.state == "planned" or not self.may_be_out(intent))

    def _may_leave(self, intent: Intent) -> bool:
        return intent.path == "direct" and not self._is_held(intent)

    def _is_held(self, intent: Intent) -> bool:
        """An entry waits while nothing may be opened; its own end comes from its fence."""
        if intent.action != "open":
            return False
        no = self.risk.may_still_open(intent, self._now_ms()) or self.stopped(intent)
        if no is None and (wait_ms := self.entry_wait_ms()) > 0:  # What is left of the rate limit is for exits.
            self._next_ms[intent.id] = self.pacer.mono_ms() + wait_ms
            no = Refusal("rate_limited", f"no room for an entry for {wait_ms} ms")
        if no is None or self.of_its_own(intent) is None:
            self._held_ms.pop(intent.id, None)
        else:
            self._held_ms.setdefault(intent.id, self.pacer.mono_ms())
        if no is not None:
            log.info("intent.held", intent=intent.id, strategy=intent.strategy, market=intent.market, code=no.code)
        return no is not None

    def _held_for_long(self, intent: Intent) -> Refusal | None:
        """Why, where only its own strategy is kept from it, and for HELD_MS."""
        since_ms = self._held_ms.get(intent.id)
        if since_ms is None or self.pacer.mono_ms() - since_ms < HELD_MS:
            return None
        return self.of_its_own(intent) if intent.state == "opened" or self._is_put_off(intent) else None

    def _is_unwritten(self, intent: Intent) -> bool:
        """An entry whose journal is not on disk just now. Exits go on: they only reduce, and their keys are what they were."""
        return intent.action == "open" and self.journal.fault is not None

    # -- before anything leaves

    async def _prepare(self, intent: Intent) -> Intent:
        """Of an intent that was never sent: its plan, or its certain end."""
        if intent.id in self._ends:
            return await self._end_unsent(intent, *self._ends[intent.id])
        now_ms = self._now_ms()
        if now_ms > intent.not_after_ms:
            return await self._end_unsent(intent, "expired", *self._ran_out(intent, _STALE_BAR))
        if intent.path == "direct" or self._is_held(intent):
            return intent
        request = self._dry_run(intent.order())
        started_ms = self.pacer.mono_ms()
        for n in range(1, TRIES + 1):
            try:
                result = await self._asked(intent, self.port.plan(request, key=intent.id))
            except Refused as error:
                return await self._end_unsent(intent, "rejected", error.code, error.message)
            except (TryLater, OutcomeUnknown) as error:  # A dry run does nothing, so nothing is in doubt.
                self._answers[intent.id] = str(error)
                if not await self._waited(intent, n, started_ms, getattr(error, "after_ms", None)):
                    return intent
            else:
                break
        else:
            return intent
        self._answers.pop(intent.id, None)
        if not await self.may_confirm(intent, result.plan):
            return await self._end_unsent(intent, "rejected", "vetoed", "the strategy withdrew it when it saw the plan")
        expires_ms = result.expires_at if result.expires_at is not None else now_ms + PLAN_TTL_MS
        _tell_plan(intent, result.plan)
        if self.journal.keeps_traces:
            self.journal.trace(intent.id, "plan", result.plan.model_dump_json(exclude_none=True), at_ms=now_ms)
        return self.journal.intents.planned(intent, result.confirm_token, expires_ms, now_ms=now_ms)

    def _dry_run(self, order: OrderRequest) -> OrderRequest:
        """The same order as a question. The gate gives the very same object for the same wish, so one of them is kept."""
        if self._planned is None or self._planned[0] is not order:
            self._planned = order, order.model_copy(update={"dry_run": True})
        return self._planned[1]

    def _ran_out(self, intent: Intent, why: tuple[str, str]) -> tuple[str, str]:
        """Code and words of what ran out, with what the service said last."""
        code, message = why
        said = self._answers.get(intent.id)
        return code, message if said is None else f"{message} ({said})"

    async def _end_unsent(self, intent: Intent, state: State, code: str, message: str) -> Intent:
        """The end of an intent that this journal has never sent. One before it, that was lost, may have: then its order is this one's.
        So may the run before, when it is an exit: those go also while the journal cannot be written.

        While a request of the lost one may still be on its way, the end waits for its fence, and nothing is asked for meanwhile.
        """
        if self._is_of_before(intent) or (intent.action == "close" and intent.id in self.inherited):
            try:
                found = await self.search(intent)
            except AccessLost:
                raise
            except ApiError:  # Asked again in the next pass; nothing leaves meanwhile.
                return intent
            if found.trade_id is not None:
                return self._accept(intent, found.trade_id)
            if self.may_be_out(intent) and self._now_ms() <= self._old_fence_ms(intent) + SETTLE_MS:
                self._ends[intent.id] = state, code, message
                self._next_ms[intent.id] = self.pacer.mono_ms() + LOOK_MS
                return intent
        return self._end(intent, state, code, message)

    def may_be_out(self, intent: Intent) -> bool:
        """Whether a request of a lost journal for the same may still be on its way, up to its fence."""
        return self.is_cut and self._is_of_before(intent)

    def _is_of_before(self, intent: Intent) -> bool:
        """Whether it was decided for an instant at which this journal did not exist: one that was lost may have sent the same."""
        return _decided_for_ms(intent) <= self.begun_ms

    def _old_fence_ms(self, intent: Intent) -> int:
        """After this instant the service refuses what a lost journal had sent: an older request has an earlier end, an older plan an earlier token."""
        limits = self.risk.strategy_limits.get(intent.strategy)
        if intent.action == "open" and limits is not None and limits.path == "plan":
            return min(intent.not_after_ms, self.begun_ms + PLAN_TTL_MS)
        return intent.not_after_ms

    # -- sending and settling

    async def _attempts(self, intent: Intent, *, is_marked: bool = False) -> Intent:
        """`is_marked`: the first of them is written already, and if it is the last, its acceptance is left to `settle_answered`."""
        started_ms = self.pacer.mono_ms()
        for n in range(1, TRIES + 1):
            is_first_of_wave = is_marked and n == 1
            is_another_out = self.may_be_out(intent)
            ambiguous_before = is_another_out or (not is_first_of_wave and self.journal.intents.is_ambiguous(intent))
            if not is_first_of_wave:
                intent = self.journal.intents.sending(intent, now_ms=self._now_ms())
            if self._is_unwritten(intent):  # This very write has failed: nothing has left.
                self.journal.intents.attempt_ended(intent, "no", code="journal_fault", order_submitted=False)
                return intent
            try:
                trade_id = await self._request(intent)
            except _Cut:
                self.journal.intents.attempt_ended(intent, "no", code="no_time", order_submitted=False)
                return intent
            except ApiError as error:
                fence_ms = max(intent.fence_ms, self._old_fence_ms(intent)) if is_another_out else intent.fence_ms
                fences = Fences(fence_ms, keys_proven=self.mirror.keys_proven)
                move = settle_move(error, ambiguous_before=ambiguous_before, now_ms=self._now_ms(), fences=fences)
                intent = await self._settle(intent, move, error, is_past=fences.passed(self._now_ms()))
            else:
                if is_first_of_wave:
                    self._answered.append((intent, trade_id))
                    return intent
                return self._accept(intent, trade_id)
            if intent.state in FINAL or intent.state == "quarantined":
                return intent
            if not await self._waited(intent, n, started_ms, move.after_ms if isinstance(move, Again) else None):
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
        """One request of the intent; the id of its trade."""
        if intent.action == "cancel":
            return await self._cancel(intent)
        if intent.action == "close":
            request = self.port.close(intent.market, intent.close(), key=intent.id, expires_at_ms=intent.not_after_ms)
        elif intent.confirm_token is not None:
            request = self.port.confirm(intent.confirm_token, key=intent.id, expires_at_ms=intent.token_expires_ms)
        else:
            request = self.port.place(intent.order(), key=intent.id, expires_at_ms=intent.not_after_ms)
        return (await self._asked(intent, request)).trade.id

    async def _asked(self, intent: Intent, request: Coroutine[Any, Any, T]) -> T:
        """The reply to a request that may order something. Until an outcome is known, the time since the first one counts."""
        self._asked_ms.setdefault(intent.id, self.pacer.mono_ms())
        try:
            reply = await self.ask(intent, request)
        except ApiError as error:
            if error.code == "rate_limited":  # The service works, and there is no room.
                self._asked_ms.pop(intent.id, None)
            raise
        self._asked_ms.pop(intent.id, None)
        return reply

    def without_outcome(self, for_ms: int) -> dict[str, str]:
        """Ids of the intents of which something was sent, and for so long no outcome is known; and what was said last."""
        if not self._asked_ms:
            return {}
        now_ms = self.pacer.mono_ms()
        return {
            one: self._answers.get(one, "no reply yet")
            for one, since_ms in self._asked_ms.items()
            if now_ms - since_ms >= for_ms
        }

    async def _cancel(self, intent: Intent) -> str:
        """Cancels are idempotent by nature: an order that is not there any more is what was wanted. _Cut when the pass has no time for all of them."""
        oids = intent.cancel().oids
        done = self._canceled.setdefault(intent.id, set())
        await self._asked(intent, self._cancel_each([oid for oid in oids if oid not in done], done))
        return oids[0]

    async def _cancel_each(self, oids: Sequence[str], done: set[str]) -> None:
        for n, oid in enumerate(oids):
            if n and not self.may_go_on():
                raise _Cut
            try:
                await self.port.cancel(oid)
            except Refused as error:
                if error.code != "not_found":
                    raise
            done.add(oid)

    async def _settle(self, intent: Intent, move: Move, error: ApiError, *, is_past: bool) -> Intent:
        match move:
            case Accept(trade_id):
                return self._accept(intent, trade_id)
            case End(state, code, message):
                return self._end(intent, state, code, message)
            case Look(absent, doubt):
                return await self._look(intent, absent, error, doubt=doubt, is_past=is_past)
            case Again(doubt):
                self._leave(intent, error, doubt=doubt)
                return intent
            case _:
                self._leave(intent, error, doubt=False)
                raise error

    async def _look(
        self, intent: Intent, absent: End | str | None, error: ApiError, *, doubt: bool, is_past: bool
    ) -> Intent:
        """`is_past`: its fence has passed, so that the service tells now or never; then what it cannot tell is for a person."""
        try:
            found = await self.search(intent)
        except AccessLost:
            raise
        except ApiError as no:  # Away: asked again. Refused again and again: it will not tell.
            found = Search(None, is_proof=False)
            is_refused = isinstance(no, Refused) and no.code != NO_ERROR_OBJECT
            now_ms = self.pacer.mono_ms()
            is_past = is_past and is_refused and now_ms - self._refused_ms.setdefault(intent.id, now_ms) >= UNTOLD_MS
        else:
            self._refused_ms.pop(intent.id, None)
        if found.trade_id is not None:
            return self._accept(intent, found.trade_id)
        if absent is not None and found.is_proof:
            if isinstance(absent, End):
                return self._end(intent, absent.state, absent.code, absent.message)
            return self._end(intent, "quarantined", error.code, f"{OTHERWISE} ({error.message})")
        if is_past:
            return self._end(intent, "quarantined", error.code, f"{UNTOLD} ({error.message})")
        self._leave(intent, error, doubt=doubt)
        return intent

    async def search(self, intent: Intent) -> Search:
        """Look for our key among the trades since the intent was written."""
        seen = self.mirror.trades_by_key.get(intent.id)
        if seen is not None:
            return Search(seen, is_proof=True)
        if intent.action == "cancel":  # It never makes a trade.
            return Search(None, is_proof=True)
        before: int | None = None
        nameless = False
        for _ in range(TRADES_PAGES_MAX):
            page = await self.ask(intent, self.port.trades(limit=TRADES_PAGE_MAX, before=before, coin=intent.market))
            others = self.mirror.keys_of(trade.id for trade in page.trades)  # orders of ours whose answer came
            for trade in page.trades:
                if trade.idempotency_key == intent.id:
                    self.mirror.see_trade(intent.id, trade.id)
                    return Search(trade.id, is_proof=True)
                is_known = (intent.market, trade.id, trade.intent) in others
                nameless = nameless or (_may_be_ours(trade, intent) and not is_known)
            before = page.next_before
            if before is None or (page.trades and _is_older(page.trades[-1], intent)):
                # A service that has never shown a key may have our order under no name.
                return Search(None, is_proof=self.mirror.keys_proven or not nameless)
        return Search(None, is_proof=False)

    def _end(self, intent: Intent, state: State, code: str, message: str) -> Intent:
        assert state in ("rejected", "expired", "void", "quarantined")
        now_ms = self._now_ms()
        if code == "below_min_notional" and self._is_small_share(intent):
            message = f"{message}. {SMALL_SHARE}"
        if state != "quarantined":
            return self.journal.intents.end(intent, state, code, message, now_ms=now_ms)
        said = notice(
            "intent.quarantined", intent.id, at_ms=now_ms, market=intent.market, strategy=intent.strategy, code=code, message=message,
        )  # fmt: skip
        with self.journal.together():
            self.journal.notify([said], now_ms=now_ms)
            return self.journal.intents.end(intent, state, code, message, now_ms=now_ms)

    def _is_small_share(self, intent: Intent) -> bool:
        """Whether it was to close all that its strategy has of a shared position."""
        limits = self.risk.strategy_limits.get(intent.strategy)
        if intent.action != "close" or limits is None or not limits.nets:
            return False
        size, share = intent.close().size, self.risk.attribution.share(intent.market, intent.strategy)
        return size is not None and share is not None and Decimal(size) >= share.size

    def _leave(self, intent: Intent, error: ApiError, *, doubt: bool) -> None:
        self._answers[intent.id] = str(error)
        self.journal.intents.attempt_ended(
            intent, "unknown" if doubt else "no", code=error.code, order_submitted=error.order_submitted
        )

    async def _waited(self, intent: Intent, n: int, started_ms: int, after_ms: int | None) -> bool:
        """Wait before try n + 1, when there is time for it; else a later pass goes on when it is due."""
        tries = self._tries[intent.id] = self._tries.get(intent.id, 0) + 1
        wait_ms = max(after_ms or 0, self.pacer.delay_ms(tries))
        if intent.action != "open":
            wait_ms = min(wait_ms, EXIT_AGAIN_MS)
        now_ms = self.pacer.mono_ms()
        self._next_ms[intent.id] = now_ms + wait_ms
        left_ms = started_ms + WINDOW_MS - now_ms
        if intent.action == "open":
            left_ms = min(left_ms, self.time_left_ms())
        if n == TRIES or wait_ms > left_ms:
            return False
        await self.ask(intent, self.pacer.sleep(wait_ms))
        return True


def _decided_for_ms(intent: Intent) -> int:
    """The instant of the bar or timer that it was decided on; of anything else, when it was opened."""
    at = intent.trigger.rpartition(":")[2]
    return int(at) if at.isdecimal() else intent.opened_ms


def _may_be_ours(trade: Trade, intent: Intent) -> bool:
    return trade.idempotency_key is None and trade.source is not None and not _is_older(trade, intent)


def _is_older(trade: Trade, intent: Intent) -> bool:
    """Whether it was there before the intent was written."""
    return trade.ts is not None and trade.ts < intent.opened_ms - AHEAD_MS


def _tell(intent: Intent) -> None:
    if intent.state != "quarantined" and not logs.is_said(logs.INFO):
        return
    said = {"code": intent.code, "message": intent.message} if intent.code else {}
    tell = log.info
    if intent.state == "quarantined":
        said["way_out"], tell = WAY_OUT, log.error
    tell(
        f"intent.{intent.state}", intent=intent.id, strategy=intent.strategy, market=intent.market, action=intent.action,
        trade=intent.trade_id, **said,
    )  # fmt: skip


def _tell_plan(intent: Intent, plan: Plan) -> None:
    if not logs.is_said(logs.INFO):
        return
    bracket = plan.bracket
    stop = None if bracket is None or bracket.stop_loss is None else bracket.stop_loss.px
    target = None if bracket is None or bracket.take_profit is None else bracket.take_profit.px
    shown = {"size": plan.size, "est_px": plan.est_px, "stop_px": stop, "target_px": target, "fee_usd": plan.fee_usd}
    figures = {name: format_decimal(value) for name, value in shown.items() if value is not None}
    log.info(
        "intent.planned", intent=intent.id, strategy=intent.strategy, market=intent.market, side=plan.side, **figures
    )

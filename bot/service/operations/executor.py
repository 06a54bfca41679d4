"""The base of all operations: the machine, the caller's context, and the idempotent execution of commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from bot.clock import SystemClock
from bot.errors import Refusal
from bot.money import parse_e8
from bot.service.bodies.read_access import peek
from bot.service.bodies.responses import DOUBT, OperationRefused, ServiceAnswer, invalid, refuse, status_of
from bot.service.security.auth import Principal
from bot.service.security.rate_limits import RateLimits
from bot.service.state_machine.command_log import StoredReply
from bot.service.state_machine.machine import Machine
from bot.venue.exchange.action_answers import answer_of
from bot.venue.model.commands import Command
from bot.venue.model.refusals import no_market
from bot.venue.model.state import VenueAccount, VenueKey
from bot.venue.orders import exchange_actions
from bot.venue.orders.exchange_actions import ActionsSent
from bot.wire.headers import IDEMPOTENCY_REPLAYED_HEADER, REQUEST_ID_HEADER
from bot.wire.vocabulary import bare_coin

# An exchange has so long to decide a request. The client waits 15 s for its answer.
DECIDED_SECONDS: Final = 8.0
# status of a stored answer without a body
UNDECIDED_STATUS: Final = 0
IN_DOUBT: Final = Refusal(
    "service_unavailable",
    "the exchange has not decided this in time: it may still be done; send the same request with the same"
    " Idempotency-Key again",
    fix={"action": "wait", "seconds": 2},
    details={"reason": DOUBT},
)
IN_FLIGHT: Final = Refusal(
    "idempotency_conflict",
    "the exchange has not decided the request with this Idempotency-Key yet; send it again",
    fix={"action": "wait", "seconds": 2},
    details={"reason": "in_flight"},
)
# characters of an unknown market's name in an error
NAME_SHOWN_MAX: Final = 80


class Context(NamedTuple):
    """The data of a request besides its body."""

    request_id: str
    idempotency_key: str | None = None
    expires_ms: int | None = None
    fingerprint: str = ""
    is_order: bool = False
    ip: str = "local"


class OperationExecutor:
    """The base class of all operations. Every method is synchronous, so no other request runs in the middle of one."""

    def __init__(self, machine: Machine, rate_limits: RateLimits, base_url: str) -> None:
        self.machine = machine
        self.rate_limits = rate_limits
        self.base_url = base_url
        # waits until an exchange has decided what was sent, at most so many seconds
        self.decided: Callable[[ActionsSent, float], Awaitable[None]] | None = None

    @property
    def docs(self) -> str:
        return f"{self.base_url}/docs"

    def account(self, principal: Principal) -> VenueAccount:
        return peek(self.machine.state, principal.account)

    def key(self, principal: Principal) -> VenueKey | None:
        """The caller's key; None for a session."""
        return None if principal.key is None else self.machine.state.keys[principal.key]

    def refresh(self) -> int:
        """Bring the state and its mark prices up to now, before a read. Returns now."""
        now = self.machine.catch_up()
        self.machine.show_marks()
        return now

    def coin(self, market: str) -> str:
        """The coin of a market's name, in any spelling. Refused if there is no such market."""
        coin = bare_coin(market)
        if coin not in self.machine.state.markets:
            raise OperationRefused(no_market(coin[:NAME_SHOWN_MAX], self.machine.state.markets))
        return coin

    def refusal(self, refusal: Refusal, context: Context) -> ServiceAnswer:
        return refuse(refusal, request_id=context.request_id, docs=self.docs, is_order=context.is_order)

    def decide(
        self,
        principal: Principal,
        context: Context,
        command: Callable[[int], Command | Refusal],
        answer_body: Callable[[Any, int], Any],
        *,
        replay: Callable[[Any, int], Any] | None = None,
    ) -> ServiceAnswer:
        """Run a caller's command once. `command(now)` returns the command or a refusal; `answer_body(answer, now)` is
        the body of a success.

        With an idempotency key a final answer is stored in the command's transaction. The same request then gets the
        same bytes again, or the body that `replay(answer, now)` made, which leaves out secrets.
        """
        now = self.machine.catch_up()
        key = context.idempotency_key
        if key is not None:
            stored = self._stored_answer(principal, key, context)
            if stored is not None:
                return stored
            if (sent := self._sent_before(principal, key)) is not None:
                return self._answered_later(principal, context, sent, answer_body, is_copy=True)
        asked = command(now)
        answer = asked if isinstance(asked, Refusal) else self.machine.run(asked)
        if isinstance(answer, ActionsSent):
            return self._answered_later(principal, context, answer, answer_body)
        if isinstance(answer, Refusal):
            result = self.refusal(answer, context)
            final = not status_of(answer)[1]
        else:
            result, final = ServiceAnswer.ok(answer_body(answer, now)), True
        if key is not None and final:
            shown = replay is None or isinstance(answer, Refusal)
            body = result.body if shown or replay is None else ServiceAnswer.ok(replay(answer, now)).body
            self._keep(principal, context, key, ServiceAnswer(result.status, body))
        return result

    # ── Requests that an exchange decides ───────────────────────────────────────────────────────────────────────────

    def _sent_before(self, principal: Principal, key: str) -> ActionsSent | None:
        """What a request with this key has sent, unless the exchange has refused it for now."""
        account = self.account(principal)
        return None if account.exchange is None else exchange_actions.sent_of_key(account, key)

    def _answered_later(
        self,
        principal: Principal,
        context: Context,
        sent: ActionsSent,
        answer_body: Callable[[Any, int], Any],
        *,
        is_copy: bool = False,
    ) -> ServiceAnswer:
        """The answer of a request whose actions the exchange decides. Until then its key is kept without a body."""
        if context.idempotency_key is not None and not is_copy:
            self._keep(principal, context, context.idempotency_key, ServiceAnswer(UNDECIDED_STATUS, b""))

        async def later() -> ServiceAnswer:
            assert self.decided is not None, "only a service with an exchange account has actions"
            await self.decided(sent, DECIDED_SECONDS)
            now = self.machine.catch_up()
            if context.idempotency_key is not None:
                stored = self._stored_answer(principal, context.idempotency_key, context)
                if stored is not None:
                    return stored
            return self._outcome(principal, context, sent, answer_body, now, is_copy=is_copy)

        return ServiceAnswer(UNDECIDED_STATUS, b"", later=later)

    def _outcome(
        self,
        principal: Principal,
        context: Context,
        sent: ActionsSent,
        answer_body: Callable[[Any, int], Any],
        now: int,
        *,
        is_copy: bool,
    ) -> ServiceAnswer:
        outcome = sent.answer or answer_of(self.machine.state, self.account(principal), sent)
        if outcome is None:
            return self.refusal(IN_FLIGHT if is_copy else IN_DOUBT, context)
        if isinstance(outcome, Refusal):
            result, final = self.refusal(outcome, context), not status_of(outcome)[1]
        else:
            result, final = ServiceAnswer.ok(answer_body(outcome, now)), True
        if context.idempotency_key is not None and final:
            self._keep(principal, context, context.idempotency_key, result)
        return result

    def _keep(self, principal: Principal, context: Context, key: str, answer: ServiceAnswer) -> None:
        epoch = self.account(principal).epoch
        reply = StoredReply(epoch, context.fingerprint, context.request_id, answer.status, answer.body)
        self.machine.log.keep_reply(principal.account, key, reply, SystemClock().now_ms())

    # ── Stored answers ──────────────────────────────────────────────────────────────────────────────────────────────

    def _stored_answer(self, principal: Principal, key: str, context: Context) -> ServiceAnswer | None:
        reply = self.machine.log.reply(principal.account, key)
        if reply is None:
            return None
        epoch = self.account(principal).epoch
        if reply.epoch != epoch:
            details = {"reason": "account_reset", "epoch": epoch}
            text = "the account was reset after this Idempotency-Key was used"
            return self.refusal(
                Refusal("idempotency_conflict", text, fix={"action": "resync"}, details=details), context
            )
        if reply.fingerprint != context.fingerprint:
            details = {"reason": "fingerprint"}
            text = "this Idempotency-Key was used for another request"
            return self.refusal(
                Refusal("idempotency_conflict", text, fix={"action": "new_key"}, details=details), context
            )
        if reply.status == UNDECIDED_STATUS:
            return None
        headers = {IDEMPOTENCY_REPLAYED_HEADER: "true", REQUEST_ID_HEADER: reply.request_id}
        return ServiceAnswer(reply.status, reply.body, headers)


def expired(context: Context, now_ms: int) -> Refusal | None:
    """Why a request after its X-Expires-After is refused, or None; for commands whose expiry the venue does not
    check.
    """
    if context.expires_ms is None or now_ms <= context.expires_ms:
        return None
    text = "the request arrived after its X-Expires-After"
    return Refusal("idempotency_conflict", text, details={"reason": "expired"})


def judged_e8(text: str) -> int:
    """The digits of an order's size or price as a scaled integer, for the venue to judge.

    Digits behind the eighth decimal are no fault of form. Such a number is on no step of a market, so the odd one of
    its neighbours stands for it: that one is on no step either, and the venue answers with the steps around it.
    """
    finer = text.partition(".")[2][8:]
    return parse_e8(text.removesuffix(finer)) | 1 if finer.strip("0") else parse_e8(text)


def parse_scaled(text: str, name: str, parse: Callable[[str], int]) -> int:
    """An amount of a body as a scaled integer. Refused if it has more than 8 decimals."""
    try:
        return parse(text)
    except ValueError:
        raise OperationRefused(invalid(name, "has more than 8 decimals", "at most 8 decimals")) from None

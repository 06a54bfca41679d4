"""Errors. A refusal is a value (`Refusal`). A fault is an exception that is named for what the caller does next.

    BotError
      ConfigError        the configuration cannot be used: stop
      StrategyError      a strategy does not load, or has raised: quarantine it
      JournalError       a decision can be kept nowhere: stop the heartbeats and the daemon
        JournalDamaged   the content of the journal cannot be trusted: set the file aside
        JournalBlocked   the file cannot be used now: continue in memory
      Declined           the service has refused an operator's request
      ApiError           the service did not execute a request
        Refused          a definite no: do not send the same request again
        OutcomeUnknown   the request may have been executed: ask with the same key
        TryLater         not executed: wait, then send the same request with the same key
        AccessLost       the credential is no longer valid: stop

A bug is no fault of this tree: it fails an `assert`. What happens after a 429 stands in `bot/client/limiter.py`.

One table, `CODES`, gives each of the interface's 18 codes its HTTP status, whether the same request may be sent again,
and the exception that the client raises for it. This module does not depend on a transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypedDict, Unpack

# None: the answer did not say whether the order was submitted
OrderSubmitted = Literal["unknown"] | bool | None

# a code of our own, for an error without the interface's error object
NO_ERROR_OBJECT: Final = "no_error_object"
# the wait if the service says "later" without a time
RETRY_AFTER_MS: Final = 1_000


class Exit(IntEnum):
    """Exit codes of the command line."""

    DONE = 0
    ERROR = 1
    # wrong usage, or the named object does not exist
    USAGE = 2
    # the daemon is not running
    NOT_RUNNING = 3
    CONFIG = 4
    TIMEOUT = 5
    # a position without its stop or its dead-man, or a journal that cannot be written
    UNSAFE = 6
    # refused by the service
    REFUSED = 7
    # ended early by Ctrl-C; shells use this code for SIGINT
    STOPPED = 130


@dataclass(frozen=True, slots=True)
class Refusal:
    """A definite no.

    `fix`: what would make the request pass. `details`: the figures behind it. Both use the interface's spelling.
    """

    code: str
    message: str
    fix: Mapping[str, Any] | None = None
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file that a person wrote.

    Line and column count from 1; `shown` is the line with a caret under the mistake.
    """

    file: str
    line: int
    column: int
    key: str
    message: str
    shown: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: "
        return where + (f"{self.key}: " if self.key else "") + self.message + (f"\n{self.shown}" if self.shown else "")


class BotError(Exception):
    """Base class of our faults. `exit_code`: the exit code of a command that does not catch the error."""

    exit_code: ClassVar[Exit] = Exit.ERROR


class ConfigError(BotError):
    """The configuration cannot be used: stop. `problems` has every problem, not only the first."""

    exit_code = Exit.CONFIG

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class StrategyError(BotError):
    """A strategy does not load, or has raised: quarantine it and notify.

    Other strategies go on; guardians stay armed.
    """


class JournalError(BotError):
    """A decision can be kept neither on disk nor in memory: stop the heartbeats and the daemon."""

    exit_code = Exit.UNSAFE


class JournalDamaged(JournalError):
    """The content of the journal cannot be trusted: set the file aside at the next start, and rebuild from the
    service.
    """


class JournalBlocked(JournalError):
    """The file cannot be used now (a full or read-only disk, a lock). Its content is sound."""


class Declined(BotError):
    """The service has refused an operator's request to the daemon. The message names the request."""

    exit_code = Exit.REFUSED


class ErrorFields(TypedDict, total=False):
    """What an answer may say of an error beside its code and its message. None: the answer does not say it."""

    request_id: str | None
    order_submitted: OrderSubmitted
    retryable: bool | None
    details: Mapping[str, Any] | None
    fix: Mapping[str, Any] | None
    status: int | None


class ApiError(BotError):
    """The service did not execute a request.

    Only its four subclasses are raised; the name of each tells the caller what to do next.
    """

    exit_code = Exit.REFUSED

    def __init__(
        self,
        code: str,
        message: str,
        request_id: str | None = None,
        order_submitted: OrderSubmitted = None,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
        fix: Mapping[str, Any] | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.request_id = request_id
        self.order_submitted = order_submitted
        self.retryable = retryable
        self.details = details
        self.fix = fix
        self.status = status

    @staticmethod
    def of(
        code: str, message: str, *, after_ms: int | None = None, reads: bool = False, **answer: Unpack[ErrorFields]
    ) -> ApiError:
        """The exception for an error object.

        The answer's own fields override the usual meaning of its code. `reads`: the request could change nothing, so
        its outcome is never in doubt. An unknown code is in doubt, unless its status is clear.
        """
        row, status, retryable = CODES.get(code), answer.get("status"), answer.get("retryable")
        order_submitted = answer.get("order_submitted")
        if retryable is None:
            retryable = row.retryable if row is not None else _passes(status, reads=reads)
        move = _move(row, order_submitted=order_submitted, retryable=retryable, status=status, reads=reads)
        status = status if status is not None or row is None else row.status
        request_id, details, fix = answer.get("request_id"), answer.get("details"), answer.get("fix")
        fields = (code, message, request_id, order_submitted, retryable, details, fix, status)
        if move is TryLater:
            return TryLater(*fields, after_ms=RETRY_AFTER_MS if after_ms is None else after_ms)
        return move(*fields)


class Refused(ApiError):
    """A definite no; nothing was executed. Do not send the same request again; `fix` may say what would pass."""


class OutcomeUnknown(ApiError):
    """The request may have been executed.

    Leave the intent open, ask with the same key or token, and reconcile. Never use a new key.
    """

    exit_code = Exit.TIMEOUT


class TryLater(ApiError):
    """Not executed, for a temporary reason. Wait `after_ms`, then send the same request with the same key."""

    exit_code = Exit.TIMEOUT

    def __init__(self, *args: Any, after_ms: int = RETRY_AFTER_MS, **named: Any) -> None:
        super().__init__(*args, **named)
        self.after_ms = after_ms


class AccessLost(ApiError):
    """The credential is no longer valid: stop the heartbeats and the daemon. The guardians stay armed."""


def is_access_lost(error: ApiError) -> bool:
    """True if the service refuses the credential itself, and so every request. Other refusals concern one request.

    An answer without an error object comes from a proxy and says nothing about the credential.
    """
    is_of_proxy = error.code == NO_ERROR_OBJECT
    return isinstance(error, AccessLost) or (
        isinstance(error, Refused) and error.status in (401, 403) and not is_of_proxy and not error.retryable
    )


class Code(NamedTuple):
    """What a code of the interface means, unless the answer says otherwise."""

    move: type[ApiError]
    status: int
    retryable: bool
    # True: with this code and no `orderSubmitted`, nothing was executed
    before_execution: bool


CODES: Final[Mapping[str, Code]] = {
    "invalid_input": Code(Refused, 400, retryable=False, before_execution=True),
    "unauthorized": Code(AccessLost, 401, retryable=False, before_execution=True),
    "session_expired": Code(AccessLost, 401, retryable=False, before_execution=True),
    "forbidden": Code(Refused, 403, retryable=False, before_execution=True),
    "key_limit_exceeded": Code(Refused, 403, retryable=False, before_execution=True),
    "not_found": Code(Refused, 404, retryable=False, before_execution=True),
    "rate_limited": Code(TryLater, 429, retryable=True, before_execution=True),
    "insufficient_funds": Code(Refused, 422, retryable=False, before_execution=True),
    "limit_exceeded": Code(Refused, 422, retryable=False, before_execution=True),
    "below_min_notional": Code(Refused, 422, retryable=False, before_execution=True),
    "leverage_too_high": Code(Refused, 422, retryable=False, before_execution=True),
    "insufficient_depth": Code(TryLater, 409, retryable=True, before_execution=False),
    "market_closed": Code(Refused, 409, retryable=False, before_execution=True),
    "plan_stale": Code(Refused, 409, retryable=False, before_execution=False),
    "idempotency_conflict": Code(Refused, 409, retryable=False, before_execution=False),
    "trade_failed": Code(Refused, 422, retryable=False, before_execution=False),
    "service_unavailable": Code(TryLater, 503, retryable=True, before_execution=False),
    "internal_error": Code(OutcomeUnknown, 500, retryable=True, before_execution=False),
}


def _passes(status: int | None, *, reads: bool) -> bool:
    """True if a request may be sent again, by its status alone, for an unknown code.

    A read may be repeated after any fault of the service.
    """
    return status in (429, 503) or (reads and status is not None and (status in (408, 425) or status >= 500))


def _move(
    row: Code | None, *, order_submitted: OrderSubmitted, retryable: bool, status: int | None, reads: bool
) -> type[ApiError]:
    """The exception class: by what the answer says about the order, else by its code.

    Otherwise the outcome is unknown.
    """
    if row is not None and row.move is AccessLost:
        return AccessLost
    if reads or order_submitted is False:
        return TryLater if retryable else Refused
    if order_submitted is not None:
        # True is unknown too: the order exists, and only the account state shows its outcome.
        return OutcomeUnknown
    if row is None:
        return AccessLost if status == 401 else TryLater if status == 429 else OutcomeUnknown
    return row.move if row.before_execution else OutcomeUnknown

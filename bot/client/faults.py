"""Decides what the outcome of a request means for its order: one pure function over what the client observed. Sends
nothing, waits for nothing.

The rule behind every row: a missing answer proves nothing. An outcome that is not listed is UNKNOWN, and UNKNOWN never
means "not placed".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bot.errors import CODES, AccessLost, ApiError, OrderSubmitted, OutcomeUnknown, Refused, TryLater
from bot.wire.errors import ErrorBody


class FailureKind(StrEnum):
    """How an exchange failed without an answer."""

    # includes name resolution and TLS
    CONNECT = "connect_error"
    CONNECT_TIMEOUT = "connect_timeout"
    POOL_TIMEOUT = "pool_timeout"
    READ = "read_error"
    READ_TIMEOUT = "read_timeout"
    WRITE = "write_error"
    WRITE_TIMEOUT = "write_timeout"
    CLOSE = "close_error"
    PROTOCOL_REMOTE = "remote_protocol_error"
    PROTOCOL_LOCAL = "local_protocol_error"
    PROXY = "proxy_error"
    UNSUPPORTED = "unsupported_protocol"
    DECODING = "decoding_error"
    REDIRECTS = "too_many_redirects"
    TOO_LARGE = "reply_too_large"
    TOTAL_TIMEOUT = "total_timeout"
    CANCELLED = "cancelled"
    # a process died after it had recorded the request; the start finds it open
    CRASHED = "crashed"
    OTHER = "transport_error"


class TransportFault(Exception):
    """The exchange ended without an answer."""

    def __init__(self, fault: FailureKind, message: str) -> None:
        super().__init__(f"{fault}: {message}" if message else str(fault))
        self.fault = fault
        self.message = message


NOT_SENT_FAULTS: Final = frozenset({FailureKind.CONNECT, FailureKind.CONNECT_TIMEOUT, FailureKind.POOL_TIMEOUT})


class Verdict(StrEnum):
    """What is certain about a request, and what the caller does next."""

    # use the answer
    DONE = "done"
    # no byte was sent: repeat with the same key
    NOT_SENT = "not_sent"
    # the order may be live: repeat with the same key, then look the order up
    UNKNOWN = "unknown"
    # the order exists: look it up by its key until found; never use a new key
    EXISTS = "exists"
    # not placed for a passing reason: repeat with the same key until not_after
    RETRY = "retry"
    # the first copy is still running: wait, then repeat with the same key
    IN_FLIGHT = "in_flight"
    # a final no
    REFUSED = "refused"
    # this request was refused, but an earlier copy may still arrive: in doubt until the expiry
    UNPROVEN = "unproven"
    # the key belongs to another body: adopt that order, or quarantine the intent
    FINGERPRINT = "fingerprint"
    USED_TOKEN = "used_token"  # noqa: S105  the token has executed: details name the trade
    # an account reset voided the key: certain
    FENCED_VOID = "fenced_void"
    # the request arrived after its expiry and will never run: certain
    FENCED_EXPIRED = "fenced_expired"
    # not executed: repeat with a new credential and the same key
    ACCESS_LOST = "access_lost"


# If an error has one of these codes and a requestId, nothing was executed, even if orderSubmitted is missing.
BEFORE_EXECUTION: Final = frozenset(code for code, row in CODES.items() if row.before_execution)

# Refusals that our service stores with the key, so that a late copy gets the same answer. It stores no refusals of
# schema, authentication or rate.
STORED_REFUSALS: Final = frozenset(
    {
        "insufficient_funds",
        "limit_exceeded",
        "below_min_notional",
        "leverage_too_high",
        "market_closed",
        "plan_stale",
        "trade_failed",
    }
)

ACCESS_CODES: Final = frozenset(code for code, row in CODES.items() if row.move is AccessLost)

# by details.reason of idempotency_conflict
CONFLICTS: Final[Mapping[str, Verdict]] = {
    "in_flight": Verdict.IN_FLIGHT,
    "fingerprint": Verdict.FINGERPRINT,
    "used_token": Verdict.USED_TOKEN,
    "account_reset": Verdict.FENCED_VOID,
    "expired": Verdict.FENCED_EXPIRED,
}


@dataclass(frozen=True, slots=True)
class Observation:
    """What the client observed of one attempt: a transport fault, or a status with an error object, or a status with
    a readable or unreadable body.
    """

    fault: FailureKind | None = None
    status: int | None = None
    body_valid: bool = False
    # The code of the error object; None without one (a proxy's page, an empty body).
    code: str | None = None
    order_submitted: OrderSubmitted = None
    retryable: bool | None = None
    # details.reason
    reason: str | None = None

    @staticmethod
    def of_error(status: int, body: ErrorBody) -> Observation:
        reason = (body.details or {}).get("reason")
        return Observation(
            status=status,
            code=body.code,
            order_submitted=body.order_submitted,
            retryable=body.retryable,
            reason=reason if isinstance(reason, str) else None,
        )


def classify(
    seen: Observation, *, after_ambiguous: bool = False, fenced: bool = False, stores_refusals: bool = True
) -> Verdict:
    """The verdict on one attempt.

    `after_ambiguous`: the outcome of an earlier attempt of the same intent is unknown. Then a refusal is final only if
    the service stores it with the key (`stores_refusals`, true for ours) or the order's expiry has passed (`fenced`:
    not_after, or the token's expiry).
    """
    verdict = _alone(seen)
    if verdict is not Verdict.REFUSED or not after_ambiguous or fenced:
        return verdict
    is_stored = stores_refusals and seen.code in STORED_REFUSALS and seen.status not in (401, 403, 429)
    return Verdict.REFUSED if is_stored else Verdict.UNPROVEN


def _alone(seen: Observation) -> Verdict:
    if seen.fault is not None:
        return Verdict.NOT_SENT if seen.fault in NOT_SENT_FAULTS else Verdict.UNKNOWN
    if seen.status is None or seen.status < 400:
        done = seen.status is not None and 200 <= seen.status < 300 and seen.body_valid
        return Verdict.DONE if done else Verdict.UNKNOWN
    if seen.code is None:
        return Verdict.UNKNOWN
    if seen.code == "idempotency_conflict" and seen.reason is not None and seen.reason in CONFLICTS:
        verdict = CONFLICTS[seen.reason]
        contradicted = verdict is Verdict.FENCED_EXPIRED and seen.order_submitted is True
        return Verdict.EXISTS if contradicted else verdict
    if seen.order_submitted is True:
        return Verdict.EXISTS
    if seen.order_submitted is not None and seen.order_submitted is not False:
        return Verdict.UNKNOWN
    if seen.order_submitted is None and seen.code not in BEFORE_EXECUTION:
        return Verdict.UNKNOWN
    # Below, the order was not placed; the question is whether a repeat may succeed.
    if seen.retryable is True:
        return Verdict.RETRY
    if seen.code in ACCESS_CODES:
        return Verdict.ACCESS_LOST
    if seen.code == "rate_limited" and (seen.order_submitted is None or seen.retryable is None):
        return Verdict.RETRY
    if seen.retryable is None and seen.code not in BEFORE_EXECUTION:
        return Verdict.RETRY
    return Verdict.REFUSED


MOVES: Final[Mapping[Verdict, type[ApiError]]] = {
    Verdict.NOT_SENT: TryLater,
    Verdict.UNKNOWN: OutcomeUnknown,
    Verdict.EXISTS: OutcomeUnknown,
    Verdict.RETRY: TryLater,
    Verdict.IN_FLIGHT: TryLater,
    Verdict.REFUSED: Refused,
    Verdict.UNPROVEN: OutcomeUnknown,
    Verdict.FINGERPRINT: OutcomeUnknown,
    Verdict.USED_TOKEN: OutcomeUnknown,
    Verdict.FENCED_VOID: Refused,
    Verdict.FENCED_EXPIRED: Refused,
    Verdict.ACCESS_LOST: AccessLost,
}

# attribute of the exception, for `verdict_of`
_CARRIED = "_observation"


def carry(error: ApiError, seen: Observation) -> ApiError:
    """Attach the observation to the exception, for `verdict_of`."""
    error.__dict__[_CARRIED] = seen
    return error


def observation_of(error: ApiError) -> Observation:
    """The observation of an exception. Rebuilt from its fields if the client did not raise it."""
    seen = error.__dict__.get(_CARRIED)
    if isinstance(seen, Observation):
        return seen
    if error.code in {str(fault) for fault in FailureKind}:
        return Observation(fault=FailureKind(error.code))
    details: Mapping[str, Any] = error.details or {}
    reason = details.get("reason")
    row = CODES.get(error.code)
    return Observation(
        status=error.status or (row.status if row is not None else 500),
        code=error.code,
        order_submitted=error.order_submitted,
        retryable=error.retryable,
        reason=reason if isinstance(reason, str) else None,
    )


def verdict_of(
    error: ApiError, *, after_ambiguous: bool = False, fenced: bool = False, stores_refusals: bool = True
) -> Verdict:
    """The verdict on the attempt that raised `error`. Arguments as in `classify`."""
    seen = observation_of(error)
    return classify(seen, after_ambiguous=after_ambiguous, fenced=fenced, stores_refusals=stores_refusals)


def crashed() -> Observation:
    """The observation of an attempt that was open when the process died."""
    return Observation(fault=FailureKind.CRASHED)

"""What an outcome of a request that acts means for the order: one total, pure function over what was seen. No sending and no waiting here.

The rule behind every row: absence is no proof. What is not listed is UNKNOWN, and UNKNOWN is never a no.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bot.errors import CODES, AccessLost, ApiError, OrderSubmitted, OutcomeUnknown, Refused, TryLater
from bot.wire.errors import ErrorBody


class Fault(StrEnum):
    """How an exchange ended without an answer."""

    CONNECT = "connect_error"  # name resolution and TLS are part of connecting
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
    CRASHED = "crashed"  # found at start: sent, or not, by a process that is gone
    OTHER = "transport_error"


class TransportFault(Exception):
    """The exchange ended without an answer."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(f"{fault}: {message}" if message else str(fault))
        self.fault = fault
        self.message = message


NOT_SENT_FAULTS: Final = frozenset({Fault.CONNECT, Fault.CONNECT_TIMEOUT, Fault.POOL_TIMEOUT})


class Verdict(StrEnum):
    """What is certain, and so the next move."""

    DONE = "done"  # take the answer
    NOT_SENT = "not_sent"  # no byte of the request left: same key again
    UNKNOWN = "unknown"  # it may be live: same key again, then look it up
    EXISTS = "exists"  # the order is there: look it up by its key until found, never a new key
    RETRY = "retry"  # not placed, for a reason that may pass: same key again until not_after
    IN_FLIGHT = "in_flight"  # the first copy still runs: wait, same key again
    REFUSED = "refused"  # a final no
    UNPROVEN = (
        "unproven"  # a no to this copy, but an earlier one may still be on its way: stay in doubt until the fence
    )
    FINGERPRINT = "fingerprint"  # the key stands for another body: adopt that order, or quarantine
    USED_TOKEN = "used_token"  # noqa: S105  the token has executed: details name the trade
    FENCED_VOID = "fenced_void"  # a reset wiped the account: definite
    FENCED_EXPIRED = "fenced_expired"  # it came too late to run, and will not run later: definite
    ACCESS_LOST = "access_lost"  # not executed: a new credential, then the same key


# With one of these codes and a requestId, nothing was executed, though orderSubmitted is absent.
BEFORE_EXECUTION: Final = frozenset(code for code, row in CODES.items() if row.before_execution)

# Refusals that our service keeps with the key, so that a late copy meets the same no. Those of the edge (schema, access, rate) are not kept.
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

CONFLICTS: Final[Mapping[str, Verdict]] = {  # details.reason of idempotency_conflict
    "in_flight": Verdict.IN_FLIGHT,
    "fingerprint": Verdict.FINGERPRINT,
    "used_token": Verdict.USED_TOKEN,
    "account_reset": Verdict.FENCED_VOID,
    "expired": Verdict.FENCED_EXPIRED,
}


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of one attempt: a transport fault, or a status with an error object, or a status with a body that reads or not."""

    fault: Fault | None = None
    status: int | None = None
    body_valid: bool = False
    code: str | None = None  # of the error object; None: there was none (a proxy's page, an empty body)
    order_submitted: OrderSubmitted = None
    retryable: bool | None = None
    reason: str | None = None  # details.reason

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

    `after_ambiguous`: an earlier attempt of the same intent ended in doubt. Then a refusal is final only if the service keeps
    it with the key (`stores_refusals`, true of our service) or the fence has passed (`fenced`: not_after, the token's expiry).
    """
    verdict = _alone(seen)
    if verdict is not Verdict.REFUSED or not after_ambiguous or fenced:
        return verdict
    kept = stores_refusals and seen.code in STORED_REFUSALS and seen.status not in (401, 403, 429)
    return Verdict.REFUSED if kept else Verdict.UNPROVEN


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
    # From here on it was not placed; what is left is whether the same request may pass later.
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

_CARRIED = "_observation"  # kept on the exception, so that a later judgement sees all of what was seen


def carry(error: ApiError, seen: Observation) -> ApiError:
    """The exception with what was seen attached, for `verdict_of`."""
    error.__dict__[_CARRIED] = seen
    return error


def observation_of(error: ApiError) -> Observation:
    """What was seen when this was raised; rebuilt from its fields when it was not raised by the client."""
    seen = error.__dict__.get(_CARRIED)
    if isinstance(seen, Observation):
        return seen
    if error.code in {str(fault) for fault in Fault}:
        return Observation(fault=Fault(error.code))
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
    """The verdict on the attempt that raised `error`; the arguments as in `classify`."""
    seen = observation_of(error)
    return classify(seen, after_ambiguous=after_ambiguous, fenced=fenced, stores_refusals=stores_refusals)


def crashed() -> Observation:
    """An attempt found open at start."""
    return Observation(fault=Fault.CRASHED)

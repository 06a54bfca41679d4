"""What a reply means for an intent: one pure function over every error code. It sends nothing and writes nothing.

The rule (docs/reliability.md): evidence settles an order, never age or a number of tries. An order that is not found is
evidence only after the fence, when the service refuses every copy of the request that may still arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bot.errors import CODES, AccessLost, ApiError, OutcomeUnknown, TryLater

# wait after the fence, so that a search finds an order that was accepted at the last instant
SETTLE_MS: Final = 5_000

# Refusals that the service stores under the key: a late copy of the request gets the same reply.
STORED: Final = frozenset(
    {
        "insufficient_funds",
        "limit_exceeded",
        "below_min_notional",
        "leverage_too_high",
        "market_closed",
        "key_limit_exceeded",
        "trade_failed",
        "plan_stale",
    }
)

Final_ = Literal["rejected", "expired", "void"]


@dataclass(frozen=True, slots=True)
class Fences:
    """When a search without a result proves that no order exists. `ends_ms` is the token's expiry or X-Expires-After.

    `keys_proven`: this service has shown our keys on trades.
    """

    ends_ms: int
    keys_proven: bool = False

    def passed(self, now_ms: int) -> bool:
        return now_ms > self.ends_ms + SETTLE_MS


@dataclass(frozen=True, slots=True)
class Accept:
    """The order exists."""

    trade_id: str


@dataclass(frozen=True, slots=True)
class End:
    """Proven: no order exists and none will."""

    state: Final_
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Again:
    """Not settled: send the same request under the same key later. `doubt`: this attempt may have reached the venue."""

    doubt: bool
    after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Search the trades for the key.

    If a trade has it, the order exists. `absent`: what it proves if no trade has it (None: nothing yet).
    """

    absent: End | Literal["quarantined"] | None
    doubt: bool = True


@dataclass(frozen=True, slots=True)
class Stop:
    """The key has lost its access: the intent stays as it is and the run ends."""


Move = Accept | End | Again | Look | Stop


def settle_move(error: ApiError, *, ambiguous_before: bool, now_ms: int, fences: Fences) -> Move:
    """What to do after this error. `ambiguous_before`: an earlier attempt of this intent may have reached the venue.

    An error that is not listed leaves the outcome unknown, and unknown is never a refusal.
    """
    details = error.details or {}
    trade_id = details.get("tradeId")
    if isinstance(error, AccessLost):
        return Stop()
    if error.code == "idempotency_conflict":
        return _conflict(error, details.get("reason"), trade_id, now_ms=now_ms, fences=fences)
    if error.order_submitted is True:
        return Accept(str(trade_id)) if trade_id else Look(absent=None)
    if _is_unknown(error):
        return _doubt(error, now_ms=now_ms, fences=fences)
    if isinstance(error, TryLater):
        return _not_yet(error, ambiguous_before=ambiguous_before, now_ms=now_ms, fences=fences)
    return _no(error, ambiguous_before=ambiguous_before, now_ms=now_ms, fences=fences)


def _is_unknown(error: ApiError) -> bool:
    """True if this attempt may have had an effect: the error says so, or neither the error nor its code says that it
    had none.
    """
    if isinstance(error, OutcomeUnknown) or error.order_submitted == "unknown":
        return True
    if error.order_submitted is False:
        return False
    row = CODES.get(error.code)
    return not isinstance(error, TryLater) and (row is None or not row.before_execution)


def _conflict(error: ApiError, reason: object, trade_id: object, *, now_ms: int, fences: Fences) -> Move:
    if trade_id:
        # used_token: the token's one use was ours.
        return Accept(str(trade_id))
    if reason == "account_reset":
        return End("void", error.code, error.message)
    if reason == "fingerprint":
        # Another host made the same decision with other numbers, or we made a mistake. If there is no order, a person
        # must look.
        return Look(absent="quarantined")
    if reason == "used_token" or error.order_submitted is True:
        return Look(absent=None)
    if reason == "expired":
        return End("expired", error.code, error.message)
    move = _doubt(error, now_ms=now_ms, fences=fences)
    # While the service says in_flight, a copy is being executed, so an order that is not among the trades yet proves
    # nothing.
    return Look(absent=None) if reason == "in_flight" and isinstance(move, Look) else move


def _doubt(error: ApiError, *, now_ms: int, fences: Fences) -> Move:
    if fences.passed(now_ms):
        return Look(absent=End("expired", error.code, "not found after its fence"))
    return Again(doubt=True, after_ms=getattr(error, "after_ms", None))


def _not_yet(error: TryLater, *, ambiguous_before: bool, now_ms: int, fences: Fences) -> Move:
    if not fences.passed(now_ms):
        return Again(doubt=False, after_ms=error.after_ms)
    end = End("expired", error.code, error.message)
    return Look(absent=end, doubt=False) if ambiguous_before else end


def _no(error: ApiError, *, ambiguous_before: bool, now_ms: int, fences: Fences) -> Move:
    stale = error.code == "plan_stale" and now_ms >= fences.ends_ms
    end = End("expired" if stale else "rejected", error.code, error.message)
    if not ambiguous_before or (fences.keys_proven and error.code in STORED):
        return end
    if fences.passed(now_ms):
        return Look(absent=end, doubt=False)
    # The earlier copy may still arrive; after the fence it cannot.
    return Again(doubt=False)

"""Answers (status, body, headers) and refusals as the interface's error object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from bot.errors import CODES, Refusal
from bot.service.bodies.strict_json import dumps
from bot.wire.base import json_number
from bot.wire.errors import fields_of, message_of

# (status, retryable) by the reason of an idempotency_conflict.
CONFLICTS: Final[dict[str, tuple[int, bool]]] = {
    "in_flight": (409, True),
    "fingerprint": (422, False),
    "used_token": (409, False),
    "account_reset": (409, False),
    "expired": (409, False),
}

# details.reason of an answer to a request that an exchange has not decided in time
DOUBT: Final = "doubt"
# Amounts that are JSON numbers in a body, not text.
NUMBERS: Final = frozenset({"usdAmount", "fraction", "maxExposureUsd", "maxDailyNotionalUsd"})


class ServiceAnswer(NamedTuple):
    """A response. `body` is bytes, so that a replay is identical.

    `later`: an exchange decides the request, and the answer that is sent is what this returns.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})
    later: Callable[[], Awaitable[ServiceAnswer]] | None = None

    @staticmethod
    def ok(body: Any) -> ServiceAnswer:
        return ServiceAnswer(200, dumps(body))


class OperationRefused(Exception):
    """Carries a refusal out of an operation. `status` replaces the status of the code."""

    def __init__(self, refusal: Refusal, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.status = status
        self.headers = headers or {}


def status_of(refusal: Refusal) -> tuple[int, bool]:
    """(HTTP status, retryable) of a refusal."""
    if refusal.code == "idempotency_conflict":
        reason = str((refusal.details or {}).get("reason", "in_flight"))
        return CONFLICTS.get(reason, (409, False))
    row = CODES[refusal.code]
    if (refusal.details or {}).get("oauthError") == "authorization_pending":
        # the device polls again until a person has decided
        return row.status, True
    return row.status, row.retryable


def refuse(
    refusal: Refusal,
    *,
    request_id: str,
    docs: str,
    is_order: bool,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> ServiceAnswer:
    """The error object. On order routes it says whether an order was submitted."""
    own, retryable = status_of(refusal)
    error: dict[str, Any] = {
        "code": refusal.code,
        "message": refusal.message,
        "requestId": request_id,
        "retryable": retryable,
    }
    if is_order:
        error["orderSubmitted"] = submitted_by(refusal)
    error["docsUrl"] = f"{docs}/errors#{refusal.code}"
    if refusal.details is not None:
        error["details"] = refusal.details
    if refusal.fix is not None:
        error["fix"] = _as_sent(refusal.fix)
    return ServiceAnswer(own if status is None else status, dumps({"error": error}), headers or {})


def _as_sent(fix: Mapping[str, Any]) -> Mapping[str, Any]:
    """A fix whose value has the JSON type that the next request needs."""
    value = fix.get("value")
    if fix.get("field") not in NUMBERS or not isinstance(value, str):
        return fix
    return {**fix, "value": json_number(Decimal(value))}


def submitted_by(refusal: Refusal) -> bool | str:
    """Whether the refused request submitted an order."""
    if refusal.code == "internal_error" or (refusal.details or {}).get("reason") == DOUBT:
        return "unknown"
    if refusal.code == "idempotency_conflict":
        details = refusal.details or {}
        reason = details.get("reason")
        # A used key or token belongs to an order; a running copy may still make one.
        return (
            True if reason == "used_token" or details.get("tradeId") else "unknown" if reason == "in_flight" else False
        )
    return False


def invalid(field_: str, text: str, allowed: Any = None, *, fix: dict[str, Any] | None = None) -> Refusal:
    """The refusal of a bad field, query or header. The message and details.fields name it."""
    problem = {"field": field_, "problem": text, "allowed": allowed}
    return Refusal("invalid_input", f"{field_} {text}", fix=fix, details={"fields": [problem]})


def of_validation(error: ValidationError) -> Refusal:
    """A schema error as a refusal that names each field."""
    fields = fields_of(error)
    return Refusal("invalid_input", message_of(fields), details={"fields": list(fields)})

"""Answers: a status, a body and what came with it; a refusal as the interface's error object. Decides nothing, says everything."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from bot.errors import CODES, Refusal
from bot.service.views.strict_json import dumps
from bot.wire.base import json_number
from bot.wire.errors import fields_of, message_of

# What a reason of idempotency_conflict answers with: (status, retryable).
CONFLICTS: Final[dict[str, tuple[int, bool]]] = {
    "in_flight": (409, True),
    "fingerprint": (422, False),
    "used_token": (409, False),
    "account_reset": (409, False),
    "expired": (409, False),
}

# Amounts that a body writes as a JSON number, not as text.
NUMBERS: Final = frozenset({"usdAmount", "fraction", "maxExposureUsd", "maxDailyNotionalUsd"})


class Answer(NamedTuple):
    """What a caller gets. `body` is bytes, so that a replay is the very same."""

    status: int
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})

    @staticmethod
    def ok(body: Any) -> Answer:
        return Answer(200, dumps(body))


class Refused(Exception):
    """A refusal on its way out of an operation; carries the answer's status when it is not the code's own."""

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
        return row.status, True  # the device asks again until a person has decided
    return row.status, row.retryable


def refuse(
    refusal: Refusal,
    *,
    request_id: str,
    docs: str,
    is_order: bool,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """The error object. On order routes it always says whether an order was submitted."""
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
    return Answer(own if status is None else status, dumps({"error": error}), headers or {})


def _as_sent(fix: Mapping[str, Any]) -> Mapping[str, Any]:
    """A fix whose value can go into the next body as it is."""
    value = fix.get("value")
    if fix.get("field") not in NUMBERS or not isinstance(value, str):
        return fix
    return {**fix, "value": json_number(Decimal(value))}


def submitted_by(refusal: Refusal) -> bool | str:
    """What a refusal means for the order that was asked for."""
    if refusal.code == "internal_error":
        return "unknown"
    if refusal.code == "idempotency_conflict":
        details = refusal.details or {}
        reason = details.get("reason")
        # A used key or token knows its order; a copy that still runs may yet make one.
        return (
            True if reason == "used_token" or details.get("tradeId") else "unknown" if reason == "in_flight" else False
        )
    return False


def invalid(field_: str, text: str, allowed: Any = None, *, fix: dict[str, Any] | None = None) -> Refusal:
    """A bad field, query or header: named in the message and in details.fields."""
    problem = {"field": field_, "problem": text, "allowed": allowed}
    return Refusal("invalid_input", f"{field_} {text}", fix=fix, details={"fields": [problem]})


def of_validation(error: ValidationError) -> Refusal:
    """A broken schema as a refusal that names each field."""
    fields = fields_of(error)
    return Refusal("invalid_input", message_of(fields), details={"fields": list(fields)})

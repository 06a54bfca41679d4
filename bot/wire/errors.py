"""The error object, and its field list after a failed validation: each field in camelCase, with the allowed values.
bot.errors defines the codes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, get_args

from pydantic import BaseModel, ValidationError, field_validator

from bot.wire.base import AbsentNone, Request, Resource
from bot.words import many

# a body of 64 kB can break thousands of rules
FIELDS_SHOWN_MAX = 20
# The number of fields that the message names.
FIELDS_NAMED_MAX = 3
# Names that other venues use, and our field.
SYNONYMS = {"qty": "size", "quantity": "size", "notional": "usdAmount", "symbol": "market", "coin": "market"}


class ErrorBody(Resource):
    """The error object of every failed answer. An `order_submitted` with an undefined value is read as unknown."""

    code: str
    message: str
    request_id: str
    details: dict[str, Any] | None = AbsentNone
    retryable: bool | None = AbsentNone
    order_submitted: bool | Literal["unknown"] | None = AbsentNone
    docs_url: str | None = AbsentNone
    fix: dict[str, Any] | None = AbsentNone

    @field_validator("order_submitted", mode="before")
    @classmethod
    def _three_words(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, bool) else "unknown"

    @field_validator("retryable", mode="before")
    @classmethod
    def _boolean(cls, value: Any) -> Any:
        return value if isinstance(value, bool) else None

    @field_validator("details", "fix", mode="before")
    @classmethod
    def _object(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else None

    @field_validator("docs_url", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return value if isinstance(value, str) else None


class ErrorEnvelope(Resource):
    """The whole body of a failed answer."""

    error: ErrorBody


class FieldProblem(TypedDict):
    field: str
    problem: str
    allowed: Any


def fields_of(error: ValidationError) -> list[FieldProblem]:
    """One entry per broken field: its camelCase path, the problem, and the allowed values (None if there is no list
    or range).
    """
    model = _model_named(error.title)
    items = [item for item in error.errors(include_url=False) if not _is_long_enough(item)]
    return [_problem_of(item, model) for item in items[:FIELDS_SHOWN_MAX]]


def message_of(fields: list[FieldProblem]) -> str:
    """One sentence that names the first fields.

    Unknown names come first, because they often explain why another field is missing.
    """
    named = sorted(fields, key=lambda field: not field["problem"].startswith("is unknown"))[:FIELDS_NAMED_MAX]
    more = f" (and {len(fields) - len(named)} more)" if len(fields) > len(named) else ""
    return "; ".join(f"{field['field']} {field['problem']}" for field in named) + more


def _is_long_enough(item: Any) -> bool:
    """True if an array is too short only because pydantic left out its invalid entries.

    Each of those has a problem of its own.
    """
    if item["type"] != "too_short":
        return False
    least: int = item["ctx"]["min_length"]
    return len(item["input"]) >= least


def _problem_of(item: Any, root: type[BaseModel] | None) -> FieldProblem:
    loc: tuple[str | int, ...] = tuple(item["loc"])
    ctx = item.get("ctx", {})
    kind = item["type"]
    text = str(item["msg"])
    allowed: Any = None
    if kind == "missing":
        text = "is required"
    elif kind == "extra_forbidden":
        text, allowed = unknown(str(loc[-1]), _fields_at(root, loc[:-1]))
    elif kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(ctx["expected"]))
        text = f"must be one of {', '.join(allowed)}"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        text, allowed = "must be an object", "an object"
    elif kind in ("tuple_type", "list_type"):
        text, allowed = "must be an array", "an array"
    elif kind == "bool_type":
        text, allowed = "must be true or false", [True, False]
    elif kind == "too_long":
        allowed = f"at most {many(ctx['max_length'], 'entry', 'entries')}"
        text = f"must have {allowed}"
    elif kind == "too_short":
        allowed = f"at least {many(ctx['min_length'], 'entry', 'entries')}"
        text = f"must have {allowed}"
    elif "problem" in ctx:
        text, allowed = ctx["problem"], ctx["allowed"]
    return {"field": clean(".".join(str(part) for part in loc)) or "body", "problem": text, "allowed": allowed}


def unknown(name: str, known: Collection[str]) -> tuple[str, list[str]]:
    """The problem text for an unknown name, with the closest known name, and the list of known names."""
    close = (
        [candidate for candidate in known if candidate == SYNONYMS.get(name.lower())]
        or get_close_matches(name, known, n=1, cutoff=0.5)
        or [candidate for candidate in known if candidate.lower() == name.lower()]
    )
    return ("is unknown" + (f"; did you mean {close[0]}?" if close else "")), list(known)


def clean(text: str) -> str:
    """A caller's text in a form that is safe to print: at most 100 characters, without control characters and lone
    surrogates.
    """
    short = text if len(text) <= 100 else text[:99] + "\u2026"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in short)


def _model_named(title: str) -> type[BaseModel] | None:
    waiting: list[type[BaseModel]] = [Request]
    while waiting:
        model = waiting.pop()
        if model.__name__ == title:
            return model
        waiting.extend(model.__subclasses__())
    return None


def _fields_at(root: type[BaseModel] | None, loc: tuple[str | int, ...]) -> list[str]:
    model = root
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        field = next((info for info in model.model_fields.values() if info.alias == part), None)
        model = None if field is None else _model_in(field.annotation)
    if model is None:
        return []
    return [info.alias or name for name, info in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for arg in get_args(annotation) if (model := _model_in(arg)) is not None), None)

"""Strict JSON: exact numbers, no duplicate names, no NaN, limited depth, and one canonical form for fingerprints."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any, Final

from pydantic_core import to_json

from bot.wire.base import encode

DEPTH_MAX: Final = 32
# The digits of one number: a limit on memory.
DIGITS_MAX: Final = 400
# the range of a double
EXPONENT_MAX: Final = 308
_SMALLEST: Final = Decimal(f"1e-{EXPONENT_MAX}")


class BadJson(ValueError):
    """The body is not valid JSON for this service. The text completes a sentence that begins with "body"."""


def parse(body: bytes) -> Any:
    """The value of a JSON body, numbers as int and Decimal; BadJson otherwise."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise BadJson("is not UTF-8") from None
    _check_depth(text)
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadJson(f"is malformed JSON: {error.msg} at line {error.lineno} column {error.colno}") from None


def dumps(value: Any) -> bytes:
    """The bytes of a response body."""
    return to_json(value)


def fingerprint(method: str, path: str, value: Any) -> str:
    """SHA-256 of a request. White space, the order of names and the spelling of numbers do not change it."""
    return hashlib.sha256(f"{method} {path}\n{encode(_sorted(value))}".encode()).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


def _check_depth(text: str) -> None:
    depth = 0
    in_text = escaped = False
    if text.count("{") + text.count("[") <= DEPTH_MAX:
        return
    for letter in text:
        if in_text:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == '"':
                in_text = False
        elif letter == '"':
            in_text = True
        elif letter in "{[":
            depth += 1
            if depth > DEPTH_MAX:
                raise BadJson(f"is nested deeper than {DEPTH_MAX}")
        elif letter in "}]":
            depth -= 1


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise BadJson(f"has the name {name[:64]!r} twice in one object")
            seen.add(name)
    return values


def _decimal(text: str) -> Decimal:
    if len(text) > DIGITS_MAX:
        raise BadJson(f"has a number of more than {DIGITS_MAX} digits")
    number = Decimal(text)
    if number and number.adjusted() < -EXPONENT_MAX:
        # The number stays above zero however small, so that its field judges it.
        return _SMALLEST.copy_sign(number)
    if number and number.adjusted() > EXPONENT_MAX:
        raise BadJson(f"has the number {text[:40]}, which is out of range")
    return number


def _integer(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise BadJson(f"has a number of more than {DIGITS_MAX} digits")
    return int(text)


def _constant(text: str) -> Any:
    raise BadJson(f"has {text}, which is not a JSON number")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_decimal, parse_int=_integer, parse_constant=_constant
)

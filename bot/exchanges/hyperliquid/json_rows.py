"""Reads fields of the exchange's JSON by their type. UnknownForm names the field of an answer that is not as expected.

Fields that nobody asks for are allowed: the exchange adds some from time to time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, TypeVar

from bot.exchanges.protocol import UnknownForm
from bot.money import parse_e8

SHOWN: Final = 60
# 31 December 9999, the last day that a calendar of Python has.
INSTANT_MAX: Final = 253_402_300_799_999
DECIMAL: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?", re.ASCII)
T = TypeVar("T")


def unknown(where: str, expected: str, value: Any) -> UnknownForm:
    """The error for a value in an unknown form."""
    shown = ascii(value)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    return UnknownForm(
        f"{where}: expected {expected}, the exchange sent {shown}; nothing of this answer is used. "
        "Update bracketbot, or report the field if this is the newest version."
    )


class JsonRow:
    """One JSON object of an answer. `where` is its place, such as `userFills[3]`."""

    __slots__ = ("_values", "where")

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise unknown(where, "an object", values)
        self._values: Mapping[str, Any] = values
        self.where = where

    def _of(self, name: str, is_right: Callable[[Any], bool], expected: str) -> Any:
        value = self._values.get(name)
        if not is_right(value):
            raise unknown(f"{self.where}.{name}", expected, value if name in self._values else "no such field")
        return value

    def content(self) -> str:
        """All fields as text, the same for two objects with the same fields."""
        return json.dumps(self._values, sort_keys=True)

    def has(self, name: str) -> bool:
        """True if the field is there and not null."""
        return self._values.get(name) is not None

    def text(self, name: str) -> str:
        return str(self._of(name, lambda value: isinstance(value, str), "text"))

    def whole(self, name: str) -> int:
        """A whole number that is not negative: an id, an instant, a count."""
        return int(self._of(name, lambda value: type(value) is int and value >= 0, "a whole number from 0"))

    def instant(self, name: str) -> int:
        """An instant in milliseconds."""
        value = self.whole(name)
        if value > INSTANT_MAX:
            raise unknown(f"{self.where}.{name}", "an instant in milliseconds", value)
        return value

    def flag(self, name: str) -> bool:
        return bool(self._of(name, lambda value: isinstance(value, bool), "true or false"))

    def amount(self, name: str) -> int:
        """An amount, which is decimal text with at most 8 decimals."""
        text = self.text(name)
        try:
            return parse_e8(text)
        except ValueError:
            raise unknown(f"{self.where}.{name}", "a decimal with at most 8 decimals", text) from None

    def size(self, name: str) -> int:
        """An amount that is not negative."""
        value = self.amount(name)
        if value < 0:
            raise unknown(f"{self.where}.{name}", "an amount from 0", self.text(name))
        return value

    def decimal(self, name: str) -> Decimal:
        """A number as decimal text with any number of digits."""
        text = self.text(name)
        if not DECIMAL.fullmatch(text):
            raise unknown(f"{self.where}.{name}", "decimal text", text)
        return Decimal(text)

    def positive(self, name: str) -> Decimal:
        """A positive number, such as a price."""
        value = self.decimal(name)
        if value <= 0:
            raise unknown(f"{self.where}.{name}", "a positive number", self.text(name))
        return value

    def choice(self, name: str, values: Mapping[Any, T]) -> T:
        """The value that the table has for this field."""
        text = self._of(name, lambda value: isinstance(value, str) and value in values, f"one of {', '.join(values)}")
        return values[text]

    def object(self, name: str) -> Mapping[str, Any]:
        """An object as it was sent."""
        values: Mapping[str, Any] = self._of(name, lambda value: isinstance(value, dict), "an object")
        return values

    def row(self, name: str) -> JsonRow:
        return JsonRow(self._values.get(name), f"{self.where}.{name}")

    def items(self, name: str) -> list[Any]:
        """A list as it was sent."""
        values: list[Any] = self._of(name, lambda value: isinstance(value, list), "a list")
        return values

    def rows(self, name: str) -> Iterator[JsonRow]:
        return rows_of(self._values.get(name), f"{self.where}.{name}")


def rows_of(values: Any, where: str) -> Iterator[JsonRow]:
    """The objects of a list."""
    if not isinstance(values, list):
        raise unknown(where, "a list", values)
    for index, value in enumerate(values):
        yield JsonRow(value, f"{where}[{index}]")

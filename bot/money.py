"""Exact amounts: decimal text to integers of 1e-8 and back, and Decimal to plain text. No floats and no rounding."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

# the finest unit of price, size and usd inside the venue
E8: Final = 100_000_000
# the unit of a price times a size
E16: Final = E8 * E8
# the unit of a funding rate
E12: Final = 1_000_000_000_000

# Decimals: an amount is read several times, and an order's size is in all of its events
AMOUNTS_KEPT: Final = 512

# longer than any amount; a hostile string must not become a huge integer
TEXT_LENGTH_MAX: Final = 64

_AMOUNT: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?", re.ASCII)


def _digits(text: str) -> tuple[bool, str, str]:
    """Sign, whole digits and fraction digits of an amount;

    ValueError when the text is not exactly `[-]digits[.digits]`.
    """
    match = _AMOUNT.fullmatch(text) if len(text) <= TEXT_LENGTH_MAX else None
    if match is None:
        raise ValueError(f"not a plain decimal number: {text[:TEXT_LENGTH_MAX]!r}")
    sign, whole, fraction = match.groups()
    return sign == "-", whole, fraction or ""


def parse_e8(text: str) -> int:
    """`"1.5"` -> 150_000_000.

    Exact, or ValueError: also for text that is finer than 1e-8 (zeros after that are fine).
    """
    negative, whole, fraction = _digits(text)
    if fraction[8:].strip("0"):
        raise ValueError(f"finer than 8 decimals: {text!r}")
    value = int(whole) * E8 + int((fraction + "00000000")[:8])
    return -value if negative else value


def format_e8(value: int) -> str:
    """150_000_000 -> `"1.5"`: no exponent, no trailing zero, zero is `"0"`."""
    if value < 0:
        return f"-{format_e8(-value)}"
    whole, rest = divmod(value, E8)
    return f"{whole}.{rest:08d}".rstrip("0") if rest else str(whole)


def format_e12(value: int) -> str:
    """A funding rate, which is scaled 1e12: 12_500_000 -> `"0.0000125"`."""
    whole, rest = divmod(abs(value), E12)
    text = f"{whole}.{rest:012d}".rstrip("0") if rest else str(whole)
    return f"-{text}" if value < 0 else text


def format_e16(value: int) -> str:
    """A price times a size, which is scaled 1e16, as `format_e8`."""
    whole, rest = divmod(abs(value), E16)
    text = f"{whole}.{rest:016d}".rstrip("0") if rest else str(whole)
    return f"-{text}" if value < 0 else text


def parse_decimal(text: str) -> Decimal:
    """`"0.10"` -> Decimal("0.10"), with any number of decimals;

    ValueError for exponents, blanks, NaN, signs other than a leading minus.
    """
    _digits(text)
    return Decimal(text)


def format_decimal(value: Decimal) -> str:
    """A Decimal in the interface's spelling: digits and at most one point, no exponent, no trailing zero, zero is
    `"0"`.
    """
    if not value.is_finite():
        raise ValueError(f"not an amount: {value}")
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def e8_of_decimal(value: Decimal) -> int:
    """Decimal -> integer of 1e-8; ValueError when it is not finite or finer than 1e-8."""
    if not value.is_finite():
        raise ValueError(f"not an amount: {value}")
    if abs(value.adjusted()) > TEXT_LENGTH_MAX:
        if not value:
            return 0
        raise ValueError("out of range, or finer than 8 decimals")
    # as_integer_ratio is exact; it does not depend on the precision of the decimal context.
    numerator, denominator = value.as_integer_ratio()
    scaled, rest = divmod(numerator * E8, denominator)
    if rest:
        raise ValueError(f"finer than 8 decimals: {value}")
    return scaled


def e8_rounded(value: Decimal) -> int:
    """A finite Decimal, such as a mark price, -> integer of 1e-8, rounded half up."""
    numerator, denominator = value.as_integer_ratio()
    return (2 * numerator * E8 + denominator) // (2 * denominator)


def e16_of_decimal(value: Decimal) -> int:
    """Decimal -> integer of 1e-16. What is finer is cut off: a journal of an older version may have such a share."""
    numerator, denominator = value.as_integer_ratio()
    scaled = abs(numerator) * E16 // denominator
    return scaled if numerator >= 0 else -scaled


@lru_cache(maxsize=AMOUNTS_KEPT)
def decimal_of_e8(value: int) -> Decimal:
    """Integer of 1e-8 -> Decimal. Exact; it does not depend on the precision of the decimal context."""
    return Decimal(format_e8(value))


def decimal_of_e16(value: int) -> Decimal:
    """Integer of 1e-16 -> Decimal, as `decimal_of_e8`."""
    return Decimal(format_e16(value))

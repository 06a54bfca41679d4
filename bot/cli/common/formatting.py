"""Prices and amounts as text for people. With `--json` they are printed exactly."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, Final

import click

from bot.money import format_decimal

PX_DIGITS: Final = 6  # significant digits of a price, because no tick is finer; at least two decimals are shown
WIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)


def px(value: Any) -> str:
    """A price, or an amount that may be far below a cent: `100,012.35`, `3,768.1`, `0.00012346`."""
    number = _number(value)
    if number is None:
        return "?"
    if number:
        decimals = max(2, PX_DIGITS - 1 - number.adjusted())
        number = number.quantize(Decimal(1).scaleb(-decimals), context=WIDE)
    return f"{Decimal(format_decimal(number)):,f}"


def usd(value: Any, *, signed: bool = False) -> str:
    """An amount with two decimals: `-1,234.50`."""
    number = _number(value)
    return "?" if number is None else f"{number:+,.2f}" if signed else f"{number:,.2f}"


def shown(name: str, value: Any) -> str:
    """A value as text, by the unit at the end of its name (`_usd`, `_px`). Sizes and counts are printed exactly."""
    if name.endswith("_usd"):
        return usd(value)
    return px(value) if name.endswith("_px") else str(value)


def _number(value: Any) -> Decimal | None:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def say_left_out(line: str) -> None:
    """Print on standard error what was left out of a result."""
    click.echo(line, err=True)

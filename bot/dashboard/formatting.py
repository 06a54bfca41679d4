"""Numbers and instants as traders read them: thousands separators, a sign before every gain and loss, durations in the largest two units."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from bot.money import format_decimal

NONE: Final = "–"  # has no value
NOT_KNOWN: Final = "not known"
MINUS: Final = "−"  # as wide as a plus, so that columns of figures align
PX_DIGITS: Final = 6  # significant digits of a price, because no tick is finer; at least two decimals are shown
UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def number(value: Any) -> Decimal | None:
    """The value as a number; None if it is not a number."""
    if value is None or isinstance(value, bool):
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def usd(value: Any) -> str:
    """`12,345.60`; a debt is `−12.00`."""
    found = number(value)
    return NONE if found is None else f"{found:,.2f}".replace("-", MINUS)


def signed_usd(value: Any) -> str:
    """`+12.30`, `−4.00`; nothing gained is `0.00`."""
    return _signed(value, ",.2f")


def cost_usd(value: Any) -> str:
    """What was paid, as its effect on the account: a fee of 12.30 is `−12.30`, a rebate `+0.50`."""
    found = number(value)
    return NONE if found is None else signed_usd(-found)


def px(value: Any) -> str:
    """A price: `104,310.50`, `0.00012346`."""
    found = number(value)
    if found is None:
        return NONE
    if not found:
        return "0"
    decimals = max(2, PX_DIGITS - 1 - found.adjusted())
    text = f"{found:,.{decimals}f}"
    whole, _, part = text.partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}".replace("-", MINUS)


def size(value: Any) -> str:
    """Exactly, with thousands separators."""
    found = number(value)
    return NONE if found is None else f"{Decimal(format_decimal(found)):,f}".replace("-", MINUS)


def pct(value: Any, *, places: int = 2) -> str:
    return NONE if number(value) is None else f"{_signed(value, f',.{places}f')} %"


def share(value: Any) -> str:
    """A part of a whole, without a sign: `12.3 %`."""
    found = number(value)
    return NONE if found is None else f"{found * 100:,.1f} %"


def r(value: Any) -> str:
    """A multiple of the distance from entry to stop: `+1.25 R`."""
    return NONE if number(value) is None else f"{_signed(value, ',.2f')} R"


def times(value: Any) -> str:
    found = number(value)
    return NONE if found is None else f"{Decimal(format_decimal(round(found, 2))):f}×"


def duration(seconds: float | None) -> str:
    """`3 d 4 h`, `12 s`: two units at most."""
    if seconds is None:
        return NONE
    left, parts = max(0, int(seconds)), []
    for name, unit in UNITS:
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def instant(ms: int | None) -> str:
    """`20 Nov 2026 14:40:36`, in UTC."""
    return NONE if ms is None else _at(ms).strftime("%d %b %Y %H:%M:%S")


def clock(ms: int | None) -> str:
    """`14:40:36`, in UTC."""
    return NONE if ms is None else _at(ms).strftime("%H:%M:%S")


def iso(ms: int) -> str:
    return _at(ms).isoformat(timespec="seconds").replace("+00:00", "Z")


def direction(value: Any) -> str:
    """up, down or flat: the class and the arrow of a figure."""
    found = number(value)
    return "flat" if not found else "up" if found > 0 else "down"


def _signed(value: Any, form: str) -> str:
    found = number(value)
    if found is None:
        return NONE
    text = f"{found:+{form}}"
    return text[1:] if not any(letter in "123456789" for letter in text) else text.replace("-", MINUS)


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)

"""Numbers, amounts, durations and instants as people read them: one form in the terminal, the report, the dashboard and
the wallet page. Pure.

The functions give the form of the terminal. A page passes the text through `on_page`, which has a minus as wide as a
plus. JSON and CSV keep raw numbers. Costs are told by their effect on the account: what was paid is negative
everywhere.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, Final

from bot.clock import datetime_of
from bot.money import format_decimal

# has no value
MISSING: Final = "-"
MINUS: Final = "\u2212"
# stands on a page for a figure that has no value
DASH: Final = "\u2013"
# significant digits of a price, because no tick is finer; at least two decimals are shown
PX_DIGITS: Final = 6
WIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)
UNITS: Final = (("y", 31_536_000), ("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def on_page(text: str) -> str:
    """The text of a figure as a page shows it."""
    return DASH if text == MISSING else text.replace("-", MINUS)


def number(value: Any) -> Decimal | None:
    """The value as a number; None if it is not a number."""
    if value is None or isinstance(value, bool):
        return None
    try:
        parsed = Decimal(str(value))
    except InvalidOperation:
        return None
    return parsed if parsed.is_finite() else None


def usd(value: Any) -> str:
    """`12,345.60`; a debt is `-12.00`. Cents always."""
    parsed = number(value)
    return MISSING if parsed is None else f"{parsed:z,.2f}"


def signed_usd(value: Any) -> str:
    """`+12.30`, `-4.00`; nothing gained is `0.00`."""
    return _signed(value, ",.2f")


def cost_usd(value: Any) -> str:
    """What was paid, by its effect on the account: a fee of 12.30 is `-12.30`, a rebate `+0.50`."""
    parsed = number(value)
    return MISSING if parsed is None else signed_usd(-parsed)


def px(value: Any) -> str:
    """A price, or an amount that may be far below a cent: `104,310.50`, `3,768.10`, `0.00012346`."""
    parsed = number(value)
    if parsed is None:
        return MISSING
    if not parsed:
        return "0"
    decimals = max(2, PX_DIGITS - 1 - parsed.adjusted())
    text = f"{parsed.quantize(Decimal(1).scaleb(-decimals), context=WIDE):,.{decimals}f}"
    whole, _, part = text.partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def size(value: Any) -> str:
    """Exactly, with thousands separators."""
    parsed = number(value)
    return MISSING if parsed is None else f"{Decimal(format_decimal(parsed)):,f}"


def pct(value: Any, *, places: int = 2) -> str:
    """`+1.25 %`."""
    return MISSING if number(value) is None else f"{_signed(value, f',.{places}f')} %"


def percent(value: Any, *, places: int = 2) -> str:
    """A percentage that is no change, without a plus: `23.05 %`."""
    parsed = number(value)
    return MISSING if parsed is None else f"{parsed:z,.{places}f} %"


def percent_share(value: Any) -> str:
    """A part of a whole, from a number of percent: `47.8 %`."""
    return percent(value, places=1)


def share(value: Any) -> str:
    """A part of a whole, from a fraction: `12.3 %`."""
    parsed = number(value)
    return MISSING if parsed is None else percent_share(parsed * 100)


def multiple(value: Any) -> str:
    """A multiple of the distance from entry to stop: `+1.25 R`."""
    return MISSING if number(value) is None else f"{_signed(value, ',.2f')} R"


def times(value: Any) -> str:
    parsed = number(value)
    return MISSING if parsed is None else f"{Decimal(format_decimal(round(parsed, 2))):f}×"


def duration(seconds: float | None) -> str:
    """`2 y 294 d`, `3 d 4 h`, `1 min 30 s`, `12 s`: the largest unit and the next one, rounded to the second."""
    if seconds is None:
        return MISSING
    if seconds < 0 and round(seconds):
        return f"-{duration(-seconds)}"
    left = round(abs(seconds))
    for n, (name, unit) in enumerate(UNITS):
        count, rest = divmod(left, unit)
        if count and n + 1 < len(UNITS):
            below, size_s = UNITS[n + 1]
            more = rest // size_s
            return f"{count:,} {name} {more} {below}" if more else f"{count:,} {name}"
        if count:
            return f"{count} {name}"
    return "0 s"


def ago(ms: float) -> str:
    """`3 min ago`; for an instant of another clock that is still to come, `3 min ahead of this machine's clock`."""
    return f"{duration_ms(ms)} ago" if ms >= 0 else f"{duration_ms(-ms)} ahead of this machine's clock"


def duration_ms(ms: float) -> str:
    """`duration` of milliseconds."""
    return duration(ms / 1000)


def instant(at_ms: int | None) -> str:
    """`20 Nov 2026 14:40:36`, in UTC."""
    return MISSING if at_ms is None else datetime_of(at_ms).strftime("%d %b %Y %H:%M:%S")


def clock(at_ms: int | None) -> str:
    """`14:40:36`, in UTC."""
    return MISSING if at_ms is None else datetime_of(at_ms).strftime("%H:%M:%S")


def axis_text(value: float) -> str:
    """A number of an axis, without the noise of floats: `1,500`, `0.25`, `12k`."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k" if abs(value) < 10_000_000 else f"{value / 1_000_000:,.4g}M"
    return f"{value:z,.4g}" if abs(value) < 1_000 else f"{value:,.0f}"


def _signed(value: Any, form: str) -> str:
    parsed = number(value)
    if parsed is None:
        return MISSING
    text = f"{parsed:+z{form}}"
    return text if any(letter in "123456789" for letter in text) else text.lstrip("+-")

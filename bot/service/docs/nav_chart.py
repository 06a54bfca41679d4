"""The chart of an account's value as SVG. It uses attributes and classes only, so that the content policy need not
allow inline styles.

Positions across are percentages, so that the chart fits any width and its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from bot.clock import DAY_MS, datetime_of
from bot.service.docs.html import text

HEIGHT: Final = 260
# room for the label of the highest line
TOP: Final = 22
# the height below which the times stand
BOTTOM: Final = 232
# about how many horizontal lines the chart has
LINES: Final = 4
# units of the drawing's width
ACROSS: Final = 1_000


class ValuePoint(NamedTuple):
    """A value in USD at an instant."""

    at_ms: int
    usd: Decimal


def chart(points: Sequence[ValuePoint], start_usd: Decimal, title: str) -> str:
    """The value as a line, with a dashed line at the value at the start of the range."""
    values = [float(point.usd) for point in points]
    low, high = min(*values, float(start_usd)), max(*values, float(start_usd))
    levels = _levels(low, high)
    low, high = min(low, levels[0]), max(high, levels[-1])

    def y(value: float) -> float:
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    first, span = points[0].at_ms, points[-1].at_ms - points[0].at_ms
    line = " ".join(
        f"{(point.at_ms - first) / span * ACROSS:.1f},{y(value):.1f}"
        for point, value in zip(points, values, strict=True)
    )
    digits = max(0, -math.floor(math.log10(levels[1] - levels[0])))
    heights = [f"{y(level):.1f}" for level in levels]
    grid = "".join(f'<line class="grid" x1="0" x2="100%" y1="{at}" y2="{at}"/>' for at in heights)
    labels = "".join(
        f'<text class="axis" x="0" y="{float(at) - 5:.1f}">{level:,.{digits}f}</text>'
        for level, at in zip(levels, heights, strict=True)
    )
    times = "".join(
        f'<text class="axis" x="{part}%" y="{HEIGHT - 8}"'
        f' text-anchor="{anchor}">{text(_time(first + span * part // 100, span))}</text>'
        for part, anchor in ((0, "start"), (50, "middle"), (100, "end"))
    )
    start_y = f"{y(float(start_usd)):.1f}"
    return (
        f'<svg height="{HEIGHT}" width="100%" role="img" aria-label="{text(title)}">{grid}<line class="start" x1="0"'
        f' x2="100%" y1="{start_y}" y2="{start_y}"/><svg width="100%" height="{HEIGHT}" viewBox="0 0 {ACROSS} {HEIGHT}"'
        f' preserveAspectRatio="none"><polygon class="area" points="0,{BOTTOM} {line} {ACROSS},{BOTTOM}"/><polyline'
        f' class="line" points="{line}"/></svg>{labels}{times}</svg>'
    )


def _levels(low: float, high: float) -> list[float]:
    """At least two round values that enclose all values; 1, 2 or 5 times a power of ten apart."""
    spread = max(high - low, max(abs(high), 1.0) * 0.0005)
    low, high = min(low, (low + high - spread) / 2), max(high, (low + high + spread) / 2)
    power = 10.0 ** math.floor(math.log10(spread / LINES))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= spread / LINES)
    bottom, top = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(bottom, max(top, bottom + 1) + 1)]


def _time(at_ms: int, span_ms: int) -> str:
    """The clock for a range of up to a day, else the date; UTC."""
    at = datetime_of(at_ms)
    return at.strftime("%H:%M UTC" if span_ms <= DAY_MS else "%d %b %Y")

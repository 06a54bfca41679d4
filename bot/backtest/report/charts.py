"""Charts without a time axis, drawn as SVG by the report itself: histograms, bars, a scatter plot, lines over days.
Pure.

Colours are classes of the page's style sheet, so that a chart follows light and dark mode. Each mark has a title, which
a browser shows on hover.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bot.backtest.report.tables import escaped
from bot.backtest.report.trade_statistics import Bin, nice_step
from bot.number_text import axis_text, on_page

WIDTH, HEIGHT = 460, 230
# margins
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 40
TICKS: Final = 5
# The points of a scatter plot.
POINTS_MAX: Final = 2_000


class Axis(NamedTuple):
    """Values from `low` to `high` on the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        step = nice_step((self.high - self.low) / TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def axis(values: Iterable[float], start: float, end: float, *, zero: bool = True) -> Axis:
    """An axis that holds every value, and zero if asked."""
    shown = [*values, *([0.0] if zero else [])]
    low, high = min(shown), max(shown)
    if low == high:
        low, high = low - 1, high + 1
    room = 0.04 * (high - low)
    return Axis(low - room if low < 0 or not zero else low, high + room if high > 0 or not zero else high, start, end)


def histogram(found: Sequence[Bin], unit: str, label: str) -> str:
    """Bars of a histogram: losses and profits in their own colours."""
    if not found:
        return ""
    x = Axis(found[0].low, found[-1].high, LEFT, WIDTH - RIGHT)
    y = axis([bucket.trades for bucket in found], HEIGHT - BOTTOM, TOP)
    parts = [_grid(x, y, unit, "trades")]
    for bucket in found:
        if bucket.trades:
            title = f"{axis_text(bucket.low)} to {axis_text(bucket.high)} {unit}: {bucket.trades:,}"
            gap = min(1.0, 0.1 * (x.at(bucket.high) - x.at(bucket.low)))
            parts.append(
                _bar(
                    (x.at(bucket.low), x.at(bucket.high) - gap),
                    y,
                    bucket.trades,
                    "down" if bucket.high <= 1e-12 else "up",
                    title,
                )
            )
    if x.low < 0 < x.high:
        parts.append(f'<line class="zero" x1="{x.at(0)}" x2="{x.at(0)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    return _svg(label, parts)


def bars(names: Sequence[str], values: Sequence[float], titles: Sequence[str], unit: str, label: str) -> str:
    """One bar for each name."""
    y = axis(values, HEIGHT - BOTTOM, TOP)
    step = (WIDTH - LEFT - RIGHT) / len(names)
    parts = [_lines_across(y, unit)]
    every = 1 if len(names) <= 12 else 3
    for n, (name, value, title) in enumerate(zip(names, values, titles, strict=True)):
        left = LEFT + n * step
        if value:
            edges = (round(left + 0.15 * step, 1), round(left + 0.85 * step, 1))
            parts.append(_bar(edges, y, value, "up" if value > 0 else "down", title))
        if n % every == 0:
            parts.append(_words(left + step / 2, HEIGHT - BOTTOM + 15, name, "middle"))
    parts.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.at(0)}" y2="{y.at(0)}"/>')
    return _svg(label, parts)


class ChartPoint(NamedTuple):
    x: float
    y: float
    is_good: bool
    title: str


def scatter(points: Sequence[ChartPoint], x_label: str, y_label: str, label: str) -> str:
    """A point for each trade: a filled circle for a profit, a cross for a loss."""
    if not points:
        return ""
    x = axis([point.x for point in points], LEFT, WIDTH - RIGHT)
    y = axis([point.y for point in points], HEIGHT - BOTTOM, TOP)
    parts = [_grid(x, y, x_label, y_label)]
    for point in points[-POINTS_MAX:]:
        at_x, at_y = x.at(point.x), y.at(point.y)
        if point.is_good:
            parts.append(
                f'<circle class="up" cx="{at_x}" cy="{at_y}" r="3"><title>{escaped(point.title)}</title></circle>'
            )
        else:
            path = f"M{at_x - 3:.1f} {at_y - 3:.1f}l6 6m0-6l-6 6"
            parts.append(f'<path class="cross" d="{path}"><title>{escaped(point.title)}</title></path>')
    return _svg(label, parts)


class ChartLine(NamedTuple):
    name: str
    values: Sequence[float | None]
    # class in the style sheet
    style: str


def lines(days: Sequence[str], found: Sequence[ChartLine], unit: str, label: str) -> str:
    """Lines over days, one value a day; None leaves a gap."""
    values = [value for line in found for value in line.values if value is not None]
    if len(days) < 2 or not values:
        return ""
    x = Axis(0, len(days) - 1, LEFT, WIDTH - RIGHT)
    y = axis(values, HEIGHT - BOTTOM, TOP)
    parts = [_lines_across(y, unit)]
    for n in sorted({0, (len(days) - 1) // 2, len(days) - 1}):
        parts.append(
            _words(
                x.at(n), HEIGHT - BOTTOM + 15, days[n], "start" if n == 0 else "end" if n == len(days) - 1 else "middle"
            )
        )
    parts.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.at(0)}" y2="{y.at(0)}"/>')
    for line in found:
        steps, pen = [], "M"
        for n, value in enumerate(line.values):
            if value is None:
                pen = "M"
                continue
            steps.append(f"{pen}{x.at(n)} {y.at(value)}")
            pen = "L"
        parts.append(f'<path class="line {line.style}" d="{"".join(steps)}"><title>{escaped(line.name)}</title></path>')
    return _svg(label, parts)


def _svg(label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escaped(label)}">{"".join(parts)}</svg>'
    )


def _grid(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    parts = [_lines_across(y, y_label)]
    for tick in x.ticks():
        at = x.at(tick)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_words(at, HEIGHT - BOTTOM + 15, on_page(axis_text(tick)), "middle"))
    parts.append(_words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, x_label, "middle", "label"))
    return "".join(parts)


def _lines_across(y: Axis, label: str) -> str:
    parts = []
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(_words(LEFT - 5, at + 4, on_page(axis_text(tick)), "end"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = (
        f'<text class="label" text-anchor="middle" transform="translate(11 {middle})'
        f' rotate(-90)">{escaped(label)}</text>'
    )
    return "".join([*parts, turned])


def _bar(edges: tuple[float, float], y: Axis, value: float, style: str, title: str) -> str:
    top, bottom = sorted((y.at(value), y.at(0)))
    width, height = max(0.5, edges[1] - edges[0]), max(0.5, bottom - top)
    return (
        f'<rect class="{style}" x="{edges[0]}" y="{top}" width="{width:.1f}"'
        f' height="{height:.1f}"><title>{escaped(title)}</title></rect>'
    )


def _words(x: float, y: float, text: str, anchor: str, style: str = "tick") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'

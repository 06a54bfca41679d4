"""Charts as SVG, drawn by the server.

They need no script: the pages show them first, and keep them if the chart library is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from typing import Final

from bot.backtest.report import svg
from bot.clock import DAY_MS, HOUR_MS
from bot.dashboard.pages.market import COLOURS, FillMark, Overlay, PriceLine
from bot.dashboard.values import formatting
from bot.dashboard.values.formatting import Drawing
from bot.wire import INTERVAL_MS, Candle

WIDTH: Final = 960
HEIGHT: Final = 320
# width of the scale: 12 digits
RIGHT: Final = 100
TOP: Final = 12
BOTTOM: Final = 26
# height of the volume
VOLUME: Final = 48
# points of the value over time
POINTS: Final = 400
# that stay readable
CANDLES_MAX: Final = 120
GRID: Final = 4
TEXT_HEIGHT: Final = 12


class _Scale:
    """From values to places in the picture."""

    def __init__(self, low: float, high: float, *, top: float, bottom: float) -> None:
        room = (high - low) * 0.04 or abs(high) * 0.001 or 1.0
        self.low, self.high = low - room, high + room
        self._top, self._bottom = top, bottom

    def y(self, value: float) -> float:
        return round(self._bottom - (value - self.low) / (self.high - self.low) * (self._bottom - self._top), 1)

    def ticks(self) -> list[float]:
        return [self.low + (self.high - self.low) * n / GRID for n in range(1, GRID)]


def week_ago(points: Sequence[tuple[int, float]]) -> float | None:
    """The value seven days before the newest point; None if the points do not reach back so far."""
    at_ms = points[-1][0] - 7 * DAY_MS if points else 0
    if not points or points[0][0] > at_ms + HOUR_MS:
        return None
    return points[max(0, bisect_right([at for at, _ in points], at_ms) - 1)][1]


def value_chart(points: Sequence[tuple[int, float]]) -> Drawing:
    """The account's value as a line, with a dashed one at the value of a week ago. Empty without two points."""
    if len(points) < 2:
        return Drawing()
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    instants = [at for at, _ in points]
    places = [first + n * (last - first) // POINTS for n in range(POINTS + 1)]
    values: list[float | None] = [points[bisect_right(instants, place) - 1][1] for place in places]
    newest, before = points[-1][1], week_ago(points)
    line = svg.ChartLine("value", values, tag=svg.axis_number(newest))
    scale = svg.scale_of([value for _, value in points])
    label = f"Account value, newest {formatting.usd(newest)}"
    return Drawing(svg.line_chart([line], scale, label=label, base=before, times=(first, last)))


def candle_chart(
    candles: Sequence[Candle],
    interval: str,
    overlays: Sequence[Overlay],
    marks: Sequence[FillMark],
    lines: Sequence[PriceLine],
) -> Drawing:
    """The newest candles with volume, the overlays of the price, fills and lines.

    Rising candles are hollow, falling ones filled.
    """
    shown = candles[-CANDLES_MAX:]
    if not shown:
        return Drawing()
    inner, price_bottom = WIDTH - RIGHT, HEIGHT - BOTTOM - VOLUME
    lows, highs = [float(candle.low) for candle in shown], [float(candle.high) for candle in shown]
    reach = max(highs) - min(lows)
    # A far line would flatten the candles.
    near = [line for line in lines if min(lows) - reach <= line.px <= max(highs) + reach]
    scale = _Scale(
        min([*lows, *(line.px for line in near)]),
        max([*highs, *(line.px for line in near)]),
        top=TOP,
        bottom=price_bottom,
    )
    step = inner / len(shown)
    largest = max(float(candle.volume) for candle in shown) or 1.0
    parts = [_grid(scale, inner)]
    for n, candle in enumerate(shown):
        parts.append(_candle(candle, scale, x=n * step + step / 2, width=max(1.0, step * 0.6), largest=largest))
    for count, overlay in enumerate(overlay for overlay in overlays if overlay.pane == 0):
        values = overlay.values[-len(shown) :]
        places = " ".join(
            f"{n * step + step / 2:.1f},{scale.y(value)}" for n, value in enumerate(values) if value is not None
        )
        parts.append(
            f'<polyline class="overlay o{count % COLOURS}"'
            f' points="{places}"><title>{escape(overlay.label)}</title></polyline>'
        )
    for line in near:
        y = scale.y(line.px)
        parts.append(f'<line class="level {line.kind}" x1="0" x2="{inner}" y1="{y}" y2="{y}"/>')
        parts.append(_label(y, formatting.px(line.px), line.kind, inner))
    step_ms = INTERVAL_MS[interval]
    for mark in marks:
        n = (mark.at_ms - shown[0].ts) // step_ms
        if 0 <= n < len(shown):
            parts.append(_mark(mark, x=n * step + step / 2, y=scale.y(mark.px)))
    parts.append(_label(scale.y(float(shown[-1].close)), formatting.px(shown[-1].close), "now", inner))
    parts += [_time(shown[round(part * (len(shown) - 1))].ts, inner * part) for part in (0.0, 0.5, 1.0)]
    return _svg(parts, HEIGHT)


def _candle(candle: Candle, scale: _Scale, *, x: float, width: float, largest: float) -> str:
    opened, high, low, close = (float(value) for value in (candle.open, candle.high, candle.low, candle.close))
    kind = "up" if close >= opened else "down"
    top, bottom = scale.y(max(opened, close)), scale.y(min(opened, close))
    tall = max(0.8, bottom - top)
    volume = float(candle.volume) / largest * (VOLUME - 6)
    base = HEIGHT - BOTTOM
    return (
        f'<g class="{kind}"><line x1="{x:.1f}" x2="{x:.1f}" y1="{scale.y(high)}" y2="{scale.y(low)}"/><rect'
        f' x="{x - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{tall:.1f}"/><rect class="volume"'
        f' x="{x - width / 2:.1f}" y="{base - volume:.1f}" width="{width:.1f}" height="{volume:.1f}"/></g>'
    )


def _mark(mark: FillMark, *, x: float, y: float) -> str:
    sign = 1 if mark.side == "bought" else -1
    points = f"{x:.1f},{y + sign * 3:.1f} {x - 5:.1f},{y + sign * 12:.1f} {x + 5:.1f},{y + sign * 12:.1f}"
    return f'<polygon class="fill {mark.side}" points="{points}"><title>{escape(mark.text)}</title></polygon>'


def _grid(scale: _Scale, inner: float) -> str:
    lines = []
    for value in scale.ticks():
        y = scale.y(value)
        lines.append(f'<line class="grid" x1="0" x2="{inner}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="scale" x="{inner + 8}" y="{y + 4}">{formatting.px(round(value, 8))}</text>')
    return Drawing().join(lines)


def _label(y: float, text: str, kind: str, inner: float) -> str:
    return (
        f'<g class="tag {kind}"><rect x="{inner + 2}" y="{y - 9}" width="{RIGHT - 4}" height="18" rx="3"/>'
        f'<text x="{inner + 8}" y="{y + 4}">{text}</text></g>'
    )


def _time(at_ms: int, x: float) -> str:
    anchor = "start" if x < 1 else "end" if x > WIDTH - RIGHT - 1 else "middle"
    return (
        f'<text class="scale" x="{x:.0f}" y="{HEIGHT - 8}"'
        f' text-anchor="{anchor}">{formatting.instant(at_ms)[:-3]}</text>'
    )


def _svg(parts: Sequence[str], height: int) -> Drawing:
    return Drawing(f'<svg class="drawn" viewBox="0 0 {WIDTH} {height}" aria-hidden="true">{"".join(parts)}</svg>')

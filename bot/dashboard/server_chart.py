"""Charts as SVG, drawn by the server.

They need no script: the pages show them first, and keep them if the chart library is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from bot.backtest.report import svg
from bot.clock import DAY_MS, HOUR_MS
from bot.dashboard.pages.market import COLOURS, FillMark, Overlay, PriceLine
from bot.dashboard.values import formatting
from bot.dashboard.values.formatting import Drawing
from bot.wire import INTERVAL_MS, Candle

# points of the value over time
POINTS: Final = 400
# that stay readable
CANDLES_MAX: Final = 120
COLUMNS: Final = ("open", "high", "low", "close", "volume")


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
    columns = [[float(getattr(candle, name)) for candle in shown] for name in COLUMNS]
    low, high, step_ms = min(columns[2]), max(columns[1]), INTERVAL_MS[interval]
    # A far line would flatten the candles.
    near = [svg.PriceLevel(line.px, line.kind) for line in lines if 2 * low - high <= line.px <= 2 * high - low]
    drawn = [
        svg.ChartLine(overlay.label, overlay.values[-len(shown) :], f"o{n % COLOURS}")
        for n, overlay in enumerate(overlay for overlay in overlays if overlay.pane == 0)
    ]
    places = [((mark.at_ms - shown[0].ts) // step_ms, mark) for mark in marks]
    fills = [
        svg.CandleEntry(
            (n + 0.5) / len(shown), mark.px, None, mark.px, mark.side == "bought", is_gain=False, title=mark.text
        )
        for n, mark in places
        if 0 <= n < len(shown)
    ]
    label = f"The newest {len(shown)} candles of {interval}"
    times = shown[0].ts, shown[-1].ts + step_ms
    return Drawing(
        svg.candle_chart(
            columns,
            fills,
            label=label,
            form=_px,
            times=times,
            lines=drawn,
            levels=list(dict.fromkeys(near)),
            height=520,
        )
    )


def _px(value: float) -> str:
    return formatting.px(round(value, 8))

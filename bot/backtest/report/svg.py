"""Charts as SVG, for the report and the dashboard. Pure.

Places are percentages, so that a chart fits every width and its text keeps its size; only lines are stretched. Colours
are classes of charts.css, so that a chart follows light and dark mode and needs no inline style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from html import escape
from typing import Final, NamedTuple

from bot.backtest.report.trade_statistics import Bin, nice_step
from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, datetime_of, ms_of
from bot.number_text import axis_text, on_page

# Units of the stretched part of a chart.
ACROSS: Final = 1_000
TICKS: Final = 4
# Points of a line, more than a screen shows.
POINTS_MAX: Final = 700
# Marks with a title, which a browser shows on hover.
TITLES_MAX: Final = 400
# Heights in px of the style sheet, and the least distance of two tags.
HEIGHTS: Final = (60, 90, 170, 210, 260, 520)
ON_PHONE: Final = {260: 200, 520: 330}
TAG_PX: Final = 18
# The height of the largest volume below candles, of ACROSS.
VOLUME: Final = 130

Form = Callable[[float], str]
# what the axis at the right holds in the width of charts.css
AXIS_CHARS: Final = 9
# A text whose middle is nearer to the left edge would be cut there.
EDGE_PERCENT: Final = 3.0
# How much higher than its highest bar a histogram is.
HEADROOM: Final = 1.15


class ChartScale(NamedTuple):
    """Values from `low` at the bottom to `high` at the top."""

    low: float
    high: float
    is_log: bool = False

    def down(self, value: float) -> float:
        """The place of a value in percent from the top."""
        low, high, at = (math.log(x) if self.is_log else x for x in (self.low, self.high, value))
        return round(100 * (high - at) / (high - low), 2)

    def ticks(self) -> list[float]:
        step = nice_step((self.high - self.low) / TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def scale_of(values: Iterable[float], *, has_zero: bool = False, is_log: bool = False) -> ChartScale:
    """A scale that holds every value, and zero if asked. Logarithmic only if every value is positive."""
    known = [*values, *([0.0] if has_zero else [])]
    low, high = min(known), max(known)
    if low == high:
        low, high = low - (abs(low) * 0.01 or 1), high + (abs(high) * 0.01 or 1)
    if is_log and low > 0:
        return ChartScale(low / (high / low) ** 0.05, high * (high / low) ** 0.05, is_log=True)
    room = 0.05 * (high - low)
    return ChartScale(low - room if low < 0 or not has_zero else low, high + room if high > 0 else high)


def axis_number(value: float, unit: str = "") -> str:
    """A number of an axis with its unit: `20,000`, `0.25 %`, `−5`. One that the axis would cut is in thousands or
    millions: `−311.4M`.
    """
    text = f"{value:z,.0f}" if abs(value) >= 100 else f"{value:z,.4g}"
    return on_page((text if len(text + unit) <= AXIS_CHARS else axis_text(value)) + unit)


class ChartLine(NamedTuple):
    """`kind`: classes of the line in the style sheet. None leaves a gap. `tag`: its last value, beside the axis."""

    name: str
    values: Sequence[float | None]
    kind: str = ""
    tag: str = ""


def thinned(values: Sequence[float], pick: Callable[[Sequence[float]], float]) -> list[float]:
    """At most POINTS_MAX values: one of each run of neighbours, chosen by `pick`."""
    per = max(1, -(-len(values) // POINTS_MAX))
    return [pick(values[n : n + per]) for n in range(0, len(values), per)]


def last_of(values: Sequence[float]) -> float:
    return values[-1]


def line_chart(
    lines: Sequence[ChartLine],
    scale: ChartScale,
    *,
    label: str,
    height: int = 260,
    form: Form = axis_number,
    base: float | None = None,
    times: tuple[int, int] | None = None,
    band: tuple[Sequence[float], Sequence[float]] | None = None,
) -> str:
    """Lines over time. `base`: a value with a dashed line. `times`: the first and the last instant, for an axis.
    `band`: an area behind the lines, from its lower to its upper values.
    """
    paths = "".join(f'<path class="ln {line.kind}" d="{_path(line.values, scale)}"/>' for line in lines)
    if band is not None:
        low, high = band
        forth, back = (_path(values, scale).removeprefix("M") for values in (low, high))
        paths = f'<path class="ar ex" d="M{forth}L{"L".join(back.split("L")[::-1])}Z"/>{paths}'
    parts = [_across(base, scale, "z dash")] if base is not None else []
    tags = [(scale.down(last), line.tag, line.kind) for line in lines if line.tag and (last := _last(line)) is not None]
    ticks = () if times is None else time_ticks(*times)
    return _chart([*parts, _stretched(paths)], scale, label, height, form=form, tags=tags, below=ticks)


def area_chart(
    values: Sequence[float],
    scale: ChartScale,
    *,
    label: str,
    kind: str = "",
    height: int = 90,
    form: Form = axis_number,
    times: tuple[int, int] | None = None,
    tag: str = "",
) -> str:
    """An area between the values and zero. `tag`: its last value, beside the axis."""
    line, zero = _path(values, scale), 10 * scale.down(0.0)
    fill = f'<path class="ar {kind}" d="{line}L{ACROSS} {zero:.0f}L0 {zero:.0f}Z"/><path class="ln {kind}" d="{line}"/>'
    ticks = () if times is None else time_ticks(*times)
    tags = [(scale.down(values[-1]), tag, kind)] if tag else []
    return _chart([_stretched(fill)], scale, label, height, form=form, tags=tags, below=ticks)


class BarPair(NamedTuple):
    """A bar with its text, and one beside it; None without one. `is_running`: its time is not over, so it is paler."""

    name: str
    value: float
    beside: float | None
    text: str
    is_running: bool = False


def pair_bars(pairs: Sequence[BarPair], *, label: str, form: Form, height: int = 210, named: int = 0) -> str:
    """One bar for each name, coloured by its sign, and a grey one beside it. With `named`, at most so many have their
    name, the last one among them.
    """
    scale = scale_of([x for pair in pairs for x in (pair.value, pair.beside) if x is not None], has_zero=True)
    wide = 100 / len(pairs)
    part = 0.34 if any(pair.beside is not None for pair in pairs) else 0.72
    parts = [_across(0.0, scale, "z")]
    ticks = []
    for n, pair in enumerate(pairs):
        left = n * wide
        kind = ("fu" if pair.value >= 0 else "fd") + (" soft" if pair.is_running else "")
        parts.append(_bar(left + 0.14 * wide, part * wide, pair.value, scale, kind, f"{pair.name}: {pair.text}"))
        if pair.beside is not None:
            parts.append(_bar(left + 0.52 * wide, 0.34 * wide, pair.beside, scale, "fb soft", f"{pair.name}, market"))
        if len(pairs) <= 12:
            place = f'y="{scale.down(pair.value):.2f}%" dy="{-5 if pair.value >= 0 else 14}"'
            middle = left + (0.14 + part / 2) * wide
            parts.append(f'<text class="bv" x="{middle:.2f}%" {place}>{escape(pair.text)}</text>')
        if not named or (len(pairs) - 1 - n) % -(-len(pairs) // named) == 0:
            ticks.append((left + wide / 2, pair.name, not named and n % max(1, len(pairs) // 8) != 0))
    return _chart(parts, scale, label, height, form=form, below=ticks)


def histogram(bins: Sequence[Bin], *, label: str, unit: str, mark: tuple[float, str] | None = None) -> str:
    """Bars of a histogram: losses and profits in their own colours, with zero between them. `mark`: a value with a line
    and words, which stand above every bar.
    """
    if not bins:
        return ""
    low, high = min(0.0, bins[0].low), max(0.0, bins[-1].high)
    scale = scale_of([HEADROOM * part.trades for part in bins], has_zero=True)

    def across(value: float) -> float:
        return 100 * (value - low) / (high - low)

    parts = []
    for part in bins:
        kind = "fd" if part.high <= 1e-12 else "fu"
        title = f"{axis_number(part.low)} to {axis_number(part.high)} {unit}: {part.trades:,}"
        width = across(part.high) - across(part.low)
        parts.append(_bar(across(part.low), 0.92 * width, part.trades, scale, kind, title) if part.trades else "")
    if mark is not None:
        at = min(100.0, max(0.0, across(mark[0])))
        anchor = "end" if at > 60 else "start"
        parts.append(f'<line class="need" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>')
        dx = -5 if at > 60 else 5
        parts.append(f'<text class="in" x="{at:.2f}%" dx="{dx}" y="12" text-anchor="{anchor}">{escape(mark[1])}</text>')
    below = [tick for tick in _ticks_across(low, high, across, unit) if 3 <= tick[0] <= 97]
    return _chart(parts, scale, label, 170, form=axis_number, below=below)


class ChartPoint(NamedTuple):
    x: float
    y: float
    is_good: bool
    title: str


def front(points: Sequence[ChartPoint], *, label: str) -> str:
    """Trials by two objectives: those that no other beats filled, the others hollow."""
    scale = scale_of([point.y for point in points])
    low, high = min(point.x for point in points), max(point.x for point in points)
    high = high if high > low else low + 1.0

    def across(value: float) -> float:
        return 3 + 94 * (value - low) / (high - low)

    parts = []
    for point in sorted(points, key=lambda point: point.is_good):
        kind, radius = ("fa", 5) if point.is_good else ("hol", 3)
        at = f'cx="{across(point.x):.2f}%" cy="{scale.down(point.y)}%" r="{radius}"'
        parts.append(f'<circle class="{kind}" {at}><title>{escape(point.title)}</title></circle>')
    return _chart(parts, scale, label, 260, form=axis_number, below=_ticks_across(low, high, across))


def scatter(points: Sequence[ChartPoint], *, label: str, unit: str, line: tuple[float, str] | None = None) -> str:
    """A point for each trade: filled for a profit, hollow for a loss. `line`: a value across, with its word."""
    if not points:
        return ""
    xs = [point.x for point in points] + ([] if line is None else [line[0]])
    low, high = min([0.0, *xs]), max([0.0, *xs])
    high = high if high > low else low + 1
    scale = scale_of([point.y for point in points], has_zero=True)

    def across(value: float) -> float:
        return 2 + 94 * (high - value) / (high - low)

    parts = []
    for point in points:
        kind = "fu soft" if point.is_good else "hol fd"
        title = f"<title>{escape(point.title)}</title>" if len(points) <= TITLES_MAX else ""
        parts.append(
            f'<circle class="{kind}" cx="{across(point.x):.2f}%" cy="{scale.down(point.y)}%" r="3">{title}</circle>'
        )
    if line is not None:
        at = across(line[0])
        parts.append(f'<line class="z dash" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>')
        parts.append(f'<text class="in" x="{at:.2f}%" dx="-5" y="12" text-anchor="end">{escape(line[1])}</text>')

    def form(value: float) -> str:
        return axis_number(value, f" {unit}")

    return _chart(parts, scale, label, 170, form=form, below=_ticks_across(low, high, across, unit))


def _ticks_across(
    low: float, high: float, across: Callable[[float], float], unit: str = ""
) -> list[tuple[float, str, bool]]:
    return [(across(value), f"{axis_number(value)} {unit}".strip(), False) for value in ChartScale(low, high).ticks()]


def share_bar(value: float, largest: float) -> str:
    """A small bar of a table cell, to the left of its middle for a loss and to the right for a gain."""
    part = 50 * min(1.0, abs(value) / largest) if largest else 0.0
    kind, left = ("fu", 50.0) if value >= 0 else ("fd", 50 - part)
    return (
        '<svg class="share" aria-hidden="true"><line class="z" x1="50%" x2="50%" y1="0" y2="14"/>'
        f'<rect class="{kind}" x="{left:.1f}%" width="{part:.1f}%" y="2" height="10"/></svg>'
    )


def gauge_bar(low: float, high: float, *, mark: float, kind: str = "fa soft", start: float | None = None) -> str:
    """A bar on a rail from 0 to 1 with a mark, and a dashed line at `start`."""
    left, right, at = (100 * min(1.0, max(0.0, value)) for value in (low, high, mark))
    line = "" if start is None else f'<line class="z dash" {_upright(100 * start)} y1="0" y2="14"/>'
    return (
        '<svg class="gauge-bar" aria-hidden="true"><rect class="rail" width="100%" y="4" height="6" rx="3"/>'
        f'<rect class="{kind}" x="{left:.1f}%" width="{max(0.5, right - left):.1f}%" y="4" height="6" rx="3"/>{line}'
        f'<line class="need" {_upright(at)} y1="0" y2="14"/></svg>'
    )


def _upright(x: float) -> str:
    return f'x1="{x:.2f}%" x2="{x:.2f}%"'


class CandleEntry(NamedTuple):
    """A trade or a fill on candles: places from 0 to 1 across, and prices. `exit_at` is None without an exit."""

    at: float
    px: float
    exit_at: float | None
    exit_px: float
    is_long: bool
    is_gain: bool
    title: str = ""


class PriceLevel(NamedTuple):
    """A price with a line across and a tag. `kind`: its classes in the style sheet."""

    px: float
    kind: str


def _candle_paths(columns: Sequence[Sequence[float]], scale: ChartScale) -> str:
    """The bodies, the wicks and, below them, the volume: one path for all that rise, and one for all that fall."""
    opened, highs, lows, closes, *volumes = columns
    wide = ACROSS / len(opened)
    wicks: dict[str, list[str]] = {"u": [], "d": []}
    bodies: dict[str, list[str]] = {"u": [], "d": []}
    bars: dict[str, list[str]] = {"u": [], "d": []}
    largest = max(volumes[0]) if volumes else 0.0
    for n, (first, high, low, close) in enumerate(zip(opened, highs, lows, closes, strict=True)):
        kind, middle = "u" if close >= first else "d", (n + 0.5) * wide
        top, bottom = sorted((10 * scale.down(first), 10 * scale.down(close)))
        wicks[kind].append(f"M{middle:.1f} {10 * scale.down(high):.0f}V{10 * scale.down(low):.0f}")
        side = f"M{middle - 0.35 * wide:.1f}"
        bodies[kind].append(f"{side} {top:.0f}h{0.7 * wide:.1f}v{max(2.0, bottom - top):.0f}h-{0.7 * wide:.1f}z")
        if largest:
            bars[kind].append(
                f"{side} {ACROSS}h{0.7 * wide:.1f}v-{VOLUME * volumes[0][n] / largest:.0f}h-{0.7 * wide:.1f}z"
            )
    return "".join(
        (f'<path class="vol f{kind}" d="{"".join(bars[kind])}"/>' if bars[kind] else "")
        + f'<path class="wick s{kind}" d="{"".join(wicks[kind])}"/><path class="f{kind}" d="{"".join(bodies[kind])}"/>'
        for kind in ("u", "d")
        if wicks[kind]
    )


def candle_chart(
    columns: Sequence[Sequence[float]],
    entries: Sequence[CandleEntry],
    *,
    label: str,
    form: Form,
    times: tuple[int, int],
    lines: Sequence[ChartLine] = (),
    levels: Sequence[PriceLevel] = (),
    height: int = 260,
) -> str:
    """Candles (open, high, low, close, and volume if there is a fifth) with entries, exits and their connections, lines
    with a value for each candle, and levels.
    """
    _, highs, lows, closes, *_ = columns
    scale = scale_of([*highs, *lows, *(entry.px for entry in entries), *(level.px for level in levels)])
    paths = _candle_paths(columns, scale)
    wide = ACROSS / len(closes)
    paths += "".join(f'<path class="ln {line.kind}" d="{_path(line.values, scale, wide / 2)}"/>' for line in lines)
    marks = []
    for entry in entries:
        y = scale.down(entry.px)
        if entry.exit_at is not None:
            kind, end = "u" if entry.is_gain else "d", scale.down(entry.exit_px)
            paths += (
                f'<path class="conn s{kind}" d="M{1000 * entry.at:.0f} {10 * y:.0f}'
                f'L{1000 * entry.exit_at:.0f} {10 * end:.0f}"/>'
            )
            hollow = "fu" if entry.is_gain else "hol fd"
            marks.append(f'<circle class="{hollow}" cx="{100 * entry.exit_at:.2f}%" cy="{end}%" r="4"/>')
        kind, glyph, dy = ("long", "▲", 12) if entry.is_long else ("short", "▼", -4)
        title = f"<title>{escape(entry.title)}</title>" if entry.title else ""
        marks.append(f'<text class="mk {kind}" x="{100 * entry.at:.2f}%" y="{y}%" dy="{dy}">{glyph}{title}</text>')
    tags = [(scale.down(px), _short(form(px), px), kind) for px, kind in ((closes[-1], ""), *levels)]
    across = [_across(level.px, scale, f"lv {level.kind}") for level in levels]
    parts = [_stretched(paths), *across, *marks]
    return _chart(parts, scale, label, height, form=form, tags=tags, below=time_ticks(*times))


def key(kind: str, words: str, value: str = "", *, is_line: bool = False) -> str:
    """An item of a legend."""
    mark = (
        f'<line class="ln {kind}" x1="0" x2="18" y1="5" y2="5"/>'
        if is_line
        else f'<rect class="{kind}" x="4" width="10" height="10"/>'
    )
    strong = f" <b>{escape(value)}</b>" if value else ""
    return f'<li><svg aria-hidden="true">{mark}</svg>{escape(words)}{strong}</li>'


def keys(items: Iterable[str]) -> str:
    """A legend."""
    return f'<ul class="keys" aria-label="Legend">{"".join(items)}</ul>'


def time_ticks(start_ms: int, end_ms: int) -> list[tuple[float, str, bool]]:
    """Places in percent with their texts, for an axis of time in UTC. A phone leaves out those that are True."""
    span = max(1, end_ms - start_ms)
    days = span / DAY_MS
    if days > 75:
        step = 12 if days > 2_000 else 6 if days > 900 else max(1, round(days / 30 / 7))
        moments = _months(start_ms, end_ms, step)
        named = [
            (at, str(datetime_of(at).year) if datetime_of(at).month == 1 else datetime_of(at).strftime("%b"))
            for at in moments
        ]
        return [(100 * (at - start_ms) / span, text, not text.isdigit()) for at, text in named]
    # At most nine ticks in a span of two days or less.
    units = (MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS)
    short = next((unit for unit in units if span <= 8 * unit), units[-1])
    unit = DAY_MS * max(1, round(days / 6)) if days > 3 else short
    first = -(-start_ms // unit) * unit
    shape = "{0.day} {0:%b}" if days > 3 else "{0:%H:%M}"
    places = range(first, end_ms + 1, unit)
    return [(100 * (at - start_ms) / span, shape.format(datetime_of(at)), n % 2 == 1) for n, at in enumerate(places)]


def _months(start_ms: int, end_ms: int, step: int) -> list[int]:
    """The first instants of every `step`-th month of the calendar year."""
    at = datetime_of(start_ms).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    moments = []
    while (ms := ms_of(at)) <= end_ms:
        if ms >= start_ms and (at.month - 1) % step == 0:
            moments.append(ms)
        at = (at + timedelta(days=32)).replace(day=1)
    return moments


def _chart(
    parts: Iterable[str],
    scale: ChartScale,
    label: str,
    height: int,
    *,
    form: Form,
    tags: Sequence[tuple[float, str, str]] = (),
    below: Iterable[tuple[float, str, bool]] = (),
) -> str:
    """The frame of every chart: grid, marks, the axis at the right with its tags, and the axis below."""
    assert height in HEIGHTS, f"charts.css has no height {height}"
    # A tag covers the tick that it stands on.
    room = 100 * TAG_PX / ON_PHONE.get(height, height) / 2
    ticks = [(scale.down(value), form(value)) for value in scale.ticks()]
    free = [(y, text) for y, text in ticks if all(abs(y - at) >= room for at, _, _ in tags)]
    grid = "".join(f'<line class="g" x1="0" x2="100%" y1="{y}%" y2="{y}%"/>' for y, _ in ticks)
    texts = "".join(f'<text x="4" y="{y}%" dy="4">{escape(text)}</text>' for y, text in free)
    axis = "".join(
        f'<text x="{x:.2f}%" y="14"{_place_class(x, is_minor=is_minor)}>{escape(text)}</text>'
        for x, text, is_minor in below
        if 0 <= x <= 100
    )
    return (
        f'<div class="plotbox h{height}"><svg class="plot" role="img" aria-label="{escape(label)}">'
        f'{grid}{"".join(parts)}</svg><svg class="ya" aria-hidden="true">{texts}{_tags(tags, height)}</svg>'
        + (f'<svg class="xa" aria-hidden="true">{axis}</svg>' if axis else "")
        + "</div>"
    )


def _place_class(x: float, *, is_minor: bool) -> str:
    """The classes of a text below a chart: one at the left edge begins there, so that nothing cuts it."""
    names = [*(["k2"] if is_minor else []), *(["first"] if x < EDGE_PERCENT else [])]
    return f' class="{" ".join(names)}"' if names else ""


def _short(text: str, value: float) -> str:
    """The text of a value, or a shorter one if the axis would cut it."""
    return text if len(text) <= AXIS_CHARS else axis_number(value)


def _tags(tags: Sequence[tuple[float, str, str]], height: int) -> str:
    """Values beside the axis, moved apart where they would lie over each other."""
    gap, free, shown = 100 * TAG_PX / ON_PHONE.get(height, height), 0.0, []
    for y, text, kind in sorted(tags):
        place = max(y, free)
        free = place + gap
        shown.append(
            f'<svg y="{place:.2f}%" height="1"><rect class="tag {kind}" x="1" y="-8" width="63" height="16" rx="2"/>'
            f'<text class="tagt" x="3" y="4">{escape(text)}</text></svg>'
        )
    return "".join(shown)


def _stretched(paths: str) -> str:
    return f'<svg viewBox="0 0 {ACROSS} {ACROSS}" preserveAspectRatio="none" width="100%" height="100%">{paths}</svg>'


def _path(values: Sequence[float | None], scale: ChartScale, inset: float = 0.0) -> str:
    """A line through the values, from `inset` to as far from the other side."""
    last, pen, steps = max(1, len(values) - 1), "M", []
    for n, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        steps.append(f"{pen}{inset + (ACROSS - 2 * inset) * n / last:.0f} {10 * scale.down(value):.0f}")
        pen = "L"
    return "".join(steps)


def _last(line: ChartLine) -> float | None:
    return next((value for value in reversed(line.values) if value is not None), None)


def _across(value: float, scale: ChartScale, kind: str) -> str:
    y = scale.down(value)
    return f'<line class="{kind}" x1="0" x2="100%" y1="{y}%" y2="{y}%"/>'


def _bar(left: float, width: float, value: float, scale: ChartScale, kind: str, title: str) -> str:
    top, bottom = sorted((scale.down(value), scale.down(0.0)))
    return (
        f'<rect class="{kind}" x="{left:.2f}%" width="{width:.2f}%" y="{top:.2f}%" height="{bottom - top:.2f}%">'
        f"<title>{escape(title)}</title></rect>"
    )

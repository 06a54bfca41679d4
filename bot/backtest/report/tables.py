"""Tables, lists and cards of the page as HTML. Every text is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bot.figures import Column, Figure
from bot.number_text import DASH, on_page, signed_usd

# shades of a map
SHADES: Final = 6
Rows = Iterable[Sequence[object]]


class Markup(NamedTuple):
    """A cell that is a picture, as HTML of this program."""

    html: str


class Toned(NamedTuple):
    """The text of a cell with a colour: `up` if it is for the better, `down` for the worse, `flat` if neither."""

    text: str
    tone: str


def escaped(value: object) -> str:
    """A text as HTML, also inside an attribute."""
    return html.escape(str(value))


def table(columns: Sequence[Column], rows: Rows, *, label: str = "", kind: str = "rows", name: str = "") -> str:
    """A table with a head, in a frame that scrolls. Each column gives the form of its values. "" without rows."""
    body = [[cell(column, value) for column, value in zip(columns, row, strict=True)] for row in rows]
    heads = [(column.title, column.kind) for column in columns]
    return _framed(heads, body, label=label, kind=kind, name=name)


def heat_map(
    corner: str,
    names: Sequence[str],
    rows: Iterable[tuple[str, Sequence[float | None]]],
    label: str,
    marks: Mapping[tuple[int, int], str] | None = None,
) -> str:
    """A table of signed numbers whose cells are shaded by sign and size. The largest size of all has the full colour.

    `corner` stands over the names of the rows, `names` over their values. `marks`: (row, column) -> a class of
    its cell.
    """
    lines = list(rows)
    largest = max((abs(value) for _, values in lines for value in values if value is not None), default=0.0)
    body = [
        [
            f'<th scope="row">{escaped(name)}</th>',
            *(_heat(value, largest, (marks or {}).get((y, x), "")) for x, value in enumerate(values)),
        ]
        for y, (name, values) in enumerate(lines)
    ]
    frame = _framed([(name, "") for name in (corner, *names)], body, label=label)
    return f'<div class="heat">{frame}</div>' if frame else ""


def months_table(years: Mapping[int, Sequence[float | None]], heads: Sequence[str]) -> str:
    """Years down and months across; on a phone the style sheet turns it. The largest month has the full shade."""
    if not years:
        return ""
    largest = max((abs(value) for values in years.values() for value in values[:-1] if value is not None), default=0.0)
    head = "".join(f'<th scope="col" style="--y:1;--m:{m}">{name}</th>' for m, name in enumerate(heads, start=2))
    lines = []
    for y, (year, values) in enumerate(years.items(), start=2):
        cells = [f'<th scope="row" style="--y:{y};--m:1">{year}</th>']
        for m, value in enumerate(values, start=2):
            kinds = " ".join(filter(None, (shade(value, largest), "sum" if m == len(values) + 1 else "")))
            text = one_decimal(value)
            cells.append(f'<td class="{kinds or "none"}" style="--y:{y};--m:{m}">{text}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    corner = '<th style="--y:1;--m:1"><span class="hidden">Year</span></th>'
    return f'<table class="months"><thead><tr>{corner}{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def one_decimal(value: float | None) -> str:
    """A signed number of a map: `+6.1`; nothing is `0.0`."""
    if value is None:
        return DASH
    return on_page(f"{value:+.1f}") if abs(value) >= 0.05 else "0.0"


def shade(value: float | None, largest: float) -> str:
    """The class of a cell: u1 to u6 for a gain, d1 to d6 for a loss, "" for nothing."""
    if not value or not largest:
        return ""
    return f"{'u' if value > 0 else 'd'}{min(SHADES, max(1, math.ceil(SHADES * abs(value) / largest)))}"


def _framed(
    heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], *, label: str, kind: str = "", name: str = ""
) -> str:
    """Every table of a page is made here, so that no head can stand over the wrong column.

    `heads`: text and classes. The cells are HTML.
    """
    if not rows:
        return ""
    widths = {len(row) for row in rows}
    assert widths == {len(heads)}, f"table {label or heads}: {len(heads)} heads over rows of {sorted(widths)} cells"
    head = "".join(f'<th scope="col"{_classed(kinds)}>{escaped(text)}</th>' for text, kinds in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    named = f' role="region" aria-label="{escaped(label)}"' if label else ""
    identity = f' id="{name}"' if name else ""
    return (
        f'<div class="wide" tabindex="0"{named}><table{identity}{_classed(kind)}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _classed(kinds: str) -> str:
    return f' class="{kinds}"' if kinds else ""


def _heat(value: float | None, largest: float, mark: str) -> str:
    if value is None:
        return "<td></td>"
    kinds = " ".join(filter(None, (shade(value, largest), mark)))
    return f"<td{_classed(kinds)}>{on_page(signed_usd(value))}</td>"


def cell(column: Column, value: object) -> str:
    """A cell in the form of its column, with the column's head for a phone."""
    if isinstance(value, Markup):
        return f'<td class="{column.kind} bar">{value.html}</td>'
    text, tone = value if isinstance(value, Toned) else (column.shown(value), column.tone(value))
    kinds = " ".join(filter(None, (column.kind, tone if tone != "flat" else "")))
    label = f' data-label="{escaped(column.title)}"' if column.head else ""
    return f"<td{label}{_classed(kinds)}>{escaped(text)}</td>"


def pairs(figures: Iterable[Figure], *, beside: Mapping[str, str] | None = None, kind: str = "pairs") -> str:
    """Figures as a list of names and values. `beside`: a small line under a value, by the figure's name."""
    items = []
    for figure in figures:
        small = (beside or {}).get(figure.name)
        more = f'<dd class="more"><small>{escaped(small)}</small></dd>' if small else ""
        value = f"<dd{_classed(figure.tone if figure.tone != 'flat' else '')}>{escaped(figure.shown)}</dd>"
        items.append(f"<div><dt>{escaped(figure.name)}</dt>{value}{more}</div>")
    return f'<dl class="{kind}">{"".join(items)}</dl>' if items else ""


def bullets(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def section(title: str, body: str, *, note: str = "", name: str = "", span: str = "", end: str = "") -> str:
    """A card with a title, its unit or note, and its content. "" without content.

    `span`: its width in the grid, like c6. `end`: controls at the end of its head.
    """
    if not body:
        return ""
    identity = f' id="{escaped(name)}"' if name else ""
    beside = f'<span class="note">{escaped(note)}</span>' if note else ""
    controls = f'<div class="end">{end}</div>' if end else ""
    kinds = " ".join(filter(None, ("card", span)))
    head = f"<header><h2>{escaped(title)}</h2>{beside}{controls}</header>"
    return f'<section{identity} class="{kinds}">{head}{body}</section>'


def verdict(tone: str, head: str, text: str = "", notes: Iterable[str] = ()) -> str:
    """What the page says first: a few words, a sentence of figures, and notes. `tone`: good, watch or bad."""
    said = f"<p><b>{escaped(head)}</b> {escaped(on_page(text))}</p>"
    return f'<div class="verdict {tone}">{said}{"".join(small_note(on_page(note)) for note in notes)}</div>'


def small_note(text: str) -> str:
    return f'<p class="note">{escaped(text)}</p>'


def lead(figure: Figure, beside: str) -> str:
    """The first figure of a group, large, and what stands beside it."""
    arrow = {"up": "▲ ", "down": "▼ "}.get(figure.tone, "")
    second = f'<span class="second">{escaped(beside)}</span>'
    return f'<p class="lead {figure.tone}"><b>{arrow}{escaped(figure.shown)}</b>{second}</p>'


def gauge(name: str, value: str, bar: str, note: str) -> str:
    """A named value over its bar, which is HTML as `name` is."""
    return f'<div class="gauge"><p><span>{name}</span><b>{escaped(value)}</b></p>{bar}{small_note(note)}</div>'


def chip(text: str, kind: str = "") -> str:
    return f'<span class="chip {kind}">{escaped(text)}</span>'


def foot(text: str) -> str:
    """What to conclude from a panel, or how it was computed."""
    return f'<p class="foot">{escaped(text)}</p>' if text else ""


def details(title: str, body: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{escaped(title)}</summary>{body}</details>" if body else ""

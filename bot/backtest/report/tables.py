"""Tables, lists and cards of the page as HTML. Every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bot.figures import Column
from bot.number_text import on_page

Rows = Iterable[Sequence[object]]


class Toned(NamedTuple):
    """The text of a cell with a colour: `up` if it is for the better, `down` for the worse, `flat` if neither."""

    text: str
    tone: str


def escaped(value: object) -> str:
    """A text as HTML, also inside an attribute."""
    return html.escape(str(value))


def table(columns: Sequence[Column], rows: Rows, *, label: str = "") -> str:
    """A table with a head, in a frame that scrolls. Each column gives the form of its values. "" without rows."""
    body = [[_cell(column, value) for column, value in zip(columns, row, strict=True)] for row in rows]
    return _framed([(column.title, column.kind) for column in columns], body, label=label)


def heat_map(corner: str, names: Sequence[str], rows: Iterable[tuple[str, Sequence[float | None]]], label: str) -> str:
    """A table of signed percentages whose cells are coloured by sign and size. The largest size of all cells has the
    full colour.

    `corner` stands over the names of the rows, `names` over their values.
    """
    listed = list(rows)
    largest = max((abs(value) for _, values in listed for value in values if value is not None), default=0.0) or 1.0
    body = [
        [f'<th scope="row">{escaped(name)}</th>', *(_heat(value, largest) for value in values)]
        for name, values in listed
    ]
    return _framed([(name, "") for name in (corner, *names)], body, label=label, kind="heat")


def _framed(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], *, label: str, kind: str = "") -> str:
    """Every table of a page is made here, so that no head can stand over the wrong column.

    `heads`: text and classes. The cells are HTML.
    """
    if not rows:
        return ""
    widths = {len(row) for row in rows}
    assert widths == {len(heads)}, f"table {label or heads}: {len(heads)} heads over rows of {sorted(widths)} cells"
    head = "".join(f'<th scope="col"{_classed(kinds)}>{escaped(name)}</th>' for name, kinds in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    named = f' role="region" aria-label="{escaped(label)}"' if label else ""
    return (
        f'<div class="wide" tabindex="0"{named}><table{_classed(kind)}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _classed(kinds: str) -> str:
    return f' class="{kinds}"' if kinds else ""


def _heat(value: float | None, largest: float) -> str:
    if value is None:
        return "<td></td>"
    return (
        f'<td class="{"up" if value >= 0 else "down"}"'
        f' style="--heat:{abs(value) / largest:.2f}">{on_page(f"{value:+z.2f}")}</td>'
    )


def _cell(column: Column, value: object) -> str:
    """A cell in the form of its column, with the column's head for a phone."""
    text, tone = value if isinstance(value, Toned) else (column.shown(value), column.tone(value))
    kinds = " ".join(filter(None, (column.kind, tone if tone != "flat" else "")))
    label = f' data-label="{escaped(column.title)}"' if column.head else ""
    return f"<td{label}{_classed(kinds)}>{escaped(text)}</td>"


def bullets(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def section(title: str, body: str, *, note: str = "", name: str = "") -> str:
    """A heading with its content. "" without content."""
    if not body:
        return ""
    identity = f' id="{escaped(name)}"' if name else ""
    return f"<section{identity}><h2>{escaped(title)}</h2>{f'<p>{escaped(note)}</p>' if note else ''}{body}</section>"


def panel(title: str, body: str, note: str = "") -> str:
    """A titled chart in a grid of panels. "" without content."""
    return (
        f'<div class="panel"><h3>{escaped(title)}</h3>{body}{f"<p>{escaped(note)}</p>" if note else ""}</div>'
        if body
        else ""
    )

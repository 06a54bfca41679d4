"""Tables, lists and cards of the page as HTML. Every text is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bot.number_text import on_page

_FIGURE: Final = re.compile(r"[-+]?[0-9][0-9,]*(\.[0-9]+)?( %| R| (y|d|h|min|s)( [0-9]+ (d|h|min|s))?)?|-", re.ASCII)
# a text up to this length stays on one line
SHORT_CHARS: Final = 24
Rows = Iterable[Sequence[object]]


class Toned(NamedTuple):
    """A cell with a colour: `up` if it is for the better, `down` if it is for the worse, `flat` if it is neither."""

    text: str
    tone: str


def escaped(value: object) -> str:
    """A text as HTML, also inside an attribute."""
    return html.escape(str(value))


def table(names: Sequence[str], rows: Rows, *, label: str = "") -> str:
    """A table with a head, in a frame that scrolls. "" without rows."""
    return _framed(names, [[_cell(cell) for cell in row] for row in rows], label=label)


def heat_map(corner: str, names: Sequence[str], rows: Iterable[tuple[str, Sequence[float | None]]], label: str) -> str:
    """A table of signed percentages whose cells are coloured by sign and size. The largest size of all cells has the
    full colour.

    `corner` stands over the names of the rows, `names` over their values.
    """
    found = list(rows)
    largest = max((abs(value) for _, values in found for value in values if value is not None), default=0.0) or 1.0
    body = [
        [f'<th scope="row">{escaped(name)}</th>', *(_heat(value, largest) for value in values)]
        for name, values in found
    ]
    return _framed((corner, *names), body, label=label, kind="heat")


def _framed(heads: Sequence[str], rows: Sequence[Sequence[str]], *, label: str, kind: str = "") -> str:
    """Every table of a page is made here, so that no head can stand over the wrong column. The cells are HTML."""
    if not rows:
        return ""
    widths = {len(row) for row in rows}
    assert widths == {len(heads)}, f"table {label or heads}: {len(heads)} heads over rows of {sorted(widths)} cells"
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    named = f' role="region" aria-label="{escaped(label)}"' if label else ""
    classed = f' class="{kind}"' if kind else ""
    return (
        f'<div class="wide" tabindex="0"{named}><table{classed}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _heat(value: float | None, largest: float) -> str:
    if value is None:
        return "<td></td>"
    return (
        f'<td class="{"up" if value >= 0 else "down"}"'
        f' style="--heat:{abs(value) / largest:.2f}">{on_page(f"{value:+z.2f}")}</td>'
    )


def _cell(cell: object) -> str:
    """A cell; a figure has the minus of a page and stays on one line, a text folds."""
    value, tone = cell if isinstance(cell, Toned) else (cell, "")
    if not isinstance(value, str):
        return f"<td>{escaped(value)}</td>"
    is_figure = _FIGURE.fullmatch(value) is not None
    kind = tone or ("" if is_figure or len(value) <= SHORT_CHARS else "text")
    classed = f' class="{kind}"' if kind else ""
    return f"<td{classed}>{escaped(on_page(value) if is_figure else value)}</td>"


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

"""Tables, lists and cards of the page as HTML. Every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

Rows = Iterable[Sequence[object]]


def escaped(value: object) -> str:
    """A text as HTML, also inside an attribute."""
    return html.escape(str(value))


def table(names: Sequence[str], rows: Rows, *, label: str = "") -> str:
    """A table with a head, in a frame that scrolls. "" without rows."""
    body = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    if not body:
        return ""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in names)
    named = f' role="region" aria-label="{escaped(label)}"' if label else ""
    return f'<div class="wide" tabindex="0"{named}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def heat_map(names: Sequence[str], rows: Iterable[tuple[str, Sequence[float | None]]], label: str) -> str:
    """A table of signed percentages whose cells are coloured by sign and size. The largest size of all cells has the full colour."""
    found = list(rows)
    largest = max((abs(value) for _, values in found for value in values if value is not None), default=0.0) or 1.0
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>{"".join(_heat(value, largest) for value in values)}</tr>' for name, values in found
    )  # fmt: skip
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escaped(label)}"><table class="heat"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        if body
        else ""
    )


def _heat(value: float | None, largest: float) -> str:
    if value is None:
        return "<td></td>"
    return f'<td class="{"up" if value >= 0 else "down"}" style="--heat:{abs(value) / largest:.2f}">{value:+z.2f}</td>'


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

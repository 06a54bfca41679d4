"""Every table of the pages: the macro `table` builds its head from a list of columns, and each row passes through
`cells`.

So head and rows have one width, and on a phone, where a row is a block of lines, each cell shows the head of its
column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple, TypeVar

# jinja2's text of markup
T = TypeVar("T", bound=str)

_CELL: Final = re.compile(r"<(td|th)(?=[\s>])")


class Column(NamedTuple):
    """`kind` is a class of the style sheet: right for figures, wrap for texts.

    `is_hidden`: the head is for screen readers alone.
    """

    head: str
    kind: str = ""
    is_hidden: bool = False


def cells(row: T, columns: Sequence[Column]) -> T:
    """The cells of a row, each with the head and the class of its column.

    AssertionError if there is not one for each column.
    """
    found = _CELL.findall(row)
    assert len(found) == len(columns), f"{len(found)} cells under {len(columns)} heads: {[one.head for one in columns]}"
    heads = iter(columns)

    def labelled(match: re.Match[str]) -> str:
        column = next(heads)
        label = "" if column.is_hidden or match[1] == "th" else f' data-label="{escape(column.head)}"'
        kind = f' class="{column.kind}"' if column.kind else ""
        return f"<{match[1]}{label}{kind}"

    # The template has escaped the row.
    return type(row)(_CELL.sub(labelled, row))

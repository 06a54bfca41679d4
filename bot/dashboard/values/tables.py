"""Every table of the pages: the macro `table` builds its head from a list of columns, and each row passes through
`cells`.

It shows at most ROWS_MAX rows and says how many more there are. So head and rows have one width, and on a phone, where
a row is a block of lines, each cell shows the head of its column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, TypeVar, overload

from bot.figures import Column

# rows that a table shows; a browser and the server need seconds for thousands
ROWS_MAX: Final = 200

R = TypeVar("R")
S = TypeVar("S")
# jinja2's text of markup
T = TypeVar("T", bound=str)

_CELL: Final = re.compile(r"<(td|th)(?=[\s>])")


class TableRows(Sequence[R]):
    """The rows of a table, each made when it is shown: of thousands a table shows ROWS_MAX."""

    def __init__(self, items: Sequence[S], make: Callable[[S], R]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> R: ...
    @overload
    def __getitem__(self, place: slice) -> list[R]: ...
    def __getitem__(self, place: int | slice) -> R | list[R]:
        if isinstance(place, slice):
            return [self._make(item) for item in self._items[place]]
        return self._make(self._items[place])

    def __eq__(self, other: object) -> bool:
        """True if a table shows the same of both."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and self[:ROWS_MAX] == list(other[:ROWS_MAX])

    # Compared by what a table shows, which changes: no key of a dict.
    __hash__ = None  # type: ignore[assignment]


def cells(row: T, columns: Sequence[Column]) -> T:
    """The cells of a row, each with the head and the class of its column.

    AssertionError if there is not one for each column.
    """
    tags = _CELL.findall(row)
    assert len(tags) == len(columns), (
        f"{len(tags)} cells under {len(columns)} heads: {[column.head for column in columns]}"
    )
    heads = iter(columns)

    def labelled(match: re.Match[str]) -> str:
        column = next(heads)
        label = "" if column.is_hidden or match[1] == "th" else f' data-label="{escape(column.title)}"'
        kind = f' class="{column.kind}"' if column.kind else ""
        return f"<{match[1]}{label}{kind}"

    # The template has escaped the row.
    return type(row)(_CELL.sub(labelled, row))

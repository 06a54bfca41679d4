"""Tables on a terminal: every command makes them here, so that heads and rows have one width and the table fits the
screen.
"""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Final

from bot.plain_text import one_line

GAP: Final = "  "
# columns that a long text keeps before the table is cut into parts
CELL_MIN: Final = 12


def screen_width() -> int | None:
    """Columns of the terminal; None where the output is no terminal and COLUMNS does not say."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def text_width(text: str) -> int:
    """Columns of a terminal that a text takes: letters of East Asia take two, marks over a letter none."""
    return len(text) if text.isascii() else sum(map(_letter_width, text))


def _letter_width(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken at blanks where it has them."""
    # the widest letter
    width = max(2, width)
    if text.isascii():
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    lines, line = [], ""
    for word in text.split():
        if line and text_width(f"{line} {word}") > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while text_width(line) > width:
            cut = next(n for n in range(len(line), 0, -1) if text_width(line[:n]) <= width)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line]


def _padded(text: str, width: int, *, is_right: bool) -> str:
    blanks = " " * (width - text_width(text))
    return blanks + text if is_right else text + blanks


def table_lines(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), width: int | None = None
) -> list[str]:
    """The lines of a table. `right`: places of the columns that are aligned to the right. "" for a head leaves it
    empty.

    A table that is wider than `width` is printed in parts one below the other, each with the first column. A cell is
    never cut:
    one that is longer than the screen goes on in the next line.
    """
    widths = {len(row) for row in rows}
    assert widths <= {len(heads)}, f"{len(heads)} heads over rows of {sorted(widths)} cells: {heads}"
    columns = [[one_line(str(cell)) for cell in column] for column in zip(heads, *rows, strict=True)]
    limit = None if width is None else max(CELL_MIN, width)
    lines: list[str] = []
    for part in _parts(columns, limit):
        lines += ([""] if lines else []) + _part_lines(columns, part, frozenset(right), limit)
    return lines


def _parts(columns: Sequence[Sequence[str]], width: int | None) -> list[list[int]]:
    """Which columns stand side by side: the first one in each part, and as many others as fit."""
    if width is None or not columns:
        return [list(range(len(columns)))]
    sizes = [min(max(map(text_width, column)), width) for column in columns]
    parts, used = [[0]], sizes[0]
    for n, size in enumerate(sizes[1:], start=1):
        if len(parts[-1]) > 1 and used + len(GAP) + size > width:
            parts.append([0])
            used = sizes[0]
        parts[-1].append(n)
        used += len(GAP) + size
    return parts


def _part_lines(
    columns: Sequence[Sequence[str]], part: Sequence[int], right: frozenset[int], width: int | None
) -> list[str]:
    sizes = {n: max(map(text_width, columns[n])) for n in part}
    if width is not None:
        # The longest columns share the width that is left; their cells wrap.
        over = sum(sizes.values()) + len(GAP) * (len(part) - 1) - width
        for longest in sorted(part, key=lambda n: -sizes[n]):
            less = min(max(0, over), max(0, sizes[longest] - CELL_MIN))
            sizes[longest] -= less
            over -= less
    lines = []
    for row in range(len(columns[part[0]])):
        cells = {n: _folded(columns[n][row], sizes[n]) for n in part}
        for fold in range(max(map(len, cells.values()))):
            texts = {n: cells[n][fold] if fold < len(cells[n]) else "" for n in part}
            line = GAP.join(_padded(texts[n], sizes[n], is_right=n in right) for n in part)
            lines.append(line.rstrip())
    return lines

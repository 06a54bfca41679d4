"""Tables on a terminal: every command makes them here, so that heads and rows have one width and the table fits the screen."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Final

from bot.plain_text import one_line

GAP: Final = "  "
CELL_MIN: Final = 12  # columns that a long text keeps before the table is cut into parts


def screen_width() -> int | None:
    """Columns of the terminal; None where the output is no terminal and COLUMNS does not say."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def table_lines(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), width: int | None = None
) -> list[str]:
    """The lines of a table. `right`: places of the columns that are aligned to the right. "" for a head leaves it empty.

    A table that is wider than `width` is printed in parts one below the other, each with the first column. A cell is never cut:
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
    sizes = [min(max(map(len, column)), width) for column in columns]
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
    sizes = {n: max(map(len, columns[n])) for n in part}
    if width is not None:  # A part of one long column: it gets what the first one leaves, and folds.
        over = sum(sizes.values()) + len(GAP) * (len(part) - 1) - width
        longest = max(part, key=lambda n: sizes[n])
        sizes[longest] -= min(max(0, over), max(0, sizes[longest] - CELL_MIN))
    lines = []
    for row in range(len(columns[part[0]])):
        cells = {n: textwrap.wrap(columns[n][row], sizes[n], break_on_hyphens=False) or [""] for n in part}
        for fold in range(max(map(len, cells.values()))):
            texts = {n: cells[n][fold] if fold < len(cells[n]) else "" for n in part}
            line = GAP.join(texts[n].rjust(sizes[n]) if n in right else texts[n].ljust(sizes[n]) for n in part)
            lines.append(line.rstrip())
    return lines

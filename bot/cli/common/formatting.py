"""Prices and amounts as text for people. With `--json` they are printed exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from bot import number_text
from bot.number_text import px

__all__ = ["print_table", "px", "say_left_out", "shown", "usd"]


def usd(value: Any, *, signed: bool = False) -> str:
    """An amount with two decimals: `-1,234.50`."""
    return number_text.signed_usd(value) if signed else number_text.usd(value)


def shown(name: str, value: Any) -> str:
    """A value as text, by the unit at the end of its name (`_usd`, `_px`). Sizes and counts are printed exactly."""
    if name.endswith("_usd"):
        return usd(value)
    return px(value) if name.endswith("_px") else str(value)


def say_left_out(line: str) -> None:
    """Print on standard error what was left out of a result."""
    click.echo(line, err=True)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """Print the columns of the rows under their names; `empty` if there is no row. None is shown as `-`."""
    from bot.cli.common.text_table import screen_width, table_lines

    if not rows:
        click.echo(empty)
        return
    heads = [name.replace("_", " ") for name in columns]
    cells = [["-" if row.get(name) is None else shown(name, row[name]) for name in columns] for row in rows]
    for line in table_lines(heads, cells, width=screen_width()):
        click.echo(line)

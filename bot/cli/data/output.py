"""What the `bot data` commands print: progress, a line for each written market, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from bot.terminal import write_over
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.data.store import Written


@contextmanager
def progress(*, is_shown: bool) -> Iterator[Callable[[str], None]]:
    """A function that shows a text in one line of the terminal, over the last text.

    The line is cleared at the end. No terminal: nothing is shown.
    """
    if not is_shown or not sys.stderr.isatty():
        yield lambda _text: None
        return

    def show(text: str) -> None:
        write_over(sys.stderr, text)

    try:
        yield show
    finally:
        show("")


def show_rows(show: Callable[[str], None], name: str, rows: int) -> None:
    show(f"{name}: {many(rows, 'row')}")


def day_text(at_ms: int) -> str:
    from bot.clock import DAY_MS, iso

    return iso(at_ms)[:10] if at_ms % DAY_MS == 0 else iso(at_ms)[:16].replace("T", " ")


def print_json(what: dict[str, Any]) -> None:
    click.echo(json.dumps(what, indent=2))


def written_line(market: str, interval: str, done: Written) -> str:
    news = [f"{done.added:,} new"] + [
        f"{n:,} {what}" for n, what in ((done.same, "there already"), (done.replaced, "replaced")) if n
    ]
    return (
        f"{market} {interval}: {many(done.rows, 'candle')} in {done.path} ({', '.join(news)}),"
        f" {day_text(done.first_ms)} to {day_text(done.last_ms)}"
    )


def written_data(market: str, interval: str, done: Written) -> dict[str, Any]:
    return {
        "market": market,
        "interval": interval,
        "file": str(done.path),
        "rows": done.rows,
        "added": done.added,
        "same": done.same,
        "replaced": done.replaced,
        "firstTs": done.first_ms,
        "lastTs": done.last_ms,
    }

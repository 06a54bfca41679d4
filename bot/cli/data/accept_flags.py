"""The flags by which a user takes data with faults: `--accept-gaps` and friends, the same wherever candles are judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

# The flags of bot.backtest.data.findings.ACCEPTS; written here, so that a help text imports nothing (a test compares them).
ACCEPTS: Final = {
    "gaps": "holes",
    "hours": "session hours that do not fit the exchange",
    "jumps": "moves that are hard to believe",
    "zero-volume": "many candles without volume",
    "unsorted": "rows out of order (they are sorted)",
    "duplicates": "an instant with two different rows (the last one counts)",
    "off-grid": "instants off their interval's grid (they are moved back to it)",
    "ohlc": "high and low that do not hold open and close (they are widened)",
}


def accepting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all the flags; it gets them by name, and hands them to `accepted`."""
    for name, what in reversed(ACCEPTS.items()):
        command = click.option(f"--accept-{name}", is_flag=True, help=f"Take {what}.")(command)
    return command


def accepted(flags: dict[str, Any]) -> tuple[str, ...]:
    """The words of the flags that were given, which are taken out of `flags`."""
    return tuple(name for name in ACCEPTS if flags.pop(f"accept_{name.replace('-', '_')}", False))

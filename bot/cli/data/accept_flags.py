"""The flags that accept candles with faults: `--accept-gaps` and others. All commands that check candles have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

# The same names as in bot.backtest.data.findings.ACCEPTS. Repeated here so that --help imports nothing; a test compares
# both.
ACCEPTS: Final = {
    "gaps": "gaps",
    "hours": "trading hours that do not fit the exchange",
    "jumps": "improbably large moves",
    "zero-volume": "many candles without volume",
    "unsorted": "rows out of order (they are sorted)",
    "duplicates": "two different rows of one instant (the last one counts)",
    "off-grid": "instants off the grid of the interval (they are moved forward to it, never back)",
    "ohlc": "open or close outside high and low (high and low are widened)",
}


def accepting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all the flags to a command, which passes them to `accepted`."""
    for name, what in reversed(ACCEPTS.items()):
        command = click.option(f"--accept-{name}", is_flag=True, help=f"Accept {what}.")(command)
    return command


def accepted(flags: dict[str, Any]) -> tuple[str, ...]:
    """The names of the flags that were given. All accept flags are removed from `flags`."""
    return tuple(name for name in ACCEPTS if flags.pop(f"accept_{name.replace('-', '_')}", False))

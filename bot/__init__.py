"""Bracketbot: a trading runtime that people leave alone with an account, and the service it trades with, embedded.

Map of the package; a line imports only from lines below it, `|` means strangers (checked by the tests):

    cli | testing      the command `bot`: parses, builds, calls; exit codes | a pytest plugin with a fresh service for a test
    backtest           a backtest: the daemon's kernel on the service's venue in simulated time; candles, figures, report, replay
    service | runtime  the service: operations, REST, prices, durable log | the daemon: kernel, journal, heartbeat (read runtime/kernel.py first)
    venue | client     the pure machine: orders, margin, guardians; no I/O, no clock | one typed method an operation, errors by next move
    config             YAML -> frozen settings; an error has line, column and "did you mean"
    strategy           the page that an author of strategies learns
    wire               the /v1 contract, shared by client and service
    money, clock, descriptors, errors, logs, words

The daemon knows only the interface (never `venue` or `service`), so that it behaves the same against any service.

For authors of strategies everything is here: `from bot import Strategy, Open, Bracket, sma`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bot.strategy import (
        Bar,
        Bracket,
        Cancel,
        Close,
        Field,
        Fill,
        GuardianNote,
        Intent,
        MaxHold,
        Open,
        Params,
        Strategy,
        Timer,
        TrailingStop,
        Trigger,
        View,
        atr,
        ema,
        highest,
        lowest,
        rsi,
        sma,
    )

__version__ = "0.1.0"

__all__ = [
    "Strategy",
    "Params",
    "Field",
    "View",
    "Bar",
    "Intent",
    "Open",
    "Close",
    "Cancel",
    "Bracket",
    "TrailingStop",
    "MaxHold",
    "Fill",
    "Trigger",
    "Timer",
    "GuardianNote",
    "sma",
    "ema",
    "rsi",
    "atr",
    "highest",
    "lowest",
]


def __getattr__(name: str) -> Any:
    """The strategy page's names, imported when first asked for: `import bot` alone costs nothing."""
    if name in __all__:
        import bot.strategy

        value = getattr(bot.strategy, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Bracketbot: a daemon that runs trading strategies unattended, and a trading service that it can embed.

Map of the package. A package imports only from lines below it; two packages on one line do not import each other (the
tests check this).

    cli | testing      the command `bot`, its exit codes | a pytest plugin with a fresh service for each test
    dashboard | notebook
                       pages in a browser that show a running daemon; a process of its own, the extra `ui`
                       | backtests, sweeps and screens from Python
    research | drill   many backtests: sweeps of params, here or on a cluster | worlds of faults around the kernel
    backtest           the daemon's kernel on the service's venue in simulated time; candles, statistics, report, replay
    checks             checks of a whole config before anything starts
    service | runtime | local_exchange
                       the service: HTTP, MCP, prices, durable log | the daemon: kernel, journal, heartbeat
                       | an exchange in Hyperliquid's wire form, for tests of bots; only cli and testing use it
    exchanges          accounts and prices of exchanges through a link process; a folder for each has its wire form
    venue | client | market_data
                       pure rules: orders, margin, guardians; no I/O, no clock | one typed method for each operation
                       | sources of real prices
    agents | config    strategies that ask a language model | YAML to frozen settings; an error has line and column
    strategy           what an author of strategies uses
    http_limits        bounds on answers, certificates and proxies of every HTTP client
    wire               requests, answers and events of the /v1 interface, shared by client and service
    cron | plugins     the only reader of cron lines | entry points of installed packages
    figures            a figure and a column of a table, used by the terminal and by every page
    number_text        numbers, durations and instants as people read them, in one form everywhere
    chart_library, money, clock, descriptors, encryption, errors, extras, logs, model, words
    terminal           the guard in front of standard output and error
    files, plain_text  checks of files | text of others in a form that is safe to show
    operating_system   the calls that only Linux has, and what is done without them

The daemon knows only the interface (never `venue` or `service`), so that it behaves the same against any service.

Authors of strategies import everything from here: `from bot import Strategy, Open, Bracket, sma`. More:
docs/architecture.md.
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
        Proposal,
        Strategy,
        Timer,
        TrailingStop,
        Trigger,
        View,
        adx,
        atr,
        bollinger,
        donchian,
        ema,
        highest,
        keltner,
        lowest,
        macd,
        roc,
        rsi,
        sma,
        stddev,
        stochastic,
        supertrend,
        vwap,
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
    "Proposal",
    "sma",
    "ema",
    "rsi",
    "atr",
    "highest",
    "lowest",
    "macd",
    "bollinger",
    "adx",
    "stochastic",
    "keltner",
    "donchian",
    "vwap",
    "supertrend",
    "stddev",
    "roc",
]


def __getattr__(name: str) -> Any:
    """Import the names of the strategy page on first use, so that `import bot` alone is fast."""
    if name in __all__:
        import bot.strategy

        value = getattr(bot.strategy, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Backtests: the daemon's kernel over candles in simulated time, with their data, results, reports and replay.

It may import the daemon (`runtime`), the service and the checks of configs; it holds no rule of trading. Start with
`backtest.py`, then `engine/driver.py`. From Python: `from bot.backtest import run` (python_api.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bot.backtest.python_api import BacktestRun, run

__all__ = ["BacktestRun", "run"]


def __getattr__(name: str) -> Any:
    """Import the Python API on first use: most modules of this package are needed without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bot.backtest import python_api

    return getattr(python_api, name)

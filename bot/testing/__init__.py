"""For tests: a fresh service for each test (a pytest plugin), and a kit for authors of strategies. No other package
imports it.

Authors import everything from here: `from bot.testing import assert_opened, backtest, bars`. docs/strategies.md lists
each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bot.backtest.engine.options import MarketRules, SessionOptions, Settlement
    from bot.testing.assertions import assert_causal, assert_flat, assert_opened, assert_protected
    from bot.testing.backtests import Run, Trade, backtest
    from bot.testing.candles import bars, flat, ramp, walk, wave

__all__ = [
    "bars",
    "flat",
    "ramp",
    "wave",
    "walk",
    "backtest",
    "Run",
    "Trade",
    "SessionOptions",
    "MarketRules",
    "Settlement",
    "assert_opened",
    "assert_protected",
    "assert_flat",
    "assert_causal",
]

_MODULES: Final = {
    "bot.testing.candles": ("bars", "flat", "ramp", "wave", "walk"),
    "bot.testing.backtests": ("backtest", "Run", "Trade"),
    "bot.backtest.engine.options": ("SessionOptions", "MarketRules", "Settlement"),
    "bot.testing.assertions": ("assert_opened", "assert_protected", "assert_flat", "assert_causal"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name on first use: each pytest run of an environment with this package imports the plugin, which must
    stay fast.
    """
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

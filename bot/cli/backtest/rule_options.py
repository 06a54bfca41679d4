"""Turn --fee, --maker-fee, --spread, --depth, --tick and --lot into rules of markets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from bot.cli.common.param_types import _CLASSES

if TYPE_CHECKING:
    from bot.backtest.engine.options import MarketRules


# Name of an option's values -> field of MarketRules.
RULES: Final = {
    "fees": "taker",
    "maker_fees": "maker",
    "spreads": "spread_bps",
    "depths": "depth_usd",
    "ticks": "tick",
    "lots": "lot",
}


def rules_of(given: Mapping[str, Any], markets: Collection[str]) -> dict[str, MarketRules]:
    """The market rules from --fee, --maker-fee, --spread, --depth, --tick and --lot, for the `markets` that the
    strategies trade.
    """
    from dataclasses import replace

    from bot.backtest.engine.options import MarketRules
    from bot.errors import ConfigError

    rules: dict[str, MarketRules] = {}
    for option, name in RULES.items():
        for whose, value in given[option]:
            if whose not in ("", *_CLASSES, *markets):
                flag = option.removesuffix("s").replace("_", "-")
                raise ConfigError(f"--{flag} {whose}: no strategy trades it; they trade {', '.join(sorted(markets))}")
            rules[whose] = replace(rules.get(whose, MarketRules()), **{name: value})
    return rules

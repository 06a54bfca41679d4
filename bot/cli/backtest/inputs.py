"""Turn options of `bot backtest` into its inputs: the traded markets, their funding files and their market rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bot.cli.common.param_types import _CLASSES

if TYPE_CHECKING:
    from bot.backtest.data.funding_rates import Funding
    from bot.backtest.engine.options import MarketRules
    from bot.config import Settings


def traded(settings: Settings) -> list[str]:
    """Every market of a config's strategies."""
    return sorted({market for strategy in settings.strategies for market in strategy.markets})


def fundings_of(texts: Sequence[str], markets: Sequence[str]) -> dict[str, Funding]:
    """The files of --funding by market. ConfigError for a market outside `markets`, which the strategies trade."""
    from bot.backtest.data.candles import market_name
    from bot.backtest.data.column_files import judge_file
    from bot.backtest.data.funding_rates import read_funding
    from bot.errors import ConfigError
    from bot.service.market_data.recorded import coin_of

    found: dict[str, Funding] = {}
    for text in texts:
        name, _, file = text.rpartition("=")
        path = Path(file)
        if not path.exists() or path.is_dir():
            raise ConfigError(f"--funding {path}: there is no such file")
        judge_file(path)
        market = market_name(name) if name else coin_of(path, tuple(markets))
        if market not in markets:
            raise ConfigError(f"--funding {text}: no strategy trades {market}; they trade {', '.join(markets)}")
        if market in found:
            raise ConfigError(
                f"--funding {text}: {found[market].path} has the rates of {market} already; give one of them"
            )
        found[market] = read_funding(path)
    return found


def rules_of(given: Mapping[str, Any], markets: Collection[str]) -> dict[str, MarketRules]:
    """The market rules from --fee, --maker-fee, --spread, --depth, --tick and --lot, for the `markets` that the strategies trade."""
    from dataclasses import replace

    from bot.backtest.engine.options import MarketRules
    from bot.errors import ConfigError

    names = {
        "fees": "taker",
        "maker_fees": "maker",
        "spreads": "spread_bps",
        "depths": "depth_usd",
        "ticks": "tick",
        "lots": "lot",
    }
    rules: dict[str, MarketRules] = {}
    for option, name in names.items():
        for whose, value in given[option]:
            if whose not in ("", *_CLASSES, *markets):
                flag = option.removesuffix("s").replace("_", "-")
                raise ConfigError(f"--{flag} {whose}: no strategy trades it; they trade {', '.join(sorted(markets))}")
            rules[whose] = replace(rules.get(whose, MarketRules()), **{name: value})
    return rules

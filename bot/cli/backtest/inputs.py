"""Turn options of `bot backtest` into its inputs: the traded markets, their funding files and their market rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bot.cli.common.param_types import _CLASSES

if TYPE_CHECKING:
    from bot.backtest.data.funding_rates import Funding
    from bot.backtest.data.origins import Origin
    from bot.backtest.engine.options import MarketRules
    from bot.config import Settings
    from bot.market_data.source import Instrument


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


def with_fees_of(
    exchange: str, data: Sequence[str], markets: Collection[str], given: Mapping[str, MarketRules]
) -> tuple[dict[str, MarketRules], list[str]]:
    """The rules of --fees-of: fees, ticks, lots and smallest orders of an exchange from the stores of --data, below those that were given. Returns the assumptions too."""
    from bot.backtest.engine.options import MarketRules
    from bot.errors import ConfigError
    from bot.service.market_data.instruments import CATALOGUE

    origins = [one for one in _origins(data) if one.market in markets and one.instrument is not None]
    found = {one.market: one for one in origins if _exchange_of(one) == exchange.removeprefix("ccxt:")}
    if missing := sorted(set(markets) - set(found)):
        known = sorted({_exchange_of(one) for one in origins})
        there = f"; it has those of {', '.join(known)}" if known else ""
        raise ConfigError(
            f"--fees-of {exchange}: the data have no fees and sizes of {', '.join(missing)} there{there}; "
            f"`bot data pull --from ccxt:{exchange.removeprefix('ccxt:')} {' '.join(missing)} --since DATE` stores them"
        )
    rules, notes, none = dict(given), [], MarketRules()
    for market, origin in sorted(found.items()):
        assert origin.instrument is not None
        listed = _rules_of(origin.instrument)
        by_class = given.get(CATALOGUE[market].spec.asset_class, none) if market in CATALOGUE else none
        rules[market] = given.get(market, none).over(by_class).over(given.get("", none)).over(listed)
        notes.append(
            f"{market}: fees, tick, lot and smallest order of {origin.symbol} of {origin.source}, without discounts"
        )
    return rules, notes


def _origins(data: Sequence[str]) -> Iterator[Origin]:
    """The origins of the stores that --data names, by their folder or one of their files."""
    from bot.backtest.data.origins import origins

    for entry in data:
        path = Path(entry)
        path = path if path.exists() else Path(entry.partition("=")[2])
        yield from origins(path if path.is_dir() else path.parent.parent)


def _exchange_of(origin: Origin) -> str:
    return origin.source.partition("@")[0].removeprefix("ccxt:")


def _rules_of(instrument: Instrument) -> MarketRules:
    """The rules of a source's market. None where the source does not say."""
    from bot.backtest.engine.options import MarketRules
    from bot.money import format_decimal

    taker, maker = (None if text is None else Decimal(text) for text in (instrument.taker, instrument.maker))
    tick, lot, least = (
        None if text is None else Decimal(format_decimal(Decimal(text).quantize(Decimal("1e-8"), ROUND_CEILING)))
        for text in (instrument.tick, instrument.size_step, instrument.min_notional)
    )
    return MarketRules(taker=taker, maker=maker, tick=tick or None, lot=lot or None, min_notional=least or None)

"""One strategy in one market, by the screen and by the full backtest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.data.funding_rates import Payment
from bot.backtest.engine.options import PathPolicy, SessionOptions
from bot.backtest.results.run_writer import Result
from bot.backtest.results.trade_ledger import RoundTrip
from bot.checks.config_check import checked_text
from bot.clock import HOUR_MS, MINUTE_MS
from bot.config import Settings
from bot.logs import quiet_log
from bot.research.screen.markets import ground_of
from bot.research.screen.screen import Screened, screen
from bot.runtime.kernel.assembly import place_strategies
from tests.backtest.builders import START_MS, STRATEGIES, minutes

PATHS: tuple[PathPolicy, ...] = ("sl_first", "ohlc", "olhc", "adaptive")
Rates = dict[str, list[Payment]]


def settings_of(
    use: str,
    params: dict[str, Any],
    *,
    folder: Path = STRATEGIES,
    interval: str = "1m",
    budget_usd: int = 5_000,
    is_protected: bool = False,
) -> Settings:
    strategy = {
        "name": "one",
        "use": use,
        "markets": ["BTC"],
        "interval": interval,
        "budget_usd": budget_usd,
        "max_leverage": 10,
        "params": params,
    }
    body = {
        "account": {"base_url": "embedded"},
        "strategies_dir": str(folder),
        "safety": {"require_protection": is_protected},
        "strategies": [strategy],
    }
    return checked_text(json.dumps(body), Path("screen.yaml"))


def screened(
    settings: Settings, candles: Sequence[Candles], options: SessionOptions, rates: Rates | None = None
) -> Screened:
    with quiet_log():
        (spec,) = place_strategies(settings)
    return screen(ground_of(spec, candles, options, rates or {}), spec)


def backtested(
    settings: Settings, candles: Sequence[Candles], options: SessionOptions, rates: Rates | None = None
) -> Result:
    with quiet_log():
        return Backtest(settings, candles, options, rates=rates or {}).run()


def rows_of(trips: Sequence[RoundTrip]) -> list[tuple[str, ...]]:
    """The rows of a backtest's trades.csv, without slippage, which the screen does not measure."""
    return [one.row(number)[:-1] for number, one in enumerate(trips)]


def case_of(seed: int) -> tuple[dict[str, Any], Candles, SessionOptions, Rates]:
    """Params of signalled:Chance, candles with holes and jumps, options, and funding rates."""
    chance = Random(seed)
    params = {
        "seed": seed,
        "every": chance.choice([5, 20, 60]),
        "kind": chance.choice(["pct", "px", "r", "stop"]),
        "leverage": chance.choice([None, 3, 10]),
        "stop_pct": chance.choice([0.1, 0.4, 1.1]),
        "target": chance.choice([0.3, 0.7, 2.0]),
        **chance.choice([{"usd": 200}, {"usd": 1000.5}, {"usd": 3333.33}, {"size": 0.0123}, {"size": 0.04}]),
    }
    candles = minutes(900, seed=seed, hole=chance.choice([0, 0, 0.02]), vol=chance.choice([0.0008, 0.003]))
    begins = START_MS + chance.choice([0, 17, 120]) * MINUTE_MS
    # The hours of a rate, which is paid whole.
    hours = 1 if seed % 2 else 8
    found = [chance.randint(-(10**9), 10**9) for _ in range(15)]
    rates = {"BTC": [Payment(START_MS + n * HOUR_MS, found[n] * hours, hours) for n in range(0, 15, hours)]}
    return (
        params,
        candles,
        SessionOptions(path=chance.choice(PATHS), start_ms=begins),
        rates if chance.random() < 0.5 else {},
    )

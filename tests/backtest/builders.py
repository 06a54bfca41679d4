"""Builders for backtest tests: seeded candles, configs, strategies that depend only on the bar, and a whole backtest
in one call.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.data import column_files
from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import MarketRules, SessionOptions
from bot.backtest.results.event_lines import line_of
from bot.backtest.results.run_writer import Result
from bot.cli.app import call
from bot.config import Settings
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.strategy_limits import limits_of
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, Open, Strategy, TrailingStop, View
from bot.wire import INTERVAL_MS

MINUTE_MS = 60_000
# 2025-06-01 00:00 UTC
START_MS = 1_748_736_000_000
FREE = {"": MarketRules(taker=Decimal(0), maker=Decimal(0), spread_bps=Decimal(0), depth_usd=Decimal(0))}

# For tests of Parquet: the package works without it.
research = pytest.mark.skipif(
    not column_files.has_research(), reason="the research extra (polars, numpy) is not installed"
)

Script = Callable[[View, Bar], Iterable[Intent]]


def minutes(
    count: int,
    *,
    seed: int = 0,
    market: str = "BTC",
    px: float = 100_000.0,
    vol: float = 0.0008,
    interval: str = "1m",
    start_ms: int = START_MS,
    hole: float = 0.0,
    decimals: int = 1,
) -> Candles:
    """A seeded walk. `hole` is the chance that a candle is missing."""
    chance = Random(f"{seed}:{market}")
    columns: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in range(5)))
    step = INTERVAL_MS[interval]
    for number in range(count):
        opened = px if chance.random() > 0.05 else px * (1 + chance.gauss(0, vol))
        path = [opened]
        for _ in range(6):
            path.append(path[-1] * (1 + chance.gauss(0, vol / 2.4)))
        px = path[-1]
        if hole and number and chance.random() < hole:
            continue
        values = [round(one, decimals) for one in (path[0], max(path), min(path), px, chance.uniform(1, 50))]
        for column, value in zip(columns, (start_ms + number * step, *values), strict=True):
            column.append(value)
    return Candles(market, interval, *columns)


def busy(view: View, bar: Bar) -> Iterable[Intent]:
    """Trades on many bars: brackets, trailing stops, resting entries, partial closes, reversals.

    Depends only on bar and view.
    """
    n = bar.at_ms // MINUTE_MS
    held = view.position(bar.market)
    kind = n * 2_654_435_761 % 97
    if held is None:
        if kind < 6:
            yield Open(bar.market, "long" if n % 2 else "short", usd=300, bracket=Bracket(stop_pct=0.3, target_r=1.5))
        elif kind < 9:
            yield Open(bar.market, "long", usd=200, guardians=(TrailingStop(trail_pct=0.4),))
        elif kind < 13 and not view.orders(bar.market):
            limit = float(f"{bar.close * 0.999:.5g}")
            yield Open(bar.market, "long", usd=150, limit_px=limit, bracket=Bracket(stop_pct=0.5))
        elif kind < 15 and view.orders(bar.market):
            yield Cancel(market=bar.market)
    elif kind < 3:
        yield Close(bar.market)
        yield Open(
            bar.market, "short" if held.side == "long" else "long", usd=250, bracket=Bracket(stop_pct=0.6, target_pct=1)
        )
    elif kind < 5:
        yield Close(bar.market, fraction=0.5)
    elif kind < 7:
        yield Close(bar.market)


class Scripted(Strategy):
    """Yields the signals of its script, and counts bars, fills and triggers in its durable state."""

    def __init__(self, script: Script, *, name: str, markets: Sequence[str], counts: bool = True) -> None:
        super().__init__(name=name, markets=markets)
        self.script = script
        self.counts = counts

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if self.counts and bar.at_ms % (30 * MINUTE_MS) == 0:
            view.state["bars"] = view.state.get("bars", 0) + 1
        return self.script(view, bar)

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        view.state["fills"] = view.state.get("fills", 0) + 1
        return ()


def settings(
    markets: Sequence[str] = ("BTC",), *, interval: str = "1m", daily_loss_usd: Decimal | None = None, **more: Any
) -> Settings:
    """A config as a file would have it; its strategies come from `placing`."""
    body: dict[str, Any] = {
        "account": {"base_url": "embedded"},
        "dead_man": "off",
        "strategies": [
            {
                "name": f"s{n}",
                "use": "scripted",
                "markets": [market],
                "interval": interval,
                "budget_usd": 2_000,
                "max_leverage": 5,
                "daily_loss_usd": daily_loss_usd,
            }
            for n, market in enumerate(markets)
        ],
    }
    return Settings.model_validate(body | more)


def placing(
    script: Script = busy, *, counts: bool = True, kind: type[Scripted] = Scripted
) -> Callable[[Settings], list[StrategySpec]]:
    """Replaces the strategy loader: returns a `kind` of Scripted for each strategy of the config."""

    def place(made: Settings) -> list[StrategySpec]:
        return [
            StrategySpec(
                kind(script, name=one.name, markets=one.markets, counts=counts), one.interval, limits_of(made, one)
            )
            for one in made.strategies
        ]

    return place


@dataclass(frozen=True)
class Ran:
    """A finished backtest."""

    test: Backtest
    result: Result
    lines: list[str]

    @property
    def digest(self) -> str:
        return self.result.digest


def ran(
    candles: Sequence[Candles],
    *,
    made: Settings | None = None,
    script: Script = busy,
    rates: Mapping[str, Sequence[tuple[int, ...]]] | None = None,
    progress: Callable[[int, int], bool] | None = None,
    **options: Any,
) -> Ran:
    """Run a whole backtest on these candles."""
    made = made if made is not None else settings(sorted({one.market for one in candles}))
    test = Backtest(made, candles, SessionOptions(**options), rates=rates or {}, place=placing(script))
    lines = StringIO(newline="")
    result = test.run(progress=progress, events=lines)
    return Ran(test, result, lines.getvalue().splitlines(keepends=True))


def told(test: Backtest) -> list[str]:
    """The newest events, as lines."""
    return [line_of(one) for one in test.exchange.event_buffer.events]


STRATEGIES = Path(__file__).resolve().parent / "strategies"


def write(candles: Candles, path: Path) -> Path:
    rows = zip(candles.at_ms, candles.open, candles.high, candles.low, candles.close, candles.volume, strict=True)
    path.write_text("ts,open,high,low,close,volume\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def config(folder: Path, use: str = "causal:Honest", markets: str = "BTC", **params: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(
        "account: {base_url: embedded}\ndead_man: {heartbeat_seconds: 120, on_miss: flatten}\nstrategies_dir:"
        f" {STRATEGIES}\n"
        f'strategies:\n  - {{name: one, use: "{use}", markets: [{markets}], interval: 1m, budget_usd: 1000000, params:'
        f" {json.dumps(params)}}}\n"
    )
    return path


def backtested(folder: Path, made: Path, data: Path, *more: str, code: int = 0) -> Path:
    """Call `bot backtest`, and give the folder of its run."""
    out = folder / "runs"
    before = set(out.iterdir()) if out.exists() else set()
    assert call(["backtest", str(made), "--data", str(data), "--out", str(out), *more]) == code
    (fresh,) = set(out.iterdir()) - before
    return fresh

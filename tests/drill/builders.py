"""The ground of drills in tests: the two shipped strategies on seeded minutes."""

from __future__ import annotations

from pathlib import Path

from bot.backtest.engine.options import SessionOptions
from bot.checks.config_check import checked_text
from bot.config import Settings
from bot.drill.world import DrillSetup
from bot.runtime.kernel.assembly import place_strategies
from bot.runtime.strategy_host.host import StrategySpec
from tests.backtest.builders import minutes
from tests.documents import ROOT
from tests.integration.builders import Scripted, busy

CONFIG = f"""\
account: {{base_url: embedded}}
dead_man: {{heartbeat_seconds: 120, on_miss: flatten}}
strategies_dir: {ROOT / "strategies"}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 1000}}
  - {{name: reversion, use: "reversion:MeanReversion", markets: [ETH], interval: 1m, budget_usd: 500}}
"""


CANDLES = (minutes(600, market="BTC"), minutes(600, market="ETH", px=2_500.0))


def ground_of(*, bars: int) -> DrillSetup:
    return DrillSetup(checked_text(CONFIG, Path("drill.yaml")), CANDLES, SessionOptions(), bars=bars)


def busy_ground(*, path: str = "plan") -> DrillSetup:
    """A strategy for each market that orders on most bars: what is forgotten or doubled shows soon."""

    def place(settings: Settings) -> list[StrategySpec]:
        return [
            spec._replace(strategy=Scripted(busy, name=spec.strategy.name, markets=spec.strategy.markets))
            for spec in place_strategies(settings)
        ]

    settings = checked_text(CONFIG + f"orders: {{path: {path}}}\n", Path("drill.yaml"))
    return DrillSetup(settings, CANDLES, SessionOptions(), bars=45, place=place)

"""The ground of drills in tests: the two shipped strategies on seeded minutes."""

from __future__ import annotations

from pathlib import Path

from bot.backtest.engine.options import SessionOptions
from bot.checks.config_check import checked_text
from bot.drill.world import DrillSetup
from tests.backtest.builders import minutes
from tests.documents import ROOT

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

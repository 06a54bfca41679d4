"""All scenarios of the contract with the exchange, in the order in which they run."""

from __future__ import annotations

from typing import Final

from bot.exchanges.hyperliquid.certification import (
    action_scenarios,
    order_scenarios,
    position_scenarios,
    trigger_scenarios,
)

SCENARIOS: Final = (
    *action_scenarios.SCENARIOS,
    *order_scenarios.SCENARIOS,
    *position_scenarios.SCENARIOS,
    *trigger_scenarios.SCENARIOS,
)

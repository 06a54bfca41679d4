"""All live sources of a machine.

Each has its own task, connection and markets, so a source that fails closes only its own markets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from bot.market_data.source import LiveSource
from bot.service.live_prices.listings import open_live
from bot.service.live_prices.live_prices import LivePrices
from bot.service.state_machine.machine import Machine


class PriceSources:
    """The sources that the machine's database names. `opened` makes a source for each session."""

    def __init__(self, machine: Machine, opened: Callable[[str], LiveSource] = open_live) -> None:
        count = len(json.loads(machine.feed.options)["live"])
        self.sources = [LivePrices(machine, opened, nth=nth) for nth in range(count)]

    def begin(self) -> None:
        """Close all markets until their sources have sent prices."""
        for source in self.sources:
            source.begin()

    async def run(self) -> None:
        """Hold sessions with every source until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self.sources:
                tasks.create_task(source.run())

    def view(self) -> dict[str, Any]:
        """The state of the prices, for GET /v1/system/status.

        Of several sources: the worst of them, all markets, and each source under `sources`.
        """
        views = [source.view() for source in self.sources]
        if len(views) == 1:
            return views[0]
        transports = {view["transport"] for view in views}
        differences = [ms for view in views if (ms := view["clockDifferenceMs"]) is not None]
        return {
            "source": ", ".join(view["source"] for view in views),
            "connected": all(view["connected"] for view in views),
            "trouble": next((f"{view['source']}: {view['trouble']}" for view in views if view["trouble"]), None),
            "sessions": sum(view["sessions"] for view in views),
            "transport": transports.pop() if len(transports) == 1 else None,
            "clockDifferenceMs": max(differences, key=abs, default=None),
            "missing": {
                f"{view['source']} {name}": reason for view in views for name, reason in view["missing"].items()
            },
            "markets": [market | {"source": view["source"]} for view in views for market in view["markets"]],
            "sources": [{name: value for name, value in view.items() if name != "markets"} for view in views],
        }

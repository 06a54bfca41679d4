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

    def body(self) -> dict[str, Any]:
        """The state of the prices, for GET /v1/system/status.

        Of several sources: the worst of them, all markets, and each source under `sources`.
        """
        bodies = [source.body() for source in self.sources]
        if len(bodies) == 1:
            return bodies[0]
        transports = {body["transport"] for body in bodies}
        differences = [ms for body in bodies if (ms := body["clockDifferenceMs"]) is not None]
        return {
            "source": ", ".join(body["source"] for body in bodies),
            "connected": all(body["connected"] for body in bodies),
            "trouble": next((f"{body['source']}: {body['trouble']}" for body in bodies if body["trouble"]), None),
            "sessions": sum(body["sessions"] for body in bodies),
            "transport": transports.pop() if len(transports) == 1 else None,
            "clockDifferenceMs": max(differences, key=abs, default=None),
            "missing": {
                f"{body['source']} {name}": reason for body in bodies for name, reason in body["missing"].items()
            },
            "markets": [market | {"source": body["source"]} for body in bodies for market in body["markets"]],
            "sources": [{name: value for name, value in body.items() if name != "markets"} for body in bodies],
        }

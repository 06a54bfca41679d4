"""The random worlds with entries that have several targets and a stop at the entry: faults of network, disk, process
and clock, in virtual time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from tests.integration.builders import MINUTE_MS
from tests.integration.simulated import World, lived, template


def in_parts(view: View, bar: Bar) -> Iterable[Intent]:
    """An entry with targets whenever it is flat, now and then a second one or a close.

    A function of the bar and of what is held.
    """
    n, held = bar.at_ms // MINUTE_MS, view.position(bar.market)
    bracket = Bracket(stop_pct=0.4, targets=[(0.4, "0.3R"), (0.3, "0.6R"), (0.3, "1R")], break_even_at="0.5R")
    if held is None:
        yield Open(bar.market, "long" if n % 2 else "short", usd=200, bracket=bracket)
    elif n % 5 == 0:
        yield Close(bar.market, fraction=0.5 if n % 2 else None)
    elif n % 5 == 1:
        yield Open(bar.market, held.side, usd=100, bracket=bracket)


class Scaled(World):
    def __init__(self, seed: int, *more: Any) -> None:
        super().__init__(seed, *more)
        self.script = in_parts
        self.filled: Counter[str] = Counter()

    async def _judge_epoch(self) -> None:
        await super()._judge_epoch()
        fills = [event for event in self.last_events if event["type"] == "fill"]
        ours = [event for event in fills if not event.get("idempotencyKey", "hand").startswith("hand")]
        opened = [event for event in ours if (event["data"]["kind"], event["subtype"]) == ("limit", "entry")]
        assert opened == [], "a target order opened or grew a position"
        self.filled.update(f"{event['data']['kind']} {event['subtype']}" for event in fills)


@pytest.mark.soak(worlds=8, full=2_000)
def test_target_orders_break_nothing(folder: Path, worlds: int, base_seed: int) -> None:
    template(folder)
    filled: Counter[str] = Counter()
    for world in lived(range(base_seed, base_seed + worlds), folder, Scaled):
        assert isinstance(world, Scaled)
        filled.update(world.filled)
    if worlds >= 8:
        assert filled["limit exit"], filled

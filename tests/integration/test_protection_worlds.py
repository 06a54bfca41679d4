"""The random worlds with protections: faults of network, disk, process and clock, in virtual time. What the daemon
counted must be what the service's events say.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from bot.clock import MINUTE_MS, utc_day_start_ms
from bot.config import Settings
from bot.money import e16_of_decimal
from bot.runtime import supervisor
from bot.runtime.account.trade_log import TradeLog
from bot.runtime.journal.round_trips import trips
from bot.runtime.risk.protections import Protections
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.strategy_limits import limits_of
from tests.integration.builders import MARKETS
from tests.integration.simulated import D_S, Busy, World, eager, is_caught, lived, template

ENTRIES: Final = 2
BARS: Final = 2


@cache
def settings_of(speed: float, path: str, *, is_alone: bool) -> Settings:
    own = {"cooldown": f"{BARS} bars", "max_entries": ENTRIES}
    strategies = [
        {"name": f"s-{coin.lower()}", "use": "tests:Busy", "markets": [coin], "budget_usd": 5_000, "max_leverage": 3}
        | {"protections": own}
        for coin in MARKETS
    ]
    return Settings.model_validate(
        {
            "name": "world",
            "account": {"base_url": "embedded"},
            "embedded": {"clock": "real" if speed == 1 else f"{speed:g}x"},
            "dead_man": {"heartbeat_seconds": round(D_S * speed), "on_miss": "flatten"},
            "protections": {"max_open_positions": 1} if is_alone else {},
            "strategies": strategies,
            "orders": {"path": path},
            "reconcile_seconds": 30,
            "state_dir": "/nonexistent",
        }
    )


class Protected(World):
    """Each strategy has a cooldown and a number of entries a day; in some worlds one market at a time is open."""

    def __init__(self, seed: int, *more: Any) -> None:
        super().__init__(seed, *more)
        chance = random.Random(f"protected {seed}")
        self.markets = MARKETS
        self.script = eager if chance.random() < 0.5 else self.script
        self.bars *= 2
        # What another hand did, and what a journal has lost, is in no recount.
        self.hand_rate = self.damage_rate = self.disk_rate = 0.0
        self.is_alone = chance.random() < 0.4
        self.counted: Counter[str] = Counter()

    def _settings(self) -> Settings:
        return settings_of(self.speed, self.orders_path, is_alone=self.is_alone)

    def _placed(self) -> list[StrategySpec]:
        settings = self._settings()
        return [
            StrategySpec(
                Busy(self.script, lambda: self.is_calm, name=one.name, markets=one.markets),
                one.interval,
                limits_of(settings, one),
            )
            for one in settings.strategies
        ]

    async def _judge(self, one: supervisor.Supervisor) -> None:
        await super()._judge(one)
        if self._has_skipped() or self.hand_rate or self.buried:
            return
        told = await self.hand.events()
        cursor = one.kernel.journal.events.cursor
        assert cursor is not None
        events = [event for event in told if event["id"] <= cursor.last_id]
        self._judge_trades(one, events)
        self._judge_entries(one, events)

    def _judge_trades(self, one: supervisor.Supervisor, events: list[Any]) -> None:
        """Each closed trade of the events is in the journal once, with its end and its result; and after each of them
        the next bars of its market have opened nothing.
        """
        ended = [trip for trip in trips(events) if trip.closed_ms is not None]
        rows = one.kernel.journal.state.trade_rows(one.kernel.account.attribution.epoch)
        counted = [(row.market, row.closed_ms, row.net) for row in rows if row.closed_ms is not None]
        assert sorted(counted) == sorted((trip.market, trip.closed_ms, e16_of_decimal(trip.net_usd)) for trip in ended)
        decided = [
            row for row in one.kernel.journal.db["intents"].rows if (row["action"], row["leg"]) == ("open", "order")
        ]
        for row in decided:
            cause, market, at_ms = row["cause"].split(":")
            assert (cause, market) == ("bar", row["market"])
            for trip in ended:
                until_ms = (trip.closed_ms or 0) // MINUTE_MS * MINUTE_MS + (BARS + 1) * MINUTE_MS
                is_within = trip.market == market and (trip.closed_ms or 0) <= int(at_ms) < until_ms
                assert not is_within, f"decided on {market} {at_ms}, and {trip.closed_ms} waits until {until_ms}"
        totals: Counter[str] = Counter()
        for row in rows:
            totals[row.strategy] += row.net or 0
        books = one.kernel.account.attribution.rows
        assert totals == Counter({name: books[name].net for name in totals}), "the trades of a strategy are its result"
        self.counted.update(trades=len(ended))

    def _judge_entries(self, one: supervisor.Supervisor, events: list[Any]) -> None:
        owner = {row["id"]: row["strategy"] for row in one.kernel.journal.db["intents"].rows}
        first: dict[str, int] = {}
        held: set[str] = set()
        for event in events:
            if event["type"] != "fill":
                continue
            if event["subtype"] == "entry":
                first.setdefault(event["idempotencyKey"], event["ts"])
            (held.add if Decimal(event["data"]["positionSize"]) else held.discard)(event["coin"])
            assert not self.is_alone or len(held) <= 1, f"more than one position: {event}"
        of_day = Counter((owner[key], utc_day_start_ms(ts)) for key, ts in first.items())
        assert max(of_day.values(), default=0) <= ENTRIES, of_day
        rows = one.kernel.journal.state.entry_rows(one.kernel.account.attribution.epoch)
        assert {row.key: row.at_ms for row in rows} == first
        self.counted.update(entries=len(first))
        self.counted.update(row["code"] for row in one.kernel.journal.db["refusals"].rows)


@pytest.mark.soak(worlds=25, full=5_000)
def test_protections_count_what_the_events_say(folder: Path, worlds: int, base_seed: int) -> None:
    template(folder)
    counted: Counter[str] = Counter()
    for world in lived(range(base_seed, base_seed + worlds), folder, Protected):
        assert isinstance(world, Protected)
        counted.update(world.counted)
    if worlds >= 25:
        assert {"trades", "entries", "cooldown", "max_entries", "max_open_positions"} <= set(counted), counted


# ── Tests of the test ───────────────────────────────────────────────────────────────────────────────────────────────


def a_start_forgets_the_trades(to: pytest.MonkeyPatch) -> None:
    def load(self: TradeLog) -> None:
        self.open, self.entries = {}, {}

    to.setattr(TradeLog, "_load", load)


def a_start_follows_no_closed_trades(to: pytest.MonkeyPatch) -> None:
    to.setattr(TradeLog, "closed_trades", lambda _self: [])


def what_may_still_fill_does_not_count(to: pytest.MonkeyPatch) -> None:
    to.setattr(Protections, "_waiting_entries", lambda _self: iter(()))


@pytest.mark.parametrize(
    ("seed", "bug"),
    [(0, a_start_forgets_the_trades), (4, a_start_follows_no_closed_trades), (19, what_may_still_fill_does_not_count)],
)
def test_a_seeded_bug_is_caught_at_its_seed(seed: int, bug: Callable[[pytest.MonkeyPatch], None], folder: Path) -> None:
    is_caught(bug, seed, folder, Protected)

"""Random worlds: lost requests, lost answers, refusals, busy answers, crashes and resets, then calm. No order twice, none forgotten, none stuck."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import structlog

from bot.errors import ApiError
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from tests.fakes import Crash, FakePacer, FakeVenue, Fault, Tap, refused
from tests.runtime.rooms import kill, room

OPS = ("plan", "confirm", "close", "events", "trades", "account", "arm", "guardians", "candles", "orders")
BARS, CALM_BARS = 14, 5
BUSY = ApiError.of("rate_limited", "busy", order_submitted=False)
EDGE = refused("forbidden")  # decided before the venue, so never stored under the key


@pytest.fixture(autouse=True)
def _no_lines() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def eager(view: View, bar: Bar) -> Iterable[Intent]:
    """Wants something on every bar."""
    if view.position(bar.market) is None:
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=3, target_r=1))
    else:
        yield Close(bar.market)


class World:
    """One seed, one world: its faults, its crashes, its prices. A late request arrives when its token has not quite run out."""

    def __init__(self, seed: int, path: Path) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.venue = FakeVenue(("BTC", "ETH"))
        self.pacer = FakePacer()
        self.rate = self.chance.choice([0.0, 0.02, 0.1, 0.3])
        self.crash_rate = self.chance.choice([0.0, 0.002, 0.01, 0.03])
        self.resets = {self.chance.randrange(3, BARS)} if self.chance.random() < 0.3 else set()
        self.calm = False
        world = self

        class Fate(Tap):
            def point(self, name: str) -> None:
                if not world.calm and world.chance.random() < world.crash_rate:
                    raise Crash(name)

        self.tap = Fate()
        self.trades: Counter[str] = Counter()
        self.keys: set[str] = set()

    def _faults(self) -> None:
        self.venue.faults = []
        if self.calm:
            return
        for op in OPS:
            while (
                self.chance.random() < self.rate
            ):  # One after the other: late, then refused at the edge, then busy ...
                kind = self.chance.choice(
                    ["drop", "late", "lose_reply", BUSY, EDGE if op in ("plan", "confirm") else "drop"]
                )
                self.venue.faults.append(Fault(op, kind, self.chance.randint(1, 3)))

    async def live(self) -> None:
        loop = None
        for n in range(BARS + CALM_BARS):
            self.calm = n >= BARS
            if n in self.resets:
                self._count()
                self.venue.reset()
            self.venue.minute(**{coin: str(100 + self.chance.randrange(-4, 5)) for coin in self.venue.coins})
            for _ in range(3 if not self.calm else 6):
                self.pacer.now_ms += 15_000
                self._faults()
                try:
                    if loop is None:
                        loop = room(
                            self.venue, eager, path=self.path, tap=self.tap, markets=self.venue.coins, pacer=self.pacer
                        )
                    if not loop.ready:
                        await loop.recover()
                    await loop.cycle()
                except Crash:
                    if loop is not None:
                        kill(loop)
                    loop = None
                except ApiError:
                    pass  # The daemon calls recover again.
        self._count()
        assert loop is not None
        self._judge(loop)
        kill(loop)

    def _count(self) -> None:
        for trade in self.venue.trade_rows:
            if trade.idempotency_key is not None:
                self.trades[trade.idempotency_key] += 1

    def _judge(self, loop: object) -> None:
        journal = loop.journal  # type: ignore[attr-defined]
        assert [key for key, n in self.trades.items() if n > 1] == [], "an order was placed twice"
        rows = {row["id"]: row for row in journal.db["intents"].rows}
        assert set(self.trades) <= set(rows), "an order left that was not written"
        stuck = [row["id"] for row in rows.values() if row["state"] not in ("accepted", "rejected", "expired", "void")]
        assert stuck == [], "an intent never ended"
        for key, row in rows.items():
            if row["state"] == "accepted":
                assert self.trades[key] == 1, "accepted, and there is no trade"
            elif row["state"] in ("rejected", "expired"):
                assert self.trades[key] == 0, f"{row['state']}, and there is a trade"
        assert list(journal.db.query("SELECT id FROM events GROUP BY id HAVING count(*) > 1")) == []
        held = {coin: (h.side, h.size) for coin, h in self.venue.positions.items()}
        assert {m: (p.side, p.size) for m, p in loop.mirror.positions.items()} == held  # type: ignore[attr-defined]
        assert [g.type for g in self.venue.guards.values()].count("dead_man_switch") == 1
        assert loop.mirror.unprotected() == []  # type: ignore[attr-defined]


@pytest.mark.soak(worlds=30)
async def test_no_order_is_doubled_forgotten_or_stuck(tmp_path: Path, worlds: int, base_seed: int) -> None:
    for seed in range(base_seed, base_seed + worlds):
        path = tmp_path / f"{seed}.db"
        try:
            await World(seed, path).live()
        except AssertionError as error:
            raise AssertionError(f"world {seed}: {error}") from error
        for leftover in tmp_path.glob(f"{seed}.db*"):
            leftover.unlink()

"""Two daemons of one account on two hosts, with a journal each and no word between them: no decision becomes two
orders, whatever the wire does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import pytest

from bot.runtime.journal.halt_flags import FOREIGN
from tests.faulty_port import ADDRESS
from tests.integration.builders import START_PX, Bot, Box, Hand, make_bot, wire_to
from tests.integration.wire import FAULTS, FaultyWire
from tests.runtime.builders import later

BARS: Final = 5
# real time after which whatever waits for its next try is due
LATER_MS: Final = 30_000
# by something in between; another test's
MADE_UP: Final = ("denied", "stale")
# a calm seed in which both make the same decisions
BOTH: Final = 1
# a part of the price, beyond what a plan allows
DRIFT: Final = 0.01


class Between(httpx.AsyncBaseTransport):
    """Before the wire: lets the other host go first now and then, and the price drift away from a plan."""

    def __init__(self, wire: FaultyWire, box: Box, chance: Random, px: dict[str, float]) -> None:
        self.wire, self.box, self.chance, self.px = wire, box, chance, px
        # how likely a price drifts between a plan and its confirm
        self.drift = 0.0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        if request.url.path == "/v1/orders/confirm" and self.chance.random() < self.drift:
            for coin in self.px:
                self.px[coin] *= 1 + self.chance.choice([-DRIFT, DRIFT])
                await self.box.price(coin, self.px[coin])
        return await self.wire.handle_async_request(request)


class Host:
    """The inside of one of the daemons, which is killed now and then."""

    def __init__(self, hand: Hand, between: Between, path: Path, orders: str) -> None:
        self.hand, self.between, self.path, self.orders = hand, between, path, orders
        self.bot = self._made()

    def _made(self) -> Bot:
        return make_bot(self.hand, self.between, self.path, path_of_orders=self.orders)

    async def passes(self) -> None:
        later(self.bot.kernel, LATER_MS)
        # As by `bot resume`: two daemons that see each other would order nothing more.
        self.bot.kernel.health.restore(FOREIGN)
        await self.bot.cycle()

    async def begin_anew(self) -> None:
        await self.bot.kill()
        self.bot = self._made()

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.bot.kernel.journal.db["intents"].rows]


async def _world(box: Box, folder: Path, seed: int, *, salted: bool = False) -> Counter[str]:
    """What was met in it. `salted`: the second host's keys hold something that is its own."""
    chance = Random(f"hosts {seed}")
    rate, drift = chance.choice([0.0, 0.1, 0.3]), chance.choice([0.0, 0.5])
    kinds = chance.sample([fault for fault in FAULTS if fault not in MADE_UP], 4)
    is_calm = False

    def fate(_request: httpx.Request) -> str | None:
        return chance.choice(kinds) if not is_calm and chance.random() < rate else None

    hand, px = await box.hand(), dict(START_PX)
    other = Hand(box, hand.account | {"address": ADDRESS}) if salted else hand
    await box.minute(**px)
    hosts = [
        Host(
            one,
            Between(wire_to(box, fate), box, chance, px),
            folder / f"{seed}-{n}.db",
            chance.choice(["plan", "direct"]),
        )
        for n, one in enumerate((hand, other))
    ]
    for bar in range(BARS):
        px |= {coin: value * chance.uniform(0.994, 1.006) for coin, value in px.items()}
        await box.minute(**px)
        is_calm = bar == BARS - 1
        for host in hosts:
            host.between.drift = 0.0 if is_calm else drift
            if not is_calm and bar and chance.random() < 0.2:
                await host.begin_anew()
        for _ in range(3):
            await asyncio.gather(*(host.passes() for host in hosts))
    met: Counter[str] = Counter()
    causes: dict[str, tuple[Any, ...]] = {}
    known: list[set[str]] = []
    for host in hosts:
        await host.between.wire.arrivals(everything=True)
        met.update(host.between.wire.met)
        rows = host.rows()
        known.append({row["id"] for row in rows})
        met["other plans"] += sum(row["leg"] == "order-2" for row in rows)
        for row in rows:
            names = ("epoch", "strategy", "market", "cause", "ordinal", "action")
            causes[row["id"]] = tuple(row[name] for name in names)
        await host.bot.kill()
    keys = [trade["idempotencyKey"] for trade in await hand.trades() if trade["source"] == "agent"]
    assert set(keys) <= set(causes), f"world {seed}: an order that nobody has written"
    twice = [cause for cause, n in Counter(causes[key] for key in keys).items() if n > 1]
    assert twice == [], f"world {seed}: two orders of one decision"
    return met + Counter({"trades": len(keys), "of both": len(known[0] & known[1] & set(keys))})


@pytest.mark.soak(worlds=12, full=3_000)
async def test_a_decision_that_two_hosts_make_becomes_one_order(
    box: Box, folder: Path, worlds: int, base_seed: int
) -> None:
    met: Counter[str] = Counter()
    for seed in range(base_seed, base_seed + worlds):
        met += await _world(box, folder, seed)
        for leftover in folder.glob(f"{seed}-*"):
            leftover.unlink()
    # One that is looked at by itself may hold nothing of it.
    if worlds >= 12:
        assert met["trades"] > 2 * worlds
        assert met["of both"] > worlds, "both have made the same decisions"
        assert met["other plans"] > 0, met
        assert met["lose"] + met["late"] > 0, met


async def test_keys_that_a_host_salts_are_caught(box: Box, folder: Path) -> None:
    with pytest.raises(AssertionError, match="two orders of one decision"):
        await _world(box, folder, BOTH, salted=True)

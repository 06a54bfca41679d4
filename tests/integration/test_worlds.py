"""Random worlds over the real service: a wire that fails, crashes at any call, resets, another hand; then calm. Nothing doubled, lost, stuck or naked."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.errors import AccessLost, Refused
from tests.fakes import Crash, FakePacer, Tap
from tests.integration import judging
from tests.integration.rooms import MARKETS, START_PX, Bot, Box, Hand, make_bot, wire_to
from tests.integration.wire import CRASHES, FAULTS

BARS, CALM_BARS = 12, 4
PASSES = 2  # of a bar
PASS_REAL_MS = 15_000
HAND_ACTS = ("order", "naked_order", "limit", "cancel_stops", "disarm", "close", "cancel_entries")


class World:
    """One seed, one world."""

    def __init__(self, seed: int, box: Box, hand: Hand, path: Path) -> None:
        chance = self.chance = random.Random(f"world {seed}")
        self.box, self.hand, self.path = box, hand, path
        self.rate = chance.choice([0.0, 0.03, 0.1, 0.3])
        self.kinds = chance.sample(FAULTS, chance.randint(1, len(FAULTS)))
        self.crash_rate = chance.choice([0.0, 0.0, 0.01, 0.03])
        self.write_crash_rate = self.crash_rate / 4
        self.hand_rate = chance.choice([0.0, 0.0, 0.3])
        self.resets = {chance.randrange(3, BARS)} if chance.random() < 0.3 else set()
        self.orders_path = chance.choice(["plan", "plan", "direct"])
        self.is_calm = False
        self.wire = wire_to(box, self._fate)
        self.pacer = FakePacer()
        self.px = dict(START_PX)
        self.bot: Bot | None = None
        self.trades: list[Any] = []  # of epochs that are over
        self.excused: dict[str, list[tuple[int, int]]] = {}
        self.lives = 0
        world = self

        class Fatal(Tap):
            def point(self, name: str) -> None:
                if not world.is_calm and world.chance.random() < world.write_crash_rate:
                    raise Crash(name)

        self.tap = Fatal()

    def _fate(self, _request: httpx.Request) -> str | None:
        if self.is_calm:
            return None
        dice = self.chance.random()
        if dice < self.crash_rate:
            return self.chance.choice(CRASHES)
        if dice < self.crash_rate + self.rate:
            return self.chance.choice(self.kinds)
        return None

    async def live(self) -> None:
        await self.box.minute(**self.px)
        for n in range(BARS + CALM_BARS):
            self.is_calm = n >= BARS
            if n in self.resets:
                await self._reset()
            if not self.is_calm and self.chance.random() < self.hand_rate:
                await self._act()
            for coin in MARKETS:
                self.px[coin] *= 1 + self.chance.gauss(0, 0.004)
            await self.box.minute(**self.px)
            if self.is_calm:
                await self.wire.arrivals(everything=True)
            for _ in range(PASSES * (2 if self.is_calm else 1)):
                self.pacer.now_ms += PASS_REAL_MS
                await self._pass()
        await self._judge()
        assert self.bot is not None
        await self.bot.kill()

    async def _pass(self) -> None:
        done = False
        try:
            if self.bot is None:
                self.lives += 1
                self.bot = make_bot(
                    self.hand, self.wire, self.path, tap=self.tap, pacer=self.pacer, path_of_orders=self.orders_path
                )
            done = await self.bot.cycle()
        except Crash:
            if self.bot is not None:
                await self.bot.kill()
            self.bot = None
        except (Refused, AccessLost) as error:
            raise AssertionError(f"the run would have ended: {error}") from error
        if done and (self.is_calm or self.rate + self.crash_rate == 0):
            await self._judge_now()

    async def _reset(self) -> None:
        await self._judge_epoch()
        self.trades += await self.hand.trades()
        self.excused.clear()
        await self.hand.ask("POST", "/v1/sandbox/accounts/reset", {})

    async def _act(self) -> None:
        """Something that a person does beside the bot. What it takes from a position of ours is excused until calm."""
        coin = self.chance.choice(MARKETS)
        act = self.chance.choice(HAND_ACTS)
        now = self.box.service.machine.clock.now_ms()
        match act:
            case "order":
                await self.hand.order(coin, self.chance.choice(["long", "short"]), 150, stop_pct=2)
            case "naked_order":
                await self.hand.order(coin, self.chance.choice(["long", "short"]), 400)
                self._excuse(coin, now)
            case "limit":
                await self.hand.order(coin, "long", 100, limit_px=self.px[coin] * 0.998)
                self._excuse(coin, now)
            case "cancel_stops":
                await self.hand.cancel_stops(coin)
                await self.hand.disarm("trailing_stop")
                for one in MARKETS:
                    self._excuse(one, now)
            case "disarm":
                await self.hand.disarm("dead_man_switch")
            case "close":
                await self.hand.try_to("POST", f"/v1/positions/{coin}/close", {"fraction": 1})
            case "cancel_entries":
                for order in (await self.hand.ask("GET", f"/v1/orders?coin={coin}"))["orders"]:
                    if order["kind"] == "limit":
                        await self.hand.ask("DELETE", f"/v1/orders/{order['oid']}")

    def _excuse(self, coin: str, now_ms: int) -> None:
        """With a wire that works the very next pass must repair it; with one that fails, the first calm pass."""
        faulty = self.rate + self.crash_rate > 0
        self.excused.setdefault(coin, []).append((now_ms, now_ms + (BARS + 1) * 60_000 if faulty else now_ms + 60_000))

    # -- judging

    def _rows(self) -> list[Any]:
        assert self.bot is not None
        return list(self.bot.loop.journal.db["intents"].rows)

    async def _judge_now(self) -> None:
        """After a pass whose every request was answered."""
        assert self.bot is not None
        account = await self.hand.ask("GET", "/v1/account")
        loop = self.bot.loop
        assert [p.market for p in loop.mirror.unprotected() if not loop.is_closing(p.market)] == []
        assert "dead_man_switch" in [one["type"] for one in account["guardians"]], "no dead-man after a pass"

    async def _judge_epoch(self) -> None:
        """Of the epoch that is: the events tell all."""
        if self.bot is None:
            rows = []
            keys = None
        else:
            rows = self._rows()
            keys = {row["id"] for row in rows if row["strategy"] != "@runtime"}
        events = await self.hand.events()
        if keys is not None:
            judging.never_naked(events, keys, excused=self.excused)
            judging.guarded_entries(events, keys, but=self.wire.late_ids)
        judging.books_are_exact(events, await self.hand.ask("GET", "/v1/account"))

    async def _judge(self) -> None:
        assert self.bot is not None
        await self._judge_epoch()
        self.trades += await self.hand.trades()
        judging.intents_and_trades(self._rows(), self.trades)
        db = self.bot.loop.journal.db
        assert list(db.query("SELECT id FROM events GROUP BY id HAVING count(*) > 1")) == []
        judging.mirror_is_right(self.bot.loop.mirror, await self.hand.ask("GET", "/v1/account"))
        guardians = (await self.hand.ask("GET", "/v1/guardians"))["guardians"]
        assert [one["type"] for one in guardians].count("dead_man_switch") == 1


@pytest.mark.soak(worlds=40)
async def test_nothing_is_doubled_lost_stuck_or_naked(box: Box, folder: Path, worlds: int, base_seed: int) -> None:
    met: Counter[str] = Counter()
    traded = lives = 0
    for seed in range(base_seed, base_seed + worlds):
        world = World(seed, box, await box.hand(), folder / f"{seed}.db")
        try:
            await world.live()
        except Exception as error:
            said = f"world {seed} (rate {world.rate}, crashes {world.crash_rate}, hand {world.hand_rate}, resets {world.resets})"
            raise AssertionError(f"{said}: {error}") from error
        await world.hand.ask(
            "POST", "/v1/sandbox/accounts/reset", {}
        )  # Nothing of it is left to move with the next one's prices.
        met.update(world.wire.met)
        traded += len(world.trades)
        lives += world.lives
        for leftover in folder.glob(f"{seed}.db*"):
            leftover.unlink()
    if worlds >= 40:
        assert set(met) == {*FAULTS, *CRASHES}, met
        assert traded > 10 * worlds, traded
        assert lives > worlds, lives

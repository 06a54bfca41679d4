"""Seeded worlds of a daemon that trades an account at an exchange, in virtual time: the daemon, the service and the
link are killed, the wires to the service and to the exchange lose and delay, the exchange is away; then calm, in which
everything must come right.

    python -m tests.service.exchange_accounts.daemon_worlds SEED [SEED]     worlds; what was broken is printed

Judged by the rules of `bot drill` (no order lost, doubled or without an outcome; the daemon believes what the service
has), by the stops at the exchange, and by the exchange's own books.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx

from bot import logs
from bot.clock import MINUTE_MS, SECOND_MS, SystemClock
from bot.drill.daemon import rows_of
from bot.drill.judgment import belief_findings, order_findings
from bot.errors import ApiError
from bot.runtime.model.intents import FINAL
from bot.runtime.startup import RealPacer
from bot.strategy import Bar, Bracket, Close, Intent, Open, View
from tests.integration.builders import Bot, make_bot
from tests.integration.virtual import served
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.virtual_exchange import TaskLink
from tests.service.exchange_accounts.worlds import ADDRESS, HOUR_SECONDS, HOUR_SHARE, SETTLED_SECONDS, World, main

BUSY_SECONDS: Final = (150.0, 330.0)
PASS_SECONDS: Final = 2.0
# A stop may fill after the daemon's newest pass.
PASSES_BEHIND: Final = 3
# Replies of the service that the daemon does not hear.
LOST_SHARE: Final = 0.03
TROUBLES: Final = ("none", "daemon", "daemon", "kills", "all", "all", "links", "away", "wire", "wire")


def trader(view: View, bar: Bar) -> Iterable[Intent]:
    """Something on most bars. A function of the bar and the position."""
    number = bar.at_ms // MINUTE_MS
    held = view.position(bar.market)
    if held is None:
        bracket = Bracket(stop_pct=(0.3, 1, 3)[number % 3], target_r=1.5)
        yield Open(bar.market, "long" if number % 2 else "short", usd=1_500, bracket=bracket)
    elif number % 3 == 1:
        yield Close(bar.market, fraction=0.5)
    elif number % 3 == 2:
        yield Close(bar.market)


class Wire(httpx.AsyncBaseTransport):
    """Requests of the daemon to the service that lives, as calls."""

    def __init__(self, world: DaemonWorld) -> None:
        self._world = world
        self._chance = random.Random(f"service wire {world.seed}")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._chance.uniform(0.001, 0.03))
        service = self._world.service
        if service is None:
            raise httpx.ConnectError("nobody listens")
        # `served` adds its own of these.
        raw = [(name.lower(), value) for name, value in request.headers.raw]
        headers = [(name, value) for name, value in raw if name not in (b"host", b"content-length")]
        content = await request.aread()
        asking = asyncio.create_task(
            served(service.app, request.method, request.url.raw_path.decode(), headers, content), name="service-request"
        )
        await asyncio.wait([asking])
        if asking.cancelled() or self._world.service is not service:
            raise httpx.ReadError("the service has ended")
        if not self._world.is_calm and self._chance.random() < LOST_SHARE:
            raise httpx.ReadError("the reply is lost")
        answer = asking.result()
        return httpx.Response(answer.status_code, headers=list(answer.headers.items()), content=answer.content)


class DaemonWorld(World):
    """One seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        is_long = self.chance.random() < HOUR_SHARE
        self.trouble = "hour" if is_long else self.chance.choice(TROUBLES)
        self.journal = folder / "journal.db"
        self.bot: Bot | None = None
        self.passing: asyncio.Task[Any] | None = None

    # ── The daemon ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def daemon(self) -> None:
        """Lives of the daemon, one after another. Each makes passes until it is killed."""
        wire, chance = Wire(self), random.Random(f"daemon {self.seed}")
        while True:
            pacer = RealPacer()
            pacer._chance = random.Random(chance.random())
            hand: Any = SimpleNamespace(key=self.token, account={"address": ADDRESS})
            self.bot = make_bot(hand, wire, self.journal, script=trader, pacer=pacer)
            self.notes["life"] += 1
            self.passing = asyncio.create_task(self.passes(self.bot))
            await asyncio.wait([self.passing])
            if not self.passing.cancelled() and not self.bot.dead:
                self.passing.result()
            await asyncio.sleep(chance.choice((0.5, 3.0, 20.0)) if not self.is_calm else 0.5)

    async def passes(self, bot: Bot) -> None:
        while True:
            with suppress(ApiError):
                await bot.cycle()
            await asyncio.sleep(PASS_SECONDS)

    async def kill_daemon(self) -> None:
        """As kill -9: nothing is written that was not; what was given to the wire arrives."""
        if self.bot is not None and self.passing is not None and not self.bot.dead:
            self.notes["daemon"] += 1
            self.bot.dead = True
            self.bot.kernel.journal.db.close()
            self.passing.cancel()
            await asyncio.gather(self.passing, return_exceptions=True)

    async def troubles(self) -> None:
        """Kills of the daemon beside what goes wrong at the service and the exchange."""
        if self.trouble not in ("daemon", "all"):
            return await super().troubles()
        chance = random.Random(f"trouble {self.seed}")
        while not self.is_calm:
            # Often in a pass, which begins at a close.
            to_close = MINUTE_MS - SystemClock().now_ms() % MINUTE_MS
            await asyncio.sleep(chance.choice((chance.uniform(0.5, 40), to_close / SECOND_MS + chance.uniform(0, 4))))
            if self.is_calm:
                return None
            kind = "daemon" if self.trouble == "daemon" else chance.choice(("daemon", "service", "link", "away"))
            if kind == "daemon":
                await self.kill_daemon()
            elif kind == "service":
                await self.kill_service()
                await asyncio.sleep(chance.choice((0.01, 0.5, 5.0)))
                await self.start_service()
            elif kind == "link":
                for link in list(TaskLink.alive):
                    link.kill()
            else:
                self.exchange.is_away = True
                await asyncio.sleep(chance.uniform(1.0, 30.0))
                self.exchange.is_away = False
        return None

    # ── One world ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        self.begin_exchange()
        self.watch_cancels()
        loop = asyncio.get_running_loop()
        always = [loop.create_task(part) for part in (self.exchange.run(), self.move_prices(), self.watch_stops())]
        await self.start_service()
        await self.until(self.can_send, 60)
        answer = await self.ask("POST", "/sandbox/v1/keys", {}, token=CONTROL_TOKEN)
        assert answer is not None and answer.status_code == 200, answer
        self.token = json.loads(answer.content)["apiKey"]
        living = loop.create_task(self.daemon())
        tasks = [loop.create_task(part) for part in (self.troubles(), self.spoil())]
        try:
            if self.trouble == "hour":
                await self.until(lambda: not self.exchange.is_away and self.notes["away"] > 0, HOUR_SECONDS + 60)
            await asyncio.sleep(self.chance.uniform(*BUSY_SECONDS))
            self.is_calm, self.exchange.is_away = True, False
            await asyncio.wait(tasks, timeout=SETTLED_SECONDS)
            for task in tasks:
                task.result()
            await self.until(lambda: self.is_right() and self.is_quiet(), SETTLED_SECONDS, self.not_right)
            assert not living.done(), living
            await self.judge_daemon()
            self.judge()
        finally:
            for task in (living, *tasks, *always):
                task.cancel()
            await self.kill_daemon()
            await asyncio.gather(living, *tasks, *always, return_exceptions=True)
            if self.service is not None:
                await self.kill_service()

    def unsettled(self) -> list[str]:
        live = () if self.bot is None else self.bot.kernel.intents.live.values()
        return [f"{intent.action} {intent.market} {intent.state}" for intent in live if intent.state not in FINAL]

    def is_quiet(self) -> bool:
        """A daemon lives, knows its account, and has no order on its way. Not in the seconds after a close."""
        is_ready = self.bot is not None and not self.bot.dead and self.bot.kernel.state.ready
        return is_ready and not self.unsettled() and SystemClock().now_ms() % MINUTE_MS > 40 * SECOND_MS

    def not_right(self) -> list[str]:
        ready = None if self.bot is None else (self.bot.dead, self.bot.kernel.state)
        return [*self.troubles_left(), *self.unsettled(), f"daemon: {ready}"]

    async def judge_daemon(self) -> None:
        findings: list[Any] = []
        for _ in range(PASSES_BEHIND):
            account = await self.ask("GET", "/v1/account", {})
            assert account is not None and self.bot is not None
            findings = belief_findings(self.bot.kernel.account.account_state, json.loads(account.content))
            if not findings:
                break
            await asyncio.sleep(PASS_SECONDS)
        trades: list[Any] = []
        before: int | None = None
        while True:
            more = "" if before is None else f"&before={before}"
            page = await self.ask("GET", f"/v1/trades?limit=200{more}", {})
            assert page is not None and page.status_code == 200, page
            body = json.loads(page.content)
            # A void trade never became an order.
            trades += [trade for trade in body["trades"] if trade["status"] != "void"]
            before = body.get("nextBefore")
            if before is None:
                break
        findings += order_findings(rows_of(self.journal), trades)
        self.notes["orders"] += sum(trade["source"] == "agent" for trade in trades)
        assert not findings, findings


if __name__ == "__main__":
    logs.configure(level="critical" if len(sys.argv) > 2 else "info")
    sys.exit(main(DaemonWorld))

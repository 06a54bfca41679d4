"""Soak of a followed account: days of hand trades and gaps in virtual time, the books compared each day, and memory.

Each day must end with the exchange's cash to the last unit, its sizes and its open orders, and none of the audits that
the service makes each hour may have a difference; ends with 1 otherwise.
Memory is of this process, in which the local exchange keeps every fill and order too.

    python -m tests.bench.exchange_month [--days 30] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bot import logs
from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from bot.exchanges.hyperliquid.live import connections
from bot.local_exchange.faults import ExchangeFault
from tests.bench.exchange import memory_mb
from tests.integration.virtual import virtual_time
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.virtual_exchange import in_one_process
from tests.service.exchange_accounts.worlds import ADDRESS, COINS, START_PX, STEP, World

MINUTE_S, HOUR_S, DAY_S = (ms / SECOND_MS for ms in (MINUTE_MS, HOUR_MS, DAY_MS))
# The exchange lets time pass so often; its prices change each minute.
TICK_S = 10.0
SETTLE_S = 15 * MINUTE_S
# The link looks at its sockets so often, not each 0.25 s: most of the processor time of a month would be that.
LOOK_S = 5.0
# between two looks for a new audit
AUDIT_LOOK_S = 30.0
ORDERS_MOST = 20


class Month(World):
    """An account that one person trades by hand, and an exchange that is away now and then."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.trouble = "none"
        self.samples: list[tuple[int, float]] = []
        self.audits: set[int] = set()

    async def let_time_pass(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.exchange.service.pass_time()

    async def walk(self) -> None:
        """A price for each coin every minute."""
        px = {coin: float(START_PX[coin]) for coin in COINS}
        while True:
            await asyncio.sleep(MINUTE_S)
            for coin in COINS:
                px[coin] = min(
                    max(px[coin] * (1 + self.chance.gauss(0, 0.001)), START_PX[coin] * 0.8), START_PX[coin] * 1.2
                )
                told = f"{round(round(px[coin] / STEP[coin]) * STEP[coin], 1):g}"
                self.exchange.service.command("price", {"coin": coin, "px": told})

    async def trade_by_hand(self) -> None:
        chance = random.Random(f"hand {self.seed}")
        while True:
            await asyncio.sleep(chance.uniform(2, 20) * MINUTE_S)
            if self.is_calm:
                continue
            coin = chance.choice(COINS)
            size = chance.choice((-1, 1)) * {"BTC": 0.02, "ETH": 0.5}[coin] * chance.choice((1, 1, 2))
            user = self.exchange.service.exchange.users[ADDRESS]
            if len(user.orders) > ORDERS_MOST:
                order = next(iter(user.orders.values()))
                asset = next(
                    number for number, name in self.exchange.service.exchange.assets.items() if name == order.coin
                )
                self.by_hand({"type": "cancel", "cancels": [{"a": asset, "o": order.oid}]})
            elif chance.random() < 0.7:
                self.hand_order(coin, size)
            else:
                mark = self.exchange.service.exchange.coins[coin].market.mark / 10**8
                self.hand_order(coin, size, rests=True, px=mark * (1 - 0.002 * (1 if size > 0 else -1)))

    async def interrupt(self) -> None:
        """Gaps of a second to 40 minutes, and sockets that close."""
        chance = random.Random(f"gaps {self.seed}")
        while True:
            await asyncio.sleep(chance.uniform(0.5, 4) * HOUR_S)
            if self.is_calm:
                continue
            if chance.random() < 0.5:
                self.exchange.service.faults.add(ExchangeFault("socket", "close"))
                self.notes["close"] += 1
                continue
            self.exchange.is_away = True
            self.notes["away"] += 1
            await asyncio.sleep(chance.choice((1, 30, 5 * MINUTE_S, 40 * MINUTE_S)))
            self.exchange.is_away = False

    async def watch_audits(self) -> None:
        while True:
            await asyncio.sleep(AUDIT_LOOK_S)
            known = None if self.account is None else self.account.exchange
            if known is not None and known.audit is not None:
                self.audits.add(known.audit.at_ms)
                assert not known.audit.differences, known.audit

    async def live_days(self, days: int) -> None:
        """AssertionError if the books of a day are not those of the exchange."""
        self.begin_exchange()
        loop = asyncio.get_running_loop()
        parts = (self.let_time_pass(), self.walk(), self.trade_by_hand(), self.interrupt(), self.watch_audits())
        tasks = [loop.create_task(part) for part in parts]
        await self.start_service()
        await self.until(self.can_send, MINUTE_S)
        answer = await self.ask("POST", "/sandbox/v1/keys", {}, token=CONTROL_TOKEN)
        assert answer is not None
        self.token = json.loads(answer.content)["apiKey"]
        try:
            for day in range(1, days + 1):
                begun, begun_s = time.process_time(), loop.time()
                await asyncio.sleep(DAY_S - SETTLE_S)
                self.is_calm, self.exchange.is_away = True, False
                await self.until(self.is_right, SETTLE_S, self.troubles_left)
                self.is_calm = False
                failed = [task.exception() for task in tasks if task.done()]
                assert not failed, failed
                await asyncio.sleep(max(0.0, begun_s + DAY_S - loop.time()))
                self.tell(day, time.process_time() - begun)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.kill_service()

    def tell(self, day: int, seconds: float) -> None:
        fills = len(self.exchange.service.exchange.users[ADDRESS].fills)
        self.samples.append((fills, memory_mb()))
        print(
            f"day {day:2}: 0 differences in {len(self.audits)} audits, {fills:,} fills, {self.notes['away']} gaps,"
            f" {self.notes['close']} closed sockets, {self.samples[-1][1]:.1f} MB; {seconds:.0f} s of processor time",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logs.configure(level="critical")
    connections.TICK_SECONDS = LOOK_S
    with tempfile.TemporaryDirectory() as name, virtual_time() as (loop, _):
        month = Month(given.seed, Path(name))
        with in_one_process(month.exchange, Path(name)) as agent:
            month.agent = agent
            try:
                loop.run_until_complete(month.live_days(given.days))
            except AssertionError as error:
                print(f"DIFFERENT: {error}")
                return 1
    later = month.samples[len(month.samples) // 2 :]
    if len(later) > 1:
        slope = statistics.linear_regression(*zip(*later, strict=True)).slope
        print(f"memory in the second half: {slope * 1024:+.1f} KB a fill, of the exchange, its journal and the service")
    return 0


if __name__ == "__main__":
    sys.exit(main())

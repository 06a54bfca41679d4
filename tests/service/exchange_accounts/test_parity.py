"""One strategy, the same prices: at the sandbox and through the local exchange, beside each other in virtual time.

The same decisions must come; each fill that differs gets its one cause from the comparison that `bot proof` uses.
"""

from __future__ import annotations

import asyncio
import json
import random
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.proof.causes import ProofCause, causes_of
from bot.backtest.replay.comparison import _Comparison
from bot.backtest.replay.differences import Difference
from bot.backtest.replay.records import RunRecord, read_journal
from bot.checks.config_check import checked_config
from bot.client import Client
from bot.clock import DAY_MS, MINUTE_MS, SystemClock
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.assembly import place_strategies, wanted_guardians
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.startup import RealPacer
from bot.service.market_data.price_feed import points_of
from bot.service.market_data.simulator import GridCandle
from bot.venue.model.numbers import E8
from tests.conftest import REPOSITORY
from tests.integration.builders import Bot
from tests.integration.virtual import virtual_time
from tests.market_data.exchange import recorded
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.virtual_exchange import VirtualExchange, in_one_process
from tests.service.exchange_accounts.worlds import ADDRESS, World

# from 2025-05-21 17:03 UTC on: the hour of the file with the longest candles
FIRST_MINUTE: Final = 24_570
MINUTES: Final = 60
# A pass of the daemon at these seconds of each minute: after its close and after each price.
PASSES_S: Final = (0.05, 5.0, 25.0, 45.0)
CONFIG: Final = """\
account: {base_url: embedded}
name: mine
dead_man: {heartbeat_seconds: 600}
strategies_dir: %s
state_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 5000, params: %s}
"""
# A near stop and a near target, so that an hour has many trades.
PARAMS: Final = "{usd: 400, fast_bars: 3, slow_bars: 12, band_atr: 0.05, stop_atr: 1, target_r: 0.8}"


def stretch(shared: Path, start_ms: int, minutes: int) -> list[GridCandle]:
    """Recorded minutes on the exchange's grid of whole USD, from that instant on."""
    rows = recorded(shared / "data/crypto/binance_BTCUSDT_1m_202505.csv.gz", FIRST_MINUTE + minutes)
    return [
        GridCandle(start_ms + number * MINUTE_MS, *(round(float(text)) * E8 for text in row[1:5]), 0)
        for number, row in enumerate(rows[FIRST_MINUTE:])
    ]


def candles_of(candles: list[GridCandle]) -> Candles:
    columns = [array("d", (value / E8 for value in column)) for column in list(zip(*candles, strict=True))[1:]]
    return Candles("BTC", "1m", array("q", (candle.ts for candle in candles)), *columns)


class TwoAccounts(World):
    """A service that trades an account at the exchange, and an account of its sandbox."""

    def __init__(self, folder: Path, minutes: int, altered: Alteration | None) -> None:
        super().__init__(1, folder)
        self.minutes = minutes
        self.skew = 0 if altered is None else altered.skew
        self.volume_usd = 0 if altered is None else altered.volume_usd
        self.exchange = VirtualExchange(random.Random("parity"), {"ip_limit": "off"}, 1)

    async def bot(self, name: str, api_key: str) -> Bot:
        """The inside of a daemon with the shipped strategy and a journal of its own."""
        state = self.folder / name
        state.mkdir()
        path = self.folder / f"{name}.yaml"
        path.write_text(CONFIG % (REPOSITORY / "strategies", state, PARAMS))
        settings = checked_config(path).settings
        assert self.service is not None
        transport = httpx.ASGITransport(self.service.app, raise_app_exceptions=False)
        client = Client("http://127.0.0.1", api_key, transport=transport)
        journal = open_journal(state / "journal.db", address=(await client.account()).address)
        kernel = Kernel(
            port=client,
            journal=journal,
            specs=place_strategies(settings),
            pacer=RealPacer(),
            settings=KernelSettings(guardians=wanted_guardians(settings)),
        )
        return Bot(kernel, client)

    def begin_exchange(self) -> None:
        super().begin_exchange()
        exchange = self.exchange.service.exchange
        exchange.users[ADDRESS].day_volume[exchange.now_ms // DAY_MS - 1] = [self.volume_usd * E8, 0]

    def take_spread(self) -> None:
        """The sandbox has the exchange's spread, as with live prices."""
        assert self.service is not None
        market = self.service.machine.state.markets["BTC"]
        theirs = self.exchange.service.exchange.coins["BTC"].market.spec
        market.spec = replace(market.spec, half_spread=theirs.half_spread)

    async def tell_prices(self, candles: list[GridCandle]) -> None:
        """Tell exchange and service the same prices at the same instants, but for the skew."""
        for candle in candles:
            for point in points_of("BTC", candle, MINUTE_MS):
                await asyncio.sleep(max(0, point.at_ms - SystemClock().now_ms()) / 1000)
                px = point.px // E8 + self.skew
                self.exchange.service.command("price", {"coin": "BTC", "px": str(px)})
                self._push("BTC", point.px)

    async def trade(self, bot: Bot) -> None:
        while True:
            for second in PASSES_S:
                now_s = SystemClock().now_ms() / 1000
                await asyncio.sleep((second - now_s) % 60)
                await bot.cycle()

    async def live_both(self, shared: Path) -> list[GridCandle]:
        self.begin_exchange()
        loop = asyncio.get_running_loop()
        always = [loop.create_task(self.exchange.run())]
        await self.start_service()
        await self.until(self.can_send, 60)
        self.take_spread()
        minted = await self.ask("POST", "/sandbox/v1/keys", {}, token=CONTROL_TOKEN)
        opened = await self.ask("POST", "/v1/sandbox/accounts", {"startingBalanceUsd": 100_000})
        assert minted is not None and opened is not None and b"apiKey" in opened.content, opened and opened.content
        keys = {"exchange": minted, "sandbox": opened}
        bots = [await self.bot(name, json.loads(answer.content)["apiKey"]) for name, answer in keys.items()]
        start_ms = SystemClock().now_ms() // MINUTE_MS * MINUTE_MS + MINUTE_MS
        candles = stretch(shared, start_ms, self.minutes)
        try:
            # A daemon begins when the first bar of the stretch has closed.
            await self.tell_prices(candles[:1])
            always += [loop.create_task(self.trade(bot)) for bot in bots]
            await self.tell_prices(candles[1:])
            await self.until(self.is_right, 60, self.troubles_left)
        finally:
            for task in always:
                task.cancel()
            await asyncio.gather(*always, return_exceptions=True)
            for bot in bots:
                await bot.kill()
            await self.kill_service()
        return candles


@dataclass(frozen=True)
class Alteration:
    """What is otherwise at the exchange, for so many minutes, and the first cause that the comparison must name."""

    name: str
    cause: ProofCause
    skew: int = 0
    volume_usd: int = 0


@dataclass
class Compared:
    """Both records, and each difference with its cause."""

    exchange: RunRecord
    sandbox: RunRecord
    caused: list[tuple[Difference, ProofCause]]


def compared(shared: Path, folder: Path, minutes: int, altered: Alteration | None = None) -> Compared:
    with virtual_time() as (loop, _):
        world = TwoAccounts(folder, minutes, altered)
        with in_one_process(world.exchange, folder) as agent:
            world.agent = agent
            candles = loop.run_until_complete(world.live_both(shared))
    exchange, sandbox = read_journal(folder / "exchange"), read_journal(folder / "sandbox")
    span = {"start_ms": candles[0].ts, "last_ms": candles[-1].ts + MINUTE_MS}
    result = _Comparison(exchange, sandbox, [candles_of(candles)], [], **span).result([])
    # The first bar that a daemon sees is older than the stretch.
    since = [row for row in result.differences if row.at_ms > candles[0].ts]
    return Compared(exchange, sandbox, causes_of(since, exchange))


def test_decisions_and_fills_are_those_of_the_sandbox(shared: Path, tmp_path: Path) -> None:
    both = compared(shared, tmp_path, MINUTES)
    assert both.caused == []
    assert both.exchange.decisions.keys() == both.sandbox.decisions.keys() and len(both.exchange.decisions) > 15
    assert both.exchange.fills.keys() == both.sandbox.fills.keys() and len(both.exchange.fills) > 30
    assert {fill.kind for fill in both.exchange.fills.values()} == {"market", "close", "stop_loss", "take_profit"}


@pytest.mark.parametrize(
    "altered",
    [
        Alteration("the account pays a lower fee", "fee", volume_usd=6_000_000),
        Alteration("the price is another one when the order arrives", "timing", skew=15),
    ],
    ids=lambda altered: altered.name,
)
def test_each_fill_that_differs_has_its_cause(altered: Alteration, shared: Path, tmp_path: Path) -> None:
    both = compared(shared, tmp_path, 30, altered)
    assert len(both.exchange.decisions) > 3
    assert both.exchange.decisions.keys() == both.sandbox.decisions.keys()
    assert {difference.what for difference, _ in both.caused} == {"fill"}
    assert len(both.caused) == len(both.exchange.fills)
    assert {cause for _, cause in both.caused} == {altered.cause}

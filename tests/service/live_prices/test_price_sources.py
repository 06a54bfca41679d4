"""Several sources of live prices in one service: each has its own markets, and one that fails closes only its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.errors import ConfigError
from bot.market_data.source import NoAnswer
from bot.service.live_prices.listings import live_options, live_sources
from bot.service.live_prices.price_sources import PriceSources
from bot.service.state_machine.bootstrap import PriceOptions, open_machine
from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.machine import Machine
from bot.wire.market import LivePriceStatus
from tests.service.live_prices.source import NOW, FakeSource, quote


class Two:
    """A machine with BTC from source one and ETH from source two; SPY is simulated."""

    def __init__(self, db: Path | None = None) -> None:
        self.of = {"one": FakeSource(), "two": FakeSource()}
        self.machine: Machine = open_machine(
            CommandLog(db),
            speed=0.0,
            prices=PriceOptions(
                markets=("SPY",), start_ms=NOW, live=(self.options("one", "BTC"), self.options("two", "ETH"))
            ),
        )
        self.machine.log.start()
        self.prices = PriceSources(self.machine, lambda name: self.of[name])
        self.prices.begin()

    def options(self, name: str, coin: str):
        return live_options(name, (f"{coin}={coin}/USDT:USDT",), lambda: self.of[name])

    async def open(self, name: str) -> None:
        (market,) = next(one for one in self.prices.sources if one.source == name).markets
        market.take_minutes(
            await self.of[name].minutes(market.symbol, market.lived_ms // 86_400_000 * 86_400_000 - 86_400_000, print)
        )
        market.take(quote(self.of[name].first[market.symbol], market.symbol))

    def end(self) -> None:
        self.machine.snapshot()
        self.machine.save_clock(final=True)
        self.machine.log.close()


def closed(two: Two) -> set[str]:
    return {market["coin"] for market in two.prices.body()["markets"] if not market["open"]}


async def ran_until(two: Two, is_done: Callable[[], bool]) -> None:
    """Run the tasks of both sources until this is true."""
    task = asyncio.create_task(two.prices.run())
    async with asyncio.timeout(10):
        while not is_done():
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_source_that_fails_closes_only_its_own_markets() -> None:
    two = Two()
    assert set(two.machine.state.markets) == {"BTC", "ETH", "SPY"}
    assert closed(two) == {"BTC", "ETH"}, "they wait for their first prices"
    await two.open("one")
    await two.open("two")
    assert closed(two) == set()
    two.machine.clock.move_to(NOW + 31_000)
    await two.open("two")
    for one in two.prices.sources:
        one.check_ages()
    assert closed(two) == {"BTC"}
    assert two.machine.state.markets["BTC"].external == "closed"
    assert two.machine.state.markets["ETH"].external == "open"
    two.end()


async def test_each_source_has_a_task_and_a_connection_of_its_own() -> None:
    two = Two()
    two.of["one"].fault = NoAnswer("one is down")
    await ran_until(two, lambda: two.prices.sources[1].is_connected and two.prices.sources[0].trouble is not None)
    status = LivePriceStatus.model_validate(two.prices.body())
    assert (status.source, status.connected, status.trouble) == ("one, two", False, "one: one is down")
    assert [(one.source, one.connected) for one in status.sources] == [("one", False), ("two", True)]
    assert {market.coin: market.source for market in status.markets} == {"BTC": "one", "ETH": "two"}
    two.end()


async def test_a_restart_fills_the_gap_of_each_source_and_refuses_others(tmp_path: Path) -> None:
    first = Two(tmp_path / "s.db")
    await first.open("one")
    await first.open("two")
    first.machine.clock.move_to(NOW + 20_000)
    first.prices.sources[0].markets[0].take(quote(94_010.0))
    for seconds, silent in ((31, {"ETH"}), (51, {"BTC", "ETH"})):
        first.machine.clock.move_to(NOW + seconds * 1_000)
        for one in first.prices.sources:
            one.check_ages()
        assert closed(first) == silent
    first.end()
    again = Two(tmp_path / "s.db")
    lived = {market.coin: market.lived_ms for one in again.prices.sources for market in one.markets}
    assert lived == {"BTC": NOW + 20_000, "ETH": NOW}
    again.end()
    other = live_options("three", ("BTC",), lambda: FakeSource())
    with pytest.raises(ConfigError, match="created with the prices of one and two, not with those of three"):
        open_machine(CommandLog(tmp_path / "s.db"), speed=0.0, prices=PriceOptions(live=(other,)))


@pytest.mark.parametrize(
    ("given", "markets", "said"),
    [
        (("ccxt:a", "ccxt:b:ETH"), (), "ccxt:a: each of several sources names its markets"),
        (("ccxt:a:BTC", "ccxt:b:btc=BTC/USD"), (), "ccxt:b: BTC has the prices of ccxt:a already"),
        (("ccxt:a:BTC", "ccxt:a:ETH"), (), "ccxt:a is given twice"),
        (("ccxt:a:BTC",), ("ETH=ETH/USD",), "name the symbol in --prices SOURCE:ETH=ETH/USD"),
    ],
)
def test_sources_that_contradict_are_refused(given: tuple[str, ...], markets: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        live_sources(given, markets)


def test_a_source_names_its_markets_after_its_argument() -> None:
    kraken, binance = live_sources(("ccxt:kraken:BTC=BTC/USD", "ccxt:binance:eth=ETH/USDT:USDT,SOL"), ("SPY",))
    assert (kraken.source, kraken.symbols) == ("ccxt:kraken", {"BTC": "BTC/USD"})
    assert (binance.source, binance.symbols) == ("ccxt:binance", {"ETH": "ETH/USDT:USDT"})

"""A listed market with live prices of a source: the rules of the source win, and a later start needs no file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from bot.checks.listing_file import use_listing_file
from bot.errors import ConfigError
from bot.market_data.source import Instrument, Quote
from bot.service.live_prices.listings import live_options
from bot.service.market_data.instruments import added_listings, use_listings
from bot.service.state_machine.bootstrap import PriceOptions, open_machine
from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.machine import Machine
from tests.service.live_prices.source import NOW, FakeSource, quote

SHIB = Instrument("SHIB/USDT:USDT", "SHIB", "USDT", "swap", linear=True, tick="0.00000002", size_step="10")
FILE = """\
markets:
  SHIB: {tick: 0.00000001, lot: 1, leverage: 10, fees: {taker: 0.002}}
  SIE.DE: {tick: 0.02, lot: 1, currency: EUR, rate: EURUSD}
"""


class FineSource(FakeSource):
    """Quotes with a spread of two units of a fine price."""

    async def quotes(self, symbols: Sequence[str]) -> AsyncIterator[list[Quote]]:
        yield [quote(self.first[symbol], symbol, half=1e-8) for symbol in symbols]
        await asyncio.Event().wait()


@pytest.fixture
def source() -> FakeSource:
    made = FineSource()
    made.listed = [*made.listed, SHIB]
    made.first = {**made.first, SHIB.symbol: 0.00001234}
    return made


def opened(source: FakeSource, db: Path, *markets: str) -> Machine:
    prices = PriceOptions(
        markets=markets, start_ms=NOW, live=(live_options("fake", markets, lambda: source),), listings=added_listings()
    )
    return open_machine(CommandLog(db), speed=0.0, prices=prices)


async def test_a_listed_market_has_live_prices_and_stays_in_the_database(source: FakeSource, tmp_path: Path) -> None:
    (tmp_path / "markets.yaml").write_text(FILE)
    use_listing_file(tmp_path / "markets.yaml")
    machine = opened(source, tmp_path / "s.db", "BTC", "SHIB")
    spec = machine.state.markets["SHIB"].spec
    assert (spec.tick, spec.lot, spec.taker_rate) == (2, 10 * 10**8, 200_000)
    assert "SHIB" in machine.feed.live() and machine.state.markets["SHIB"].mark == 1234
    machine.log.start()
    machine.log.close()
    use_listings({})
    again = open_machine(CommandLog(tmp_path / "s.db"), speed=0.0, prices=PriceOptions())
    assert again.state.markets["SHIB"].spec == spec
    assert "SHIB" in again.feed.live()
    again.log.close()


def test_live_prices_in_another_currency_are_refused(source: FakeSource, tmp_path: Path) -> None:
    (tmp_path / "markets.yaml").write_text(FILE)
    use_listing_file(tmp_path / "markets.yaml")
    with pytest.raises(ConfigError, match="SIE.DE is priced in EUR, and accounts are in USD; live prices are not conv"):
        opened(source, tmp_path / "s.db", "SIE.DE")

"""A service on the prices of the local exchange, through the feeder and ccxt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bot.cli.run.embedded_service import Embedded, service_markets, service_prices
from bot.config import load
from bot.market_data.quote_filter import scaled
from bot.service.host import HostOptions, Service, serve
from bot.service.live_prices import live_prices
from tests.market_data.exchange import Exchange, status
from tests.market_data.live_service import running
from tests.service.conftest import CONTROL_TOKEN

DEADLINE_SECONDS = 120.0
# What waits for no request of the service, such as the end of a session, is looked at so often.
LOOK_SECONDS = 0.1


async def until(is_true: Callable[[], bool], exchange: Exchange) -> None:
    """Wait for the exchange's next answers until something is true. The exchange's clock follows ours."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < end
        exchange.now_ms = time.time_ns() // 1_000_000
        exchange.asked_quotes.clear()
        await asyncio.to_thread(exchange.asked_quotes.wait, LOOK_SECONDS)


def is_open(service: Service) -> bool:
    assert service.live is not None
    return service.live.sources[0].markets[0].closed_reason is None


def has_candles(service: Service) -> bool:
    assert service.live is not None
    return service.live.sources[0].markets[0].candles.until_ms > 0


async def test_the_service_follows_the_exchange_and_survives_its_faults(
    live_exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_prices, "WAIT_FIRST_SECONDS", LOOK_SECONDS)
    async with running() as (service, http):
        await until(lambda: is_open(service), live_exchange)
        found = (await http.get("/v1/markets", params={"query": "BTC"})).json()["markets"]
        market = next(one for one in found if one["coin"] == "BTC")
        assert (market["markPx"], market["szDecimals"], market["external"]) == ("94000", 3, "open")
        live_exchange.quotes["BTCUSDT"] = "94100.0"
        await until(lambda: service.machine._quiet.marks.get("BTC") == scaled(94_100.0), live_exchange)
        live_exchange.quote_faults += [status(503), status(429, retry_after="1")]
        assert service.live is not None
        (live,) = service.live.sources
        await until(lambda: live.sessions >= 2 and live.is_connected and is_open(service), live_exchange)
        answer = (await http.get("/v1/system/status")).json()
        assert answer["status"] == "ok"
        assert answer["prices"]["source"] == "ccxt:binance"


async def test_candles_of_the_service_are_those_of_the_exchange(live_exchange: Exchange) -> None:
    async with running() as (service, http):
        await until(lambda: is_open(service) and has_candles(service), live_exchange)
        candles = (await http.get("/v1/markets/BTC/candles", params={"interval": "1m", "limit": 100})).json()["candles"]
        closed = [one for one in candles if one["closed"]]
        told = {at: tuple(map(float, row)) for at, *row in live_exchange.futures["BTCUSDT"].minutes}
        assert len(closed) >= 99
        for one in closed:
            assert tuple(float(one[name]) for name in ("open", "high", "low", "close", "volume")) == told[one["ts"]]
        daily = (await http.get("/v1/markets/BTC/candles", params={"interval": "1d", "limit": 10})).json()["candles"]
        assert [one["closed"] for one in daily][-2:] == [True, False]


def test_a_start_that_cannot_work_says_why(live_exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(HostOptions(port=0, live=("ccxt:binanec",))) == 2
    assert "did you mean binance" in capsys.readouterr().err
    assert serve(HostOptions(port=0, live=("yfinance",))) == 2
    assert "no live prices" in capsys.readouterr().err
    assert serve(HostOptions(port=0, live=("ccxt:binance",), markets=("SOL",))) == 2
    assert "no perpetual and no spot market of SOL" in capsys.readouterr().err


async def test_time_and_prices_of_a_live_service_cannot_be_set(live_exchange: Exchange) -> None:
    async with running() as (_, http):
        headers = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
        for path, body in (("/clock/advance", {"ms": 1}), ("/markets/BTC/price", {"px": "1"}), ("/reset", {})):
            answer = await http.post(f"/sandbox/v1{path}", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_a_config_with_an_exchange_starts_the_embedded_service_on_its_prices(
    live_exchange: Exchange, tmp_path: Path
) -> None:
    config = tmp_path / "paper.yaml"
    config.write_text(
        "account: {base_url: embedded, prices: {exchange: binance, markets: {btc: BTC/USDT:USDT}}}\nstrategies: [{name:"
        " trend, use: 'trend:Trend', markets: [BTC], interval: 1m, budget_usd: 100, max_leverage: 1, daily_loss_usd:"
        " 10}]\n"
    )
    settings = load(config)
    assert service_prices(settings) == ("ccxt:binance",)
    assert service_markets(settings) == ("BTC=BTC/USDT:USDT",)
    service = Embedded(tmp_path / "state", prices=service_prices(settings), markets=service_markets(settings))
    try:
        base_url = service.ensure().base_url
        markets = httpx.get(f"{base_url}/v1/markets").json()["markets"]
        assert [(one["coin"], one["markPx"]) for one in markets] == [("BTC", "94000")]
    finally:
        service.stop()

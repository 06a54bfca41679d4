"""A service on the prices of the local exchange, through the feeder and ccxt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.market_data.quote_filter import scaled
from bot.service.host import HostOptions, Service, build, serve
from tests.market_data.conftest import markets_python  # noqa: F401  a fixture
from tests.market_data.exchange import Exchange, Series, minutes, served, status
from tests.service.conftest import CONTROL_TOKEN

MINUTE = 60_000
DEADLINE_SECONDS = 60.0


@pytest.fixture
def exchange(markets_python: str, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """A Binance at the present time, with quotes of BTC's perpetual and minutes since the day before yesterday."""
    now_ms = time.time_ns() // 1_000_000
    made = Exchange(now_ms)
    made.futures["BTCUSDT"] = Series(minutes(4_400, now_ms // MINUTE * MINUTE - 4_320 * MINUTE))
    made.quotes["BTCUSDT"] = "94000.0"
    with served(made) as url:
        monkeypatch.setenv("BOT_MARKETS_PYTHON", markets_python)
        monkeypatch.setenv("BOT_MARKETS_URL", url)
        yield made


async def until(is_true: Callable[[], bool], exchange: Exchange) -> None:
    """Wait for the exchange's next answers until something is true. The exchange's clock follows ours."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < end
        exchange.now_ms = time.time_ns() // 1_000_000
        exchange.asked_quotes.clear()
        await asyncio.to_thread(exchange.asked_quotes.wait, 5)


@asynccontextmanager
async def running(db: Path | str = ":memory:") -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    service = build(HostOptions(db=db, live="ccxt:binance"), control_token=CONTROL_TOKEN)
    await service.start()
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        try:
            yield service, http
        finally:
            await service.stop()


def is_open(service: Service) -> bool:
    assert service.live is not None
    return service.live.markets[0].closed_reason is None


async def test_the_service_follows_the_exchange_and_survives_its_faults(exchange: Exchange) -> None:
    async with running() as (service, http):
        await until(lambda: is_open(service), exchange)
        market = (await http.get("/v1/markets", params={"query": "BTC"})).json()["markets"][0]
        assert (market["markPx"], market["szDecimals"], market["external"]) == ("94000", 3, "open")
        exchange.quotes["BTCUSDT"] = "94100.0"
        await until(lambda: service.machine._quiet.marks.get("BTC") == scaled(94_100.0), exchange)
        exchange.quote_faults += [status(503), status(429, retry_after="1")]
        live = service.live
        assert live is not None
        await until(lambda: live.sessions >= 2 and live.is_connected, exchange)
        answer = (await http.get("/v1/system/status")).json()
        assert answer["status"] == "ok"
        assert answer["prices"]["source"] == "ccxt:binance"


async def test_candles_of_the_service_are_those_of_the_exchange(exchange: Exchange) -> None:
    async with running() as (service, http):
        await until(lambda: is_open(service), exchange)
        candles = (await http.get("/v1/markets/BTC/candles", params={"interval": "1m", "limit": 100})).json()["candles"]
        closed = [one for one in candles if one["closed"]]
        told = {at: tuple(map(float, row)) for at, *row in exchange.futures["BTCUSDT"].minutes}
        assert len(closed) >= 99
        for one in closed:
            assert tuple(float(one[name]) for name in ("open", "high", "low", "close", "volume")) == told[one["ts"]]
        daily = (await http.get("/v1/markets/BTC/candles", params={"interval": "1d", "limit": 10})).json()["candles"]
        assert [one["closed"] for one in daily][-2:] == [True, False]


def test_a_start_that_cannot_work_says_why(exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(HostOptions(port=0, live="ccxt:binanec")) == 2
    assert "did you mean binance" in capsys.readouterr().err
    assert serve(HostOptions(port=0, live="yfinance")) == 2
    assert "no live prices" in capsys.readouterr().err
    assert serve(HostOptions(port=0, live="ccxt:binance", markets=("SOL",))) == 2
    assert "no perpetual and no spot market of SOL" in capsys.readouterr().err


async def test_time_and_prices_of_a_live_service_cannot_be_set(exchange: Exchange) -> None:
    async with running() as (_, http):
        headers = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
        for path, body in (("/clock/advance", {"ms": 1}), ("/markets/BTC/price", {"px": "1"}), ("/reset", {})):
            answer = await http.post(f"/sandbox/v1{path}", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")

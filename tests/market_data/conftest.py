"""An interpreter that has ccxt, and a local exchange that `bot data pull` asks in place of the real ones."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.market_data.exchange import Exchange, Series, minutes, served
from tests.market_data.forking_feeder import forking_feeder

# 2025-05-01
START = 1_746_057_600_000


@pytest.fixture(scope="session")
def markets_python() -> str:
    """The interpreter of the environment that `make test` makes for ccxt, or BOT_MARKETS_PYTHON."""
    given = os.environ.get("BOT_MARKETS_PYTHON")
    python = Path(given) if given else Path(sys.prefix) / "markets" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no environment with ccxt at {python}: run `make test`")
    return str(python)


@pytest.fixture(scope="session")
def quick_python(markets_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An executable that starts feeder processes by forking from one that has imported ccxt."""
    with forking_feeder(markets_python, tmp_path_factory.mktemp("feeder")) as python:
        yield python


@pytest.fixture
def exchange(quick_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    """A Binance with 6,000 minutes of BTC's perpetual and ETH's spot market, and a Kraken with BTC.

    The store is ./data.
    """
    made = Exchange(START + 6_000 * 60_000 + 30_000)
    made.futures["BTCUSDT"] = made.kraken["XXBTZUSD"] = Series(minutes(6_100, START))
    made.spot["ETHUSDT"] = Series(minutes(6_100, START, seed=2))
    with served(made) as url:
        monkeypatch.setenv("BOT_MARKETS_PYTHON", quick_python)
        monkeypatch.setenv("BOT_MARKETS_URL", url)
        monkeypatch.chdir(tmp_path)
        yield made


@pytest.fixture
def live_exchange(quick_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    """A Binance at the present time, with quotes of BTC's perpetual and minutes since the day before yesterday."""
    now_ms = time.time_ns() // 1_000_000
    made = Exchange(now_ms)
    made.futures["BTCUSDT"] = Series(minutes(4_400, now_ms // 60_000 * 60_000 - 4_320 * 60_000))
    made.quotes["BTCUSDT"] = "94000.0"
    with served(made) as url:
        monkeypatch.setenv("BOT_MARKETS_PYTHON", quick_python)
        monkeypatch.setenv("BOT_MARKETS_URL", url)
        yield made

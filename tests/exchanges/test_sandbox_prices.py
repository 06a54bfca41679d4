"""A sandbox takes its prices from an exchange through the link: real processes, real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.errors import ConfigError
from bot.exchanges.hyperliquid.live.price_source import open_source
from bot.market_data.source import LiveSource, NotOffered
from bot.testing.hyperliquid import LocalExchange

LIVE = pytest.mark.hyperliquid(clock="real", prices="simulated")


class Sandbox:
    """A service process with live prices."""

    def __init__(self, base_url: str, pid: int) -> None:
        self.base_url, self.pid = base_url, pid

    def prices(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.base_url}/v1/system/status", timeout=10).json()["prices"]
        return found

    def until(self, is_so: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not is_so(prices := self.prices()):
            assert time.monotonic() < end, prices
            time.sleep(0.1)
        return prices

    def link_pid(self) -> int:
        """The link is the only child of the service that runs its module."""
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and (stat := _text(path / "stat")):
                command = _text(path / "cmdline")
                if int(stat.rpartition(")")[2].split()[1]) == self.pid and "bot.exchanges.link.process" in command:
                    return int(path.name)
        raise AssertionError("the service has no link")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@contextmanager
def sandbox(*arguments: str) -> Iterator[Sandbox]:
    command = [sys.executable, "-m", "bot", "sandbox", "--port", "0", "--json", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Sandbox(json.loads(process.stdout.readline())["baseUrl"], process.pid)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def is_open(prices: dict[str, Any]) -> bool:
    return all(one["open"] for one in prices["markets"])


@LIVE
def test_markets_open_with_the_prices_of_the_exchange_and_close_when_it_is_gone(hyperliquid: LocalExchange) -> None:
    port = hyperliquid.base_url.rpartition(":")[2]
    with sandbox("--prices", f"hyperliquid:{port}", "--markets", "BTC,ETH") as service:
        prices = service.until(is_open)
        assert (prices["source"], prices["transport"]) == (f"hyperliquid:{port}", "websocket")
        assert {one["coin"]: one["symbol"] for one in prices["markets"]} == {"BTC": "BTC", "ETH": "ETH"}
        for one in prices["markets"]:
            assert None not in (one["quotedAt"], one["markedAt"], one["depthAt"], one["fundingAt"])

        os.kill(service.link_pid(), signal.SIGKILL)
        closed = service.until(lambda prices: prices["trouble"] is not None)
        assert "the link has ended" in closed["trouble"] and not closed["connected"]
        again = service.until(lambda prices: prices["sessions"] >= 2 and prices["connected"] and is_open(prices))
        assert again["trouble"] is None

        hyperliquid.close()
        gone = service.until(lambda prices: not is_open(prices) and prices["trouble"] is not None)
        for one in gone["markets"]:
            assert one["reason"].startswith(f"hyperliquid:{port} is not connected: http://127.0.0.1:{port}")


@pytest.mark.parametrize("argument", ["", "moon", "0", "65536", "3001:BTC"])
def test_a_place_that_is_not_known_is_refused_before_anything_starts(argument: str) -> None:
    with pytest.raises((ConfigError, NotOffered), match="write hyperliquid:testnet, hyperliquid:mainnet"):
        open_source(argument)


def test_the_source_has_live_prices() -> None:
    assert isinstance(open_source("testnet"), LiveSource)
    assert open_source("3001").name == "hyperliquid:3001"

"""`bot exchange watch` against a local exchange: a real link process and real fills."""

from __future__ import annotations

import json

import eth_account
import pytest
from hyperliquid.exchange import Exchange

from bot.cli.app import call
from bot.errors import Exit
from bot.testing.hyperliquid import LocalExchange

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
FUNDED = pytest.mark.hyperliquid(accounts={WALLET.address.lower(): "10000"}, clock="real")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = call(["exchange", "watch", *arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


@FUNDED
def test_watch_shows_the_state_the_position_and_the_figures_of_the_link(
    hyperliquid: LocalExchange, capsys: pytest.CaptureFixture[str]
) -> None:
    Exchange(WALLET, hyperliquid.base_url).order("BTC", True, 0.01, 110_000, {"limit": {"tif": "Ioc"}})
    where = ("--url", hyperliquid.base_url, "--address", WALLET.address, "--for", "4s")
    code, out, _ = run(capsys, *where)
    lines = out.splitlines()
    assert code == Exit.DONE
    assert any(line.endswith("link in step") for line in lines), out
    assert any("positions: BTC 0.01; value" in line for line in lines), out
    assert "open of 1 sockets" in lines[-1] and " ms" in lines[-1].partition("clock difference ")[2]

    code, out, _ = run(capsys, *where, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert {one["kind"] for one in found} >= {"LinkState", "AccountStanding", "OpenOrders", "LinkHealth"}


def test_an_exchange_that_cannot_be_reached_ends_watch_with_5(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--url", "http://127.0.0.1:9", "--address", WALLET.address, "--for", "30s")
    assert (code, out) == (Exit.TIMEOUT, "")
    assert "http://127.0.0.1:9" in err

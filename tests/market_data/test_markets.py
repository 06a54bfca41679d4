"""`bot markets` against a local exchange, through the real ccxt in its feeder process."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from bot.checks.listing_file import listings_of
from bot.cli.app import call
from tests.market_data.exchange import Exchange


def test_the_markets_of_an_exchange_have_our_coin_their_rules_and_their_fees(
    exchange: Exchange, capsys: pytest.CaptureFixture[str]
) -> None:
    exchange.spot["BTCUSDT"] = exchange.spot["ETHUSDT"]
    assert call(["markets", "ccxt:binance", "btc"]) == 0
    head, swap, spot = capsys.readouterr().out.splitlines()
    assert head.split() == ["market", "symbol", "kind", "tick", "size", "step", "min", "notional", "taker", "maker"]
    assert swap.split() == ["BTC", "BTC/USDT:USDT", "swap", "0.1", "0.001", "5", "0.05", "%", "0.02", "%"]
    assert spot.split()[0] == "BTC/USDT", "the perpetual has our name, so the spot market has none"
    assert call(["markets", "ccxt:binance", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["markets"]
    assert [(one["coin"], one["symbol"]) for one in listed] == [
        ("BTC", "BTC/USDT:USDT"),
        ("ETH", "ETH/USDT"),
        (None, "BTC/USDT"),
    ]
    assert call(["markets", "ccxt:binance", "bct"]) == 2
    assert "did you mean BTC?" in capsys.readouterr().err


def test_an_exchange_without_markets_for_us_is_an_error_with_the_way_out(
    exchange: Exchange, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["markets", "ccxt:binanec"]) == 2
    assert "did you mean binance" in capsys.readouterr().err
    exchange.status_of_all = (451, '{"code": 0, "msg": "Service unavailable from a restricted location"}')
    assert call(["markets", "ccxt:binance"]) == 7
    assert "refuses requests from this country" in capsys.readouterr().err


def test_without_a_source_the_markets_of_the_embedded_service_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["markets", "bitcoin"]) == 0
    out = capsys.readouterr().out
    first = out.splitlines()[1]
    assert first.split() == ["BTC", "Bitcoin", "swap", "1", "0.00001", "10", "40x", "0.045", "%", "0.015", "%"]
    assert "event:BTC-150K" in out
    assert "7 % p(1-p)" in out
    assert call(["markets", "kraken"]) == 2
    assert "the markets of an exchange: bot markets ccxt:EXCHANGE" in capsys.readouterr().err


def test_markets_of_an_exchange_are_listed_by_ccxt(exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["markets", "import", "ccxt:binance", "BTC.X=BTC/USDT:USDT"]) == 0
    listing = listings_of(Path("markets.yaml"))["BTC.X"]
    assert call(["markets", "ccxt:binance", "BTC/USDT:USDT", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.partition("\n")[2])["markets"]
    assert listing.spec.tick == int(Decimal(row["tick"]) * 10**8)
    assert listing.spec.lot == int(Decimal(row["size_step"]) * 10**8)
    # All others of the exchange are shipped, and nothing is added.
    assert call(["markets", "import", "ccxt:binance"]) == 0
    assert list(listings_of(Path("markets.yaml"))) == ["BTC.X"]
    assert "which the service lists already" in capsys.readouterr().err

"""`bot backtest --fees-of`: fees, ticks and lots from the market data that a pull has stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bot.backtest.data.candles import read_file
from bot.backtest.data.origins import Origin, write_origin
from bot.backtest.data.store import Store
from bot.cli.app import call
from bot.market_data.source import Instrument
from tests.backtest.builders import config, minutes, write

BTC = Instrument(
    "BTC/USDT:USDT",
    "BTC",
    "USDT",
    "swap",
    linear=True,
    taker="0.0005",
    maker="0.0002",
    tick="0.1",
    size_step="0.001",
    min_notional="100",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store = Store(tmp_path / "data")
    store.write(read_file(write(minutes(600), tmp_path / "BTC_1m.csv"), market="BTC"))
    write_origin(store, Origin("BTC", "1m", "ccxt:binance", BTC.symbol, 0, (), BTC))
    return store.root


def manifest(tmp_path: Path, data: Path, *more: str, code: int = 0) -> dict[str, object]:
    out = tmp_path / "runs"
    arguments = ["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(out), *more]
    assert call(arguments) == code
    (folder,) = out.iterdir()
    found: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return found


def rules(of: dict[str, object]) -> object:
    options = of["options"]
    assert isinstance(options, dict)
    return options["rules"]["BTC"]


def test_fees_tick_and_lot_are_the_exchanges(tmp_path: Path, data: Path) -> None:
    made = manifest(tmp_path, data, "--fees-of", "binance")
    assert rules(made) == {"taker": "0.0005", "maker": "0.0002", "tick": "0.1", "lot": "0.001", "min_notional": "100"}
    assert "fees, tick, lot and smallest order of BTC/USDT:USDT of ccxt:binance" in str(made["assumptions"])


def test_a_given_fee_wins(tmp_path: Path, data: Path) -> None:
    made = manifest(tmp_path, data, "--fees-of", "ccxt:binance", "--fee", "0.1%", "--tick", "BTC=1")
    assert rules(made) == {"taker": "0.001", "maker": "0.0002", "tick": "1", "lot": "0.001", "min_notional": "100"}


def test_a_rebate_is_passed_on_and_said(tmp_path: Path, data: Path) -> None:
    write_origin(Store(data), Origin("BTC", "1m", "ccxt:binance", BTC.symbol, 0, (), replace(BTC, maker="-0.0001")))
    made = manifest(tmp_path, data, "--fees-of", "binance")
    assert rules(made) == {"taker": "0.0005", "maker": "-0.0001", "tick": "0.1", "lot": "0.001", "min_notional": "100"}
    assert "taker 0.05 %, maker rebate 0.01 %" in str(made["assumptions"])


def test_a_tick_and_a_lot_that_are_no_powers_of_ten_are_exact(tmp_path: Path, data: Path) -> None:
    odd = replace(BTC, tick="0.5", size_step="10.0", min_notional="5")
    write_origin(Store(data), Origin("BTC", "1m", "ccxt:binance", BTC.symbol, 0, (), odd))
    made = manifest(tmp_path, data, "--fees-of", "binance")
    assert rules(made) == {"taker": "0.0005", "maker": "0.0002", "tick": "0.5", "lot": "10", "min_notional": "5"}
    assert "tick by 0.5, sizes by 10, orders of at least 5 USD" in str(made["assumptions"])


def test_another_exchange_is_refused_with_the_one_that_is_there(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["backtest", str(config(tmp_path)), "--data", str(data), "--fees-of", "kraken"]
    assert call(arguments) == 4
    said = capsys.readouterr().err
    assert "it has those of binance" in said
    assert "bot data pull --from ccxt:kraken BTC --since DATE" in said

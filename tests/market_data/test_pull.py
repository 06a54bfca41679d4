"""`bot data pull --from` and `bot data update` against a local exchange, through the real ccxt in its feeder
process.
"""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.data.store import Store
from bot.cli.app import call
from bot.extras import install
from tests.market_data.conftest import START
from tests.market_data.exchange import Candle, Exchange, Series, cut, fine, half, minutes, recorded, status

MINUTE = 60_000


def pull(*arguments: str) -> int:
    return call(["data", "pull", "--from", "ccxt:binance", "--since", "2025-05-01", *arguments])


def stored(coin: str = "BTC", interval: str = "1m") -> Candles:
    found = Store(Path("data")).read(coin, interval)
    assert found is not None
    return found


def values(candles: Sequence[Candle]) -> list[tuple[float, ...]]:
    return [(at, *map(float, texts)) for at, *texts in candles]


def held(candles: Candles) -> list[tuple[float, ...]]:
    return list(zip(*candles.columns, strict=True))


def test_candles_funding_and_the_source_are_stored(exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    exchange.funding["BTCUSDT"] = [(START + n * 28_800_000, f"0.000{n + 1}") for n in range(12)]
    assert pull("BTC", "ETH", "--funding", "--json") == 0
    said = capsys.readouterr()
    assert "ETH/USDT is a spot market, which has no funding" in said.err
    assert [(one["market"], one["symbol"], one["rows"]) for one in json.loads(said.out)["pulled"]] == [
        ("BTC", "BTC/USDT:USDT", 6_000),
        ("ETH", "ETH/USDT", 6_000),
    ]
    assert held(stored()) == values(exchange.futures["BTCUSDT"].minutes[:6_000])
    assert held(stored("ETH")) == values(exchange.spot["ETHUSDT"].minutes[:6_000])
    origin = json.loads(Path("data/BTC/1m.source.json").read_text())
    assert (origin["source"], origin["symbol"]) == ("ccxt:binance@local", "BTC/USDT:USDT")
    assert origin["asked"] == [[START, START + 6_000 * MINUTE, 6_000]]
    assert origin["instrument"]["tick"] == "0.1"
    rows = Path("data/BTC/funding.csv").read_text().splitlines()
    assert (rows[0], rows[1], len(rows)) == ("ts,rate", f"{START},0.0001", 13)
    assert "all prices come from http://127.0.0.1" in said.err
    assert call(["data", "list"]) == 0
    assert "1m.parquet  BTC/USDT:USDT of ccxt:binance@local" in capsys.readouterr().out.replace(
        "1m.csv.gz", "1m.parquet"
    )


def test_faults_on_the_way_change_no_digit(exchange: Exchange) -> None:
    ban = f'{{"code": -1003, "msg": "Way too many requests; IP banned until {int(time.time() * 1000) + 1_500}."}}'
    exchange.limit, exchange.is_skipping, exchange.is_shuffled = 300, True, True
    exchange.faults = [
        fine,
        fine,
        fine,
        status(429, retry_after="1"),
        fine,
        half,
        fine,
        cut,
        status(503),
        fine,
        status(418, ban),
        fine,
        status(502, "<html>"),
    ]
    assert pull("BTC") == 0
    assert exchange.faults == []
    assert held(stored()) == values(exchange.futures["BTCUSDT"].minutes[:6_000])


def test_recorded_candles_arrive_to_the_last_digit(exchange: Exchange, shared: Path) -> None:
    candles = recorded(shared / "data" / "crypto" / "binance_BTCUSDT_1m_202505.csv.gz")
    exchange.futures["BTCUSDT"] = Series(candles)
    exchange.now_ms = candles[-1][0] + 3_600_000
    assert pull("BTC") == 0
    assert held(stored()) == values(candles)


def test_gaps_of_the_exchange_stay_gaps_and_are_not_asked_for_again(
    exchange: Exchange, capsys: pytest.CaptureFixture[str]
) -> None:
    candles = [one for n, one in enumerate(exchange.futures["BTCUSDT"].minutes) if not 2_000 <= n < 3_500]
    exchange.futures["BTCUSDT"] = Series(candles)
    assert pull("BTC") == 0
    said = capsys.readouterr().out
    assert "FAULT gap: 1 hole, 1,500 missing bars" in said
    assert "--accept-gaps" in said.splitlines()[-1]
    assert held(stored()) == values(candles[:4_500])
    exchange.requests.clear()
    assert pull("BTC") == 0
    assert len(exchange.requests) <= 2, "only what closed since then"


def test_a_killed_pull_goes_on_without_a_hole_or_a_double(exchange: Exchange) -> None:
    exchange.futures["BTCUSDT"] = Series(minutes(40_000, START))
    exchange.now_ms = START + 40_000 * MINUTE
    exchange.delay_seconds = 0.15
    origin = Path("data/BTC/1m.source.json")
    killed = 0
    while killed < 2:
        before = origin.read_bytes() if origin.exists() else b""
        process = subprocess.Popen(
            [sys.executable, "-m", "bot", "data", "pull", "--from", "ccxt:binance", "BTC", "--since", "2025-05-01"]
        )
        deadline = time.monotonic() + 60
        while (not origin.exists() or origin.read_bytes() == before) and time.monotonic() < deadline:
            assert process.poll() is None, "it is killed before its end"
            time.sleep(0.02)
        feeders = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        killed += 1
        assert len(feeders) == 1
        while any(Path(f"/proc/{pid}").exists() for pid in feeders):
            assert time.monotonic() < deadline, "the feeder ends with its client"
            time.sleep(0.05)
    reached = len(stored())
    assert 0 < reached < 40_000
    exchange.requests.clear()
    exchange.delay_seconds = 0
    assert pull("BTC") == 0
    assert held(stored()) == values(exchange.futures["BTCUSDT"].minutes[: 40_000 - 1])
    assert len(exchange.requests) <= (40_000 - reached) / 900 + 6


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_hole_in_the_store_is_filled_and_nothing_else_is_asked_for(exchange: Exchange) -> None:
    assert pull("BTC") == 0
    store, whole = Store(Path("data")), stored()
    store.put(whole.pick([n for n in range(6_000) if not 3_000 <= n < 3_100]), replacing=True)
    exchange.requests.clear()
    assert pull("BTC") == 0
    assert stored().digest() == whole.digest()
    assert len(exchange.requests) <= 4


def test_update_goes_on_to_the_newest_closed_candle(exchange: Exchange) -> None:
    now_ms, exchange.now_ms = exchange.now_ms, START + 1_000 * MINUTE
    exchange.funding["BTCUSDT"] = [(START + n * 28_800_000, "0.0001") for n in range(12)]
    assert pull("BTC", "--funding") == 0
    assert len(stored()) == 999
    exchange.now_ms = now_ms
    assert call(["data", "update"]) == 0
    assert held(stored()) == values(exchange.futures["BTCUSDT"].minutes[:6_000])
    assert len(Path("data/BTC/funding.csv").read_text().splitlines()) == 13


def test_kraken_keeps_720_candles_and_says_what_is_missing(
    exchange: Exchange, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["data", "pull", "--from", "ccxt:kraken", "BTC", "--since", "2025-05-01"]) == 0
    assert held(stored()) == values(exchange.kraken["XXBTZUSD"].minutes[5_281:6_000])
    assert "has nothing from 2025-05-01 to 2025-05-04 16:01" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--from", "ccxt:binanc", "BTC"], 2, "did you mean binance"),
        (["--from", "binance", "BTC"], 2, "an exchange is written ccxt:binance"),
        (["--from", "ccxt", "BTC"], 2, "write the exchange behind the colon"),
        (["--from", "yfinanc", "BTC"], 2, "did you mean yfinance?"),
        (["--from", "ccxt:binance", "BTCC"], 2, "did you mean BTC?"),
        (["--from", "ccxt:binance", "BTC=BTC/USDT:USD"], 2, "did you mean BTC/USDT:USDT"),
        (["--from", "ccxt:binance", "BTC", "--until", "2025-04-01"], 2, "the span is empty"),
        (["--from", "ccxt:binance", "BTC", "--base-url", "http://127.0.0.1:1"], 2, "give one of them"),
        (["BTC"], 2, "--since, --until and --funding need --from"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(
    arguments: list[str], code: int, text: str, exchange: Exchange, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["data", "pull", "--since", "2025-05-01", *arguments]) == code
    assert text in capsys.readouterr().err
    assert not Path("data").exists()


def test_a_first_pull_needs_since(exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["data", "pull", "--from", "ccxt:binance", "BTC"]) == 2
    assert "say from when with --since" in capsys.readouterr().err


def test_a_span_before_the_listing_names_the_listing(exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", "pull", "--from", "ccxt:binance", "BTC", "--since", "2020-01-01", "--until", "2020-02-01"]
    assert call(arguments) == 2
    assert "listed since 2025-05-01" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        ((451, '{"code": 0, "msg": "Service unavailable from a restricted location"}'), 7, "choose another exchange"),
        ((401, '{"code": -2015, "msg": "Invalid API-key, IP, or permissions for action."}'), 7, "API key"),
        ((503, "<html>maintenance</html>"), 5, "run the same command again"),
    ],
)
def test_an_exchange_that_does_not_serve_us_is_named_with_a_way_out(
    answer: tuple[int, str], code: int, text: str, exchange: Exchange, capsys: pytest.CaptureFixture[str]
) -> None:
    exchange.status_of_all = answer
    assert pull("BTC") == code
    said = capsys.readouterr().err
    assert text in said
    assert "Traceback" not in said


def test_an_exchange_that_cannot_be_reached_ends_soon(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOT_MARKETS_URL", "http://127.0.0.1:9")
    assert pull("BTC") == 5
    assert "BOT_MARKETS_URL sends all requests to http://127.0.0.1:9" in capsys.readouterr().err


def test_what_was_pulled_before_the_exchange_failed_is_kept(exchange: Exchange) -> None:
    exchange.faults = [fine] * 5 + [status(451, "{}")]
    assert pull("BTC") == 7
    kept = held(stored())
    assert 0 < len(kept) < 6_000
    assert kept == values(exchange.futures["BTCUSDT"].minutes[: len(kept)])
    assert pull("BTC") == 0
    assert held(stored()) == values(exchange.futures["BTCUSDT"].minutes[:6_000])


def test_a_full_disk_keeps_what_was_stored_before(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bot.backtest.data import history, store

    monkeypatch.setattr(history, "CHUNK_ROWS_MAX", 2_000)
    written: list[Any] = []

    def put(part: Path, path: Path) -> None:
        if path.name.startswith("1m.") and "source" not in path.name:
            written.append(path)
            if len(written) == 3:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        part.replace(path)

    monkeypatch.setattr(store, "_put_in_place", put)
    assert pull("BTC") == 1
    assert "No space left on device" in capsys.readouterr().err
    kept = held(stored())
    assert 0 < len(kept) < 6_000
    monkeypatch.undo()


def test_other_values_in_the_store_are_a_conflict(exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    other = minutes(6_000, START, seed=9)[:3_000]
    columns = list(zip(*values(other), strict=True))
    Store(Path("data")).write(
        Candles("BTC", "1m", array("q", map(int, columns[0])), *(array("d", one) for one in columns[1:]))
    )
    assert pull("BTC") == 1
    assert "with other values" in capsys.readouterr().err
    assert held(stored()) == values(other)


def test_another_symbol_is_kept_apart(exchange: Exchange, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull("BTC") == 0
    assert pull("BTC=ETH/USDT") == 4
    assert "keep it apart with another --store" in capsys.readouterr().err


def test_candles_of_impossible_prices_are_refused_and_those_before_are_kept(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bot.backtest.data import history

    monkeypatch.setattr(history, "CHUNK_ROWS_MAX", 1_000)
    candles = minutes(6_100, START)
    at, o, h, _, c, v = candles[4_500]
    candles[4_500] = (at, o, h, "0", c, v)
    exchange.futures["BTCUSDT"] = Series(candles)
    assert pull("BTC") == 1
    assert "low is 0, it must be above 0" in capsys.readouterr().err
    kept = held(stored())
    assert kept == values(candles[: len(kept)])
    assert 2_000 <= len(kept) <= 4_500


def test_without_ccxt_both_ways_to_install_it_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = tmp_path / "hidden" / "ccxt"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden by the test')\n")
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    monkeypatch.delenv("BOT_MARKETS_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    assert pull("BTC") == 1
    said = capsys.readouterr().err
    assert install("markets") in said
    assert "BOT_MARKETS_PYTHON=" in said


def test_prices_from_elsewhere_need_this_machine(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOT_MARKETS_URL", "http://prices.example.com")
    assert pull("BTC") == 4
    assert "must be http://127.0.0.1:PORT" in capsys.readouterr().err


def test_without_the_research_extra_the_store_is_csv_with_the_same_candles(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bot.backtest.data import column_files

    monkeypatch.setattr(column_files, "has_research", lambda: False)
    monkeypatch.setattr("bot.backtest.data.history.CHUNK_ROWS_MAX", 2_500)
    assert pull("BTC") == 0
    assert Path("data/BTC/1m.csv.gz").exists()
    assert held(stored()) == values(exchange.futures["BTCUSDT"].minutes[:6_000])


def test_ctrl_c_keeps_what_was_pulled_and_ends_with_130(exchange: Exchange) -> None:
    exchange.delay_seconds = 0.3
    process = subprocess.Popen(
        [sys.executable, "-m", "bot", "data", "pull", "--from", "ccxt:binance", "BTC", "--since", "2025-05-01"],
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while exchange.requests.count("/fapi.binance.com/fapi/v1/klines") < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    kept = held(stored())
    assert 0 < len(kept) < 6_000
    assert kept == values(exchange.futures["BTCUSDT"].minutes[: len(kept)])

"""A candle file that is not one is refused with its row and what is wrong."""

from __future__ import annotations

import gzip
import shlex
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from bot.cli.common.param_types import CandleFile, CandlesFile
from bot.errors import ConfigError
from bot.service.host import HostOptions, build
from bot.service.market_data.file_names import coin_of
from bot.service.market_data.recorded import interval_of, read_candles
from bot.venue.model.numbers import E8
from tests.backtest.builders import research

HEADER = "ts,open,high,low,close,volume"
GOOD = "1750000020000,100,110,90,105,1.5"
NEXT = "1750000080000,105,106,104,105,0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        (HEADER + "\n", "no candles"),
        ("time,o,h,l,c,v\n" + GOOD, "row 1: the columns are"),
        ("ts,open,high,low,close\n1,2,3,4,5", "row 1: the columns are"),
        (f"{HEADER}\n1750000020,100,110,90,105,1", "row 2: ts 1750000020 looks like seconds"),
        (f"{HEADER}\n1750000020000000,100,110,90,105,1", "row 2: ts 1750000020000000 looks like micro"),
        (f"{HEADER}\n1750000020001,100,110,90,105,1", "row 2: ts 1750000020001 is not the start of a minute"),
        (f"{HEADER}\nnow,100,110,90,105,1", "row 2: ts 'now' is not an integer"),
        (f"{HEADER}\n{NEXT}\n{GOOD}", "row 3: ts 1750000020000 comes after 1750000080000"),
        (f"{HEADER}\n{GOOD}\n{GOOD}", "row 3: ts 1750000020000 appears twice"),
        (f"{HEADER}\n1750000020000,100,90,110,105,1", "row 2: high 90 is below low 110"),
        (f"{HEADER}\n1750000020000,120,110,90,105,1", "row 2: open lies outside low..high"),
        (f"{HEADER}\n1750000020000,100,110,90,80,1", "row 2: close lies outside low..high"),
        (f"{HEADER}\n1750000020000,0,110,0,105,1", "row 2: open must be above 0"),
        (f"{HEADER}\n1750000020000,100,110,90,105,-1", "row 2: volume must be at least 0"),
        (f"{HEADER}\n1750000020000,100,nan,90,105,1", "row 2: high 'nan' is not a number"),
        (f"{HEADER}\n1750000020000,1e2,110,90,105,1", "row 2: open '1e2' is not a number"),
        (f"{HEADER}\n{GOOD}\n1750000080000,1,2", "row 3: has 3 columns, not 6"),
        (f'{HEADER}\n"1750000020000,100,110', "row 2"),
    ],
)
def test_each_fault_is_named_with_its_row(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "BTC.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_candles(path, sz_decimals=5)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("header", ["", HEADER + "\n"])
def test_a_long_line_in_a_small_zipped_file_is_not_read_whole(tmp_path: Path, header: str) -> None:
    path = tmp_path / "BTC.csv.gz"
    path.write_bytes(gzip.compress(header.encode() + b"1" * 100_000_000, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="longer than 10,000 characters"):
            read_candles(path, sz_decimals=5)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_zipped", [False, True], ids=["plain", "by gzip"])
@pytest.mark.parametrize(
    ("begins", "says"),
    [
        (b"PK\x03\x04" + bytes(99), "is a zip archive or a spreadsheet: unpack it"),
        (f"{HEADER}\n{GOOD}\n".encode("utf-16"), "is not text in UTF-8, but in UTF-16; save it as UTF-8"),
        (
            b"[[1750000020000, 100, 110, 90, 105, 1.5]]",
            "is JSON: write its candles as CSV with the columns ts (ms UTC)",
        ),
        (b"<!DOCTYPE html>\n", "is a web page or XML"),
        (b"\x80\x04\x95", "is a pickle of Python"),
        (f"{HEADER}\n\xfc".encode("latin-1"), "is not text in UTF-8: invalid start byte; save it as UTF-8"),
    ],
)
def test_another_format_is_named_as_in_an_import(tmp_path: Path, begins: bytes, says: str, *, is_zipped: bool) -> None:
    path = tmp_path / "BTC.csv"
    path.write_bytes(gzip.compress(begins) if is_zipped else begins)
    with pytest.raises(ConfigError) as refused:
        read_candles(path, sz_decimals=5)
    assert f"{path}: {says}" in str(refused.value)


@research
@pytest.mark.parametrize("ending", ["feather", "parquet"])
def test_feather_and_parquet_are_refused_with_the_command_that_makes_the_csv_of_a_service(
    tmp_path: Path, ending: str
) -> None:
    import polars as pl

    at = pl.Series("date", [1750000020000, 1750000080000]).cast(pl.Datetime("ms")).dt.replace_time_zone("UTC")
    frame = pl.DataFrame({"date": at, "open": [100.0, 105.0], "high": [110.0, 106.0], "low": [90.0, 104.0]})
    frame = frame.with_columns(close=pl.lit(105.0), volume=pl.Series([1.5, 0.0]))
    path = tmp_path / f"BTC.{ending}"
    if ending == "feather":
        frame.write_ipc(path)
    else:
        frame.write_parquet(path)
    with pytest.raises(ConfigError) as refused:
        read_candles(path, sz_decimals=5)
    said = str(refused.value)
    command = said[said.index("python -c ") :].removeprefix("python ")
    subprocess.run(f"{shlex.quote(sys.executable)} {command}", shell=True, check=True, cwd=tmp_path)
    plain = tmp_path / "plain.csv"
    plain.write_text(f"{HEADER}\n{GOOD}\n{NEXT}\n")
    (made,) = set(tmp_path.glob("BTC*.csv"))
    assert read_candles(made, sz_decimals=5) == read_candles(plain, sz_decimals=5)


def test_a_zipped_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "a.csv", tmp_path / "a.csv.gz"
    plain.write_text(f"{HEADER}\n{GOOD}\n{NEXT}\n")
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_candles(plain, sz_decimals=5) == read_candles(zipped, sz_decimals=5)
    assert interval_of(plain, read_candles(plain, sz_decimals=5)) == 60_000


def test_broken_files_are_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(f"{HEADER}\n{GOOD}\n".encode() * 50)[:-20])
    with pytest.raises(ConfigError, match="not a complete gzip file|row"):
        read_candles(cut, sz_decimals=5)
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"ts,\xff\xfe")
    with pytest.raises(ConfigError, match="not text"):
        read_candles(binary, sz_decimals=5)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_candles(tmp_path / "none.csv", sz_decimals=5)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_candles(tmp_path, sz_decimals=5)


def test_an_odd_interval_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "BTC.csv"
    path.write_text(f"{HEADER}\n1750000020000,1,1,1,1,1\n1750000200000,1,1,1,1,1\n")
    with pytest.raises(ConfigError, match="180 s apart"):
        interval_of(path, read_candles(path, sz_decimals=5))


@pytest.mark.parametrize(
    ("name", "coin"),
    [
        ("binance_BTCUSDT_1m_202505.csv.gz", "BTC"),
        ("ETH.csv", "ETH"),
        ("ftx_BTC-PERP_1m.csv", "BTC"),
        ("hl_hype_1d.csv", "HYPE"),
        ("x_aaplusd.csv", "AAPL"),
        ("ETH 1m.csv", "ETH"),
        ("BTCUSDT(1).csv", "BTC"),
    ],
)
def test_the_market_is_read_from_the_file_name(name: str, coin: str) -> None:
    assert coin_of(Path(name), ("BTC", "ETH", "HYPE", "AAPL")) == coin


def test_a_file_name_without_a_market_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="COIN="):
        coin_of(Path("candles.csv"), ("BTC",))


@pytest.mark.parametrize("given", ["event:RATE-CUT", "EVENT:rate-cut", "perp:btc", "btc"])
def test_a_file_is_played_for_its_given_market(given: str, tmp_path: Path) -> None:
    path = tmp_path / "x=y.csv"
    path.write_text(f"{HEADER}\n1750000020000,0.4,0.6,0.3,0.5,10\n1750000080000,0.5,0.5,0.4,0.4,10\n")
    candles = CandleFile().convert(f"{given}={path}", None, None)
    coin = "BTC" if given.lower().endswith("btc") else "event:RATE-CUT"
    assert candles == CandlesFile(coin, path)
    machine = build(HostOptions(clock="manual", data=((given, path),))).machine
    assert (list(machine.state.markets), machine.feed.last_px(coin)) == ([coin], 0.5 * E8)


def test_odds_beyond_the_price_limits_of_an_event_are_clamped(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n1750000020000,0.9995,1,0.0002,0.9999,10\n1750000080000,0.5,0.5,0.4,0.4,10\n")
    machine = build(HostOptions(clock="manual", data=(("event:RATE-CUT", path),))).machine
    assert machine.feed.last_px("event:RATE-CUT") == 0.999 * E8
    (candle, _) = read_candles(path, sz_decimals=0, are_odds=True)
    assert (candle.open, candle.high, candle.low) == (0.999 * E8, 0.999 * E8, 0.001 * E8)
    path.write_text(f"{HEADER}\n1750000020000,45,46,44,45,10\n")
    with pytest.raises(ConfigError, match="row 2: open 45 is above 1, .* divide odds in cents or percent by 100"):
        build(HostOptions(clock="manual", data=(("event:RATE-CUT", path),)))


def test_faulty_options_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "BTC.csv"
    path.write_text(f"{HEADER}\n{GOOD}\n{NEXT}\n")
    db = tmp_path / "s.db"
    for more, says in (
        ({"markets": ("NOPE",)}, "no market 'NOPE'"),
        ({"data": (("NOPE", path),)}, "no market 'NOPE'"),
        ({"data": (("BTC", path), ("BTC", path))}, "two candle files"),
        ({"clock": "fast"}, "clock 'fast'"),
        ({"clock": "4000x"}, "clock '4000x'"),
    ):
        with pytest.raises(ConfigError, match=says):
            build(HostOptions(**({"db": db, "clock": "manual"} | more)))  # type: ignore[arg-type]

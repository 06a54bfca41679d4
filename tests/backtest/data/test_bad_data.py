"""Data that a backtest refuses: each error names the file, the row and the fault, and no results folder is made."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from tests.backtest.builders import MINUTE_MS, START_MS, config

Row = tuple[Any, ...]
ROWS: list[Row] = [(START_MS + n * MINUTE_MS, 100, 101, 99, 100, 5) for n in range(120)]
HEAD = "ts,open,high,low,close,volume"


def at(index: int, row: Row) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [*rows[:index], row, *rows[index + 1 :]]


def seconds(rows: list[Row]) -> list[Row]:
    return [(row[0] // 1_000, *row[1:]) for row in rows]


def backtest(folder: Path, data: Path, *more: str) -> int:
    return call(["backtest", str(config(folder)), "--data", str(data), "--out", str(folder / "runs"), *more])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (seconds, ("FAULT units", "row 2: ", "ts 1748736000 looks like seconds")),
        (lambda rows: rows[:70] + seconds(rows[70:]), ("units are mixed", "row 72: ", "looks like seconds")),
        (
            lambda rows: [*rows[:50], rows[51], rows[50], *rows[52:]],
            ("FAULT unsorted", "row 53: ", "--accept-unsorted"),
        ),
        (lambda rows: rows[:50] + rows[60:], ("FAULT gap", "row 52: ", "10 missing bars", "--accept-gaps")),
        (
            lambda rows: [*rows[:50], (*rows[49][:4], 100.5, 5), *rows[50:]],
            ("FAULT duplicate", "row 52: ", "in row 51"),
        ),
        (at(70, (ROWS[70][0], 100, 99, 98, 100, 5)), ("FAULT ohlc", "row 72: ", "open 100 lies outside low..high")),
        (at(70, (ROWS[70][0], -5, 101, 99, 100, 5)), ("FAULT price", "row 72: ", "open is -5, it must be above 0")),
        (at(70, (ROWS[70][0], "nan", 101, 99, 100, 5)), ("FAULT price", "row 72: ", "open is nan")),
        (at(70, (ROWS[70][0], "abc", 101, 99, 100, 5)), ("row 72: open 'abc' is not a number",)),
        (
            at(70, ("2025-06-01 01:10", *ROWS[70][1:])),
            ("row 72: ts '2025-06-01 01:10' is not an integer", "`bot data import` reads dates"),
        ),
        (at(70, ROWS[70][:4]), ("row 72: has 4 columns, not 6",)),
        (lambda rows: [(row[0] + 13, *row[1:]) for row in rows], ("FAULT off_grid", "row 2: ", "--accept-off-grid")),
        (lambda rows: [(row[0] + n * 7_000, *row[1:]) for n, row in enumerate(rows)], ("its candles are 67 s apart",)),
        (lambda rows: [], ("has no candles below its header",)),
    ],
)
def test_rows_that_cannot_be_played_are_refused_with_file_row_and_reason(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    data = tmp_path / "BTC_1m.csv"
    data.write_text(f"{HEAD}\n" + "".join(",".join(map(str, row)) + "\n" for row in change(list(ROWS))))
    assert backtest(tmp_path, data) in (1, 4)
    err = capsys.readouterr().err
    for words in ("BTC_1m.csv: ", *said):
        assert words in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("BTC_1m.csv", "time,open,high,low,close,volume\n", "row 1: the columns are 'time,open,high,low,close,volume'"),
        ("BTC_1m.csv", "", "the file is empty; it must start with ts,open"),
        ("BTC_1m.csv", "\ufeff\x00\x01", "is not text"),
        ("BTC_1m.csv", "[[1748736000000, 1, 1, 1, 1, 1]]", "is JSON: `bot data import "),
        ("ETH_BTC-1m.csv", None, "the name may mean a pair, ETH and BTC"),
        ("BTC_5m.csv", None, "its name says 5m candles, but most of its rows are 1m apart"),
        ("prices.csv", None, "the name speaks of no known market; write MARKET="),
        ("ETH_1m.csv", None, "no candles of BTC here"),
        ("BTC_1d.csv", "one", "give finer data"),
    ],
)
def test_missing_files_and_files_of_other_kinds_are_named(
    tmp_path: Path, name: str, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
):
    rows = ROWS if text is None else [(START_MS + n * 86_400_000, 100, 101, 99, 100, 5) for n in range(30)]
    whole = f"{HEAD}\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    data = tmp_path / name
    data.write_text(whole if text in (None, "one") else text)
    assert backtest(tmp_path, data) in (1, 4)
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["--data", "--funding"])
def test_a_pipe_instead_of_a_file_is_refused_with_advice(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
):
    data = tmp_path / "BTC_1m.csv"
    data.write_text(f"{HEAD}\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS))
    reads, writes = os.pipe()
    os.write(writes, data.read_bytes())
    os.close(writes)
    try:
        assert backtest(tmp_path, data, option, f"BTC=/dev/fd/{reads}") == 4
    finally:
        os.close(reads)
    assert f"/dev/fd/{reads}: is a pipe or a device" in (err := capsys.readouterr().err)
    assert "write its output to a file" in err


def test_a_range_outside_the_data_or_outage_outside_the_range_is_refused_with_the_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = tmp_path / "BTC_1m.csv"
    data.write_text(f"{HEAD}\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS))
    assert backtest(tmp_path, data, "--to", "2025-05-01") == 4
    assert "its candles run from 2025-06-01T00:00:00.000Z to 2025-06-01T02:00:00.000Z" in capsys.readouterr().err
    assert backtest(tmp_path, data, "--outage", "2025-07-01+1h") == 4
    assert (
        "outage 2025-07-01T00:00:00.000Z: it must begin within the session, 2025-06-01T00:00" in capsys.readouterr().err
    )
    assert backtest(tmp_path, data, "--to", "2025-06-01T01:30:30", "--outage", "2025-06-01T01:30:10+10s") == 4
    assert (
        "it must begin within the session, 2025-06-01T00:00:00.000Z to 2025-06-01T01:30:00.000Z"
        in capsys.readouterr().err
    )
    assert backtest(tmp_path, tmp_path / "nothing.csv") == 4
    assert "nothing.csv: there is no such file or folder" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()

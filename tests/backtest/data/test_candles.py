"""Reading candles from files: errors with their row, digests that do not depend on the format, and longer candles."""

from __future__ import annotations

import errno
import gzip
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.backtest.data import column_files
from bot.backtest.data.candles import COLUMNS, Candles, _read_cells, interval_in, join, load, market_name
from bot.backtest.data.importers import ColumnMap, read_foreign
from bot.backtest.data.resampling import drivers, resample
from bot.backtest.data.store import Store, write_file
from bot.errors import ConfigError
from bot.extras import install
from tests.backtest.builders import research

HEADER = "ts,open,high,low,close,volume"
START = 1_750_000_020_000
MINUTE = 60_000


def rows(count: int, *, start: int = START, step: int = MINUTE) -> list[str]:
    return [f"{start + n * step},{100 + n},{102 + n},{99 + n},{101.5 + n},{n + 0.25}" for n in range(count)]


def file(folder: Path, lines: list[str], name: str = "BTC.csv", header: str = HEADER) -> Path:
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def candles(count: int, *, step: int = MINUTE, interval: str = "1m", start: int = 1_750_032_000_000) -> Candles:
    at = array("q", (start + n * step for n in range(count)))
    opens = array("d", (100.0 + n for n in range(count)))
    return Candles(
        "BTC",
        interval,
        at,
        opens,
        array("d", (o + 2 for o in opens)),
        array("d", (o - 1 for o in opens)),
        array("d", (o + 1 for o in opens)),
        array("d", (0.1 for _ in opens)),
    )


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    (read,) = load([file(tmp_path, rows(3))])
    assert (read.market, read.interval, len(read)) == ("BTC", "1m", 3)
    assert list(read.at_ms) == [START, START + MINUTE, START + 2 * MINUTE]
    assert [column[1] for column in read.columns[1:]] == [101.0, 103.0, 100.0, 102.5, 1.25]
    assert read.end_ms == START + 3 * MINUTE


def test_zip_line_ends_column_order_further_columns_and_a_mark_of_utf8_change_nothing(tmp_path: Path) -> None:
    plain = file(tmp_path, rows(50))
    (expected,) = load([plain])
    (tmp_path / "BTC_z.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "BTC_w.csv").write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n"))
    moved = [f"x,{c[5]},{c[4]},{c[3]},{c[2]},{c[1]},{c[0]}" for c in (row.split(",") for row in rows(50))]
    file(tmp_path, moved, "BTC_m.csv", "note,Volume,Close,Low,High,Open,TS")
    quoted = [",".join(f'"{cell}"' for cell in row.split(",")) for row in rows(50)]
    file(tmp_path, quoted, "BTC_q.csv")
    for name in ("BTC_z.csv.gz", "BTC_w.csv", "BTC_m.csv", "BTC_q.csv"):
        (read,) = load([tmp_path / name])
        assert read == expected
        assert read.digest() == expected.digest()


@pytest.mark.parametrize("count", [1, 5_000])
@pytest.mark.parametrize("quote", ["", '"'])
def test_lines_that_end_with_cr_alone_are_read_as_those_with_lf(tmp_path: Path, count: int, quote: str) -> None:
    lines = [
        ",".join(f"{quote}{cell}{quote}" for cell in [*row.split(","), str(n + 7)]) for n, row in enumerate(rows(count))
    ]
    plain = file(tmp_path, lines, header=HEADER + ",trades")
    (expected,) = load([plain])
    old = tmp_path / "BTC_old.csv"
    old.write_bytes(plain.read_bytes().replace(b"\n", b"\r"))
    (read,) = load([old])
    foreign = read_foreign(old, "BTC", ColumnMap(interval="1m"))
    assert len(read) == count
    assert read.digest() == foreign.digest() == expected.digest()
    assert read.where(count - 1) == foreign.where(count - 1) == (old, count + 1)


def test_rows_keep_their_numbers_past_empty_lines(tmp_path: Path) -> None:
    lines = rows(5)
    (read,) = load([file(tmp_path, [*lines[:2], "", "  ", *lines[2:]])])
    assert [read.where(index)[1] for index in range(5)] == [2, 3, 6, 7, 8]
    assert read.slice(START + 2 * MINUTE).where(0) == (tmp_path / "BTC.csv", 6)


@pytest.mark.parametrize(
    ("lines", "header", "says"),
    [
        ([], "", "the file is empty"),
        ([], HEADER, "no candles below its header"),
        (["1,2,3,4,5"], "ts,open,high,low,close", "row 1: the columns are 'ts,open,high,low,close'"),
        (["1,2,3,4,5,6"], "time,o,h,l,c,v", "there is no 'ts'. `bot data import` takes other names"),
        (["1,2,3,4,5,6,7"], HEADER + ",open", "'open' is there twice"),
        ([*rows(2), "1,2,3"], HEADER, "row 4: has 3 columns, not 6"),
        ([*rows(2), rows(3)[2] + ",1"], HEADER, "row 4: has 7 columns, not 6"),
        ([*rows(1), "now,1,2,1,2,1"], HEADER, "row 3: ts 'now' is not an integer"),
        ([*rows(1), f"{START}.5,1,2,1,2,1"], HEADER, "is not an integer"),
        ([*rows(1), f"{10**25},1,2,1,2,1"], HEADER, "is not an integer"),
        ([*rows(1), f"{START + MINUTE},1,x,1,2,1"], HEADER, "row 3: high 'x' is not a number"),
        ([*rows(1), f"{START + MINUTE},1,,1,2,1"], HEADER, "row 3: high '' is not a number"),
        ([*rows(1), f"{START + MINUTE},1,1_0,1,2,1"], HEADER, "row 3: high '1_0' is not a number"),
        ([*rows(1), '"1750,1'], HEADER, "row 3"),
        (rows(4, step=3 * MINUTE), HEADER, "3 min apart, which is none of 1m, 5m"),
        (rows(4, step=8 * 60 * MINUTE), HEADER, "8 h apart"),
    ],
)
def test_values_that_cannot_be_parsed_are_refused_with_file_and_row(
    tmp_path: Path, lines: list[str], header: str, says: str
) -> None:
    path = file(tmp_path, lines, header=header)
    with pytest.raises(ConfigError) as refused:
        load([path])
    assert says.split(". ")[0] in str(refused.value)
    assert says.split(". ")[-1] in str(refused.value)
    assert str(path) in str(refused.value)


def test_broken_files_are_named(tmp_path: Path) -> None:
    cut = tmp_path / "BTC.csv.gz"
    cut.write_bytes(gzip.compress("\n".join([HEADER, *rows(5_000)]).encode())[:-2_000])
    with pytest.raises(ConfigError, match="not a whole gzip file"):
        load([cut])
    (tmp_path / "ETH.csv").write_bytes(b"ts,\xff\xfe")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        load([tmp_path / "ETH.csv"])
    with pytest.raises(ConfigError, match="no such file or folder"):
        load([tmp_path / "SOL.csv"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no candles in this folder"):
        load([tmp_path / "empty"])


def test_files_in_a_folder_that_are_no_candles_are_ignored_and_reported(tmp_path: Path) -> None:
    (expected,) = load([file(tmp_path, rows(3))])
    (tmp_path / "notes.txt").write_text("Downloaded on Monday, in a hurry.\nMore follows.\n")
    (tmp_path / "BTC.csv.bak").write_text("anything")
    (tmp_path / "._BTC.csv").write_bytes(b"\x00\x05\x16\x07")
    for named in (tmp_path, Path(f"BTC={tmp_path}")):
        told: list[str] = []
        assert load([named], report=told.append) == [expected]
        assert told == [f"{tmp_path}: left out, and not taken for candles: BTC.csv.bak, notes.txt"]
    for n in range(9):
        (tmp_path / f"x{n}.md").touch()
    load([tmp_path], report=told.append)
    assert told[-1].endswith(": BTC.csv.bak, notes.txt, x0.md, x1.md, x2.md and 6 more")


@pytest.mark.parametrize("content", ["", "\n".join([HEADER, *rows(3)]), "2025;1;2;3;4\n"])
def test_a_folder_with_candles_of_an_unknown_market_is_refused(tmp_path: Path, content: str) -> None:
    file(tmp_path, rows(3))
    (tmp_path / "prices.txt").write_text(content)
    with pytest.raises(ConfigError) as refused:
        load([tmp_path])
    assert str(refused.value).startswith(f"{tmp_path}/prices.txt: the name speaks of no known market; rename it")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file(tmp_path, rows(3))

    def locked(self: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", locked)
    with pytest.raises(ConfigError, match=f"{tmp_path}: cannot be read: Permission denied"):
        load([tmp_path])


def test_tables_beside_a_store_are_reported(tmp_path: Path) -> None:
    store = tmp_path / "data"
    Store(store).write(candles(3))
    file(store, rows(3), "ETH.csv")
    file(store / "BTC", rows(3), "1m.csv")
    (store / "README.md").touch()
    (store / "raw").mkdir()
    file(store / "raw", rows(3))
    told: list[str] = []
    assert [one.market for one in load([store], report=told.append)] == ["BTC"]
    (line,) = told
    assert line.startswith(f"{store}: left out, ")
    assert ": ETH.csv, BTC/1m.csv; `bot data import`" in line


def test_a_market_comes_from_an_option_or_the_file_name_or_is_refused(tmp_path: Path) -> None:
    named = file(tmp_path, rows(2), "binance_ETHUSDT_1m.csv")
    nameless = file(tmp_path, rows(2), "candles.csv")
    assert load([named])[0].market == "ETH"
    assert load([Path(f"perp:sol={nameless}")])[0].market == "SOL"
    assert load([nameless], market="event:rate-cut")[0].market == "event:RATE-CUT"
    with pytest.raises(ConfigError, match="MARKET="):
        load([nameless])
    with pytest.raises(ConfigError, match="'BTCC' is not listed by the service; did you mean BTC"):
        load([nameless], market="BTCC")
    assert market_name("QQQ", listed=False) == "QQQ"
    for name in ("a/b", ".b", "event:", "A" * 65):
        with pytest.raises(ConfigError, match="a name has at most 64 letters, digits, dots"):
            market_name(name, listed=False)
    for name in ("BRK.B", "EUR_USD", "event:RATE_CUT.2"):
        assert market_name(name.lower(), listed=False) == name
        (read,) = load([Path(f"{name}={nameless}")], listed=False)
        Store(tmp_path / "store").write(read, replacing=False)
        assert Store(tmp_path / "store").read(name, "1m") == read
    assert {one.market for one in Store(tmp_path / "store").held()} == {"BRK.B", "EUR_USD", "event:RATE_CUT.2"}


def test_a_file_name_with_another_interval_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its name says 5m candles, but most of its rows are 1m apart"):
        load([file(tmp_path, rows(5), "BTC_5m.csv")])
    assert [
        interval_in(name) for name in ("hl_BTC_1h.csv", "BTC-1d-2024.csv", "BTC.csv", "x_1M_2.csv", "15m.parquet")
    ] == ["1h", "1d", None, None, "15m"]


def test_a_span_is_cut_and_an_empty_one_refused(tmp_path: Path) -> None:
    path = file(tmp_path, rows(10))
    (read,) = load([path], start_ms=START + 2 * MINUTE, end_ms=START + 5 * MINUTE)
    assert list(read.at_ms) == [START + n * MINUTE for n in (2, 3, 4)]
    assert read.where(0) == (path, 4)
    with pytest.raises(
        ConfigError, match="no candle from 2025-06-16T07:47:00.000Z; they are there from 2025-06-15T15:07"
    ):
        load([path], start_ms=START + 1000 * MINUTE)
    whole = load([path])[0]
    assert len(whole.slice(START + MINUTE, START)) == 0
    assert whole.slice(START) is whole


def test_files_of_one_market_become_one_in_the_order_of_time(tmp_path: Path) -> None:
    late = file(tmp_path, rows(3, start=START + 3 * MINUTE), "BTC_b.csv")
    early = file(tmp_path, rows(3), "BTC_c.csv")
    other = file(tmp_path, rows(3, step=5 * MINUTE), "BTC_5m.csv")
    coin = file(tmp_path, rows(1), "ETH.csv")
    read = load([late, early, other, coin])
    assert [(one.market, one.interval, len(one)) for one in read] == [
        ("BTC", "1m", 6),
        ("BTC", "5m", 3),
        ("ETH", "1m", 1),
    ]
    assert list(read[0].at_ms) == [START + n * MINUTE for n in range(6)]
    assert read[0].where(4) == (late, 3)
    assert [(one.market, one.interval) for one in drivers(read)] == [("BTC", "1m"), ("ETH", "1m")]
    assert [one.market for one in load([tmp_path], markets=["ETH"])] == ["ETH"]
    with pytest.raises(ConfigError, match="no candles of SOL here"):
        load([tmp_path], markets=["SOL"])


def test_the_digest_knows_every_value_and_the_market() -> None:
    one = candles(10)
    seen = {one.digest(), candles(9).digest(), candles(10, start=1_750_032_060_000).digest()}
    seen.add(Candles("ETH", "1m", *one.columns).digest())
    for column in range(6):
        changed = [array(c.typecode, c) for c in one.columns]
        changed[column][5] += 1
        seen.add(Candles("BTC", "1m", *changed).digest())
    assert len(seen) == 10


@research
def test_parquet_and_csv_have_one_digest(tmp_path: Path) -> None:
    (read,) = load(
        [file(tmp_path, [*rows(500), f"{START + 500 * MINUTE},0.1,0.30000000000000004,1e-7,0.2,123456789.123456"])]
    )
    for name in ("BTC.parquet", "BTC_x.csv.gz", "BTC_y.csv"):
        write_file(tmp_path / name, read)
        (again,) = load([tmp_path / name])
        assert again == read
        assert again.digest() == read.digest()
    (cut,) = load([tmp_path / "BTC.parquet"], start_ms=START + 100 * MINUTE, end_ms=START + 102 * MINUTE)
    assert cut.where(1) == (tmp_path / "BTC.parquet", 102)


def test_plain_numbers_are_read_in_blocks_exactly_and_other_cells_one_by_one(tmp_path: Path) -> None:
    odd = (
        "0.1,0.30000000000000004,1e-7,0.2,123456789.123456",
        "9007199254740993,1e23,5e-324,1E-05,1e400",
        "1.7976931348623157e308,2,3,4,0",
        f"1.{'3' * 40},{7**30},2.2250738585072011e-308,8.5e22,4.35",
    )
    lines = [*rows(3_000), *(f"{START + (3_000 + n) * MINUTE},{line}" for n, line in enumerate(odd))]
    good = file(tmp_path, lines, "BTC_g.csv")
    at_once, by_cells = column_files.read_plain(good, COLUMNS), _read_cells(good)[0]
    assert at_once is not None
    assert [one.tobytes() for one in at_once] == [one.tobytes() for one in by_cells]
    good.write_bytes(good.read_bytes().replace(b"\n", b"\r\n").rstrip())
    assert column_files.read_plain(good, COLUMNS) == at_once
    for lines in (
        [*rows(2), "", rows(3)[2]],
        [*rows(2), f"{START + 2 * MINUTE},1,,1,1,1"],
        [
            *rows(2),
            f"{START + 2 * MINUTE},1,1,1,1,1,{START + 3 * MINUTE}",
            "1,1,1,1,1",
            # as many cells as two whole rows
        ],
        [f'"{START}",1,1,1,1,1'],
        [f"{START}.0,1,1,1,1,1"],
        [f"{START},-0,1,1,1,1"],
        [f"{START},1_0,1,1,1,1"],
        [f"{START},[1,1],1,1,1"],
        [f"{START},true,1,1,1,1"],
        [f"{1 << 70},1,1,1,1,1"],
        ["1,2"],
    ):
        assert column_files.read_plain(file(tmp_path, lines, "BTC_o.csv"), COLUMNS) is None, lines[-1]


@research
@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"ts": [1, 2], "open": [1.0, 2.0]}, "there is no 'high'"),
        ({name: ["a", "b"] for name in COLUMNS}, "column 'ts' holds String"),
        ({name: [1.5, 2.5] for name in COLUMNS}, "column 'ts' holds Float64"),
        ({name: [START, None] for name in COLUMNS}, "row 2: ts is empty"),
        ({name: [START, (1 << 63) + 5] for name in COLUMNS}, "row 2: ts is too large for ms UTC"),
        ({**{name: [START] for name in COLUMNS}, "Close": [5]}, "'close' is there twice"),
    ],
)
def test_a_parquet_file_of_another_shape_is_refused(
    tmp_path: Path, columns: dict[str, list[object]], says: str
) -> None:
    column_files.research().DataFrame(columns).write_parquet(tmp_path / "BTC.parquet")
    with pytest.raises(ConfigError) as refused:
        load([tmp_path / "BTC.parquet"])
    assert says in str(refused.value)


@research
def test_an_empty_instant_is_named_with_its_row_also_in_a_part_of_the_file(tmp_path: Path) -> None:
    stamps = [START + n * MINUTE for n in range(9)]
    columns = {name: [None if n == 6 else at for n, at in enumerate(stamps)] for name in COLUMNS}
    column_files.research().DataFrame(columns).write_parquet(tmp_path / "BTC.parquet")
    with pytest.raises(ConfigError, match="row 7: ts is empty"):
        load([tmp_path / "BTC.parquet"], start_ms=START + 4 * MINUTE, end_ms=START + 9 * MINUTE)


@research
def test_a_parquet_file_that_is_damaged_inside_is_named(tmp_path: Path) -> None:
    pl = column_files.research()
    path = tmp_path / "BTC.parquet"
    frame = pl.DataFrame({name: [START + n * MINUTE for n in range(999)] for name in COLUMNS})
    frame.write_parquet(path, compression="snappy")
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes(0xFF ^ byte for byte in whole[60:600]) + whole[600:])
    for read in (lambda: load([path]), lambda: read_foreign(path, "BTC", ColumnMap())):
        with pytest.raises(ConfigError, match=r"BTC\.parquet: cannot be read, it is damaged: "):
            read()


def test_a_table_that_begins_with_an_empty_line_is_not_called_empty(tmp_path: Path) -> None:
    (tmp_path / "BTC.csv").write_text("\nts,open,high,low,close,volume\n")
    with pytest.raises(ConfigError, match="row 1: is empty; it must start with ts,open"):
        load([tmp_path / "BTC.csv"])


def test_parquet_without_the_extra_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    (tmp_path / "BTC.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=re.escape(install("data"))):
        load([tmp_path / "BTC.parquet"])


@research
def test_a_parquet_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "BTC.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(ConfigError, match=r"BTC\.parquet: is no Parquet file|BTC\.parquet: cannot be read"):
        load([tmp_path / "BTC.parquet"])


@research
def test_a_parquet_file_whose_path_is_not_utf_8_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9") / "BTC.parquet"
    path.parent.mkdir()
    path.write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="only where its path is UTF-8"):
        load([path])


def test_longer_candles_are_complete() -> None:
    """From 00:03 to 01:12: of the hours only the first would be whole, and it lacks its first minutes."""
    fine = candles(70, start=1_750_032_180_000)
    five = resample(fine, "5m")
    assert five.at_ms[0] == 1_750_032_300_000
    assert len(five) == 13
    assert (five.open[0], five.high[0], five.low[0], five.close[0]) == (102.0, 108.0, 101.0, 107.0)
    assert five.volume[0] == 0.5
    assert len(resample(fine, "5m", keep_partial=True)) == 15
    assert [len(resample(fine, "5m", known_ms=fine.end_ms + ms)) for ms in (0, 2 * MINUTE - 1, 2 * MINUTE)] == [
        13,
        13,
        14,
    ]
    assert len(resample(fine, "1h")) == 0
    assert resample(fine, "1m") is fine
    with pytest.raises(ConfigError, match="1m candles cannot be made of 5m"):
        resample(five, "1m")


def test_gaps_inside_a_longer_candle_are_ignored() -> None:
    fine = candles(20)
    holed = fine.pick([n for n in range(20) if not 6 <= n <= 13])
    five = resample(holed, "5m")
    assert [(at - fine.at_ms[0]) // MINUTE for at in five.at_ms] == [0, 5, 10, 15]
    assert (five.open[1], five.close[1], five.volume[1]) == (105.0, 106.0, 0.1)


def test_the_recorded_hour_is_the_sum_of_its_minutes(shared: Path) -> None:
    """Compares an exchange's 1h candles with those that we make from its 5m candles.

    The sources name the one hour that differs.
    """
    (five,) = load([shared / "data/crypto/hl_BTC_5m.csv.gz"])
    (hour,) = load(
        [shared / "data/crypto/hl_BTC_1h.csv.gz"], start_ms=five.at_ms[0], end_ms=five.end_ms - five.end_ms % 3_600_000
    )
    made = resample(five, "1h")
    assert len(made) == len(hour)
    for ours, theirs in zip(made.columns[:5], hour.columns[:5], strict=True):
        assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= 1


def test_joining_keeps_overlaps_for_the_audit() -> None:
    one = candles(5)
    assert len(join([one.slice(one.at_ms[2]), one])) == 8

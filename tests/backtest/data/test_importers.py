"""Importing files of other programs: column names, delimiters, time zones and units, and errors with their row."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bot.backtest.data import column_files
from bot.backtest.data.importers import ColumnMap, columns_of, ordered, read_foreign, read_markets
from bot.backtest.data.quality import audit, checked
from bot.cli.app import call
from bot.errors import ConfigError
from tests.backtest.builders import research

START = datetime(2025, 6, 16, tzinfo=UTC)
MS = 1_750_032_000_000
MINUTE = 60_000
DAY = 86_400_000
HEAD = "ts,open,high,low,close,volume"
NEW_YORK = ZoneInfo("America/New_York")
STRATEGIES = Path(__file__).resolve().parents[1] / "strategies"


def cells(n: int) -> list[str]:
    return [f"{100 + n}", f"{102 + n}", f"{99 + n}", f"{101.5 + n}", f"{n + 1}"]


def foreign(folder: Path, header: str | None, times: list[str], *, name: str = "x.csv", sign: str = ",") -> Path:
    lines = [] if header is None else [header.replace(",", sign)]
    lines += [sign.join([time, *cells(n)]) for n, time in enumerate(times)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def stamps(count: int = 5) -> list[int]:
    return [MS + n * MINUTE for n in range(count)]


FORMS: dict[str, tuple[str | None, list[str], str, ColumnMap]] = {
    "milliseconds": ("ts,open,high,low,close,volume", [str(at) for at in stamps()], ",", ColumnMap()),
    "text that says its zone by name": (
        "Gmt time,open,high,low,close,volume",
        [f"2025-06-16 00:0{n}:00 {'UTC' if n % 2 else 'GMT'}" for n in range(5)],
        ",",
        ColumnMap(tz="America/New_York"),
    ),
    "seconds": ("Unix,Open,High,Low,Close,Volume", [str(at // 1000) for at in stamps()], ",", ColumnMap()),
    "seconds with a fraction": ("time,o,h,l,c,v", [f"{at // 1000}.0" for at in stamps()], ",", ColumnMap()),
    "microseconds": (
        "open_time,open,high,low,close,volume",
        [f"{at}000" for at in stamps()],
        ",",
        ColumnMap(unit="us"),
    ),
    "nanoseconds": ("timestamp,open,high,low,close,vol", [f"{at}000000" for at in stamps()], ";", ColumnMap()),
    "without a header": (None, [str(at) for at in stamps()], ",", ColumnMap()),
    "text of UTC": ("Date,Open,High,Low,Close,Volume", [f"2025-06-16 00:0{n}:00" for n in range(5)], "\t", ColumnMap()),
    "text with an offset": (
        "Date,Open,High,Low,Close,Volume",
        [f"2025-06-16T02:0{n}:00+02:00" for n in range(5)],
        ",",
        ColumnMap(),
    ),
    "text with a Z": (
        "datetime,open,high,low,close,volume",
        [f"2025-06-16T00:0{n}Z" for n in range(5)],
        "|",
        ColumnMap(),
    ),
    "New York's clock": (
        "time,open,high,low,close,volume",
        [f"2025-06-15 20:0{n}" for n in range(5)],
        ",",
        ColumnMap(tz="America/New_York"),
    ),
    "a form of its own": (
        "t,open,high,low,close,volume",
        [f"16/06/2025 00:0{n}" for n in range(5)],
        ",",
        ColumnMap(unit="%d/%m/%Y %H:%M"),
    ),
    "a terminal's two columns": (
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>",
        [f"2025.06.16\t00:0{n}:00" for n in range(5)],
        "\t",
        ColumnMap(),
    ),
    "the index of a frame": (
        ",Open,High,Low,Close,Volume",
        [f"2025-06-16 00:0{n}:00" for n in range(5)],
        ",",
        ColumnMap(),
    ),
    "names that are given": (
        "Zeit,A,H,T,S,U",
        [str(at) for at in stamps()],
        ",",
        ColumnMap(columns_of("ts=Zeit,open=A,high=h,low=T,close=S,volume=6")),
    ),
    "stamped at the close": (
        "time,open,high,low,close,volume",
        [str(at + MINUTE) for at in stamps()],
        ",",
        ColumnMap(stamp="close"),
    ),
}


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_separator_at_the_end_of_rows_adds_no_column(tmp_path: Path, quote: str) -> None:
    lines = [",".join([f"{quote}{at}{quote}", *cells(n)]) + ("," if n % 2 else ", ") for n, at in enumerate(stamps())]
    (tmp_path / "x.csv").write_text("\n".join(["ts,open,high,low,close,volume", *lines]) + "\n")
    assert list(read_foreign(tmp_path / "x.csv", "BTC", ColumnMap()).at_ms) == stamps()


@pytest.mark.parametrize("name", FORMS)
def test_every_file_format_gives_the_same_candles(tmp_path: Path, name: str) -> None:
    header, times, sign, mapped = FORMS[name]
    read = read_foreign(foreign(tmp_path, header, times, sign=sign), "BTC", mapped)
    assert list(read.at_ms) == stamps()
    assert read.interval == "1m"
    assert [column[2] for column in read.columns[1:]] == [102.0, 104.0, 101.0, 103.5, 3.0]
    assert read.where(2)[1] == (3 if header is None else 4)


def test_decimal_commas_a_preamble_and_no_volume_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    lines = [
        "made by somebody",
        "Time;Open;High;Low;Close",
        *(f"{at};1,5;2,5;1,25;{n},75" for n, at in enumerate(stamps(), 1)),
    ]
    path.write_text("\n".join(lines))
    read = read_foreign(path, "BTC", ColumnMap({"volume": "none"}, decimal=",", skip=1))
    assert [column[0] for column in read.columns] == [MS, 1.5, 2.5, 1.25, 1.75, 0.0]
    assert read.where(0)[1] == 3


def test_decimal_commas_in_quotes_and_empty_lines_before_the_header_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    lines = [f'{at},"1,5","2,5","1,25","{n},75",{n}' for n, at in enumerate(stamps(), 1)]
    path.write_text("\n".join(["", "  ", "ts,open,high,low,close,volume", *lines]))
    read = read_foreign(path, "BTC", ColumnMap(decimal=","))
    assert [column[1] for column in read.columns] == [MS + MINUTE, 1.5, 2.5, 1.25, 2.75, 2.0]
    assert read.where(0)[1] == 4


def test_times_with_an_exponent_are_read_when_no_digit_is_lost(tmp_path: Path) -> None:
    header = "ts,open,high,low,close,volume"
    for form in ("{:.12e}", "{:.18e}"):
        read = read_foreign(foreign(tmp_path, header, [form.format(at) for at in stamps()]), "BTC", ColumnMap())
        assert list(read.at_ms) == stamps()
    for times, row in (([f"{at:.5E}" for at in stamps()], 2), ([f"{MS:.12e}", f"{MS:.5e}"], 3)):
        with pytest.raises(ConfigError, match=rf"x\.csv: row {row}: time 1.75003[Ee]\+12 has lost its last digits"):
            read_foreign(foreign(tmp_path, header, times), "BTC", ColumnMap())


@pytest.mark.parametrize(
    ("lines", "decimal", "says"),
    [
        (
            ['1750032000000,"1,5",2,1,2,1'],
            ".",
            "row 2: open '1,5' is not a number; when the comma is its decimal point, say --decimal ,",
        ),
        (
            ['1750032000000,"1,100,5",2,1,2,1'],
            ".",
            "row 2: open '1,100,5' is not a number; take the signs between thousands out",
        ),
        (
            ['1750032000000,"1,100.5",2,1,2,1'],
            ",",
            "row 2: open '1,100.5' is not a number; take the signs between thousands out, or say --decimal .",
        ),
        (
            ['1750032000000,"1.100,5",2,1,2,1'],
            ".",
            "row 2: open '1.100,5' is not a number; when the comma is its decimal point, say --decimal ,",
        ),
        (["1750032000000,1,2,1,2,n/a"], ".", "row 2: volume 'n/a' is not a number"),
        (["ts,open,high,low,close,volume", "1750032000000,1,2,1,2,1"], ".", "row 2: is the header again; cut it out"),
        (["1750032000000,1,2,1,2,1", "TS,open,high,low,close,volume"], ".", "row 3: is the header again; cut it out"),
        (
            ["1750032000000,1,2,1,2,1", '"1750032060000,1,2,1,2,1', "1750032120000,1,2,1,2,1"],
            ".",
            "row 3: a quote begins there and does not end",
        ),
    ],
)
def test_a_cell_in_another_notation_is_named_with_the_option_to_use(
    tmp_path: Path, lines: list[str], decimal: str, says: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["ts,open,high,low,close,volume", *lines]) + "\n")
    with pytest.raises(ConfigError) as refused:
        read_foreign(path, "BTC", ColumnMap(decimal=decimal))
    assert f"{path}: {says}" in str(refused.value)


@pytest.mark.parametrize("second", ["soon,100,101,99,100,1", f"{MS + 60_000},x,101,99,100,1"])
def test_the_first_unreadable_row_is_named_for_any_column(tmp_path: Path, second: str) -> None:
    path = tmp_path / "BTC.csv"
    path.write_text(f"ts,open,high,low,close,volume\n{MS},100,x,99,100,1\n{second}\n")
    with pytest.raises(ConfigError, match="row 2: high 'x' is not a number"):
        read_foreign(path, "BTC", ColumnMap())


def test_a_column_that_is_there_twice_is_chosen_by_its_number(tmp_path: Path) -> None:
    lines = ["ts,open,high,low,close,volume,Close", *(f"{at},1,3,1,2,1,3" for at in stamps())]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="row 1: 'close' is there twice; say which it is by its number"):
        read_foreign(tmp_path / "x.csv", "BTC", ColumnMap())
    assert read_foreign(tmp_path / "x.csv", "BTC", ColumnMap({"close": "7"})).close[0] == 3.0


def test_only_candles_that_are_newest_first_are_reversed(tmp_path: Path) -> None:
    backward = read_foreign(foreign(tmp_path, HEAD, [str(at) for at in reversed(stamps())]), "BTC", ColumnMap())
    turned = ordered(backward)
    assert list(turned.at_ms) == stamps()
    assert turned.where(0) == (tmp_path / "x.csv", 6)
    hours = foreign(tmp_path, HEAD, [str(MS - n * 3_600_000) for n in range(4)])
    assert read_foreign(hours, "BTC", ColumnMap()).interval == "1h"
    mixed = read_foreign(foreign(tmp_path, None, [str(MS + n * MINUTE) for n in (0, 2, 1, 3, 4)]), "BTC", ColumnMap())
    assert ordered(mixed) is mixed
    assert audit(mixed).faults[0].kind == "unsorted"


def test_a_date_is_a_utc_day_in_any_time_zone(tmp_path: Path) -> None:
    days = [f"2025-06-{day}" for day in (16, 17, 18, 20, 23)]
    read = read_foreign(
        foreign(tmp_path, "Date,Open,High,Low,Close,Volume", days), "SPY", ColumnMap(tz="America/New_York")
    )
    assert read.interval == "1d"
    assert all(at % 86_400_000 == 0 for at in read.at_ms)


@pytest.mark.parametrize(
    ("times", "mapped", "opens", "faults"),
    [
        ([str(at + 59_999) for at in stamps()], ColumnMap(), stamps(), []),
        ([str(at // 1_000 + 59) for at in stamps()], ColumnMap(), stamps(), []),
        ([str(at + (60_000, 59_500)[n % 2]) for n, at in enumerate(stamps())], ColumnMap(interval="1m"), stamps(), []),
        ([f"2025-06-{day} 23:59" for day in range(16, 21)], ColumnMap(), [MS + n * DAY for n in range(5)], []),
        ([str(at + 58_999) for at in stamps()], ColumnMap(), stamps(), ["off_grid"]),
        (
            [f"2025-06-{day} 16:00" for day in range(16, 21)],
            ColumnMap(tz="America/New_York"),
            [MS + n * DAY for n in range(5)],
            ["off_grid"],
        ),
    ],
)
def test_a_close_off_the_grid_never_moves_a_candle_to_an_earlier_close(
    tmp_path: Path, times: list[str], mapped: ColumnMap, opens: list[int], faults: list[str]
) -> None:
    read = read_foreign(foreign(tmp_path, None, times), "BTC", replace(mapped, stamp="close"))
    assert [fault.kind for fault in audit(read, hours="continuous").faults] == faults
    (taken,), _ = checked([read], accept=("off-grid",), hours="continuous")
    assert list(taken.at_ms) == opens
    assert taken.close == read.close


def test_the_repeated_hour_of_a_clock_change_follows_the_order_of_the_rows(tmp_path: Path) -> None:
    moments = [datetime(2025, 11, 2, 4, tzinfo=UTC) + timedelta(minutes=15 * n) for n in range(16)]
    wall = [one.astimezone(NEW_YORK).strftime("%Y-%m-%d %H:%M") for one in moments]
    assert len(set(wall)) == 12
    read = read_foreign(foreign(tmp_path, None, wall), "SPY", ColumnMap(tz="America/New_York"))
    instants = [int(one.timestamp()) * 1000 for one in moments]
    assert list(read.at_ms) == instants
    newest_first = read_foreign(foreign(tmp_path, HEAD, wall[::-1]), "SPY", ColumnMap(tz="America/New_York"))
    assert list(ordered(newest_first).at_ms) == instants
    both = samples(tmp_path, [f"{at},{name},0.5,1" for at in wall for name in ("a", "b")])
    for one in read_markets(both, replace(SAMPLES, interval=None, tz="America/New_York")):
        assert list(one.at_ms) == instants, one.market


def test_a_time_with_an_hour_is_not_read_as_a_date(tmp_path: Path) -> None:
    hours = foreign(tmp_path, None, ["2025060113", "2025060114", "2025060115"])
    read = read_foreign(hours, "SPY", ColumnMap(tz="America/New_York", unit="%Y%m%d%H"))
    assert datetime.fromtimestamp(read.at_ms[0] / 1000, UTC) == datetime(2025, 6, 1, 17, tzinfo=UTC)
    days = foreign(tmp_path, None, ["June 02 2025", "June 03 2025", "June 04 2025"])
    read = read_foreign(days, "SPY", ColumnMap(tz="America/New_York", unit="%B %d %Y"))
    assert all(at % 86_400_000 == 0 for at in read.at_ms)


@pytest.mark.parametrize(
    ("header", "times", "mapped", "says"),
    [
        ("Zeit,open,high,low,close,volume", ["1", "2"], ColumnMap(), "row 1: no column for 'ts' among 'Zeit,open"),
        ("ts,open,high,low,close,x", ["1", "2"], ColumnMap(), "volume=none when there is none"),
        (
            "ts,open,high,low,close,volume",
            ["1"],
            ColumnMap({"ts": "tss"}),
            "there is no column 'tss'; did you mean 'ts'?",
        ),
        ("ts,open,high,low,close,volume", ["1"], ColumnMap({"ts": "9"}), "there is no column '9'"),
        (
            "ts,open,high,low,close,volume",
            [str(MS), str(MS // 1000 + 60)],
            ColumnMap(),
            "row 3: time 1750032060 looks like seconds, not milliseconds",
        ),
        (
            "ts,open,high,low,close,volume",
            [str(MS)],
            ColumnMap(unit="s"),
            "row 2: time 1750032000000 looks like milliseconds, not seconds",
        ),
        (
            "ts,open,high,low,close,volume",
            [str(MS), "soon"],
            ColumnMap(),
            "row 3: time 'soon' is no number of milliseconds",
        ),
        (
            "ts,open,high,low,close,volume",
            ["1973-03-05", "1973-03-02", "1960-01-04"],
            ColumnMap(),
            "row 3: its time is 1973-03-02, and candles are taken from 1973-03-04 to the year 5138 alone",
        ),
        ("ts,open,high,low,close,volume", ["1960-01-04", "1960-01-05"], ColumnMap(), "row 2: its time is 1960-01-04"),
        ("ts,open,high,low,close,volume", ["15717", "15718"], ColumnMap(), "row 2: its time is 1970-01-01, and"),
        (
            "ts,open,high,low,close,volume",
            ["45717", "2025-03-02"],
            ColumnMap(),
            "row 3: time '2025-03-02' is no day of a spreadsheet like 45719.5, as the rows before it",
        ),
        ("ts,open,high,low,close,volume", [str(MS)], ColumnMap(tz="Europe/Rome"), "leave --tz out"),
        (
            "ts,open,high,low,close,volume",
            ["2025-06-16 00:00", "16.6. 00:01"],
            ColumnMap(),
            "row 3: '16.6. 00:01' is no time like 2025-06-01T00:00:00Z",
        ),
        (
            "ts,open,high,low,close,volume",
            ["2025-06-16 00:00"],
            ColumnMap(unit="%H:%M"),
            "row 2: '2025-06-16 00:00' is no time of the form '%H:%M'",
        ),
        (
            "ts,open,high,low,close,volume",
            ["2025-03-09 01:59", "2025-03-09 02:30"],
            ColumnMap(tz="America/New_York"),
            "row 3: 2025-03-09 02:30:00 does not exist in America/New_York",
        ),
        (
            "ts,open,high,low,close,volume",
            [str(MS + n * 1_800_000) for n in range(4)],
            ColumnMap(),
            "30 min apart, which is none of",
        ),
        (
            "ts,open,high,low,close,volume",
            [str(at) for at in stamps()],
            ColumnMap(interval="1h"),
            "most of its rows are 1m apart, not 1h; import them as 1m",
        ),
        (
            "ts,open,high,low,close,volume",
            [str(MS + n * 3_600_000) for n in range(4)],
            ColumnMap(interval="1m"),
            "finer candles cannot be made",
        ),
    ],
)
def test_errors_name_file_and_row(tmp_path: Path, header: str, times: list[str], mapped: ColumnMap, says: str) -> None:
    path = foreign(tmp_path, header, times)
    with pytest.raises(ConfigError) as refused:
        read_foreign(path, "BTC", mapped)
    assert says in str(refused.value)
    assert says.startswith("leave") or str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ts", "says no column"),
        ("when=ts", "'when' is none of ts, open"),
        ("opne=O", "did you mean open?"),
        ("ts=a,ts=b", "names ts twice"),
        ("price=p,low=l", "names price, which is low too"),
    ],
)
def test_a_wrong_column_mapping_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        columns_of(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"market": "event:{}"}, "names no column"),
        ({"tz": "Mars/Olympus"}, "is no time zone"),
        ({"unit": "minutes"}, "write auto, s, ms"),
        ({"stamp": "end"}, "open or close"),
        ({"decimal": "'"}, "a point or a comma"),
    ],
)
def test_an_unknown_option_value_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ColumnMap(**given)  # type: ignore[arg-type]
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"a,b\n1,2\n", "row 1: 'a,b' has 2 columns"),
        (
            b"\n#\n" + b"1,2,3,4,5,6\n",
            "row 2: '#' has 1 column by ','; candles have at least time, open, high, low, close. --skip-rows",
        ),
        (gzip.compress(b"ts,open\n" * 999, mtime=0)[:-9], "not a whole gzip file"),
        (b"\xff\xfet\x00", "not text in UTF-8, but in UTF-16"),
        (b"t\xff", "not text in UTF-8: "),
        (bz2.compress(b"ts,open\n"), "is compressed by bzip2: unpack it"),
        (lzma.compress(b"ts,open\n"), "is compressed by xz: "),
        (b"PK\x03\x04\x14\x00", "is a zip archive or a spreadsheet: "),
        (b"PAR1\x15", "must end with .parquet"),
        (b"x" * 20_000, "row 1: is longer than"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_foreign(tmp_path / "x.csv", "BTC", ColumnMap())
    assert says in str(refused.value)
    assert "x.csv" in str(refused.value)


SAMPLES = ColumnMap(columns_of("price=yes"), interval="1d", market="event:{id}")


def samples(folder: Path, rows: list[str]) -> Path:
    (folder / "many.csv").write_text("\n".join(["ts,id,yes,settle", *rows]) + "\n")
    return folder / "many.csv"


def test_a_file_of_many_markets_and_of_samples_of_a_price_is_read_market_by_market(tmp_path: Path) -> None:
    late = [3_000, 2_000, 4_000, 3_500]
    path = samples(
        tmp_path,
        [f"{MS + n * DAY + late[n]},{name},0.{n + 1}{len(name)},1" for n in range(4) for name in ("a1", "b-2")],
    )
    one, other = read_markets(path, SAMPLES)
    assert (one.market, other.market, one.interval) == ("event:A1", "event:B-2", "1d")
    assert list(one.at_ms) == [MS + n * DAY + late[n] for n in range(4)]
    assert one.open == one.high == one.low == one.close
    assert list(other.close) == [0.13, 0.23, 0.33, 0.43]
    assert list(other.volume) == [0.0] * 4
    assert [one.where(1)[1], other.where(1)[1]] == [4, 5]
    # and no gaps: late samples are there
    assert [finding.kind for finding in audit(one).faults] == ["off_grid", "zero_volume"]
    with pytest.raises(
        ConfigError, match="about 1d apart, but not to the second; read them as 1d with --interval 1d --accept-off-grid"
    ):
        read_markets(path, replace(SAMPLES, interval=None))


@pytest.mark.parametrize(
    ("rows", "mapped", "says"),
    [
        (["1,a,1,0"], replace(SAMPLES, market="event:{name}"), "there is no column 'name'"),
        ([f"{MS},a b,0.5,0"], SAMPLES, "row 2: market 'event:a b': a name has at most 64"),
        ([f"{MS},a,0.5,0", f"{MS},A,0.5,0"], SAMPLES, "row 3: 'A' is event:A, and so is another name"),
        ([f"{MS},a,0.5,0", f"{MS + DAY},a,x,0"], SAMPLES, "row 3: open 'x' is not a number"),
    ],
)
def test_errors_in_a_file_of_many_markets_name_the_cause(
    tmp_path: Path, rows: list[str], mapped: ColumnMap, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_markets(samples(tmp_path, rows), mapped)
    assert says in str(refused.value)


def test_the_sixty_markets_of_a_recorded_file_are_imported_and_one_is_traded(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [
        "data",
        "import",
        str(shared / "data/events/pm_yes_daily_60markets.csv.gz"),
        "--market",
        "event:{market}",
        "--columns",
        "price=yes_price",
    ]
    assert call([*asked, "--interval", "1d"]) == 1
    assert (
        "--accept-off-grid: each row is moved forward to the next start of its interval, never back"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "data").exists()
    assert call([*asked, "--interval", "1d", "--accept-off-grid", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # Of 11,071 samples 19 are the second of their day, and so many days are missing.
    assert (len(told["written"]), sum(one["rows"] for one in told["written"])) == (60, 11_052)
    assert sum(one["count"] for report in told["audit"] for one in report["findings"] if one["kind"] == "gap") == 19
    (file,) = (tmp_path / "data/event_01017B00").glob("1d.[cp]*")
    assert file.with_name("1d.moved").exists()
    (tmp_path / "c.yaml").write_text(
        "account: {base_url: embedded}\ndead_man: off\nsafety: {require_protection: false}\nstrategies_dir:"
        f' {STRATEGIES}\nstrategies:\n  - {{name: e, use: "oracles:Shares", markets: ["event:RATE-CUT"], interval: 1d,'
        " budget_usd: 1000, params: {buy: 2, sell: 9}}\n"
    )
    accepted = ["--accept-gaps", "--accept-zero-volume", "--fee", "0", "--spread", "0", "--depth", "0"]
    assert call(["backtest", "c.yaml", "--data", f"event:RATE-CUT={file}", *accepted]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    _, trade = (run / "trades.csv").read_text().splitlines()
    # Decided on the samples of 7 and 14 April 2024, filled at those of the days after: 0.075 and 0.055.
    assert trade.startswith(
        f"1,e,event:RATE-CUT,long,200,{1_712_534_400_000},0.075,market,{1_713_139_200_000},0.055,close,-4,"
    )


@research
def test_frames_of_parquet_are_read_by_their_types(tmp_path: Path) -> None:
    pl = column_files.research()
    moments = [datetime(2025, 6, 16) + timedelta(minutes=n) for n in range(5)]  # noqa: DTZ001
    figures = {
        name: [float(cells(n)[at]) for n in range(5)]
        for at, name in enumerate(("open", "high", "low", "close", "volume"))
    }
    forms = {
        "naive": (pl.Series("date", moments), ColumnMap()),
        "aware": (
            pl.Series("date", moments).dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"),
            ColumnMap(tz="Europe/Rome"),
        ),
        "wall": (pl.Series("date", [one - timedelta(hours=4) for one in moments]), ColumnMap(tz="America/New_York")),
        "numbers": (pl.Series("date", [at // 1000 for at in stamps()]), ColumnMap()),
        "texts": (pl.Series("date", [one.isoformat() for one in moments]), ColumnMap()),
        "floats": (pl.Series("date", [at / 1000 for at in stamps()]), ColumnMap()),
        "categories": (pl.Series("date", [one.isoformat() for one in moments]).cast(pl.Categorical), ColumnMap()),
        "an index of pandas": (pl.Series("__index_level_0__", moments), ColumnMap()),
    }
    for name, (times, mapped) in forms.items():
        pl.DataFrame({times.name: times, **figures}).write_parquet(tmp_path / "x.parquet")
        read = read_foreign(tmp_path / "x.parquet", "BTC", mapped)
        assert list(read.at_ms) == stamps(), name
        assert list(read.close) == figures["close"]
    days = pl.Series("date", [(moments[0] + timedelta(days=n)).date() for n in range(5)])
    pl.DataFrame({"date": days, **figures}).write_parquet(tmp_path / "x.parquet")
    read = read_foreign(tmp_path / "x.parquet", "SPY", ColumnMap(tz="America/New_York"))
    assert all(at % 86_400_000 == 0 for at in read.at_ms), "a date is a day of UTC, as in text"
    pl.DataFrame({"date": [True, False], **{key: column[:2] for key, column in figures.items()}}).write_parquet(
        tmp_path / "y.parquet"
    )
    with pytest.raises(ConfigError, match="column 'date' holds Boolean, which is no time"):
        read_foreign(tmp_path / "y.parquet", "BTC", ColumnMap())


@research
def test_prices_of_parquet_may_be_text_decimals_or_whole_numbers(tmp_path: Path) -> None:
    pl = column_files.research()
    times = pl.Series("ts", stamps())
    texts = {
        name: pl.Series(name, ["1.50", "2", "3e0", " 4", "5.25"]) for name in ("open", "high", "low", "close", "volume")
    }
    for kind in (pl.String, pl.Categorical, pl.Decimal(18, 4)):
        columns = {
            name: (column.str.strip_chars().cast(pl.Float64) if kind == pl.Decimal(18, 4) else column).cast(kind)
            for name, column in texts.items()
        }
        pl.DataFrame({"__index_level_0__": [9, 8, 7, 6, 5], "ts": times, **columns}).write_parquet(
            tmp_path / "x.parquet"
        )
        assert list(read_foreign(tmp_path / "x.parquet", "BTC", ColumnMap()).close) == [1.5, 2.0, 3.0, 4.0, 5.25]
    commas = {name: pl.Series(name, ["1,5", "2", "3", "4", "5"]) for name in texts}
    pl.DataFrame({"ts": times, **commas}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(
        ConfigError, match=r"x\.parquet: row 1: open '1,5' is not a number; when the comma is its decimal point"
    ):
        read_foreign(tmp_path / "x.parquet", "BTC", ColumnMap(decimal="."))
    for mapped in (ColumnMap(), ColumnMap(decimal=",")):
        assert read_foreign(tmp_path / "x.parquet", "BTC", mapped).close[0] == 1.5


@research
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ts": []}, "has no candles"),
        ({"ts": [MS / 1000, float("nan")]}, "row 2: the time is empty"),
        ({"open": ["1", None]}, "row 2: open '' is not a number"),
        ({"volume": [None, None]}, "column 'volume' holds Null, not numbers; say --columns volume=none"),
        ({"open": [True, False]}, "column 'open' holds Boolean, not numbers"),
        ({"Open": [1, 2]}, "'open' is there twice"),
        (
            {"ts": None, "__index_level_0__": [1, 2]},
            "no column for 'ts' among 'open,high,low,close,volume,__index_level_0__'; say it with --columns ts=NAME",
        ),
    ],
)
def test_parquet_that_cannot_be_read_is_named(
    tmp_path: Path, change: dict[str, list[object] | None], says: str
) -> None:
    columns: dict[str, list[object] | None] = {
        "ts": [MS, MS + MINUTE],
        **{name: [1.0, 2.0] for name in ("open", "high", "low", "close", "volume")},
    }
    kept = {name: column for name, column in (columns | change).items() if column is not None}
    if change.get("ts") == []:
        kept = {name: [] for name in kept}
    column_files.research().DataFrame(kept).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigError) as refused:
        read_foreign(tmp_path / "x.parquet", "BTC", ColumnMap())
    assert f"{tmp_path / 'x.parquet'}: " in str(refused.value)
    assert says in str(refused.value)

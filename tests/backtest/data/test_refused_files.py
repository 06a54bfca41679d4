"""Files that may be read in two ways, or in none: each is refused with a sentence that names the way out, and the "
"way out is walked."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.backtest.data.store import Store
from bot.cli.app import call
from tests.backtest.builders import START_MS, config, minutes, research, write

FIRST = datetime(2025, 3, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
HEAD = "time,open,high,low,close,volume"
COUNT = 8
# The first candle that every way out must give: open, high, low, close, volume.
VALUES = (100.0, 102.0, 99.0, 101.0, 5.0)


def times(form: str = "%Y-%m-%d %H:%M:%S", step: timedelta = HOUR, first: datetime = FIRST) -> list[str]:
    return [(first + n * step).strftime(form) for n in range(COUNT)]


def prices(n: int) -> list[str]:
    return [str(100 + n), str(102 + n), str(99 + n), str(101 + n), str(5 + n)]


def table(stamps: list[str], *, head: str | None = HEAD, sign: str = ",", order: str = "ohlcv") -> str:
    lines = [] if head is None else [head.replace(",", sign)]
    for n, at in enumerate(stamps):
        by_name = dict(zip("ohlcv", prices(n), strict=True))
        lines.append(sign.join([at, *(by_name[name] for name in order)]))
    return "\n".join(lines) + "\n"


def changed(text: str, change: Callable[[str], str]) -> str:
    head, _, rest = text.partition("\n")
    return f"{head}\n{change(rest)}"


@dataclass(frozen=True)
class Case:
    """A file, what its refusal says, and the ways out: options that the sentence has, word by word, with the "
    "first open that they give."""

    text: str | bytes
    says: str
    ways: tuple[str, ...] = ()
    name: str = "BTC.csv"
    options: str = ""
    first: datetime | None = FIRST
    # the argument of the command
    given: str = "{file}"
    # how the sentence has the ways out, if not word by word
    named: str | None = None
    interval: str = "1h"
    # What a person does with the file where no option helps, or the program whose command the sentence has.
    mend: Callable[[Path], Path] | None = None


def ms_text(unit: int) -> list[str]:
    return [str(int((FIRST + n * HOUR).timestamp()) * unit) for n in range(COUNT)]


YAHOO = (
    "Price,Close,Close,High,High,Low,Low,Open,Open,Volume,Volume\n"
    "Ticker,QQQ,SPY,QQQ,SPY,QQQ,SPY,QQQ,SPY,QQQ,SPY\nDatetime,,,,,,,,,,\n"
    + "".join(
        f"{at},{c},{c},{h},{h},{low},{low},{o},{o},{v},{v}\n"
        for n, at in enumerate(times())
        for o, h, low, c, v in [prices(n)]
    )
)
MT5 = "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<VOLUME>\t<VOL>\n" + "".join(
    "\t".join([f"{at:%Y.%m.%d}", f"{at:%H:%M:%S}", *prices(n), "7"]) + "\n"
    for n, at in enumerate(FIRST + n * HOUR for n in range(COUNT))
)


def replaced(*pairs: tuple[str, str]) -> Callable[[Path], Path]:
    def mend(path: Path) -> Path:
        text = path.read_text()
        for old, new in pairs:
            text = re.sub(old, new, text)
        path.write_text(text)
        return path

    return mend


def unpacked_by(command: str) -> Callable[[Path], Path]:
    def mend(path: Path) -> Path:
        subprocess.run([command, str(path)], check=True)
        return path.with_name("BTC.csv")

    return mend


CASES: dict[str, Case] = {
    # Columns.
    "no header, close first (Yahoo, three lines cut)": Case(
        table(times(), head=None, order="chlov"),
        "goes on from column 5 of the row before less well",
        ("--columns ts=1,open=5,high=3,low=4,close=2,volume=6",),
    ),
    "no header, close behind open (KuCoin)": Case(
        table(times(), head=None, order="ochlv"),
        "column 4 is mostly the highest and column 5 the lowest",
        ("--columns ts=1,open=2,high=4,low=5,close=3,volume=6",),
    ),
    "no header and five columns": Case(
        table(times(), head=None, order="ohlc"),
        "there is no header and 5 columns",
        ("--columns ts=1,open=2,high=3,low=4,close=5,volume=none",),
    ),
    "several tickers": Case(
        YAHOO,
        "has columns of QQQ and SPY",
        ("--columns 'ts=Datetime,open=Open QQQ,high=High QQQ,low=Low QQQ,close=Close QQQ,volume=Volume QQQ'",),
        name="SPY.csv",
    ),
    "two volumes": Case(MT5, "'VOLUME' and 'VOL' may both be the volume", ("--columns volume=VOLUME",)),
    "two times": Case(
        changed(
            table(times(), head="open_time,timestamp,open,high,low,close,volume"),
            lambda rows: re.sub(r"(?m)^(\S+ \d\d):00:00,", r"\1:00:00,\1:59:59,", rows),
        ),
        "'timestamp' and 'open_time' may both be the time",
        ("--columns ts=open_time",),
    ),
    "two closes": Case(
        changed(
            table(times(), head="time,open,high,low,close,volume,last"),
            lambda rows: re.sub(r"(?m),(\d+),(\d+)$", r",\1,\2,1", rows),
        ),
        "'close' and 'last' may both be the close",
        ("--columns close=close",),
    ),
    "a close as the time": Case(
        table(times(first=FIRST + HOUR), head="close_time,open,high,low,close,volume"),
        "no column for 'ts' among",
        ("--columns ts=close_time --stamp close",),
    ),
    "no header, an average before the volume (Kraken)": Case(
        "".join(
            f"{at},{o},{h},{low},{c},{low}.5,{v},7\n" for n, at in enumerate(times()) for o, h, low, c, v in [prices(n)]
        ),
        "column 6 is probably a price (an average or adjusted one)",
        ("--columns ts=1,open=2,high=3,low=4,close=5,volume=7",),
    ),
    "no header, an adjusted close before the volume (Yahoo)": Case(
        "".join(
            f"{at},{o},{h},{low},{c},{int(c) / 2},{v}\n"
            for n, at in enumerate(times())
            for o, h, low, c, v in [prices(n)]
        ),
        "column 6 is probably a price (an average or adjusted one)",
        ("--columns ts=1,open=2,high=3,low=4,close=5,volume=7",),
    ),
    "a header in another language": Case(
        table(times(), head="时间,开盘,最高,最低,收盘,成交量"),
        "no column for 'ts' among '时间,开盘",
        ("--columns ts=时间",),
        named="--columns ts=NAME",
        options="--columns open=开盘,high=最高,low=最低,close=收盘,volume=成交量",
    ),
    "a name that is none": Case(
        table(times(), head="time,A,high,low,close,volume"),
        "no column for 'open'",
        ("--columns open=A",),
        named="--columns open=NAME",
    ),
    "a column twice": Case(
        table(times(), head="time,open,high,low,close,volume").replace("volume", "open", 1),
        "'open' is there twice",
        ("--columns open=2",),
        options="--columns volume=6",
    ),
    "columns apart by spaces": Case(
        table(times("%Y-%m-%dT%H:%M"), sign=" "),
        "columns apart by spaces are not read: tr -s ' ' ','",
        mend=replaced((" +", ",")),
    ),
    "two volumes by their currencies": Case(
        changed(
            table(times(), head="time,open,high,low,close,Volume BTC,Volume USDT"),
            lambda rows: re.sub(r"(?m),(\d+)$", r",\1,\1", rows),
        ),
        "no column for 'volume'",
        ("--columns 'volume=Volume BTC'", "--columns 'volume=Volume USDT'"),
    ),
    "prices of thousands": Case(
        table(times()).replace(":00,100,", ":00,0.1K,", 1),
        "open '0.1K' is not a number; write it in full, like 45200 for 45.2K with all of its digits",
        mend=replaced((r"0\.1K", "100")),
    ),
    # Times.
    "a day or a month first": Case(
        table(times("%d/%m/%Y %H:%M", first=FIRST + timedelta(days=1))),
        "say its form with",
        ("--unit '%d/%m/%Y %H:%M'",),
        first=FIRST + timedelta(days=1),
    ),
    "a month or a day first": Case(
        table(times("%m/%d/%Y %I:%M %p", first=FIRST + timedelta(days=1))),
        "--unit '%d/%m/%Y %I:%M %p' or",
        ("--unit '%m/%d/%Y %I:%M %p'",),
        first=FIRST + timedelta(days=1),
    ),
    "a day of Germany, or of somewhere else": Case(
        table(times("%d.%m.%Y %H:%M", first=FIRST + timedelta(days=1))),
        "say its form with",
        ("--unit '%d.%m.%Y %H:%M'",),
        first=FIRST + timedelta(days=1),
    ),
    "a zone in the rows and another in the options": Case(
        table(times("%Y%m%d %H:%M:%S US/Eastern")),
        "says US/Eastern, and --tz says Europe/Berlin; leave --tz out",
        ("--tz UTC",),
        options="--tz Europe/Berlin",
        named="leave --tz out",
        first=FIRST + timedelta(hours=5),
    ),
    "a zone by letters": Case(
        table(times("%Y%m%d %H:%M:%S EST")),
        "it ends with the name of a zone",
        ("--unit '%Y%m%d %H:%M:%S EST' and --tz America/New_York",),
        first=FIRST + timedelta(hours=5),
    ),
    "a zone by letters, which may be another": Case(
        table(times("%Y%m%d %H:%M:%S CST")),
        "--tz America/Chicago or --tz Asia/Shanghai",
        ("--unit '%Y%m%d %H:%M:%S CST' and --tz America/Chicago",),
        first=FIRST + timedelta(hours=6),
    ),
    "two zones by letters": Case(
        table([at.replace("EST", "EDT") if n else at for n, at in enumerate(times("%Y-%m-%d %H:%M EST"))]),
        "names of zones differ: cut them out",
        options="--unit '%Y-%m-%d %H:%M EST'",
        mend=replaced((" (EST|EDT)", "")),
    ),
    "midnights without an hour": Case(
        table([at.removesuffix(" 00:00:00") for at in times(first=FIRST - 4 * HOUR)]),
        "time '2025-03-03' has no hour, unlike the rows before it",
        options="--tz Europe/London",
        mend=replaced(("2025-03-03,", "2025-03-03 00:00:00,")),
        first=FIRST - 4 * HOUR,
    ),
    "digits of a second": Case(table(times("%Y%m%d%H%M%S")), "or milliseconds from 1970", ("--unit '%Y%m%d%H%M%S'",)),
    "digits of a minute": Case(table(times("%Y%m%d%H%M")), "or milliseconds from 1970", ("--unit '%Y%m%d%H%M'",)),
    "digits of an hour": Case(table(times("%Y%m%d%H")), "or seconds from 1970", ("--unit '%Y%m%d%H'",)),
    "seconds that look like digits of an hour": Case(
        table([str(2_025_030_300 + 60 * n) for n in range(COUNT)]),
        "or seconds from 1970",
        ("--unit s",),
        first=None,
        interval="1m",
    ),
    "names of zones in --unit": Case(
        table(times("%Y-%m-%d %H:%M UTC")),
        "(%Z) are not read",
        ("--unit '%Y-%m-%d %H:%M UTC'",),
        named="write the name as it stands in the file",
        options="--unit '%Y-%m-%d %H:%M %Z'",
    ),
    # Numbers.
    "commas between digits": Case(
        changed(table(times(), sign=";"), lambda rows: re.sub(r";(\d{3})(?=[;\n])", r";\1,000", rows)),
        "'100,000' may be 100000 or 100.000: no cell tells",
        ("--decimal ,",),
    ),
    "points between digits, by semicolons": Case(
        changed(table(times(), sign=";"), lambda rows: re.sub(r";(\d{3})(?=[;\n])", r";\1.000", rows)),
        "'100.000' may be 100000 or 100.000: no cell tells whether the point is the decimal point",
        ("--decimal .",),
    ),
    "points and commas for the decimal sign": Case(
        changed(table(times(), sign=";"), lambda rows: rows.replace(";100;", ";100.0;").replace(";5\n", ";5,0\n")),
        "open '100.0' is not a number; when the point is its decimal point, say --decimal .",
        mend=replaced((";5,0\n", ";5\n")),
    ),
    "signs of a currency": Case(
        table(times()).replace(",100,", ",$100.0,"), "take the sign $ out", mend=replaced((r"\$", ""))
    ),
    "a row without prices": Case(
        table(times()) + "2025-03-03 08:00:00,null,null,null,null,null\n",
        "'null' is not a number; cut the rows out that have no price",
        mend=replaced((".*null.*\n", "")),
    ),
    # Names.
    "a pair": Case(table(times()), "the name may mean a pair, ETH and BTC", ("ETH={file}",), name="ETH_BTC-1h.csv"),
    "a pair of a coin that is not listed": Case(
        table(times()), "may mean a pair, XMR priced in BTC", ("BTC={file}",), name="XMR_BTC-1h.csv"
    ),
    "a pair of a coin that is not listed, behind it": Case(
        table(times()), "may mean a pair, DOT priced in ETH", ("ETH={file}",), name="ETH-DOT.csv"
    ),
    "an option": Case(table(times()), "an option on BTC", ("BTC={file}",), name="BTC-28MAR25-100000-C.csv"),
    "a dominance": Case(table(times()), "the dominance of BTC", ("BTC={file}",), name="BTC.D.csv"),
    "a share at another exchange": Case(
        table(times()), "outside the United States (AAPL.DE)", ("AAPL={file}",), name="AAPL.DE.csv"
    ),
    "an open interest": Case(
        table(times()), "the name says OPENINTEREST of BTC", ("BTC={file}",), name="BTCUSDT-openInterest.csv"
    ),
    "a pair in euros": Case(
        table(times()), "the name may mean a pair, BTC and EUR", ("BTC={file}",), name="BTC-EUR.csv"
    ),
    "a pair in one word": Case(
        table(times()), "the name may mean a pair, ETH and BTC", ("ETH={file}",), name="ETHBTC-1h.csv"
    ),
    "two markets": Case(table(times()), "the name may mean LINK and BTC", ("LINK={file}",), name="LINK_and_BTC.csv"),
    "a volatility": Case(table(times()), "the name says DVOL of BTC", ("BTC={file}",), name="BTC_volatility_DVOL.csv"),
    "a funding rate": Case(
        table(times()), "the name says FUNDING of BTC", ("BTC={file}",), name="BTC_USDT_USDT-8h-funding_rate.csv"
    ),
    "an event": Case(
        table(times()), "the name may mean BTC and event:BTC-150K", ("BTC={file}",), name="event_BTC-150K.csv"
    ),
    "no market": Case(table(times()), "the name speaks of no known market", ("BTC={file}",), name="x.csv"),
    "an exchange's symbol": Case(
        table(times()),
        "'BTC/USDT:USDT' is an exchange's symbol; write the market alone",
        ("BTC={file}",),
        given="BTC/USDT:USDT={file}",
    ),
    "an exchange's symbol of Kraken": Case(
        table(times()), "write the market alone", ("BTC={file}",), given="XBT/USD={file}"
    ),
    "an exchange's symbol in euros": Case(table(times()), "priced in EUR", ("BTC={file}",), given="BTC/EUR={file}"),
    "an exchange's symbol as an option": Case(
        table(times()),
        "write the market alone: BTC",
        ("--market BTC",),
        options="--market BTC/USDT",
        named="write the market alone: BTC",
    ),
    # Formats.
    "JSON, another": Case(
        json.dumps({"t": ms_text(1), "o": [1]}),
        "is JSON: write its candles as CSV with the columns time, open, high, low, close, volume",
        name="BTC.json",
        mend=lambda path: (path.with_suffix(".csv").write_text(table(times())), path.with_suffix(".csv"))[1],
    ),
    "a web page": Case(
        "<!DOCTYPE html>\n<p>Not found",
        "is a web page or XML",
        name="BTC.csv",
        mend=lambda path: (path.write_text(table(times())), path)[1],
    ),
    "bzip2": Case(
        bz2.compress(table(times()).encode()),
        "is compressed by bzip2: unpack it",
        name="BTC.csv.bz2",
        mend=unpacked_by("bunzip2"),
    ),
    "xz": Case(
        lzma.compress(table(times()).encode()),
        "is compressed by xz: unpack it",
        name="BTC.csv.xz",
        mend=unpacked_by("unxz"),
    ),
    "UTF-16": Case(
        table(times()).encode("utf-16"),
        "in UTF-16; save it as UTF-8",
        mend=lambda path: (path.write_text(path.read_text("utf-16")), path)[1],
    ),
    "UTF-16 without a mark": Case(
        table(times()).encode("utf-16-le"),
        "in UTF-16; save it as UTF-8",
        mend=lambda path: (path.write_text(path.read_text("utf-16-le")), path)[1],
    ),
    "UTF-16 by gzip": Case(
        gzip.compress(table(times()).encode("utf-16")),
        "in UTF-16; save it as UTF-8",
        name="BTC.csv.gz",
        mend=lambda path: (path.write_text(gzip.decompress(path.read_bytes()).decode("utf-16")), path)[1],
    ),
    "gzip twice": Case(
        gzip.compress(gzip.compress(table(times()).encode())),
        "is compressed by gzip twice: unpack it once",
        name="BTC.csv.gz",
        mend=lambda path: (path.write_bytes(gzip.decompress(path.read_bytes())), path)[1],
    ),
    # Intervals.
    "one candle": Case(table(times()[:1]), "one candle does not say its interval", ("--interval 1d",), interval="1d"),
    "half hours": Case(table(times(step=HOUR / 2)), "--interval 1h` joins them to 1h", ("--interval 1h",)),
    "three minutes": Case(
        table(times(step=HOUR / 20)[:6]), "--interval 15m` joins them to 15m", ("--interval 15m",), interval="15m"
    ),
    "seconds": Case(
        table([f"{FIRST + timedelta(seconds=n):%Y-%m-%d %H:%M:%S}" for n in range(130)]),
        "--interval 1m` joins them to 1m",
        ("--interval 1m",),
        interval="1m",
    ),
    "too few seconds": Case(
        table([f"{FIRST + timedelta(seconds=n):%Y-%m-%d %H:%M:%S}" for n in range(COUNT)]),
        "get at least one whole candle of 1m, or 1m candles, from their source",
        mend=lambda path: (path.write_text(table(times(step=HOUR / 60))), path)[1],
        interval="1m",
    ),
    "two hours": Case(
        table(times(step=2 * HOUR)), "--interval 4h` joins them to 4h", ("--interval 4h",), interval="4h"
    ),
    "eight hours": Case(
        table(times(step=8 * HOUR)), "--interval 1d` joins them to 1d", ("--interval 1d",), interval="1d"
    ),
    "weeks": Case(
        table(times(step=168 * HOUR)),
        "get finer ones from their source, for example days",
        mend=lambda path: (path.write_text(table(times(step=24 * HOUR))), path)[1],
        interval="1d",
    ),
    "a name that says another interval": Case(
        table(times()), "its name says 5m candles", ("--interval 1h",), name="BTC_5m.csv"
    ),
    # Instants.
    "off the grid": Case(table(times(first=FIRST - HOUR / 2)), "FAULT off_grid", ("--accept-off-grid",)),
    "two values of an instant": Case(
        table(times()) + "2025-03-03 00:00:00,100,102,99,101,5\n2025-03-03 01:00:00,1,1,1,1,1\n", "--accept-duplicates"
    ),
}


@dataclass(frozen=True)
class Ran:
    code: int
    said: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    monkeypatch.chdir(tmp_path)

    def run(what: str, store: str, *options: str) -> Ran:
        code = call(["data", "import", what, "--store", store, *options])
        told = capsys.readouterr()
        return Ran(code, told.out + told.err)

    return run


def stored(folder: Path, interval: str) -> tuple[datetime, tuple[float, ...]]:
    (held,) = Store(folder).held()
    assert held.interval == interval
    read = Store(folder).read(held.market, interval)
    assert read is not None
    return datetime.fromtimestamp(read.at_ms[0] / 1000, UTC), tuple(column[0] for column in read.columns[1:])


@pytest.mark.parametrize("name", CASES)
def test_every_refusal_names_a_way_out_that_works(tmp_path: Path, run: Callable[..., Ran], name: str) -> None:
    case = CASES[name]
    file = tmp_path / case.name
    file.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    options = shlex.split(case.options)
    refused = run(case.given.format(file=case.name), "refused", *options)
    assert refused.code in (1, 4), refused.said
    assert case.says in refused.said
    assert not (tmp_path / "refused").exists() or not Store(tmp_path / "refused").held()
    ways = [way.format(file=case.name) for way in case.ways]
    for number, way in enumerate(ways):
        assert (case.named or way) in refused.said
        words = shlex.split(way.replace(" and --", " --"))
        given = words.pop(0) if not words[0].startswith("--") else case.name
        kept = [] if words[:1] == options[:1] == ["--unit"] or given != case.name else options
        taken = run(given, f"taken{number}", *_merged(kept, words))
        assert taken.code == 0, taken.said
        _is_right(tmp_path / f"taken{number}", case)
    if case.mend is not None:
        mended = case.mend(file)
        taken = run(f"BTC={mended.name}", "taken")
        assert taken.code == 0, taken.said
        _is_right(tmp_path / "taken", case)


def _merged(options: list[str], words: list[str]) -> list[str]:
    """The options of a command and those of a way out; both may have --columns."""
    if "--columns" in options and "--columns" in words:
        return ["--columns", f"{options[1]},{words[1]}"]
    return [*options, *words]


def _is_right(store: Path, case: Case) -> None:
    first, values = stored(store, case.interval)
    assert case.first is None or first == case.first
    if "joins them" in case.says:
        assert values[0] == VALUES[0]
    else:
        assert values[:4] == VALUES[:4]
        assert values[4] in (VALUES[4], 0.0)


@research
@pytest.mark.parametrize(
    ("begins", "says"),
    [
        (b"FEA1", "is Feather of the old version 1"),
        (b"\x89HDF\r\n\x1a\n", "is HDF5"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "is an old spreadsheet (.xls): save it as CSV"),
        (b"SQLite format 3\0", "is a SQLite database"),
        (b"PK\x03\x04", "is a zip archive or a spreadsheet"),
        (b"\x04\x22\x4d\x18", "is compressed by lz4"),
        (b"7z\xbc\xaf\x27\x1c", "is a 7-Zip archive"),
        (b"\x93NUMPY", "is an array of NumPy"),
        (b"\x80\x04\x95", "is a pickle of Python"),
        (b"Obj\x01", "is Avro"),
        (bytes(257) + b"ustar", "is a tar archive"),
        (bytes(8) + b"DUCK", "is not text: write it as CSV"),
    ],
)
@pytest.mark.parametrize("name", ["BTC_USDT-1h.feather", "BTC_USDT-1h.csv", "BTC_USDT-1h.parquet"])
def test_a_file_of_another_format_is_named(
    tmp_path: Path, run: Callable[..., Ran], name: str, begins: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(begins + bytes(200))
    for what in (name, f"BTC={name}"):
        refused = run(what, "refused")
        assert (refused.code, says in refused.said) == (4, True), refused.said


def test_files_in_a_folder_are_refused_as_on_their_own(tmp_path: Path, run: Callable[..., Ran]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "ETH_BTC-1h.csv").write_text(table(times()))
    assert "the name may mean a pair, ETH and BTC" in run("in", "a").said
    (folder / "ETH_BTC-1h.csv").rename(folder / "ETH.json")
    (folder / "ETH.json").write_text(json.dumps([[1, 2]]))
    assert "has 2 columns by ','; candles have at least time, open, high, low, close" in run("in", "a").said


@pytest.mark.parametrize(
    ("name", "market"),
    [
        ("binance_BTCUSDT_1h_202503.csv", "BTC"),
        ("BTC-USD.csv", "BTC"),
        ("BTC_USDT_USDT-1h-futures.csv", "BTC"),
        ("ETHUSDC.csv", "ETH"),
        ("lean_SPY_1h.csv", "SPY"),
        ("kraken.BTC.csv", "BTC"),
        ("AAPL (1).csv", "AAPL"),
        ("SOLPERP.csv", "SOL"),
        ("BTCFDUSD-1h-2025-03.csv", "BTC"),
        ("COINBASE_BTCUSD, 60.csv", "BTC"),
        ("USDT-BTC.csv", "BTC"),
        ("BTC-USDT-SWAP.csv", "BTC"),
        ("my_data_ETH-USD.csv", "ETH"),
        ("aapl.us.csv", "AAPL"),
    ],
)
def test_a_name_with_one_market_in_dollars_is_understood(
    tmp_path: Path, run: Callable[..., Ran], name: str, market: str
) -> None:
    (tmp_path / name).write_text(table(times()))
    assert run(name, "st").code == 0
    assert [held.market for held in Store(tmp_path / "st").held()] == [market]


def test_the_three_header_lines_of_yahoo_are_read_by_their_names(tmp_path: Path, run: Callable[..., Ran]) -> None:
    days = times("%Y-%m-%d", step=24 * HOUR)
    rows = [
        f"{at},{c},{h},{low},{o},{v}\n"
        for at, n in zip(days, range(COUNT), strict=True)
        for o, h, low, c, v in [prices(n)]
    ]
    head = "Price,Close,High,Low,Open,Volume\nTicker,SPY,SPY,SPY,SPY,SPY\nDate,,,,,\n"
    (tmp_path / "yahoo_download_SPY.csv").write_text(head + "".join(rows))
    taken = run("yahoo_download_SPY.csv", "st")
    assert taken.code == 0, taken.said
    assert stored(tmp_path / "st", "1d") == (FIRST, VALUES)
    cut = run("yahoo_download_SPY.csv", "other", "--skip-rows", "3")
    assert cut.code == 4
    assert "row 4: there is no header, and the columns are probably not time, open" in cut.said


@pytest.mark.parametrize(
    ("head", "ticks", "real", "expected"),
    [
        ("<TICKVOL>\t<VOL>", 5, 0, 5),
        ("<VOL>\t<TICKVOL>", 0, 5, 5),
        ("<TICKVOL>\t<VOL>", 9, 5, 5),
        ("<VOL>\t<VOLUME>", 5, 5, 5),
    ],
)
def test_a_volume_of_zeros_gives_way_to_the_other_column_of_volume(
    tmp_path: Path, run: Callable[..., Ran], head: str, ticks: int, real: int, expected: int
) -> None:
    lines = [f"<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t{head}"]
    lines += [
        f"{at:%Y.%m.%d}\t{at:%H:%M:%S}\t100\t102\t99\t101\t{ticks}\t{real}"
        for at in (FIRST + n * HOUR for n in range(COUNT))
    ]
    (tmp_path / "BTC_H1.csv").write_text("\n".join(lines) + "\n")
    taken = run("BTC_H1.csv", "st")
    assert taken.code == 0, taken.said
    assert stored(tmp_path / "st", "1h") == (FIRST, (100.0, 102.0, 99.0, 101.0, float(expected)))


@pytest.mark.parametrize("stamp", ["open", "close"])
def test_joined_candles_hold_all_of_their_rows_and_only_whole_ones_are_kept(
    tmp_path: Path, run: Callable[..., Ran], stamp: str
) -> None:
    first = FIRST - HOUR / 2 + (HOUR / 2 if stamp == "close" else 0 * HOUR)
    (tmp_path / "BTC.csv").write_text(table(times(step=HOUR / 2, first=first)))
    taken = run("BTC.csv", "st", "--interval", "1h", "--stamp", stamp)
    assert taken.code == 0, taken.said
    held = Store(tmp_path / "st").read("BTC", "1h")
    assert held is not None
    assert [datetime.fromtimestamp(at / 1000, UTC) for at in held.at_ms] == [FIRST, FIRST + HOUR, FIRST + 2 * HOUR]
    assert [column[0] for column in held.columns[1:]] == [101.0, 104.0, 100.0, 103.0, 13.0]


def test_a_file_of_funding_rates_is_named_with_the_option_that_reads_it(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    prices_of = tmp_path / "BTC_1m.csv"
    write(minutes(180), prices_of)
    rates = tmp_path / "hl_BTC_funding_1h.csv"
    rates.write_text("ts,rate\n" + "".join(f"{START_MS + n * 3_600_000},0.0001\n" for n in range(4)))
    refused = run(rates.name, "refused")
    assert f"`bot backtest --funding BTC={rates.name}` reads rates" in refused.said
    out = ("--out", str(tmp_path / "runs"), "--funding", f"BTC={rates.name}")
    assert call(["backtest", str(config(tmp_path)), "--data", str(prices_of), *out]) == 0


def test_a_close_that_is_named_as_the_time_needs_its_stamp_or_its_number(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    (tmp_path / "BTC.csv").write_text(table(times(), head="end_time,open,high,low,close,volume"))
    refused = run("BTC.csv", "refused", "--columns", "ts=end_time")
    assert (refused.code, "'end_time' is probably the close of a candle" in refused.said) == (4, True), refused.said
    for way, first in ((["ts=end_time", "--stamp", "close"], FIRST - HOUR), (["ts=1"], FIRST)):
        assert " ".join(way[1:] or ["--columns", *way]) in refused.said
        assert run("BTC.csv", way[-1], "--columns", *way).code == 0
        assert stored(tmp_path / way[-1], "1h")[0] == first

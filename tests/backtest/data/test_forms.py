"""Every form of a file that the table of docs/data.md names: a small file as the program writes it is read without an
option, and a wrong twin of it is refused.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bot.backtest.data import table_reader
from bot.backtest.data.importers import TableRead, ordered, read_table
from bot.backtest.data.quality import FaultyData, checked
from bot.backtest.data.table_files import import_files
from bot.backtest.data.table_layout import ColumnMap
from bot.cli.app import call
from bot.errors import ConfigError
from tests.backtest.builders import research

FIRST = datetime(2025, 3, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
COUNT = 24
# files that are text as they are
TEXT = (".csv", ".txt", ".json", ".jsonl")
NAMES = ("open", "high", "low", "close", "volume")
NEW_YORK = ZoneInfo("America/New_York")
# Candles of a falling and rising price; each opens where the one before has closed.
LEVELS = [80_000 + (n * 37 % 11 - 5) * 10.5 for n in range(COUNT + 1)]
Row = tuple[datetime, float, float, float, float, float]


def candles(first: datetime = FIRST, step: timedelta = HOUR, *, scale: float = 1.0, count: int = COUNT) -> list[Row]:
    rows = []
    for n in range(count):
        opened, closed = (round(LEVELS[n + at] * scale, 5) for at in (0, 1))
        high, low = round(max(opened, closed) + scale, 5), round(min(opened, closed) - scale, 5)
        rows.append((first + n * step, opened, high, low, closed, 1_000.0 + n))
    return rows


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


def text(rows: list[list[object]], head: str | None = None, sign: str = ",") -> bytes:
    lines = [] if head is None else [head.replace(",", sign)]
    for row in rows:
        buffer = io.StringIO()
        csv.writer(buffer, delimiter=sign, lineterminator="").writerow(row)
        lines.append(buffer.getvalue())
    return ("\n".join(lines) + "\n").encode()


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def spreadsheet(rows: list[list[object]], *names: str) -> bytes:
    """A workbook of one sheet, or of sheets with these names and the same rows.

    A datetime is a cell in the form of a date, as Excel stores one.
    """

    def cell(value: object) -> str:
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
        if isinstance(value, datetime):
            return f'<c s="1"><v>{serial(value):.10f}</v></c>'
        return f"<c><v>{value}</v></c>"

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kinds = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {"workbook": "sheet.main", "worksheets/sheet1": "worksheet", "styles": "styles"}
    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    sheets = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="r1"/>' for n, name in enumerate(names or ("BTC",), 1))
    style = "<fonts><font/></fonts><fills><fill/></fills><borders><border/></borders><cellStyleXfs><xf/></cellStyleXfs>"
    return zipped(
        **{
            "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
            f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            + "".join(
                f'<Override PartName="/xl/{part}.xml" ContentType="{kinds}.{kind}+xml"/>'
                for part, kind in parts.items()
            )
            + "</Types>",
            "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>{sheets}</sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{office}/worksheet" Target="worksheets/sheet1.xml"/><Relationship Id="r2" Type="{office}/styles" '
            'Target="styles.xml"/></Relationships>',
            "xl/styles.xml": f'<styleSheet xmlns="{main}">{style}<cellXfs><xf numFmtId="0"/>'
            '<xf numFmtId="22" applyNumberFormat="1"/></cellXfs></styleSheet>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{body}</sheetData></worksheet>',
        }
    )


def serial(at: datetime) -> float:
    """The day of a spreadsheet."""
    return (at.replace(tzinfo=None) - datetime(1899, 12, 30)) / timedelta(days=1)  # noqa: DTZ001


def feather(rows: list[Row], kind: str = "feather", zone: str | None = "UTC", **names: str) -> bytes:
    import polars as pl

    at = pl.Series([ms(row[0]) for row in rows]).cast(pl.Datetime("ms")).dt.replace_time_zone(zone)
    columns = dict(zip(NAMES, list(zip(*rows, strict=True))[1:], strict=True))
    frame = pl.DataFrame({names.get("time", "date"): at, **{name: list(column) for name, column in columns.items()}})
    buffer = io.BytesIO()
    if kind == "feather":
        frame.write_ipc(buffer, compression="lz4")
    else:
        frame.write_parquet(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Case:
    """A file as a program writes it. `content` makes its bytes of candles."""

    name: str
    content: Callable[[list[Row]], bytes]
    form: str
    market: str = "BTC"
    rows: Callable[[], list[Row]] = candles


def iso(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def commas(value: float) -> str:
    return f"{value:,.2f}"


def german(value: float) -> str:
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


def binance(rows: list[Row], unit: int = 1) -> list[list[object]]:
    return [
        [ms(at) * unit, *(f"{px:.8f}" for px in figures), (ms(at) + 3_599_999) * unit, "1.5", 12, "0.5", "0.25", 0]
        for at, *figures in rows
    ]


BINANCE_HEAD = (
    "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,taker_buy_quote_volume,ignore"
)
JESSE_HEAD = "id,timestamp,open,close,high,low,volume,exchange,symbol,timeframe"
DATABENTO_HEAD = "ts_event,rtype,publisher_id,instrument_id,open,high,low,close,volume,symbol"
STOOQ_HEAD = "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>"


def days() -> list[Row]:
    return [row for row in candles(step=24 * HOUR, count=COUNT, scale=0.007) if row[0].weekday() < 5]


def stooq(rows: list[Row], clock: str = "%H%M%S", per: str = "D") -> list[list[object]]:
    return [["SPY.US", per, f"{at:%Y%m%d}", at.strftime(clock), *figures, 0] for at, *figures in rows]


def yfinance(*levels: str) -> Callable[[list[Row]], bytes]:
    def content(rows: list[Row]) -> bytes:
        lines = [f"{at:%Y-%m-%d},{c},{h},{low},{o},{v}" for at, o, h, low, c, v in rows]
        return "\n".join([*levels, *lines, ""]).encode()

    return content


CASES: dict[str, Case] = {
    "freqtrade, Feather": Case("BTC_USDT-1h.feather", feather, "Feather, freqtrade"),
    "freqtrade, Feather of futures": Case("BTC_USDT_USDT-1h-futures.feather", feather, "Feather, freqtrade"),
    "freqtrade, Parquet": Case("BTC_USDT-1h.parquet", lambda rows: feather(rows, "parquet"), "Parquet, freqtrade"),
    "freqtrade, JSON": Case(
        "BTC_USDT-1h.json", lambda rows: json.dumps([[ms(at), *rest] for at, *rest in rows]).encode(), "freqtrade"
    ),
    "freqtrade, JSON by gzip": Case(
        "BTC_USDT-1h.json.gz",
        lambda rows: gzip.compress(json.dumps([[ms(at), *rest] for at, *rest in rows]).encode()),
        "freqtrade",
    ),
    "jesse, CSV of its table": Case(
        "candles.csv",
        lambda rows: text(
            [
                [f"0b{n}", ms(at), o, c, h, low, v, "Binance Perpetual Futures", "BTC-USDT", "1h"]
                for n, (at, o, h, low, c, v) in enumerate(rows)
            ],
            JESSE_HEAD,
        ),
        "jesse",
    ),
    "jesse, JSON of its table": Case(
        "candles.json",
        lambda rows: json.dumps(
            [
                dict(
                    zip(
                        JESSE_HEAD.split(","), [str(n), ms(at), o, c, h, low, v, "Bybit", "BTC-USDT", "1h"], strict=True
                    )
                )
                for n, (at, o, h, low, c, v) in enumerate(rows)
            ]
        ).encode(),
        "jesse",
    ),
    "ccxt, JSON of fetch_ohlcv": Case(
        "BTC.json", lambda rows: json.dumps([[ms(at), *rest] for at, *rest in rows], indent=2).encode(), "ccxt"
    ),
    "ccxt, CSV of fetch_ohlcv": Case(
        "BTC.csv", lambda rows: text([[ms(at), *rest] for at, *rest in rows]), "columns by order"
    ),
    "JSON of records": Case(
        "BTC.json",
        lambda rows: json.dumps(
            [
                dict(zip(("time", "open", "high", "low", "close", "volume"), (iso(row[0]), *row[1:]), strict=True))
                for row in rows
            ]
        ).encode(),
        "columns by name",
    ),
    "JSON of lines": Case(
        "BTC.jsonl",
        lambda rows: "\n".join(
            json.dumps({"t": ms(at), "o": o, "h": h, "l": low, "c": c, "v": v}) for at, o, h, low, c, v in rows
        ).encode(),
        "columns by name",
    ),
    "JSON of columns": Case(
        "BTC.json",
        lambda rows: json.dumps(
            {"s": "ok"}
            | dict(
                zip(
                    "tohlcv",
                    [[ms(row[0]) // 1_000 for row in rows], *map(list, list(zip(*rows, strict=True))[1:])],
                    strict=True,
                )
            )
        ).encode(),
        "columns by name",
    ),
    "JSON of pandas by columns": Case(
        "BTC.json",
        lambda rows: json.dumps(
            {name: {str(ms(row[0])): row[at] for row in rows} for at, name in enumerate(NAMES, 1)}
        ).encode(),
        "columns by name",
    ),
    "JSON of pandas by index": Case(
        "BTC.json",
        lambda rows: json.dumps({str(ms(row[0])): dict(zip(NAMES, row[1:], strict=True)) for row in rows}).encode(),
        "columns by name",
    ),
    "JSON of pandas, split": Case(
        "BTC.json",
        lambda rows: json.dumps(
            {"columns": list(NAMES), "index": [ms(row[0]) for row in rows], "data": [row[1:] for row in rows]}
        ).encode(),
        "columns by name",
    ),
    "Excel": Case(
        "BTC.xlsx",
        lambda rows: spreadsheet([["Date", *map(str.capitalize, NAMES)], *map(list, rows)]),
        "columns by name",
    ),
    "Excel with a title above": Case(
        "BTC.xlsx",
        lambda rows: spreadsheet([["My candles"], [], ["Date", *map(str.capitalize, NAMES)], *map(list, rows)]),
        "columns by name",
    ),
    "Excel with days as numbers": Case(
        "BTC.xlsx",
        lambda rows: spreadsheet(
            [["Date", *map(str.capitalize, NAMES)], *([serial(row[0]), *row[1:]] for row in rows)]
        ),
        "columns by name",
    ),
    "CSV of Excel with days as numbers": Case(
        "BTC.csv",
        lambda rows: text([[f"{serial(at):.9f}", *rest] for at, *rest in rows], "Date,Open,High,Low,Close,Volume"),
        "columns by name",
    ),
    "CSV of Excel in Germany": Case(
        "BTC.csv",
        lambda rows: text(
            [[f"{at:%d.%m.%Y %H:%M}", *map(german, rest)] for at, *rest in rows], "Date,Open,High,Low,Close,Volume", ";"
        ),
        "columns by name",
        rows=lambda: candles(FIRST + timedelta(days=1, hours=12)),
    ),
    "CSV of Excel in America": Case(
        "BTC.csv",
        lambda rows: text(
            [[f"{at:%m/%d/%Y %I:%M %p}", *map(commas, rest)] for at, *rest in rows], "Date,Open,High,Low,Close,Volume"
        ),
        "columns by name",
        rows=lambda: candles(FIRST + timedelta(days=1, hours=12)),
    ),
    "days in America, by the first change of month": Case(
        "SPY.csv",
        lambda rows: text([[f"{at:%m/%d/%Y}", *rest] for at, *rest in rows], "Date,Open,High,Low,Close,Volume"),
        "columns by name",
        market="SPY",
        rows=lambda: days()[:8],
    ),
    "volumes in thousands": Case(
        "BTC.csv",
        lambda rows: text(
            [[iso(at), *rest, f"{v / 1000:.3f}K"] for at, *rest, v in rows], "Date,Open,High,Low,Close,Vol"
        ),
        "columns by name",
    ),
    "signs between thousands of Switzerland": Case(
        "BTC.csv",
        lambda rows: text(
            [[iso(at), *(f"{value:,.2f}".replace(",", "'") for value in rest)] for at, *rest in rows],
            "Date;Open;High;Low;Close;Volume",
            ";",
        ),
        "columns by name",
    ),
    "points with three digits, told by a number that has no sign between its thousands": Case(
        "BTC.csv",
        lambda rows: text(
            [[iso(at), *(f"{px:.3f}" for px in figures), int(v)] for at, *figures, v in rows],
            "Date;Open;High;Low;Close;Volume",
            ";",
        ),
        "columns by name",
        rows=lambda: [(at, *(round(px) / 1_000 for px in figures), v) for at, *figures, v in candles()],
    ),
    "yfinance, price first": Case(
        "SPY.csv",
        yfinance("Price,Close,High,Low,Open,Volume", "Ticker,SPY,SPY,SPY,SPY,SPY", "Date,,,,,"),
        "yfinance, several lines of names",
        market="SPY",
        rows=days,
    ),
    "yfinance, ticker first": Case(
        "SPY.csv",
        yfinance("Ticker,SPY,SPY,SPY,SPY,SPY", "Price,Close,High,Low,Open,Volume", "Date,,,,,"),
        "yfinance, several lines of names",
        market="SPY",
        rows=days,
    ),
    "MetaTrader 5": Case(
        "BTCUSD_H1.csv",
        lambda rows: text(
            [[f"{at:%Y.%m.%d}", f"{at:%H:%M:%S}", *rest, int(v), 0, 2] for at, *rest, v in rows],
            "<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<TICKVOL>,<VOL>,<SPREAD>",
            "\t",
        ),
        "MetaTrader 5",
    ),
    "MetaTrader 5, its package for Python": Case(
        "BTCUSD.csv",
        lambda rows: text(
            [[ms(at) // 1000, *rest, int(v), 2, 0] for at, *rest, v in rows],
            "time,open,high,low,close,tick_volume,spread,real_volume",
        ),
        "MetaTrader 5",
    ),
    "MetaTrader 4": Case(
        "BTCUSD60.csv",
        lambda rows: text([[f"{at:%Y.%m.%d}", f"{at:%H:%M}", *rest, int(v)] for at, *rest, v in rows]),
        "MetaTrader 4",
    ),
    "Investing.com": Case(
        "BTC_USD Bitfinex Historical Data.csv",
        lambda rows: text(
            [
                [f"{at:%m/%d/%Y}", *map(commas, (c, o, h, low)), f"{v / 1000:.2f}K", "1.35%"]
                for at, o, h, low, c, v in rows[::-1]
            ],
            '"Date","Price","Open","High","Low","Vol.","Change %"',
        ),
        "Investing.com",
        rows=lambda: [(*row[:5], 1_230.0) for row in candles(step=24 * HOUR)],
    ),
    "CSV of Excel with the sign of its separator": Case(
        "BTC.csv",
        lambda rows: (
            b"sep=;\n" + text([[iso(at), *rest] for at, *rest in rows], "Datum;Open;High;Low;Close;Volume", ";")
        ),
        "columns by name",
    ),
    "Interactive Brokers, text of the API": Case(
        "SPY.csv",
        lambda rows: text(
            [[f"{at.astimezone(NEW_YORK):%Y%m%d %H:%M:%S} US/Eastern", *rest, 400, 12] for at, *rest in rows],
            "date,open,high,low,close,volume,average,barCount",
        ),
        "Interactive Brokers",
        market="SPY",
        rows=lambda: candles(datetime(2025, 3, 3, 15, tzinfo=UTC), count=6),
    ),
    "Interactive Brokers, frame of ib_insync": Case(
        "SPY.csv",
        lambda rows: text(
            [[n, at.astimezone(NEW_YORK).isoformat(" "), *rest, 400, 12] for n, (at, *rest) in enumerate(rows)],
            ",date,open,high,low,close,volume,average,barCount",
        ),
        "Interactive Brokers",
        market="SPY",
        rows=lambda: candles(datetime(2025, 3, 3, 15, tzinfo=UTC), count=6),
    ),
    "TradingView, seconds": Case(
        "BINANCE_BTCUSDT, 60.csv",
        lambda rows: text([[ms(at) // 1000, *rest] for at, *rest in rows], "time,open,high,low,close,Volume"),
        "TradingView",
    ),
    "TradingView, ISO, with an indicator": Case(
        "BINANCE_BTCUSDT, 60_a1b2c.csv",
        lambda rows: text(
            [
                [f"{at.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%dT%H:%M:%S}+01:00", *rest, "NaN"]
                for at, *rest in rows
            ],
            "time,open,high,low,close,Volume,MA",
        ),
        "TradingView",
    ),
    "Stooq, days of the site": Case(
        "spy_us_d.csv",
        lambda rows: text([[f"{at:%Y-%m-%d}", *rest] for at, *rest in rows], "Date,Open,High,Low,Close,Volume"),
        "columns by name",
        market="SPY",
        rows=days,
    ),
    "Stooq, days of the archive": Case(
        "spy.us.txt", lambda rows: text(stooq(rows), STOOQ_HEAD), "Stooq", market="SPY", rows=days
    ),
    "Binance Vision, ms": Case(
        "BTCUSDT-1h-2025-03.zip",
        lambda rows: zipped(**{"BTCUSDT-1h-2025-03.csv": text(binance(rows))}),
        "Binance Vision",
    ),
    "Binance Vision, us": Case(
        "BTCUSDT-1h-2025-03.zip",
        lambda rows: zipped(**{"BTCUSDT-1h-2025-03.csv": text(binance(rows, 1_000))}),
        "Binance Vision",
    ),
    "Binance Vision, futures": Case(
        "BTCUSDT-1h-2025-03.zip",
        lambda rows: zipped(**{"BTCUSDT-1h-2025-03.csv": text(binance(rows), BINANCE_HEAD)}),
        "Binance Vision",
    ),
    "Kraken OHLCVT": Case(
        "XBTUSD_60.csv", lambda rows: text([[ms(at) // 1000, *rest, 12] for at, *rest in rows]), "Kraken OHLCVT"
    ),
    "Databento, fixed prices": Case(
        "glbx-mdp3-20250303.ohlcv-1h.csv",
        lambda rows: text(
            [
                [ms(at) * 1_000_000, 34, 1, 5002, *(round(px * 10**9) for px in rest), int(v), "BTC"]
                for at, *rest, v in rows
            ],
            DATABENTO_HEAD,
        ),
        "Databento OHLCV",
    ),
    "Databento, prices with a point": Case(
        "xnas-itch-20250303.ohlcv-1h.csv",
        lambda rows: text(
            [
                [f"{at:%Y-%m-%dT%H:%M:%S}.000000000Z", 34, 2, 5, *(f"{px:.9f}" for px in rest), int(v), "BTC"]
                for at, *rest, v in rows
            ],
            DATABENTO_HEAD,
        ),
        "Databento OHLCV",
    ),
    "Parquet of polars": Case(
        "BTC.parquet", lambda rows: feather(rows, "parquet", time="timestamp"), "Parquet, columns by name"
    ),
}


def read(folder: Path, case: Case, content: bytes) -> TableRead:
    path = folder / case.name
    path.write_bytes(content)
    (file,) = import_files([path], ColumnMap(), market=None, report=lambda _line: None)
    return read_table(file.path, file.market, ColumnMap(), is_given=file.is_given)


@research
@pytest.mark.parametrize("name", CASES)
def test_a_file_as_its_program_writes_it_is_read_without_an_option(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rows = case.rows()
    reading = read(tmp_path, case, case.content(rows))
    assert reading.form == case.form
    (taken,) = map(ordered, reading.candles)
    assert taken.market == case.market
    assert [list(column) for column in taken.columns] == [
        [ms(row[0]) for row in rows],
        *([row[at] for row in rows] for at in range(1, 6)),
    ]
    checked([taken], accept=("gaps", "hours", "jumps"))


def high_below_low(rows: list[Row]) -> list[Row]:
    return [(at, o, low, h, c, v) for at, o, h, low, c, v in rows]


def open_is_close(rows: list[Row]) -> list[Row]:
    return [(at, c, h, low, o, v) for at, o, h, low, c, v in rows]


def two_intervals(rows: list[Row]) -> list[Row]:
    step = rows[1][0] - rows[0][0]
    half, after = len(rows) // 2, rows[len(rows) // 2][0]
    finer = {timedelta(hours=1): timedelta(minutes=5), timedelta(days=1): timedelta(hours=1)}[step]
    return [*rows[:half], *((after + n * finer, *row[1:]) for n, row in enumerate(rows[half:]))]


@research
@pytest.mark.parametrize("twin", [high_below_low, open_is_close, two_intervals])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.rows()) == COUNT])
def test_the_wrong_twin_of_a_file_is_refused_with_file_row_and_way(
    tmp_path: Path, name: str, twin: Callable[[list[Row]], list[Row]]
) -> None:
    case = CASES[name]
    content = case.content(twin(case.rows()))
    with pytest.raises((ConfigError, FaultyData)) as refused:
        checked(read(tmp_path, case, content).candles, accept=("gaps", "jumps", "zero-volume"))
    said = str(refused.value)
    assert case.name in said
    assert "row " in said
    assert "--" in said


@research
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.name.endswith(TEXT)])
def test_text_in_the_place_of_a_price_is_refused_with_its_row(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    content = case.content(case.rows())
    # the first open of the fifth row
    price = case.rows()[4][1]
    grouped = (german(price), commas(price), f"{price:,.2f}".replace(",", "'"))
    shown = next(form for form in (str(price), str(round(price * 10**9)), *grouped) if form.encode() in content)
    halted = '"halted"' if b"{" in content or b"[" in content else "halted"
    with pytest.raises(ConfigError, match=r"row \d+: (open|high|low|close) '.*halted.*' is not a"):
        read(tmp_path, case, re.sub(rb"(?<![0-9])" + re.escape(shown).encode(), halted.encode(), content))


@research
def test_each_form_of_the_documentation_has_a_case(repository: Path) -> None:
    table = (repository / "docs/data.md").read_text().partition("| Program")[2].partition("\n\n")[0]
    named = {line.split("|")[1].strip() for line in table.splitlines()[2:]}
    assert named
    for program in named:
        assert any(program.lower() in case.lower() for case in CASES), program


# ── Folders, archives and questions ─────────────────────────────────────────────────────────────────────────────────


def freqtrade_folder(folder: Path) -> Path:
    """The folder of one exchange, as freqtrade keeps it."""
    exchange = folder / "user_data/data/binance"
    (exchange / "futures").mkdir(parents=True)
    for pair in ("BTC_USDT", "ETH_USDT"):
        (exchange / f"{pair}-1h.feather").write_bytes(feather(candles()))
    (exchange / "BTC_USDT-5m.json").write_text(
        json.dumps([[ms(at), *rest] for at, *rest in candles(step=timedelta(minutes=5))])
    )
    (exchange / "futures/SOL_USDT_USDT-1h-futures.feather").write_bytes(feather(candles()))
    (exchange / "futures/SOL_USDT_USDT-1h-mark.feather").write_bytes(feather(candles()))
    (exchange / "futures/SOL_USDT_USDT-8h-funding_rate.feather").write_bytes(feather(candles()))
    (exchange / "pairs.md").write_text("what I trade")
    return exchange


@research
def test_a_folder_of_freqtrade_is_imported_with_a_table_of_what_was_read_as_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    freqtrade_folder(tmp_path)
    assert call(["data", "import", "user_data/data"]) == 0
    told = capsys.readouterr()
    lines = [line.split("  ") for line in told.out.splitlines()[:5]]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    root = "user_data/data/binance"
    span = ["2025-03-03", "2025-03-03 23:00", "24", "0"]
    assert rows == [
        ["file", "form", "market", "interval", "from", "to", "rows", "dropped"],
        [f"{root}/BTC_USDT-1h.feather", "Feather, freqtrade", "BTC", "1h", *span],
        [f"{root}/BTC_USDT-5m.json", "freqtrade", "BTC", "5m", "2025-03-03", "2025-03-03 01:55", "24", "0"],
        [f"{root}/ETH_USDT-1h.feather", "Feather, freqtrade", "ETH", "1h", *span],
        [f"{root}/futures/SOL_USDT_USDT-1h-futures.feather", "Feather, freqtrade", "SOL", "1h", *span],
    ]
    assert "left out, and not taken for candles: " in told.err
    for name in ("SOL_USDT_USDT-1h-mark.feather", "SOL_USDT_USDT-8h-funding_rate.feather", "pairs.md"):
        assert name in told.err
    assert call(["data", "import", "user_data/data", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [(file["market"], file["interval"], file["rows"], file["dropped"]) for file in files] == [
        ("BTC", "1h", 24, 0),
        ("BTC", "5m", 24, 0),
        ("ETH", "1h", 24, 0),
        ("SOL", "1h", 24, 0),
    ]


@research
def test_spot_and_futures_of_one_market_in_two_folders_are_refused_until_one_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exchange = freqtrade_folder(tmp_path)
    other = exchange / "futures/BTC_USDT_USDT-1h-futures.feather"
    other.write_bytes(feather(candles(scale=1.01)))
    assert call(["data", "import", str(exchange)]) == 4
    said = capsys.readouterr().err
    assert f"{other}: is BTC 1h, and so is {exchange / 'BTC_USDT-1h.feather'}" in said
    assert "after taking the other one out, or name the files one by one" in said
    assert not Path("data").exists()
    other.unlink()
    assert call(["data", "import", str(exchange)]) == 0


def test_all_tables_of_an_archive_are_imported_and_one_may_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = text([[ms(at) // 1000, *rest, 12] for at, *rest in candles()])
    Path("Kraken_OHLCVT.zip").write_bytes(
        zipped(**{"XBTUSD_60.csv": rows, "ETHUSD_60.csv": rows, "readme.md": b"hours"})
    )
    assert call(["data", "import", "Kraken_OHLCVT.zip"]) == 0
    told = capsys.readouterr().out
    assert "Kraken_OHLCVT.zip/XBTUSD_60.csv  Kraken OHLCVT  BTC " in told
    assert "Kraken_OHLCVT.zip/ETHUSD_60.csv  Kraken OHLCVT  ETH " in told
    assert call(["data", "import", "SOL=Kraken_OHLCVT.zip/ETHUSD_60.csv", "--store", "one"]) == 0
    assert "SOL 1h: 24 candles" in capsys.readouterr().out
    assert call(["data", "import", "SOL=Kraken_OHLCVT.zip/none.csv"]) == 4
    assert "there is no such file in the archive; it has ETHUSD_60.csv, XBTUSD_60.csv" in capsys.readouterr().err


def test_several_months_of_binance_in_milliseconds_and_microseconds_are_one_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = datetime(2024, 12, 31, tzinfo=UTC)
    for month, start, unit in (("2024-12", first, 1), ("2025-01", first + 24 * HOUR, 1_000)):
        name = f"BTCUSDT-1h-{month}"
        Path(f"{name}.zip").write_bytes(zipped(**{f"{name}.csv": text(binance(candles(start), unit))}))
        Path(f"{name}.zip.CHECKSUM").write_text("0")
    assert call(["data", "import", "."]) == 0
    assert "BTC 1h: 48 candles in data/BTC/1h." in capsys.readouterr().out


def test_rows_of_several_markets_are_parted_by_their_symbol_or_refused_under_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        [f"0{n}", ms(at), o, c, h, low, v, "Bybit", symbol, "1h"]
        for n, (at, o, h, low, c, v) in enumerate(candles())
        for symbol in ("BTC-USDT", "ETH-USDT")
    ]
    Path("candle.csv").write_bytes(text(lines, JESSE_HEAD))
    assert call(["data", "import", "BTC=candle.csv"]) == 4
    said = capsys.readouterr().err
    assert "candle.csv: row 3: is of 'ETH-USDT', and the rows before it of 'BTC-USDT': leave BTC= out" in said
    assert call(["data", "import", "candle.csv"]) == 0
    said = capsys.readouterr().out
    assert "BTC 1h: 24 candles" in said
    assert "ETH 1h: 24 candles" in said


def test_hours_of_stooq_are_read_with_the_zone_that_the_refusal_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = candles(datetime(2025, 3, 3, 15, tzinfo=UTC), count=6)
    rows = [(at.astimezone(ZoneInfo("Europe/Warsaw")), *rest) for at, *rest in own]
    Path("spy.us.txt").write_bytes(text(stooq(rows, per="60"), STOOQ_HEAD))
    assert call(["data", "import", "spy.us.txt"]) == 4
    assert "--tz Europe/Warsaw, the clock of its site, or --tz Etc/UTC" in capsys.readouterr().err
    for zone, hour in (("Europe/Warsaw", 15), ("Etc/UTC", 16)):
        assert call(["data", "import", "spy.us.txt", "--tz", zone, "--accept-hours", "--store", zone]) == 0
        (series,) = read_table(Path("spy.us.txt"), "SPY", ColumnMap(tz=zone)).candles
        assert series.at_ms[0] == ms(datetime(2025, 3, 3, hour, tzinfo=UTC))


def test_a_person_at_a_terminal_is_asked_and_the_answer_is_taken(tmp_path: Path) -> None:
    rows = candles(FIRST + timedelta(days=1), count=8)
    lines = [[f"{at:%d/%m/%Y %H:%M}", *rest] for at, *rest in rows]
    (tmp_path / "BTC.csv").write_bytes(text(lines, "Date,Open,High,Low,Close,Volume"))
    master, terminal = pty.openpty()
    command = [
        sys.executable,
        "-c",
        "import sys; from bot.cli import main; sys.exit(main())",
        "data",
        "import",
        "BTC.csv",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = b""
    while b"Which is right?" not in said:
        said += os.read(master, 4_096)
    assert b"--unit '%d/%m/%Y %H:%M'" in said
    os.write(master, b"2\n")
    with contextlib.suppress(OSError):
        while more := os.read(master, 4_096):
            said += more
    assert process.wait() == 0, said
    os.close(master)
    # The second reading is that of America.
    assert b"2025-04-03" in said.partition(b"Which is right?")[2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[[1740960000000, 1, 2, 1, 2, 1], [174", "is no whole JSON: it breaks off or is wrong behind item 1"),
        (b"[[1740960000000, [1], 2, 1, 2, 1]]", "is JSON: write its candles as CSV"),
        (b"[1, 2, 3]", "is JSON: write its candles as CSV"),
        (b"[]", "the file is empty"),
        (b'{"t": [1], "o": [1, 2]}', "is JSON: write its candles as CSV"),
        (b'{"error": "rate limit"}', "is JSON: write its candles as CSV"),
        (b'[{"t": 1, "o": 1}, {"t": 2, "h": 1}]', "row 3: 'h' is in one object and not in another"),
        (
            b'[{"time": 1740960000000, "open": null, "high": 2, "low": 1, "close": 2, "volume": 1}]',
            "row 2: open '' is not a number; cut the rows out that have no price",
        ),
    ],
)
def test_json_that_is_no_table_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "BTC.json").write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_table(tmp_path / "BTC.json", "BTC", ColumnMap())


@research
def test_a_workbook_with_several_tables_is_refused_until_a_sheet_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [["Date", *map(str.capitalize, NAMES)], *map(list, candles())]
    Path("BTC.xlsx").write_bytes(spreadsheet(rows, "hours", "copy"))
    assert call(["data", "import", "BTC.xlsx"]) == 4
    assert "BTC.xlsx: has the sheets hours, copy; name one, like BTC=BTC.xlsx/hours" in capsys.readouterr().err
    assert call(["data", "import", "BTC=BTC.xlsx/hours"]) == 0
    assert "BTC 1h: 24 candles" in capsys.readouterr().out
    Path("BTC.xlsx").write_bytes(spreadsheet([["nothing", "here"]]))
    assert call(["data", "import", "BTC.xlsx"]) == 4
    assert "put the candles into one sheet" in capsys.readouterr().err


def test_an_archive_that_cannot_be_unpacked_is_named_with_what_to_do(tmp_path: Path) -> None:
    rows = text([[ms(at), *rest] for at, *rest in candles()])
    locked = bytearray(zipped(**{"BTC.csv": rows}))
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    for content, says in (
        (bytes(locked), "cannot be unpacked: File 'BTC.csv' is encrypted, password required for extraction"),
        (zipped(**{"BTC.csv": rows})[:-30], "is a zip archive or a spreadsheet: unpack it, or save it as CSV"),
        (zipped(**{"readme.md": b"x"}), "it has 0 tables"),
    ):
        (tmp_path / "BTC.zip").write_bytes(content)
        with pytest.raises(ConfigError, match=re.escape(says)):
            read_table(tmp_path / "BTC.zip", "BTC", ColumnMap())


def test_a_large_object_of_json_is_refused_and_its_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[ms(at), *rest] for at, *rest in candles()]
    path = tmp_path / "BTC.json"
    path.write_text(json.dumps(dict(zip("tohlcv", zip(*rows, strict=True), strict=True))))
    monkeypatch.setattr(table_reader, "OBJECT_CHARS_MAX", 100)
    monkeypatch.setattr(table_reader, "READ_CHARS", 64)
    with pytest.raises(ConfigError, match="is one object of JSON with more than 100 characters; write a list of rows"):
        read_table(path, "BTC", ColumnMap())
    path.write_text(json.dumps(rows))
    assert len(read_table(path, "BTC", ColumnMap()).candles[0]) == COUNT


def test_a_price_of_databento_that_is_none_and_a_mixture_are_refused(tmp_path: Path) -> None:
    line = f"{ms(FIRST) * 1_000_000},34,1,5002"
    path = tmp_path / "x.csv"
    for prices, says in (
        ("9223372036854775807,2,1,2", "row 2: open is 9223372036854775807, which means no price"),
        ("5100000000000,5100.5,1,2", "row 2: high '5100.5' is not a whole number of 1e-9 as the rows before it"),
    ):
        path.write_text(f"{DATABENTO_HEAD}\n{line},{prices},5,ESH5\n")
        with pytest.raises(ConfigError, match=re.escape(says)):
            read_table(path, "BTC", ColumnMap())


def test_feather_without_the_extra_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    (tmp_path / "BTC.feather").write_bytes(b"ARROW1\0\0" + bytes(100))
    (tmp_path / "BTC.xlsx").write_bytes(spreadsheet([["a"]]))
    for name, what in (("BTC.feather", "Feather"), ("BTC.xlsx", "a spreadsheet")):
        with pytest.raises(ConfigError, match=rf"{what} needs the data extra, which is not installed: "):
            read_table(tmp_path / name, "BTC", ColumnMap())


def test_a_market_that_is_not_listed_is_imported_under_its_name_once_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [[f"{at:%Y.%m.%d}", f"{at:%H:%M}", *rest, int(v)] for at, *rest, v in candles(scale=0.00001)]
    for name in ("CHFDKK60.csv", "SIE.DE.csv"):
        Path(name).write_bytes(text(rows))
    assert call(["data", "import", "CHFDKK60.csv"]) == 4
    assert "write MARKET=CHFDKK60.csv, for example BTC=CHFDKK60.csv, or list its market in markets.yaml" in (
        capsys.readouterr().err
    )
    Path("markets.yaml").write_text(
        "markets:\n  CHFDKK: {tick: 0.00001, lot: 1, price: 0.8}\n  SIE.DE: {tick: 0.00001, lot: 1, price: 0.8}\n"
    )
    bot = [sys.executable, "-c", "import sys; from bot.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*bot, "data", "import", "CHFDKK60.csv", "SIE.DE.csv"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for market in ("CHFDKK", "SIE.DE"):
        assert f"{market} 1h: 24 candles" in done.stdout
    assert "not listed" not in done.stderr

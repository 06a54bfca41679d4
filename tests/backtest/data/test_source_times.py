"""No candle closes earlier than it did at its source: every importer and source, and what is said of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.data.history import Pull, PullTarget, WantedCandles
from bot.backtest.data.importers import ColumnMap, closed, read_foreign
from bot.backtest.data.quality import FaultyData, checked
from bot.backtest.data.store import Store
from bot.cli.app import call
from bot.clock import DAY_MS, HOUR_MS, ManualClock, iso
from bot.market_data import symbols
from bot.market_data.paging import PageAnswer, Pager
from bot.market_data.source import Row
from bot.market_data.yfinance_source import YfinanceSource
from bot.service.market_data.price_feed import RecordedSource
from bot.service.market_data.simulator import GridCandle
from bot.wire import INTERVAL_MS
from tests.backtest.builders import START_MS, config, minutes, research, write

COUNT = 12


def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


# Candles of some kind of source: the interval, the first open on the source's own clock, and how that clock writes it.
Own = tuple[str, datetime, str]
ISO = "%Y-%m-%dT%H:%M:%S%z"
SOURCES: dict[str, Own] = {
    "days of Hong Kong (OKX)": ("1d", datetime(2025, 4, 1, 16, tzinfo=UTC), ISO),
    "days of New York's close (OANDA)": ("1d", datetime(2025, 4, 1, 21, tzinfo=UTC), ISO),
    "days that end an hour late": ("1d", datetime(2025, 4, 1, 1, tzinfo=UTC), ISO),
    "four hours of a broker (MT5)": ("4h", datetime(2025, 4, 1, 2, tzinfo=UTC), ISO),
    "hours at half past": ("1h", datetime(2025, 4, 1, 13, 30, tzinfo=UTC), ISO),
    "hours a second late": ("1h", datetime(2025, 4, 1, 13, 0, 1, tzinfo=UTC), ISO),
    "quarters": ("15m", datetime(2025, 4, 1, 13, 7, tzinfo=UTC), ISO),
    "minutes at half past": ("1m", datetime(2025, 4, 1, 13, 7, 30, tzinfo=UTC), ISO),
    "days of Berlin": ("1d", datetime(2025, 3, 26, tzinfo=zone("Europe/Berlin")), ISO),
    "days of Tokyo": ("1d", datetime(2025, 3, 26, tzinfo=zone("Asia/Tokyo")), ISO),
    "days of New York": ("1d", datetime(2025, 3, 3, tzinfo=zone("America/New_York")), ISO),
    "hours on the grid": ("1h", datetime(2025, 4, 1, 13, tzinfo=UTC), ISO),
}


def own_opens(own: Own) -> list[datetime]:
    """The opens, by wall clock: local days stay days over a change of clocks."""
    interval, first, _ = own
    return [first + n * timedelta(milliseconds=INTERVAL_MS[interval]) for n in range(COUNT)]


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def text_file(folder: Path, own: Own) -> tuple[Path, ColumnMap]:
    lines = [f"{at.strftime(own[2])},100,102,99,101,{n + 1}" for n, at in enumerate(own_opens(own))]
    (folder / "x.csv").write_text("\n".join(["Date,Open,High,Low,Close,Volume", *lines]) + "\n")
    return folder / "x.csv", ColumnMap(interval=own[0])


def stamped_at_the_close(folder: Path, own: Own) -> tuple[Path, ColumnMap]:
    step = timedelta(milliseconds=INTERVAL_MS[own[0]])
    lines = [f"{(at + step).strftime(own[2])},100,102,99,101,{n + 1}" for n, at in enumerate(own_opens(own))]
    (folder / "x.csv").write_text("\n".join(["Date,Open,High,Low,Close,Volume", *lines]) + "\n")
    return folder / "x.csv", ColumnMap(interval=own[0], stamp="close")


def numbers(folder: Path, own: Own) -> tuple[Path, ColumnMap]:
    lines = [f"{ms(at)},100,102,99,101,{n + 1}" for n, at in enumerate(own_opens(own))]
    (folder / "x.csv").write_text("\n".join(["ts,open,high,low,close,volume", *lines]) + "\n")
    return folder / "x.csv", ColumnMap(interval=own[0])


def wall_clock(folder: Path, own: Own) -> tuple[Path, ColumnMap]:
    lines = [f"{at.strftime('%Y-%m-%d %H:%M:%S')},100,102,99,101,{n + 1}" for n, at in enumerate(own_opens(own))]
    (folder / "x.csv").write_text("\n".join(["Date,Open,High,Low,Close,Volume", *lines]) + "\n")
    return folder / "x.csv", ColumnMap(interval=own[0], tz=str(own[1].tzinfo))


def parquet(folder: Path, own: Own) -> tuple[Path, ColumnMap]:
    import polars as pl

    at = pl.Series("Date", [ms(one) for one in own_opens(own)]).cast(pl.Datetime("ms", "UTC"))
    ones = [100.0] * COUNT
    frame = pl.DataFrame(
        {
            "Date": at.dt.convert_time_zone(str(own[1].tzinfo)),
            "Open": ones,
            "High": [102.0] * COUNT,
            "Low": ones,
            "Close": [101.0] * COUNT,
            "Volume": [float(n + 1) for n in range(COUNT)],
        }
    )
    frame.write_parquet(folder / "x.parquet")
    return folder / "x.parquet", ColumnMap(interval=own[0])


FORMS: dict[str, Callable[[Path, Own], tuple[Path, ColumnMap]]] = {
    "text with an offset": text_file,
    "text stamped at the close": stamped_at_the_close,
    "numbers": numbers,
    "a wall clock and --tz": wall_clock,
    "Parquet": parquet,
}


def usable(read: Candles) -> Candles:
    """The candles as a backtest takes them: as they are, or moved by --accept-off-grid."""
    accept = ("gaps", "off-grid", "hours")
    return checked([read], accept=accept, hours="continuous")[0][0]


@research
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("market", ["BTC", "SPY"])
@pytest.mark.parametrize("name", SOURCES)
def test_no_imported_candle_closes_before_it_did_at_its_source(
    tmp_path: Path, name: str, market: str, form: str
) -> None:
    own = SOURCES[name]
    path, mapped = FORMS[form](tmp_path, own)
    taken = usable(read_foreign(path, market, mapped))
    step = INTERVAL_MS[own[0]]
    assert all(at % step == 0 for at in taken.at_ms)
    # The volume tells which of the source's candles a row is. A share's day ends with its session, at 20:00 in New
    # York at the latest.
    opens, is_session = own_opens(own), market == "SPY" and name == "days of New York" and form != "numbers"
    for at, volume in zip(taken.at_ms, taken.volume, strict=True):
        opened = opens[int(volume) - 1]
        ended = opened.replace(hour=16) if is_session else opened + timedelta(milliseconds=step)
        assert at + step >= ms(ended.astimezone(UTC)), iso(at)


@research
@pytest.mark.parametrize(
    "form", ["text with an offset", "text stamped at the close", "a wall clock and --tz", "Parquet"]
)
@pytest.mark.parametrize(
    ("name", "market"), [("days of Berlin", "BTC"), ("days of Tokyo", "BTC"), ("days of New York", "SPY")]
)
def test_local_days_keep_their_date_over_a_change_of_clocks(tmp_path: Path, name: str, market: str, form: str) -> None:
    path, mapped = FORMS[form](tmp_path, SOURCES[name])
    (read,), (report,) = checked([read_foreign(path, market, mapped)], accept=("gaps",))
    assert [iso(at)[:10] for at in read.at_ms] == [f"{at:%Y-%m-%d}" for at in own_opens(SOURCES[name])]
    assert not [one for one in report.findings if one.kind == "off_grid"]


def test_days_of_new_york_without_weekends_keep_their_date_under_any_name(tmp_path: Path) -> None:
    days = [datetime(2025, 3, 3, tzinfo=zone("America/New_York")) + timedelta(days=n) for n in range(14)]
    lines = [f"{at.strftime(ISO)},100,102,99,101,1" for at in days if at.weekday() < 5]
    (tmp_path / "x.csv").write_text("\n".join(["Date,Open,High,Low,Close,Volume", *lines]) + "\n")
    read = read_foreign(tmp_path / "x.csv", "BTC", ColumnMap())
    assert [iso(at)[:10] for at in read.at_ms] == [f"{at:%Y-%m-%d}" for at in days if at.weekday() < 5]


def test_days_of_new_york_of_a_market_that_never_closes_are_refused_or_moved_forward(tmp_path: Path) -> None:
    path, mapped = text_file(tmp_path, SOURCES["days of New York"])
    read = read_foreign(path, "BTC", mapped)
    with pytest.raises(FaultyData, match="off the grid of 1d"):
        checked([read])
    (moved,), _ = checked([read], accept=("off-grid", "gaps"))
    assert iso(moved.at_ms[0])[:16] == "2025-03-04T00:00"


@pytest.mark.parametrize("late_ms", [0, 30 * 60_000, 16 * HOUR_MS])
def test_an_import_leaves_out_what_has_not_ended_by_the_sources_own_times(late_ms: int) -> None:
    at = array("q", (START_MS + late_ms + n * DAY_MS for n in range(3)))
    flat = array("d", [100.0] * 3)
    candles = Candles("BTC", "1d", at, flat, flat, flat, flat, flat)
    for now_ms, count in ((at[2] + DAY_MS - 1, 2), (at[2] + DAY_MS, 3), (at[1] + DAY_MS, 2)):
        assert len([one for one in closed(candles, now_ms).at_ms if one <= now_ms]) == count


@pytest.mark.parametrize("late_ms", [0, 30 * 60_000, 16 * HOUR_MS])
async def test_a_pull_leaves_out_what_has_not_ended_by_the_exchanges_own_times(late_ms: int) -> None:
    opens = [START_MS + late_ms + n * DAY_MS for n in range(4)]
    for now_ms in (opens[2] + 60_000, opens[3] - 60_000, opens[3] + 10_000, opens[3] + DAY_MS - 60_000):

        async def fetch(_interval: str, since_ms: int, limit: int, now_ms: int = now_ms) -> PageAnswer:
            rows = [Row(at, 1, 1, 1, 1, 1) for at in opens if since_ms <= at <= now_ms]
            return PageAnswer(rows[:limit], now_ms)

        pages = [page async for page in Pager(fetch, "1d", DAY_MS, now_ms, has_days=True).pages(START_MS)]
        got = [row.at_ms for page in pages for row in page.rows]
        assert got == [at for at in opens if at + DAY_MS <= now_ms - 5_000], iso(now_ms)
        assert all(a <= b for a, b in pairwise(page.until_ms for page in pages))
        unfinished = [at for at in opens if at <= now_ms and at not in got]
        assert not unfinished or pages[-1].until_ms <= unfinished[0]


class _Frame(dict[str, list[float]]):
    """As much of a pandas table as the source uses."""

    def __init__(self, index: list[datetime]) -> None:
        super().__init__({name: [100.0] * len(index) for name in ("Open", "High", "Low", "Close", "Volume")})
        self.index = index

    def __len__(self) -> int:
        return len(self.index)


@pytest.mark.parametrize("place", ["UTC", "America/New_York", "Europe/Berlin", "Asia/Tokyo", "Asia/Kolkata"])
@pytest.mark.parametrize(("interval", "minute"), [("1h", 0), ("1h", 30), ("1h", 15), ("1d", 0)])
async def test_yahoo_candles_are_stored_only_after_they_end_and_never_moved_back(
    place: str, interval: str, minute: int
) -> None:
    step = INTERVAL_MS[interval]
    first = datetime(2025, 6, 2, 9 if interval == "1h" else 0, minute, tzinfo=zone(place))
    own = [first + n * timedelta(milliseconds=step) for n in range(3)]
    for beyond in (-DAY_MS, -HOUR_MS, -60_000, 0, 61_000, HOUR_MS, DAY_MS):
        now_ms = ms(own[2]) + step + beyond
        ticker = SimpleNamespace(history=lambda **_wanted: _Frame(own))
        async with YfinanceSource(ticker=lambda _symbol, it=ticker: it, clock=ManualClock(now_ms)) as source:
            (page,) = [one async for one in source.history("X", interval, 0, now_ms, str)]
        for row, opened in zip(page.rows, own, strict=False):
            assert ms(opened) + step <= now_ms, "it has ended at Yahoo"
            assert row.at_ms + step <= now_ms, "it has ended in the store"
            if interval == "1h":
                assert row.at_ms >= ms(opened)
            else:
                assert iso(row.at_ms)[:10] == f"{opened:%Y-%m-%d}"
        if beyond == DAY_MS:
            assert len(page.rows) == 3


@pytest.mark.parametrize("late_ms", [0, 30 * 60_000])
@pytest.mark.parametrize("interval", ["1h", "4h", "1d"])
def test_the_history_of_recorded_prices_has_only_what_has_ended(interval: str, late_ms: int) -> None:
    step = INTERVAL_MS[interval]
    hours = [GridCandle(START_MS + late_ms + n * HOUR_MS, 1, 1, 1, 1, n + 1) for n in range(72)]
    for until_ms in (START_MS + 30 * HOUR_MS, START_MS + 48 * HOUR_MS + 1):
        found = RecordedSource(hours, HOUR_MS).closed(interval, until_ms, 100)
        assert all(one.ts + step <= until_ms for one in found)
        assert all(one.ts % step == 0 for one in found)
        done = sum(hour.volume for hour in hours if hour.ts + HOUR_MS <= until_ms - until_ms % step)
        assert sum(one.volume for one in found) == done


@pytest.mark.parametrize(
    ("late_ms", "flags", "code", "says"),
    [
        (0, [], 0, "causal: equal decisions on data cut at 5 instants"),
        (30_000, ["--accept-off-grid"], 1, "not proved: BTC: 600 rows off the grid of 1m (UTC)"),
        (30_000, [], 1, "--accept-off-grid: each row is moved forward to the next start of its interval, never back"),
    ],
)
def test_moved_candles_prove_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], late_ms: int, flags: list[str], code: int, says: str
) -> None:
    data = write(minutes(600, start_ms=START_MS + late_ms), tmp_path / "BTC_1m.csv")
    asked = ["--data", str(data), "--out", str(tmp_path / "runs"), "--prove-causal", *flags]
    assert call(["backtest", str(config(tmp_path)), *asked]) == code
    told = capsys.readouterr()
    assert says in told.out + told.err
    if flags:
        assert "error: not proved causal: BTC: 600 rows off the grid of 1m" in told.err


@pytest.mark.parametrize(("late_ms", "is_moved"), [(0, False), (30_000, True)])
def test_a_store_remembers_that_its_candles_were_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late_ms: int, is_moved: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write(minutes(600, start_ms=START_MS + late_ms), tmp_path / "BTC_1m.csv")
    assert call(["data", "import", "BTC_1m.csv", "--interval", "1m", "--accept-off-grid"]) == 0
    asked = ["--data", "data", "--prove-causal"]
    assert call(["backtest", str(config(tmp_path)), *asked]) == int(is_moved)
    told = capsys.readouterr()
    why = "BTC: some of its 1m candles were moved forward to the grid when they were stored"
    assert (f"error: not proved causal: {why}" in told.err) == is_moved
    assert (why in told.out) == is_moved
    # Candles on the grid in place of all of them are their source's again; of some of them they are not.
    write(minutes(599, start_ms=START_MS + 60_000), tmp_path / "BTC_1m.csv")
    assert call(["data", "import", "BTC_1m.csv", "--replace"]) == 0
    assert (tmp_path / "data/BTC/1m.moved").exists() == is_moved
    write(minutes(700, start_ms=START_MS), tmp_path / "BTC_1m.csv")
    assert call(["data", "import", "BTC_1m.csv", "--replace"]) == 0
    assert not (tmp_path / "data/BTC/1m.moved").exists()
    assert call(["backtest", str(config(tmp_path)), *asked]) == 0


@research
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("market", ["BTC", "SPY"])
def test_candles_that_end_later_than_at_their_source_are_marked_in_every_source(
    tmp_path: Path, name: str, market: str
) -> None:
    own = SOURCES[name]
    taken = usable(read_foreign(*_with(text_file(tmp_path, own), market)))
    # A share's day ends with its session in any zone.
    is_session = market == "SPY" and own[1].tzinfo is not UTC
    later = any(at != ms(own_opens(own)[int(volume) - 1]) for at, volume in zip(taken.at_ms, taken.volume, strict=True))
    assert taken.is_moved == (later and not is_session)


def _with(file: tuple[Path, ColumnMap], market: str) -> tuple[Path, str, ColumnMap]:
    return file[0], market, file[1]


@pytest.mark.parametrize(("first", "is_moved"), [("00:00", False), ("00:30", False), ("00:20", True)])
def test_half_hours_that_are_joined_across_the_grid_are_marked(tmp_path: Path, first: str, is_moved: bool) -> None:
    at = datetime.fromisoformat(f"2025-04-01T{first}:00+00:00")
    rows = [f"{at + n * timedelta(minutes=30):%Y-%m-%d %H:%M},100,102,99,101,1" for n in range(12)]
    (tmp_path / "x.csv").write_text("\n".join(["Date,Open,High,Low,Close,Volume", *rows]) + "\n")
    assert read_foreign(tmp_path / "x.csv", "BTC", ColumnMap(interval="1h")).is_moved == is_moved


@pytest.mark.parametrize(("minute", "is_moved"), [(0, False), (30, True)])
async def test_a_pull_of_half_hours_marks_the_store(tmp_path: Path, minute: int, is_moved: bool) -> None:
    own = [datetime(2025, 6, 2, 13, minute, tzinfo=UTC) + n * timedelta(hours=1) for n in range(3)]
    clock = ManualClock(ms(own[2]) + DAY_MS)
    ticker = SimpleNamespace(history=lambda **_wanted: _Frame(own))
    async with YfinanceSource(ticker=lambda _symbol: ticker, clock=clock) as source:
        wanted = WantedCandles(symbols.MappedCoin("SPY", "SPY", None), "1h", START_MS, clock.now_ms())
        target = PullTarget(Store(tmp_path), clock, accept=("gaps", "hours"))
        await Pull(source, wanted, target).run(str, lambda _progress: None)
    read = Store(tmp_path).read("SPY", "1h")
    assert read is not None
    assert read.is_moved == is_moved

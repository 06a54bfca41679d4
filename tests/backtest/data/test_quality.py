"""The audit: it finds every kind of fault with its row; a backtest refuses faults unless a flag accepts them;
findings in real files.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.backtest.data.candles import Candles, load, read_file
from bot.backtest.data.findings import ACCEPTS, KINDS, AuditReport, FaultyData
from bot.backtest.data.quality import audit, checked
from bot.cli.data import accept_flags
from bot.errors import ConfigError, Exit

HEADER = "ts,open,high,low,close,volume"
# 2025-06-16, a Monday
START = 1_750_032_000_000
MINUTE = 60_000
DAY = 86_400_000

Row = list[float]


def good(count: int = 400, *, seed: int = 1, step: int = MINUTE) -> list[Row]:
    """A calm market."""
    chance, px, made = random.Random(seed), 100.0, []
    for n in range(count):
        opened, px = px, round(px * (1 + chance.gauss(0, 0.0005)), 2)
        made.append([START + n * step, opened, max(opened, px) + 0.02, min(opened, px) - 0.02, px, 5.0 + n % 7])
    return made


def write(folder: Path, rows: list[Row], name: str = "BTC.csv") -> Path:
    path = folder / name
    lines = [",".join(str(int(cell)) if index == 0 else repr(cell) for index, cell in enumerate(row)) for row in rows]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def look(folder: Path, rows: list[Row], name: str = "BTC.csv") -> AuditReport:
    return audit(load([write(folder, rows, name)])[0])


def test_a_valid_file_has_no_findings(tmp_path: Path) -> None:
    report = look(tmp_path, good())
    assert report.findings == ()
    assert report.lines() == ["BTC 1m: 400 candles, 2025-06-16 00:00 to 2025-06-16 06:39: sound"]


def shift(rows: list[Row], index: int, ms: int) -> None:
    rows[index][0] += ms


# The damage to a valid file; the finding: kind, severity, count, row of the first example, and words of its text.
FAULTS: dict[str, tuple[Callable[[list[Row]], object], str, str, int, int, str]] = {
    "a hole of six": (lambda r: r.__delitem__(slice(100, 106)), "gap", "fault", 1, 102, "6 missing bars before it"),
    "a hole of five": (lambda r: r.__delitem__(slice(100, 105)), "gap", "note", 1, 102, "5 missing bars before it"),
    "many small holes": (
        lambda r: r.__delitem__(slice(10, 300, 20)),
        "gap",
        "fault",
        15,
        12,
        "1 missing bar before it",
    ),
    "a row twice": (lambda r: r.insert(50, list(r[50])), "duplicate", "note", 1, 53, "the same, in row 52"),
    "an instant twice": (
        lambda r: r.insert(50, [*r[50][:5], 99.0]),
        "duplicate",
        "fault",
        1,
        53,
        "other values, in row 52",
    ),
    "two rows exchanged": (
        lambda r: r.insert(10, r.pop(11)),
        "unsorted",
        "fault",
        1,
        13,
        "comes after 2025-06-16 00:11",
    ),
    "high below the close": (lambda r: r[7].__setitem__(2, 50.0), "ohlc", "fault", 1, 9, "high 50 is below low"),
    "an open outside": (
        lambda r: r[7].__setitem__(1, 101.5),
        "ohlc",
        "fault",
        1,
        9,
        "open 101.5 lies outside low..high",
    ),
    "a close outside": (
        lambda r: r[399].__setitem__(4, 99.0),
        "ohlc",
        "fault",
        1,
        401,
        "close 99 lies outside low..high",
    ),
    "a price of zero": (lambda r: r[3].__setitem__(3, 0.0), "price", "fault", 1, 5, "low is 0, it must be above 0"),
    "no number": (lambda r: r[3].__setitem__(4, float("nan")), "price", "fault", 1, 5, "close is nan"),
    "infinity": (lambda r: r[3].__setitem__(2, float("inf")), "price", "fault", 1, 5, "high is inf"),
    "too many digits": (
        lambda r: [one.__setitem__(slice(1, 5), [px * 1.23e-9 for px in one[1:5]]) for one in r],
        "digits",
        "fault",
        400,
        2,
        "close is 1.230738e-07, and 0.00000012 would be traded",
    ),
    "more than a price can be": (
        lambda r: r[3].__setitem__(2, 1e308),
        "price",
        "fault",
        1,
        5,
        "high is 1e+308, it must be above 0 and below 1e+12",
    ),
    "more than a volume can be": (
        lambda r: r[3].__setitem__(5, 1e308),
        "price",
        "fault",
        1,
        5,
        "volume is 1e+308, it must be at least 0 and below 1e+18",
    ),
    "a negative volume": (lambda r: r[3].__setitem__(5, -1.0), "price", "fault", 1, 5, "volume is -1"),
    "a wrong price": (
        lambda r: r[60].__setitem__(slice(1, 5), [100.0, 150.0, 100.0, 150.0]),
        "jump",
        "fault",
        2,
        62,
        "comes back at once",
    ),
    "a high wick": (lambda r: r[60].__setitem__(2, 120.0), "jump", "fault", 1, 62, "above open and close"),
    "a low wick": (lambda r: r[60].__setitem__(3, 80.0), "jump", "fault", 1, 62, "below open and close"),
    "a little without volume": (
        lambda r: [r[n].__setitem__(5, 0.0) for n in (5, 6)],
        "zero_volume",
        "note",
        2,
        7,
        "volume is 0",
    ),
    "much without volume": (
        lambda r: [one.__setitem__(5, 0.0) for one in r[::10]],
        "zero_volume",
        "fault",
        40,
        2,
        "volume is 0",
    ),
    "seconds": (
        lambda r: [one.__setitem__(0, one[0] // 1000) for one in r],
        "units",
        "fault",
        400,
        2,
        "looks like seconds",
    ),
    "microseconds": (
        lambda r: [one.__setitem__(0, one[0] * 1000) for one in r],
        "units",
        "fault",
        400,
        2,
        "looks like microseconds",
    ),
    "nanoseconds": (
        lambda r: [one.__setitem__(0, one[0] * 10**6) for one in r],
        "units",
        "fault",
        400,
        2,
        "looks like nanoseconds",
    ),
    "mixed units": (
        lambda r: [one.__setitem__(0, one[0] // 1000) for one in r[:9]],
        "units",
        "fault",
        9,
        2,
        "looks like seconds",
    ),
    "a row off the grid": (lambda r: shift(r, 20, 17_000), "off_grid", "fault", 1, 22, "is not on the grid of 1m"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_row(tmp_path: Path, name: str) -> None:
    spoil, kind, severity, count, row, words = FAULTS[name]
    rows = good()
    spoil(rows)
    report = look(tmp_path, rows)
    (found,) = [one for one in report.findings if one.kind == kind]
    assert (found.severity, found.count) == (severity, count)
    assert (found.examples[0].file, found.examples[0].row) == (tmp_path / "BTC.csv", row)
    assert words in found.examples[0].text
    assert {one.kind for one in report.faults} <= {kind}
    text = "\n".join(report.lines())
    assert f"BTC.csv: row {row}: " in text
    assert (f"--accept-{KINDS[kind].accept}" in text) == (severity == "fault" and KINDS[kind].accept is not None)


def test_every_kind_is_in_the_table_of_faults() -> None:
    assert {kind for _, kind, *_ in FAULTS.values()} | {"holiday", "hours", "odds"} == set(KINDS)


def test_the_flags_of_the_command_line_are_those_of_the_audit() -> None:
    assert set(accept_flags.ACCEPTS) == set(ACCEPTS)


def test_a_backtest_refuses_faulty_data_until_the_flag_is_given(tmp_path: Path) -> None:
    rows = good()
    del rows[100:200]
    read = load([write(tmp_path, rows)])
    with pytest.raises(FaultyData) as refused:
        checked(read)
    assert refused.value.exit_code is Exit.ERROR
    assert "100 missing bars before it" in str(refused.value)
    assert "Take them as they are with --accept-gaps" in str(refused.value)
    taken, (report,) = checked(read, accept=["gaps"])
    assert taken == read
    assert report.refused(["gaps"]) == ()
    with pytest.raises(ConfigError, match="--accept-gap is not known; there are --accept-unsorted"):
        checked(read, accept=["gap"])


def test_no_flag_accepts_wrong_units_or_prices_of_zero(tmp_path: Path) -> None:
    for spoil in ("seconds", "a price of zero", "too many digits"):
        rows = good()
        FAULTS[spoil][0](rows)
        with pytest.raises(FaultyData, match="Correct the data first"):
            checked(load([write(tmp_path, rows)]), accept=ACCEPTS)


@pytest.mark.parametrize(
    ("px", "is_sound"), [(1.23456, True), (0.00123456, True), (0.00001234, True), (0.0000123456, False), (3e-9, False)]
)
def test_small_prices_are_accepted_unless_rounding_loses_too_much(px: float, *, is_sound: bool) -> None:
    flat = Candles("BTC", "1m", array("q", [START]), *(array("d", [px]) for _ in range(4)), array("d", [5.0]))
    assert (audit(flat).findings == ()) is is_sound
    event = Candles("event:RATE-CUT", "1m", *(one[:] for one in flat.columns))
    assert not any(one.kind == "digits" for one in audit(event).findings), "shares of an event have thousandths"


def odds(*closes: float) -> Candles:
    px = array("d", closes)
    at_ms = array("q", (START + n * MINUTE for n in range(len(closes))))
    return Candles("event:RATE-CUT", "1m", at_ms, px, px, px, px, array("d", [5.0] * len(closes)))


def test_odds_beyond_the_price_limits_of_an_event_market_are_clamped() -> None:
    (held,), (report,) = checked([odds(0.0005, 0.001, 0.5, 0.999, 0.9995, 1)])
    (found,) = report.findings
    assert (found.kind, found.severity, found.count) == ("odds", "note", 3)
    assert [one.text for one in found.examples] == ["close is 0.0005", "high is 0.0005", "low is 0.0005"]
    assert [list(column) for column in (held.open, held.high, held.low, held.close)] == [
        [0.001, 0.001, 0.5, 0.999, 0.999, 0.999]
    ] * 4
    assert audit(odds(0.001, 0.5, 0.999)).findings == ()


def test_odds_in_cents_are_refused_with_advice() -> None:
    with pytest.raises(FaultyData, match="odds in cents or percent are divided by 100") as refused:
        checked([odds(0.9, 1, 45, 99)], accept=ACCEPTS)
    assert [one.count for one in refused.value.reports[0].findings] == [2]


def test_accepted_faults_are_repaired_as_the_table_says(tmp_path: Path) -> None:
    rows = good()
    # The row off the grid meets the one after it there, and the later one counts.
    expected = load([write(tmp_path, [*rows[:149], *rows[150:]], "BTC_whole.csv")])[0]
    # other values, which a later row corrects
    rows.insert(0, [*rows[50][:5], 1234.0])
    rows.insert(200, rows.pop(300))
    shift(rows, 150, 31_000)
    rows[77][2] = rows[77][4] - 0.001
    (read,) = load([write(tmp_path, rows)])
    assert {one.kind for one in audit(read).faults} >= {"duplicate", "unsorted", "off_grid", "ohlc"}
    (mended,), _ = checked([read], accept=ACCEPTS)
    assert list(mended.at_ms) == list(expected.at_ms)
    assert list(mended.close) == list(expected.close)
    assert mended.volume[50] == expected.volume[50]
    assert [one.kind for one in audit(mended).findings] == ["gap"]


def test_a_repeated_row_counts_once(tmp_path: Path) -> None:
    rows = good(20)
    (mended,), _ = checked(load([write(tmp_path, [*rows[:10], rows[9], *rows[10:]])]))
    assert len(mended) == 20


# ── Hours of an exchange ────────────────────────────────────────────────────────────────────────────────────────────


def share(days: list[int], minutes: range = range(390), interval: str = "1m") -> Candles:
    """Minutes of regular hours (13:30 UTC in June) on some days from Monday, 16 June 2025."""
    at = array("q", (START + day * DAY + (13 * 60 + 30 + minute) * MINUTE for day in days for minute in minutes))
    flat = array("d", [100.0]) * len(at)
    return Candles("AAPL", interval, at, flat, flat, flat, flat, flat)


def test_nights_weekends_and_holidays_of_a_share_are_no_gaps() -> None:
    # 19 June is a holiday, 21 and 22 a weekend
    assert audit(share([0, 1, 2, 4, 7, 8])).findings == ()
    assert audit(share([0, 1, 2, 4, 7, 8]), hours="continuous").faults[0].kind == "gap"


def test_rows_on_a_holiday_are_reported_only_for_known_exchanges() -> None:
    # 19 June is a holiday
    (found,) = audit(share([0, 1, 2, 3, 4, 7])).findings
    assert (found.kind, found.severity, found.count) == ("holiday", "note", 390)
    assert found.examples[0].text == "the exchange was closed on 2025-06-19"
    assert audit(share([0, 1, 2, 3, 4, 5])).findings == (), "who trades on Saturdays knows no holidays"
    currency = Candles("EURUSD", "1m", *share([0, 1, 2, 3, 4, 7]).columns)
    assert audit(currency).hours == "equity"
    assert audit(currency).findings == (), "its hours are a guess"
    assert [one.kind for one in audit(currency, hours="equity").findings] == ["holiday"]


def test_a_trading_day_that_is_missing_is_a_fault() -> None:
    (found,) = audit(share([0, 2])).faults
    assert found.kind == "gap"
    assert "1 trading day is missing (2025-06-17)" in found.text


@pytest.mark.parametrize(
    ("days", "minutes", "missing"),
    [
        # 3 July is a half day, 4 July a holiday
        ([16, 17, 21], 210, None),
        ([16, 17, 21], 170, 40),
        ([16, 17, 21], 180, 30),
        ([16, 21], 0, 210),
        # 17 June is a normal day
        ([0, 1, 2], 210, 180),
        ([0, 1, 2], 390, None),
    ],
)
def test_a_day_ends_at_one_oclock_only_where_the_calendar_has_a_half_day(
    days: list[int], minutes: int, missing: int | None
) -> None:
    parts = [share([day], range(minutes) if len(days) == 3 and day == days[1] else range(390)) for day in days]
    columns = [sum(column[1:], column[0]) for column in zip(*(one.columns for one in parts), strict=True)]
    found = audit(Candles("AAPL", "1m", *columns)).findings
    assert [one.text.split(", ")[1].split(" (")[0] for one in found] == (
        [] if missing is None else [f"{missing} missing bars"]
    )
    assert [one.severity for one in found] == ([] if missing is None else ["note" if missing == 30 else "fault"])


def test_quiet_minutes_of_a_share_are_a_note_and_a_quiet_hour_is_a_fault() -> None:
    one = share([0])
    for gone, severity in ((range(50, 80), "note"), (range(50, 81), "fault")):
        (found,) = audit(one.pick([n for n in range(390) if n not in gone])).findings
        assert (found.kind, found.severity) == ("gap", severity)


def test_an_unlisted_market_without_saturdays_has_an_exchanges_hours() -> None:
    columns = share([0, 1, 2, 4, 7, 8]).columns
    assert audit(Candles("QQQ", "1m", *columns)).hours == "equity"
    assert audit(Candles("QQQ", "1m", *share([0, 1]).columns)).hours == "continuous"


def test_a_share_may_move_over_a_night_as_far_as_over_a_day() -> None:
    one = share([0, 1])
    for factor, faults in ((1.3, 0), (1.6, 1)):
        columns = [array("d", (100.0 if n < 390 else 100.0 * factor for n in range(780)))] * 4
        assert len(audit(Candles("AAPL", "1m", one.at_ms, *columns, one.volume)).faults) == faults


def priced(one: Candles, closes: list[float], market: str = "AAPL") -> Candles:
    px = array("d", closes)
    return Candles(market, one.interval, one.at_ms, px, px, px, px, one.volume)


def daily(count: int) -> Candles:
    at = array("q", (START + day * DAY for day in range(200) if day % 7 < 5))[:count]
    flat = array("d", [100.0]) * len(at)
    return Candles("AAPL", "1d", at, flat, flat, flat, flat, flat)


@pytest.mark.parametrize(
    ("after", "split", "way"),
    [
        (100 / 1.5, "3-for-2", "divide the prices before it by 1.5"),
        (100 / 1.4, "7-for-5", "divide the prices before it by 1.4"),
        (100 / 1.25, "5-for-4", "divide the prices before it by 1.25"),
        (101 * 0.75, "4-for-3", "divide the prices before it by 1.33333"),
        (50.9, "2-for-1", "divide the prices before it by 2"),
        (100 / 1.2, "6-for-5", "divide the prices before it by 1.2"),
        (100.5 / 1.1, "11-for-10", "divide the prices before it by 1.1"),
        (1000.0, "1-for-10", "multiply the prices before it by 10"),
    ],
)
def test_an_unadjusted_split_is_refused_with_its_row_and_advice(after: float, split: str, way: str) -> None:
    minutes, days = share([0, 1]), daily(20)
    for one, row in ((minutes, 390), (days, 10)):
        (found,) = audit(priced(one, [100.0] * row + [after] * (len(one) - row))).faults
        assert (found.kind, found.count, found.accept) == ("jump", 1, "jumps")
        assert found.examples[0].row == row + 1
        assert found.examples[0].text.endswith(f": perhaps a {split} split that was not adjusted; {way}")
    assert (
        "1 row with the move of an unadjusted split" in audit(priced(days, [100.0] * 10 + [75.0] * 10)).faults[0].text
    )


@pytest.mark.parametrize(
    ("nightly", "volume", "faults"), [(0.002, 1.0, 1), (0.002, 3.0, 0), (0.03, 1.0, 0)], ids=["split", "news", "usual"]
)
def test_a_small_split_is_suspected_where_the_move_is_far_beyond_the_usual_ones_and_the_volume_is_not(
    nightly: float, volume: float, faults: int
) -> None:
    """A fall of 9 % is an 11-for-10 split of a calm share; with three times the volume it is news."""
    closes = [100.0 * (1 + nightly * (number % 2)) for number in range(10)]
    closes += [px / 1.1 for px in closes]
    one = priced(daily(20), closes)
    one.volume[10] *= volume
    assert len(audit(one).faults) == faults


def test_a_move_inside_a_session_or_one_that_reverts_is_not_a_split() -> None:
    days, split = daily(20), [100.0] * 10 + [75.0] * 10
    assert audit(priced(days, [100.0] * 10 + [77.0] * 10)).faults == (), "no usual split"
    assert audit(priced(days, [100.0] * 10 + [75.0] + [100.0] * 9)).faults == (), "it comes back"
    hours = share([0, 1, 2], range(0, 390, 60), "1h")
    hours = Candles("AAPL", "1h", array("q", (at - at % 3_600_000 for at in hours.at_ms)), *hours.columns[1:])
    assert audit(priced(hours, [100.0] * 10 + [81.0] * 11)).faults == (), "within a session"
    assert [one.kind for one in audit(priced(hours, [100.0] * 7 + [81.0] * 14)).faults] == ["jump"]
    assert audit(priced(days, split, "BTC"), hours="continuous").faults == (), "no exchange closes there"


# ── Times of another clock ──────────────────────────────────────────────────────────────────────────────────────────

# from Monday, 16 June 2025, without the holiday
WEEK = [0, 1, 2, 4, 7, 8]
# from Monday, 19 January 2026
WINTER = [day + 217 for day in (0, 1, 2, 3, 4)]
SUMMER_SHIFT, WINTER_SHIFT = 4 * 60, 5 * 60


def shifted(one: Candles, minutes: int, market: str = "AAPL") -> Candles:
    """The times as New York's wall clock shows them."""
    return Candles(market, one.interval, array("q", (at - minutes * MINUTE for at in one.at_ms)), *one.columns[1:])


def every(one: Candles, interval: str, step: int) -> Candles:
    """Coarser candles on the grid of UTC."""
    at = array("q", sorted({at - at % (step * MINUTE) for at in one.at_ms}))
    flat = array("d", [100.0]) * len(at)
    return Candles(one.market, interval, at, flat, flat, flat, flat, flat)


@pytest.mark.parametrize("minutes", [range(390), range(-330, 630)], ids=["regular", "extended"])
@pytest.mark.parametrize(("days", "shift"), [(WEEK, SUMMER_SHIFT), (WINTER, WINTER_SHIFT)], ids=["summer", "winter"])
def test_times_of_new_yorks_wall_clock_are_refused_and_times_of_utc_are_not(
    days: list[int], shift: int, minutes: range
) -> None:
    utc = share(days, range(minutes.start + shift - SUMMER_SHIFT, minutes.stop + shift - SUMMER_SHIFT))
    for step, interval in ((1, "1m"), (5, "5m"), (15, "15m"), (60, "1h"), (240, "4h")):
        assert not any(one.kind == "hours" for one in audit(every(utc, interval, step)).findings), interval
        wall = every(shifted(utc, shift), interval, step)
        found = next(one for one in audit(wall).faults if one.kind == "hours")
        assert "`bot data import --tz America/New_York`" in found.text
        assert found.examples[0].text.endswith(" in New York")
        with pytest.raises(FaultyData, match="--accept-hours"):
            checked([wall], accept=["gaps"])
        checked([wall], accept=["gaps", "hours"])


def test_a_market_with_guessed_hours_gets_a_note_about_its_time_zone() -> None:
    (found,) = (one for one in audit(shifted(share(WEEK), SUMMER_SHIFT, "QQQ")).findings if one.kind == "hours")
    assert (found.severity, found.count) == ("note", 6 * SUMMER_SHIFT)
    assert found.examples[0].text == "is 05:30 in New York"
    assert found.text.startswith(
        "the rows fill 38% of the exchange's regular hours, and 100% if their times are New York's"
    )


def test_unknown_hours_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are continuous, equity, index"):
        audit(share([0]), hours="nyse")


# ── Real files ──────────────────────────────────────────────────────────────────────────────────────────────────────

# (kind, severity, count) of every finding, by what SOURCES says of the files.
REAL: dict[str, set[tuple[str, str, int]]] = {
    "crypto/ftx_BTC-PERP_1m_202201.csv.gz": set(),
    "crypto/hl_BTC_1h.csv.gz": set(),
    "crypto/hl_BTC_5m.csv.gz": {("zero_volume", "note", 2)},
    "crypto/hl_PAXG_5m.csv.gz": {("gap", "note", 1), ("zero_volume", "note", 4)},
    "crypto/hl_PAXG_1m.csv.gz": {("zero_volume", "fault", 1126)},
    "crypto/hl_BTC_1d.csv.gz": {("zero_volume", "fault", 921)},
    "stocks/lean_SPY_1d.csv.gz": set(),
    "stocks/lean_SPY_1h.csv.gz": set(),
    "stocks/lean_SPY_1m_201310.csv.gz": set(),
    "stocks/lean_AAPL_1d.csv.gz": {("jump", "fault", 4)},
    "stocks/av_SPY_1m_201902.csv.gz": {("zero_volume", "note", 1)},
    "stocks/av_TSLA_1m_201902.csv.gz": {("gap", "note", 4), ("zero_volume", "note", 1)},
    "bonds/lean_SHY_1m_200803.csv.gz": {("gap", "note", 96)},
    "bonds/yahoo_TLT_1d.csv.gz": set(),
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_file_has_its_known_findings(shared: Path, name: str) -> None:
    report = audit(load([shared / "data" / name])[0])
    assert {(one.kind, one.severity, one.count) for one in report.findings} == REAL[name]


def test_the_days_on_which_a_shares_prices_were_wrong_are_named(shared: Path) -> None:
    (found,) = audit(load([shared / "data/stocks/lean_AAPL_1d.csv.gz"])[0]).faults
    shown = [str(one).split("gz: ")[1] for one in found.examples]
    assert shown == [
        "row 694: 2000-09-29 00:00: close 0.460892 is -51.6% from 0.953212",
        "row 2949: 2009-09-21 00:00: low 0.378214 is 94% below open and close",
        "row 3187: 2010-08-31 00:00: low 0.903572 is 90% below open and close",
    ]


def test_currency_rates_have_no_weekends(shared: Path) -> None:
    read = read_file(shared / "data/oracle/btpy_EURUSD_1h.csv.gz", market="EURUSD")
    report = audit(read)
    assert report.hours == "equity"
    assert report.faults == ()

"""Recorded funding rates: the rate of each hour, and the files that a backtest refuses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.backtest.data.candles import load
from bot.backtest.data.funding_rates import read_funding
from bot.cli.app import call
from bot.clock import HOUR_MS, ms_of
from bot.errors import ConfigError
from bot.strategy import Bar, Bracket, Intent, Open, View
from bot.venue.model.numbers import E8
from tests.backtest.builders import FREE, START_MS, config, minutes, ran, settings, write

BASE = "0.0000125"


def file(folder: Path, rows: list[str], *, header: str = "ts,rate", name: str = "BTC.csv") -> Path:
    (folder / name).write_text("\n".join([header, *rows]) + "\n")
    return folder / name


def hourly(first: int, last: int, *, skip: range = range(0), rate: str = BASE) -> list[str]:
    return [f"{START_MS + hour * HOUR_MS},{rate}" for hour in range(first, last) if hour not in skip]


@pytest.mark.parametrize(
    ("apart", "hours"),
    [
        # a venue that began to pay every hour
        ([8, 8, 1, 1, 1], [8, 8, 8, 1, 1, 1]),
        ([1, 1, 8, 8], [1, 1, 1, 8, 8]),
        # a gap does not make a rate of three hours
        ([1, 1, 3, 1, 1], [1] * 6),
        ([8, 16, 8], [8] * 4),
        ([1, 1, 5], [1] * 4),
        ([8, 8, 48, 8], [8] * 5),
        ([24], [24, 24]),
        ([], [1]),
    ],
)
def test_a_rate_is_paid_at_its_instant_for_the_hours_since_the_rate_before(
    tmp_path: Path, apart: list[int], hours: list[int]
) -> None:
    at = [START_MS + sum(apart[:number]) * HOUR_MS for number in range(len(apart) + 1)]
    read = read_funding(file(tmp_path, [f"{ts + 7},0.0024" for ts in at]))
    assert read.rates == [(ts, 2_400_000_000, every) for ts, every in zip(at, hours, strict=True)]


@pytest.mark.parametrize("header", ["ts,rate", "Time,fundingRate", "symbol,fundingTime,fundingRate,markPrice"])
def test_the_column_names_of_exchanges_and_empty_lines_are_accepted(tmp_path: Path, header: str) -> None:
    rows = hourly(0, 3) if header.startswith(("ts", "Time")) else [f"BTCUSDT,{row},5" for row in hourly(0, 3)]
    assert len(read_funding(file(tmp_path, [*rows, "", "  "], header=header)).rates) == 3


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has no rates"),
        ([f"{START_MS // 1_000},{BASE}"], "row 2: ts 1748736000 looks like seconds, it must be milliseconds UTC"),
        (
            [*hourly(0, 2), f"{(START_MS + 2 * HOUR_MS) * 1_000},{BASE}"],
            "row 4: ts 1748743200000000 looks like microseconds",
        ),
        (["2025-06-01 00:00,0.0001"], "row 2: ts '2025-06-01 00:00' is no whole number of milliseconds UTC"),
        (["1748736000000.5,0.0001"], "row 2: ts '1748736000000.5' is no whole number"),
        (
            [*hourly(0, 2), f"{START_MS},0.5"],
            "row 4: ts 1748736000000 (2025-06-01 00:00) is there already in row 2; cut one of them out",
        ),
        (
            [*hourly(0, 1), *hourly(2, 3), *hourly(1, 2)],
            "row 4: ts 1748739600000 (2025-06-01 01:00) does not come after the row before it (2025-06-01 02:00); sort",
        ),
        ([*hourly(0, 2), f"{START_MS + 2 * HOUR_MS},0.01%"], "row 4: rate '0.01%' is no number; a fraction is meant"),
        ([f"{START_MS},Infinity"], "row 2: rate 'Infinity' is no number"),
        ([f"{START_MS},"], "row 2: rate '' is no number"),
        ([f"{START_MS},0.5"], "row 2: rate 0.5 is more than 0.04 an hour either way"),
        ([f"{START_MS},1e300"], "row 2: rate 1e+12 is more than 0.04"),
        ([*hourly(0, 2), str(START_MS + 2 * HOUR_MS)], "row 4: has 1 column, not 2"),
        ([f"{START_MS + n * 60_000},{BASE}" for n in range(3)], "row 3: is 60 s after the one before"),
        (
            [f"{START_MS + n * 60_000},{BASE}" for n in (0, 65, 110)],
            "row 4: is paid at 2025-06-01 02:00 as the row before",
        ),
        ([f"{START_MS + n * 48 * HOUR_MS},{BASE}" for n in range(3)], "its rates are 48 hours apart; at most a day"),
    ],
)
def test_a_bad_funding_file_is_named_with_its_row_and_what_is_wrong(tmp_path: Path, rows: list[str], said: str) -> None:
    path = file(tmp_path, rows)
    with pytest.raises(ConfigError) as refused:
        read_funding(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)


def test_a_file_without_rates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="row 1: the columns are 'when,what', they must hold ts and rate"):
        read_funding(file(tmp_path, ["1,2"], header="when,what"))
    with pytest.raises(ConfigError, match=r"BTC\.parquet: funding is read from CSV"):
        read_funding(file(tmp_path, [], name="BTC.parquet"))


# 23 payments: at its first instant nothing is open
DAY: tuple[int, int] = (START_MS, START_MS + 24 * HOUR_MS)


@pytest.mark.parametrize(
    ("rows", "accept", "said"),
    [
        (hourly(0, 25), (), None),
        (
            hourly(-500, -400),
            ("gaps",),
            (
                "no rate from 2025-06-01T00:00:00.000Z to 2025-06-02T00:00:00.000Z, which is the session; they are of"
                " 2025-05-11"
            ),
        ),
        (hourly(400, 500), ("gaps",), "no rate from 2025-06-01T00:00"),
        (
            hourly(-5, 25, skip=range(8, 14)),
            (),
            (
                "6 of 23 payments are not recorded; the longest hole begins at 2025-06-01 08:00, after row 14: 6"
                " payments. --accept-gaps: the rate before goes on"
            ),
        ),
        (
            hourly(9, 30),
            (),
            "8 of 23 payments are not recorded; the longest hole begins at 2025-06-01 01:00, before row 2",
        ),
        (
            hourly(-5, 10),
            (),
            "14 of 23 payments are not recorded; the longest hole begins at 2025-06-01 10:00, after row 16",
        ),
        (
            hourly(0, 25, rate="0.00125"),
            (),
            "column 'rate': the middle rate is 0.001250 an hour, 1095% a year: it looks like percent",
        ),
        (hourly(0, 25, rate="0.00125"), ("jumps",), None),
        # one row is one rate for all the time from then on
        ([f"{START_MS - 9 * HOUR_MS},0"], (), None),
    ],
)
def test_rates_outside_the_time_of_the_backtest_are_refused(
    tmp_path: Path, rows: list[str], accept: tuple[str, ...], said: str | None
) -> None:
    read = read_funding(file(tmp_path, rows))
    if said is None:
        assert read.judged(*DAY, accept) is None
        return
    with pytest.raises(ConfigError) as refused:
        read.judged(*DAY, accept)
    assert f"{read.path}: {said}" in str(refused.value)


def test_a_few_payments_that_are_missing_are_an_assumption_and_many_when_they_are_accepted(tmp_path: Path) -> None:
    few = read_funding(file(tmp_path, hourly(0, 25, skip=range(8, 13))))
    then = "payments are not recorded: the rate before goes on, and before the first the baseline"
    assert few.judged(*DAY) == f"5 of 23 {then}"
    many = read_funding(file(tmp_path, hourly(0, 3)))
    assert many.judged(*DAY, ("gaps",)) == f"21 of 23 {then}"
    eights = read_funding(file(tmp_path, [f"{START_MS + hour * HOUR_MS},0.0001" for hour in (-8, 0, 8, 24, 32)]))
    assert eights.judged(*DAY) == f"8 of 23 {then.replace('payments', 'hours')}", "one row is missing, not eight"


def test_rates_of_eight_hours_say_that_they_are_paid_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_funding(file(tmp_path, hourly(0, 25))).parts is None
    rates = file(tmp_path, [f"{START_MS + hour * HOUR_MS},0.0001" for hour in (-8, 0, 8, 16)], name="eights.csv")
    data = write(minutes(600), tmp_path / "BTC_1m.csv")
    arguments = ["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(tmp_path / "runs")]
    assert call([*arguments, "--funding", f"BTC={rates}"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    said = json.loads((run / "manifest.json").read_text())["assumptions"]
    assert any(one.startswith("BTC: funding: a rate of 8 hours is paid whole at its instant") for one in said)


def test_a_backtest_lists_its_funding_assumptions_and_refuses_rates_of_untraded_markets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(minutes(600), tmp_path / "BTC_1m.csv")
    rates = file(tmp_path, hourly(0, 7))
    arguments = ["backtest", str(config(tmp_path)), "--data", str(data), "--out", str(tmp_path / "runs"), "--funding"]
    for given, said in (
        ([f"ETH={rates}"], "no strategy trades ETH; they trade BTC"),
        ([str(rates), "--funding", f"BTC={rates}"], "has the rates of BTC already; give one of them"),
        ([str(tmp_path / "BTC_none.csv")], "BTC_none.csv: there is no such file"),
        (
            [str(file(tmp_path, hourly(90, 99), name="BTC_late.csv"))],
            "no rate from 2025-06-01T00:00:00.000Z to 2025-06-01T10:00",
        ),
    ):
        assert call([*arguments, *given]) == 4
        err = capsys.readouterr().err
        assert said in err
        assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
    assert call([*arguments, str(rates)]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    told = "BTC: funding: 3 of 9 payments are not recorded: the rate before goes on, and before the first the baseline"
    assert told in json.loads((run / "manifest.json").read_text())["assumptions"]


@pytest.mark.parametrize(("interval", "funding_usd"), [("1h", -1.498), ("1d", -1.606)])
def test_shares_pay_the_baseline_after_a_weekend_on_daily_candles_as_on_hourly_ones(
    shared: Path, interval: str, funding_usd: float
) -> None:
    """The daily candle of a Monday begins an hour before the exchange opens, and its price is not the oracle's yet."""

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=1_000, bracket=Bracket(stop_pct=20))

    data = load([shared / f"data/stocks/lean_AAPL_{interval}.csv.gz"], market="AAPL")
    start_ms, end_ms = (ms_of(datetime(2021, 1, day, tzinfo=UTC)) for day in (20, 30))
    made = settings(["AAPL"], interval=interval)
    one = ran(data, made=made, script=script, rules=FREE, start_ms=start_ms, end_ms=end_ms)
    assert one.result.trade_ledger.funding / E8 == pytest.approx(funding_usd, abs=0.005)

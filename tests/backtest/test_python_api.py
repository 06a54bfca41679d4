"""`from bot.backtest import run`: the same result as `bot backtest`, as data frames; what cannot be used is an error
with its name.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from bot.backtest import BacktestRun, run
from bot.backtest.results import layout
from bot.clock import iso
from bot.errors import BotError, ConfigError
from tests.backtest.builders import MINUTE_MS, START_MS, backtested, config, minutes, write

pytest.importorskip("polars")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(minutes(600), tmp_path / "BTC_1m.csv")


@pytest.fixture
def result(tmp_path: Path, data: Path) -> BacktestRun:
    return run(config(tmp_path, use="bench:Cross"), data, out=tmp_path / "mine")


def test_its_folder_is_that_of_the_backtested(tmp_path: Path, data: Path, result: BacktestRun) -> None:
    folder = backtested(tmp_path, config(tmp_path, use="bench:Cross"), data)
    for name in layout.NAMES:
        assert (result.folder / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_data_frames_have_the_trades_the_equity_and_the_figures(result: BacktestRun) -> None:
    done = result.trades.filter(result.trades["exit_at"].is_not_null())
    assert done.height == result.figures["# Trades"] > 5
    assert done["entry_at"][0] == datetime.fromtimestamp(result.stored.trades[0].entry_ms / 1000, UTC)
    ends_usd = result.stored.summary["endUsd"]
    assert result.equity["equity_usd"][-1] == pytest.approx(ends_usd, abs=1e-6)
    assert result.equity["drawdown_pct"].min() == pytest.approx(result.figures["Max. Drawdown [%]"], abs=1e-6)
    figures = dict(result.statistics.iter_rows())
    assert figures["# Trades"] == result.figures["# Trades"]


def test_a_range_a_balance_and_params_are_those_of_the_backtested(tmp_path: Path, data: Path) -> None:
    start_ms = START_MS + 300 * MINUTE_MS
    made = config(tmp_path, use="bench:Cross")
    found = [
        run(made, [str(data)], start=start, params={"one.fast_bars": 4}, balance_usd=5_000, out=tmp_path / "mine")
        for start in (start_ms, iso(start_ms))
    ]
    folder = backtested(
        tmp_path, made, data, "--from", iso(start_ms), "--balance", "5000", "--param", "one.fast_bars=4"
    )
    for one in found:
        assert (one.folder / "summary.json").read_bytes() == (folder / "summary.json").read_bytes()


def test_a_range_may_be_given_as_dates(tmp_path: Path, data: Path) -> None:
    found = run(config(tmp_path), data, start=date(2025, 6, 1), end=date(2025, 6, 2), out=tmp_path / "dates")
    assert found.stored.summary["course"]["fromMs"] == 1_748_736_000_000


def test_charts_and_report_are_pages_that_are_whole(tmp_path: Path, result: BacktestRun) -> None:
    pytest.importorskip("litecharts")
    assert result.report() == result.folder / "report.html"
    page = result.plot().save(tmp_path / "charts.html").read_text()
    assert page.startswith("<!doctype html>")
    assert 'src="http' not in page
    assert "<table" not in page.split("<script")[0], "charts alone"
    assert "&lt;!doctype html&gt;" in result.plot()._repr_html_()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": "none.yaml"}, "none.yaml"),
        ({"data": "none.csv"}, "none.csv"),
        ({"start": "yesterday"}, "start: 'yesterday' is not a time; write 2025-05-01"),
        ({"start": 1.5}, "start: 1.5 is not a time"),
        ({"config": BacktestRun}, "config: BacktestRun is no path: write the path of a config"),
        ({"data": BacktestRun}, "data: BacktestRun is no path: .*df.to_csv"),
        ({"data": [{"ts": 1}]}, "data: dict is no path"),
        ({"data": []}, "data: there is nothing in the list"),
        ({"params": {"every": 4}}, "params: 'every': write STRATEGY.PARAM"),
        ({"params": {"other.fast_bars": 4}}, "no strategy 'other'; there are one"),
        ({"params": {"one.fast_bars": 0}}, "greater than or equal to 1"),
        ({"params": {"one.fast_bar": 4}}, "did you mean .fast_bars"),
    ],
)
def test_what_cannot_be_used_is_named_and_no_folder_is_made(
    tmp_path: Path, data: Path, given: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run(**{"config": config(tmp_path, use="bench:Cross"), "data": data, "out": tmp_path / "mine", **given})
    assert not (tmp_path / "mine").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, data: Path) -> None:
    with pytest.raises(BotError, match="cannot be created"):
        run(config(tmp_path), data, out=data / "below a file")

"""`from bot.backtest import run`: the same result as `bot backtest`, as data frames; what cannot be used is an error
with its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import types
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from bot import Bar, Bracket, Close, Intent, Open, Params, Strategy, View, sma
from bot.backtest import BacktestRun, run
from bot.backtest.results import layout
from bot.clock import iso
from bot.errors import BotError, ConfigError
from bot.notebook import resample
from bot.strategy import BarArrays, Signals, crossed_above
from tests.backtest.builders import MINUTE_MS, START_MS, backtested, config, minutes, write

polars = pytest.importorskip("polars")


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
        ({"strategy": "none.yaml"}, "none.yaml"),
        ({"data": "none.csv"}, "none.csv"),
        ({"start": "yesterday"}, "start: 'yesterday' is not a time; write 2025-05-01"),
        ({"start": 1.5}, "start: 1.5 is not a time"),
        ({"strategy": BacktestRun}, "strategy: BacktestRun is neither the path of a config nor a class"),
        ({"strategy": 5}, "strategy: int is neither"),
        ({"markets": "ETH"}, "markets and interval are those of the config"),
        ({"interval": "5m"}, "markets and interval are those of the config"),
        ({"data": BacktestRun}, "data: BacktestRun is neither a path nor a frame"),
        ({"data": [{"ts": 1}]}, "data: dict in a list is no path"),
        ({"data": {}}, "data: there is no market in it"),
        ({"data": {"BTC": 5}}, "data: BTC: int is neither a path nor a frame"),
        ({"data": polars.DataFrame({"ts": [1], "px": [2]})}, "px"),
        ({"data": polars.DataFrame()}, "data: BTC: the frame has no rows"),
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
        run(**{"strategy": config(tmp_path, use="bench:Cross"), "data": data, "out": tmp_path / "mine", **given})
    assert not [path for path in (tmp_path / "mine").glob("*") if path.name != "inputs"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, data: Path) -> None:
    with pytest.raises(BotError, match="cannot be created"):
        run(config(tmp_path), data, out=data / "below a file")


class Cross(Strategy):
    """Long while the fast average is above the slow one."""

    class Params(Params):
        fast_bars: int = 5
        slow_bars: int = 20

    fast = sma("fast_bars")
    slow = sma("slow_bars")

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        fast, slow = self.fast[bar.market], self.slow[bar.market]
        if fast is None or slow is None:
            return
        if fast > slow and not view.position(bar.market) and not view.orders(bar.market):
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=3))
        elif fast < slow and view.position(bar.market):
            yield Close(bar.market)


def notebook_class() -> type[Strategy]:
    """The class as a notebook has it: of `__main__`, without a file."""
    return type("Cross", (Cross,), {"__module__": "__main__", "__doc__": "From a cell."})


@pytest.fixture
def frame(data: Path) -> Any:
    return polars.read_csv(data)


def pandas_frame(frame: Any) -> Any:
    """The frame as people have it in pandas: times in the index, names with a capital."""
    pandas = pytest.importorskip("pandas")
    made = pandas.DataFrame(frame.to_dict(as_series=False))
    made.index = pandas.to_datetime(made.pop("ts"), unit="ms", utc=True)
    return made.rename(columns=str.capitalize)


@pytest.mark.parametrize("strategy", [Cross, notebook_class()], ids=["file", "notebook"])
def test_a_class_and_frames_in_any_form_give_the_run_of_the_file(
    strategy: type[Strategy], tmp_path: Path, data: Path, frame: Any
) -> None:
    by_file = run(strategy, {"BTC": data}, params={"fast_bars": 4}, out=tmp_path / "mine")
    assert by_file.figures["# Trades"] > 5
    dated = frame.with_columns(polars.from_epoch("ts", time_unit="ms")).rename({"ts": "Date"})
    for given in (frame, frame.lazy(), {"BTC": frame}, dated, pandas_frame(frame), f"BTC={data}"):
        found = run(strategy, given, params={"fast_bars": 4}, out=tmp_path / "mine")
        assert (found.folder / "events.jsonl").read_bytes() == (by_file.folder / "events.jsonl").read_bytes()
    assert run(strategy, frame, out=tmp_path / "mine").figures != by_file.figures, "the params count"


def test_a_config_takes_a_frame_too(tmp_path: Path, data: Path, frame: Any) -> None:
    made = config(tmp_path, use="bench:Cross")
    by_file, by_frame = (run(made, given, out=tmp_path / "mine") for given in (data, frame))
    assert by_frame.figures == by_file.figures


def test_several_markets_are_a_mapping(tmp_path: Path, data: Path, frame: Any) -> None:
    found = run(Cross, {"BTC": frame, "ETH": data}, interval="5m", budget_usd=5_000, out=tmp_path / "mine")
    assert set(found.trades["market"]) == {"BTC", "ETH"}
    with pytest.raises(ConfigError, match="a frame is of one market, and BTC, ETH are traded"):
        run(Cross, frame, markets=["BTC", "ETH"], out=tmp_path / "mine")


def test_the_run_of_a_class_in_a_file_can_be_repeated_by_another_process(tmp_path: Path, frame: Any) -> None:
    (tmp_path / "mine.py").write_text((Path(__file__).parent / "strategies" / "bench.py").read_text())
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mine"] = module
    try:
        spec.loader.exec_module(module)
        found = run(module.Cross, frame, out=tmp_path / "runs")
    finally:
        del sys.modules["mine"]
    (candles,) = (tmp_path / "runs" / "inputs").rglob("BTC.csv")
    done = subprocess.run(
        [sys.executable, "-m", "bot", "replay", str(found.folder), "--data", str(candles)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_printed_it_shows_the_statistics_in_full(result: BacktestRun) -> None:
    text = str(result)
    assert text.startswith(result.folder.name)
    for name in ("Sharpe ratio", "Max. drawdown", "Closed trades", "Fees", "VaR 95 %"):
        assert name in text
    assert f"{result.figures['# Trades']:,}" in text


def test_the_progress_is_shown_on_request_only(tmp_path: Path, frame: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(Cross, frame, out=tmp_path / "mine", progress=True)
    assert "100 %  600 of 600 bars" in capsys.readouterr().err
    run(Cross, frame, out=tmp_path / "mine")
    assert "bars" not in capsys.readouterr().err


def test_a_frame_with_several_levels_of_names_is_refused(tmp_path: Path, frame: Any) -> None:
    pandas = pytest.importorskip("pandas")
    wide = pandas.concat({"BTC": pandas_frame(frame)}, axis=1)
    with pytest.raises(ConfigError, match="2 levels of column names; take one market"):
        run(Cross, wide, out=tmp_path / "mine")
    assert run(Cross, wide.xs("BTC", axis=1, level=0), out=tmp_path / "mine").figures["# Trades"] > 5


@pytest.mark.parametrize(
    ("given", "traded"),
    [
        (lambda files: files["ETH"], {"ETH"}),
        (lambda files: str(files["ETH"]), {"ETH"}),
        (lambda files: f"SOL={files['ETH']}", {"SOL"}),
        (lambda files: list(files.values()), {"BTC", "ETH"}),
        (lambda files: files["ETH"].parent, {"BTC", "ETH"}),
        (lambda files: {"eth": files["ETH"]}, {"ETH"}),
    ],
    ids=["path", "text", "named", "list", "folder", "mapping"],
)
def test_a_class_trades_the_markets_of_its_files(
    given: Callable[[dict[str, Path]], Any], traded: set[str], tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    files = {name: write(minutes(200, market=name), tmp_path / "files" / f"{name}_1m.csv") for name in ("BTC", "ETH")}
    found = run(Cross, given(files), budget_usd=5_000, out=tmp_path / "mine")
    (strategy,) = found.stored.manifest["strategies"]
    assert set(strategy["markets"]) == traded
    assert Cross.__module__ == __name__, "the class is as it was"


def test_candles_of_other_markets_are_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="BTC_1m.csv: no candles of SOL here"):
        run(Cross, data, markets="SOL", out=tmp_path / "mine")


class Crossing(Strategy):
    """Signals of two averages."""

    fast = sma(3)
    slow = sma(9)

    def signals(self, bars: BarArrays) -> Signals:
        return Signals(
            long=crossed_above(bars.fast, bars.slow),
            close_long=crossed_above(bars.slow, bars.fast),
            usd=100,
            stop_pct=5,
        )


def test_signals_trade_several_markets(tmp_path: Path, frame: Any) -> None:
    both = run(Crossing, {"BTC": frame, "ETH": frame}, out=tmp_path / "both")
    of_one = run(Crossing, {"BTC": frame}, out=tmp_path / "one")
    assert set(both.trades["market"]) == {"BTC", "ETH"}
    entries = both.trades.filter(polars.col("market") == "BTC")["entry_at"].to_list()
    assert entries == of_one.trades["entry_at"].to_list() != []


DAY = "2025-06-01"


@pytest.mark.parametrize(
    "given",
    [
        DAY,
        f"{DAY}T00:00:00Z",
        date(2025, 6, 1),
        datetime.fromisoformat(DAY),
        datetime(2025, 6, 1, tzinfo=UTC),
        lambda: importlib.import_module("numpy").datetime64(f"{DAY}T00:00:00.000000000"),
        lambda: importlib.import_module("pandas").Timestamp(DAY),
        1_748_736_000_000,
    ],
    ids=["text", "text in UTC", "date", "datetime", "datetime in UTC", "numpy", "pandas", "ms"],
)
def test_an_instant_may_be_given_in_any_form(tmp_path: Path, frame: Any, given: Any) -> None:
    start = given() if callable(given) else given
    result = run(Crossing, frame, start=start, out=tmp_path / "mine")
    assert result.stored.summary["course"]["fromMs"] == 1_748_736_000_000


@pytest.mark.parametrize("given", [True, "tomorrow", object(), 1.5])
def test_what_is_no_instant_is_named(tmp_path: Path, frame: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="start: .* is not a time; write 2025-05-01"):
        run(Crossing, frame, start=given, out=tmp_path / "mine")


def daily_closes(result: BacktestRun, scale: float) -> Any:
    """A series that moves `scale` times as the equity of the run."""
    equity = result.equity
    px = 100 * (1 + scale * (equity["equity_usd"] / equity["equity_usd"][0] - 1))
    return polars.DataFrame({"ts": equity["at"].dt.offset_by("-1m"), "close": px})


def test_alpha_and_beta_are_printed_against_the_markets_and_any_series(tmp_path: Path) -> None:
    candles = polars.read_csv(write(minutes(6_000), tmp_path / "BTC_1m.csv"))
    result = run(Crossing, candles, out=tmp_path / "mine")
    assert "Against its markets" in str(result)
    series = daily_closes(result, 2.0)
    for given in (series, {"MINE": series}, {"MINE": pandas_frame(series)}):
        other = result.against(given)
        lines = [line.split() for line in str(other).splitlines()]
        assert other.benchmark is not None
        assert ["Against", other.benchmark.market, "by", "daily", "returns"] in [
            [word.strip(",") for word in line] for line in lines
        ]
        (beta,) = [float(line[-1]) for line in lines if line[:1] == ["Beta"]]
        (correlation,) = [float(line[-1]) for line in lines if line[:1] == ["Correlation"]]
        assert beta == pytest.approx(0.5, abs=0.02)
        assert correlation == pytest.approx(1, abs=0.01)
    with pytest.raises(ConfigError, match="neither a path nor a frame"):
        result.against(7)


def test_longer_candles_are_a_frame(frame: Any) -> None:
    hours = resample({"BTC": frame}, "1h")
    assert hours.columns == ["time", "open", "high", "low", "close", "volume"]
    assert hours.height == 600 // 60
    first = frame.head(60)
    names = {str(name).lower(): name for name in frame.columns}
    assert hours["high"][0] == first[names["high"]].max()
    assert hours["close"][0] == first[names["close"]][-1]
    assert resample(pandas_frame(frame), "1h").equals(hours)
    with pytest.raises(ConfigError, match="interval: '7m' is not known; there are 1m"):
        resample(frame, "7m")
    with pytest.raises(ConfigError, match="finer data are needed"):
        resample(hours, "1m")


def test_a_frame_without_a_volume_is_refused_with_what_to_do(tmp_path: Path, frame: Any) -> None:
    (volume,) = [name for name in frame.columns if "vol" in name.lower()]
    with pytest.raises(ConfigError, match="in a frame, add the column: volume=1.0"):
        run(Crossing, frame.drop(volume), out=tmp_path / "mine")
    run(Crossing, frame.drop(volume).with_columns(volume=1.0), out=tmp_path / "mine")


def test_a_bar_of_progress_is_shown_in_a_notebook_and_on_a_terminal(
    tmp_path: Path, frame: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
        run(Crossing, frame, out=tmp_path / "mine")
    assert "100 %  600 of 600 bars" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(Crossing, frame, out=tmp_path / "mine")
    assert "100 %  600 of 600 bars" in capsys.readouterr().err

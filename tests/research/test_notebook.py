"""`from bot.notebook import sweep, screen`: the trials of `bot sweep` and the trades of `run`, as data frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bot import Strategy
from bot.cli.app import call
from bot.errors import BotError, ConfigError
from bot.notebook import run, screen, sweep
from tests.backtest.builders import START_MS, config, minutes, write
from tests.backtest.strategies.signalled import Cross
from tests.documents import PAGES, blocks

polars = pytest.importorskip("polars")
pytest.importorskip("optuna")

PARAMS = {"fast_bars": range(2, 11, 4), "slow_bars": [20, 30]}
GIVEN = {"budget_usd": 5_000}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(minutes(400), tmp_path / "BTC_1m.csv")


@pytest.fixture
def frame(data: Path) -> Any:
    return polars.read_csv(data)


def notebook_class() -> type[Strategy]:
    """The class as a notebook has it: of `__main__`, without a file."""
    return type("Cross", (Cross,), {"__module__": "__main__", "__doc__": "From a cell."})


def test_a_sweep_of_a_config_is_that_of_the_command(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = config(tmp_path, use="bench:Cross")
    space = tmp_path / "space.yaml"
    space.write_text('params: {one.fast_bars: [2, 6], one.slow_bars: [20, 30]}\nobjectives: ["Return [%]"]\n')
    assert call(["sweep", str(made), "--data", str(data), "--space", str(space), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for given in (
        sweep(made, data, space, out="mine"),
        sweep(made, data, {"one.fast_bars": [2, 6], "one.slow_bars": [20, 30]}, objectives="Return [%]", out="other"),
    ):
        assert given.best == told["best"][0]["params"]
        assert given.trials["trial"].to_list() == [row["trial"] for row in told["best"]]
        assert given.trials["Return [%]"].to_list() == [row["objectives"][0] for row in told["best"]]
        assert given.verdicts == told["verdicts"]
        assert call(["sweep", "show", given.name, "--storage", f"sqlite:///{given.report().parent}/sweeps.db"]) == 0


@pytest.mark.parametrize("strategy", [Cross, notebook_class()], ids=["file", "notebook"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_trials_of_a_class_are_the_runs_of_its_params(
    strategy: type[Strategy], workers: int, tmp_path: Path, frame: Any
) -> None:
    found = sweep(
        strategy,
        {"ETH": frame},
        {"fast_bars": np.array([2, 6]), "slow_bars": polars.Series([20])},
        objectives=[{"figure": "# Trades", "best": "lowest"}],
        constraints={"# Trades": {"min": 3}},
        params={"usd": 500},
        workers=workers,
        out=tmp_path / "mine",
        **GIVEN,
    )
    assert found.trials.columns[:6] == ["trial", "state", "is_feasible", "neighbours", "fast_bars", "slow_bars"]
    assert found.best == {"fast_bars": 6, "slow_bars": 20}, "it trades less"
    for row in found.trials.iter_rows(named=True):
        params = {"usd": 500, "fast_bars": row["fast_bars"], "slow_bars": row["slow_bars"]}
        single = run(strategy, {"ETH": frame}, params=params, out=tmp_path / "single", **GIVEN)
        assert {name: row[name] for name in single.figures} == dict(single.figures)
    assert found.run_best().figures["# Trades"] == found.trials["# Trades"][0]
    assert "fast_bars" in str(found)
    assert found.report().read_text().startswith("<!doctype html>")


def test_a_sweep_that_has_run_is_not_run_again(tmp_path: Path, frame: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sweep(Cross, frame, PARAMS, out=tmp_path, **GIVEN)
    assert first.trials.height == 6
    with monkeypatch.context() as patched:
        patched.setattr("bot.research.runners.evaluate", lambda bundle, task: pytest.fail(f"ran {task} again"))
        assert sweep(Cross, frame, PARAMS, out=tmp_path, **GIVEN).trials.equals(first.trials)
    other = sweep(Cross, frame, PARAMS, out=tmp_path, params={"usd": 300}, **GIVEN)
    assert other.name != first.name, "another config is another study"


def test_a_screened_sweep_and_a_screen_have_the_trades_of_the_run(tmp_path: Path, frame: Any) -> None:
    screened = screen(Cross, frame, params={"fast_bars": 6, "slow_bars": 20}, out=tmp_path, **GIVEN)
    full = run(Cross, frame, params={"fast_bars": 6, "slow_bars": 20}, out=tmp_path, **GIVEN)
    told = ["side", "size", "entry_at", "entry_px", "exit_at", "exit_px", "exit_kind", "fees_usd", "pnl_usd"]
    assert screened.trades.height > 3
    assert screened.trades.select(told).equals(full.trades.select(told))
    assert screened.figures["Return [%]"] == full.figures["Return [%]"]
    assert str(screened).splitlines()[0].split() == ["Return", f"{full.figures['Return [%]']:.2f}", "%"]
    swept = sweep(Cross, frame, PARAMS, is_screened=True, out=tmp_path, **GIVEN)
    assert swept.trials.filter(fast_bars=6, slow_bars=20)["Return [%]"].to_list() == [full.figures["Return [%]"]]


@pytest.mark.parametrize(
    ("space", "given", "said"),
    [
        ({"fast": [5]}, {}, r"space:3.*no strategy has this param.*fast_bars"),
        ({"fast_bars": []}, {}, "give a list of different values"),
        ({"fast_bars": [0]}, {}, "the param does not accept 0"),
        (5, {}, "space: int is neither a file nor values by param"),
        ("none.yaml", {}, "none.yaml"),
        ("none.yaml", {"objectives": "Return [%]"}, "stand in the file of the space"),
        ({"fast_bars": [5]}, {"objectives": "Sharp Ratio"}, "did you mean Sharpe Ratio"),
        ({"fast_bars": [5]}, {"constraints": {"# Trades": 3}}, "a constraint is"),
        ({"fast_bars": [5]}, {"budget": 3}, "budget: no such argument; did you mean budget_usd"),
    ],
)
def test_what_a_sweep_cannot_use_is_named(
    tmp_path: Path, frame: Any, space: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep(Cross, frame, space, out=tmp_path, **given)


def test_a_screen_of_what_it_cannot_run_says_so(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="the screen cannot run this"):
        screen(config(tmp_path, use="bench:Cross"), data, out=tmp_path)


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Three months of hours.
    candles = polars.read_csv(write(minutes(2_500), tmp_path / "BTC_1m.csv"))
    hours = candles.with_columns(ts=(polars.col("ts") - START_MS) * 60 + START_MS)
    (example,) = blocks("py", PAGES["backtesting"])
    names: dict[str, Any] = {"frame": hours, "__name__": "__main__"}
    exec(compile(example, "backtesting.md", "exec"), names)
    assert "the best of 10 trials" in capsys.readouterr().out
    assert names["best"].figures["# Trades"] >= 30


def test_a_folder_that_cannot_be_made_is_an_error(data: Path) -> None:
    with pytest.raises(BotError, match="choose another place with out"):
        sweep(Cross, data, PARAMS, out=data / "below a file")


def test_a_sweep_without_a_complete_trial_has_no_best(tmp_path: Path, frame: Any) -> None:
    found = sweep(Cross, frame, PARAMS, constraints={"# Trades": {"min": 10_000}}, out=tmp_path, **GIVEN)
    assert found.best is None
    with pytest.raises(BotError, match="no complete trial that keeps the constraints"):
        found.run_best()

"""Backtests, sweeps and screens from Python: `from bot.notebook import run, sweep, screen`.

A notebook or a script does what `bot backtest` and `bot sweep` do, and gets data frames of polars (extra `research`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from bot.backtest.data.resampling import resample as longer
from bot.backtest.python_api import (
    BacktestRun,
    Place,
    RunInputs,
    checked_inputs,
    polars,
    progress_bar,
    run,
    trades_frame,
    written,
)
from bot.backtest.python_inputs import series_of
from bot.backtest.report.summary import figure_lines
from bot.backtest.results.layout import COLUMNS
from bot.backtest.results.run_reader import trade_of
from bot.errors import BotError, ConfigError
from bot.logs import quiet_log
from bot.research.ranking import ranked, verdicts_of
from bot.research.runners import Processes, Runner, ThisProcess
from bot.research.study import SQLITE, Study, one_sweep
from bot.research.sweep import SweepPlan
from bot.research.sweep_inputs import PreparedSweep
from bot.research.sweep_page import render_sweep
from bot.research.trials import bundle_of, screened_of
from bot.strategy import Strategy
from bot.wire.vocabulary import INTERVAL_MS

if TYPE_CHECKING:
    import polars as pl

__all__ = ["BacktestRun", "ScreenRun", "SweepRun", "resample", "run", "screen", "sweep"]

# the file of the studies, in the folder `out`
STORAGE: Final = "sweeps.db"
# rows of the ranking that `print` shows, and trials that run again after a screen
TOP: Final = 10

Method = Literal["grid", "random", "tpe", "nsgaii"]


@dataclass(frozen=True)
class SweepRun:
    """A finished sweep. Its study is in `sweeps.db` in the folder of the runs, where `bot sweep show` finds it."""

    study: Study = field(repr=False)
    name: str
    _prepared: PreparedSweep = field(repr=False)
    # what the names of params begin with in the study and not here
    _prefix: str = field(repr=False)
    _run: Callable[[Mapping[str, Any]], BacktestRun] = field(repr=False)
    _out: Path = field(repr=False)

    @cached_property
    def trials(self) -> pl.DataFrame:
        """One row for each trial, the best first, then those that are not complete.

        Columns: trial, state, is_feasible (it keeps the constraints), neighbours (mean of the first objective over the
        trials one step away in one param), the params, the figures of the report, message.
        """
        frames, space = polars(), self._prepared.space
        stored = self.study.trials()
        order = ranked(stored, space)
        places = {row.trial.cell: place for place, row in enumerate(order)}
        near = {row.trial.cell: row.neighbours for row in order}
        stored.sort(key=lambda trial: (places.get(trial.cell, len(places)), trial.cell))
        figures = list(dict.fromkeys(name for trial in stored for name in trial.figures))
        columns: dict[str, list[Any]] = {
            "trial": [trial.cell for trial in stored],
            "state": [trial.state for trial in stored],
            "is_feasible": [trial.state == "complete" and space.is_feasible(trial.figures) for trial in stored],
            "neighbours": [near.get(trial.cell) for trial in stored],
        }
        for param in stored[0].params if stored else ():
            columns[param.removeprefix(self._prefix)] = [trial.params[param] for trial in stored]
        for figure in figures:
            columns[figure] = [trial.figures.get(figure) for trial in stored]
        table: pl.DataFrame = frames.DataFrame(columns | {"message": [trial.message for trial in stored]}, strict=False)
        return table

    @cached_property
    def best(self) -> dict[str, Any] | None:
        """The params of the best trial that keeps the constraints; None if there is none."""
        first = next(iter(ranked(self.study.trials(), self._prepared.space)), None)
        if first is None or not first.is_feasible:
            return None
        return {name.removeprefix(self._prefix): value for name, value in first.trial.params.items()}

    @cached_property
    def verdicts(self) -> list[str]:
        """How sure one can be of the best trial, as sentences."""
        return verdicts_of(ranked(self.study.trials(), self._prepared.space))

    def run_best(self) -> BacktestRun:
        """Run the best trial as a full backtest with its own folder. BotError if no trial keeps the constraints."""
        if self.best is None:
            raise BotError(f"the sweep {self.name} has no complete trial that keeps the constraints")
        return self._run(self.best)

    def report(self, path: Place | None = None) -> Path:
        """Write the page of `bot sweep show --out` and return its path.

        Default: the study's name with .html in the folder of the runs.
        """
        return written(Path(path) if path is not None else self._out / f"{self.name}.html", render_sweep(self.study))

    def __str__(self) -> str:
        frames, objectives = polars(), [objective.figure for objective in self._prepared.space.objectives]
        params = [name.removeprefix(self._prefix) for trial in self.study.trials()[:1] for name in trial.params]
        with frames.Config(tbl_hide_dataframe_shape=True, tbl_rows=TOP, tbl_cols=-1):
            ranking = str(self.trials.select("trial", "state", *params, *objectives, "neighbours").head(TOP))
        return "\n".join([f"{self.name}: the best of {len(self.trials):,} trials", ranking, *self.verdicts])


@dataclass(frozen=True)
class ScreenRun:
    """What the compiled screen says of one set of params. It leaves no folder."""

    figures: Mapping[str, Any] = field(repr=False)
    trades: pl.DataFrame = field(repr=False)
    _ms: int = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(figure_lines(self.figures, None, self._ms))


def sweep(
    strategy: Place | type[Strategy],
    data: Any,
    space: Place | Mapping[str, Any],
    *,
    objectives: Sequence[str | Mapping[str, str]] = (),
    constraints: Mapping[str, Mapping[str, float]] | None = None,
    method: Method = "grid",
    trials: int = 100,
    seed: int = 1,
    is_screened: bool = False,
    top: int = TOP,
    workers: int = 1,
    progress: bool | None = None,
    **given: Unpack[RunInputs],
) -> SweepRun:
    """Try many params of a strategy over candles, as `bot sweep` does.

    `space` is a file of --space, or names the values of params: `{"fast_bars": [5, 10], "slow_bars": {"from": 20, "to":
    60, "step": 10}}`; lists, ranges, arrays. The names are those of a class's params, or "strategy.param" of a config.
    `objectives` are figures of the report (default: Sharpe Ratio), `constraints` bounds by figure: `{"# Trades":
    {"min": 30}}`. `is_screened` tries the params by the compiled screen and runs the `top` best again as full
    backtests. One worker runs in this process, more are forked. Everything else is that of `run`.

    The same sweep goes on where it was stopped, and is not run again. ConfigError if something cannot be used.
    """
    with quiet_log():
        inputs = checked_inputs(strategy, data, **given)
    names = [entry.name for entry in inputs.settings.strategies]
    prefix = f"{names[0]}." if isinstance(strategy, type) else ""
    wanted = _space(space, objectives, constraints, prefix)
    with quiet_log():
        prepared = PreparedSweep(inputs, wanted, SweepPlan(method, trials, seed, is_screened=is_screened))
    digest = hashlib.sha256(json.dumps(prepared.identity, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{inputs.settings.name}-{digest}"
    out = Path(given.get("out", "runs"))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BotError(f"{out}: cannot be created: {error.strerror or error}; choose another place with out") from None
    storage = f"{SQLITE}{out / STORAGE}"
    bundle = bundle_of(prepared.inputs)
    runner: Runner = ThisProcess(bundle) if workers == 1 else Processes(bundle, workers)
    with closing(runner), one_sweep(storage, name), progress_bar(is_shown=progress, what="trials") as going:
        study = prepared.study(storage, name)
        prepared.run(study, runner, top, lambda now: going(now.done, now.of))

    def run_with(params: Mapping[str, Any]) -> BacktestRun:
        chosen: RunInputs = {**given, "params": {**(given.get("params") or {}), **params}}
        return run(strategy, data, **chosen)

    return SweepRun(study, name, prepared, prefix, run_with, out)


def screen(strategy: Place | type[Strategy], data: Any, **given: Unpack[RunInputs]) -> ScreenRun:
    """Run one set of params by the compiled screen: trades and figures of a strategy with `signals` in one crypto
    market.

    It takes what `run` takes. ConfigError if something cannot be used, or if the screen cannot run it; BotError if the
    screen cannot decide something that the full backtest can.
    """
    from bot.research.screen.markets import refuse
    from bot.runtime.kernel.assembly import place_strategies

    with quiet_log():
        inputs = checked_inputs(strategy, data, **given)
        refuse(inputs.settings, place_strategies(inputs.settings), inputs.options)
    bundle = bundle_of(inputs)
    screened = screened_of(bundle, bundle.at_home, inputs.options)
    if screened.why_not is not None:
        raise BotError(f"the screen stopped at {screened.why_not}; `run` does the full backtest")
    figures, _ = screened.figures()
    rows = (trip.row(number) for number, trip in enumerate(screened.trips(), start=1))
    trades = trades_frame(trade_of(dict(zip(COLUMNS, row, strict=True))) for row in rows)
    return ScreenRun(figures, trades, screened.curve()[0][-1] - screened.ground.start_ms)


def resample(data: Any, interval: str, *, keep_partial: bool = False) -> pl.DataFrame:
    """Longer candles of shorter ones: time, open, high, low, close, volume, with the times of their starts in UTC.

    `data` is a path, a frame, or {"BTC": frame}; `interval` is one of 1m to 1w. A first or last candle that the data do
    not cover is left out, unless `keep_partial`. ConfigError if it cannot be made of them.
    """
    if interval not in INTERVAL_MS:
        raise ConfigError(f"interval: {interval!r} is not known; there are {', '.join(INTERVAL_MS)}")
    with TemporaryDirectory() as folder:
        candles = longer(series_of(data, folder=Path(folder)), interval, keep_partial=keep_partial)
    frames = polars()
    columns = {name: list(getattr(candles, name)) for name in ("open", "high", "low", "close", "volume")}
    times = frames.Series("time", list(candles.at_ms)).cast(frames.Datetime("ms", "UTC"))
    table: pl.DataFrame = frames.DataFrame({"time": times, **columns})
    return table


def _space(
    given: Any, objectives: Sequence[Any], constraints: Mapping[str, Any] | None, prefix: str
) -> Path | dict[str, Any]:
    """The file of a space, or its content: params by their names in the config."""
    if isinstance(given, str | Path):
        if objectives or constraints:
            raise ConfigError("objectives and constraints stand in the file of the space; leave them out here")
        return Path(given)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f'space: {type(given).__name__} is neither a file nor values by param: write {{"fast_bars": [5, 10]}}'
        )
    params = {name if name.startswith(prefix) else prefix + name: _values(values) for name, values in given.items()}
    several = [objectives] if isinstance(objectives, str | Mapping) else list(objectives)
    return {"params": params, "objectives": several, "constraints": dict(constraints or {})}


def _values(given: Any) -> Any:
    """Lists, ranges, arrays and series as plain lists; anything else as it is."""
    if hasattr(given, "tolist"):
        return given.tolist()
    if hasattr(given, "to_list"):
        return given.to_list()
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else given

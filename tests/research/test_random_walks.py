"""Sweeps and walk-forwards of a strategy on random walks, and on the same walks with a planted edge: what their
verdicts say.

The edge is a drift that turns about every 20 days, which a cross of two averages can follow. Costs are the service's
own.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import SessionOptions
from bot.backtest.inputs import Files, Inputs
from bot.research.ranking import ranked, verdicts_of
from bot.research.space import read_space
from bot.research.study import Study, open_study
from bot.research.sweep import Sweep, SweepPlan, range_of
from bot.research.trials import Bundle, Task, TrialOutcome, bundle_of, evaluate
from bot.research.walk_forward import Fold, WalkForward, folds_of, read_windows, summary_of
from tests.backtest.builders import config, minutes, write

pytest.importorskip("optuna")

DAYS = 480
# a day; the noise of a day is 0.02
DRIFT = 0.025
# chance of a day that the drift turns
TURN = 1 / 20
SPACE = "params: {one.fast_bars: [2, 5], one.slow_bars: [8, 13]}\nobjectives: [Sharpe Ratio]\n"
SWEPT = ("Deflated Sharpe ratio", "Superior predictive ability")


def walk(seed: int) -> Candles:
    return minutes(DAYS, seed=seed, vol=0.02, interval="1d")


def planted(candles: Candles, seed: int) -> Candles:
    """The same candles with a drift that turns."""
    chance, drift, scale = Random(f"{seed}:drift"), DRIFT, 1.0
    columns = [array("d") for _ in range(4)]
    for _, opened, high, low, closed, _ in zip(*candles.columns, strict=True):
        drift = -drift if chance.random() < TURN else drift
        values = opened * scale, high * scale, low * scale, closed * scale * (1 + drift)
        scale *= 1 + drift
        row = values[0], max(values), min(values), values[3]
        for column, value in zip(columns, row, strict=True):
            column.append(round(value, 1))
    return Candles(candles.market, candles.interval, candles.at_ms, *columns, candles.volume)


class Here:
    """Runs the trials in this process; `bot sweep` has processes, whose start takes longer than these trials."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[TrialOutcome]:
        return (evaluate(self.bundle, task) for task in tasks)

    def close(self) -> None:
        pass


def edges_on(candles: Candles, folder: Path) -> dict[str, bool]:
    """Which verdicts show an edge, of a sweep and a walk-forward over these candles."""
    from optuna.storages import InMemoryStorage

    path = write(candles, folder / "BTC_1d.csv")
    inputs = Inputs(folder / "mine.yaml", Files([str(path)], accepted=["jumps"]), SessionOptions())
    space = read_space(folder / "space.yaml", inputs.settings)
    plan, runner, store = SweepPlan("grid", 100, 1), Here(bundle_of(inputs)), InMemoryStorage()

    def study_of(number: int, _fold: Fold | None = None) -> Study:
        return open_study(store, str(number), {"space": space.plain()})

    study = study_of(-1)
    Sweep(study, space, plan, runner).run()
    said = verdicts_of(ranked(study.trials(), space))
    found = {name: any(line.startswith(name) and "an edge is likely" in line for line in said) for name in SWEPT}
    folds = folds_of(read_windows("train=180d,test=90d"), *range_of(inputs))
    walked = WalkForward(space, plan, runner, study_of).run(folds)
    return found | {"Walk-forward": summary_of(walked, "Sharpe Ratio")["edge"]}


@pytest.mark.soak(worlds=1, full=100)
def test_random_walks_show_no_edge_and_a_planted_edge_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], worlds: int
) -> None:
    pytest.importorskip("arch")
    made = config(tmp_path, use="bench:Cross", stop_pct=20, target_pct=80)
    made.write_text(made.read_text().replace("interval: 1m", "interval: 1d"))
    (tmp_path / "space.yaml").write_text(SPACE)
    walks, edged = Counter[str](), Counter[str]()
    for seed in range(worlds):
        walks.update(edges_on(walk(seed), tmp_path))
        edged.update(edges_on(planted(walk(seed), seed), tmp_path))
    if worlds > 1:
        with capsys.disabled():
            print(f"\nof {worlds}, an edge is shown on random walks: {dict(walks)}; with a planted edge: {dict(edged)}")
    for name in (*SWEPT, "Walk-forward"):
        assert walks[name] <= 0.05 * worlds
        assert edged[name] >= 0.95 * worlds

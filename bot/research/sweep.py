"""A sweep: many trials of one config, by a grid, by chance or by one of Optuna's samplers. Each trial is stored when it
ends, so a sweep can be stopped and resumed.

A sampler is asked for a batch of trials, and told their ends in the order in which it asked. So the number of workers
changes nothing in the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any, Final, NamedTuple

from bot.backtest.engine.options import start_of
from bot.backtest.inputs import Inputs
from bot.research.runners import Runner
from bot.research.space import REPEATS_MAX, Params, Space, key_of
from bot.research.study import Study, Trial
from bot.research.trials import Task, TrialOutcome, code_of

# a trial of Optuna and its params
Asked = tuple[Any, Params]
# trials of a sampler, or of a pruned sweep, that run side by side
BATCH: Final = 16
# a pruned trial ends after one part in three of the range
PRUNE_PART: Final = 3
# trials that must have a value after the first part of the range before any trial is pruned
PRUNE_AFTER: Final = 8


class SweepPlan(NamedTuple):
    """How a sweep looks for params. `trials` is not for a grid, which has its cells."""

    method: str
    trials: int
    seed: int
    is_pruned: bool = False
    is_screened: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a sweep stands. `best` is the highest or lowest value of the first objective so far."""

    done: int
    of: int
    best: float | None
    best_params: Params | None


def identity_of(
    inputs: Inputs, space: Space, plan: SweepPlan, seen: tuple[int, int], holdout: tuple[int, int] | None = None
) -> dict[str, Any]:
    """What a study is made of. Trials of another identity do not belong to it. More trials by chance or by a sampler
    do.

    `seen`: the range of the trials. `holdout`: the range after it that they do not see.
    """
    return data_identity(inputs) | {
        "space": space.plain(),
        "method": plan.method,
        "seed": plan.seed,
        "pruned": plan.is_pruned,
        "screened": plan.is_screened,
        "range": list(seen),
        "holdout": None if holdout is None else list(holdout),
    }


def data_identity(inputs: Inputs) -> dict[str, Any]:
    """The config, code, data and options of a study."""
    manifest = inputs.manifest(())
    return {
        "config": manifest["config"]["sha256"],
        "code": code_of(inputs.settings),
        "data": [
            {key: source[key] for key in ("market", "interval", "candles", "first_ms", "last_ms", "sha256")}
            for source in manifest["data"]
        ],
        "funding": manifest["funding"],
        "options": manifest["options"],
    }


class Sweep:
    """One sweep. `run` ends when every trial has ended; after an exception the trials that have ended are stored."""

    def __init__(
        self,
        study: Study,
        space: Space,
        plan: SweepPlan,
        runner: Runner,
        until_ms: int | None = None,
        *,
        span: tuple[int, int] | None = None,
    ) -> None:
        """`until_ms`: the end of the first part of the range, for pruning. `span`: another range, as of a Task."""
        self._study, self._space, self._plan, self._runner, self._span = study, space, plan, runner, span
        self._until_ms = until_ms if plan.is_pruned else None
        cells = space.grid() if plan.method == "grid" else space.sample(plan.trials, plan.seed)
        self._cells = list(cells) if plan.method in ("grid", "random") else []
        stored = study.trials()
        self._done = {trial.cell for trial in stored}
        self._early = [early for trial in stored if (early := trial.early) is not None]
        self._best: tuple[float, Params] | None = None
        for trial in stored:
            self._look(trial.state, trial.figures, trial.params)

    @property
    def size(self) -> int:
        """The number of trials: no cell is tried twice."""
        trials = self._plan.trials
        return len(self._cells) or min(trials, self._space.size or trials)

    def run(self, show: Callable[[Progress], object] = lambda _: None) -> None:
        """Run every trial that the study does not have."""
        show(self._progress())
        if not self._cells:
            self._run_sampler(show)
            return
        left = ((number, cell) for number, cell in enumerate(self._cells) if number not in self._done)
        if self._until_ms is None:
            self._run_cells(left, show)
            return
        # The floor of a batch comes from the batches before it.
        while batch := list(islice(left, BATCH)):
            self._run_cells(iter(batch), show)

    def _run_cells(self, left: Iterator[tuple[int, Params]], show: Callable[[Progress], object]) -> None:
        floor = self._floor()
        params: dict[int, Params] = {}

        def tasks() -> Iterator[Task]:
            for number, cell in left:
                params[number] = cell
                yield self._task(number, cell, floor)

        for outcome in self._runner.outcomes(tasks()):
            cell = params.pop(outcome.number)
            self._study.add(outcome, cell, self._space)
            self._ended(outcome, cell, show)

    def _run_sampler(self, show: Callable[[Progress], object]) -> None:
        self._study.reap()
        known: dict[str, TrialOutcome | Trial] = {key_of(trial.params): trial for trial in self._study.trials()}
        while len(self._done) < self.size:
            first = max(self._done, default=-1) + 1
            asked, again = self._asked(known, min(BATCH, self.size - len(self._done)))
            if not asked:
                return
            floor = self._floor()
            tasks = [self._task(first + n, params, floor) for n, (_, params) in enumerate(asked)]
            outcomes: dict[int, TrialOutcome] = {}
            try:
                for outcome in self._runner.outcomes(tasks):
                    outcomes[outcome.number] = outcome
            finally:
                for task, (trial, params) in zip(tasks, asked, strict=True):
                    if task.number in outcomes:
                        self._study.tell(trial, outcomes[task.number], self._space)
                        self._ended(outcomes[task.number], params, show)
                        known[key_of(params)] = outcomes[task.number]
            for trial, params in again:
                self._study.repeat(trial, known[key_of(params)], self._space)

    def _asked(self, known: Mapping[str, TrialOutcome | Trial], count: int) -> tuple[list[Asked], list[Asked]]:
        """`count` trials of cells that were not tried, and those that repeat a cell of this batch. Repeats of older
        cells are answered at once.

        A sampler that only repeats itself gets a cell that is left; there are fewer than `count` if none can be named.
        """
        fresh: dict[str, Asked] = {}
        again: list[Asked] = []
        repeats = 0
        while len(fresh) < count:
            trial, params = self._study.ask(self._space)
            key = key_of(params)
            if key not in known and key not in fresh:
                fresh[key], repeats = (trial, params), 0
                continue
            repeats += 1
            if key in known:
                self._study.repeat(trial, known[key], self._space)
            else:
                again.append((trial, params))
            if repeats % REPEATS_MAX == 0:
                left = self._space.untried({*known, *fresh})
                if left is None:
                    break
                self._study.propose(left)
        return list(fresh.values()), again

    def _task(self, number: int, params: Params, floor: float | None) -> Task:
        if self._until_ms is None:
            return Task(number, params, span=self._span, is_screened=self._plan.is_screened)
        first = self._space.objectives[0]
        return Task(number, params, self._until_ms, (first.figure, first.is_highest, floor), self._span)

    def _floor(self) -> float | None:
        """The median of the first objective after the first part of the range, over the trials so far;

        None while they are few.
        """
        return median(self._early) if len(self._early) >= PRUNE_AFTER else None

    def _ended(self, outcome: TrialOutcome, params: Params, show: Callable[[Progress], object]) -> None:
        self._done.add(outcome.number)
        if outcome.early is not None:
            self._early.append(outcome.early)
        self._look(outcome.state, outcome.figures, params)
        show(self._progress())

    def _look(self, state: str, figures: Mapping[str, Any], params: Params) -> None:
        values = self._space.values(figures) if state == "complete" else None
        if values is None or not self._space.is_feasible(figures):
            return
        value, is_highest = values[0], self._space.objectives[0].is_highest
        if self._best is None or (value > self._best[0] if is_highest else value < self._best[0]):
            self._best = value, params

    def _progress(self) -> Progress:
        best, params = self._best or (None, None)
        return Progress(len(self._done), self.size, best, params)


def range_of(inputs: Inputs) -> tuple[int, int]:
    """The range of the backtest, ms UTC, end exclusive."""
    start_ms = start_of(inputs.options.start_ms, inputs.candles)
    return start_ms, inputs.options.end_ms or max(series.end_ms for series in inputs.candles)


def first_part_ms(inputs: Inputs) -> int:
    """The end of the first part of the range, on a whole candle."""
    start_ms, end_ms = range_of(inputs)
    step_ms = max(series.step_ms for series in inputs.candles)
    return start_ms + max(step_ms, (end_ms - start_ms) // PRUNE_PART // step_ms * step_ms)

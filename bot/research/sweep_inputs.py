"""A sweep of checked inputs, ready to run: what `bot sweep` and `bot.notebook.sweep` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bot.backtest.inputs import Inputs
from bot.backtest.results.statistics import DAYS_FOR_A_YEAR, extrapolated
from bot.number_text import duration_ms
from bot.research.gaps import run_again
from bot.research.holdout import cut_off
from bot.research.runners import Runner
from bot.research.space import read_space
from bot.research.study import Study, open_study
from bot.research.sweep import Progress, Sweep, SweepPlan, first_part_ms, identity_of, range_of
from bot.research.walk_forward import Fold, Walked, WalkForward, folds_of, read_windows
from bot.words import many


class PreparedSweep:
    """The inputs that trials see, the space, the plan and the windows of a walk-forward.

    ConfigError if the file of the space, the grid, the windows or the holdout cannot be used, or if the screen cannot
    run the config.
    """

    def __init__(
        self,
        whole: Inputs,
        space: Path | Mapping[str, Any] | None,
        plan: SweepPlan,
        *,
        holdout: str | None = None,
        windows: str | None = None,
    ) -> None:
        self.inputs, held = cut_off(whole, holdout)
        settings = self.inputs.settings
        self.space = read_space(space, settings)
        self.plan = plan
        if plan.method == "grid":
            self.space.grid()
        if plan.is_screened:
            from bot.research.screen.markets import refuse
            from bot.runtime.kernel.assembly import place_strategies

            refuse(settings, place_strategies(settings), self.inputs.options)
        self.range = range_of(self.inputs)
        self.folds = None if windows is None else folds_of(read_windows(windows), *self.range)
        self.identity = identity_of(whole, self.space, plan, self.range, held)

    def notes(self) -> Iterator[str]:
        """What a person should know before the trials run: a space with fewer cells than trials are wanted, and an
        objective that is a figure of a year where the range or a window lasts a few days.
        """
        space, plan = self.space, self.plan
        if plan.method != "grid" and space.size is not None and space.size < plan.trials:
            yield f"the space has {many(space.size, 'cell')}: each is tried once"
        spans = (
            [self.range] if self.folds is None else [span for fold in self.folds for span in (fold.train, fold.test)]
        )
        ms = min(end - start for start, end in spans)
        what = "the range has" if self.folds is None else "the shortest window has"
        for name in extrapolated([objective.figure for objective in space.objectives], ms):
            yield (
                f"warning: the objective {name} is a figure of a year, and {what} {duration_ms(ms)}: its best trial is"
                f" the luckiest. Take {DAYS_FOR_A_YEAR} days or more, or an objective such as Return [%]"
            )

    def study(self, storage: str, name: str, fold: Fold | None = None) -> Study:
        """The study of this sweep, or of a fold of its walk-forward. It is made if it does not exist; a study of the
        same name that was made of anything else is refused.
        """
        span = {} if fold is None else {"span": list(fold.train)}
        directions = [objective.is_highest for objective in self.space.objectives]
        plan = self.plan
        return open_study(
            storage, name, self.identity | span, method=plan.method, seed=plan.seed, objectives=directions
        )

    def run(self, study: Study, runner: Runner, top: int, show: Callable[[Progress], object]) -> None:
        """Run the trials that the study lacks. After a screen the `top` best run again as full backtests."""
        Sweep(study, self.space, self.plan, runner, first_part_ms(self.inputs)).run(show)
        if self.plan.is_screened:
            run_again(study, runner, top)

    def walk(self, storage: str, name: str, runner: Runner, show: Callable[[Progress], object]) -> Sequence[Walked]:
        """Choose params on each window and try them on the next. Each window has a study of its own."""
        assert self.folds is not None

        def opened(number: int, fold: Fold) -> Study:
            return self.study(storage, f"{name}/{number}", fold)

        return WalkForward(self.space, self.plan, runner, opened).run(self.folds, show)

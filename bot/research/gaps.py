"""The best trials of a screened sweep, run again through the full backtest: what the screen said, what the backtest
says, and the gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bot.research.ranking import ranked, space_of
from bot.research.runners import Runner
from bot.research.study import Study
from bot.research.trials import Task, TrialOutcome

# the user attribute of a study: a row for each trial that ran again, the best first
GAPS: Final = "gaps"


def run_again(study: Study, runner: Runner, top: int) -> None:
    """Run the `top` best trials of the study through the full backtest, and store the rows."""
    space = space_of(study)
    best = [row.trial for row in ranked(study.trials(), space)[:top]]
    full = {outcome.number: outcome for outcome in runner.outcomes(Task(trial.cell, trial.params) for trial in best)}
    names = [*dict.fromkeys([*(objective.figure for objective in space.objectives), "Return [%]", "# Trades"])]
    rows = [
        {
            "trial": trial.cell,
            "params": dict(trial.params),
            "figures": {name: _row(trial.figures, full[trial.cell], name) for name in names},
            "message": full[trial.cell].message,
        }
        for trial in best
    ]
    study.keep(GAPS, rows)


def _row(screened: Mapping[str, Any], full: TrialOutcome, name: str) -> dict[str, float | None]:
    here, there = screened.get(name), full.figures.get(name)
    return {"screen": here, "backtest": there, "gap": None if here is None or there is None else here - there}


def gaps_of(study: Study) -> list[dict[str, Any]]:
    """The stored rows; empty for a sweep without a screen."""
    rows: list[dict[str, Any]] = study.kept(GAPS) or []
    return rows

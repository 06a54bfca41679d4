"""Walk-forward: choose params on a train window, try them on the test window that follows, and go on. The test windows
together are what the rule would have earned.

A train backtest ends at its border and sees nothing later; a test backtest begins flat. So no trade reaches over a
border. An embargo leaves a distance between the windows, for figures that look ahead by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from bot.backtest.report.risk_statistics import moments_of, probabilistic_sharpe
from bot.clock import DAY_MS, HOUR_MS, iso
from bot.errors import ConfigError
from bot.research.overfitting import SURE
from bot.research.ranking import ranked
from bot.research.runners import Runner
from bot.research.space import Params, Space
from bot.research.study import Study
from bot.research.sweep import Progress, Sweep, SweepPlan
from bot.research.trials import Task, TrialOutcome

WINDOWS_MAX: Final = 500
_UNITS: Final = {"h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_FORM: Final = "write train=90d,test=30d, and if wanted embargo=1d and anchored"


class Windows(NamedTuple):
    """Lengths in ms. Anchored: each train window begins with the first one."""

    train_ms: int
    test_ms: int
    embargo_ms: int = 0
    is_anchored: bool = False


class Fold(NamedTuple):
    """One train window and the test window after it, ms UTC, ends exclusive."""

    train: tuple[int, int]
    test: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Walked:
    """What one fold came to.

    `params` and `outcome` are None if no train trial was complete and kept the constraints.
    """

    fold: Fold
    params: Params | None
    # the first objective in the train window
    trained: float | None
    outcome: TrialOutcome | None


def length_ms(text: str) -> int | None:
    """The milliseconds of a length as 12h, 90d or 2w; None if it is no length."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", text)
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def read_windows(text: str) -> Windows:
    """The windows of `train=90d,test=30d,embargo=1d,anchored`. ConfigError says what is wrong."""
    given: dict[str, int] = {}
    is_anchored = False
    for part in text.split(","):
        name, _, length = part.strip().partition("=")
        found_ms = length_ms(length)
        if part.strip() == "anchored":
            is_anchored = True
        elif name not in ("train", "test", "embargo") or found_ms is None or name in given:
            raise ConfigError(f"--walk-forward {text}: {part.strip()!r} is no window; {_FORM} (lengths in h, d or w)")
        else:
            given[name] = found_ms
    if not {"train", "test"} <= given.keys():
        raise ConfigError(f"--walk-forward {text}: train and test are needed; {_FORM}")
    return Windows(given["train"], given["test"], given.get("embargo", 0), is_anchored)


def folds_of(windows: Windows, start_ms: int, end_ms: int) -> list[Fold]:
    """The folds of a range.

    An end that is shorter than a test window is left out. ConfigError if no fold fits, or too many do.
    """
    train, test, embargo, is_anchored = windows
    folds = []
    at_ms = start_ms + train
    while at_ms + embargo + test <= end_ms:
        folds.append(
            Fold((start_ms if is_anchored else at_ms - train, at_ms), (at_ms + embargo, at_ms + embargo + test))
        )
        at_ms += test
    if not folds:
        days = (end_ms - start_ms) / DAY_MS
        raise ConfigError(
            f"--walk-forward: train, embargo and test take {(train + embargo + test) / DAY_MS:g} days, and the range"
            f" has {days:g}; take shorter windows or more data"
        )
    if len(folds) > WINDOWS_MAX:
        raise ConfigError(
            f"--walk-forward: {len(folds):,} windows are more than {WINDOWS_MAX}; take longer test windows"
        )
    return folds


class WalkForward:
    """Runs the folds.

    `study_of` gives the study of a fold's number and train window, so that a stopped walk goes on.
    """

    def __init__(self, space: Space, plan: SweepPlan, runner: Runner, study_of: Callable[[int, Fold], Study]) -> None:
        self._space, self._plan, self._runner, self._study_of = space, plan, runner, study_of

    def run(self, folds: Sequence[Fold], show: Callable[[Progress], object] = lambda _: None) -> list[Walked]:
        walked = []
        for number, fold in enumerate(folds):
            study = self._study_of(number, fold)
            sweep = Sweep(study, self._space, self._plan, self._runner, span=fold.train)
            before = number * sweep.size

            def shown(now: Progress, before: int = before) -> object:
                return show(replace(now, done=before + now.done, of=len(folds) * now.of))

            sweep.run(shown)
            best = next((row for row in ranked(study.trials(), self._space) if row.is_feasible), None)
            if best is None:
                walked.append(Walked(fold, None, None, None))
                continue
            (outcome,) = self._runner.outcomes([Task(number, best.trial.params, span=fold.test)])
            walked.append(Walked(fold, best.trial.params, best.values[0], outcome))
        return walked


def summary_of(walked: Sequence[Walked], figure: str) -> dict[str, Any]:
    """The walk as JSON: each fold, the returns of the test windows together, and the verdict."""
    returns = [gain for fold in walked if fold.outcome is not None for gain in fold.outcome.returns]
    moments = moments_of(returns)
    chance = None if moments is None else probabilistic_sharpe(moments)
    growth = 1.0
    for gain in returns:
        growth *= 1 + gain
    return {
        "folds": [
            {
                "train": [iso(at) for at in walk.fold.train],
                "test": [iso(at) for at in walk.fold.test],
                "params": None if walk.params is None else dict(walk.params),
                "trained": walk.trained,
                "tested": None if walk.outcome is None else walk.outcome.figures.get(figure),
                "trades": None if walk.outcome is None else walk.outcome.figures.get("# Trades"),
            }
            for walk in walked
        ],
        "figure": figure,
        "days": len(returns),
        "returnPct": 100 * (growth - 1),
        "probabilisticSharpe": chance,
        "edge": chance is not None and chance >= SURE,
    }


def verdict(summary: dict[str, Any]) -> str:
    """One sentence about the test windows together."""
    chance = summary["probabilisticSharpe"]
    if chance is None:
        return f"Too few days for a verdict: the test windows have {summary['days']}."
    edge = "an edge is likely" if summary["edge"] else f"no edge is shown (less than {SURE})"
    return (
        f"Walk-forward: {summary['returnPct']:+.2f} % over {summary['days']} days of test windows; probabilistic Sharpe"
        f" ratio {chance:.2f}: {edge}. No test window was seen when its params were chosen."
    )

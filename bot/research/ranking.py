"""What the trials of a study say: their order, the Pareto front, how the neighbours of the best do, and values by
two params.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

from bot.plain_text import csv_cell
from bot.research.overfitting import Doubt, doubts, verdicts
from bot.research.space import Bound, Objective, Scalar, Space
from bot.research.study import Study, Trial

# rows and columns of a map
MAP_VALUES_MAX: Final = 24


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finished trial with its place.

    `neighbours`: mean of the first objective over the trials that differ by one step of one param; None without any.
    """

    trial: Trial
    values: tuple[float, ...]
    is_feasible: bool
    is_on_front: bool
    neighbours: float | None


def space_of(study: Study) -> Space:
    """Objectives and constraints of a stored study; without the dimensions."""
    plain = study.identity["space"]
    return Space(
        (),
        tuple(Objective(figure, best == "highest") for figure, best in plain["objectives"]),
        tuple(Bound(figure, least, most) for figure, least, most in plain["constraints"]),
    )


def ranked(trials: Sequence[Trial], space: Space) -> list[Ranked]:
    """The complete trials, the best first: those that keep the constraints before the others, then by the first
    objective, then by their cell.
    """
    signs = [1 if objective.is_highest else -1 for objective in space.objectives]
    values = {
        trial.cell: tuple(scores)
        for trial in trials
        if trial.state == "complete" and (scores := space.values(trial.figures)) is not None
    }
    complete = [trial for trial in trials if trial.cell in values]
    feasible = {trial.cell for trial in complete if space.is_feasible(trial.figures)}
    front = _front({cell: [s * v for s, v in zip(signs, values[cell], strict=True)] for cell in feasible})
    around = _neighbours(complete, values)
    rows = [
        Ranked(trial, values[trial.cell], trial.cell in feasible, trial.cell in front, around.get(trial.cell))
        for trial in complete
    ]
    return sorted(rows, key=lambda row: (not row.is_feasible, -signs[0] * row.values[0], row.trial.cell))


def _front(values: Mapping[int, Sequence[float]]) -> set[int]:
    """The trials that no other beats in every objective (all to be high)."""
    return {
        cell
        for cell, mine in values.items()
        if not any(other != mine and all(b >= a for a, b in zip(mine, other, strict=True)) for other in values.values())
    }


def _neighbours(complete: Sequence[Trial], values: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """By cell: the mean of the first objective over the neighbours in a grid. A sample by chance has none."""
    if not complete:
        return {}
    names = list(complete[0].params)
    axes = {name: sorted({trial.params[name] for trial in complete}, key=_order) for name in names}
    place = {name: {value: n for n, value in enumerate(axis)} for name, axis in axes.items()}
    at = {tuple(place[name][trial.params[name]] for name in names): trial.cell for trial in complete}
    means = {}
    for spot, cell in at.items():
        near = [
            values[at[other]][0]
            for axis in range(len(names))
            for step in (-1, 1)
            if (other := (*spot[:axis], spot[axis] + step, *spot[axis + 1 :])) in at
        ]
        if near:
            means[cell] = mean(near)
    return means


def _order(value: Scalar) -> tuple[bool, Any]:
    return isinstance(value, str), value


def heat_of(
    rows: Sequence[Ranked], across: str, down: str
) -> tuple[list[Scalar], list[tuple[Scalar, list[float | None]]]]:
    """The mean of the first objective by the values of two params: the values across, and a row for each value down.

    Empty if there are too many.
    """
    columns = sorted({row.trial.params[across] for row in rows}, key=_order)
    lines = sorted({row.trial.params[down] for row in rows}, key=_order)
    if max(len(columns), len(lines)) > MAP_VALUES_MAX:
        return [], []
    cells: dict[tuple[Scalar, Scalar], list[float]] = {}
    for row in rows:
        cells.setdefault((row.trial.params[down], row.trial.params[across]), []).append(row.values[0])
    return columns, [
        (line, [mean(values) if (values := cells.get((line, column))) else None for column in columns])
        for line in lines
    ]


def verdicts_of(rows: Sequence[Ranked]) -> list[str]:
    """How sure one can be of the best trial, as sentences. Empty without a trial that keeps the constraints."""
    return verdicts(whole_returns(rows), rows[0].trial.returns) if rows and rows[0].is_feasible else []


def doubts_of(rows: Sequence[Ranked]) -> list[Doubt]:
    """How sure one can be of the best trial, as tests with their bounds. Empty as for `verdicts_of`."""
    return doubts(whole_returns(rows), rows[0].trial.returns) if rows and rows[0].is_feasible else []


def whole_returns(rows: Sequence[Ranked]) -> list[Sequence[float]]:
    """The returns of the trials that ran to the end. A trial that lost everything has fewer."""
    days = max((len(row.trial.returns) for row in rows), default=0)
    return [row.trial.returns for row in rows if len(row.trial.returns) == days]


def plateau_of(rows: Sequence[Ranked], space: Space) -> Ranked | None:
    """The trial that keeps the constraints and whose neighbours do best; None without neighbours."""
    sign = 1 if space.objectives[0].is_highest else -1
    known = [row for row in rows if row.is_feasible and row.neighbours is not None]
    return max(known, key=lambda row: (sign * (row.neighbours or 0.0), -row.trial.cell), default=None)


def table_of(trials: Sequence[Trial], space: Space) -> str:
    """Every finished trial as CSV, in the order of the cells. The same sweep gives the same bytes wherever it ran."""
    figures = list(dict.fromkeys([*(o.figure for o in space.objectives), *(c.figure for c in space.constraints)]))
    params = list(trials[0].params) if trials else []
    others = sorted({name for trial in trials for name in trial.figures} - set(figures))
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "state", *params, "feasible", *figures, *others, "message"])
    for trial in trials:
        is_feasible = trial.state == "complete" and space.is_feasible(trial.figures)
        rows.writerow(
            [
                trial.cell,
                trial.state,
                *(trial.params[name] for name in params),
                "yes" if is_feasible else "no",
                *(_cell(trial.figures.get(name)) for name in (*figures, *others)),
                csv_cell(trial.message),
            ]
        )
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else value

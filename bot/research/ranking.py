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

from bot.research.overfitting import verdicts
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
    signs = [1 if one.is_highest else -1 for one in space.objectives]
    values = {
        one.cell: tuple(found)
        for one in trials
        if one.state == "complete" and (found := space.values(one.figures)) is not None
    }
    complete = [one for one in trials if one.cell in values]
    feasible = {one.cell for one in complete if space.is_feasible(one.figures)}
    front = _front({cell: [s * v for s, v in zip(signs, values[cell], strict=True)] for cell in feasible})
    around = _neighbours(complete, values)
    made = [
        Ranked(one, values[one.cell], one.cell in feasible, one.cell in front, around.get(one.cell)) for one in complete
    ]
    return sorted(made, key=lambda one: (not one.is_feasible, -signs[0] * one.values[0], one.trial.cell))


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
    axes = {name: sorted({one.params[name] for one in complete}, key=_order) for name in names}
    place = {name: {value: n for n, value in enumerate(axis)} for name, axis in axes.items()}
    at = {tuple(place[name][one.params[name]] for name in names): one.cell for one in complete}
    found = {}
    for spot, cell in at.items():
        near = [
            values[at[other]][0]
            for axis in range(len(names))
            for step in (-1, 1)
            if (other := (*spot[:axis], spot[axis] + step, *spot[axis + 1 :])) in at
        ]
        if near:
            found[cell] = mean(near)
    return found


def _order(value: Scalar) -> tuple[bool, Any]:
    return isinstance(value, str), value


def heat_of(
    rows: Sequence[Ranked], across: str, down: str
) -> tuple[list[Scalar], list[tuple[Scalar, list[float | None]]]]:
    """The mean of the first objective by the values of two params: the values across, and a row for each value down.

    Empty if there are too many.
    """
    columns = sorted({one.trial.params[across] for one in rows}, key=_order)
    lines = sorted({one.trial.params[down] for one in rows}, key=_order)
    if max(len(columns), len(lines)) > MAP_VALUES_MAX:
        return [], []
    cells: dict[tuple[Scalar, Scalar], list[float]] = {}
    for one in rows:
        cells.setdefault((one.trial.params[down], one.trial.params[across]), []).append(one.values[0])
    return columns, [
        (line, [mean(found) if (found := cells.get((line, column))) else None for column in columns]) for line in lines
    ]


def verdicts_of(rows: Sequence[Ranked]) -> list[str]:
    """How sure one can be of the best trial, as sentences. Empty without a trial that keeps the constraints."""
    if not rows or not rows[0].is_feasible:
        return []
    # A trial that lost everything has fewer.
    days = max(len(one.trial.returns) for one in rows)
    return verdicts([one.trial.returns for one in rows if len(one.trial.returns) == days], rows[0].trial.returns)


def table_of(trials: Sequence[Trial], space: Space) -> str:
    """Every finished trial as CSV, in the order of the cells. The same sweep gives the same bytes wherever it ran."""
    figures = list(dict.fromkeys([*(o.figure for o in space.objectives), *(c.figure for c in space.constraints)]))
    params = list(trials[0].params) if trials else []
    others = sorted({name for one in trials for name in one.figures} - set(figures))
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "state", *params, "feasible", *figures, *others, "message"])
    for one in trials:
        is_feasible = one.state == "complete" and space.is_feasible(one.figures)
        rows.writerow(
            [
                one.cell,
                one.state,
                *(one.params[name] for name in params),
                "yes" if is_feasible else "no",
                *(_cell(one.figures.get(name)) for name in (*figures, *others)),
                one.message,
            ]
        )
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else value

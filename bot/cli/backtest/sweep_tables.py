"""What `bot sweep` prints: the ranking of a study, and the folds of a walk-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bot import terminal

if TYPE_CHECKING:
    from bot.research.space import Space
    from bot.research.study import Study
    from bot.research.walk_forward import Walked


def print_study(study: Study, top: int, held: Sequence[str], *, as_json: bool) -> None:
    """The ranking, what the trials say together, and the state of the holdout (`held`)."""
    import json

    from rich.table import Column, Table

    from bot.research.gaps import gaps_of
    from bot.research.ranking import heat_of, ranked, space_of, verdicts_of
    from bot.research.sweep_page import best_pair, heads_of, row_of

    space, trials = space_of(study), study.trials()
    rows, weights = ranked(trials, space), study.importance()
    sure = verdicts_of(rows)
    if as_json:
        best = [
            {
                "trial": one.trial.cell, "params": dict(one.trial.params), "objectives": list(one.values), "feasible": one.is_feasible,
                "onFront": one.is_on_front, "neighbours": one.neighbours,
            }
            for one in rows[:top]
        ]  # fmt: skip
        states = {state: sum(one.state == state for one in trials) for state in sorted({one.state for one in trials})}
        click.echo(
            json.dumps(
                {"study": study.name, "trials": states, "best": best, "importance": weights, "verdicts": sure, "holdout": list(held), "ranAgain": gaps_of(study)}
            )
        )  # fmt: skip
        return
    names = list(trials[0].params) if trials else []
    console = terminal.console()
    table = Table(
        *(Column(head, overflow="fold") for head in heads_of(names, space)),
        title=f"{study.name}: the best of {len(trials):,} trials",
        title_justify="left",
    )
    for place, one in enumerate(rows[:top], start=1):
        table.add_row(*row_of(place, one, names))
    console.print(table)
    front = [str(one.trial.cell) for one in rows if one.is_on_front]
    if len(space.objectives) > 1:
        console.print(f"Pareto front: trials {', '.join(front)}")
    if weights:
        console.print("Importance: " + ", ".join(f"{name} {share:.0%}" for name, share in weights.items()))
    pair = best_pair(weights, names)
    columns, lines = ([], []) if pair is None else heat_of(rows, *pair)
    if pair is not None and columns:
        heat = Table("", *map(str, columns), title=f"{space.objectives[0].figure}: {pair[0]} across, {pair[1]} down", title_justify="left")  # fmt: skip
        for line, values in lines:
            heat.add_row(str(line), *("" if value is None else f"{value:,.2g}" for value in values))
        console.print(heat)
    again = gaps_of(study)
    if again:
        heads = [f"{figure} {word}" for figure in again[0]["figures"] for word in ("screen", "backtest", "gap")]
        gaps = Table(
            "trial",
            *(Column(head, overflow="fold") for head in heads),
            title="Run again as full backtests",
            title_justify="left",
        )
        for row in again:
            shown = (one[word] for one in row["figures"].values() for word in ("screen", "backtest", "gap"))
            gaps.add_row(str(row["trial"]), *("" if value is None else f"{value:,.6g}" for value in shown))
        console.print(gaps)
    lacking = [one for one in trials if one.state != "complete"]
    if lacking:
        console.print(f"{len(lacking):,} trials are not complete; the first: trial {lacking[0].cell}: {lacking[0].state} {lacking[0].message}")  # fmt: skip
    for line in (*sure, *held):
        console.print(line)


def print_walk(walked: Sequence[Walked], space: Space, *, as_json: bool) -> None:
    """The folds, and what the test windows say together."""
    import json

    from rich.table import Column, Table

    from bot.research.walk_forward import summary_of, verdict

    figure = space.objectives[0].figure
    summary = summary_of(walked, figure)
    if as_json:
        click.echo(json.dumps({**summary, "verdict": verdict(summary)}))
        return
    heads = ("train", "test", "params", f"train {figure}", f"test {figure}", "trades")
    table = Table(*(Column(head, overflow="fold") for head in heads), title="Walk-forward", title_justify="left")
    for one in summary["folds"]:
        params = "no trial keeps the constraints" if one["params"] is None else ", ".join(f"{k} {v}" for k, v in one["params"].items())  # fmt: skip
        values = ("" if value is None else f"{value:,.4g}" for value in (one["trained"], one["tested"]))
        spans = (f"{start[:10]} to {end[:10]}" for start, end in (one["train"], one["test"]))
        table.add_row(*spans, params, *values, "" if one["trades"] is None else str(one["trades"]))
    console = terminal.console()
    console.print(table)
    console.print(verdict(summary))

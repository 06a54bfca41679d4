"""What `bot sweep` prints: the ranking of a study, and the folds of a walk-forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from bot.cli.common.text_table import screen_width, table_lines

if TYPE_CHECKING:
    from bot.research.space import Space
    from bot.research.study import Study
    from bot.research.walk_forward import Walked


def print_study(study: Study, top: int, held: Sequence[str], *, as_json: bool) -> None:
    """The ranking, what the trials say together, and the state of the holdout (`held`)."""
    import json

    from bot.backtest.report.summary import figure_of
    from bot.research.gaps import gaps_of
    from bot.research.ranking import heat_of, ranked, space_of, verdicts_of
    from bot.research.sweep_page import best_pair, columns_of, row_of

    space, trials = space_of(study), study.trials()
    rows, weights = ranked(trials, space), study.importance()
    sure = verdicts_of(rows)
    if as_json:
        best = [
            {
                "trial": row.trial.cell,
                "params": dict(row.trial.params),
                "objectives": list(row.values),
                "feasible": row.is_feasible,
                "onFront": row.is_on_front,
                "neighbours": row.neighbours,
            }
            for row in rows[:top]
        ]
        states = {
            state: sum(trial.state == state for trial in trials) for state in sorted({trial.state for trial in trials})
        }
        click.echo(
            json.dumps(
                {
                    "study": study.name,
                    "trials": states,
                    "best": best,
                    "importance": weights,
                    "verdicts": sure,
                    "holdout": list(held),
                    "ranAgain": gaps_of(study),
                }
            )
        )
        return
    names = list(trials[0].params) if trials else []
    click.echo(f"{study.name}: the best of {len(trials):,} trials")
    columns = columns_of(names, space)
    ranking = [row_of(place, rank, names, space) for place, rank in enumerate(rows[:top], start=1)]
    _print_table(
        [column.head for column in columns],
        [[column.text(value) for column, value in zip(columns, row, strict=True)] for row in ranking],
    )
    front = [str(row.trial.cell) for row in rows if row.is_on_front]
    if len(space.objectives) > 1:
        click.echo(f"Pareto front: trials {', '.join(front)}")
    if weights:
        click.echo("Importance: " + ", ".join(f"{name} {share:.0%}" for name, share in weights.items()))
    pair = best_pair(weights, names)
    across, lines = ([], []) if pair is None else heat_of(rows, *pair)
    if pair is not None and across:
        click.echo(f"\n{figure_of(space.objectives[0].figure).name}: {pair[0]} across, {pair[1]} down")
        cells = [[str(line), *("" if value is None else f"{value:,.2g}" for value in values)] for line, values in lines]
        _print_table(["", *map(str, across)], cells)
    _print_gaps(gaps_of(study))
    lacking = [trial for trial in trials if trial.state != "complete"]
    if lacking:
        first = lacking[0]
        click.echo(
            f"{len(lacking):,} trials are not complete; the first: trial {first.cell}: {first.state} {first.message}"
        )
    for line in (*sure, *held):
        click.echo(line)


def _print_gaps(again: Sequence[Mapping[str, Any]]) -> None:
    """How far the screen was from the full backtests of the same params."""
    if again:
        heads = [f"{figure} {word}" for figure in again[0]["figures"] for word in ("screen", "backtest", "gap")]
        click.echo("\nRun again as full backtests")
        _print_table(["trial", *heads], [_gap_cells(row) for row in again])


def _gap_cells(row: Mapping[str, Any]) -> list[str]:
    shown = (figure[word] for figure in row["figures"].values() for word in ("screen", "backtest", "gap"))
    return [str(row["trial"]), *("" if value is None else f"{value:,.6g}" for value in shown)]


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in table_lines(heads, rows, right=range(len(heads)), width=screen_width()):
        click.echo(line)


def border_text(instant: str) -> str:
    """A border as `--from` and `--to` take it: a date, and its time where it is not midnight."""
    return instant[:10] if instant[11:19] == "00:00:00" else instant[:16]


def print_walk(walked: Sequence[Walked], space: Space, *, as_json: bool) -> None:
    """The folds, and what the test windows say together."""
    import json

    from bot.research.walk_forward import summary_of, verdict

    figure = space.objectives[0].figure
    summary = summary_of(walked, figure)
    if as_json:
        click.echo(json.dumps({**summary, "verdict": verdict(summary)}))
        return
    rows = []
    for fold in summary["folds"]:
        params = (
            "no trial keeps the constraints"
            if fold["params"] is None
            else ", ".join(f"{name} {value}" for name, value in fold["params"].items())
        )
        values = ("" if value is None else f"{value:,.4g}" for value in (fold["trained"], fold["tested"]))
        spans = (f"{border_text(start)} to {border_text(end)}" for start, end in (fold["train"], fold["test"]))
        rows.append([*spans, params, *values, "" if fold["trades"] is None else str(fold["trades"])])
    click.echo("Walk-forward")
    heads = ("train", "test", "params", f"train {figure}", f"test {figure}", "trades")
    for line in table_lines(heads, rows, right=(3, 4, 5), width=screen_width()):
        click.echo(line)
    click.echo(verdict(summary))

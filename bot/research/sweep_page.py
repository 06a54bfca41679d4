"""The page of a sweep: ranking, Pareto front, importance of the params, a map of two params.

One file that needs no network; the same study gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bot.backtest.report.page import styles
from bot.backtest.report.summary import figure_of
from bot.backtest.report.tables import bullets, escaped, heat_map, section, table
from bot.figures import Column
from bot.research.ranking import Ranked, heat_of, ranked, space_of, verdicts_of
from bot.research.space import Space
from bot.research.study import Study, Trial
from bot.words import many

# rows of the ranking
TOP: Final = 50
# The size of the Pareto front, in px.
PLOT: Final = (560, 320)
EDGE: Final = 44


def render_sweep(study: Study, held: Sequence[str] = ()) -> str:
    """The HTML of a study. `held`: the state of its holdout."""
    space, trials = space_of(study), study.trials()
    rows = ranked(trials, space)
    names = list(trials[0].params) if trials else []
    weights = study.importance()
    parts = [
        section("Best trials", _ranking(rows[:TOP], names, space), note=PLATEAU_NOTE),
        section("Pareto front", _front(rows, space), note="Trials that no other beats in every objective"),
        section(
            "Importance of the params",
            _importance(weights),
            note="How much each param decides whether a trial is good (PED-ANOVA)",
        ),
        section("Map", _maps(rows, weights, names, space), note=f"Mean {_first(space)} over the other params"),
        section("How sure", bullets(verdicts_of(rows)), note="Of the best trial, by its daily returns"),
        section("Holdout", bullets(held), note="The last part of the data, which no trial saw"),
        section("Not complete", bullets(_not_complete(trials))),
        section("What was run", bullets(_identity_lines(study))),
    ]
    head = (
        f"<h1>{escaped(study.name)}</h1><p>{many(len(trials), 'trial')}, {sum(row.is_feasible for row in rows):,} keep"
        " the constraints</p>"
    )
    return _PAGE.format(title=escaped(study.name), style=styles(), head=head, body="\n".join(filter(None, parts)))


def _first(space: Space) -> str:
    """The name of the first objective."""
    return figure_of(space.objectives[0].figure).name


PLATEAU_NOTE: Final = (
    "Neighbours: mean of the first objective over the trials one step away in one param. A best trial whose neighbours"
    " do badly is probably luck."
)


def columns_of(names: Sequence[str], space: Space) -> list[Column]:
    """The columns of the ranking. A sweep without constraints has no column for them."""
    figures = [figure_of(objective.figure) for objective in space.objectives]
    objectives = [Column(figure.name, figure.form, figure.better) for figure in figures]
    near = Column("Neighbours", figures[0].form, figures[0].better)
    kept = [Column("Constraints")] if space.constraints else []
    params = [Column(name, "param") for name in names]
    return [Column("#", "count"), Column("Trial"), *params, *objectives, near, Column("Trades", "count"), *kept]


def row_of(place: int, rank: Ranked, names: Sequence[str], space: Space) -> list[object]:
    """A row of the ranking, under `columns_of`."""
    kept = ["kept" if rank.is_feasible else "broken"] if space.constraints else []
    params = (rank.trial.params[name] for name in names)
    return [
        place,
        str(rank.trial.cell),
        *params,
        *rank.values,
        rank.neighbours,
        rank.trial.figures.get("# Trades"),
        *kept,
    ]


def _ranking(rows: Sequence[Ranked], names: Sequence[str], space: Space) -> str:
    return table(
        columns_of(names, space),
        [row_of(n, rank, names, space) for n, rank in enumerate(rows, start=1)],
        label="Best trials",
    )


def _front(rows: Sequence[Ranked], space: Space) -> str:
    """The first two objectives of every feasible trial as SVG."""
    if len(space.objectives) < 2:
        return ""
    dots = [(row.values[0], row.values[1], row.is_on_front) for row in rows if row.is_feasible]
    if not dots:
        return ""
    (x0, x1), (y0, y1) = (
        (min(values), max(values)) for values in (tuple(x for x, _, _ in dots), tuple(y for _, y, _ in dots))
    )
    width, height = PLOT

    def spot(x: float, y: float) -> tuple[float, float]:
        across = EDGE + (width - 2 * EDGE) * ((x - x0) / (x1 - x0) if x1 > x0 else 0.5)
        return across, height - EDGE - (height - 2 * EDGE) * ((y - y0) / (y1 - y0) if y1 > y0 else 0.5)

    circles = []
    for x, y, is_best in sorted(dots, key=lambda dot: dot[2]):
        cx, cy = spot(x, y)
        kind = "best" if is_best else "other"
        circles.append(
            f'<circle class="{kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="{5 if is_best else 3}"><title>{x:,.4g} /'
            f" {y:,.4g}</title></circle>"
        )
    first, second = (escaped(figure_of(objective.figure).name) for objective in space.objectives[:2])
    on_front = sum(is_best for _, _, is_best in dots)
    return (
        f'<svg class="front" viewBox="0 0 {width} {height}" role="img" aria-label="{first} against {second}: {on_front}'
        f' of {len(dots)} trials are on the front">{"".join(circles)}<text x="{width / 2}" y="{height - 8}"'
        f' text-anchor="middle">{first}: {x0:,.4g} to {x1:,.4g}</text><text x="14" y="{height / 2}"'
        f' text-anchor="middle" transform="rotate(-90 14 {height / 2})">{second}: {y0:,.4g} to {y1:,.4g}</text></svg>'
    )


def _importance(weights: dict[str, float]) -> str:
    columns = (Column("Param", "words"), Column("Share", "share"))
    return table(columns, [(name, 100 * share) for name, share in weights.items()], label="Importance")


def best_pair(weights: dict[str, float], names: Sequence[str]) -> tuple[str, str] | None:
    """The two params that matter most; None if there are fewer than two."""
    order = sorted(names, key=lambda name: -weights.get(name, 0.0))
    return None if len(order) < 2 else (order[0], order[1])


def _maps(rows: Sequence[Ranked], weights: dict[str, float], names: Sequence[str], space: Space) -> str:
    pair = best_pair(weights, names)
    if pair is None:
        return ""
    columns, lines = heat_of(rows, *pair)
    if not columns:
        return ""
    title = f"{pair[0]} across, {pair[1]} down"
    drawn = heat_map(
        f"{pair[1]} \\ {pair[0]}",
        [str(value) for value in columns],
        [(str(name), values) for name, values in lines],
        f"{_first(space)}: {title}",
    )
    return f"<h3>{escaped(title)}</h3>{drawn}"


def _not_complete(trials: Sequence[Trial]) -> list[str]:
    return [
        f"trial {trial.cell}: {trial.state}{f': {trial.message}' if trial.message else ''}"
        for trial in trials
        if trial.state != "complete"
    ][:TOP]


def _identity_lines(study: Study) -> list[str]:
    identity = study.identity
    data = (f"{series['market']} {series['interval']}: {series['candles']:,} candles" for series in identity["data"])
    constraints = (
        f"{name} {'' if low is None else f'at least {low:g} '}{'' if high is None else f'at most {high:g}'}".strip()
        for name, low, high in identity["space"]["constraints"]
    )
    return [f"method {identity['method']}, seed {identity['seed']}", identity["code"], *data, *constraints]


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta \
name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}
.front {{ width: 100%; max-width: 560px; }} .front text {{ fill: currentColor; font-size: 12px; }}
.front .best {{ fill: var(--accent); }} .front .other {{ fill: none; stroke: var(--bench); }}</style>
</head><body><div class="page">
<header class="masthead"><div>{head}</div></header>
<main class="grid">
{body}
</main></div>
</body></html>
"""

"""The page of a sweep: what it says of the best trial, its equity among all, each test against luck with its bound, the
map of two params, ranking, Pareto front, importance of the params.

One file that needs no network and no script; the same study gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import Any, Final, NamedTuple

from bot.backtest.report import svg
from bot.backtest.report.page import framed
from bot.backtest.report.summary import figure_of
from bot.backtest.report.tables import (
    bullets,
    chip,
    escaped,
    foot,
    gauge,
    heat_map,
    lead,
    pairs,
    section,
    table,
    verdict,
)
from bot.backtest.report.trade_statistics import bins
from bot.clock import DAY_MS
from bot.figures import NOT_KNOWN, Column
from bot.number_text import on_page, usd
from bot.research.overfitting import Doubt
from bot.research.ranking import Ranked, doubts_of, heat_of, plateau_of, ranked, space_of, verdicts_of, whole_returns
from bot.research.space import Space
from bot.research.study import Study, Trial
from bot.words import many

# rows of the ranking; the command writes all
TOP: Final = 15
# points of an equity line
DAYS_SHOWN: Final = 240
# figures of the best trial beside its objectives
BEST: Final = (
    "Return [%]",
    "Return (Ann.) [%]",
    "Max. Drawdown [%]",
    "Volatility (Ann.) [%]",
    "Sharpe Ratio",
    "Sortino Ratio",
    "# Trades",
    "Win Rate [%]",
    "Profit Factor",
    "Avg. R",
    "Exposure Time [%]",
)


class BestBacktest(NamedTuple):
    """How to see the best trial as a backtest: a command, and the address of its report; "" where there is none."""

    command: str = ""
    report: str = ""


def render_sweep(study: Study, held: Sequence[str] = (), backtest: BestBacktest | None = None) -> str:
    """The HTML of a study. `held`: the state of its holdout. `backtest`: that of the best trial."""
    space, trials = space_of(study), study.trials()
    rows = ranked(trials, space)
    names = list(trials[0].params) if trials else []
    weights, tests = study.importance(), doubts_of(rows)
    of_all = f"1 to {min(TOP, len(rows)):,} of {len(rows):,}; bot sweep show {study.name} --csv FILE writes all"
    parts = [
        _verdict(rows, tests, space),
        _best(rows, space, backtest or BestBacktest()),
        _how_sure(rows, tests),
        _equity(study, rows),
        _distribution(rows, space),
        section("Map", _maps(rows, weights, names, space), note=f"Mean {_first(space)} over the other params"),
        section("Best trials", _ranking(rows[:TOP], names, space) + foot(of_all), note=PLATEAU_NOTE),
        section("Pareto front", _front(rows, space), note="Trials that no other beats in every objective", span="c7"),
        section(
            "Importance of the params",
            _importance(weights),
            note="How much each param decides whether a trial is good (PED-ANOVA)",
            span="c5",
        ),
        section("Holdout", bullets(held), note="The last part of the data, which no trial saw"),
        section("Not complete", bullets(_not_complete(trials))),
        section("What was run", bullets(_identity_lines(study))),
    ]
    head = (
        f"<h1>{escaped(study.name)}</h1><p>{many(len(trials), 'trial')}, {sum(row.is_feasible for row in rows):,} keep"
        " the constraints</p>"
    )
    return framed(study.name, head, parts)


def _verdict(rows: Sequence[Ranked], tests: Sequence[Doubt], space: Space) -> str:
    """What the sweep means, in one sentence."""
    if not rows or not rows[0].is_feasible:
        return verdict("bad", "No trial keeps the constraints.")
    if not tests:
        (text,) = verdicts_of(rows)
        return verdict("watch", "Too few days.", text)
    # The figures that allow for the choice among many; the probabilistic ratio does not.
    judged = [test for test in tests[1:] if test.value is not None]
    failed = [test.name for test in judged if not test.is_passed]
    is_sure = bool(judged) and not failed
    figure = figure_of(space.objectives[0].figure)
    near = rows[0].neighbours
    text = f"The best of {many(len(rows), 'complete trial')} has {figure.name} {figure.of(rows[0].values[0]).shown}."
    text += f" Its neighbours average {figure.of(near).shown}." if near is not None else ""
    note = (
        "Every test below that allows for the choice among so many keeps its bound."
        if is_sure
        else f"Not within its bound: {', '.join(failed)}."
        if failed
        else "No test that allows for the choice could be computed."
    )
    head = "An edge is likely." if is_sure else "No edge is shown."
    return verdict("good" if is_sure else "bad", head, text, [note])


def _best(rows: Sequence[Ranked], space: Space, backtest: BestBacktest) -> str:
    if not rows or not rows[0].is_feasible:
        return ""
    best = rows[0]
    first = figure_of(space.objectives[0].figure, best.values[0])
    shown = [figure_of(name, best.trial.figures[name]) for name in BEST if name in best.trial.figures]
    near = figure_of(space.objectives[0].figure, best.neighbours)
    chips = "".join(chip(f"{name} {Column('', 'param').shown(value)}") for name, value in best.trial.params.items())
    body = f'{lead(first, f"{first.name}, trial {best.trial.cell}")}<div class="chips">{chips}</div>{pairs(shown)}'
    if near.value is not None:
        body += foot(f"The neighbours, one step away in one param, average {near.shown}.")
    if backtest.report:
        body += f'<p><a href="{escaped(backtest.report)}">Open its backtest</a></p>'
    if backtest.command:
        body += f'<pre tabindex="0">{escaped(backtest.command)}</pre>'
    return section("Best trial", body, span="c7")


def _how_sure(rows: Sequence[Ranked], tests: Sequence[Doubt]) -> str:
    """Each test with its value, its bound as a mark, and whether it keeps the bound."""
    note = "Of the best trial, by its daily returns; mark: the bound"
    if not tests:
        return section("How sure", bullets(verdicts_of(rows)), note=note)
    gauges = []
    for test in tests:
        needs = f"{'At least' if test.is_least else 'At most'} {test.bound:.2f} is needed (mark)."
        if test.value is None:
            gauges.append(gauge(escaped(test.name), NOT_KNOWN, "", test.sentence))
            continue
        word = "✓ within its bound" if test.is_passed else "✗ not within its bound"
        tone = "up" if test.is_passed else "down"
        name = f'{escaped(test.name)} <span class="{tone}">{word}</span>'
        bar = svg.gauge_bar(0.0, test.value, mark=test.bound, kind="fu" if test.is_passed else "fd")
        gauges.append(gauge(name, f"{test.value:.3f}", bar, f"{test.note} {needs}"))
    return section("How sure", "".join(gauges), note=note, span="c5")


def _equity(study: Study, rows: Sequence[Ranked]) -> str:
    """The equity of the best trial over the median and the middle 80 % of all that ran to the end."""
    whole = whole_returns(rows)
    if not whole or len(whole[0]) < 2 or not rows[0].is_feasible:
        return ""
    start = float((study.identity.get("options") or {}).get("balance_usd") or 100)
    step = max(1, -(-len(whole[0]) // DAYS_SHOWN))
    curves = [_thinned(returns, start, step) for returns in whole]
    best = _thinned(rows[0].trial.returns, start, step)
    days = [sorted(curve[n] for curve in curves) for n in range(len(curves[0]))]
    middle = [median(day) for day in days]
    low, high = ([day[round(part * (len(day) - 1))] for day in days] for part in (0.1, 0.9))
    texts = [usd(line[-1]) for line in (best, middle)]
    lines = [
        svg.ChartLine("median", middle, "b", svg.axis_number(middle[-1])),
        svg.ChartLine("best", best, "", svg.axis_number(best[-1])),
    ]
    legend = [
        svg.key("", f"best, trial {rows[0].trial.cell}", texts[0], is_line=True),
        svg.key("b", "median of all trials", texts[1], is_line=True),
        svg.key("ar ex", "10 % to 90 % of them"),
    ]
    label = f"Equity of the best trial from {usd(start)} to {texts[0]}; median of all {texts[1]}"
    scale = svg.scale_of([*low, *high, *middle, *best, start], is_log=True)
    times = _times(study, len(whole[0]))
    drawn = svg.line_chart(lines, scale, label=label, base=start, times=times, band=(low, high))
    note = f"from {usd(start)}, a point for each day with prices, log scale"
    return section("Equity of the best trial, among all", svg.keys(legend) + drawn, note=note, span="c7")


def _thinned(returns: Sequence[float], start: float, step: int) -> list[float]:
    """The equity after every `step`-th day, and after the last."""
    curve = list(accumulate(returns, lambda value, gain: value * (1 + gain), initial=start))
    return [*curve[:-1:step], curve[-1]]


def _times(study: Study, days: int) -> tuple[int, int] | None:
    """The range of the trials, if every day of it has a return."""
    start_ms, end_ms = study.identity.get("range") or (0, 0)
    return (start_ms, end_ms) if abs((end_ms - start_ms) / DAY_MS - days) <= 1 else None


def _distribution(rows: Sequence[Ranked], space: Space) -> str:
    """How many trials have which value of the first objective, with the best marked."""
    values = [row.values[0] for row in rows]
    if len(values) < 2 or not rows[0].is_feasible:
        return ""
    figure = figure_of(space.objectives[0].figure)
    mark = (values[0], f"best {figure.of(values[0]).shown}")
    drawn = svg.histogram(bins(values), label=f"Histogram of {figure.name}", unit="", mark=mark)
    said = "Alike trials rise and fall together: a whole heap on one side may still be one lucky period."
    return section("All trials", drawn + foot(said), note=f"trials by {figure.name}", span="c5")


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
    figures = [figure_of(objective.figure) for objective in space.objectives[:2]]
    points = []
    for row in rows:
        texts = (f"{figure.name} {figure.of(value).shown}" for figure, value in zip(figures, row.values, strict=False))
        if row.is_feasible:
            title = f"trial {row.trial.cell}: {', '.join(texts)}"
            points.append(svg.ChartPoint(row.values[0], row.values[1], row.is_on_front, title))
    if not points:
        return ""
    first, second = (figure.name for figure in figures)
    on_front = sum(point.is_good for point in points)
    label = f"{first} against {second}: {on_front} of {len(points)} trials are on the front"
    legend = svg.keys([svg.key("fa", "on the front"), svg.key("hol", "beaten in both")])
    return legend + svg.front(points, label=label) + foot(f"{first} across, {second} up")


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
        marks := _marks(rows, space, pair, columns, [name for name, _ in lines]),
    )
    legend = [svg.key("best-cell", "best")] if "best" in marks.values() else []
    legend += [svg.key("plateau-cell", "best plateau")] if "plateau" in marks.values() else []
    return f"<h3>{escaped(title)}</h3>{svg.keys(legend) if legend else ''}{drawn}{foot(_plateau_text(rows, space))}"


def _marks(
    rows: Sequence[Ranked], space: Space, pair: tuple[str, str], columns: Sequence[Any], lines: Sequence[Any]
) -> dict[tuple[int, int], str]:
    """The cells of the map with the best trial and with the best plateau."""
    marked = {}
    for row, kind in ((plateau_of(rows, space), "plateau"), (rows[0] if rows[0].is_feasible else None, "best")):
        if row is not None:
            across, down = (row.trial.params[name] for name in pair)
            marked[lines.index(down), columns.index(across)] = kind
    return marked


def _plateau_text(rows: Sequence[Ranked], space: Space) -> str:
    best, plateau = rows[0], plateau_of(rows, space)
    if plateau is None or best.neighbours is None:
        return ""
    figure = figure_of(space.objectives[0].figure)
    params = ", ".join(f"{name} {Column('', 'param').shown(value)}" for name, value in plateau.trial.params.items())
    return on_page(
        f"Best plateau: {params}, where the neighbours average {figure.of(plateau.neighbours).text} (own"
        f" {figure.of(plateau.values[0]).text}). The neighbours of the best trial average"
        f" {figure.of(best.neighbours).text}."
    )


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

"""Each figure on the page of a sweep is the one of a backtest of its trials, computed again from their files."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import combinations, pairwise
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from typing import Any, Final

import numpy as np
import pytest

from bot.cli.app import call
from tests.backtest.report.recomputation import FIGURES, Files, Value, probability, sharpe, shows
from tests.page_texts import Shown, page_of

pytest.importorskip("optuna")
pytest.importorskip("arch")

FAST: Final = (3, 5, 7)
SLOW: Final = (12, 24)
CONFIG: Final = """\
account: {{base_url: embedded}}
dead_man: off
strategies_dir: {strategies}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC], interval: 1h, budget_usd: 6000, max_leverage: 3}}
"""
SPACE: Final = f"""\
params: {{trend.fast_bars: {list(FAST)}, trend.slow_bars: {list(SLOW)}}}
objectives: [Sharpe Ratio, "Return [%]"]
constraints: {{"# Trades": {{min: 3}}}}
"""
# What was given, and the share of each param, which is Optuna's.
GIVEN: Final = ("What was run", "Importance of the params", "Pareto front")
Cell = tuple[int, int]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.yaml").write_text(CONFIG.format(strategies=repository / "strategies"))
    (folder / "space.yaml").write_text(SPACE)
    span = ("--interval", "1h", "--from", "2024-12-01", "--days", "45", "--store", str(folder / "data"))
    with redirect_stdout(io.StringIO()):
        assert call(["data", "gen", "BTC", *span]) == 0
        given = ("--data", str(folder / "data"), "--space", str(folder / "space.yaml"))
        storage = ("--storage", f"sqlite:///{folder}/sweeps.db")
        assert call(["sweep", str(folder / "sweep.yaml"), *given, *storage]) == 0
        assert call(["sweep", "show", "sweep", *storage, "--out", str(folder / "page.html")]) == 0
    return folder


@pytest.fixture(scope="module")
def trials(place: Path) -> dict[Cell, Files]:
    """A backtest of each cell of the grid, the best Sharpe ratio first."""
    found = {}
    for fast in FAST:
        for slow in SLOW:
            params = ("--param", f"trend.fast_bars={fast}", "--param", f"trend.slow_bars={slow}")
            out = ("--out", str(place / f"{fast}-{slow}"))
            with redirect_stdout(io.StringIO()):
                assert call(["backtest", str(place / "sweep.yaml"), "--data", str(place / "data"), *params, *out]) == 0
            (folder,) = (place / f"{fast}-{slow}").iterdir()
            found[fast, slow] = Files(folder)
    return dict(sorted(found.items(), key=lambda item: -sharpe(item[1].daily)))


def neighbours(trials: dict[Cell, Files], cell: Cell) -> float:
    """The mean Sharpe ratio of the cells one step away in one param."""
    steps = {*pairwise(FAST), *pairwise(SLOW)}
    near = [
        other
        for other in trials
        if (other[0] == cell[0]) != (other[1] == cell[1])
        and any(tuple(sorted(pair)) in steps for pair in zip(other, cell, strict=True) if pair[0] != pair[1])
    ]
    return fmean(sharpe(trials[other].daily) for other in near)


def of_a_day(run: Files) -> float:
    return fmean(run.daily) / stdev(run.daily)


def deflated(trials: Sequence[Files]) -> float:
    """The deflated Sharpe ratio of the first trial (Bailey, Lopez de Prado 2014)."""
    n, gamma, normal = len(trials), 0.5772156649015329, NormalDist()
    spread = stdev(map(of_a_day, trials))
    luck = spread * ((1 - gamma) * normal.inv_cdf(1 - 1 / n) + gamma * normal.inv_cdf(1 - 1 / (n * math.e)))
    days = trials[0].daily
    z = (days - np.mean(days)) / np.std(days)
    ratio = of_a_day(trials[0])
    error = math.sqrt((1 - np.mean(z**3) * ratio + (np.mean(z**4) - 1) / 4 * ratio**2) / (len(days) - 1))
    return normal.cdf((ratio - luck) / error)


def overfitted(trials: Sequence[Files]) -> float:
    """How often the best of one half of the blocks of days is below the median on the other half."""
    blocks = min(16, len(trials[0].daily) // 5 // 2 * 2)
    size = len(trials[0].daily) // blocks
    parts = [[run.daily[n * size : (n + 1) * size] for n in range(blocks)] for run in trials]
    below = []
    for inside in combinations(range(blocks), blocks // 2):
        halves = [
            [
                of_values(np.concatenate([part for n, part in enumerate(row) if (n in inside) == is_inside]))
                for row in parts
            ]
            for is_inside in (True, False)
        ]
        best = halves[1][int(np.argmax(halves[0]))]
        below.append((sum(value < best for value in halves[1]) + 1) / (len(trials) + 1) <= 0.5)
    return fmean(below)


def of_values(days: Any) -> float:
    return float(np.mean(days) / np.std(days, ddof=1))


def superior(trials: Sequence[Files]) -> float:
    from arch.bootstrap import SPA

    losses = -np.array([run.daily for run in trials]).T
    test = SPA(np.zeros(len(losses)), losses, reps=1_000, seed=1)
    test.compute()
    return float(test.pvalues["consistent"])


def test_the_tests_of_luck_and_the_equity_are_those_of_the_trials(place: Path, trials: dict[Cell, Files]) -> None:
    runs = list(trials.values())
    ends = [10_000 * math.prod(1 + day for day in run.daily) for run in runs]
    page = page_of(place / "page.html")
    gauges = [shown.text for shown in page.texts if "div.gauge" in shown.place and shown.place.endswith(" b.")]
    # The rows of the study stand in the order of the page, best first; arch draws the days, not the trials.
    tests = [probability(runs[0]), deflated(runs), overfitted(runs), superior(runs)]
    assert all(map(shows, gauges, tests)), (gauges, tests)
    assert len(gauges) == len(tests)
    legend = {
        shown.name: shown.text for shown in page.texts if "ul.keys" in shown.place and shown.place.endswith(" b.")
    }
    (best, middle) = (text for name, text in legend.items() if name.startswith(("best", "median")))
    assert shows(best, ends[0], 0.01)
    assert shows(middle, median(ends), 0.01)


def test_best_trial_ranking_and_map_are_those_of_the_trials(place: Path, trials: dict[Cell, Files]) -> None:
    page = page_of(place / "page.html")
    best, run = next(iter(trials.items()))
    shown = {text.name: text.text for text in page.texts if text.place.endswith(("dd.", "dd.up", "dd.down"))}
    assert {"Return", "Max. drawdown", "Profit factor"} <= set(shown) <= set(FIGURES)
    for name, text in shown.items():
        assert shows(text, FIGURES[name].of(run), FIGURES[name].slack), (name, text)
    rows = page.tables["Best trials"][1:]
    for place_of, (cells, (cell, files)) in enumerate(zip(rows, trials.items(), strict=True), start=1):
        values = [sharpe(files.daily), FIGURES["Return"].of(files), neighbours(trials, cell), len(files.done), "kept"]
        expected: list[Value] = [place_of, str(FAST.index(cell[0]) * 2 + SLOW.index(cell[1])), *cell, *values]
        assert all(map(shows, cells, expected)), (cells, expected)
    drawn = page.tables["Map"]
    is_fast_down = drawn[0][0].startswith("trend.fast")
    for cells in drawn[1:]:
        for head, text in zip(drawn[0][1:], cells[1:], strict=True):
            cell = (int(cells[0]), int(head)) if is_fast_down else (int(head), int(cells[0]))
            assert shows(text, sharpe(trials[cell].daily)), (cell, text)
    said = next(text.text for text in page.texts if text.text.startswith("The best of "))
    numbers = re.fullmatch(
        r"The best of (\d+) complete trials has Sharpe ratio (\S+)\. Its neighbours average (\S+)\.", said
    )
    assert numbers is not None
    means: list[Value] = [len(trials), sharpe(run.daily), neighbours(trials, best)]
    assert all(map(shows, numbers.groups(), means)), (said, means)


def test_no_other_figure_stands_on_the_page(place: Path) -> None:
    """What the two tests above do not compare: names, bounds, ranges of a histogram, and what was given."""
    page = page_of(place / "page.html")
    known = (
        r"The best of .*|best .*|Equity of the best trial .*|10 % to 90 % of them|from 10,000\.00, .*|[−+]?[\d,.]+"
        r"|\d+ trials?, \d+ keep the constraints|.*, trial \d|trend\.\w+ \d+|1 to 6 of 6; .*|Best plateau: .*"
        r"|The neighbours, .*|.*(At least|At most) 0\.\d+ is needed \(mark\)\."
        r"|bot backtest .*|[−\d.]+ to [−\d.]+ ?: \d+"
    )

    def is_left(shown: Shown) -> bool:
        is_figure = re.search(r"\d", shown.text) and not re.search(r"svg\.[xy]a|dd\.", shown.place)
        return bool(is_figure) and shown.section not in GIVEN and not re.fullmatch(known, shown.text)

    assert not [(shown.section, shown.text) for shown in page.texts if is_left(shown)]

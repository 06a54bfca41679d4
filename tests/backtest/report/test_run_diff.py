"""Two runs are named by config and params, and their differences are told in words."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.report.page import render_html
from bot.backtest.report.run_diff import _differ, compared, config_changes, differences, names_of, other_differences
from bot.backtest.report.summary import TONES
from bot.backtest.results.run_reader import read_run
from bot.cli.app import call
from bot.logs import HIDDEN
from tests.backtest.builders import minutes, write
from tests.html_tables import tables_of

CONFIG = """\
# {comment}
account: {{base_url: embedded}}
dead_man: off
strategies_dir: {strategies}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2, params: \
{{fast_bars: {fast}}}}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> list[Path]:
    """One config with two lengths of its fast average; between both, its strategy and its candles were edited."""
    folder = tmp_path_factory.mktemp("diff")
    strategies = folder / "strategies"
    shutil.copytree(repository / "strategies", strategies)
    made = []
    for fast in (4, 6):
        (folder / "paper.yaml").write_text(CONFIG.format(strategies=strategies, fast=fast, comment=f"{fast} bars"))
        write(minutes(400, seed=fast), folder / "btc.csv")
        with (strategies / "trend.py").open("a") as source:
            source.write(f"# {fast}\n")
        out = folder / str(fast)
        assert (
            call(["backtest", str(folder / "paper.yaml"), "--data", f"BTC={folder / 'btc.csv'}", "--out", str(out)])
            == 0
        )
        made += out.iterdir()
    return made


def test_runs_are_named_by_their_config_and_the_params_that_differ(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = map(read_run, runs)
    assert names_of(one, other) == ("paper: trend.fast_bars=4", "paper: trend.fast_bars=6")
    assert names_of(one, one) == (f"paper ({one.name})", f"paper ({one.name})")
    assert call(["compare", *map(str, runs)]) == 0
    told = capsys.readouterr().out
    assert "  A  paper: trend.fast_bars=4\n" in told
    assert "  B  paper: trend.fast_bars=6\n" in told
    assert '<th scope="col" class="right wrap">paper: trend.fast_bars=6</th>' in render_html(one, other)


def test_a_comparison_says_better_and_worse_and_not_the_sign(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = map(read_run, runs)
    changed = {"Max. Drawdown Duration [h]": 90.0, "Max. Drawdown [%]": -1.0, "Win Rate [%]": 50.0, "# Trades": 3}
    worse = {"Max. Drawdown Duration [h]": 190.5, "Max. Drawdown [%]": -3.0, "Win Rate [%]": 51.0, "# Trades": 2}
    for run, figures, fees in ((one, changed, "1"), (other, worse, "4")):
        run.summary["figures"] = figures
        run.summary["costs"] |= {"feesUsd": fees, "slippageUsd": fees, "fundingUsd": fees}
    found = {row.name: (row.change, TONES[row.tone]) for row in compared(one, other)}
    expected = {
        "Longest drawdown": ("+4 d 4 h", "worse"),
        "Max. drawdown": ("-2.00 %", "worse"),
        "Win rate": ("+1.0 %", "better"),
        "Closed trades": ("-1", ""),
        "Fees": ("-3.00", "worse"),
        "Slippage, in the prices": ("-3.00", "worse"),
        "Funding": ("+3.00", "better"),
    }
    assert {name: found[name] for name in expected} == expected
    page = render_html(one, other)
    rows = [row for rows in tables_of(page) for row in rows]
    assert ["Longest drawdown", "3 d 18 h", "7 d 22 h", "+4 d 4 h", "worse"] in rows
    assert ["Win rate", "50.0 %", "51.0 %", "+1.0 %", "better"] in rows
    assert ["Closed trades", "3", "2", "−1", ""] in rows
    assert '<td data-label="Change" class="right up">+1.0 %</td>' in page
    assert call(["compare", *map(str, runs)]) == 0
    assert re.search(r"^  Closed trades +[0-9,]+ +[0-9,]+ +[-+0-9,]+$", capsys.readouterr().out, re.MULTILINE)


def test_differences_are_told_in_words_and_no_hash_is_shown(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = map(read_run, runs)
    found = differences(one, other)
    line = (
        '  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2, params:'
        " {fast_bars: %d}}"
    )
    assert found == [
        "config: - # 4 bars",
        "config: + # 6 bars",
        f"config: - {line % 4}",
        f"config: + {line % 6}",
        "strategies.trend: the source of the strategy differs",
        "strategies.trend.params.fast_bars: 4 / 6",
        "data.BTC 1m: the candles differ",
    ]
    assert call(["compare", *map(str, runs)]) == 0
    assert not re.search(r"[0-9a-f]{16}", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("path", "one", "other", "told"),
    [
        ("code", {"version": "1", "sha256": "a"}, {"version": "1", "sha256": "b"}, ["code: the source of bot differs"]),
        (
            "funding",
            {"BTC": "a", "ETH": "c"},
            {"BTC": "b"},
            ["funding.BTC: the recorded rates differ", "funding.ETH: recorded rates / the baseline"],
        ),
        (
            "strategies.s.packages",
            {"ta": "sha256:1", "np": "2.0"},
            {"ta": "sha256:2", "np": "2.1"},
            ["strategies.s.packages.ta: the source differs", "strategies.s.packages.np: 2.0 / 2.1"],
        ),
        (
            "strategies.s.packages",
            {"ta": "1.0"},
            {"ta": "sha256:2", "x": "1"},
            ["strategies.s.packages.ta: 1.0 / a source folder", "strategies.s.packages.x: null / 1"],
        ),
        (
            "strategies",
            [{"name": "s", "sha256": "a"}],
            [{"name": "s", "sha256": "a"}, {"name": "t", "sha256": "b"}],
            ['strategies.t: null / {"name": "t"}'],
        ),
    ],
)
def test_what_a_digest_stands_for_is_told(path: str, one: Any, other: Any, told: list[str]) -> None:
    found: list[str] = []
    _differ(path, one, other, found)
    assert found == told


def test_a_run_of_an_older_version_without_params_is_compared_by_its_config(runs: list[Path], tmp_path: Path) -> None:
    one, other = map(read_run, runs)
    for run in (one, other):
        for strategy in run.manifest["strategies"]:
            for name in ("params", "markets", "interval"):
                del strategy[name]
    assert names_of(one, other) == (f"paper ({one.name})", f"paper ({other.name})")
    assert "config: + # 6 bars" in differences(one, other)
    assert "<summary>Config file</summary>" in render_html(one)


def test_configs_are_compared_by_key_under_the_figures(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    one, other = map(read_run, runs)
    assert config_changes(one, other) == [("strategies.trend.params.fast_bars", "4", "6")]
    assert other_differences(one, other) == [
        "strategies.trend: the source of the strategy differs",
        "data.BTC 1m: the candles differ",
    ]
    page = render_html(one, other)
    assert page.index("Figures</h2>") < page.index("Config, by key</h2>") < page.index("What else was different</h2>")
    rows = [row for rows in tables_of(page) for row in rows]
    assert ["strategies.trend.params.fast_bars", "4", "6"] in rows
    assert call(["compare", *map(str, runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"] == [{"key": "strategies.trend.params.fast_bars", "first": "4", "second": "6"}]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a: 1 # x", "# y\na: 1", []),
        ("a: {b: 1, c: [1, 2]}", "a: {b: 1.5}", [("a.b", "1", "1.5"), ("a.c", "[1, 2]", None)]),
        ("a: x", "b: ${env:NAME}", [("a", "x", None), ("b", None, "${env:NAME}")]),
        # in another order, and one of another name
        ("s: [{name: p, v: 1}, {name: q, v: 2}]", "s: [{name: q, v: 3}, {name: p, v: 1}]", [("s.q.v", "2", "3")]),
        (
            "account: {api_key: one}",
            "account: {api_key: two, of: 1}",
            [("account.api_key", HIDDEN, HIDDEN), ("account.of", None, "1")],
        ),
        ("a: [", "a: 1", []),
        ("", "a: 1", []),
    ],
)
def test_each_kind_of_change_of_a_config_is_named_by_its_key(
    first: str, second: str, expected: list[tuple[str, str | None, str | None]], runs: list[Path]
) -> None:
    one, other = (
        replace(run, manifest=run.manifest | {"config": {"name": "c", "text": text}})
        for run, text in zip(map(read_run, runs), (first, second), strict=True)
    )
    found = config_changes(one, other)
    assert [tuple(change) for change in found] == expected
    assert not re.search(r"\b(one|two)\b", str(found)), "no secret is shown"

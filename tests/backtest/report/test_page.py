"""The HTML report of a run: complete offline, equal to the byte each time, foreign text escaped; and the error for a
folder that is not a run.
"""

from __future__ import annotations

import html
import json
import os
import random
import re
import shutil
from array import array
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from bot.backtest.report import price_chart, run_sections, trade_sections
from bot.backtest.report.page import render_html
from bot.backtest.report.price_chart import chart_data, curve
from bot.backtest.report.run_diff import _differ, differences
from bot.backtest.report.summary import figure_of, line_of, monthly
from bot.backtest.results.run_reader import levels_of, read_run
from bot.cli.app import call
from bot.cli.backtest.report import report_lines
from bot.errors import BotError
from bot.number_text import cost_usd, multiple, on_page, signed_usd
from tests.html_tables import tables_of

# 2025-05-01
START_MS = 1_746_057_600_000
BARS = 4_000
CONFIG = """\
account: {{base_url: embedded}}
dead_man: {{heartbeat_seconds: 3600, on_miss: flatten}}
strategies_dir: {strategies}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2}}
"""


def candles(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lines, px = ["ts,open,high,low,close,volume"], 100_000.0
    for n in range(BARS):
        close = round(px * (1 + chance.gauss(0, 0.001)), 1)
        high, low = max(px, close) + 20, min(px, close) - 20
        lines.append(f"{START_MS + n * 60_000},{px},{high},{low},{close},5")
        px = close
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> list[Path]:
    """Two runs of one config, at two fees, with the daemon down for five hours."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "c.yaml").write_text(CONFIG.format(strategies=repository / "strategies"))
    candles(folder / "btc.csv", 1)
    made = []
    for fee in ("0.05%", "0.1%"):
        args = [
            "backtest",
            str(folder / "c.yaml"),
            "--data",
            f"BTC={folder / 'btc.csv'}",
            "--fee",
            fee,
            "--outage",
            "2025-05-02T20:00+5h",
        ]
        assert call([*args, "--out", str(folder / fee.rstrip("%")), "--band"]) == 0
        made += (folder / fee.rstrip("%")).iterdir()
    return made


def test_the_report_is_the_same_to_the_byte_and_contains_the_stored_results(runs: list[Path]) -> None:
    run = read_run(runs[0])
    made = render_html(run)
    assert made == render_html(read_run(runs[0]))
    assert run.trades
    assert len(run.at_ms) == len(run.equity) > 2_000
    for what in (
        "Average drawdown",
        "<h2>Months</h2>",
        "Assumptions",
        "dead_man_switch",
        "Outages",
        "the daemon was down once; until then it sent its heartbeats",
        f'<b>{sum(one.exit_ms is not None for one in run.trades)}</b><span class="second">profit factor',
        escape(run.manifest["config"]["text"]),
        "<dt>fast_bars</dt><dd>4</dd>",
    ):
        assert what in made, what
    assert run.equity[-1] == pytest.approx(run.summary["endUsd"])
    assert sum(one.pnl_usd for one in run.trades if one.exit_ms) == pytest.approx(
        sum(float(one["pnlUsd"]) for one in run.summary["strategies"].values()), abs=50
    )


def test_the_drawn_drawdown_begins_with_the_start_balance_as_the_figure_does(runs: list[Path]) -> None:
    run = read_run(runs[0])
    at_ms, usd = array("q", [START_MS + 60_000, START_MS + 120_000]), array("d", [9_000.0, 9_500.0])
    drawn = curve(replace(run, at_ms=at_ms, equity=usd, exposure=array("d", [0.0, 0.0])))
    assert drawn["drawdown"] == [-10.0, -5.0]


@pytest.mark.parametrize(
    ("proof", "said"),
    [
        (
            {"differs": None, "isWhole": True},
            "Causal: equal decisions on data cut at 2 instants, 1,234 events compared",
        ),
        (
            {"differs": None, "isWhole": False},
            "Not proven causal: equal decisions on data cut at 2 instants, 1,234 events",
        ),
        ({"differs": "event 5: <x>", "isWhole": True}, "Not causal: event 5: <x>"),
        (
            {"differs": None, "isWhole": False, "outside": ["reads a.csv", "reads b.csv"]},
            "Not proved: reads a.csv and 1 other source; equal decisions on data cut at 2 instants",
        ),
    ],
)
def test_the_proof_of_causality_is_in_the_terminal_and_in_the_report(
    runs: list[Path], proof: dict[str, object], said: str
) -> None:
    run = read_run(runs[0])
    proven = replace(run, summary=run.summary | {"proof": proof | {"cutsMs": [1, 2], "eventsCompared": 1_234}})
    assert any(line.strip().startswith(said) for line in report_lines(proven))
    kind = "good" if proof["differs"] is None and proof["isWhole"] else "warn"
    assert f'<span class="chip {kind}">{html.escape(said)}' in render_html(proven)


ADDS = """\
from bot import Bracket, Open, Strategy


class Adds(Strategy):
    def on_bar(self, view, bar):
        for minute, stop in ((10, 5), (20, 6)):
            if bar.at_ms % 86_400_000 == minute * 60_000:
                yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=stop))
"""


def test_a_stop_is_drawn_at_its_level_and_ends_where_another_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "adds.py").write_text(ADDS)
    (tmp_path / "c.yaml").write_text(CONFIG.format(strategies=tmp_path).replace("trend:Trend", "adds:Adds"))
    candles(tmp_path / "btc.csv", 1)
    arguments = ["--data", f"BTC={tmp_path / 'btc.csv'}", "--to", "2025-05-01T01:00", "--out", str(tmp_path / "out")]
    assert call(["backtest", str(tmp_path / "c.yaml"), *arguments]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    first, second = chart_data([read_run(folder)], ["one"])["markets"]["BTC"]["stops"]
    minute = START_MS // 1000 + 60 * 10
    assert first[:2] == [minute, minute + 600]
    assert second[:2] == [minute + 600, None], "it stands until the end"
    assert first[2] > second[2]
    # As before September 2001, when instants have one digit less.
    events = folder / "events.jsonl"
    events.write_text(re.sub(r'"ts":\d{13}', '"ts":946771200000', events.read_text()))
    assert len(levels_of(read_run(folder), "BTC", 946771200000)["stop_loss"]) == 2
    assert levels_of(read_run(folder), "BTC", 946771200001) == {}


def test_figures_that_differ_on_another_path_are_shown_beside_each_other(runs: list[Path]) -> None:
    run = read_run(runs[0])
    figures = run.summary["figures"]
    other = figures | {"Equity Final [$]": 9_876.5, "# Trades": figures["# Trades"] + 1_000}
    same = {"figures": figures, "differing": {"here": 0, "there": 0}}
    differs = {"figures": other, "differing": {"here": 1, "there": 1_001}}
    moved = {"trade": 7, "market": "BTC", "side": "long", "entryMs": 1_748_736_000_000}
    moved["fills"] = {
        "sl_first": "market 9 -> stop_loss 8",
        "ohlc": "market 9 -> <b>",
        "olhc": "market 9 -> stop_loss 8",
    }
    band = {"paths": {"ohlc": same, "olhc": differs}, "orders": [moved], "orderCount": 1}
    both = replace(run, summary=run.summary | {"band": band})
    lines = report_lines(both)
    beside = {line.split("  ")[1]: line.partition("   by path: ")[2] for line in lines if "   by path: " in line}
    ends = sorted([9_876.5, figures["Equity Final [$]"]])
    assert beside == {
        "Equity at the end [USD]": f"{ends[0]:,.2f} to {ends[1]:,.2f}",
        "Closed trades": f"{figures['# Trades']:,} to {other['# Trades']:,}",
    }
    assert set(re.findall(r">by path: ([^<]+)<", render_html(both))) == set(beside.values())
    told = [
        "the path olhc ends at 9,876.50; 1 trade of this run and 1,001 of that path differ",
        "the same trades by ohlc",
        "the fills of 1 trade depend on the path; all other differences follow from them",
        "trade 7, BTC long of 2025-06-01T00:00:00: sl_first, olhc: market 9 -> stop_loss 8; ohlc: market 9 -> <b>",
    ]
    assert [line for line in lines if line.startswith("  band: ")] == [f"  band: {line}" for line in told]
    assert all(f"<li>{escape(line)}</li>" in render_html(both) for line in told)
    by_funding = replace(run, summary=run.summary | {"band": band | {"orders": [], "orderCount": 0}})
    assert any(
        "all paths fill their common trades alike; the differences come from funding" in line
        for line in report_lines(by_funding)
    )
    # by a version with one other path
    of_before = replace(run, summary=run.summary | {"band": {"path": "olhc"} | differs})
    assert [line for line in report_lines(of_before) if "band: " in line] == [f"  band: {told[0]}"]


def test_unfilled_orders_are_in_the_report_and_in_the_terminal(runs: list[Path]) -> None:
    run = read_run(runs[0])
    first = {"atMs": 1_748_736_000_000, "strategy": "one", "market": "BTC", "message": "market order: too dear"}
    lost = {"unfilled": {"insufficient_funds": 10}, "firstUnfilled": {"insufficient_funds": first}}
    both = replace(run, summary=run.summary | lost)
    told = "at 2025-06-01T00:00:00, one in BTC: market order: too dear"
    assert f"  not filled: insufficient_funds 10, first {told}" in report_lines(both)
    assert "<h2>Not filled</h2>" in render_html(both)
    assert ["insufficient_funds", "10", told] in [row for rows in tables_of(render_html(both)) for row in rows]


def test_of_too_many_trades_the_page_has_the_last_and_says_so(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_run(runs[0])
    assert '<section id="trades"' not in render_html(replace(run, trades=()))
    for module in (trade_sections, price_chart):
        monkeypatch.setattr(module, "TRADES_MAX", 2)
    said = f"The last 2 of {len(run.trades)}; trades.csv in the run&#x27;s folder has all of them."
    assert said in render_html(run)
    assert [row[0] for row in chart_data([run], ["a"])["trades"]] == [one.number for one in run.trades[-2:]]


def test_of_many_guardians_the_report_shows_the_last_and_says_so(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_run(runs[0])
    fired = [
        {"ts": n * 1_000, "type": f"guardian-{n}", "market": "BTC", "action": "flatten", "reason": None}
        for n in range(3)
    ]
    monkeypatch.setattr(run_sections, "ROWS_MAX", 2)
    shown = render_html(replace(run, summary=run.summary | {"guardians": fired}))
    assert "The last 2 of 3;" in shown
    assert [f">guardian-{n}</td>" in shown for n in range(3)] == [False, True, True]


def test_each_strategys_part_of_a_shared_position_is_shown_beside_the_total(runs: list[Path]) -> None:
    run = read_run(runs[0])
    booked = {"one": {"pnlUsd": "12.34", "feesUsd": "1", "fundingUsd": "-0.5"}}
    shown = render_html(replace(run, summary=run.summary | {"booked": booked}))
    lines = report_lines(replace(run, summary=run.summary | {"booked": booked}))
    assert [line.split() for line in lines if "booked to" in line or " one " in line] == [
        ["booked", "to", "Result", "Fees", "Funding"],
        ["one", "+12.34", "-1.00", "-0.50"],
    ]
    assert ["one", "+12.34", "−1.00", "−0.50"] in [row for rows in tables_of(shown) for row in rows]
    assert "Attributed to each" not in render_html(run)


def test_the_terminal_the_json_and_the_page_show_one_set_of_figures(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["report", str(runs[0]), "--out", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    assert call(["report", str(runs[0]), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    figures, costs = whole["figures"], {name: float(usd) for name, usd in whole["costs"].items()}
    gain = costs["realizedUsd"] - costs["feesUsd"] + costs["fundingUsd"] + costs["unrealizedUsd"]
    assert gain == pytest.approx(whole["endUsd"] - whole["startUsd"], abs=1e-6)
    shown = (tmp_path / "page.html").read_text()
    for name, value in figures.items():
        figure = figure_of(name, value)
        assert line_of(figure) in told, name
    open_at_the_end, unrealized = whole["left"][0], f"{costs['unrealizedUsd']:+,.2f}"
    assert open_at_the_end.endswith(f" {costs['unrealizedUsd']:+,.2f} USD unrealised")
    assert re.search(rf"^  Open at the end \[USD\] +{re.escape(unrealized)}$", told, re.MULTILINE)
    assert f"open at the end: {open_at_the_end}\n" in told
    assert ["Open at the end", on_page(unrealized), ""] in [row for rows in tables_of(shown) for row in rows]
    assert f"<li>{open_at_the_end}</li>" in shown


def test_texts_from_outside_are_escaped_on_the_page(runs: list[Path], tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x>"
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    for name in ("trades.csv", "summary.json", "manifest.json", "chart.json"):
        text = (copy / name).read_text().replace('"BTC"', json.dumps(evil)).replace(",BTC,", f",{evil},")
        (copy / name).write_text(text.replace('"trend"', json.dumps(evil)).replace(",trend,", f",{evil},"))
    made = render_html(read_run(copy))
    assert evil not in made
    assert "<script>alert" not in made


def test_two_runs_are_compared_by_figures_code_config_and_data(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = map(read_run, runs)
    assert differences(one, one) == []
    assert [line for line in differences(one, other) if line.startswith("options.rules")] == [
        "options.rules.*.taker: 0.0005 / 0.001"
    ]
    found: list[str] = []
    _differ("assumptions", ["both", "of one"], ["both", "of the other", "and one more"], found)
    assert found == [
        "assumptions: 'of one' / not there",
        "assumptions: not there / 'of the other'",
        "assumptions: not there / 'and one more'",
    ]
    found.clear()
    _differ("assumptions", ["BTC: 1m candles drive"], ["BTC: 5m candles drive"], found)
    assert found == [
        "assumptions: 'BTC: 1m candles drive' / not there",
        "assumptions: not there / 'BTC: 5m candles drive'",
    ]
    assert call(["compare", str(runs[0]), str(runs[1])]) == 0
    told = capsys.readouterr().out
    assert "the events differ" in told
    table = told[: told.index("  the events differ")].splitlines()
    assert table[:6:3] == [f"  A  c ({one.name})", f"  B  c ({other.name})"], "config and params are the same"
    assert table[1:6:3] == [f"     {one.folder}", f"     {other.folder}"]
    assert table[2] == table[5] == "     2025-05-01T00:00 to 2025-05-03T18:40 UTC, 4,000 bars, 10,000.00 USD"
    assert max(map(len, table[6:])) < 80, "an ordinary terminal has 80 columns"
    fees = [-float(run.summary["costs"]["feesUsd"]) for run in (one, other)]
    (line,) = (line for line in table if "Fees" in line)
    assert line.split()[-4:] == [f"{fees[0]:,.2f}", f"{fees[1]:,.2f}", signed_usd(fees[1] - fees[0]), "worse"]
    assert "differs: options.rules.*.taker: 0.0005 / 0.001" in told
    assert call(["compare", str(runs[0]), str(runs[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sameEvents"] is True
    assert call(["compare", str(runs[0]), str(runs[1]), "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert costs["feesUsd"] == [run.summary["costs"]["feesUsd"] for run in (one, other)]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_cost_that_only_one_of_two_runs_has_is_compared(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_first: bool
) -> None:
    """Then the costs of both add up to what they have gained."""
    copy = tmp_path / "copy"
    shutil.copytree(runs[1], copy)
    summary = json.loads((copy / "summary.json").read_text())
    summary["costs"] |= {"backstopUsd": "120.5", "otherUsd": "1"}
    summary["figures"]["Other"] = 7
    (copy / "summary.json").write_text(json.dumps(summary))
    asked = [str(copy), str(runs[0])] if is_first else [str(runs[0]), str(copy)]
    assert call(["compare", *asked]) == 0
    lines = (re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines())
    rows = {name: cells for name, *cells in lines}
    gap = "-120.50" if is_first else "+120.50"
    assert rows["Liquidator's backstop [USD]"] == [*(["+120.50", "0.00"] if is_first else ["0.00", "+120.50"]), gap]
    assert rows["Other"] == (["7", "-", "-"] if is_first else ["-", "7", "-"])
    assert call(["compare", *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["costs"]["otherUsd"] == (["1", None] if is_first else [None, "1"])
    assert told["figures"]["Other"] == ([7, None] if is_first else [None, 7])


def test_differences_of_two_runs_are_named_with_readable_instants() -> None:
    found: list[str] = []
    btc = {"market": "BTC", "interval": "1m", "candles": 5, "first_ms": START_MS}
    more = [{"name": "one", "sha256": "a"}]
    _differ("data", [btc], [btc | {"candles": 7}, {"market": "ETH", "interval": "1m"}], found)
    _differ("strategies", more, [{"name": "one", "sha256": "b"}], found)
    _differ("options", {"from_ms": START_MS, "latency_ms": 5}, {"from_ms": None, "latency_ms": 7}, found)
    _differ("options.outages", [{"at_ms": START_MS, "for_ms": 5}], [{"at_ms": START_MS + 1, "for_ms": 6}], found)
    assert found == [
        "data.BTC 1m.candles: 5 / 7",
        'data.ETH 1m: null / {"market": "ETH", "interval": "1m"}',
        "strategies.one: the source of the strategy differs",
        "options.from_ms: 2025-05-01T00:00:00.000Z / null",
        "options.latency_ms: 5 / 7",
        "options.outages[0].at_ms: 2025-05-01T00:00:00.000Z / 2025-05-01T00:00:00.001Z",
        "options.outages[0].for_ms: 5 / 6",
    ]


def test_a_long_differing_value_is_shortened_in_the_output() -> None:
    found: list[str] = []
    rules = {"taker": "0.001", "maker": "0.0000", "spread_bps": "0.0000", "depth_usd": "0"}
    _differ("options.rules", {}, {"*": rules}, found)
    assert found == ['options.rules.*: null / {"taker": "0.001", "maker": "0.0000", "spread_bps": "0.0000"...']


def test_different_runs_with_equal_records_get_the_list_of_unrecorded_causes(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a file that a strategy reads was changed in between."""
    other = tmp_path / "other"
    shutil.copytree(runs[0], other)
    assert call(["compare", str(runs[0]), str(other)]) == 0
    assert "differs: " not in capsys.readouterr().out
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"eventDigest": "0" * 64}))
    assert call(["compare", str(runs[0]), str(other)]) == 0
    said = (
        "the manifests are equal, but the events differ. A manifest does not record: that a run was stopped early, the"
        " requirements of packages"
    )
    assert f"  differs: {said}" in capsys.readouterr().out
    assert said in html.unescape(render_html(read_run(runs[0]), read_run(other)))
    assert call(["compare", str(runs[0]), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


def without(path: Path, *keys: str | int) -> None:
    whole = found = json.loads(path.read_text())
    for key in keys[:-1]:
        found = found[key]
    del found[keys[-1]]
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda run: shutil.rmtree(run), "is no folder"),
        (lambda run: (run / "summary.json").unlink(), "is no run: summary.json is missing"),
        (lambda run: (run / "manifest.json").write_text('{"format": 99}'), "format 99 is of another version"),
        (lambda run: (run / "manifest.json").write_text("{"), "manifest.json: cannot be read"),
        (lambda run: (run / "manifest.json").write_text('{"format": 1}'), "manifest.json: has no code.version"),
        (lambda run: without(run / "manifest.json", "data", 0, "market"), "manifest.json: has no data.*.market"),
        (lambda run: without(run / "summary.json", "course", "bars"), "summary.json: has no course.bars"),
        (
            lambda run: without(run / "summary.json", "strategies", "trend", "slippageUsd"),
            "summary.json: has no strategies.*.slippageUsd",
        ),
        (lambda run: (run / "trades.csv").write_text("a,b\n"), "trades.csv:1: the columns are not those of a run"),
        (lambda run: (run / "equity.npy").write_bytes(b"x"), "equity.npy: is not the curve of a run"),
    ],
)
def test_a_folder_without_a_run_is_refused(runs: list[Path], tmp_path: Path, harm: object, problem: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    harm(copy)
    with pytest.raises(BotError) as caught:
        read_run(copy)
    assert problem in str(caught.value)


def test_a_missing_run_is_not_found_by_any_command(runs: list[Path], tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(runs[0], half)
    (half / "equity.npy").unlink()
    for gone in (half, tmp_path / "none"):
        words = ["report", "report --json", f"compare {runs[0]}", "replay"]
        assert [call([*one.split(" "), str(gone)]) for one in words] == [2, 2, 2, 2]
    (half / "equity.npy").write_bytes(b"x")
    assert call(["report", str(half)]) == 1, "it is there, and cannot be read"


def test_for_a_folder_of_runs_the_newest_run_is_named(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, at in (("a", 1), ("c", 3), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
        os.utime(tmp_path / name / "manifest.json", (at, at))
    for command in (["report"], ["compare", str(runs[0])], ["replay"]):
        assert call([*command, str(tmp_path)]) == 2
        assert f"in it, like {tmp_path / 'c'}" in capsys.readouterr().err.replace("\n", " ")


def test_without_its_candles_a_run_is_still_reported(runs: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    (copy / "chart.json").unlink()
    assert call(["report", str(copy)]) == 0
    assert "<h2>Trades</h2>" in (copy / "report.html").read_text()
    assert chart_data([read_run(copy)], ["a"])["markets"] == {}


def test_a_run_that_ended_early_is_marked_in_the_terminal_too(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    whole = json.loads((copy / "summary.json").read_text())
    whole["course"]["isPartial"], whole["quarantined"] = True, {"trend": "trend: ValueError: no (trend.py:3)"}
    (copy / "summary.json").write_text(json.dumps(whole))
    assert call(["report", str(copy), "--out", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    assert "4,000 bars, 10,000.00 USD, PARTIAL: ended early\n" in told
    assert "  QUARANTINED trend: trend: ValueError: no (trend.py:3)\n" in told
    assert "  down 2025-05-02T20:00:00 for 5 h: " in told
    assert "  exits: " in told
    assert call(["compare", str(copy), str(runs[1])]) == 0
    assert capsys.readouterr().out.count("PARTIAL") == 1


def test_months_strategies_and_markets_are_the_same_in_the_terminal_the_json_and_the_page(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The months of three years, one of which had no candle."""
    run, day = read_run(runs[0]), 86_400_000
    ends = [(START_MS, 11_000.0), (START_MS + 31 * day, 9_900.0), (START_MS + 800 * day, 19_800.0)]
    object.__setattr__(run, "at_ms", [at for at, _ in ends])
    object.__setattr__(run, "equity", [usd for _, usd in ends])
    found = monthly(run)
    assert sorted(found) == [2025, 2027]
    shown = {
        (year, n): round(one, 6) for year, months in found.items() for n, one in enumerate(months) if one is not None
    }
    assert shown == {(2025, 3): 10.0, (2025, 4): -10.0, (2025, 12): -1.0, (2027, 6): 100.0, (2027, 12): 100.0}
    assert call(["report", str(runs[0]), "--out", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    assert call(["report", str(runs[0]), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    page_text = (tmp_path / "page.html").read_text()
    may, year = whole["months"]["2025"]["May"], whole["months"]["2025"]["Year"]
    assert f"  2025 [%]  May {may:+.2f}  Year {year:+.2f}\n" in told
    assert f">{on_page(f'{may:+.1f}')}</td>" in page_text
    rows = [row for rows in tables_of(page_text) for row in rows]
    assert {row["group"] for row in whole["sources"]} == {"Strategy", "Market", "Side", "Exit"}
    for row in whole["sources"]:
        texts = [f"{row['trades']:,}", f"{row['win_rate_pct']:,.1f} %", on_page(signed_usd(row["result_usd"]))]
        assert any([row["name"], *texts[:2]] == shown[1:4] and texts[2] in shown for shown in rows), row
        amounts = [cost_usd(row["costs_usd"]), signed_usd(row["result_usd"])]
        ends = f"{row['name']} {texts[0]} {texts[1]} {multiple(row['mean_r'])} {' '.join(amounts)}"
        assert any(" ".join(line.split()).endswith(ends) for line in told.splitlines()), ends


def test_a_cut_off_curve_is_reported(runs: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    raw = (copy / "equity.npy").read_bytes()
    (copy / "equity.npy").write_bytes(raw[:-5])
    with pytest.raises(BotError, match="cut off"):
        read_run(copy)

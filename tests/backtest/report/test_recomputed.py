"""Each figure of the report, computed again from the files of the run by other means, is the one that the page, the
terminal and the JSON show.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from statistics import correlation, fmean, linear_regression, stdev
from typing import Any

import numpy as np
import pytest

from bot.backtest.report.benchmark import relation
from bot.backtest.report.derived import DERIVED
from bot.backtest.report.page import render_html
from bot.backtest.report.result_sections import GROUPS
from bot.backtest.report.summary import FIGURES, figure_of
from bot.backtest.results.run_reader import read_run
from bot.cli.app import call
from tests.html_tables import tables_of

DAY = 86_400_000
CONFIG = """\
account: {{base_url: embedded}}
dead_man: off
strategies_dir: {strategies}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC, ETH], interval: 1h, budget_usd: 6000, max_leverage: 3}}
  - {{name: back, use: "reversion:MeanReversion", markets: [SOL], interval: 1h, budget_usd: 4000, max_leverage: 2}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """Two strategies in three markets over 60 days that touch two years."""
    place = tmp_path_factory.mktemp("recomputed")
    (place / "c.yaml").write_text(CONFIG.format(strategies=repository / "strategies"))
    for market in ("BTC", "ETH", "SOL"):
        span = ["--interval", "1h", "--from", "2024-12-01", "--days", "60", "--store", str(place / "data")]
        assert call(["data", "gen", market, *span]) == 0
    out = ["--data", str(place / "data"), "--out", str(place / "out")]
    assert call(["backtest", str(place / "c.yaml"), *out]) == 0
    (run,) = (place / "out").iterdir()
    return run


def curve(folder: Path) -> tuple[list[int], list[float]]:
    rows = np.load(folder / "equity.npy")
    return [int(at) for at in rows["at_ms"]], [float(usd) for usd in rows["equity_usd"]]


def by_day(at_ms: list[int], values: list[float], start_ms: int) -> list[float]:
    """The last value up to each 00:00 UTC."""
    last = {(at - 1) // DAY: value for at, value in zip(at_ms, values, strict=True) if at > start_ms}
    return [last[day] for day in sorted(last)]


def of_equity(folder: Path, start: float, start_ms: int) -> dict[str, float]:
    at_ms, usd = curve(folder)
    closes = [start, *by_day(at_ms, usd, start_ms)]
    daily = np.diff(closes) / closes[:-1]
    years = (at_ms[-1] - start_ms) / (365 * DAY)
    peaks = np.maximum.accumulate([start, *usd])
    falls = np.array([start, *usd]) / peaks - 1
    growth = (usd[-1] / start) ** (1 / years) - 1
    ends = {datetime.fromtimestamp((at - 1) / 1000, UTC).year: value for at, value in zip(at_ms, usd, strict=True)}
    of_years = np.diff([start, *ends.values()]) / [start, *list(ends.values())[:-1]]
    times = [start_ms, *at_ms]
    # A drawdown begins at the last instant of its peak and ends where the peak is reached again.
    spans, since, is_down = [], start_ms, False
    for at, fall in zip(times, falls, strict=True):
        if fall >= 0:
            spans += [at - since] if is_down else []
            since, is_down = at, False
        else:
            is_down = True
    spans += [times[-1] - since] if is_down else []
    below = math.sqrt(fmean([min(0.0, value) ** 2 for value in daily]))
    return {
        "Return [%]": 100 * (usd[-1] / start - 1),
        "Net [$]": usd[-1] - start,
        "Equity Final [$]": usd[-1],
        "Equity Peak [$]": max(start, *usd),
        "Return (Ann.) [%]": 100 * growth,
        "Volatility (Ann.) [%]": 100 * stdev(daily) * math.sqrt(365),
        "Sharpe Ratio": fmean(daily) / stdev(daily) * math.sqrt(365),
        "Sortino Ratio": fmean(daily) / below * math.sqrt(365),
        "Calmar Ratio": growth / -min(falls),
        "Max. Drawdown [%]": 100 * min(falls),
        "Max. Drawdown Duration [h]": max(spans) / 3_600_000,
        "Avg. Drawdown Duration [h]": fmean(spans) / 3_600_000,
        "Below Peak [%]": 100 * sum(spans) / (times[-1] - start_ms),
        "Value at Risk (95) [%]": 100 * float(np.quantile(daily, 0.05)),
        "Exp. Shortfall (95) [%]": 100 * fmean(sorted(daily)[: int((len(daily) - 1) * 0.05) + 1]),
        "Best Year [%]": 100 * max(of_years),
        "Worst Year [%]": 100 * min(of_years),
    }


def trades_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "trades.csv").open() as file:
        return list(csv.DictReader(file))


def of_trades(rows: list[dict[str, str]], start_ms: int, end_ms: int) -> dict[str, float]:
    done = sorted((row for row in rows if row["exit_ms"]), key=lambda row: int(row["exit_ms"]))
    nets = [float(row["pnl_usd"]) for row in done]
    won, lost = [net for net in nets if net > 0], [net for net in nets if net < 0]
    multiples = [float(row["r_multiple"]) for row in done if row["r_multiple"]]
    longest = max(len(streak) for streak in re.split("[^x]", "".join("x" if net < 0 else "." for net in nets)))
    held = np.zeros((end_ms - start_ms) // 60_000, dtype=bool)
    for row in rows:
        held[(int(row["entry_ms"]) - start_ms) // 60_000 : (int(row["exit_ms"] or end_ms) - start_ms) // 60_000] = True
    return {
        "# Trades": len(done),
        "Win Rate [%]": 100 * len(won) / len(done),
        "Profit Factor": sum(won) / -sum(lost),
        "Expectancy [$]": fmean(nets),
        "Best Trade [$]": max(nets),
        "Worst Trade [$]": min(nets),
        "Avg. Trade Duration [h]": fmean([(int(row["exit_ms"]) - int(row["entry_ms"])) / 3_600_000 for row in done]),
        "Avg. R": fmean(multiples),
        "SQN": math.sqrt(len(multiples)) * fmean(multiples) / stdev(multiples),
        "Avg. Win [$]": fmean(won),
        "Avg. Loss [$]": fmean(lost),
        "Payoff Ratio": fmean(won) / -fmean(lost),
        "Losses in a Row": longest,
        "Costs [$]": sum(float(row["fees_usd"]) - float(row["funding_usd"]) for row in rows),
        "Exposure Time [%]": 100 * float(held.mean()),
    }


def of_market(folder: Path, rows: list[dict[str, str]], start: float, start_ms: int, end_ms: int) -> dict[str, float]:
    """The markets held at the average size of their trades, day by day, from the candles."""
    chart = json.loads((folder / "chart.json").read_text())
    columns, gained = [], 0.0
    for market, candles in chart.items():
        ends = [ts + candles["stepMs"] for ts in candles["ts"]]
        closes = [candles["open"][0], *by_day(ends, candles["close"], start_ms)]
        columns.append(np.diff(closes) / closes[:-1])
        spans = (
            (int(row["exit_ms"] or end_ms) - int(row["entry_ms"])) * float(row["size"]) * float(row["entry_px"])
            for row in rows
            if row["market"] == market
        )
        gained += math.fsum(spans) / (end_ms - start_ms) * math.fsum(columns[-1])
    market_days = [fmean(day) for day in zip(*columns, strict=True)]
    at_ms, usd = curve(folder)
    closes = [start, *by_day(at_ms, usd, start_ms)]
    own = list(np.diff(closes) / closes[:-1])
    slope, intercept = linear_regression(market_days, own)
    return {
        "Always Long Return [%]": 100 * gained / start,
        "Alpha (Ann.) [%]": 100 * 365 * intercept,
        "Beta": slope,
        "Correlation": correlation(market_days, own),
    }


def recomputed(folder: Path) -> dict[str, float]:
    summary = json.loads((folder / "summary.json").read_text())
    start, start_ms, end_ms = summary["startUsd"], summary["course"]["fromMs"], summary["course"]["toMs"]
    rows = trades_of(folder)
    return {
        **of_equity(folder, start, start_ms),
        **of_trades(rows, start_ms, end_ms),
        **of_market(folder, rows, start, start_ms, end_ms),
    }


def test_each_figure_of_the_three_groups_is_the_one_of_the_files(folder: Path) -> None:
    page, values = render_html(read_run(folder)), recomputed(folder)
    shown = {
        unescape(name): unescape(text)
        for name, text in re.findall(r"<dt>([^<]+)</dt><dd[^>]*>([^<]+)</dd>", page.split('id="trades"')[0])
    }
    checked = 0
    for group in GROUPS:
        for name in group.others:
            if name == "Avg. Drawdown [%]":
                # Its mean is over the drawdowns of the curve; tests/backtest/results/test_statistics.py computes it.
                continue
            figure = DERIVED[name] if name in DERIVED else figure_of(name)
            assert shown[figure.name] == figure.of(values[name]).shown, name
            checked += 1
        lead, second = (DERIVED.get(name) or figure_of(name) for name in (group.lead, group.second))
        head = page.split(f"<h2>{group.title}</h2>")[1].split("</p>")[0]
        assert lead.of(values[group.lead]).shown in head
        assert second.of(values[group.second]).shown in head
    assert checked == len(FIGURES) + len(DERIVED) + 2 - 2 * len(GROUPS) - 2


def test_the_json_and_the_terminal_have_the_same_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["report", str(folder), "--json"]) == 0
    whole, values = json.loads(capsys.readouterr().out), recomputed(folder)
    for name in DERIVED:
        assert whole["derived"][name] == pytest.approx(values[name], abs=2e-6), name
    assert call(["report", str(folder), "--out", str(folder / "page.html")]) == 0
    told = capsys.readouterr().out
    for name, figure in DERIVED.items():
        unit = f" [{figure.unit}]" if figure.unit else ""
        assert f"  {figure.name + unit:<34} {figure.of(values[name]).text:>16}\n" in told, name
    assert f"{figure_of('Return (Ann.) [%]').of(values['Return (Ann.) [%]']).text} a year" in told.splitlines()[0]
    assert (folder / "page.html").stat().st_size < 3_000_000


def test_the_sources_of_the_result_add_up_in_each_group(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = [row for row in trades_of(folder) if row["exit_ms"]]
    for group, key in (("Strategy", "strategy"), ("Market", "market"), ("Side", "side")):
        sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for row in done:
            part = sums[row[key]]
            part[0] += 1
            part[1] += float(row["fees_usd"]) - float(row["funding_usd"])
            part[2] += float(row["pnl_usd"])
        assert call(["report", str(folder), "--json"]) == 0
        whole = json.loads(capsys.readouterr().out)["sources"]
        mine = {
            row["name"]: [row["trades"], row["costs_usd"], row["result_usd"]] for row in whole if row["group"] == group
        }
        assert mine == {name: pytest.approx(part) for name, part in sums.items()}
    total = math.fsum(float(row["pnl_usd"]) for row in done)
    assert math.fsum(row["result_usd"] for row in whole if row["group"] == "Exit") == pytest.approx(total)
    rows: list[Any] = [row for rows in tables_of(render_html(read_run(folder))) for row in rows]
    assert any(row[0] == "Net result" for row in rows)


def test_alpha_and_beta_are_to_any_series() -> None:
    other = [0.01, -0.02, 0.03, 0.0, 0.015]
    mine = [0.001 + 0.5 * value for value in other]
    assert relation(mine, other) == pytest.approx((365 * 0.001, 0.5, 1.0))
    assert relation([-value for value in other], other) == pytest.approx((0.0, -1.0, -1.0))
    assert relation([0.01], other) is None
    assert relation(mine, [0.0] * 5) is None, "a series that does not vary has no beta"

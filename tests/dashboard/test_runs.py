"""The backtests page: one is started from the browser, listed, its report opened, compared with another."""

from __future__ import annotations

import asyncio
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.report.summary import COSTS, FIGURES, figure_of
from bot.backtest.results.statistics import statistics
from bot.cli.app import call
from bot.dashboard.pages import runs
from tests.dashboard.builders import Browser, Daemon, status

CONFIG = """\
account: {base_url: embedded}
strategies_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 15m, budget_usd: 500, max_leverage: 3}
"""
OF_A_RUN = {
    "Return [%]": -1.5,
    "Buy & Hold Return [%]": 2.0,
    "Max. Drawdown [%]": -3.25,
    "Sharpe Ratio": None,
    "# Trades": 63,
    "Win Rate [%]": 34.9,
}


def answers(config: Path | None) -> dict[str, Any]:
    return {"/status": status(config=None if config is None else str(config)), "/strategies": {"strategies": []}}


def test_a_run_is_listed_with_its_figures() -> None:
    course = {"fromMs": 1_736_035_200_000, "toMs": 1_736_726_400_000, "isPartial": True}
    (row,) = runs.rows([("mine", 0, {"figures": OF_A_RUN, "course": course}), ("torn", 0, {})])
    assert (row.result, row.direction, row.hold, row.drawdown) == ("−1.50 %", "down", "+2.00 %", "−3.25 %")
    assert (row.sharpe, row.trades, row.won, row.is_partial) == ("–", "63", "34.9 %", True)
    assert row.span == "05 Jan 2025 to 13 Jan 2025"


def test_two_runs_are_compared_figure_by_figure() -> None:
    answer = {
        "figures": {"Return [%]": [1.0, 3.5], "Sharpe Ratio": [None, 2.0]},
        "costs": {"feesUsd": ["10.5", "10.5"]},
    }
    assert [(one.name, one.first, one.second, one.change, one.tone) for one in runs.compared(answer)] == [
        ("Return", "+1.00 %", "+3.50 %", "+2.50 %", "up"),
        ("Sharpe ratio", "–", "2.00", "–", "flat"),
        ("Fees", "−10.50", "−10.50", "0.00", "flat"),
    ]


@pytest.mark.parametrize(
    ("name", "change", "shown"),
    [
        ("Return [%]", "1", "up"),
        ("Return [%]", "-1", "down"),
        ("Max. Drawdown [%]", "-3", "down"),
        ("Max. Drawdown Duration [h]", "108629.55", "down"),
        ("Max. Drawdown Duration [h]", "-1", "up"),
        ("Volatility (Ann.) [%]", "-0.21", "flat"),
        ("# Trades", "-2268", "flat"),
        ("Buy & Hold Return [%]", "100262.87", "flat"),
        ("feesUsd", "5", "down"),
        ("slippageUsd", "-5", "up"),
        ("fundingUsd", "-5", "down"),
        ("a figure of a later version", "5", "flat"),
    ],
)
def test_a_change_is_coloured_by_better_and_worse(name: str, change: str, shown: str) -> None:
    assert figure_of(name).change(0, Decimal(change))[1] == shown


def test_every_figure_and_every_cost_says_which_way_is_better() -> None:
    day = 86_400_000
    figures = statistics([day, 2 * day], [100.0, 101.0], [], start_ms=0, start_usd=100.0)
    assert set(figures) == set(FIGURES)
    assert all(figure.better != "none" for name, figure in COSTS.items() if name != "backstopUsd")


async def test_a_backtest_is_started_listed_opened_and_compared(tmp_path: Path, repository: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(CONFIG % (repository / "strategies"))
    assert call(["data", "gen", "BTC", "--from", "2025-01-01", "--days", "2", "--store", str(tmp_path / "data")]) == 0
    browser = await Browser(Daemon(tmp_path, answers(config)), control=True).signed_in()
    job = browser.sources.backtests
    assert "No backtest here yet" in (await browser.get("/runs")).text
    assert "name the candles" in (await browser.post("/runs", token=browser.token, config=str(config), data="")).text
    started = await browser.post("/runs", token=browser.token, config=str(config), data="data")
    assert (started.status_code, started.headers["location"]) == (303, "/runs")
    assert (
        "a backtest runs already"
        in (await browser.post("/runs", token=browser.token, config=str(config), data="data")).text
    )
    assert job.job is not None
    assert job.job.task is not None
    await asyncio.wait_for(job.job.task, 120)
    assert job.job.ended == 0, job.job.last
    page = (await browser.get("/runs")).text
    assert "Done." in page
    (run,) = (path.parent.name for path in (tmp_path / "runs").glob("*/summary.json"))
    assert f"/runs/{run}/report" in page
    report = await browser.get(f"/runs/{run}/report")
    assert report.status_code == 200
    assert "lightweight charts" in report.text.lower()
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in report.headers["content-security-policy"], "a report cannot use the cookie"
    shutil.copytree(tmp_path / "runs" / run, tmp_path / "runs" / "other")
    compared = await browser.get(f"/runs/compare?a={run}&b=other")
    assert "The events are equal to the byte." in compared.text


@pytest.mark.parametrize("name", ["none", "..", "../..", "%2e%2e%2fdata", "/etc"])
async def test_a_run_that_is_not_in_the_list_is_not_read(tmp_path: Path, name: str) -> None:
    browser = await Browser(Daemon(tmp_path, answers(None))).signed_in()
    assert (await browser.get(f"/runs/{name}/report")).status_code == 404
    assert (await browser.get(f"/runs/compare?a={name}&b={name}")).status_code == 404


async def test_a_backtest_that_fails_says_why(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("account: {base_url: embedded}\n")
    browser = await Browser(Daemon(tmp_path, answers(config)), control=True).signed_in()
    await browser.post("/runs", token=browser.token, config=str(config), data="--help")
    job = browser.sources.backtests.job
    assert job is not None
    assert job.task is not None
    await asyncio.wait_for(job.task, 60)
    assert job.ended
    assert "Failed with code" in (await browser.get("/runs")).text


async def test_a_backtest_is_not_started_without_control_or_token(tmp_path: Path) -> None:
    reader = await Browser(Daemon(tmp_path, answers(tmp_path))).signed_in()
    assert (await reader.post("/runs", token=reader.token, config=str(tmp_path), data="data")).status_code == 403
    assert "Start a backtest" not in (await reader.get("/runs")).text
    person = await Browser(Daemon(tmp_path, answers(tmp_path)), control=True).signed_in()
    assert (await person.post("/runs", data="data")).status_code == 403
    assert person.sources.backtests.job is None

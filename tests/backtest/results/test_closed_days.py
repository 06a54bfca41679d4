"""What each statistic counts on data with nights and closed days: the clock, the days with prices, or the trades.

Three curves of the same exchange: `as it is`, with values on trading days only; `filled`, where closed days repeat the
last value; and `closed up`, where trading days follow each other without closed days. A figure of the clock is the
same as it is and filled. A figure of days with prices is the same as it is and closed up, and differs from the filled
one.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.engine.options import SessionOptions
from bot.backtest.inputs import Files, Inputs
from bot.backtest.report.risk_statistics import (
    expected_shortfall,
    moments_of,
    probabilistic_sharpe,
    rolling_sharpe,
    value_at_risk,
)
from bot.backtest.report.summary import figure_of
from bot.backtest.results.statistics import ANNUAL, FinishedTrade, daily_returns, statistics
from bot.cli.app import call
from bot.research.overfitting import overfitting_probability
from bot.research.trials import Task, bundle_of, evaluate
from tests.backtest.builders import backtested, config, minutes, write
from tests.backtest.report.builders import DAY, HOUR, MONDAY_MS

WEEKS = 60
START_USD = 1_000.0
Curve = tuple[list[int], list[float]]


def curves() -> dict[str, Curve]:
    chance = random.Random(3)
    usd, own, filled = START_USD, [], []
    for day in range(7 * WEEKS):
        if day % 7 < 5:
            usd *= 1 + chance.gauss(0.0005, 0.01)
            own.append((MONDAY_MS + (day + 1) * DAY, usd))
        filled.append((MONDAY_MS + (day + 1) * DAY, usd))
    closed_up = [(MONDAY_MS + (number + 1) * DAY, value) for number, (_, value) in enumerate(own)]
    made = {"as it is": own, "filled": filled[: 7 * WEEKS - 2], "closed up": closed_up}
    return {name: ([at for at, _ in rows], [value for _, value in rows]) for name, rows in made.items()}


def figures(curve: Curve) -> dict[str, Any]:
    """Every figure of a run, of its report and of a sweep, from its equity."""
    at_ms, usd = curve
    trades = [FinishedTrade(MONDAY_MS + n * DAY, MONDAY_MS + n * DAY + HOUR, (-1) ** n * 5.0 + n) for n in range(10)]
    found = statistics(at_ms, usd, trades, start_ms=MONDAY_MS, start_usd=START_USD, prices={"SPY": (100, 110)})
    days = daily_returns(at_ms, usd, start_ms=MONDAY_MS, start_usd=START_USD, only_with_prices=True)
    every = daily_returns(at_ms, usd, start_ms=MONDAY_MS, start_usd=START_USD)
    moments = moments_of(days)
    assert moments is not None
    return found | {
        "Value at Risk (95) [%]": value_at_risk(days, 0.95),
        "Exp. Shortfall (95) [%]": expected_shortfall(days, 0.95),
        "Value at Risk (99) [%]": value_at_risk(days, 0.99),
        "Exp. Shortfall (99) [%]": expected_shortfall(days, 0.99),
        "days of the probabilistic Sharpe ratio": moments.length,
        "skewness": moments.skewness,
        "kurtosis": moments.kurtosis,
        "probabilistic Sharpe ratio": probabilistic_sharpe(moments),
        "probability of overfitting": overfitting_probability([days, days[::-1], [-one for one in days]]),
        "rolling Sharpe ratio": rolling_sharpe(every, 30),
    }


CLOCK = {
    "Return [%]",
    "Buy & Hold Return [%]",
    "Return (Ann.) [%]",
    "Volatility (Ann.) [%]",
    "Equity Final [$]",
    "Equity Peak [$]",
    "Sharpe Ratio",
    "Sortino Ratio",
    "Calmar Ratio",
    "Max. Drawdown [%]",
    "Avg. Drawdown [%]",
    "Exposure Time [%]",
    "rolling Sharpe ratio",
}
# The clock from the last close at a peak, which may be that before a weekend.
CLOCK_FROM_A_CLOSE = {"Max. Drawdown Duration [h]", "Avg. Drawdown Duration [h]"}
DAYS_WITH_PRICES = {
    "Value at Risk (95) [%]",
    "Exp. Shortfall (95) [%]",
    "Value at Risk (99) [%]",
    "Exp. Shortfall (99) [%]",
    "days of the probabilistic Sharpe ratio",
    "skewness",
    "kurtosis",
    "probabilistic Sharpe ratio",
    "probability of overfitting",
}
TRADES = {
    "# Trades",
    "Win Rate [%]",
    "Profit Factor",
    "Expectancy [$]",
    "Best Trade [$]",
    "Worst Trade [$]",
    "Avg. Trade Duration [h]",
    "Avg. R",
    "SQN",
}
# With so few trials this figure moves in steps, so that closed days may leave it as it is.
IN_STEPS = {"probability of overfitting"}


def test_each_statistic_counts_what_the_table_says() -> None:
    made = {name: figures(curve) for name, curve in curves().items()}
    own, filled, closed_up = made["as it is"], made["filled"], made["closed up"]
    assert set(own) == CLOCK | CLOCK_FROM_A_CLOSE | DAYS_WITH_PRICES | TRADES
    for name in CLOCK:
        assert filled[name] == pytest.approx(own[name], rel=1e-9), name
    for name in CLOCK_FROM_A_CLOSE:
        assert own[name] - 48 <= filled[name] <= own[name], name
        assert closed_up[name] < 0.8 * own[name], name
    for name in DAYS_WITH_PRICES:
        assert closed_up[name] == pytest.approx(own[name], rel=1e-9), name
        assert name in IN_STEPS or filled[name] != pytest.approx(own[name], rel=1e-3), name
    for name in TRADES:
        assert filled[name] == closed_up[name] == own[name], name


ASKED = ("--param", "s.buy_at=0", "--param", "s.usd=9000", "--fee", "0", "--spread", "0")


@pytest.fixture
def case(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """300 daily candles of a share on trading days: +0.16 % on 15 of 16 days, -2 % on the sixteenth. 90 % invested."""
    folder = tmp_path / "case"
    shutil.copytree(shared / "cases" / "bt07-var-of-shares", folder, copy_function=shutil.copyfile)
    monkeypatch.chdir(folder)
    return folder


def test_value_at_risk_of_a_share_is_of_its_trading_days(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["backtest", "spy.yaml", "--data", "SPY_1d.csv", *ASKED, "--out", "r"]) == 0
    capsys.readouterr()
    (run,) = (case / "r").iterdir()
    assert call(["report", str(run), "--json"]) == 0
    risk = json.loads(capsys.readouterr().out)["risk"]
    assert [round(risk[name], 2) for name in sorted(risk)] == [-1.89, -1.94, -1.84, -1.92]
    assert call(["report", str(run)]) == 0
    assert "tails of 300 daily returns" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_judges_its_trials_by_days_with_prices(case: Path) -> None:
    inputs = Inputs(case / "spy.yaml", Files(["SPY_1d.csv"]), SessionOptions())
    outcome = evaluate(bundle_of(inputs), Task(0, {}))
    assert outcome.state == "complete"
    assert len(outcome.returns) == len(inputs.candles[0]) == 300


@pytest.mark.parametrize(("days", "is_marked"), [(3, True), (29, True), (31, False)])
def test_figures_of_a_year_are_marked_in_a_run_of_a_few_days(
    days: int, is_marked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the terminal, the report, its page and its JSON. By formula three days may give a Sharpe ratio of 190."""
    data = write(minutes(days * 24, interval="1h"), tmp_path / "BTC_1h.csv")
    made = config(tmp_path, use="bench:Cross", fast_bars=3, slow_bars=8)
    made.write_text(made.read_text().replace("interval: 1m", "interval: 1h"))
    run = backtested(tmp_path, made, data)
    marked = {line.split("  ")[1] for line in capsys.readouterr().out.splitlines() if ", not of a year" in line}
    assert marked == ({figure_of(name).name for name in ANNUAL} if is_marked else set())
    assert call(["report", str(run)]) == 0
    assert (f"of {days} d, not of a year" in capsys.readouterr().out) == is_marked
    assert (f"<small>of {days} d, not of a year</small>" in (run / "report.html").read_text()) == is_marked
    assert call(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ofFewDays"] == (list(ANNUAL) if is_marked else [])


@pytest.mark.parametrize(
    ("own", "hours"),
    [
        ("shares in winter, to 20:00 in New York", [n * 24 + hour for n in range(5) for hour in (15, 21, 25)]),
        ("shares in summer, to 20:00 in New York", [n * 24 + hour for n in range(5) for hour in (14, 20, 24)]),
        ("indices from Sunday 18:00 in New York, in winter", [n * 24 + hour for n in range(5) for hour in (0, 8, 22)]),
        ("indices from Sunday 18:00 in New York, in summer", [n * 24 + hour for n in range(5) for hour in (-1, 8, 21)]),
    ],
)
def test_the_evening_of_an_exchange_is_no_day_with_prices_of_its_own(own: str, hours: list[int]) -> None:
    """The first values of a week may be Sunday in UTC, the last ones Saturday."""
    week = [*hours, *([hours[0] - 0.5, hours[0] - 1] if "Sunday" in own else [])]
    at_ms = sorted(MONDAY_MS + int(7 * DAY * n + hour * HOUR) for n in range(3) for hour in week)
    usd = [START_USD * 1.001**n for n in range(1, len(at_ms) + 1)]
    days = daily_returns(at_ms, usd, start_ms=at_ms[0] - HOUR, start_usd=START_USD, only_with_prices=True)
    assert len(days) == 3 * 5
    assert START_USD * math.prod(1 + change for change in days) == pytest.approx(usd[-1])


def test_days_of_a_market_that_never_closes_are_all_counted() -> None:
    at_ms = [MONDAY_MS + n * HOUR for n in range(1, 24 * 21 + 1)]
    usd = [START_USD * 1.001**n for n in range(1, len(at_ms) + 1)]
    days = daily_returns(at_ms, usd, start_ms=MONDAY_MS, start_usd=START_USD, only_with_prices=True)
    assert days == pytest.approx([1.001**24 - 1] * 21)

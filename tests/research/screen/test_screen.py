"""The compiled screen makes the trades of the full backtest: seeded strategies, the shipped rule, the oracles; and
it says where it cannot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.candles import load
from bot.backtest.data.resampling import resample
from bot.backtest.engine.options import MarketRules, SessionOptions
from bot.cli.app import call
from bot.clock import HOUR_MS, MINUTE_MS
from bot.config.protections import ProtectionSettings
from bot.errors import ConfigError, StrategyError
from bot.runtime.kernel.assembly import place_strategies
from bot.strategy.indicators import Columns, Sma
from tests.backtest.builders import START_MS, STRATEGIES, minutes, write
from tests.backtest.engine.oracles import CANDLES, ONE_HOUR, ONE_MINUTE, wanted
from tests.backtest.engine.oracles import rows_of as oracle_rows
from tests.documents import ROOT
from tests.research.screen.builders import PATHS, backtested, case_of, rows_of, screened, settings_of

pytest.importorskip("numpy")

import numpy as np

from bot.research.screen.markets import averages, refuse

TICK = MarketRules(taker=Decimal(0), maker=Decimal(0), spread_bps=Decimal(0), depth_usd=Decimal(0), tick=Decimal("0.1"))


@pytest.mark.soak(worlds=15, full=1_000)
def test_the_trades_are_those_of_the_full_backtest(worlds: int) -> None:
    trades = 0
    for seed in range(worlds):
        params, candles, options, rates = case_of(seed)
        settings = settings_of("signalled:Chance", params)
        here, there = screened(settings, [candles], options, rates), backtested(settings, [candles], options, rates)
        assert here.why_not is None
        assert rows_of(here.trips()) == rows_of(there.trade_ledger.trips), seed
        assert here.balance == round(
            (there.start_usd + sum(one.pnl for one in there.trade_ledger.trips) / 1e8) * 1e8
        ), seed
        figures, _ = here.figures()
        for name in (
            "# Trades",
            "Win Rate [%]",
            "Expectancy [$]",
            "Exposure Time [%]",
            "Buy & Hold Return [%]",
            "Equity Final [$]",
        ):
            assert figures[name] == pytest.approx(there.figures[name], abs=1e-5), (seed, name)
        assert figures["Max. Drawdown [%]"] == pytest.approx(there.figures["Max. Drawdown [%]"], abs=0.05), seed
        trades += len(here.rows)
    assert trades > 20 * worlds


def test_the_shipped_trend_rule_written_as_signals_makes_the_trades_of_the_shipped_file() -> None:
    candles, options = minutes(3_000, seed=5), SessionOptions()
    here = screened(settings_of("signalled:Trend", {}), [candles], options)
    there = backtested(settings_of("trend:Trend", {}, folder=ROOT / "strategies"), [candles], options)
    assert rows_of(here.trips()) == rows_of(there.trade_ledger.trips)
    assert len(here.rows) > 20


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", [ONE_MINUTE, ONE_HOUR], ids=["1m", "1h"])
def test_the_oracles_trades(shared: Path, case: tuple[str, dict[str, Any]], path: Any) -> None:
    name, params = case
    is_minute = case is ONE_MINUTE
    (candles,) = load([Path(f"BTC={shared / CANDLES}")], markets=["BTC"])
    interval, step = ("1m", MINUTE_MS) if is_minute else ("1h", HOUR_MS)
    candles = candles if is_minute else resample(candles, "1h", known_ms=candles.end_ms)
    settings = settings_of(
        "signalled:Bracketed",
        {**params, "first_ms": candles.at_ms[0], "step_ms": step},
        interval=interval,
        budget_usd=100_000_000,
    )
    made = screened(settings, [candles], SessionOptions(path=path, balance_usd=Decimal(1_000_000), rules={"": TICK}))
    assert made.why_not is None
    kinds = {"stop_loss": "sl", "take_profit": "tp"}
    found = [
        (
            one.side,
            one.entry_ms // step * step,
            one.exit_ms // step * step,
            one.entry_notional / one.size,
            one.exit_notional / one.size,
            kinds[one.exit_kind],
        )
        for one in made.trips()
        if one.exit_ms
    ]
    assert found == wanted(oracle_rows(shared, f"ref_{path}_{name}.csv"))


PLAIN = """
import json, sys
from tests.research.screen.builders import case_of, screened, settings_of
from bot.research.screen.jit import IS_COMPILED
params, candles, options, rates = case_of(3)
print(json.dumps([IS_COMPILED, screened(settings_of("signalled:Chance", params), [candles], options, \
rates).rows.tolist()]))
"""


def test_plain_python_makes_the_same_rows_as_the_compiled_kernel() -> None:
    pytest.importorskip("numba")
    params, candles, options, rates = case_of(3)
    compiled = screened(settings_of("signalled:Chance", params), [candles], options, rates).rows.tolist()
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [False, compiled]
    assert len(compiled) > 20


@pytest.mark.parametrize("bars", [1, 7, 400, 401])
def test_averages_are_those_of_the_indicator_to_the_last_bit(bars: int) -> None:
    close = minutes(400, seed=2).close
    expected = Sma(bars).column(Columns(close, close, close, close, close))
    found = averages(np.frombuffer(close), bars).tolist()
    assert [None if one != one else one for one in found] == expected


@pytest.mark.parametrize(
    ("use", "more", "why"),
    [
        ("causal:Honest", {}, "strategy one has no `signals`"),
        ("signalled:Cross", {"latency_ms": 300}, "it knows no latency"),
    ],
)
def test_what_the_screen_cannot_do_is_refused(use: str, more: dict[str, Any], why: str) -> None:
    settings = settings_of(use, {})
    with pytest.raises(ConfigError, match=why):
        refuse(settings, place_strategies(settings), SessionOptions(**more))


@pytest.mark.parametrize("where", ["own", "of the account"])
def test_a_config_with_protections_is_refused(where: str) -> None:
    settings = settings_of("signalled:Cross", {})
    section = ProtectionSettings.model_validate({"cooldown": "2h"})
    if where == "own":
        strategies = tuple(one.model_copy(update={"protections": section}) for one in settings.strategies)
        settings = settings.model_copy(update={"strategies": strategies})
    else:
        settings = settings.model_copy(update={"protections": section})
    with pytest.raises(ConfigError, match="it knows no protections; run it without --screen"):
        refuse(settings, place_strategies(settings), SessionOptions())


def test_a_row_that_reads_more_bars_than_lookback_says_is_found() -> None:
    settings = settings_of("signalled:Forgetful", {})
    with pytest.raises(StrategyError, match="set lookback to the number of bars that one row reads"):
        screened(settings, [minutes(500)], SessionOptions())


def test_an_order_that_the_kernel_cannot_decide_stops_it_with_the_row_and_the_reason() -> None:
    settings = settings_of("signalled:Chance", {"size": 0.3, "leverage": 10}, budget_usd=100_000)
    made = screened(settings, [minutes(900)], SessionOptions(balance_usd=Decimal(1_000)))
    assert made.why_not is not None
    assert "too little margin" in made.why_not


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(minutes(60 * 24 * 3), tmp_path / "BTC_1m.csv")
    for use, folder in (("signalled:Cross", STRATEGIES), ("trend:Trend", ROOT / "strategies")):
        (tmp_path / f"{use.partition(':')[0]}.yaml").write_text(
            f"account: {{base_url: embedded}}\nstrategies_dir: {folder}\n"
            f"strategies:\n  - {{name: one, use: '{use}', markets: [BTC], interval: 1m, budget_usd: 2000}}\n"
        )
    (tmp_path / "space.yaml").write_text(
        'params: {one.fast_bars: [5, 10], one.slow_bars: [20, 40]}\nobjectives: ["Return [%]"]\n'
    )
    return tmp_path


def test_a_sweep_by_the_screen_runs_the_best_again_and_states_the_gap(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "signalled.yaml", "--data", "BTC_1m.csv", "--space", "space.yaml", "--screen", "--top", "2"]
    assert call([*words, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["ranAgain"]
    assert len(again) == 2
    for row in again:
        assert row["figures"]["# Trades"]["gap"] == 0
        assert row["figures"]["Return [%]"]["backtest"] == pytest.approx(
            row["figures"]["Return [%]"]["screen"], abs=1e-5
        )
    assert call(["sweep", "show", "signalled"]) == 0
    assert "Run again as full backtests" in capsys.readouterr().out
    assert call([*words, "--prune"]) == 2
    assert call(["sweep", "trend.yaml", *words[2:]]) == 4
    assert "run it without --screen" in capsys.readouterr().err


LONGER = """
from bot import Strategy, ema, highest, sma
from bot.strategy import Signals


class Longer(Strategy):
    fast = sma(4)
    slow = sma(3, interval="1h")
    own = ema(2, interval="5m")
    top = highest(2, "high", interval="30m")

    def signals(self, bars):
        return Signals(
            long=(bars.fast > bars.slow) & (bars.close < bars.top),
            close_long=bars.own < bars.slow,
            usd=200,
            stop_pct=1,
        )
"""


@pytest.mark.parametrize("start_ms", [None, START_MS + 1_234 * MINUTE_MS])
def test_indicators_of_longer_intervals_make_the_trades_of_the_backtest(tmp_path: Path, start_ms: int | None) -> None:
    (tmp_path / "longer.py").write_text(LONGER)
    settings = settings_of("longer:Longer", {}, folder=tmp_path, interval="5m")
    candles, options = minutes(6_000, seed=8, hole=0.01, vol=0.003), SessionOptions(start_ms=start_ms)
    here = screened(settings, [candles], options)
    there = backtested(settings, [candles], options)
    assert here.why_not is None
    assert rows_of(here.trips()) == rows_of(there.trade_ledger.trips)
    assert len(here.rows) > 20

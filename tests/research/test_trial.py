"""A trial has the figures of the backtest with the same params; a range narrows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bot.backtest.inputs import Inputs
from bot.errors import ConfigError
from bot.research.trial import inputs_of, run_trial
from tests.backtest.builders import MINUTE_MS, START_MS, backtested, config, minutes, write


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    data = write(minutes(600), tmp_path / "BTC_1m.csv")
    return inputs_of(config(tmp_path, use="bench:Cross"), [str(data)])


def test_its_figures_are_those_of_the_backtest_with_the_same_params(tmp_path: Path, inputs: Inputs) -> None:
    folder = backtested(tmp_path, inputs.config, tmp_path / "BTC_1m.csv", "--param", "one.fast_bars=4")
    found = run_trial(inputs, {"one.fast_bars": 4})
    assert found.figures == json.loads((folder / "summary.json").read_text())["figures"]
    assert found.figures != run_trial(inputs, {}).figures


def test_a_range_ends_before_its_end_and_the_returns_lead_to_the_last_equity(inputs: Inputs) -> None:
    from_ms, to_ms = START_MS + 100 * MINUTE_MS, START_MS + 300 * MINUTE_MS
    found = run_trial(inputs, {}, from_ms, to_ms)
    assert (found.start_ms, found.at_ms[-1]) == (from_ms, to_ms)
    grown = found.start_usd
    for one in found.returns:
        grown *= 1 + one
    assert grown == pytest.approx(found.equity_usd[-1])


def test_a_param_that_the_strategy_refuses_is_named(inputs: Inputs) -> None:
    with pytest.raises(ConfigError, match="fast_bars"):
        run_trial(inputs, {"one.fast_bars": 0})

"""One trial: a backtest of a config with other params, without files. Sweeps and walk-forward runs are made of trials."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bot.backtest.backtest import quiet_log
from bot.backtest.engine.options import SessionOptions
from bot.backtest.inputs import Files, Inputs
from bot.backtest.python_api import param_texts
from bot.backtest.results.statistics import daily_returns
from bot.errors import BotError


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial. `figures` have the names of the report; `equity_usd` has a value for each instant of `at_ms`."""

    figures: Mapping[str, Any]
    start_ms: int
    start_usd: float
    at_ms: array[int] = field(repr=False)
    equity_usd: array[float] = field(repr=False)

    @property
    def returns(self) -> list[float]:
        """The return of each period: from one instant of `at_ms` to the next, the first from the start."""
        before = [self.start_usd, *self.equity_usd[:-1]]
        return [now / then - 1 if then else 0.0 for then, now in zip(before, self.equity_usd, strict=True)]

    @property
    def daily_returns(self) -> list[float]:
        """The return of each day, from 00:00 UTC to 00:00 UTC, as the report's Sharpe ratio has them."""
        return daily_returns(self.at_ms, self.equity_usd, start_ms=self.start_ms, start_usd=self.start_usd)


def inputs_of(config: Path, data: Sequence[str], options: SessionOptions | None = None) -> Inputs:
    """A config and its candles, read and checked once for many trials. ConfigError if they cannot be used."""
    return Inputs(config, Files(list(data)), options or SessionOptions())


def run_trial(
    inputs: Inputs, params: Mapping[str, Any], from_ms: int | None = None, to_ms: int | None = None
) -> TrialResult:
    """Run one backtest with `params`, values by "strategy.param". `from_ms` and `to_ms` (exclusive) narrow the range of `inputs`.

    Earlier candles are history for the warm-up. ConfigError for a param that the strategy refuses; BotError if a strategy is quarantined.
    """
    given: dict[str, Any] = {"start_ms": from_ms, "end_ms": to_ms}
    options = replace(inputs.options, **{name: at for name, at in given.items() if at is not None})
    with quiet_log():
        settings = inputs.with_params(param_texts(params)) if params else inputs.settings
        found = inputs.make(options, settings=settings).run()
    if found.stats.quarantined:
        raise BotError(f"{'; '.join(found.stats.quarantined.values())}: quarantined, and not called again")
    return TrialResult(dict(found.figures), found.start_ms, found.start_usd, found.curve.at_ms, found.curve.equity)

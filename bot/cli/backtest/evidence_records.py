"""Keeps what a backtest, a sweep or a drill came to in the state directory of its config: evidence for `bot ready`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bot.backtest.results.run_writer import Result
    from bot.checks.evidence import Kind
    from bot.config import Settings
    from bot.drill.outcome import WorldOutcome
    from bot.drill.world import DrillSetup
    from bot.research.study import Study
    from bot.research.sweep_inputs import PreparedSweep
    from bot.research.trials import Bundle
    from bot.research.walk_forward import Walked


def _keep(settings: Settings, kind: Kind, facts: Mapping[str, Any]) -> None:
    """Keep a piece. A state directory that cannot be used is reported, because the results themselves are not lost."""
    from bot.checks.evidence import keep_evidence, version_of
    from bot.errors import BotError

    try:
        keep_evidence(settings.state_dir, kind, version_of(settings), facts)
    except (BotError, OSError) as error:
        click.echo(f"not kept as evidence for bot ready: {error}", err=True)


def keep_backtest(settings: Settings, result: Result, data: Sequence[str], folder: Path) -> None:
    """A backtest that ran to its end, without a strategy that failed."""
    from bot.backtest.results.statistics import worst_day_usd
    from bot.clock import DAY_MS

    if result.stats.is_partial or result.stats.quarantined:
        return
    summary, curve = result.summary(), result.curve
    start_usd, costs = float(result.start_usd), summary["costs"]
    facts = {
        "folder": str(folder.absolute()),
        "data": list(data),
        "days": (result.end_ms - result.start_ms) / DAY_MS,
        "trades": summary["figures"]["# Trades"],
        "netUsd": float(summary["figures"]["Equity Final [$]"]) - start_usd,
        "costsUsd": float(costs["feesUsd"]) - float(costs["fundingUsd"]) + float(costs["slippageUsd"]),
        "worstDayUsd": worst_day_usd(curve.at_ms, curve.equity, start_usd=start_usd),
        "startUsd": start_usd,
    }
    _keep(settings, "backtest", facts)


def keep_sweep(prepared: PreparedSweep, study: Study, bundle: Bundle, data: Sequence[str]) -> None:
    """The deflated Sharpe ratio of the best trial, and of the trial with the config's own params."""
    from bot.checks.evidence import version_of
    from bot.research.overfitting import deflated_of
    from bot.research.ranking import ranked

    rows = ranked(study.trials(), prepared.space)
    returns = [row.trial.returns for row in rows]
    settings = prepared.inputs.settings
    own = {
        f"{strategy.name}.{name}": value
        for strategy in settings.strategies
        for name, value in bundle.classes[strategy.name]
        .Params.model_validate(dict(strategy.params))
        .model_dump()
        .items()
    }
    chosen = [row for place, row in enumerate(rows) if not place or row.trial.params.items() <= own.items()]
    trials = [
        {"version": version_of(bundle.with_params(row.trial.params)), "deflated": deflated}
        for row in chosen
        if (deflated := deflated_of(returns, row.trial.returns)) is not None
    ]
    facts = {"study": study.name, "data": list(data), "count": len(rows), "trials": trials}
    _keep(settings, "sweep", facts)


def keep_walk(prepared: PreparedSweep, walked: Sequence[Walked], data: Sequence[str]) -> None:
    """The test windows of a walk-forward together, if they have enough days for a probability."""
    from bot.research.walk_forward import summary_of

    summary = summary_of(walked, prepared.space.objectives[0].figure)
    if summary["probabilisticSharpe"] is None:
        return
    facts = {
        "data": list(data),
        "chosen": [dimension.name for dimension in prepared.space.dimensions],
        "windows": len(walked),
        "days": summary["days"],
        "probability": summary["probabilisticSharpe"],
        "returnPct": summary["returnPct"],
    }
    _keep(prepared.inputs.settings, "walk_forward", facts)


def keep_drill(ground: DrillSetup, outcomes: Sequence[WorldOutcome], data: Sequence[str]) -> None:
    """A drill that was not stopped: the worlds of consecutive seeds."""
    text = repr([ground.bars, ground.options.plain(), *(series.digest() for series in ground.candles)])
    facts = {
        "data": list(data),
        "ground": hashlib.sha256(text.encode()).hexdigest()[:16],
        "seed": outcomes[0].seed,
        "worlds": len(outcomes),
        "failed": [outcome.seed for outcome in outcomes if not outcome.has_passed],
        "silenced": sum(
            outcome.has_passed and any(fault.kind == "silence" for fault in outcome.faults) for outcome in outcomes
        ),
    }
    _keep(ground.settings, "drill", facts)

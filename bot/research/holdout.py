"""The holdout of a study: the last part of its data, which no trial sees. Each look at it is recorded, because only the
first one is a test of an unseen range.

Trials run on data that are cut before the holdout. A look runs the best trial's params on the holdout, from no
position, with all earlier candles as history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final, NamedTuple

from bot.backtest.engine.options import within
from bot.backtest.inputs import Inputs
from bot.backtest.report.risk_statistics import moments_of, probabilistic_sharpe
from bot.clock import DAY_MS, iso
from bot.errors import BotError, ConfigError
from bot.research.overfitting import SURE
from bot.research.ranking import Ranked, ranked, space_of
from bot.research.study import Study, check_same
from bot.research.sweep import data_identity, range_of
from bot.research.trials import Task, bundle_of, evaluate
from bot.research.walk_forward import length_ms
from bot.words import many

# the user attribute of a study: its looks, the oldest first
LOOKS: Final = "looks"

# at, trial, params, figure, inSweep, inHoldout, days, probabilisticSharpe
Look = dict[str, Any]


class Cut(NamedTuple):
    """The inputs that trials may see, and the span of the holdout, ms UTC, end exclusive."""

    seen: Inputs
    holdout: tuple[int, int] | None


def cut_off(inputs: Inputs, length: str | None) -> Cut:
    """Cut the last `length` (90d) of the range from the inputs. ConfigError if it is no length, or nothing is left."""
    if length is None:
        return Cut(inputs, None)
    held_ms = length_ms(length)
    if held_ms is None:
        raise ConfigError(f"--holdout {length}: write a length in h, d or w, for example 90d")
    start_ms, end_ms = range_of(inputs)
    step_ms = max(series.step_ms for series in inputs.candles)
    from_ms = (end_ms - held_ms) // step_ms * step_ms
    if from_ms <= start_ms:
        raise ConfigError(
            f"--holdout {length}: the range has {(end_ms - start_ms) / DAY_MS:g} days; take a shorter holdout or more"
            " data"
        )
    seen = copy(inputs)
    seen.candles = [part for series in inputs.candles if len(part := series.slice(None, from_ms))]
    seen.rates = {name: [rate for rate in rates if rate[0] < from_ms] for name, rates in inputs.rates.items()}
    seen.options = within(replace(inputs.options, end_ms=from_ms), seen.candles)
    return Cut(seen, (from_ms, end_ms))


def span_of(study: Study) -> tuple[int, int] | None:
    """The holdout of a study; None if it has none."""
    span = study.identity.get("holdout")
    return None if span is None else (span[0], span[1])


def looks_of(study: Study) -> list[Look]:
    looks: list[Look] = study.kept(LOOKS) or []
    return looks


def look(study: Study, inputs: Inputs, at_ms: int) -> Look:
    """Run the best trial on the holdout and record the look.

    If the newest look was at the same trial, return that one and run nothing.
    """
    span = span_of(study)
    if span is None:
        raise BotError(
            f"the study {study.name!r} has no holdout; make one with: bot sweep CONFIG --holdout 90d --study NAME"
        )
    mine = data_identity(inputs)
    check_same(study.name, {key: study.identity.get(key) for key in mine}, mine)
    space = space_of(study)
    best: Ranked | None = next((row for row in ranked(study.trials(), space) if row.is_feasible), None)
    if best is None:
        raise BotError(
            f"the study {study.name!r} has no complete trial that keeps the constraints; nothing was looked at"
        )
    before = looks_of(study)
    if before and before[-1]["trial"] == best.trial.cell:
        return before[-1]
    outcome = evaluate(bundle_of(inputs), Task(best.trial.cell, best.trial.params, span=span))
    if outcome.state != "complete":
        raise BotError(
            f"trial {best.trial.cell} on the holdout: {outcome.state}: {outcome.message}; no look was recorded"
        )
    figure, moments = space.objectives[0].figure, moments_of(outcome.returns)
    record = {
        "at": iso(at_ms),
        "trial": best.trial.cell,
        "params": dict(best.trial.params),
        "figure": figure,
        "inSweep": best.values[0],
        "inHoldout": outcome.figures.get(figure),
        "trades": outcome.figures.get("# Trades"),
        "days": len(outcome.returns),
        "probabilisticSharpe": None if moments is None else probabilistic_sharpe(moments),
    }
    study.keep(LOOKS, [*before, record])
    return record


def others_of(study: Study, others: Iterable[Study]) -> tuple[int, list[str]]:
    """What other studies of the storage saw of this study's holdout: the number of their looks, and the names of
    those whose trials ran there.
    """
    span, looks, names = span_of(study), 0, set[str]()
    if span is None:
        return 0, []
    markets = _markets(study.identity)
    for other in others:
        plain = other.identity
        if other.name.partition("/")[0] == study.name or not markets & _markets(plain):
            continue
        if _meet(span, plain.get("holdout")):
            looks += len(looks_of(other))
        if _meet(span, plain.get("range")):
            names.add(other.name.partition("/")[0])
    return looks, sorted(names)


def _markets(identity: Mapping[str, Any]) -> set[str]:
    return {market["market"] for market in identity["data"]}


def _meet(span: Sequence[int], other: Sequence[int] | None) -> bool:
    return other is not None and span[0] < other[1] and other[0] < span[1]


def holdout_lines(study: Study, others: Iterable[Study]) -> list[str]:
    """The state of the holdout as sentences: locked, or each look and what it means. Empty for a study without one."""
    span = span_of(study)
    if span is None:
        return []
    looks, (elsewhere, names) = looks_of(study), others_of(study, others)
    head = f"Holdout {iso(span[0])[:16]} to {iso(span[1])[:16]}"
    lines = (
        [f"{head}: locked, no trial of this study has seen it. Look once, at the end: bot sweep holdout {study.name}"]
        if not looks
        else []
    )
    for number, record in enumerate(looks, start=1):
        lines.append(f"{head}, look {number} on {record['at'][:10]}: {look_text(record, number + elsewhere)}")
    if names:
        lines.append(
            f"Trials of {', '.join(names)} ran on data of this holdout, so it is no unseen range for whoever read them."
        )
    if elsewhere:
        lines.append(
            f"Other studies took {many(elsewhere, 'look')} at data of this holdout; they count as looks of this study."
        )
    return lines


def look_text(look: Look, number: int) -> str:
    """One look, and whether it shows an edge. The more looks, the surer it must be: 1 - 0.05 / looks (Bonferroni)."""
    value = "undefined" if look["inHoldout"] is None else f"{look['inHoldout']:,.4g}"
    text = f"trial {look['trial']}: {look['figure']} {value}, in the sweep {look['inSweep']:,.4g}"
    chance, needed = look["probabilisticSharpe"], 1 - (1 - SURE) / number
    if chance is None:
        return f"{text}; too few days ({look['days']}) or trades for a verdict."
    edge = "an edge is likely" if chance >= needed else f"no edge is shown (less than {needed:.3g})"
    more = (
        ""
        if number == 1
        else f" The holdout was looked at {number} times, so {needed:.3g} is needed instead of {SURE} (Bonferroni)."
    )
    return f"{text}; probabilistic Sharpe ratio {chance:.2f}: {edge}.{more}"

"""Derived figures, which the report has besides those of summary.json: computed from the stored trades and the equity,
under names of their own in JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from bot.backtest.report.benchmark import Relation, relation_of, same_size
from bot.backtest.report.summary import figure_of, guardian_of, monthly, risk_of
from bot.backtest.report.trade_statistics import ResultSource, exit_text, finished, sources
from bot.backtest.results.run_reader import StoredRun
from bot.backtest.results.statistics import DECIMALS, drawdowns, mean
from bot.figures import Figure

# Name in JSON -> the figure.
DERIVED: Final[Mapping[str, Figure]] = {
    "Always Long Return [%]": Figure("Always long", form="fall"),
    "Alpha (Ann.) [%]": Figure("Alpha, a year", form="change", better="higher"),
    "Beta": Figure("Beta", form="ratio"),
    "Correlation": Figure("Correlation", form="ratio"),
    "Net [$]": Figure("Net result", form="gain", better="higher", unit="USD"),
    "Costs [$]": Figure("Costs", form="cost", better="lower", unit="USD"),
    "Best Year [%]": Figure("Best year", form="change", better="higher"),
    "Worst Year [%]": Figure("Worst year", form="change", better="higher"),
    "Below Peak [%]": Figure("Below the peak", form="share"),
    "Avg. Win [$]": Figure("Average win", form="gain", better="higher", unit="USD"),
    "Avg. Loss [$]": Figure("Average loss", form="gain", better="higher", unit="USD"),
    "Payoff Ratio": Figure("Payoff ratio", form="ratio", better="higher"),
    "Losses in a Row": Figure("Losses in a row", form="count", better="lower"),
}


def figures_of(run: StoredRun) -> dict[str, Any]:
    """Every figure of the report by its name in JSON: those of summary.json, of the days, and these."""
    return {**run.summary["figures"], **risk_of(run), **derived_of(run)}


def figure_named(name: str, values: Mapping[str, Any]) -> Figure:
    """A figure with its value among those of `figures_of`."""
    value = values.get(name)
    return DERIVED[name].of(value) if name in DERIVED else figure_of(name, value)


def derived_of(run: StoredRun) -> dict[str, float | int | None]:
    """The figures of DERIVED. None where a run has too little to tell."""
    start_usd, course = float(run.summary["startUsd"]), run.summary["course"]
    held, related = same_size(run, [course["toMs"]]), relation_of(run)
    years = [months[-1] for months in monthly(run).values() if months[-1] is not None]
    costs = run.summary["costs"]
    figures = {
        "Always Long Return [%]": None if held is None or not start_usd else 100 * (held.usd[0] / start_usd - 1),
        **_of_relation(related),
        "Net [$]": run.summary["figures"]["Equity Final [$]"] - start_usd,
        "Costs [$]": float(costs.get("feesUsd", 0)) - float(costs.get("fundingUsd", 0)),
        "Best Year [%]": max(years, default=None),
        "Worst Year [%]": min(years, default=None),
        "Below Peak [%]": _below_peak(run),
        **_of_trades([trade.pnl_usd for trade in sorted(finished(run.trades), key=lambda trade: trade.exit_ms or 0)]),
    }
    return {
        name: value if value is None or isinstance(value, int) else round(value, DECIMALS)
        for name, value in figures.items()
    }


def relation_figures(related: Relation | None) -> list[Figure]:
    """Alpha, beta and correlation to another series."""
    return [DERIVED[name].of(value) for name, value in _of_relation(related).items()]


def _of_relation(related: Relation | None) -> dict[str, float | None]:
    return {
        "Alpha (Ann.) [%]": related and 100 * related.alpha,
        "Beta": related and related.beta,
        "Correlation": related and related.correlation,
    }


def _of_trades(nets: Sequence[float]) -> dict[str, float | int | None]:
    """`nets`: the results of finished trades after costs, in the order of their exits."""
    won, lost = mean([net for net in nets if net > 0]), mean([net for net in nets if net < 0])
    return {
        "Avg. Win [$]": won,
        "Avg. Loss [$]": lost,
        "Payoff Ratio": won / -lost if won is not None and lost else None,
        "Losses in a Row": max((len(list(group)) for is_loss, group in groupby(nets, _is_loss) if is_loss), default=0),
    }


def _is_loss(net: float) -> bool:
    return net < 0


def _below_peak(run: StoredRun) -> float | None:
    """The share of the time in which the equity was below its peak, in percent."""
    course = run.summary["course"]
    whole = course["toMs"] - course["fromMs"]
    falls = drawdowns(run.at_ms, run.equity, start_ms=course["fromMs"], start_usd=float(run.summary["startUsd"]))
    return 100 * math.fsum(fall.ms for fall in falls) / whole if whole > 0 else None


def sources_of(run: StoredRun) -> list[ResultSource]:
    """Where the result of a run comes from."""
    by = guardian_of(run)
    return sources(finished(run.trades), lambda trade: exit_text(by.get(trade.number) or trade.exit_kind))


def derived_as_json(run: StoredRun) -> dict[str, Any]:
    """The figures of DERIVED, and where the result comes from."""
    return {"derived": derived_of(run), "sources": [row._asdict() for row in sources_of(run)]}

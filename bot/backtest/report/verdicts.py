"""How sure one can be of a run, as sentences: its probabilistic Sharpe ratio, Monte Carlo over its trades and its
candles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bot.backtest.report.risk_statistics import Moments, moments_of, probabilistic_sharpe
from bot.number_text import duration_ms
from bot.words import many


def run_lines(returns: Sequence[float], monte_carlo: Mapping[str, Any] | None) -> list[str]:
    """All sentences of one run. `returns` are those of its days, `monte_carlo` as in `monte_carlo_lines`."""
    moments, lines = moments_of(returns), monte_carlo_lines(monte_carlo or {})
    if moments is not None:
        lines.insert(
            0, f"{sharpe_text(moments, 'the true')} It holds if no other params were tried; bot sweep allows for those."
        )
    return lines


def sharpe_text(found: Moments, whose: str) -> str:
    return (
        f"Probabilistic Sharpe ratio {probabilistic_sharpe(found):.2f}: the probability that {whose} Sharpe ratio is"
        f" above 0, by the length, skewness and tails of {found.length} daily returns (Bailey, Lopez de Prado 2012)."
    )


def monte_carlo_lines(found: Mapping[str, Any]) -> list[str]:
    """What --monte-carlo and --bootstrap found (monte_carlo.py): one sentence for each figure, with its source."""
    lines: list[str] = []
    trades, candles = found.get("trades"), found.get("candles")
    if trades is not None and "endUsd" not in trades:
        lines.append(
            f"Monte Carlo: {many(trades['trades'], 'finished trade')} cannot be put in another order; at least 2 are"
            " needed."
        )
    elif trades is not None:
        how = f"{trades['draws']:,} draws, seed {trades['seed']}"
        lines.append(
            f"Trades in another order ({how}): maximum drawdown after a trade"
            f" {_quantiles_text(trades['shuffledDrawdownPct'], ' %')}, in this run {trades['drawdownPct']:,.2f} %;"
            f" {trades['deeperShare']:.0%} of the orders are deeper. The order changes no end equity."
        )
        lines.append(
            f"Trades drawn with replacement ({how}; Efron 1979): end equity"
            f" {_quantiles_text(trades['endUsd'], ' USD')}; {trades['lossShare']:.0%} end below the start; maximum"
            f" drawdown {_quantiles_text(trades['drawnDrawdownPct'], ' %')}. This is how far the result rests on which"
            " trades happened."
        )
    if candles is not None:
        lines.append(
            f"Bootstrapped candles ({many(candles['runs'], 'history', 'histories')} of blocks of"
            f" {duration_ms(candles['blockMs'])} on average, seed {candles['seed']}; Politis, Romano 1994):"
            f" {candles['lossShare']:.0%} of the histories lose; {candles['belowShare']:.0%} return less than this run."
            " A run above nearly all of them rests on the one order of events in its data."
        )
        lines += [
            f"On bootstrapped candles: {name} {'undefined' if values is None else _quantiles_text(values, '')}"
            for name, values in candles["figures"].items()
        ]
        if candles["quarantined"]:
            lines.append(
                "On bootstrapped candles: a strategy was quarantined in"
                f" {many(candles['quarantined'], 'history', 'histories')}."
            )
    return lines


def _quantiles_text(found: Sequence[float], unit: str) -> str:
    low, middle, high = (f"{value:,.2f}" for value in found)
    return f"{low} to {high}{unit} (5 % to 95 %), median {middle}{unit}"

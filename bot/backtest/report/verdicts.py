"""How sure one can be of a run, as sentences: its probabilistic Sharpe ratio, Monte Carlo over its trades and its
candles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bot.backtest.report.risk_statistics import Moments, moments_of, probabilistic_sharpe
from bot.backtest.report.summary import daily_of
from bot.backtest.results.run_reader import StoredRun
from bot.backtest.results.statistics import drawdowns, extrapolated
from bot.clock import datetime_of
from bot.number_text import duration_ms, pct, share, signed_usd
from bot.words import many


class RunVerdict(NamedTuple):
    """What a run means: `head` in a few words, `text` in figures, and sentences of how far to trust it.

    `tone`: good, watch or bad.
    """

    tone: str
    head: str
    text: str
    notes: tuple[str, ...]


def verdict_of(run: StoredRun, values: Mapping[str, Any]) -> RunVerdict:
    """The sentence is made from figures by fixed rules. `values`: those of `derived.figures_of`."""
    tone, head = _head(run, values)
    course = run.summary["course"]
    yearly = values["Return (Ann.) [%]"]
    parts = [f"{signed_usd(values['Net [$]'])} USD in {duration_ms(course['toMs'] - course['fromMs'])}"]
    # A run of a few days says nothing of a year.
    if yearly is not None and not extrapolated(values, course["toMs"] - course["fromMs"]):
        parts.append(f"{pct(yearly)} a year")
    text = f"{', '.join(parts)}, with a fall of {pct(values['Max. Drawdown [%]'])} on the way."
    if (held := values["Always Long Return [%]"]) is not None:
        gain = held / 100 * float(run.summary["startUsd"])
        text += f" Always long at the same average size: {signed_usd(gain)} USD."
    return RunVerdict(tone, head, text, tuple(_notes(run)))


def _head(run: StoredRun, values: Mapping[str, Any]) -> tuple[str, str]:
    net, costs = values["Net [$]"], values["Costs [$]"]
    if run.summary["course"]["isPartial"]:
        return "bad", "Ended early: the figures cover the part that ran."
    if run.summary.get("quarantined"):
        return "bad", "A strategy failed on the way, so the figures are not those of the whole config."
    if not values["# Trades"]:
        return "watch", "No trade was closed, so there is nothing to judge."
    if net <= 0:
        return "bad", (
            "Lost money: costs took more than the trades earned." if net + costs > 0 else "Lost money after costs."
        )
    falls = drawdowns(
        run.at_ms, run.equity, start_ms=run.summary["course"]["fromMs"], start_usd=float(run.summary["startUsd"])
    )
    if falls and not falls[-1].is_over and falls[-1].ms > 0.2 * length_ms(run):
        return "watch", f"Profitable after costs, but below its peak since {day_text(falls[-1].peak_ms)}."
    return "good", "Profitable after costs."


def length_ms(run: StoredRun) -> int:
    """The length of a run."""
    return int(run.summary["course"]["toMs"] - run.summary["course"]["fromMs"])


def day_text(at_ms: int) -> str:
    """`14 Aug 2022`, in UTC."""
    at = datetime_of(at_ms)
    return f"{at.day} {at:%b %Y}"


def _notes(run: StoredRun) -> Iterator[str]:
    moments = moments_of(daily_of(run, only_with_prices=True))
    if moments is not None:
        yield (
            f"A true Sharpe ratio above 0 has a probability of {share(probabilistic_sharpe(moments))}, if no other"
            " params were tried."
        )
    drawn = (run.summary.get("monteCarlo") or {}).get("trades") or {}
    if "lossShare" in drawn:
        yield f"Drawn again from its own trades, {share(drawn['lossShare'])} of {drawn['draws']:,} runs lose money."
    years = _years_usd(run)
    net = math.fsum(years.values())
    if len(years) > 1 and net > 0:
        year, best = max(years.items(), key=lambda item: item[1])
        if best > 0.5 * net:
            yield f"{share(best / net)} of the result is from {year}."


def _years_usd(run: StoredRun) -> dict[int, float]:
    """The change of the equity in each year, in USD."""
    ends = {datetime_of(at - 1).year: usd for at, usd in zip(run.at_ms, run.equity, strict=True)}
    starts = [float(run.summary["startUsd"]), *ends.values()]
    return {year: end - start for (year, end), start in zip(ends.items(), starts[:-1], strict=True)}


def run_lines(returns: Sequence[float], monte_carlo: Mapping[str, Any] | None) -> list[str]:
    """All sentences of one run. `returns` are those of its days, `monte_carlo` as in `monte_carlo_lines`."""
    moments, lines = moments_of(returns), monte_carlo_lines(monte_carlo or {})
    if moments is not None:
        lines.insert(
            0, f"{sharpe_text(moments, 'the true')} It holds if no other params were tried; bot sweep allows for those."
        )
    return lines


def sharpe_text(moments: Moments, whose: str) -> str:
    return (
        f"Probabilistic Sharpe ratio {probabilistic_sharpe(moments):.2f}: the probability that {whose} Sharpe ratio is"
        f" above 0, by the length, skewness and tails of {moments.length:,} daily returns (Bailey, Lopez de Prado"
        " 2012)."
    )


def monte_carlo_lines(drawn: Mapping[str, Any]) -> list[str]:
    """What --monte-carlo and --bootstrap found (monte_carlo.py): one sentence for each figure, with its source."""
    lines: list[str] = []
    trades, candles = drawn.get("trades"), drawn.get("candles")
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
            f" {share(trades['deeperShare'])} of the orders are deeper. The order changes no end equity."
        )
        lines.append(
            f"Trades drawn with replacement ({how}; Efron 1979): end equity"
            f" {_quantiles_text(trades['endUsd'], ' USD')}; {share(trades['lossShare'])} end below the start; maximum"
            f" drawdown {_quantiles_text(trades['drawnDrawdownPct'], ' %')}. This is how far the result rests on which"
            " trades happened."
        )
    if candles is not None:
        lines.append(
            f"Bootstrapped candles ({many(candles['runs'], 'history', 'histories')} of blocks of"
            f" {duration_ms(candles['blockMs'])} on average, seed {candles['seed']}; Politis, Romano 1994):"
            f" {share(candles['lossShare'])} of the histories lose; {share(candles['belowShare'])} return less than"
            " this run. A run above nearly all of them rests on the one order of events in its data."
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


def _quantiles_text(quantiles: Sequence[float], unit: str) -> str:
    low, middle, high = (f"{value:,.2f}" for value in quantiles)
    return f"{low} to {high}{unit} (5 % to 95 %), median {middle}{unit}"

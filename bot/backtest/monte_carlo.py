"""What a run could have been by luck: its trades in another order, its trades drawn again, and its strategies on other
histories of the same markets.

The same seed gives the same figures. Sources: Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of
Statistics 7, 1979 (trades drawn with replacement); Politis and Romano 1994 (candles, data/bootstrap.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any, Final

from bot.backtest.backtest import Backtest
from bot.backtest.data.bootstrap import bootstrapped, observed_ms
from bot.backtest.engine.options import start_of
from bot.backtest.inputs import Inputs
from bot.backtest.report.risk_statistics import quantile
from bot.backtest.results.assumptions import is_agent
from bot.backtest.results.run_writer import Result
from bot.errors import ConfigError
from bot.number_text import duration_ms
from bot.venue.model.numbers import E8

SHARES: Final = (0.05, 0.5, 0.95)
FIGURES: Final = ("Return [%]", "Max. Drawdown [%]", "Sharpe Ratio", "# Trades")


def of_trades(result: Result, draws: int, seed: int) -> dict[str, Any]:
    """The finished trades in `draws` other orders, and drawn `draws` times with replacement. Amounts are the trades'
    own, in USD, without compounding.

    A drawdown is of the balance after each trade, in percent, so it is less deep than that of the equity curve.
    """
    trips = sorted((trip for trip in result.trade_ledger.trips if trip.exit_ms), key=lambda trip: trip.exit_ms)
    nets = [trip.pnl / E8 for trip in trips]
    summary: dict[str, Any] = {"draws": draws, "seed": seed, "trades": len(nets)}
    if len(nets) < 2:
        return summary
    chance, shuffled = Random(f"{seed}:trades"), list(nets)
    own, falls, ends, drawn_falls = fall_of(nets, result.start_usd), [], [], []
    for _ in range(draws):
        chance.shuffle(shuffled)
        falls.append(fall_of(shuffled, result.start_usd))
        drawn = chance.choices(nets, k=len(nets))
        ends.append(result.start_usd + sum(drawn))
        drawn_falls.append(fall_of(drawn, result.start_usd))
    return summary | {
        "drawdownPct": own,
        "shuffledDrawdownPct": quantiles(falls),
        "deeperShare": sum(fall < own for fall in falls) / draws,
        "drawnDrawdownPct": quantiles(drawn_falls),
        "endUsd": quantiles(ends),
        "lossShare": sum(end < result.start_usd for end in ends) / draws,
    }


def fall_of(nets: Sequence[float], start_usd: float) -> float:
    """The maximum drawdown of a balance after each trade, in percent, 0 or below; -100 when nothing is left."""
    deepest, peak = 0.0, start_usd
    for value in accumulate(nets, initial=start_usd):
        peak = max(peak, value)
        deepest = min(deepest, value / peak - 1)
    return 100 * max(-1.0, deepest)


def check_bootstrap(inputs: Inputs, backtest: Backtest, block_ms: int) -> None:
    """ConfigError if the candles of a backtest cannot be bootstrapped."""
    for series in inputs.candles:
        if series.market.startswith("event:"):
            raise ConfigError(
                f"--bootstrap: {series.market} is an event market: its price ends at 0 or 1, so its moves cannot be put"
                " in another order"
            )
    for spec in backtest.session.specs:
        if is_agent(spec):
            raise ConfigError(
                f"--bootstrap: {spec.strategy.name} asks a language model, and no answers are recorded for other"
                " histories; leave it out"
            )
    start_ms, end_ms = _span(inputs)
    candles_ms = observed_ms(inputs.candles, start_ms, end_ms)
    if candles_ms < 2 * block_ms:
        raise ConfigError(
            f"--bootstrap-block {duration_ms(block_ms)}: the range has candles of {duration_ms(candles_ms)}, "
            "which is shorter than two blocks; take shorter blocks or more data"
        )


def _span(inputs: Inputs) -> tuple[int, int]:
    start_ms = start_of(inputs.options.start_ms, inputs.candles)
    return start_ms, inputs.options.end_ms or max(series.end_ms for series in inputs.candles)


def of_candles(
    inputs: Inputs, result: Result, runs: int, block_ms: int, progress: Callable[[int, int], bool]
) -> dict[str, Any] | None:
    """The same backtest on `runs` bootstrapped histories; None if `progress` stopped it."""
    (start_ms, end_ms), seed = _span(inputs), inputs.options.seed
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    failed = 0
    for number in range(runs):
        other = inputs.on(bootstrapped(inputs.candles, start_ms, end_ms, block_ms=block_ms, seed=f"{seed}:{number}"))

        def shown(done: int, of: int, number: int = number) -> bool:
            return progress(number * of + done, runs * of)

        history = other.make().run(progress=shown)
        if history.stats.is_partial:
            return None
        failed += bool(history.stats.quarantined)
        for name, values in figures.items():
            if (value := history.figures.get(name)) is not None:
                values.append(value)
    own, returns = result.figures["Return [%]"], figures["Return [%]"]
    return {
        "runs": runs,
        "seed": seed,
        "blockMs": block_ms,
        "quarantined": failed,
        "figures": {name: quantiles(values) for name, values in figures.items()},
        "lossShare": sum(gain < 0 for gain in returns) / runs,
        "belowShare": sum(gain < own for gain in returns) / runs,
    }


def quantiles(values: Sequence[float]) -> list[float] | None:
    """The quantiles 5 %, 50 % and 95 %; None without values."""
    ordered = sorted(values)
    return [round(quantile(ordered, share), 6) for share in SHARES] if ordered else None

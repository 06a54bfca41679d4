"""What the script of the page draws over time, as JSON: equity, drawdown and exposure; candles with volume, indicators
and trades. It computes no money.

Instants are in seconds UTC, because lightweight-charts counts in seconds. Rising instants are stored as the first one
and the steps to the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from bot.backtest.report.benchmark import same_size
from bot.backtest.report.summary import guardian_of
from bot.backtest.report.trade_statistics import excursion, exit_text, return_pct
from bot.backtest.results.run_reader import StoredRun, StoredTrade, levels_of
from bot.figures import Column

# rows of the equity curve
CURVE_MAX: Final = 10_000
# the newest: on the candles and in the table
TRADES_MAX: Final = 5_000
# stops, and targets, of one market
LEVELS_MAX: Final = 2_000
# The lines of the account's guardians over all charts.
GUARDIANS_MAX: Final = 100
# The columns of the table of trades, by the key of their values. Script and page take heads and rows from here.
TRADES: Final = {
    "number": Column("#", "count"),
    "market": Column("Market", "words", phone="first"),
    "side": Column("Side", phone="first"),
    "strategy": Column("Strategy", "words"),
    "entryMs": Column("Opened", "instant"),
    "size": Column("Size", "size", phone="drop"),
    "entryPx": Column("Entry", "px", phone="drop"),
    "exitPx": Column("Exit", "px", phone="drop"),
    "exitBy": Column("Exit by", "words"),
    "held": Column("Held", "seconds"),
    "costs": Column("Costs", "cost", phone="drop"),
    "result": Column("Result", "gain", "higher", "USD", phone="first"),
    "r": Column("R", "r", "higher"),
    "mae": Column("MAE", "r"),
    "mfe": Column("MFE", "r"),
}
# values that only the chart uses
HIDDEN: Final = ("exitMs", "pct")
LEVELS: Final = {"stop_loss": "stops", "take_profit": "targets"}


def chart_data(runs: Sequence[StoredRun], names: Sequence[str]) -> dict[str, Any]:
    """The data of the page. With two runs only their curves, because their candles may differ."""
    data: dict[str, Any] = {"runs": [{"name": name, **curve(run)} for run, name in zip(runs, names, strict=True)]}
    if len(runs) > 1:
        return data
    (run,) = runs
    guardians = [fired for fired in run.summary.get("guardians", ()) if fired["market"] is None]
    trades = run.trades[-TRADES_MAX:]
    by = guardian_of(run)
    return data | {
        "markets": {market: _market(run, market, trades) for market in run.chart},
        "columns": columns_as_json(),
        "trades": [list(trade_values(trade, by.get(trade.number)).values()) for trade in trades],
        "outages": [
            [down["atMs"] // 1000, (down["atMs"] + down["forMs"]) // 1000] for down in run.summary.get("outages", ())
        ],
        "guardians": [[fired["ts"] // 1000, fired["type"]] for fired in guardians[-GUARDIANS_MAX:]],
    }


class DrawnCurve(NamedTuple):
    """Equity at the end of each bucket, the deepest drawdown in it in percent, and the largest exposure in it."""

    at_ms: list[int]
    equity: list[float]
    drawdown: list[float]
    exposure: list[float]


def curve_of(run: StoredRun) -> DrawnCurve:
    """At most CURVE_MAX buckets of the equity of a run."""
    count = len(run.at_ms)
    per = max(1, -(-count // CURVE_MAX))
    # By second, because instants within one second have one place on the chart.
    buckets: dict[int, tuple[int, int, float]] = {}
    peak = float(run.summary["startUsd"])
    for start in range(0, count, per):
        end = min(start + per, count)
        peak, deepest = _deepest_fall(run.equity[start:end], peak)
        buckets[run.at_ms[end - 1] // 1000] = (start, end, deepest)
    return DrawnCurve(
        [run.at_ms[end - 1] for _, end, _ in buckets.values()],
        [round(run.equity[end - 1], 2) for _, end, _ in buckets.values()],
        [round(deepest, 3) for _, _, deepest in buckets.values()],
        [round(max(run.exposure[start:end]), 2) for start, end, _ in buckets.values()],
    )


def curve(run: StoredRun) -> dict[str, Any]:
    """The curve for the script of the page, with the market held at the strategy's own average size."""
    drawn = curve_of(run)
    held = same_size(run, drawn.at_ms)
    return {
        "t": _steps([at // 1000 for at in drawn.at_ms]),
        "equity": drawn.equity,
        "drawdown": drawn.drawdown,
        "exposure": drawn.exposure,
        "hold": None if held is None else [round(usd, 2) for usd in held.usd],
    }


def _deepest_fall(equity: Sequence[float], peak: float) -> tuple[float, float]:
    """The peak after a bucket, and its deepest fall from the peak at that time, in percent."""
    if max(equity) <= peak:
        return peak, 100 * (min(equity) / peak - 1) if peak > 0 else 0.0
    deepest = 0.0
    for usd in equity:
        if usd >= peak:
            peak = usd
        elif peak > 0:
            deepest = min(deepest, 100 * (usd / peak - 1))
    return peak, deepest


def _market(run: StoredRun, market: str, trades: Sequence[StoredTrade]) -> dict[str, Any]:
    candles = run.chart[market]
    first = next((trade.entry_ms for trade in trades if trade.market == market), None)
    levels = {} if first is None else levels_of(run, market, first)
    return {
        "step": candles["stepMs"] // 1000,
        "t": _steps([ts // 1000 for ts in candles["ts"]]),
        **{name: candles.get(name) for name in ("open", "high", "low", "close", "volume")},
        "indicators": candles.get("indicators", []),
        **{
            name: [
                [from_ms // 1000, None if to_ms is None else to_ms // 1000, px]
                for from_ms, to_ms, px in levels.get(kind, ())[-LEVELS_MAX:]
            ]
            for kind, name in LEVELS.items()
        },
    }


def trade_values(trade: StoredTrade, guardian: str | None) -> dict[str, Any]:
    """What table and chart show of a trade, by the keys of `trade_table.TRADES` and a few of the chart.

    Costs are positive if paid. The excursions are in R: against the trade below zero.
    """
    far = excursion(trade)
    until = trade.exit_ms
    return {
        "number": trade.number,
        "market": trade.market,
        "side": trade.side,
        "strategy": trade.strategy or "(no strategy)",
        "entryMs": trade.entry_ms,
        "size": trade.size,
        "entryPx": trade.entry_px,
        "exitPx": trade.exit_px,
        "exitBy": exit_text(guardian or trade.exit_kind),
        "held": None if until is None else (until - trade.entry_ms) / 1000,
        "costs": round(trade.fees_usd - trade.funding_usd, 4),
        "result": round(trade.pnl_usd, 4),
        "r": trade.r_multiple,
        "mae": None if far is None or far.adverse_r is None else round(-far.adverse_r, 4),
        "mfe": _rounded(far and far.favorable_r),
        "exitMs": until,
        "pct": _rounded(return_pct(trade)),
    }


def columns_as_json() -> list[dict[str, Any]]:
    """The columns for the script: keys in the order of a trade's values; those without a head stand in no table."""
    shown: list[dict[str, Any]] = [
        {"key": key, "head": column.title, "kind": column.kind, "form": column.form, "better": column.better}
        for key, column in TRADES.items()
    ]
    return [*shown, *({"key": key} for key in HIDDEN)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _steps(instants: Sequence[int]) -> list[int]:
    """The first instant, and the step to each following one."""
    return [*instants[:1], *(after - before for before, after in pairwise(instants))]

"""What the script of the page draws over time, as JSON: equity, drawdown and exposure; candles with volume, indicators
and trades. It computes no money.

Instants are in seconds UTC, because lightweight-charts counts in seconds. Rising instants are stored as the first one
and the steps to the next ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum
from typing import Any, Final

from bot.backtest.report.summary import guardian_of
from bot.backtest.report.trade_statistics import excursion, return_pct
from bot.backtest.results.run_reader import StoredRun, StoredTrade, levels_of

# rows of the equity curve
CURVE_MAX: Final = 10_000
# the newest: on the candles and in the table
TRADES_MAX: Final = 5_000
# stops, and targets, of one market
LEVELS_MAX: Final = 2_000
# The lines of the account's guardians over all charts.
GUARDIANS_MAX: Final = 100
LEVELS: Final = {"stop_loss": "stops", "take_profit": "targets"}


def chart_data(runs: Sequence[StoredRun], names: Sequence[str]) -> dict[str, Any]:
    """The data of the page. With two runs only their curves, because their candles may differ."""
    data: dict[str, Any] = {"runs": [{"name": name, **curve(run)} for run, name in zip(runs, names, strict=True)]}
    if len(runs) > 1:
        return data
    (run,) = runs
    guardians = [guardian for guardian in run.summary.get("guardians", ()) if guardian["market"] is None]
    trades = run.trades[-TRADES_MAX:]
    by = guardian_of(run)
    return data | {
        "markets": {market: _market(run, market, trades) for market in run.chart},
        "trades": [_trade(trade, by.get(trade.number)) for trade in trades],
        "outages": [
            [outage["atMs"] // 1000, (outage["atMs"] + outage["forMs"]) // 1000]
            for outage in run.summary.get("outages", ())
        ],
        "guardians": [[guardian["ts"] // 1000, guardian["type"]] for guardian in guardians[-GUARDIANS_MAX:]],
    }


def curve(run: StoredRun) -> dict[str, Any]:
    """Equity at the end of each bucket, the deepest drawdown in it, the largest exposure in it, and buy and hold at
    its end.
    """
    count = len(run.at_ms)
    per = max(1, -(-count // CURVE_MAX))
    # By second, because instants within one second have one place on the chart.
    buckets: dict[int, tuple[int, int, float]] = {}
    peak = float(run.summary["startUsd"])
    for start in range(0, count, per):
        end = min(start + per, count)
        peak, deepest = _deepest_fall(run.equity[start:end], peak)
        buckets[run.at_ms[end - 1] // 1000] = (start, end, deepest)
    ends = [run.at_ms[end - 1] for _, end, _ in buckets.values()]
    held = buy_and_hold(run.chart, ends, float(run.summary["startUsd"]))
    return {
        "t": _steps(list(buckets)),
        "equity": [round(run.equity[end - 1], 2) for _, end, _ in buckets.values()],
        "drawdown": [round(deepest, 3) for _, _, deepest in buckets.values()],
        "exposure": [round(max(run.exposure[start:end]), 2) for start, end, _ in buckets.values()],
        "hold": None if held is None else [round(usd, 2) for usd in held],
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


def buy_and_hold(chart: Mapping[str, Any], at_ms: Sequence[int], start_usd: float) -> list[float] | None:
    """The value at each instant of the starting balance, held in equal amounts in every market from its first open,
    without leverage and costs.

    A market without a candle yet counts as cash. The same formula as `statistics.buy_and_hold`, at each instant. None
    without candles.
    """
    columns = []
    for candles in chart.values():
        if not candles["ts"] or candles["open"][0] <= 0:
            return None
        closes_ms = [ts + candles["stepMs"] for ts in candles["ts"]]
        rows = [bisect_right(closes_ms, at) - 1 for at in at_ms]
        # The last bucket of the chart may hold fewer candles than the others.
        if at_ms:
            rows[-1] = len(closes_ms) - 1
        columns.append([1.0 if row < 0 else candles["close"][row] / candles["open"][0] for row in rows])
    if not columns:
        return None
    return [start_usd * fsum(growth) / len(columns) for growth in zip(*columns, strict=True)]


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


def _trade(trade: StoredTrade, guardian: str | None) -> list[Any]:
    """In the order of TRADE in page.js."""
    extremes, pct = excursion(trade), return_pct(trade)
    return [
        trade.number,
        trade.strategy,
        trade.market,
        trade.side,
        trade.size,
        trade.entry_ms,
        trade.entry_px,
        trade.entry_kind,
        trade.exit_ms,
        trade.exit_px,
        guardian or trade.exit_kind or "open",
        round(-trade.fees_usd, 4),
        round(trade.pnl_usd, 4),
        _rounded(pct),
        trade.r_multiple,
        _rounded(extremes and extremes.adverse_pct),
        _rounded(extremes and extremes.favorable_pct),
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _steps(instants: Sequence[int]) -> list[int]:
    """The first instant, and the step to each following one."""
    return [*instants[:1], *(after - before for before, after in pairwise(instants))]

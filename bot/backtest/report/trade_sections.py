"""The sections of the report about trades: price and trades, R multiples, excursions, the Sharpe ratio over time, and
the table of trades.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from bot.backtest.report import svg
from bot.backtest.report.price_chart import TRADES, TRADES_MAX, trade_values
from bot.backtest.report.risk_statistics import rolling_sharpe
from bot.backtest.report.summary import daily_of, exposure_of, guardian_of
from bot.backtest.report.tables import escaped, foot, section, table
from bot.backtest.report.trade_statistics import R_WIDTH, bins, excursion, finished
from bot.backtest.results.run_reader import StoredRun
from bot.backtest.results.statistics import mean, sharpe
from bot.clock import DAY_MS
from bot.figures import Column
from bot.number_text import on_page, px, signed_usd
from bot.words import many

# Newest candles and rows of the page without script; the script shows all.
CANDLES_SHOWN: Final = 160
ROWS_SHOWN: Final = 200
# Days of the Sharpe ratio over time: of a long run, and of one that is shorter than two such windows.
WINDOW_DAYS: Final = 180
SHORT_WINDOW_DAYS: Final = 30
LEGEND: Final = (
    '<ul class="keys" aria-label="Legend"><li><svg aria-hidden="true"><path class="fa" d="M9 1L14 9H4z"/></svg>long'
    ' entry</li><li><svg aria-hidden="true"><path class="mks" d="M9 9L14 1H4z"/></svg>short entry</li><li><svg'
    ' aria-hidden="true"><circle class="fu" cx="9" cy="5" r="4"/></svg>exit with a profit</li><li><svg'
    ' aria-hidden="true"><circle class="hol fd" cx="9" cy="5" r="4"/></svg>exit with a loss</li><li>line from entry to'
    " exit: the result; dotted: stop and target</li></ul>"
)
EXPOSURE: Final = (
    Column("Market", "words"),
    Column("Time in position", "share"),
    Column("Mean position", "usd", unit="USD"),
    Column("Share of all", "share"),
)


def price_and_trades(run: StoredRun) -> str:
    """The interactive chart. Before its script runs, and without it: the newest candles of the first market."""
    head = '<div class="bar-line" id="chart-bar"></div><div class="readout" id="readout" aria-live="off"></div>'
    plot = f'<div id="plot" role="group" aria-label="Equity, price and trades over time">{_candles(run)}</div>'
    return section("Price and trades", f"{LEGEND}{head}{plot}", note="UTC", name="time")


def exposure(run: StoredRun) -> str:
    """The time and the size of the positions of each market."""
    rows = table(EXPOSURE, exposure_of(run), label="Exposure by market")
    text = "A position counts with its largest size at its average entry price."
    return section("Exposure by market", rows + foot(text) if rows else "", span="c6")


def _candles(run: StoredRun) -> str:
    market = next((name for name, candles in run.chart.items() if candles["ts"]), None)
    if market is None:
        return ""
    candles = run.chart[market]
    first = max(0, len(candles["ts"]) - CANDLES_SHOWN)
    at_ms = candles["ts"][first:]
    start, end = at_ms[0], at_ms[-1] + candles["stepMs"]
    columns = [candles[name][first:] for name in ("open", "high", "low", "close")]

    def place(ms: int) -> float:
        return (max(0, bisect_right(at_ms, ms) - 1) + 0.5) / len(at_ms)

    entries = [
        svg.CandleEntry(
            place(trade.entry_ms),
            trade.entry_px,
            None if trade.exit_ms is None else place(trade.exit_ms),
            trade.exit_px or 0.0,
            trade.side == "long",
            trade.pnl_usd > 0,
        )
        for trade in run.trades
        if trade.market == market and trade.entry_ms >= start
    ]
    label = f"{market}: the newest {many(len(at_ms), 'candle')}, with {many(len(entries), 'trade')}"
    drawn = svg.candle_chart(columns, entries, label=label, form=lambda x: on_page(px(x)), times=(start, end))
    return f'<p class="pane"><b>{escaped(market)}</b> the newest {many(len(at_ms), "candle")}</p>{drawn}'


def trade_panels(run: StoredRun) -> list[str]:
    return [_multiples(run), _excursions(run), _sharpe_over_time(run)]


def _multiples(run: StoredRun) -> str:
    trades = [trade for trade in finished(run.trades) if trade.r_multiple is not None]
    multiples = [trade.r_multiple for trade in trades if trade.r_multiple is not None]
    if not multiples:
        return ""
    middle = mean(multiples) or 0.0
    mark = (middle, on_page(f"mean {middle:+.2f} R"))
    drawn = svg.histogram(bins(multiples, least=R_WIDTH), label="Histogram of R multiples", unit="R", mark=mark)
    far = [trade.pnl_usd for trade in trades if (trade.r_multiple or 0) > 2]
    near = sum(-1.2 <= r <= -0.8 for r in multiples)
    text = f"{many(len(far), 'trade')} above +2 R: {signed_usd(sum(far))} USD. {many(near, 'trade')} near -1 R."
    note = "trades by result after costs over the risk to the first stop"
    return section("R multiples", drawn + foot(on_page(text)), note=note, span="c4")


def _excursions(run: StoredRun) -> str:
    points, turned = [], 0
    for trade in finished(run.trades):
        far = excursion(trade)
        if far is None or far.adverse_r is None or far.favorable_r is None:
            continue
        title = f"#{trade.number} {trade.market} {trade.side}: {on_page(signed_usd(trade.pnl_usd))} USD"
        points.append(svg.ChartPoint(-far.adverse_r, far.favorable_r, trade.pnl_usd > 0, title))
        turned += trade.pnl_usd <= 0 and far.favorable_r >= 1
    drawn = svg.scatter(points, label="Adverse and favorable excursion of each trade", unit="R", line=(-1.0, "stop"))
    legend = svg.keys([svg.key("fu", "profit"), svg.key("fd", "loss")])
    text = f"{many(turned, 'losing trade')} at +1 R or better before the loss."
    body = legend + drawn + foot(on_page(text)) if drawn else ""
    return section("Against and for", body, note="MAE across, MFE up, in R", span="c4")


def _sharpe_over_time(run: StoredRun) -> str:
    returns = daily_of(run)
    days = WINDOW_DAYS if len(returns) >= 2 * WINDOW_DAYS else SHORT_WINDOW_DAYS
    ratios = rolling_sharpe(returns, days)
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < 2:
        return ""
    whole = sharpe(returns)
    first_ms = (run.summary["course"]["fromMs"] // DAY_MS + days) * DAY_MS
    per = max(1, -(-len(ratios) // svg.POINTS_MAX))
    shown = ratios[::per]
    tag = on_page(f"{known[-1]:.2f}")
    drawn = svg.line_chart(
        [svg.ChartLine(f"{days} days", shown, "", tag)],
        svg.scale_of([*known, 0.0]),
        label=f"Sharpe ratio of the last {days} days",
        height=170,
        base=whole,
        times=(first_ms, first_ms + (len(ratios) - 1) * DAY_MS),
    )
    below = 100 * sum(ratio < 0 for ratio in known) / len(known)
    text = f"Below 0 on {below:.0f} % of the days."
    legend = svg.keys(
        [
            svg.key("", f"{days} days", is_line=True),
            svg.key("b", "whole run", on_page(f"{whole:.2f}") if whole is not None else "", is_line=True),
        ]
    )
    return section(
        "Sharpe ratio over time", legend + drawn + foot(text), note=f"last {days} days, for a year", span="c4"
    )


def trades(run: StoredRun) -> str:
    """The table of trades, newest first. The script sorts and filters all; without it the newest are here."""
    if not run.trades:
        return ""
    by = guardian_of(run)
    newest = run.trades[-TRADES_MAX:][::-1][:ROWS_SHOWN]
    rows = [_row(trade_values(trade, by.get(trade.number))) for trade in newest]
    filled = table(list(TRADES.values()), rows, label="Trades", name="trade-table")
    bar = '<div class="bar-line" id="trade-bar"></div>'
    status = f'<p class="foot" id="trade-sum" role="status">{escaped(_rows_text(run, len(rows)))}</p>'
    return section("Trades", bar + filled + status, note=_note(run), name="trades")


def _row(values: dict[str, Any]) -> Sequence[object]:
    return [values[key] for key in TRADES]


def _rows_text(run: StoredRun, shown: int) -> str:
    return f"The newest {shown:,} of {many(len(run.trades), 'trade')}; trades.csv in the run's folder has all of them."


def _note(run: StoredRun) -> str:
    note = "UTC; USD after costs; MAE and MFE in R"
    if len(run.trades) <= TRADES_MAX:
        return note
    return f"{note}. The last {TRADES_MAX:,} of {len(run.trades):,}; trades.csv in the run's folder has all of them."

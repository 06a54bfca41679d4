"""The HTML report of a run, or of two side by side: one file that needs no network and no second file. The same folder
gives the same bytes.

The page holds the script of lightweight-charts (from the package litecharts), a script and a style sheet of its own
(page.js, page.css), the data of the charts as JSON, and tables and SVG charts as HTML. Every text that came from a file
is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from bot.backtest.report import charts
from bot.backtest.report.price_chart import TRADES_MAX, chart_data
from bot.backtest.report.risk_statistics import WINDOW_DAYS, rolling
from bot.backtest.report.run_diff import compared, differences, names_of, unexplained
from bot.backtest.report.summary import (
    BOOKED,
    DRAWDOWNS,
    FAILURES,
    FIRST,
    MONTHS,
    SUMS,
    TONES,
    action_text,
    band_lines,
    booked_rows,
    by_market,
    costs_of,
    daily_of,
    drawdown_row,
    exposure_of,
    failure_text,
    figure_of,
    monthly,
    nothing_traded,
    proof_text,
    range_of,
    risk_of,
    short_text,
    sums,
    worst_drawdowns,
)
from bot.backtest.report.tables import Toned, bullets, escaped, heat_map, panel, section, table
from bot.backtest.report.trade_statistics import TradeGroup, bins, by_hour, by_weekday, excursion, finished, return_pct
from bot.backtest.report.verdicts import run_lines
from bot.backtest.results.run_reader import StoredRun
from bot.backtest.results.statistics import extrapolated
from bot.chart_library import chart_script
from bot.clock import DAY_MS, iso
from bot.errors import BotError
from bot.extras import install
from bot.figures import Column
from bot.number_text import duration_ms, on_page, signed_usd, usd
from bot.words import many

COST_COLUMNS: Final = (Column("", "words"), Column("USD", "usd"))
# guardians in their table
ROWS_MAX: Final = 500
HERE: Final = Path(__file__).parent


def render_html(run: StoredRun, other: StoredRun | None = None) -> str:
    """The HTML of one run, or of two side by side."""
    names: tuple[str, ...]
    if other is None:
        names, runs, parts = (str(run.manifest["config"]["name"]),), [run], _parts(run)
    else:
        names, runs = names_of(run, other), [run, other]
        parts = [_compared(run, other, names)]
        for shown, name in zip(runs, names, strict=True):
            parts += [_config(shown, f"Config of {name}"), _assumptions(shown, f"Assumptions of {name}")]
    return _page(runs, names, _head(runs, names), parts)


def render_charts(run: StoredRun) -> str:
    """The page of one run with the charts alone."""
    names = (str(run.manifest["config"]["name"]),)
    return _page([run], names, _head([run], names), [section("Equity, price and trades", _TIME_CHART, name="time")])


def _page(runs: Sequence[StoredRun], names: tuple[str, ...], head: str, parts: Sequence[str]) -> str:
    data = json.dumps(chart_data(runs, names), separators=(",", ":")).replace("<", "\\u003c")
    return _PAGE.format(
        title=escaped(" and ".join(names)),
        style=_own("page.css"),
        library=charts_script(),
        script=_own("page.js"),
        data=data,
        head=head,
        body="\n".join(filter(None, parts)),
    )


def charts_script() -> str:
    """The script of lightweight-charts, with the notice of its licence at the top."""
    script = chart_script()
    if script is None:
        raise BotError(
            f"a report needs the package litecharts: {install('report')}. `bot report RUN --json` works without it"
        )
    return script.decode()


@cache
def _own(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


# -- one run


def _parts(run: StoredRun) -> list[str]:
    """The sections of one run, in order."""
    return [
        _warnings(run),
        _cards(run),
        section("Equity, price and trades", _TIME_CHART, name="time"),
        section("Monthly returns", _months(run), note="Percent, UTC"),
        section("Drawdowns", _drawdowns(run), note="The deepest falls of the equity, UTC"),
        _panels(run),
        section("Trades", _TRADE_TABLE if run.trades else "", note=_trades_note(run), name="trades"),
        section("By strategy", table(SUMS, sums(run.summary["strategies"]))),
        section("By market", table(SUMS, sums(by_market(run)))),
        section(
            "Exposure by market",
            _exposure(run),
            note="A position counts with its largest size at its average entry price.",
        ),
        section("Attributed to each strategy, with its share of shared positions", _booked(run)),
        section("Costs", table(COST_COLUMNS, [(cost.name, Toned(cost.shown, cost.tone)) for cost in costs_of(run)])),
        section("Open at the end", bullets(run.summary.get("left", ()))),
        section("Path policies compared", _band(run)),
        section("How sure", bullets(run_lines(daily_of(run, only_with_prices=True), run.summary.get("monteCarlo")))),
        section("Guardians", _guardians(run)),
        section("Outages", _outages(run)),
        *(section(title, _failures(run, by)) for by, title in FAILURES.items()),
        _config(run, "Config"),
        _assumptions(run, "Assumptions"),
    ]


def _head(runs: Sequence[StoredRun], names: Sequence[str]) -> str:
    lines = []
    for run, name in zip(runs, names, strict=True):
        course, options = run.summary["course"], run.manifest["options"]
        partial = (
            ' <strong class="warn">ended early: the figures cover the part that ran</strong>'
            if course["isPartial"]
            else ""
        )
        lines.append(
            f"<h1>{escaped(name)}</h1><p>{iso(course['fromMs'])[:16]} to {iso(course['toMs'])[:16]} UTC"
            f" ({duration_ms(course['toMs'] - course['fromMs'])}) · {many(course['bars'], 'bar')} · path"
            f" {escaped(options['path'])} · latency {options['latency_ms']} ms · balance"
            f" {usd(run.summary['startUsd'])} USD · folder {escaped(run.name)}{partial}</p>"
        )
    return "".join(lines)


def _warnings(run: StoredRun) -> str:
    lines = [
        f'<p class="warn">{escaped(name)} was quarantined: {escaped(why)}</p>'
        for name, why in run.summary.get("quarantined", {}).items()
    ]
    if (why_not := nothing_traded(run.summary)) is not None:
        lines.append(f'<p class="warn">{escaped(why_not)}</p>')
    proof = run.summary.get("proof")
    if proof is not None:
        kind = "" if proof["isWhole"] and proof["differs"] is None else ' class="warn"'
        lines.append(f"<p{kind}>{escaped(proof_text(proof))}</p>")
    return "".join(lines)


def _cards(run: StoredRun) -> str:
    band, course = run.summary.get("band"), run.summary["course"]
    ms = course["toMs"] - course["fromMs"]
    cells, marked = [], extrapolated(run.summary["figures"], ms)
    for name, value in {**run.summary["figures"], **risk_of(run)}.items():
        figure, span = figure_of(name, value), range_of(band, name, value)
        beside = "" if span is None else f"<small>by path: {' to '.join(figure.of(end).shown for end in span)}</small>"
        if name in marked and value is not None:
            beside += f"<small>{short_text(ms)}</small>"
        cells.append(
            f'<div class="card"><span>{escaped(figure.name)}</span><b class="{figure.tone}">{escaped(figure.shown)}</b>'
            f"{beside}</div>"
        )
    return f'<div class="cards">{"".join(cells)}</div>'


def _months(run: StoredRun) -> str:
    rows = [(str(year), months) for year, months in monthly(run).items()]
    return heat_map("", (*MONTHS, "Year"), rows, "Monthly returns in percent")


def _drawdowns(run: StoredRun) -> str:
    return table(DRAWDOWNS, [drawdown_row(fall) for fall in worst_drawdowns(run)], label="Worst drawdowns")


def _panels(run: StoredRun) -> str:
    """The charts of days and of trades, in a grid."""
    trades = finished(run.trades)
    returns = [pct for trade in trades if (pct := return_pct(trade)) is not None]
    multiples = [trade.r_multiple for trade in trades if trade.r_multiple is not None]
    panels = [
        *_rolling_panels(run),
        panel(
            "Returns of trades",
            charts.histogram(bins(returns), "%", "Histogram of the returns of trades"),
            "After costs, of the notional at entry",
        ),
        panel(
            "R multiples",
            charts.histogram(bins(multiples), "R", "Histogram of R multiples"),
            "Result after costs over the risk to the first stop",
        ),
        panel(
            "Adverse and favorable excursion",
            _excursions(run),
            "How far the price went against a trade, and for it. Dot: profit; cross: loss",
        ),
        panel("Result by hour of entry", _groups(by_hour(trades), "Result by hour of entry"), "USD after costs, UTC"),
        panel(
            "Result by weekday of entry",
            _groups(by_weekday(trades), "Result by weekday of entry"),
            "USD after costs, UTC",
        ),
    ]
    body = "".join(filter(None, panels))
    return section("Days and trades", f'<div class="panels">{body}</div>' if body else "")


def _rolling_panels(run: StoredRun) -> list[str]:
    windows = rolling(daily_of(run))
    first_day = run.summary["course"]["fromMs"] // DAY_MS + WINDOW_DAYS - 1
    days = [iso((first_day + n) * DAY_MS)[:10] for n in range(len(windows))]
    sharpes = charts.ChartLine("Sharpe ratio", [window.sharpe for window in windows], "first")
    volatility = charts.ChartLine("Volatility", [100 * window.volatility for window in windows], "second")
    note = f"Of the last {WINDOW_DAYS} days, for a year"
    return [
        panel("Rolling Sharpe ratio", charts.lines(days, [sharpes], "ratio", "Rolling Sharpe ratio"), note),
        panel("Rolling volatility", charts.lines(days, [volatility], "%", "Rolling volatility"), note),
    ]


def _excursions(run: StoredRun) -> str:
    points = []
    for trade in finished(run.trades):
        extremes = excursion(trade)
        if extremes is not None:
            title = f"#{trade.number} {trade.market} {trade.side}: {on_page(signed_usd(trade.pnl_usd))} USD"
            points.append(charts.ChartPoint(extremes.adverse_pct, extremes.favorable_pct, trade.pnl_usd > 0, title))
    return charts.scatter(points, "MAE [%]", "MFE [%]", "Maximum adverse and favorable excursion of each trade")


def _groups(groups: Sequence[TradeGroup], label: str) -> str:
    if not any(group.trades for group in groups):
        return ""
    titles = [
        f"{group.name}: {on_page(signed_usd(group.result_usd))} USD, {group.won} of {many(group.trades, 'trade')} won"
        for group in groups
    ]
    return charts.bars([group.name for group in groups], [group.result_usd for group in groups], titles, "USD", label)


def _exposure(run: StoredRun) -> str:
    columns = (
        Column("", "words"),
        Column("Time in position", "share"),
        Column("Mean position", "usd", unit="USD"),
        Column("Share of all", "share"),
    )
    return table(columns, exposure_of(run))


def _trades_note(run: StoredRun) -> str:
    if len(run.trades) <= TRADES_MAX:
        return ""
    return f"The last {TRADES_MAX:,} of {len(run.trades):,}; trades.csv in the run's folder has all of them."


def _booked(run: StoredRun) -> str:
    return table(BOOKED, booked_rows(run))


def _band(run: StoredRun) -> str:
    band = run.summary.get("band")
    return "" if band is None else bullets(line.removeprefix("band: ") for line in band_lines(band))


def _guardians(run: StoredRun) -> str:
    fired = run.summary.get("guardians", ())
    rows = [
        (
            iso(guardian["ts"])[:19],
            guardian["type"],
            guardian["market"] or "account",
            action_text(guardian),
            guardian["reason"],
            ", ".join(map(str, guardian.get("trades", ()))),
            guardian.get("resultUsd"),
        )
        for guardian in fired[-ROWS_MAX:]
    ]
    names = ("When, UTC", "Guardian", "Market", "Action", "Reason", "Trade")
    columns = (*(Column(name, "words") for name in names), Column("Result of its fills, after fees", "gain", "higher"))
    more = f"<p>The last {ROWS_MAX} of {len(fired):,}; the run's folder has all of them.</p>"
    return table(columns, rows, label="Guardians") + (more if len(fired) > ROWS_MAX else "")


def _outages(run: StoredRun) -> str:
    rows = [
        (
            iso(outage["atMs"])[:19],
            outage["forMs"] / 1000,
            ", ".join(outage["openBefore"]) or "flat",
            ", ".join(outage["openAfter"]) or "flat",
            outage["events"],
            outage["equityAfterUsd"] - outage["equityBeforeUsd"],
        )
        for outage in run.summary.get("outages", ())
    ]
    columns = (
        Column("Down from, UTC"),
        Column("For", "seconds"),
        Column("Held before", "words"),
        Column("Held after", "words"),
        Column("Events meanwhile", "count"),
        Column("Value meanwhile", "gain", "higher", "USD"),
    )
    return table(columns, rows)


def _failures(run: StoredRun, by: str) -> str:
    first = run.summary.get(FIRST[by], {})
    rows = [
        (code, count, failure_text(first[code]) if code in first else "")
        for code, count in run.summary.get(by, {}).items()
    ]
    return table((Column("Code", "words"), Column("Times", "count"), Column("First order", "words")), rows)


def _config(run: StoredRun, title: str) -> str:
    """The config as it was written, the options of the run, and every param of each strategy, those with their
    default included.
    """
    strategies = "".join(_strategy(strategy) for strategy in run.manifest["strategies"])
    rows = [(name, _plain(value)) for name, value in run.manifest["options"].items()]
    options = table((Column("Option", "words"), Column("Value", "words")), rows)
    text = f"<h3>Config file</h3><pre tabindex=0>{escaped(run.manifest['config']['text'])}</pre>"
    return section(title, f"{strategies}<h3>Options of the run</h3>{options}{text}")


def _strategy(one: Mapping[str, Any]) -> str:
    where = f" on {', '.join(one['markets'])}, {one['interval']} bars" if "markets" in one else ""
    columns, rows = (Column("Param", "words"), Column("Value", "param")), list(one.get("params", {}).items())
    head = f"<h3>{escaped(one['name'])}</h3><p>{escaped(one.get('use', ''))}{escaped(where)}</p>"
    return f"{head}{table(columns, rows)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _assumptions(run: StoredRun, title: str) -> str:
    return section(title, bullets(run.manifest.get("assumptions", ())))


# -- two runs


def _compared(run: StoredRun, other: StoredRun, names: Sequence[str]) -> str:
    columns = (Column("", "words"), *(Column(name, "ratio") for name in names), Column("Change", "ratio"), Column(""))
    rows = [
        (
            f"{row.name} [{row.unit}]" if row.unit else row.name,
            *(Toned(on_page(text), "flat") for text in (row.first, row.second)),
            Toned(on_page(row.change), row.tone),
            Toned(TONES[row.tone], row.tone),
        )
        for row in compared(run, other)
    ]
    lines = differences(run, other) or list(filter(None, [unexplained(run, other)]))
    return "".join(
        [
            section("What was run differently", bullets(lines)),
            section("Equity and drawdown", _TIME_CHART, name="time"),
            section("Figures", table(columns, rows)),
        ]
    )


# The script fills these in. Without a script the page says so, and every figure and table but that of the trades is
# there.
_TIME_CHART: Final = """<div class="bar" id="chart-bar"></div><div class="readout" id="readout" aria-live="off"></div>
<div class="plot" id="plot" role="img" aria-label="Equity, drawdown, price and trades over time"></div>
<noscript><p>The charts over time need JavaScript.</p></noscript>"""
_TRADE_TABLE: Final = """<div class="bar" id="trade-bar"></div><p id="trade-sum" role="status"></p>
<div class="wide trades" tabindex="0" role="region" aria-label="Trades"><table \
id="trade-table"><thead></thead><tbody></tbody></table></div>
<noscript><p>The table of trades needs JavaScript; trades.csv in the run's folder has them.</p></noscript>"""
# The content policy allows inline scripts and styles only: no connection, no frame, no form.
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta \
name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src \
'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>{style}</style>
</head><body>
<header><div>{head}</div><button type="button" id="theme">Dark</button></header>
<main>
{body}
</main>
<footer>Charts over time: TradingView Lightweight Charts™, © TradingView, Inc., <a \
href="https://www.tradingview.com/">tradingview.com</a>, Apache License 2.0</footer>
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body></html>
"""

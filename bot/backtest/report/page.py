"""The HTML report of a run, or of two side by side: one file that needs no network and no second file. The same folder
gives the same bytes.

The page holds the script of lightweight-charts (from the package litecharts), a script and a style sheet of its own
(page.js, page.css), the data of the charts as JSON, and tables and SVG charts as HTML. Every text that came from a file
is escaped.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from bot.backtest.report import result_sections, run_sections, svg, trade_sections
from bot.backtest.report.price_chart import chart_data, curve_of
from bot.backtest.report.run_diff import ChangedKey, compared, config_changes, names_of, other_differences, unexplained
from bot.backtest.report.summary import TONES
from bot.backtest.report.tables import Toned, bullets, escaped, section, table
from bot.backtest.results.run_reader import StoredRun
from bot.chart_library import chart_script
from bot.errors import BotError
from bot.extras import install
from bot.figures import Column
from bot.number_text import on_page

HERE: Final = Path(__file__).parent


def render_html(run: StoredRun, other: StoredRun | None = None) -> str:
    """The HTML of one run, or of two side by side."""
    names: tuple[str, ...]
    if other is None:
        names = (str(run.manifest["config"]["name"]),)
        head = (
            run_sections.head([run], names, "Backtest report") + f'<div class="chips">{run_sections.chips(run)}</div>'
        )
        return _page([run], names, head, _parts(run))
    names, runs = names_of(run, other), [run, other]
    parts = [*_compared(run, other, names)]
    parts += [run_sections.what_was_run(shown, f"What {name} ran") for shown, name in zip(runs, names, strict=True)]
    return _page(runs, names, run_sections.head(runs, names, "Two backtests"), parts)


def render_charts(run: StoredRun) -> str:
    """The page of one run with the charts alone."""
    names = (str(run.manifest["config"]["name"]),)
    parts = [result_sections.equity(run), trade_sections.price_and_trades(run)]
    return _page([run], names, run_sections.head([run], names, "Charts of a backtest"), parts)


def _page(runs: Sequence[StoredRun], names: tuple[str, ...], head: str, parts: Sequence[str]) -> str:
    data = json.dumps(chart_data(runs, names), separators=(",", ":")).replace("<", "\\u003c")
    scripts = (f"<script>{text}</script>" for text in (charts_script(), _own("page.js")))
    after = "\n".join([NOTICE, f'<script type="application/json" id="data">{data}</script>', *scripts])
    return framed(" and ".join(names), head, parts, after=after, policy=f"script-src 'unsafe-inline'; {IMAGES}")


def framed(title: str, head: str, parts: Iterable[str], *, after: str = "", policy: str = "") -> str:
    """A whole page: its head beside the switch of colours, its sections, and what stands after them.

    `policy`: what its content policy allows besides inline styles: no connection, no frame, no form.
    """
    body = "\n".join(filter(None, parts))
    style = _own("colours.css") + _own("page.css") + _own("charts.css")
    return _PAGE.format(title=escaped(title), style=style, policy=policy, head=head, body=body, after=after)


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


def _parts(run: StoredRun) -> list[str]:
    """The sections of one run, in order."""
    return [
        result_sections.verdict(run),
        run_sections.warnings(run),
        *result_sections.groups(run),
        result_sections.equity(run),
        *result_sections.years_and_months(run),
        result_sections.where_from(run),
        result_sections.gross_to_net(run),
        trade_sections.price_and_trades(run),
        *trade_sections.trade_panels(run),
        result_sections.drawdowns(run),
        result_sections.how_sure(run),
        trade_sections.trades(run),
        trade_sections.exposure(run),
        run_sections.band(run),
        run_sections.guardians(run),
        run_sections.outages(run),
        *run_sections.failures(run),
        run_sections.what_was_run(run),
    ]


def _compared(run: StoredRun, other: StoredRun, names: Sequence[str]) -> list[str]:
    columns = (
        Column("", "words"),
        *(Column(name, "ratio", folds=True) for name in names),
        Column("Change", "ratio"),
        Column("Better or worse"),
    )
    rows = [
        (
            f"{row.name} [{row.unit}]" if row.unit else row.name,
            *(Toned(on_page(text), "flat") for text in (row.first, row.second)),
            Toned(on_page(row.change), row.tone),
            Toned(TONES[row.tone], row.tone),
        )
        for row in compared(run, other)
    ]
    changes = config_changes(run, other)
    keys = (Column("Key", "words", phone="first"), *(Column(name, "words") for name in names))
    lines = other_differences(run, other) or list(filter(None, [unexplained(run, other)]))
    plot = (
        '<div class="bar-line" id="chart-bar"></div><div class="readout" id="readout" aria-live="off"></div>'
        '<div id="plot" role="group" aria-label="Equity and drawdown of both over time">'
        f"{_curves([run, other], names)}</div>"
    )
    return [
        section("Figures", table(columns, rows, label="Figures of both")),
        section("Equity and drawdown", plot, note="USD and percent, UTC", name="time"),
        section("Config, by key", table(keys, [_changed(change) for change in changes], label="Keys that differ")),
        section("What else was different", bullets(lines)),
    ]


def _curves(runs: Sequence[StoredRun], names: Sequence[str]) -> str:
    """Equity and drawdown of both over one time. The script puts charts that zoom in their place."""
    curves = [curve_of(run) for run in runs]
    if not all(curve.at_ms for curve in curves):
        return ""
    start, end = min(curve.at_ms[0] for curve in curves), max(curve.at_ms[-1] for curve in curves)
    places = [start + round(n * (end - start) / svg.POINTS_MAX) for n in range(svg.POINTS_MAX + 1)]
    drawn = ""
    for title, times in (("equity", None), ("drawdown", (start, end))):
        lines = []
        for curve, name, kind in zip(curves, names, ("", "m"), strict=True):
            rows = [bisect_right(curve.at_ms, at) - 1 if at <= curve.at_ms[-1] else -1 for at in places]
            column = getattr(curve, title)
            lines.append(svg.ChartLine(name, [column[row] if row >= 0 else None for row in rows], kind))
        scale = svg.scale_of([value for line in lines for value in line.values if value is not None])
        drawn += svg.line_chart(lines, scale, label=f"The {title} of both", height=170, times=times)
    return svg.keys([svg.key(kind, name, is_line=True) for kind, name in zip(("", "m"), names, strict=True)]) + drawn


def _changed(change: ChangedKey) -> tuple[str, str, str]:
    first, second = ("not set" if value is None else value for value in change[1:])
    return change.key, first, second


IMAGES: Final = "img-src data: blob:"
NOTICE: Final = """<footer class="page">Charts over time: TradingView Lightweight Charts™, © TradingView, Inc., <a \
href="https://www.tradingview.com/">tradingview.com</a>, Apache License 2.0</footer>"""
# Light and dark are chosen by radio buttons, so that the choice works without a script.
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta \
name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; {policy}">
<title>{title}</title>
<style>{style}</style>
</head><body><div class="page">
<header class="masthead"><div>{head}</div><fieldset class="switch"><legend class="hidden">Colours</legend><input \
type="radio" name="theme" id="t-auto" value="auto" checked><label for="t-auto">Auto</label><input type="radio" \
name="theme" id="t-light" value="light"><label for="t-light">Light</label><input type="radio" name="theme" \
id="t-dark" value="dark"><label for="t-dark">Dark</label></fieldset></header>
<main class="grid">
{body}
</main></div>
{after}
</body></html>
"""

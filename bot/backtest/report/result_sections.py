"""The sections of the report about the result: the verdict, the figures in three groups, the equity beside the market,
years, months, where the result comes from, from gross to net, drawdowns, and how sure one can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bot.backtest.report import svg, tables
from bot.backtest.report.benchmark import same_size
from bot.backtest.report.derived import figure_named, figures_of, sources_of
from bot.backtest.report.price_chart import DrawnCurve, curve_of
from bot.backtest.report.summary import (
    BOOKED,
    DRAWDOWNS,
    MONTHS,
    booked_rows,
    costs_of,
    daily_of,
    drawdown_row,
    monthly,
    range_of,
    short_text,
    worst_drawdowns,
)
from bot.backtest.report.tables import Markup, Toned, bullets, foot, months_table, one_decimal, pairs, section, table
from bot.backtest.report.trade_statistics import ResultSource
from bot.backtest.report.verdicts import run_lines, verdict_of
from bot.backtest.results.run_reader import StoredRun
from bot.backtest.results.statistics import extrapolated
from bot.clock import datetime_of
from bot.figures import Column, Figure
from bot.number_text import on_page, pct, signed_usd, usd
from bot.words import many

SOURCES: Final = (
    Column("", "text", phone="drop"),
    Column("", "words", phone="first"),
    Column("Trades", "count"),
    Column("Win rate", "share"),
    Column("Average R", "r", "higher"),
    Column("Costs", "cost", phone="drop"),
    Column("Result", "gain", "higher", phone="first"),
    Column("", "words"),
)
GROSS: Final = (Column("", "words"), Column("USD", "gain", "higher"), Column("", "words"))


class FigureGroup(NamedTuple):
    """A lead figure, a second one beside it, what they say, and the others as pairs; all by their names in JSON."""

    title: str
    lead: str
    second: str
    note: str
    others: tuple[str, ...]


GROUPS: Final = (
    FigureGroup(
        "Result",
        "Return [%]",
        "Net [$]",
        "after fees, funding and slippage",
        (
            "Return (Ann.) [%]",
            "Equity Final [$]",
            "Always Long Return [%]",
            "Equity Peak [$]",
            "Alpha (Ann.) [%]",
            "Costs [$]",
            "Beta",
            "Best Year [%]",
            "Correlation",
            "Worst Year [%]",
        ),
    ),
    FigureGroup(
        "Risk",
        "Max. Drawdown [%]",
        "Max. Drawdown Duration [h]",
        "deepest and longest drawdown",
        (
            "Sharpe Ratio",
            "Volatility (Ann.) [%]",
            "Sortino Ratio",
            "Value at Risk (95) [%]",
            "Calmar Ratio",
            "Exp. Shortfall (95) [%]",
            "Avg. Drawdown [%]",
            "Avg. Drawdown Duration [h]",
            "SQN",
            "Below Peak [%]",
            "Exposure Time [%]",
        ),
    ),
    FigureGroup(
        "Trades",
        "# Trades",
        "Profit Factor",
        "closed",
        (
            "Win Rate [%]",
            "Avg. R",
            "Avg. Win [$]",
            "Avg. Loss [$]",
            "Payoff Ratio",
            "Losses in a Row",
            "Best Trade [$]",
            "Worst Trade [$]",
            "Expectancy [$]",
            "Avg. Trade Duration [h]",
        ),
    ),
)


def verdict(run: StoredRun) -> str:
    """What the run means, in one sentence, and how far it is to be trusted."""
    said = verdict_of(run, figures_of(run))
    return tables.verdict(*said)


def groups(run: StoredRun) -> list[str]:
    """The figures in three groups, each with one lead figure."""
    values = figures_of(run)
    return [_group(run, values, group) for group in GROUPS]


def _group(run: StoredRun, values: Mapping[str, Any], group: FigureGroup) -> str:
    course = run.summary["course"]
    ms = course["toMs"] - course["fromMs"]
    marked = extrapolated(values, ms)
    lead, second = figure_named(group.lead, values), figure_named(group.second, values)
    notes = [f"{group.note}{_more_of(run, group)}"]
    if (span := _span(run, group.lead, lead)) is not None:
        notes.append(span)
    beside = {}
    for name in group.others:
        figure = figure_named(name, values)
        span = _span(run, name, figure)
        small = [span] if span is not None else []
        small += [short_text(ms)] if name in marked and figure.value is not None else []
        beside[figure.name] = " · ".join(small)
    unit = " USD" if second.form == "gain" else ""
    named = f"{second.name.lower()} " if second.form == "ratio" else ""
    return (
        f'<section class="card group c4"><h2>{group.title}</h2>{tables.lead(lead, named + second.shown + unit)}'
        + "".join(map(tables.small_note, notes))
        + pairs((figure_named(name, values) for name in group.others), beside=beside)
        + "</section>"
    )


def _more_of(run: StoredRun, group: FigureGroup) -> str:
    if group.title == "Trades":
        still = sum(trade.exit_ms is None for trade in run.trades)
        return (
            f"; {many(still, 'more')} open at the end".replace("mores", "more")
            if still
            else "; none is open at the end"
        )
    if group.title == "Risk":
        falls = worst_drawdowns(run)
        return "" if not falls or falls[0].is_over else ", not recovered"
    return ""


def _span(run: StoredRun, name: str, figure: Figure) -> str | None:
    """The range of a figure over the path policies."""
    span = range_of(run.summary.get("band"), name, figure.value)
    return None if span is None else f"by path: {figure.of(span[0]).shown} to {figure.of(span[1]).shown}"


def equity(run: StoredRun) -> str:
    """The equity beside the market held at the strategy's own average size; drawdown and exposure below."""
    curve = curve_of(run)
    if len(curve.at_ms) < 2:
        return ""
    held = same_size(run, curve.at_ms)
    times = (curve.at_ms[0], curve.at_ms[-1])
    own = svg.thinned(curve.equity, svg.last_of)
    market = [] if held is None else svg.thinned(held.usd, svg.last_of)
    lines = [svg.ChartLine("Always long", market, "b", svg.axis_number(market[-1]))] if market else []
    lines.append(svg.ChartLine("Strategy", own, "", svg.axis_number(own[-1])))
    start = float(run.summary["startUsd"])
    label = f"Equity from {usd(start)} to {usd(own[-1])} USD"
    drawn = []
    for name, is_log in (("log", True), ("linear", False)):
        scale = svg.scale_of([*own, *market, start], is_log=is_log)
        chart = svg.line_chart(lines, scale, label=f"{label}, {name}", base=start if scale.low <= start else None)
        drawn.append(f'<div class="{name}">{chart}</div>')
    legend = [svg.key("", "Strategy", usd(own[-1]), is_line=True)]
    if market:
        legend.append(svg.key("b", "Always long, same average size", usd(market[-1]), is_line=True))
    body = svg.keys(legend) + "".join(drawn) + _falls(run, curve) + _exposure(run, times)
    return section("Equity", body + foot(_benchmark_text(held)), note="USD, UTC", end=_SCALES)


_SCALES: Final = (
    '<fieldset class="switch"><legend class="hidden">Scale of the equity</legend><input type="radio" name="scale"'
    ' id="scale-log" checked><label for="scale-log">Log</label><input type="radio" name="scale" id="scale-linear">'
    '<label for="scale-linear">Linear</label></fieldset>'
)


def _falls(run: StoredRun, curve: DrawnCurve) -> str:
    figures = run.summary["figures"]
    lowest = figures["Max. Drawdown [%]"]
    now = 100 * (figures["Equity Final [$]"] / figures["Equity Peak [$]"] - 1)
    drawn = svg.area_chart(
        svg.thinned(curve.drawdown, min),
        svg.scale_of([lowest], has_zero=True),
        label="Drawdown in percent of the highest equity so far",
        kind="dn",
        form=lambda value: svg.axis_number(value, " %"),
        tag=f"{one_decimal(now)} %",
    )
    text = f"percent of the highest equity so far; lowest {pct(lowest)}, now {pct(now)}"
    return f'<p class="pane"><b>Drawdown</b> {on_page(text)}</p>{drawn}'


def _exposure(run: StoredRun, times: tuple[int, int]) -> str:
    parts = [held / usd if usd > 0 else 0.0 for held, usd in zip(run.exposure, run.equity, strict=True)]
    mean = sum(parts) / len(parts)
    drawn = svg.area_chart(
        svg.thinned(parts, max),
        svg.scale_of([max(parts) or 1.0], has_zero=True),
        label="Exposure in multiples of the equity",
        kind="ex",
        height=60,
        form=lambda value: svg.axis_number(value, "×"),
        times=times,
    )
    text = f"open notional in multiples of the equity; mean {mean:.2f}×, highest {max(parts):.2f}×"
    return f'<p class="pane"><b>Exposure</b> {text}</p>{drawn}'


def _benchmark_text(held: Any) -> str:
    if held is None:
        return "No market was held, so there is nothing to compare the equity with."
    sizes = ", ".join(f"{market} {size:,.0f}" for market, size in held.sizes.items())
    return (
        f"Always long: {sizes} USD, the average size that the strategy held over the whole run, set again each day,"
        " without costs. Alpha and beta are against the mean daily return of the markets."
    )


def years_and_months(run: StoredRun) -> list[str]:
    years = monthly(run)
    if not years:
        return []
    market = _years_of_market(run)
    rows = [
        svg.BarPair(str(year), months[-1] or 0.0, market.get(year), one_decimal(months[-1]))
        for year, months in years.items()
    ]
    legend = svg.keys([svg.key("fu", "gain"), svg.key("fd", "loss"), svg.key("fb", "Always long, same average size")])
    bars = svg.pair_bars(rows, label="Return of each year in percent", form=lambda x: svg.axis_number(x, " %"))
    values = [value for months in years.values() for value in months[:-1] if value is not None]
    won = sum(value > 0 for value in values)
    text = f"{won} of {many(len(values), 'month')} with a gain. Best {pct(max(values))}, worst {pct(min(values))}."
    return [
        section("Years", legend + bars, note="return, percent, UTC", span="c5"),
        section(
            "Months",
            months_table(years, (*MONTHS, "Year")) + foot(on_page(text)),
            note="return, percent, UTC",
            span="c7",
        ),
    ]


def _years_of_market(run: StoredRun) -> dict[int, float]:
    """The return of each year of the market held at the strategy's average size, in percent of its value before."""
    at_ms = list(run.at_ms)
    held = same_size(run, at_ms)
    if held is None:
        return {}
    before, years = float(run.summary["startUsd"]), dict[int, float]()
    ends = {datetime_of(at - 1).year: usd for at, usd in zip(at_ms, held.usd, strict=True)}
    for year, end in ends.items():
        years[year] = 100 * (end / before - 1) if before > 0 else 0.0
        before = end
    return years


def where_from(run: StoredRun) -> str:
    """The result by strategy, market, side and exit."""
    body = table(SOURCES, source_rows(sources_of(run)), label="Sources of the result")
    note = "closed trades, USD after costs; bars within each group"
    return section("Where the result comes from", body, note=note, span="c7")


def source_rows(sources: Sequence[ResultSource]) -> list[tuple[object, ...]]:
    """Rows under SOURCES: the name of a group stands in its first row, and bars compare within a group."""
    largest: dict[str, float] = {}
    for row in sources:
        largest[row.group] = max(largest.get(row.group, 0.0), abs(row.result_usd))
    rows: list[tuple[object, ...]] = []
    for n, row in enumerate(sources):
        head = row.group if n == 0 or sources[n - 1].group != row.group else ""
        rows.append((head, *row[1:], Markup(svg.share_bar(row.result_usd, largest[row.group]))))
    return rows


def gross_to_net(run: StoredRun) -> str:
    """From the result before costs to the net result, and what was open at the end."""
    costs = [figure for figure in costs_of(run) if not figure.name.startswith("Slippage")]
    amounts = [
        (figure.name, -float(figure.value) if figure.form == "cost" else float(figure.value)) for figure in costs
    ]
    net = float(run.summary.get("endUsd", run.summary["startUsd"])) - float(run.summary["startUsd"])
    largest = max((abs(amount) for _, amount in [*amounts, ("", net)]), default=1.0) or 1.0
    # A cost is neither good nor bad by itself, so it has no colour.
    plain = {
        name: Toned(on_page(signed_usd(amount)), "flat") for name, amount in amounts if name in ("Fees", "Funding")
    }
    rows = [
        (name, plain.get(name, amount), Markup(svg.share_bar(amount, largest)))
        for name, amount in [*amounts, ("Net result", net)]
    ]
    gross = sum(amount for name, amount in amounts if name.startswith(("Closed", "Open")))
    paid = sum(amount for name, amount in amounts if name in ("Fees", "Funding"))
    part = f"Costs are {-100 * paid / gross:.1f} % of the gross result. " if gross > 0 > paid else ""
    slip = next((figure.text for figure in costs_of(run) if figure.name.startswith("Slippage")), "-")
    text = f"{part}Slippage of {slip} USD is inside the prices. What was paid is negative."
    left = bullets(run.summary.get("left", ()))
    ended = f'<h3 class="sub">Open at the end</h3>{left}' if left else ""
    shared = table(BOOKED, booked_rows(run))
    shares = (
        f'<h3 class="sub">Attributed to each strategy, with its share of shared positions</h3>{shared}'
        if shared
        else ""
    )
    return section(
        "From gross to net", table(GROSS, rows) + foot(on_page(text)) + ended + shares, note="USD", span="c5"
    )


def drawdowns(run: StoredRun) -> str:
    rows = [drawdown_row(fall) for fall in worst_drawdowns(run)]
    return section(
        "Deepest drawdowns", table(DRAWDOWNS, rows, label="Worst drawdowns"), note="of the equity, UTC", span="c6"
    )


def how_sure(run: StoredRun) -> str:
    """Ranges of the end equity by luck and by path, and the sentences about them."""
    start, end = float(run.summary["startUsd"]), float(run.summary["figures"]["Equity Final [$]"])
    ranges = []
    drawn = ((run.summary.get("monteCarlo") or {}).get("trades") or {}).get("endUsd")
    if drawn:
        low, middle, high = drawn
        ranges.append(("End equity, trades drawn again", low, high, middle, "5 % to 95 %; mark: the median"))
    path = range_of(run.summary.get("band"), "Equity Final [$]", end)
    if path is not None:
        ranges.append(("End equity, by path inside the bar", *path, end, "mark: this run"))
    gauges = ""
    if ranges:
        ends = [start, end, *(value for row in ranges for value in row[1:4])]
        room = 0.05 * (max(ends) - min(ends)) or 1.0
        first, span = min(ends) - room, max(ends) - min(ends) + 2 * room
        for name, *values, text in ranges:
            left, right, mark, begin = ((usd - first) / span for usd in (*values, start))
            bar = svg.gauge_bar(left, right, mark=mark, start=begin)
            shown = f"{values[0]:,.0f} to {values[1]:,.0f}"
            gauges += tables.gauge(name, shown, bar, f"{text}. Dashed: the start.")
    lines = run_lines(daily_of(run, only_with_prices=True), run.summary.get("monteCarlo"))
    return section("How sure", gauges + bullets(map(on_page, lines)), span="c6")

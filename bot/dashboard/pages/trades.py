"""The closed trades of the journal: figures, a calendar with weeks, profit added up, where it comes from, and a list.

Every figure is of closed trades after fees and funding; a trade belongs to the day of its exit, in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final, NamedTuple

from bot.backtest.report import svg
from bot.backtest.report.result_sections import SOURCES, source_rows
from bot.backtest.report.tables import shade, table
from bot.backtest.report.trade_statistics import R_WIDTH, bins, exit_text, sources
from bot.clock import DAY_MS, datetime_of
from bot.dashboard.values import formatting
from bot.dashboard.values.formatting import Drawing
from bot.figures import NOT_KNOWN, Column, Figure
from bot.number_text import signed_usd
from bot.runtime.journal.round_trips import Owners, Trip

RANGES: Final = {"today": 0, "7d": 7, "30d": 30, "all": None}
# days of the bars of the overview, and trades of its list
DAYS: Final = 14
RECENT: Final = 5
FILTERS: Final = ("strategy", "market", "side", "exit")
# trades of one page of the list; figures and charts are of all
PAGE_ROWS: Final = 25
# Orders of the list. Of equal trades the newest stands first, and one without an R stands last.
SORTS: Final[Mapping[str, Callable[[ClosedTrade], Any]]] = {
    "newest": lambda trade: -trade.closed_ms,
    "oldest": lambda trade: trade.closed_ms,
    "best result": lambda trade: -trade.net,
    "worst result": lambda trade: trade.net,
    "best R": lambda trade: (trade.r_multiple is None, -(trade.r_multiple or 0)),
    "worst R": lambda trade: (trade.r_multiple is None, trade.r_multiple or 0),
}
# Lines of single strategies beside the sum of all, each with its class in the style sheet.
LINES: Final = ("v", "m", "c")
# points of the small line of a strategy
LINE_POINTS: Final = 160
TRADES: Final = (
    Column("Market", "words"),
    Column("Strategy", "words"),
    Column("Closed", "instant"),
    Column("Held", "seconds"),
    Column("Size", "size", phone="drop"),
    Column("Entry", "px", phone="drop"),
    Column("Exit", "px", phone="drop"),
    Column("Exit by", "words"),
    Column("First stop", "px", phone="drop"),
    Column("MAE", "r", unit="R"),
    Column("MFE", "r", unit="R"),
    Column("Costs", "cost", phone="drop"),
    Column("Result", "gain", "higher", "USD", phone="first"),
    Column("R", "r", "higher"),
    Column("Chain", is_hidden=True),
)


class ClosedTrade(NamedTuple):
    """A closed trade of the journal. `net` is exact; the floats are for statistics and charts.

    All is worked out once: a page reads it many times of each trade.
    """

    trip: Trip
    strategy: str
    market: str
    side: str
    exit: str
    closed_ms: int
    # the day of the exit, in UTC
    day: date
    net: Decimal
    pnl_usd: float
    fees_usd: float
    funding_usd: float
    r_multiple: float | None


class RecentTrade(NamedTuple):
    """A line of the list of the last closed trades."""

    market: str
    side: str
    exit: str
    result: Figure
    closed_at: str
    about: str


class CalendarDay(NamedTuple):
    """A day of the calendar, or the sum of a week. `text` is "" for a day without a trade."""

    label: str
    text: str
    trades: str
    kind: str
    # the day as the filter takes it; "" for a week and for a day of another month
    day: str = ""
    # the sum of a day with trades
    net: Decimal | None = None


def closed(trips: Iterable[Trip], owners: Owners) -> list[ClosedTrade]:
    """The closed trades in the order of their exits."""
    trades = []
    for trip in trips:
        if trip.closed_ms is not None:
            owner, ended_by = trip.strategy(owners) or "not ours", exit_text(trip.exit_reason or "")
            net, multiple = trip.net_usd, trip.r_multiple
            floats = float(net), float(trip.fees_usd), float(trip.funding_usd)
            r_multiple, day = None if multiple is None else float(multiple), datetime_of(trip.closed_ms).date()
            given = owner, trip.market, trip.side, ended_by, trip.closed_ms, day, net, *floats, r_multiple
            trades.append(ClosedTrade(trip, *given))
    return sorted(trades, key=lambda trade: trade.closed_ms)


def chosen(trades: Sequence[ClosedTrade], given: Mapping[str, str], now_ms: int) -> Sequence[ClosedTrade]:
    """The trades that pass the filters of the address. ValueError if the range or the day is none."""
    days, day = RANGES[given["range"]], given["day"]
    if days is not None:
        first_ms = (now_ms // DAY_MS - max(0, days - 1)) * DAY_MS
        trades = [trade for trade in trades if trade.closed_ms >= first_ms]
    if day:
        on_day = date.fromisoformat(day)
        trades = [trade for trade in trades if trade.day == on_day]
    for name in FILTERS:
        if wanted := given[name]:
            trades = [trade for trade in trades if getattr(trade, name) == wanted]
    return trades


def choices(trades: Sequence[ClosedTrade]) -> dict[str, list[str]]:
    """For each filter the values that occur."""
    return {name: sorted({getattr(trade, name) for trade in trades}) for name in FILTERS}


class ListPage(NamedTuple):
    """A page of the list: its rows, which of the trades they are, and the pages beside it (0: none)."""

    rows: list[dict[str, Any]]
    text: str
    before: int
    after: int


def in_order(trades: Sequence[ClosedTrade], order: str) -> list[ClosedTrade]:
    """All trades in one of SORTS."""
    last_first = trades[::-1]
    return sorted(last_first, key=SORTS[order])


def list_page(ordered: Sequence[ClosedTrade], number: int) -> ListPage:
    """The page of this number, from 1; the last one if there are not so many. ValueError for a number below 1."""
    if number < 1:
        raise ValueError(f"page {number}")
    last = max(1, -(-len(ordered) // PAGE_ROWS))
    number = min(number, last)
    first = (number - 1) * PAGE_ROWS
    rows = [row(trade) for trade in ordered[first : first + PAGE_ROWS]]
    text = f"{first + 1:,} to {first + len(rows):,} of {len(ordered):,}"
    return ListPage(rows, text, number - 1, number + 1 if number < last else 0)


def figures(trades: Sequence[ClosedTrade]) -> list[Figure]:
    """The lead figure and five others."""
    nets = [trade.net for trade in trades]
    won, lost = [net for net in nets if net > 0], [net for net in nets if net < 0]
    net, count = sum(nets, Decimal(0)), len(nets)
    costs = sum((trade.trip.fees_usd - trade.trip.funding_usd for trade in trades), Decimal(0))
    multiples = [trade.r_multiple for trade in trades if trade.r_multiple is not None]
    mean_r = sum(multiples) / len(multiples) if multiples else None
    falls = _deepest_fall(nets)
    gross = net + costs
    return [
        Figure(
            "Closed result", net, "gain", "higher", "USD", f"{count:,} closed, {len(won):,} won, {len(lost):,} lost"
        ),
        Figure("Win rate", Decimal(100 * len(won)) / count if count else None, "share", note="after costs"),
        Figure("Profit factor", sum(won) / -sum(lost) if lost else None, "ratio", note=_mean_note(won, lost)),
        Figure("Average R", mean_r, "r", "higher", note=f"{len(multiples):,} trades with a first stop"),
        Figure("Expectancy", net / count if count else None, "gain", "higher", "USD", "a trade"),
        Figure("Closed costs", costs, "cost", unit="USD", note=_part_text(costs, gross)),
        Figure("Deepest fall", falls, "gain", unit="USD", note="of closed profit, added up"),
    ]


def _mean_note(won: Sequence[Decimal], lost: Sequence[Decimal]) -> str:
    parts = (("win", won), ("loss", lost))
    means = [f"{name} {formatting.signed_usd(sum(nets) / len(nets))}" for name, nets in parts if nets]
    return f"won over lost; average {', '.join(means)}" if means else "won over lost"


def _part_text(costs: Decimal, gross: Decimal) -> str:
    return f"fees and funding, {formatting.share(costs / gross)} of gross" if gross > 0 else "fees and funding"


def _deepest_fall(nets: Iterable[Decimal]) -> Decimal:
    peak, deepest = Decimal(0), Decimal(0)
    for total in accumulate(nets):
        peak = max(peak, total)
        deepest = min(deepest, total - peak)
    return deepest


def months_of(trades: Sequence[ClosedTrade]) -> list[str]:
    """The months with a closed trade, as `2026-11`, newest first."""
    return sorted({day.isoformat()[:7] for day in {trade.day for trade in trades}}, reverse=True)


def calendar(trades: Sequence[ClosedTrade], month: str) -> list[list[CalendarDay]]:
    """The weeks of a month, Monday first, each with its sum at the end. Days of other months are empty, and a week sums
    the days that are shown.
    """
    first = date.fromisoformat(f"{month}-01")
    sums: dict[date, tuple[Decimal, int]] = {}
    for trade in trades:
        total, count = sums.get(trade.day, (Decimal(0), 0))
        sums[trade.day] = total + trade.net, count + 1
    mine = {day: part for day, part in sums.items() if (day.year, day.month) == (first.year, first.month)}
    largest = max((abs(float(total)) for total, _ in mine.values()), default=0.0)
    day, weeks = first - timedelta(days=first.weekday()), []
    while day <= first or day.month == first.month:
        shown = [day + timedelta(days=n) for n in range(7)]
        weeks.append([_calendar_day(each, mine.get(each), each.month == first.month, largest) for each in shown])
        week = [mine[each] for each in shown if each in mine]
        total = sum((part for part, _ in week), Decimal(0))
        weeks[-1].append(CalendarDay("", _whole(total) if week else "", _count(sum(n for _, n in week)), "week"))
        day += timedelta(days=7)
    return weeks


def calendar_text(weeks: Sequence[Sequence[CalendarDay]]) -> str:
    """The days of a calendar in words; "" without a trade."""
    nets = [day.net for week in weeks for day in week if day.net is not None]
    if not nets:
        return ""
    best, worst = (formatting.signed_usd(pick(nets)) for pick in (max, min))
    days = f"{len(nets)} days" if len(nets) > 1 else "1 day"
    return f"{sum(net > 0 for net in nets)} of {days} with trades ended with a gain. Best {best}, worst {worst}."


def _calendar_day(day: date, part: tuple[Decimal, int] | None, is_mine: bool, largest: float) -> CalendarDay:
    if not is_mine:
        return CalendarDay("", "", "", "out")
    if part is None:
        return CalendarDay(str(day.day), "", "", "none")
    total, count = part
    return CalendarDay(str(day.day), _whole(total), _count(count), shade(float(total), largest), day.isoformat(), total)


def _whole(usd: Decimal) -> str:
    """`+453`, without cents."""
    text = signed_usd(usd.quantize(Decimal(1))).partition(".")[0]
    return text.replace("-", formatting.MINUS)


def _count(trades: int) -> str:
    return "" if not trades else "1 trade" if trades == 1 else f"{trades:,} trades"


def profit_chart(trades: Sequence[ClosedTrade]) -> Drawing:
    """The closed profit added up over time, for all trades and for each of the first strategies."""
    if len(trades) < 2:
        return Drawing()
    start, end = trades[0].closed_ms, trades[-1].closed_ms
    names = sorted({trade.strategy for trade in trades})
    shown = names[: len(LINES)] if len(names) > 1 else []
    places = [round(n * (end - start) / svg.POINTS_MAX) + start for n in range(svg.POINTS_MAX + 1)]
    lines, keys = [], []
    parts: list[tuple[str, str, Callable[[ClosedTrade], bool]]] = [("all", "", lambda _trade: True)]
    parts += [(name, kind, _is_of(name)) for name, kind in zip(shown, LINES, strict=False)]
    for name, kind, belongs in parts:
        values = _added_up([trade for trade in trades if belongs(trade)], places)
        text = formatting.signed_usd(round(values[-1], 2))
        lines.append(svg.ChartLine(name, values, kind, text if name == "all" else ""))
        keys.append(svg.key(kind, name, text, is_line=True))
    scale = svg.scale_of([value for line in lines for value in line.values if value is not None], has_zero=True)
    label = f"Closed profit added up: {formatting.signed_usd(lines[0].values[-1])} USD"
    drawn = svg.line_chart(lines[::-1], scale, label=label, base=0.0, times=(start, max(end, start + 1)))
    return Drawing(svg.keys(keys) + drawn)


def strategy_lines(trades: Sequence[ClosedTrade]) -> dict[str, Drawing]:
    """For each strategy with a closed trade a small line of its closed profit, all over the same time."""
    if not trades:
        return {}
    start, end = trades[0].closed_ms, max(trades[-1].closed_ms, trades[0].closed_ms + 1)
    places = [start + n * (end - start) // LINE_POINTS for n in range(LINE_POINTS + 1)]
    drawn = {}
    for name in {trade.strategy for trade in trades}:
        values = _added_up([trade for trade in trades if trade.strategy == name], places)
        text = formatting.signed_usd(round(values[-1], 2))
        line = svg.ChartLine(name, values, tag=text)
        label = f"Closed profit of {name}, added up: {text} USD"
        drawn[name] = Drawing(
            svg.line_chart([line], svg.scale_of(values, has_zero=True), label=label, height=60, base=0.0)
        )
    return drawn


def _is_of(name: str) -> Callable[[ClosedTrade], bool]:
    return lambda trade: trade.strategy == name


def _added_up(trades: Sequence[ClosedTrade], places: Sequence[int]) -> list[float]:
    """The sum of the results up to each instant."""
    values, total, n = [], Decimal(0), 0
    for place in places:
        while n < len(trades) and trades[n].closed_ms <= place:
            total, n = total + trades[n].net, n + 1
        values.append(float(total))
    return values


def by_day(trades: Sequence[ClosedTrade], now_ms: int) -> tuple[Drawing, str]:
    """The closed profit of each of the last DAYS days as bars, and the same in words. The present day is paler."""
    today = datetime_of(now_ms).date()
    days = [today - timedelta(days=DAYS - 1 - n) for n in range(DAYS)]
    sums: dict[date, Decimal] = {}
    for trade in trades:
        sums[trade.day] = sums.get(trade.day, Decimal(0)) + trade.net
    shown = [day for day in days if day in sums]
    if not shown:
        return Drawing(), ""
    bars = []
    for day in days:
        total = sums.get(day, Decimal(0))
        name = "today" if day == today else f"{day.day} {day:%b}"
        bars.append(svg.BarPair(name, float(total), None, formatting.signed_usd(total), is_running=day == today))
    gains = sum(sums[day] > 0 for day in shown)
    best, worst = (formatting.signed_usd(pick(sums[day] for day in shown)) for pick in (max, min))
    words = f"{gains} of {DAYS} days with a gain. Best {best}, worst {worst}."
    legend = svg.keys([svg.key("fu", "gain"), svg.key("fd", "loss"), svg.key("fu soft", "today")])
    label = f"Closed profit by day in USD: {words}"
    return Drawing(legend + svg.pair_bars(bars, label=label, form=svg.axis_number, named=4)), words


def of_week(trades: Sequence[ClosedTrade], now_ms: int) -> Figure:
    """The closed profit of the last seven days, today included, as the page Trades has it."""
    shown = chosen(trades, dict.fromkeys((*FILTERS, "day"), "") | {"range": "7d"}, now_ms)
    known = {figure.name: figure for figure in figures(shown)}
    rate, factor = known["Win rate"].shown, known["Profit factor"].shown
    count = _count(len(shown)) or "no trade"
    note = f"{count}, {rate} won, profit factor {factor}" if shown else count
    return Figure("Closed, 7 days", known["Closed result"].value, "gain", "higher", "USD", note)


def newest(trades: Sequence[ClosedTrade]) -> list[RecentTrade]:
    """The trades that closed last, newest first."""
    rows = []
    for trade in trades[: -RECENT - 1 : -1]:
        opened_ms = trade.trip.opened_ms
        held = "" if opened_ms is None else f"held {formatting.duration((trade.closed_ms - opened_ms) / 1000)}"
        multiple = "" if trade.r_multiple is None else formatting.r(trade.r_multiple)
        about = " · ".join(filter(None, (trade.strategy, held, multiple)))
        result = Figure("Result", trade.net, "gain", "higher")
        rows.append(
            RecentTrade(trade.market, trade.side, trade.exit, result, formatting.minute(trade.closed_ms), about)
        )
    return rows


def source_table(trades: Sequence[ClosedTrade]) -> Drawing:
    """The result by strategy, market, side and exit."""
    rows = source_rows(sources(trades, lambda trade: trade.exit))
    return Drawing(table(SOURCES, rows, label="By strategy, market, side and exit", kind="numbers stack compact"))


def multiples_chart(trades: Sequence[ClosedTrade]) -> Drawing:
    multiples = [trade.r_multiple for trade in trades if trade.r_multiple is not None]
    if not multiples:
        return Drawing()
    middle = sum(multiples) / len(multiples)
    mark = (middle, f"mean {formatting.r(round(middle, 2))}")
    return Drawing(svg.histogram(bins(multiples, least=R_WIDTH), label="Histogram of R multiples", unit="R", mark=mark))


def row(trade: ClosedTrade) -> dict[str, Any]:
    """A row of the list: `cells` under TRADES without the last, and what stands beside them."""
    trip = trade.trip
    values, far = trip.row(lambda _keys: []), trip.excursion
    held = None if trip.opened_ms is None else (trade.closed_ms - trip.opened_ms) / 1000
    cells = (
        trade.market,
        trade.strategy,
        trade.closed_ms,
        held,
        trip.size,
        values["entry_px"],
        values["exit_px"],
        trade.exit,
        trip.stop_px,
        None if far is None or far.adverse_r is None else -far.adverse_r,
        None if far is None else far.favorable_r,
        trip.fees_usd - trip.funding_usd,
        trade.net,
        trip.r_multiple,
    )
    known = {"MAE": far is not None, "MFE": far is not None}
    shown = [
        (_shown(column, value) if known.get(column.head, True) else NOT_KNOWN, column.tone(value))
        for column, value in zip(TRADES, cells, strict=False)
    ]
    chain = trip.exit_trade_id or trip.entry_trade_id or ""
    return {"side": trade.side, "opened": formatting.minute(trip.opened_ms), "cells": shown, "chain": chain}


def _shown(column: Column, value: Any) -> str:
    # The heads of multiples have their unit.
    text = formatting.minute(value) if column.form == "instant" else column.shown(value)
    return text.removesuffix(" R") if column.form == "r" else text


def csv_rows(trades: Iterable[ClosedTrade]) -> list[dict[str, Any]]:
    """Raw values for a file: those of `bot export trades`."""
    return [trade.trip.row(lambda _keys: []) | {"strategy": trade.strategy} for trade in trades]

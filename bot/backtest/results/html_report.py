"""The HTML report of a run: one file that needs no network and no second file. It draws recorded figures and computes no money.

`render_html` writes drawings as JSON for plotly's script, that script, and tables as HTML. Everything that came from a file is escaped. The same
folder gives the same bytes. Only the script files of the package plotly are used, because importing its Python code is slow.
"""

from __future__ import annotations

import html
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from math import fsum
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from bot.backtest.results.layout import BY_GUARDIAN
from bot.backtest.results.run_reader import StoredRun, StoredTrade, levels_of
from bot.clock import HOUR_MS, datetime_of, iso, ms_of
from bot.errors import BotError
from bot.words import many

POINTS_MAX: Final = 4_000  # of a curve: about one for each pixel of a wide screen
TRADES_MAX: Final = 2_000  # drawn with stops and targets in one market; rows of the table of trades
LEVELS_MAX: Final = 2 * TRADES_MAX  # stops, and targets, of one market
GUARDIANS_MAX: Final = 100  # of the account: lines on each market's chart
ROWS_MAX: Final = 500
ORDERS_SHOWN: Final = 20  # whose fills depend on the path
LENGTHS: Final = ("latency_ms", "for_ms")  # durations; every other name that ends in _ms is an instant
SHOWN_CHARS: Final = 60  # of a value in a list of differences
MARKERS: Final = ((1_000, 4), (300, 5), (80, 7), (0, 9))  # from this number of trades on: size of their markers
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
GREEN, RED, GREY, BLUE, AMBER = "#1a7f5a", "#c0392b", "#7f8c8d", "#2c6fbb", "#c77d0a"
Rows = Iterable[Sequence[object]]
Drawing = dict[str, Any]  # {"data": traces, "layout": ...} by plotly's own schema
# Of summary.json: the counts, and the name of the first order of each code.
FIRST: Final = {"refusals": "firstRefusals", "rejections": "firstRejections", "unfilled": "firstUnfilled"}
FAILURES: Final = {
    "refusals": "Refused by the risk check",
    "rejections": "Refused by the service",
    "unfilled": "Not filled",
}
COSTS: Final = {  # of summary.json, in the order of the report
    "realizedUsd": "Realised, before costs",
    "feesUsd": "Fees",
    "fundingUsd": "Funding",
    "unrealizedUsd": "Unrealised at the end",
    "backstopUsd": "Liquidator's backstop",
    "slippageUsd": "Slippage, in the prices",
}
SUMS: Final = ("", "# Trades", "Win Rate [%]", "Result", "Fees", "Funding", "Slippage")
_AMOUNTS: Final = {
    "pnlUsd": "pnl_usd",
    "feesUsd": "fees_usd",
    "fundingUsd": "funding_usd",
    "slippageUsd": "slippage_usd",
}


def render_html(run: StoredRun, other: StoredRun | None = None) -> str:
    """The HTML of one run, or of two side by side."""
    script, template = _plotly("plotly.min.js"), _plotly("templates/plotly_white.json")
    runs = [run] if other is None else [run, other]
    parts = [_head(runs), _cards(run) if other is None else _compared(run, other)]
    parts.append(_drawn("equity", _equity(runs)))
    if other is None:
        parts += [_band(run), _section("Monthly returns", _months(run)), _section("Costs", _costs(run))]
        parts.append(_section("Open at the end", _list(run.summary.get("left", ()))))
        for market in run.chart:
            parts.append(
                f"<h2>{_text(market)}</h2>{_undrawn(run, market)}"
                + _drawn(f"market-{len(parts)}", _market(run, market))
            )
        parts.append(_section("R multiples", _drawn("r", _r_multiples(run))))
        parts += [
            _section("By strategy", _by_strategy(run)), _section("Attributed to each strategy, with its share of shared positions", _booked(run)), _section("By market", _table(SUMS, sums(by_market(run)))), _section("Guardians", _guardians(run)),
            _section("Outages", _outages(run)), *(_section(said, _refusals(run, by)) for by, said in FAILURES.items()),
            _section("Trades", _trades(run)),
        ]  # fmt: skip
    for one in runs:
        name = "Assumptions" if other is None else f"Assumptions of {one.name}"
        parts.append(_section(name, _list(one.manifest.get("assumptions", ()))))
    body = "\n".join(filter(None, parts))
    return _PAGE.format(title=_text(run.name), script=script, template=template.replace("<", "\\u003c"), body=body)


def _plotly(name: str) -> str:
    """A file of the package plotly."""
    try:
        import plotly
    except ImportError as error:
        raise BotError(
            "a report needs the package plotly: install bracketbot[report]. `bot report RUN --json` works without it"
        ) from error
    try:
        return (Path(plotly.__file__).parent / "package_data" / name).read_text(encoding="utf-8")
    except OSError as error:
        raise BotError(f"the package plotly is incomplete: {error}; install bracketbot[report] again") from None


# -- figures


def _layout(height: int, **more: Any) -> dict[str, Any]:
    return {
        "height": height, "margin": {"l": 60, "r": 20, "t": 20, "b": 30}, "hovermode": "x unified",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"}, "xaxis": {"type": "date"}, "font": {"family": "system-ui, sans-serif"}, **more,
    }  # fmt: skip


def _scatter(x: Sequence[object], y: Sequence[object], name: str, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "x": x, "y": y, "name": name, **more}


def _titled(text: str, **more: Any) -> dict[str, Any]:
    """An axis."""
    return {"title": {"text": text}, **more}


def _upright(x0: object, x1: object, text: str | None, **look: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A vertical line, or a band, over the whole height of a drawing, with the text at its top."""
    place = {"xref": "x", "yref": "y domain"}
    shape = {**place, "x0": x0, "x1": x1, "y0": 0, "y1": 1, **look}
    note = {**place, "x": x0, "y": 1, "xanchor": "left", "yanchor": "top", "showarrow": False, "text": text}
    return shape, [] if text is None else [note]


def _drawn(name: str, drawing: Drawing | None) -> str:
    if drawing is None:
        return ""
    data = json.dumps(drawing, separators=(",", ":")).replace("<", "\\u003c")
    return f'<div class="plot" id="{name}"></div><script>draw({json.dumps(name)}, {data});</script>'


def _equity(runs: Sequence[StoredRun]) -> Drawing:
    """Account value, drawdown and exposure over one time axis."""
    traces: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        rows = _thinned(run.equity)
        at = [iso(run.at_ms[row]) for row in rows]
        colour = (BLUE, AMBER)[number]
        name = "Equity" if len(runs) == 1 else run.name
        traces.append(
            _scatter(at, [round(run.equity[row], 2) for row in rows], name, line={"color": colour, "width": 1.5})
        )
        peaks = list(accumulate(run.equity, max, initial=float(run.summary["startUsd"])))[1:]
        falls = [round(100 * (run.equity[row] / peaks[row] - 1), 4) if peaks[row] > 0 else 0.0 for row in rows]
        traces.append(_scatter(
            at, falls, f"Drawdown {run.name if len(runs) > 1 else ''}".strip(), yaxis="y2", fill="tozeroy",
            line={"color": (RED, AMBER)[number], "width": 1},
        ))  # fmt: skip
        if len(runs) == 1:
            held = [round(run.exposure[row], 2) for row in rows]
            line = {"color": GREY, "width": 1, "shape": "hv"}
            traces.append(_scatter(at, held, "Exposure", yaxis="y3", fill="tozeroy", line=line))
    outage_records = [
        _upright(
            iso(outage["atMs"]), iso(outage["atMs"] + outage["forMs"]), "down", type="rect", fillcolor=AMBER, opacity=0.15, line={"width": 0}
        )
        for outage in runs[0].summary.get("outages", ())
    ]  # fmt: skip
    is_one = len(runs) == 1
    bottom: dict[str, dict[str, Any]] = {
        "yaxis2": _titled("Drawdown [%]", domain=[0.22, 0.44] if is_one else [0, 0.34])
    }
    if is_one:
        bottom["yaxis3"] = _titled("Exposure [$]", domain=[0, 0.18], tickformat=",")
        if not any(runs[0].exposure):  # Without this range a line at zero lies in the middle of its axis.
            bottom["yaxis2"]["range"], bottom["yaxis3"]["range"] = [-1, 0], [0, 1]
    time = {"type": "date", "anchor": "y3" if is_one else "y2"}  # below the lowest plot
    top = _titled("Equity [$]", domain=[0.48 if is_one else 0.4, 1], tickformat=",")
    return {"data": traces, "layout": _layout(560, xaxis=time, yaxis=top, **bottom, **_marks(outage_records))}


def _marks(found: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]]) -> dict[str, Any]:
    lists = {"shapes": [shape for shape, _ in found], "annotations": [note for _, notes in found for note in notes]}
    return {name: those for name, those in lists.items() if those}


def _thinned(values: Sequence[float]) -> list[int]:
    """At most POINTS_MAX rows: the lowest and highest of each bucket, so that every drawdown stays visible."""
    if len(values) <= POINTS_MAX:
        return list(range(len(values)))
    per = -(-2 * len(values) // POINTS_MAX)
    kept = {0, len(values) - 1}
    for start in range(0, len(values), per):
        bucket = range(start, min(start + per, len(values)))
        kept.add(min(bucket, key=values.__getitem__))
        kept.add(max(bucket, key=values.__getitem__))
    return sorted(kept)


def _market(run: StoredRun, market: str) -> Drawing:
    """Candles, each trade with its entry, exit, stop and target, and where guardians acted."""
    candles = run.chart[market]
    at = [iso(ts) for ts in candles["ts"]]
    traces: list[dict[str, Any]] = [{
        "type": "candlestick", "x": at, **{name: candles[name] for name in ("open", "high", "low", "close")}, "name": market,
        "increasing": {"line": {"color": GREEN, "width": 1}}, "decreasing": {"line": {"color": RED, "width": 1}},
    }]  # fmt: skip
    trades = [trade for trade in run.trades if trade.market == market][-TRADES_MAX:]
    size = next(size for count, size in MARKERS if len(trades) >= count)
    last_ms = run.at_ms[-1] if run.at_ms else 0
    levels = levels_of(run, market, trades[0].entry_ms) if trades else {}
    for kind, name, colour in (("stop_loss", "stop", RED), ("take_profit", "target", GREEN)):
        xs: list[str | None] = []
        ys: list[float | None] = []
        for from_ms, to_ms, px in levels.get(kind, ())[-LEVELS_MAX:]:
            xs += [iso(from_ms), iso(to_ms or last_ms), None]
            ys += [px, px, None]
        dotted = {"color": colour, "width": 1, "dash": "dot"}
        traces.append(_scatter(xs, ys, name, mode="lines", line=dotted, hoverinfo="skip"))
    for side, symbol, colour in (("long", "triangle-up", GREEN), ("short", "triangle-down", RED)):
        mine = [trade for trade in trades if trade.side == side]
        traces.append(_scatter(
            [iso(trade.entry_ms) for trade in mine], [trade.entry_px for trade in mine], f"{side} entry", mode="markers",
            marker={"symbol": symbol, "size": size, "color": colour, "opacity": 0.8}, text=[f"{_text(trade.strategy)} {trade.size:g}" for trade in mine],
        ))  # fmt: skip
    done = [trade for trade in trades if trade.exit_ms is not None]
    by = _guardian_of(run)
    for name, mine in (
        ("exit", [t for t in done if t.exit_kind not in BY_GUARDIAN]),
        ("exit by guardian", [t for t in done if t.exit_kind in BY_GUARDIAN]),
    ):
        if mine:
            traces.append(_scatter(
                [iso(trade.exit_ms or 0) for trade in mine], [trade.exit_px for trade in mine], name, mode="markers",
                marker={"symbol": "x" if name == "exit" else "star", "size": size - 1, "opacity": 0.8,
                        "color": [GREEN if trade.pnl_usd > 0 else RED for trade in mine]},
                text=[f"{_text(by.get(trade.number, trade.exit_kind))} {trade.pnl_usd:+.2f} USD" for trade in mine],
            ))  # fmt: skip
    of_account = [guardian for guardian in run.summary.get("guardians", ()) if guardian["market"] is None]
    marks = [
        _upright(iso(one["ts"]), iso(one["ts"]), _text(one["type"]), type="line", line={"color": AMBER, "width": 1})
        for one in of_account[-GUARDIANS_MAX:]
    ]
    prices = _titled("USD", tickformat=",")
    if candles["low"]:  # A distant stop must not flatten the candles.
        low, high = min(candles["low"]), max(candles["high"])
        room = (high - low) * 0.12 or abs(high) * 0.01
        prices["range"] = [low - room, high + room]
    layout = _layout(520, xaxis={"type": "date", "rangeslider": {"visible": False}}, yaxis=prices, **_marks(marks))
    return {"data": traces, "layout": layout | {"hovermode": "closest"}}


def _r_multiples(run: StoredRun) -> Drawing | None:
    found = [trade.r_multiple for trade in run.trades if trade.r_multiple is not None and trade.exit_ms is not None]
    if not found:
        return None
    bars = {"type": "histogram", "x": found, "nbinsx": 60, "marker": {"color": BLUE}, "name": "trades"}
    zero = _upright(0, 0, None, type="line", line={"color": GREY, "width": 1})
    axis = _titled("R (result over the first stop's risk)")
    layout = _layout(260, xaxis=axis, showlegend=False, **_marks([zero]))
    return {"data": [bars], "layout": layout | {"hovermode": "x"}}


# -- tables


def _head(runs: Sequence[StoredRun]) -> str:
    lines = []
    for run in runs:
        stats, options = run.summary["course"], run.manifest["options"]
        partial = (
            ' <strong class="warn">ended early: the figures cover the part that ran</strong>'
            if stats["isPartial"]
            else ""
        )
        lines.append(
            f"<h1>{_text(run.name)}</h1><p>{iso(stats['fromMs'])[:16]} to {iso(stats['toMs'])[:16]} UTC · "
            f"{many(stats['bars'], 'bar')} · path {_text(options['path'])} · latency {options['latency_ms']} ms · "
            f"balance {float(run.summary['startUsd']):,.2f} USD{partial}</p>"
        )
    return "".join(lines)


def ran_text(run: StoredRun) -> str:
    """The range of a run, its starting balance, and whether it ended early."""
    stats = run.summary["course"]
    ended = ", PARTIAL: ended early" if stats["isPartial"] else ""
    usd = _usd(run.summary["startUsd"])
    return (
        f"{iso(stats['fromMs'])[:16]} to {iso(stats['toMs'])[:16]} UTC, {many(stats['bars'], 'bar')}, {usd} USD{ended}"
    )


def _paths_of(band: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The figures of each other path policy; older runs have one."""
    paths: Mapping[str, Mapping[str, Any]] = band.get("paths") or {band["path"]: band}
    return paths


def range_of(band: Mapping[str, Any] | None, name: str, value: Any) -> tuple[Any, Any] | None:
    """The lowest and the highest value of a figure over all path policies; None where it has one value."""
    if band is None:
        return None
    values = [value, *(one["figures"].get(name, value) for one in _paths_of(band).values())]
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known and (len(known) < len(values) or min(known) != max(known)) else None


def band_lines(band: Mapping[str, Any]) -> list[str]:
    """How far the path policies differ, and the first orders whose fills depend on the path, as lines for a terminal."""
    paths = _paths_of(band)
    differ = {name: one["differing"] for name, one in paths.items() if any(one["differing"].values())}
    if not differ:
        return [f"band: the paths {', '.join(paths)} give the same trades"]
    lines = [
        f"band: the path {name} ends at {_usd(paths[name]['figures']['Equity Final [$]'])}; "
        f"{many(one['here'], 'trade')} of this run and {one['there']:,} of that path differ"
        for name, one in differ.items()
    ]
    same = [name for name in paths if name not in differ]
    if same:
        lines.append(f"band: the same trades by {', '.join(same)}")
    orders, count = band.get("orders", ()), band.get("orderCount", 0)
    if count:
        lines.append(
            f"band: the fills of {many(count, 'trade')} depend on the path; all other differences follow from them"
        )
    elif "orders" in band:
        lines.append(
            "band: all paths fill their common trades alike; the differences come from funding, and from the sizes and trades that follow from it"
        )
    lines += [f"band: {_path_text(order)}" for order in orders[:ORDERS_SHOWN]]
    if count > ORDERS_SHOWN:
        lines.append(f"band: and {count - ORDERS_SHOWN:,} more: summary.json names {len(orders):,}")
    return lines


def _path_text(one: Mapping[str, Any]) -> str:
    """A trade that depends on the path, with its fills under each policy."""
    by: dict[str, list[str]] = {}
    for name, fills in one["fills"].items():
        by.setdefault(fills, []).append(name)
    by_policy = "; ".join(f"{', '.join(names)}: {fills}" for fills, names in by.items())
    return f"trade {one['trade']}, {one['market']} {one['side']} of {iso(one['entryMs'])[:19]}: {by_policy}"


def _band(run: StoredRun) -> str:
    band = run.summary.get("band")
    return (
        ""
        if band is None
        else _section("Path policies compared", _list(line.removeprefix("band: ") for line in band_lines(band)))
    )


def proof_text(proof: Mapping[str, Any]) -> str:
    """Whether the strategies were proven to be causal, from summary.json."""
    if proof["differs"] is not None:
        return f"Not causal: {proof['differs']}"
    cuts = f"equal decisions on data cut at {many(len(proof['cutsMs']), 'instant')}, {many(proof['eventsCompared'], 'event')} compared"
    if outside := proof.get("outside"):
        return f"Not proved: {outside_text(outside)}; {cuts}"
    return f"Causal: {cuts}" if proof["isWhole"] else f"Not proven causal: {cuts}"


def outside_text(outside: Sequence[str]) -> str:
    """What strategies read outside of the cut data: the first source, and how many more."""
    more = len(outside) - 1
    return outside[0] + (f" and {many(more, 'other source')}" if more else "")


def _proof(run: StoredRun) -> str:
    proof = run.summary.get("proof")
    if proof is None:
        return ""
    kind = "" if proof["isWhole"] and proof["differs"] is None else ' class="warn"'
    return f"<p{kind}>{_text(proof_text(proof))}</p>"


def _cards(run: StoredRun) -> str:
    figures = run.summary["figures"]
    band = run.summary.get("band")
    cells = []
    for name, value in figures.items():
        found = range_of(band, name, value)
        other = "" if found is None else f"<small>by path: {_figure(found[0])} to {_figure(found[1])}</small>"
        cells.append(f"<div class=card><span>{_text(name)}</span><b>{_figure(value)}</b>{other}</div>")
    quarantined = "".join(
        f'<p class="warn">{_text(name)} was quarantined: {_text(why)}</p>'
        for name, why in run.summary.get("quarantined", {}).items()
    )
    return quarantined + _proof(run) + f'<div class="cards">{"".join(cells)}</div>'


def _compared(run: StoredRun, other: StoredRun) -> str:
    rows = [
        (name, _figure(mine), _figure(theirs), "" if gap is None else f"{gap:+,.4g}")
        for name, mine, theirs, gap in compared(run, other)
    ]
    told = differences(run, other) or filter(None, [unexplained(run, other)])
    return _table(("", run.name, other.name, "difference"), rows, whole=True) + _section(
        "What was run differently", _list(told)
    )


def compared(run: StoredRun, other: StoredRun) -> list[tuple[str, Any, Any, Any]]:
    """Each figure and cost of two runs, and the difference of the second from the first; None where one run has none."""
    mine, theirs = (dict(one.summary["figures"]) for one in (run, other))
    my_costs, their_costs = costs_of(run), costs_of(other)
    for cost in COSTS.values():
        if cost in my_costs or cost in their_costs:  # A run without this cost has 0.
            mine[f"{cost} [$]"], theirs[f"{cost} [$]"] = my_costs.get(cost, 0.0), their_costs.get(cost, 0.0)
    rows = []
    for name in dict.fromkeys([*mine, *theirs]):
        value, its = mine.get(name), theirs.get(name)
        gap = its - value if isinstance(value, int | float) and isinstance(its, int | float) else None
        rows.append((name, value, its, gap))
    return rows


def differences(run: StoredRun, other: StoredRun) -> list[str]:
    """The differences between two manifests, each with its path; empty when both ran the same."""
    found: list[str] = []
    _differ("", run.manifest, other.manifest, found)
    return found


def unexplained(run: StoredRun, other: StoredRun) -> str | None:
    """A note when two runs with equal manifests have different events."""
    if differences(run, other) or run.summary["eventDigest"] == other.summary["eventDigest"]:
        return None
    return (
        "the manifests are equal, but the events differ. A manifest does not record: that a run was stopped early, the requirements of packages "
        "that a strategy imports, files that a strategy reads, and random numbers in it"
    )


def _differ(path: str, one: Any, other: Any, found: list[str]) -> None:
    one, other = _by_name(one), _by_name(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            _differ(f"{path}.{key}" if path else str(key), one.get(key), other.get(key), found)
    elif _are_sentences(one) and _are_sentences(other):
        found += [f"{path}: {line!r} / not there" for line in one if line not in other]
        found += [f"{path}: not there / {line!r}" for line in other if line not in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            _differ(f"{path}[{index}]", mine, theirs, found)
    elif one != other:
        if path.endswith("_ms") and path.rpartition(".")[2] not in LENGTHS:
            one, other = (iso(at) if isinstance(at, int) else at for at in (one, other))
        shown = [value if isinstance(value, str) and len(value) < 40 else json.dumps(value) for value in (one, other)]
        alike = next((n for n, (mine, its) in enumerate(zip(*shown, strict=False)) if mine != its), 0)
        # Show the part that differs, with a little text before it.
        cut = max(0, alike - SHOWN_CHARS // 4) if max(map(len, shown)) > SHOWN_CHARS else 0
        start, until = "..." if cut else "", cut + SHOWN_CHARS
        found.append(
            f"{path}: " + " / ".join(start + text[cut:until] + ("..." if text[until:] else "") for text in shown)
        )


def _by_name(value: Any) -> Any:
    """A list of named items, or of markets with intervals, as a mapping."""
    if not (isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value)):
        return value
    named = {" ".join(str(item[key]) for key in ("name", "market", "interval") if key in item): item for item in value}
    return named if len(named) == len(value) and "" not in named else value


def _are_sentences(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def monthly(run: StoredRun) -> dict[int, list[float | None]]:
    """For each year: the return in percent of each month, January first, and of the whole year last. None for a month without a value."""
    ends: dict[tuple[int, int], float] = {}
    row = 0
    while row < len(run.at_ms):
        moment = datetime_of(run.at_ms[row] - 1)  # A close at midnight belongs to the day that it ends.
        after = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=moment.tzinfo)
        row = max(row + 1, bisect_right(run.at_ms, ms_of(after), row))
        ends[moment.year, moment.month] = run.equity[row - 1]
    before = float(run.summary["startUsd"])
    found: dict[int, list[float | None]] = {}
    for (year, month), value in ends.items():
        found.setdefault(year, [None] * 13)[month - 1] = 100 * (value / before - 1) if before else 0.0
        before = value
    for months in found.values():
        whole = 1.0
        for one in months[:12]:
            whole *= 1 + (one or 0) / 100
        months[12] = 100 * (whole - 1)
    return found


def _months(run: StoredRun) -> str:
    rows = [
        (year, *("" if month is None else f"{month:+.2f}" for month in months)) for year, months in monthly(run).items()
    ]
    return _table(("", *MONTHS, "Year"), rows)


def _costs(run: StoredRun) -> str:
    return _table(("", "USD"), [(name, _usd(value)) for name, value in costs_of(run).items()])


def costs_of(run: StoredRun) -> dict[str, float]:
    """The parts of a result in USD, by name: realised, fees, funding, unrealised at the end, and the liquidator's backstop if it paid. Slippage is already
    inside the realised part."""
    costs = {name: float(usd) for name, usd in run.summary["costs"].items()}
    return {
        said: costs[name] for name, said in COSTS.items() if name in costs and (costs[name] or name != "backstopUsd")
    }


def _by_strategy(run: StoredRun) -> str:
    return _table(SUMS, sums(run.summary["strategies"]))


def sums(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row under SUMS for each strategy, or market."""
    amounts = ("pnlUsd", "feesUsd", "fundingUsd", "slippageUsd")
    return [
        (name or "(no strategy)", f"{one['# Trades']:,}", _figure(one["Win Rate [%]"]), *(_usd(one[key]) for key in amounts))
        for name, one in found.items()
    ]  # fmt: skip


def _booked(run: StoredRun) -> str:
    rows = [
        (name, _usd(one["pnlUsd"]), _usd(one["feesUsd"]), _usd(one["fundingUsd"]))
        for name, one in run.summary.get("booked", {}).items()
    ]
    return _table(("", "Result", "Fees", "Funding"), rows)


def by_market(run: StoredRun) -> dict[str, dict[str, Any]]:
    """Finished trades, result and costs of each market, in the form that summary.json has for each strategy."""
    found: dict[str, list[StoredTrade]] = {}
    for trade in run.trades:
        found.setdefault(trade.market, []).append(trade)
    made = {}
    for market, trades in sorted(found.items()):
        done = [trade for trade in trades if trade.exit_ms is not None]
        won = sum(trade.pnl_usd > 0 for trade in done)
        made[market] = {
            "# Trades": len(done), "Win Rate [%]": round(100 * won / len(done), 6) if done else None,
            **{key: round(fsum(map(attrgetter(name), trades)), 8) for key, name in _AMOUNTS.items()},
        }  # fmt: skip
    return made


def _guardian_of(run: StoredRun) -> dict[int, str]:
    """For each trade that a guardian ended, by number: the type of the newest guardian that acted on it."""
    fired = run.summary.get("guardians", ())
    found = {number: guardian["type"] for guardian in fired for number in guardian.get("trades", ())}
    return {
        trade.number: found[trade.number]
        for trade in run.trades
        if trade.exit_kind in BY_GUARDIAN and trade.number in found
    }


def _action_text(one: Mapping[str, Any]) -> str:
    """What a guardian did: its action, an order of a schedule, or nothing with the reason."""
    if one["action"] is not None:
        return str(one["action"])
    return "ordered" if one.get("trades") else " ".join(filter(None, ("nothing:", one.get("code") or one["reason"])))


def guardian_text(one: Mapping[str, Any]) -> str:
    """A guardian of summary.json as a line for a terminal."""
    result = one.get("resultUsd")
    on = "" if one["market"] is None else f" on {one['market']}"
    cost = "" if result is None else f", trade {', '.join(map(str, one['trades']))}, {_signed(result)} USD"
    return f"{one['type']} fired at {iso(one['ts'])}{on}: {_action_text(one)} ({one['reason']}){cost}"


def _guardians(run: StoredRun) -> str:
    fired = run.summary.get("guardians", ())
    rows = [
        (
            iso(guardian["ts"])[:19], guardian["type"], guardian["market"] or "account", _action_text(guardian), guardian["reason"],
            ", ".join(map(str, guardian.get("trades", ()))), "" if guardian.get("resultUsd") is None else _signed(guardian["resultUsd"]),
        )
        for guardian in fired[-ROWS_MAX:]
    ]  # fmt: skip
    names = ("when (UTC)", "guardian", "market", "action", "reason", "trade", "result of its fills, after fees")
    return _table(names, rows) + _more(len(fired))


def _outages(run: StoredRun) -> str:
    rows = [
        (
            iso(outage["atMs"])[:19], f"{outage['forMs'] / HOUR_MS:.2f} h", ", ".join(outage["openBefore"]) or "flat", ", ".join(outage["openAfter"]) or "flat",
            outage["events"], f"{outage['equityAfterUsd'] - outage['equityBeforeUsd']:+,.2f}",
        )
        for outage in run.summary.get("outages", ())
    ]  # fmt: skip
    return _table(("down from (UTC)", "for", "held before", "held after", "events meanwhile", "value meanwhile"), rows)


def refusals_text(summary: Mapping[str, Any], by: str) -> list[str]:
    """Orders that the risk check refused (`refusals`), that the service refused (`rejections`), or that it did not fill (`unfilled`), as lines for a terminal."""
    first = summary.get(FIRST[by], {})
    title = FAILURES[by]
    return [
        f"{title[0].lower()}{title[1:]}: {code} {count:,}"
        + (f", first {_failure_text(first[code])}" if code in first else "")
        for code, count in summary.get(by, {}).items()
    ]


def _failure_text(one: Mapping[str, Any]) -> str:
    return f"at {iso(one['atMs'])[:19]}, {one['strategy']} in {one['market']}: {one['message']}"


def _refusals(run: StoredRun, by: str) -> str:
    first = run.summary.get(FIRST[by], {})
    rows = [
        (code, count, _failure_text(first[code]) if code in first else "")
        for code, count in run.summary.get(by, {}).items()
    ]
    return _table(("code", "times", "first order"), rows)


def _trades(run: StoredRun) -> str:
    by = _guardian_of(run)
    rows = [
        (
            trade.number, trade.strategy, trade.market, trade.side, f"{trade.size:g}", iso(trade.entry_ms)[:19], f"{trade.entry_px:,.10g}", trade.entry_kind,
            "" if trade.exit_ms is None else iso(trade.exit_ms)[:19], "" if trade.exit_px is None else f"{trade.exit_px:,.10g}", by.get(trade.number, trade.exit_kind) or "open",
            _usd(trade.fees_usd), _usd(trade.pnl_usd), _figure(trade.r_multiple),
        )
        for trade in run.trades[-ROWS_MAX:]
    ]  # fmt: skip
    names = (
        "#",
        "strategy",
        "market",
        "side",
        "size",
        "entry (UTC)",
        "at",
        "by",
        "exit (UTC)",
        "at",
        "by",
        "fees",
        "result",
        "R",
    )
    return _table(names, rows) + _more(len(run.trades))


# -- text


def _undrawn(run: StoredRun, market: str) -> str:
    """A note on trades that the chart of a market does not show."""
    count = sum(trade.market == market for trade in run.trades)
    if not count:
        return "<p>There were no trades in this market.</p>"
    return f"<p>The last {TRADES_MAX:,} of {count:,} trades are drawn.</p>" if count > TRADES_MAX else ""


def _more(count: int) -> str:
    return f"<p>The last {ROWS_MAX} of {count:,}; the run's folder has all of them.</p>" if count > ROWS_MAX else ""


def _section(title: str, body: str) -> str:
    return f"<h2>{_text(title)}</h2>{body}" if body else ""


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _table(names: Sequence[str], rows: Rows, *, whole: bool = False) -> str:
    """A long table scrolls in a frame, unless `whole`."""
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    if not body:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    return f"<div class='wide{' whole' if whole else ''}' tabindex=0><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _figure(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{float(str(value)):,.2f}"


def _signed(value: object) -> str:
    return f"{float(str(value)):+,.2f}"


def _usd(value: object) -> str:
    return f"{float(str(value)):,.2f}"


def _text(value: object) -> str:
    return html.escape(str(value))


# The content policy allows inline scripts and styles only: no connection, no frame, no form.
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
body {{ font: 14px/1.45 system-ui, sans-serif; color: #1d2733; margin: 0 auto; max-width: 1180px; padding: 16px 20px 60px; }}
h1 {{ font-size: 22px; margin: 8px 0 0; }} h2 {{ font-size: 16px; margin: 28px 0 8px; }} p {{ margin: 4px 0 12px; color: #4a5866; }}
.warn {{ color: #c0392b; }} .plot {{ width: 100%; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 8px; margin: 12px 0 20px; }}
.card {{ border: 1px solid #dfe5ea; border-radius: 6px; padding: 8px 10px; }} .card span {{ display: block; color: #5d6b78; font-size: 12px; }}
.card b {{ font-size: 17px; font-variant-numeric: tabular-nums; }} .card small {{ display: block; color: #5d6b78; }}
.wide {{ overflow: auto; max-height: 560px; }} .whole {{ max-height: none; }} th {{ position: sticky; top: 0; background: #fff; }} table {{ border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid #e6ebef; padding: 4px 10px; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }} th {{ color: #5d6b78; font-weight: 600; }}
</style>
<script>{script}</script>
<script>const template = {template};
function draw(id, figure) {{
  figure.layout.template = template;
  Plotly.newPlot(id, figure.data, figure.layout, {{responsive: true, displaylogo: false, displayModeBar: "hover", showSendToCloud: false}});
}}</script>
</head><body>
{body}
</body></html>
"""

"""The figures of a stored run as rows and as lines, in the same words for the terminal, the JSON and the page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import fsum
from operator import attrgetter
from typing import Any, Final

from bot.backtest.report.risk_statistics import LEVELS, expected_shortfall, value_at_risk, worst
from bot.backtest.report.trade_statistics import (
    MarketExposure,
    TradeGroup,
    by_hour,
    by_weekday,
    exposure_by_market,
    finished,
)
from bot.backtest.results.layout import BY_GUARDIAN
from bot.backtest.results.run_reader import StoredRun, StoredTrade
from bot.backtest.results.statistics import DECIMALS, Drawdown, daily_returns, drawdowns, extrapolated
from bot.clock import datetime_of, iso, ms_of
from bot.figures import Column, Figure
from bot.number_text import duration_ms, instant, number, signed_usd, usd
from bot.words import many

# whose fills depend on the path
ORDERS_SHOWN: Final = 20
DRAWDOWNS_SHOWN: Final = 10
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
FIRST: Final = {"refusals": "firstRefusals", "rejections": "firstRejections", "unfilled": "firstUnfilled"}
FAILURES: Final = {
    "refusals": "Refused by the risk check",
    "rejections": "Refused by the service",
    "unfilled": "Not filled",
}
# The figures of summary.json by their names there, in the order of the terminal. A comparison is coloured by better and
# worse, never by the sign.
FIGURES: Final[Mapping[str, Figure]] = {
    "Return [%]": Figure("Return", form="change", better="higher"),
    "Buy & Hold Return [%]": Figure("Buy and hold", form="fall"),
    "Return (Ann.) [%]": Figure("CAGR", form="change", better="higher"),
    "Volatility (Ann.) [%]": Figure("Volatility, a year", form="percent"),
    "Equity Final [$]": Figure("Equity at the end", form="usd", better="higher", unit="USD"),
    "Equity Peak [$]": Figure("Peak equity", form="usd", better="higher", unit="USD"),
    "Sharpe Ratio": Figure("Sharpe ratio", form="ratio", better="higher"),
    "Sortino Ratio": Figure("Sortino ratio", form="ratio", better="higher"),
    "Calmar Ratio": Figure("Calmar ratio", form="ratio", better="higher"),
    "Max. Drawdown [%]": Figure("Max. drawdown", form="fall", better="higher"),
    "Avg. Drawdown [%]": Figure("Average drawdown", form="fall", better="higher"),
    "Max. Drawdown Duration [h]": Figure("Longest drawdown", form="hours", better="lower"),
    "Avg. Drawdown Duration [h]": Figure("Average length", form="hours", better="lower"),
    "Exposure Time [%]": Figure("Time in market", form="share"),
    "# Trades": Figure("Closed trades", form="count"),
    "Win Rate [%]": Figure("Win rate", form="share", better="higher"),
    "Profit Factor": Figure("Profit factor", form="ratio", better="higher"),
    "Expectancy [$]": Figure("Expectancy", form="gain", better="higher", unit="USD"),
    "Best Trade [$]": Figure("Best trade", form="gain", better="higher", unit="USD"),
    "Worst Trade [$]": Figure("Worst trade", form="gain", better="higher", unit="USD"),
    "Avg. Trade Duration [h]": Figure("Average time held", form="hours"),
    "Avg. R": Figure("Average R", form="r", better="higher"),
    "SQN": Figure("SQN", form="ratio", better="higher"),
}
# The costs of summary.json, in the order of the report.
COSTS: Final[Mapping[str, Figure]] = {
    "realizedUsd": Figure("Closed trades, before costs", form="gain", better="higher", unit="USD"),
    "feesUsd": Figure("Fees", form="cost", better="lower", unit="USD"),
    "fundingUsd": Figure("Funding", form="gain", better="higher", unit="USD"),
    "unrealizedUsd": Figure("Open at the end", form="gain", better="higher", unit="USD"),
    "backstopUsd": Figure("Liquidator's backstop", form="gain", unit="USD"),
    "slippageUsd": Figure("Slippage, in the prices", form="cost", better="lower", unit="USD"),
}
# The figures that the report computes from the days, by their names in JSON.
RISKS: Final[Mapping[str, Figure]] = {
    f"{name} ({100 * level:.0f}) [%]": Figure(f"{label} {100 * level:.0f} %", form="fall")
    for level in LEVELS
    for name, label in (("Value at Risk", "VaR"), ("Exp. Shortfall", "Shortfall"))
}
BOOKED: Final = (
    Column("", "words"),
    Column("Result", "gain", "higher"),
    Column("Fees", "cost"),
    Column("Funding", "gain"),
)
DRAWDOWNS: Final = (
    Column("Depth", "fall"),
    Column("Peak"),
    Column("Low"),
    Column("Recovered"),
    Column("Length", "seconds"),
)
# The words for a change.
TONES: Final = {"up": "better", "down": "worse", "flat": ""}
_AMOUNTS: Final = {
    "pnlUsd": "pnl_usd",
    "feesUsd": "fees_usd",
    "fundingUsd": "funding_usd",
    "slippageUsd": "slippage_usd",
}


def ran_text(run: StoredRun) -> str:
    """The range of a run, its starting balance, and whether it ended early."""
    stats = run.summary["course"]
    ended = ", PARTIAL: ended early" if stats["isPartial"] else ""
    span = f"{iso(stats['fromMs'])[:16]} to {iso(stats['toMs'])[:16]} UTC"
    return f"{span}, {many(stats['bars'], 'bar')}, {usd(run.summary['startUsd'])} USD{ended}"


def _paths_of(band: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The figures of each other path policy; older runs have one."""
    paths: Mapping[str, Mapping[str, Any]] = band.get("paths") or {band["path"]: band}
    return paths


def range_of(band: Mapping[str, Any] | None, name: str, value: Any) -> tuple[Any, Any] | None:
    """The lowest and the highest value of a figure over all path policies; None where it has one value."""
    if band is None:
        return None
    values = [value, *(path["figures"].get(name, value) for path in _paths_of(band).values())]
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known and (len(known) < len(values) or min(known) != max(known)) else None


def short_text(ms: int) -> str:
    """What stands beside a figure of a year of a run that lasts a few days."""
    return f"of {duration_ms(ms)}, not of a year"


def figure_lines(figures: Mapping[str, Any], band: Mapping[str, Any] | None, ms: int) -> list[str]:
    """Each figure of a run of `ms`, and its range over the path policies, as lines for a terminal."""
    lines, marked = [], extrapolated(figures, ms)
    for name, value in figures.items():
        figure, span = figure_of(name, value), range_of(band, name, value)
        beside = "" if span is None else f"   by path: {' to '.join(figure.of(bound).text for bound in span)}"
        if name in marked and value is not None:
            beside += f"   {short_text(ms)}"
        lines.append(line_of(figure) + beside)
    return lines


def line_of(figure: Figure) -> str:
    """A figure as a line for a terminal."""
    name = f"{figure.name} [{figure.unit}]" if figure.unit else figure.name
    return f"  {name:<34} {figure.text:>16}"


def band_lines(band: Mapping[str, Any]) -> list[str]:
    """How far the path policies differ, and the first orders whose fills depend on the path, as lines for a
    terminal.
    """
    paths = _paths_of(band)
    differ = {name: path["differing"] for name, path in paths.items() if any(path["differing"].values())}
    if not differ:
        return [f"band: the paths {', '.join(paths)} give the same trades"]
    lines = [
        f"band: the path {name} ends at {usd(paths[name]['figures']['Equity Final [$]'])}; "
        f"{many(counts['here'], 'trade')} of this run and {counts['there']:,} of that path differ"
        for name, counts in differ.items()
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
            "band: all paths fill their common trades alike; the differences come from funding, and from the sizes and"
            " trades that follow from it"
        )
    lines += [f"band: {_path_text(order)}" for order in orders[:ORDERS_SHOWN]]
    if count > ORDERS_SHOWN:
        lines.append(f"band: and {count - ORDERS_SHOWN:,} more: summary.json names {len(orders):,}")
    return lines


def _path_text(trade: Mapping[str, Any]) -> str:
    """A trade that depends on the path, with its fills under each policy."""
    by: dict[str, list[str]] = {}
    for name, fills in trade["fills"].items():
        by.setdefault(fills, []).append(name)
    by_policy = "; ".join(f"{', '.join(names)}: {fills}" for fills, names in by.items())
    return f"trade {trade['trade']}, {trade['market']} {trade['side']} of {iso(trade['entryMs'])[:19]}: {by_policy}"


def proof_text(proof: Mapping[str, Any]) -> str:
    """Whether the strategies were proven to be causal, from summary.json."""
    if proof["differs"] is not None:
        return f"Not causal: {proof['differs']}"
    cuts = (
        f"equal decisions on data cut at {many(len(proof['cutsMs']), 'instant')},"
        f" {many(proof['eventsCompared'], 'event')} compared"
    )
    if outside := proof.get("outside"):
        return f"Not proved: {outside_text(outside)}; {cuts}"
    if moved := proof.get("moved"):
        return f"Not proved: {'; '.join(moved)}; {cuts}"
    return f"Causal: {cuts}" if proof["isWhole"] else f"Not proven causal: {cuts}"


def outside_text(outside: Sequence[str]) -> str:
    """What strategies read outside of the cut data: the first source, and how many more."""
    more = len(outside) - 1
    return outside[0] + (f" and {many(more, 'other source')}" if more else "")


def monthly(run: StoredRun) -> dict[int, list[float | None]]:
    """For each year: the return in percent of each month, January first, and of the whole year last.

    None for a month without a value.
    """
    ends: dict[tuple[int, int], float] = {}
    row = 0
    while row < len(run.at_ms):
        # A close at midnight belongs to the day that it ends.
        moment = datetime_of(run.at_ms[row] - 1)
        after = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=moment.tzinfo)
        row = max(row + 1, bisect_right(run.at_ms, ms_of(after), row))
        ends[moment.year, moment.month] = run.equity[row - 1]
    before = float(run.summary["startUsd"])
    by_year: dict[int, list[float | None]] = {}
    for (year, month), value in ends.items():
        by_year.setdefault(year, [None] * 13)[month - 1] = 100 * (value / before - 1) if before else 0.0
        before = value
    for months in by_year.values():
        whole = 1.0
        for gain in months[:12]:
            whole *= 1 + (gain or 0) / 100
        months[12] = 100 * (whole - 1)
    return by_year


def costs_of(run: StoredRun) -> list[Figure]:
    """The parts of a result: closed trades before costs, fees, funding, what was open at the end, and the liquidator's
    backstop if it paid. Slippage is already inside the first part.
    """
    costs = run.summary["costs"]
    return [
        figure.of(costs[name])
        for name, figure in COSTS.items()
        if name in costs and (number(costs[name]) or name != "backstopUsd")
    ]


def by_market(run: StoredRun) -> dict[str, dict[str, Any]]:
    """Finished trades, result and costs of each market, in the form that summary.json has for each strategy."""
    trades_by_market: dict[str, list[StoredTrade]] = {}
    for trade in run.trades:
        trades_by_market.setdefault(trade.market, []).append(trade)
    rows = {}
    for market, trades in sorted(trades_by_market.items()):
        done = [trade for trade in trades if trade.exit_ms is not None]
        won = sum(trade.pnl_usd > 0 for trade in done)
        rows[market] = {
            "# Trades": len(done),
            "Win Rate [%]": round(100 * won / len(done), 6) if done else None,
            **{key: round(fsum(map(attrgetter(name), trades)), 8) for key, name in _AMOUNTS.items()},
        }
    return rows


def guardian_of(run: StoredRun) -> dict[int, str]:
    """For each trade that a guardian ended, by number: the type of the newest guardian that acted on it."""
    fired = run.summary.get("guardians", ())
    types = {number: guardian["type"] for guardian in fired for number in guardian.get("trades", ())}
    return {
        trade.number: types[trade.number]
        for trade in run.trades
        if trade.exit_kind in BY_GUARDIAN and trade.number in types
    }


def action_text(guardian: Mapping[str, Any]) -> str:
    """What a guardian did: its action, an order of a schedule, or nothing with the reason."""
    if guardian["action"] is not None:
        return str(guardian["action"])
    if guardian.get("trades"):
        return "ordered"
    return " ".join(filter(None, ("nothing:", guardian.get("code") or guardian["reason"])))


def guardian_text(guardian: Mapping[str, Any]) -> str:
    """A guardian of summary.json as a line for a terminal."""
    result = guardian.get("resultUsd")
    on = "" if guardian["market"] is None else f" on {guardian['market']}"
    cost = "" if result is None else f", trade {', '.join(map(str, guardian['trades']))}, {signed_usd(result)} USD"
    did = f"{action_text(guardian)} ({guardian['reason']})"
    return f"{guardian['type']} fired at {iso(guardian['ts'])}{on}: {did}{cost}"


def refusals_text(summary: Mapping[str, Any], by: str) -> list[str]:
    """Orders that the risk check refused (`refusals`), that the service refused (`rejections`), or that it did not
    fill (`unfilled`), as lines for a terminal.
    """
    first = summary.get(FIRST[by], {})
    title = FAILURES[by]
    return [
        f"{title[0].lower()}{title[1:]}: {code} {count:,}"
        + (f", first {failure_text(first[code])}" if code in first else "")
        for code, count in summary.get(by, {}).items()
    ]


def nothing_traded(summary: Mapping[str, Any]) -> str | None:
    """Why a run has no trade; None if it has one, if a strategy was quarantined, or if an older version wrote it."""
    course = summary["course"]
    if summary.get("strategies") or summary.get("quarantined") or "orders" not in course:
        return None
    bars = many(course["bars"], "bar")
    if not course["orders"]:
        return f"Nothing was traded: 0 decisions in {bars}: no strategy asked for an order"
    orders = many(course["orders"], "order")
    reasons = [line for by in FIRST for line in refusals_text(summary, by)] or ["none was filled"]
    return f"Nothing was traded: {orders} in {bars}; {'; '.join(reasons)}"


def failure_text(failure: Mapping[str, Any]) -> str:
    return f"at {iso(failure['atMs'])[:19]}, {failure['strategy']} in {failure['market']}: {failure['message']}"


def daily_of(run: StoredRun, *, only_with_prices: bool = False) -> list[float]:
    """The daily returns of a run, as fractions (`statistics.daily_returns`)."""
    start_ms, start_usd = run.summary["course"]["fromMs"], float(run.summary["startUsd"])
    return daily_returns(
        run.at_ms, run.equity, start_ms=start_ms, start_usd=start_usd, only_with_prices=only_with_prices
    )


def risk_of(run: StoredRun) -> dict[str, float | None]:
    """Value at risk and expected shortfall of one day with prices, in percent of the equity; None for a run of too few
    such days.
    """
    returns = daily_of(run, only_with_prices=True)
    values: dict[str, float | None] = {}
    for level in LEVELS:
        for name, formula in (("Value at Risk", value_at_risk), ("Exp. Shortfall", expected_shortfall)):
            value = formula(returns, level)
            values[f"{name} ({100 * level:.0f}) [%]"] = None if value is None else round(100 * value, DECIMALS)
    return values


def worst_drawdowns(run: StoredRun) -> list[Drawdown]:
    """The deepest drawdowns of the equity, deepest first."""
    start_ms, start_usd = run.summary["course"]["fromMs"], float(run.summary["startUsd"])
    return worst(drawdowns(run.at_ms, run.equity, start_ms=start_ms, start_usd=start_usd), DRAWDOWNS_SHOWN)


def exposure_of(run: StoredRun) -> list[MarketExposure]:
    """Time and notional of the positions of each market."""
    course = run.summary["course"]
    return exposure_by_market(run.trades, start_ms=course["fromMs"], end_ms=course["toMs"])


def more_as_json(run: StoredRun) -> dict[str, Any]:
    """The figures that the report computes from the stored results, besides those of summary.json."""
    trades, course = finished(run.trades), run.summary["course"]
    return {
        "months": {
            str(year): dict(zip((*MONTHS, "Year"), months, strict=True)) for year, months in monthly(run).items()
        },
        "markets": by_market(run),
        "risk": risk_of(run),
        "ofFewDays": list(extrapolated(run.summary["figures"], course["toMs"] - course["fromMs"])),
        "drawdowns": [
            {
                "peakMs": drawdown.peak_ms,
                "lowMs": drawdown.low_ms,
                "endMs": drawdown.end_ms if drawdown.is_over else None,
                "depthPct": round(100 * drawdown.depth, DECIMALS),
            }
            for drawdown in worst_drawdowns(run)
        ],
        "exposure": {
            exposure.market: {
                "timePct": round(exposure.time_pct, DECIMALS),
                "meanUsd": round(exposure.mean_usd, DECIMALS),
                "sharePct": round(exposure.share_pct, DECIMALS),
            }
            for exposure in exposure_of(run)
        },
        "hours": _groups_as_json(by_hour(trades)),
        "weekdays": _groups_as_json(by_weekday(trades)),
        "config": run.manifest["config"]["text"],
        "params": {
            strategy["name"]: strategy.get("params")
            for strategy in run.manifest["strategies"]
            # None: an older version ran it
        },
        "assumptions": run.manifest["assumptions"],
    }


def _groups_as_json(groups: Sequence[TradeGroup]) -> dict[str, dict[str, Any]]:
    return {
        group.name: {"trades": group.trades, "won": group.won, "resultUsd": round(group.result_usd, DECIMALS)}
        for group in groups
    }


def booked_rows(run: StoredRun) -> list[tuple[Any, ...]]:
    """A row under BOOKED for each strategy that shares positions."""
    booked = run.summary.get("booked", {})
    return [(name, *(part[key] for key in ("pnlUsd", "feesUsd", "fundingUsd"))) for name, part in booked.items()]


def drawdown_row(fall: Drawdown) -> tuple[float, str, str, str, float]:
    """A row under DRAWDOWNS."""
    peak, low, end = map(instant, (fall.peak_ms, fall.low_ms, fall.end_ms))
    return -100 * fall.depth, peak, low, end if fall.is_over else "not yet", fall.ms / 1000


def figure_of(name: str, value: Any = None) -> Figure:
    """A figure or a cost of summary.json with its form. One that a later version has added is shown as it is."""
    known = FIGURES.get(name) or COSTS.get(name) or RISKS.get(name)
    if known is not None:
        return known.of(value)
    return Figure(name, value, "count" if isinstance(value, int) else "ratio")

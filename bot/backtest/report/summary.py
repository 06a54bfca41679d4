"""The figures of a stored run as rows and as lines, in the same words for the terminal, the JSON and the page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from math import fsum
from operator import attrgetter
from typing import Any, Final, Literal

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
from bot.clock import HOUR_MS, datetime_of, iso, ms_of
from bot.number_text import DASH, duration_ms, signed_usd, usd
from bot.words import many

# whose fills depend on the path
ORDERS_SHOWN: Final = 20
DRAWDOWNS_SHOWN: Final = 10
# the unit at the end of a figure's name
HOURS_UNIT: Final = " [h]"
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
FIRST: Final = {"refusals": "firstRefusals", "rejections": "firstRejections", "unfilled": "firstUnfilled"}
FAILURES: Final = {
    "refusals": "Refused by the risk check",
    "rejections": "Refused by the service",
    "unfilled": "Not filled",
}
# The cost fields of summary.json, in the order of the report.
COSTS: Final = {
    "realizedUsd": "Realised, before costs",
    "feesUsd": "Fees",
    "fundingUsd": "Funding",
    "unrealizedUsd": "Unrealised at the end",
    "backstopUsd": "Liquidator's backstop",
    "slippageUsd": "Slippage, in the prices",
}
# Of each figure: whether a higher value is better, a lower one, or neither. Comparisons are coloured by it, never by
# the sign.
BETTER: Final[Mapping[str, Literal["higher", "lower", "none"]]] = {
    "Return [%]": "higher",
    "Buy & Hold Return [%]": "none",
    "Return (Ann.) [%]": "higher",
    "Volatility (Ann.) [%]": "none",
    "Equity Final [$]": "higher",
    "Equity Peak [$]": "higher",
    "Sharpe Ratio": "higher",
    "Sortino Ratio": "higher",
    "Calmar Ratio": "higher",
    "Max. Drawdown [%]": "higher",
    "Avg. Drawdown [%]": "higher",
    "Max. Drawdown Duration [h]": "lower",
    "Avg. Drawdown Duration [h]": "lower",
    "Exposure Time [%]": "none",
    "# Trades": "none",
    "Win Rate [%]": "higher",
    "Profit Factor": "higher",
    "Expectancy [$]": "higher",
    "Best Trade [$]": "higher",
    "Worst Trade [$]": "higher",
    "Avg. Trade Duration [h]": "none",
    "Avg. R": "higher",
    "SQN": "higher",
    # The costs of summary.json: what was paid is positive there.
    "realizedUsd": "higher",
    "feesUsd": "lower",
    "fundingUsd": "higher",
    "unrealizedUsd": "higher",
    "backstopUsd": "none",
    "slippageUsd": "lower",
}
# positive in summary.json if they were paid
PAID: Final = frozenset({"feesUsd", "slippageUsd"})
# The words for a change.
TONES: Final = {"up": "better", "down": "worse", "flat": ""}
SUMS: Final = ("", "# Trades", "Win Rate [%]", "Result", "Fees", "Funding", "Slippage")
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
    usd = usd_text(run.summary["startUsd"])
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


def short_text(ms: int) -> str:
    """What stands beside a figure of a year of a run that lasts a few days."""
    return f"of {duration_ms(ms)}, not of a year"


def figure_lines(figures: Mapping[str, Any], band: Mapping[str, Any] | None, ms: int) -> list[str]:
    """Each figure of a run of `ms`, and its range over the path policies, as lines for a terminal."""
    lines, marked = [], extrapolated(figures, ms)
    for name, value in figures.items():
        label, text = labelled(name, value, "-")
        found = range_of(band, name, value)
        low, high = ("", "") if found is None else (labelled(name, one, "-")[1] for one in found)
        beside = "" if found is None else f"   by path: {low} to {high}"
        if name in marked and value is not None:
            beside += f"   {short_text(ms)}"
        lines.append(f"  {label:<30} {text:>16}{beside}")
    return lines


def band_lines(band: Mapping[str, Any]) -> list[str]:
    """How far the path policies differ, and the first orders whose fills depend on the path, as lines for a
    terminal.
    """
    paths = _paths_of(band)
    differ = {name: one["differing"] for name, one in paths.items() if any(one["differing"].values())}
    if not differ:
        return [f"band: the paths {', '.join(paths)} give the same trades"]
    lines = [
        f"band: the path {name} ends at {usd_text(paths[name]['figures']['Equity Final [$]'])}; "
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
            "band: all paths fill their common trades alike; the differences come from funding, and from the sizes and"
            " trades that follow from it"
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


def costs_of(run: StoredRun) -> dict[str, float]:
    """The parts of a result in USD, by name: realised, fees, funding, unrealised at the end, and the liquidator's
    backstop if it paid. Slippage is already inside the realised part.
    """
    costs = {name: effect_usd(name, float(usd)) for name, usd in run.summary["costs"].items()}
    return {
        said: costs[name] for name, said in COSTS.items() if name in costs and (costs[name] or name != "backstopUsd")
    }


def better_or_worse(name: str, change: float | Decimal | None) -> str:
    """`up` if the change of this figure of summary.json is for the better, `down` for the worse, `flat` if neither."""
    better = BETTER.get(name, "none")
    if not change or better == "none":
        return "flat"
    return "up" if (change > 0) == (better == "higher") else "down"


def effect_usd(name: str, usd: float) -> float:
    """An amount of summary.json by its effect on the account: what was paid is negative, on every page and in the
    terminal.
    """
    return -usd if name in PAID else usd


def cost_text(name: str, value: object) -> str:
    """A cost of summary.json (`feesUsd`, ...), by its effect on the account."""
    return signed_usd(effect_usd(name, float(str(value))))


def sums(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row under SUMS for each strategy, or market."""
    amounts = ("pnlUsd", "feesUsd", "fundingUsd", "slippageUsd")
    return [
        (
            name or "(no strategy)",
            f"{one['# Trades']:,}",
            figure_text(one["Win Rate [%]"]),
            *(cost_text(key, one[key]) for key in amounts),
        )
        for name, one in found.items()
    ]


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
            "# Trades": len(done),
            "Win Rate [%]": round(100 * won / len(done), 6) if done else None,
            **{key: round(fsum(map(attrgetter(name), trades)), 8) for key, name in _AMOUNTS.items()},
        }
    return made


def guardian_of(run: StoredRun) -> dict[int, str]:
    """For each trade that a guardian ended, by number: the type of the newest guardian that acted on it."""
    fired = run.summary.get("guardians", ())
    found = {number: guardian["type"] for guardian in fired for number in guardian.get("trades", ())}
    return {
        trade.number: found[trade.number]
        for trade in run.trades
        if trade.exit_kind in BY_GUARDIAN and trade.number in found
    }


def action_text(one: Mapping[str, Any]) -> str:
    """What a guardian did: its action, an order of a schedule, or nothing with the reason."""
    if one["action"] is not None:
        return str(one["action"])
    return "ordered" if one.get("trades") else " ".join(filter(None, ("nothing:", one.get("code") or one["reason"])))


def guardian_text(one: Mapping[str, Any]) -> str:
    """A guardian of summary.json as a line for a terminal."""
    result = one.get("resultUsd")
    on = "" if one["market"] is None else f" on {one['market']}"
    cost = "" if result is None else f", trade {', '.join(map(str, one['trades']))}, {signed_text(result)} USD"
    return f"{one['type']} fired at {iso(one['ts'])}{on}: {action_text(one)} ({one['reason']}){cost}"


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


def failure_text(one: Mapping[str, Any]) -> str:
    return f"at {iso(one['atMs'])[:19]}, {one['strategy']} in {one['market']}: {one['message']}"


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
    found: dict[str, float | None] = {}
    for level in LEVELS:
        for name, formula in (("Value at Risk", value_at_risk), ("Exp. Shortfall", expected_shortfall)):
            value = formula(returns, level)
            found[f"{name} ({100 * level:.0f}) [%]"] = None if value is None else round(100 * value, DECIMALS)
    return found


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
        "months": {str(year): dict(zip((*MONTHS, "Year"), found, strict=True)) for year, found in monthly(run).items()},
        "markets": by_market(run),
        "risk": risk_of(run),
        "ofFewDays": list(extrapolated(run.summary["figures"], course["toMs"] - course["fromMs"])),
        "drawdowns": [
            {
                "peakMs": one.peak_ms,
                "lowMs": one.low_ms,
                "endMs": one.end_ms if one.is_over else None,
                "depthPct": round(100 * one.depth, DECIMALS),
            }
            for one in worst_drawdowns(run)
        ],
        "exposure": {
            one.market: {
                "timePct": round(one.time_pct, DECIMALS),
                "meanUsd": round(one.mean_usd, DECIMALS),
                "sharePct": round(one.share_pct, DECIMALS),
            }
            for one in exposure_of(run)
        },
        "hours": _groups_as_json(by_hour(trades)),
        "weekdays": _groups_as_json(by_weekday(trades)),
        "config": run.manifest["config"]["text"],
        "params": {
            one["name"]: one.get("params")
            for one in run.manifest["strategies"]
            # None: an older version ran it
        },
        "assumptions": run.manifest["assumptions"],
    }


def _groups_as_json(groups: Sequence[TradeGroup]) -> dict[str, dict[str, Any]]:
    return {
        one.name: {"trades": one.trades, "won": one.won, "resultUsd": round(one.result_usd, DECIMALS)} for one in groups
    }


def drawdown_text(one: Drawdown) -> tuple[str, str, str, str, str]:
    """Depth, peak, low, end and length of a drawdown."""
    peak, low, end = (iso(at_ms)[:16].replace("T", " ") for at_ms in (one.peak_ms, one.low_ms, one.end_ms))
    return f"-{100 * one.depth:.2f} %", peak, low, end if one.is_over else "not yet", duration_ms(one.ms)


def labelled(name: str, value: Any, missing: str = DASH) -> tuple[str, str]:
    """A figure of summary.json as its label and its text.

    Durations are shown in days and hours, so their label has no unit.
    """
    if not name.endswith(HOURS_UNIT):
        return name, figure_text(value, missing)
    return name.removesuffix(HOURS_UNIT), missing if value is None else duration_ms(value * HOUR_MS)


def change_text(name: str, change: float | None, missing: str = DASH) -> str:
    """How a figure of summary.json changed, with its sign."""
    if change is None:
        return missing
    if name.endswith(HOURS_UNIT):
        text = duration_ms(change * HOUR_MS)
        return f"+{text}" if change > 0 and text != "0 s" else text
    if isinstance(change, int):
        return f"{change:+,}" if change else "0"
    return signed_usd(change)


def figure_text(value: object, missing: str = DASH) -> str:
    if value is None:
        return missing
    return f"{value:,}" if isinstance(value, int) else usd(value)


def signed_text(value: object) -> str:
    return signed_usd(value)


def usd_text(value: object) -> str:
    return usd(value)

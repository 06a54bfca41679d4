"""Every figure of a backtest by the name that a page shows, computed from the files of the run by other means than the
program's. It imports nothing of bot.

FIGURES are the named figures, SAID the values inside sentences, TABLES the rows below a title. Percentages are numbers
of percent, durations are hours, and what was paid is negative.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import NormalDist, correlation, fmean, linear_regression, pstdev, stdev
from typing import Any, Final, NamedTuple

import numpy as np

DAY: Final = 86_400_000
HOUR: Final = 3_600_000
# Hours of a unit of a duration; a text has the two largest.
HOURS: Final = {"y": 8_760.0, "d": 24.0, "h": 1.0, "min": 1 / 60, "s": 1 / 3_600}
NUMBER: Final = re.compile(r"([+−-]?)([\d,]*\d)(?:\.(\d+))?([kM]?)(?: %| R|×)?")
PART: Final = re.compile(r"([\d,]+) (y|d|h|min|s)\b")
# summary.json keeps six decimals, trades.csv four of a multiple of R.
SLACK: Final = 2e-6
R_SLACK: Final = 2e-4
MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
EXITS: Final = {
    "stop_loss": "Stop",
    "take_profit": "Target",
    "close": "Strategy closed",
    "market": "Strategy closed",
    "trailing_stop": "Trailing stop",
}
Value = float | str | None


def shows(text: str, value: Value, slack: float = SLACK) -> bool:
    """True if a text is this value, rounded to the digits that it has."""
    if value is None or isinstance(value, str):
        return text in ("–", "-") if value is None else text == value
    if parts := PART.findall(text):
        shown = sum(float(count.replace(",", "")) * HOURS[unit] for count, unit in parts)
        units = list(HOURS)
        below = HOURS[units[min(len(units) - 1, units.index(parts[0][1]) + 1)]]
        return shown - 1 / 3_600 <= value < shown + below + 1 / 3_600
    read = NUMBER.fullmatch(text)
    if read is None:
        return False
    sign, whole, decimals, large = read.groups()
    size = {"": 1.0, "k": 1e3, "M": 1e6}[large]
    shown = size * float(f"{'-' if sign in ('−', '-') else ''}{whole.replace(',', '')}.{decimals or 0}")
    return abs(shown - value) <= size * 0.5 * 10 ** -len(decimals or "") + slack + 1e-12 * abs(value)


def instant(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%d %b %Y %H:%M:%S}"


def day(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%d %b %Y}".removeprefix("0")


class Fall(NamedTuple):
    depth: float
    since: int
    low: int
    end: int
    is_over: bool

    @property
    def hours(self) -> float:
        return (self.end - self.since) / HOUR


@dataclass(frozen=True)
class Files:
    """What the files of a run say, in the types of Python and numpy."""

    folder: Path

    @cached_property
    def summary(self) -> Any:
        return json.loads((self.folder / "summary.json").read_text())

    @cached_property
    def manifest(self) -> Any:
        return json.loads((self.folder / "manifest.json").read_text())

    @cached_property
    def markets(self) -> Any:
        return json.loads((self.folder / "chart.json").read_text())

    @cached_property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "trades.csv").open() as file:
            return list(csv.DictReader(file))

    @cached_property
    def curve(self) -> Any:
        return np.load(self.folder / "equity.npy")

    @cached_property
    def at(self) -> list[int]:
        return [int(ms) for ms in self.curve["at_ms"]]

    @cached_property
    def usd(self) -> list[float]:
        return [float(usd) for usd in self.curve["equity_usd"]]

    @property
    def start(self) -> float:
        return float(self.summary["startUsd"])

    @property
    def span(self) -> tuple[int, int]:
        return self.summary["course"]["fromMs"], self.summary["course"]["toMs"]

    @property
    def length(self) -> int:
        return self.span[1] - self.span[0]

    @cached_property
    def done(self) -> list[dict[str, str]]:
        """The closed trades in the order of their exits."""
        return sorted((row for row in self.rows if row["exit_ms"]), key=lambda row: int(row["exit_ms"]))

    @cached_property
    def nets(self) -> list[float]:
        return [float(row["pnl_usd"]) for row in self.done]

    @cached_property
    def multiples(self) -> list[float]:
        return [float(row["r_multiple"]) for row in self.done if row["r_multiple"]]

    def closes(self, at: Sequence[int], values: Sequence[float]) -> list[float]:
        """The last value up to each 00:00 UTC of the run."""
        last = {(ms - 1) // DAY: value for ms, value in zip(at, values, strict=True) if ms > self.span[0]}
        return [last[day] for day in sorted(last)]

    @cached_property
    def daily(self) -> Any:
        closes = [self.start, *self.closes(self.at, self.usd)]
        return np.diff(closes) / closes[:-1]

    @cached_property
    def market_days(self) -> dict[str, Any]:
        """The daily returns of each market."""
        found = {}
        for market, candles in self.markets.items():
            ends = [ts + candles["stepMs"] for ts in candles["ts"]]
            closes = [candles["open"][0], *self.closes(ends, candles["close"])]
            found[market] = np.diff(closes) / closes[:-1]
        return found

    @cached_property
    def sizes(self) -> dict[str, float]:
        """The size in USD that each market was held at on average over the whole run."""
        return {market: math.fsum(usd_ms for _, usd_ms in self.held(market)) / self.length for market in self.markets}

    def held(self, market: str) -> list[tuple[int, float]]:
        """The time of each trade, and its size in USD times its time."""
        spans = []
        for row in self.rows:
            if row["market"] == market:
                ms = int(row["exit_ms"] or self.span[1]) - int(row["entry_ms"])
                spans.append((ms, ms * float(row["size"]) * float(row["entry_px"])))
        return spans

    def share_of_time(self, rows: Sequence[dict[str, str]]) -> float:
        """The percentage of the time in which at least one of these trades was open."""
        steps = [(int(row["entry_ms"]), 1) for row in rows] + [
            (int(row["exit_ms"] or self.span[1]), -1) for row in rows
        ]
        at, changes = zip(*sorted(steps), strict=True)
        is_held = np.cumsum(changes[:-1]) > 0
        return 100 * float(np.sum(np.diff(at) * is_held)) / self.length

    @cached_property
    def always_long(self) -> Any:
        """The value at the end of each day of the markets held at `sizes`."""
        gains = sum(self.sizes[market] * np.cumsum(days) for market, days in self.market_days.items())
        return self.start + gains

    @cached_property
    def falling(self) -> Any:
        """The equity in percent of its peak so far, at the start and at each instant."""
        usd = np.array([self.start, *self.usd])
        return 100 * (usd / np.maximum.accumulate(usd) - 1)

    @cached_property
    def falls(self) -> list[Fall]:
        """A drawdown begins at the last instant of its peak and ends where the peak is reached again."""
        times, falls, since, below = [self.span[0], *self.at], [], self.span[0], []
        for at, depth in zip(times, self.falling, strict=True):
            if depth < 0:
                below.append((depth, at))
                continue
            if below:
                falls.append(Fall(min(below)[0], since, min(below)[1], at, is_over=True))
            since, below = at, []
        if below:
            falls.append(Fall(min(below)[0], since, min(below)[1], times[-1], is_over=False))
        return falls

    @cached_property
    def months(self) -> dict[tuple[int, int], float]:
        """The return of each month, in percent."""
        return self.periods(lambda at: (at.year, at.month))

    @cached_property
    def years(self) -> dict[int, float]:
        return self.periods(lambda at: at.year)

    def periods(self, of: Callable[[datetime], Any]) -> dict[Any, float]:
        ends = {
            of(datetime.fromtimestamp((at - 1) / 1000, UTC)): usd for at, usd in zip(self.at, self.usd, strict=True)
        }
        starts = [self.start, *list(ends.values())[:-1]]
        return {name: 100 * (end / begun - 1) for (name, end), begun in zip(ends.items(), starts, strict=True)}

    @property
    def costs(self) -> float:
        return self.sum("funding_usd") - self.sum("fees_usd")

    def sum(self, column: str) -> float:
        return math.fsum(float(row[column]) for row in self.rows)

    @property
    def open_profit(self) -> float:
        """The unrealized profit of the positions that are open at the end, at the last close."""
        return math.fsum(
            (float(self.markets[row["market"]]["close"][-1]) - float(row["entry_px"]))
            * float(row["size"])
            * (1 if row["side"] == "long" else -1)
            for row in self.rows
            if not row["exit_ms"]
        )

    def exit_of(self, row: dict[str, str]) -> str:
        """The cause of an exit in words; the newest guardian that acted on the trade, if one ended it."""
        kind = row["exit_kind"]
        for guardian in self.summary["guardians"]:
            if int(row["trade"]) in guardian["trades"] and row["exit_kind"] == "guardian":
                kind = guardian["type"]
        return EXITS[kind] if kind else "Open"

    def excursions(self, row: dict[str, str]) -> tuple[float | None, float | None]:
        """MAE and MFE in multiples of the distance to the first stop."""
        if not row["stop_px"]:
            return None, None
        entry, stop = float(row["entry_px"]), float(row["stop_px"])
        moves = [(float(px) - entry) / (entry - stop) for px in (row["low_px"], row["high_px"])]
        return min(0.0, *moves), max(0.0, *moves)

    @cached_property
    def rolling_sharpe(self) -> list[float]:
        days = self.window
        windows = [self.daily[n - days : n] for n in range(days, len(self.daily) + 1)]
        return [sharpe(window) for window in windows]

    @property
    def window(self) -> int:
        return 180 if len(self.daily) >= 360 else 30

    @property
    def band(self) -> Any:
        return self.summary.get("band")


def sharpe(daily: Any) -> float:
    return fmean(daily) / stdev(daily) * math.sqrt(365)


def growth(run: Files) -> float:
    return (run.usd[-1] / run.start) ** (365 * DAY / run.length) - 1


def mean_or_none(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def tail(run: Files, share: float, *, is_mean: bool) -> float | None:
    """The daily return at a quantile, or the mean of those up to it; None if no day lies beyond it."""
    if len(run.daily) < round(1 / share):
        return None
    return 100 * (
        fmean(sorted(run.daily)[: int((len(run.daily) - 1) * share) + 1]) if is_mean else np.quantile(run.daily, share)
    )


def relation(run: Files) -> tuple[float, float, float]:
    """Alpha of a year, beta and correlation to the mean daily return of the markets."""
    market = [fmean(day) for day in zip(*run.market_days.values(), strict=True)]
    slope, intercept = linear_regression(market, run.daily)
    return 100 * 365 * intercept, slope, correlation(market, run.daily)


def probability(run: Files) -> float:
    """That the true Sharpe ratio is above 0 (Bailey, Lopez de Prado 2012)."""
    days = run.daily
    z = (days - fmean(days)) / pstdev(days)
    ratio = fmean(days) / stdev(days)
    spread = 1 - fmean(z**3) * ratio + (fmean(z**4) - 1) / 4 * ratio**2
    return NormalDist().cdf(ratio * math.sqrt(len(days) - 1) / math.sqrt(spread))


def quality(run: Files) -> float:
    results = run.multiples or run.nets
    return math.sqrt(len(results)) * fmean(results) / stdev(results)


def streak(run: Files) -> int:
    return max(len(part) for part in re.split("[^x]", "".join("x" if net < 0 else "." for net in run.nets)))


class Formula(NamedTuple):
    """`json`: the name of the raw value there, whose sign is turned if `is_paid`. `better`: 1 if a change up is for the
    better, -1 if it is for the worse, 0 if neither.
    """

    json: str
    of: Callable[[Files], Value]
    better: int = 0
    is_paid: bool = False
    slack: float = SLACK


FIGURES: Final[dict[str, Formula]] = {
    "Return": Formula("Return [%]", lambda run: 100 * (run.usd[-1] / run.start - 1), 1),
    "Net result": Formula("Net [$]", lambda run: run.usd[-1] - run.start, 1),
    "Buy and hold": Formula(
        "Buy & Hold Return [%]",
        lambda run: 100 * fmean(part["close"][-1] / part["open"][0] - 1 for part in run.markets.values()),
    ),
    "CAGR": Formula("Return (Ann.) [%]", lambda run: 100 * growth(run), 1),
    "Volatility, a year": Formula("Volatility (Ann.) [%]", lambda run: 100 * stdev(run.daily) * math.sqrt(365)),
    "Equity at the end": Formula("Equity Final [$]", lambda run: run.usd[-1], 1),
    "Peak equity": Formula("Equity Peak [$]", lambda run: max(run.start, *run.usd), 1),
    "Sharpe ratio": Formula("Sharpe Ratio", lambda run: sharpe(run.daily), 1),
    "Sortino ratio": Formula(
        "Sortino Ratio",
        lambda run: fmean(run.daily) / math.sqrt(fmean(np.minimum(run.daily, 0) ** 2)) * math.sqrt(365),
        1,
    ),
    "Calmar ratio": Formula("Calmar Ratio", lambda run: 100 * growth(run) / -min(run.falling), 1),
    "Max. drawdown": Formula("Max. Drawdown [%]", lambda run: min(run.falling), 1),
    "Average drawdown": Formula("Avg. Drawdown [%]", lambda run: fmean(fall.depth for fall in run.falls), 1),
    "Longest drawdown": Formula("Max. Drawdown Duration [h]", lambda run: max(fall.hours for fall in run.falls), -1),
    "Average length": Formula("Avg. Drawdown Duration [h]", lambda run: fmean(fall.hours for fall in run.falls), -1),
    "Time in market": Formula("Exposure Time [%]", lambda run: run.share_of_time(run.rows)),
    "Closed trades": Formula("# Trades", lambda run: len(run.done)),
    "Win rate": Formula("Win Rate [%]", lambda run: 100 * fmean(net > 0 for net in run.nets), 1),
    "Profit factor": Formula(
        "Profit Factor", lambda run: sum(x for x in run.nets if x > 0) / -sum(x for x in run.nets if x < 0), 1
    ),
    "Expectancy": Formula("Expectancy [$]", lambda run: fmean(run.nets), 1),
    "Best trade": Formula("Best Trade [$]", lambda run: max(run.nets), 1),
    "Worst trade": Formula("Worst Trade [$]", lambda run: min(run.nets), 1),
    "Average time held": Formula(
        "Avg. Trade Duration [h]",
        lambda run: fmean((int(row["exit_ms"]) - int(row["entry_ms"])) / HOUR for row in run.done),
    ),
    "Average R": Formula("Avg. R", lambda run: mean_or_none(run.multiples), 1, slack=R_SLACK),
    "SQN": Formula("SQN", quality, 1, slack=0.005),
    "VaR 95 %": Formula("Value at Risk (95) [%]", lambda run: tail(run, 0.05, is_mean=False)),
    "Shortfall 95 %": Formula("Exp. Shortfall (95) [%]", lambda run: tail(run, 0.05, is_mean=True)),
    "VaR 99 %": Formula("Value at Risk (99) [%]", lambda run: tail(run, 0.01, is_mean=False)),
    "Shortfall 99 %": Formula("Exp. Shortfall (99) [%]", lambda run: tail(run, 0.01, is_mean=True)),
    "Always long": Formula("Always Long Return [%]", lambda run: 100 * (run.always_long[-1] / run.start - 1)),
    "Alpha, a year": Formula("Alpha (Ann.) [%]", lambda run: relation(run)[0], 1),
    "Beta": Formula("Beta", lambda run: relation(run)[1]),
    "Correlation": Formula("Correlation", lambda run: relation(run)[2]),
    "Costs": Formula("Costs [$]", lambda run: run.costs, 1, is_paid=True),
    "Best year": Formula("Best Year [%]", lambda run: max(run.years.values()), 1),
    "Worst year": Formula("Worst Year [%]", lambda run: min(run.years.values()), 1),
    "Below the peak": Formula("Below Peak [%]", lambda run: 100 * sum(f.hours for f in run.falls) * HOUR / run.length),
    "Average win": Formula("Avg. Win [$]", lambda run: mean_or_none([net for net in run.nets if net > 0]), 1),
    "Average loss": Formula("Avg. Loss [$]", lambda run: mean_or_none([net for net in run.nets if net < 0]), 1),
    "Payoff ratio": Formula(
        "Payoff Ratio", lambda run: fmean(x for x in run.nets if x > 0) / -fmean(x for x in run.nets if x < 0), 1
    ),
    "Losses in a row": Formula("Losses in a Row", streak, -1),
    "Closed trades, before costs": Formula("realizedUsd", lambda run: run.sum("realized_usd"), 1),
    "Fees": Formula("feesUsd", lambda run: -run.sum("fees_usd"), 1, is_paid=True),
    "Funding": Formula("fundingUsd", lambda run: run.sum("funding_usd"), 1),
    "Open at the end": Formula("unrealizedUsd", lambda run: run.open_profit, 1),
    "Slippage, in the prices": Formula("slippageUsd", lambda run: -run.sum("slippage_usd"), 1, is_paid=True),
}


def r_points(run: Files) -> list[tuple[float, float, float]]:
    """MAE, MFE and result of each closed trade that has its extremes in R."""
    points = [(*run.excursions(row), float(row["pnl_usd"])) for row in run.done]
    return [(mae, mfe, net) for mae, mfe, net in points if mae is not None and mfe is not None]


def by_path(run: Files, name: str, pick: Callable[[list[float]], float]) -> float:
    paths = run.band["paths"].values() if run.band else ()
    return pick([run.summary["figures"][name], *(path["figures"][name] for path in paths)])


def exposures(run: Files) -> Any:
    return run.curve["exposure_usd"] / run.curve["equity_usd"]


def drawdown_after_trades(run: Files) -> float:
    value = run.start + np.cumsum([0.0, *run.nets])
    return 100 * float(min(value / np.maximum.accumulate(value) - 1))


def of_draws(run: Files, name: str, place: int | None = None) -> float:
    value = run.summary["monteCarlo"]["trades"][name]
    return float(value if place is None else value[place])


def gross(run: Files) -> float:
    return run.sum("realized_usd") + run.open_profit


def far_trades(run: Files) -> list[float]:
    return [float(row["pnl_usd"]) for row in run.done if row["r_multiple"] and float(row["r_multiple"]) > 2]


# The values inside sentences, besides FIGURES.
SAID: Final[dict[str, Callable[[Files], Value]]] = {
    "length": lambda run: run.length / HOUR,
    "always long usd": lambda run: run.always_long[-1] - run.start,
    "always long end": lambda run: run.always_long[-1],
    "probability": lambda run: 100 * probability(run),
    "probability as a fraction": probability,
    "days with prices": lambda run: len(run.daily),
    "last peak": lambda run: day(run.falls[-1].since),
    "best year": lambda run: str(max(run.years, key=lambda year: yearly_usd(run)[year])),
    "share of the best year": lambda run: 100 * max(yearly_usd(run).values()) / (run.usd[-1] - run.start),
    "open": lambda run: len(run.rows) - len(run.done),
    "start": lambda run: run.start,
    "drawdown now": lambda run: run.falling[-1],
    "mean exposure": lambda run: fmean(exposures(run)),
    "highest exposure": lambda run: max(exposures(run)),
    "months won": lambda run: sum(value > 0 for value in run.months.values()),
    "months": lambda run: len(run.months),
    "best month": lambda run: max(run.months.values()),
    "worst month": lambda run: min(run.months.values()),
    "costs of gross": lambda run: -100 * run.costs / gross(run),
    "far trades": lambda run: len(far_trades(run)),
    "result of far trades": lambda run: math.fsum(far_trades(run)),
    "near the stop": lambda run: sum(-1.2 <= multiple <= -0.8 for multiple in run.multiples),
    "turned": lambda run: sum(net <= 0 and mfe >= 1 for _, mfe, net in r_points(run)),
    "window": lambda run: run.window,
    "rolling Sharpe now": lambda run: run.rolling_sharpe[-1],
    "days below 0": lambda run: 100 * fmean(ratio < 0 for ratio in run.rolling_sharpe),
    "trades": lambda run: len(run.rows),
    "guardians": lambda run: sum(event["subtype"] == "fired" for event in run.events),
    "newest trades": lambda run: min(200, len(run.rows)),
    "bars": lambda run: run.summary["course"]["bars"],
    "first day": lambda run: day(run.span[0]),
    "last day": lambda run: day(run.span[1]),
    "lowest end by path": lambda run: by_path(run, "Equity Final [$]", min),
    "highest end by path": lambda run: by_path(run, "Equity Final [$]", max),
    "draws": lambda run: of_draws(run, "draws"),
    "drawdown after trades": drawdown_after_trades,
    "losing draws": lambda run: 100 * of_draws(run, "lossShare"),
    "deeper orders": lambda run: 100 * of_draws(run, "deeperShare"),
    **{
        f"{share} of the {name}": lambda run, key=key, place=place: of_draws(run, key, place)
        for name, key in (
            ("orders", "shuffledDrawdownPct"),
            ("drawn ends", "endUsd"),
            ("drawn drawdowns", "drawnDrawdownPct"),
        )
        for place, share in enumerate(("5 %", "median", "95 %"))
    },
}


def yearly_usd(run: Files) -> dict[int, float]:
    ends = {datetime.fromtimestamp((at - 1) / 1000, UTC).year: usd for at, usd in zip(run.at, run.usd, strict=True)}
    starts = [run.start, *list(ends.values())[:-1]]
    return {year: end - begun for (year, end), begun in zip(ends.items(), starts, strict=True)}


def sources(run: Files) -> list[tuple[Value, ...]]:
    """The closed trades by strategy, market, side and exit; the best source of a group stands first."""
    keys: dict[str, Callable[[dict[str, str]], str]] = {
        "Strategy": lambda row: row["strategy"],
        "Market": lambda row: row["market"],
        "Side": lambda row: row["side"],
        "Exit": run.exit_of,
    }
    rows: list[tuple[Value, ...]] = []
    for group, key in keys.items():
        parts: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in run.done:
            parts[key(row)].append(row)
        sums = []
        for name, part in parts.items():
            nets = [float(row["pnl_usd"]) for row in part]
            multiples = [float(row["r_multiple"]) for row in part if row["r_multiple"]]
            paid = math.fsum(float(row["funding_usd"]) - float(row["fees_usd"]) for row in part)
            won = 100 * fmean(net > 0 for net in nets)
            sums.append((name, len(part), won, mean_or_none(multiples), paid, math.fsum(nets)))
        sums.sort(key=lambda row: -row[-1])
        rows += [("" if n else group, *row, "") for n, row in enumerate(sums)]
    return rows


def gross_to_net(run: Files) -> list[tuple[Value, ...]]:
    names = ("Closed trades, before costs", "Fees", "Funding", "Open at the end", "Net result")
    return [(name, FIGURES[name].of(run), "") for name in names]


def months(run: Files) -> list[tuple[Value, ...]]:
    return [
        (str(year), *(run.months.get((year, month)) for month in range(1, 13)), value)
        for year, value in run.years.items()
    ]


def drawdowns(run: Files) -> list[tuple[Value, ...]]:
    falls = sorted(run.falls, key=lambda fall: fall.depth)[:10]
    return [
        (
            fall.depth,
            instant(fall.since),
            instant(fall.low),
            instant(fall.end) if fall.is_over else "not yet",
            fall.hours,
        )
        for fall in falls
    ]


def exposure(run: Files) -> list[tuple[Value, ...]]:
    weights = {market: math.fsum(usd_ms for _, usd_ms in run.held(market)) for market in sorted(run.markets)}
    return [
        (
            market,
            run.share_of_time([row for row in run.rows if row["market"] == market]),
            weight / sum(ms for ms, _ in run.held(market)),
            100 * weight / sum(weights.values()),
        )
        for market, weight in weights.items()
    ]


def trades(run: Files) -> list[tuple[Value, ...]]:
    """The newest 200."""
    rows: list[tuple[Value, ...]] = []
    for row in run.rows[-200:][::-1]:
        numbers = [float(row[name]) if row[name] else None for name in ("size", "entry_px", "exit_px")]
        held = (int(row["exit_ms"]) - int(row["entry_ms"])) / HOUR if row["exit_ms"] else None
        multiple = float(row["r_multiple"]) if row["r_multiple"] else None
        costs = float(row["funding_usd"]) - float(row["fees_usd"])
        names = (int(row["trade"]), row["market"], row["side"], row["strategy"], instant(int(row["entry_ms"])))
        exits = (run.exit_of(row), held, costs, float(row["pnl_usd"]), multiple)
        rows.append((*names, *numbers, *exits, *run.excursions(row)))
    return rows


def guardians(run: Files) -> list[tuple[Value, ...]]:
    """The result of the fills of a guardian's orders, after their fees."""
    orders = [e["data"] | {"ts": e["ts"], "coin": e["coin"]} for e in run.events if e["subtype"] == "fired"]
    fills: dict[str, float] = defaultdict(float)
    for event in run.events:
        if event["type"] == "fill":
            fill = event["data"]
            fills[fill["tradeId"]] += float(fill["realizedPnlUsd"] or 0) - float(fill["feeUsd"])
    numbers = [guardian["trades"] for guardian in run.summary["guardians"]]
    return [
        (
            instant(order["ts"]),
            order["guardianType"],
            order["coin"],
            order["action"],
            order["reason"],
            ", ".join(map(str, ended)),
            sum(fills[trade] for trade in order["tradeIds"]),
        )
        for order, ended in zip(orders, numbers, strict=True)
    ]


def outages(run: Files) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for outage in run.summary["outages"]:
        span = outage["atMs"], outage["atMs"] + outage["forMs"]
        ends = [run.usd[max(n for n, at in enumerate(run.at) if at <= ms)] for ms in span]
        held = [", ".join(sorted(position(row) for row in run.rows if is_open(row, ms - 1))) or "flat" for ms in span]
        rows.append((instant(span[0]), outage["forMs"] / HOUR, *held, outage["events"], ends[1] - ends[0]))
    return rows


def position(row: dict[str, str]) -> str:
    return f"{row['market']} {row['side']} {row['size']}"


def is_open(row: dict[str, str], at: int) -> bool:
    return int(row["entry_ms"]) <= at and (not row["exit_ms"] or int(row["exit_ms"]) > at)


# Title of a section of the report -> the rows of its table.
TABLES: Final[dict[str, Callable[[Files], list[tuple[Value, ...]]]]] = {
    "Months": months,
    "Where the result comes from": sources,
    "From gross to net": gross_to_net,
    "Deepest drawdowns": drawdowns,
    "Trades": trades,
    "Exposure by market": exposure,
    "Guardians": guardians,
    "Outages": outages,
}

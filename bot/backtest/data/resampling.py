"""Longer candles made from shorter ones, and the interval of each market that a backtest uses."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from bot.backtest.data.candles import COLUMNS, Candles
from bot.clock import DAY_MS, iso
from bot.errors import ConfigError
from bot.service.market_data.instruments import CATALOGUE
from bot.service.market_data.trading_hours import daily_start, resting_hours
from bot.wire.vocabulary import INTERVAL_MS

# time from 20:00 of the evening before to 09:30 in New York
OPENS_AFTER_MS: Final = 13 * 3_600_000 + 1_800_000


def sessions_of(candles: Candles) -> str | None:
    """The kind of trading hours of a market whose candles rest at weekends; None for one that goes on."""
    listing = CATALOGUE.get(candles.market)
    return None if listing is None else resting_hours(listing.spec.hours, candles.at_ms)


def _starts(base_ms: int, step_ms: int, sessions: str | None) -> Callable[[int], int]:
    """The start of the longer candle that holds a shorter one."""
    if sessions is None:
        return lambda at_ms: at_ms - at_ms % step_ms
    return lambda at_ms: daily_start(sessions, at_ms, base_ms)


def _begins_as_usual(at_ms: array[int], last: int, starts: Callable[[int], int]) -> bool:
    """True if the first trading day begins no later in its day than the second one, or than the exchange opens if
    there is no second one.
    """
    usual = at_ms[last] - starts(at_ms[last]) if last < len(at_ms) else OPENS_AFTER_MS
    return at_ms[0] - starts(at_ms[0]) <= usual


def resample(
    candles: Candles, interval: str, *, keep_partial: bool = False, known_ms: int = 0, utc_days: bool = False
) -> Candles:
    """Make longer candles from shorter ones, on the UTC grid. The input must be sorted and without duplicates.

    Days of a market with trading hours are its trading days, in New York from evening to evening, so that the
    post-market of a Friday in winter, which is Saturday in UTC, belongs to Friday. A market whose candles go on over
    weekends has days of UTC, and so has any with `utc_days`. A gap inside a longer candle is ignored. The first and
    the last longer candle are left out if the data do not cover their start or end, unless `keep_partial`. Up to
    `known_ms` missing short candles count as gaps.
    """
    step, base = INTERVAL_MS[interval], candles.step_ms
    if step == base:
        return candles
    if step < base:
        raise ConfigError(
            f"{candles.market}: {interval} candles cannot be made of {candles.interval} candles; finer data are needed"
        )
    at_ms, opens, highs, lows, closes, volumes = candles.columns
    out: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in COLUMNS[1:]))
    first, count = 0, len(candles)
    sessions = sessions_of(candles) if step == DAY_MS and not utc_days else None
    starts = _starts(base, step, sessions)
    while first < count:
        start = starts(at_ms[first])
        last = bisect_left(at_ms, start + step, first, min(count, first + step // base + 1))
        is_begun = first > 0 or at_ms[0] == start or (sessions is not None and _begins_as_usual(at_ms, last, starts))
        whole = is_begun and (last < count or at_ms[-1] + base == start + step or start + step <= known_ms)
        if whole or keep_partial:
            out[0].append(start)
            out[1].append(opens[first])
            out[2].append(max(highs[first:last]))
            out[3].append(min(lows[first:last]))
            out[4].append(closes[last - 1])
            # Exactly rounded, so the same on every Python.
            out[5].append(math.fsum(volumes[first:last]))
        first = last
    at, o, h, low, c, v = out
    return Candles(candles.market, interval, at, o, h, low, c, v)


def chosen(
    candles: Iterable[Candles], start_ms: int | None, longest_ms: Mapping[str, int]
) -> tuple[list[Candles], list[str]]:
    """For each market the candles that a backtest uses, and a sentence about those that it leaves out.

    A backtest uses one interval of a market: the shortest that covers `start_ms`, or the shortest of all if no start
    is given. `longest_ms` is the shortest interval that strategies need of a market: longer candles are of no use.
    """
    by_market: dict[str, list[Candles]] = {}
    for candidate in sorted(candles, key=lambda candidate: candidate.step_ms):
        by_market.setdefault(candidate.market, []).append(candidate)
    used, left = [], []
    for market, series in sorted(by_market.items()):
        usable = [
            candidate for candidate in series if candidate.step_ms <= longest_ms.get(market, candidate.step_ms)
        ] or series[:1]
        covering = [
            candidate
            for candidate in usable
            if start_ms is None or min(candidate.at_ms) <= start_ms < max(candidate.at_ms) + candidate.step_ms
        ]
        taken = (
            covering[0] if covering else min(usable, key=lambda candidate: (min(candidate.at_ms), candidate.step_ms))
        )
        used.append(taken)
        left += [
            line for candidate in usable if candidate is not taken and (line := _left_out(candidate, taken)) is not None
        ]
    return used, left


def _left_out(other: Candles, taken: Candles) -> str | None:
    """A sentence about candles of another interval that a backtest does not use; None if they add nothing."""
    first, last = min(other.at_ms), max(other.at_ms) + other.step_ms
    began, ended = min(taken.at_ms), max(taken.at_ms) + taken.step_ms
    if other.step_ms > taken.step_ms and first > began - other.step_ms and last < ended + other.step_ms:
        return None
    mine = f"its {taken.interval} candles of {iso(began)[:16]} to {iso(ended)[:16]}"
    theirs = f"the {other.interval} candles of {iso(first)[:16]} to {iso(last)[:16]} are left out"
    is_earlier = other.step_ms < taken.step_ms or first < began
    way = f"--from {iso(first)[:16]}" if is_earlier else "--data with their file"
    return f"{other.market}: {theirs}: a backtest uses one interval of a market, here {mine}; {way} uses them"


def drivers(candles: Iterable[Candles]) -> list[Candles]:
    """For each market the candles with the shortest interval. They set the prices of a backtest."""
    best: dict[str, Candles] = {}
    for candle in candles:
        if candle.market not in best or candle.step_ms < best[candle.market].step_ms:
            best[candle.market] = candle
    return [best[market] for market in sorted(best)]

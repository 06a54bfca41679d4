"""Builders of bars for tests of strategies: closes by hand, by rule or by a seed, and candles from them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from datetime import UTC, date, datetime
from random import Random
from typing import Any, Final

from bot.backtest.data.candles import Candles
from bot.clock import ms_of
from bot.wire.vocabulary import INTERVAL_MS

START: Final = "2026-01-01"
VOLUME: Final = 100.0
# significant figures of a computed price
FIGURES: Final = 8

Bar = float | tuple[float, float, float, float]


def bars(
    closes: Iterable[Bar],
    *,
    market: str = "BTC",
    interval: str = "1m",
    start: str | date = START,
    volume: float = VOLUME,
) -> Candles:
    """Candles, one for each item: a close, or (open, high, low, close) for a bar with wicks or a gap.

    A bar that is given by its close opens at the close before it; its high and low are the greater and the smaller of
    both. `start` is an ISO time, a date or a datetime; without a time zone it is UTC.
    """
    if interval not in INTERVAL_MS:
        raise ValueError(f"interval {interval!r} is not known; there are {', '.join(INTERVAL_MS)}")
    moment = datetime.fromisoformat(str(start))
    at_ms = ms_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    if at_ms % INTERVAL_MS[interval]:
        raise ValueError(f"start {start!r} is not the beginning of a {interval} bar")
    columns: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in range(5)))
    before: float | None = None
    for number, given in enumerate(closes):
        row = _row(given, before, number)
        for column, value in zip(columns, (at_ms + number * INTERVAL_MS[interval], *row, volume), strict=True):
            column.append(value)
        before = row[3]
    if before is None:
        raise ValueError("bars needs at least one close")
    at, opens, highs, lows, closing, volumes = columns
    return Candles(market, interval, at, opens, highs, lows, closing, volumes)


def _row(given: Bar, before: float | None, number: int) -> tuple[float, float, float, float]:
    """Open, high, low and close of a bar. `before` is the close before it."""
    if isinstance(given, tuple):
        if len(given) != 4:
            raise ValueError(f"bar {number} has {len(given)} values; give (open, high, low, close)")
        opened, high, low, close = given
    else:
        close = given
        opened = close if before is None else before
        high, low = max(opened, close), min(opened, close)
    if not (0 < low <= min(opened, close) and max(opened, close) <= high < math.inf):
        raise ValueError(
            f"bar {number}: open {opened}, high {high}, low {low}, close {close}: prices are above 0, the high is the"
            " highest and the low the lowest"
        )
    return float(opened), float(high), float(low), float(close)


def flat(px: float, count: int) -> list[float]:
    """`count` closes at one price."""
    return [px] * count


def ramp(start: float, end: float, count: int) -> list[float]:
    """`count` closes in equal steps from `start`, which is not one of them, to `end`, which is the last."""
    return [_price(start + (end - start) * step / count) for step in range(1, count + 1)]


def wave(middle: float, swing: float, bars_a_cycle: int, count: int) -> list[float]:
    """`count` closes on a sine around `middle`: up by `swing` first, then down by it, once in each cycle."""
    return [_price(middle + swing * math.sin(2 * math.pi * step / bars_a_cycle)) for step in range(1, count + 1)]


def walk(px: float, count: int, *, seed: int = 1, volatility: float = 0.001) -> list[float]:
    """`count` closes of a random walk from `px`.

    `volatility` is the standard deviation of a bar's return; equal seeds give equal closes.
    """
    chance = Random(seed)
    closes = []
    for _ in range(count):
        px *= math.exp(chance.gauss(0, volatility))
        closes.append(_price(px))
    return closes


def _price(px: float) -> float:
    return float(f"{px:.{FIGURES}g}")

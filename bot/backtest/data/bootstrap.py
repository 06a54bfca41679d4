"""Other histories of the same markets: candles made of random blocks of the recorded ones, by the stationary bootstrap.

A block has a random start and a geometric length (Politis and Romano, The Stationary Bootstrap, Journal of the American Statistical Association 89, 1994).
Each candle takes the moves of its source from the close before it: open, high, low and close relative to that close, and the volume. All markets take the
same blocks, so that they keep moving together. The instants, and so gaps and closed hours, are those of the recorded candles.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from bot.backtest.data.candles import Candles

DIGITS: Final = 8  # significant digits of a price


def bootstrapped(candles: Sequence[Candles], start_ms: int, end_ms: int, *, block_ms: int, seed: str) -> list[Candles]:
    """The candles with another history from `start_ms` to `end_ms` (exclusive). Earlier candles stay, later ones are left out.

    `block_ms` is the mean length of a block.
    """
    step_ms = max(series.step_ms for series in candles)
    blocks = list(_blocks(start_ms, end_ms, step_ms, block_ms / step_ms, Random(f"{seed}:bootstrap")))
    return [_made(series, start_ms, end_ms, blocks) for series in candles]


def _blocks(start_ms: int, end_ms: int, step_ms: int, mean: float, chance: Random) -> Iterator[tuple[int, int]]:
    """For each block where it begins, and where its source begins."""
    steps, at_ms = (end_ms - start_ms) // step_ms, start_ms
    while at_ms < end_ms:
        yield at_ms, start_ms + step_ms * chance.randrange(steps)
        bars = 1 if mean <= 1 else 1 + int(math.log(1 - chance.random()) / math.log(1 - 1 / mean))
        at_ms += step_ms * bars


def _made(series: Candles, start_ms: int, end_ms: int, blocks: Sequence[tuple[int, int]]) -> Candles:
    at_ms, opens, highs, lows, closes, volumes = series.columns
    first = bisect_left(at_ms, start_ms)
    last = bisect_left(at_ms, end_ms)
    lowest = max(first, 1)  # A candle without one before it has no move.
    if last - lowest < 1:
        return series.slice(None, end_ms)
    columns: tuple[Any, ...] = tuple(column[:last] for column in series.columns)
    begins, span_ms = [begin for begin, _ in blocks], end_ms - start_ms
    for row in range(lowest, last):
        begin_ms, source_ms = blocks[max(0, bisect_right(begins, at_ms[row]) - 1)]
        wanted_ms = start_ms + (source_ms + at_ms[row] - begin_ms - start_ms) % span_ms
        source = bisect_left(at_ms, wanted_ms, lowest, last)
        source = lowest if source == last else source  # After the last candle the first one follows.
        scale = columns[4][row - 1] / closes[source - 1]
        for column, values in zip(columns[1:5], (opens, highs, lows, closes), strict=True):
            column[row] = float(f"{values[source] * scale:.{DIGITS}g}")
        columns[5][row] = volumes[source]
    return Candles(series.market, series.interval, *columns)

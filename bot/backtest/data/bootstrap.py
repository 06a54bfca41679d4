"""Other histories of the same markets: candles made of random blocks of the recorded ones, by the stationary bootstrap.

A block has a random start and a geometric length (Politis and Romano, The Stationary Bootstrap, Journal of the American
Statistical Association 89, 1994). Starts and lengths count candles, not hours: the night of an exchange has no candles,
so no block begins in it, and the
candle before it is followed by the one after it. Each candle takes the moves of its source from the close before it:
open, high, low and close relative to that close, and the volume. All markets take the same blocks, so that they keep
moving together. The instants, and so gaps and closed hours, are those of the recorded candles.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from bot.backtest.data.candles import Candles

# significant digits of a price
DIGITS: Final = 8


def bootstrapped(candles: Sequence[Candles], start_ms: int, end_ms: int, *, block_ms: int, seed: str) -> list[Candles]:
    """The candles with another history from `start_ms` to `end_ms` (exclusive). Earlier candles stay, later ones are
    left out.

    `block_ms` is the mean length of a block, in time with candles.
    """
    slots = _slots(candles, start_ms, end_ms)
    blocks = list(_blocks(len(slots), block_ms / _step_ms(candles), Random(f"{seed}:bootstrap")))
    sources = _sources(slots, blocks)
    return [_resampled(series, start_ms, end_ms, sources, _step_ms(candles), seed) for series in candles]


def observed_ms(candles: Sequence[Candles], start_ms: int, end_ms: int) -> int:
    """How much of a span has a candle of at least one market."""
    return len(_slots(candles, start_ms, end_ms)) * _step_ms(candles)


def _step_ms(candles: Sequence[Candles]) -> int:
    return max(series.step_ms for series in candles)


def _slots(candles: Sequence[Candles], start_ms: int, end_ms: int) -> list[int]:
    """The spans, each of the longest candle, in which at least one market has a candle: when they begin."""
    step_ms = _step_ms(candles)
    return sorted(
        {
            at - at % step_ms
            for series in candles
            for at in series.at_ms[bisect_left(series.at_ms, start_ms) : bisect_left(series.at_ms, end_ms)]
        }
    )


def _blocks(slots: int, mean: float, chance: Random) -> Iterator[tuple[int, int]]:
    """For each block the number of its first slot, and of the first slot of its source."""
    at = 0
    while at < slots:
        yield at, chance.randrange(slots)
        at += 1 if mean <= 1 else 1 + int(math.log(1 - chance.random()) / math.log(1 - 1 / mean))


def _sources(slots: Sequence[int], blocks: Sequence[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """For each slot, the slot whose candles it takes, and the number of its block. The first slot follows the last."""
    ends = [*(begin for begin, _ in blocks[1:]), len(slots)]
    return {
        slots[at]: (slots[(source + at - begin) % len(slots)], number)
        for number, ((begin, source), end) in enumerate(zip(blocks, ends, strict=True))
        for at in range(begin, end)
    }


def _resampled(
    series: Candles, start_ms: int, end_ms: int, sources: Mapping[int, tuple[int, int]], step_ms: int, seed: str
) -> Candles:
    at_ms, opens, highs, lows, closes, volumes = series.columns
    last = bisect_left(at_ms, end_ms)
    # A candle without one before it has no move.
    lowest = max(bisect_left(at_ms, start_ms), 1)
    if last - lowest < 1:
        return series.slice(None, end_ms)
    columns: tuple[Any, ...] = tuple(column[:last] for column in series.columns)
    rows = {at: row for row, at in enumerate(at_ms[lowest:last], lowest)}
    # If a market has no candle at the source time (it was closed, or there is a gap), it takes consecutive candles of
    # its own, from a random place.
    chance, run, run_block = Random(f"{seed}:{series.market}:{series.interval}"), lowest, -1
    for row in range(lowest, last):
        slot_ms = at_ms[row] - at_ms[row] % step_ms
        source_ms, block = sources[slot_ms]
        source = rows.get(source_ms + at_ms[row] - slot_ms)
        if source is None:
            run = run + 1 if run_block == block else chance.randrange(lowest, last)
            source = run = run if run < last else lowest
            run_block = block
        else:
            run_block = -1
        scale = columns[4][row - 1] / closes[source - 1]
        for column, values in zip(columns[1:5], (opens, highs, lows, closes), strict=True):
            column[row] = float(f"{values[source] * scale:.{DIGITS}g}")
        columns[5][row] = volumes[source]
    return Candles(series.market, series.interval, *columns)

"""The candles of the comparison with freqtrade: a seeded walk with quiet and busy hours."""

from __future__ import annotations

import math
from random import Random

COUNT = 4_000
# 2025-01-01T00:00Z
START_MS = 1_735_689_600_000
STEP_MS = 300_000

Row = tuple[int, float, float, float, float, float]


def candles(count: int = COUNT, seed: int = 7) -> list[Row]:
    """Start in unix ms, open, high, low, close, volume. Prices have two decimals."""
    chance = Random(seed)
    rows: list[Row] = []
    px, drift = 50_000.0, 0.0
    for number in range(count):
        busy = 1 + 0.7 * math.sin(number / 90)
        drift = 0.97 * drift + chance.gauss(0, 0.00025)
        path = [px]
        for _ in range(4):
            path.append(path[-1] * (1 + drift / 4 + busy * chance.gauss(0, 0.0009)))
        opened, closed = round(path[0], 2), round(path[-1], 2)
        high, low = (
            round(max(path) * (1 + chance.random() * 0.0003), 2),
            round(min(path) * (1 - chance.random() * 0.0003), 2),
        )
        volume = round(10 * busy * math.exp(chance.gauss(0, 0.4)), 3)
        rows.append((START_MS + number * STEP_MS, opened, high, low, closed, volume))
        px = closed
    return rows

"""Candles given bar by bar, and candles of a constant price."""

from __future__ import annotations

from array import array

from bot.backtest.data.candles import Candles
from tests.backtest.builders import MINUTE_MS, START_MS


def candles(*rows: tuple[float, float, float, float], market: str = "BTC") -> Candles:
    at = array("q", [START_MS + n * MINUTE_MS for n in range(len(rows))])
    return Candles(
        market, "1m", at, *(array("d", column) for column in zip(*rows, strict=True)), array("d", [100.0] * len(rows))
    )


FLAT = (100_000.0, 100_000.0, 100_000.0, 100_000.0)

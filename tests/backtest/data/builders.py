"""Candles of a price that rises by a seventh a minute, for the store of candles."""

from __future__ import annotations

from array import array

from bot.backtest.data.candles import Candles

# 2025-01-01
START = 1_735_689_600_000


MINUTE = 60_000


def candles(first: int, last: int, *, market: str = "BTC", shift: float = 0.0) -> Candles:
    at = array("q", (START + n * MINUTE for n in range(first, last)))
    px = array("d", (100.0 + n / 7 + shift for n in range(first, last)))
    return Candles(market, "1m", at, px, px, px, px, array("d", (n * 1e-7 for n in range(first, last))))

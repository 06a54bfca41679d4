"""Candles of a minute and an hour from prices and trades; all others are made from these."""

from __future__ import annotations

from collections import deque
from typing import Final

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS
from bot.local_exchange.engine.state import Coin, Exchange
from bot.local_exchange.engine.venue_rules import notional_of

CANDLES_KEPT: Final = 5_000
BASE_INTERVALS: Final = (MINUTE_MS, HOUR_MS)


def count(exchange: Exchange, coin: Coin, px: int, size: int) -> None:
    """Add a price, or a trade of this size at it, to the candles and to the day's volume."""
    day = exchange.now_ms // DAY_MS
    if coin.day_open[0] != day:
        coin.day_open = (day, (coin.day_open[1] and coin.previous_mark) or px)
        coin.day_volume = [day, 0, 0]
    for interval in BASE_INTERVALS:
        candles = coin.candles.setdefault(interval, deque(maxlen=CANDLES_KEPT))
        opened = exchange.now_ms - exchange.now_ms % interval
        if not candles or candles[-1][0] != opened:
            candles.append([opened, px, px, px, px, 0, 0])
        candle = candles[-1]
        candle[2], candle[3], candle[4] = max(candle[2], px), min(candle[3], px), px
        if size:
            candle[5] += size
            candle[6] += 1
    coin.day_volume[1] += notional_of(px, size)
    coin.day_volume[2] += size

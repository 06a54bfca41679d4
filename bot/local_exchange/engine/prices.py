"""Prices that move by themselves: a seeded random walk, or recorded candles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, sqrt
from random import Random
from typing import Final, Protocol

from bot.clock import DAY_MS, SECOND_MS
from bot.local_exchange.engine.venue_rules import VenueMarket

STEP_MS: Final = 3 * SECOND_MS
DAY_VOLATILITY: Final = 0.03
# The points of a candle: open, the two extremes, close.
POINTS: Final = 4


class Prices(Protocol):
    """New prices at an instant, as (coin, price)."""

    def take(self, now_ms: int) -> Iterator[tuple[str, int]]: ...


class SimulatedPrices:
    """A random walk for each market, with a stream of chance of its own, so that one market's path does not depend on
    the others.
    """

    def __init__(self, seed: int, markets: dict[str, VenueMarket]) -> None:
        self._markets = markets
        self._exact = {coin: float(market.mark) for coin, market in markets.items()}
        self._chance = {coin: Random(f"{seed}:prices:{coin}") for coin in markets}
        self._deviation = DAY_VOLATILITY * sqrt(STEP_MS / DAY_MS)

    def take(self, now_ms: int) -> Iterator[tuple[str, int]]:
        for coin, market in self._markets.items():
            self._exact[coin] *= exp(self._chance[coin].gauss(0.0, self._deviation))
            yield coin, max(market.grid_down(int(self._exact[coin])), market.tick(int(self._exact[coin]) or 1))


class RecordedPrices:
    """Candles (open time, open, high, low, close) of one market, each walked through open, the nearer extreme, the
    other, close.
    """

    def __init__(
        self, coin: str, market: VenueMarket, candles: Sequence[tuple[int, int, int, int, int]], start_ms: int
    ) -> None:
        self._coin, self._market, self._candles = coin, market, candles
        self._length_ms = candles[1][0] - candles[0][0] if len(candles) > 1 else STEP_MS * POINTS
        self._start_ms = start_ms
        self._last = 0

    def take(self, now_ms: int) -> Iterator[tuple[str, int]]:
        at, inside = divmod(now_ms - self._start_ms, self._length_ms)
        if not 0 <= at < len(self._candles):
            return
        _, opened, high, low, close = self._candles[at]
        extremes = (low, high) if close >= opened else (high, low)
        px = (opened, *extremes, close)[min(POINTS - 1, inside * POINTS // self._length_ms)]
        px = self._market.grid_down(px)
        if px != self._last:
            self._last = px
            yield self._coin, px

"""Simulated prices: a regime-switching walk over days, refined downward into finer candles. Seeded, and free of the order in which it is asked.

A day's return comes from a regime (calm, normal, wild; sticky, with now and then a jump). Each candle is then split into its finer
ones by a multiplicative cascade: the shares of variance are uneven and inherited, so quiet and busy hours cluster, and the first open,
last close, extremes and volume of the parts are exactly those of the whole. So the six intervals agree wherever they overlap, any
candle is a function of (seed, coin, start, interval, time) alone, and a restart goes on with the same prices without having stored any.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from random import Random
from typing import Final, NamedTuple

from bot.venue.state import Market
from bot.wire.vocabulary import INTERVAL_MS

DAY_MS: Final = INTERVAL_MS["1d"]
LADDER: Final = ("1d", "4h", "1h", "15m", "5m", "1m")
KEPT_BLOCKS: Final = 600  # refined blocks kept a market: the last days and hours are asked for again and again
HISTORY_DAYS: Final = 1_002  # so that 1,000 daily candles are past at the start
POINT_OFFSETS_MS: Final = (0, 20_000, 40_000, 59_999)

# (standard deviation relative to the market's own, drift a day, chance to stay)
REGIMES: Final = ((0.55, 0.0006, 0.93), (1.0, 0.0, 0.90), (1.9, -0.001, 0.82))
JUMP_CHANCE: Final = 0.03
JUMP_SIZE: Final = 2.5  # standard deviations
PRICE_FACTOR_MAX: Final = 20.0  # a simulated price stays within 20 times of where it was listed


class Candle(NamedTuple):
    """A candle on the market's grid, amounts scaled 1e8. `ts` is its open time."""

    ts: int
    open: int
    high: int
    low: int
    close: int
    volume: int


class SimulatedMarket:
    """The candles of one simulated market, in the past and in the future of any instant."""

    def __init__(self, market: Market, *, seed: int, px: int, start_ms: int, daily_vol: float, day_usd: int) -> None:
        self._market = market
        self.lot = market.lot
        self._seed = seed
        self._coin = market.spec.coin
        self._vol = daily_vol
        self._volume = day_usd
        self._px = px
        self._first_day = start_ms // DAY_MS * DAY_MS - HISTORY_DAYS * DAY_MS
        self._days: list[Candle] = []
        self._blocks: OrderedDict[tuple[str, int], list[Candle]] = OrderedDict()
        self._walk = self._random("walk", 0)
        self._regime = 1
        # The walk is scaled so that the day of the start opens near the listed price.
        self._last_close = px
        history = self._make_days(HISTORY_DAYS)
        factor = px / history[-1].close
        grid = self._grid
        self._days = [
            Candle(
                c.ts,
                grid(round(c.open * factor)),
                grid(round(c.high * factor)),
                grid(round(c.low * factor)),
                grid(round(c.close * factor)),
                c.volume,
            )
            for c in history
        ]
        self._heal(self._days)
        self._last_close = self._days[-1].close

    def candles(self, interval: str, first_ms: int, until_ms: int) -> list[Candle]:
        """Candles with first_ms <= ts < until_ms, oldest first."""
        step = INTERVAL_MS[interval]
        at = max(first_ms, self._first_day)
        at += -at % step
        found: list[Candle] = []
        while at < until_ms:
            block = self._block(interval, at)
            found.extend(c for c in block if at <= c.ts < until_ms)
            at = block[-1].ts + step
        return found

    def minute(self, ts: int) -> Candle:
        """The minute candle that opens at `ts`."""
        block = self._block("1m", ts)
        return block[(ts - block[0].ts) // 60_000]

    # ── Days ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _day(self, ts: int) -> Candle:
        index = (ts - self._first_day) // DAY_MS
        missing = index + 1 - len(self._days)
        if missing > 0:
            self._days.extend(self._make_days(missing))
        return self._days[index]

    def _make_days(self, count: int) -> list[Candle]:
        made: list[Candle] = []
        at = self._first_day + len(self._days) * DAY_MS
        chance = self._walk
        for _ in range(count):
            scale, drift, stay = REGIMES[self._regime]
            if chance.random() > stay:
                self._regime = chance.choice([r for r in range(3) if r != self._regime])
            sigma = self._vol * scale
            move = drift + sigma * _normal(chance)
            if chance.random() < JUMP_CHANCE:
                move += sigma * JUMP_SIZE * (1 if chance.random() < 0.5 else -1)
            pull = math.log(self._last_close / self._px)
            move -= 0.02 * pull if abs(pull) < math.log(PRICE_FACTOR_MAX) else 0.5 * pull
            opened = self._last_close
            close = self._grid(round(opened * math.exp(max(-0.5, min(0.5, move)))))
            reach_up, reach_down = (abs(_normal(chance)) * sigma * 0.5 for _ in range(2))
            high = self._market.grid_up(round(max(opened, close) * math.exp(reach_up)))
            low = max(self._market.grid_down(round(min(opened, close) * math.exp(-reach_down))), self._market.ticks[1])
            activity = math.exp(0.35 * _normal(chance)) * (0.6 + 0.6 * scale)
            volume = round(self._volume * activity * 100_000_000 / close) * 100_000_000
            made.append(
                Candle(at, opened, max(high, opened, close), min(low, opened, close), close, self._lots(volume))
            )
            self._last_close = close
            at += DAY_MS
        return made

    def _heal(self, days: list[Candle]) -> None:
        """After scaling to the grid: opens meet the closes before them, extremes contain the rest."""
        close: int | None = None
        for index, day in enumerate(days):
            opened = day.open if close is None else close
            days[index] = day._replace(
                open=opened, high=max(day.high, opened, day.close), low=max(1, min(day.low, opened, day.close))
            )
            close = day.close

    # ── Refinement ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _block(self, interval: str, ts: int) -> list[Candle]:
        """All candles of `interval` inside the next coarser candle that holds `ts`."""
        level = LADDER.index(interval)
        if level == 0:
            return [self._day(ts // DAY_MS * DAY_MS)]
        parent_interval = LADDER[level - 1]
        span = INTERVAL_MS[parent_interval]
        start = ts // span * span
        key = (interval, start)
        block = self._blocks.get(key)
        if block is None:
            parents = self._block(parent_interval, start)
            parent = parents[(start - parents[0].ts) // span]
            block = self._refine(parent, interval, span // INTERVAL_MS[interval])
            self._blocks[key] = block
            if len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return block

    def _refine(self, parent: Candle, interval: str, parts: int) -> list[Candle]:
        """Split a candle so that the parts make up the whole again, to the last unit."""
        chance = self._random(interval, parent.ts)
        grid, low, high = self._grid, parent.low, parent.high
        step = INTERVAL_MS[interval]
        span = math.log(high / low) if high > low else 0.0
        # A bridge from open to close; uneven shares of variance make busy and quiet parts.
        shares = [math.exp(0.4 * _normal(chance)) for _ in range(parts)]
        total = sum(shares)
        closes: list[int] = []
        at, end, left = math.log(parent.open), math.log(parent.close), total
        for index, share in enumerate(shares):
            if index == parts - 1:
                closes.append(parent.close)
                break
            pull = (end - at) * share / left
            noise = span * 0.75 * math.sqrt(share / total * (left - share) / left) * _normal(chance)
            at += pull + noise
            at = min(max(at, math.log(low)), math.log(high))
            left -= share
            px = grid(round(math.exp(at)))
            closes.append(min(max(px, low), high))
        opens = [parent.open, *closes[:-1]]
        highs = [max(o, c) for o, c in zip(opens, closes, strict=True)]
        lows = [min(o, c) for o, c in zip(opens, closes, strict=True)]
        for index, share in enumerate(shares):
            reach = span * 0.35 * math.sqrt(share / total)
            highs[index] = min(high, grid(round(highs[index] * math.exp(reach * abs(_normal(chance))))), high)
            lows[index] = max(low, grid(round(lows[index] * math.exp(-reach * abs(_normal(chance))))))
            highs[index] = max(highs[index], opens[index], closes[index])
            lows[index] = min(lows[index], opens[index], closes[index])
        # The whole candle's extremes belong to the parts that came nearest to them.
        top = max(range(parts), key=highs.__getitem__)
        bottom = min(range(parts), key=lows.__getitem__)
        highs[top], lows[bottom] = high, low
        volumes = self._split(parent.volume, shares)
        return [
            Candle(parent.ts + index * step, opens[index], highs[index], lows[index], closes[index], volumes[index])
            for index in range(parts)
        ]

    def _split(self, volume: int, shares: list[float]) -> list[int]:
        lot = self._market.lot
        lots = volume // lot
        total = sum(shares)
        parts = [int(lots * share / total) for share in shares]
        parts[0] += lots - sum(parts)
        return [part * lot for part in parts]

    def _grid(self, px: int) -> int:
        """The nearest price below on the market's grid, never zero."""
        return self._market.grid_down(max(px, 1)) or self._market.ticks[1]

    def _lots(self, size: int) -> int:
        return size - size % self._market.lot

    def _random(self, kind: str, ts: int) -> Random:
        # Seeded by text, which Python hashes by SHA-512: the same on every machine and under every hash seed.
        return Random(f"{self._seed}:{self._coin}:{kind}:{ts}")


def _normal(chance: Random) -> float:
    """Nearly a normal variate, never beyond six deviations: twelve uniforms, so nothing but sums."""
    draw = chance.random
    return (
        draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() - 6.0
    )


def path_of(candle: Candle) -> tuple[int, int, int, int]:
    """The four points of a candle in the adaptive order: the extreme nearer to the open comes first."""
    if candle.high - candle.open < candle.open - candle.low:
        return candle.open, candle.high, candle.low, candle.close
    return candle.open, candle.low, candle.high, candle.close

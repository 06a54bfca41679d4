"""Simulated prices: a regime-switching walk over days, refined into finer candles. Seeded; the order of requests does
not matter.

Days before the start are made at the first request. A day's return depends on a regime (calm, normal or wild; it tends
to stay), with an occasional jump. While the outside price of a stock is closed, its price hardly moves; it reopens with
a jump. Each candle is split into finer ones by a multiplicative cascade: the shares of variance are uneven and
inherited, so quiet and busy hours cluster. The first open, last close, extremes and volume of the parts are exactly
those of the whole, so the six intervals agree. Paths are reflected at the extremes, because a clamped path would stand
still there. A candle depends only on (seed, coin, start, interval, time), so a restart continues with the same prices
without storing them.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final, NamedTuple

from bot.service.market_data.refinement import DAY_MS, Refinement
from bot.service.market_data.trading_hours import calendar
from bot.venue.model.state import VenueMarket
from bot.wire.vocabulary import INTERVAL_MS

# so that 1,000 daily candles are past at the start
HISTORY_DAYS: Final = 1_002

# (standard deviation relative to the market's own, trend per day, probability of staying)
REGIMES: Final = ((0.55, 0.0006, 0.93), (1.0, 0.0, 0.90), (1.9, -0.001, 0.82))
JUMP_CHANCE: Final = 0.03
# standard deviations
JUMP_SIZE: Final = 2.5
# variance of a span with a closed outside price, relative to an open one
STILL: Final = 0.001
STILL_VOLUME: Final = 0.05
# standard deviation of a reopening's jump, relative to a day's
REOPENING: Final = 0.5
# standard deviation of a reopening's jump inside a candle, relative to the candle's range
REOPENING_INSIDE: Final = 0.25
# standard deviation of the logarithm of a part's share of variance
UNEVEN: Final = 0.4
# standard deviation of a move relative to the mean range (Feller, 1951)
DEVIATION: Final = math.sqrt(math.pi / 8)
# range of a part relative to the range of its share: mean and deviation; the extremes add to it
REACH: Final = (0.8, 0.15)
# a simulated price stays within a factor of 20 of its listed price
PRICE_FACTOR_MAX: Final = 20.0


class GridCandle(NamedTuple):
    """A candle on the market's grid, amounts scaled 1e8. `ts` is its open time."""

    ts: int
    open: int
    high: int
    low: int
    close: int
    volume: int


class _Walk:
    """A walk over days: its position and its regime."""

    def __init__(self, chance: Random, at_ms: int, px: int) -> None:
        self.chance = chance
        self.at_ms = at_ms
        self.px = px
        self.regime = 1


class SimulatedMarket(Refinement[GridCandle]):
    """The candles of one simulated market, in the past and in the future."""

    def __init__(
        self, market: VenueMarket, *, seed: int, px: int, start_ms: int, daily_vol: float, day_usd: int
    ) -> None:
        super().__init__()
        self._market = market
        self.lot = market.lot
        self._seed = seed
        self._coin = market.spec.coin
        self._vol = daily_vol
        self._volume = day_usd
        self._px = px
        self._calendar = None if market.spec.hours is None else calendar(market.spec.hours)
        self._start_day = start_ms // DAY_MS * DAY_MS
        self._first_day = self._start_day - HISTORY_DAYS * DAY_MS
        self._ahead: list[GridCandle] = []
        # the day before the start first
        self._past: list[GridCandle] = []
        self._walk = _Walk(self._random("walk", 0), self._start_day, self._grid(px))
        self._way_back = _Walk(self._random("past", 0), self._start_day, self._grid(px))

    def candles(self, interval: str, first_ms: int, until_ms: int) -> list[GridCandle]:
        """Candles with first_ms <= ts < until_ms, oldest first."""
        step = INTERVAL_MS[interval]
        at = max(first_ms, self._first_day)
        at += -at % step
        bars: list[GridCandle] = []
        while at < until_ms:
            block = self._block(interval, at)
            bars.extend(c for c in block if at <= c.ts < until_ms)
            at = block[-1].ts + step
        return bars

    def minute(self, ts: int) -> GridCandle:
        """The minute candle that opens at `ts`."""
        block = self._block("1m", ts)
        return block[(ts - block[0].ts) // 60_000]

    # ── Days ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _day(self, ts: int) -> GridCandle:
        index = (ts - self._start_day) // DAY_MS
        if index < 0:
            while len(self._past) < -index:
                self._past.append(self._day_before(self._way_back))
            return self._past[-index - 1]
        while len(self._ahead) <= index:
            self._ahead.append(self._day_after(self._walk))
        return self._ahead[index]

    def _day_after(self, walk: _Walk) -> GridCandle:
        at, opened = walk.at_ms, walk.px
        move, sigma, activity = self._mood(walk, at)
        move -= self._pull(opened)
        if at != self._start_day:
            opened = self._gapped(walk, at, opened)
        close = self._grid(round(opened * math.exp(max(-0.5, min(0.5, move)))))
        walk.px, walk.at_ms = close, at + DAY_MS
        return self._whole(walk.chance, at, opened, close, sigma, activity)

    def _day_before(self, walk: _Walk) -> GridCandle:
        """The same walk backward; its prices also tend to the listed price."""
        at = walk.at_ms - DAY_MS
        close = self._gapped(walk, walk.at_ms, walk.px) if walk.at_ms != self._start_day else walk.px
        move, sigma, activity = self._mood(walk, at)
        move += self._pull(close)
        opened = self._grid(round(close * math.exp(-max(-0.5, min(0.5, move)))))
        walk.px, walk.at_ms = opened, at
        return self._whole(walk.chance, at, opened, close, sigma, activity)

    def _mood(self, walk: _Walk, at: int) -> tuple[float, float, float]:
        """(log return, standard deviation, activity) of a day, from its regime and the fraction of the day that the
        outside price is open.
        """
        chance = walk.chance
        scale, trend, stay = REGIMES[walk.regime]
        if chance.random() > stay:
            walk.regime = chance.choice([r for r in range(3) if r != walk.regime])
        sigma = self._vol * scale
        move = trend + sigma * _normal(chance)
        if chance.random() < JUMP_CHANCE:
            move += sigma * JUMP_SIZE * (1 if chance.random() < 0.5 else -1)
        activity = math.exp(0.35 * _normal(chance)) * (0.6 + 0.6 * scale)
        if self._calendar is None:
            return move, sigma, activity
        share = self._calendar.open_ms(at, at + DAY_MS) / DAY_MS
        still = math.sqrt(share + STILL * (1 - share))
        return move * still, sigma * still, activity * (share + STILL_VOLUME * (1 - share))

    def _pull(self, px: int) -> float:
        """The part of a day's return that leads back to the listed price."""
        off = math.log(px / self._px)
        return 0.02 * off if abs(off) < math.log(PRICE_FACTOR_MAX) else 0.5 * off

    def _gapped(self, walk: _Walk, at: int, px: int) -> int:
        """The price after the jump of a reopening, if there is one."""
        if self._calendar is None or not self._calendar.reopens(at):
            return px
        return self._grid(round(px * math.exp(REOPENING * self._vol * _normal(walk.chance))))

    def _whole(self, chance: Random, at: int, opened: int, close: int, sigma: float, activity: float) -> GridCandle:
        reach_up, reach_down = (abs(_normal(chance)) * sigma * 0.5 for _ in range(2))
        high = self._market.grid_up(round(max(opened, close) * math.exp(reach_up)))
        low = max(self._market.grid_down(round(min(opened, close) * math.exp(-reach_down))), self._market.ticks[1])
        volume = round(self._volume * activity * 100_000_000 / close) * 100_000_000
        return GridCandle(at, opened, max(high, opened, close), min(low, opened, close), close, self._lots(volume))

    # ── Refinement ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _refine(self, parent: GridCandle, interval: str, length: int) -> list[GridCandle]:
        """Split a candle so that the parts add up to it exactly."""
        chance = self._random(interval, parent.ts)
        grid, low, high = self._grid, parent.low, parent.high
        floor, top = math.log(low), math.log(high)
        step = INTERVAL_MS[interval]
        parts = length // step
        # A bridge from open to close, reflected at the extremes. Uneven shares of variance make busy and quiet parts.
        shares = [math.exp(UNEVEN * _normal(chance)) for _ in range(parts)]
        reopenings: set[int] = set()
        if self._calendar is not None:
            for index in range(parts):
                ts = parent.ts + index * step
                part = self._calendar.open_ms(ts, ts + step) / step
                shares[index] *= part + STILL * (1 - part)
                if index and part and self._calendar.reopens(ts):
                    reopenings.add(index)
        total = sum(shares)
        span = top - floor
        closes: list[int] = []
        opens = [parent.open]
        at, end, left = math.log(parent.open), math.log(parent.close), total
        for index, share in enumerate(shares):
            if index:
                opened = closes[-1]
                if index in reopenings:
                    at = _thrown_back(at + REOPENING_INSIDE * span * _normal(chance), floor, top)
                    opened = min(max(grid(round(math.exp(at))), low), high)
                opens.append(opened)
            if index == parts - 1:
                closes.append(parent.close)
                break
            pull = (end - at) * share / left
            noise = span * DEVIATION * math.sqrt(share / total * (left - share) / left) * _normal(chance)
            at = _thrown_back(at + pull + noise, floor, top)
            left -= share
            closes.append(min(max(grid(round(math.exp(at))), low), high))
        highs: list[int] = []
        lows: list[int] = []
        for share, opened, close in zip(shares, opens, closes, strict=True):
            upper, lower = max(opened, close), min(opened, close)
            usual = span * math.sqrt(share / total) * (REACH[0] + REACH[1] * _normal(chance))
            beyond = max(usual - math.log(upper / lower), 0.0)
            # The wicks extend where the parent's range leaves space.
            over, under, chosen = top - math.log(upper), math.log(lower) - floor, chance.random()
            rooms = chosen * over + (1 - chosen) * under
            up = beyond * chosen * over / rooms if rooms > 0.0 else 0.0
            highs.append(min(high, max(upper, grid(round(upper * math.exp(up))))))
            lows.append(max(low, min(lower, grid(round(lower * math.exp(up - beyond))))))
        # The parts nearest to the candle's extremes get the extremes.
        most = max(shares)
        # parts that hardly move are left out
        busy = [index for index, share in enumerate(shares) if share * 20 > most]
        highs[max(busy, key=highs.__getitem__)] = high
        lows[min(busy, key=lows.__getitem__)] = low
        volumes = self._split(parent.volume, shares)
        return [
            GridCandle(parent.ts + index * step, opens[index], highs[index], lows[index], closes[index], volumes[index])
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
    """An approximately normal variate within six deviations: the sum of twelve uniforms, minus 6."""
    draw = chance.random
    return (
        draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw() - 6.0
    )


def _thrown_back(at: float, floor: float, top: float) -> float:
    """The position after reflection at `floor` and `top`."""
    span = top - floor
    if span <= 0.0:
        return floor
    off = (at - floor) % (2 * span)
    return floor + min(off, 2 * span - off)


def path_of(candle: GridCandle) -> tuple[int, int, int, int]:
    """The four points of a candle in the adaptive order: the extreme nearer to the open comes first."""
    if candle.high - candle.open < candle.open - candle.low:
        return candle.open, candle.high, candle.low, candle.close
    return candle.open, candle.low, candle.high, candle.close

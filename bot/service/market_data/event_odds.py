"""Simulated prices of event markets: odds that become certain as information arrives. Seeded; the order of requests
does not matter.

The outcome is drawn first, Yes with the prior's probability. Evidence then arrives as a walk of the log odds, L, in
information time v:
dL = ±dv/2 + dW with the outcome's sign. The price p = 1 / (1 + exp(-L)) is the probability for an observer of the walk,
so it is a martingale: of all markets at p, a share of p is settled Yes. Information arrives slowly far from the end and
fast near it. At the end the walk is absorbed. Finer candles are Brownian bridges inside coarser ones in that same time,
so that the six intervals agree.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final, NamedTuple

from bot.service.market_data.refinement import DAY_MS, Refinement
from bot.service.market_data.simulator import HISTORY_DAYS, GridCandle
from bot.venue.model.numbers import E8
from bot.venue.model.outcome import PX_MAX, PX_MIN
from bot.wire.vocabulary import INTERVAL_MS

HOUR_MS: Final = INTERVAL_MS["1h"]
# time before the end in which little information arrives
HORIZON_HOURS: Final = 720.0
LAST_HOURS: Final = 0.2
PAST_PACE: Final = 0.05
# information of the last half minute, after which the outcome is nearly certain
LAST_MINUTES: Final = 20.0


class Stretch(NamedTuple):
    """A candle's log odds. `ts` is its open time."""

    ts: int
    open: float
    high: float
    low: float
    close: float
    lots: int


class EventOdds(Refinement[Stretch]):
    """The candles of one event market up to its end. `pace`: how much information arrives before the last hour."""

    lot = E8

    def __init__(
        self, *, coin: str, seed: int, prior: int, start_ms: int, expires_ms: int, pace: float, day_usd: int
    ) -> None:
        super().__init__()
        assert expires_ms % INTERVAL_MS["1m"] == 0
        self._coin, self._seed, self._pace = coin, seed, pace
        self.expires_ms = expires_ms
        self._lots = day_usd * 2
        self._start_day = start_ms // DAY_MS * DAY_MS
        self._first_day = self._start_day - HISTORY_DAYS * DAY_MS
        self._begun = self._known(self._start_day)
        self._origin = self._raw(self._first_day)
        first = self._random("walk", 0)
        chance = prior / E8
        self._way = 1 if first.random() < chance else -1
        self.outcome = E8 if self._way > 0 else 0
        self._prior = math.log(chance / (1 - chance))
        v = self._information(self._start_day)
        self._anchor = self._prior + self._way * v / 2 + math.sqrt(v) * first.gauss(0, 1)
        self._walk = first
        self._ahead: list[Stretch] = []
        self._past: list[Stretch] | None = None

    def candles(self, interval: str, first_ms: int, until_ms: int) -> list[GridCandle]:
        """Candles with first_ms <= ts < until_ms, oldest first."""
        step = INTERVAL_MS[interval]
        at = max(first_ms, self._first_day)
        at += -at % step
        until_ms = min(until_ms, self.expires_ms)
        bars: list[GridCandle] = []
        while at < until_ms:
            block = self._block(interval, at)
            bars.extend(self._candle(s, step) for s in block if at <= s.ts < until_ms)
            at = block[-1].ts + step
        return bars

    def minute(self, ts: int) -> GridCandle:
        """The minute candle that opens at `ts`."""
        block = self._block("1m", ts)
        return self._candle(block[(ts - block[0].ts) // 60_000], 60_000)

    def _candle(self, s: Stretch, step: int) -> GridCandle:
        opened, high, low, close = _px(s.open), _px(s.high), _px(s.low), _px(s.close)
        # The last price of the market is the outcome.
        if s.ts + step >= self.expires_ms:
            close = PX_MAX if self._way > 0 else PX_MIN
            high, low = max(high, close), min(low, close)
        return GridCandle(s.ts, opened, high, low, close, s.lots * E8)

    # ── Information ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _raw(self, at_ms: int) -> float:
        if at_ms >= self._start_day:
            return self._known(at_ms)
        # Little information arrives before the listing, so that a market opens near its prior.
        return self._begun - PAST_PACE * math.log1p((self._start_day - at_ms) / DAY_MS)

    def _known(self, at_ms: int) -> float:
        hours = max(0, self.expires_ms - at_ms) / HOUR_MS
        return self._pace * math.log1p(HORIZON_HOURS / (hours + LAST_HOURS)) + LAST_MINUTES / (60 * hours + 0.5)

    def _information(self, at_ms: int) -> float:
        """The information since the beginning: the variance of the log odds."""
        return self._raw(at_ms) - self._origin

    # ── Days ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _day(self, ts: int) -> Stretch:
        index = (ts - self._start_day) // DAY_MS
        if index < 0:
            if self._past is None:
                self._past = self._make_past()
            return self._past[index]
        while len(self._ahead) <= index:
            at = self._start_day + len(self._ahead) * DAY_MS
            before = self._ahead[-1].close if self._ahead else self._anchor
            v = self._raw(at + DAY_MS) - self._raw(at)
            close = before + self._way * v / 2 + math.sqrt(v) * self._walk.gauss(0, 1)
            self._ahead.append(self._stretch(at, before, close, v, self._walk))
        return self._ahead[index]

    def _make_past(self) -> list[Stretch]:
        """Make the days before the start: a bridge from the prior to the odds at the start."""
        chance = self._random("past", 0)
        stretches: list[Stretch] = []
        before, at = self._prior, self._first_day
        left = self._information(self._start_day)
        while at < self._start_day:
            v = self._raw(at + DAY_MS) - self._raw(at)
            if at + DAY_MS >= self._start_day:
                close = self._anchor
            else:
                spread = math.sqrt(max(0.0, v * (left - v) / left))
                close = before + (self._anchor - before) * v / left + spread * chance.gauss(0, 1)
            stretches.append(self._stretch(at, before, close, v, chance))
            before, at, left = close, at + DAY_MS, left - v
        return stretches

    def _stretch(self, ts: int, opened: float, close: float, v: float, chance: Random) -> Stretch:
        lots = int(self._lots * math.exp(0.5 * chance.gauss(0, 1)))
        return Stretch(ts, opened, _crest(opened, close, v, chance), -_crest(-opened, -close, v, chance), close, lots)

    # ── Refinement ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _refine(self, parent: Stretch, interval: str, length: int) -> list[Stretch]:
        """Split a stretch with a bridge between its ends. The parts nearest to its extremes get the extremes."""
        chance = self._random(interval, parent.ts)
        step = INTERVAL_MS[interval]
        end = min(parent.ts + length, -(-self.expires_ms // step) * step)
        starts = range(parent.ts, max(end, parent.ts + step), step)
        left = self._raw(parent.ts + length) - self._raw(parent.ts)
        before = parent.open
        stretches: list[Stretch] = []
        for at in starts:
            v = self._raw(at + step) - self._raw(at)
            if at == starts[-1]:
                close = parent.close
            else:
                spread = math.sqrt(max(0.0, v * (left - v) / left)) if left > 0 else 0.0
                pull = (parent.close - before) * v / left if left > 0 else 0.0
                close = min(max(before + pull + spread * chance.gauss(0, 1), parent.low), parent.high)
            high = min(_crest(before, close, v, chance), parent.high)
            low = max(-_crest(-before, -close, v, chance), parent.low)
            stretches.append(Stretch(at, before, high, low, close, 0))
            before, left = close, left - v
        top = max(range(len(stretches)), key=lambda i: stretches[i].high)
        bottom = min(range(len(stretches)), key=lambda i: stretches[i].low)
        stretches[top] = stretches[top]._replace(high=parent.high)
        stretches[bottom] = stretches[bottom]._replace(low=parent.low)
        weights = [chance.random() + 0.2 for _ in stretches]
        total = sum(weights)
        lots = [int(parent.lots * weight / total) for weight in weights]
        lots[0] += parent.lots - sum(lots)
        return [s._replace(lots=n) for s, n in zip(stretches, lots, strict=True)]

    def _random(self, kind: str, ts: int) -> Random:
        return Random(f"{self._seed}:{self._coin}:{kind}:{ts}")


def _crest(a: float, b: float, v: float, chance: Random) -> float:
    """The highest point of a Brownian bridge from a to b over variance v."""
    return (a + b + math.sqrt((b - a) ** 2 - 2 * v * math.log(1.0 - chance.random()))) / 2


def _px(odds: float) -> int:
    """Log odds as a price on the grid of 0.001."""
    thousandths = round(1000 / (1 + math.exp(-max(-30.0, min(30.0, odds)))))
    return max(PX_MIN, min(PX_MAX, thousandths * (E8 // 1000)))

"""Strategies that state their rule by `signals`."""

from __future__ import annotations

import numpy as np

from bot import Field, Params, Strategy, atr, ema, sma
from bot.strategy import BarArrays, Signals, crossed_above


class Cross(Strategy):
    """Long when the fast average crosses the slow one from below, closed when it crosses back."""

    class Params(Params):
        fast_bars: int = Field(10, ge=1)
        slow_bars: int = Field(30, ge=2)
        usd: float = Field(1_000, gt=0)
        stop_pct: float = Field(1, gt=0)
        target_pct: float = Field(2, gt=0)

    fast = sma("fast_bars")
    slow = sma("slow_bars")

    def signals(self, bars: BarArrays) -> Signals:
        p = self.params
        return Signals(
            long=crossed_above(bars.fast, bars.slow),
            close_long=crossed_above(bars.slow, bars.fast),
            usd=p.usd,
            stop_pct=p.stop_pct,
            target_pct=p.target_pct,
        )


class Trend(Strategy):
    """The rule of strategies/trend.py."""

    class Params(Params):
        fast_bars: int = Field(4, ge=2, le=200)
        slow_bars: int = Field(16, ge=3, le=500)
        band_atr: float = Field(0.2, ge=0, le=10)
        usd: float = Field(200, ge=10, le=1_000_000)
        stop_atr: float = Field(2.5, gt=0, le=50)
        target_r: float = Field(1.5, gt=0, le=20)

    lookback = 1
    fast = ema("fast_bars")
    slow = ema("slow_bars")
    range = atr("slow_bars")

    def signals(self, bars: BarArrays) -> Signals:
        p = self.params
        lead = (bars.fast - bars.slow) / bars.range
        far = (np.abs(lead) >= p.band_atr) & (bars.range != 0)
        stop = np.clip(100 * p.stop_atr * bars.range / bars.close, 0.1, 45.0)
        return Signals(
            long=far & (lead > 0),
            short=far & (lead < 0),
            close_long=lead < 0,
            close_short=lead > 0,
            usd=p.usd,
            stop_pct=np.array([round(one, 3) for one in stop.tolist()]),
            target_r=p.target_r,
        )


class Bracketed(Strategy):
    """Every `every` bars, when flat, with the mean of `mean` closes or against it; stop and target are set off the
    close, on a grid of 0.1.
    """

    class Params(Params):
        every: int = Field(ge=1)
        mean: int = Field(ge=1)
        stop: float = Field(gt=0)
        target: float = Field(gt=0)
        first_ms: int = 0
        step_ms: int = 60_000

    lookback = "mean"

    def signals(self, bars: BarArrays) -> Signals:
        p = self.params
        at = (bars.at_ms - p.first_ms) // p.step_ms - 1
        is_turn = (at % p.every == p.every - 1) & (at >= p.mean)
        tenths = np.rint(bars.close * 10).astype(np.int64)
        sums = np.convolve(tenths, np.ones(p.mean, dtype=np.int64))[: len(tenths)]
        is_long = tenths * p.mean > sums
        way = np.where(is_long, 1, -1)
        return Signals(
            long=is_turn & is_long,
            short=is_turn & ~is_long,
            size=1,
            leverage=10,
            stop_px=np.rint(bars.close * (1 - way * p.stop) * 10) / 10,
            target_px=np.rint(bars.close * (1 + way * p.target) * 10) / 10,
        )


class Chance(Strategy):
    """Entries and exits by chance, but the same for the same close: a seed gives the side, the bracket and the size."""

    class Params(Params):
        seed: int = 0
        every: int = Field(20, ge=1)
        # how the bracket is given: pct, px, r, stop
        kind: str = "pct"
        usd: float | None = None
        size: float | None = None
        stop_pct: float = 0.4
        target: float = 0.7
        leverage: int | None = None

    lookback = 1

    def signals(self, bars: BarArrays) -> Signals:
        p = self.params
        drawn = (np.rint(bars.close * 1e4).astype(np.int64) + 7_919 * p.seed) * 2_654_435_761 % 1_000_003
        turn, side = drawn % p.every, drawn // 1_000 % 2
        is_long, is_short = (turn == 0) & (side == 0), (turn == 0) & (side == 1)
        way = np.where(side == 0, 1, -1)
        given = {"usd": p.usd, "size": p.size, "leverage": p.leverage}
        if p.kind == "px":
            given |= {
                "stop_px": bars.close * (1 - way * p.stop_pct / 100),
                "target_px": bars.close * (1 + way * p.target / 100),
            }
        else:
            given["stop_pct"] = p.stop_pct + drawn % 7 / 30
            if p.kind != "stop":
                given["target_pct" if p.kind == "pct" else "target_r"] = p.target
        return Signals(long=is_long, short=is_short, close_long=turn == 1, close_short=turn == 2, **given)


class Forgetful(Strategy):
    """Reads 20 bars and says 2."""

    def signals(self, bars: BarArrays) -> Signals:
        mean = np.convolve(bars.close, np.ones(20) / 20)[: len(bars)]
        return Signals(long=bars.close > mean, close_long=bars.close < mean, usd=100, stop_pct=1)

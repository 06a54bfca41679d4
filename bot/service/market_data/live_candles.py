"""Candles of a market with live prices.

Closed candles are the source's own; the running bar comes from the quotes. A candle never changes after it closed.
"""

from __future__ import annotations

from collections.abc import Sequence

from bot.service.market_data.candles import STEPS, CandleStore, merge
from bot.service.market_data.simulator import GridCandle
from bot.wire.vocabulary import INTERVAL_MS

MINUTE_MS = INTERVAL_MS["1m"]


class LiveCandles(CandleStore):
    """The candles of one live market, and its source in the price feed. The source has no future prices.

    Every minute that closed by `until_ms` is known. At a start, every price before `lived_ms` has been applied.
    """

    base_ms = MINUTE_MS
    # The market's days are those of its exchange.
    sessions: str | None = None

    def __init__(self, lot: int) -> None:
        super().__init__()
        self.lot = lot
        self.until_ms = self.lived_ms = 0
        # bars that began earlier lack minutes
        self.whole_from_ms: int | None = None
        # intervals that have the source's history
        self._with_history: set[str] = set()
        # minutes by their quotes, from `until_ms` on
        self._quoted: list[GridCandle] = []
        # minutes of the running coarse bar
        self._parts: dict[str, list[GridCandle]] = {name: [] for name, _ in STEPS[1:]}

    # ── The source in the feed ──────────────────────────────────────────────────────────────────────────────────────

    def bar_at(self, at_ms: int) -> GridCandle | None:
        return None

    def next_bar(self, after_ms: int) -> GridCandle | None:
        return None

    def closed(self, interval: str, until_ms: int, limit: int) -> list[GridCandle]:
        return []

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def point(self, at_ms: int, px: int, volume: int = 0) -> None:
        """Add a quote at `at_ms`. Quotes have no volume."""
        ts = at_ms - at_ms % MINUTE_MS
        if ts < self.until_ms:
            # The source's clock is ahead of ours, and this minute is already closed.
            return
        if self._quoted and self._quoted[-1].ts == ts:
            last = self._quoted[-1]
            self._quoted[-1] = GridCandle(
                ts, last.open, max(last.high, px), min(last.low, px), px, last.volume + volume
            )
        else:
            self._quoted.append(GridCandle(ts, px, px, px, px, volume))

    def extend(self, minutes: Sequence[GridCandle], until_ms: int) -> list[GridCandle]:
        """Add closed minutes. Returns those that were not known."""
        fresh = [candle for candle in minutes if candle.ts >= self.until_ms]
        if fresh and self.whole_from_ms is None:
            self.whole_from_ms = fresh[0].ts
        for candle in fresh:
            self._end_bars(candle.ts)
            self._closed["1m"].append(candle)
            for parts in self._parts.values():
                parts.append(candle)
        self.until_ms = max(self.until_ms, until_ms)
        self._end_bars(self.until_ms)
        self._quoted = [candle for candle in self._quoted if candle.ts >= self.until_ms]
        return fresh

    def older(self, interval: str, candles: Sequence[GridCandle]) -> int | None:
        """Insert the source's history of a coarse interval before the bars that are made of minutes.

        Returns the end of the bar that is still missing, because it was unfinished or the source left it out; call
        again after it. None: none is.
        """
        from_ms = self.whole_from_ms
        assert from_ms is not None, "the minutes come first"
        end_ms = -(-from_ms // (step := INTERVAL_MS[interval])) * step
        before = [candle for candle in candles if candle.ts + step <= min(end_ms, self.until_ms)]
        closed = self._closed[interval]
        newest = closed.last(1)
        if interval not in self._with_history:
            # An empty answer of an exchange says nothing about its history.
            if before:
                self._with_history.add(interval)
                closed.prepend(before)
        # A later bar has been read, so no earlier bar may come.
        elif newest and newest[0].ts >= end_ms:
            return None
        else:
            for candle in before:
                if not newest or candle.ts > newest[0].ts:
                    closed.append(candle)
        is_whole = end_ms == from_ms or any(candle.ts == end_ms - step for candle in before)
        return None if is_whole else end_ms

    def _end_bars(self, at_ms: int) -> None:
        """Close the coarse bars that end at or before an instant.

        A bar that began before the first known minute comes from `older`.
        """
        for name, parts in self._parts.items():
            step = INTERVAL_MS[name]
            if parts and (start := parts[0].ts - parts[0].ts % step) + step <= at_ms:
                if start >= (self.whole_from_ms or 0):
                    whole = merge(parts, start)
                    assert whole is not None, name
                    self._closed[name].append(whole)
                parts.clear()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def last_px(self) -> int | None:
        """The latest price seen."""
        newest = self._quoted[-1:] or self._closed["1m"].last(1)
        return newest[0].close if newest else None

    def page(self, interval: str, limit: int, now_ms: int) -> list[tuple[GridCandle, bool]]:
        """The last `limit` candles, oldest first, each with whether it is closed.

        The oldest bar that the source has not closed is the running one.
        """
        running = self._running_bar(interval)
        rest = self._closed[interval].last(limit - (running is not None))
        return [*((candle, True) for candle in rest), *(() if running is None else ((running, False),))]

    def _running_bar(self, interval: str) -> GridCandle | None:
        parts = [*self._parts.get(interval, ()), *self._quoted]
        if not parts:
            return None
        step = INTERVAL_MS[interval]
        start = parts[0].ts - parts[0].ts % step
        return merge((part for part in parts if part.ts < start + step), start)

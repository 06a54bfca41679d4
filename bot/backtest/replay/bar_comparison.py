"""Compare the bars that a record was decided on with those of the data."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import drivers, resample
from bot.backtest.replay.differences import Difference
from bot.backtest.replay.records import Decided, RunRecord
from bot.runtime.journal.bars_seen import checksum
from bot.runtime.strategy_host import fingerprints
from bot.wire import INTERVAL_MS

NO_CANDLE: Final = "the data have no such candle"
# relative difference; smaller ones come from the conversion of text to float
PX_SAME: Final = 1e-9


@dataclass(slots=True)
class ClosedBars:
    """The closed bars of one series, found by the instant of their close."""

    candles: Candles

    def at(self, close_ms: int) -> dict[str, float] | None:
        c = self.candles
        row = bisect_left(c.at_ms, close_ms - c.step_ms)
        if row >= len(c) or c.at_ms[row] != close_ms - c.step_ms:
            return None
        return {
            "open": c.open[row],
            "high": c.high[row],
            "low": c.low[row],
            "close": c.close[row],
            "volume": c.volume[row],
        }

    def checksum(self, close_ms: int) -> int | None:
        bar = self.at(close_ms)
        return None if bar is None else checksum((bar["open"], bar["high"], bar["low"], bar["close"], bar["volume"]))

    def over(self, at_ms: int) -> dict[str, float] | None:
        """The bar in which an instant lies."""
        c = self.candles
        row = bisect_right(c.at_ms, at_ms) - 1
        return None if row < 0 or at_ms >= c.at_ms[row] + c.step_ms else self.at(c.at_ms[row] + c.step_ms)


class BarComparison:
    """The bars of the data beside those of the record. `compare` is called once; `past` has what it found."""

    def __init__(self, recorded: RunRecord, candles: Sequence[Candles], start_ms: int, last_ms: int) -> None:
        self.driving = {series.market: series for series in drivers(candles)}
        self.differences: list[Difference] = []
        # close times of bars that differ, by market
        self.past: dict[str, list[int]] = {}
        self._recorded = recorded
        self._range_ms = start_ms, last_ms
        self._series: dict[tuple[str, str], ClosedBars | None] = {}

    def compare(self, decisions: Iterable[Decided]) -> list[Difference]:
        """`decisions`: those in the range, some with the bar that they were decided on."""
        known: set[tuple[str, str, int]] = set()
        for decision in decisions:
            bar = decision.bar
            if bar is None or (bar["market"], bar["interval"], bar["at_ms"]) in known:
                continue
            known.add((bar["market"], bar["interval"], bar["at_ms"]))
            mine = self._bars_of(bar["market"], bar["interval"])
            if mine is None:
                continue
            data = mine.at(bar["at_ms"])
            if data is None:
                self._add(bar, _text_of(bar), None, NO_CANDLE)
                continue
            differing = [
                name for name, value in data.items() if abs(value - bar[name]) > PX_SAME * max(1.0, abs(value))
            ]
            if differing:
                self._add(bar, _text_of(bar), _text_of(data), f"other values: {', '.join(differing)}")
        for (market, interval), closes in self._recorded.seen.items():
            series = self._bars_of(market, interval)
            if series is not None and closes:
                self._compare_seen(market, interval, closes, series, known)
        for past in self.past.values():
            past.sort()
        return self.differences

    def differs(self, market: str, at_ms: int) -> bool:
        past = self.past.get(market, [])
        row = bisect_left(past, at_ms)
        return row < len(past) and past[row] == at_ms

    @cached_property
    def starts(self) -> list[int]:
        """When the recorded daemon was started."""
        return [int(mark["atMs"]) for mark in self._recorded.marks if fingerprints.is_start(mark)]

    def _compare_seen(
        self,
        market: str,
        interval: str,
        closes: Mapping[int, int],
        series: ClosedBars,
        known: set[tuple[str, str, int]],
    ) -> None:
        """The bars that the record decided without an order: it has their checksums only."""
        start_ms, last_ms = self._range_ms
        for at_ms, check in closes.items():
            if not start_ms <= at_ms <= last_ms or (market, interval, at_ms) in known:
                continue
            if series.checksum(at_ms) != check:
                data = series.at(at_ms)
                why = NO_CANDLE if data is None else "it had other values"
                self._add(_bar_at(market, interval, at_ms), "another bar", _text_of(data), why)
        first, last = max(min(closes), start_ms), min(max(closes), last_ms)
        for open_ms in series.candles.at_ms:
            at_ms = open_ms + series.candles.step_ms
            if first < at_ms < last and at_ms not in closes and self._was_up_after(at_ms):
                text = _text_of(series.at(at_ms))
                self._add(_bar_at(market, interval, at_ms), None, text, "the daemon did not get it")

    def _was_up_after(self, at_ms: int) -> bool:
        """True if the daemon was not started anew between this bar and the next one that it decided."""
        later = next((start for start in self.starts if start > at_ms), None)
        row = bisect_right(self._all_closes, at_ms)
        return later is None or (row < len(self._all_closes) and self._all_closes[row] < later)

    @cached_property
    def _all_closes(self) -> list[int]:
        return sorted({close for closes in self._recorded.seen.values() for close in closes})

    def _add(self, bar: Mapping[str, Any], recorded: str | None, replayed: str | None, why: str) -> None:
        self.past.setdefault(bar["market"], []).append(bar["at_ms"])
        why = f"{bar['interval']} bar: {why}"
        self.differences.append(Difference("bar", "data", bar["at_ms"], bar["market"], "", recorded, replayed, why))

    def _bars_of(self, market: str, interval: str) -> ClosedBars | None:
        if (market, interval) not in self._series:
            driving = self.driving.get(market)
            is_there = driving is not None and INTERVAL_MS[interval] >= driving.step_ms
            known_ms = max(series.at_ms[-1] + series.step_ms for series in self.driving.values()) if is_there else 0
            self._series[market, interval] = (
                ClosedBars(resample(driving, interval, known_ms=known_ms)) if is_there and driving is not None else None
            )
        return self._series[market, interval]


def _bar_at(market: str, interval: str, at_ms: int) -> dict[str, Any]:
    return {"market": market, "interval": interval, "at_ms": at_ms}


def _text_of(bar: Mapping[str, Any] | None) -> str | None:
    if bar is None:
        return None
    return (
        f"open {bar['open']:.10g} high {bar['high']:.10g} low {bar['low']:.10g} close {bar['close']:.10g} volume"
        f" {bar['volume']:.10g}"
    )

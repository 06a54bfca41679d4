"""The candles of a run in the order of time: which markets, which intervals, from when to when, and their funding
rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bot.backtest.data.candles import Candles
from bot.backtest.data.resampling import drivers
from bot.backtest.engine.candle_readers import CandleReader, SeriesReader
from bot.backtest.engine.options import SessionOptions, start_of
from bot.clock import iso
from bot.errors import ConfigError
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.strategy_host.host import StrategySpec
from bot.wire import INTERVAL_MS
from bot.words import many


@dataclass(frozen=True, slots=True)
class Timeline:
    """The candles of a session by market and by series, and its range.

    `cold`: one sentence for each series whose history is shorter than its warm-up.
    """

    readers: list[CandleReader]
    series_readers: list[SeriesReader]
    start_ms: int
    end_ms: int
    cold: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """True when all candles are past."""
        return all(reader.is_over for reader in self.readers)

    def passed_bars(self) -> int:
        """How many candles are past, of all markets."""
        return sum([reader.at - reader.first for reader in self.readers])


def timeline_of(
    candles: Sequence[Candles],
    series: Sequence[BarSeries],
    options: SessionOptions,
    warmups: Mapping[BarSeries, int] | None = None,
    *,
    is_cut: bool = False,
) -> Timeline:
    """The finest candles of each market set its prices; coarser series are made of them. ConfigError when the candles
    do not fit the options. `is_cut`: the candles are the beginning of those of another session, so that they may end
    before a warm-up or a settlement does.
    """
    driving = {series.market: series for series in drivers(candles)}
    markets = sorted({series_item.market for series_item in series})
    for market in markets:
        if market not in driving:
            raise ConfigError(
                f"there are no candles of {market}, which a strategy trades or reads; the data have"
                f" {', '.join(sorted(driving)) or 'nothing'}"
            )
    used = [driving[market] for market in markets]
    start_ms = start_of(options.start_ms, used)
    end_ms = options.end_ms if options.end_ms is not None else max(series.end_ms for series in used)
    ends = _settled(options, {series.market: series.end_ms for series in used}, start_ms=start_ms, is_cut=is_cut)
    readers = [
        CandleReader(series, start_ms=start_ms, end_ms=min(end_ms, ends.get(series.market, end_ms))) for series in used
    ]
    for reader in readers:
        if reader.first >= reader.end:
            there = f"its candles run from {iso(reader.ts[0])} to {iso(reader.ts[-1] + reader.step_ms)}"
            raise ConfigError(f"the range is empty: there is no whole candle of {reader.coin} in it; {there}")
    # no price comes after the last candle
    lasts = [reader.ts[reader.end - 1] + reader.step_ms for reader in readers]
    # A market that is settled inside a candle ends after its last whole candle.
    if not is_cut:
        lasts += [at_ms for at_ms in ends.values() if at_ms <= end_ms]
    end_ms = min(end_ms, max(lasts))
    for outage in options.outages:
        if not start_ms <= outage.at_ms < end_ms:
            raise ConfigError(
                f"outage {iso(outage.at_ms)}: it must begin within the session, {iso(start_ms)} to {iso(end_ms)}"
            )
    by_coin = {reader.coin: reader for reader in readers}
    series_readers: list[SeriesReader] = []
    cold: list[str] = []
    for series_item in sorted(set(series)):
        if INTERVAL_MS[series_item.interval] < by_coin[series_item.market].step_ms:
            raise ConfigError(
                f"a strategy needs {series_item.interval} bars of {series_item.market}, and the data have"
                f" {by_coin[series_item.market].interval} bars; give finer data"
            )
        series_reader = SeriesReader(
            by_coin[series_item.market],
            driving[series_item.market],
            series_item.interval,
            start_ms=start_ms,
            end_ms=min(end_ms, ends.get(series_item.market, end_ms)),
        )
        needed = (warmups or {}).get(series_item, 0)
        if needed > len(series_reader.candles) and not is_cut:
            raise ConfigError(
                f"the warm-up is longer than the data: a strategy needs {many(needed, f'{series_item.interval} bar')}"
                f" of {series_item.market} before its first decision, and the data have {len(series_reader.candles)}"
            )
        if needed > max(1, series_reader.at):
            cold.append(
                f"{series_item.market}: {series_reader.at} of the {many(needed, f'{series_item.interval} bar')} of"
                " warm-up lie before the range, the others in it"
            )
        series_readers.append(series_reader)
    return Timeline(readers, series_readers, start_ms, end_ms, tuple(cold))


def _settled(options: SessionOptions, data_end_ms: Mapping[str, int], *, start_ms: int, is_cut: bool) -> dict[str, int]:
    """When each event market with a settlement ends. ConfigError for a settlement that cannot happen."""
    ends, last_ms = {}, max(data_end_ms.values(), default=0)
    for market, settlement in options.settlements.items():
        if market not in data_end_ms:
            raise ConfigError(f"{market} cannot be settled: no strategy trades it")
        if options.listing_of(market).spec.margin_mode != "full":
            raise ConfigError(f"{market} cannot be settled: it is not an event market")
        ends[market] = at_ms = settlement.after(data_end_ms[market])
        if at_ms <= start_ms:
            raise ConfigError(f"{market} is settled at {iso(at_ms)}, and the session begins at {iso(start_ms)}")
        if last_ms < at_ms and not is_cut and (options.end_ms is None or at_ms <= options.end_ms):
            raise ConfigError(
                f"{market} is settled at {iso(at_ms)}, and the data end at {iso(last_ms)}; leave the time out to settle"
                " it at its last candle"
            )
    return ends


def series_of(placed: Sequence[StrategySpec]) -> list[BarSeries]:
    """Every series that a strategy listens to."""
    return sorted({series for spec in placed for series in spec.series})

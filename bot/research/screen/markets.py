"""The kernel's input: what the screen can do at all, the candles as whole numbers, the market's rules, and the
orders that signals ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_UP, Decimal
from functools import cached_property
from typing import Any, Final, TypeVar

from bot.backtest.data.candles import Candles
from bot.backtest.data.funding_rates import Payment, hour_by_hour
from bot.backtest.data.resampling import resample
from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.options import PathPolicy, SessionOptions
from bot.backtest.engine.timeline import timeline_of
from bot.backtest.engine.warm_up_bars import columns_of, past_bars
from bot.clock import DAY_MS, HOUR_MS
from bot.config import Settings
from bot.errors import ConfigError
from bot.money import E8
from bot.research.screen.jit import IS_COMPILED
from bot.research.screen.kernel import ADAPTIVE, OHLC, OLHC, SL_FIRST, ScreenOrders, ScreenPrices, ScreenRules
from bot.runtime.decisions.bar_queue import wanted_series
from bot.runtime.passes.bar_feed import SPARE_BARS, BarSeries
from bot.runtime.strategy_host.host import StrategySpec
from bot.service.market_data.instruments import listing_at
from bot.strategy import Strategy
from bot.strategy.base import declared, follows_signals
from bot.strategy.indicators import FAR_SMALLER, SOURCES, Columns, Indicator, LongerSeries, Sma
from bot.strategy.intents import USD_MAX
from bot.strategy.longer_bars import pieces_of
from bot.strategy.signals import OPENS, BarArrays, SignalRows, Signals
from bot.venue.model.state import MarketSpec, VenueMarket
from bot.wire import CANDLES_MAX

_PATHS: Final[Mapping[PathPolicy, int]] = {"ohlc": OHLC, "olhc": OLHC, "adaptive": ADAPTIVE, "sl_first": SL_FIRST}
Part = TypeVar("Part", ScreenPrices, ScreenOrders, ScreenRules)
# nearer to a rounding's boundary than this, a number is rounded as a decimal
_TIE: Final = 1e-3
# The kernel stops for a liquidation when equity falls to this multiple of the maintenance margin.
_MARGIN: Final = 1.02
_HOOKS: Final = ("on_fill", "on_trigger", "on_guardian", "on_timer", "confirm")


def refuse(settings: Settings, specs: Sequence[StrategySpec], options: SessionOptions) -> None:
    """ConfigError names the first thing that the screen cannot do exactly as the full backtest."""
    why = _why_not(settings, specs, options)
    if why is not None:
        raise ConfigError(f"the screen cannot run this: {why}; run it without --screen")


def _why_not(settings: Settings, specs: Sequence[StrategySpec], options: SessionOptions) -> str | None:
    if len(specs) != 1 or len(specs[0].strategy.markets) != 1:
        return "it takes one strategy in one market"
    (spec,), strategy = specs, specs[0].strategy
    (market,) = strategy.markets
    if not follows_signals(strategy):
        return f"strategy {strategy.name} has no `signals` from which its on_bar follows"
    hooks = [name for name in _HOOKS if getattr(type(strategy), name) is not getattr(Strategy, name)]
    if hooks or strategy.timers:
        return f"strategy {strategy.name} has {', '.join(hooks) or 'timers'}"
    listed = options.listing_of(market)
    if listed.spec.margin_mode != "cross" or listed.spec.hours is not None:
        return f"{market} is no crypto market"
    given = {
        "guardians in the config": settings.guardians,
        "daily_loss_usd": spec.limits.daily_loss_usd is not None,
        "protections": [*settings.protections.given(), *spec.limits.protections],
        "netting: allow": spec.limits.nets,
        "latency": options.latency_ms,
        "outages": options.outages,
        "caps": options.caps,
        "settlements": options.settlements,
    }
    unknown = [name for name, is_given in given.items() if is_given]
    return f"it knows no {' and no '.join(unknown)}" if unknown else None


@dataclass
class ScreenSetup:
    """What is the same for all params: candles, the market and the session; and what was last computed from them."""

    prices: ScreenPrices
    rules: ScreenRules
    reader: CandleReader
    # The candles of the strategy's interval.
    bars: Candles
    # row of `bars` -> the row of `prices` at whose close it decides; -1: none
    decides: Any
    start_ms: int
    end_ms: int
    balance: int
    # the market's own bound
    max_leverage: int
    # declared indicators that were computed, by function, numbers and first bar
    lines: dict[tuple[Any, ...], Any]
    # the first bar, and the bars from there on as Python's lists
    plain: tuple[int, Columns] | None = None

    @cached_property
    def walked(self) -> ScreenPrices:
        """The prices as the kernel walks them."""
        return plain(self.prices)

    @cached_property
    def close_ms(self) -> Any:
        """The closes of the session's candles, unix ms."""
        return self.prices.at_ms[self.reader.first : self.reader.end] + self.reader.step_ms

    @cached_property
    def closes_usd(self) -> Any:
        """The closing prices, in USD."""
        return self.prices.close[self.reader.first : self.reader.end] / E8

    @cached_property
    def hours(self) -> Any:
        """Which hour of those that have a close each belongs to, from 0."""
        import numpy as np

        hours = self.close_ms // HOUR_MS
        return np.cumsum(np.diff(hours, prepend=hours[:1]) != 0)

    @cached_property
    def hour_starts(self) -> Any:
        """The first row of each such hour."""
        import numpy as np

        return np.flatnonzero(np.diff(self.hours, prepend=-1))

    @cached_property
    def day_ends(self) -> Any:
        """The last row of each UTC day."""
        import numpy as np

        return np.flatnonzero(np.diff((self.close_ms - 1) // DAY_MS, append=-1))

    @property
    def first(self) -> int:
        """The row of the first decision: the last that closed before the start, if the candles begin earlier."""
        return max(0, self.reader.first - 1)


def ground_of(
    spec: StrategySpec, candles: Sequence[Candles], options: SessionOptions, rates: Mapping[str, Sequence[Payment]]
) -> ScreenSetup:
    """ConfigError for candles that the screen cannot use."""
    import numpy as np

    (market,), interval = spec.strategy.markets, spec.interval
    timeline = timeline_of(candles, [BarSeries(market, interval)], options)
    (reader,) = timeline.readers
    if reader.step:
        raise ConfigError("the screen begins at the open of a candle; choose --from so that it is one")
    used = next(driver for driver in candles if driver.market == market and driver.step_ms == reader.step_ms)
    columns = [scaled_prices(column) for column in (used.open, used.high, used.low, used.close)]
    at_ms = np.frombuffer(used.at_ms, dtype=np.int64)
    before = reader.last_px(options.path)
    px = int(columns[0][reader.at]) if before is None else before
    listing = options.spec_of(listing_at(options.listing_of(market), px).spec, px)
    bars = resample(used, interval, known_ms=timeline.end_ms)
    closes = np.frombuffer(bars.at_ms, dtype=np.int64) + bars.step_ms
    rows = np.searchsorted(at_ms, closes - reader.step_ms, side="right") - 1
    closed = int(np.searchsorted(closes, timeline.start_ms, side="right"))
    # The daemon decides on the newest closed bar when it starts.
    if closed:
        rows[closed - 1] = reader.first - 1
    paid = hour_by_hour(rates.get(market, ()), timeline.start_ms, timeline.end_ms)
    return ScreenSetup(
        ScreenPrices(at_ms, *columns),
        _rules(listing, reader, options, paid, spec),
        reader,
        bars,
        rows,
        timeline.start_ms,
        timeline.end_ms,
        int(options.balance_usd * E8),
        listing.max_leverage,
        {},
    )


def scaled_prices(column: Sequence[float]) -> Any:
    """Prices scaled 1e8, rounded as the venue rounds them."""
    import numpy as np

    return np.rint(np.frombuffer(column, dtype=np.float64) * E8).astype(np.int64)  # type: ignore[call-overload]


def _rules(
    spec: MarketSpec,
    reader: CandleReader,
    options: SessionOptions,
    rates: Sequence[tuple[int, int]],
    strategy: StrategySpec,
) -> ScreenRules:
    import numpy as np

    market = VenueMarket(spec, 1, 1, 1)
    recorded = [(0, spec.funding_rate), *rates]
    lowest = min(tier.max_leverage for tier in market.tiers)
    return ScreenRules(
        step_ms=reader.step_ms,
        path=_PATHS[options.path],
        taker_rate=spec.taker_rate,
        half_spread=spec.half_spread,
        first_size=market.level_sizes[0] if market.level_sizes else 0,
        lot=market.lot,
        min_notional=spec.min_notional,
        maintenance=_MARGIN / (2 * lowest),
        needs_stop=int(strategy.limits.require_protection),
        budget=int(strategy.limits.budget_usd * E8),
        ticks=np.array(market.ticks[:20], dtype=np.int64),
        rate_ms=np.array([at_ms for at_ms, _ in recorded], dtype=np.int64),
        rates=np.array([rate for _, rate in recorded], dtype=np.int64),
    )


# ── Signals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def first_bar(ground: ScreenSetup, spec: StrategySpec) -> int:
    """The bar with which the daemon's warm-up begins."""
    import numpy as np

    at_ms = np.frombuffer(ground.bars.at_ms, dtype=np.int64)
    closed = int(np.searchsorted(at_ms, ground.start_ms - ground.bars.step_ms, side="right"))
    (wanted,) = wanted_series([spec]).values()
    return max(0, closed - min(wanted + SPARE_BARS, CANDLES_MAX))


def bars_of(ground: ScreenSetup, spec: StrategySpec) -> BarArrays:
    """The bars and the declared indicators, from `first_bar` on. Indicators with the same numbers are computed once."""
    import numpy as np

    strategy, rows = spec.strategy, spec.strategy.indicators
    assert isinstance(rows, SignalRows)
    first, bars = first_bar(ground, spec), ground.bars
    columns = [np.frombuffer(column, dtype=np.float64)[first:] for column in bars.columns[1:]]
    lines = dict(zip(rows.lines, columns, strict=False))
    for name, indicator in declared(type(strategy)).items():
        described = indicator.described(strategy.params)
        key = (first, described.function, described.numbers, described.line, described.source, described.interval)
        if key not in ground.lines:
            ground.lines[key] = _line(ground, indicator, spec, first, columns)
        lines[name] = ground.lines[key]
    closes = np.frombuffer(bars.at_ms, dtype=np.int64)[first:] + bars.step_ms
    return BarArrays(bars.market, lines, closes)


def _line(ground: ScreenSetup, indicator: Indicator, spec: StrategySpec, first: int, columns: Sequence[Any]) -> Any:
    """The values of an indicator, NaN where it has none."""
    import numpy as np

    described, own = indicator.described(spec.strategy.params), spec.interval
    if described.function == "sma" and described.interval in (None, own):
        return averages(columns[SOURCES.index(described.source)], int(described.numbers[0]))
    if ground.plain is None or ground.plain[0] != first:
        ground.plain = first, columns_of(ground.bars, first, len(ground.bars))
    series = indicator.start(spec.strategy.params, own)
    if isinstance(series, LongerSeries):
        pieces = pieces_of(described.interval or own, own)
        series.bars.begin(past_bars(ground.bars, pieces, ground.start_ms), pieces)
    return np.array(series.column(ground.plain[1]), dtype=np.float64)


def averages(values: Any, bars: int) -> Any:
    """Simple moving averages by the running sum of bot.strategy.indicators.Sma, equal to the last bit."""
    import numpy as np

    means = np.full(len(values), np.nan)
    sums = np.cumsum(np.concatenate([values[:bars], values[bars:] - values[:-bars]]))
    if (
        len(sums) and sums.min() < FAR_SMALLER * sums.max()
        # The rounding errors of the sums may show, so calculate bar by bar.
    ):
        plain = values.tolist()
        return np.array(Sma(bars).column(Columns(plain, plain, plain, plain, plain)), dtype=np.float64)
    means[bars - 1 :] = sums[bars - 1 :] / bars
    return means


def orders_of(ground: ScreenSetup, spec: StrategySpec, signals: Signals, codes: Any, first: int) -> ScreenOrders:
    """The orders of the signals, by row of the candles. ConfigError for numbers that no entry can have."""
    import numpy as np

    rows = ground.decides[first : first + len(codes)]
    (inside,) = np.nonzero((rows >= ground.first) & (rows < ground.reader.end))
    by_row = np.zeros(len(ground.prices.at_ms), dtype=np.int8)
    by_row[rows[inside]] = codes[inside]
    bars = np.zeros(len(by_row), dtype=np.int64)
    bars[rows[inside]] = inside
    entries = np.flatnonzero(by_row & OPENS)
    bars = bars[entries]
    # Raises for numbers that no entry can have.
    if len(bars):
        signals.open_at(spec.strategy.markets[0], "long", int(bars[0]))
    if signals.guardians:
        raise ConfigError("the screen knows no guardians of an entry: run it without --screen")
    limits, leverage = spec.limits, signals.leverage or 1
    most = min(limits.max_leverage, ground.max_leverage)
    if leverage > most:
        raise ConfigError(f"leverage {leverage} is above max_leverage {most}")
    if limits.require_protection and signals.stop_pct is None and signals.stop_px is None:
        raise ConfigError("an entry needs a stop: give stop_pct or stop_px, or set safety.require_protection to false")

    def column(given: Any, unit: int, rounding: str) -> Any:
        if given is None:
            return np.zeros(len(bars), dtype=np.int64)
        if np.ndim(given) == 0:
            return np.repeat(scaled(given, unit, rounding), len(bars))
        return scaled(np.asarray(given)[bars], unit, rounding)

    lot = ground.rules.lot
    size = column(signals.size, E8, ROUND_DOWN)
    return ScreenOrders(
        codes=by_row,
        entries=entries,
        usd=column(signals.usd, 100, ROUND_DOWN) * (E8 // 100),
        size=size - size % lot,
        budget_size=column(signals.size, E8, ROUND_UP),
        stop_pct=column(signals.stop_pct, E8, ROUND_HALF_EVEN),
        stop_px=column(signals.stop_px, E8, ROUND_HALF_EVEN),
        target_pct=column(signals.target_pct, E8, ROUND_HALF_EVEN),
        target_px=column(signals.target_px, E8, ROUND_HALF_EVEN),
        target_r=column(signals.target_r, E8, ROUND_HALF_EVEN),
        leverage=leverage,
    )


def rules_for(ground: ScreenSetup, signals: Signals) -> ScreenRules:
    """The rules with the largest order of the interface in USD."""
    rules = ground.rules
    return rules._replace(budget=min(rules.budget, USD_MAX * E8)) if signals.usd is not None else rules


def scaled(given: Any, unit: int, rounding: str) -> Any:
    """Numbers as whole multiples of 1 / unit, rounded as the daemon rounds the decimal that a number prints.

    NaN is 0.
    """
    import numpy as np

    values = np.atleast_1d(np.asarray(given, dtype=np.float64))
    exact = np.where(np.isfinite(values), values, 0.0) * unit
    nearest = np.rint(exact)
    if rounding == ROUND_HALF_EVEN:
        whole, doubtful = nearest, np.abs(np.abs(exact - nearest) - 0.5) < _TIE
    else:
        whole = np.floor(exact) if rounding == ROUND_DOWN else np.ceil(exact)
        doubtful = np.abs(exact - nearest) < _TIE
    steps = whole.astype(np.int64)
    for row in np.nonzero(doubtful & (exact != 0))[0]:
        number = given if np.ndim(given) == 0 else float(values[row])
        steps[row] = int((Decimal(repr(number)) * unit).to_integral_value(rounding))
    return steps


def plain(columns: Part) -> Part:
    """The columns as lists, which Python reads faster than arrays and whose numbers have no bounds.

    Not for the compiled kernel.
    """
    return columns if IS_COMPILED else type(columns)(*map(_listed, columns))


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value

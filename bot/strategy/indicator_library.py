"""More declared indicators: MACD, Bollinger bands, ADX, stochastic, Keltner, Donchian, VWAP, SuperTrend, standard
deviation, rate of change.

talipp calculates them (the extra `indicators`), one bar at a time, live as in a backtest. An indicator of several lines
is declared once for each line: `upper = bollinger(20, 2, line="upper")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from bot.errors import StrategyError
from bot.extras import install
from bot.strategy.bar import Bar
from bot.strategy.indicators import (
    FAR_SMALLER,
    Columns,
    Described,
    Indicator,
    Series,
    Source,
    atr,
    ema,
    highest,
    lowest,
    rsi,
    sma,
)

if TYPE_CHECKING:
    from talipp.indicators.Indicator import Indicator as Calculation

# first values of a SuperTrend, which differ by its seed
SEEDED: Final = 2
# an oscillator from 0 to 100 of a price that has not moved
FLAT: Final = 50.0
# the method that each calculation of talipp defines
CALCULATE: Final = "_calculate_new_value"
# times the bars of the first value, in memory; no calculation looks back further
BARS_KEPT: Final = 3

Band = Literal["lower", "middle", "upper"]
_BANDS: Final[Mapping[str, str]] = {"lower": "lb", "middle": "cb", "upper": "ub"}


class CalculatedSeries(Series):
    """A calculation of talipp.

    `line` reads one number of its value; `input_of` makes its input from a bar. The memory is bounded.
    """

    __slots__ = ("_calculation", "_input_of", "_kept", "_line")

    def __init__(
        self,
        calculation: Calculation,
        bars: int,
        line: Callable[[Any], float | None] = float,
        input_of: Callable[[Bar], object] | None = None,
        source: Source = "close",
    ) -> None:
        super().__init__(source)
        self._calculation = calculation
        self._kept = BARS_KEPT * bars
        self._line = line
        self._input_of = input_of

    def step(self, x: Any) -> float | None:
        """Take one input.

        None where there is no value: too few bars, or a division by zero, for example by a volume of zero.
        """
        calculation = self._calculation
        try:
            calculation.add(x)
        except ZeroDivisionError:
            return None
        if len(calculation.input_values) >= 2 * self._kept:
            calculation.purge_oldest(self._kept)
        value = calculation[-1]
        return None if value is None else self._line(value)

    def update(self, bar: Bar) -> float | None:
        return super().update(bar) if self._input_of is None else self.step(self._input_of(bar))

    def column(self, columns: Columns) -> list[float | None]:
        if self._input_of is None:
            return super().column(columns)
        return [self.update(Bar("", 0, *row)) for row in zip(*columns[:-1], strict=True)]


def macd(
    fast: int | str = 12,
    slow: int | str = 26,
    signal: int | str = 9,
    *,
    line: Literal["macd", "signal", "histogram"] = "macd",
    source: Source = "close",
    interval: str | None = None,
) -> Indicator:
    """Moving average convergence divergence (Appel):

    EMA(fast) - EMA(slow), the EMA of that as the signal, and their difference as the histogram.
    """
    read = _line(line, {"macd": "macd", "signal": "signal", "histogram": "histogram"})
    until = _slowest if line == "macd" else _slowest_and_signal

    def start(fast: int, slow: int, signal: int, source: Source) -> Series:
        return CalculatedSeries(_library().MACD(fast, slow, signal), slow + fast + signal, read, source=source)

    return Indicator(
        "macd", start, fast, slow, signal, source=source, bars=until, periods=3, line=line, interval=interval
    )


def bollinger(
    period: int | str = 20,
    deviations: float | str = 2.0,
    *,
    line: Band = "middle",
    source: Source = "close",
    interval: str | None = None,
) -> Indicator:
    """Bollinger bands: the mean of the last `period` values, and `deviations` population standard deviations above
    and below it.
    """
    read = _line(line, _BANDS)

    def start(period: int, deviations: float, source: Source) -> Series:
        indicator = _library().BB(period, deviations)
        _sum_anew_where_small(indicator.central_band, period)
        return CalculatedSeries(indicator, period, read, source=source)

    return Indicator(
        "bollinger",
        start,
        period,
        deviations,
        source=source,
        bars=lambda period, _: period,
        line=line,
        on_price=True,
        interval=interval,
    )


def adx(
    period: int | str = 14, *, line: Literal["adx", "plus", "minus"] = "adx", interval: str | None = None
) -> Indicator:
    """Wilder's average directional index, 0 to 100, and its directional indicators +DI and -DI (New Concepts in
    Technical Trading Systems, 1978).
    """
    read = _line(line, {"adx": "adx", "plus": "plus_di", "minus": "minus_di"})

    def start(period: int, _: Source) -> Series:
        return CalculatedSeries(_library().ADX(period, period), 2 * period + 1, read, _whole_bar)

    return Indicator(
        "adx",
        start,
        period,
        bars=lambda period: 2 * period if line == "adx" else period + 1,
        line=line,
        interval=interval,
    )


def stochastic(
    period: int | str = 14, smoothing: int | str = 3, *, line: Literal["k", "d"] = "k", interval: str | None = None
) -> Indicator:
    """Stochastic oscillator (Lane), 0 to 100: where the close lies between the lowest low and the highest high of the
    last `period` bars (k), and its mean over `smoothing` bars (d). A range of zero, where the price has not moved,
    gives 50, as in `rsi`.
    """
    read = _line(line, {"k": "k", "d": "d"})

    def start(period: int, smoothing: int, _: Source) -> Series:
        indicator = _library().Stoch(period, smoothing)
        from talipp.indicators.Stoch import StochVal

        _sum_anew_where_small(indicator.values_d, smoothing)
        of_range = getattr(indicator, CALCULATE)

        def value() -> Any:
            bars = indicator.input_values[-period:]
            if len(bars) == period and max(bar.high for bar in bars) == min(bar.low for bar in bars):
                # talipp gives 100, which says overbought.
                indicator.values_d.add(FLAT)
                return StochVal(FLAT, indicator.values_d[-1] if len(indicator.values_d) else None)
            return of_range()

        setattr(indicator, CALCULATE, value)
        return CalculatedSeries(indicator, period + smoothing, read, _whole_bar)

    return Indicator(
        "stochastic",
        start,
        period,
        smoothing,
        periods=2,
        line=line,
        bars=lambda period, smoothing: period + (smoothing - 1 if line == "d" else 0),
        interval=interval,
    )


def keltner(
    period: int | str = 20,
    atr_period: int | str = 10,
    multiplier: float | str = 2.0,
    *,
    line: Band = "middle",
    interval: str | None = None,
) -> Indicator:
    """Keltner channels:

    EMA(period) of the close, and `multiplier` average true ranges (Wilder's, over `atr_period`) above and below it.
    """
    read = _line(line, _BANDS)

    def start(period: int, atr_period: int, multiplier: float, _: Source) -> Series:
        indicator = _library().KeltnerChannels(period, atr_period, multiplier, multiplier)
        return CalculatedSeries(indicator, max(period, atr_period) + 1, read, _whole_bar)

    return Indicator(
        "keltner",
        start,
        period,
        atr_period,
        multiplier,
        periods=2,
        line=line,
        on_price=True,
        bars=lambda period, atr_period, _: max(period, atr_period),
        interval=interval,
    )


def donchian(period: int | str = 20, *, line: Band = "middle", interval: str | None = None) -> Indicator:
    """Donchian channels: the highest high and the lowest low of the last `period` bars, this bar's included, and
    their middle.
    """
    read = _line(line, _BANDS)

    def start(period: int, _: Source) -> Series:
        return CalculatedSeries(_library().DonchianChannels(period), period, read, _whole_bar)

    return Indicator("donchian", start, period, bars=lambda period: period, line=line, on_price=True, interval=interval)


def vwap(period: int | str, *, interval: str | None = None) -> Indicator:
    """Volume-weighted average price of the last `period` bars, by the typical price (high + low + close) / 3.

    None while they have no volume.
    """

    def start(period: int, _: Source) -> Series:
        return CalculatedSeries(_library().VWMA(period), period, input_of=_typical_bar)

    return Indicator("vwap", start, period, bars=lambda period: period, on_price=True, interval=interval)


def supertrend(
    period: int | str = 10,
    multiplier: float | str = 3.0,
    *,
    line: Literal["value", "trend"] = "value",
    interval: str | None = None,
) -> Indicator:
    """SuperTrend (Seban): a stop line, `multiplier` average true ranges away from the middle of the bar, that moves
    only with the trend. `trend` is 1 above the line and -1 below it. The first two lines depend on how a line begins,
    by up to 1 % of the price, so they are left out.
    """
    _line(line, {"value": "value", "trend": "trend"})

    def start(period: int, multiplier: float, _: Source) -> Series:
        left_out = 0

        def read(value: Any) -> float | None:
            nonlocal left_out
            # talipp's first value has no line yet.
            if value.value == 0:
                return None
            if left_out < SEEDED:
                left_out += 1
                return None
            return float(value.value) if line == "value" else 1.0 if value.trend.name == "UP" else -1.0

        return CalculatedSeries(_library().SuperTrend(period, multiplier), period + 1, read, _whole_bar)

    return Indicator(
        "supertrend",
        start,
        period,
        multiplier,
        bars=lambda period, _: period + 1 + SEEDED,
        line=line,
        on_price=line == "value",
        interval=interval,
    )


def stddev(period: int | str, source: Source = "close", *, interval: str | None = None) -> Indicator:
    """Population standard deviation of the last `period` values (divisor n)."""

    def start(period: int, source: Source) -> Series:
        return CalculatedSeries(_library().StdDev(period), period, source=source)

    return Indicator("stddev", start, period, source=source, bars=lambda period: period, interval=interval)


def roc(period: int | str, source: Source = "close", *, interval: str | None = None) -> Indicator:
    """Rate of change in percent against the value `period` bars before. Needs period + 1 bars."""

    def start(period: int, source: Source) -> Series:
        return CalculatedSeries(_library().ROC(period), period + 1, source=source)

    return Indicator("roc", start, period, source=source, bars=lambda period: period + 1, interval=interval)


FUNCTIONS: Final[Mapping[str, Callable[..., Indicator]]] = {
    function.__name__: function
    for function in (
        sma,
        ema,
        rsi,
        atr,
        highest,
        lowest,
        macd,
        bollinger,
        adx,
        stochastic,
        keltner,
        donchian,
        vwap,
        supertrend,
        stddev,
        roc,
    )
}


def series_of(described: Described, own: str | None = None) -> Series:
    """The calculation of an indicator that is known as plain data, fed with bars of the interval `own`.

    StrategyError if its library is not installed, or if the bars of its interval cannot be made of those.
    """
    named: dict[str, Any] = {"line": described.line} if described.line is not None else {}
    if described.source != "close":
        named["source"] = described.source
    declared = FUNCTIONS[described.function](*described.numbers, interval=described.interval, **named)
    return declared.start(None, own)


def _slowest(fast: int, slow: int, _: int) -> int:
    return max(fast, slow)


def _slowest_and_signal(fast: int, slow: int, signal: int) -> int:
    return max(fast, slow) + signal - 1


def _sum_anew_where_small(mean: Any, period: int) -> None:
    """Mend a moving average of talipp, which is a running difference: where it has become far smaller, its rounding
    errors would show (as in `Sma`).
    """
    running, largest = getattr(mean, CALCULATE), 0.0

    def value() -> float | None:
        nonlocal largest
        latest: float | None = running()
        if latest is not None:
            if latest < largest * FAR_SMALLER:
                latest = largest = math.fsum(mean.input_values[-period:]) / period
            largest = max(largest, latest)
        return latest

    setattr(mean, CALCULATE, value)


def _line(line: str, names: Mapping[str, str]) -> Callable[[Any], float | None]:
    if line not in names:
        raise StrategyError(f"line is one of {', '.join(names)}, not {line!r}")
    name = names[line]
    return lambda value: getattr(value, name)


def _library() -> Any:
    try:
        from talipp import indicators
    except ImportError:
        raise StrategyError(f"this indicator needs the package talipp: {install('indicators')}") from None
    return indicators


def _whole_bar(bar: Bar) -> object:
    from talipp.ohlcv import OHLCV

    return OHLCV(bar.open, bar.high, bar.low, bar.close, bar.volume)


def _typical_bar(bar: Bar) -> object:
    from talipp.ohlcv import OHLCV

    return OHLCV(bar.open, bar.high, bar.low, (bar.high + bar.low + bar.close) / 3, bar.volume)

"""Declared indicators: SMA, EMA, RSI, ATR, highest, lowest. One formula serves live bars and whole columns.

A strategy declares `fast = sma(10)` as a class attribute and reads `self.fast[bar.market]`: the value after the newest
closed bar of that market, None until there are enough bars. A period may be the name of one of the strategy's params,
`sma("fast_bars")`, so that a sweep can vary it.

Live, the daemon feeds one bar at a time (`update`). A backtest feeds a chunk of bars (`column`); the next chunk
continues from its state. Both use the same `step`, so they agree to the last bit. Floats only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, repeat
from operator import sub, truediv
from typing import Any, Literal, NamedTuple, TypeAlias, overload

from bot.errors import StrategyError
from bot.strategy.bar import Bar
from bot.strategy.longer_bars import LongerBars, checked_interval

Source: TypeAlias = Literal["open", "high", "low", "close", "volume"]
SOURCES: tuple[Source, ...] = ("open", "high", "low", "close", "volume")
# No more bars exist before the start of a simulated market.
PERIOD_MAX = 1_000
# The ratio of a sum to the largest before it. Beyond it the rounding errors would show.
FAR_SMALLER = 1e-6
# The largest multiplier of a band's width. Wider bands are a mistake.
FACTOR_MAX = 100


class Columns(NamedTuple):
    """A chunk of one market's bars, oldest first, one list for each field, in the order of `Bar`.

    `at_ms` has the closes. It may be empty if no indicator has an interval of its own.
    """

    open: Sequence[float]
    high: Sequence[float]
    low: Sequence[float]
    close: Sequence[float]
    volume: Sequence[float]
    at_ms: Sequence[int] = ()


class Series:
    """A running calculation over one number of each bar. Subclasses define `step`."""

    __slots__ = ("_source",)

    def __init__(self, source: Source = "close") -> None:
        # A Bar begins with market and at_ms.
        self._source = 2 + SOURCES.index(source)

    def step(self, x: float) -> float | None:
        raise NotImplementedError

    def update(self, bar: Bar) -> float | None:
        """Take one bar; the value after it, None before there are enough. O(1)."""
        return self.step(bar[self._source])  # type: ignore[arg-type]  # never the index of `market`

    def column(self, columns: Columns) -> list[float | None]:
        """Take a chunk of bars; the value after each. The next call of `column` or `update` continues from there."""
        step = self.step
        return [step(x) for x in columns[self._source - 2]]


class Sma(Series):
    """Simple moving average: the mean of the last n values, by the running sum s += x - old.

    The running sum is the definition, in a backtest too: sum(last n) / n differs from it in the last bits. Its error
    is that of the largest sum so far, so where the sum has become far smaller (volumes that end), it is summed anew. A
    mean of zeros is 0.
    """

    __slots__ = ("_largest", "_n", "_sum", "_window")

    def __init__(self, n: int, source: Source = "close") -> None:
        super().__init__(source)
        self._n = n
        self._sum = 0.0
        # sum since it was last summed anew
        self._largest = 0.0
        self._window: deque[float] = deque()

    def step(self, x: float) -> float | None:
        window = self._window
        window.append(x)
        if len(window) <= self._n:
            self._sum += x
            self._largest = max(self._largest, self._sum)
            return self._sum / self._n if len(window) == self._n else None
        self._sum += x - window.popleft()
        if self._sum > self._largest:
            self._largest = self._sum
        elif self._sum < self._largest * FAR_SMALLER:
            self._sum = self._largest = math.fsum(window)
        return self._sum / self._n

    def column(self, columns: Columns) -> list[float | None]:
        """The same sums in the same order, so equal to the last bit, without a call for each bar."""
        n, window = self._n, self._window
        xs = columns[self._source - 2]
        first = min(max(0, n - len(window)), len(xs))
        means = [self.step(x) for x in xs[:first]]
        rest = xs[first:] if first else xs
        if rest:
            old = [*window, *rest]
            sums = list(accumulate(map(sub, rest, old), initial=self._sum))
            largest = max(self._largest, *sums)
            if min(sums) < largest * FAR_SMALLER:
                return means + [self.step(x) for x in rest]
            self._sum, self._largest = sums[-1], largest
            means += map(truediv, sums[1:], repeat(n))
            self._window = deque(old[len(rest) :])
        return means


class Ema(Series):
    """Exponential moving average: e += a * (x - e) with a = 2 / (n + 1), from the mean of the first n values."""

    __slots__ = ("_a", "_e", "_n", "_seen")

    def __init__(self, n: int, source: Source = "close") -> None:
        super().__init__(source)
        self._n = n
        self._a = 2.0 / (n + 1)
        self._seen = 0
        # The sum of the first n values until they are complete.
        self._e = 0.0

    def step(self, x: float) -> float | None:
        if self._seen >= self._n:
            self._e += self._a * (x - self._e)
            return self._e
        self._seen += 1
        self._e += x
        if self._seen < self._n:
            return None
        self._e /= self._n
        return self._e


class Rsi(Series):
    """Relative strength index, 0 to 100 (J. Welles Wilder, New Concepts in Technical Trading Systems, 1978, section
    VI).

    100 * U / (U + D), the same as 100 - 100 / (1 + U / D): U and D are the means of the first n rises and falls, then
    U = (U * (n - 1) + rise) / n, D likewise. Needs n + 1 values. A market that has never moved is at 50.
    """

    __slots__ = ("_down", "_last", "_n", "_seen", "_up")

    def __init__(self, n: int, source: Source = "close") -> None:
        super().__init__(source)
        self._n = n
        self._seen = 0
        self._last = 0.0
        self._up = 0.0
        self._down = 0.0

    def step(self, x: float) -> float | None:
        change = x - self._last
        self._last = x
        n = self._n
        if self._seen == 0:
            self._seen = 1
            return None
        rise = max(0.0, change)
        fall = max(0.0, -change)
        if self._seen <= n:
            self._seen += 1
            self._up += rise
            self._down += fall
            if self._seen <= n:
                return None
            self._up /= n
            self._down /= n
        else:
            self._up = (self._up * (n - 1) + rise) / n
            self._down = (self._down * (n - 1) + fall) / n
        both = self._up + self._down
        return 100.0 * (self._up / both) if both > 0.0 else 50.0


class Atr(Series):
    """Average true range (Wilder 1978, section III): the mean of the first n true ranges, then (atr * (n - 1) + tr) /
    n.

    The true range is max(high - low, |high - last close|, |low - last close|); of the first bar, high - low.
    """

    __slots__ = ("_atr", "_last_close", "_n", "_seen")

    def __init__(self, n: int, source: Source = "close") -> None:
        super().__init__(source)
        self._n = n
        self._seen = 0
        self._atr = 0.0
        self._last_close = 0.0

    def step_range(self, high: float, low: float, close: float) -> float | None:
        tr = high - low
        if self._seen:
            last = self._last_close
            tr = max(tr, abs(high - last), abs(low - last))
        self._last_close = close
        n = self._n
        if self._seen >= n:
            self._atr = (self._atr * (n - 1) + tr) / n
            return self._atr
        self._seen += 1
        self._atr += tr
        if self._seen < n:
            return None
        self._atr /= n
        return self._atr

    def update(self, bar: Bar) -> float | None:
        return self.step_range(bar.high, bar.low, bar.close)

    def column(self, columns: Columns) -> list[float | None]:
        return [self.step_range(h, lo, c) for h, lo, c in zip(columns.high, columns.low, columns.close, strict=True)]


class Highest(Series):
    """The highest of the last n values, this bar's included (a queue of falling candidates; O(1) on average)."""

    __slots__ = ("_best", "_n", "_seen")
    _sign = 1.0

    def __init__(self, n: int, source: Source = "close") -> None:
        super().__init__(source)
        self._n = n
        self._seen = 0
        # (number of the bar, value), best first.
        self._best: deque[tuple[int, float]] = deque()

    def step(self, x: float) -> float | None:
        best, sign = self._best, self._sign
        while best and best[-1][1] * sign <= x * sign:
            best.pop()
        best.append((self._seen, x))
        self._seen += 1
        if best[0][0] < self._seen - self._n:
            best.popleft()
        return best[0][1] if self._seen >= self._n else None


class Lowest(Highest):
    """The lowest of the last n values, this bar's included."""

    __slots__ = ()
    _sign = -1.0


class LongerSeries(Series):
    """A calculation over bars of a longer interval. Its value stays the same until the next of them has closed."""

    __slots__ = ("_calculation", "_value", "bars")

    def __init__(self, calculation: Series, bars: LongerBars) -> None:
        super().__init__()
        self._calculation = calculation
        self._value: float | None = None
        self.bars = bars

    def update(self, bar: Bar) -> float | None:
        for closed in self.bars.add(bar):
            self._value = self._calculation.update(closed)
        return self._value

    def column(self, columns: Columns) -> list[float | None]:
        return [self.update(Bar("", at_ms, *row)) for at_ms, *row in zip(columns.at_ms, *columns[:-1], strict=True)]


class Values(dict[str, float | None]):
    """What `self.fast` is inside a strategy: market -> the value after its newest bar, None before warm-up."""

    def __missing__(self, market: str) -> float | None:
        raise StrategyError(f"market {market!r} is not one of this strategy's: {', '.join(self) or 'it has none'}")


class Described(NamedTuple):
    """An indicator of a strategy as plain data, for charts.

    `function` is its name in `bot`; `line` is None if it has one line.
    """

    name: str
    function: str
    numbers: tuple[float, ...]
    line: str | None
    source: Source
    # drawn over the candles; otherwise on a scale of its own
    on_price: bool
    # None: the strategy's own
    interval: str | None = None

    @property
    def label(self) -> str:
        """For people: `SMA 10`, `BOLLINGER 20 2 upper`, `SMA 200 4h`."""
        named = filter(None, [self.line, self.interval])
        return " ".join([self.function.upper(), *(f"{number:g}" for number in self.numbers), *named])


class Indicator:
    """A declaration: which calculation, with which numbers, on which number of the bar. Each strategy and market has
    its own state.

    `start` makes the calculation from the numbers and the source. The first `periods` numbers are whole numbers of
    bars, the others are above 0. A number may be the name of a param. `bars` is how many bars the first value needs.
    `interval`: that of the bars; None for the strategy's own.
    """

    def __init__(
        self,
        function: str,
        start: Callable[..., Series],
        *numbers: float | str,
        bars: Callable[..., int],
        periods: int = 1,
        source: Source = "close",
        line: str | None = None,
        on_price: bool = False,
        interval: str | None = None,
    ) -> None:
        if source not in SOURCES:
            raise StrategyError(f"source is one of {', '.join(SOURCES)}, not {source!r}")
        self.source = source
        self.interval = None if interval is None else checked_interval(interval)
        self.name = ""
        self.numbers = numbers
        self._function = function
        self._start = start
        self._bars = bars
        self._periods = periods
        self._line = line
        self._on_price = on_price and source != "volume"
        for number, given in enumerate(numbers):
            if not isinstance(given, str):
                self._checked(number, given, "an indicator")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Indicator: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Mapping[str, float | None]: ...
    def __get__(self, instance: object | None, owner: type) -> Indicator | Mapping[str, float | None]:
        # An instance holds its Values under the same name, which Python finds first; only the class comes here.
        return self

    def bars(self, params: Any) -> int:
        """Bars until the first value. `params` resolves a number given by name."""
        return self._bars(*self._resolved(params))

    def start(self, params: Any, own: str | None = None) -> Series:
        """The calculation, fed with bars of the interval `own`. None: with bars of the indicator's interval."""
        calculation = self._start(*self._resolved(params), self.source)
        if self.interval is None or own is None or own == self.interval:
            return calculation
        return LongerSeries(calculation, LongerBars(self.interval, own))

    def described(self, params: Any) -> Described:
        """This indicator as plain data, with the numbers that `params` give."""
        numbers = tuple(self._resolved(params))
        return Described(self.name, self._function, numbers, self._line, self.source, self._on_price, self.interval)

    def _resolved(self, params: Any) -> list[float]:
        return [
            self._checked(number, param_of(given, params, self.name) if isinstance(given, str) else given, self.name)
            for number, given in enumerate(self.numbers)
        ]

    def _checked(self, number: int, given: Any, what: str) -> float:
        return _check_period(given, what) if number < self._periods else _check_factor(given, what)


class Indicators:
    """All declared indicators of one strategy over its markets. Built by `Strategy`, fed by the daemon."""

    __slots__ = (
        "_by_market",
        "_declared",
        "_own",
        "_params",
        "_precomputed",
        "longer",
        "names",
        "values",
        "warmup_bars",
    )

    def __init__(self, declared: Mapping[str, Indicator], markets: Sequence[str], params: Any) -> None:
        self.names = tuple(declared)
        self.values: dict[str, Values] = {name: Values((market, None) for market in markets) for name in declared}
        self.warmup_bars = 0
        # longer interval -> how many of its bars the first values need
        self.longer: dict[str, int] = {}
        for indicator in declared.values():
            bars = indicator.bars(params)
            if indicator.interval is None:
                self.warmup_bars = max(self.warmup_bars, bars)
            else:
                self.longer[indicator.interval] = max(self.longer.get(indicator.interval, 0), bars)
        self._declared, self._params = declared, params
        self._own: str | None = None
        self._precomputed: dict[str, Callable[[Bar], object]] = {}
        self._by_market = {market: self._started() for market in markets}

    def begin(self, own: str) -> None:
        """Set the interval of the strategy's bars. It is called before the first bar."""
        if self.longer and self._own != own:
            self._own = own
            self._by_market = {market: self._started() for market in self._by_market}

    def makers(self, market: str, interval: str) -> list[LongerBars]:
        """What makes bars of a longer interval for the indicators of a market."""
        named = zip(self._declared.values(), self._by_market[market], strict=True)
        return [
            series.bars
            for indicator, (_, series) in named
            if indicator.interval == interval and isinstance(series, LongerSeries)
        ]

    def _started(self) -> list[tuple[Values, Series]]:
        """The calculations of one market."""
        return [
            (self.values[name], indicator.start(self._params, self._own)) for name, indicator in self._declared.items()
        ]

    def update(self, bar: Bar) -> None:
        """Take one closed bar, before on_bar is called with it."""
        self._precomputed.get(bar.market, self._update_live)(bar)

    def updates(self, market: str) -> Callable[[Bar], object]:
        """`update` for the bars of one market, until the end of a chunk or the next `precompute`."""
        return self._precomputed.get(market, self._update_live)

    def _update_live(self, bar: Bar) -> None:
        market = bar.market
        for values, series in self._by_market[market]:
            values[market] = series.update(bar)

    def columns(self, market: str, columns: Columns) -> list[tuple[Values, list[float | None]]]:
        """In a backtest: take a chunk at once; bar i of it sets `values[market] = column[i]` before on_bar."""
        return [(values, series.column(columns)) for values, series in self._by_market[market]]

    def precompute(self, market: str, columns: Columns) -> None:
        """In a backtest: compute a chunk at once. `update` then sets its values one bar at a time, up to the end of the
        chunk.

        The values equal those of bars fed one by one; a strategy sees none before its bar. The previous chunk must be
        used up.
        """
        self.step_through(market, self.columns(market, columns))

    def step_through(self, market: str, columns: list[tuple[Values, list[float | None]]]) -> None:
        """From now on `update` sets these values, one row for each bar."""
        if columns:
            self._precomputed[market] = _stepper(market, columns)


def _stepper(market: str, columns: list[tuple[Values, list[float | None]]]) -> Callable[[Bar], None]:
    """Sets the values of the next bar of a chunk."""
    rows = zip(*(column for _, column in columns), strict=True)
    following = rows.__next__
    holders = tuple(values for values, _ in columns)

    def pair(_bar: Bar) -> None:
        first[market], two[market] = following()

    def step(_bar: Bar) -> None:
        for values, value in zip(holders, following(), strict=True):
            values[market] = value

    if len(holders) == 2:
        first, two = holders
        return pair
    return step


def sma(period: int | str, source: Source = "close", *, interval: str | None = None) -> Indicator:
    """Simple moving average of the last `period` values."""
    return Indicator("sma", Sma, period, source=source, bars=lambda n: n, on_price=True, interval=interval)


def ema(period: int | str, source: Source = "close", *, interval: str | None = None) -> Indicator:
    """Exponential moving average, weight 2 / (period + 1), started with the mean of the first `period` values."""
    return Indicator("ema", Ema, period, source=source, bars=lambda n: n, on_price=True, interval=interval)


def rsi(period: int | str, source: Source = "close", *, interval: str | None = None) -> Indicator:
    """Wilder's relative strength index, 0 to 100; needs period + 1 bars."""
    return Indicator("rsi", Rsi, period, source=source, bars=lambda n: n + 1, interval=interval)


def atr(period: int | str, *, interval: str | None = None) -> Indicator:
    """Wilder's average true range, in the price's unit."""
    return Indicator("atr", Atr, period, bars=lambda n: n, interval=interval)


def highest(period: int | str, source: Source = "close", *, interval: str | None = None) -> Indicator:
    """Highest of the last `period` values, this bar's included."""
    return Indicator("highest", Highest, period, source=source, bars=lambda n: n, on_price=True, interval=interval)


def lowest(period: int | str, source: Source = "close", *, interval: str | None = None) -> Indicator:
    """Lowest of the last `period` values, this bar's included."""
    return Indicator("lowest", Lowest, period, source=source, bars=lambda n: n, on_price=True, interval=interval)


def named_bars(bars: int | str, params: Any, what: str) -> int:
    """A number of bars, given as itself or as the name of a param."""
    return _check_period(param_of(bars, params, what) if isinstance(bars, str) else bars, what)


def param_of(name: str, params: Any, what: str) -> Any:
    """The value of a param. StrategyError if there is no such param."""
    fields = type(params).model_fields
    if name not in fields:
        raise StrategyError(f"{what}: {name!r} is not one of its params ({', '.join(fields) or 'it has none'})")
    return getattr(params, name)


def _check_period(period: Any, what: str) -> int:
    if isinstance(period, bool) or not isinstance(period, int | float) or not math.isfinite(period):
        raise StrategyError(f"{what}: a period is a whole number of bars, not {period!r}")
    if period != int(period) or not 1 <= period <= PERIOD_MAX:
        raise StrategyError(f"{what}: a period is a whole number from 1 to {PERIOD_MAX}, not {period!r}")
    return int(period)


def _check_factor(factor: Any, what: str) -> float:
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= FACTOR_MAX:
        raise StrategyError(f"{what}: a multiplier is a number above 0 and at most {FACTOR_MAX}, not {factor!r}")
    return float(factor)

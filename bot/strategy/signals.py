"""`signals`: a strategy that states its entries and exits as arrays. `on_bar` follows from them, so the rule is written
once.

`Strategy.signals(bars)` gets the bars of one market as numpy arrays and answers `Signals`: a row for each bar. Row i
may depend on the last `lookback`
bars up to i and on the declared indicators there, on nothing else. So live and in a backtest the same rows come out:

- live, the strategy is called with the last `lookback` bars, and the last row is its decision;
- a backtest calls it with a chunk of bars, and the `lookback` - 1 bars before it;
- the compiled screen (bot.research.screen) calls it once with all bars.

The declared indicators are computed bar by bar in all three, from the first bar of the warm-up on. A row before
`lookback` whole bars decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from bot.errors import StrategyError
from bot.extras import install
from bot.strategy.bar import Bar
from bot.strategy.indicators import SOURCES, Columns, Indicator, Indicators
from bot.strategy.intents import Bracket, Close, Intent, MaxHold, Open, Side, TrailingStop
from bot.strategy.view import View

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

# bits of a row's code
LONG: Final = 1
SHORT: Final = 2
CLOSE_LONG: Final = 4
CLOSE_SHORT: Final = 8
OPENS: Final = LONG | SHORT
FLAGS: Final = {"long": LONG, "short": SHORT, "close_long": CLOSE_LONG, "close_short": CLOSE_SHORT}
NUMBERS: Final = ("usd", "size", "stop_pct", "stop_px", "target_pct", "target_px", "target_r")
LEGS: Final = NUMBERS[2:]


class _NoInstants(Exception):
    """A chunk of a backtest has no instants: a strategy that reads them is asked bar by bar."""


class BarArrays:
    """Bars of one market, oldest first: `open`, `high`, `low`, `close`, `volume`, and each declared indicator by its
    name. Arrays of float64.

    An indicator is NaN where it has no value yet. `at_ms`: the instants of the closes, unix ms, int64.
    """

    def __init__(self, market: str, lines: Mapping[str, Floats], at_ms: Ints | None = None) -> None:
        self.market = market
        self._lines = lines
        self._at_ms = at_ms

    def __len__(self) -> int:
        return len(self._lines["close"])

    @property
    def at_ms(self) -> Ints:
        if self._at_ms is None:
            raise _NoInstants
        return self._at_ms

    def __getattr__(self, name: str) -> Floats:
        if name.startswith("_") or name not in self._lines:
            raise AttributeError(f"bars have no {name!r}; they have {', '.join(self.__dict__.get('_lines', ()))}")
        return self._lines[name]


@dataclass(frozen=True, slots=True)
class Signals:
    """What a strategy wants at each bar. An entry is a market order when there is no position and no order; a close
    ends the whole position.

    long, short              bool arrays: open at these bars. Both at one bar is an error
    close_long, close_short  bool arrays: close a position of this side
    usd or size              exactly one: a number, or an array with one for each bar
    stop_pct or stop_px, target_pct, target_px or target_r   as of a Bracket: numbers or arrays. NaN in an array: none
    at this bar
    leverage, guardians      as of Open
    """

    long: Bools | None = None
    short: Bools | None = None
    close_long: Bools | None = None
    close_short: Bools | None = None
    usd: float | Floats | None = None
    size: float | Floats | None = None
    stop_pct: float | Floats | None = None
    stop_px: float | Floats | None = None
    target_pct: float | Floats | None = None
    target_px: float | Floats | None = None
    target_r: float | Floats | None = None
    leverage: int | None = None
    guardians: tuple[TrailingStop | MaxHold, ...] = ()

    def codes(self, count: int) -> Any:
        """The bits of each row. StrategyError if an array does not fit `count` bars."""
        np = numpy_module()
        codes = np.zeros(count, dtype=np.int8)
        for name, bit in FLAGS.items():
            given = getattr(self, name)
            if given is None:
                continue
            flags = np.asarray(given)
            if flags.dtype != np.bool_ or flags.shape != (count,):
                raise StrategyError(
                    f"Signals: {name} is an array of {count} bools, one for each bar, not {flags.dtype} {flags.shape}"
                )
            codes |= flags.astype(np.int8) * np.int8(bit)
        if ((codes & OPENS) == OPENS).any():
            raise StrategyError("Signals: long and short at the same bar; let one of them win")
        for name in NUMBERS:
            given = getattr(self, name)
            if given is not None and np.ndim(given) and np.shape(given) != (count,):
                raise StrategyError(
                    f"Signals: {name} is a number or {count} of them, one for each bar, not {np.shape(given)}"
                )
        return codes

    def open_at(self, market: str, side: Side, row: int) -> Open:
        """The entry of a row. StrategyError for a value that no order can have."""
        given = {name: _at(getattr(self, name), row) for name in NUMBERS}
        legs = {name: value for name in LEGS if (value := given[name]) is not None and value == value}
        bracket = Bracket(**legs) if legs else None
        return Open(
            market,
            side,
            usd=given["usd"],
            size=given["size"],
            leverage=self.leverage,
            bracket=bracket,
            guardians=self.guardians,
        )


def _at(given: Any, row: int) -> Any:
    """A number of a row."""
    if given is None or isinstance(given, int | float) or not getattr(given, "ndim", 0):
        return given
    return float(given[row])


def crossed_above(first: Floats, second: Floats | float) -> Bools:
    """True at the bars at which `first` has come to stand above `second`: above now, and not at the bar before.

    Reads two bars.
    """
    np = numpy_module()
    above = np.asarray(first > second)
    crossed: Bools = above.copy()
    crossed[0] = False
    crossed[1:] &= ~above[:-1] & ~np.isnan(np.asarray(first - second)[:-1])
    return crossed


class SignalSource(Protocol):
    """The part of a strategy that makes signals."""

    def signals(self, bars: BarArrays) -> Signals: ...


class SignalRows(Indicators):
    """The declared indicators of a strategy with `signals`, and the newest row of its signals in each market.

    Fed by the daemon like other indicators.
    """

    __slots__ = ("_bar_by_bar", "_newest", "_source", "_stepping", "_windows", "lines", "lookback")

    def __init__(
        self,
        declared: Mapping[str, Indicator],
        markets: Sequence[str],
        params: Any,
        source: SignalSource,
        lookback: int,
    ) -> None:
        super().__init__(declared, markets, params)
        self.lines = (*SOURCES, *self.names)
        # The daemon feeds indicators that have names.
        self.names = (*self.names, "signals")
        self.warmup_bars += lookback - 1
        self._source = source
        self.lookback = lookback
        self._windows: dict[str, list[tuple[Any, ...]]] = {market: [] for market in markets}
        self._newest: dict[str, tuple[int, Signals | None, int]] = dict.fromkeys(markets, (0, None, 0))
        self._stepping: dict[str, Any] = {}
        # markets in which a strategy reads instants
        self._bar_by_bar: set[str] = set()

    def update(self, bar: Bar) -> None:
        super().update(bar)
        market = bar.market
        step = self._stepping.get(market)
        if step is not None:
            self._newest[market] = next(step)
            return
        window = self._windows[market]
        window.append((*bar[1:], *(values[market] for values in self.values.values())))
        del window[: -self.lookback]
        if len(window) == self.lookback and all(None not in row for row in window):
            at_ms, *lines = zip(*window, strict=True)
            signals, codes = self.evaluated(market, lines, numpy_module().array(at_ms, dtype="int64"))
            self._newest[market] = (codes[-1], signals, self.lookback - 1)
        else:
            self._newest[market] = (0, None, 0)

    def updates(self, market: str) -> Callable[[Bar], object]:
        return self.update

    def precompute(self, market: str, columns: Columns) -> None:
        computed = self.columns(market, columns)
        self.step_through(market, computed)
        if market in self._bar_by_bar or not columns.close:
            return
        kept = self._windows[market]
        lines = [list(line) for line in (*columns[:-1], *(column for _, column in computed))]
        if kept:
            lines = [[*old, *line] for old, line in zip(list(zip(*kept, strict=True))[1:], lines, strict=True)]
        try:
            signals, codes = self.evaluated(market, lines)
        except _NoInstants:
            self._bar_by_bar.add(market)
            return
        first = len(kept)
        self._stepping[market] = iter([(code, signals, row) for row, code in enumerate(codes[first:].tolist(), first)])
        # Nobody reads them.
        instants = [0] * self.lookback
        tail = [line[-self.lookback :] for line in lines]
        self._windows[market] = list(zip(instants[: len(tail[0])], *tail, strict=True))

    def evaluated(
        self, market: str, lines: Sequence[Sequence[float | None]], at_ms: Ints | None = None
    ) -> tuple[Signals, Any]:
        """The signals of these rows, and their codes. `lines` in the order of `self.lines`."""
        np = numpy_module()
        arrays = {name: np.array(line, dtype=np.float64) for name, line in zip(self.lines, lines, strict=True)}
        return self.evaluated_arrays(BarArrays(market, arrays, at_ms))

    def evaluated_arrays(self, bars: BarArrays) -> tuple[Signals, Any]:
        """The same. A row that has no `lookback` whole rows has the code 0."""
        np = numpy_module()
        # Signals of rows without an indicator decide nothing.
        with np.errstate(all="ignore"):
            signals = self._source.signals(bars)
        if not isinstance(signals, Signals):
            raise StrategyError(f"signals returned {signals!r:.100}; it returns Signals(...)")
        codes = signals.codes(len(bars))
        codes[: self.lookback - 1] = 0
        for name in self.lines[len(SOURCES) :]:
            (missing,) = np.nonzero(np.isnan(getattr(bars, name)))
            for offset in range(self.lookback if len(missing) else 0):
                late = missing + offset
                codes[late[late < len(codes)]] = 0
        return signals, codes

    def window(self, bars: BarArrays, row: int) -> BarArrays | None:
        """What the strategy sees live at this row; None if an indicator has no value in it."""
        np = numpy_module()
        part = slice(row - self.lookback + 1, row + 1)
        arrays = {name: getattr(bars, name)[part] for name in self.lines}
        is_whole = not any(np.isnan(line).any() for line in arrays.values())
        return BarArrays(bars.market, arrays, bars.at_ms[part]) if is_whole else None

    def intents(self, view: View, bar: Bar) -> Iterable[Intent]:
        """What the newest row asks for: `on_bar` of a strategy with signals."""
        code, signals, row = self._newest[bar.market]
        if not code:
            return ()
        held = view.position(bar.market)
        if held is not None:
            return (Close(bar.market),) if code & (CLOSE_LONG if held.side == "long" else CLOSE_SHORT) else ()
        if not code & OPENS or view.orders(bar.market):
            return ()
        assert signals is not None
        return (signals.open_at(bar.market, "long" if code & LONG else "short", row),)


def numpy_module() -> Any:
    try:
        import numpy as np
    except ImportError:
        raise StrategyError(f"a strategy with signals needs the package numpy: {install('research')}") from None
    return np

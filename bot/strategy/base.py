"""`Strategy`, the base class of every strategy.

Its hooks are synchronous and return intents; the daemon executes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bot.errors import StrategyError
from bot.strategy.bar import Bar
from bot.strategy.indicators import Indicator, Indicators, named_bars
from bot.strategy.intents import Intent
from bot.strategy.longer_bars import check_longer, checked_interval
from bot.strategy.params import Params as _Params
from bot.strategy.questions import Reply
from bot.strategy.signals import BarArrays, SignalRows, Signals
from bot.strategy.view import Fill, GuardianNote, Timer, Trigger, View

if TYPE_CHECKING:
    from bot.wire.resources import Plan


class Strategy(ABC):
    """Subclass it and define `on_bar`; everything else has a default.

    self.name, self.markets, self.params    from the config
    self.informative                        from the config: markets that are read and not traded
    self.fast[market]                       of a declared `fast = sma(10)`: the newest value, None before warm-up

    The daemon calls the hooks of one strategy one at a time. A hook that raises, or takes longer than 5 s, puts the
    strategy into quarantine: its positions keep their stops, and other strategies go on. The daemon executes the
    intents of a hook in order within each market; if there are several markets, it sends exits first.
    """

    Params: ClassVar[type[_Params]] = _Params
    warmup: ClassVar[int | str] = 0
    """Bars needed before the first decision, beyond those of the indicators: a number, or the name of a param."""
    lookback: ClassVar[int | str] = 2
    """How many bars `signals` reads for one row, this bar included: a number, or the name of a param."""
    intervals: ClassVar[Mapping[str, int | str]] = {}
    """Longer intervals whose bars the view is asked for, and how many bars of each the first decision needs: a number,
    or the name of a param. Intervals of declared indicators need no entry.

    intervals = {"4h": 50}
    """
    timers: ClassVar[Mapping[str, str | int]] = {}
    """When `on_timer` is called, by a name that you choose: five cron fields in UTC, or an interval in seconds.

    timers = {"rebalance": "0 * * * *", "look": 30}
    """

    name: str
    markets: tuple[str, ...]
    informative: tuple[str, ...]
    # An instance of this strategy's own Params.
    params: Any

    def __init__(
        self,
        *,
        name: str,
        markets: Sequence[str],
        params: _Params | Mapping[str, Any] | None = None,
        informative: Sequence[str] = (),
    ) -> None:
        """`params` as a mapping is validated here: pydantic.ValidationError names the field and its bound."""
        self.name = name
        self.markets = tuple(markets)
        self.informative = tuple(informative)
        self.params = params if isinstance(params, self.Params) else self.Params.model_validate(dict(params or {}))
        self.indicators = self._indicators()
        self.__dict__.update(self.indicators.values)
        extra = named_bars(self.warmup, self.params, "warmup") if self.warmup != 0 else 0
        self.warmup_bars = max(1, extra, self.indicators.warmup_bars)
        self.longer_bars = dict(self.indicators.longer)
        for interval, bars in _intervals_of(type(self)).items():
            needed = named_bars(bars, self.params, f"intervals[{interval!r}]")
            self.longer_bars[interval] = max(needed, self.longer_bars.get(interval, 0))

    def __init_subclass__(cls, **named: Any) -> None:
        """A class with `signals` and without an `on_bar` of its own gets one that follows the signals."""
        super().__init_subclass__(**named)
        if cls.signals is not Strategy.signals and cls.on_bar is Strategy.on_bar:
            cls.on_bar = _follow_signals  # type: ignore[method-assign]

    def _indicators(self) -> Indicators:
        indicators = declared(type(self))
        if type(self).signals is Strategy.signals:
            return Indicators(indicators, (*self.markets, *self.informative), self.params)
        if self.informative:
            raise StrategyError(
                "`signals` reads one market at a time; write on_bar to read informative markets, or remove them"
            )
        lookback = named_bars(self.lookback, self.params, "lookback")
        return SignalRows(indicators, self.markets, self.params, self, lookback)

    @abstractmethod
    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        """One bar of one of the markets has closed. `yield` intents, or return a list or nothing.

        After each start, past bars come first. The daemon drops their intents, log lines and changes of `view.state`.
        """

    def signals(self, bars: BarArrays) -> Signals:
        """In place of `on_bar`: the entries and exits of many bars at once, as arrays. One row may read the last
        `lookback` bars.

        A strategy of several markets is asked for one market at a time. An `on_bar` of its own may return
        `self.follow_signals(view, bar)`.
        """
        raise NotImplementedError

    def follow_signals(self, view: View, bar: Bar) -> Iterable[Intent]:
        """What the signals of this bar ask for."""
        assert isinstance(self.indicators, SignalRows)
        return self.indicators.intents(view, bar)

    def on_start(self, view: View) -> None:
        """The daemon has read the account. Called once, before the warm-up bars and the first bar of a run."""

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        """An order of this strategy's markets was executed, wholly or in part."""
        return ()

    def on_trigger(self, view: View, trigger: Trigger) -> Iterable[Intent]:
        """A stop or a target was touched."""
        return ()

    def on_guardian(self, view: View, note: GuardianNote) -> Iterable[Intent]:
        """A guardian of the account or of this strategy's markets did something."""
        return ()

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        """One of `timers` is due.

        Called once for each instant, also across restarts; after a downtime only for the newest missed instant.
        """
        return ()

    def on_reply(self, view: View, reply: Reply) -> Iterable[Intent]:
        """A question of `view.ask` has its reply.

        An intent is as fresh as the question: two intervals after it, entries are refused.
        """
        return ()

    def on_stop(self, view: View) -> None:
        """The run ends normally. Called once; not called after a crash."""

    def confirm(self, plan: Plan) -> bool:
        """Return False to withdraw an Open after its dry run (`plan`).

        If you define this method, every entry has a dry run first.
        """
        return True


def begin_bars(strategy: Strategy, own: str) -> None:
    """Tell the strategy the interval of its bars (`own`). The host calls this before the first bar.

    StrategyError names the indicator, or the key of `intervals`, whose longer bars cannot be made of these.
    """
    named = [
        (name, indicator.interval)
        for name, indicator in declared(type(strategy)).items()
        if indicator.interval is not None
    ]
    named += [("intervals", interval) for interval in strategy.intervals]
    for name, interval in named:
        try:
            check_longer(interval, own)
        except StrategyError as error:
            raise StrategyError(f"{name}: {error}") from None
    strategy.indicators.begin(own)


def _intervals_of(strategy: type[Strategy]) -> Mapping[str, int | str]:
    given: Any = strategy.intervals
    if not isinstance(given, Mapping):
        raise StrategyError(f'intervals is a mapping from longer intervals to bars, {{"4h": 50}}, not {given!r:.100}')
    for interval in given:
        try:
            checked_interval(interval)
        except StrategyError as error:
            raise StrategyError(f"intervals: {error}") from None
    return strategy.intervals


def _follow_signals(self: Strategy, view: View, bar: Bar) -> Iterable[Intent]:
    """`on_bar` of a strategy with `signals`."""
    return self.follow_signals(view, bar)


def follows_signals(strategy: Strategy) -> bool:
    """True if `on_bar` of this strategy comes from its `signals`."""
    return type(strategy).on_bar is _follow_signals


def declared(strategy: type[Strategy]) -> dict[str, Indicator]:
    """The indicators that a class declares, those of its bases first.

    A later declaration replaces an earlier one of the same name.
    """
    indicators: dict[str, Indicator] = {}
    for owner in reversed(strategy.__mro__):
        for name, value in vars(owner).items():
            if isinstance(value, Indicator):
                indicators[name] = value
            else:
                indicators.pop(name, None)
    return indicators

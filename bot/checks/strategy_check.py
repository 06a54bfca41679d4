"""Calls a strategy on generated bars, without a service, to find the errors that a daemon would meet at its first bars.

It calls the hooks as the daemon does and puts their signals through the daemon's risk checks. It sends and stores
nothing. Each order that passes is filled at once.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from bot.checks.strategy_account import BY_PRICE, NEVER_RIGHT, CheckedAccount
from bot.clock import INTERVALS, monotonic_ns
from bot.config import Settings, StrategySettings
from bot.errors import StrategyError
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.passes.bar_feed import BarFeed, BarSeries
from bot.runtime.strategy_host import loader
from bot.runtime.strategy_host.strategy_limits import limits_of
from bot.runtime.strategy_host.timers import next_after
from bot.service.market_data.instruments import CATALOGUE
from bot.strategy import Bar, Fill, GuardianNote, Strategy, Timer, Trigger
from bot.strategy.longer_bars import pieces_of
from bot.venue.model.numbers import E8
from bot.wire import CANDLES_MAX, INTERVAL_MS
from bot.words import many

# The bars of each market, after the warm-up.
BARS: Final = 200
# with a long warm-up
BARS_MAX: Final = 2_000
# bars between two calls of on_timer
BARS_A_TIMER: Final = 10
# time for all bars of one strategy; later bars are not checked
CALLS_S: Final = 3.0
# a strategy that takes longer hangs; the daemon gives one call 5 s
HANGS_S: Final = 10.0
START_MS: Final = 1_760_000_000_000
EQUITY_USD: Final = Decimal(10_000)
# The price of a market that the embedded service does not have.
OTHER_PX: Final = 100.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of one strategy: a `problem` that a run would meet, and a `note` that its author should read.

    None: nothing to say. `timers`: those that the strategy declares.
    """

    problem: str | None = None
    note: str | None = None
    timers: Mapping[str, Any] = field(default_factory=dict)


class StrategyCheck:
    """Runs the hooks of one strategy in a thread, so that a strategy that hangs does not hang the command."""

    def __init__(
        self, strategy: Strategy, interval: str, limits: StrategyLimits, equity_usd: Decimal = EQUITY_USD
    ) -> None:
        self.strategy = strategy
        self.file = getattr(sys.modules.get(type(strategy).__module__), "__file__", None)
        # Bars of informative markets come first.
        self.markets = (*strategy.informative, *strategy.markets)
        series = {BarSeries(market, interval): strategy.warmup_bars for market in self.markets}
        self.feed = BarFeed(series)
        self.account = CheckedAccount(strategy, interval, limits, self.feed, equity_usd)
        self.interval_ms = INTERVAL_MS[interval]
        self.at = "on_start"
        self.bars = 0
        self.problem: str | None = None

    def run(self) -> str | None:
        """Call the strategy. Returns the problem, with lines of the strategy's file, or None."""
        thread = threading.Thread(target=self._guarded, name=f"strategy-check-{self.strategy.name}", daemon=True)
        with contextlib.redirect_stdout(sys.stderr):
            thread.start()
            thread.join(HANGS_S)
        if not thread.is_alive():
            return self.problem
        # A documented function, in spite of its name.
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        place = "" if frame is None else f" ({Path(str(self.file)).name}:{frame.f_lineno})"
        return f"{self.at} does not return within {HANGS_S:g} s on generated bars{place}"

    def refusal(self) -> str | None:
        """Why every entry in some market was refused, or one that can never pass; None if neither is so."""
        account = self.account
        if any(account.refusals[code] for code in NEVER_RIGHT):
            return f"the risk checks refuse orders on generated bars: {self._refusals()}"
        for market, number in account.entries_in.items():
            if len(account.entries_in) > 1 and account.hopeless_in[market] >= number:
                return f"every entry in {market} is refused by the risk checks on generated bars: {self._refusals()}"
        if not account.entries or account.refusals.total() < account.entries:
            return None
        if any(account.refusals[code] for code in BY_PRICE):
            # The generated prices may be far from those that the strategy was written for: this is a note.
            return None
        return f"every entry is refused by the risk checks on generated bars: {self._refusals()}"

    def note(self) -> str | None:
        account = self.account
        if account.refusals:
            return (
                f"{account.refusals.total():,} of {many(account.entries, 'entry', 'entries')} on generated bars"
                f" refused: {self._refusals()}"
            )
        if account.decided or account.asker.asked:
            return None
        return f"0 decisions on {many(self.bars, 'generated bar')}: nothing was yielded"

    def _refusals(self) -> str:
        account = self.account
        return "; ".join(
            f"{code} {number:,}, first {account.first_refusal[code]}" for code, number in account.refusals.most_common()
        )

    def _guarded(self) -> None:
        try:
            self._calls()
        except StrategyError as error:
            self.problem = f"{self.at} fails on generated bars: {str(error).removeprefix(f'{self.strategy.name}: ')}"
        except KeyboardInterrupt:
            self.problem = f"{self.at} fails on generated bars: KeyboardInterrupt"
        except BaseException as error:  # noqa: BLE001 - a strategy may raise anything; it becomes the result
            named = self.account.instance.named_error(error)
            self.problem = f"{self.at} fails on generated bars: {str(named).removeprefix(f'{self.strategy.name}: ')}"

    def _calls(self) -> None:
        strategy, instance = self.strategy, self.account.instance
        view = instance.view
        instance.call_without_signals(partial(strategy.on_start, view), now_ms=START_MS)
        self._begin_longer()
        timers = list(instance.timers.items())
        end_ns = monotonic_ns() + int(CALLS_S * 1e9)
        for number, bar in enumerate(islice(self._bars(), self._bars_in_all()), 1):
            self.bars = number
            self.account.account_state.marks[bar.market] = bar.close
            instance.source.histories[bar.market].append(bar)
            strategy.indicators.update(bar)
            if bar.market in instance.markets:
                self._call(f"on_bar at bar {number}", partial(strategy.on_bar, view, bar), bar.at_ms)
            if timers and number % BARS_A_TIMER == 0:
                name, spec = timers[number // BARS_A_TIMER % len(timers)]
                due_ms = next_after(spec, bar.at_ms)
                self._call(f"on_timer of {name}", partial(strategy.on_timer, view, Timer(name, due_ms)), due_ms)
            if monotonic_ns() > end_ns:
                break
        self._call_of_stops(bar.at_ms)
        self.at = "on_stop"
        instance.call_without_signals(partial(strategy.on_stop, view), now_ms=bar.at_ms)

    def _call_of_stops(self, now_ms: int) -> None:
        """Touch the stop of each open position, as the service does."""
        strategy, view = self.strategy, self.account.instance.view
        for order in list(self.account.account_state.orders.values()):
            position = self.account.account_state.positions[order.market]
            px, side = float(order.trigger_px or 0), view.position(order.market)
            if side is None:
                continue
            touched = Trigger(order.market, now_ms, "stop_loss", side.side, float(position.size), px, order.oid)
            self._call("on_trigger", partial(strategy.on_trigger, view, touched), now_ms)
            note = GuardianNote(order.market, now_ms, "released", "trailing_stop", "check", "position_closed")
            self._call("on_guardian", partial(strategy.on_guardian, view, note), now_ms)

    def _call(self, at: str, hook: Callable[[], Any], now_ms: int) -> None:
        """Call a hook, act on its signals, and give it the fills."""
        self.at = at
        instance = self.account.instance
        fills = self.account.act(instance.call(hook, now_ms=now_ms), hook=at, now_ms=now_ms)
        self.at = f"view.state after {at.partition(' ')[0]}"
        instance.changed_state()
        for fill in fills:
            self._tell(fill, now_ms)

    def _tell(self, fill: Fill, now_ms: int) -> None:
        """Give on_fill a fill. What it orders is judged, and not filled, so that two hooks cannot go on for ever."""
        self.at = "on_fill"
        instance = self.account.instance
        signals = instance.call(partial(self.strategy.on_fill, instance.view, fill), now_ms=now_ms)
        self.account.act(signals, hook="on_fill", now_ms=now_ms)
        instance.changed_state()

    def _bars_in_all(self) -> int:
        return min(self.strategy.warmup_bars + BARS, BARS_MAX) * len(self.markets)

    def _begin_longer(self) -> None:
        """Generate the past of the longer intervals up to the first bar."""
        for series, history in self.feed.histories.items():
            index = self.markets.index(series.market)
            for interval, kept in history.longer.items():
                pieces = pieces_of(interval, series.interval)
                needed = (self.strategy.longer_bars[interval] + 1) * INTERVALS[interval] // INTERVALS[pieces]
                last = START_MS // INTERVALS[pieces]
                numbers = range(last - min(needed, CANDLES_MAX), last)
                kept.begin([_bar(series.market, index, number, INTERVALS[pieces]) for number in numbers], pieces)

    def _bars(self) -> Iterator[Bar]:
        """Bars whose prices swing by some percent, slowly and quickly, so that averages cross and ranges break."""
        for number in count(START_MS // self.interval_ms):
            for index, market in enumerate(self.markets):
                yield _bar(market, index, number, self.interval_ms)


def _bar(market: str, index: int, number: int, step_ms: int) -> Bar:
    """The generated bar of this number since the epoch."""
    n = number - START_MS // step_ms
    open_, close = (_start_px(market) * _course(i, index) for i in (n - 1, n))
    high, low = max(open_, close) * 1.002, min(open_, close) * 0.998
    return Bar(market, number * step_ms, open_, high, low, close, 10.0 + n % 7)


def _start_px(market: str) -> float:
    """A realistic price of the market, so that a distance in USD makes sense."""
    return CATALOGUE[market].px / E8 if market in CATALOGUE else OTHER_PX


def _course(n: int, index: int) -> float:
    return 1 + 0.08 * math.sin(n / 17 + index) + 0.02 * math.sin(n / 3) + 0.005 * math.sin(n * n)


def checked(settings: Settings) -> list[Checked]:
    """What came of each strategy of the config, in its order."""
    results = []
    for placed in settings.strategies:
        loaded = loader.load(placed.use, settings.strategies_dir)
        limits = limits_of(settings, placed)
        check = _tried(placed, loaded, limits, EQUITY_USD)
        if check.problem is None and check.refusal() is not None:
            # A strategy that sizes by the account may fit its budget with less money.
            smaller = _tried(placed, loaded, limits, limits.budget_usd / 2)
            check = smaller if smaller.problem is None and smaller.refusal() is None else check
        problem = check.problem or check.refusal()
        note = None if problem is not None else check.note()
        results.append(Checked(problem, note, dict(loaded.strategy.timers)))
    return results


def _tried(
    placed: StrategySettings, loaded: loader.Loaded, limits: StrategyLimits, equity_usd: Decimal
) -> StrategyCheck:
    """The check of one strategy, after its run."""
    strategy = loader.build(
        loaded,
        name=placed.name,
        markets=placed.markets,
        params=placed.params,
        interval=placed.interval,
        informative=placed.informative,
    )
    check = StrategyCheck(strategy, placed.interval, limits, equity_usd)
    check.problem = check.run()
    return check

"""The closed bars that wait to be decided. A bar that a pass has no time for stays here: no bar is ever skipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bot.runtime.model.intents import Intent
from bot.runtime.passes.bar_feed import BarFeed, BarSeries, ClosedBar
from bot.runtime.strategy_host.host import StrategyHost, StrategySpec
from bot.strategy.history import HISTORY_BARS

# After so many periods nothing is left of a recursive average's first value: e^-40 is below a float's last bit.
SETTLED_PERIODS: Final = 40


class BarQueue:
    """Due bars in order of time, and bars that wait for a strategy whose past came late."""

    def __init__(self, feed: BarFeed, host: StrategyHost) -> None:
        self.feed = feed
        self._host = host
        self.due: list[ClosedBar] = []
        # Past bars that a strategy still has to see, and the bars that are due to it after them.
        self.catching_up: list[ClosedBar] = []

    def join(self, due: Iterable[ClosedBar]) -> None:
        """Add bars in their places. A strategy that has past bars to see gets its other bars after those."""
        fresh = self.feed.in_order(due)
        if self.catching_up or any(map(self.feed.is_past, fresh)):
            listeners = self._host.listeners()
            behind = {bar.market for bar in (*self.catching_up, *fresh) if self.feed.is_past(bar)}
            late = frozenset[str]().union(*(listeners.get(market, ()) for market in behind))
            waits = {bar.market for bar in fresh if not late.isdisjoint(listeners.get(bar.market, ()))} | behind
            self.catching_up = self.feed.in_order([*self.catching_up, *(bar for bar in fresh if bar.market in waits)])
            fresh = [bar for bar in fresh if bar.market not in waits]
        self.due = self.feed.in_order([*self.due, *fresh])

    def begin_with(self, due: Sequence[ClosedBar]) -> None:
        """The due bars after a warm-up."""
        self.due = list(due)

    def wait_for(self, past: Sequence[ClosedBar], after: Sequence[ClosedBar]) -> None:
        """Bars that a strategy still has to see, and those that are due after them. Without past bars they join."""
        self.catching_up = [*past, *after] if past else []
        if not past:
            self.join(after)

    def put_back(self, bars: Iterable[ClosedBar]) -> None:
        """Add due bars that were taken out and not decided."""
        self.due = self.feed.in_order([*bars, *self.due])

    def remove(self, bars: Iterable[ClosedBar]) -> None:
        """Take due bars out, to decide them."""
        chosen = set(bars)
        self.due = [bar for bar in self.due if bar not in chosen]

    def take_all(self) -> list[ClosedBar]:
        """Empty the queue: the newest bar of each series after `recover`. The bars are the caller's from now on."""
        due, self.due, self.catching_up = self.feed.in_order([*self.catching_up, *self.due]), [], []
        return due

    def ready(self, awaited: Sequence[Intent]) -> list[ClosedBar]:
        """The due bars that may be decided now: those whose strategies do not wait for the reply to one of these
        intents.
        """
        if not awaited:
            return self.due
        markets, names = {intent.market for intent in awaited}, {intent.strategy for intent in awaited}
        listeners = self._host.listeners()
        waiting = set[BarSeries]()
        ready = []
        for closed in self.due:
            is_free = closed.market not in markets and names.isdisjoint(listeners.get(closed.market, ()))
            # A bar that reads a waiting series waits for it.
            if is_free and waiting.isdisjoint(self.feed.reads.get(closed.series, ())):
                ready.append(closed)
            else:
                waiting.add(closed.series)
        return ready


def feed_of(specs: Sequence[StrategySpec]) -> BarFeed:
    """A feed of the bars that these strategies decide on, and of the others that they read."""
    feed = BarFeed(wanted_series(specs))
    feed.read_first(reads_of(specs))
    for spec in specs:
        for series in spec.series:
            for interval in spec.strategy.longer_bars:
                feed.histories[series].keep(interval, spec.interval)
    return feed


def reads_of(specs: Sequence[StrategySpec]) -> dict[BarSeries, frozenset[BarSeries]]:
    """Series -> those of the informative markets of its strategies."""
    reads: dict[BarSeries, frozenset[BarSeries]] = {}
    for spec in specs:
        informative = frozenset(BarSeries(market, spec.interval) for market in spec.strategy.informative)
        for market in spec.strategy.markets if informative else ():
            series = BarSeries(market, spec.interval)
            reads[series] = reads.get(series, frozenset()) | informative
    return reads


def wanted_series(specs: Sequence[StrategySpec]) -> dict[BarSeries, int]:
    """How many bars of each series a start asks for.

    So many that a restart sees what an unbroken run sees: the whole history of a view, and averages that have settled.
    """
    wanted: dict[BarSeries, int] = {}
    for spec in specs:
        for series in spec.series:
            wanted[series] = max(wanted.get(series, HISTORY_BARS), spec.strategy.warmup_bars * SETTLED_PERIODS)
    return wanted

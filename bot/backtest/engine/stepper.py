"""One step of a backtest: hand a bar, a timer or new events to the daemon's kernel, and run the kernel's pass to its
end.

The stepper says when a pass runs. What a pass does is the kernel's own code, as in a live run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

from bot.backtest.engine.bar_runs import BarRuns
from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.progress import RunStats
from bot.errors import RETRY_AFTER_MS
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.passes.bar_feed import BarSeries, ClosedBar
from bot.runtime.passes.ports import Calm, PortClock
from bot.runtime.strategy_host.host import Decision
from bot.strategy import Bar
from bot.strategy.indicators import Columns
from bot.venue.prices.quiet_band import FOREVER_MS

_ACCEPTED: Final = frozenset({"accepted"})
_STATE: Final = attrgetter("state")
# no bar leaves this range
ANY_BAR: Final = Calm(float("-inf"), float("inf"), FOREVER_MS + 1)


class ExchangeControl(Protocol):
    """What moves the venue's time: the simulated exchange in this process, or the control API of a sandbox."""

    @property
    def count(self) -> int: ...
    def band(self, coin: str) -> Calm: ...
    def bands(self) -> Mapping[str, Calm]: ...
    def skip(self, reader: CandleReader, last: int) -> None: ...
    def pass_bar(self, reader: CandleReader, row: int) -> None: ...
    def advance(self, to_ms: int) -> None: ...
    def is_calm(self, to_ms: int, bands: Mapping[str, Calm]) -> bool: ...
    def calm_until(self, to_ms: int, bands: Mapping[str, Calm]) -> int: ...
    def skip_to(self, to_ms: int) -> None: ...
    def beat(self, ahead_ms: int = 0) -> None: ...


class SessionPacer:
    """The real time that the kernel sees in a backtest. It stands still during a pass, so that a pass has all the time
    it needs and retries do not wait. When the service's clock has moved between two passes, the retry delay has passed
    too.
    """

    def __init__(self) -> None:
        self._waited_ms = 0
        self._now_ms = 0

    def moved(self, now_ms: int) -> None:
        if now_ms != self._now_ms:
            self._now_ms = now_ms
            self._waited_ms += RETRY_AFTER_MS

    def mono_ms(self) -> int:
        return self._waited_ms

    def delay_ms(self, attempt: int) -> int:
        return 0

    async def sleep(self, ms: int) -> None:
        pass


class Stepper:
    """Drives the kernel of the running daemon.

    `start` hands it the kernel of each new daemon; `wait` runs a coroutine to its end.
    """

    def __init__(
        self,
        exchange: ExchangeControl,
        clock: PortClock,
        stats: RunStats,
        *,
        latency_ms: int,
        wait: Callable[..., Any],
        started_ms: int,
    ) -> None:
        # The newest daemon's kernel, and its runs of bars.
        self.kernel: Kernel
        self.runs: BarRuns
        # False while the daemon is down
        self.is_up = False
        self.pacer = SessionPacer()
        self.wait = wait
        self.latency_ms = latency_ms
        # when the running daemon started
        self.started_ms = started_ms
        # when the cause of the next order was known; None: with the newest event
        self.cause_ms: int | None = None
        self._exchange = exchange
        self._clock = clock
        self._stats = stats
        # number of the newest event that the kernel has taken
        self.drained = 0
        # number of the newest event at the last comparison at the end of a chunk
        self._compared = -1

    def start(self, kernel: Kernel) -> None:
        self.kernel, self.runs, self.is_up = kernel, BarRuns(kernel), True
        self.started_ms = self.now_ms()

    def stop(self) -> None:
        """The daemon is down."""
        self.is_up = False

    def has_recovered(self) -> None:
        """The kernel has read the account and all events, and decides on what it knows now."""
        self.has_read_all()
        self.cause_ms = self.now_ms()

    def has_read_all(self) -> None:
        """The kernel has read all events so far."""
        self.drained = self._exchange.count

    def know_cause(self, newest_ms: Callable[[], int]) -> int:
        """When the cause of the next order was known. If nobody has said it, that is with the newest event."""
        if self.cause_ms is None:
            self.cause_ms = newest_ms()
        return self.cause_ms

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # -- bars and timers

    def decide_at(self, at_ms: int, due: Sequence[tuple[BarSeries, Bar]]) -> None:
        """Decide on bars that all close at one instant, then fire the timers that are due by then, as live."""
        kernel = self.kernel
        is_bound = self._decide_all(due)
        # The day began before the bars of all markets came.
        if at_ms <= kernel.account.attribution.day_ms:
            kernel.account.position_owners.mend_day()
        timer_ms = kernel.timers.next_ms
        if is_bound or (timer_ms is not None and timer_ms <= at_ms):
            self.fire_timers(at_ms)

    def _decide_all(self, due: Sequence[tuple[BarSeries, Bar]]) -> bool:
        """Decide on each bar, and send the orders of each decision.

        With latency, all decisions come before the first order is sent, because no strategy may know what happens
        during the latency.

        True: a timer or a daily loss limit falls on this instant, so `fire_timers` must follow."""
        if not self.latency_ms:
            is_bound = False
            for series, bar in due:
                decision, is_bound_here = self._decision_on(series, bar)
                if decision is not None:
                    self.act(decision, series, bar)
                is_bound |= is_bound_here
            return is_bound
        decided = [(self._decision_on(series, bar), series, bar) for series, bar in due]
        for (decision, _), series, bar in decided:
            if decision is not None:
                self.act(decision, series, bar)
        return any(is_bound for (_, is_bound), _, _ in decided)

    def _decision_on(self, series: BarSeries, bar: Bar) -> tuple[Decision | None, bool]:
        """The strategies' decision on a bar, and whether a timer or a daily loss limit falls on its close."""
        kernel = self.kernel
        self.cause_ms = bar.at_ms - 1
        left, decision = self.runs.decide(series, iter((bar,)), ANY_BAR)
        if decision is not None or left is None:
            return decision, False
        self.begin_pass()
        self.wait(kernel.fire_timers(bar.at_ms - 1))
        closed = ClosedBar(bar.at_ms, *series, bar)
        return self.wait(kernel.strategy_host.decide(closed, now_ms=bar.at_ms)), True

    def fire_timers(self, at_ms: int) -> None:
        """One pass for the timers that are due by `at_ms`."""
        kernel = self.kernel
        self.cause_ms = at_ms - 1
        self.begin_pass()
        self.wait(kernel.fire_timers(at_ms))
        self.settle()

    def precompute(self, series: BarSeries, columns: Columns) -> None:
        """Compute the declared indicators of a chunk of bars at once. Strategies get their values bar by bar."""
        for instance in self.kernel.strategy_host.instances:
            if series in instance.series:
                instance.indicators.precompute(series.market, columns)

    # -- passes

    def act(self, decision: Decision, series: BarSeries, bar: Bar, *, before_next_bar: bool = False) -> None:
        """One pass that carries out a decision on a bar.

        `before_next_bar`: nothing else is decided before the venue has seen the next bar.
        """
        kernel = self.kernel
        self.cause_ms = bar.at_ms - 1
        self._stats.decisions += 1
        self.begin_pass()
        # If no request to the venue takes time, the events of an order may be read with those of the next bar.
        reads = not before_next_bar or kernel.events.source is None or self.latency_ms > 0
        self.wait(kernel.act([(decision, ClosedBar(bar.at_ms, *series, bar))], reads=reads))
        if not reads:
            if not _has_unsettled(kernel):
                # `drained` says that the new events are not read yet.
                return
            self.wait(kernel.events.drain())
        self.settle()

    def catch_up(self, *, at_once: bool = False) -> None:
        """One pass that takes new events, or retries what an earlier pass has left.

        `at_once`: also if there are no new events and nothing is left.
        """
        kernel = self.kernel
        is_behind = at_once or self._exchange.count != self.drained
        if not is_behind and not kernel.intents.live:
            return
        # With latency a retried order is sent at this instant.
        self.cause_ms = None if is_behind else self.now_ms()
        self.begin_pass()
        if is_behind and not kernel.events.take_now():
            self.wait(kernel.events.drain())
        self.settle()

    def begin_pass(self) -> None:
        assert self.is_up
        kernel = self.kernel
        if kernel.intents.live and _has_unsettled(kernel):
            self.pacer.moved(self.now_ms())
        kernel.budget.begin()

    def settle(self) -> None:
        """End a pass: settle open intents, repair missing stops and guardians, place target orders, and compare with
        the account where the kernel asks for it.
        """
        kernel = self.kernel
        if kernel.strategy_host.asker is not None and kernel.strategy_host.asker.answered():
            self.wait(kernel.take_replies())
        if kernel.intents.live:
            self.wait(kernel.execution.settle())
            # A live daemon begins its next pass with these events, and decides nothing before.
            self.wait(kernel.events.drain())
        reconciliation = kernel.reconciliation
        if not reconciliation.has_nothing_to_do():
            self.wait(reconciliation.repair())
        if reconciliation.run.comparison.is_due:
            self.wait(reconciliation.reconcile())
        if kernel.conditions.losses.is_used:
            # A fill may have cost more than the close of its bar shows.
            kernel.conditions.losses.watch(self.now_ms())
        self.drained = self._exchange.count

    def end_of_chunk(self) -> None:
        """Compare with the account, unless nothing has happened since the last comparison here."""
        kernel = self.kernel
        if self._exchange.count != self._compared or kernel.intents.live:
            self.begin_pass()
            self.wait(kernel.reconciliation.reconcile())
            self.drained = self._compared = self._exchange.count
        kernel.bars.feed.trim()
        gc.freeze()


def _has_unsettled(kernel: Kernel) -> bool:
    """True if the service has not accepted one of the open intents."""
    return not _ACCEPTED.issuperset(map(_STATE, kernel.intents.live.values()))

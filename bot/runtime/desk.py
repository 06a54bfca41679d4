"""The desk: all strategies of a run in their seats. It asks their hooks, keeps their states, and quarantines the one that fails.

A strategy that raises wants nothing and is asked nothing more; the others go on. Nothing here judges or sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog

from bot.errors import StrategyError
from bot.runtime.feed import Closed, Feed, Series
from bot.runtime.gate import Allowance
from bot.runtime.journal import Journal
from bot.runtime.mirror import Mirror
from bot.runtime.ports import Calm
from bot.runtime.seats import Seat, hook_of
from bot.strategy import Bar, Strategy
from bot.strategy import Intent as Wish

if TYPE_CHECKING:
    from bot.wire import Event, Plan

log = structlog.get_logger()
T = TypeVar("T")

Hook = Callable[[], Iterable[Wish] | None]
Run = Callable[[str, Callable[[], Any]], Awaitable[Any]]


class Placed(NamedTuple):
    """A strategy with its interval and what it may do."""

    strategy: Strategy
    interval: str
    allowance: Allowance


class Wished(NamedTuple):
    seat: Seat
    wish: Wish


@dataclass(slots=True)
class Decision:
    """What the strategies want, for one cause, and the states that it leaves them in."""

    wishes: list[Wished] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)


async def run_inline(name: str, call: Callable[[], T]) -> T:
    """Sessions and tests: the strategy's call, right here. Live gives it a thread and a limit, StrategyError when it is passed."""
    return call()


class Desk:
    def __init__(
        self, placed: Sequence[Placed], *, journal: Journal, mirror: Mirror, feed: Feed, run: Run = run_inline
    ) -> None:
        self.journal = journal
        self.mirror = mirror
        self.feed = feed
        self.run = run
        self.seats = [
            Seat(
                one.strategy, interval=one.interval, mirror=mirror, feed=feed, state=journal.state_of(one.strategy.name)
            )
            for one in placed
        ]
        self._listeners: dict[Series, list[Seat]] = {s: [x for x in self.seats if s in x.series] for s in feed.wanted}
        self._started = False

    def seat_of(self, market: str) -> Seat | None:
        """The first strategy of a market."""
        return next((seat for seat in self.seats if market in seat.markets), None)

    def working(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.quarantined is None]

    # -- asking

    async def decide(self, closed: Closed, *, now_ms: int) -> Decision:
        """What every strategy of this series wants on this bar, each in its turn."""
        decision = Decision()
        self.see(closed)
        for seat in self._listeners[closed.series]:
            await self._ask(seat, partial(seat.strategy.on_bar, seat.view, closed.bar), decision, now_ms=now_ms)
        return decision

    async def hear(self, event: Event, decision: Decision, *, now_ms: int) -> list[Wished]:
        """Tell an event to those that it concerns; answers what they want on it, which is in the decision too."""
        before = len(decision.wishes)
        for seat in self.seats:
            hook = hook_of(seat, event)
            if hook is not None:
                await self._ask(seat, hook, decision, now_ms=now_ms)
        return decision.wishes[before:]

    def decide_run(self, series: Series, bars: Iterator[Bar], calm: Calm) -> tuple[Bar | None, Decision | None]:
        """The fast path of a session: on_bar for bar after bar of one series, until one leaves the band or something is wanted.

        (bar, None): the venue must see this bar before it is decided. (bar, decision): act on it. (None, None): no bar left.
        Nothing is built for a bar on which nobody wants anything.
        """
        lo, hi, until_ms = calm
        market = series.market
        append, marks = self.feed.histories[series].append, self.mirror.marks
        crew = [
            (
                seat,
                seat.strategy.on_bar,
                seat.view,
                seat.source,
                seat.strategy.indicators.update if seat.strategy.indicators.names else None,
            )
            for seat in self._listeners[series]
        ]
        last_ms: int | None = None
        for bar in bars:
            _, at_ms, _, high, low, close, _ = bar
            if low <= lo or high >= hi or at_ms >= until_ms:
                self._done(series, last_ms)
                return bar, None
            append(bar)
            marks[market] = close
            decision: Decision | None = None
            for seat, on_bar, view, source, update in crew:
                if update is not None:
                    update(bar)
                if seat.quarantined is not None:
                    continue
                source.now_ms = at_ms
                try:
                    wishes = iter(on_bar(view, bar) or ())
                    for wish in wishes:
                        decision = decision or Decision()
                        found = seat.call(partial(chain, (wish,), wishes), now_ms=at_ms)
                        decision.wishes += [Wished(seat, one) for one in found]
                except Exception as error:  # noqa: BLE001 - as in Seat.call: named, and it ends the strategy's part
                    self._quarantine(seat, seat.blame(error))
                if source.state or seat.has_state:
                    self._keep_state(seat, decision)
            if decision is not None and (decision.wishes or decision.states):
                return bar, decision
            last_ms = at_ms
        self._done(series, last_ms)
        return None, None

    async def may_confirm(self, strategy: str, plan: Plan) -> bool:
        """Whether the strategy stands by its entry, now that it sees the plan. One that is quarantined does not."""
        seat = next((seat for seat in self.working() if seat.name == strategy), None)
        return seat is not None and bool(await self._run(seat, partial(seat.confirms, plan)))

    # -- the run

    async def start(self, *, now_ms: int) -> None:
        """on_start of each, once a run."""
        if self._started:
            return
        self._started = True
        for seat in self.working():
            await self._run(seat, partial(seat.call, partial(seat.strategy.on_start, seat.view), now_ms=now_ms))
            self._keep_state(seat, None)

    async def rehearse(self, closed: Closed) -> None:
        """A bar of the past: the strategies see it, and what they want is dropped."""
        self.see(closed)
        for seat in self._listeners[closed.series]:
            if seat.quarantined is None:
                hook = partial(seat.strategy.on_bar, seat.view, closed.bar)
                await self._run(seat, partial(seat.rehearse, hook, now_ms=closed.at_ms))

    async def stop(self, *, now_ms: int) -> None:
        """on_stop of each; what it leaves in the state is kept."""
        for seat in self.working():
            await self._run(seat, partial(seat.call, partial(seat.strategy.on_stop, seat.view), now_ms=now_ms))
            self._keep_state(seat, None)

    def see(self, closed: Closed) -> None:
        """The bar becomes part of the past: history, marks and declared indicators."""
        self.feed.take(closed)
        self.mirror.mark(closed.market, closed.bar.close)
        for seat in self._listeners[closed.series]:
            seat.strategy.indicators.update(closed.bar)

    # -- inside

    async def _ask(self, seat: Seat, hook: Hook, decision: Decision, *, now_ms: int) -> None:
        if seat.quarantined is not None:
            return
        wishes = await self._run(seat, partial(seat.call, hook, now_ms=now_ms))
        if wishes is None:
            return
        self._keep_state(seat, decision)
        if seat.quarantined is None:
            decision.wishes += [Wished(seat, wish) for wish in wishes]

    def _keep_state(self, seat: Seat, decision: Decision | None) -> None:
        state = self._guarded(seat, seat.changed_state)
        if state is None:
            return
        if decision is None:
            self.journal.decided((), states={seat.name: state})
        else:
            decision.states[seat.name] = state

    async def _run(self, seat: Seat, call: Callable[[], T]) -> T | None:
        """A call into a strategy, where such calls are run. None: it failed, and is quarantined."""
        try:
            answer: T = await self.run(seat.name, call)
        except StrategyError as error:
            self._quarantine(seat, error)
            return None
        return answer

    def _guarded(self, seat: Seat, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except StrategyError as error:
            self._quarantine(seat, error)
            return None

    def _quarantine(self, seat: Seat, error: StrategyError) -> None:
        seat.quarantine(str(error))
        log.error("strategy.quarantined", strategy=seat.name, message=str(error))

    def _done(self, series: Series, last_ms: int | None) -> None:
        if last_ms is not None:
            self.journal.bar_done(series.market, series.interval, last_ms)

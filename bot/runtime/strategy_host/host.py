"""The strategy host calls the hooks of all strategies, keeps their states, and quarantines a strategy that fails.

A strategy that raises yields no signal and is not called again; the others go on. Nothing here checks risk or sends orders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import getcontext, setcontext
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog

from bot.errors import Refusal, StrategyError
from bot.runtime.account.account_state import Mirror
from bot.runtime.account.attribution import Attribution
from bot.runtime.bar_feed import BarFeed, Closed, Series
from bot.runtime.journal.journal import Journal
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.model.shares import Part
from bot.runtime.ports import Calm
from bot.runtime.risk.pauses import quarantine, quarantine_of
from bot.runtime.strategy_host.event_backlog import EventBacklog, Heard
from bot.runtime.strategy_host.instance import HOOKS, StrategyInstance, hook_of
from bot.strategy import Bar, Strategy, View
from bot.strategy import Intent as Wish
from bot.wire import Event

if TYPE_CHECKING:
    from bot.runtime.strategy_host.timers import Due
    from bot.wire import Plan

log = structlog.get_logger()
T = TypeVar("T")

Hook = Callable[[], Iterable[Wish] | None]
Run = Callable[[StrategyInstance, Callable[[], Any]], Awaitable[Any]]


class StrategySpec(NamedTuple):
    """A configured strategy with its interval and limits."""

    strategy: Strategy
    interval: str
    allowance: StrategyLimits
    version: str = ""  # of its code and params: a quarantined version stays quarantined
    sha256: str | None = None  # of the source text that runs


class Signal(NamedTuple):
    seat: StrategyInstance
    wish: Wish


class LogLine(NamedTuple):
    """One series of `decide_abreast`: where its bars go, and its strategies."""

    market: str
    take: Callable[[Bar], None]
    crew: Sequence[StrategyInstance]


@dataclass(slots=True)
class Decision:
    """The strategies' signals for one trigger, and their states afterwards."""

    wishes: list[Signal] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)


async def run_inline(seat: StrategyInstance, call: Callable[[], T]) -> T:
    """Call a strategy in this thread, for backtests and tests. The daemon uses a thread with a time limit instead (`Worker`)."""
    ours = getcontext()
    setcontext(seat.context)
    try:
        return call()
    finally:
        setcontext(ours)


NO_WISHES: Final = ()  # one object for the most frequent answer


def _nothing(_view: View, _bar: Bar) -> Iterable[Wish]:
    """on_bar of a quarantined strategy."""
    return ()


class StrategyHost:
    def __init__(
        self, placed: Sequence[StrategySpec], *, journal: Journal, mirror: Mirror, feed: BarFeed, run: Run = run_inline,
        books: Attribution | None = None,
    ) -> None:  # fmt: skip
        self.journal = journal
        self.mirror = mirror
        self.feed = feed
        self.run = run
        self.books = books
        self.seats: list[StrategyInstance] = []
        self.away: dict[str, EventBacklog] = {}  # backlogs of strategies that are being rebuilt or warmed up
        self.late: StrategyInstance | None = None  # rebuilt, and still catching up on its backlog
        self._listeners: dict[Series, list[StrategyInstance]] = {}
        self._hearers: dict[str, list[StrategyInstance]] = {}  # by market, for events
        self.heard: frozenset[str] = frozenset()  # event types that some strategy gets
        self._started = False
        self.seat([self.made(one) for one in placed])

    def made(self, one: StrategySpec, feed: BarFeed | None = None) -> StrategyInstance:
        """Make the instance of a strategy with its durable state; quarantined if this version was."""
        name = one.strategy.name
        seat = StrategyInstance(
            one.strategy, interval=one.interval, mirror=self.mirror, feed=feed or self.feed, state=self.journal.state_of(name),
            version=one.version, books=self.books if one.allowance.nets else None,
        )  # fmt: skip
        kept = quarantine_of(self.journal, name)
        if kept is not None and kept.version == one.version:
            seat.quarantine(kept.why)
            log.warning(
                "strategy.still_quarantined", strategy=name, message=kept.why, way_out=f"mend it, or bot resume {name}"
            )
        return seat

    def seat(self, seats: Sequence[StrategyInstance], *, away: Collection[str] = ()) -> None:
        """Host these strategies from now on, in this order. Events for those in `away` go to their backlogs."""
        self.seats = list(seats)
        self.away = {name: self.away[name] if name in self.away else EventBacklog(self.journal, name) for name in away}
        self.late = None
        self._listeners = {s: [x for x in self.seats if s in x.series] for s in self.feed.wanted}
        self._hearers = {s.market: [x for x in self.seats if s.market in x.markets] for s in self.feed.wanted}
        self.heard = frozenset(HOOKS if away else ()).union(*(seat.hears for seat in self.seats))

    def tell_no_more(self) -> None:
        """Deliver no more events, because the run was interrupted, maybe inside a hook. All later events go to the backlogs for the next run.

        Backlogs are read from the journal, because the interrupted page comes again.
        """
        names = {seat.name for seat in self.seats} | self.away.keys()
        self.away = {name: EventBacklog.of_journal(self.journal, name, self.mirror.epoch) for name in names}
        self.seat(self.seats, away=names)

    def forget_heard(self) -> None:
        """Clear the backlogs after an account reset."""
        for waiting in self.away.values():
            waiting.clear()

    def listeners(self) -> dict[str, frozenset[str]]:
        """Names of the strategies of each market."""
        return {market: frozenset(seat.name for seat in seats) for market, seats in self._hearers.items()}

    def seat_of(self, market: str) -> StrategyInstance | None:
        """The first strategy of a market."""
        return next((seat for seat in self.seats if market in seat.markets), None)

    def working(self) -> list[StrategyInstance]:
        return [seat for seat in self.seats if seat.quarantined is None]

    # -- asking

    async def decide(self, closed: Closed, *, now_ms: int) -> Decision:
        """Take a bar and collect the signals of each strategy of its series, one after the other."""
        decision = Decision()
        self.see(closed)
        for seat in self._listeners[closed.series]:
            await self._ask(seat, partial(seat.strategy.on_bar, seat.view, closed.bar), decision, now_ms=now_ms)
        return decision

    async def decide_alone(self, seat: StrategyInstance, closed: Closed, *, now_ms: int) -> Decision:
        """Collect one strategy's signals on a bar that the history has already."""
        decision = Decision()
        await self._ask(seat, partial(seat.strategy.on_bar, seat.view, closed.bar), decision, now_ms=now_ms)
        return decision

    async def ring(self, due: Due, *, now_ms: int) -> Decision:
        """Collect the signals of the strategy whose timer is due."""
        decision = Decision()
        seat = next((seat for seat in self.seats if seat.name == due.strategy), None)
        if seat is not None:
            await self._ask(seat, partial(seat.strategy.on_timer, seat.view, due.timer), decision, now_ms=now_ms)
        return decision

    async def hear(
        self, event: Event, decision: Decision, *, now_ms: int, parts: Mapping[str, Part] = MappingProxyType({})
    ) -> list[Signal]:
        """Deliver an event to the strategies that it concerns. Returns their signals, which are in the decision too.

        `parts` maps owners to their parts of a fill: a strategy in a shared market gets its own part only.
        """
        before = len(decision.wishes)
        here = self.seats if event.coin is None else self._hearers.get(event.coin, ())
        if self.away:
            seated, concerned = {seat.name for seat in self.seats}, {seat.name for seat in here}
            for name, waiting in self.away.items():
                if name in concerned or name not in seated:  # Without an instance its markets are not known yet.
                    waiting.append(Heard(event, parts))
        for seat in here:
            if seat.name not in self.away:
                await self.tell(seat, event, decision, now_ms=now_ms, parts=parts)
        return decision.wishes[before:]

    async def tell(
        self, seat: StrategyInstance, event: Event, decision: Decision, *, now_ms: int, parts: Mapping[str, Part] = MappingProxyType({})
    ) -> None:  # fmt: skip
        """Deliver an event to one strategy if it concerns it."""
        hook = hook_of(seat, event, parts)
        if hook is not None:
            await self._ask(seat, hook, decision, now_ms=now_ms)

    def decide_run(
        self, series: Series, bars: Iterator[Bar], calm: Calm, seen: Bar | None = None
    ) -> tuple[Bar | None, Decision | None]:
        """The fast path of a session: on_bar for bar after bar of one series, until one leaves the band or something is wanted.

        (bar, None): the venue must see this bar before it is decided. (bar, decision): act on it. (None, None): no bar left.
        Nothing is built for a bar on which nobody wants anything. `seen` comes first, and whatever the band: the venue has had it.
        """
        crew = self._listeners[series]
        if len(crew) != 1:
            return self._decide_run_by_all(series, bars, calm, seen)
        ours = getcontext()
        setcontext(crew[0].context)
        try:
            return self._decide_run_by_one(crew[0], series, bars, calm, seen)
        finally:
            setcontext(ours)

    def _decide_run_by_one(
        self, seat: StrategyInstance, series: Series, bars: Iterator[Bar], calm: Calm, seen: Bar | None
    ) -> tuple[Bar | None, Decision | None]:
        """`decide_run` for a series with one strategy."""
        lo, hi, until_ms = calm
        market = series.market
        history, marks = self.feed.histories[series], self.mirror.marks
        take = history.take
        update = seat.indicators.updater(market)
        on_bar = seat.strategy.on_bar if seat.quarantined is None else _nothing
        view, source = seat.view, seat.source
        is_durable, nothing = seat.has_state, NO_WISHES
        last_ms: int | None = None
        for bar in bars if seen is None else chain((seen,), bars):
            _, at_ms, _, high, low, close, _ = bar
            if (low <= lo or high >= hi or at_ms >= until_ms) and bar is not seen:
                self._done(series, last_ms)
                return bar, None
            take(bar)
            marks[market] = close
            if update is not None:
                update(bar)
            source.now_ms = last_ms = at_ms
            decision: Decision | None = None
            try:
                wishes: Any = on_bar(view, bar)
                if wishes is nothing or wishes is None:
                    if not (source.state or is_durable):
                        continue  # True of most bars.
                else:
                    for wish in (wishes := iter(wishes)):
                        decision = decision or Decision()
                        found = seat.call(partial(chain, (wish,), wishes), now_ms=at_ms)
                        decision.wishes += [Signal(seat, one) for one in found]
            except BaseException as error:  # noqa: BLE001 - as in StrategyInstance.call
                self._quarantine(seat, seat.blame(error))
                on_bar = _nothing
            if source.state or is_durable:
                self._keep_state(seat, decision)
                is_durable = seat.has_state
            if decision is not None and (decision.wishes or decision.states):
                return bar, decision
        self._done(series, last_ms)
        history.trim()
        return None, None

    def _decide_run_by_all(
        self, series: Series, bars: Iterator[Bar], calm: Calm, seen: Bar | None
    ) -> tuple[Bar | None, Decision | None]:
        """`decide_run` for a series with several strategies, or none."""
        lo, hi, until_ms = calm
        market = series.market
        history, marks = self.feed.histories[series], self.mirror.marks
        crew = self._listeners[series]
        last_ms: int | None = None
        for bar in bars if seen is None else chain((seen,), bars):
            _, at_ms, _, high, low, close, _ = bar
            if (low <= lo or high >= hi or at_ms >= until_ms) and bar is not seen:
                self._done(series, last_ms)
                return bar, None
            history.take(bar)
            marks[market] = close
            decision = self._ask_crew(crew, bar)
            if decision is not None:
                return bar, decision
            last_ms = at_ms
        self._done(series, last_ms)
        history.trim()
        return None, None

    def lines_of(self, series: Sequence[Series]) -> list[LogLine]:
        """The argument `lines` of `decide_abreast` for these series."""
        return [LogLine(s.market, self.feed.histories[s].take, self._listeners[s]) for s in series]

    def decide_abreast(
        self, lines: Sequence[LogLine], slots: Iterator[tuple[Bar, ...]], bands: Sequence[Calm], until_ms: int, seen: tuple[Bar, ...] | None = None,
        first: int = 0,
    ) -> tuple[tuple[Bar, ...] | None, Decision | None, int]:  # fmt: skip
        """As `decide_run`, of several series whose bars close together: a slot is one bar of each line, decided in that order.

        (slot, None, 0): the venue must see these bars before any of them is decided. (slot, decision, n): act on what is wanted on the bar of line n,
        then come again with the slot as `seen` and n + 1 as `first`. (None, None, 0): no slot left. Which bars are done the caller tells the journal.
        """
        marks, ask = self.mirror.marks, self._ask_crew
        for slot in slots if seen is None else chain((seen,), slots):
            if slot is seen:
                todo = enumerate(islice(zip(slot, lines, strict=True), first, None), first)
            else:
                if slot[0].at_ms >= until_ms:
                    return slot, None, 0
                for (_, _, _, high, low, _, _), (lo, hi, _) in zip(slot, bands, strict=True):
                    if low <= lo or high >= hi:
                        return slot, None, 0
                todo = enumerate(zip(slot, lines, strict=True))
            for number, (bar, (market, take, crew)) in todo:
                take(bar)
                marks[market] = bar.close
                decision = ask(crew, bar)
                if decision is not None:
                    return slot, decision, number
        return None, None, 0

    def decide_one(self, series: Series, bar: Bar) -> Decision | None:
        """As `decide_run`, of one bar and whatever the band. None: nobody wants anything, and the bar is done. `feed.trim` now and then."""
        self.feed.histories[series].take(bar)
        self.mirror.marks[series.market] = bar.close
        decision = self._ask_crew(self._listeners[series], bar)
        if decision is None:
            self.journal.bar_done(series.market, series.interval, bar.at_ms)
        return decision

    def _ask_crew(self, crew: Sequence[StrategyInstance], bar: Bar) -> Decision | None:
        """Call on_bar of each strategy; None if there is no signal and no state has changed."""
        at_ms = bar.at_ms
        decision: Decision | None = None
        ours = getcontext()
        for seat in crew:
            if seat.indicators.names:
                seat.indicators.update(bar)
            if seat.quarantined is not None:
                continue
            source = seat.source
            source.now_ms = at_ms
            setcontext(seat.context)
            try:
                wishes: Any = seat.strategy.on_bar(seat.view, bar)
                if wishes is not NO_WISHES and wishes is not None:
                    for wish in (wishes := iter(wishes)):
                        decision = decision or Decision()
                        found = seat.call(partial(chain, (wish,), wishes), now_ms=at_ms)
                        decision.wishes += [Signal(seat, one) for one in found]
            except BaseException as error:  # noqa: BLE001 - as in StrategyInstance.call
                self._quarantine(seat, seat.blame(error))
            finally:
                setcontext(ours)
            if source.state or seat.has_state:
                self._keep_state(seat, decision)
        return decision if decision is not None and (decision.wishes or decision.states) else None

    def no_entry(self, strategy: str) -> Refusal | None:
        """Why an entry of this strategy must not be sent: it is quarantined or no longer runs."""
        seat = self._seated(strategy)
        if seat is None:
            return Refusal("no_strategy", f"strategy {strategy} no longer runs")
        return None if seat.quarantined is None else Refusal("quarantined", f"{strategy} is in quarantine")

    async def may_confirm(self, strategy: str, plan: Plan) -> bool:
        """True if the strategy confirms its entry, given the plan. A quarantined strategy does not."""
        seat = self._seated(strategy)
        if seat is None or seat.quarantined is not None:
            return False
        return not seat.looks_at_plans or bool(await self._run(seat, partial(seat.confirms, plan)))

    def looks_at_plans(self, strategy: str) -> bool:
        """True if the strategy checks the plan of an entry before it becomes an order."""
        seat = self._seated(strategy)
        return seat is not None and seat.looks_at_plans

    # -- the run

    async def start(self, *, now_ms: int) -> None:
        """Call on_start of each strategy, once a run."""
        if self._started:
            return
        self._started = True
        for seat in self.working():
            await self.start_one(seat, now_ms=now_ms)

    async def start_one(self, seat: StrategyInstance, *, now_ms: int) -> None:
        await self._run(seat, partial(seat.tell, partial(seat.strategy.on_start, seat.view), now_ms=now_ms))
        self._keep_state(seat, None)

    async def rehearse(self, closed: Closed) -> None:
        """Call on_bar with a past bar and drop the signals. Markets with a position keep their mark, which is newer."""
        self.see(closed, is_marked=closed.market in self.mirror.positions and closed.market in self.mirror.marks)
        for seat in self._listeners[closed.series]:
            await self.rehearse_one(seat, closed)

    async def rehearse_one(self, seat: StrategyInstance, closed: Closed) -> None:
        if seat.quarantined is None:
            hook = partial(seat.strategy.on_bar, seat.view, closed.bar)
            await self._run(seat, partial(seat.rehearse, hook, now_ms=closed.at_ms))

    async def stop(self, *, now_ms: int) -> None:
        """Call on_stop of each strategy and keep its state."""
        for seat in self.working():
            await self.stop_one(seat, now_ms=now_ms)

    async def stop_one(self, seat: StrategyInstance, *, now_ms: int) -> None:
        if seat.quarantined is None:
            await self._run(seat, partial(seat.tell, partial(seat.strategy.on_stop, seat.view), now_ms=now_ms))
            self._keep_state(seat, None)

    def see(self, closed: Closed, *, is_marked: bool = False) -> None:
        """Add a bar to history and declared indicators, and to the marks unless there is a newer one."""
        self.feed.take(closed)
        if not is_marked:
            self.mirror.mark(closed.market, closed.bar.close)
        for seat in self._listeners[closed.series]:
            seat.indicators.update(closed.bar)

    # -- inside

    def _seated(self, strategy: str) -> StrategyInstance | None:
        late = () if self.late is None else (self.late,)
        return next((seat for seat in (*late, *self.seats) if seat.name == strategy), None)

    async def _ask(self, seat: StrategyInstance, hook: Hook, decision: Decision, *, now_ms: int) -> None:
        if seat.quarantined is not None:
            return
        wishes = await self._run(seat, partial(seat.call, hook, now_ms=now_ms))
        if wishes is None:
            return
        self._keep_state(seat, decision)
        if seat.quarantined is None:
            decision.wishes += [Signal(seat, wish) for wish in wishes]

    def _keep_state(self, seat: StrategyInstance, decision: Decision | None) -> None:
        state = self._guarded(seat, seat.changed_state)
        if state is None:
            return
        if decision is None:
            self.journal.decided((), states={seat.name: state})
        else:
            decision.states[seat.name] = state

    async def _run(self, seat: StrategyInstance, call: Callable[[], T]) -> T | None:
        """Call a strategy through `run`. None if it failed; it is quarantined then."""
        try:
            answer: T = await self.run(seat, call)
        except StrategyError as error:
            self._quarantine(seat, error)
            return None
        return answer

    def _guarded(self, seat: StrategyInstance, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except StrategyError as error:
            self._quarantine(seat, error)
            return None

    def _quarantine(self, seat: StrategyInstance, error: StrategyError) -> None:
        if seat.quarantined is not None:
            return
        # A strategy's text may contain lone surrogates, which cannot be encoded.
        why = str(error).encode(errors="backslashreplace").decode()
        seat.quarantine(why)
        resting = self.mirror.resting_of(seat.name)
        quarantine(self.journal, seat.name, seat.version, why, at_ms=seat.source.now_ms, resting=resting)

    def _done(self, series: Series, last_ms: int | None) -> None:
        if last_ms is not None:
            self.journal.bar_done(series.market, series.interval, last_ms)

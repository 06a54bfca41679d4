"""A session: the daemon's own loop over candles, under a clock that nobody waits for. Recover, decide, act, drain: as live, stepped by hand.

What a session adds is when: which bar is next, when the daemon is down, how far the venue need not be asked. It judges no order and holds no
rule; the loop, the gate, the journal, the mirror and the venue are those of every run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, Final, Protocol

import structlog

from bot.backtest.data.candles import Candles
from bot.backtest.engine.local_port import LocalPort, drive
from bot.backtest.engine.market_cursor import AHEAD, Ahead, MarketCursor
from bot.backtest.engine.options import Outage, SessionOptions
from bot.backtest.engine.progress import CHUNK, Looks, Told, kept_from_collecting
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.timeline import Timeline, ground_of, series_of
from bot.config import Settings
from bot.errors import RETRY_AFTER_MS, ConfigError
from bot.money import format_decimal
from bot.runtime.assembly import loop_settings, place_strategies
from bot.runtime.bar_feed import Closed, Series
from bot.runtime.journal.journal import Journal
from bot.runtime.kernel import Kernel, repairs_when_up
from bot.runtime.liveness import heartbeat_rule as beat
from bot.runtime.ports import Calm, VenuePort
from bot.runtime.reconciliation.protection import nothing_to_do
from bot.runtime.risk.order_builder import Grid
from bot.runtime.strategy_host.host import Decision, LogLine, StrategySpec, run_inline
from bot.runtime.strategy_host.instance import Says, StrategyInstance
from bot.runtime.strategy_host.timers import Spec
from bot.strategy import Bar
from bot.strategy.indicators import Columns
from bot.venue.quiet_band import FOREVER_MS

log = structlog.get_logger()

CAUSE: Final = "event:evt_"  # how the trigger of what an event caused begins; the event's number follows
EVERYTHING: Final = Calm(float("-inf"), float("inf"), FOREVER_MS + 1)


class SessionPacer:
    """Real time stands still in a session, however far the service's clock moves: a pass has all the time it needs, and no try waits. What a pass
    leaves for a later one has waited when the service's clock has moved."""

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


class Scene(Protocol):
    """What a session moves: the stage in this process, or a sandbox behind a wire."""

    @property
    def count(self) -> int: ...
    def band(self, coin: str) -> Calm: ...
    def bands(self) -> Mapping[str, Calm]: ...
    def skip(self, lane: MarketCursor, last: int) -> None: ...
    def pass_bar(self, lane: MarketCursor, row: int) -> None: ...
    def advance(self, to_ms: int) -> None: ...
    def is_calm(self, to_ms: int, bands: Mapping[str, Calm]) -> bool: ...
    def calm_until(self, to_ms: int, bands: Mapping[str, Calm]) -> int: ...
    def skip_to(self, to_ms: int) -> None: ...
    def beat(self, ahead_ms: int = 0) -> None: ...


@dataclass(slots=True)
class Down:
    """One time without a daemon: what was open when it went, and the numbers of the events that came meanwhile."""

    outage: Outage
    first_event: int = 0
    last_event: int = 0
    equity_before_usd: float = 0.0
    equity_after_usd: float = 0.0
    open_before: tuple[str, ...] = ()
    open_after: tuple[str, ...] = ()


@dataclass(slots=True)
class Course:
    """How a session went, as far as its own driving knows."""

    bars: int = 0  # of all markets
    bars_in_all: int = 0
    touched: int = 0  # bars that the venue was given
    decisions: int = 0
    is_partial: bool = False
    downs: list[Down] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)


class Session:
    """One run. `place` makes the strategies, anew for each life of the daemon; `wait` runs a coroutine to its end."""

    def __init__(
        self, settings: Settings, ground: Timeline, options: SessionOptions, *, scene: Scene, port: VenuePort, journal: Journal,
        place: Callable[[Settings], list[StrategySpec]] = place_strategies, wait: Callable[..., Any] = drive,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.ground = ground
        self.options = options
        self.scene = scene
        self.port = port
        self.journal = journal
        self.course = Course(bars_in_all=sum(lane.end - lane.first for lane in ground.lanes))
        self.loop: Kernel | None = None
        self.since_ms: int | None = None  # since when is known what is decided on; None: since the newest event
        self.risen_ms = ground.start_ms  # since when this life of the daemon is
        self.says: Says | None = None  # who takes what the strategies say
        self.grids: Mapping[str, Grid] = {}  # of the markets that were given a tick of their own
        self.timers: Sequence[tuple[str, str, Spec]] = ()  # whose, their names, and when they are due
        self._place = place
        self._wait = wait
        self._heard = [
            (track, series, partial(self._foresee, series))
            for track in ground.tracks
            for series in [Series(track.lane.coin, track.interval)]
        ]
        self._coarse = [track for track in ground.tracks if not track.is_base]
        # One market and one series of its own candles, in which no timer is due in a hole: then chunks are the loop's own, and each is foreseen there.
        self._is_alone = len(ground.lanes) == 1 and len(ground.tracks) == 1 and ground.tracks[0].is_base
        # Several markets, each with one series of its own candles: where all of them have the same bars they are gone through together.
        self._may_go_abreast = (
            len(ground.tracks) == len(ground.lanes) and all(track.is_base for track in ground.tracks)
            and len({lane.step_ms for lane in ground.lanes}) == 1
        )  # fmt: skip
        # Every market is heard in longer bars than its own candles, which lie on one grid: most closes concern nobody.
        self._may_leap = not any(track.is_base for track in ground.tracks) and all(
            lane.step_ms == ground.lanes[0].step_ms and not lane.ts[0] % lane.step_ms for lane in ground.lanes
        )
        self._apart_until_ms = 0  # before this instant they have not
        self._seen = 0  # number of the newest event that the loop has been told
        self._compared = -1  # and of the newest when it compared last at the end of a chunk
        self._outages = sorted(options.outages, key=lambda one: one.at_ms)
        self._progress: Told = lambda _done, _all: True
        self._looks = Looks()
        self._pacer = SessionPacer()
        self._is_unwanted = False  # seen while the strategies lived through their past: nobody wants it to go on

    # -- the run

    def run(self, progress: Told | None = None) -> Course:
        """From the first bar to the last, or until `progress` says stop; what was reached by then is whole."""
        if progress is not None:
            self._progress = progress
        self._looks = Looks()
        with kept_from_collecting(self.course.bars_in_all), self._looks.watched():
            self._rise()
            self._play()
            self._fall(is_over=True)
        return self.course

    def _play(self) -> None:
        ground = self.ground
        for outage in [*self._outages, None]:
            until_ms = ground.end_ms if outage is None else min(outage.at_ms, ground.end_ms)
            play = partial(self._alone, ground.lanes[0]) if self._is_alone else self._together
            if self._is_unwanted or not play(until_ms):
                self.course.is_partial = True
                return
            if outage is not None and outage.at_ms < ground.end_ms:
                self._be_down(outage)
        if self._now_ms() < ground.end_ms - 1:  # A market is settled after the last close.
            self.scene.advance(ground.end_ms - 1)
            self._learn()

    def _be_down(self, outage: Outage) -> None:
        """The daemon is gone at the start of the outage, and a new one starts at its end on the same journal. The service goes on alone."""
        self.scene.advance(max(outage.at_ms - 1, self._now_ms()))
        self._learn()
        loop = self._running()
        down = Down(outage, self.scene.count + 1, equity_before_usd=self._worth_usd(), open_before=_open(loop))
        self._fall(is_over=False)
        end_ms = min(outage.end_ms, self.ground.end_ms)
        before = self._passed()
        self.scene.advance(max(end_ms - 1, self._now_ms()))
        self.course.bars = self._passed()
        self.course.touched += self.course.bars - before
        down.last_event = self.scene.count
        for track in self.ground.tracks:  # Bars of that time are history for the one who comes.
            track.pass_over(end_ms)
        self._rise()
        down.equity_after_usd, down.open_after = self._worth_usd(), _open(self._running())
        self.course.downs.append(down)

    def _worth_usd(self) -> float:
        """The account's value at the newest prices. The loop itself goes by the closes that its strategies hear, which may be a day old."""
        return float(self._wait(self.port.account()).account_value_usd)

    def _rise(self) -> None:
        """A daemon starts: recover, as every run begins, and decide on the newest bar that nobody has decided."""
        settings = self.settings
        loop = self.loop = Kernel(
            port=self.port,
            journal=self.journal,
            placed=self._place(settings),
            pacer=self._pacer,
            settings=loop_settings(settings),
            run=self._lived_through,
        )
        loop.gate.grids = self.grids
        for seat in loop.desk.seats:
            seat.source.says = self.says
        self.risen_ms = self._now_ms()
        self._wait(loop.recover())
        loop.desk.run = run_inline
        self._seen = self.scene.count
        if self._is_unwanted:
            return
        self._beat()
        if loop.timers.next_ms is not None and self.ground.lanes[0].has_holes:
            self._is_alone = False
        self.since_ms = self._now_ms()
        for closed in loop.bars.take_all():
            loop.budget.begin()
            self._wait(loop.step(closed))
            self._settle()
        at_ms = self._now_ms() + 1  # As at every bar the clock stands in the millisecond before.
        if loop.timers.next_ms is not None and loop.timers.next_ms <= at_ms:  # Missed while it was down.
            self._end_of_bound(at_ms)

    async def _lived_through(self, seat: StrategyInstance, call: Callable[[], Any]) -> Any:
        """As run_inline, and in the bars of the past looks when it is time; once nobody wants the session any more the rest of them is passed over."""
        if self._running().warming is not None:
            if not self._is_unwanted and self._looks.is_late:
                self._is_unwanted = not self._goes_on()
            if self._is_unwanted:
                return None
        return await run_inline(seat, call)

    def _fall(self, *, is_over: bool) -> None:
        """The daemon ends: in order at the end of a session, else like by a power cut."""
        loop = self._running()
        self.course.quarantined |= {seat.name: seat.quarantined for seat in loop.desk.seats if seat.quarantined}
        if is_over:
            self._learn()
            self._begin_pass()
            self._wait(loop.reconcile())
            self._seen = self.scene.count
            self._wait(loop.stop())
        self.loop = None if not is_over else loop

    def _running(self) -> Kernel:
        assert self.loop is not None
        return self.loop

    def _beat(self) -> None:
        """While the daemon is up it beats, every period; what is left of the switch when it goes down follows from the last beat before that."""
        dead_man = self.settings.dead_man
        if dead_man is None:
            return
        now_ms = self._now_ms()
        next_down = next((one.at_ms for one in self._outages if one.at_ms > now_ms), self.ground.end_ms)
        period_ms = beat.rhythm(dead_man.heartbeat_seconds).period_ns // 1_000_000
        self.scene.beat((next_down - now_ms) // period_ms * period_ms)

    # -- one market, one series of its own candles

    def _alone(self, lane: MarketCursor, until_ms: int) -> bool:
        """Chunk after chunk; the venue is only shown what its band does not cover. True when `until_ms` is reached."""
        end = min(lane.end, lane.index_of(until_ms + 1))
        track = self.ground.tracks[0]
        series = Series(lane.coin, lane.interval)
        chunk_end = min(end, lane.at + CHUNK)
        while lane.at < end:
            last = min(chunk_end, lane.at + self._looks.bars)
            ahead = self._ahead(lane, series, last)
            while ahead.left:  # Values of the whole chunk are foreseen: where it was interrupted it goes on.
                self._chunk(lane, series, ahead, last)
                self.course.bars = lane.at - lane.first
                if lane.at >= chunk_end:
                    self._end_of_chunk()
                    chunk_end = min(end, lane.at + CHUNK)
                if not self._goes_on():
                    return lane.at >= lane.end
        track.seek(max(track.at, lane.at))
        return True

    def _ahead(self, lane: MarketCursor, series: Series, last: int) -> Ahead:
        """The bars up to row `last`, foreseen."""
        columns = Columns(
            *(one[lane.at : last].tolist() for one in (lane.open, lane.high, lane.low, lane.close, lane.volume))
        )
        self._foresee(series, columns)
        return lane.ahead(lane.at, last, columns)

    def _chunk(self, lane: MarketCursor, series: Series, ahead: Ahead, last: int) -> None:
        """The bars that are ahead, up to row `last`, or fewer when the look at the keyboard is late."""
        loop, scene, course = self._running(), self.scene, self.course
        decide_run, band_of, coin = loop.decide_run, scene.band, lane.coin
        bars = ahead.take(self._looks.hand_out(coin, ahead.left))
        is_open = self.options.skip
        seen: Bar | None = None  # the venue has had it, nobody has decided on it: the next run begins with it
        while True:
            band = band_of(coin) if is_open and not loop.live else _NOTHING
            decision: Decision | None = None
            if seen is None and band.lo > band.hi:  # An order waits for the next bar: nothing is decided before it.
                bar = next(bars, None)
            else:
                bar, decision = decide_run(series, bars, band, seen)
            if bar is None:
                break
            if decision is not None:
                if bar is not seen:
                    scene.skip(lane, lane.index_of(bar.at_ms))
                seen, self.since_ms = None, bar.at_ms - 1
                self._act(decision, Closed(bar.at_ms, coin, series.interval, bar))
                continue
            course.touched += 1
            # An order has arrived in it, or a daemon has come up: what is left of it goes point by point.
            if lane.step:
                scene.advance(bar.at_ms - 1)
            else:
                scene.pass_bar(lane, lane.index_of(bar.at_ms))
            self._catch_up()
            seen = None if loop.has_bounds(series) else bar
            if seen is None:
                self._decide_at(bar.at_ms, [(series, bar)])
        reached = last - ahead.left
        if lane.at < reached:
            scene.skip(lane, reached - 1)

    # -- many markets, intervals, or orders that take their time

    def _together(self, until_ms: int) -> bool:
        """Slot after slot: all markets up to the next close, then whoever hears a bar of it. In a hole a coarser bar may close, and a timer be due."""
        ground, coarse = self.ground, self._coarse
        since = unseen = 0
        while True:
            if rows := self._rows_abreast(until_ms):
                if not self._abreast(rows):
                    return all(lane.is_over for lane in ground.lanes)
                unseen = 0
                if (since := since + rows) >= CHUNK:
                    since = 0
                    self._end_of_chunk()
                continue
            closes = [close for lane in ground.lanes if (close := lane.next_close_ms()) is not None]
            if not closes:
                return True
            close_ms = min(closes)
            closes += [close for track in coarse if (close := track.next_close_ms) is not None]
            if (timer_ms := self._timer_in_hole_ms(close_ms)) is not None:
                closes.append(timer_ms)
            slot_ms = min(closes)
            if slot_ms > until_ms:
                return True
            if not self._leap(slot_ms, until_ms):
                self._slot(slot_ms, is_close=slot_ms == close_ms)
            since += 1
            unseen += 1
            if since >= CHUNK:
                since = 0
                self._end_of_chunk()
            if unseen >= self._looks.bars:
                unseen = 0
                if not self._goes_on():
                    return all(lane.is_over for lane in ground.lanes)

    def _leap(self, close_ms: int, until_ms: int) -> bool:
        """Over the closes that nobody hears, up to the next one that somebody does, a timer, or what the venue has to look at. False: there are none."""
        scene, loop = self.scene, self._running()
        if not self._may_leap or not self.options.skip or loop.live:
            return False
        step_ms = self.ground.lanes[0].step_ms
        ends = [until_ms, *(track.next_close_ms for track in self.ground.tracks if track.next_close_ms is not None)]
        if loop.timers.next_ms is not None:
            ends.append(-(-loop.timers.next_ms // step_ms) * step_ms)
        if min(ends) <= close_ms:
            return False
        calm_ms = scene.calm_until(min(ends) - 1, scene.bands()) + 1
        if calm_ms <= close_ms:
            return False
        scene.skip_to(calm_ms - 1)
        self._decide_slot(calm_ms)
        return True

    def _rows_abreast(self, until_ms: int) -> int:
        """How many of the next bars every market has, all with the same instants and up to the end of a block; 0 where one has others."""
        if not self._may_go_abreast:
            return 0
        lanes = [lane for lane in self.ground.lanes if not lane.is_over]
        if not lanes or (at_ms := lanes[0].ts[lanes[0].at]) < self._apart_until_ms or any(lane.step for lane in lanes):
            return 0
        if not all(track.is_between for track in self.ground.tracks):
            return 0
        step_ms = lanes[0].step_ms
        last_ms = at_ms - at_ms % (AHEAD * step_ms) + (AHEAD - 1) * step_ms
        rows = (min(last_ms, until_ms - step_ms) - at_ms) // step_ms + 1
        rows = min(rows, *(lane.end - lane.at for lane in lanes))
        if rows > 0 and all(
            lane.ts[lane.at] == at_ms and lane.ts[lane.at + rows - 1] == at_ms + (rows - 1) * step_ms for lane in lanes
        ):
            return rows
        self._apart_until_ms = last_ms + 1
        return 0

    def _abreast(self, rows: int) -> bool:
        """The next `rows` bars of every market. False when nobody wants the session to go on."""
        lanes = [lane for lane in self.ground.lanes if not lane.is_over]
        series = [Series(lane.coin, lane.interval) for lane in lanes]
        firsts = [lane.at for lane in lanes]
        aheads = [self._ahead(lane, one, lane.at + rows) for lane, one in zip(lanes, series, strict=True)]
        lines = self._running().desk.lines_of(series)
        goes_on = True
        while goes_on and (left := aheads[0].left):
            names = self._looks.hand_out(lanes[0].coin, min(left, self._looks.bars))
            bars = [aheads[0].take(names)]
            bars += [ahead.take(repeat(lane.coin)) for ahead, lane in zip(aheads[1:], lanes[1:], strict=True)]
            self._slots(lanes, firsts, series, lines, zip(*bars, strict=False))
            done = rows - aheads[0].left
            for lane, first in zip(lanes, firsts, strict=True):
                if lane.at < first + done:
                    self.scene.skip(lane, first + done - 1)
            self.course.bars = self._passed()
            goes_on = self._goes_on()
        for lane, one in zip(lanes, series, strict=True):
            if lane.at > lane.first:
                self.journal.bar_done(one.market, one.interval, lane.ts[lane.at - 1] + lane.step_ms)
        for track in self.ground.tracks:
            if track.next_close_ms is not None:
                track.seek(track.lane.at)
        self._running().feed.trim()
        return goes_on

    def _slots(
        self, lanes: Sequence[MarketCursor], firsts: Sequence[int], series: Sequence[Series], lines: Sequence[LogLine], slots: Iterator[tuple[Bar, ...]],
    ) -> None:  # fmt: skip
        """As `_chunk`, of all markets: the venue is shown the slots that its bands do not cover. `firsts`: the rows at which the block begins."""
        loop, scene, course = self._running(), self.scene, self.course
        step_ms = lanes[0].step_ms
        first_ms = lanes[0].ts[firsts[0]] + step_ms
        is_open, losses = self.options.skip, loop.losses
        are_limited = losses.are_limited
        seen: tuple[Bar, ...] | None = None
        first = 0
        while True:
            if is_open and not loop.live:
                found = scene.bands()
                bands = [found[lane.coin] for lane in lanes]
                if are_limited:
                    bands = [losses.narrowed(one, band) for one, band in zip(series, bands, strict=True)]
            else:
                bands = [_NOTHING] * len(lanes)
            slot, decision, number = loop.decide_abreast(lines, slots, bands, seen, first)
            if slot is None:
                return
            at_ms = slot[0].at_ms
            past = (at_ms - first_ms) // step_ms
            if decision is not None:
                if slot is not seen:
                    for lane, row in zip(lanes, firsts, strict=True):
                        scene.skip(lane, row + past)
                wanted = [(number, decision)]
                while self.options.latency_ms and decision is not None:  # As in `_decide_all`.
                    _, decision, number = loop.decide_abreast(lines, iter(()), bands, slot, number + 1)
                    if decision is not None:
                        wanted.append((number, decision))
                seen, first = slot, len(lines) if self.options.latency_ms else number + 1
                for number, decision in wanted:
                    self.since_ms = at_ms - 1
                    self._act(decision, Closed(at_ms, lanes[number].coin, series[number].interval, slot[number]))
                continue
            for lane, row in zip(lanes, firsts, strict=True):
                if row + past > lane.at:
                    scene.skip(lane, row + past - 1)
            scene.advance(at_ms - 1)
            course.touched += len(lanes)
            self._catch_up()
            seen, first = slot, 0
            if loop.timers.next_ms is not None or are_limited:
                seen = None
                self._decide_at(at_ms, list(zip(series, slot, strict=True)))

    def _timer_in_hole_ms(self, close_ms: int) -> int | None:
        """When the next timer is due, where no market has a bar until then; the next one closes at `close_ms`. It fires as it would if the bars that are missing were there and stood still."""
        due_ms = self._running().timers.next_ms
        if due_ms is None or due_ms >= close_ms:
            return None
        lanes = [lane for lane in self.ground.lanes if not lane.is_over]
        step_ms = min(lane.step_ms for lane in lanes)
        at_ms = -(-due_ms // step_ms) * step_ms
        is_ahead = at_ms - 1 > self._now_ms()
        return at_ms if is_ahead and all(lane.ts[lane.at] >= at_ms for lane in lanes) else None

    def _slot(self, slot_ms: int, *, is_close: bool = True) -> None:
        """Up to an instant. Where no candle closes the venue is always asked: bars alone say that it need not be, and in a hole there are none."""
        scene, loop = self.scene, self._running()
        lanes = self.ground.lanes
        bands = scene.bands() if is_close and self.options.skip and not loop.live else None
        if bands is not None and scene.is_calm(slot_ms - 1, bands):
            # Of a longer bar the venue may have had the beginning.
            self.course.touched += len([1 for lane in lanes if lane.step and lane.next_close_ms() == slot_ms])
            scene.skip_to(slot_ms - 1)
        else:
            before = self._passed()
            scene.advance(max(slot_ms - 1, self._now_ms()))
            self.course.touched += self._passed() - before
            self._catch_up()
        self._decide_slot(slot_ms)

    def _decide_slot(self, slot_ms: int) -> None:
        """Whoever hears a bar that closes there, and the timers."""
        self.course.bars = self._passed()
        due = []
        for track, series, begin in self._heard:
            while track.next_close_ms is not None and track.next_close_ms <= slot_ms:
                due.append((series, track.take(None if self._is_alone else begin)))
        self._decide_at(slot_ms, due)

    def _decide_at(self, at_ms: int, due: Sequence[tuple[Series, Bar]]) -> None:
        """These bars, all of one instant; then, as live, the timers that are due by then."""
        is_bound = self._decide_all(due)
        if at_ms <= self._running().books.day_ms:  # The day had begun before the bars of all markets came.
            self._running().position_owners.mend_day()
        timer_ms = self._running().timers.next_ms
        if is_bound or (timer_ms is not None and timer_ms <= at_ms):
            self._end_of_bound(at_ms)

    def _passed(self) -> int:
        """How many bars are past, of all markets."""
        return sum([lane.at - lane.first for lane in self.ground.lanes])

    def _foresee(self, series: Series, columns: Columns) -> None:
        """A chunk of this series begins: what is declared is reckoned of all of it at once, and handed out bar by bar."""
        for seat in self._running().desk.seats:
            if series in seat.series:
                seat.indicators.foresee(series.market, columns)

    # -- what the loop does

    def _decide(self, series: Series, bar: Bar) -> bool:
        """A bar that the venue has seen, or need not see. Where the loop's own band ends, by a timer or a daily loss, what `Loop.step` does, at its
        close. True: it ends there, and `_end_of_bound` is to come when all of this instant is decided."""
        decision, is_bound = self._decision_on(series, bar)
        if decision is not None:
            self._act(decision, Closed(bar.at_ms, series.market, series.interval, bar))
        return is_bound

    def _decide_all(self, due: Sequence[tuple[Series, Bar]]) -> bool:
        """The bars of one instant, as `_decide`. With latency all of them before an order of any is on its way: what happens meanwhile nobody knows yet."""
        if not self.options.latency_ms:
            is_bound = False
            for series, bar in due:
                is_bound |= self._decide(series, bar)
            return is_bound
        decided = [(self._decision_on(series, bar), series, bar) for series, bar in due]
        for (decision, _), series, bar in decided:
            if decision is not None:
                self.since_ms = bar.at_ms - 1
                self._act(decision, Closed(bar.at_ms, series.market, series.interval, bar))
        return any(is_bound for (_, is_bound), _, _ in decided)

    def _decision_on(self, series: Series, bar: Bar) -> tuple[Decision | None, bool]:
        """What is wanted on a bar, and whether the loop's own band ends there."""
        loop = self._running()
        self.since_ms = bar.at_ms - 1
        if not loop.has_bounds(series):
            return loop.desk.decide_one(series, bar), False
        left, decision = loop.decide_run(series, iter((bar,)), EVERYTHING)
        if decision is not None or left is None:
            return decision, False
        self._begin_pass()
        self._wait(loop.fire_timers(bar.at_ms - 1))
        closed = Closed(bar.at_ms, series.market, series.interval, bar)
        return self._wait(loop.desk.decide(closed, now_ms=bar.at_ms)), True

    def _end_of_bound(self, at_ms: int) -> None:
        loop = self._running()
        self.since_ms = at_ms - 1
        self._begin_pass()
        self._wait(loop.fire_timers(at_ms))
        self._settle()

    def _act(self, decision: Decision, closed: Closed) -> None:
        loop = self._running()
        self.course.decisions += 1
        self._begin_pass()
        self._wait(loop.act(decision, closed))
        self._settle()

    def _learn(self) -> None:
        """Events came: the loop takes them."""
        loop = self._running()
        self.since_ms = None
        self._begin_pass()
        self._wait(loop.drain())
        self._settle()

    def _catch_up(self) -> None:
        """What the venue has done on its way, or what an earlier pass has left."""
        if self.scene.count != self._seen:
            self._learn()
        elif self._running().live:
            self._try_again()

    def _try_again(self) -> None:
        """A pass for what an earlier one has left; with latency it is on its way from here."""
        self.since_ms = self._now_ms()
        self._begin_pass()
        self._settle()

    def _begin_pass(self) -> None:
        loop = self._running()
        if loop.live:
            self._pacer.moved(self._now_ms())
        loop.budget.begin()

    def _settle(self) -> None:
        """What the end of a pass does: go on with what is not settled, see that stops and guardians stand, look closer where another hand is."""
        loop = self._running()
        if loop.live:
            self._wait(loop.execution.settle())
            self._wait(loop.drain())  # With it the next pass begins, live; nothing is decided before.
        if not nothing_to_do(loop):
            self._wait(repairs_when_up(loop))
        if loop.wants_comparison:
            self._wait(loop.reconcile())
        loop.losses.watch(self._now_ms())  # A fill may have cost more than the close of its bar says.
        self._seen = self.scene.count

    def _end_of_chunk(self) -> None:
        """The loop compares, unless nothing has happened since it did."""
        loop = self._running()
        if self.scene.count != self._compared or loop.live:
            self._begin_pass()
            self._wait(loop.reconcile())
            self._seen = self._compared = self.scene.count
        loop.feed.trim()
        gc.freeze()

    def _goes_on(self) -> bool:
        """The progress is told, and says whether anybody wants it to go on."""
        self._looks.looked()
        return self._progress(self.course.bars, self.course.bars_in_all)

    def _now_ms(self) -> int:
        return self.port.clock.now_ms()


def local(
    settings: Settings, candles: Sequence[Candles], options: SessionOptions, *, journal: Journal, address: str | None = None,
    rates: Mapping[str, list[tuple[int, int]]] | None = None, place: Callable[[Settings], list[StrategySpec]] = place_strategies,
    is_cut: bool = False,
) -> tuple[Session, SimulatedExchange]:  # fmt: skip
    """A session in this process, and its stage."""
    placed = place(settings)
    warmups: dict[Series, int] = {}
    for one in placed:
        for heard in (Series(market, one.interval) for market in one.strategy.markets):
            warmups[heard] = max(warmups.get(heard, 0), one.strategy.warmup_bars)
    ground = ground_of(candles, series_of(placed), options, warmups, is_cut=is_cut)
    shortest = min(ground.tracks, key=lambda one: one.step_ms)
    if options.latency_ms >= shortest.step_ms:
        raise ConfigError(
            f"a latency of {options.latency_ms / 1000:g} s is as long as a {shortest.interval} bar of {shortest.lane.coin}, or longer: the next one would "
            "be decided by who knows the fill that comes after it; take less, or longer bars"
        )
    named = {} if address is None else {"address": address}
    stage = SimulatedExchange(ground.lanes, options, start_ms=ground.start_ms, rates=rates, **named)
    port = LocalPort(stage, ground.tracks)
    session = Session(settings, ground, options, scene=stage, port=port, journal=journal, place=place)
    specs = {lane.coin: stage.state.markets[lane.coin].spec for lane in ground.lanes}
    session.grids = {
        coin: Grid(one.px_decimals, one.sig_figs) for coin, one in specs.items() if one.px_decimals is not None
    }
    session.timers = [(one.strategy.name, *timer) for one in placed for timer in one.strategy.timers.items()]
    if options.latency_ms:
        port.arrive = _Arrival(session, stage, options.latency_ms)
    return session, stage


class _Arrival:
    """An order reaches the venue `latency_ms` after the bar, the timer or the event that caused it; meanwhile the market goes on. What several markets
    have caused at one instant arrives together. What happened while the daemon was down it hears of when it comes up."""

    def __init__(self, session: Session, stage: SimulatedExchange, latency_ms: int) -> None:
        self._session = session
        self._stage = stage
        self._latency_ms = latency_ms

    def __call__(self, key: str | None) -> None:
        arrives_ms = max(self._since_ms(key), self._session.risen_ms) + self._latency_ms
        arrives_ms = min(arrives_ms, self._session.ground.end_ms - 1)  # None of the session's time is after its end.
        if arrives_ms > self._stage.clock.now_ms():
            self._stage.advance(arrives_ms)

    def _since_ms(self, key: str | None) -> int:
        """Events come while orders are on their way, too: what one of them causes has its own instant."""
        session, told = self._session, self._stage.told
        intent = None if session.loop is None or key is None else session.loop.live.get(key)
        if intent is not None and intent.trigger.startswith(CAUSE):
            place = int(intent.trigger.removeprefix(CAUSE)) - told.first
            if 0 <= place < len(told.events):
                return told.events[place].ts
        if session.since_ms is None:
            session.since_ms = told.events[-1].ts if told.events else self._stage.clock.now_ms()
        return session.since_ms


def _open(loop: Kernel) -> tuple[str, ...]:
    return tuple(f"{p.market} {p.side} {format_decimal(p.size)}" for p in loop.mirror.positions.values())


_NOTHING: Final = Calm(float("inf"), float("-inf"), 0)

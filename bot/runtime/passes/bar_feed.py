"""The bar feed makes closed bars of the service's candles, each bar once, in order of close and market.

A bar enters the history only when the strategies get it (`take`). So a strategy never sees a later bar, even if both
came in one reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.errors import OutcomeUnknown, Refused, TryLater
from bot.logs import log
from bot.runtime.passes.ports import VenuePort
from bot.strategy import Bar, History
from bot.strategy.history import HISTORY_BARS
from bot.strategy.longer_bars import pieces_of
from bot.wire import CANDLES_MAX, INTERVAL_MS

if TYPE_CHECKING:
    from bot.runtime.passes.ports import VenuePort
    from bot.wire import Candle

# the open bar, and one that may close while the request is on its way
SPARE_BARS: Final = 2
# real time without a reply after which a pass goes on without the bars
REPLY_S: Final = 1.0

# called often during long work; makes a pass if the last one is too long ago
YieldToPass = Callable[[], Awaitable[None]]
# (market, interval) -> close of the newest decided bar, of any run
DoneUntil = Callable[[str, str], int | None]


async def at_once() -> None:
    """Makes no pass, for work that needs none."""


class BarSeries(NamedTuple):
    """A market and the interval of its bars."""

    market: str
    interval: str


class ClosedBar(NamedTuple):
    """One closed bar of a series. Sorting gives the order in which bars are decided."""

    at_ms: int
    market: str
    interval: str
    bar: Bar

    @property
    def series(self) -> BarSeries:
        return BarSeries(self.market, self.interval)


class WarmUpBars(NamedTuple):
    """Bars for the history only, and bars to decide: at most the newest of each series."""

    past: list[ClosedBar]
    due: list[ClosedBar]


class BarFeed:
    """`wanted` has, for each series, the number of past bars that its first decision needs."""

    def __init__(self, wanted: Mapping[BarSeries, int]) -> None:
        self.wanted = dict(wanted)
        self.histories = {
            series: History(series.market, min(max(HISTORY_BARS, bars), CANDLES_MAX))
            for series, bars in self.wanted.items()
        }
        # close of the newest bar that was returned
        self._last_ms: dict[BarSeries, int] = {}
        # series -> those whose bars its strategies read: of one instant they come first
        self.reads: dict[BarSeries, frozenset[BarSeries]] = {}
        self._ranks: dict[BarSeries, int] = {}
        # close up to which bars were history only
        self._past_ms: dict[BarSeries, int] = {}
        # market -> why the service has no candles of it
        self.gone: dict[str, str] = {}
        # requests in flight
        self._asked: dict[BarSeries, asyncio.Task[list[ClosedBar]]] = {}

    def read_first(self, reads: Mapping[BarSeries, frozenset[BarSeries]]) -> None:
        """Let bars of these series come before those of the series that read them. There is no circle among them."""
        self.reads, self._ranks = dict(reads), {}
        for series in TopologicalSorter(reads).static_order():
            self._ranks[series] = max((self._ranks[read] + 1 for read in reads.get(series, ())), default=0)

    def rank_of(self, series: BarSeries) -> int:
        """Its place among the series of one instant: 0 comes first."""
        return self._ranks.get(series, 0)

    def in_order(self, bars: Iterable[ClosedBar]) -> list[ClosedBar]:
        """The bars in the order in which they are decided: by close; of one instant, those that others read first."""
        if not self._ranks:
            return sorted(bars)
        return sorted(bars, key=lambda closed: (closed.at_ms, self.rank_of(closed.series), closed))

    def due(self, now_ms: int) -> list[BarSeries]:
        """Series that should have another closed bar by now.

        Also series whose newest bar lies ahead, because a sandbox clock went back.
        """
        return [
            s
            for s in self.wanted
            if (last := self._last_ms.get(s)) is None or abs(now_ms - last) >= INTERVAL_MS[s.interval]
        ]

    def awaited_ms(self, now_ms: int) -> int | None:
        """The newest close that should have come and has not.

        Of a market that stands still only the first missing bar counts.
        """
        nexts = (last + INTERVAL_MS[s.interval] for s in self.wanted if (last := self._last_ms.get(s)) is not None)
        return max((at_ms for at_ms in nexts if at_ms <= now_ms), default=None)

    async def warm_up(
        self, port: VenuePort, done_until: DoneUntil, now_ms: int, yield_to_pass: YieldToPass = at_once
    ) -> WarmUpBars:
        """Ask for the history of every series.

        Bars that were missed while the daemon was down are past; only the newest undecided one is due.
        """
        bars: list[ClosedBar] = []
        for series in self.wanted:
            await yield_to_pass()
            try:
                bars += await self._begun(port, series, done_until, now_ms)
            # The other series go on; positions there are protected without bars.
            except Refused as error:
                self._is_gone(series, error)
        past = [bar for bar in bars if self.is_past(bar)]
        return WarmUpBars(self.in_order(past), self.in_order(bar for bar in bars if not self.is_past(bar)))

    def is_past(self, closed: ClosedBar) -> bool:
        """True if the bar is for the history only and is not decided."""
        return closed.at_ms <= self._past_ms.get(closed.series, 0)

    async def poll(
        self,
        port: VenuePort,
        done_until: DoneUntil,
        now_ms: int,
        has_time: Callable[[], bool] = lambda: True,
        *,
        abreast: int = 1,
    ) -> list[ClosedBar]:
        """Bars that have closed since the last call. See `_poll`.

        A series that other series read and that is behind them is asked once more: its bar has closed by now.
        """
        bars = await self._poll(port, done_until, now_ms, has_time, abreast=abreast)
        newest = {closed.series: closed.at_ms for closed in bars}
        newest_ms = max(newest.values(), default=now_ms)
        behind = {
            read
            for series, at_ms in newest.items()
            for read in self.reads.get(series, ())
            if read in self.wanted and read not in self._asked and self._last_ms.get(read, at_ms) < at_ms
        }
        for series in sorted(behind):
            request = self._ask(port, series, done_until, newest_ms)
            if abreast <= 1:
                bars += await request
            else:
                self._asked[series] = asyncio.create_task(request)
                await asyncio.wait([self._asked[series]], timeout=REPLY_S)
        return self.in_order(bars + self._replies()) if behind else bars

    async def _poll(
        self, port: VenuePort, done_until: DoneUntil, now_ms: int, has_time: Callable[[], bool], *, abreast: int
    ) -> list[ClosedBar]:
        """Bars that have closed since the last call. Requests of `abreast` series run at a time.

        A series whose request failed or had no time is asked again by the next poll. Bars with a late reply come with a
        later poll. For a series whose warm-up was refused, most of the bars are past.
        """
        due = iter([series for series in self.due(now_ms) if series not in self._asked])
        bars: list[ClosedBar] = []
        if abreast <= 1:
            for series in due:
                if not has_time():
                    break
                bars += await self._ask(port, series, done_until, now_ms)
            return self.in_order(bars)
        fresh = set[asyncio.Task[list[ClosedBar]]]()
        while True:
            while len(self._asked) < abreast and has_time() and (due_series := next(due, None)) is not None:
                self._asked[due_series] = asyncio.create_task(self._ask(port, due_series, done_until, now_ms))
                fresh.add(self._asked[due_series])
            if not fresh:
                return self.in_order(bars + self._replies())
            ended, fresh = await asyncio.wait(fresh, timeout=REPLY_S, return_when=asyncio.FIRST_COMPLETED)
            # A request that hangs does not hold up other markets.
            if not ended:
                return self.in_order(bars + self._replies())
            bars += self._replies()

    def _replies(self) -> list[ClosedBar]:
        replied: list[ClosedBar] = []
        for series in [asked for asked, task in self._asked.items() if task.done()]:
            bars = self._asked.pop(series).result()
            replied += bars if series in self.wanted else ()
        return replied

    def cancel(self) -> list[asyncio.Task[list[ClosedBar]]]:
        """Cancel the requests. Returns their tasks."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        self._asked.clear()
        return tasks

    async def _ask(self, port: VenuePort, series: BarSeries, done_until: DoneUntil, now_ms: int) -> list[ClosedBar]:
        try:
            if series in self._last_ms:
                bars = await self._fresh(port, series, now_ms)
            else:
                bars = await self._begun(port, series, done_until, now_ms)
        # Other markets go on.
        except Refused as error:
            self._is_gone(series, error)
            return []
        except (TryLater, OutcomeUnknown) as error:
            log.warning("feed.missed", market=series.market, interval=series.interval, code=error.code)
            return []
        self.gone.pop(series.market, None)
        return bars

    async def _begun(self, port: VenuePort, series: BarSeries, done_until: DoneUntil, now_ms: int) -> list[ClosedBar]:
        """Ask for the history of a series. All bars are past, except the newest one if it was not decided."""
        await self._begin_longer(port, series)
        done_ms = done_until(*series)
        gap = 0 if done_ms is None else max(0, now_ms - done_ms) // INTERVAL_MS[series.interval]
        bars = await self._closed(port, series, max(self.wanted[series], gap) + SPARE_BARS)
        if bars:
            newest_ms = self._last_ms[series] = bars[-1].at_ms
            is_done = done_ms is not None and newest_ms <= done_ms
            self._past_ms[series] = newest_ms if is_done else newest_ms - 1
        return bars

    async def _begin_longer(self, port: VenuePort, series: BarSeries) -> None:
        """Ask for the past of the longer intervals, which the series' own past bars may be too few for."""
        longer = self.histories[series].longer
        for interval in {pieces_of(name, series.interval) for name in longer}:
            try:
                pieces = await self._closed(port, BarSeries(series.market, interval), CANDLES_MAX)
            # The service has no such candles: the longer bars are made of the own ones alone.
            except Refused as error:
                log.warning("feed.missed", market=series.market, interval=interval, code=error.code)
                continue
            for name, kept in longer.items():
                if pieces_of(name, series.interval) == interval:
                    kept.begin([closed.bar for closed in pieces], interval)

    async def _fresh(self, port: VenuePort, series: BarSeries, now_ms: int) -> list[ClosedBar]:
        last_ms = self._last_ms[series]
        gap = max(1, (now_ms - last_ms) // INTERVAL_MS[series.interval])
        bars = await self._closed(port, series, gap + SPARE_BARS)
        fresh = [bar for bar in bars if bar.at_ms > last_ms]
        if fresh:
            self._last_ms[series] = fresh[-1].at_ms
        return fresh

    def join(self, other: BarFeed) -> None:
        """Take over the series of another feed with their history.

        Of a series that both have, returned bars are not returned again.
        """
        for series, bars in other.wanted.items():
            self.wanted[series] = max(bars, self.wanted.get(series, 0))
            known, theirs = self.histories.get(series), other.histories[series]
            if known is None or known.limit < theirs.limit:
                self.histories[series] = theirs
            if known is not None and (known.longer or theirs.longer):
                self.histories[series].adopt_longer(known if self.histories[series] is theirs else theirs)
            if (
                known is None and series in other._last_ms
                # Otherwise the next poll begins the series for all its strategies.
            ):
                self._last_ms[series] = other._last_ms[series]

    def rest(self, series: BarSeries) -> None:
        """Ask for no more bars of a series until it is joined again."""
        self.wanted.pop(series, None)

    def drop(self, series: BarSeries) -> None:
        """Forget a series."""
        self.wanted.pop(series, None)
        self.histories.pop(series, None)
        self._last_ms.pop(series, None)
        self._past_ms.pop(series, None)
        self.gone.pop(series.market, None)

    def take(self, closed: ClosedBar) -> None:
        """Add a bar to the history."""
        self.histories[closed.series].append(closed.bar)

    def trim(self) -> None:
        """Remove bars that no reader can ask for."""
        for history in self.histories.values():
            history.trim()

    def _is_gone(self, series: BarSeries, error: Refused) -> None:
        log.warning("feed.missed", market=series.market, interval=series.interval, code=error.code)
        self.gone[series.market] = f"no candles of {series.market} ({error.code}): {error.message}"

    async def _closed(self, port: VenuePort, series: BarSeries, limit: int) -> list[ClosedBar]:
        answer = await port.candles(series.market, series.interval, min(limit, CANDLES_MAX))
        theirs = answer.coin.removeprefix("perp:")
        # Positions and events use the service's name, so ours would look foreign.
        if theirs != series.market:
            raise Refused("not_found", f"the service calls it {theirs}; write it so in the config")
        return _bars(series, answer.candles)


def _bars(series: BarSeries, candles: Iterable[Candle]) -> list[ClosedBar]:
    """The closed bars in order, each once."""
    step_ms = INTERVAL_MS[series.interval]
    bars: list[ClosedBar] = []
    for candle in sorted(candles, key=lambda candle: candle.ts):
        at_ms = candle.ts + step_ms
        if not candle.closed or (bars and bars[-1].at_ms == at_ms):
            continue
        bar = Bar(
            series.market,
            at_ms,
            float(candle.open),
            float(candle.high),
            float(candle.low),
            float(candle.close),
            float(candle.volume),
        )
        bars.append(ClosedBar(at_ms, series.market, series.interval, bar))
    return bars

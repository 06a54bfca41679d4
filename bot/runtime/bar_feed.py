"""The feed: from the service's candles to closed bars, each once, in order of (close instant, market). No decision is made here.

A bar enters the history only when it is handed to the strategies (`take`), so a bar that came in the same answer as its
successor is decided without knowing it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from bot.errors import OutcomeUnknown, Refused, TryLater
from bot.runtime.ports import VenuePort
from bot.strategy import Bar, History
from bot.strategy.history import HISTORY_BARS
from bot.wire import CANDLES_MAX, INTERVAL_MS, Candle

log = structlog.get_logger()

SPARE_BARS: Final = 2  # the running bar, and one that may close while the question is on its way
REPLY_S: Final = (
    1.0  # of real time without any reply, after which a pass goes on without the bars that it has asked for
)

YieldToPass = Callable[[], Awaitable[None]]  # called often; makes a pass of the loop when the last one is too long ago
DoneUntil = Callable[[str, str], int | None]  # of market and interval: the newest bar that was decided, by any run


async def at_once() -> None:
    """What needs no pass meanwhile."""


class Series(NamedTuple):
    """What a strategy listens to."""

    market: str
    interval: str


class Closed(NamedTuple):
    """One closed bar of a series; the order of the fields is the order of deciding."""

    at_ms: int
    market: str
    interval: str
    bar: Bar

    @property
    def series(self) -> Series:
        return Series(self.market, self.interval)


class WarmUp(NamedTuple):
    """Bars that are history only, and those that are still to be decided: at most the newest of each series."""

    past: list[Closed]
    due: list[Closed]


class BarFeed:
    """`wanted` says how many bars of history each series needs before its first decision."""

    def __init__(self, wanted: Mapping[Series, int]) -> None:
        self.wanted = dict(wanted)
        self.histories = {
            series: History(series.market, min(max(HISTORY_BARS, bars), CANDLES_MAX))
            for series, bars in self.wanted.items()
        }
        self._last_ms: dict[Series, int] = {}  # close instant of the newest bar handed out
        self._past_ms: dict[Series, int] = {}  # bars up to there were handed out as history only
        self.gone: dict[str, str] = {}  # market -> why the service has no candles of it
        self._asked: dict[Series, asyncio.Task[list[Closed]]] = {}  # questions in flight

    def due(self, now_ms: int) -> list[Series]:
        """Series of which another bar should have closed by now; also those whose newest bar lies ahead, of a clock that went back."""
        return [
            s
            for s in self.wanted
            if (last := self._last_ms.get(s)) is None or abs(now_ms - last) >= INTERVAL_MS[s.interval]
        ]

    def awaited_ms(self, now_ms: int) -> int | None:
        """The newest instant at which a bar that we have not had should have closed. Of a market that stands still only its first is awaited."""
        nexts = (last + INTERVAL_MS[s.interval] for s in self.wanted if (last := self._last_ms.get(s)) is not None)
        return max((at_ms for at_ms in nexts if at_ms <= now_ms), default=None)

    async def warm_up(
        self, port: VenuePort, done_until: DoneUntil, now_ms: int, yield_to_pass: YieldToPass = at_once
    ) -> WarmUp:
        """The history of every series. Bars missed while we were down are history; the newest one not done is due. `yield_to_pass` is called often."""
        found: list[Closed] = []
        for series in self.wanted:
            await yield_to_pass()
            try:
                found += await self._begun(port, series, done_until, now_ms)
            except Refused as error:  # The others go on; what is held there is protected without bars.
                self._is_gone(series, error)
        past = [one for one in found if self.is_past(one)]
        return WarmUp(sorted(past), sorted(one for one in found if not self.is_past(one)))

    def is_past(self, closed: Closed) -> bool:
        """Whether it is history only: lived through, and not decided."""
        return closed.at_ms <= self._past_ms.get(closed.series, 0)

    async def poll(
        self, port: VenuePort, done_until: DoneUntil, now_ms: int, has_time: Callable[[], bool] = lambda: True, *, abreast: int = 1
    ) -> list[Closed]:  # fmt: skip
        """Bars that have closed since the last call, asked for `abreast` series at a time.

        A series whose question failed, or had no time, is asked again next time; bars whose reply takes long come with a later poll. One whose
        warm-up was refused has it now: most of its bars are past.
        """
        due = iter([series for series in self.due(now_ms) if series not in self._asked])
        found: list[Closed] = []
        if abreast <= 1:
            for series in due:
                if not has_time():
                    break
                found += await self._ask(port, series, done_until, now_ms)
            return sorted(found)
        fresh = set[asyncio.Task[list[Closed]]]()
        while True:
            while len(self._asked) < abreast and has_time() and (one := next(due, None)) is not None:
                self._asked[one] = asyncio.create_task(self._ask(port, one, done_until, now_ms))
                fresh.add(self._asked[one])
            if not fresh:
                return sorted(found + self._replies())
            ended, fresh = await asyncio.wait(fresh, timeout=REPLY_S, return_when=asyncio.FIRST_COMPLETED)
            if not ended:  # What hangs holds up no other market: a later poll has its bars.
                return sorted(found + self._replies())
            found += self._replies()

    def _replies(self) -> list[Closed]:
        found: list[Closed] = []
        for series in [one for one, task in self._asked.items() if task.done()]:
            bars = self._asked.pop(series).result()
            found += bars if series in self.wanted else ()
        return found

    def cancel(self) -> list[asyncio.Task[list[Closed]]]:
        """Wait for no reply any more."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        self._asked.clear()
        return tasks

    async def _ask(self, port: VenuePort, series: Series, done_until: DoneUntil, now_ms: int) -> list[Closed]:
        try:
            if series in self._last_ms:
                found = await self._fresh(port, series, now_ms)
            else:
                found = await self._begun(port, series, done_until, now_ms)
        except Refused as error:  # One market that is gone stops no other.
            self._is_gone(series, error)
            return []
        except (TryLater, OutcomeUnknown) as error:
            log.warning("feed.missed", market=series.market, interval=series.interval, code=error.code)
            return []
        self.gone.pop(series.market, None)
        return found

    async def _begun(self, port: VenuePort, series: Series, done_until: DoneUntil, now_ms: int) -> list[Closed]:
        """The history of a series: past, but for the newest one if that was not done."""
        done_ms = done_until(*series)
        gap = 0 if done_ms is None else max(0, now_ms - done_ms) // INTERVAL_MS[series.interval]
        found = await self._closed(port, series, max(self.wanted[series], gap) + SPARE_BARS)
        if found:
            newest_ms = self._last_ms[series] = found[-1].at_ms
            is_done = done_ms is not None and newest_ms <= done_ms
            self._past_ms[series] = newest_ms if is_done else newest_ms - 1
        return found

    async def _fresh(self, port: VenuePort, series: Series, now_ms: int) -> list[Closed]:
        last_ms = self._last_ms[series]
        gap = max(1, (now_ms - last_ms) // INTERVAL_MS[series.interval])
        bars = await self._closed(port, series, gap + SPARE_BARS)
        fresh = [one for one in bars if one.at_ms > last_ms]
        if fresh:
            self._last_ms[series] = fresh[-1].at_ms
        return fresh

    def join(self, other: BarFeed) -> None:
        """Its series are ours from now on, with their past; where we know one, what we handed out stays handed out."""
        for series, bars in other.wanted.items():
            self.wanted[series] = max(bars, self.wanted.get(series, 0))
            known = self.histories.get(series)
            if known is None or known.limit < other.histories[series].limit:
                self.histories[series] = other.histories[series]
            if known is None and series in other._last_ms:  # Else it is for us to begin, and all that listen.
                self._last_ms[series] = other._last_ms[series]

    def rest(self, series: Series) -> None:
        """Nobody listens to it for now: no more bars are asked for, until it is joined again."""
        self.wanted.pop(series, None)

    def drop(self, series: Series) -> None:
        """Nobody listens to it any more."""
        self.wanted.pop(series, None)
        self.histories.pop(series, None)
        self._last_ms.pop(series, None)
        self._past_ms.pop(series, None)
        self.gone.pop(series.market, None)

    def take(self, closed: Closed) -> None:
        """The bar is part of the past from here on."""
        self.histories[closed.series].append(closed.bar)

    def trim(self) -> None:
        """Let go of bars that no reader can ask for any more."""
        for history in self.histories.values():
            history.trim()

    def _is_gone(self, series: Series, error: Refused) -> None:
        log.warning("feed.missed", market=series.market, interval=series.interval, code=error.code)
        self.gone[series.market] = f"no candles of {series.market} ({error.code}): {error.message}"

    async def _closed(self, port: VenuePort, series: Series, limit: int) -> list[Closed]:
        answer = await port.candles(series.market, series.interval, min(limit, CANDLES_MAX))
        theirs = answer.coin.removeprefix("perp:")
        if theirs != series.market:  # Positions and events say it so: we would take ours for nobody's.
            raise Refused("not_found", f"the service calls it {theirs}; write it so in the config")
        return _bars(series, answer.candles)


def _bars(series: Series, candles: Iterable[Candle]) -> list[Closed]:
    """Closed bars in order, none twice, whatever the answer repeats."""
    step_ms = INTERVAL_MS[series.interval]
    found: list[Closed] = []
    for one in sorted(candles, key=lambda candle: candle.ts):
        at_ms = one.ts + step_ms
        if not one.closed or (found and found[-1].at_ms == at_ms):
            continue
        bar = Bar(
            series.market, at_ms, float(one.open), float(one.high), float(one.low), float(one.close), float(one.volume)
        )
        found.append(Closed(at_ms, series.market, series.interval, bar))
    return found

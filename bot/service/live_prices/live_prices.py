"""The task that keeps live markets at the prices of their source: sessions with the source, one after another, with
growing waits after failures.

A session reads quotes and fetches closed minutes. It ends when the source fails, when it is silent, and after a day,
because old connections degrade.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

from bot.clock import DAY_MS, SECOND_MS
from bot.logs import log
from bot.market_data.source import Connection, LiveSource, Missing, NoAnswer, NotOffered, Quote, SourceError, Update
from bot.money import format_e8
from bot.service.live_prices.listings import open_live
from bot.service.live_prices.live_market import MINUTE_MS, LiveMarket, candle_of
from bot.service.state_machine.bootstrap import CLOSED_META
from bot.service.state_machine.machine import Machine
from bot.wire.vocabulary import INTERVAL_MS

# time without any quote; an open connection may be dead and raise nothing
SILENCE_MAX_MS: Final = 60_000
SESSION_MAX_MS: Final = DAY_MS
# wait after a minute's end, until the source has surely closed its candle
CLOSE_WAIT_MS: Final = 6_000
# tries to fetch a minute that the source had not closed by then
LATE_TRIES: Final = 3
LATE_WAIT_SECONDS: Final = 4.0
# markets whose minutes are fetched at once; the source keeps its own rate limit
FETCHES_MAX: Final = 8
# The bars of each interval above a minute.
HISTORY_BARS: Final = 1_000
# a kill may make a market forget the prices of this span; a pass of quotes takes less
SAVED_AGE_MS: Final = 5_000
# time between two sessions
WAIT_FIRST_SECONDS: Final = 1.0
WAIT_MAX_SECONDS: Final = 60.0

Sleep = Callable[[float], Awaitable[None]]


class NewConnection(NoAnswer):
    """The session ends because its connection is a day old; the source is there."""


class LivePrices:
    """The live markets of a machine's `nth` source. `opened` makes a source for each session."""

    def __init__(
        self,
        machine: Machine,
        opened: Callable[[str], LiveSource] = open_live,
        sleep: Sleep = asyncio.sleep,
        *,
        nth: int = 0,
    ) -> None:
        live = json.loads(machine.feed.options)["live"][nth]
        self.source: str = live["source"]
        self.sessions = 0
        # the present session has sent quotes
        self.is_connected = False
        # why the last session ended
        self.trouble: str | None = None
        self.connection = Connection(None, None)
        # data that the source fails to give, and why
        self.missing: dict[str, str] = {}
        self._machine = machine
        self._opened = opened
        self._sleep = sleep
        self.markets = [LiveMarket(machine, coin, symbol) for coin, symbol in live["symbols"].items()]
        self._by_symbol = {market.symbol: market for market in self.markets}
        # when the newest batch of quotes came
        self._heard_ms = 0
        # (due, ...)
        self._coarse = [(0, market, interval) for interval in list(INTERVAL_MS)[1:] for market in self.markets]
        # (coin, interval) that the log names
        self._not_offered: set[tuple[str, str]] = set()
        # what the database has
        self._saved: dict[str, int] | None = None

    def begin(self) -> None:
        """Close all markets until the source has sent prices."""
        self._machine.catch_up()
        for market in self.markets:
            market.close("the service has started and waits for the first prices", market.lived_ms)
        self._save_closed()

    async def run(self) -> None:
        """Hold sessions until cancelled."""
        wait = WAIT_FIRST_SECONDS
        while True:
            begun_ms = self._machine.clock.now_ms()
            try:
                await self.session()
            except SourceError as error:
                self.is_connected, self.trouble = False, str(error)
                if not isinstance(error, NewConnection):
                    self._close_all()
                log.warning("prices.disconnected", source=self.source, message=str(error), wait_seconds=wait)
            if self._machine.clock.now_ms() - begun_ms > SILENCE_MAX_MS:
                wait = WAIT_FIRST_SECONDS
            await self._wait(wait)
            wait = min(WAIT_MAX_SECONDS, wait * 2)

    def _close_all(self) -> None:
        """Open no position at the last prices while it is known that no newer ones come."""
        now_ms = self._machine.catch_up()
        for market in self.markets:
            market.close(f"{self.source} is not connected: {self.trouble}", now_ms)
        self._save_closed()

    async def session(self) -> None:
        """One connection with the source. SourceError when it fails."""
        self.sessions += 1
        self.connection, self.missing = Connection(None, None), {}
        async with self._opened(self.source) as source:
            self._heard_ms = begun_ms = self._machine.clock.now_ms()
            with _one_error():
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._read_quotes(source))
                    tasks.create_task(self._fetch_candles(source))
                    tasks.create_task(self._watch(begun_ms))

    async def _read_quotes(self, source: LiveSource) -> None:
        async for updates in source.quotes(list(self._by_symbol)):
            self.take_updates(updates)
        raise NoAnswer(f"{self.source} has ended the stream of quotes")

    def take_updates(self, updates: Sequence[Update]) -> None:
        """Apply a batch of what the source tells."""
        if any(isinstance(update, Quote) for update in updates):
            if not self.is_connected:
                self.is_connected, self.trouble = True, None
                log.info("prices.connected", source=self.source)
            self._heard_ms = self._machine.clock.now_ms()
        for update in updates:
            self._take(update)
        self._save_closed()

    def _take(self, update: Update) -> None:
        if isinstance(update, Connection):
            if update.transport != self.connection.transport:
                log.info("prices.transport", source=self.source, transport=update.transport)
            self.connection = update
        elif isinstance(update, Missing):
            if update.message is None:
                self.missing.pop(update.what, None)
            elif update.what not in self.missing:
                log.warning("prices.missing", source=self.source, what=update.what, message=update.message)
                self.missing[update.what] = update.message
        elif (market := self._by_symbol.get(update.symbol)) is not None:
            market.take(update)

    async def _fetch_candles(self, source: LiveSource) -> None:
        """Fetch the minutes of all markets after each minute's end. Fetch older coarse candles in the time between."""
        while True:
            now_ms = self._machine.clock.now_ms()
            closed_ms = (now_ms - CLOSE_WAIT_MS) // MINUTE_MS * MINUTE_MS
            end_ms = closed_ms + MINUTE_MS + CLOSE_WAIT_MS
            await self._fetch_minutes(source, self.markets)
            # The source's clock may be behind ours, or its candles come late.
            for _ in range(LATE_TRIES):
                late = [market for market in self.markets if market.candles.until_ms < closed_ms]
                if not late:
                    break
                await self._sleep(LATE_WAIT_SECONDS)
                await self._fetch_minutes(source, late)
            while self._coarse and self._coarse[0][0] <= self._machine.clock.now_ms() < end_ms:
                _, market, interval = self._coarse[0]
                again_ms = await self._fetch_coarse(source, market, interval)
                self._coarse = sorted((*self._coarse[1:], *again_ms), key=itemgetter(0))
            await self._sleep(max(0, end_ms - self._machine.clock.now_ms()) / SECOND_MS)

    async def _fetch_minutes(self, source: LiveSource, markets: Sequence[LiveMarket]) -> None:
        """Fetch the closed minutes of some markets, of a few at a time."""
        waiting = iter(markets)

        async def fetch() -> None:
            for market in waiting:
                now_ms = self._machine.clock.now_ms()
                # Whole days, so that the coarse bars are whole.
                first_ms = min(market.lived_ms, now_ms - DAY_MS)
                since_ms = market.candles.until_ms or first_ms - first_ms % DAY_MS
                try:
                    market.take_minutes(await source.minutes(market.symbol, since_ms, _say))
                # The market was delisted. The other markets go on.
                except NotOffered as error:
                    market.close(str(error), self._machine.catch_up())
                self._save_closed()

        with _one_error():
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(FETCHES_MAX, len(markets))):
                    tasks.create_task(fetch())

    async def _fetch_coarse(
        self, source: LiveSource, market: LiveMarket, interval: str
    ) -> list[tuple[int, LiveMarket, str]]:
        """Fetch the history of an interval.

        Returns when to fetch it again, if a bar is missing or the source did not offer it.
        """
        now_ms = self._machine.clock.now_ms()
        # The market's minutes come first.
        if market.candles.whole_from_ms is None:
            return [(now_ms + MINUTE_MS, market, interval)]
        since_ms = now_ms - HISTORY_BARS * INTERVAL_MS[interval]
        try:
            pages = source.history(market.symbol, interval, since_ms - since_ms % DAY_MS, now_ms, _say)
            fetched = [page async for page in pages]
        except NotOffered as error:
            if (market.coin, interval) not in self._not_offered:
                self._not_offered.add((market.coin, interval))
                log.warning("prices.no_history", coin=market.coin, interval=interval, message=str(error))
            # The market may be listed again.
            return [(now_ms + MINUTE_MS, market, interval)]
        end_ms = market.candles.older(interval, [candle_of(row) for page in fetched for row in page.rows])
        if end_ms is None:
            return []
        return [(max(end_ms + CLOSE_WAIT_MS, now_ms + MINUTE_MS), market, interval)]

    async def _watch(self, begun_ms: int) -> None:
        """Watch the age of the prices. End the session when the source is silent, or after a day."""
        while True:
            await self._sleep(1.0)
            now_ms = self.check_ages()
            if now_ms - self._heard_ms > SILENCE_MAX_MS:
                raise NoAnswer(f"{self.source} has sent no quote for {SILENCE_MAX_MS // SECOND_MS} s")
            if now_ms - begun_ms > SESSION_MAX_MS:
                raise NewConnection(f"the daily new connection to {self.source}")

    async def _wait(self, seconds: float) -> None:
        """Wait between two sessions; the prices grow old meanwhile."""
        end_ms = self._machine.clock.now_ms() + int(seconds * SECOND_MS)
        while (left := (end_ms - self._machine.clock.now_ms()) / SECOND_MS) > 0:
            await self._sleep(min(1.0, left))
            self.check_ages()

    def check_ages(self) -> int:
        """Close the markets whose price is too old. Returns now."""
        now_ms = self._machine.catch_up()
        for market in self.markets:
            market.check_age(now_ms)
        self._save_closed()
        return now_ms

    def _save_closed(self) -> None:
        """Save up to when each market that is closed or silent has lived through its prices, so that the next start
        fills its gap.

        The caller saves in the same step of the event loop as the change, so that the database has both or neither
        after a kill.
        """
        recent_ms = self._machine.caught_ms - SAVED_AGE_MS
        closed = {
            market.coin: market.lived_ms
            for market in self.markets
            if market.closed_reason is not None or market.lived_ms < recent_ms
        }
        if closed != self._saved:
            self._saved = closed
            self._machine.log.save_meta(f"{CLOSED_META}:{self.source}", json.dumps(closed))

    # ── Status ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def body(self) -> dict[str, Any]:
        """The state of the prices, for GET /v1/system/status."""
        return {
            "source": self.source,
            "connected": self.is_connected,
            "trouble": self.trouble,
            "sessions": self.sessions,
            "transport": self.connection.transport,
            "clockDifferenceMs": self.connection.clock_difference_ms,
            "missing": dict(self.missing),
            "markets": [
                {
                    "coin": market.coin,
                    "symbol": market.symbol,
                    "open": market.closed_reason is None,
                    "reason": market.closed_reason,
                    "since": None if market.closed_reason is None else market.since_ms,
                    "quotedAt": market.quoted_ms,
                    "markedAt": market.marked_ms,
                    "depthAt": market.depth_ms,
                    "fundingAt": market.funding_ms,
                    "refused": dict(market.filter.refused + market.mark_filter.refused),
                    "jump": None
                    if market.jump is None
                    else {
                        "fromPx": format_e8(market.jump.from_px),
                        "toPx": format_e8(market.jump.to_px),
                        "at": market.jump.at_ms,
                    },
                }
                for market in self.markets
            ],
        }


@contextmanager
def _one_error() -> Iterator[None]:
    """Raise one error of a task group by itself, first an unexpected one."""
    try:
        yield
    except ExceptionGroup as group:
        raise min(group.exceptions, key=lambda error: isinstance(error, SourceError)) from None


def _say(line: str) -> None:
    log.info("prices.source", message=line)

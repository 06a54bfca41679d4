"""The source ccxt: public market data of an exchange through the feeder process. `ccxt:binance`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, Final, Self

from bot.clock import MINUTE_MS, SECOND_MS, Clock, SystemClock, iso
from bot.market_data.feeder_client import URL, Failure, FeederProcess
from bot.market_data.paging import CLOSE_MARGIN_MS, PageAnswer, Pager
from bot.market_data.source import (
    AccessDenied,
    Action,
    Connection,
    Depth,
    FundingRate,
    Instrument,
    Mark,
    Missing,
    NoAnswer,
    NotOffered,
    Page,
    Quote,
    Rate,
    Row,
    Say,
    SourceError,
    Update,
)
from bot.wire.vocabulary import INTERVAL_MS

# kinds of failure that may pass
PASSES: Final = ("busy", "unreachable")
# The tries of one request: with the waits between them about a minute.
TRIES_MAX: Final = 7
# tries before the exchange has answered at all: it probably cannot be reached
TRIES_FIRST_MAX: Final = 2
WAIT_FIRST_MS: Final = 500
# the longest wait of our own
WAIT_MS: Final = 30_000
# the longest wait that an exchange may ask for; beyond it the pull ends
WAIT_TOLD_MS: Final = 10 * 60 * SECOND_MS
# a larger difference of the clocks is told
CLOCK_MS: Final = 5_000
RATES_ASKED: Final = 500
# minutes in one request: fewer than every exchange's page limit
MINUTES_ASKED_MAX: Final = 100
_NAME: Final = re.compile(r"[a-z0-9_]{1,40}")

_WORD: Final = {
    "unknown_exchange": NotOffered,
    "unknown_symbol": NotOffered,
    "unsupported": NotOffered,
    "country": AccessDenied,
    "key": AccessDenied,
    "busy": NoAnswer,
    "unreachable": NoAnswer,
}
_WAY: Final = {
    "country": "the exchange refuses requests from this country; choose another exchange that may be used here",
    "key": (
        "the exchange gives market data only to holders of an API key, and none is used here; choose another exchange"
    ),
    "busy": "the exchange limits requests from this address; run the same command again later",
    "unreachable": (
        "check the network of this machine and the status page of the exchange, then run the same command again"
    ),
}


class CcxtSource:
    """One exchange. `sleep` and `clock` are arguments for tests."""

    revises_history = False

    def __init__(
        self,
        exchange: str,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        feeder: FeederProcess | None = None,
    ) -> None:
        if not _NAME.fullmatch(exchange):
            raise NotOffered(f"source ccxt:{exchange}: write the exchange behind the colon, for example ccxt:binance")
        self.name = f"ccxt:{exchange}"
        self._exchange = exchange
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._feeder = feeder or FeederProcess()
        self._answered = False
        self._clock_told = False
        if self._feeder.base_url is not None:
            # recorded in the store, so that its prices never pass for the exchange's
            self.name += "@local"

    async def __aenter__(self) -> Self:
        await self._feeder.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._feeder.__aexit__(*error)

    async def instruments(self, say: Say) -> list[Instrument]:
        names = {field.name for field in fields(Instrument)}
        if self._feeder.base_url is not None:
            say(f"{URL} is set: all prices come from {self._feeder.base_url}, not from {self._exchange}")
        result = (await self._ask("instruments", say))["result"]
        return [Instrument(**{name: value for name, value in row.items() if name in names}) for row in result]

    async def history(self, symbol: str, interval: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[Page]:
        async def fetch(interval: str, since_ms: int, limit: int) -> PageAnswer:
            body = await self._ask("candles", say, symbol=symbol, interval=interval, since_ms=since_ms, limit=limit)
            return PageAnswer([_row(cells) for cells in body["result"]], self._now_ms(body["now_ms"], say))

        pager = Pager(fetch, interval, INTERVAL_MS[interval], until_ms, has_days=await self._has_days(symbol, say))
        async for page in pager.pages(since_ms):
            yield page

    async def funding(self, symbol: str, since_ms: int, until_ms: int, say: Say) -> AsyncIterator[list[Rate]]:
        at_ms = since_ms
        while at_ms < until_ms:
            body = await self._ask("funding", say, symbol=symbol, since_ms=at_ms, limit=RATES_ASKED)
            rates = sorted(Rate(int(at), float(rate)) for at, rate in body["result"] if at >= at_ms)
            if not rates:
                return
            at_ms = rates[-1].at_ms + 1
            now_ms = self._now_ms(body["now_ms"], say)
            yield [rate for rate in rates if rate.at_ms < min(until_ms, now_ms)]

    async def quotes(self, symbols: Sequence[str]) -> AsyncIterator[list[Update]]:
        connection = Connection(None, None)
        try:
            async for body in self._feeder.stream("watch", exchange=self._exchange, symbols=list(symbols)):
                updates = _updates(body)
                now = self._connection(body, connection)
                if now != connection:
                    connection = now
                    updates.append(now)
                yield updates
        except Failure as error:
            raise self._named(error) from None

    def _connection(self, body: dict[str, Any], before: Connection) -> Connection:
        """How the source is reached, after this line of the feeder.

        A Date header has whole seconds, on average half a second too early.
        """
        difference, exchange_ms = before.clock_difference_ms, body.get("now_ms")
        if exchange_ms is not None:
            difference = exchange_ms + SECOND_MS // 2 - self._clock.now_ms()
        return Connection(body.get("transport") or before.transport, difference)

    async def minutes(self, symbol: str, since_ms: int, say: Say) -> Page:
        limit = (self._clock.now_ms() - since_ms) // MINUTE_MS + 2
        # A longer gap: page through it.
        if limit > MINUTES_ASKED_MAX:
            pages = [page async for page in self.history(symbol, "1m", since_ms, self._clock.now_ms(), say)]
            rows = [row for page in pages for row in page.rows]
            return Page(rows, rows[-1].at_ms + MINUTE_MS if rows else since_ms)
        # The minute before `since_ms` is asked for too: an answer that contains that minute is complete. ccxt gives an
        # empty answer when it cannot read the exchange.
        before_ms = since_ms - MINUTE_MS
        body = await self._ask("candles", say, symbol=symbol, interval="1m", since_ms=before_ms, limit=limit + 1)
        end_ms = self._now_ms(body["now_ms"], say) - CLOSE_MARGIN_MS
        end_ms -= end_ms % MINUTE_MS
        received = sorted({_row(cells) for cells in body["result"] if cells[0] >= before_ms})
        if any(a.at_ms == b.at_ms for a, b in pairwise(received)):
            raise NoAnswer(f"{self._exchange} gives two different candles of one minute of {symbol}")
        rows = [row for row in received if row.at_ms >= since_ms]
        closed = [row for row in rows if row.at_ms + MINUTE_MS <= end_ms]
        sure_ms = closed[-1].at_ms + MINUTE_MS if closed else since_ms
        # A minute without a candle had no trade, or its candle comes up to a minute late. An answer with a row before
        # or after that minute is complete.
        if len(closed) < len(rows) or (received and received[0].at_ms == before_ms):
            sure_ms = max(sure_ms, end_ms - MINUTE_MS)
        return Page(closed, sure_ms)

    async def actions(self, symbol: str) -> list[Action]:
        return []

    async def _has_days(self, symbol: str, say: Say) -> bool:
        """Whether the exchange has daily candles."""
        try:
            await self._ask("candles", say, symbol=symbol, interval="1d", since_ms=self._clock.now_ms(), limit=1)
        except NotOffered:
            return False
        return True

    def _now_ms(self, exchange_ms: int | None, say: Say) -> int:
        """The earlier one of both clocks, so that a wrong clock cannot make an unfinished candle look closed."""
        own_ms = self._clock.now_ms()
        if exchange_ms is None:
            return own_ms
        if abs(exchange_ms - own_ms) > CLOCK_MS and not self._clock_told and self._feeder.base_url is None:
            self._clock_told = True
            apart = f"{abs(exchange_ms - own_ms) / SECOND_MS:,.0f} s {'behind' if own_ms < exchange_ms else 'ahead of'}"
            say(
                f"the clock of this machine is {apart} the clock of {self._exchange}; set it (timedatectl set-ntp true)"
            )
        return min(own_ms, exchange_ms)

    async def _ask(self, op: str, say: Say, **wanted: Any) -> dict[str, Any]:
        """One request, repeated with growing waits while its failure may pass."""
        wait_ms = WAIT_FIRST_MS
        for tried in range(1, TRIES_MAX + 1):
            try:
                body = await self._feeder.ask(op, exchange=self._exchange, **wanted)
                self._answered = True
                return body
            except Failure as error:
                last = tried == (TRIES_MAX if self._answered or error.kind == "busy" else TRIES_FIRST_MAX)
                told_ms = error.after_ms or 0
                if error.kind not in PASSES or last or told_ms > WAIT_TOLD_MS:
                    raise self._named(error) from None
                wait = max(wait_ms, told_ms)
                why = "asks to wait" if told_ms else f"has not answered: {error}"
                say(f"{self._exchange} {why}; next try in {wait / SECOND_MS:,.1f} s")
                await self._sleep(wait / SECOND_MS)
                wait_ms = min(WAIT_MS, wait_ms * 2)
        raise AssertionError("the last try returns or raises")

    def _named(self, error: Failure) -> SourceError:
        way = _WAY.get(error.kind)
        if error.kind == "busy" and error.after_ms:
            way = (
                f"the exchange accepts no request until {iso(self._clock.now_ms() + error.after_ms)}; run the same"
                " command again then"
            )
        if error.kind == "unreachable" and self._feeder.base_url is not None:
            way = f"{way} ({URL} sends all requests to {self._feeder.base_url})"
        return _WORD.get(error.kind, SourceError)(f"{error}" + (f"\n{way}" if way else ""))


def open_source(argument: str) -> CcxtSource:
    """The source of `ccxt:ARGUMENT`."""
    return CcxtSource(argument)


def _updates(body: dict[str, Any]) -> list[Update]:
    """The data of one line of `watch`."""
    updates: list[Update] = [Quote(*cells) for cells in body.get("quotes", ())]
    updates += [Mark(*cells) for cells in body.get("marks", ())]
    for symbol, bids, asks in body.get("books", ()):
        updates.append(Depth(symbol, *([(px, size) for px, size in side] for side in (bids, asks))))
    updates += [FundingRate(*cells) for cells in body.get("rates", ())]
    if "missing" in body:
        updates.append(Missing(*body["missing"]))
    return updates


def _row(cells: list[Any]) -> Row:
    at_ms, *prices = cells[:6]
    o, h, low, c, volume = (0.0 if value is None else float(value) for value in prices)
    return Row(int(at_ms), o, h, low, c, volume)

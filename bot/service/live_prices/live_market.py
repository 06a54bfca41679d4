"""One live market: its quotes, the age of its price, and whether it is open for new positions. Moves the machine; reads no clock and no network."""

from __future__ import annotations

from collections import deque
from typing import Final

import structlog

from bot.market_data.quote_filter import QuoteFilter, scaled
from bot.market_data.source import Depth, FundingRate, Mark, Page, Quote, Row
from bot.service.market_data.live_candles import LiveCandles
from bot.service.market_data.simulator import Candle
from bot.service.state_machine.machine import Machine
from bot.venue.commands import SetMarket
from bot.venue.quiet_band import INFINITY, band_of

log = structlog.get_logger()

MINUTE_MS: Final = 60_000
AGE_MAX_MS: Final = 30_000  # of a price; an older one closes the market for new positions
WAITING_MAX: Final = 3_600  # quotes that wait for the candles of a gap


class LiveMarket:
    """A market and its place in the stream of prices.

    While the market is closed, its quotes wait. The market opens when the closed minutes reach the first quote that waits: the machine applies the
    missed minutes in order, then the later quotes. A market without a position and without an order has nothing that a missed price could reach, so
    it opens with the first quote.
    """

    def __init__(self, machine: Machine, coin: str, symbol: str) -> None:
        lived_ms = machine.feed.live()[coin].lived_ms
        self.coin = coin
        self.symbol = symbol
        self.filter = QuoteFilter()
        self.closed_reason: str | None = None  # None: open
        self.since_ms = lived_ms  # when it closed
        self.lived_ms = lived_ms  # every price before it was applied
        self.quoted_ms: int | None = None  # when the newest accepted quote came
        self._machine = machine
        self._waiting: deque[tuple[int, int]] = deque(maxlen=WAITING_MAX)  # (instant, price), by the source's clock
        self._missed: list[Candle] = []

    @property
    def candles(self) -> LiveCandles:
        """The candles that clients see."""
        return self._machine.feed.live()[self.coin]

    def close(self, reason: str, at_ms: int) -> None:
        """Refuse new positions until the source is back. Positions may be closed at the last price."""
        if self.closed_reason is not None:
            return
        self.closed_reason, self.since_ms = reason, at_ms
        if self._machine.state.markets[self.coin].external != "closed":
            self._machine.run(SetMarket(self.coin, external="closed"))
        log.warning("market.closed", coin=self.coin, reason=reason, at_ms=at_ms)

    def take(self, update: Quote | Mark | Depth | FundingRate) -> None:
        """Apply what the source tells about this market."""
        if isinstance(update, Quote):
            self.take_quote(update)

    def take_quote(self, quote: Quote) -> None:
        """Apply a quote, or keep it while the market is closed."""
        px = self.filter.price(quote)
        if px is None:
            return
        if self.closed_reason is None:
            self.lived_ms = self.quoted_ms = self._machine.live_price(self.coin, px)
            self._missed.clear()  # The silence before this quote was too short to be a gap.
            return
        self.quoted_ms = self._machine.clock.now_ms()
        self._waiting.append((self.quoted_ms if quote.at_ms is None else quote.at_ms, px))
        self.open_if_ready()

    def take_minutes(self, page: Page) -> None:
        """Add closed minutes. Open the market if they reach the first quote that waits."""
        fresh = self.candles.extend([candle_of(row) for row in page.rows], page.until_ms)
        self._missed += [candle for candle in fresh if candle.ts + MINUTE_MS > self.lived_ms]
        if self.closed_reason is not None:
            self.open_if_ready()

    def check_age(self, now_ms: int) -> None:
        """Close the market if its newest price is too old."""
        newest = self.quoted_ms
        if newest is None or now_ms - newest > AGE_MAX_MS:
            self._waiting.clear()  # Older quotes say nothing about now.
            self.close(f"no price for {AGE_MAX_MS // 1_000} s", now_ms)

    def open_if_ready(self) -> None:
        """Live through the gap and open, if a fresh quote waits and every price before it is known or can reach nothing."""
        if not self._waiting or (self._has_levels() and self.candles.until_ms < self._waiting[0][0]):
            return
        missed, self._missed, self.closed_reason = self._missed, [], None
        self._machine.catch_up()
        self._machine.run(SetMarket(self.coin, external="open"))
        for candle in missed:
            if candle.ts < self.lived_ms:  # Part of this minute was lived through; only its close is certainly new.
                close = candle.close
                candle = Candle(candle.ts, close, close, close, close, candle.volume)
            self._machine.missed_candle(self.coin, candle)
        self.lived_ms = self._machine.caught_ms
        for at_ms, px in self._waiting:
            if at_ms >= self.candles.until_ms:  # The candles have the prices before it.
                self._machine.live_price(self.coin, px)
        self._waiting.clear()
        log.info("market.opened", coin=self.coin, missed_minutes=len(missed), at_ms=self.lived_ms)

    def _has_levels(self) -> bool:
        """Whether the market has anything that a price may reach: an order, a stop, a margin level."""
        band = band_of(self._machine.state, self.coin)
        return (band.lo, band.hi) != (-INFINITY, INFINITY)


def candle_of(row: Row) -> Candle:
    """A candle of the source, scaled 1e8."""
    return Candle(row.at_ms, *map(scaled, row[1:]))

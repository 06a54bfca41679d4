"""One live market: its quotes, the age of its price, and whether it is open for new positions.

Moves the machine; reads no clock and no network.
"""

from __future__ import annotations

from collections import deque
from decimal import Decimal
from operator import attrgetter
from typing import Final

from bot.logs import log
from bot.market_data.quote_filter import Jump, QuoteFilter, Witness, is_near, scaled
from bot.market_data.source import Depth, FundingRate, Mark, Page, Quote, Row
from bot.money import format_e8
from bot.service.live_prices.depth import book_of
from bot.service.market_data.live_candles import LiveCandles
from bot.service.market_data.simulator import GridCandle
from bot.service.state_machine.machine import Machine
from bot.venue.model.commands import SetBook, SetMarket
from bot.venue.model.numbers import E8, E12
from bot.venue.model.state import HOUR_MS
from bot.venue.prices.quiet_band import INFINITY, band_of

MINUTE_MS: Final = 60_000
# The age of a price. An older one closes the market for new positions.
AGE_MAX_MS: Final = 30_000
# quotes that wait for the candles of a gap
WAITING_MAX: Final = 3_600
# time without a quote; then the best prices of the book are one
QUIET_MS: Final = 10_000
# The rate of an hour, as in the venue. A larger one is not believed.
FUNDING_CAP: Final = 4 * E12 // 100


class LiveMarket:
    """A market and its place in the stream of prices.

    While the market is closed, its quotes wait. The market opens when the closed minutes reach the first quote that
    waits: the machine applies the missed minutes in order, then the later quotes. A market without a position and
    without an order has nothing that a missed price could reach, so it opens with the first quote.
    """

    def __init__(self, machine: Machine, coin: str, symbol: str) -> None:
        lived_ms = machine.feed.live()[coin].lived_ms
        self.coin = coin
        self.symbol = symbol
        # The price before a restart: a wrong price that stands when the service starts is a jump too.
        last = machine.state.markets[coin].mark or None
        self.filter = QuoteFilter(last=last)
        # None: the market is open
        self.closed_reason: str | None = None
        # when it closed
        self.since_ms = lived_ms
        # every price before it was applied
        self.lived_ms = lived_ms
        # when the newest accepted quote came
        self.quoted_ms: int | None = None
        self.mark_filter = QuoteFilter(last=last)
        # when the newest mark of the source came
        self.marked_ms: int | None = None
        self.depth_ms: int | None = None
        self.funding_ms: int | None = None
        self._mark = 0
        # the newest bid and ask
        self._top: tuple[int, int] | None = None
        # The half spread of a source that sends no bid and ask.
        self._half_spread = machine.state.markets[coin].spec.half_spread
        self._machine = machine
        # The source's instant, mark, bid and ask of each quote that waits.
        self._waiting: deque[tuple[int, int, int, int]] = deque(maxlen=WAITING_MAX)
        self._missed: list[GridCandle] = []
        # the jump that the log has named, of price and mark
        self._told: dict[str, Jump] = {}

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
        elif isinstance(update, Mark):
            self._take_mark(update)
        elif isinstance(update, Depth):
            self._take_depth(update)
        else:
            self._take_funding(update)

    def take_quote(self, quote: Quote) -> None:
        """Apply a quote, or keep it while the market is closed."""
        px = self.filter.price(quote, self._machine.clock.now_ms(), self._witness(self.filter, self.mark_filter))
        self._tell_jump(self.filter, "price")
        if px is None:
            return
        if quote.bid is None or quote.ask is None:
            half = px * self._half_spread // E8
            self._top = px - half, px + half
        else:
            self._top = scaled(quote.bid), scaled(quote.ask)
        self.quoted_ms = self._machine.clock.now_ms()
        self._move(quote.at_ms, *self._top)

    def _move(self, at_ms: int | None, bid: int, ask: int) -> None:
        """Apply the newest prices, or keep them while the market is closed."""
        now_ms = self._machine.clock.now_ms()
        told_ms = now_ms if at_ms is None else at_ms
        is_marked = self.marked_ms is not None and now_ms - self.marked_ms <= AGE_MAX_MS
        mark = self._mark if is_marked else (bid + ask) // 2
        if self.closed_reason is None:
            self.lived_ms = self._machine.live_quote(self.coin, mark, bid, ask)
            # The silence before this quote was too short to be a gap. A repeated old quote says nothing about later
            # minutes.
            self._missed = [candle for candle in self._missed if candle.ts + MINUTE_MS > told_ms]
            return
        self._waiting.append((told_ms, mark, bid, ask))
        self.open_if_ready()

    def _take_mark(self, mark: Mark) -> None:
        told = Quote(mark.symbol, mark.at_ms, None, None, mark.px)
        px = self.mark_filter.price(told, self._machine.clock.now_ms(), self._witness(self.mark_filter, self.filter))
        self._tell_jump(self.mark_filter, "mark")
        if px is None:
            return
        self._mark, self.marked_ms = px, self._machine.clock.now_ms()
        if self._top is not None and self.closed_reason is None:
            self._move(mark.at_ms, *self._top)

    def _witness(self, kept: QuoteFilter, other: QuoteFilter) -> Witness:
        """What else says that a jump of this kind, price or mark, is true: a closed candle since the last price, or
        the newest of the other kind.
        """

        def says(px: int) -> bool | None:
            now_ms = self._machine.clock.now_ms()
            if any(is_near(min(max(px, candle.low), candle.high), px) for candle in self._missed):
                return True
            if other.seen is not None and now_ms - other.seen[1] <= AGE_MAX_MS:
                return is_near(px, other.seen[0])
            # False if a whole minute since the jump has not reached the price.
            return False if any(candle.ts >= kept.held_since_ms for candle in self._missed) else None

        return says

    def _tell_jump(self, kept: QuoteFilter, what: str) -> None:
        """Log a jump that has become a price."""
        if kept.jump is None or kept.jump is self._told.get(what):
            return
        self._told[what] = kept.jump
        from_px, to_px = format_e8(kept.jump.from_px), format_e8(kept.jump.to_px)
        log.warning("prices.jump_accepted", coin=self.coin, what=what, from_px=from_px, to_px=to_px)

    @property
    def jump(self) -> Jump | None:
        """The newest jump of price or mark that was accepted."""
        return max(filter(None, (self.filter.jump, self.mark_filter.jump)), key=attrgetter("at_ms"), default=None)

    def _take_depth(self, depth: Depth) -> None:
        """Give the venue's book the shape of the exchange's.

        If no quote came for QUIET_MS because the price did not change, the best prices of the book count as a quote.
        """
        now_ms = self._machine.catch_up()
        listed = self._machine.state.markets[self.coin]
        book = book_of(listed, depth)
        if book is None:
            return
        self.depth_ms = now_ms
        if book != (listed.spec.level_step, listed.spec.level_size, listed.spec.level_growth):
            self._machine.run(SetBook(self.coin, *book))
        if self.quoted_ms is not None and now_ms - self.quoted_ms > QUIET_MS:
            self.take_quote(Quote(depth.symbol, None, depth.bids[0][0], depth.asks[0][0], None))

    def _take_funding(self, funding: FundingRate) -> None:
        """Set the rate, which is paid whole at the exchange's instants."""
        # A rate that is not a number is refused too.
        if not abs(funding.rate) * E12 <= FUNDING_CAP * funding.hours:
            log.warning("prices.funding_refused", coin=self.coin, rate=funding.rate, hours=funding.hours)
            return
        paid_ms = ((funding.paid_ms or 0) + HOUR_MS // 2) // HOUR_MS * HOUR_MS % (funding.hours * HOUR_MS)
        rate = int(Decimal(repr(funding.rate)) * E12), funding.hours, paid_ms
        self.funding_ms = self._machine.catch_up()
        listed = self._machine.state.markets[self.coin]
        if not listed.is_rate_recorded or (listed.funding_rate, listed.funding_hours, listed.funding_ms) != rate:
            self._machine.run(SetMarket(self.coin, funding_rate=rate[0], funding_hours=rate[1], funding_ms=rate[2]))

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
            # Older quotes say nothing about now.
            self._waiting.clear()
            self.close(self._why_old(), now_ms)

    def _why_old(self) -> str:
        held = self.filter.held_jump
        if held is None:
            return f"no price for {AGE_MAX_MS // 1_000} s"
        from_px, to_px = map(format_e8, held)
        return (
            f"the price jumped from {from_px} to {to_px}, and neither mark nor candle has confirmed it for"
            f" {AGE_MAX_MS // 1_000} s"
        )

    def open_if_ready(self) -> None:
        """Apply the missing minutes and reopen, if a fresh quote waits and each price before it is known or reaches
        nothing.
        """
        if not self._waiting or (self._has_levels() and self.candles.until_ms < self._waiting[0][0]):
            return
        missed, self._missed, self.closed_reason = self._missed, [], None
        self._machine.catch_up()
        self._machine.run(SetMarket(self.coin, external="open"))
        for candle in missed:
            # Part of this minute was lived through; only its close is certainly new.
            if candle.ts < self.lived_ms:
                close = candle.close
                candle = GridCandle(candle.ts, close, close, close, close, candle.volume)
            self._machine.missed_candle(self.coin, candle)
        self.lived_ms = max(self.lived_ms, min(self.candles.until_ms, self._machine.caught_ms))
        for at_ms, mark, bid, ask in self._waiting:
            # The candles have the prices before the quote.
            if at_ms >= self.candles.until_ms:
                self.lived_ms = self._machine.live_quote(self.coin, mark, bid, ask)
        self._waiting.clear()
        log.info("market.opened", coin=self.coin, missed_minutes=len(missed), at_ms=self.lived_ms)

    def _has_levels(self) -> bool:
        """Whether the market has anything that a price may reach: an order, a stop, a margin level."""
        band = band_of(self._machine.state, self.coin)
        return (band.lo, band.hi) != (-INFINITY, INFINITY)


def candle_of(row: Row) -> GridCandle:
    """A candle of the source, scaled 1e8."""
    return GridCandle(row.at_ms, *map(scaled, row[1:]))
